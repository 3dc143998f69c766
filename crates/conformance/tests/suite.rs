//! The suite judges the oracle right and many wrong devices wrong.

use std::sync::Arc;

use gristmill_conformance::reference::Evaluate;
use gristmill_conformance::{Case, ReferenceBackend, Report, run};
use tensor::ops::{Activation, KV_BLOCK, NO_SNAP, NOT_A_TOKEN, ReferenceError};
use tensor::{DType, HostTensor, Op};

type Answer = Result<Vec<HostTensor>, ReferenceError>;
/// A wrong device: computes one op in its own way and leaves the others alone.
type Mutation = fn(&Op, &mut [HostTensor]) -> Option<Answer>;

fn report_of(mutation: Mutation, filter: impl Fn(&Case) -> bool) -> Report {
    let evaluate: Arc<Evaluate> = Arc::new(move |op: &Op, args: &mut [HostTensor]| {
        mutation(op, args).unwrap_or_else(|| op.reference(args))
    });
    run(&ReferenceBackend::with(evaluate), filter)
}

/// The mutation fails cases of this op, by this kind of check.
#[track_caller]
fn caught(op: &str, check: &str, mutation: Mutation) {
    // K-quants, 16-bit floats and long rows of logits repeat what the others show.
    let types = [DType::F32, DType::F16, DType::U32, DType::Q4_0, DType::Q4_1];
    let filter = |c: &Case| c.op == op && types.contains(&c.dtype) && c.class != "vocabulary";
    let report = report_of(mutation, filter);
    let found = report.failures.iter().find(|f| f.check.contains(check));
    assert!(found.is_some() && !report.passed(), "not caught by {check}:\n{report}");
}

fn edit_u32(t: &mut HostTensor, f: impl Fn(usize, u32) -> u32) {
    let values: Vec<u32> = t.u32s().unwrap().iter().enumerate().map(|(i, v)| f(i, *v)).collect();
    *t = HostTensor::from_u32(t.dims(), &values).unwrap();
}

/// The reference with changed operands; the changes to other operands than the state are undone.
fn with(op: &Op, args: &mut [HostTensor], edit: impl Fn(&mut [HostTensor])) -> Answer {
    let mut changed = args.to_vec();
    edit(&mut changed);
    let results = op.reference(&mut changed);
    if let Some(state) = op.state_operand() {
        args[state] = changed.swap_remove(state);
    }
    results
}

#[test]
fn the_oracle_passes_every_case() {
    let report = run(&ReferenceBackend::new(), |_| true);
    println!("{report}");
    assert!(report.passed(), "{report}");
    let cases: usize = report.rows.iter().flat_map(|(_, cells)| cells.values()).map(|c| c.cases).sum();
    assert!(cases > 300, "{cases}");
    // Every op of the vocabulary has a row.
    let ops = [
        "gather",
        "matmul",
        "matmuls",
        "add",
        "mul",
        "silu",
        "gelu_tanh",
        "gelu_erf",
        "sigmoid",
        "swiglu",
        "geglu_tanh",
        "geglu_erf",
        "glu",
        "scale",
        "rms_norm",
        "add_rms_norm",
        "rope",
        "kv_write",
        "attention",
        "route",
        "expert_matmul",
        "expert_sum",
        "short_conv",
        "gated_delta_rule",
        "sample",
        "feed",
    ];
    let rows: Vec<&str> = report.rows.iter().map(|(op, _)| *op).collect();
    assert!(ops.iter().all(|op| rows.contains(op)) && rows.len() == ops.len(), "{rows:?}");
}

#[test]
fn eps_outside_the_root() {
    let mutation: Mutation = |op, args| match op {
        Op::RmsNorm { eps } => Some((|| {
            let (width, w) = (args[0].shape().last(), args[1].f32s()?);
            let mut y = args[0].f32s()?.to_vec();
            for row in y.chunks_exact_mut(width) {
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                let factor = 1.0 / (mean.sqrt() + f64::from(*eps));
                row.iter_mut().zip(w).for_each(|(x, w)| *x = (f64::from(*x) * factor * f64::from(*w)) as f32);
            }
            Ok(vec![HostTensor::from_f32(args[0].dims(), &y)?])
        })()),
        _ => None,
    };
    caught("rms_norm", "step", mutation);
}

