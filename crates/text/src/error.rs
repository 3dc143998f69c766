//! Errors of this crate.

/// Why a tokenizer could not be made, or a text not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names an algorithm this crate does not have.
    #[error(
        "tokenizer model `{0}` (tokenizer.ggml.model) is not supported \
         (supported: gpt2, llama, gemma4, bert, t5, rwkv, whitespace); choose another model"
    )]
    UnknownModel(String),
    /// `tokenizer.ggml.pre` names a pre-tokenizer this crate does not have.
    #[error(
        "pre-tokenizer `{name}` (tokenizer.ggml.pre) is not known; another would give wrong ids (known: {known}); convert the model again \
         with a current converter, or choose another"
    )]
    UnknownPreTokenizer {
        /// What the file says.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A byte-level BPE vocabulary without `tokenizer.ggml.pre`.
    #[error("the file has no tokenizer.ggml.pre, so how text is split is unknown; convert the model again")]
    MissingPreTokenizer,
    /// The vocabulary contradicts itself.
    #[error("tokenizer vocabulary: {0}; fetch the model again, or convert it again")]
    BadVocab(String),
    /// `tokenizer.json` or `tokenizer_config.json` could not be understood.
    #[error("{file}: {message}; fetch it again from where the model came")]
    BadJson {
        /// Which file.
        file: &'static str,
        /// What was wrong.
        message: String,
    },
    /// The text contains something that no token stands for.
    #[error("the vocabulary has no token for byte 0x{byte:02X} and no unknown token")]
    NoToken {
        /// The byte without a token.
        byte: u8,
    },
    /// The text is longer than ids and offsets can count.
    #[error("text of {bytes} bytes is too long to tokenize at once (limit {limit})")]
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A step of the normaliser makes too much of a text.
    #[error("the tokenizer's {step} would make more than {limit} bytes of a text of {bytes}")]
    Grows {
        /// The step by its type and place.
        step: String,
        /// Length of the text in bytes.
        bytes: usize,
        /// The most that may become of it.
        limit: usize,
    },
    /// The tokenizer library refused the text.
    #[error("tokenizing failed: {0}")]
    Encode(String),
}

/// Why a chat template could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model carries no chat template.
    #[error("the model has no chat template; give a plain prompt, or a template")]
    Missing,
    /// The template does not parse.
    #[error("chat template does not parse: {0}; fetch the model again, or give a plain prompt")]
    Syntax(String),
    /// The template itself refused the conversation through `raise_exception`.
    #[error(
        "the chat template refuses this conversation: {0}; change the messages as it says, or give a plain prompt"
    )]
    Raised(String),
    /// The template ran out of its work budget.
    #[error(
        "the chat template used up its work limit of {fuel} steps; shorten the conversation, or give a plain prompt"
    )]
    OutOfFuel {
        /// The limit that was set.
        fuel: u64,
    },
    /// The rendered text passed the size limit.
    #[error(
        "the chat template wrote more than {limit} bytes; shorten the conversation, or give a plain prompt"
    )]
    TooLarge {
        /// The limit that was set, in bytes.
        limit: usize,
    },
    /// Rendering failed in another way.
    #[error("chat template failed: {0}; give a plain prompt")]
    Render(String),
}
