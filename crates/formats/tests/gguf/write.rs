//! What the writer lays out is what the reader finds, and the layout is the one laid out by hand.

use crate::raw_gguf::RawGguf;
use gristmill_formats::gguf::{Array, GgmlType, GgufFile, GgufWriter, Value};
use tensor::DType;

fn ty(dtype: DType) -> GgmlType {
    GgmlType::try_from(dtype).expect("a type of GGML")
}

#[test]
fn the_layout_is_that_of_the_file_laid_out_by_hand() {
    let data: Vec<u8> = (0..236).collect();
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.architecture", Value::String("llama".to_owned()))
        .metadata("depth", Value::U32(2))
        .metadata("scores", Value::Array(Array::F32(vec![0.5, -1.0])))
        .metadata("flag", Value::Bool(true))
        .metadata("words", Value::Array(Array::String(["hello", "w\u{f6}"].into_iter().collect())));
    writer.tensor("a", ty(DType::F32), &[2, 4], &data[..32]).expect("sizes that agree");
    writer.tensor("b", ty(DType::Q8_0), &[2, 32], &data[32..100]).expect("sizes that agree");
    writer
        .tensor("c", GgmlType::from_id(20).expect("IQ4_NL"), &[6, 32], &data[128..])
        .expect("sizes that agree");
    let mut by_hand = RawGguf::valid();
    // Between b and c lies padding, and one more run follows c.
    by_hand.data[100..128].fill(0);
    by_hand.data.resize(256, 0);
    assert_eq!(writer.to_bytes().expect("a readable file"), by_hand.to_bytes());
}

#[test]
fn every_kind_of_value_survives() {
    let strings = Array::String(["", "\u{1f33e}"].into_iter().collect());
    let values = [
        Value::U8(255),
        Value::I8(-128),
        Value::U16(65535),
        Value::I16(-32768),
        Value::U32(u32::MAX),
        Value::I32(i32::MIN),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F32(f32::MIN_POSITIVE),
        Value::F64(-f64::MAX),
        Value::Bool(false),
        Value::String("\u{1f33e}".to_owned()),
        Value::Array(Array::U8(vec![0, 255])),
        Value::Array(Array::I8(vec![-128, 127])),
        Value::Array(Array::U16(vec![1, 65535])),
        Value::Array(Array::I16(vec![-2, 2])),
        Value::Array(Array::U32(vec![u32::MAX])),
        Value::Array(Array::I32(vec![])),
        Value::Array(Array::U64(vec![u64::MAX])),
        Value::Array(Array::I64(vec![i64::MIN])),
        Value::Array(Array::F32(vec![1.5, f32::INFINITY])),
        Value::Array(Array::F64(vec![1e300])),
        Value::Array(Array::Bool(vec![true, false])),
        Value::Array(strings.clone()),
        Value::Array(Array::Array(vec![
            Array::U8(vec![1]),
            Array::Array(vec![strings]),
            Array::Bool(vec![]),
        ])),
    ];
    let mut writer = GgufWriter::new();
    for (i, value) in values.iter().enumerate() {
        writer.metadata(&format!("key.{i}"), value.clone());
    }
    writer.metadata("general.alignment", Value::U32(1024));
    let scalar = 0.25f32.to_le_bytes();
    writer.tensor("scalar", ty(DType::F32), &[], &scalar).expect("one element");
    let file = GgufFile::new(writer.to_bytes().expect("a readable file").into()).expect("readable");
    let metadata = file.metadata();
    assert_eq!(metadata.len(), values.len() + 1);
    for (i, value) in values.iter().enumerate() {
        assert_eq!(metadata.value(&format!("key.{i}")), Some(value));
    }
    let (info, bytes) = file.tensor("scalar").expect("the tensor");
    assert_eq!((info.shape.as_slice(), bytes, info.range.start % 1024), (&[][..], &scalar[..], 0));
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut writer = GgufWriter::new();
    let error = writer.tensor("a", ty(DType::Q8_0), &[2, 32], &[0; 67]).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"a\": [2, 32] elements of Q8_0 do not take 67 bytes");
    let error = writer.tensor("a", ty(DType::F32), &[usize::MAX, usize::MAX], &[]).unwrap_err();
    assert!(error.to_string().ends_with("elements of F32 do not take 0 bytes"), "{error}");
    writer
        .tensor("a", ty(DType::Q8_0), &[40], &[0; 34])
        .expect("34 bytes hold the whole blocks of a row of 40");
    assert_eq!(
        writer.to_bytes().unwrap_err().to_string(),
        "the file would not be readable: tensor \"a\" has rows of 40 elements, which do not fill Q8_0 blocks of 32"
    );
    let mut writer = GgufWriter::new();
    writer.metadata("general.alignment", Value::U32(0));
    assert_eq!(
        writer.to_bytes().unwrap_err().to_string(),
        "the file would not be readable: general.alignment is 0, not a power of two"
    );
}

#[test]
fn declared_data_lies_where_the_head_says() {
    let (a, b) = ([1u8; 34], [2u8; 68]);
    let mut whole = GgufWriter::new();
    whole.metadata("key", Value::Bool(true));
    whole
        .tensor("a", ty(DType::Q8_0), &[32], &a)
        .expect("fits")
        .tensor("b", ty(DType::Q8_0), &[2, 32], &b)
        .expect("fits");
    let mut declared = GgufWriter::new();
    declared.metadata("key", Value::Bool(true));
    declared
        .declare("a", ty(DType::Q8_0), &[32])
        .expect("fits")
        .declare("b", ty(DType::Q8_0), &[2, 32])
        .expect("fits");
    let head = declared.head().expect("a readable file");
    assert_eq!(head, whole.head().expect("a readable file"));
    let mut file = vec![0; head.len as usize];
    file[..head.bytes.len()].copy_from_slice(&head.bytes);
    for (place, data) in head.places.iter().zip([&a[..], &b]) {
        file[place.start as usize..place.end as usize].copy_from_slice(data);
    }
    assert_eq!(file, whole.to_bytes().expect("a readable file"));
    assert!(declared.to_bytes().unwrap_err().to_string().contains("\"a\" was declared without data"));
}

#[test]
fn a_declared_size_has_a_limit() {
    let mut writer = GgufWriter::new();
    let error = writer.declare("a", ty(DType::F32), &[usize::MAX, usize::MAX]).unwrap_err();
    assert!(error.to_string().contains("more than a file can hold"), "{error}");
    writer
        .declare("a", ty(DType::F32), &[1 << 61])
        .expect("a number")
        .declare("b", ty(DType::F32), &[1 << 61])
        .expect("a number");
    assert!(writer.head().is_err());
}
