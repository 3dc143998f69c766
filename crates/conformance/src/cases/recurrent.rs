//! Short convolutions over state slots; steps continue from the slots that earlier ones stored.

use tensor::ops::NO_SNAP;
use tensor::{DType, HostTensor};

use crate::case::{Case, Step};
use crate::values::Values;

/// For each step, each sequence's first position, rows, the slot it reads and the slot its last row stores to.
pub(super) type Segments<'a> = &'a [&'a [(u32, u32, u32, u32)]];

const NONE: u32 = NO_SNAP;

pub(super) fn cases() -> Vec<Case> {
    let decode: Segments = &[&[(0, 9, 1, 1)], &[(9, 1, 1, 1)], &[(10, 1, 1, 1)], &[(11, 1, 1, 1)]];
    let ragged: Segments = &[
        &[(0, 6, 3, 3), (0, 1, 0, 0), (0, 3, 4, 4), (0, 0, 2, 2)],
        &[(6, 1, 3, 3), (1, 1, 0, 0), (3, 0, 4, 4), (0, 2, 2, 2)],
        &[(7, 4, 3, 3), (2, 2, 0, 0), (3, 5, 4, 4), (2, 1, 2, 2)],
    ];
    vec![
        case("tiny", 2, 1, &[&[(0, 1, 0, 0)]], false),
        case("odd", 3, 7, &[&[(0, 9, 0, 0)]], false),
        case("large", 4, 768, &[&[(0, 40, 0, 0), (0, 3, 1, 1)], &[(40, 1, 0, 0), (3, 1, 1, 1)]], false),
        case("empty", 3, 8, &[&[(0, 0, 0, 0)]], false),
        case("decode", 4, 16, decode, false),
        case("ragged", 4, 33, ragged, false),
        case("strided", 3, 24, ragged, true),
        // A slot that another sequence has left must not be seen by one that starts.
        case("new owner", 4, 8, &[&[(0, 9, 0, 0), (0, 2, 1, 1)], &[(0, 2, 0, 0), (2, 2, 1, 1)]], false),
        // One that continues from a slot it did not store last, and one that stores nothing.
        case("moved", 4, 8, &[&[(0, 5, 0, 2)], &[(5, 3, 2, NONE)], &[(5, 2, 2, 0)], &[(7, 1, 0, 0)]], false),
        case("draft rolled back", 3, 8, &[&[(0, 5, 0, 0)], &[(5, 3, 0, 1)], &[(5, 2, 0, 0)]], false),
    ]
}

/// The steps of these segments, with the inputs that `inputs` makes for so many rows, and how many slots there are. Two are
/// spare: the first rows of the first sequence are stored there too.
pub(super) fn steps(
    steps: Segments,
    mut inputs: impl FnMut(usize) -> Vec<(&'static str, HostTensor)>,
) -> (Vec<Step>, usize) {
    let named = |s: &(u32, u32, u32, u32)| s.2.max(if s.3 == NONE { 0 } else { s.3 });
    let spare = 1 + steps.iter().flat_map(|s| s.iter()).map(named).max().unwrap_or(0);
    let ids = |values: &[u32]| HostTensor::from_u32(&[values.len()], values).expect("a row");
    let step = |segments: &&[(u32, u32, u32, u32)]| {
        let pos: Vec<u32> = segments.iter().flat_map(|(first, n, ..)| *first..first + n).collect();
        let mut snap = vec![];
        for (s, (_, n, _, to)) in segments.iter().enumerate() {
            let start = snap.len();
            snap.resize(start + *n as usize, NO_SNAP);
            if s == 0 {
                snap[start..].iter_mut().zip([spare, spare + 1]).for_each(|(at, slot)| *at = slot);
            }
            if *n > 0 {
                *snap.last_mut().expect("a row") = *to;
            }
        }
        let extents: Vec<u32> = segments.iter().map(|s| s.1).collect();
        let reads: Vec<u32> = segments.iter().map(|s| s.2).collect();
        let mut rows = inputs(pos.len());
        rows.extend([("pos", ids(&pos)), ("snap", ids(&snap))]);
        Step { rows, seqs: vec![("extents", ids(&extents)), ("slots", ids(&reads))] }
    };
    (steps.iter().map(step).collect(), spare as usize + 2)
}

fn case(class: &str, taps: usize, dim: usize, segments: Segments, strided: bool) -> Case {
    let mut values = Values::new(&format!("short_conv {class}"));
    let (steps, count) =
        steps(segments, |rows| vec![("x", values.floats(&[rows, if strided { 3 * dim } else { dim }], 1.0))]);
    Case {
        op: "short_conv",
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [("w".to_owned(), values.floats(&[dim, taps], 0.6))].into(),
        steps,
        refuses: false,
        record: Box::new(move |r| {
            let mut x = r.input("x");
            if strided {
                x = r.b.slice(x, 1, dim, dim);
            }
            let ring = r.state("ring", DType::F32, &[count, taps - 1, dim]);
            let step = ["pos", "extents", "slots", "snap"].map(|name| r.input(name));
            r.outputs(&[r.b.short_conv(x, r.weight("w"), ring, step).0]);
        }),
    }
}
