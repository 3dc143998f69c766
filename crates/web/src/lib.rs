//! Gristmill in a browser: a GGUF file's bytes in, tokens out, computed on WebGPU.
//!
//! ```js
//! import init, { Model } from "./gristmill_web.js";
//! await init();
//! const bytes = new Uint8Array(await (await fetch("model.gguf")).arrayBuffer());
//! const model = await Model.load(bytes, {});
//! await model.generate("Why is the sky blue?", { maxTokens: 64, onToken: (id, text) => show(text) });
//! ```
//!
//! The engine is polled by the browser's own event loop: there is no thread, and nothing waits. Elsewhere than in a browser
//! the crate is empty. Packing the weights and compiling the plans is one uninterrupted stretch of work, so a page that
//! must stay responsive loads the model in a worker.

#![cfg(target_arch = "wasm32")]

mod options;

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;

use engine::sampling::SamplingOptions;
use engine::{Engine, EngineOptions, Event, Request, Task};
use formats::Checkpoint;
use gpu::{GpuBackend, GpuOptions};
use gristmill::tokenizer_of;
use text::{Detokenizer, EncodeOptions, Tokenizer};
use wasm_bindgen::prelude::*;

use options::{JsFiles, JsGenerateOptions, JsLoadOptions, JsPrompt};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// A panic is a fault of the program; what it says would otherwise be lost in a bare `unreachable`.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|info| console_error(&info.to_string())));
}

/// A model on this page's GPU.
#[wasm_bindgen]
pub struct Model {
    /// Taken while a request runs.
    engine: Cell<Option<Engine>>,
    /// Or why text cannot be turned into tokens.
    tokenizer: Result<Arc<Tokenizer>, String>,
    adapter: String,
}

#[wasm_bindgen]
impl Model {
    /// Loads the bytes of a GGUF file, or of all the shards of a split model, which are copied into the module's memory.
    ///
    /// # Errors
    /// Bytes that are no GGUF file, shards that are missing or do not belong together, a model that is not supported, no WebGPU
    /// adapter, a context that does not fit.
    pub async fn load(files: JsFiles, options: JsLoadOptions) -> Result<Model, JsError> {
        let default = EngineOptions::default();
        let options = EngineOptions {
            precision: options.precision()?,
            context: options.context()?,
            chunk: options.chunk()?.unwrap_or(default.chunk),
            // One conversation.
            max_sequences: 1,
            ..default
        };
        let checkpoint = Arc::new(Checkpoint::from_shards(files.bytes()?)?);
        let tokenizer = tokenizer_of(&checkpoint).map(Arc::new).map_err(|e| e.to_string());
        let model = Arc::new(models::Model::open(checkpoint)?);
        let backend = GpuBackend::open("gpu", &GpuOptions::default()).await?;
        let adapter = backend.adapter().name.clone();
        let engine = Engine::new(model, vec![Arc::new(backend)], &options, &mut |_, _| ())?;
        Ok(Model { engine: Cell::new(Some(engine)), tokenizer, adapter })
    }

    /// The GPU as the browser names it; often empty, for privacy.
    #[wasm_bindgen(getter)]
    pub fn adapter(&self) -> String {
        self.adapter.clone()
    }

    /// Token ids of a text as a prompt, special tokens included.
    ///
    /// # Errors
    /// The file has no tokenizer, or the text cannot be tokenised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, JsError> {
        Ok(self.tokenizer()?.encode(text, EncodeOptions::default())?)
    }

    /// Continues a prompt greedily, one request at a time, and gives the ids of what was generated. `onToken` is called
    /// with each id and the text it completes as they come; when it returns `false`, the request ends there.
    ///
    /// # Errors
    /// A prompt that is refused, a request already running, a device that fails or is lost; what `onToken` throws.
    pub async fn generate(&self, prompt: JsPrompt, options: JsGenerateOptions) -> Result<Vec<u32>, JsValue> {
        let prompt = match prompt.as_string() {
            Some(text) => self.encode(&text)?,
            None => prompt.ids()?,
        };
        let stop = match &self.tokenizer {
            Ok(tokenizer) if !options.ignore_end() => tokenizer.special().ends.clone(),
            _ => vec![],
        };
        let task = Task::Generate {
            max_tokens: options.max_tokens()?,
            sampling: SamplingOptions::default(),
            entropy: 0,
            stop,
        };
        let mut detokenizer = self.tokenizer.as_ref().ok().map(|t| Detokenizer::continuing(t.clone(), true));
        let on_token = options.on_token()?;
        let each = |id: u32| {
            let Some(on_token) = &on_token else { return Ok(true) };
            let text = detokenizer.as_mut().map_or("", |d| d.push(id));
            let answer = on_token.call2(&JsValue::NULL, &id.into(), &text.into())?;
            Ok(answer != JsValue::FALSE)
        };
        let Some(mut engine) = self.engine.take() else {
            return Err(JsError::new("the model is answering another request: await that one first").into());
        };
        let answer = generate(&mut engine, Request { prompt, task, session: None }, each).await;
        self.engine.set(Some(engine));
        answer
    }

    fn tokenizer(&self) -> Result<&Arc<Tokenizer>, JsError> {
        self.tokenizer.as_ref().map_err(|problem| JsError::new(problem))
    }
}

/// Runs a request to its end, or until `each` wants no more.
async fn generate(
    engine: &mut Engine,
    request: Request,
    mut each: impl FnMut(u32) -> Result<bool, JsValue>,
) -> Result<Vec<u32>, JsValue> {
    let request = engine.submit(request).map_err(JsError::from)?;
    let mut tokens = vec![];
    while let Some(events) = poll_fn(|cx| engine.poll(cx)).await {
        for event in events {
            match event {
                Event::Token { id, token } if id == request => {
                    tokens.push(token.id);
                    let more = each(token.id);
                    if !matches!(more, Ok(true)) {
                        engine.cancel(request);
                        return more.map(|_| tokens);
                    }
                }
                Event::Finished { id, .. } if id == request => return Ok(tokens),
                Event::Failed { id, error } if id == request => return Err(JsError::from(error).into()),
                _ => {}
            }
        }
    }
    Err(JsError::from(gristmill::Error::Unanswered).into())
}
