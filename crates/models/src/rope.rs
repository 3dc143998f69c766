//! Rotary frequencies and their scalings, as transformers computes them (`modeling_rope_utils.py`), in f32.

use serde_json::{Map, Value};

use crate::error::ModelError;
use crate::gguf_form::GgufForm;
use crate::keys::{Key, Keys, Range};

/// One table of rotary frequencies.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Rope {
    /// Port that carries the table.
    pub(crate) port: &'static str,
    /// Radians per position of each rotated pair.
    pub(crate) inv_freq: Vec<f32>,
    /// Factor on cos and sin.
    pub(crate) magnitude: f32,
    /// From this position on the scaling asks for other frequencies, which depend on the length of the sequence.
    pub(crate) limit: Option<usize>,
    /// Base frequency.
    pub(crate) theta: f64,
    pub(crate) scaling: Scaling,
    /// A table of a GGUF file divided the frequencies.
    divided: bool,
}

/// How the frequencies of plain RoPE are changed for contexts longer than trained.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Scaling {
    /// Unchanged.
    None,
    /// All divided (Chen et al., 2023).
    Linear { factor: f64 },
    /// Low frequencies divided, with a smooth transition (Llama 3.1).
    Llama3 { factor: f64, low: f64, high: f64, original: f64 },
    /// Divided by a ramp over the dimensions, cos and sin scaled (Peng et al., 2023).
    Yarn { factor: f64, original: f64, beta_fast: f64, beta_slow: f64, truncate: bool, magnitude: f64 },
    /// Divided one by one (Ding et al., 2024).
    Each { factors: Vec<f64>, magnitude: f64 },
}

const TYPE: Key = ("rope_type", "rope.scaling.type");
const THETA_KEY: Key = ("rope_theta", "rope.freq_base");
const FACTOR: Key = ("factor", "rope.scaling.factor");
const ORIGINAL: Key = ("original_max_position_embeddings", "rope.scaling.original_context_length");
const BETAS: [&str; 2] = ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"];
/// The tensor of a GGUF file with divisors of the frequencies.
pub(crate) const FACTORS: &str = "rope_freqs.weight";
const IMPLEMENTED: &str = "default, linear, dynamic, yarn, longrope and llama3 are";

const THETA: Range = Range::new(1.000_001, 1e12, "a number above 1, at most 1e12");
const STRETCH: Range = Range::new(1.0, 65_536.0, "a number from 1 to 65536");
const ROTATIONS: Range = Range::new(1e-6, 1e6, "a number above 0 (from 1e-6 to 1e6)");
/// 0 is the same as none, as in the reference.
const MSCALE: Range = Range::new(0.0, 100.0, "a number from 0 to 100");
const MAGNITUDE: Range = Range::new(1e-3, 1e3, "a number above 0 (from 0.001 to 1000)");

/// What stands beside an object of rotary parameters in config.json.
pub(crate) struct Beside {
    /// The base frequency, if it is given there.
    pub(crate) theta: Option<f64>,
    /// The base frequency when nobody gives one.
    pub(crate) default_theta: f64,
    /// Positions the model was trained for.
    pub(crate) context: usize,
    /// The trained context before the scaling, if it is given there.
    pub(crate) original: Option<usize>,
    /// The object is one of several, by kind of layer.
    pub(crate) nested: bool,
}

/// The base frequency under a key of either container.
pub(crate) fn read_theta(keys: &Keys, key: Key) -> Result<Option<f64>, ModelError> {
    keys.within_range(key, &THETA)
}