#[test]
fn rotary_pairs_of_neighbours() {
    let mutation: Mutation = |op, args| match op {
        Op::Rope { .. } => Some((|| {
            let (width, half) = (args[0].dims()[2], args[2].dims()[0]);
            // Moves element `from(i)` of each head to i.
            let move_all = |t: &HostTensor, from: &dyn Fn(usize) -> usize| {
                let x = t.f32s()?;
                let moved: Vec<f32> = (0..x.len()).map(|i| x[i - i % width + from(i % width)]).collect();
                Ok::<_, ReferenceError>(HostTensor::from_f32(t.dims(), &moved)?)
            };
            let split = |i| if i >= 2 * half { i } else { i % half * 2 + i / half };
            let join = |i| if i >= 2 * half { i } else { i / 2 + i % 2 * half };
            let mut changed = args.to_vec();
            changed[0] = move_all(&args[0], &split)?;
            Ok(vec![move_all(&op.reference(&mut changed)?[0], &join)?])
        })()),
        _ => None,
    };
    caught("rope", "step", mutation);
}

#[test]
fn a_window_of_one_key_too_many() {
    caught("attention", "step", |op, args| match op {
        Op::Attention { scale, window: Some(w), softcap } => {
            Some(Op::Attention { scale: *scale, window: Some(w + 1), softcap: *softcap }.reference(args))
        }
        _ => None,
    });
}

#[test]
fn the_last_partial_block_dropped() {
    caught("attention", "step", |op, args| match op {
        Op::Attention { .. } => {
            Some(with(op, args, |a| edit_u32(&mut a[3], |_, until| until - until % KV_BLOCK as u32)))
        }
        _ => None,
    });
}

#[test]
fn a_key_beyond_until() {
    caught("attention", "step", |op, args| match op {
        Op::Attention { .. } => {
            let room = (args[5].dims()[1] * KV_BLOCK) as u32;
            Some(with(op, args, |a| edit_u32(&mut a[3], |_, until| (until + 1).min(room))))
        }
        _ => None,
    });
}

#[test]
fn the_wrong_kv_head() {
    let mutation: Mutation = |op, args| match op {
        Op::Attention { .. } => Some((|| {
            // Query head h reads KV head h mod H: give the reference the heads in the order in which that is right.
            let (heads, kv_heads) = (args[0].dims()[1], args[1].dims()[2]);
            let group = heads / kv_heads;
            let move_all = |t: &HostTensor, from: &dyn Fn(usize) -> usize| {
                let (x, width) = (t.f32s()?, t.dims()[2]);
                let rows = t.dims()[0] * heads;
                let row = |i: usize| &x[(i - i % heads + from(i % heads)) * width..][..width];
                let moved: Vec<f32> = (0..rows).flat_map(row).copied().collect();
                Ok::<_, ReferenceError>(HostTensor::from_f32(t.dims(), &moved)?)
            };
            let mut changed = args.to_vec();
            changed[0] = move_all(&args[0], &|place| place / group + place % group * kv_heads)?;
            let y = op.reference(&mut changed)?.swap_remove(0);
            Ok(vec![move_all(&y, &|h| h % kv_heads * group + h / kv_heads)?])
        })()),
        _ => None,
    };
    caught("attention", "step", mutation);
}

#[test]
fn the_softcap_forgotten() {
    caught("attention", "step", |op, args| match op {
        Op::Attention { scale, window, softcap: Some(_) } => {
            Some(Op::Attention { scale: *scale, window: *window, softcap: None }.reference(args))
        }
        _ => None,
    });
}

#[test]
fn neighbouring_blocks_instead_of_the_page_table() {
    // Write and read agree with each other, so only the sharing of blocks between sequences shows it.
    caught("kv_write", "step", |op, args| match op {
        Op::KvWrite | Op::Attention { .. } => {
            let (blocks, width) = (args[op.state_operand()?].dims()[0], args[5].dims()[1]);
            Some(with(op, args, |a| edit_u32(&mut a[5], |i, _| ((i % width) % blocks) as u32)))
        }
        _ => None,
    });
}

#[test]
fn padding_rows_that_write() {
    caught("kv_write", "bits in a larger bucket", |op, args| match op {
        Op::KvWrite => {
            let rows = args[0].dims()[0] as u32;
            let used: u32 = args[4].u32s().ok()?.iter().sum();
            Some(with(op, args, |a| edit_u32(&mut a[4], |i, e| if i == 0 { e + rows - used } else { e })))
        }
        _ => None,
    });
}

#[test]
fn a_stale_slot_at_position_0() {
    caught("short_conv", "step", |op, args| match op {
        Op::ShortConv => Some(with(op, args, |a| edit_u32(&mut a[3], |_, pos| pos.max(1)))),
        _ => None,
    });
}

