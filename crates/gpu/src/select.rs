//! All choices of kernels.

use graph::backend::DeviceError;
use tensor::DType;
use tensor::ops::Activation;
use wgpu::{Features, Limits};

use crate::adapter::AdapterInfo;
use crate::kernel::{Binding, Kernel};
use crate::pack::{Scales, form, planes};

/// What a device offers to kernels, after probing.
#[derive(Clone, Debug)]
pub(crate) struct Capabilities {
    /// Lanes of a subgroup, when all subgroups are of one size that kernels know.
    pub(crate) subgroup: Option<u32>,
    /// Timestamps around dispatches.
    pub(crate) timestamps: bool,
    /// Most lanes of a workgroup.
    pub(crate) lanes: u32,
    /// Kernels that do the work of several ops.
    pub(crate) fused: bool,
    /// `unpack2x16float` gives every binary16 its value, subnormals too.
    pub(crate) exact_halves: bool,
    /// Kernels of one result may be chosen by the rows of a step where they give the same bits.
    pub(crate) agreement: bool,
}

/// Kernel families that are used although probing would choose others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Families {
    /// No subgroup operations.
    pub no_subgroups: bool,
    /// No kernels that do the work of several ops.
    pub no_fusion: bool,
    /// Kernels for many rows and for few are taken to give different bits, so that one serves all.
    pub no_agreement: bool,
}

impl Capabilities {
    pub(crate) fn new(
        info: &AdapterInfo,
        features: Features,
        limits: &Limits,
        families: Families,
    ) -> Capabilities {
        let (least, most) = info.subgroups;
        // Sums are added over lanes in halves.
        let known = least == most && least.is_power_of_two() && (4..=64).contains(&least);
        let subgroups = features.contains(Features::SUBGROUP) && !families.no_subgroups && known;
        Capabilities {
            subgroup: subgroups.then_some(least),
            timestamps: features
                .contains(Features::TIMESTAMP_QUERY | Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            lanes: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x)
                .min(1024),
            fused: !families.no_fusion,
            exact_halves: false,
            agreement: !families.no_agreement,
        }
    }
}

const BASIC: &[Binding] = &[];
const ELEMENTS: &[Binding] = &[Binding::Read("elements", "f32")];
const NORM_QUANTISE: &[Binding] = &[
    Binding::Read("elements", "f32"),
    Binding::Write("acts", "vec4<u32>"),
    Binding::Write("meta_", "vec2<u32>"),
];
const QUANTISE: &[Binding] = &[Binding::Write("acts", "vec4<u32>"), Binding::Write("meta_", "vec2<u32>")];
const TABLE: &[Binding] = &[Binding::Read("w4", "vec4<u32>"), Binding::Read("w1", "u32")];
const MATMUL_F32: &[Binding] =
    &[Binding::Read("w4", "vec4<u32>"), Binding::Read("w1", "u32"), Binding::Read("elements", "f32")];
const MATMUL_I8: &[Binding] = &[
    Binding::Read("w4", "vec4<u32>"),
    Binding::Read("w1", "u32"),
    Binding::Read("elements", "f32"),
    Binding::Read("acts", "vec4<u32>"),
    Binding::Read("meta_", "vec2<u32>"),
];
const GATED_F32: &[Binding] = &[
    Binding::Read("w4", "vec4<u32>"),
    Binding::Read("w1", "u32"),
    Binding::Read("up4", "vec4<u32>"),
    Binding::Read("up1", "u32"),
];
const GATED_I8: &[Binding] = &[
    Binding::Read("w4", "vec4<u32>"),
    Binding::Read("w1", "u32"),
    Binding::Read("up4", "vec4<u32>"),
    Binding::Read("up1", "u32"),
    Binding::Read("acts", "vec4<u32>"),
    Binding::Read("meta_", "vec2<u32>"),
];
const KV_NORM: &[Binding] =
    &[Binding::Write("kv", "u32"), Binding::Read("q_gain", "f32"), Binding::Read("k_gain", "f32")];
