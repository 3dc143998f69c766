use super::*;

fn decoded(dtype: DType, src: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; src.len() / dtype.block_bytes() * dtype.block_len()];
    decode(dtype, src, &mut out).expect("whole blocks");
    out
}

#[test]
fn refuses_wrong_lengths_and_integers_without_touching_the_output() {
    for dtype in DType::WEIGHTS {
        let (bytes, len) = (dtype.block_bytes(), dtype.block_len());
        let mut out = vec![7.0; 2 * len];
        let partial = decode(dtype, &vec![0; 2 * bytes - 1], &mut out);
        assert_eq!(partial, Err(BlockError::PartialBlock { dtype, bytes: 2 * bytes - 1 }));
        for blocks in [1, 3] {
            let wrong = decode(dtype, &vec![0; blocks * bytes], &mut out);
            assert_eq!(wrong, Err(BlockError::OutputLen { dtype, elements: blocks * len, out: 2 * len }));
        }
        assert!(out.iter().all(|&x| x == 7.0), "{dtype}");
        assert_eq!(decode(dtype, &vec![0; 2 * bytes], &mut out), Ok(()));
        assert!(out.iter().all(|&x| x == 0.0), "{dtype}");
        assert_eq!(decode(dtype, &[], &mut []), Ok(()));
    }
    assert_eq!(decode(DType::U32, &[0; 4], &mut [0.0]), Err(BlockError::NotReal(DType::U32)));
}

#[test]
fn plain_types_keep_infinities_subnormals_signs_and_nan_bits() {
    let f16: Vec<u8> =
        [0x3c00u16, 0xfc00, 0x0001, 0x8000, 0xfc01].into_iter().flat_map(u16::to_le_bytes).collect();
    let got: Vec<u32> = decoded(DType::F16, &f16).into_iter().map(f32::to_bits).collect();
    let nan = f32::from_bits(0xff80_2000);
    assert_eq!(got, [1f32, f32::NEG_INFINITY, 2f32.powi(-24), -0.0, nan].map(f32::to_bits));
    let bf16: Vec<u8> = [0x3f80u16, 0x0001, 0x7f81].into_iter().flat_map(u16::to_le_bytes).collect();
    let got: Vec<u32> = decoded(DType::BF16, &bf16).into_iter().map(f32::to_bits).collect();
    assert_eq!(got, [0x3f80_0000, 0x0001_0000, 0x7f81_0000]);
    assert_eq!(decoded(DType::F32, &1.5f32.to_le_bytes()), [1.5]);
}

/// The values of `tests/fixtures/blocks` come from the Python package `gguf`; every bit must agree.
#[test]
fn agrees_bitwise_with_the_python_decoder() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/blocks");
    let read = |name: String| std::fs::read(dir.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for dtype in DType::WEIGHTS.into_iter().filter(|d| *d != DType::F32) {
        let want = decoded(DType::F32, &read(format!("{dtype}.f32")));
        let got = decoded(dtype, &read(format!("{dtype}.bin")));
        assert!(want.len() >= 2048, "{dtype}");
        assert_eq!(got.len(), want.len(), "{dtype}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{dtype}, element {i}: {got} instead of {want}");
        }
    }
}
