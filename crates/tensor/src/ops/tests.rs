//! The references against answers that PyTorch computed in float64 (`tests/oracle/ops.py`), and against themselves.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};

use super::*;

/// One case of a fixture file: the op's parameters and the tensors by role.
struct Case {
    name: String,
    params: serde_json::Value,
    tensors: BTreeMap<String, HostTensor>,
    raw: BTreeMap<String, Vec<u8>>,
}

impl Case {
    fn get(&self, role: &str) -> HostTensor {
        self.tensors.get(role).unwrap_or_else(|| panic!("{}: no {role}", self.name)).clone()
    }

    fn has(&self, role: &str) -> bool {
        self.tensors.contains_key(role)
    }

    fn number(&self, key: &str) -> Option<f32> {
        self.params[key].as_f64().map(|v| v as f32)
    }

    fn count(&self, key: &str) -> usize {
        self.params[key].as_u64().unwrap_or_else(|| panic!("{}: no count {key}", self.name)) as usize
    }
}

fn cases(op: &str) -> Vec<Case> {
    let path = format!("{}/../../tests/fixtures/ops/{op}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let meta = header.metadata().clone().unwrap_or_default();
    let mut cases: BTreeMap<String, Case> = meta
        .into_iter()
        .filter(|(name, _)| name != "op")
        .map(|(name, text)| {
            let params = serde_json::from_str(&text).unwrap();
            (name.clone(), Case { name, params, tensors: BTreeMap::new(), raw: BTreeMap::new() })
        })
        .collect();
    for (name, view) in file.tensors() {
        let (case, role) = name.split_once('.').unwrap();
        let case = cases.get_mut(case).unwrap();
        let dtype = match view.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::U32 => DType::U32,
            _ => {
                case.raw.insert(role.to_owned(), view.data().to_vec());
                continue;
            }
        };
        let tensor = HostTensor::new(dtype, view.shape(), view.data()).unwrap();
        case.tensors.insert(role.to_owned(), tensor);
    }
    assert!(!cases.is_empty());
    cases.into_values().collect()
}

/// Both were computed in f64 and rounded once: at most a unit in the last place apart, besides the digits that f64
/// loses where large terms cancel (`size` is that of the terms).
#[track_caller]
fn agree(case: &str, have: &HostTensor, want: &HostTensor, size: f64) {
    assert_eq!(have.operand(), want.operand(), "{case}");
    for (i, (have, want)) in have.f32s().unwrap().iter().zip(want.f32s().unwrap()).enumerate() {
        let (have, want) = (f64::from(*have), f64::from(*want));
        let limit = 1.2e-7 * want.abs() + 1e-14 * size + 1.5e-45;
        assert!((have - want).abs() <= limit, "{case}: element {i} is {have:e}, must be {want:e}");
    }
}

#[track_caller]
fn run(op: Op, args: &[HostTensor]) -> Vec<HostTensor> {
    let mut args = args.to_vec();
    op.reference(&mut args).unwrap_or_else(|e| panic!("{}: {e}", op.name()))
}

fn activation(name: &str) -> Activation {
    Activation::ALL.into_iter().find(|a| name.starts_with(a.name())).unwrap()
}

#[test]
fn rms_norms() {
    for case in cases("rms_norm").iter().filter(|c| c.has("w")) {
        let op = Op::RmsNorm { eps: case.number("eps").unwrap() };
        agree(&case.name, &run(op, &[case.get("x"), case.get("w")])[0], &case.get("y"), 0.0);
    }
    for case in cases("add_rms_norm") {
        let op = Op::AddRmsNorm { eps: case.number("eps").unwrap() };
        let have = run(op, &[case.get("x"), case.get("y"), case.get("w")]);
        assert_eq!(have[0], case.get("sum"), "{}", case.name);
        agree(&case.name, &have[1], &case.get("normed"), 0.0);
    }
}

