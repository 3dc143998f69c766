//! Chat templates: the Jinja programs that models carry to turn a conversation into a prompt.

use crate::jinja_source;
use crate::python::{self, Style};
use crate::{DateTime, TemplateError};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;

/// Work a template may do by default: about as many instructions, or 64 bytes of data each.
const FUEL: u64 = 2_000_000;
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
/// COMPATIBILITY.md lists the differences from Jinja2. Rendering has a thread of its own, for the sake of its stack.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    fuel: u64,
    max_bytes: usize,
}

const NAME: &str = "chat template";

/// Stack that every rendering has, in bytes.
const STACK: usize = 4 << 20;
/// Stack for each unit of work: values may lie in each other as deep as a template has steps to build them, and the engine
/// walks and drops them recursively. A level takes 8 units and at most 1.1 KiB, as measured.
const STACK_PER_FUEL: usize = 160;

/// Longest source that is parsed, in bytes; real ones have up to 50 000.
const MAX_SOURCE: usize = 1 << 19;

/// Runs `work` on a stack of so many bytes, of which what is never touched costs nothing.
#[cfg(not(target_arch = "wasm32"))]
fn on_deep_stack<T: Send>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(NAME.to_owned()).stack_size(bytes);
        let thread = thread.spawn_scoped(scope, work);
        let thread = thread.map_err(|e| TemplateError::Render(format!("there is no stack for it: {e}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// There is one stack, and one thread.
#[cfg(target_arch = "wasm32")]
fn on_deep_stack<T>(
    _bytes: usize,
    work: impl FnOnce() -> Result<T, TemplateError>,
) -> Result<T, TemplateError> {
    work()
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// When it is not valid Jinja.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|e| TemplateError::Syntax(e.to_string()))?;
        let mut environment = Environment::new();
        environment.set_syntax(syntax.clone());
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(|state, value, name, args| {
            // These methods walk lists without being charged for it.
            if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
                state.consume_fuel(value.len().unwrap_or_default() as u64)?;
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("sum", sum);
        // Jinja2 has no such filter, and it would join lists at no charge.
        environment.remove_filter("chain");
        environment.add_filter(jinja_source::ADDED, added);
        environment
            .add_filter(jinja_source::SET, |state: &State<'_, '_>, value: &Jinja| set(state, value, true));
        environment.add_filter(jinja_source::SET_ATTRIBUTE, |state: &State<'_, '_>, value: &Jinja| {
            set(state, value, false)
        });
        environment.add_filter(jinja_source::MULTIPLIED, multiplied);
        environment.add_filter("indent", indent);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        environment.add_function("raise_exception", raise_exception);
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::Syntax(format!("it is longer than {MAX_SOURCE} bytes")));
        }
        let source = replace_generation_tags(source);
        let source = jinja_source::prepare(&source, NAME, syntax, describe)?;
        on_deep_stack(STACK, || {
            environment.add_template_owned(NAME, source).map_err(|e| TemplateError::Syntax(describe(&e)))
        })?;
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
    /// Templates differ in what they take: the arguments of calls as objects, as Hugging Face has them, or as text, as OpenAI
    /// has them; nothing beside calls as `none` or as an empty text. A template that fails on the first form is given the
    /// others, in the order of [`Form::ALL`]; what is not in the conversation makes no difference.
    ///
    /// # Errors
    /// When the template refuses the conversation, fails, or passes a limit.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TemplateError> {
        let mut first = None;
        let mut tried: Vec<Vec<Value>> = Vec::new();
        for form in Form::ALL {
            let messages = messages.iter().map(|message| form.apply(message));
            let messages = messages.collect::<Result<Vec<Value>, TemplateError>>()?;
            if tried.contains(&messages) {
                continue;
            }
            match self.render_values(messages.clone(), options) {
                Err(error @ TemplateError::Render(_)) => first = first.or(Some(error)),
                ended => return ended,
            }
            tried.push(messages);
        }
        Err(first.unwrap_or(TemplateError::Missing))
    }

    fn render_values(&self, messages: Vec<Value>, options: &RenderOptions) -> Result<String, TemplateError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(self.fuel));
        let now = options.now;
        environment.add_function("strftime_now", move |format: &str| strftime_now(now, format));

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

        let mut out = Bounded { bytes: Vec::new(), limit: self.max_bytes, passed: false };
        let stack = STACK + usize::try_from(self.fuel).unwrap_or(usize::MAX).saturating_mul(STACK_PER_FUEL);
        let rendered = on_deep_stack(stack, || {
            let template = environment.get_template(NAME).map_err(|e| TemplateError::Render(describe(&e)))?;
            template.render_captured_to(Serde(context), &mut out).map_err(|e| self.error(&e))?;
            Ok(())
        });
        if out.passed {
            return Err(TemplateError::TooLarge { limit: self.max_bytes });
        }
        rendered?;
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

/// `indent` as Jinja2 has it, which keeps a line break at the end.
fn indent(
    text: String,
    width: Option<Jinja>,
    first: Option<bool>,
    blank: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = width.or(args.get("width")?);
    let (first, blank) = (first.or(args.get("first")?), blank.or(args.get("blank")?));
    args.assert_all_used()?;
    let by = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(by) => by.to_owned(),
            None => " ".repeat(usize::try_from(width.clone())?.min(MAX_INDENT)),
        },
    };
    // The engine charges for the text when it is there; each line may become longer by as much.
    let breaks = text.chars().filter(|c| c.is_control() || c.is_whitespace()).count();
    if breaks.saturating_mul(by.len()) > MAX_BYTES {
        return Err(ErrorKind::OutOfFuel.into());
    }
    Ok(python::indent(&text, &by, first.unwrap_or(false), blank.unwrap_or(false)))
}

