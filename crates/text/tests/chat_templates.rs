//! Chat templates against what Jinja2 makes of them; `templates/make.py` wrote the answers.

use gristmill_text::{ChatTemplate, Content, DateTime, Message, RenderOptions, TemplateError};
use serde_json::{Value, json};
use std::path::Path;

/// 2026-03-07 15:04:05 UTC, as in `make.py`.
const NOW: i64 = 1_772_895_845;

fn messages(value: &Value) -> Vec<Message> {
    serde_json::from_value(value.clone()).unwrap()
}

fn user(text: &str) -> Vec<Message> {
    vec![Message::new("user", text)]
}

fn render(template: &str, messages: &[Message]) -> Result<String, TemplateError> {
    ChatTemplate::new(template)?.render(messages, &RenderOptions::default())
}

#[test]
fn like_jinja2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/cases.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() >= 8);
    for case in cases {
        let text = |key: &str| case[key].as_str().map(str::to_owned);
        let options = RenderOptions {
            tools: Some(case["tools"].clone()).filter(|tools| !tools.is_null()),
            add_generation_prompt: case["add_generation_prompt"] == true,
            bos_token: text("bos_token"),
            eos_token: text("eos_token"),
            now: Some(DateTime::from_unix(NOW, 0)),
            ..RenderOptions::default()
        };
        let template = ChatTemplate::new(case["template"].as_str().unwrap()).unwrap();
        let expected = match text("raised") {
            Some(message) => Err(TemplateError::Raised(message)),
            None => Ok(text("expected").unwrap()),
        };
        assert_eq!(template.render(&messages(&case["messages"]), &options), expected, "{}", case["name"]);
    }
}

#[test]
fn a_model_without_a_template_says_so() {
    let error = ChatTemplate::for_model(None).unwrap_err();
    assert_eq!(error, TemplateError::Missing);
    assert!(error.to_string().contains("no chat template"));
}

#[test]
fn broken_templates_name_the_line() {
    let Err(TemplateError::Syntax(message)) = ChatTemplate::new("a\n{% if %}") else { panic!("parsed") };
    assert!(message.contains(":2"), "{message}");
    let Err(TemplateError::Render(message)) = render("\n\n{{ messages.a.b }}", &user("x")) else {
        panic!("rendered")
    };
    assert!(message.contains(":3"), "{message}");
}

#[test]
fn a_template_may_be_cut_off_anywhere() {
    let source = "{%- set ns = namespace(a='x', b=[1, {'c': (2 + 3) * 4}]) %}{% set ns.d = f(m[1:-1]) %}\
                  {% for x in ['a', 'b'] if x in ('a') %}{{ 'l' ~ (x | join(', '))[::2] * 3 + {'k': [x]} }}{% endfor %}";
    for end in 0..source.len() {
        let cut = &source[..end];
        let parsed = ChatTemplate::new(cut);
        let open = cut.matches(['(', '[']).count() > cut.matches([')', ']']).count();
        assert!(!open || matches!(parsed, Err(TemplateError::Syntax(_))), "{cut}");
    }
}