const KV: &[Binding] = &[Binding::Write("kv", "u32")];
const KV_READ: &[Binding] = &[Binding::Read("kv", "u32")];
const KV_PARTS: &[Binding] = &[Binding::Read("kv", "u32"), Binding::Write("parts", "f32")];
const PARTS: &[Binding] = &[Binding::Read("parts", "f32")];
const CONV: &[Binding] = &[Binding::Read("elements", "f32"), Binding::Write("ring", "f32")];

const DRAWN: &[Binding] = &[Binding::Write("drawn", "u32")];

const MATH: &str = include_str!("kernels/math.wgsl");
const APPLY: &str = include_str!("kernels/apply.wgsl");
const TOTAL: &str = include_str!("kernels/total.wgsl");
const RMS_NORM: &str = include_str!("kernels/rms_norm.wgsl");
const QUANTISE_BLOCK: &str = include_str!("kernels/quantise_block.wgsl");
const HALF: &str = include_str!("kernels/half.wgsl");
const WEIGHTS: &str = include_str!("kernels/weights.wgsl");
const MATMUL: &str = include_str!("kernels/matmul.wgsl");

/// Keys of a split of attention: splits lie at absolute multiples.
pub(crate) const SPLIT: usize = 256;
/// Rows of a bucket up to which the splits of attention are workgroups of their own.
const SPLIT_ROWS: usize = 8;
/// Matrices that one dispatch multiplies with, at most.
pub(crate) const SEGMENTS: usize = 4;

fn kernel(
    family: &'static str,
    parts: &'static [&'static str],
    own: &'static [Binding],
    parameters: &[(&'static str, u32)],
) -> Kernel {
    Kernel { family, parts, own, parameters: parameters.to_vec() }
}

/// Elementwise operations, as apply.wgsl numbers them.
#[derive(Clone, Copy)]
pub(crate) enum Elementwise {
    Add = 0,
    Mul = 1,
    Silu = 2,
    GeluTanh = 3,
    GeluErf = 4,
    Sigmoid = 5,
    SiluMul = 6,
    GeluTanhMul = 7,
    GeluErfMul = 8,
    SigmoidMul = 9,
    Scale = 10,
}

impl Elementwise {
    /// `act(gate) * up`.
    pub(crate) fn gated(activation: Activation) -> Elementwise {
        match activation {
            Activation::Silu => Elementwise::SiluMul,
            Activation::GeluTanh => Elementwise::GeluTanhMul,
            Activation::GeluErf => Elementwise::GeluErfMul,
            Activation::Sigmoid => Elementwise::SigmoidMul,
        }
    }
}

pub(crate) fn elementwise(op: Elementwise) -> Kernel {
    let parts = &[MATH, APPLY, include_str!("kernels/elementwise.wgsl")];
    kernel("elementwise", parts, BASIC, &[("OP", op as u32)])
}

/// A row of a weight added to (0) or multiplied with (1) every row.
pub(crate) fn binary_row(op: Elementwise) -> Kernel {
    kernel("binary_row", &[include_str!("kernels/binary_row.wgsl")], ELEMENTS, &[("OP", op as u32)])
}

/// Lanes that share a row to be normed: the order of its sum.
fn norm_lanes(capabilities: &Capabilities, width: usize) -> u32 {
    (width / 4).next_power_of_two().clamp(32, capabilities.lanes as usize) as u32
}

/// `add`: of the sum of two. `quantise`: the codes of the result are wanted too.
pub(crate) fn rms_norm(capabilities: &Capabilities, width: usize, add: bool, quantise: bool) -> Kernel {
    let parameters = [
        ("LANES", norm_lanes(capabilities, width)),
        ("ADD", u32::from(add)),
        ("QUANTISE", u32::from(quantise)),
    ];
    match quantise {
        false => kernel("rms_norm", &[TOTAL, RMS_NORM], ELEMENTS, &parameters),
        true => kernel("rms_norm_quantise", &[TOTAL, QUANTISE_BLOCK, RMS_NORM], NORM_QUANTISE, &parameters),
    }
}

pub(crate) fn rope() -> Kernel {
    kernel("rope", &[include_str!("kernels/rope.wgsl")], BASIC, &[])
}

pub(crate) fn quantise() -> Kernel {
    kernel("quantise", &[QUANTISE_BLOCK, include_str!("kernels/quantise.wgsl")], QUANTISE, &[("LANES", 64)])
}

/// Parameters of weights.wgsl; `parts`: matrices that a kernel reads side by side.
fn format(capabilities: &Capabilities, dtype: DType, parts: u32) -> Option<[(&'static str, u32); 7]> {
    let (planes, dtype) = (planes(dtype)?, form(dtype)?);
    let bits = match dtype {
        DType::F32 => 32,
        DType::F16 => 16,
        DType::BF16 => 17,
        DType::Q8_0 => 8,
        _ => 4,
    };
    let scales = match planes.scales {
        Scales::None => 0,
        Scales::Half => 1,
        Scales::HalfPair => 2,
        Scales::Super => 3,
    };
    let offset = match dtype {
        DType::Q4_0 => 8,
        DType::Q5_0 => 16,
        DType::Q6_K => 32,
        _ => 0,
    };
    let minimum = matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K);
    Some([
        ("BITS", bits),
        ("HIGH", planes.high as u32),
        ("SCALES", scales),
        ("OFFSET", offset),
        ("MINIMUM", u32::from(minimum)),
        ("NATIVE", u32::from(capabilities.exact_halves)),
        ("PARTS", parts),
    ])
}

pub(crate) fn gather(capabilities: &Capabilities, dtype: DType) -> Option<Kernel> {
    let parameters = format(capabilities, dtype, 1)?;
    Some(kernel("gather", &[HALF, WEIGHTS, include_str!("kernels/gather.wgsl")], TABLE, &parameters))
}

/// Whether `unpack2x16float` is exact: 1024 lanes, each leaves one more than what it found wrong.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn probe_halves() -> Kernel {
    kernel("probe_halves", &[include_str!("kernels/probe_halves.wgsl")], BASIC, &[])
}

