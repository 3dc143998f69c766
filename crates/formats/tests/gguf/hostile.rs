//! Broken GGUF files: each is one named mutation of a valid file and must give exactly the error that names it.

use crate::raw_gguf::{RawGguf, string};
use gristmill_formats::Checkpoint;
use gristmill_formats::gguf::{Gguf, GgufError, GgufFile, Strings};
use proptest::prelude::*;
use tensor::blocks;

/// Name, mutation of the parts, expected message.
type Mutation = (&'static str, fn(&mut RawGguf), &'static str);

// The valid file: 24 bytes of header, metadata up to 198, tensor table up to 321, data from 352 to 588.
const MUTATIONS: &[Mutation] = &[
    ("magic", |f| f.magic = *b"GGUG", "not a GGUF file: it begins with \"GGUG\" instead of \"GGUF\""),
    (
        "ggjt",
        |f| f.magic = *b"tjgg",
        "a ggjt file, the format before GGUF: convert the original checkpoint to GGUF",
    ),
    ("version 0", |f| f.version = 0, "GGUF version 0: versions 2 and 3 are read"),
    ("version 1", |f| f.version = 1, "GGUF version 1: versions 2 and 3 are read"),
    ("version 4", |f| f.version = 4, "GGUF version 4: versions 2 and 3 are read"),
    (
        "big-endian",
        |f| f.version = 3u32.swap_bytes(),
        "a big-endian GGUF file: only little-endian files are read; convert it (gguf_convert_endian)",
    ),
    (
        "most pairs there can be",
        |f| f.pair_count = Some(u64::MAX),
        "the header claims 18446744073709551615 metadata pairs, but the 564 bytes left cannot hold them",
    ),
    (
        "more pairs than fit",
        |f| f.pair_count = Some(44),
        "the header claims 44 metadata pairs, but the 564 bytes left cannot hold them",
    ),
    (
        "more tensors than fit",
        |f| f.tensor_count = Some(1 << 40),
        "the header claims 1099511627776 tensors, but the 564 bytes left cannot hold them",
    ),
    (
        "more tensors than fit behind the metadata",
        |f| f.tensor_count = Some(21),
        "the header claims 21 tensors, but the 390 bytes left cannot hold them",
    ),
    (
        "one pair too few claimed",
        |f| f.pair_count = Some(4),
        "tensor \"words\" has 9 dimensions (at most 4 are valid)",
    ),
    (
        "key longer than the file",
        |f| f.pairs[0].0 = 1000u64.to_le_bytes().to_vec(),
        "the file ends inside metadata key number 0: 1000 bytes are needed at offset 32, 524 are left",
    ),
    (
        "key of the greatest length",
        |f| f.pairs[0].0 = u64::MAX.to_le_bytes().to_vec(),
        "the file ends inside metadata key number 0: 18446744073709551615 bytes are needed at offset 32, \
        524 are left",
    ),
    (
        "key not UTF-8",
        |f| f.pairs[1].0 = [2u64.to_le_bytes().as_slice(), &[0xc3, 0x28]].concat(),
        "metadata key number 1 is not valid UTF-8",
    ),
    (
        "duplicate key",
        |f| f.pairs[1].0 = f.pairs[0].0.clone(),
        "metadata key \"general.architecture\" occurs twice",
    ),
    ("value type", |f| f.pairs[1].1 = 13, "the value of \"depth\" has value type 13, which does not exist"),
    (
        "bool of 2",
        |f| f.pairs[3].2 = vec![2],
        "the value of \"flag\" is a bool stored as 2 (0 and 1 are valid)",
    ),
    (
        "string value longer than the file",
        |f| f.pairs[0].2 = (1u64 << 63).to_le_bytes().to_vec(),
        "the file ends inside the value of \"general.architecture\": 9223372036854775808 bytes are needed \
        at offset 64, 492 are left",
    ),
    (
        "string value not UTF-8",
        |f| f.pairs[0].2 = [1u64.to_le_bytes().as_slice(), &[0xff]].concat(),
        "the value of \"general.architecture\" is not valid UTF-8",
    ),
    (
        "array element type",
        |f| f.pairs[2].2[0] = 99,
        "the value of \"scores\" has value type 99, which does not exist",
    ),
    (
        "array longer than the file",
        |f| f.pairs[2].2[4..12].copy_from_slice(&1000u64.to_le_bytes()),
        "the value of \"scores\" claims 1000 values, but the 468 bytes left cannot hold them",
    ),
    (
        "array whose size overflows",
        |f| f.pairs[2].2[4..12].copy_from_slice(&(u64::MAX / 2).to_le_bytes()),
        "the value of \"scores\" claims 9223372036854775807 values, but the 468 bytes left cannot hold them",
    ),
    (
        "more strings than fit",
        |f| f.pairs[4].2[4..12].copy_from_slice(&1000u64.to_le_bytes()),
        "the value of \"words\" claims 1000 strings, but the 414 bytes left cannot hold them",
    ),
    (
        "string element longer than the file",
        |f| f.pairs[4].2[12..20].copy_from_slice(&1000u64.to_le_bytes()),
        "the file ends inside element 0 of \"words\": 1000 bytes are needed at offset 182, 406 are left",
    ),
    (
        "string element not UTF-8",
        |f| *f.pairs[4].2.last_mut().unwrap() = b'!',
        "element 1 of \"words\" is not valid UTF-8",
    ),
    (
        "more bools than fit",
        |f| {
            (f.pairs[2].1, f.pairs[2].2) =
                (9, [&7u32.to_le_bytes()[..], &(1u64 << 40).to_le_bytes()].concat())
        },
        "the value of \"scores\" claims 1099511627776 bools, but the 436 bytes left cannot hold them",
    ),
    (
        "more arrays than fit",
        |f| {
            (f.pairs[2].1, f.pairs[2].2) =
                (9, [&9u32.to_le_bytes()[..], &(1u64 << 40).to_le_bytes()].concat())
        },
        "the value of \"scores\" claims 1099511627776 arrays, but the 436 bytes left cannot hold them",
    ),
    (
        "arrays nested too deep",
        |f| f.pairs[2].2 = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat().repeat(100_000),
        "the value of \"scores\" nests arrays more than 4 deep",
    ),
    ("alignment of 0", |f| f.set_u32("general.alignment", 0), "general.alignment is 0, not a power of two"),
    (
        "alignment of 24",
        |f| f.set_u32("general.alignment", 24),
        "general.alignment is 24, not a power of two",
    ),
    (
        "alignment of the wrong type",
        |f| f.set("general.alignment", 8, string("32")),
        "metadata key \"general.alignment\" should hold an unsigned 32-bit integer, but holds the string \
        \"32\"",
    ),
    (
        "negative alignment",
        |f| f.set("general.alignment", 5, (-32i32).to_le_bytes().to_vec()),
        "metadata key \"general.alignment\" should hold an unsigned 32-bit integer, but holds the i32 -32",
    ),
    (
        "alignment beyond the file",
        |f| (f.set_u32("general.alignment", 1 << 31), f.tensors.truncate(1)).0,
        "tensor \"a\" needs 32 bytes at 0 of the data section, which has 0: the file is truncated or damaged",
    ),
    (
        "joined",
        |f| f.data.extend(b"GGUF\x03\0\0\0"),
        "several GGUF files in one, as `cat` joins them; the first ends at byte 588. Shards of a split model stay apart: \
         fetch them again, or cut the file apart there and name them NAME-00001-of-0000N.gguf and so on, then give any \
         of them; llama-gguf-split --merge makes one file of them",
    ),
    (
        "joined to a file without tensors",
        |f| (f.tensors.clear(), f.data = b"GGUF\x03\0\0\0".to_vec()).0,
        "several GGUF files in one, as `cat` joins them; the first ends at byte 224. Shards of a split model stay apart: \
         fetch them again, or cut the file apart there and name them NAME-00001-of-0000N.gguf and so on, then give any \
         of them; llama-gguf-split --merge makes one file of them",
    ),
    (
        "four thousand million shards",
        |f| (f.set_u32("split.count", u32::MAX), f.set_u32("split.no", 0)).0,
        "split.count claims 4294967295 shards, which are more files than the 16384 that a model is opened from",
    ),
    (
        "a negative number of shards",
        |f| f.set("split.count", 5, (-2i32).to_le_bytes().to_vec()),
        "metadata key \"split.count\" should hold an unsigned integer, but holds the i32 -2",
    ),
    (
        "a shard without number",
        |f| f.set("split.count", 2, 3u16.to_le_bytes().to_vec()),
        "metadata key \"split.no\" is missing (it should hold an unsigned integer)",
    ),
    (
        "a shard beyond the last",
        |f| (f.set_u32("split.count", 3), f.set_u32("split.no", 3)).0,
        "split.no is 3, and counts from 0 to below split.count, which is 3",
    ),
    (
        "tensor name longer than the file",
        |f| f.tensors[0].name = 5000u64.to_le_bytes().to_vec(),
        "the file ends inside the name of tensor number 0: 5000 bytes are needed at offset 206, 350 are left",
    ),
    (
        "tensor name not UTF-8",
        |f| f.tensors[1].name = [1u64.to_le_bytes().as_slice(), &[0xfe]].concat(),
        "the name of tensor number 1 is not valid UTF-8",
    ),
    ("duplicate tensor", |f| f.tensors[1].name = f.tensors[0].name.clone(), "tensor \"a\" occurs twice"),
    (
        "five dimensions",
        |f| f.tensors[0].ne = vec![8, 1, 1, 1, 1],
        "tensor \"a\" has 5 dimensions (at most 4 are valid)",
    ),
    (
        "dimensions beyond reason",
        |f| f.tensors[0].rank = Some(u32::MAX),
        "tensor \"a\" has 4294967295 dimensions (at most 4 are valid)",
    ),
    (
        "dimension of zero",
        |f| f.tensors[0].ne = vec![4, 0],
        "tensor \"a\" has dimensions [4, 0] (innermost first), one of them zero",
    ),
    (
        "elements overflow",
        |f| f.tensors[0].ne = vec![1 << 32, 1 << 32],
        "tensor \"a\" has dimensions [4294967296, 4294967296] (innermost first), whose size overflows",
    ),
    (
        "bytes overflow",
        |f| f.tensors[0].ne = vec![1 << 62],
        "tensor \"a\" has dimensions [4611686018427387904] (innermost first), whose size overflows",
    ),
    (
        "elements wrap round to few",
        |f| f.tensors[0].ne = vec![1 << 63, 2, 4],
        "tensor \"a\" has dimensions [9223372036854775808, 2, 4] (innermost first), whose size overflows",
    ),
    (
        "type from the future",
        |f| f.tensors[0].ggml_type = 1000,
        "tensor \"a\" has type 1000, which this version does not know",
    ),
    (
        "removed type",
        |f| f.tensors[0].ggml_type = 31,
        "tensor \"a\" has type Q4_0_4_4, which GGML has removed: quantise the model again",
    ),
    (
        "row inside a block",
        |f| f.tensors[1].ne = vec![16, 4],
        "tensor \"b\" has rows of 16 elements, which do not fill Q8_0 blocks of 32",
    ),
    (
        "row inside a block of an unsupported type",
        |f| (f.tensors[1].ne, f.tensors[1].ggml_type) = (vec![128], 23),
        "tensor \"b\" has rows of 128 elements, which do not fill IQ4_XS blocks of 256",
    ),
    (
        "misaligned",
        |f| f.tensors[1].offset = 48,
        "tensor \"b\" begins at 48 of the data section, not a multiple of the alignment 32",
    ),
    (
        "offset beyond the file",
        |f| f.tensors[1].offset = 1 << 20,
        "tensor \"b\" needs 68 bytes at 1048576 of the data section, which has 236: the file is truncated \
        or damaged",
    ),
    (
        "end overflows",
        |f| f.tensors[1].offset = u64::MAX - 31,
        "tensor \"b\" needs 68 bytes at 18446744073709551584 of the data section, which has 236: the file \
        is truncated or damaged",
    ),
    (
        "data cut off",
        |f| f.data.truncate(32 + 67),
        "tensor \"b\" needs 68 bytes at 32 of the data section, which has 99: the file is truncated or \
        damaged",
    ),
    (
        "no data at all",
        |f| f.data.clear(),
        "tensor \"a\" needs 32 bytes at 0 of the data section, which has 0: the file is truncated or damaged",
    ),
    ("overlap", |f| f.tensors[2].offset = 64, "tensors \"b\" and \"c\" overlap"),
    ("same place", |f| f.tensors[1].offset = 0, "tensors \"a\" and \"b\" overlap"),
];