#[test]
fn ropes() {
    for case in cases("rope") {
        let op = Op::Rope { magnitude: case.number("magnitude").unwrap() };
        let args = [case.get("x"), case.get("pos"), case.get("inv_freq")];
        // The angle reaches 1e6, of which f64 keeps ten digits after the point.
        agree(&case.name, &run(op, &args)[0], &case.get("y"), 1e4);
    }
}

#[test]
fn activations() {
    for case in cases("activate") {
        let have = run(Op::Activate(activation(&case.name)), &[case.get("x")]);
        agree(&case.name, &have[0], &case.get("y"), 1.0);
    }
    for case in cases("gated_activate") {
        let act = activation(case.params["activation"].as_str().unwrap());
        let have = run(Op::GatedActivate(act), &[case.get("gate"), case.get("up")]);
        agree(&case.name, &have[0], &case.get("y"), 1.0);
    }
}

#[test]
fn matmuls() {
    for case in cases("matmul") {
        let (x, w) = (case.get("x"), case.get("w"));
        let size = if case.name == "cancelling" { 4096.0 } else { 1.0 };
        agree(&case.name, &run(Op::MatMul, &[x.clone(), w.clone()])[0], &case.get("y"), size);
        if case.has("bias") && x.dims().len() == 2 {
            let op = Op::MatMuls { biased: vec![false, true] };
            let have = run(op, &[x, w.clone(), w, case.get("bias")]);
            agree(&case.name, &have[0], &case.get("y"), size);
            agree(&case.name, &have[1], &case.get("y_biased"), size);
        }
    }
    for case in cases("matmul_blocks") {
        let name = case.params["dtype"].as_str().unwrap();
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap();
        let w = HostTensor::new(dtype, &[case.count("n"), case.count("k")], &case.raw["w"]).unwrap();
        agree(&case.name, &run(Op::MatMul, &[case.get("x"), w.clone()])[0], &case.get("y"), 1.0);
        // A gather of every row is the decoded matrix.
        let ids: Vec<u32> = (0..w.dims()[0] as u32).collect();
        let ids = HostTensor::from_u32(&[ids.len()], &ids).unwrap();
        let rows = run(Op::Gather, &[w.clone(), ids]).swap_remove(0);
        assert_eq!(rows.f32s().unwrap(), w.to_f32().unwrap());
    }
}

/// The keys of all sequences go into a cache of `dtype` whose blocks lie in no order, then the queries attend.
fn attend(case: &Case, dtype: DType) -> HostTensor {
    let (k, v) = (case.get("k"), case.get("v"));
    let lengths = case.get("lengths").u32s().unwrap().to_vec();
    let blocks = |n: u32| (n as usize).div_ceil(KV_BLOCK);
    let width = lengths.iter().map(|n| blocks(*n)).max().unwrap();
    let total = 2 * lengths.iter().map(|n| blocks(*n)).sum::<usize>() + 1;
    // Unused entries of the tables name no block at all.
    let mut pages = vec![u32::MAX; lengths.len() * width];
    let mut next = total;
    for (s, n) in lengths.iter().enumerate() {
        for entry in 0..blocks(*n) {
            next -= 2;
            pages[s * width + entry] = next as u32;
        }
    }
    let pages = HostTensor::from_u32(&[lengths.len(), width], &pages).unwrap();
    let pos: Vec<u32> = lengths.iter().flat_map(|n| 0..*n).collect();
    let (heads, kv_width) = (k.dims()[1], k.dims()[2] + v.dims()[2]);
    let cache = HostTensor::state(dtype, Shape::new(&[total, KV_BLOCK, heads, kv_width]).unwrap()).unwrap();
    let pos = HostTensor::from_u32(&[pos.len()], &pos).unwrap();
    let mut args = [k, v, cache, pos, case.get("lengths"), pages.clone()];
    Op::KvWrite.reference(&mut args).unwrap();
    let [_, _, cache, ..] = args;
    let op = Op::Attention {
        scale: case.number("scale").unwrap(),
        window: case.params["window"].as_u64().map(|w| w as u32),
        softcap: case.number("softcap"),
    };
    run(op, &[case.get("q"), cache, case.get("pos"), case.get("until"), case.get("extents"), pages])
        .swap_remove(0)
}

