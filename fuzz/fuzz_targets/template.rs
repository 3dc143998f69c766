//! Any text as a chat template: it must end, in a text or in an error, within the limits it was given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use text::{ChatTemplate, DateTime, Message, RenderOptions, TemplateError};

const LIMIT: usize = 1 << 16;

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source) else { return };
    let template = template.with_limits(20_000, LIMIT);
    let call = serde_json::json!([{"type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, \"é\"]}"}}]);
    let calls = Message { tool_calls: Some(call.clone()), ..Message::new("assistant", "") };
    let messages = [Message::new("system", "Be <brief>.\n"), Message::new("user", " Hi 🙂 "), calls, Message::new("tool", "1")];
    let options = RenderOptions {
        tools: Some(call),
        add_generation_prompt: true,
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        now: Some(DateTime::from_unix(1_772_895_845, 0)),
        ..RenderOptions::default()
    };
    match template.render(&messages, &options) {
        Ok(text) => assert!(text.len() <= LIMIT),
        Err(TemplateError::Missing | TemplateError::Syntax(_)) => panic!("it was there, and parsed"),
        Err(_) => {}
    }
});
