//! Which tensor gets which type: the mixes that people know by name.
//!
//! A name like Q4_K_M stands for a base type and rules that give more bits to the tensors that errors hurt most. The rules
//! are those of llama.cpp, so that a file of a name is what one expects of it.

use gristmill::parts::formats::gguf::GgufMetadata;
use gristmill::parts::tensor::DType;

/// A named mix.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mix {
    pub(super) name: &'static str,
    /// The value of `general.file_type`.
    pub(super) file_type: u32,
    /// The type of tensors that no rule names.
    pub(super) base: DType,
}

const fn mix(name: &'static str, file_type: u32, base: DType) -> Mix {
    Mix { name, file_type, base }
}

/// The mixes that can be made, largest first.
pub(super) const MIXES: [Mix; 26] = [
    mix("F32", 0, DType::F32),
    mix("F16", 1, DType::F16),
    mix("BF16", 32, DType::BF16),
    mix("Q8_0", 7, DType::Q8_0),
    mix("Q6_K", 18, DType::Q6_K),
    mix("Q5_K_M", 17, DType::Q5_K),
    mix("Q5_K", 17, DType::Q5_K),
    mix("Q5_K_S", 16, DType::Q5_K),
    mix("Q5_1", 9, DType::Q5_1),
    mix("Q5_0", 8, DType::Q5_0),
    mix("Q4_K_M", 15, DType::Q4_K),
    mix("Q4_K", 15, DType::Q4_K),
    mix("Q4_K_S", 14, DType::Q4_K),
    mix("Q4_1", 3, DType::Q4_1),
    mix("Q4_0", 2, DType::Q4_0),
    mix("IQ4_NL", 25, DType::IQ4_NL),
    mix("IQ4_XS", 30, DType::IQ4_XS),
    mix("MXFP4_MOE", 38, DType::MXFP4),
    mix("Q3_K_L", 13, DType::Q3_K),
    mix("Q3_K_M", 12, DType::Q3_K),
    mix("Q3_K", 12, DType::Q3_K),
    mix("Q3_K_S", 11, DType::Q3_K),
    mix("Q2_K", 10, DType::Q2_K),
    mix("Q2_K_S", 21, DType::Q2_K),
    mix("TQ2_0", 37, DType::TQ2_0),
    mix("TQ1_0", 36, DType::TQ1_0),
];

/// What a tensor is, as far as the rules care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Embedding,
    Output,
    /// Values, also where they are in one matrix with queries and keys.
    AttentionV,
    AttentionK,
    AttentionOutput,
    FfnDown,
    Other,
}

fn kind(name: &str) -> Kind {
    let kinds = [
        ("attn_qkv.weight", Kind::AttentionV),
        ("attn_kv_b.weight", Kind::AttentionV),
        ("attn_v.weight", Kind::AttentionV),
        ("attn_k.weight", Kind::AttentionK),
        ("attn_output.weight", Kind::AttentionOutput),
        ("ffn_down", Kind::FfnDown),
    ];
    match name {
        "output.weight" => Kind::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Kind::Embedding,
        _ => kinds.into_iter().find(|(part, _)| name.contains(part)).map_or(Kind::Other, |(_, kind)| kind),
    }
}

/// Parts of the names of tensors that stay as they are: norms, routers, and small matrices that errors hurt.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "time_mix_",
    "attn_rel_b.weight",
    "position_embd",
    "token_types",
    ".patch_embd",
];

/// Whether a tensor may be stored in another type.
pub(super) fn may_change(name: &str, shape: &[usize]) -> bool {
    shape.iter().filter(|n| **n > 1).count() >= 2
        && name.ends_with("weight")
        && !KEPT.iter().any(|part| name.contains(part))
}