#[test]
fn attentions() {
    for case in cases("attention") {
        let y = attend(&case, DType::F32);
        // Scores in the hundreds lose three digits to the exponential.
        agree(&case.name, &y, &case.get("y"), 100.0);
        let y = y.f32s().unwrap();
        let largest = y.iter().fold(0f32, |m, y| m.max(y.abs()));
        for (kv_type, share) in [(KvType::F16, 4e-3), (KvType::Q8_0, 3e-2)] {
            let rounded = attend(&case, kv_type.dtype());
            let off = rounded.f32s().unwrap().iter().zip(y).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(
                case.name.starts_with("sharp") || off <= share * largest,
                "{}: {kv_type} is off by {off} of {largest}",
                case.name
            );
            assert!(off > 0.0 || largest == 0.0, "{}: a cache of {kv_type} rounds", case.name);
        }
    }
}

#[test]
fn short_convs() {
    for case in cases("short_conv").iter().filter(|c| c.has("x")) {
        let roles = ["x", "w", "ring", "pos", "extents", "slots", "snap"];
        let mut args: Vec<HostTensor> = roles.iter().map(|r| case.get(r)).collect();
        let y = Op::ShortConv.reference(&mut args).unwrap();
        agree(&case.name, &y[0], &case.get("y"), 1.0);
        assert_eq!(args[2], case.get("ring_after"), "{}", case.name);
    }
}

/// Against transformers, which works in f32: its results lie within the bounds of a kernel, and its states near the
/// reference's.
#[test]
fn delta_rules() {
    for case in cases("gated_delta_rule") {
        let op =
            Op::GatedDeltaRule { scale: case.number("scale").unwrap(), eps: case.number("eps").unwrap() };
        let mut args: Vec<HostTensor> = op.roles().iter().map(|r| case.get(r)).collect();
        let bounds = op.bounds(&args, Precision::Exact).unwrap().swap_remove(0);
        let y = op.reference(&mut args).unwrap().swap_remove(0);
        let (witness, y) = (case.get("y"), y.f32s().unwrap());
        assert!(y.iter().any(|y| y.abs() > 1e-3), "{}", case.name);
        for ((i, (have, want)), bound) in y.iter().zip(witness.f32s().unwrap()).enumerate().zip(bounds) {
            let off = f64::from((have - want).abs());
            assert!(off <= bound && bound < 1e-2, "{} {i}: {have} for {want} within {bound}", case.name);
        }
        let (have, want) = (args[5].f32s().unwrap(), case.get("state_after"));
        let want = want.f32s().unwrap();
        let largest = want.iter().fold(0f32, |m, s| m.max(s.abs()));
        let off = have.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(off <= 1e-6 * largest, "{}: the state is off by {off} of {largest}", case.name);
    }
}

#[test]
fn routes() {
    for case in cases("route") {
        let op = Op::Route { k: case.count("k"), renormalise: case.params["renormalise"] == true };
        let have = run(op, &[case.get("logits")]);
        agree(&case.name, &have[0], &case.get("weights"), 1.0);
        assert_eq!(have[1], case.get("experts"), "{}", case.name);
    }
}

/// A whole mixture block, composed of five ops that round between them.
#[test]
fn mixtures_of_experts() {
    for case in cases("moe") {
        let op = Op::Route { k: case.count("k"), renormalise: case.params["renormalise"] == true };
        let x = case.get("x");
        let logits = run(Op::MatMul, &[x.clone(), case.get("router")]);
        let routed = run(op, &logits);
        assert_eq!(routed[1], case.get("experts"), "{}", case.name);
        let project = |x: &HostTensor, w| run(Op::ExpertMatMul, &[x.clone(), case.get(w), routed[1].clone()]);
        let (gate, up) = (project(&x, "gate"), project(&x, "up"));
        let inner = run(Op::GatedActivate(Activation::Silu), &[gate[0].clone(), up[0].clone()]);
        let each = project(&inner[0], "down");
        let y = run(Op::ExpertSum, &[each[0].clone(), routed[0].clone()]);
        for (have, want) in [(&each[0], "y_experts"), (&y[0], "y")] {
            let want = case.get(want);
            let (have, want) = (have.f32s().unwrap(), want.f32s().unwrap());
            let off = have.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(have.len() == want.len() && off < 2e-5, "{}: off by {off}", case.name);
        }
    }
}