impl Rope {
    /// The table of a model with one, for heads of `dims` and a trained context of `context`.
    pub(crate) fn read(
        keys: &Keys,
        dims: usize,
        default_theta: f64,
        context: usize,
    ) -> Result<Rope, ModelError> {
        let port = "rope.inv_freq";
        let theta = read_theta(keys, THETA_KEY)?;
        if keys.is_gguf() {
            return Rope::read_gguf(keys, port, dims, theta.unwrap_or(default_theta), context);
        }
        let original = keys.count(("original_max_position_embeddings", ""))?;
        let beside = Beside { theta, default_theta, context, original, nested: false };
        let [old, new] = ["rope_scaling", "rope_parameters"].map(|name| keys.object((name, "")));
        let full = |map: &Map<String, Value>| !map.is_empty();
        let (name, map) = match (old?.filter(full), new?.filter(full)) {
            (Some(old), Some(new)) if old != new => {
                let expected = "what `rope_scaling` holds, when both are given";
                return Err(keys.bad(("rope_parameters", ""), Value::from(new), expected));
            }
            (Some(old), _) => ("rope_scaling", old),
            (None, Some(new)) => ("rope_parameters", new),
            (None, None) => {
                return Rope::new(port, dims, theta.unwrap_or(default_theta), &Scaling::None, None);
            }
        };
        Rope::read_object(Keys::within(&map, name), port, dims, &beside)
    }

