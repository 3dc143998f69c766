//! Entries of states on their way to the host and back.

use graph::backend::{
    Backend, Bindings, CompileOptions, DeviceError, Instance, StateDesc, StateHandle, StepInputs,
};
use graph::{Builder, Graph};
use tensor::ops::{KV_BLOCK, Precision};
use tensor::{DType, Op, Shape};

const BLOCKS: usize = 4;
const HEADS: usize = 2;
const KEY: usize = 24;
const VALUE: usize = 16;
const ROWS: usize = 2;

/// Tries that a block of a cache, read behind a step and written elsewhere before another, is that block, and that what is
/// not there is refused; in both precisions.
///
/// # Errors
/// What is wrong.
pub fn states(backend: &dyn Backend) -> Result<(), String> {
    for kv_type in backend.kv_types() {
        for precision in [Precision::Exact, Precision::Fast] {
            moved(backend, kv_type.dtype(), precision)?;
        }
    }
    foreign(backend)
}

fn cached(dtype: DType) -> Graph {
    let b = Builder::new();
    let u = |name, dims: &[usize]| b.input(name, DType::U32, dims, None);
    let (pos, until) = (u("pos", &[ROWS]), u("until", &[ROWS]));
    let (extents, pages) = (u("extents", &[1]), u("pages", &[1, 1]));
    let x = |name, width| b.input(name, DType::F32, &[ROWS, HEADS, width], None);
    let kv = b.state("kv", dtype, &[BLOCKS, KV_BLOCK, HEADS, KEY + VALUE]);
    let kv = b.kv_write(kv, x("k", KEY), x("v", VALUE), pos, extents, pages);
    let op = Op::Attention { scale: 0.2, window: None, softcap: None };
    b.output("y", b.attention(op, x("q", KEY), kv, pos, until, extents, pages));
    b.finish().unwrap_or_else(|e| unreachable!("a graph of this crate: {e}"))
}

/// Two rows of a sequence in a block, from a position on.
fn step(instance: &mut dyn Instance, block: u32, first: u32) -> Result<graph::Fence, DeviceError> {
    let values = |width: usize, salt: u32| -> Vec<f32> {
        (0..(ROWS * HEADS * width) as u32).map(|i| ((i * 7 + salt + first) % 13) as f32 - 6.0).collect()
    };
    let (q, k, v) = (values(KEY, 1), values(KEY, 5), values(VALUE, 9));
    let encoded = instance.encode(&StepInputs {
        inputs: &[
            ("pos", &[first, first + 1]),
            ("until", &[first + 1, first + 2]),
            ("extents", &[ROWS as u32]),
            ("pages", &[block]),
        ],
        floats: &[("q", &q), ("k", &k), ("v", &v)],
        scalars: &[],
        outputs: &["y"],
    })?;
    Ok(instance.submit(encoded))
}

fn moved(backend: &dyn Backend, dtype: DType, precision: Precision) -> Result<(), String> {
    let told = |e: DeviceError| format!("{dtype}: {e}");
    let shape = Shape::new(&[BLOCKS, KV_BLOCK, HEADS, KEY + VALUE]).map_err(|e| e.to_string())?;
    let state = backend.state(&StateDesc { name: "kv".to_owned(), dtype, shape }).map_err(told)?;
    let options = CompileOptions { label: "states".to_owned(), precision, profile: false };
    let plan = backend.compile(&cached(dtype), &options).map_err(told)?;
    let mut bindings = Bindings::default();
    bindings.states.insert("kv".to_owned(), state.clone());
    let mut instance = plan.instance(&bindings).map_err(told)?;
    let instance = &mut *instance;
    let answer = |instance: &mut dyn Instance, block| -> Result<Vec<u32>, String> {
        pollster::block_on(step(instance, block, 2).map_err(told)?).map_err(told)?;
        Ok(instance.output("y").map_err(told)?.iter().map(|v| v.to_bits()).collect())
    };

    let first = step(instance, 1, 0).map_err(told)?;
    // Behind the step, which nobody has waited for.
    let reading = backend.read_state(&state, &[2, 1]).map_err(told)?;
    pollster::block_on(first).map_err(told)?;
    let want = answer(instance, 1)?;
    if answer(instance, 0)? == want {
        return Err(format!("{dtype}: what lies in the cache makes no difference"));
    }
    let bytes = pollster::block_on(reading).map_err(told)?;
    let each = backend.entry_bytes(&state).map_err(told)?;
    if bytes.len() != 2 * each || bytes[..each].iter().any(|byte| *byte != 0) {
        return Err(format!(
            "{dtype}: two entries of {each} bytes, the first untouched, gave {} bytes",
            bytes.len()
        ));
    }
    // Before the step, and with a second one that changes places with it.
    let written = backend.write_state(&state, &[3, 0], &[&bytes[each..], &bytes[..each]].concat());
    let moved = answer(instance, 3)?;
    pollster::block_on(written.map_err(told)?).map_err(told)?;
    if moved != want {
        return Err(format!("{dtype}: a block that was written is not the one that was read"));
    }
    let blank = pollster::block_on(backend.read_state(&state, &[0]).map_err(told)?).map_err(told)?;
    if blank.iter().any(|byte| *byte != 0) {
        return Err(format!("{dtype}: entries were written in another order than listed"));
    }
    // A session without recurrent states has none of them.
    let written = pollster::block_on(backend.write_state(&state, &[], &[]).map_err(told)?);
    let nothing = pollster::block_on(backend.read_state(&state, &[]).map_err(told)?).map_err(told)?;
    if written.is_err() || !nothing.is_empty() {
        return Err(format!("{dtype}: no entries gave {} bytes, and {written:?}", nothing.len()));
    }
    for (entries, bytes) in [(&[4][..], each), (&[1, 1], 2 * each), (&[1], each - 1), (&[0, 1], each)] {
        if backend.write_state(&state, entries, &vec![0; bytes]).is_ok() {
            return Err(format!("{dtype}: {bytes} bytes were written to entries {entries:?}"));
        }
    }
    match backend.read_state(&state, &[0, 4]) {
        Ok(_) => Err(format!("{dtype}: an entry was read that there is not")),
        Err(_) => Ok(()),
    }
}

/// States of other backends.
fn foreign(backend: &dyn Backend) -> Result<(), String> {
    let state: StateHandle = std::sync::Arc::new("no state of anybody's");
    let refused = backend.entry_bytes(&state).is_err()
        && backend.read_state(&state, &[0]).is_err()
        && backend.write_state(&state, &[], &[]).is_err();
    if refused { Ok(()) } else { Err("a state of another backend was taken".to_owned()) }
}
