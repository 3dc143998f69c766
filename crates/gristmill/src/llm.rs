//! A loaded model with its tokenizer and template.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::sampling::{CustomSampler, CustomSampling, SamplingOptions};
use engine::{Engine, EngineOptions, Request, SessionId, Task};
use formats::Checkpoint;
use graph::backend::KvType;
use models::{Model, ModelInfo};
use text::{ChatTemplate, EncodeOptions, Message, RenderOptions, StopStrings, Tokenizer};

use crate::device::{DeviceOptions, open_devices};
use crate::error::Error;
use crate::generation::Generation;
use crate::open::open_checkpoint;
use crate::tokenizer::tokenizer_of;

/// How a model is loaded. The default is the CPU with a thread for each processor.
///
/// Write values of it with `..Default::default()`, or with the methods: fields will be added.
///
/// ```
/// # use gristmill::LoadOptions;
/// let options = LoadOptions::default().threads(2).context(4096);
/// ```
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Device name (see [`crate::device_names`]), or several separated by commas, `gpu:0,gpu:1`, which share the layers in
    /// this order: see [`EngineOptions::layers`].
    pub device: String,
    /// How the device is opened.
    pub device_options: DeviceOptions,
    /// How the engine is configured.
    pub engine: EngineOptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        let (device_options, engine) = (DeviceOptions::default(), EngineOptions::default());
        LoadOptions { device: "cpu".into(), device_options, engine }
    }
}

impl LoadOptions {
    /// Sets the device, or several separated by commas.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> LoadOptions {
        self.device = name.into();
        self
    }

    /// Sets the number of CPU worker threads; 0 is one for each processor.
    #[must_use]
    pub fn threads(mut self, n: usize) -> LoadOptions {
        self.device_options.threads = n;
        self
    }

    /// Sets the most tokens of prompt and output together.
    #[must_use]
    pub fn context(mut self, n: usize) -> LoadOptions {
        self.engine.context = Some(n);
        self
    }

    /// Sets how keys and values are kept: with q8_0 the cache takes about half of f16's memory, and answers change a little.
    /// See [`EngineOptions::kv_type`].
    #[must_use]
    pub fn kv_type(mut self, kv_type: KvType) -> LoadOptions {
        self.engine.kv_type = Some(kv_type);
        self
    }

    /// Sets how many sequences may be active at once; others wait.
    #[must_use]
    pub fn max_sequences(mut self, n: usize) -> LoadOptions {
        self.engine.max_sequences = n;
        self
    }
}

/// How text is generated. The default is greedy, up to the model's end of text or the end of the context.
///
/// Write values of it with `..Default::default()`, or with the methods: fields will be added.
#[derive(Clone, Debug, Default)]
pub struct Generate {
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Most tokens of output; `None` is up to the end of the context, which prompt and output share and which ends the
    /// output in any case.
    pub max_tokens: Option<usize>,
    /// Text that ends the output and is not part of it.
    pub stop: Vec<String>,
    /// Go on past the model's end-of-text tokens.
    pub ignore_end: bool,
}

impl Generate {
    /// Sets the most tokens to generate.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Generate {
        self.max_tokens = Some(n);
        self
    }

    /// Sets the temperature; 0 is greedy.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Generate {
        self.sampling.temperature = temperature;
        self
    }

    /// Sets the seed, so that the same request gives the same text.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Generate {
        self.sampling.seed = Some(seed);
        self
    }

    /// Reports the log-probability of each token and of this many of the most probable, in [`Generation::generated`]. It
    /// changes no token.
    #[must_use]
    pub fn logprobs(mut self, n: usize) -> Generate {
        self.sampling.logprobs = Some(n);
        self
    }

    /// Has tokens chosen by a sampler of your own, of which `make` gives one for each request. It sees every row of logits
    /// first; see [`CustomSampler`] for what it may do and what keeps answers repeatable.
    ///
    /// ```
    /// use gristmill::sampling::{Draw, Seen};
    /// use gristmill::{Generate, Llm, LoadOptions};
    ///
    /// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
    /// let mut llm = Llm::load(model, &LoadOptions::default())?;
    /// // Never the same token twice in a row; else as the options say.
    /// let no_stutter = || {
    ///     |logits: &mut [f32], seen: &Seen<'_>| {
    ///         if let Some(last) = seen.tokens.last() {
    ///             logits[*last as usize] = f32::NEG_INFINITY;
    ///         }
    ///         Ok(Draw::Policy)
    ///     }
    /// };
    /// let options = Generate::default().max_tokens(16).sampler(no_stutter);
    /// let mut answer = llm.generate("Hello", &options)?;
    /// for piece in answer.by_ref() {
    ///     print!("{}", piece?);
    /// }
    /// assert!(answer.generated().windows(2).all(|pair| pair[0].id != pair[1].id));
    /// # Ok::<(), gristmill::Error>(())
    /// ```
    #[must_use]
    pub fn sampler<S: CustomSampler + 'static>(
        mut self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Generate {
        self.sampling.custom = Some(CustomSampling::new(make));
        self
    }

    /// Adds a stop string.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Generate {
        self.stop.push(text.into());
        self
    }
}

/// A model ready to answer, one request at a time.
///
/// ```
/// use gristmill::{Generate, Llm, LoadOptions};
///
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens-gguf/llama.gguf");
/// let mut llm = Llm::load(model, &LoadOptions::default())?;
/// let text = llm.generate("The mill grinds", &Generate::default().max_tokens(8))?.text()?;
/// // Greedy, and so the same again.
/// assert_eq!(text, llm.generate("The mill grinds", &Generate::default().max_tokens(8))?.text()?);
/// # Ok::<(), gristmill::Error>(())
/// ```
pub struct Llm {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
}