    /// The table that an object of config.json describes.
    pub(crate) fn read_object(
        keys: Keys,
        port: &'static str,
        dims: usize,
        beside: &Beside,
    ) -> Result<Rope, ModelError> {
        let kind = read_kind(&keys)?;
        let own_theta = read_theta(&keys, ("rope_theta", ""))?;
        agree(&keys, ("rope_theta", ""), own_theta, beside.theta)?;
        let theta = own_theta.or(beside.theta).unwrap_or(beside.default_theta);
        keys.only(("partial_rotary_factor", ""), 1.0)?;
        let own_original = keys.count(ORIGINAL)?;
        agree(&keys, ORIGINAL, own_original, beside.original)?;
        let given = own_original.or(beside.original);
        let original = given.unwrap_or(beside.context) as f64;
        let factor = || keys.within_range(FACTOR, &STRETCH);
        let need_factor = || factor()?.ok_or_else(|| missing("factor"));
        // Where only the two contexts are given, they say the factor.
        let ratio_or = |factor: Option<f64>| match (factor, given) {
            (Some(factor), _) => Ok(factor),
            (None, Some(_)) if beside.context as f64 >= original => Ok(beside.context as f64 / original),
            (None, Some(found)) => {
                Err(keys.bad(ORIGINAL, found, "at most max_position_embeddings, when no factor is given"))
            }
            (None, None) => Err(missing("factor")),
        };
        let magnitude = || keys.within_range(("attention_factor", ""), &MAGNITUDE);
        let (scaling, limit) = match kind.as_str() {
            "default" => (Scaling::None, None),
            "linear" => (Scaling::Linear { factor: need_factor()? }, None),
            // The base grows with the sequence once that is longer than trained; until then nothing changes.
            "dynamic" => {
                need_factor()?;
                (Scaling::None, Some(beside.context))
            }
            "llama3" => {
                let need = |name| keys.within_range((name, ""), &ROTATIONS)?.ok_or_else(|| missing(name));
                let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
                if low >= high {
                    let expected = format!("below high_freq_factor, {high}");
                    return Err(keys.bad(("low_freq_factor", ""), low, &expected));
                }
                (Scaling::Llama3 { factor: need_factor()?, low, high, original }, None)
            }
            "yarn" => {
                let factor = ratio_or(factor()?)?;
                let set = |m: &f64| *m != 0.0;
                let mscale = keys.within_range(("mscale", ""), &MSCALE)?.filter(set);
                let all_dim = keys.within_range(("mscale_all_dim", ""), &MSCALE)?.filter(set);
                let magnitude = match (magnitude()?, mscale, all_dim) {
                    (Some(given), ..) => given,
                    (None, Some(m), Some(all)) => yarn_magnitude(factor, m) / yarn_magnitude(factor, all),
                    _ => yarn_magnitude(factor, 1.0),
                };
                let truncate = ("truncate", "");
                if beside.nested {
                    // The reference looks for it outside the object, where it never is, and truncates.
                    keys.only(truncate, true)?;
                }
                let truncate = keys.flag(truncate)?.unwrap_or(true);
                let (beta_fast, beta_slow) = read_betas(&keys, ["beta_fast", "beta_slow"])?;
                (Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, magnitude }, None)
            }
            "longrope" => {
                let list = |name| {
                    let value = keys.value((name, "")).ok_or_else(|| missing(name))?;
                    let list = value.as_array().and_then(|v| v.iter().map(|x| x.as_f64()).collect());
                    let fits = |v: &Vec<f64>| v.len() == dims / 2 && v.iter().all(|x| MAGNITUDE.holds(*x));
                    let expected = || format!("{} numbers, each from 0.001 to 1000", dims / 2);
                    list.filter(fits).ok_or_else(|| keys.bad((name, ""), &value, &expected()))
                };
                let (factors, _) = (list("short_factor")?, list("long_factor")?);
                let factor = ratio_or(factor()?)?;
                let default = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
                let magnitude = magnitude()?.unwrap_or(default);
                (Scaling::Each { factors, magnitude }, Some(original as usize))
            }
            _ => return Err(keys.unsupported(TYPE, kind, IMPLEMENTED)),
        };
        let rope = Rope::new(port, dims, theta, &scaling, limit)?;
        keys.finish("RoPE")?;
        Ok(rope)
    }

    fn read_gguf(
        keys: &Keys,
        port: &'static str,
        dims: usize,
        theta: f64,
        context: usize,
    ) -> Result<Rope, ModelError> {
        let kind = keys.text(TYPE)?;
        let scales = kind.as_deref().is_some_and(|kind| kind != "none");
        // llama.cpp takes a 0 for no factor; beside a scaling that is a contradiction.
        let unset = !scales && keys.value(FACTOR).is_some_and(|v| v.as_f64() == Some(0.0));
        let factor = if unset { None } else { keys.within_range(FACTOR, &STRETCH)? };
        let original = keys.count(ORIGINAL)?.unwrap_or(context) as f64;
        keys.flag(("", "rope.scaling.finetuned"))?;
        for name in
            ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"]
        {
            keys.only(("", name), 1.0)?;
        }
        let (beta_fast, beta_slow) = read_betas(keys, BETAS)?;
        let scaling = match (kind.as_deref(), factor) {
            // A factor without a type is linear, as llama.cpp reads it.
            (Some("linear") | None, Some(factor)) => Scaling::Linear { factor },
            (Some("yarn"), Some(factor)) => {
                let magnitude = yarn_magnitude(factor, 1.0);
                Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate: true, magnitude }
            }
            (Some("none"), _) | (None, None) => Scaling::None,
            (Some("linear" | "yarn"), None) => {
                return Err(ModelError::MissingKey {
                    key: "rope.scaling.factor".to_owned(),
                    expected: "the factor of rope.scaling.type",
                });
            }
            (Some(other), _) => return Err(keys.unsupported(TYPE, other, "none, linear and yarn are")),
        };
        Rope::new(port, dims, theta, &scaling, None)
    }

    /// The table of a base frequency and a scaling.
    pub(crate) fn new(
        port: &'static str,
        dims: usize,
        theta: f64,
        scaling: &Scaling,
        limit: Option<usize>,
    ) -> Result<Rope, ModelError> {
        if !dims.is_multiple_of(2) {
            return Err(ModelError::BadValue {
                key: "head_dim".to_owned(),
                found: dims.to_string(),
                expected: "even, for rotary position embedding".to_owned(),
            });
        }
        let (inv_freq, magnitude) = inverse_frequencies(dims, theta, scaling);
        // One whose factors are each possible can still be none together.
        let possible = |x: &f32| x.is_normal() && *x > 0.0;
        if !inv_freq.iter().chain([&magnitude]).all(possible) {
            return Err(ModelError::BadValue {
                key: "rope scaling".to_owned(),
                found: format!("{scaling:?} with base {theta}"),
                expected: "numbers that give frequencies above 0".to_owned(),
            });
        }
        Ok(Rope { port, inv_freq, magnitude, limit, theta, scaling: scaling.clone(), divided: false })
    }

    /// Divides each frequency, as the `rope_freqs.weight` of a GGUF file asks.
    pub(crate) fn divide(&mut self, factors: &[f32]) {
        self.divided = true;
        for (f, by) in self.inv_freq.iter_mut().zip(factors) {
            *f /= by;
        }
    }
}

