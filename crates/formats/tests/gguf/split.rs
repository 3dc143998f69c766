//! Split models: shards that are one, and shards that are not.

use std::path::Path;

use gristmill_formats::Checkpoint;
use gristmill_formats::gguf::{GgmlType, GgufWriter, Value};

use crate::raw_gguf::RawGguf;

/// A shard to be: number and count as its keys say, tensors by name with the byte that fills them.
struct Shard {
    keys: Vec<(&'static str, Value)>,
    tensors: Vec<(&'static str, u8)>,
}

impl Shard {
    fn set(&mut self, key: &'static str, value: Value) {
        self.keys.push((key, value));
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            writer.metadata(key, value.clone());
        }
        let data: Vec<_> = self.tensors.iter().map(|(name, fill)| (name, [*fill; 16])).collect();
        for (name, bytes) in &data {
            writer.tensor(name, GgmlType::from_id(0).expect("F32"), &[4], bytes).expect("16 bytes");
        }
        writer.to_bytes().expect("readable")
    }
}

/// Three shards, the first without tensors, as `--no-tensor-first-split` makes them.
fn shards() -> Vec<Shard> {
    let text = |text: &str| Value::String(text.to_owned());
    let tensors = [vec![], vec![("a", 1), ("b", 2)], vec![("c", 3)]];
    let mut shards: Vec<Shard> = tensors
        .into_iter()
        .enumerate()
        .map(|(no, tensors)| Shard {
            keys: vec![
                ("split.no", Value::U16(no as u16)),
                ("split.count", Value::U16(3)),
                ("split.tensors.count", Value::I32(3)),
            ],
            tensors,
        })
        .collect();
    shards[0].set("general.architecture", text("llama"));
    shards[0].set("llama.block_count", Value::U32(2));
    shards[0].set("tokenizer.ggml.model", text("gpt2"));
    // A data section of its own, aligned in its own way.
    shards[2].set("general.alignment", Value::U32(256));
    shards
}

fn name(number: usize) -> String {
    format!("m-{number:05}-of-00003.gguf")
}

fn write(dir: &Path, shards: &[Shard]) {
    for (shard, number) in shards.iter().zip(1..) {
        std::fs::write(dir.join(name(number)), shard.bytes()).expect("written");
    }
}

fn check_whole(checkpoint: &Checkpoint, shards: &[Shard]) {
    let names: Vec<&str> = checkpoint.tensor_names().collect();
    assert_eq!(names, ["a", "b", "c"]);
    for (name, fill) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(checkpoint.tensor(name).expect(name).bytes, [fill; 16], "{name}");
        checkpoint.release(name);
        assert_eq!(checkpoint.tensor(name).expect(name).bytes, [fill; 16], "{name} once more");
    }
    assert_eq!(checkpoint.gguf().expect("metadata").require("llama.block_count"), Ok(2u32));
    let sizes: Vec<u64> = shards.iter().map(|shard| shard.bytes().len() as u64).collect();
    assert_eq!(checkpoint.file_bytes(), sizes.iter().sum::<u64>());
    let files = checkpoint.files();
    assert_eq!(files.iter().map(|file| file.bytes).collect::<Vec<_>>(), sizes);
    assert_eq!(files.iter().map(|file| file.tensors).collect::<Vec<_>>(), [0, 2, 1]);
}

#[test]
fn any_shard_opens_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &shards());
    let folder = dir.path().to_owned();
    for path in [folder.join(name(1)), folder.join(name(2)), folder.join(name(3)), folder.clone()] {
        let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{e}"));
        check_whole(&checkpoint, &shards());
        for (file, number) in checkpoint.files().iter().zip(1..) {
            assert_eq!(file.path, Some(folder.join(name(number)).as_path()));
        }
    }
}