fn floats(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::from_f32(dims, values).unwrap()
}

fn ids(values: &[u32]) -> HostTensor {
    HostTensor::from_u32(&[values.len()], values).unwrap()
}

#[test]
fn a_gather_gives_zeros_for_ids_out_of_range() {
    let table = floats(&[2, 2], &[1., 2., 3., 4.]);
    let y = run(Op::Gather, &[table, ids(&[1, 2, u32::MAX, 0])]).swap_remove(0);
    assert_eq!(y.f32s().unwrap(), [3., 4., 0., 0., 0., 0., 1., 2.]);
}

#[test]
fn padding_rows_write_nothing_and_give_zeros() {
    let cache = HostTensor::zeros(DType::F32, Shape::new(&[2, KV_BLOCK, 1, 2]).unwrap()).unwrap();
    let k = floats(&[3, 1, 1], &[1., 2., 9.]);
    let pages = HostTensor::from_u32(&[1, 1], &[1]).unwrap();
    // The third row is padding: its position is out of range and must not be looked at.
    let mut args = [k.clone(), k.clone(), cache, ids(&[0, 1, 99]), ids(&[2]), pages.clone()];
    Op::KvWrite.reference(&mut args).unwrap();
    let cache = args[2].clone();
    assert_eq!(cache.f32s().unwrap().iter().filter(|v| **v != 0.0).count(), 4);
    let op = Op::Attention { scale: 1.0, window: None, softcap: None };
    let y = run(op, &[k, cache, ids(&[0, 1, 99]), ids(&[1, 2, 99]), ids(&[2]), pages]).swap_remove(0);
    let y = y.f32s().unwrap();
    assert_eq!((y[0], y[2]), (1.0, 0.0));
    assert!(y[1] > 1.0 && y[1] < 2.0);
}

#[test]
fn what_does_not_exist_is_named() {
    let said = |op: Op, args: &[HostTensor]| op.reference(&mut args.to_vec()).unwrap_err().to_string();
    let cache = HostTensor::zeros(DType::F32, Shape::new(&[2, KV_BLOCK, 1, 2]).unwrap()).unwrap();
    let k = floats(&[1, 1, 1], &[1.]);
    let pages = |page| HostTensor::from_u32(&[1, 1], &[page]).unwrap();
    let write = |pos, extent, page| {
        said(Op::KvWrite, &[k.clone(), k.clone(), cache.clone(), ids(&[pos]), ids(&[extent]), pages(page)])
    };
    assert_eq!(write(0, 1, 2), "operand 5 (pages): sequence 0 uses block 2, the cache has 2");
    assert_eq!(
        write(16, 1, 0),
        "operand 5 (pages): position 16 of sequence 0 is in block 1, its table has 1"
    );
    assert_eq!(write(0, 2, 0), "operand 4 (extents): the extents sum to more than the 1 rows");
    let w = floats(&[2, 1, 1], &[1., 1.]);
    let chosen = HostTensor::from_u32(&[1, 1], &[2]).unwrap();
    assert_eq!(
        said(Op::ExpertMatMul, &[floats(&[1, 1], &[1.]), w, chosen]),
        "operand 2 (experts): row 0 chooses expert 2 of 2"
    );
    let route = Op::Route { k: 1, renormalise: false };
    assert!(said(route, &[floats(&[1, 2], &[f32::NAN, 1.])]).contains("row 0: the router's logits"));
    let ring = floats(&[1, 1, 1], &[0.]);
    let conv = |pos, slot, snap| {
        let w = floats(&[1, 2], &[1., 1.]);
        let x = floats(&[1, 1], &[1.]);
        said(Op::ShortConv, &[x, w, ring.clone(), ids(&[pos]), ids(&[1]), ids(&[slot]), ids(&[snap])])
    };
    assert_eq!(conv(1, 1, NO_SNAP), "operand 5 (slots): sequence 0 reads slot 1 of 1");
    assert_eq!(conv(0, 7, 3), "operand 6 (snap): row 0 stores slot 3 of 1");
    let rule = |pos, slot, snap| {
        let one = |dims: &[usize]| floats(dims, &[1.]);
        let [q, k, v] = [0; 3].map(|_| one(&[1, 1, 1]));
        let step = [ids(&[pos]), ids(&[1]), ids(&[slot]), ids(&[snap])];
        let [log_decay, beta] = [0; 2].map(|_| one(&[1, 1]));
        let args = [&[q, k, v, log_decay, beta, one(&[1, 1, 1, 1])][..], &step].concat();
        said(Op::GatedDeltaRule { scale: 1.0, eps: 1e-6 }, &args)
    };
    assert_eq!(rule(1, 1, NO_SNAP), "operand 8 (slots): sequence 0 reads slot 1 of 1");
    assert_eq!(rule(0, 7, 3), "operand 9 (snap): row 0 stores slot 3 of 1");
    assert!(said(Op::MatMul, &[k.clone(), floats(&[2, 3], &[0.; 6])]).starts_with("operand 1 (w)"));
}