#[test]
fn every_mutation_gives_the_error_that_names_it() {
    assert!(MUTATIONS.len() >= 40);
    for (name, mutate, want) in MUTATIONS {
        let mut file = RawGguf::valid();
        mutate(&mut file);
        let error = Gguf::parse(&file.to_bytes()).expect_err(name);
        assert_eq!(&error.to_string(), want, "{name}");
    }
}

#[test]
fn the_unmutated_file_is_read_whole() {
    for version in [2, 3] {
        let file = GgufFile::new(RawGguf { version, ..RawGguf::valid() }.to_bytes().into()).expect("valid");
        let header = file.shards()[0].header();
        assert_eq!((header.version(), header.alignment()), (version, 32));
        assert_eq!(header.metadata().require::<u64>("depth"), Ok(2));
        assert_eq!(header.metadata().require::<&[f32]>("scores"), Ok(&[0.5, -1.0][..]));
        assert_eq!(header.metadata().require::<bool>("flag"), Ok(true));
        let words: &Strings = header.metadata().require("words").expect("strings");
        assert_eq!(words.iter().collect::<Vec<_>>(), ["hello", "w\u{f6}"]);
        let data: Vec<u8> = (0..236).collect();
        for (name, shape, range) in [("a", [2, 4], 0..32), ("b", [2, 32], 32..100), ("c", [6, 32], 128..236)]
        {
            let (info, bytes) = file.tensor(name).expect("the tensor");
            assert_eq!((info.shape.as_slice(), bytes), (&shape[..], &data[range]), "{name}");
        }
    }
}