impl Rope {
    /// Says in the keys of a GGUF file what [`Rope::read_gguf`] reads.
    pub(crate) fn write_gguf(&self, out: &mut GgufForm) -> Result<(), ModelError> {
        out.float(THETA_KEY, self.theta as f32);
        let none = |out: &GgufForm, what: &str| Err(out.none(&format!("the rotary scaling `{what}`")));
        if self.limit.is_some() {
            return none(out, if self.scaling == Scaling::None { "dynamic" } else { "longrope" });
        }
        let by_table = matches!(self.scaling, Scaling::Llama3 { .. });
        if by_table || self.divided {
            // Rounded once.
            let rest = if by_table { &Scaling::None } else { &self.scaling };
            let undivided = inverse_frequencies(2 * self.inv_freq.len(), self.theta, rest).0;
            let divisors = undivided.iter().zip(&self.inv_freq).map(|(of, is)| of / is);
            out.tables.push((FACTORS.to_owned(), divisors.collect()));
        }
        match &self.scaling {
            Scaling::None | Scaling::Llama3 { .. } => {}
            Scaling::Linear { factor } => {
                out.text(TYPE, "linear");
                out.float(FACTOR, *factor as f32);
            }
            Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, magnitude } => {
                if !truncate {
                    return none(out, "yarn with `truncate` = false");
                }
                if *magnitude as f32 != yarn_magnitude(*factor, 1.0) as f32 {
                    return none(out, "yarn with a magnitude of its own");
                }
                out.text(TYPE, "yarn");
                out.float(FACTOR, *factor as f32);
                out.count(ORIGINAL, *original as usize);
                for (key, value, default) in [(BETAS[0], beta_fast, 32.0), (BETAS[1], beta_slow, 1.0)] {
                    if *value != default {
                        out.float(("", key), *value as f32);
                    }
                }
            }
            Scaling::Each { .. } => return none(out, "longrope"),
        }
        Ok(())
    }
}

/// The kind of scaling, which old files call `type`.
fn read_kind(keys: &Keys) -> Result<String, ModelError> {
    let (old, new) = (keys.text(("type", ""))?, keys.text(TYPE)?);
    match (&old, &new) {
        (Some(old), Some(new)) if old != new => {
            let expected = format!("{old:?}, as `type` says, or one of the two absent");
            Err(keys.bad(TYPE, format!("{new:?}"), &expected))
        }
        _ => Ok(new.or(old).unwrap_or_else(|| "default".to_owned())),
    }
}

/// What is said twice must be the same.
fn agree<T: PartialEq + std::fmt::Display>(
    keys: &Keys,
    key: Key,
    own: Option<T>,
    beside: Option<T>,
) -> Result<(), ModelError> {
    match (own, beside) {
        (Some(own), Some(beside)) if own != beside => {
            Err(keys.bad(key, own, &format!("{beside}, as the key outside the object says")))
        }
        _ => Ok(()),
    }
}

/// The rotations over the trained context above which a frequency is kept, and below which it is divided.
fn read_betas(keys: &Keys, [fast, slow]: [&'static str; 2]) -> Result<(f64, f64), ModelError> {
    let key = |name| if keys.is_gguf() { ("", name) } else { (name, "") };
    let (fast, slow) = (key(fast), key(slow));
    let beta_fast = keys.within_range(fast, &ROTATIONS)?.unwrap_or(32.0);
    let beta_slow = keys.within_range(slow, &ROTATIONS)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(keys.bad(fast, beta_fast, &format!("at least the slow one's {beta_slow}")));
    }
    Ok((beta_fast, beta_slow))
}

fn missing(name: &str) -> ModelError {
    ModelError::MissingKey { key: format!("{name} (of the rope scaling)"), expected: "a number or list" }
}

fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// Frequencies for rotary width `dims` and the factor on cos and sin. Rounds to f32 where transformers does.
fn inverse_frequencies(dims: usize, theta: f64, scaling: &Scaling) -> (Vec<f32>, f32) {
    let half = dims / 2;
    // base ** (2i / dims): exponent and result are f32 there.
    let power = |i: usize| {
        let exponent = (2 * i) as f32 / dims as f32;
        f64::from(theta as f32).powf(f64::from(exponent)) as f32
    };
    let plain = |i: usize| 1.0 / power(i);
    match scaling {
        Scaling::None => ((0..half).map(plain).collect(), 1.0),
        Scaling::Linear { factor } => ((0..half).map(|i| plain(i) / *factor as f32).collect(), 1.0),
        Scaling::Llama3 { factor, low, high, original } => {
            let (long, short) = ((original / low) as f32, (original / high) as f32);
            let (factor, low, high, original) = (*factor as f32, *low as f32, *high as f32, *original as f32);
            let scale = |f: f32| {
                let wavelength = 2.0 * std::f32::consts::PI / f;
                if wavelength > long {
                    f / factor
                } else if wavelength < short {
                    f
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            };
            ((0..half).map(|i| scale(plain(i))).collect(), 1.0)
        }
        Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, magnitude } => {
            let dimension = |rotations: f64| {
                dims as f64 * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
            };
            let (mut from, mut to) = (dimension(*beta_fast), dimension(*beta_slow));
            if *truncate {
                (from, to) = (from.floor(), to.ceil());
            }
            (from, to) = (from.max(0.0), to.min(dims as f64 - 1.0));
            if from == to {
                to += 0.001; // as transformers avoids the division by zero
            }
            let (start, width) = (from as f32, (to - from) as f32);
            let inv_freq = (0..half).map(|i| {
                let keep = 1.0 - ((i as f32 - start) / width).clamp(0.0, 1.0);
                1.0 / (*factor as f32 * power(i)) * (1.0 - keep) + plain(i) * keep
            });
            (inv_freq.collect(), *magnitude as f32)
        }
        Scaling::Each { factors, magnitude } => {
            let inv_freq = factors.iter().enumerate().map(|(i, f)| 1.0 / (*f as f32 * power(i)));
            (inv_freq.collect(), *magnitude as f32)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::Bytes;
    use formats::safetensors::SafetensorsFile;

    /// Tables by transformers, whose float32 allows a relative error of 1e-6.
    #[test]
    fn tables_match_transformers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/ops/rope_tables.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let file = SafetensorsFile::new(Bytes::from(bytes)).unwrap();
        let mut seen = 0;
        for (case, parameters) in header["__metadata__"].as_object().unwrap() {
            if case == "op" {
                continue;
            }
            let given: Map<String, Value> = serde_json::from_str(parameters.as_str().unwrap()).unwrap();
            if given["partial_rotary_factor"].as_f64().is_some_and(|p| p != 1.0) {
                continue; // refused for the families here
            }
            let number = |key: &str| given[key].as_f64().unwrap();
            let config = given.iter().filter(|(k, _)| k.starts_with("rope_"));
            let config: Map<String, Value> = config.map(|(k, v)| (k.clone(), v.clone())).collect();
            let (dims, context) = (number("head_dim") as usize, number("max_position_embeddings") as usize);
            let rope = Rope::read(&Keys::hf(&config), dims, 1.0, context).unwrap();
            let magnitude = f64::from(rope.magnitude);
            assert!((magnitude - number("attention_factor")).abs() < 1e-6, "{case}: {magnitude}");
            let (_, want) = file.tensor(&format!("{case}.inv_freq")).unwrap();
            let want = want.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            assert_eq!(rope.inv_freq.len(), want.len(), "{case}");
            for (have, want) in rope.inv_freq.iter().zip(want) {
                assert!((have - want).abs() <= 1e-6 * want.abs(), "{case}: {have} and {want}");
            }
            seen += 1;
        }
        assert!(seen >= 8, "{seen} cases");
    }

    #[test]
    fn scalings_that_grow_with_the_sequence_limit_it() {
        let read = |scaling: Value| {
            let map = Map::from_iter([("rope_scaling".to_owned(), scaling)]);
            Rope::read(&Keys::hf(&map), 4, 10_000.0, 128).unwrap().limit
        };
        assert_eq!(read(Value::Null), None);
        assert_eq!(read(serde_json::json!({"type": "dynamic", "factor": 2})), Some(128));
        let long = serde_json::json!({"rope_type": "longrope", "original_max_position_embeddings": 32,
            "short_factor": [1, 1], "long_factor": [2, 2]});
        assert_eq!(read(long), Some(32));
    }
}