/// An f32 sum in order stays within the exact bound; activations rounded to 8 bits stay within the fast one and
/// leave the exact one.
#[test]
fn matmul_bounds_hold_for_f32_sums_and_8_bit_activations() {
    for case in cases("matmul_blocks") {
        let name = case.params["dtype"].as_str().unwrap();
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap();
        let (n, k) = (case.count("n"), case.count("k"));
        let args = [case.get("x"), HostTensor::new(dtype, &[n, k], &case.raw["w"]).unwrap()];
        let w = args[1].to_f32().unwrap();
        let y = run(Op::MatMul, &args).swap_remove(0);
        let product = |x: &[f32]| -> Vec<f32> {
            let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0f32, |s, (x, w)| s + x * w);
            x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
        };
        let worst = |have: &[f32], precision| {
            let bounds = Op::MatMul.bounds(&args, precision).unwrap().swap_remove(0);
            let off = have.iter().zip(y.f32s().unwrap()).map(|(a, b)| f64::from((a - b).abs()));
            off.zip(bounds).map(|(off, bound)| off / bound).fold(0.0, f64::max)
        };
        let x = args[0].f32s().unwrap();
        assert!(worst(&product(x), Precision::Exact) < 1.0, "{}", case.name);
        if !dtype.is_quantised() {
            continue;
        }
        let mut eight_bits = x.to_vec();
        for block in eight_bits.chunks_mut(linear::ACTIVATION_BLOCK) {
            let step = block.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
            block.iter_mut().for_each(|x| *x = (*x / step).round() * step);
        }
        let rounded = product(&eight_bits);
        assert!(worst(&rounded, Precision::Fast) < 1.0, "{}", case.name);
        assert!(worst(&rounded, Precision::Exact) > 1.0, "{}: the classes must differ", case.name);
    }
}