/// Copies a buffer to another.
pub(crate) fn copy() -> Kernel {
    const BINDINGS: &[Binding] = &[Binding::Read("from_", "vec4<u32>"), Binding::Write("to", "vec4<u32>")];
    kernel("copy", &[include_str!("kernels/copy.wgsl")], BINDINGS, &[])
}

pub(crate) fn gather_rows() -> Kernel {
    kernel("gather_rows", &[include_str!("kernels/gather_rows.wgsl")], BASIC, &[])
}

/// A product with weights of a type.
#[derive(Clone, Copy)]
pub(crate) struct Matmul {
    pub(crate) dtype: DType,
    /// Activations are 8-bit codes.
    pub(crate) integer: bool,
    /// Each row has an expert of its own.
    pub(crate) experts: bool,
    /// Rows of the bucket.
    pub(crate) rows: usize,
    /// The matrix is a gate: another of the same shape, whose product is multiplied with the activation of its own.
    pub(crate) gate: Option<Elementwise>,
    /// Rows of all matrices together.
    pub(crate) outputs: usize,
    /// Blocks of the inner dimension.
    pub(crate) blocks: usize,
}

/// A kernel of matmul.wgsl and the sizes of its tiles.
#[derive(Clone)]
pub(crate) struct MatmulKernel {
    pub(crate) kernel: Kernel,
    pub(crate) reason: &'static str,
    /// Rows of weights of a tile.
    pub(crate) rows: usize,
    /// Rows of activations of a tile.
    pub(crate) columns: usize,
    /// Tiles of a workgroup.
    pub(crate) tiles: usize,
}

/// The kernel for a product of whatever many rows, of those that `agree` with the one for one row; `None` for types that are
/// no weights.
pub(crate) fn agreed_matmul(
    capabilities: &Capabilities,
    m: Matmul,
    agree: impl FnOnce(&Matmul, [&MatmulKernel; 2]) -> Result<bool, DeviceError>,
) -> Result<Option<MatmulKernel>, DeviceError> {
    let one = matmul(capabilities, Matmul { rows: 1, ..m });
    let (Some(one), Some(chosen)) = (one, matmul(capabilities, m)) else { return Ok(None) };
    if one.kernel == chosen.kernel || (capabilities.agreement && agree(&m, [&one, &chosen])?) {
        return Ok(Some(chosen));
    }
    let reason = "that of one row, with which that of many does not agree here";
    Ok(Some(MatmulKernel { reason, ..one }))
}