#[test]
fn a_snap_forgotten() {
    caught("short_conv", "step", |op, args| match op {
        Op::ShortConv => Some(with(op, args, |a| {
            let spare = a[2].dims()[0] as u32 - 3;
            edit_u32(&mut a[6], |_, slot| if slot == spare { NO_SNAP } else { slot });
        })),
        _ => None,
    });
}

#[test]
fn the_taps_in_reverse() {
    caught("short_conv", "step", |op, args| match op {
        Op::ShortConv => Some(with(op, args, |a| {
            let taps = a[1].dims()[1];
            a[1].f32s_mut().unwrap().chunks_exact_mut(taps).for_each(|w| w.reverse());
        })),
        _ => None,
    });
}

/// A wrong device that sees the operands of a delta rule changed.
fn delta(op: &Op, args: &mut [HostTensor], edit: impl Fn(&mut [HostTensor])) -> Option<Answer> {
    matches!(op, Op::GatedDeltaRule { .. }).then(|| with(op, args, edit))
}

#[test]
fn a_correction_by_what_was_recalled_before_the_decay() {
    // With v / decay and beta * decay, what is recalled after the decay has the weight of what was recalled before it.
    caught("gated_delta_rule", "step", |op, args| {
        delta(op, args, |a| {
            let heads = a[2].dims()[1];
            let decay: Vec<f32> = a[3].f32s().unwrap().iter().map(|g| g.exp().max(1e-3)).collect();
            let width = a[2].dims()[2];
            let v = a[2].f32s_mut().unwrap();
            v.chunks_exact_mut(width).zip(&decay).for_each(|(v, d)| v.iter_mut().for_each(|v| *v *= d));
            let beta = a[4].f32s_mut().unwrap();
            assert_eq!(beta.len() % heads.max(1), 0);
            beta.iter_mut().zip(&decay).for_each(|(b, d)| *b /= d);
        })
    });
}

#[test]
fn a_stale_matrix_at_position_0() {
    caught("gated_delta_rule", "step", |op, args| {
        delta(op, args, |a| edit_u32(&mut a[6], |_, pos| pos.max(1)))
    });
}

#[test]
fn a_matrix_not_stored() {
    caught("gated_delta_rule", "step", |op, args| {
        delta(op, args, |a| edit_u32(&mut a[9], |_, slot| if slot == 2 { NO_SNAP } else { slot }))
    });
}

#[test]
fn keys_as_long_as_they_come() {
    caught("gated_delta_rule", "step", |op, args| match op {
        Op::GatedDeltaRule { scale, .. } => {
            Some(Op::GatedDeltaRule { scale: *scale, eps: 1.0 }.reference(args))
        }
        _ => None,
    });
}

#[test]
fn the_key_head_of_another_value_head() {
    // Head h with the keys of h mod Hk: the reference is given the keys in reverse.
    caught("gated_delta_rule", "step", |op, args| {
        delta(op, args, |a| {
            let (heads, width) = (a[1].dims()[1], a[1].dims()[2]);
            let k = a[1].f32s_mut().unwrap();
            k.chunks_exact_mut((heads * width).max(1)).for_each(|row| row.rotate_left(width));
        })
    });
}

#[test]
fn ties_to_the_higher_id() {
    let mutation: Mutation = |op, args| match op {
        Op::Route { .. } => Some((|| {
            let experts = args[0].dims()[1];
            let mut changed = args.to_vec();
            changed[0].f32s_mut()?.chunks_exact_mut(experts).for_each(|row| row.reverse());
            let mut results = op.reference(&mut changed)?;
            edit_u32(&mut results[1], |_, id| experts as u32 - 1 - id);
            Ok(results)
        })()),
        _ => None,
    };
    caught("route", "y1", mutation);
}

/// The reference with one operand of every row replaced.
fn sampled_with(at: usize, op: &Op, args: &mut [HostTensor], edit: impl Fn(u32) -> u32) -> Option<Answer> {
    matches!(op, Op::Sample).then(|| with(op, args, |a| edit_u32(&mut a[at], |_, v| edit(v))))
}

