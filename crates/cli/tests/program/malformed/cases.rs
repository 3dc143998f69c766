//! How each file is malformed.

use std::path::{Path, PathBuf};

use super::raw::{RawGguf, string, strings};
use crate::support::{copy_folder, joined, safetensors};

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) command: &'static [&'static str],
    /// Makes it in an empty folder; gives the path to open.
    pub(super) make: Box<dyn Fn(&Path) -> PathBuf>,
}

/// What loads all there is of a model.
const RUN: &[&str] = &["run", "-n", "1", "Hello"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![];
    bytes(&mut cases);
    gguf(&mut cases);
    gguf_models(&mut cases);
    split_models(&mut cases);
    safetensors_files(&mut cases);
    folders(&mut cases);
    cases
}

/// Files of any bytes.
fn bytes(cases: &mut Vec<Case>) {
    let whole = || RawGguf::golden().bytes();
    let mut file = |name, make: fn((usize, Vec<u8>)) -> Vec<u8>| {
        let make = Box::new(move |dir: &Path| write(dir, "model.gguf", &make(whole())));
        cases.push(Case { name, command: RUN, make });
    };
    file("a file without a byte", |_| vec![]);
    file("gguf: cut off within the magic", |(_, b)| b[..3].to_vec());
    file("gguf: cut off within the header", |(_, b)| b[..12].to_vec());
    file("gguf: cut off within a key", |(_, b)| b[..40].to_vec());
    file("gguf: cut off within the vocabulary", |(_, b)| b[..2000].to_vec());
    file("gguf: cut off within the table of tensors", |(head, b)| b[..head - 500].to_vec());
    file("gguf: cut off before the data", |(head, b)| b[..head].to_vec());
    file("gguf: cut off within the last tensor", |(_, b)| b[..b.len() - 100].to_vec());
    file("gguf: two files joined with cat", |(_, b)| [&b[..], &b].concat());
    file("zeros", |_| vec![0; 4096]);
    file("a text", |_| b"Once upon a time there was a mill.\n".repeat(9));
    file("a web page", |_| b"<!DOCTYPE html><html><body>Not found</body></html>".to_vec());
    file("a Git LFS pointer", |_| {
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n".to_vec()
    });
    file("a zip archive, as PyTorch writes", |_| b"PK\x03\x04\x14\0\0\0".repeat(9));
    file("a JSON file", |_| b"{\"architectures\": []}".to_vec());
    file("a safetensors file alone", |_| {
        let (header, data) = safetensors();
        joined(&header, &data)
    });
}