#[test]
fn shards_in_memory_come_in_any_order() {
    let bytes: Vec<Vec<u8>> = shards().iter().map(Shard::bytes).collect();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let given = order.map(|i| bytes[i].clone());
        check_whole(&Checkpoint::from_shards(given).expect("all of them"), &shards());
    }
    let error = Checkpoint::from_bytes(bytes[1].clone()).unwrap_err().to_string();
    assert_eq!(
        error,
        "shard 2 of 3 of a split model, which is no model by itself: give all the shards together, or merge them into one \
         file (llama-gguf-split --merge)"
    );
    let refused = |given: &[usize]| {
        let given: Vec<Vec<u8>> = given.iter().map(|&i| bytes[i].clone()).collect();
        Checkpoint::from_shards(given).unwrap_err().to_string()
    };
    let missing =
        |n| format!("a split model of 3 shards, of which number {n} was not given: give all of them");
    assert_eq!(refused(&[]), "no file was given: give all the shards of a model");
    assert_eq!(refused(&[1]), missing(1));
    assert_eq!(refused(&[0, 2]), missing(2));
    assert_eq!(refused(&[1, 0]), missing(3));
    assert_eq!(refused(&[0, 1, 2, 1]), "shard 2 of 3 was given twice: give each of them once");
    let error = Checkpoint::from_shards([bytes[0].clone(), b"GGUF".to_vec()]).unwrap_err().to_string();
    assert!(error.starts_with("number 2 of the files given: the file ends inside the header"), "{error}");
}

#[test]
fn files_that_are_whole_are_no_shards() {
    let mut shard = Shard { keys: vec![], tensors: vec![("a", 1)] };
    let whole = shard.bytes();
    assert!(Checkpoint::from_shards([whole.clone()]).is_ok());
    let error = Checkpoint::from_shards([whole.clone(), whole]).unwrap_err().to_string();
    assert!(error.contains("not a shard of a split model (it has no split.count)"), "{error}");
    // Merged again, and one shard of one.
    for count in [0, 1] {
        shard.keys = vec![("split.count", Value::U16(count)), ("split.tensors.count", Value::I32(1))];
        assert!(Checkpoint::from_bytes(shard.bytes()).is_ok(), "{count}");
    }
    // The name alone makes no shard.
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join(name(1)), shard.bytes()).expect("written");
    assert!(Checkpoint::open(&dir.path().join(name(1))).is_ok());
}

/// Opens the second shard after a change to the shards and one to the folder; `DIR` stands for the folder.
fn refused(change: impl Fn(&mut Vec<Shard>), files: impl Fn(&Path)) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let mut shards = shards();
    change(&mut shards);
    write(dir.path(), &shards);
    files(dir.path());
    let error = Checkpoint::open(&dir.path().join(name(2))).unwrap_err().to_string();
    error.replace(dir.path().to_str().expect("a path"), "DIR")
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let again = "fetch the shards again, all from one place";
    type Change = fn(&mut Vec<Shard>);
    let cases: [(Change, String); 8] = [
        (
            |s| s[2].set("split.count", Value::U16(4)),
            "DIR/m-00003-of-00003.gguf: m-00003-of-00003.gguf is shard 3 of 4 by its keys split.no and split.count: fetch \
             it again, or, if it was renamed, give each shard its own name back"
                .into(),
        ),
        (
            |s| s.swap(1, 2),
            "DIR/m-00002-of-00003.gguf: m-00002-of-00003.gguf is shard 3 of 3 by its keys split.no and split.count: fetch \
             it again, or, if it was renamed, give each shard its own name back"
                .into(),
        ),
        (
            |s| s[2].keys.clear(),
            "DIR/m-00003-of-00003.gguf: m-00003-of-00003.gguf is not a shard of a split model (it has no split.count): \
             fetch the shards of one model"
                .into(),
        ),
        (
            |s| s[2].set("split.tensors.count", Value::I32(9)),
            format!(
                "DIR/m-00002-of-00003.gguf: m-00003-of-00003.gguf and m-00001-of-00003.gguf are of different splits: \
                 split.tensors.count is 9 in the one and 3 in the other; {again}"
            ),
        ),
        (
            |s| s[2].set("general.architecture", Value::String("qwen3".into())),
            format!(
                "DIR/m-00002-of-00003.gguf: m-00003-of-00003.gguf and m-00001-of-00003.gguf are of different models: \
                 general.architecture is the string \"qwen3\" in the one and the string \"llama\" in the other; {again}"
            ),
        ),
        (
            |s| s[1].set("tokenizer.ggml.pre", Value::String("qwen2".into())),
            format!(
                "DIR/m-00002-of-00003.gguf: m-00002-of-00003.gguf and m-00001-of-00003.gguf are of different models: \
                 tokenizer.ggml.pre is the string \"qwen2\" in the one and not set in the other; {again}"
            ),
        ),
        (
            |s| s[2].tensors[0].0 = "a",
            format!(
                "DIR/m-00002-of-00003.gguf: tensor \"a\" is in m-00002-of-00003.gguf and again in m-00003-of-00003.gguf: \
                 they are not of one split; {again}"
            ),
        ),
        (
            |s| s[1].tensors.truncate(1),
            format!(
                "DIR/m-00002-of-00003.gguf: the 3 shards hold 2 tensors together, and split.tensors.count says 3: they are \
                 not of one split; {again}"
            ),
        ),
    ];
    for (change, want) in cases {
        assert_eq!(refused(change, |_| ()), want);
    }
    // What all say alike is no conflict, nor what says nothing of the model.
    let dir = tempfile::tempdir().expect("a folder");
    let mut shards = shards();
    shards[2].set("general.architecture", Value::String("llama".into()));
    shards[2].set("general.name", Value::String("part three".into()));
    write(dir.path(), &shards);
    assert!(Checkpoint::open(&dir.path().join(name(2))).is_ok());
}