#[test]
fn tokens_drawn_in_other_ways() {
    use tensor::sampling::{ONE, share};
    // One too many of the highest, argmax for two.
    caught("sample", "step", |op, args| {
        sampled_with(5, op, args, |k| if k > 1 { k.saturating_add(1) } else { k })
    });
    caught("sample", "step", |op, args| sampled_with(5, op, args, |k| if k == 2 { 1 } else { k }));
    // The nucleus and the least weight a little larger, or left out.
    caught("sample", "step", |op, args| sampled_with(6, op, args, |p| p.saturating_add(p >> 4)));
    caught("sample", "step", |op, args| sampled_with(6, op, args, |p| if p == share(0.9) { 0 } else { p }));
    caught("sample", "step", |op, args| sampled_with(7, op, args, |p| p.min(ONE - 1) / 2));
    caught("sample", "step", |op, args| sampled_with(3, op, args, |u| u ^ 1 << 25));
    // Kept in the slot, though the row is to draw nothing; not kept.
    caught("sample", "y1", |op, args| sampled_with(2, op, args, |s| if s == NO_SNAP { 5 } else { s }));
    caught("feed", "step", |op, args| sampled_with(2, op, args, |_| NO_SNAP));
    caught("feed", "step", |op, args| match op {
        Op::Feed => Some(with(op, args, |a| edit_u32(&mut a[0], |_, id| id & !NOT_A_TOKEN))),
        _ => None,
    });
    // Token 0 for logits that are no numbers.
    caught("sample", "step", |op, args| match op {
        Op::Sample => Some((|| {
            let mut results = op.reference(args)?;
            edit_u32(&mut results[0], |_, id| if id >= NOT_A_TOKEN && id != NO_SNAP { 0 } else { id });
            Ok(results)
        })()),
        _ => None,
    });
}

#[test]
fn weights_not_renormalised() {
    caught("route", "step", |op, args| match op {
        Op::Route { k, .. } => Some(Op::Route { k: *k, renormalise: false }.reference(args)),
        _ => None,
    });
}

#[test]
fn a_refused_row_taken_for_zeros() {
    caught("route", "rows refused for NaN", |op, args| match op {
        Op::Route { .. } => Some(with(op, args, |a| {
            for logit in a[0].f32s_mut().unwrap() {
                *logit = if logit.is_nan() { 0.0 } else { *logit };
            }
        })),
        _ => None,
    });
}

#[test]
fn a_refused_row_that_fails_the_whole_step() {
    caught("route", "rows refused for infinity", |op, args| match op {
        Op::Route { .. } => Some(op.reference(args).map_err(|e| match e {
            ReferenceError::Row { problem, .. } => {
                ReferenceError::Value { operand: 0, role: "logits", problem: problem.to_owned() }
            }
            other => other,
        })),
        _ => None,
    });
}

#[test]
fn a_refused_row_that_reaches_its_neighbours() {
    // The oracle goes on with zeros for a refused row: the one before such a row has its logits reversed.
    caught("route", "rows refused for nothing finite", |op, args| match op {
        Op::Route { .. } => Some(with(op, args, |a| {
            let experts = a[0].dims()[1];
            let x = a[0].f32s_mut().unwrap();
            let refused = x.chunks(experts).position(|row| row.iter().all(|l| *l == 0.0));
            if let Some(row) = refused.filter(|row| *row > 0) {
                x[(row - 1) * experts..][..experts].reverse();
            }
        })),
        _ => None,
    });
}

#[test]
fn the_row_s_own_expert_slot_confused() {
    caught("expert_matmul", "step", |op, args| match op {
        Op::ExpertMatMul => Some(with(op, args, |a| {
            let (slots, ids) = (a[2].dims()[1], a[2].u32s().unwrap().to_vec());
            edit_u32(&mut a[2], |i, _| ids[i - i % slots]);
        })),
        _ => None,
    });
}

#[test]
fn ids_out_of_range_clamped() {
    caught("gather", "step", |op, args| match op {
        Op::Gather => Some(with(op, args, |a| {
            let last = a[0].dims()[0] as u32 - 1;
            edit_u32(&mut a[1], |_, id| id.min(last));
        })),
        _ => None,
    });
}

#[test]
fn gelu_of_the_other_form() {
    caught("gelu_erf", "step", |op, args| match op {
        Op::Activate(Activation::GeluErf) => Some(Op::Activate(Activation::GeluTanh).reference(args)),
        _ => None,
    });
}

#[test]
fn the_last_block_of_a_product_dropped() {
    caught("matmul", "step", |op, args| match op {
        Op::MatMul => Some(with(op, args, |a| {
            let (k, block) = (a[1].shape().last(), a[1].dtype().block_len());
            a[0].f32s_mut().unwrap().chunks_exact_mut(k).for_each(|x| x[k - block..].fill(0.0));
        })),
        _ => None,
    });
}

