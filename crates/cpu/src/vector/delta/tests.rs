//! The kernel against the reference, and its bits whatever the instruction set, the steps and the parts.

use super::*;
use conformance::values::Values;
use tensor::ops::NO_SNAP;
use tensor::{HostTensor, Op};

const SCALE: f32 = 0.25;
const EPS: f32 = 1e-6;

/// Widths, and the rows of one sequence, in the order of the op's operands.
struct Inputs {
    key_heads: usize,
    heads: usize,
    dk: usize,
    dv: usize,
    rows: usize,
    given: Vec<HostTensor>,
}

impl Inputs {
    fn new([key_heads, heads, dk, dv]: [usize; 4], rows: usize) -> Inputs {
        let mut values = Values::new(&format!("{key_heads} {heads} {dk} {dv} {rows}"));
        let mut floats = |dims: &[usize], scale| values.floats(dims, scale);
        let mut given = vec![floats(&[rows, key_heads, dk], 1.0), floats(&[rows, key_heads, dk], 2.0)];
        given.extend([floats(&[rows, heads, dv], 1.0), floats(&[rows, heads], 1.0)]);
        given.push(floats(&[rows, heads], 1.0));
        given[3].f32s_mut().unwrap().iter_mut().for_each(|g| *g = -(*g * *g) / 4.0);
        given[4].f32s_mut().unwrap().iter_mut().for_each(|b| *b = b.abs().min(1.0));
        Inputs { key_heads, heads, dk, dv, rows, given }
    }

    fn part(&self, operand: usize, rows: Range<usize>) -> &[f32] {
        let all = self.given[operand].f32s().unwrap();
        let width = all.len() / self.rows;
        &all[rows.start * width..rows.end * width]
    }

    /// Results of some rows that go on from a slot and store to it, and the states after them.
    fn run(
        &self,
        isa: CpuIsa,
        rows: Range<usize>,
        state: &mut [f32],
        [from, to]: [u32; 2],
        parts: &[usize],
    ) -> Vec<f32> {
        let n = rows.len();
        // A row more than is used is padding.
        let padded = |operand: usize| {
            let mut x = self.part(operand, rows.clone()).to_vec();
            x.resize(x.len() / n * (n + 1), 7.0);
            x
        };
        let all = [0, 1, 2, 3, 4].map(padded);
        let (keys, wide) = (self.key_heads * self.dk, self.heads * self.dv);
        let [q, k] = [0, 1].map(|i| Rows::new(&all[i], keys));
        let [log_decay, beta] = [3, 4].map(|i| Rows::new(&all[i], self.heads));
        let pos: Vec<u32> = rows.clone().map(|p| p as u32).collect();
        let mut snap = vec![NO_SNAP; n];
        snap[n - 1] = to;
        let rule = DeltaRule {
            q,
            k,
            v: Rows::new(&all[2], wide),
            log_decay,
            beta,
            dk: self.dk,
            dv: self.dv,
            scale: SCALE,
            eps: EPS,
            segments: Segments { extents: &[n as u32], slots: &[from], pos: &pos, snap: &snap },
        };
        let mut out = vec![5.0; (n + 1) * wide];
        let state = SharedSlice::new(state);
        let mut start = 0;
        for end in parts.iter().map(|p| (*p).min(rule.parts())).chain([rule.parts()]) {
            // SAFETY: one thread, one sequence.
            unsafe { delta_rule(isa, rule, state, start..end.max(start), RowsMut::new(&mut out, wide)) };
            start = end.max(start);
        }
        assert!(out[n * wide..].iter().all(|y| *y == 0.0));
        out.truncate(n * wide);
        out
    }

    fn slots(&self, count: usize) -> Vec<f32> {
        // Slots hold rubbish before they are written.
        vec![f32::NAN; count * self.heads * self.dk * self.dv]
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

const WIDTHS: [[usize; 4]; 7] = [
    [1, 1, 1, 1],
    [1, 3, 5, 7],
    [2, 4, 16, 16],
    [1, 2, 33, 40],
    [2, 2, 20, 64],
    [1, 1, 128, 128],
    [1, 2, 17, 150],
];

#[test]
fn results_are_those_of_the_reference() {
    for widths in WIDTHS {
        let inputs = Inputs::new(widths, 70);
        let mut state = inputs.slots(1);
        let y = inputs.run(CpuIsa::detect(), 0..70, &mut state, [0, 0], &[]);
        let op = Op::GatedDeltaRule { scale: SCALE, eps: EPS };
        let ids = |ids: &[u32]| HostTensor::from_u32(&[ids.len()], ids).unwrap();
        let mut args = inputs.given.clone();
        args.push(HostTensor::from_f32(&[1, widths[1], widths[2], widths[3]], &state).unwrap());
        let mut snap = vec![NO_SNAP; 70];
        snap[69] = 0;
        args.extend([ids(&(0..70).collect::<Vec<_>>()), ids(&[70]), ids(&[0]), ids(&snap)]);
        let bounds = op.bounds(&args, tensor::ops::Precision::Exact).unwrap().swap_remove(0);
        let want = op.reference(&mut args).unwrap().swap_remove(0);
        for ((have, want), bound) in y.iter().zip(want.f32s().unwrap()).zip(bounds) {
            assert!(f64::from((have - want).abs()) <= bound, "{widths:?}: {have} for {want} within {bound}");
        }
        let want = args[5].f32s().unwrap();
        let largest = want.iter().fold(0f32, |m, s| m.max(s.abs()));
        let near = state.iter().zip(want).all(|(have, want)| (have - want).abs() <= 1e-5 * largest);
        assert!(near, "{widths:?}: the state");
    }
}

#[test]
fn bits_depend_on_no_step_no_part_and_no_instruction_set() {
    for widths in WIDTHS {
        let inputs = Inputs::new(widths, 70);
        let mut whole_state = inputs.slots(1);
        let whole = inputs.run(CpuIsa::detect(), 0..70, &mut whole_state, [0, 0], &[]);
        for isa in CpuIsa::available() {
            for (chunk, parts) in
                [(70, &[1, 4][..]), (1, &[]), (2, &[3]), (16, &[2, 5]), (64, &[6]), (33, &[1])]
            {
                // Each step stores to another slot than it reads.
                let (mut state, mut y) = (inputs.slots(2), vec![]);
                let mut slots = [0, 1];
                for start in (0..70).step_by(chunk) {
                    y.extend(inputs.run(isa, start..(start + chunk).min(70), &mut state, slots, parts));
                    slots.swap(0, 1);
                }
                assert!(bits(&y) == bits(&whole), "{isa}, chunks of {chunk}, {widths:?}");
                let last = slots[0] as usize * whole_state.len();
                let state = &state[last..][..whole_state.len()];
                assert!(bits(state) == bits(&whole_state), "{isa}, chunks of {chunk}, {widths:?}: the state");
            }
        }
    }
}

#[test]
#[should_panic(expected = "outside 0..16")]
fn slots_that_are_not_there_are_refused() {
    let inputs = Inputs::new([1, 1, 4, 4], 2);
    inputs.run(CpuIsa::detect(), 0..2, &mut [0.0; 16], [0, 1], &[]);
}
