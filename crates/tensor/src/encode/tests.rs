use super::*;
use crate::blocks;

/// The types that are encoded by a search.
fn lossy() -> impl Iterator<Item = DType> {
    DType::WEIGHTS.into_iter().filter(|d| has_encoder(*d) && d.is_quantised())
}

fn encoded(dtype: DType, row: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0xa5; dtype.bytes_for(row.len()).unwrap()];
    encode(dtype, row, importance, &mut out).unwrap_or_else(|e| panic!("{dtype}: {e}"));
    out
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    blocks::decode(dtype, bytes, &mut out).unwrap();
    out
}

fn squares(x: &[f32], y: &[f32], weights: Option<&[f32]>) -> f64 {
    let weight = |i: usize| weights.map_or(1.0, |w| f64::from(w[i]));
    let off = |i: usize| f64::from(x[i]) - f64::from(y[i]);
    (0..x.len()).map(|i| weight(i) * off(i) * off(i)).sum()
}

/// Normal numbers, the sum of twelve uniform ones.
fn normal(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// `tests/fixtures/encode` holds rows and what the Python package `gguf` makes of them.
#[test]
fn as_good_as_the_python_encoder() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/encode");
    let read = |name: String| std::fs::read(dir.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let rows = decoded(DType::F32, &read("rows.f32".into()));
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::TQ1_0, DType::TQ2_0] {
        assert!(encoded(dtype, &rows, None) == read(format!("{dtype}.bin")), "{dtype}: every bit");
    }
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::MXFP4] {
        let theirs = decoded(dtype, &read(format!("{dtype}.bin")));
        let ours = decoded(dtype, &encoded(dtype, &rows, None));
        for (r, row) in rows.chunks(512).enumerate() {
            let [ours, theirs] = [&ours, &theirs].map(|all| squares(row, &all[512 * r..][..512], None));
            assert!(ours <= theirs * 1.000001, "{dtype} row {r}: {ours} and {theirs}");
        }
    }
}

/// The root mean square error of normal weights, as a share of their deviation, that each encoder keeps within: below
/// what GGML's has on such weights.
#[test]
fn errors_on_normal_weights_are_those_of_the_format() {
    let promised = |dtype: DType| match dtype {
        DType::Q8_0 => 0.0056,
        DType::Q6_K => 0.0180,
        DType::Q5_K => 0.0370,
        DType::Q5_1 => 0.0345,
        DType::Q5_0 => 0.0410,
        DType::Q4_1 => 0.0710,
        DType::Q4_K => 0.0735,
        DType::IQ4_NL => 0.0760,
        DType::IQ4_XS => 0.0770,
        DType::Q4_0 => 0.0830,
        DType::NVFP4 => 0.0860,
        DType::MXFP4 => 0.1160,
        DType::Q3_K => 0.1500,
        DType::Q2_K => 0.2800,
        DType::Q1_0 => 0.6200,
        DType::TQ1_0 | DType::TQ2_0 => 0.84,
        other => unreachable!("{other} is not lossy"),
    };
    for size in [1e-3, 1.0, 50.0] {
        let x: Vec<f32> = normal(1 << 14, 3).iter().map(|x| x * size).collect();
        let all = squares(&x, &vec![0.0; x.len()], None);
        // The 8-bit scales of NVFP4 end at 2^-10: whoever makes such files stores tensors at unit size.
        for dtype in lossy().filter(|d| *d != DType::NVFP4 || size > 0.1) {
            let error = (squares(&x, &decoded(dtype, &encoded(dtype, &x, None)), None) / all).sqrt();
            assert!(error <= promised(dtype), "{dtype} of size {size}: {error}");
            assert!(error >= 0.9 * promised(dtype), "{dtype} promises too little: {error}");
        }
    }
}

#[test]
fn importance_lowers_the_error_where_it_is_high() {
    let x = normal(1 << 12, 5);
    let importance: Vec<f32> = normal(x.len(), 6).iter().map(|x| x * x * x * x).collect();
    for dtype in lossy() {
        if !is_weighed(dtype) {
            assert!(encoded(dtype, &x, Some(&importance)) == encoded(dtype, &x, None), "{dtype}");
            continue;
        }
        let error = |given: Option<&[f32]>| {
            squares(&x, &decoded(dtype, &encoded(dtype, &x, given)), Some(&importance))
        };
        let (with, without) = (error(Some(&importance)), error(None));
        // The signs of Q1_0 follow from the weights: only its scale is left to gain by.
        let gain = if dtype == DType::Q1_0 { 0.995 } else { 0.99 };
        assert!(with < gain * without, "{dtype}: {with} and {without}");
    }
}

#[test]
fn any_finite_row_has_an_answer() {
    let edge = |x: f32| {
        let mut row = vec![0.0; 256];
        (row[3], row[200]) = (x, -x / 3.0);
        row
    };
    let mut rows: Vec<Vec<f32>> =
        [0.0, 1e-45, 1e-38, 1e-30, 1e-9, 1.0, 6e4, 1e9, 1e30, f32::MAX].map(edge).into();
    rows.push(vec![0.25; 256]);
    rows.push(vec![-0.25; 256]);
    rows.push(vec![-0.0; 256]);
    for dtype in DType::WEIGHTS.into_iter().filter(|d| has_encoder(*d)) {
        for row in &rows {
            for importance in [None, Some(vec![0.0; 256]), Some(vec![1e-20; 256])] {
                let mut out = vec![0; dtype.bytes_for(256).unwrap()];
                match encode(dtype, row, importance.as_deref(), &mut out) {
                    Ok(()) => {
                        let values = decoded(dtype, &out);
                        let largest = row.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                        let ok = |v: &f32| v.is_finite() && v.abs() <= 2.0 * largest + 1e-6;
                        assert!(values.iter().all(ok), "{dtype} of {}: {:?}", row[3], &values[..8]);
                    }
                    Err(EncodeError::TooLarge { value, .. }) => {
                        assert!(value.abs() > 3000.0, "{dtype}: {value}");
                    }
                    Err(other) => panic!("{dtype}: {other}"),
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_encoded_is_refused() {
    let mut out = vec![0; 34];
    let row = [1.0; 32];
    let refused = |dtype, row: &[f32], importance: Option<&[f32]>, out: &mut [u8]| {
        encode(dtype, row, importance, out).unwrap_err().to_string()
    };
    assert_eq!(refused(DType::IQ2_XS, &row, None, &mut out), "there is no encoder for IQ2_XS");
    assert_eq!(
        refused(DType::Q4_K, &row, None, &mut out),
        "rows of 32 elements do not fill whole blocks of 256 Q4_K elements"
    );
    assert_eq!(refused(DType::Q8_0, &row, None, &mut out[..33]), "32 elements of Q8_0 do not take 33 bytes");
    assert_eq!(
        refused(DType::Q8_0, &row, Some(&[1.0; 31]), &mut out),
        "31 values of importance for rows of 32 elements"
    );
    let mut bad = row;
    bad[7] = f32::NAN;
    assert_eq!(refused(DType::Q8_0, &bad, None, &mut out), "element 7 is NaN, which cannot be encoded");
    bad[7] = -1.0;
    assert_eq!(refused(DType::Q8_0, &row, Some(&bad), &mut out), "element 7 is -1, which cannot be encoded");
    bad[7] = 1e30;
    assert!(refused(DType::Q8_0, &bad, None, &mut out).ends_with("too large for Q8_0"));
    assert_eq!(
        refused(DType::F16, &[1.0, 7e4], None, &mut out[..4]),
        "element 1 is 70000, too large for F16"
    );
}