/// One row of logits drawn from in several ways, and what that leaves in the slots.
#[test]
fn samples_by_hand() {
    use crate::sampling::{Policy, least_weight, share, sharpness};
    let all = Policy { sharpness: sharpness(1.0), top_k: 0, ..Policy::default() };
    let at = |uniform: f64| (uniform * 4_294_967_296.0) as u32;
    let inf = f32::NEG_INFINITY;
    // Of weights 1, 1/2, 1, 0 (never drawn), 1/4.
    let ln = |x: f32| x.ln();
    let row = [0.0, ln(0.5), 0.0, inf, ln(0.25)];
    let cases = [
        (Policy::default(), 0),
        (Policy { uniform: u32::MAX, ..Policy::default() }, 0),
        (Policy { uniform: 0, ..all }, 0),
        (Policy { uniform: at(1.01 / 2.75), ..all }, 1),
        (Policy { uniform: at(1.51 / 2.75), ..all }, 2),
        (Policy { uniform: at(2.49 / 2.75), ..all }, 2),
        (Policy { uniform: u32::MAX, ..all }, 4),
        // The two highest share what is drawn; of three at one logit the lowest ids.
        (Policy { uniform: at(0.49), top_k: 2, ..all }, 0),
        (Policy { uniform: at(0.51), top_k: 2, ..all }, 2),
        (Policy { uniform: u32::MAX, top_k: 3, ..all }, 2),
        (Policy { uniform: u32::MAX, top_k: 99, ..all }, 4),
        // 1 of 2.75 does not reach 0.4, 2 do.
        (Policy { uniform: u32::MAX, top_p: share(0.4), ..all }, 2),
        (Policy { uniform: u32::MAX, top_p: share(0.36), ..all }, 0),
        (Policy { uniform: u32::MAX, top_p: share(0.99), ..all }, 4),
        (Policy { uniform: at(0.5), min_p: least_weight(0.3), ..all }, 1),
        (Policy { uniform: u32::MAX, min_p: least_weight(0.3), ..all }, 2),
        (Policy { uniform: u32::MAX, min_p: least_weight(1.0), ..all }, 2),
        // Hot: all that are possible are as likely.
        (Policy { uniform: at(0.76), sharpness: 0.0, ..all }, 4),
    ];
    let n = cases.len();
    let of = |f: &dyn Fn(&Policy) -> u32| ids(&cases.each_ref().map(|(p, _)| f(p)));
    let mut args = vec![
        floats(&[n, 5], &row.repeat(n)),
        HostTensor::zeros(DType::U32, Shape::new(&[n + 1]).unwrap()).unwrap(),
        ids(&(1..=n as u32).collect::<Vec<_>>()),
        of(&|p| p.uniform),
        floats(&[n], &cases.map(|(p, _)| p.sharpness)),
        of(&|p| p.top_k),
        of(&|p| p.top_p),
        of(&|p| p.min_p),
    ];
    let drawn = Op::Sample.reference(&mut args).unwrap().swap_remove(0);
    let want = cases.map(|(_, id)| id);
    assert_eq!(drawn.u32s().unwrap(), want);
    assert_eq!(args[1].u32s().unwrap(), [&[0][..], &want].concat());
    let fed = run(Op::Feed, &[ids(&[7, NOT_A_TOKEN | 4, 0, NOT_A_TOKEN]), args[1].clone()]).swap_remove(0);
    assert_eq!(fed.u32s().unwrap(), [7, want[3], 0, 0]);
}

#[test]
fn rows_that_cannot_be_sampled_are_marked() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [[1.0, nan, inf], [1.0, 2.0, inf], [-inf, -inf, -inf], [-inf, 3.0, -inf], [nan, 0.0, 0.0]];
    let zeros = || ids(&[0; 5]);
    let mut args = vec![
        floats(&[5, 3], &rows.concat()),
        ids(&[9; 4]),
        ids(&[0, 1, 2, 3, NO_SNAP]),
        zeros(),
        floats(&[5], &[1.0; 5]),
        zeros(),
        zeros(),
        zeros(),
    ];
    let drawn = Op::Sample.reference(&mut args).unwrap().swap_remove(0);
    let want = [NOT_A_TOKEN | 1, NOT_A_TOKEN | 2, NO_TOKEN, 1, NO_TOKEN];
    assert_eq!(drawn.u32s().unwrap(), want);
    assert_eq!(args[1].u32s().unwrap(), &want[..4]);
    let said = |op: Op, args: &[HostTensor]| op.reference(&mut args.to_vec()).unwrap_err().to_string();
    args[2] = ids(&[0, 1, 2, 4, NO_SNAP]);
    assert_eq!(said(Op::Sample, &args), "operand 2 (into): row 3 stores slot 4 of 4");
    let fed = [ids(&[0, NOT_A_TOKEN | 4]), args[1].clone()];
    assert_eq!(said(Op::Feed, &fed), "operand 0 (ids): row 1 takes slot 4 of 4");
}
