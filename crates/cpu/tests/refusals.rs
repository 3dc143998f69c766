//! What the CPU refuses to compile or to bind, and why.

use graph::backend::{Backend, Bindings, CompileOptions, DeviceError, Plan, Precision, StateDesc};
use graph::{Builder, Graph};
use gristmill_cpu::{CpuBackend, CpuOptions};
use std::sync::Arc;
use tensor::{DType, Op, Shape};

const CACHE: [usize; 4] = [4, 16, 1, 32];

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: 1, isa: None }).unwrap()
}

fn compile(backend: &CpuBackend, graph: &Graph) -> Result<Arc<dyn Plan>, DeviceError> {
    let options = CompileOptions { label: "test".to_owned(), precision: Precision::Exact, profile: false };
    backend.compile(graph, &options)
}

#[track_caller]
fn refused(graph: &Graph, reason: &str) {
    match compile(&cpu(), graph) {
        Err(error @ DeviceError::Unsupported { .. }) => {
            assert!(error.to_string().contains(reason), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("compiled"),
    }
}

/// Writes keys of `k` elements to a cache of 32 per position and reads them with queries of `q`.
fn cached(k: usize, q: usize) -> Graph {
    let b = Builder::new();
    let u = |name, dims: &[usize]| b.input(name, DType::U32, dims, None);
    let (pos, until, extents, pages) =
        (u("pos", &[2]), u("until", &[2]), u("extents", &[1]), u("pages", &[1, 4]));
    let x = |name, width| b.input(name, DType::F32, &[2, 1, width], None);
    let kv = b.state("kv", DType::F32, &CACHE);
    let kv = b.kv_write(kv, x("k", k), x("v", CACHE[3] - k), pos, extents, pages);
    let op = Op::Attention { scale: 1.0, window: None, softcap: None };
    b.output("y", b.attention(op, x("q", q), kv, pos, until, extents, pages));
    b.finish().unwrap()
}

/// Where a key ends in the cache is part of its layout.
#[test]
fn one_cache_has_keys_of_one_width() {
    assert!(compile(&cpu(), &cached(24, 24)).is_ok());
    refused(&cached(24, 16), "its keys have 16 elements and those of another op on this cache 24");
}

#[test]
fn plans_that_share_a_cache_agree_on_its_keys() {
    let backend = cpu();
    let [wide, narrow] = [24, 16].map(|k| compile(&backend, &cached(k, k)).unwrap());
    let state = || {
        let desc = StateDesc { name: "kv".to_owned(), dtype: DType::F32, shape: Shape::new(&CACHE).unwrap() };
        let mut bindings = Bindings::default();
        bindings.states.insert(desc.name.clone(), backend.state(&desc).unwrap());
        bindings
    };
    let shared = state();
    assert!(wide.instance(&shared).is_ok());
    match narrow.instance(&shared) {
        Err(DeviceError::Binding { port, problem }) => {
            assert_eq!(port, "kv");
            assert!(problem.contains("width of keys"), "{problem}");
        }
        _ => panic!("bound"),
    }
    assert!(wide.instance(&shared).is_ok());
    assert!(narrow.instance(&state()).is_ok());
}

/// Kernels read ids as one run of words, so columns of a wider table, or one row for all, must not pass as it.
#[test]
fn rows_of_ids_are_adjacent() {
    let with = |experts: fn(&Builder) -> graph::Tensor| {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[5, 8], None);
        let w = b.weight("w", DType::F32, &[4, 3, 8]);
        b.output("y", b.expert_matmul(x, w, experts(&b)));
        b.finish().unwrap()
    };
    assert!(compile(&cpu(), &with(|b| b.input("experts", DType::U32, &[5, 2], None))).is_ok());
    refused(
        &with(|b| b.slice(b.input("experts", DType::U32, &[5, 6], None), 1, 2, 2)),
        "rows of 2 ids must be adjacent, these start 6 apart",
    );
    refused(
        &with(|b| b.broadcast_row(b.input("experts", DType::U32, &[2], None), &[5, 2])),
        "rows of 2 ids must be adjacent, these start 0 apart",
    );
    // Rows that are: the middle ones of a longer table.
    assert!(
        compile(&cpu(), &with(|b| b.slice(b.input("experts", DType::U32, &[9, 2], None), 0, 3, 5))).is_ok()
    );

    // The same of the pages of a cache, in a graph that no builder recorded.
    let mut strided = cached(16, 16);
    let pages = strided.port(strided.find_port("pages").unwrap()).value;
    let whole = tensor::Layout::contiguous(Shape::new(&[3, 8]).unwrap());
    strided.values[pages.0 as usize].layout = whole.slice(1, 0, 4).unwrap();
    refused(&strided, "rows of 4 ids must be adjacent, these start 8 apart");
}

/// Kernels read packed weights from their start to their end: a view must not pass for the whole.
#[test]
fn weights_are_taken_as_a_whole() {
    let with = |record: fn(&Builder, graph::Tensor) -> graph::Tensor| {
        let b = Builder::new();
        let x = b.input("x", DType::F32, &[5, 8], None);
        let y = record(&b, x);
        b.output("y", y);
        b.finish().unwrap()
    };
    let whole = "must be taken as a whole";
    refused(&with(|b, x| b.matmul(x, b.slice(b.weight("w", DType::F32, &[6, 8]), 0, 2, 3))), whole);
    refused(&with(|b, x| b.matmul(x, b.slice(b.weight("w", DType::F32, &[6, 16]), 1, 0, 8))), whole);
    refused(
        &with(|b, x| b.matmul(x, b.reshape(b.weight("w", DType::F32, &[6, 16]), &[12, 8]))),
        "weight `w` was packed as [6, 16]",
    );
    refused(&with(|b, x| b.rms_norm(x, b.slice(b.weight("w", DType::F32, &[24]), 0, 8, 8), 1e-5)), whole);
    refused(
        &with(|b, _| {
            let table = b.slice(b.weight("w", DType::F32, &[6, 8]), 0, 0, 3);
            b.gather(table, b.input("ids", DType::U32, &[5], None))
        }),
        whole,
    );
    // A row for all is one from the start.
    let first = with(|b, x| b.add_row(x, b.slice(b.weight("w", DType::F32, &[24]), 0, 0, 8)));
    assert!(compile(&cpu(), &first).is_ok());
    refused(
        &with(|b, x| b.add_row(x, b.slice(b.weight("w", DType::F32, &[24]), 0, 8, 8))),
        "a weight operand must be a broadcast row",
    );
}