/// What the rules look at besides a tensor's name.
#[derive(Debug)]
pub(super) struct Facts {
    /// Names of the tensors of attention values and of `ffn_down`, layer after layer.
    values: Vec<String>,
    downs: Vec<String>,
    /// Query heads that share a key head.
    group: u64,
    layers: u64,
    experts: u64,
    /// The token embedding is the output matrix, too.
    tied: bool,
    has_importance: bool,
}

impl Facts {
    /// Of a file with this metadata and these tensors.
    pub(super) fn of<'a>(
        metadata: &GgufMetadata,
        names: impl Iterator<Item = &'a str>,
        has_importance: bool,
    ) -> Facts {
        let architecture = metadata.get::<&str>("general.architecture").ok().flatten().unwrap_or("");
        let number = |key: &str| -> Option<u64> {
            let key = format!("{architecture}.{key}");
            let several = || metadata.get::<Vec<u32>>(&key).ok().flatten()?.into_iter().max().map(u64::from);
            metadata.get::<u64>(&key).ok().flatten().or_else(several)
        };
        let heads = number("attention.head_count").unwrap_or(1);
        let kv_heads = number("attention.head_count_kv").filter(|n| *n > 0).unwrap_or(heads).max(1);
        let mut facts = Facts {
            values: vec![],
            downs: vec![],
            group: heads / kv_heads,
            layers: number("block_count").unwrap_or(0),
            experts: number("expert_count").unwrap_or(0),
            tied: true,
            has_importance,
        };
        for name in names {
            match kind(name) {
                Kind::AttentionV => facts.values.push(name.to_owned()),
                Kind::FfnDown if name.ends_with("weight") => facts.downs.push(name.to_owned()),
                Kind::Output => facts.tied = false,
                _ => {}
            }
        }
        facts.values.sort_by_key(|name| layer(name));
        facts.downs.sort_by_key(|name| layer(name));
        facts
    }
}

/// The number in `blk.12.attn_v.weight`.
fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Whether place `i` of `n` is among the first and last eighth, or each third between: those gain most from more bits.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