#[test]
fn work_memory_and_output_are_limited() {
    let hostile = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'x' * 100000000000 }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = [] + (ns.x + ns.x) %}{% endfor %}{{ ns.x | length }}",
        "{% set ns = namespace(x=[1]) %}{% for a in range(60) %}{% set ns.x = ns.x[:] + ns.x|list + [] %}{% endfor %}",
        "{% set ns = namespace(x={'y': [1]}) %}{% for a in range(60) %}{% set ns.x = {'y': ns.x.y + ns.x['y']} %}{% endfor %}",
        "{% macro f(x, n) %}{% if n %}{{ f(x + x, n - 1) }}{% endif %}{% endmacro %}{{ f([1], 60) }}",
        "{% set ns = namespace(x=(1,)) %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ (['a' * 4000000] + ['b' * 4000000]) | join('') }}",
        "{{ range(90000) | join('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') | length }}",
        "{% set s = 'x' * 4000000 %}{{ range(9000) | tojson(separators=(s, ':')) | length }}",
        "{% set s = 'x' * 4000000 %}{% set x = range(9000) | map('string') | batch(1) | list %}{{ x | tojson(indent=s) | length }}",
        "{% set s = 'x' * 2000000 %}{% set ns = namespace(x=[{s: 1}]) %}{% for a in range(14) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | tojson | length }}",
        "{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(60) %}{% set ns.x = '%s%s' | format(ns.x, ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='x\n') %}{% for a in range(600) %}{% set ns.x = ns.x | indent(60, true) ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for a in range(9999) %}{% set ns.x = ns.x.replace('x', 'xxxx') %}{% endfor %}",
    ];
    for source in hostile {
        let template = ChatTemplate::new(source).unwrap().with_limits(100_000, 1 << 20);
        let error = template.render(&user("x"), &RenderOptions::default()).unwrap_err();
        assert!(matches!(error, TemplateError::OutOfFuel { .. }), "{source}: {error}");
    }
    // What would grow without being seen is refused.
    for refused in [
        "{{ (['a' * 1000000] * 100000) | join('') }}",
        "{{ 100000 * ['a'] }}",
        "{% set x = [1] %}{{ 2 * x }}",
        "{{ [[1], [1]] | sum(start=[]) }}",
        "{{ [1] | chain([1]) }}",
    ] {
        let error = ChatTemplate::new(refused)
            .and_then(|template| template.render(&user("x"), &RenderOptions::default()));
        assert!(
            matches!(error, Err(TemplateError::Render(_) | TemplateError::Syntax(_))),
            "{refused}: {error:?}"
        );
    }
    let recursion = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(recursion, &user("x")).is_err());
    let template = ChatTemplate::new("{{ messages[0].content }}").unwrap().with_limits(1000, 10);
    let options = RenderOptions::default();
    assert_eq!(template.render(&user("0123456789"), &options).unwrap(), "0123456789");
    assert_eq!(template.render(&user("0123456789a"), &options), Err(TemplateError::TooLarge { limit: 10 }));
}

/// A conversation's own data cost nothing until something walks them: whatever does must be stopped.
#[test]
fn whatever_walks_a_long_list_is_limited() {
    let walks = [
        "{{ x | tojson }}",
        "{{ x | tojson(indent=2) }}",
        "{{ {'a': [x]} | tojson }}",
        "{{ x }}",
        "{{ x | string }}",
        "{{ x ~ '' }}",
        "{{ x | list | length }}",
        "{{ x | join }}",
        "{{ x | sort | length }}",
        "{{ x | unique | length }}",
        "{{ x | map('upper') | list | length }}",
        "{{ x | select | list | length }}",
        "{{ x | batch(2) | list | length }}",
        "{{ x | min }}",
        "{{ 'zz' in x }}",
        "{{ x == x + [] }}",
        "{{ x.count('a') }}",
        "{{ x.index('b') }}",
        "{{ x | pprint }}",
        "{% for a in x %}{% endfor %}",
        "{% set a = x | groupby('length') %}{{ a }}",
    ];
    let mut options = RenderOptions::default();
    options.extra.insert("x".into(), vec!["a"; 400_000].into());
    for walk in walks {
        let template = ChatTemplate::new(walk).unwrap().with_limits(20_000, 1 << 16);
        let result = template.render(&user("x"), &options);
        let limited = matches!(result, Err(TemplateError::OutOfFuel { .. } | TemplateError::TooLarge { .. }));
        assert!(limited, "{walk}: {result:.60?}");
    }
    // These look at no item, or at one.
    for (glance, expected) in [
        ("{{ x | reverse | length }}", "400000"),
        ("{{ x[::2] | length }}", "200000"),
        ("{{ x | last }}", "a"),
    ] {
        let template = ChatTemplate::new(glance).unwrap().with_limits(20_000, 1 << 16);
        assert_eq!(template.render(&user("x"), &options).as_deref(), Ok(expected), "{glance}");
    }
    let template = ChatTemplate::new("{{ x | sum }}").unwrap().with_limits(20_000, 1 << 16);
    assert!(matches!(template.render(&user("x"), &options), Err(TemplateError::Render(_))));
}