#[test]
fn a_type_the_engine_lacks_is_refused_only_when_asked_for() {
    let mut file = RawGguf::valid();
    // I16, as many bytes as before.
    (file.tensors[2].ne, file.tensors[2].ggml_type) = (vec![9, 6], 25);
    let checkpoint = Checkpoint::from_bytes(file.to_bytes()).expect("valid");
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(checkpoint.tensor("b").expect("supported").shape, [2, 32]);
    assert_eq!(
        checkpoint.tensor("c").unwrap_err().to_string(),
        "tensor \"c\" is stored as I16, which is not supported (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, \
         Q6_K, Q2_K, Q3_K, Q1_0, Q8_1, Q8_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, \
         TQ1_0, TQ2_0, MXFP4, NVFP4 are): convert the model to one of these"
    );
    assert_eq!(checkpoint.tensor("d").unwrap_err().to_string(), "the checkpoint has no tensor \"d\"");
}

#[test]
fn alignment_from_the_metadata_moves_the_data() {
    let mut file = RawGguf::valid();
    file.set_u32("general.alignment", 8);
    file.tensors[1].offset = 40;
    file.tensors[2].offset = 112;
    let header = Gguf::parse(&file.to_bytes()).expect("valid");
    let a = header.tensor("a").expect("a");
    assert_eq!((header.alignment(), a.range.start % 8), (8, 0));
    // 321 bytes of header, and the pair: key 8 + 17, type 4, value 4.
    assert_eq!(a.range.start, 360);
}

