//! Expanding kernel templates.
//!
//! A template is WGSL with two more things: `${name}`, replaced by a parameter's value, and blocks
//!
//! ```text
//! //#for i in COUNT        //#if NAME == VALUE
//! ...                      ...
//! //#end                   //#end
//! ```
//!
//! of which the first is repeated with `${i}` from 0 up to the value of `COUNT`, and the second kept only where a parameter
//! has a value (`==`, `!=`). Loops that must be unrolled are written so: compilers keep small arrays in registers
//! only when every index is a constant.

/// Named parameters.
pub(crate) type Parameters = [(&'static str, u32)];

/// Expands a template.
///
/// # Panics
/// When the template names a parameter that is not given or a block does not end: a fault of this crate, which its tests
/// find by expanding every template with every set of parameters.
pub(crate) fn expand(template: &str, parameters: &Parameters) -> String {
    let lines: Vec<&str> = template.lines().collect();
    let mut scope: Vec<(&str, u32)> = parameters.to_vec();
    let mut out = String::with_capacity(2 * template.len());
    block(&lines, &mut scope, &mut out);
    out
}

fn value(scope: &[(&str, u32)], name: &str) -> u32 {
    let found = scope.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| *v);
    found.or_else(|| name.parse().ok()).unwrap_or_else(|| panic!("template parameter `{name}` is not given"))
}

fn block<'t>(lines: &[&'t str], scope: &mut Vec<(&'t str, u32)>, out: &mut String) {
    let mut at = 0;
    while at < lines.len() {
        let Some(directive) = lines[at].trim().strip_prefix("//#") else {
            line(lines[at], scope, out);
            at += 1;
            continue;
        };
        let end = matching_end(lines, at);
        let body = &lines[at + 1..end];
        let words: Vec<&'t str> = directive.split_whitespace().collect();
        match words[..] {
            ["for", name, "in", count] => {
                for i in 0..value(scope, count) {
                    scope.push((name, i));
                    block(body, scope, out);
                    scope.pop();
                }
            }
            ["if", name, test, other] => {
                let equal = value(scope, name) == value(scope, other);
                if equal == (test == "==") {
                    block(body, scope, out);
                }
            }
            _ => panic!("template directive `{directive}`"),
        }
        at = end + 1;
    }
}

fn matching_end(lines: &[&str], start: usize) -> usize {
    let mut depth = 0;
    for (at, line) in lines.iter().enumerate().skip(start) {
        match line.trim().strip_prefix("//#") {
            Some("end") if depth == 1 => return at,
            Some("end") => depth -= 1,
            Some(_) => depth += 1,
            None => {}
        }
    }
    panic!("template block `{}` does not end", lines[start])
}

fn line(text: &str, scope: &[(&str, u32)], out: &mut String) {
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let end = start + rest[start..].find('}').unwrap_or_else(|| panic!("`{text}`: `${{` does not end"));
        out.push_str(&rest[..start]);
        out.push_str(&value(scope, &rest[start + 2..end]).to_string());
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn loops_nest_and_conditions_choose() {
        let template = "a\n//#for i in N\n//#for j in 2\nx${i}_${j}\n//#end\n//#if i == 1\nlast\n//#end\n//#end\nb${N}\n";
        assert_eq!(expand(template, &[("N", 2)]), "a\nx0_0\nx0_1\nx1_0\nx1_1\nlast\nb2\n");
    }

    #[test]
    #[should_panic(expected = "`M` is not given")]
    fn a_missing_parameter_is_named() {
        expand("${M}", &[("N", 2)]);
    }
}
