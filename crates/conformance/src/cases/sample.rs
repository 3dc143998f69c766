//! Drawing tokens and feeding them back. Every step but the first feeds back what the one before it drew.

use tensor::ops::{NO_SNAP, NOT_A_TOKEN};
use tensor::sampling::{ONE, Policy, least_weight, share, sharpness};
use tensor::{DType, HostTensor};

use crate::case::{Case, Step};
use crate::values::Values;

/// What logits are like.
#[derive(Clone, Copy, PartialEq)]
enum Logits {
    /// Normal, of deviation 3.
    Normal,
    /// On a grid so coarse that most are equal to many others.
    Ties,
    /// One value.
    Equal,
    /// Of every size, both zeros and -inf among them.
    Extreme,
    /// In every third row something that cannot be drawn from.
    Refused,
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for (class, rows, vocab, logits) in [
        ("tiny", 1, 1, Logits::Normal),
        ("odd", 23, 37, Logits::Normal),
        ("large", 12, 5000, Logits::Normal),
        ("vocabulary", 4, 151_936, Logits::Normal),
        ("empty", 0, 9, Logits::Normal),
        ("ties", 34, 300, Logits::Ties),
        ("many ties", 12, 20_001, Logits::Ties),
        ("all equal", 23, 1000, Logits::Equal),
        ("extreme", 46, 400, Logits::Extreme),
        ("refused", 23, 777, Logits::Refused),
    ] {
        out.push(case("sample", class, rows, vocab, logits));
    }
    out.push(case("feed", "odd", 23, 5, Logits::Normal));
    out.push(case("feed", "large", 300, 3, Logits::Normal));
    out
}

/// The policy of a row: argmax, each stage alone, and all together.
fn policy(row: usize, values: &mut Values) -> Policy {
    let uniform = match row % 7 {
        5 => 0,
        6 => u32::MAX,
        _ => (f64::from(values.uniform()) * 4_294_967_296.0) as u32,
    };
    let all = Policy { uniform, sharpness: sharpness(1.0), top_k: 0, top_p: 0, min_p: 0 };
    match row % 11 {
        0 => Policy { uniform, ..Policy::default() },
        1 => all,
        2 => Policy { sharpness: sharpness(0.7), top_k: 5, ..all },
        3 => Policy { top_p: share(0.9), ..all },
        4 => Policy { min_p: least_weight(0.1), ..all },
        5 => Policy {
            sharpness: sharpness(1.3),
            top_k: 20,
            top_p: share(0.5),
            min_p: least_weight(0.05),
            ..all
        },
        6 => Policy { sharpness: sharpness(40.0), top_k: u32::MAX, ..all },
        7 => Policy { sharpness: sharpness(1e-3), top_p: share(1e-9), ..all },
        8 => Policy { sharpness: 0.0, top_p: share(0.999), ..all },
        9 => Policy { sharpness: sharpness(3.0), top_k: 64, top_p: share(0.95), min_p: ONE, ..all },
        _ => Policy { sharpness: sharpness(0.2), top_k: 2, min_p: u32::MAX, ..all },
    }
}

fn logits(kind: Logits, row: usize, vocab: usize, values: &mut Values) -> Vec<f32> {
    let mut out: Vec<f32> = (0..vocab).map(|_| 3.0 * values.normal()).collect();
    match kind {
        Logits::Normal => {}
        Logits::Ties => out.iter_mut().for_each(|l| *l = (*l / 4.0).round() * 0.5),
        Logits::Equal => out.fill(-2.5),
        Logits::Extreme => {
            for (i, l) in out.iter_mut().enumerate() {
                *l = match (row % 5, i % 6) {
                    (_, 0) | (0, _) => f32::NEG_INFINITY,
                    (1, _) => *l * 1e38,
                    (2, _) => [0.0, -0.0, f32::from_bits(1), -f32::MIN_POSITIVE / 2.0][i % 4],
                    (3, 1..4) => f32::MIN,
                    (4, _) => *l * 1e-37,
                    _ => *l,
                };
            }
            out[vocab / 2] = [1.0, 3e38, 0.0, -1e30, 1e-37][row % 5];
        }
        Logits::Refused => {
            // Another column, and so another lane of a kernel, in every row.
            let at = row * 97 % vocab;
            match row % 9 {
                0 => out[at] = f32::NAN,
                3 => out[at] = f32::INFINITY,
                6 => out.fill(f32::NEG_INFINITY),
                1 => (out[at], out[vocab - 1]) = (-f32::NAN, f32::NAN),
                4 => (out[at], out[0]) = (f32::from_bits(0x7f80_0001), f32::NEG_INFINITY),
                _ => out[..at].fill(f32::NEG_INFINITY),
            }
        }
    }
    out
}

fn case(op: &'static str, class: &str, rows: usize, vocab: usize, kind: Logits) -> Case {
    let mut values = Values::new(&format!("{op} {class}"));
    let ids = |values: &[u32]| HostTensor::from_u32(&[values.len()], values).expect("a row");
    let slots = rows + 3;
    // Each row has a slot of its own in all steps; some draw nothing in the first.
    let slot = |row: usize| (rows - row) as u32;
    let mut step = |at: usize| {
        let all: Vec<f32> = (0..rows).flat_map(|row| logits(kind, row + at, vocab, &mut values)).collect();
        let policies: Vec<Policy> = (0..rows).map(|row| policy(row + 4 * at, &mut values)).collect();
        let words = |f: &dyn Fn(&Policy) -> u32| ids(&policies.iter().map(f).collect::<Vec<_>>());
        let sharpness: Vec<f32> = policies.iter().map(|p| p.sharpness).collect();
        let into = |row: usize| if (row + at) % 6 == 4 { NO_SNAP } else { slot(row) };
        let fed = |row: usize| match (row + at) % 4 {
            _ if at == 0 => row as u32,
            0 => 7 * row as u32,
            _ => NOT_A_TOKEN | slot(row),
        };
        let rows_of = |f: &dyn Fn(usize) -> u32| ids(&(0..rows).map(f).collect::<Vec<_>>());
        Step {
            rows: vec![
                ("logits", HostTensor::from_f32(&[rows, vocab], &all).expect("rows")),
                ("ids", rows_of(&fed)),
                ("into", rows_of(&into)),
                ("uniform", words(&|p| p.uniform)),
                ("sharpness", HostTensor::from_f32(&[rows], &sharpness).expect("a row")),
                ("top_k", words(&|p| p.top_k)),
                ("top_p", words(&|p| p.top_p)),
                ("min_p", words(&|p| p.min_p)),
            ],
            seqs: vec![],
        }
    };
    Case {
        op,
        dtype: DType::U32,
        class: class.to_owned(),
        weights: [].into(),
        // Of a whole vocabulary two are enough to try every policy.
        steps: (0..if vocab > 100_000 { 2 } else { 3 }).map(&mut step).collect(),
        refuses: false,
        record: Box::new(move |r| {
            let drawn = r.state("drawn", DType::U32, &[slots]);
            let fed = r.b.feed(r.input("ids"), drawn);
            let policy = ["uniform", "sharpness", "top_k", "top_p", "min_p"].map(|name| r.input(name));
            let (tokens, _) = r.b.sample(r.input("logits"), drawn, r.input("into"), policy);
            r.outputs(&if op == "feed" { [fed, tokens] } else { [tokens, fed] });
        }),
    }
}