impl Llm {
    /// Loads a GGUF file, of a split model any shard, or a Hugging Face folder.
    ///
    /// # Errors
    /// The path, the model, the tokenizer, the device or the options are not usable; the message says which and why.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Llm, Error> {
        Llm::load_with_progress(path, options, &mut |_, _| ())
    }

    /// As [`Llm::load`]; `progress` is called with bytes packed so far and in all.
    ///
    /// # Errors
    /// As [`Llm::load`].
    pub fn load_with_progress(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Llm, Error> {
        let checkpoint = Arc::new(open_checkpoint(path.as_ref())?);
        // A vocabulary of 150 000 tokens takes one thread as long as it takes to pack 200 MB of weights.
        let (tokenizer, engine) = std::thread::scope(|scope| {
            let tokenizer = std::thread::Builder::new()
                .name("tokenizer".into())
                .spawn_scoped(scope, || tokenizer_of(&checkpoint));
            let engine = load_engine(path, checkpoint.clone(), options, progress);
            let tokenizer = match tokenizer.map(|thread| thread.join()) {
                Ok(Ok(tokenizer)) => tokenizer,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // The system has no thread to spare.
                Err(_) => tokenizer_of(&checkpoint),
            };
            (tokenizer, engine)
        });
        // What is wrong with the tokenizer is told first: it is the same on every device.
        Ok(Llm { tokenizer: Arc::new(tokenizer?), engine: engine? })
    }

    /// The model's description.
    pub fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    /// The engine, for several requests at once.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Token ids of a text as a prompt: special tokens as the file says, special tokens in the text parsed.
    ///
    /// # Errors
    /// The text cannot be tokenised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer.encode(text, EncodeOptions::default())?)
    }

    /// Continues a text.
    ///
    /// # Errors
    /// The prompt or the options are refused. Errors while generating come from the stream.
    pub fn generate(&mut self, prompt: &str, options: &Generate) -> Result<Generation<'_>, Error> {
        let ids = self.encode(prompt)?;
        self.generate_ids(ids, options)
    }

    /// Continues token ids.
    ///
    /// # Errors
    /// As [`Llm::generate`].
    pub fn generate_ids(&mut self, prompt: Vec<u32>, options: &Generate) -> Result<Generation<'_>, Error> {
        self.start(prompt, options, None)
    }

    /// As [`Llm::generate_ids`], on a session.
    pub(crate) fn start(
        &mut self,
        prompt: Vec<u32>,
        options: &Generate,
        session: Option<SessionId>,
    ) -> Result<Generation<'_>, Error> {
        let empty = || Error::Option { option: "stop", problem: "a stop string is empty".into() };
        let stops = match options.stop.is_empty() {
            true => None,
            false => Some(StopStrings::new(&options.stop).ok_or_else(empty)?),
        };
        let stop = if options.ignore_end { vec![] } else { self.tokenizer.special().ends.clone() };
        let prompt_tokens = prompt.len();
        let task = Task::Generate {
            max_tokens: options.max_tokens,
            sampling: options.sampling.clone(),
            entropy: fresh_seed(),
            stop,
        };
        let id = self.engine.submit(Request { prompt, task, session })?;
        Ok(Generation::new(&mut self.engine, id, self.tokenizer.clone(), stops, prompt_tokens))
    }

    /// Answers a conversation, rendered with the model's chat template.
    ///
    /// # Errors
    /// The model has no template or it fails; else as [`Llm::generate`].
    pub fn chat(&mut self, messages: &[Message], options: &Generate) -> Result<Generation<'_>, Error> {
        let ids = self.render(messages)?;
        self.generate_ids(ids, options)
    }

    /// The model's chat template.
    pub(crate) fn template(&self) -> Result<ChatTemplate, Error> {
        Ok(ChatTemplate::for_model(self.tokenizer.chat_template())?)
    }

    /// The token ids of a conversation, ready for the assistant's turn.
    ///
    /// # Errors
    /// The model has no template or it fails.
    pub fn render(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        let template = self.template()?;
        let token = |id: Option<u32>| {
            let bytes = id.and_then(|id| self.tokenizer.token_bytes(id))?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let special = self.tokenizer.special();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: token(special.bos),
            eos_token: token(special.eos),
            now: Some(text::DateTime::from_unix(seconds, 0)),
            ..RenderOptions::default()
        };
        let prompt = template.render(messages, &options)?;
        // The template writes BOS itself where the model wants one.
        let encode = EncodeOptions { add_special: false, parse_special: true };
        let mut ids = self.tokenizer.encode(&prompt, encode)?;
        if special.add_bos && ids.first().copied() != special.bos {
            ids.splice(0..0, special.bos);
        }
        Ok(ids)
    }
}

/// An engine alone, for work on token ids: it needs no tokenizer. `path` is where the checkpoint was opened, for
/// messages; `progress` is called with bytes packed so far and in all.
///
/// # Errors
/// The model, the device or the options are not usable.
pub fn load_engine(
    path: impl AsRef<Path>,
    checkpoint: Arc<Checkpoint>,
    options: &LoadOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, Error> {
    let model =
        Model::open(checkpoint).map_err(|source| Error::Model { path: path.as_ref().to_owned(), source })?;
    let devices = open_devices(&options.device, &options.device_options)?;
    Ok(Engine::new(Arc::new(model), devices, &options.engine, progress)?)
}

/// A seed for requests that name none.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(SystemTime::now())
}