/// Lists and mappings that lie in each other without end: following them must not take the whole stack.
#[test]
fn deep_values_are_limited() {
    for nested in [
        "ns.x[0:]",
        "ns.x|reverse",
        "[ns.x]",
        "[[ns.x]][0]",
        "dict(a=ns.x)",
        "namespace(a=ns.x)",
        "ns",
        "[ns]",
        "{1: (ns,)}",
        "{'a': ns.x}",
        "[ns.x] + []",
        "(ns.x,)",
        "ns.x | batch(1)",
    ] {
        for walk in [
            "",
            "{{ ns.x | tojson }}",
            "{{ ns.x }}",
            "{{ ns.x == [ns.x] }}",
            "{{ ns.x | string }}",
            "{{ ns.x | sort }}",
            "{{ ns }}{{ ns == ns.x }}{{ [ns] | join }}",
        ] {
            let source = format!(
                "{{% set ns = namespace(x=[]) %}}{{% for a in range(9999) %}}{{% for b in range(20) %}}{{% set ns.x = {nested} %}}{{% endfor %}}{{% endfor %}}{walk}"
            );
            // Whatever it ends in, it ends.
            let _text = ChatTemplate::new(&source).unwrap().render(&user("x"), &RenderOptions::default());
        }
    }
}

#[test]
fn deep_sources_end() {
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{'a':", "}"), ("not ", ""), ("-", ""), ("f(", ")"), ("x if ", "")]
    {
        too_deep(&format!("{{{{ {}1{} }}}}", open.repeat(50_000), close.repeat(50_000)));
    }
    too_deep(&("{% if 1 %}".repeat(20_000) + &"{% endif %}".repeat(20_000)));
    too_deep(&("{% for a in b %}".repeat(10_000) + &"{% endfor %}".repeat(10_000)));
    too_deep(&("{% if 1 %}".to_owned() + &"{% elif 1 %}".repeat(20_000) + "{% endif %}"));
    for chain in [
        "|trim",
        ".a",
        "[0]",
        " ~ 1",
        " + 1",
        " - 1",
        " * 1",
        " ** 1",
        " and 1",
        "()",
        " is defined",
        " if 1",
        " == 1",
    ] {
        too_deep(&format!("{{{{ x{} }}}}", chain.repeat(25_000)));
        too_deep(&format!("\n{{% set y = [1, (2, {{'a': f(x{})}})] %}}", chain.repeat(25_000)));
        // Deeper than any real one, and still on an ordinary stack.
        let template = ChatTemplate::new(&format!("{{{{ x{} }}}}", chain.repeat(100)));
        let _ends = template.unwrap().render(&user("x"), &RenderOptions::default());
    }
    let long = format!("{{% set x = [{}] %}}{{{{ x | length }}}}", "a.b + 1, ".repeat(10));
    ChatTemplate::new(&long).unwrap();
    let many = format!("{{% set x = [{}] %}}{{{{ x | length }}}}", "{'a': 1 + 2}, ".repeat(5_000));
    assert_eq!(render(&many, &user("x")).unwrap(), "5000");
    let Err(TemplateError::Syntax(long)) = ChatTemplate::new(&"x".repeat(1 << 20)) else { panic!("parsed") };
    assert!(long.contains("longer than 524288 bytes"), "{long}");
}

fn too_deep(source: &str) {
    let Err(TemplateError::Syntax(message)) = ChatTemplate::new(source) else {
        panic!("parsed: {source:.60}")
    };
    assert!(message.contains("lie in each other") && message.contains("chat template:"), "{message}");
}

