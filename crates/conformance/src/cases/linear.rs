use tensor::{DType, HostTensor, Op};

use super::length;
use crate::case::{Case, Step};
use crate::values::Values;

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for dtype in DType::WEIGHTS {
        for (class, known, blocks, rows) in
            [("tiny", 1, 1, 1), ("odd", 7, 3, 9), ("large", 300, 4, 40), ("empty", 3, 1, 0)]
        {
            out.push(gather(dtype, class, [known, length(dtype, blocks)], rows));
        }
        let step = length(dtype, 1);
        for (class, rows, k, n) in [
            ("tiny", 1, if dtype.is_quantised() { step } else { 1 }, 1),
            ("odd", 9, 3 * step, 7),
            ("vector", 1, 768, 192),
            ("large", 33, 512, 130),
            ("empty", 0, step, 5),
        ] {
            out.push(matmul(dtype, class, rows, k, n, View::Whole));
        }
        out.push(matmul(dtype, "strided", 5, 2 * step, 19, View::Columns));
        out.push(matmul(dtype, "rank 3", 3, step, 8, View::Heads));
        out.push(matmuls(dtype, "odd", 9, 3 * length(dtype, 1), &[5, 7, 3], &[true, false, true], false));
        out.push(matmuls(dtype, "large", 17, 768, &[96, 32, 32], &[true, true, true], false));
        out.push(matmuls(dtype, "pair", 2, 256, &[64, 64], &[false, false], false));
        out.push(matmuls(dtype, "one biased", 3, 256, &[33], &[true], true));
        out.push(matmuls(dtype, "empty", 0, 256, &[4, 4], &[true, false], false));
    }
    for (class, mix) in [
        ("q4_k and q6_k", [DType::Q4_K, DType::Q4_K, DType::Q6_K]),
        ("q5_0 and q8_0", [DType::Q5_0, DType::Q8_0, DType::Q5_0]),
        ("f32 and f16", [DType::F32, DType::F16, DType::F32]),
        ("q4_1 and f16", [DType::Q4_1, DType::F16, DType::Q4_1]),
    ] {
        out.push(mixed(class, mix));
    }
    out
}

fn gather(dtype: DType, class: &str, table: [usize; 2], rows: usize) -> Case {
    let mut values = Values::new(&format!("gather {dtype} {class}"));
    let mut ids = values.ids(&[rows], table[0]).u32s().expect("U32").to_vec();
    // The last row of the table, and ids that are none.
    let special = [table[0] as u32 - 1, table[0] as u32, u32::MAX];
    ids.iter_mut().rev().skip(1).zip(special).for_each(|(id, s)| *id = s);
    Case {
        op: "gather",
        dtype,
        class: class.to_owned(),
        weights: [("table".to_owned(), values.weights(dtype, &table))].into(),
        steps: vec![Step {
            rows: vec![("ids", HostTensor::from_u32(&[rows], &ids).expect("rows"))],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(|r| r.outputs(&[r.b.gather(r.weight("table"), r.input("ids"))])),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum View {
    Whole,
    /// Columns 16.. of a wider tensor.
    Columns,
    /// Three heads a row.
    Heads,
}

fn matmul(dtype: DType, class: &str, rows: usize, k: usize, n: usize, view: View) -> Case {
    let mut values = Values::new(&format!("matmul {dtype} {class}"));
    let x = match view {
        View::Whole => values.rows(&[rows, k]),
        View::Columns => values.rows(&[rows, k + 48]),
        View::Heads => values.rows(&[rows, 3, k]),
    };
    Case {
        op: "matmul",
        dtype,
        class: class.to_owned(),
        weights: [("w".to_owned(), values.weights(dtype, &[n, k]))].into(),
        steps: vec![Step { rows: vec![("x", x)], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let x = r.input("x");
            let x = if view == View::Columns { r.b.slice(x, 1, 16, k) } else { x };
            r.outputs(&[r.b.matmul(x, r.weight("w"))]);
        }),
    }
}

fn matmuls(
    dtype: DType,
    class: &str,
    rows: usize,
    k: usize,
    outputs: &[usize],
    biased: &[bool],
    strided: bool,
) -> Case {
    let mut values = Values::new(&format!("matmuls {dtype} {class}"));
    let types = vec![dtype; outputs.len()];
    fused(&mut values, dtype, class, rows, k, &types, outputs, biased, strided)
}

fn mixed(class: &str, types: [DType; 3]) -> Case {
    let mut values = Values::new(&format!("matmuls {class}"));
    fused(&mut values, types[0], class, 9, 512, &types, &[40, 24, 24], &[false, true, false], false)
}

#[allow(clippy::too_many_arguments)] // the axes of the case
fn fused(
    values: &mut Values,
    dtype: DType,
    class: &str,
    rows: usize,
    k: usize,
    types: &[DType],
    outputs: &[usize],
    biased: &[bool],
    strided: bool,
) -> Case {
    let mut weights = vec![];
    for (i, (n, dtype)) in outputs.iter().zip(types).enumerate() {
        weights.push((format!("w{i}"), values.weights(*dtype, &[*n, k])));
        if biased[i] {
            weights.push((format!("b{i}"), values.floats(&[*n], 1.0)));
        }
    }
    let x = values.rows(&[rows, if strided { k + 16 } else { k }]);
    let biased = biased.to_vec();
    Case {
        op: "matmuls",
        dtype,
        class: class.to_owned(),
        weights: weights.into_iter().collect(),
        steps: vec![Step { rows: vec![("x", x)], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let x = r.input("x");
            let mut operands = vec![if strided { r.b.slice(x, 1, 0, k) } else { x }];
            operands.extend((0..biased.len()).map(|i| r.weight(&format!("w{i}"))));
            let with_bias = (0..biased.len()).filter(|i| biased[*i]);
            operands.extend(with_bias.map(|i| r.weight(&format!("b{i}"))));
            r.outputs(&r.b.op(Op::MatMuls { biased: biased.clone() }, &operands));
        }),
    }
}
