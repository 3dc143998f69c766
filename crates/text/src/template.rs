//! Chat templates: the Jinja programs that models carry to turn a conversation into a prompt.

use crate::python::{self, Style};
use crate::{DateTime, TemplateError};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;

/// Work a template may do by default: about as many instructions, or 64 bytes of data each.
const FUEL: u64 = 4_000_000;
/// Bytes a template may write by default.
const MAX_BYTES: usize = 64 << 20;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or what else the template knows.
    pub role: String,
    /// What was said. Templates see `none` where there is nothing, as beside tool calls.
    #[serde(default)]
    pub content: Content,
    /// Calls the assistant made, in OpenAI's form. Arguments given as a string of JSON are parsed for the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// Anything else the template may look at (`name`, `tool_call_id`, `reasoning_content`).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The content of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Nothing.
    #[default]
    None,
    /// Plain text.
    Text(String),
    /// Structured parts, passed to the template as they are.
    Parts(Vec<Value>),
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        let content = Content::Text(text.into());
        Self { role: role.into(), content, tool_calls: None, extra: Map::new() }
    }
}

/// What a template sees beside the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// Descriptions of the tools the model may call, in OpenAI's form.
    pub tools: Option<Value>,
    /// End with the header of the assistant's next turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, `documents`); they win over those above.
    pub extra: Map<String, Value>,
    /// Text of the BOS token.
    pub bos_token: Option<String>,
    /// Text of the EOS token.
    pub eos_token: Option<String>,
    /// What `strftime_now` tells; a template that asks for it fails without.
    pub now: Option<DateTime>,
}

/// A parsed chat template.
///
/// Known differences from Jinja2: the `%` operator does not format strings (an error says so), and joining a list to
/// itself over and over is not charged against the work limit until the list is walked.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    fuel: u64,
    max_bytes: usize,
}

const NAME: &str = "chat template";

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// When it is not valid Jinja.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(|e| TemplateError::Syntax(e.to_string()))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, replace_generation_tags(source))
            .map_err(|e| TemplateError::Syntax(describe(&e)))?;
        Ok(Self { environment, fuel: FUEL, max_bytes: MAX_BYTES })
    }

    /// Parses the template a model may have.
    ///
    /// # Errors
    /// [`TemplateError::Missing`] when it has none, or when it is not valid Jinja.
    pub fn for_model(source: Option<&str>) -> Result<Self, TemplateError> {
        Self::new(source.ok_or(TemplateError::Missing)?)
    }

    /// Sets how much work a rendering may do (one unit is about one instruction or 64 bytes of data) and how many bytes
    /// it may write.
    #[must_use]
    pub fn with_limits(mut self, fuel: u64, max_bytes: usize) -> Self {
        (self.fuel, self.max_bytes) = (fuel, max_bytes);
        self
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// When the template refuses the conversation, fails, or passes a limit.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(self.fuel));
        let now = options.now;
        environment.add_function("strftime_now", move |format: &str| strftime_now(now, format));

        let messages = messages.iter().map(message_value).collect::<Result<Vec<Value>, TemplateError>>()?;
        let mut context = Map::new();
        context.insert("messages".into(), Value::Array(messages));
        context.insert("tools".into(), options.tools.clone().unwrap_or(Value::Null));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        for (name, token) in [("bos_token", &options.bos_token), ("eos_token", &options.eos_token)] {
            if let Some(token) = token {
                context.insert(name.into(), token.as_str().into());
            }
        }
        context.extend(options.extra.clone());

        let template = environment.get_template(NAME).map_err(|e| TemplateError::Render(describe(&e)))?;
        let mut out = Bounded { bytes: Vec::new(), limit: self.max_bytes, passed: false };
        let rendered = template.render_captured_to(Serde(context), &mut out);
        if out.passed {
            return Err(TemplateError::TooLarge { limit: self.max_bytes });
        }
        rendered.map_err(|e| self.error(&e))?;
        String::from_utf8(out.bytes).map_err(|e| TemplateError::Render(e.to_string()))
    }

    fn error(&self, error: &Error) -> TemplateError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if let Some(raised) = e.downcast_ref::<Raised>() {
                return TemplateError::Raised(raised.0.clone());
            }
            if e.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::OutOfFuel { fuel: self.fuel };
            }
            cause = e.source();
        }
        TemplateError::Render(describe(error))
    }
}

/// Collects output up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    passed: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.passed = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a template said to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Jinja, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(now: Option<DateTime>, format: &str) -> Result<String, Error> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidOperation, message);
    let now = now.ok_or_else(|| invalid("strftime_now: no time was given to the template".into()))?;
    now.strftime(format)
        .map_err(|directive| invalid(format!("strftime_now: directive `{directive}` is not known")))
}

/// `tojson` as Hugging Face defines it for chat templates: Python's `json.dumps` without escaping for HTML.
fn to_json(value: &Jinja, args: Kwargs) -> Result<Jinja, Error> {
    let indent = match args.get::<Option<Jinja>>("indent")? {
        Some(indent) if !indent.is_none() => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
        _ => None,
    };
    let separators = args.get::<Option<Vec<String>>>("separators")?.map(<[String; 2]>::try_from);
    let separators = separators
        .transpose()
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair"))?;
    let style = Style {
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        separators: separators.map(|[item, key]| (item, key)),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    let value = serde_json::to_value(value).map_err(|e| {
        Error::new(ErrorKind::BadSerialization, "tojson: the value is not JSON").with_source(e)
    })?;
    Ok(Jinja::from(python::dumps(&value, &style)))
}

/// The message as the template sees it.
fn message_value(message: &Message) -> Result<Value, TemplateError> {
    let mut value = serde_json::to_value(message).map_err(|e| TemplateError::Render(e.to_string()))?;
    for call in value["tool_calls"].as_array_mut().into_iter().flatten() {
        let function = if call["function"].is_object() { &mut call["function"] } else { call };
        let Some(text) = function.get("arguments").and_then(Value::as_str) else {
            continue;
        };
        if let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text) {
            function["arguments"] = parsed;
        }
    }
    Ok(value)
}

/// `{% generation %}` marks what the assistant wrote, for training. Here it is a block that always applies, which keeps
/// the tags' control of white space.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let body = tag.trim_start_matches(['-', '+']).trim_start();
        let replaced =
            [("generation", "if true"), ("endgeneration", "endif")].into_iter().find_map(|(word, with)| {
                let after = body.strip_prefix(word)?;
                after.trim_start().trim_start_matches(['-', '+']).starts_with("%}").then_some((after, with))
            });
        rest = match replaced {
            Some((after, with)) => {
                out.push_str(&tag[..tag.len() - body.len()]);
                out.push_str(with);
                after
            }
            None => tag,
        };
    }
    out.push_str(rest);
    out
}

/// The error with its line and its causes, on one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        text.push_str(": ");
        text.push_str(&e.to_string());
        cause = e.source();
    }
    text
}