#[test]
fn what_is_not_there_is_named_with_its_place() {
    let remove = |dir: &Path, number| std::fs::remove_file(dir.join(name(number))).expect("it was there");
    assert_eq!(
        refused(|_| (), |dir| remove(dir, 3)),
        "DIR/m-00002-of-00003.gguf: a split model of 3 shards, of which 1 is not in DIR: m-00003-of-00003.gguf; fetch what \
         is missing into that folder, from where the other shards came"
    );
    let unfinished = |dir: &Path| {
        remove(dir, 1);
        std::fs::rename(dir.join(name(3)), dir.join(name(3) + ".part")).expect("renamed");
    };
    assert_eq!(
        refused(|_| (), unfinished),
        "DIR/m-00002-of-00003.gguf: a split model of 3 shards, of which 2 are not in DIR: m-00001-of-00003.gguf, \
         m-00003-of-00003.gguf; there is m-00003-of-00003.gguf.part, whose download may not have finished; fetch what is \
         missing into that folder, from where the other shards came"
    );
    let error = refused(|_| (), |dir| std::fs::write(dir.join(name(3)), "GG").expect("written"));
    assert!(error.starts_with("DIR/m-00003-of-00003.gguf: the file ends"), "{error}");
    let error = refused(|_| (), |dir| std::fs::write(dir.join(name(1)), "").expect("written"));
    assert!(error.starts_with("DIR/m-00001-of-00003.gguf: the file is empty"), "{error}");
}

#[test]
fn a_name_that_leads_nowhere_is_refused_with_the_one_expected() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("my model.gguf");
    std::fs::write(&path, shards()[1].bytes()).expect("written");
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    let want = ": shard 2 of 3 of a split model, under a name from which the other shards cannot be found: give it the name \
                my model-00002-of-00003.gguf, with the others beside it under names of that form";
    assert_eq!(error, path.display().to_string() + want);
}

#[test]
fn claims_of_many_shards_cost_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut shards = shards();
    // The most that can be, of which one is there; and more, under a name that says the same.
    for count in [16384u32, 16385, 65535, u32::MAX] {
        shards[0].set("split.count", Value::U32(count));
        let path = dir.path().join(format!("m-00001-of-{count:05}.gguf"));
        // The writer refuses what the reader does.
        let bytes = match count {
            16384 => shards[0].bytes(),
            _ => {
                let mut raw = RawGguf::valid();
                raw.set_u32("split.count", count);
                raw.set_u32("split.no", 0);
                raw.to_bytes()
            }
        };
        std::fs::write(&path, bytes).expect("written");
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        match count {
            16384 => assert!(error.contains("of which 16383 are not in") && error.len() < 1000, "{error}"),
            _ => assert!(error.contains(&format!("split.count claims {count} shards")), "{error}"),
        }
    }
}

#[test]
fn folders_of_more_than_one_model_are_refused() {
    let open = |others: &[&str]| {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), &shards());
        others.iter().for_each(|name| std::fs::write(dir.path().join(name), "").expect("written"));
        Checkpoint::open(dir.path()).map_err(|e| e.to_string())
    };
    assert!(open(&["README.md", "config.json.txt"]).is_ok());
    let error = open(&["n-00001-of-00002.gguf"]).unwrap_err();
    assert!(error.contains("it has GGUF files (4): give the path of one"), "{error}");
    assert!(open(&["mmproj.gguf"]).is_err());
    assert!(open(&["model.safetensors"]).unwrap_err().contains("download the config.json"));
}
