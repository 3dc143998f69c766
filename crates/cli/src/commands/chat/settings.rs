//! `/set`: how answers are generated, changed in between.

use std::str::FromStr;

use gristmill::Generate;

const NAMES: [&str; 9] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
];

/// What stands where nothing is set.
const OFF: &str = "off";

/// All settings, a line each.
pub(super) fn list(options: &Generate) -> String {
    let lines = NAMES.map(|name| format!("  {name} {}", value(options, name)));
    lines.join("\n")
}

fn value(options: &Generate, name: &str) -> String {
    let of = |value: Option<String>| value.unwrap_or_else(|| OFF.to_owned());
    let sampling = &options.sampling;
    match name {
        "temperature" => sampling.temperature.to_string(),
        "top_k" => of(sampling.top_k.map(|k| k.to_string())),
        "top_p" => sampling.top_p.to_string(),
        "min_p" => sampling.min_p.to_string(),
        "repetition_penalty" => sampling.repetition_penalty.to_string(),
        "presence_penalty" => sampling.presence_penalty.to_string(),
        "frequency_penalty" => sampling.frequency_penalty.to_string(),
        "seed" => of(sampling.seed.map(|seed| seed.to_string())),
        _ => of(options.max_tokens.map(|n| n.to_string())),
    }
}

/// Changes a setting as `NAME VALUE` says, and tells it; or says what is wrong, and changes nothing.
pub(super) fn set(options: &mut Generate, text: &str) -> Result<String, String> {
    let (name, given) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let (name, given) = (name.replace('-', "_"), given.trim());
    let mut changed = options.clone();
    let sampling = &mut changed.sampling;
    match name.as_str() {
        "temperature" => sampling.temperature = number(&name, given)?,
        "top_k" => sampling.top_k = optional(&name, given)?,
        "top_p" => sampling.top_p = number(&name, given)?,
        "min_p" => sampling.min_p = number(&name, given)?,
        "repetition_penalty" => sampling.repetition_penalty = number(&name, given)?,
        "presence_penalty" => sampling.presence_penalty = number(&name, given)?,
        "frequency_penalty" => sampling.frequency_penalty = number(&name, given)?,
        "seed" => sampling.seed = optional(&name, given)?,
        "max_tokens" => changed.max_tokens = optional(&name, given)?,
        _ => return Err(format!("there is no setting `{name}`; there are {}", NAMES.join(", "))),
    }
    if changed.max_tokens == Some(0) {
        return Err("max_tokens must be at least 1, or off".to_owned());
    }
    changed.sampling.validate(usize::MAX).map_err(|e| e.to_string())?;
    *options = changed;
    Ok(format!("{name} {}", value(options, &name)))
}

fn number<T: FromStr>(name: &str, given: &str) -> Result<T, String> {
    given.parse().map_err(|_| format!("{name} needs a number, as in `/set {name} 1`"))
}

fn optional<T: FromStr>(name: &str, given: &str) -> Result<Option<T>, String> {
    if given == OFF || given == "none" {
        return Ok(None);
    }
    let whole = |_| format!("{name} needs a whole number, as in `/set {name} 40`, or `{OFF}`");
    given.parse().map(Some).map_err(|_: T::Err| whole(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_changed_or_stay_as_they_were() {
        let mut options = Generate::default();
        for name in NAMES {
            let told = set(&mut options, &format!("{} 1", name.replace('_', "-"))).unwrap();
            assert_eq!(told, format!("{name} 1"));
            assert!(list(&options).contains(&told));
        }
        for name in ["top_k", "seed", "max_tokens"] {
            assert_eq!(set(&mut options, &format!("{name} off")).unwrap(), format!("{name} off"));
        }
        let before = options.clone();
        for (text, problem) in [
            ("temprature 1", "there are temperature, top_k"),
            ("temperature", "needs a number"),
            ("temperature -1", "temperature"),
            ("top_p 2", "top_p"),
            ("top_k 0", "top_k"),
            ("top_k x", "whole number"),
            ("max_tokens 0", "at least 1"),
            ("seed -1", "whole number"),
        ] {
            let error = set(&mut options, text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert_eq!(format!("{options:?}"), format!("{before:?}"));
    }
}