#[test]
fn files_without_tensors_and_padding_are_seen_to_be_joined() {
    let mut file = RawGguf::valid();
    file.tensors.clear();
    let mut bytes = file.to_bytes();
    bytes.truncate(198);
    assert!(Gguf::parse(&bytes).is_ok());
    bytes.extend(RawGguf::valid().to_bytes());
    assert_eq!(Gguf::parse(&bytes).unwrap_err(), GgufError::Joined { end: 198 });
}

#[test]
fn no_truncation_is_taken_for_the_whole() {
    let whole = RawGguf::valid().to_bytes();
    for len in 0..whole.len() {
        let error = Gguf::parse(&whole[..len]).expect_err("a truncated file");
        let (truncated, outside, count) = (
            matches!(error, GgufError::Truncated { .. }),
            matches!(error, GgufError::OutsideFile { .. }),
            matches!(error, GgufError::Count { .. }),
        );
        assert!(truncated || outside || count, "{len} bytes: {error}");
    }
}

/// What must hold of any file that is accepted.
fn check_accepted(bytes: Vec<u8>) {
    let Ok(checkpoint) = Checkpoint::from_bytes(bytes) else { return };
    for entry in checkpoint.tensors() {
        match checkpoint.tensor(entry.name) {
            Ok(view) => {
                let elements = view.shape.iter().product();
                assert_eq!(view.dtype.bytes_for(elements), Some(view.bytes.len()));
                blocks::decode(view.dtype, view.bytes, &mut vec![0.0; elements]).expect("whole blocks");
            }
            Err(error) => assert!(entry.dtype.is_none(), "{error}"),
        }
    }
    for (_, value) in checkpoint.gguf().expect("metadata").iter() {
        value.describe();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let with_magic = [b"GGUF\x03\0\0\0", bytes.as_slice()].concat();
        check_accepted(bytes);
        check_accepted(with_magic);
    }

    #[test]
    fn random_damage_never_panics(
        edits in proptest::collection::vec((0..588usize, any::<u8>()), 1..6),
        cut in 0..2000usize,
    ) {
        let mut bytes = RawGguf::valid().to_bytes();
        edits.iter().for_each(|&(at, byte)| bytes[at] = byte);
        bytes.truncate(cut);
        check_accepted(bytes);
    }

    #[test]
    fn random_numbers_never_panic(at in 0..321usize, number in any::<u64>(), shift in 0..64u32) {
        let mut bytes = RawGguf::valid().to_bytes();
        bytes[at..at + 8].copy_from_slice(&(number >> shift).to_le_bytes());
        check_accepted(bytes);
    }
}