#[test]
fn activations_in_8_bits_with_a_scale_per_row() {
    // Both classes: a row with an outlier leaves the rest of the row fewer bits than a block has.
    let mutation: Mutation = |op, args| match op {
        Op::MatMul if args[1].dtype().is_quantised() => Some(with(op, args, |a| {
            let k = a[1].shape().last();
            for x in a[0].f32s_mut().unwrap().chunks_exact_mut(k) {
                let step = x.iter().fold(0f32, |m, x| m.max(x.abs())).max(1e-30) / 127.0;
                x.iter_mut().for_each(|x| *x = (*x / step).round() * step);
            }
        })),
        _ => None,
    };
    caught("matmul", "Exact, step", mutation);
    caught("matmul", "Fast, step", mutation);
}

/// The last bit changed in results that some condition selects: within every tolerance, so that only the bitwise checks
/// can see it.
fn nudge(op: &Op, args: &mut [HostTensor], which: impl Fn(usize, usize) -> bool) -> Answer {
    let mut results = op.reference(args)?;
    for y in &mut results {
        let (rows, width) = (y.dims()[0], y.shape().elements() / y.dims()[0].max(1));
        for (i, y) in y.f32s_mut()?.iter_mut().enumerate() {
            *y = if which(i / width, rows) { f32::from_bits(y.to_bits() ^ 1) } else { *y };
        }
    }
    Ok(results)
}

#[test]
fn bits_that_depend_on_the_bucket() {
    let mutation: Mutation = |op, args| match op {
        Op::MatMul => Some(nudge(op, args, |_, rows| rows % 2 == 1)),
        _ => None,
    };
    caught("matmul", "bits in a larger bucket", mutation);
}

#[test]
fn bits_that_depend_on_the_row_s_place() {
    let mutation: Mutation = |op, args| match op {
        Op::Attention { .. } => Some(nudge(op, args, |row, _| row == 0)),
        _ => None,
    };
    caught("attention", "bits in another order", mutation);
    let mutation: Mutation = |op, args| match op {
        Op::MatMul => Some(nudge(op, args, |row, rows| row < rows / 2 * 2)),
        _ => None,
    };
    caught("matmul", "bits alone", mutation);
}

/// Fusions do not change what is computed: a block of a transformer, before and after the rewrites.
#[test]
fn rewritten_graphs_agree_with_the_composed_ones() {
    use graph::{Builder, PortKind, rewrite};
    use gristmill_conformance::reference::interpret;
    use gristmill_conformance::values::Values;

    let b = Builder::new();
    let x = b.input("x", DType::F32, &[5, 64], None);
    let w = |name: &str, n, k| b.weight(name, DType::Q8_0, &[n, k]);
    let row = |name: &str, n| b.weight(name, DType::F32, &[n]);
    let h = b.rms_norm(x, row("n1", 64), 1e-5);
    let q = b.add_row(b.matmul(h, w("q", 64, 64)), row("qb", 64));
    let k = b.matmul(h, w("k", 64, 64));
    let y = b.add(x, b.mul(q, k));
    let n = b.rms_norm(y, row("n2", 64), 1e-5);
    let gate = b.activate(Activation::GeluTanh, b.matmul(n, w("gate", 96, 64)));
    let act = b.mul(gate, b.matmul(n, w("up", 96, 64)));
    b.output("y", b.add(y, b.matmul(act, w("down", 64, 96))));
    let composed = b.finish().unwrap();
    let mut fused = composed.clone();
    rewrite::standard(&mut fused);
    assert!(fused.nodes.len() + 5 <= composed.nodes.len());
    let mut values = Values::new("block");
    let ports: Vec<Option<HostTensor>> = composed
        .ports
        .iter()
        .map(|p| match p.kind {
            PortKind::Output => None,
            _ => Some(values.weights(p.dtype, p.shape.dims())),
        })
        .collect();
    let answer = |graph| {
        let evaluate = |op: &Op, args: &mut [HostTensor]| op.reference(args);
        let outputs = interpret(graph, &mut ports.clone(), &evaluate, &mut |_, _| Ok(()));
        outputs.unwrap().outputs[0].1.f32s().unwrap().to_vec()
    };
    let (composed, fused) = (answer(&composed), answer(&fused));
    let largest = composed.iter().fold(0f32, |m, y| m.max(y.abs()));
    for (a, b) in composed.iter().zip(&fused) {
        // A fused op rounds once where its parts round twice.
        assert!((a - b).abs() <= 1e-6 * largest, "{a} {b}");
    }
    assert_ne!(largest, 0.0);
}

#[test]
fn entries_of_states_go_to_the_host_and_back() {
    gristmill_conformance::states(&ReferenceBackend::new()).unwrap();
}
