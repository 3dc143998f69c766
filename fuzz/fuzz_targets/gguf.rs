//! Any bytes as a GGUF file, or as two shards: what is accepted must be wholly readable, and survive being written again.
#![no_main]

use formats::Checkpoint;
use formats::gguf::GgufWriter;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A second magic begins a second shard.
    let second = bytes.windows(4).skip(1).position(|w| w == b"GGUF");
    if let Some(at) = second {
        let (one, two) = bytes.split_at(at + 1);
        if let Ok(split) = Checkpoint::from_shards([one.to_vec(), two.to_vec()]) {
            split.tensors().for_each(|entry| assert!(split.tensor(entry.name).is_ok() == entry.dtype.is_some()));
        }
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec()) else { return };
    let file = checkpoint.gguf_file().expect("the container is GGUF");
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        value.describe();
        writer.metadata(key, value.clone());
    }
    for entry in checkpoint.tensors() {
        match checkpoint.tensor(entry.name) {
            Ok(view) => {
                let mut values = vec![0.0; view.shape.iter().product()];
                tensor::blocks::decode(view.dtype, view.bytes, &mut values).expect("bytes fit type and shape");
            }
            Err(_) => assert!(entry.dtype.is_none()),
        }
        let (info, bytes) = file.tensor(entry.name).expect("listed");
        writer.tensor(entry.name, info.ggml_type, &info.shape, bytes).expect("bytes fit type and shape");
    }
    // Padding may make the new file longer; an alignment beyond memory is not worth writing.
    if file.shards()[0].header().alignment() <= 4096 {
        let again = Checkpoint::from_bytes(writer.to_bytes().expect("what was read can be written")).expect("readable");
        assert!(checkpoint.tensors().eq(again.tensors()));
        assert_eq!(checkpoint.gguf().map(|m| m.len()), again.gguf().map(|m| m.len()));
    }
});