impl Mix {
    /// The mix of a name, in any case.
    pub(super) fn named(name: &str) -> Option<&'static Mix> {
        MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// The first of the names that this mix has.
    fn first_name(&self) -> &'static str {
        MIXES.iter().find(|mix| mix.file_type == self.file_type).map_or(self.name, |mix| mix.name)
    }

    /// The type for a tensor that may change.
    pub(super) fn of(&self, facts: &Facts, name: &str, shape: &[usize]) -> DType {
        if !self.base.is_quantised() {
            return self.base;
        }
        let chosen = self.by_rules(facts, name, shape);
        fitting(chosen, shape.last().copied().unwrap_or(0))
    }

    fn by_rules(&self, facts: &Facts, name: &str, shape: &[usize]) -> DType {
        let kind = kind(name);
        if kind == Kind::Output || (kind == Kind::Embedding && facts.tied) {
            let eight = matches!(self.base, DType::Q8_0 | DType::MXFP4);
            return if eight { DType::Q8_0 } else { DType::Q6_K };
        }
        if self.base == DType::MXFP4 {
            // Experts, which are most of such a model, and nothing else.
            return if shape.len() > 2 && shape[0] > 1 { DType::MXFP4 } else { DType::Q8_0 };
        }
        match (kind, self.first_name()) {
            (Kind::Embedding, "TQ1_0" | "TQ2_0") => DType::Q4_K,
            (Kind::AttentionV, _) => self.of_values(facts, name),
            (Kind::AttentionK, _) if facts.experts == 8 => DType::Q8_0,
            (Kind::FfnDown, _) => self.of_downs(facts, name),
            (
                Kind::AttentionOutput,
                "Q2_K" | "Q3_K_S" | "Q3_K_M" | "IQ4_NL" | "Q4_K_S" | "Q4_K_M" | "IQ4_XS",
            ) if facts.experts == 8 => DType::Q5_K,
            (Kind::AttentionOutput, _) if facts.experts == 8 => self.base,
            (Kind::AttentionOutput, "Q2_K") => DType::Q3_K,
            (Kind::AttentionOutput, "Q3_K_M") => DType::Q4_K,
            (Kind::AttentionOutput, "Q3_K_L") => DType::Q5_K,
            _ => self.base,
        }
    }

    fn of_values(&self, facts: &Facts, name: &str) -> DType {
        let i = facts.values.iter().position(|n| n == name).unwrap_or(0);
        let shared = facts.group >= 4;
        let chosen = match self.first_name() {
            "Q2_K" | "Q2_K_S" if shared => DType::Q4_K,
            "Q2_K" => DType::Q3_K,
            "Q3_K_M" if i < 2 => DType::Q5_K,
            "Q3_K_M" => DType::Q4_K,
            "Q3_K_L" => DType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if shared => DType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if more_bits(i, facts.values.len()) => DType::Q6_K,
            "Q4_K_S" if i < 4 => DType::Q5_K,
            _ => self.base,
        };
        match chosen {
            _ if facts.experts == 8 => DType::Q8_0,
            // Large models whose eight heads share one: these matrices are small there.
            DType::Q3_K | DType::Q4_K if facts.layers == 80 && facts.group == 8 => DType::Q5_K,
            chosen => chosen,
        }
    }

    fn of_downs(&self, facts: &Facts, name: &str) -> DType {
        let n = facts.downs.len();
        let place = facts.downs.iter().position(|n| n == name).unwrap_or(0);
        // Files with a tensor for each expert have many in a layer.
        let several = facts.experts > 1;
        let (i, n) = if several { (layer(name).unwrap_or(place), facts.layers as usize) } else { (place, n) };
        let first_eighth = i < n / 8;
        match self.first_name() {
            "Q2_K" => DType::Q3_K,
            "Q2_K_S" if first_eighth => DType::Q4_K,
            "Q3_K_M" if i < n / 16 => DType::Q5_K,
            "Q3_K_M" => DType::Q4_K,
            "Q3_K_L" => DType::Q5_K,
            "Q4_K_M" | "Q5_K_M" if more_bits(i, n) => DType::Q6_K,
            "Q4_K_S" if first_eighth => DType::Q5_K,
            "IQ4_NL" | "IQ4_XS" if first_eighth && !facts.has_importance => DType::Q5_K,
            // Importance can lead these astray in the first layers.
            "Q4_0" if first_eighth && facts.has_importance => DType::Q4_1,
            "Q5_0" if first_eighth && facts.has_importance => DType::Q5_1,
            _ => self.base,
        }
    }
}

