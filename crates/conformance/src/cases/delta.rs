//! The gated delta rule over state slots; steps continue from the slots that earlier ones stored.

use tensor::ops::NO_SNAP;
use tensor::{DType, HostTensor, Op};

use super::recurrent::Segments;
use crate::case::Case;
use crate::values::Values;

/// Heads and widths: of keys and queries, of values.
#[derive(Clone, Copy)]
struct Heads {
    keys: usize,
    values: usize,
    dk: usize,
    dv: usize,
}

/// What else is special about a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Decays from 1 to 1e-3, corrections by up to the whole of what is recalled.
    Usual,
    /// q, k and v are columns of one wider row.
    Strided,
    /// Nothing is forgotten, everything is, nothing is corrected, or more than there was.
    Edges,
}

const NONE: u32 = NO_SNAP;

pub(super) fn cases() -> Vec<Case> {
    let heads = |keys, values, dk, dv| Heads { keys, values, dk, dv };
    let ragged: Segments = &[
        &[(0, 6, 3, 3), (0, 1, 0, 0), (0, 3, 4, 4), (0, 0, 2, 2)],
        &[(6, 1, 3, 3), (1, 1, 0, 0), (3, 0, 4, 4), (0, 2, 2, 2)],
        &[(7, 4, 3, 3), (2, 2, 0, 0), (3, 5, 4, 4), (2, 1, 2, 2)],
    ];
    let decode: Segments = &[&[(0, 9, 1, 1)], &[(9, 1, 1, 1)], &[(10, 1, 1, 1)], &[(11, 1, 1, 1)]];
    // Steps that begin and end around multiples of 64, where prompts are cut, and of smaller powers of two.
    let cut: Segments = &[
        &[(0, 64, 0, 0), (0, 15, 1, 1)],
        &[(64, 1, 0, 0), (15, 1, 1, 1)],
        &[(65, 66, 0, 0), (16, 49, 1, 1)],
        &[(131, 1, 0, 0), (65, 31, 1, 1)],
    ];
    vec![
        case("tiny", heads(1, 1, 1, 1), &[&[(0, 1, 0, 0)]], How::Usual),
        case("odd", heads(1, 3, 5, 7), &[&[(0, 9, 0, 0)], &[(9, 2, 0, 0)]], How::Usual),
        case("wide values", heads(2, 2, 3, 150), &[&[(0, 5, 0, 0)], &[(5, 1, 0, 0)]], How::Usual),
        case("long keys", heads(1, 2, 300, 17), &[&[(0, 5, 0, 0)], &[(5, 1, 0, 0)]], How::Usual),
        case(
            "large",
            heads(2, 4, 128, 128),
            &[&[(0, 40, 0, 0), (0, 3, 1, 1)], &[(40, 1, 0, 0), (3, 1, 1, 1)]],
            How::Usual,
        ),
        case("cut", heads(1, 2, 32, 48), cut, How::Usual),
        case("empty", heads(1, 2, 8, 8), &[&[(0, 0, 0, 0)]], How::Usual),
        case("decode", heads(2, 4, 16, 16), decode, How::Usual),
        case("ragged", heads(2, 6, 9, 33), ragged, How::Usual),
        case("strided", heads(3, 3, 24, 40), ragged, How::Strided),
        case("edges", heads(1, 3, 16, 20), ragged, How::Edges),
        // A slot that another sequence has left must not be seen by one that starts.
        case(
            "new owner",
            heads(1, 2, 8, 16),
            &[&[(0, 9, 0, 0), (0, 2, 1, 1)], &[(0, 2, 0, 0), (2, 2, 1, 1)]],
            How::Usual,
        ),
        // One that continues from a slot it did not store last, and one that stores nothing.
        case(
            "moved",
            heads(2, 2, 8, 24),
            &[&[(0, 5, 0, 2)], &[(5, 3, 2, NONE)], &[(5, 2, 2, 0)], &[(7, 1, 0, 0)]],
            How::Usual,
        ),
        case(
            "draft rolled back",
            heads(1, 1, 8, 8),
            &[&[(0, 5, 0, 0)], &[(5, 3, 0, 1)], &[(5, 2, 0, 0)]],
            How::Usual,
        ),
    ]
}

fn case(class: &str, heads: Heads, steps: Segments, how: How) -> Case {
    let Heads { keys, values: value_heads, dk, dv } = heads;
    let mut values = Values::new(&format!("gated_delta_rule {class}"));
    let (steps, slots) = super::recurrent::steps(steps, |rows| {
        let mut inputs = vec![];
        if how == How::Strided {
            inputs.push(("qkv", values.floats(&[rows, 2 * keys * dk + value_heads * dv + 3], 1.0)));
        } else {
            inputs.push(("q", values.floats(&[rows, keys, dk], 1.0)));
            inputs.push(("k", values.floats(&[rows, keys, dk], 3.0)));
            inputs.push(("v", values.floats(&[rows, value_heads, dv], 1.0)));
        }
        let mut gate = |f: &dyn Fn(f32) -> f32, edges: [f32; 4]| {
            let each = (0..rows * value_heads).map(|i| match how {
                How::Edges if i % 5 < 4 => edges[i % 5],
                _ => f(values.uniform()),
            });
            let each: Vec<f32> = each.collect();
            HostTensor::from_f32(&[rows, value_heads], &each).expect("a gate for each head")
        };
        // Most of what is remembered is remembered for long.
        inputs.push(("log_decay", gate(&|u| -7.0 * u.powi(4), [0.0, -100.0, -1e-6, -0.5])));
        inputs.push(("beta", gate(&|u| u, [0.0, 1.0, 2.0, 1e-6])));
        inputs
    });
    Case {
        op: "gated_delta_rule",
        dtype: DType::F32,
        class: class.to_owned(),
        weights: [].into(),
        steps,
        refuses: false,
        record: Box::new(move |r| {
            let qkv = match how {
                How::Strided => {
                    let (all, bucket) = (r.input("qkv"), r.bucket());
                    let part = |at, heads, width| {
                        r.b.reshape(r.b.slice(all, 1, at, heads * width), &[bucket, heads, width])
                    };
                    [
                        part(1, keys, dk),
                        part(1 + keys * dk, keys, dk),
                        part(2 + 2 * keys * dk, value_heads, dv),
                    ]
                }
                _ => ["q", "k", "v"].map(|name| r.input(name)),
            };
            let gates = ["log_decay", "beta"].map(|name| r.input(name));
            let state = r.state("state", DType::F32, &[slots, value_heads, dk, dv]);
            let step = ["pos", "extents", "slots", "snap"].map(|name| r.input(name));
            let op = Op::GatedDeltaRule { scale: (dk as f32).powf(-0.5), eps: 1e-6 };
            r.outputs(&[r.b.gated_delta_rule(op, qkv, gates, state, step).0]);
        }),
    }
}
