use tensor::{DType, HostTensor, Op};

use super::length;
use crate::case::{Case, Step};
use crate::values::Values;

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for (class, rows, experts, k) in
        [("tiny", 1, 1, 1), ("odd", 9, 7, 3), ("large", 40, 128, 8), ("all", 3, 5, 5), ("empty", 0, 4, 2)]
    {
        for renormalise in [false, true] {
            out.push(route(class, rows, experts, k, renormalise, Logits::Distinct));
        }
    }
    for renormalise in [false, true] {
        out.push(route("ties", 12, 32, 6, renormalise, Logits::Ties));
        out.push(route("all equal", 2, 9, 4, renormalise, Logits::Equal));
    }
    for dtype in DType::WEIGHTS {
        let step = length(dtype, 1);
        for (class, rows, experts, k, n, slots) in [
            ("tiny", 1, 1, if dtype.is_quantised() { step } else { 1 }, 1, 1),
            ("odd", 9, 5, 2 * step, 7, 3),
            ("large", 13, 16, 256, 72, 4),
            ("empty", 0, 3, step, 4, 2),
        ] {
            for per_slot in [false, true] {
                out.push(expert_matmul(dtype, class, rows, [experts, n, k], slots, per_slot));
            }
        }
    }
    for (class, rows, slots, n) in
        [("tiny", 1, 1, 1), ("odd", 9, 3, 37), ("large", 33, 8, 512), ("empty", 0, 2, 4)]
    {
        out.push(expert_sum(class, rows, slots, n));
    }
    out
}

#[derive(Clone, Copy)]
enum Logits {
    /// Far enough apart that rounding chooses nothing.
    Distinct,
    /// Few values, many equal.
    Ties,
    /// One value.
    Equal,
}

fn route(class: &str, rows: usize, experts: usize, k: usize, renormalise: bool, kind: Logits) -> Case {
    let mut values = Values::new(&format!("route {class}"));
    let mut logits = vec![0.0f32; rows * experts];
    for row in logits.chunks_exact_mut(experts) {
        match kind {
            Logits::Equal => row.fill(-3.5),
            Logits::Ties => row.iter_mut().for_each(|l| *l = values.normal().round()),
            Logits::Distinct => {
                // A random order of multiples of 1/8.
                let mut order: Vec<usize> = (0..experts).collect();
                (1..experts).rev().for_each(|i| order.swap(i, values.below(i + 1)));
                row.iter_mut().zip(order).for_each(|(l, o)| *l = 0.125 * o as f32 - 4.0);
            }
        }
    }
    // The chosen ids become numbers through a table whose row e holds e.
    let table: Vec<f32> = (0..experts).flat_map(|e| [e as f32; 4]).collect();
    Case {
        op: "route",
        dtype: DType::F32,
        class: if renormalise { format!("{class} renormalised") } else { class.to_owned() },
        weights: [("table".to_owned(), HostTensor::from_f32(&[experts, 4], &table).expect("rows"))].into(),
        steps: vec![Step {
            rows: vec![("logits", HostTensor::from_f32(&[rows, experts], &logits).expect("rows"))],
            seqs: vec![],
        }],
        refuses: true,
        record: Box::new(move |r| {
            let (weights, chosen) = r.b.route(r.input("logits"), k, renormalise);
            let chosen = r.b.reshape(chosen, &[r.bucket() * k]);
            r.outputs(&[weights, r.b.gather(r.weight("table"), chosen)]);
        }),
    }
}

fn expert_matmul(
    dtype: DType,
    class: &str,
    rows: usize,
    w: [usize; 3],
    slots: usize,
    per_slot: bool,
) -> Case {
    let mut values = Values::new(&format!("expert_matmul {dtype} {class} {per_slot}"));
    let x = if per_slot { values.rows(&[rows, slots, w[2]]) } else { values.rows(&[rows, w[2]]) };
    let mut experts = values.ids(&[rows, slots], w[0]).u32s().expect("U32").to_vec();
    // Both ends of the table, and one expert twice in a row.
    experts.iter_mut().zip([w[0] as u32 - 1, 0, 0]).for_each(|(e, id)| *e = id);
    Case {
        op: "expert_matmul",
        dtype,
        class: if per_slot { format!("{class} per slot") } else { class.to_owned() },
        weights: [("w".to_owned(), values.weights(dtype, &w))].into(),
        steps: vec![Step {
            rows: vec![("x", x), ("experts", HostTensor::from_u32(&[rows, slots], &experts).expect("rows"))],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(|r| {
            r.outputs(&[r.b.expert_matmul(r.input("x"), r.weight("w"), r.input("experts"))])
        }),
    }
}

fn expert_sum(class: &str, rows: usize, slots: usize, n: usize) -> Case {
    let mut values = Values::new(&format!("expert_sum {class}"));
    Case {
        op: Op::ExpertSum.name(),
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [].into(),
        steps: vec![Step {
            rows: vec![
                ("each", values.rows(&[rows, slots, n])),
                ("weights", values.floats(&[rows, slots], 0.5)),
            ],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(|r| r.outputs(&[r.b.expert_sum(r.input("each"), r.input("weights"))])),
    }
}