/// The type, or where rows of `k` elements do not fill its blocks one of shorter blocks and no fewer bits.
pub(super) fn fitting(dtype: DType, k: usize) -> DType {
    let shorter = match dtype {
        DType::IQ4_XS => DType::IQ4_NL,
        DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    };
    [dtype, shorter].into_iter().find(|d| k.is_multiple_of(d.block_len())).unwrap_or(DType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill::parts::formats::gguf::Value;

    fn facts(layers: usize, metadata: &[(&str, u32)], importance: bool, more: &[&str]) -> Facts {
        let mut writer = gristmill::parts::formats::gguf::GgufWriter::new();
        writer.metadata("general.architecture", Value::String("test".into()));
        for (key, value) in metadata {
            writer.metadata(&format!("test.{key}"), Value::U32(*value));
        }
        let file = gristmill::parts::formats::gguf::Gguf::parse(&writer.to_bytes().unwrap()).unwrap();
        let mut names: Vec<String> = more.iter().map(|n| (*n).to_owned()).collect();
        // Not in the order of layers, as files may have them.
        for layer in (0..layers).rev() {
            names.push(format!("blk.{layer}.attn_v.weight"));
            names.push(format!("blk.{layer}.ffn_down.weight"));
        }
        Facts::of(file.metadata(), names.iter().map(String::as_str), importance)
    }

    fn types(mix: &str, facts: &Facts, part: &str, layers: usize) -> Vec<DType> {
        let mix = Mix::named(mix).unwrap();
        (0..layers).map(|i| mix.of(facts, &format!("blk.{i}.{part}.weight"), &[1024, 1024])).collect()
    }

    #[test]
    fn the_usual_mix_gives_more_bits_to_half_of_the_layers() {
        let facts = facts(28, &[("attention.head_count", 12), ("attention.head_count_kv", 2)], false, &[]);
        let more: Vec<usize> = (0..28).filter(|i| more_bits(*i, 28)).collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
        for part in ["attn_v", "ffn_down"] {
            for (i, dtype) in types("q4_k_m", &facts, part, 28).into_iter().enumerate() {
                assert_eq!(dtype, if more.contains(&i) { DType::Q6_K } else { DType::Q4_K }, "{part} {i}");
            }
        }
        assert_eq!(types("Q4_K_M", &facts, "attn_q", 1), [DType::Q4_K]);
        assert_eq!(
            types("Q4_K_S", &facts, "ffn_down", 4)[..],
            [DType::Q5_K, DType::Q5_K, DType::Q5_K, DType::Q4_K]
        );
        assert_eq!(types("Q2_K", &facts, "attn_v", 1), [DType::Q4_K], "six heads share one");
        assert_eq!(types("Q3_K_M", &facts, "attn_v", 3), [DType::Q5_K, DType::Q5_K, DType::Q4_K]);
    }

    #[test]
    fn the_output_matrix_has_six_bits_or_eight() {
        let (tied, own) = (facts(2, &[], false, &[]), facts(2, &[], false, &["output.weight"]));
        let of = |mix: &str, facts: &Facts, name: &str, k: usize| {
            Mix::named(mix).unwrap().of(facts, name, &[512, k])
        };
        assert_eq!(of("Q4_0", &tied, "token_embd.weight", 512), DType::Q6_K);
        assert_eq!(of("Q4_0", &own, "token_embd.weight", 512), DType::Q4_0);
        assert_eq!(of("Q4_0", &own, "output.weight", 512), DType::Q6_K);
        assert_eq!(of("Q4_0", &own, "output.weight", 96), DType::Q8_0, "rows of no whole Q6_K blocks");
        assert_eq!(of("Q8_0", &own, "output.weight", 512), DType::Q8_0);
        assert_eq!(of("F16", &own, "output.weight", 512), DType::F16);
    }

    #[test]
    fn experts_are_what_mxfp4_is_for() {
        let facts = facts(2, &[("expert_count", 32)], false, &["output.weight"]);
        let mix = Mix::named("MXFP4_MOE").unwrap();
        assert_eq!(mix.of(&facts, "blk.0.ffn_up_exps.weight", &[32, 64, 64]), DType::MXFP4);
        assert_eq!(mix.of(&facts, "blk.0.attn_q.weight", &[64, 64]), DType::Q8_0);
    }

    #[test]
    fn importance_guards_the_first_layers_of_q4_0() {
        let (with, without) = (facts(16, &[], true, &[]), facts(16, &[], false, &[]));
        assert_eq!(types("Q4_0", &with, "ffn_down", 3), [DType::Q4_1, DType::Q4_1, DType::Q4_0]);
        assert_eq!(types("Q4_0", &without, "ffn_down", 1), [DType::Q4_0]);
    }

    #[test]
    fn norms_routers_and_vectors_stay() {
        assert!(may_change("blk.0.attn_q.weight", &[64, 64]));
        for (name, shape) in [
            ("blk.0.attn_q.bias", &[64][..]),
            ("blk.0.attn_norm.weight", &[64]),
            ("blk.0.attn_q_norm.weight", &[4, 64]),
            ("blk.0.ffn_gate_inp.weight", &[8, 64]),
            ("blk.0.shortconv.conv.weight", &[64, 3]),
        ] {
            assert!(!may_change(name, shape), "{name}");
        }
    }
}
