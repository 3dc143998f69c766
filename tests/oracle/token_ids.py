"""The ids that the `tokenizers` library gives 240 lines of many languages and scripts, for the vocabulary of a GGUF file.

    python token_ids.py FILE.gguf

Writes a JSON list of [line, ids] to the standard output. The tokenizer is put together here from the file's tokens, merges and
scores, as the model's own tokenizer.json has it: no code is shared with what it is compared to. Special tokens are parsed, none
is added.
"""

import json
import random
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROL, USER, BYTE = 3, 4, 6
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = """the quick brown fox naïve façade Straße Übergröße garçon coração señor åäö łódź žluťoučký kůň İstanbul ığdır
    привет мир ёлка Київ Ελλάδα καλημέρα שלום עולם مرحبا بالعالم سلام दुनिया नमस्ते বাংলা தமிழ் ไทยสวัสดี ខ្មែរ မြန်မာ
    你好世界 漢字 東京都 こんにちは カタカナ ｶﾀｶﾅ 안녕하세요 세계 ქართული հայերեն አማርኛ ᏣᎳᎩ Việt Nam tiếng e\u0301a\u0308 o\u0302\u0301 ﬁ ½ ² ① Ⅷ
    🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 don't we'll I'VE it's O'Neil x=42; foo_bar() -> i32 { } // == != <= >= && || :: ... #[derive] @user
    https://example.org/a?b=c&d=%20 a@b.cc C:\\dir\\file 3.14159 1,234,567 0xFF 1e-9 2024-02-29 12:34 $5 €10 £3 50% ∑ ∫ √ → ≠ ∞
    \u200b \u00a0 \u3000 \ufeff <|im_start|> <|im_end|> <|endoftext|> <start_of_turn> <end_of_turn> <bos> </s> <b> ``` ''' \"\"\"""".split(" ")
WORDS = [part for word in WORDS for part in word.split("\n") if part]
SPACES = [" "] * 12 + ["", "", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "    ", "\u00a0", "\u3000"]


def lines():
    draw = random.Random(20261130)
    for count in range(240):
        text = "".join(draw.choice(SPACES) + draw.choice(WORDS) for _ in range(1 + count % 24))
        yield text + draw.choice(["", " ", "\n", ".", "  "])


def read(path):
    fields = GGUFReader(path).fields

    def value(key):
        field = fields.get(f"tokenizer.ggml.{key}")
        return None if field is None else field.contents()

    return value


def merges_by_score(vocab, scores):
    """Every way to put a token together from two, the best token first; of one token, the best parts first."""
    merges = []
    for token, id in vocab.items():
        parts = [(token[:at], token[at:]) for at in range(1, len(token))]
        parts = [(left, right) for left, right in parts if left in vocab and right in vocab]
        merges += [(scores[id], left, right) for left, right in sorted(parts, key=lambda p: (vocab[p[0]], vocab[p[1]]))]
    merges.sort(key=lambda merge: merge[0], reverse=True)
    return [(left, right) for _, left, right in merges]


def main():
    value = read(sys.argv[1])
    tokens, types = value("tokens"), value("token_type")
    vocab = {token: id for id, token in enumerate(tokens)}
    model, pre = value("model"), value("pre")
    if model == "gpt2":
        merges = [tuple(merge.split(" ", 1)) for merge in value("merges")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre == "smollm")
        if pre == "smollm":
            first = pre_tokenizers.Digits(individual_digits=True)
        elif pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
            first = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        else:
            sys.exit(f"no pattern is written here for {pre}")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
        tokenizer.decoder = decoders.ByteLevel()
    elif model == "llama":
        # Tokens that are not made by merging take no part in it.
        normal = {token: id for token, id in vocab.items() if types[id] not in (CONTROL, BYTE)}
        merges = merges_by_score(normal, value("scores"))
        unknown = tokens[value("unknown_token_id")]
        bpe = models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        tokenizer = Tokenizer(bpe)
        replace = normalizers.Replace(" ", "▁")
        prefix = value("add_space_prefix") is not False
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    elif model == "t5":
        pieces = list(zip(tokens, map(float, value("scores"))))
        tokenizer = Tokenizer(models.Unigram(pieces, value("unknown_token_id"), False))
        tokenizer.normalizer = normalizers.Precompiled(bytes(value("precompiled_charsmap")))
        metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    else:
        sys.exit(f"no tokenizer is put together here for {model}")
    added = [(token, types[id]) for id, token in enumerate(tokens) if types[id] in (CONTROL, USER)]
    for kind, add in ((CONTROL, tokenizer.add_special_tokens), (USER, tokenizer.add_tokens)):
        names = [token for token, type_ in added if type_ == kind]
        add([AddedToken(token, normalized=False, lstrip=token == "<mask>") for token in names])
    out = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in lines()]
    json.dump(out, sys.stdout)


main()
