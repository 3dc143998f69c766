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

/// Types that the Python package does not decode.
const NO_WITNESS: [DType; 3] = [DType::Q1_0, DType::Q8_1, DType::Q8_K];

/// Compares every type with the values that `tests/oracle/blocks.py` wrote to a folder.
fn agrees_with(dir: &std::path::Path, least: usize) {
    let read = |name: String| std::fs::read(dir.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for dtype in DType::WEIGHTS.into_iter().filter(|d| *d != DType::F32 && !NO_WITNESS.contains(d)) {
        let want = decoded(DType::F32, &read(format!("{dtype}.f32")));
        let got = decoded(dtype, &read(format!("{dtype}.bin")));
        assert!(want.len() >= if dtype.is_quantised() { least } else { 2048 }, "{dtype}");
        assert_eq!(got.len(), want.len(), "{dtype}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.to_bits(), want.to_bits(), "{dtype}, element {i}: {got} instead of {want}");
        }
    }
}

/// The values of `tests/fixtures/blocks` come from the Python package `gguf`; every bit must agree.
#[test]
fn agrees_bitwise_with_the_python_decoder() {
    agrees_with(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/blocks"), 2048);
}

#[test]
#[ignore = "needs GRISTMILL_BLOCKS, a folder that tests/oracle/blocks.py --blocks N --out FOLDER wrote"]
fn many_blocks_agree() {
    let dir = std::env::var_os("GRISTMILL_BLOCKS").expect("GRISTMILL_BLOCKS names the folder");
    agrees_with(dir.as_ref(), 1 << 20);
}

/// Their formulas, written anew.
#[test]
fn types_without_a_witness_are_their_formulas() {
    let bytes: Vec<u8> = (0..292u32).map(|i| (i * 73 + i * i * 19 + 5) as u8).collect();
    let (one, half) = ([0x00u8, 0x3c], [0x00u8, 0xb8]);

    let mut block = bytes[..18].to_vec();
    block[..2].copy_from_slice(&half);
    for (i, w) in decoded(DType::Q1_0, &block).into_iter().enumerate() {
        let bits = u128::from_le_bytes(block[2..].try_into().unwrap());
        assert_eq!(w, if bits >> i & 1 == 1 { -0.5 } else { 0.5 }, "Q1_0 {i}");
    }
    let mut block = bytes[..36].to_vec();
    block[..2].copy_from_slice(&half);
    for other_sum in [one, half] {
        block[2..4].copy_from_slice(&other_sum);
        for (i, w) in decoded(DType::Q8_1, &block).into_iter().enumerate() {
            assert_eq!(w, -0.5 * f32::from(i8::from_le_bytes([block[4 + i]])), "Q8_1 {i}");
        }
    }
    let mut block = bytes;
    block[..4].copy_from_slice(&0.3f32.to_le_bytes());
    for (i, w) in decoded(DType::Q8_K, &block).into_iter().enumerate() {
        assert_eq!(w, 0.3 * f32::from(i8::from_le_bytes([block[4 + i]])), "Q8_K {i}");
    }
}

#[test]
fn fields_are_what_decoders_read() {
    for dtype in DType::WEIGHTS.into_iter().filter(|d| d.is_quantised()) {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|i| (i * 89 + 41) as u8).collect();
        let put = |block: &mut [u8], value: f32| {
            for field in fields(dtype) {
                field.put(block, value);
                assert_eq!(field.get(block), value, "{dtype} {field:?}");
            }
        };
        put(&mut block, 0.5);
        let once = decoded(dtype, &block);
        put(&mut block, 1.0);
        let twice: Vec<f32> = once.iter().map(|w| 2.0 * w).collect();
        assert_eq!(decoded(dtype, &block), twice, "{dtype} is linear in its fields");
        assert!(once.iter().any(|w| *w != 0.0), "{dtype}");

        block[codes(dtype)].fill(0);
        let bare = decoded(dtype, &block);
        let offset_alone = bare.chunks(16).all(|sub| sub.iter().all(|w| *w == sub[0]));
        assert!(codes(dtype).is_empty() || offset_alone, "{dtype}");
    }
}

#[test]
fn integers_are_the_weights() {
    for dtype in DType::WEIGHTS.into_iter().filter(|d| d.is_quantised()) {
        let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|i| (i * 151 + 7) as u8).collect();
        fields(dtype).iter().for_each(|field| field.put(&mut block, 0.25));
        let Some(integers) = integers(dtype, &block) else { continue };
        let weight =
            |(i, code): (usize, &i8)| integers.d * f32::from(integers.scales[i / 16]) * f32::from(*code);
        let weights: Vec<f32> = integers.codes.iter().enumerate().map(weight).collect();
        assert_eq!(weights, decoded(dtype, &block), "{dtype}");
    }
    assert_eq!(integers(DType::Q8_0, &[0; 34]), None);
    assert_eq!(integers(DType::Q3_K, &[0; 109]), None);
}