/// The kernel for a product; `None` for types that are no weights.
pub(crate) fn matmul(capabilities: &Capabilities, m: Matmul) -> Option<MatmulKernel> {
    let subgroup = capabilities.subgroup;
    // Software drivers take half a minute to compile a tile of 4 x 16, a second for 4 x 4.
    let most = if subgroup.is_some_and(|lanes| lanes >= 16) { 16 } else { 4 };
    let columns = if m.experts { 1 } else { m.rows.next_power_of_two().clamp(1, most) as u32 };
    // One column: as many rows as keep the loads of a tile in registers, two blocks of each under way.
    let (lanes, rows, subs, unroll) = match subgroup {
        // A tile of many rows reads the activations less often, of few gives small matrices more tiles: on an H200, 1, 2 and
        // 4 rows take 6.7, 7.7 and 10.7 us for 4096 x 4096 of Q4_0, and 19.2, 19.0 and 18.3 us for 24576 x 4096.
        Some(lanes) if columns == 1 => match m.outputs {
            0..=8192 => (lanes, 1, (128 / lanes).max(1), 4),
            8193..=20480 => (lanes, 2, (128 / lanes).max(1), 4),
            _ => (lanes, 4, (128 / lanes).max(1), 1),
        },
        Some(lanes) => (lanes, 4, (128 / lanes).max(1), 1),
        // Lanes beyond the blocks of a row only add zeros: on llvmpipe, 8 lanes for rows of 2 blocks take a twentieth of the
        // time of 64. Two sizes, as each is a kernel to compile.
        None => (if m.blocks <= 8 { 8 } else { 32 }, 4, 1, 1),
    };
    // A tile of two matrices has as many rows as one of one, and so as much to keep in registers.
    let (parts, rows) = if m.gate.is_some() { (2, (rows / 2).max(1)) } else { (1, rows) };
    let mut parameters = format(capabilities, m.dtype, parts)?.to_vec();
    parameters.extend([
        ("INTEGER", u32::from(m.integer)),
        ("EXPERTS", u32::from(m.experts)),
        ("SUBGROUP", u32::from(subgroup.is_some())),
        ("LANES", lanes),
        ("SUBS", subs),
        ("ROWS", rows),
        ("COLS", columns),
        ("UNROLL", if m.integer { unroll } else { 1 }),
        ("SEGMENTS", SEGMENTS as u32),
    ]);
    let kernel = match (m.gate, m.integer) {
        (None, false) => kernel("matmul_f32", &[HALF, WEIGHTS, MATMUL], MATMUL_F32, &parameters),
        (None, true) => kernel("matmul_i8", &[HALF, WEIGHTS, MATMUL], MATMUL_I8, &parameters),
        (Some(op), integer) => {
            parameters.push(("OP", op as u32));
            let (family, bindings) = if integer { ("gated_i8", GATED_I8) } else { ("gated_f32", GATED_F32) };
            kernel(family, &[HALF, WEIGHTS, MATH, APPLY, MATMUL], bindings, &parameters)
        }
    };
    Some(MatmulKernel {
        kernel,
        reason: if subgroup.is_some() { "a subgroup a tile" } else { "a workgroup a tile" },
        rows: rows as usize,
        columns: columns as usize,
        tiles: subs as usize,
    })
}

/// The types and head sizes of a KV cache.
#[derive(Clone, Copy)]
pub(crate) struct KvKernel {
    pub(crate) half: bool,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
}

impl KvKernel {
    fn parameters(&self) -> Vec<(&'static str, u32)> {
        let dtype = if self.half { DType::F16 } else { DType::F32 };
        let (k_words, row) = crate::state::kv_row_words(dtype, self.k_dim, self.v_dim);
        vec![
            ("HALF", u32::from(self.half)),
            ("DK", self.k_dim as u32),
            ("DV", self.v_dim as u32),
            ("K_WORDS", k_words as u32),
            ("ROW", row as u32),
        ]
    }

