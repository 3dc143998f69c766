//! JSON as Python's `json.dumps` writes it, which is what chat templates were written against.

use serde_json::{Number, Value};
use std::fmt::Write;

/// The arguments of `tojson` in Hugging Face chat templates.
#[derive(Debug, Clone, Default)]
pub(crate) struct Style {
    /// Write everything outside ASCII as `\uXXXX`.
    pub(crate) ensure_ascii: bool,
    /// One item a line, indented by this much more at each depth.
    pub(crate) indent: Option<String>,
    /// Between items and after keys.
    pub(crate) separators: Option<(String, String)>,
    pub(crate) sort_keys: bool,
}

impl Style {
    /// The most bytes that are written around a value so deep: the line before it, or behind it, and what separates it.
    pub(crate) fn around(&self, depth: usize) -> usize {
        let separators = self.separators.as_ref().map_or(0, |(item, key)| item.len() + key.len());
        separators + self.indent.as_ref().map_or(0, String::len).saturating_mul(depth)
    }
}

/// Writes `value` in `style`.
pub(crate) fn dumps(value: &Value, style: &Style) -> String {
    let (item, key) = style.separators.clone().unwrap_or_else(|| {
        let item = if style.indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    });
    let mut writer = Writer { style, item, key, out: String::new() };
    writer.value(value, 0);
    writer.out
}

struct Writer<'s> {
    style: &'s Style,
    item: String,
    key: String,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Value::Number(value) => self.out.push_str(&number(value)),
            Value::String(value) => self.string(value),
            Value::Array(items) => {
                self.open('[', ']', depth, items.iter(), |writer, item| writer.value(item, depth + 1));
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_unstable_by_key(|&(key, _)| key);
                }
                self.open('{', '}', depth, entries.into_iter(), |writer, (key, value)| {
                    writer.string(key);
                    let separator = std::mem::take(&mut writer.key);
                    writer.out.push_str(&separator);
                    writer.key = separator;
                    writer.value(value, depth + 1);
                });
            }
        }
    }

    fn open<T>(
        &mut self,
        open: char,
        close: char,
        depth: usize,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.out.push(open);
        let empty = items.len() == 0;
        for (index, item) in items.enumerate() {
            if index > 0 {
                let separator = std::mem::take(&mut self.item);
                self.out.push_str(&separator);
                self.item = separator;
            }
            self.line(depth + 1);
            write(self, item);
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.style.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A number as Python writes it: floats keep a point or an exponent of at least two digits.
fn number(value: &Number) -> String {
    let Some(float) = value.as_f64().filter(|_| value.is_f64()) else {
        return value.to_string();
    };
    let text = format!("{float:e}");
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        let plain = float.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", power.abs())
}

/// Jinja2's `indent`: `by` before each line but the first, which gets it where `first` is set; empty lines where `blank` is.
pub(crate) fn indent(text: &str, by: &str, first: bool, blank: bool) -> String {
    let mut out = String::with_capacity(text.len() + by.len());
    for (index, line) in lines(text).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(by);
        }
        out.push_str(line);
    }
    out
}

/// The lines of a text as Python's `splitlines` finds them, but that one which ends in a line break has an empty last line.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some((at, c)) = text.char_indices().find(|&(_, c)| ends(c)) else {
            rest = None;
            return Some(text);
        };
        let end = if text[at..].starts_with("\r\n") { at + 2 } else { at + c.len_utf8() };
        rest = Some(&text[end..]);
        Some(&text[..at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // The expected strings are what Python 3's json.dumps gives.
    #[test]
    fn like_python() {
        let value = json!({"b": [1, 2.0, 1e20, 1.5e-7, 0.1, -0.0, 1e15, 1e16], "a": {"x": null, "y": true}, "e": [], "o": {}});
        assert_eq!(
            dumps(&value, &Style::default()),
            r#"{"b": [1, 2.0, 1e+20, 1.5e-07, 0.1, -0.0, 1000000000000000.0, 1e+16], "a": {"x": null, "y": true}, "e": [], "o": {}}"#
        );
    }

    #[test]
    fn strings() {
        let value = json!("é<&'\"\\\n\u{1}\u{7f}🙂");
        assert_eq!(dumps(&value, &Style::default()), "\"é<&'\\\"\\\\\\n\\u0001\u{7f}🙂\"");
        let ascii = Style { ensure_ascii: true, ..Style::default() };
        assert_eq!(dumps(&json!("é🙂"), &ascii), r#""\u00e9\ud83d\ude42""#);
    }

    #[test]
    fn indent_sort_and_separators() {
        let value = json!({"b": [1, {}], "a": 2});
        let style = Style { indent: Some("  ".into()), sort_keys: true, ..Style::default() };
        assert_eq!(dumps(&value, &style), "{\n  \"a\": 2,\n  \"b\": [\n    1,\n    {}\n  ]\n}");
        let style = Style { separators: Some((",".into(), ":".into())), ..Style::default() };
        assert_eq!(dumps(&value, &style), r#"{"b":[1,{}],"a":2}"#);
    }

    // The expected strings are what Jinja2 gives.
    #[test]
    fn indented() {
        assert_eq!(indent("{\n", "    ", true, false), "    {\n");
        assert_eq!(indent("a\n\nb", "  ", false, false), "a\n\n  b");
        assert_eq!(indent("a\n\nb\n", "  ", true, true), "  a\n  \n  b\n  ");
        assert_eq!(indent("a\r\nb\u{2028}c", "-", false, false), "a\n-b\n-c");
        assert_eq!(indent("", "-", true, false), "-");
    }
}
