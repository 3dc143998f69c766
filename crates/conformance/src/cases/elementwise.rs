use tensor::ops::{Activation, Binary};
use tensor::{DType, HostTensor, Op};

use crate::case::{Case, Step};
use crate::values::Values;

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for (name, binary) in [("add", Binary::Add), ("mul", Binary::Mul)] {
        for (class, rows, width) in [("tiny", 1, 1), ("odd", 9, 37), ("large", 40, 1536), ("empty", 0, 5)] {
            out.push(two(name, Op::Binary(binary), class, rows, width, false));
        }
        out.push(two(name, Op::Binary(binary), "strided", 9, 45, true));
        out.push(broadcast(name, binary, 9, 37));
    }
    for act in Activation::ALL {
        let op = Op::Activate(act);
        let x = HostTensor::from_f32(&[3, EDGES.len()], &EDGES.repeat(3)).expect("three rows");
        out.push(one(act.name(), op.clone(), "edges", x));
        for (class, rows, width) in [("tiny", 1, 1), ("odd", 9, 37), ("large", 40, 1536), ("empty", 0, 5)] {
            out.push(one(act.name(), op.clone(), class, spread(act.name(), rows, width)));
        }
        let op = Op::GatedActivate(act);
        for (class, rows, width) in [("tiny", 1, 1), ("odd", 9, 37), ("large", 40, 1536), ("empty", 0, 5)] {
            out.push(two(op.name(), op.clone(), class, rows, width, false));
        }
        out.push(two(op.name(), op, "strided", 9, 48, true));
    }
    for (class, rows, factor) in [("odd", 9, 0.1), ("large", 40, -7.5), ("zero", 2, 0.0), ("empty", 0, 2.0)] {
        out.push(one("scale", Op::Scale { factor }, class, spread("scale", rows, 37)));
    }
    out
}

/// Where activation functions saturate, underflow, cancel or change their formula.
const EDGES: [f32; 30] = [
    0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, -1e-7, 1e-4, -1e-4, 0.5, -0.5, 1.0, -1.0, -5.0, 5.0,
    -9.0, 9.0, -13.5, -20.0, -87.0, 87.0, -88.5, 88.5, -90.0, -104.0, -200.0, 200.0, -1e4, 1e4,
];

/// Rows that cover -20 to 20.
fn spread(name: &str, rows: usize, width: usize) -> HostTensor {
    let mut values = Values::new(&format!("{name} {rows}"));
    values.floats(&[rows, width], 6.0)
}

fn one(name: &'static str, op: Op, class: &str, x: HostTensor) -> Case {
    Case {
        op: name,
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [].into(),
        steps: vec![Step { rows: vec![("x", x)], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| r.outputs(&r.b.op(op.clone(), &[r.input("x")]))),
    }
}

/// Both operands are tensors; strided, they are the two halves of one.
fn two(name: &'static str, op: Op, class: &str, rows: usize, width: usize, strided: bool) -> Case {
    let mut values = Values::new(&format!("{name} {class}"));
    let inputs = if strided {
        vec![("ab", values.rows(&[rows, 2 * width]))]
    } else {
        vec![("a", spread(name, rows, width)), ("b", values.rows(&[rows, width]))]
    };
    Case {
        op: name,
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [].into(),
        steps: vec![Step { rows: inputs, seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let (a, b) = if strided {
                let ab = r.input("ab");
                (r.b.slice(ab, 1, 0, width), r.b.slice(ab, 1, width, width))
            } else {
                (r.input("a"), r.input("b"))
            };
            r.outputs(&r.b.op(op.clone(), &[a, b]));
        }),
    }
}

fn broadcast(name: &'static str, binary: Binary, rows: usize, width: usize) -> Case {
    let mut values = Values::new(&format!("{name} broadcast"));
    Case {
        op: name,
        dtype: DType::F32,
        class: "broadcast".to_owned(),
        weights: [("row".to_owned(), values.floats(&[width], 1.0))].into(),
        steps: vec![Step { rows: vec![("x", values.rows(&[rows, width]))], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let row = r.b.broadcast_row(r.weight("row"), &[r.bucket(), width]);
            r.outputs(&r.b.op(Op::Binary(binary), &[r.input("x"), row]));
        }),
    }
}
