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
    let options = CompileOptions { label: "test".to_owned(), precision: Precision::Exact };
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