/// Headers of GGUF files.
fn gguf(cases: &mut Vec<Case>) {
    let mut file = |name, change: fn(&mut RawGguf)| {
        let make = Box::new(move |dir: &Path| {
            let mut gguf = RawGguf::golden();
            change(&mut gguf);
            write(dir, "model.gguf", &gguf.bytes().1)
        });
        cases.push(Case { name, command: RUN, make });
    };
    file("gguf: another magic", |f| f.magic = *b"GGML");
    file("gguf: the format before it", |f| f.magic = *b"tjgg");
    file("gguf: big-endian", |f| f.version = f.version.swap_bytes());
    file("gguf: version 1", |f| f.version = 1);
    file("gguf: version 99", |f| f.version = 99);
    file("gguf: all the tensors there can be", |f| f.tensor_count = Some(u64::MAX));
    file("gguf: all the pairs there can be", |f| f.pair_count = Some(u64::MAX));
    file("gguf: a pair fewer than there are", |f| f.pair_count = Some(f.pairs.len() as u64 - 1));
    file("gguf: a tensor more than there are", |f| f.tensor_count = Some(f.tensors.len() as u64 + 1));
    file("gguf: a string longer than the file", |f| f.set("general.name", 8, (1u64 << 40).to_le_bytes()));
    file("gguf: a key that is no UTF-8", |f| f.pairs[1].0 = b"general.\xff".to_vec());
    file("gguf: a text that is no UTF-8", |f| f.set("general.name", 8, string(b"\xc3\x28")));
    file("gguf: a key twice", |f| f.pairs.push(f.pairs[4].clone()));
    file("gguf: a value of no type", |f| f.set("general.name", 99, [0; 8]));
    file("gguf: an array of no type", |f| f.set("general.tags", 9, [99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
    file("gguf: an array longer than the file", |f| {
        f.set("general.tags", 9, [&4u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat());
    });
    file("gguf: arrays of arrays of arrays", |f| {
        let one = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
        f.set("general.tags", 9, one.repeat(9));
    });
    file("gguf: a bool of 2", |f| f.set("tokenizer.ggml.add_bos_token", 7, [2]));
    file("gguf: an alignment of 0", |f| f.set_u32("general.alignment", 0));
    file("gguf: an alignment of 24", |f| f.set_u32("general.alignment", 24));
    file("gguf: an alignment in words", |f| f.set_text("general.alignment", "thirty-two"));
    file("gguf: a tensor beyond the end", |f| f.tensor("output.weight").offset = 1 << 50);
    file("gguf: a tensor out of line", |f| f.tensor("blk.0.attn_q.weight").offset += 1);
    file("gguf: tensors over one another", |f| {
        f.tensor("blk.0.attn_q.weight").offset = f.tensor("blk.1.attn_q.weight").offset;
    });
    file("gguf: a tensor of no type", |f| f.tensor("output.weight").ggml_type = 99);
    file("gguf: a tensor of a type that is gone", |f| f.tensor("output.weight").ggml_type = 4);
    file("gguf: a tensor of 64 bits", |f| {
        let t = f.tensor("output.weight");
        (t.ggml_type, t.dims) = (28, vec![64, 80]);
    });
    file("gguf: a tensor of whole numbers", |f| f.tensor("output.weight").ggml_type = 25);
    file("gguf: a tensor of five axes", |f| f.tensor("output.weight").dims = vec![64, 320, 1, 1, 1]);
    file("gguf: a tensor without elements", |f| f.tensor("output.weight").dims = vec![64, 0]);
    file("gguf: a tensor beyond all counting", |f| f.tensor("output.weight").dims = vec![1 << 40, 1 << 40]);
    file("gguf: a tensor twice", |f| f.tensors.push(f.tensors[0].clone()));
    file("gguf: rows that end within a block", |f| {
        let t = f.tensor("output.weight");
        (t.ggml_type, t.dims) = (12, vec![64, 320]);
    });
}

/// GGUF files that can be read, of models that cannot be.
fn gguf_models(cases: &mut Vec<Case>) {
    let mut file = |name, command, change: fn(&mut RawGguf)| {
        let make = Box::new(move |dir: &Path| {
            let mut gguf = RawGguf::golden();
            change(&mut gguf);
            write(dir, "model.gguf", &gguf.bytes().1)
        });
        cases.push(Case { name, command, make });
    };
    file("split: a shard under another name", RUN, |f| split(f, 1, 2));
    file("split: two shards joined with cat", RUN, |f| {
        split(f, 0, 2);
        let (_, other) = f.bytes();
        f.data.extend(other);
    });
    file("split: four thousand million shards", RUN, |f| f.set_u32("split.count", u32::MAX));
    file("split: a shard beyond the last", RUN, |f| split(f, 2, 2));
    file("split: a shard without a number", RUN, |f| f.set("split.count", 2, 2u16.to_le_bytes()));
    file("model: no architecture", RUN, |f| f.remove("general.architecture"));
    file("model: an architecture that is not known", RUN, |f| f.set_text("general.architecture", "abacus"));
    file("model: no number of layers", RUN, |f| f.remove("llama.block_count"));
    file("model: a number of layers in words", RUN, |f| f.set_text("llama.block_count", "two"));
    file("model: no layers", RUN, |f| f.set_u32("llama.block_count", 0));
    file("model: more layers than tensors", RUN, |f| f.set_u32("llama.block_count", 3));
    file("model: four thousand million layers", RUN, |f| f.set_u32("llama.block_count", u32::MAX));
    file("model: no heads", RUN, |f| f.set_u32("llama.attention.head_count", 0));
    file("model: a key that nobody knows", RUN, |f| f.set_u32("llama.grindstones", 2));
    file("model: a tensor too few", RUN, |f| f.tensors.retain(|t| t.name != "blk.1.ffn_up.weight"));
    file("model: a tensor too many", RUN, |f| {
        f.tensors.retain(|t| t.name != "blk.1.ffn_up.weight");
        f.tensor("blk.1.ffn_gate.weight").name = "blk.1.ffn_sieve.weight".to_owned();
    });
    file("model: a tensor of another shape", RUN, |f| f.tensor("blk.0.attn_k.weight").dims = vec![32, 64]);
    file("tokenizer: no vocabulary", RUN, |f| f.remove("tokenizer.ggml.tokens"));
    file("tokenizer: no kind", RUN, |f| f.remove("tokenizer.ggml.model"));
    file("tokenizer: a kind that is not known", RUN, |f| f.set_text("tokenizer.ggml.model", "abacus"));
    file("tokenizer: a way of splitting that is not known", RUN, |f| {
        f.set_text("tokenizer.ggml.model", "gpt2");
        f.set_text("tokenizer.ggml.pre", "abacus");
    });
    file("tokenizer: fewer types than tokens", RUN, |f| {
        f.set(
            "tokenizer.ggml.token_type",
            9,
            [&5u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[1, 0, 0, 0]].concat(),
        );
    });
    file("tokenizer: a vocabulary of numbers", RUN, |f| {
        f.set(
            "tokenizer.ggml.tokens",
            9,
            [&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &[1, 0, 0, 0]].concat(),
        );
    });
    file("tokenizer: merges of one part", RUN, |f| {
        f.set_text("tokenizer.ggml.model", "gpt2");
        f.set("tokenizer.ggml.merges", 9, strings(&["alone"]));
    });
    file("template: a tag that is not closed", RUN, |f| {
        f.set_text("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}");
    });
    file("template: a function that is not there", RUN, |f| {
        f.set_text("tokenizer.chat_template", "{{ grind(messages) }}");
    });
    file("template: one that refuses", RUN, |f| {
        f.set_text("tokenizer.chat_template", "{{ raise_exception('Conversations must begin with grain') }}");
    });
    file("template: one that never ends", RUN, |f| {
        let nested = "{% for a in range(9999) %}".repeat(4);
        f.set_text("tokenizer.chat_template", &format!("{nested}{}", "{% endfor %}".repeat(4)));
    });
}

/// Says of a file that it is shard `no`, from 0, of so many.
fn split(f: &mut RawGguf, no: u16, count: u16) {
    f.set("split.no", 2, no.to_le_bytes());
    f.set("split.count", 2, count.to_le_bytes());
}

/// Two shards, in folders that lack something; the second is opened.
fn split_models(cases: &mut Vec<Case>) {
    let name = |number: usize| format!("model-{number:05}-of-00002.gguf");
    let mut shards = |case, change: fn(&mut [RawGguf; 2]), files: fn(&Path)| {
        let make = Box::new(move |dir: &Path| {
            let mut shards = [RawGguf::golden(), RawGguf::golden()];
            for (no, shard) in shards.iter_mut().enumerate() {
                let tensors = shard.tensors.len();
                split(shard, no as u16, 2);
                shard.set_u32("split.tensors.count", tensors as u32);
                shard.tensors.retain(|t| t.name.contains("attn") == (no == 0));
            }
            change(&mut shards);
            for (shard, number) in shards.iter().zip(1..) {
                write(dir, &name(number), &shard.bytes().1);
            }
            files(dir);
            dir.join(name(2))
        });
        cases.push(Case { name: case, command: RUN, make });
    };
    let whole: fn(&Path) = |_| ();
    let nothing: fn(&mut [RawGguf; 2]) = |_| ();
    shards("split: a shard that is missing", nothing, |dir| {
        std::fs::remove_file(dir.join("model-00001-of-00002.gguf")).unwrap();
    });
    shards("split: a shard whose download did not finish", nothing, |dir| {
        let path = dir.join("model-00001-of-00002.gguf");
        std::fs::rename(&path, path.with_extension("gguf.part")).unwrap();
    });
    shards("split: a shard that is cut off", nothing, |dir| {
        let path = dir.join("model-00001-of-00002.gguf");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..9000]).unwrap();
    });
    shards("split: a shard that Git left out", nothing, |dir| {
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
        write(dir, "model-00001-of-00002.gguf", pointer);
    });
    shards("split: a shard beside a whole file", nothing, |dir| {
        write(dir, "model-00001-of-00002.gguf", &RawGguf::golden().bytes().1);
    });
    shards("split: shards under each other's names", |s| s.swap(0, 1), whole);
    shards("split: a shard of another number of shards", |s| split(&mut s[1], 1, 3), whole);
    shards("split: a shard of another split", |s| s[1].set_u32("split.tensors.count", 7), whole);
    shards(
        "split: a shard of another architecture",
        |s| s[1].set_text("general.architecture", "qwen3"),
        whole,
    );
    shards("split: a shard of another tokenizer", |s| s[1].set_text("tokenizer.ggml.model", "gpt2"), whole);
    shards(
        "split: a tensor in two shards",
        |s| {
            let tensor = s[0].tensors[0].clone();
            s[1].tensors.push(tensor);
        },
        whole,
    );
    shards("split: a tensor in no shard", |s| drop(s[1].tensors.pop()), whole);
}

/// Weights of folders.
fn safetensors_files(cases: &mut Vec<Case>) {
    fn weights(
        cases: &mut Vec<Case>,
        name: &'static str,
        make: impl Fn(String, Vec<u8>) -> Vec<u8> + 'static,
    ) {
        let make = Box::new(move |dir: &Path| {
            copy_folder("llama", dir);
            let (header, data) = safetensors();
            write(dir, "model.safetensors", &make(header, data));
            dir.to_owned()
        });
        cases.push(Case { name, command: RUN, make });
    }
    weights(cases, "safetensors: no byte", |_, _| vec![]);
    weights(cases, "safetensors: three bytes", |_, _| vec![1, 2, 3]);
    weights(cases, "safetensors: a header longer than the file", |h, _| {
        [&(1u64 << 20).to_le_bytes(), h.as_bytes()].concat()
    });
    weights(cases, "safetensors: a header of half of all memory", |h, d| {
        [&(1u64 << 62).to_le_bytes(), h.as_bytes(), &d].concat()
    });
    weights(cases, "safetensors: a header that is no JSON", |h, d| joined(&h.replacen(':', ";", 3), &d));
    weights(cases, "safetensors: cut off within the data", |h, d| joined(&h, &d[..d.len() / 2]));
    weights(cases, "safetensors: bytes too many", |h, d| joined(&h, &[&d[..], &[0; 64]].concat()));
    weights(cases, "safetensors: tensors over one another", |h, d| {
        joined(&h.replace("[40960,81920]", "[0,40960]"), &d)
    });
    weights(cases, "safetensors: offsets backwards", |h, d| {
        joined(&h.replace("[40960,81920]", "[81920,40960]"), &d)
    });
    weights(cases, "safetensors: a shape that the bytes are not", |h, d| {
        joined(&h.replacen("[320,64]", "[320,65]", 1), &d)
    });
    weights(cases, "safetensors: a shape beyond all counting", |h, d| {
        joined(&h.replacen("[320,64]", "[4294967296,4294967296,4294967296]", 1), &d)
    });
    // Each of as many bytes as there are.
    for (name, dtype, shape) in [
        ("safetensors: a type of 8 bits", "F8_E4M3", [640, 64]),
        ("safetensors: a type of 64 bits", "F64", [80, 64]),
        ("safetensors: a type of whole numbers", "I16", [320, 64]),
        ("safetensors: another type of 8 bits", "F8_E5M2", [640, 64]),
    ] {
        weights(cases, name, move |h, d| {
            let [rows, columns] = shape;
            let typed = format!("\"{dtype}\",\"shape\":[{rows},{columns}]");
            joined(&h.replacen("\"BF16\",\"shape\":[320,64]", &typed, 1), &d)
        });
    }
    weights(cases, "safetensors: a type of no name", |h, d| joined(&h.replacen("BF16", "B17", 1), &d));
    weights(cases, "safetensors: no tensors", |_, _| joined("{}", &[]));
    weights(cases, "safetensors: a pickle by that name", |_, _| b"\x80\x02}q\0.".repeat(9));
}

/// Other files of folders.
fn folders(cases: &mut Vec<Case>) {
    let mut file = |name, file: &'static str, text: &'static str| {
        let make = Box::new(move |dir: &Path| {
            copy_folder("llama", dir);
            write(dir, file, text.as_bytes());
            dir.to_owned()
        });
        cases.push(Case { name, command: RUN, make });
    };
    file("config.json: no JSON", "config.json", "{\"hidden_size\": 64,");
    file("config.json: a list", "config.json", "[1, 2]");
    file("config.json: no model", "config.json", "{}");
    file("config.json: a model that is not known", "config.json", "{\"model_type\": \"abacus\"}");
    file("tokenizer.json: no JSON", "tokenizer.json", "{\"model\": ");
    file("tokenizer.json: no model", "tokenizer.json", "{\"version\": \"1.0\", \"added_tokens\": []}");
    file(
        "tokenizer.json: a model of no kind",
        "tokenizer.json",
        "{\"model\": {\"type\": \"Abacus\", \"vocab\": {}}}",
    );
    file("tokenizer_config.json: no JSON", "tokenizer_config.json", "eos_token: </s>");
    file("generation_config.json: no JSON", "generation_config.json", "eos_token_id = 2");
    file(
        "generation_config.json: an end that is no id",
        "generation_config.json",
        "{\"eos_token_id\": \"</s>\"}",
    );
    file(
        "chat_template.jinja: a tag that is not closed",
        "chat_template.jinja",
        "{% if messages %}{{ messages }}",
    );

    let mut config = |name, from: &'static str, to: &'static str| {
        let make = Box::new(move |dir: &Path| {
            copy_folder("llama", dir);
            let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
            assert!(text.contains(from));
            write(dir, "config.json", text.replace(from, to).as_bytes());
            dir.to_owned()
        });
        cases.push(Case { name, command: RUN, make });
    };
    config("config.json: a width of 0", "\"hidden_size\": 64", "\"hidden_size\": 0");
    config("config.json: a width in words", "\"hidden_size\": 64", "\"hidden_size\": \"wide\"");
    config(
        "config.json: a width beyond all counting",
        "\"hidden_size\": 64",
        "\"hidden_size\": 18446744073709551615",
    );
    config(
        "config.json: heads that share nothing",
        "\"num_key_value_heads\": 2",
        "\"num_key_value_heads\": 3",
    );
    config("config.json: an activation that is not known", "\"silu\"", "\"mill\"");
    config(
        "config.json: a scaling that is not known",
        "\"rope_scaling\": null",
        "\"rope_scaling\": {\"type\": \"mill\"}",
    );

    let mut without = |name, make: fn(&Path)| {
        let make = Box::new(move |dir: &Path| {
            make(dir);
            dir.to_owned()
        });
        cases.push(Case { name, command: RUN, make });
    };
    without("folder: empty", |_| ());
    without("folder: no weights", |dir| {
        copy_folder("llama", dir);
        std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    });
    without("folder: weights as PyTorch saves them", |dir| {
        copy_folder("llama", dir);
        std::fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap();
    });
    without("folder: no tokenizer", |dir| {
        copy_folder("llama", dir);
        std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    });
    without("folder: a GGUF file in it", |dir| drop(write(dir, "model.gguf", &RawGguf::golden().bytes().1)));
    without("folder: weights that Git left out", |dir| {
        copy_folder("llama", dir);
        write(
            dir,
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        );
    });
    let mut index = |name, index: &'static str| {
        let make = Box::new(move |dir: &Path| {
            copy_folder("llama", dir);
            std::fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors"))
                .unwrap();
            write(dir, "model.safetensors.index.json", index.as_bytes());
            dir.to_owned()
        });
        cases.push(Case { name, command: RUN, make });
    };
    index("index: no JSON", "weight_map");
    index("index: no map", "{\"metadata\": {}}");
    index("index: an empty map", "{\"weight_map\": {}}");
    index(
        "index: a part that is missing",
        "{\"weight_map\": {\"lm_head.weight\": \"model-00001-of-00002.safetensors\", \"model.norm.weight\": \
         \"model-00002-of-00002.safetensors\"}}",
    );
    index(
        "index: a part outside the folder",
        "{\"weight_map\": {\"lm_head.weight\": \"../../model.safetensors\"}}",
    );
    index(
        "index: a tensor that its part does not have",
        "{\"weight_map\": {\"grindstone.weight\": \"model-00001-of-00002.safetensors\"}}",
    );
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