/// An operand of `+`: the engine joins lists by reference, and writes the result out where many were joined.
fn added(state: &State<'_, '_>, value: &Jinja) -> Result<Jinja, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        state.consume_fuel(value.len().unwrap_or_default() as u64 / ITEMS_PER_FUEL)?;
    }
    Ok(value.clone())
}

/// Items that are looked at or joined for one unit of work.
const ITEMS_PER_FUEL: u64 = 4;

/// What a variable is set to. Loops make values deeper only through variables, and only namespaces can hold themselves: a
/// limit here keeps the engine, which walks values recursively, off the end of the stack. Lists that were joined or sliced
/// by reference are written out, for the same reason.
fn set(state: &State<'_, '_>, value: &Jinja, namespace: bool) -> Result<Jinja, Error> {
    let mut seen = 0;
    let checked = check_depth(state, value, DEEPEST, namespace, &mut seen);
    state.consume_fuel(seen / ITEMS_PER_FUEL)?;
    checked?;
    match (value.kind(), value.len()) {
        (ValueKind::Iterable, Some(_)) => Ok(Jinja::from(value.try_iter()?.collect::<Vec<_>>())),
        _ => Ok(value.clone()),
    }
}

fn check_depth(
    state: &State<'_, '_>,
    value: &Jinja,
    depth: usize,
    namespace: bool,
    seen: &mut u64,
) -> Result<(), Error> {
    let invalid = |message: &str| Error::new(ErrorKind::InvalidOperation, message.to_owned());
    let Some(object) = value.as_object() else { return Ok(()) };
    if !namespace && object.type_name().ends_with("::Namespace") {
        return Err(invalid("a namespace cannot be part of another value here"));
    }
    let depth = depth.checked_sub(1).ok_or_else(|| invalid("values lie too deep in each other"))?;
    let mapping = value.kind() == ValueKind::Map;
    // Of what can be walked but once the items are not there yet.
    if !mapping && value.len().is_none() {
        return Ok(());
    }
    for item in value.try_iter().into_iter().flatten() {
        *seen += 1;
        if seen.is_multiple_of(4096) {
            state.consume_fuel(4096 / ITEMS_PER_FUEL)?;
            *seen = 0;
        }
        let item = if mapping { value.get_item(&item)? } else { item };
        check_depth(state, &item, depth, false, seen)?;
    }
    Ok(())
}

/// An operand of `*`: a list that is repeated would grow at no charge.
fn multiplied(value: &Jinja) -> Result<Jinja, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(Error::new(ErrorKind::InvalidOperation, "lists cannot be multiplied here"));
    }
    Ok(value.clone())
}

