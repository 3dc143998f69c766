//! Any bytes as a safetensors file: what is accepted must be wholly readable and fill the data section.
#![no_main]

use formats::safetensors::SafetensorsFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = SafetensorsFile::new(bytes.to_vec().into()) else { return };
    let mut taken = 0;
    for info in file.tensors() {
        let (_, stored) = file.tensor(&info.name).expect("listed");
        taken += stored.len();
        if let Some(dtype) = info.dtype() {
            let mut values = vec![0.0; info.shape.iter().product()];
            tensor::blocks::decode(dtype, stored, &mut values).expect("bytes fit type and shape");
        }
    }
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    assert_eq!(8 + header + taken, bytes.len());
});
