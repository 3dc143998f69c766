//! Attention and the cache it reads. Each step writes its keys and attends, so a case of several steps continues.

use tensor::ops::{KV_BLOCK, KvType};
use tensor::{DType, HostTensor, Op};

use crate::case::{Case, Step};
use crate::values::Values;

/// One past the last key a row sees.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// Its own.
    Causal,
    /// The last of its sequence's rows in the step.
    End,
    /// Causal, but every third row sees none, and one more an empty range.
    Blind,
    /// Causal, but the rows of the first step see none: a long context at little cost.
    Later,
}

#[derive(Clone, Copy)]
struct Shape {
    /// Query heads, KV heads, key width, value width.
    heads: [usize; 4],
    window: Option<u32>,
    softcap: Option<f32>,
    until: Until,
    /// Factor on the queries.
    sharp: f32,
}

const PLAIN: Shape =
    Shape { heads: [4, 2, 16, 16], window: None, softcap: None, until: Until::Causal, sharp: 1.0 };

/// For each step, each sequence's first position and rows.
type Segments<'a> = &'a [&'a [(u32, u32)]];

pub(super) fn cases() -> Vec<Case> {
    let mut out = vec![];
    for cache in KvType::ALL.map(KvType::dtype) {
        let mut add =
            |op, class: &str, steps: Segments, shape: Shape| out.push(case(op, cache, class, steps, shape));
        // What only the write can get wrong.
        add("kv_write", "tiny", &[&[(0, 1)]], Shape { heads: [1, 1, 2, 2], ..PLAIN });
        add("kv_write", "ends of blocks", &[&[(0, 15)], &[(15, 1)], &[(16, 1)], &[(17, 32)]], PLAIN);
        add(
            "kv_write",
            "interleaved",
            &[&[(0, 20), (0, 3)], &[(20, 1), (3, 30)], &[(21, 14), (33, 1)]],
            PLAIN,
        );
        add("kv_write", "rewritten", &[&[(0, 24)], &[(9, 6)]], PLAIN);
        add("kv_write", "new owner", &[&[(0, 40), (0, 17)], &[(0, 5), (0, 18)]], PLAIN);
        add("kv_write", "idle sequence", &[&[(0, 0), (0, 5), (0, 0)], &[(0, 2), (5, 1), (0, 1)]], PLAIN);
        add("kv_write", "unequal widths", &[&[(0, 21)], &[(21, 2)]], Shape { heads: [2, 2, 24, 8], ..PLAIN });

        add("attention", "tiny", &[&[(0, 1)]], Shape { heads: [1, 1, 2, 2], ..PLAIN });
        add("attention", "odd", &[&[(0, 5), (0, 3)]], Shape { heads: [3, 1, 6, 10], ..PLAIN });
        add("attention", "large", &[&[(0, 70)], &[(70, 1)]], Shape { heads: [8, 2, 64, 64], ..PLAIN });
        // Queries and keys of one width, values of another.
        for (class, heads) in [
            ("wide values", [4, 2, 8, 40]),
            ("wide keys", [4, 4, 40, 8]),
            ("one value", [3, 1, 33, 1]),
            ("latent", [8, 1, 72, 64]),
        ] {
            let steps: Segments = &[&[(0, 21), (0, 2)], &[(21, 1), (2, 15)]];
            add("attention", class, steps, Shape { heads, ..PLAIN });
        }
        let unequal = Shape { heads: [8, 2, 192, 128], window: Some(30), softcap: Some(20.0), ..PLAIN };
        add("attention", "large, unequal widths", &[&[(0, 70)], &[(70, 1)]], unequal);
        let long = Shape { heads: [2, 1, 32, 32], until: Until::Later, ..PLAIN };
        add("attention", "long", &[&[(0, 1100)], &[(1100, 3)], &[(1103, 1)]], long);
        // Few rows over many keys, of which most were never written and are zeros.
        let few = Shape { heads: [4, 2, 16, 24], ..PLAIN };
        add(
            "attention",
            "few rows, long",
            &[&[(0, 5), (0, 3)], &[(300, 3), (513, 1)], &[(600, 1), (514, 0)]],
            few,
        );
        let few = Shape { window: Some(270), ..few };
        add("attention", "few rows, long, window", &[&[(0, 8)], &[(255, 4)], &[(520, 1)]], few);
        let ragged: Segments = &[&[(0, 5), (0, 33), (0, 0), (0, 16)], &[(5, 1), (33, 1), (0, 7), (16, 0)]];
        add("attention", "ragged", ragged, Shape { heads: [8, 2, 24, 24], ..PLAIN });
        add("attention", "many kv heads", ragged, Shape { heads: [6, 6, 8, 8], ..PLAIN });
        add("attention", "empty", &[&[(0, 0), (0, 0)]], PLAIN);
        for window in [1, 15, 16, 17, 100] {
            let class = format!("window {window}");
            let steps: Segments = &[&[(0, 50), (0, 16)], &[(50, 1), (16, 3)]];
            add("attention", &class, steps, Shape { window: Some(window), ..PLAIN });
        }
        add("attention", "softcap", &[&[(0, 33)]], Shape { softcap: Some(5.0), sharp: 4.0, ..PLAIN });
        let both = Shape { softcap: Some(20.0), window: Some(13), sharp: 4.0, ..PLAIN };
        add("attention", "softcap and window", &[&[(0, 33), (0, 9)], &[(33, 1), (9, 9)]], both);
        add("attention", "to the end", ragged, Shape { until: Until::End, ..PLAIN });
        add("attention", "window to the end", ragged, Shape { until: Until::End, window: Some(4), ..PLAIN });
        add("attention", "blind rows", ragged, Shape { until: Until::Blind, window: Some(3), ..PLAIN });
        add("attention", "sharp", &[&[(0, 40)]], Shape { sharp: 60.0, ..PLAIN });
        add("attention", "stale keys", &[&[(0, 40), (0, 17)], &[(0, 5), (0, 18)], &[(5, 1), (18, 1)]], PLAIN);
    }
    out
}

fn case(op: &'static str, cache: DType, class: &str, steps: Segments, shape: Shape) -> Case {
    let mut values = Values::new(&format!("attention {class}"));
    let Shape { heads: [query_heads, kv_heads, dk, dv], window, softcap, until, sharp } = shape;
    let seqs = steps[0].len();
    let length = |s: usize| steps.iter().map(|step| step[s].0 + step[s].1).max().unwrap_or(0) as usize;
    let needs: Vec<usize> = (0..seqs).map(|s| length(s).div_ceil(KV_BLOCK)).collect();
    let width = needs.iter().max().copied().unwrap_or(0).max(1);
    // Every second block is used, from the end; the rest of a table names blocks of others.
    let blocks = 2 * needs.iter().sum::<usize>() + 1;
    let mut pages = values.ids(&[seqs, width], blocks).u32s().expect("U32").to_vec();
    let mut next = blocks as u32;
    for (s, need) in needs.iter().enumerate() {
        for page in &mut pages[s * width..][..*need] {
            next -= 2;
            *page = next;
        }
    }
    let pages = HostTensor::from_u32(&[seqs, width], &pages).expect("a row per sequence");
    let step = |(at, segments): (usize, &&[(u32, u32)])| {
        let pos: Vec<u32> = segments.iter().flat_map(|(first, n)| *first..first + n).collect();
        let ends = segments.iter().flat_map(|(first, n)| std::iter::repeat_n(first + n, *n as usize));
        let until: Vec<u32> = ends
            .zip(&pos)
            .enumerate()
            .map(|(r, (end, pos))| match until {
                Until::Causal => pos + 1,
                Until::End => end,
                Until::Blind if r % 3 == 1 => 0,
                Until::Blind if r == 5 => pos / 2, // before the window
                Until::Later if at == 0 => 0,
                Until::Blind | Until::Later => pos + 1,
            })
            .collect();
        let extents: Vec<u32> = segments.iter().map(|(_, n)| *n).collect();
        let rows = pos.len();
        let mut q = values.floats(&[rows, query_heads, dk], sharp);
        // One row asks nothing: all its keys weigh the same.
        let flat = q.f32s_mut().expect("F32").chunks_exact_mut(query_heads * dk).nth(2);
        flat.into_iter().for_each(|row| row.fill(0.0));
        let ids = |values: &[u32]| HostTensor::from_u32(&[values.len()], values).expect("a row");
        Step {
            rows: vec![
                ("q", q),
                ("k", values.floats(&[rows, kv_heads, dk], 1.0)),
                ("v", values.floats(&[rows, kv_heads, dv], 1.0)),
                ("pos", ids(&pos)),
                ("until", ids(&until)),
            ],
            seqs: vec![("extents", ids(&extents)), ("pages", pages.clone())],
        }
    };
    Case {
        op,
        dtype: cache,
        class: class.to_owned(),
        weights: [].into(),
        steps: steps.iter().enumerate().map(step).collect(),
        refuses: false,
        record: Box::new(move |r| {
            let [q, k, v, pos, until, extents, pages] =
                ["q", "k", "v", "pos", "until", "extents", "pages"].map(|name| r.input(name));
            let kv = r.state("kv", cache, &[blocks, KV_BLOCK, kv_heads, dk + dv]);
            let kv = r.b.kv_write(kv, k, v, pos, extents, pages);
            let op = Op::Attention { scale: (dk as f32).powf(-0.5), window, softcap };
            r.outputs(&[r.b.attention(op, q, kv, pos, until, extents, pages)]);
        }),
    }
}