    /// Those of kv_store.wgsl too.
    fn storing(&self, lanes: u32) -> Vec<(&'static str, u32)> {
        let mut parameters = self.parameters();
        parameters.extend([("LANES", lanes), ("WIDE", self.k_dim.max(self.v_dim) as u32)]);
        parameters
    }
}

const KV_PART: &str = include_str!("kernels/kv.wgsl");
const MERGE_WEIGHTS: &str = include_str!("kernels/merge_weights.wgsl");

const KV_STORE: &str = include_str!("kernels/kv_store.wgsl");

pub(crate) fn kv_write(kv: KvKernel) -> Kernel {
    let parts = &[KV_PART, KV_STORE, include_str!("kernels/kv_write.wgsl")];
    kernel("kv_write", parts, KV, &kv.storing(64))
}

/// Rotation of queries and keys and writing of the cache; with `norm`, of their normed heads.
pub(crate) fn rope_kv(capabilities: &Capabilities, kv: KvKernel, norm: bool) -> Kernel {
    let mut parameters = kv.storing(norm_lanes(capabilities, kv.k_dim));
    parameters.push(("NORM", u32::from(norm)));
    let parts = &[TOTAL, KV_PART, KV_STORE, include_str!("kernels/rope_kv.wgsl")];
    let (family, bindings) = if norm { ("norm_rope_kv", KV_NORM) } else { ("rope_kv", KV) };
    kernel(family, parts, bindings, &parameters)
}

/// Attention; with `split`, each split leaves its part for [`merge`].
pub(crate) fn attention(capabilities: &Capabilities, kv: KvKernel, split: bool) -> Kernel {
    let mut parameters = kv.parameters();
    parameters.extend([
        ("SPLIT", SPLIT as u32),
        ("STEPS", kv.v_dim.div_ceil(64) as u32),
        ("LOOP", u32::from(!split)),
        ("NATIVE", u32::from(capabilities.exact_halves)),
    ]);
    let parts = &[MATH, HALF, KV_PART, MERGE_WEIGHTS, include_str!("kernels/attention.wgsl")];
    let (family, bindings) = if split { ("attention_split", KV_PARTS) } else { ("attention_loop", KV_READ) };
    kernel(family, parts, bindings, &parameters)
}

/// Whether attention of a bucket of so many rows gives each split of the keys a workgroup, and why: where both ways `agree`.
pub(crate) fn splits_attention(
    capabilities: &Capabilities,
    rows: usize,
    splits: usize,
    agree: impl FnOnce() -> Result<bool, DeviceError>,
) -> Result<(bool, &'static str), DeviceError> {
    if rows > SPLIT_ROWS || splits < 2 {
        return Ok((false, "a workgroup a row and head"));
    }
    Ok(match capabilities.agreement && agree()? {
        true => (true, "few rows: a workgroup a split of keys"),
        false => (false, "that of many rows, with which that of few does not agree here"),
    })
}

pub(crate) fn merge(v_dim: usize) -> Kernel {
    let parameters = [("DV", v_dim as u32), ("SPLIT", SPLIT as u32)];
    let parts = &[MATH, MERGE_WEIGHTS, include_str!("kernels/merge.wgsl")];
    kernel("attention_merge", parts, PARTS, &parameters)
}

pub(crate) fn route() -> Kernel {
    kernel("route", &[MATH, include_str!("kernels/route.wgsl")], BASIC, &[])
}

pub(crate) fn sample() -> Kernel {
    kernel("sample", &[include_str!("kernels/sample.wgsl")], DRAWN, &[("LANES", 256)])
}

pub(crate) fn feed() -> Kernel {
    kernel("feed", &[include_str!("kernels/feed.wgsl")], DRAWN, &[])
}

pub(crate) fn expert_sum() -> Kernel {
    kernel("expert_sum", &[include_str!("kernels/expert_sum.wgsl")], BASIC, &[])
}

/// `past`: rows of the state.
pub(crate) fn short_conv(past: usize) -> Kernel {
    let past = past as u32;
    let parameters = [("PAST", past), ("ROOM", past.max(1)), ("SHIFTS", past.saturating_sub(1))];
    kernel("short_conv", &[include_str!("kernels/short_conv.wgsl")], CONV, &parameters)
}
