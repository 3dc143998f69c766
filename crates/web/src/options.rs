//! Arguments as JavaScript gives them.

use graph::backend::Precision;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** The bytes of a GGUF file, or of all the shards of a split model, in any order. */
export type Files = Uint8Array | Uint8Array[];

/** What a prompt is: text, or token ids with special tokens included. */
export type Prompt = string | Uint32Array;

export interface LoadOptions {
    /** "exact" computes with 32-bit activations and cache; "fast", the default for quantised files, with 8 and 16 bits. */
    precision?: "exact" | "fast";
    /** Longest sequence in tokens, prompt and output together. The trained length, if absent. */
    context?: number;
    /** Most tokens of a prompt in one step: smaller steps keep the page's GPU free for others. It changes no answer. */
    chunk?: number;
}

export interface GenerateOptions {
    /** Most tokens; up to the end of the context, if absent. */
    maxTokens?: number;
    /** Go on past the model's end-of-text tokens. */
    ignoreEnd?: boolean;
    /** Called with each token and the text it completes; `false` ends the request. */
    onToken?: (id: number, text: string) => boolean | void;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// A file's bytes, or those of several.
    #[wasm_bindgen(typescript_type = "Files")]
    pub type JsFiles;

    /// A text or token ids.
    #[wasm_bindgen(typescript_type = "Prompt")]
    pub type JsPrompt;

    /// How a model is loaded.
    #[wasm_bindgen(typescript_type = "LoadOptions")]
    pub type JsLoadOptions;
    #[wasm_bindgen(method, getter, js_name = precision)]
    fn precision_(this: &JsLoadOptions) -> JsValue;
    #[wasm_bindgen(method, getter, js_name = context)]
    fn context_(this: &JsLoadOptions) -> JsValue;
    #[wasm_bindgen(method, getter, js_name = chunk)]
    fn chunk_(this: &JsLoadOptions) -> JsValue;

    /// How text is generated.
    #[wasm_bindgen(typescript_type = "GenerateOptions")]
    pub type JsGenerateOptions;
    #[wasm_bindgen(method, getter, js_name = maxTokens)]
    fn max_tokens_(this: &JsGenerateOptions) -> JsValue;
    #[wasm_bindgen(method, getter, js_name = ignoreEnd)]
    fn ignore_end_(this: &JsGenerateOptions) -> JsValue;
    #[wasm_bindgen(method, getter, js_name = onToken)]
    fn on_token_(this: &JsGenerateOptions) -> JsValue;
}

fn absent(value: &JsValue) -> bool {
    value.is_undefined() || value.is_null()
}

fn count(name: &str, value: &JsValue) -> Result<Option<usize>, JsError> {
    match value.as_f64() {
        _ if absent(value) => Ok(None),
        Some(n) if n >= 0.0 && n.fract() == 0.0 && n <= f64::from(u32::MAX) => Ok(Some(n as usize)),
        _ => Err(JsError::new(&format!("{name} is a whole number of tokens"))),
    }
}

impl JsFiles {
    /// The content of each file.
    pub(crate) fn bytes(&self) -> Result<Vec<Vec<u8>>, JsError> {
        let one = |value: &JsValue| value.dyn_ref::<js_sys::Uint8Array>().map(js_sys::Uint8Array::to_vec);
        let files = match self.dyn_ref::<js_sys::Array>() {
            Some(files) => files.iter().map(|file| one(&file)).collect(),
            None => one(self).map(|file| vec![file]),
        };
        files.ok_or_else(|| {
            JsError::new("a model is a Uint8Array, or an array of them: the shards of a split model")
        })
    }
}

impl JsPrompt {
    /// The token ids.
    pub(crate) fn ids(&self) -> Result<Vec<u32>, JsError> {
        let ids = self.dyn_ref::<js_sys::Uint32Array>().map(js_sys::Uint32Array::to_vec);
        ids.ok_or_else(|| JsError::new("a prompt is a string or a Uint32Array of token ids"))
    }
}

impl JsLoadOptions {
    pub(crate) fn precision(&self) -> Result<Option<Precision>, JsError> {
        let value = self.precision_();
        match value.as_string().as_deref() {
            Some("exact") => Ok(Some(Precision::Exact)),
            Some("fast") => Ok(Some(Precision::Fast)),
            None if absent(&value) => Ok(None),
            _ => Err(JsError::new("precision is \"exact\" or \"fast\"")),
        }
    }

    pub(crate) fn context(&self) -> Result<Option<usize>, JsError> {
        count("context", &self.context_())
    }

    pub(crate) fn chunk(&self) -> Result<Option<usize>, JsError> {
        count("chunk", &self.chunk_())
    }
}

impl JsGenerateOptions {
    pub(crate) fn max_tokens(&self) -> Result<Option<usize>, JsError> {
        count("maxTokens", &self.max_tokens_())
    }

    pub(crate) fn ignore_end(&self) -> bool {
        self.ignore_end_().is_truthy()
    }

    pub(crate) fn on_token(&self) -> Result<Option<js_sys::Function>, JsError> {
        let value = self.on_token_();
        if absent(&value) {
            return Ok(None);
        }
        value.dyn_into().map(Some).map_err(|_| JsError::new("onToken is a function"))
    }
}