/// What is put behind the operands of `+` and `*` changes nothing else.
#[test]
fn sums_and_products_are_what_they_were() {
    let cases = [
        ("{{ 1 + 2 * 3 }}", "7"),
        ("{{ -a.b + 2 * -c[0] ** 2 }}", "29"),
        ("{{ 'a' + 'b' 'c' + d }}", "abcd"),
        ("{{ d + d|upper + d.upper() + (d if c else '') + '-' * 3 }}", "dDDd---"),
        ("{{ [1] + c + [2, 3][1:] }}", "[1, 4, 3]"),
        ("{{ (c + [1])[0] + (c + [2])[-1] }}", "6"),
        ("{{ 3 * d + a.b * 2 ~ 'x' }}", "ddd6x"),
        ("{{ (1, 2) + (3,) }}", "(1, 2, 3)"),
        (
            "{% macro f(x, y=1 + 2) %}{{ x + y }}{% endmacro %}{{ f(1) + f(*[2]) + f(c[0], **{'y': 2 * 2}) }}",
            "458",
        ),
        ("{% for i in c + [5] if i + 0 == 5 %}{{ i+1 }}{% endfor %}", "6"),
        ("{% raw %}{{ a + b }}{% endraw %}{# c + d #} + {{ d+d -}} * 2", "{{ a + b }} + dd* 2"),
        ("{{ d is defined and c[0] + 1 is odd }}", "5"),
        ("{% set x, y = 1, [2] + c %}{% set z = d if x else y -%} {{ x }}{{ y }}{{ z }}", "1[2, 4]d"),
        (
            "{% set x %}a = b{% endset %}{%- set n = namespace(k=x, l=[]) %}{% set n.l = n.l + [d + d] %}{{ n.k }}{{ n.l }}",
            "a = b['dd']",
        ),
        ("{{ 'é' + d + 'ü' + d }}", "édüd"),
    ];
    let mut options = RenderOptions::default();
    for (name, value) in [("a", json!({"b": 3})), ("c", json!([4])), ("d", json!("d"))] {
        options.extra.insert(name.into(), value);
    }
    for (source, expected) in cases {
        let rendered = ChatTemplate::new(source).unwrap().render(&user("x"), &options);
        assert_eq!(rendered.as_deref(), Ok(expected), "{source}");
    }
}

/// Templates that want arguments as text, and those that want no `none`.
#[test]
fn templates_get_the_form_they_take() {
    let calls = json!([{"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2]}}}]);
    let message =
        Message { tool_calls: Some(calls), content: Content::None, ..Message::new("assistant", "") };
    let call = "{% set c = messages[0].tool_calls[0].function %}";
    let cases = [
        ("{{ '<' + c.arguments + '>' }}", r#"<{"a": [1, 2]}>"#),
        ("{{ c.arguments.a | length }}", "2"),
        ("{{ messages[0].content is none }}", "True"),
        ("{{ messages[0].content + '!' }}", "!"),
        ("{{ messages[0].content + '!' + c.arguments }}", r#"!{"a": [1, 2]}"#),
    ];
    for (body, expected) in cases {
        assert_eq!(
            render(&format!("{call}{body}"), std::slice::from_ref(&message)).unwrap(),
            expected,
            "{body}"
        );
    }
    let Err(TemplateError::Render(first)) = render("{{ messages[0].content + 1 }}", &[message]) else {
        panic!()
    };
    assert!(first.contains("none"), "the first error tells: {first}");
}

#[test]
fn a_long_conversation_is_well_within_the_limits() {
    let template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}";
    let conversation: Vec<Message> =
        (0..500).map(|_| Message::new("user", "words and ".repeat(1000))).collect();
    assert!(render(template, &conversation).unwrap().len() > 5_000_000);
}

#[test]
fn time_must_be_given() {
    let Err(TemplateError::Render(message)) = render("{{ strftime_now('%Y') }}", &user("x")) else {
        panic!("rendered")
    };
    assert!(message.contains("no time"), "{message}");
}

#[test]
fn arguments_given_as_text_are_parsed() {
    let calls = json!([{"type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, 2]}"}}]);
    let message =
        Message { tool_calls: Some(calls), content: Content::None, ..Message::new("assistant", "") };
    let template = "{% for c in messages[0].tool_calls %}{{ c.function.arguments.a[1] }}{{ c.function.arguments | tojson }}{% endfor %}";
    assert_eq!(render(template, &[message]).unwrap(), r#"2{"a": [1, 2]}"#);
}

#[test]
fn extra_variables_and_fields() {
    let mut message = Message::new("assistant", "x");
    message.extra.insert("reasoning_content".into(), "because".into());
    let mut options = RenderOptions::default();
    options.extra.insert("enable_thinking".into(), false.into());
    options.extra.insert("add_generation_prompt".into(), "mine".into());
    let template =
        "{{ messages[0].reasoning_content }} {{ enable_thinking is false }} {{ add_generation_prompt }}";
    let rendered = ChatTemplate::new(template).unwrap().render(&[message], &options).unwrap();
    assert_eq!(rendered, "because True mine");
}