/// `sum` of numbers: lists would be joined at no charge.
fn sum(
    state: &State<'_, '_>,
    values: Jinja,
    attribute: Option<String>,
    start: Option<Jinja>,
    args: Kwargs,
) -> Result<Jinja, Error> {
    let attribute = attribute.or(args.get("attribute")?);
    let start = start.or(args.get("start")?).unwrap_or_else(|| 0.into());
    args.assert_all_used()?;
    if !start.is_number() {
        return Err(Error::new(ErrorKind::InvalidOperation, "sum: `start` is no number"));
    }
    minijinja::filters::sum(
        state,
        values,
        attribute.as_deref(),
        Some(start),
        Kwargs::from_iter::<[(&str, Jinja); 0]>([]),
    )
}

/// Whether Python would iterate over it; `none` it would not.
fn is_iterable(value: &Jinja) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether it has a length and items; in Python, texts and mappings do.
fn is_sequence(value: &Jinja) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map) || value.is_undefined()
}

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
fn to_json(state: &State<'_, '_>, value: &Jinja, args: Kwargs) -> Result<Jinja, Error> {
    let indent = match args.get::<Option<Jinja>>("indent")? {
        Some(indent) if !indent.is_none() => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(MAX_INDENT)),
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
    let value = plain(state, value, &style, 0)?;
    Ok(Jinja::from(python::dumps(&value, &style)))
}

/// The most spaces that something is indented by; no template has a use for more.
const MAX_INDENT: usize = 64;

/// How deep lists and mappings may lie in each other where a function here follows them.
const DEEPEST: usize = 100;
/// Bytes of a text that cost as much as a step.
const BYTES_PER_FUEL: u64 = 64;

/// The value as JSON has it, for as long as there is fuel, which pays for all that is written in `style`: a list that was
/// joined to itself a few times is longer than any memory, and small until something walks it. `depth` is how many lists and
/// mappings it lies in.
fn plain(state: &State<'_, '_>, value: &Jinja, style: &Style, depth: usize) -> Result<Value, Error> {
    let not_json =
        |what: String| Error::new(ErrorKind::BadSerialization, format!("tojson: {what} is not JSON"));
    let length = value.as_str().map_or(0, str::len).saturating_add(style.around(depth)) as u64;
    state.consume_fuel(1 + length / BYTES_PER_FUEL)?;
    if depth == DEEPEST {
        return Err(not_json("something as deep as this".to_owned()));
    }
    Ok(match value.kind() {
        ValueKind::None => Value::Null,
        ValueKind::Undefined => return Err(not_json("an undefined value".to_owned())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| plain(state, &item, style, depth + 1));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter()? {
                let item = plain(state, &value.get_item(&key)?, style, depth + 1)?;
                map.insert(key_of(state, &key)?, item);
            }
            Value::Object(map)
        }
        _ => serde_json::to_value(value).map_err(|e| not_json(value.kind().to_string()).with_source(e))?,
    })
}

/// A key as Python writes it.
fn key_of(state: &State<'_, '_>, key: &Jinja) -> Result<String, Error> {
    if let Some(text) = key.as_str() {
        state.consume_fuel(text.len() as u64 / BYTES_PER_FUEL)?;
        return Ok(text.to_owned());
    }
    let style = Style::default();
    Ok(python::dumps(&plain(state, key, &style, DEEPEST - 1)?, &style))
}

/// What a template takes where conversations can be written in several ways.
#[derive(Clone, Copy)]
struct Form {
    /// Arguments of calls are objects, rather than text of JSON.
    objects: bool,
    /// Where a message says nothing there is `none`, rather than an empty text.
    none: bool,
}

impl Form {
    const ALL: [Self; 4] = [
        Self { objects: true, none: true },
        Self { objects: true, none: false },
        Self { objects: false, none: true },
        Self { objects: false, none: false },
    ];

    /// The message as the template sees it.
    fn apply(self, message: &Message) -> Result<Value, TemplateError> {
        let mut value = serde_json::to_value(message).map_err(|e| TemplateError::Render(e.to_string()))?;
        for call in value.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            let function =
                if call.get("function").is_some_and(Value::is_object) { &mut call["function"] } else { call };
            let Some(arguments) = function.get_mut("arguments") else { continue };
            if let (true, Value::String(text)) = (self.objects, &*arguments) {
                if let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text) {
                    *arguments = parsed;
                }
            } else if !self.objects && arguments.is_object() {
                *arguments = python::dumps(arguments, &Style::default()).into();
            }
        }
        if !self.none && message.content == Content::None {
            value["content"] = "".into();
        }
        Ok(value)
    }
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
