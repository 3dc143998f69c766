//! Norms and rotary embedding.

use tensor::{DType, HostTensor, Op};

use crate::case::{Case, Step};
use crate::values::Values;

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for (class, rows, width, eps, scale) in [
        ("tiny", 1, 1, 1e-6, None),
        ("odd", 9, 37, 1e-5, None),
        ("large", 17, 2048, 1e-6, None),
        ("empty", 0, 8, 1e-5, None),
        // Here eps outside the root, or left out, is far off.
        ("eps rules", 3, 65, 1e-2, Some(1e-2)),
    ] {
        out.push(rms_norm(class, rows, width, eps, scale));
        out.push(add_rms_norm(class, rows, width, eps, scale));
    }
    out.push(head_norm("heads", 9, 5, 64));
    out.push(head_norm("odd heads", 3, 3, 6));
    for (class, pos, heads, width, rotary, base, magnitude) in [
        ("tiny", &[0][..], 1, 2, 2, 1e4, 1.0),
        ("odd", &[5, 6, 7, 0, 1], 3, 6, 6, 1e4, 1.0),
        ("large", &[0, 1, 2, 3, 100, 511, 4095, 2000, 77], 9, 128, 128, 1e6, 1.0),
        ("partial", &[4, 5, 9], 3, 80, 32, 1e4, 1.0),
        ("magnitude", &[0, 1, 17, 63], 2, 32, 32, 1e4, 1.277),
        ("far", &[1000, 32767, 131071], 2, 16, 16, 65536.0, 1.0),
        ("empty", &[], 2, 16, 16, 1e4, 1.0),
    ] {
        for strided in [false, true] {
            out.push(rope(class, pos, [heads, width, rotary], base, magnitude, strided));
        }
    }
    out.push(ropes());
    out
}

/// Rotations that share all of positions, frequencies and factor with another, or all but one.
fn ropes() -> Case {
    let mut values = Values::new("ropes");
    let row = |base: f32| {
        let values: Vec<f32> = (0..8).map(|i| base.powf(-(i as f32) / 8.0)).collect();
        HostTensor::from_f32(&[8], &values).expect("a row")
    };
    let pos = |values: [u32; 5]| HostTensor::from_u32(&[5], &values).expect("a row");
    Case {
        op: "rope",
        dtype: DType::F32,
        class: "several".to_owned(),
        weights: [("slow".to_owned(), row(1e6)), ("fast".to_owned(), row(1e3))].into(),
        steps: vec![Step {
            rows: vec![
                ("x", values.rows(&[5, 3, 16])),
                ("z", values.rows(&[5, 1, 20])),
                ("pos", pos([5, 6, 7, 0, 1])),
                ("other", pos([9, 0, 3, 3, 40])),
            ],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(|r| {
            let [x, z, pos, other] = ["x", "z", "pos", "other"].map(|name| r.input(name));
            let [slow, fast] = ["slow", "fast"].map(|name| r.weight(name));
            r.outputs(&[
                r.b.rope(x, pos, slow, 1.0),
                r.b.rope(x, other, slow, 1.0),
                r.b.rope(x, pos, fast, 1.0),
                r.b.rope(x, pos, slow, 1.25),
                r.b.rope(z, pos, slow, 1.0),
            ]);
        }),
    }
}

fn activations(values: &mut Values, dims: &[usize], scale: Option<f32>) -> HostTensor {
    match scale {
        Some(scale) => values.floats(dims, scale),
        None => values.rows(dims),
    }
}

fn rms_norm(class: &str, rows: usize, width: usize, eps: f32, scale: Option<f32>) -> Case {
    let mut values = Values::new(&format!("rms_norm {class}"));
    Case {
        op: "rms_norm",
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [("w".to_owned(), values.floats(&[width], 1.0))].into(),
        steps: vec![Step {
            rows: vec![("x", activations(&mut values, &[rows, width], scale))],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(move |r| r.outputs(&[r.b.rms_norm(r.input("x"), r.weight("w"), eps)])),
    }
}

fn add_rms_norm(class: &str, rows: usize, width: usize, eps: f32, scale: Option<f32>) -> Case {
    let mut values = Values::new(&format!("add_rms_norm {class}"));
    let x = activations(&mut values, &[rows, width], scale);
    let y = values.floats(&[rows, width], 0.1 * scale.unwrap_or(1.0));
    Case {
        op: "add_rms_norm",
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [("w".to_owned(), values.floats(&[width], 1.0))].into(),
        steps: vec![Step { rows: vec![("x", x), ("z", y)], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let operands = [r.input("x"), r.input("z"), r.weight("w")];
            r.outputs(&r.b.op(Op::AddRmsNorm { eps }, &operands));
        }),
    }
}

/// A norm of each head of a column slice, as models with normed queries and keys have.
fn head_norm(class: &str, rows: usize, heads: usize, width: usize) -> Case {
    let mut values = Values::new(&format!("rms_norm {class}"));
    Case {
        op: "rms_norm",
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [("w".to_owned(), values.floats(&[width], 1.0))].into(),
        steps: vec![Step { rows: vec![("x", values.rows(&[rows, 2 * heads * width]))], seqs: vec![] }],
        refuses: false,
        record: Box::new(move |r| {
            let columns = r.b.slice(r.input("x"), 1, heads * width, heads * width);
            let split = r.b.reshape(columns, &[r.bucket(), heads, width]);
            r.outputs(&[r.b.rms_norm(split, r.weight("w"), 1e-6)]);
        }),
    }
}

fn rope(
    class: &str,
    pos: &[u32],
    [heads, width, rotary]: [usize; 3],
    base: f32,
    magnitude: f32,
    strided: bool,
) -> Case {
    let mut values = Values::new(&format!("rope {class}"));
    // Powers of two for far positions: there an angle's own rounding would hide the rest.
    let inv_freq: Vec<f32> = (0..rotary / 2).map(|i| base.powf(-2.0 * i as f32 / rotary as f32)).collect();
    let inv_freq = HostTensor::from_f32(&[rotary / 2], &inv_freq).expect("a row");
    let columns = heads * width;
    let x = values.rows(&[pos.len(), if strided { columns + 16 } else { columns }]);
    Case {
        op: "rope",
        dtype: DType::F32,
        class: if strided { format!("{class} strided") } else { class.to_owned() },
        weights: [("inv_freq".to_owned(), inv_freq)].into(),
        steps: vec![Step {
            rows: vec![("x", x), ("pos", HostTensor::from_u32(&[pos.len()], pos).expect("a row"))],
            seqs: vec![],
        }],
        refuses: false,
        record: Box::new(move |r| {
            let mut x = r.input("x");
            if strided {
                x = r.b.slice(x, 1, 16, columns);
            }
            let x = r.b.reshape(x, &[r.bucket(), heads, width]);
            r.outputs(&[r.b.rope(x, r.input("pos"), r.weight("inv_freq"), magnitude)]);
        }),
    }
}
