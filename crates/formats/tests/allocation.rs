//! Opening allocates in proportion to the file, whatever the file claims. Alone in its process: it reads a global count.

#[path = "gguf/raw_gguf.rs"]
mod raw_gguf;

use gristmill_formats::gguf::Gguf;
use gristmill_formats::safetensors::SafetensorsFile;
use peak_alloc::PeakAlloc;
use raw_gguf::{RawGguf, string};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Peak of bytes allocated by `work`, beyond what was allocated before.
fn peak_of(work: impl FnOnce()) -> usize {
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    work();
    PEAK.peak_usage() - before
}

fn with_array(element_type: u32, count: u64, elements: Vec<u8>) -> Vec<u8> {
    let mut file = RawGguf::valid();
    let value = [&element_type.to_le_bytes()[..], &count.to_le_bytes(), &elements].concat();
    file.set("array", 9, value);
    file.to_bytes()
}

fn with_many_pairs(pairs: usize) -> Vec<u8> {
    let mut file = RawGguf::valid();
    (0..pairs).for_each(|i| file.set_u32(&format!("{i:x}"), 0));
    file.to_bytes()
}

fn with_many_tensors(tensors: usize) -> Vec<u8> {
    let mut file = RawGguf::valid();
    let template = file.tensors.remove(0);
    for i in 0..tensors {
        let (name, ne) = (string(&format!("{i:x}")), template.ne.clone());
        file.tensors.push(raw_gguf::RawTensor { name, ne, offset: 32 * i as u64, ..template });
    }
    file.data = vec![0; 32 * tensors];
    file.to_bytes()
}

#[test]
fn allocation_is_bounded_by_the_file() {
    let claims = [1000, 1 << 20, 1 << 32, 1 << 40, u64::MAX / 13, u64::MAX];
    let mut files = Vec::new();
    for claim in claims {
        files.push(RawGguf { pair_count: Some(claim), ..RawGguf::valid() }.to_bytes());
        files.push(RawGguf { tensor_count: Some(claim), ..RawGguf::valid() }.to_bytes());
        files.extend((0..13).map(|element_type| with_array(element_type, claim, vec![])));
        let mut file = RawGguf::valid();
        file.set("string", 8, claim.to_le_bytes().to_vec());
        files.push(file.to_bytes());
    }
    // True claims of the items that cost most memory per byte of file.
    let empty_array = [[0u8; 4].as_slice(), &[0; 8]].concat();
    files.push(with_array(9, 50_000, empty_array.repeat(50_000)));
    files.push(with_array(8, 50_000, vec![0; 8 * 50_000]));
    files.push(with_many_pairs(20_000));
    files.push(with_many_tensors(20_000));
    for (i, file) in files.iter().enumerate() {
        let peak = peak_of(|| drop(Gguf::parse(file)));
        assert!(peak <= 16 * file.len() + 4096, "file {i}: {peak} bytes allocated for {}", file.len());
    }

    let entry = |i: usize| format!(r#""{i:x}":{{"dtype":"U8","shape":[],"data_offsets":[{i},{}]}}"#, i + 1);
    let many = format!("{{{}}}", (0..20_000).map(entry).collect::<Vec<_>>().join(","));
    let deep = format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000));
    let wide = format!(r#"{{"a":{{"shape":[{}]}}}}"#, vec!["1"; 50_000].join(","));
    let claims = claims.map(|claim| (claim, String::from("{}")));
    for (len, header) in claims.into_iter().chain([many, deep, wide].map(|h| (h.len() as u64, h))) {
        let file = [&len.to_le_bytes()[..], header.as_bytes(), &vec![0; 20_000]].concat();
        let size = file.len();
        // The conversion to shared bytes copies the file once.
        let peak = peak_of(|| drop(SafetensorsFile::new(file.into())));
        assert!(peak <= 10 * size + 4096, "{peak} bytes allocated for {size}");
    }
}
