use super::*;
use crate::matmul::gather_row;
use crate::testing::{Random, stored_rows};
use tensor::blocks::decode;

#[test]
fn every_format_keeps_every_value() {
    let mut random = Random(1);
    for dtype in DType::WEIGHTS {
        let k = 3 * dtype.block_len();
        for isa in CpuIsa::available() {
            for n in [1, 8, 19, 33] {
                let stored = stored_rows(dtype, n, k, &mut random);
                let row_bytes = dtype.bytes_for(k).unwrap();
                let w = PackedMatrix::pack(isa, dtype, n, k, |row| &stored[row * row_bytes..][..row_bytes])
                    .unwrap();
                for row in 0..n {
                    let mut want = vec![0f32; k];
                    decode(dtype, &stored[row * row_bytes..][..row_bytes], &mut want).unwrap();
                    let mut got = vec![0f32; k];
                    gather_row(&w, row, &mut got);
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&got), bits(&want), "{dtype} {isa} row {row} of {n}");
                }
            }
        }
    }
}

/// Groups are packed all rows at once, in vector registers; the definition is that of a row on its own.
#[test]
fn rows_packed_together_lie_as_each_alone() {
    let mut random = Random(3);
    for dtype in DType::WEIGHTS {
        for isa in CpuIsa::available() {
            let lanes = isa.lanes();
            for (n, blocks) in [(1, 1), (lanes - 1, 2), (lanes, 3), (lanes, 4), (2 * lanes + 3, 5)] {
                let k = blocks * dtype.block_len();
                let stored = stored_rows(dtype, n, k, &mut random);
                let row_bytes = dtype.bytes_for(k).unwrap();
                let row = |row: usize| &stored[row * row_bytes..][..row_bytes];
                let got = PackedMatrix::pack(isa, dtype, n, k, row).unwrap();
                let mut want = vec![0; got.groups() * got.group_bytes()];
                for index in 0..n {
                    let group = &mut want[index / lanes * got.group_bytes()..][..got.group_bytes()];
                    layout::pack_rows(dtype, lanes, index % lanes, &[row(index)], group);
                }
                assert!(want == got.data.as_slice::<u8>(), "{dtype} {isa}, {n} rows of {blocks} blocks");
            }
        }
    }
}

#[test]
fn parts_may_be_packed_by_threads_from_several_sources_in_any_order() {
    let (dtype, n, k) = (DType::Q5_K, 53, 512);
    let stored = stored_rows(dtype, n, k, &mut Random(2));
    let row_bytes = dtype.bytes_for(k).unwrap();
    let (first, second) = stored.split_at(20 * row_bytes);
    // Row `i` of the matrix is row `n - 1 - i` of the two sources laid end to end.
    let source = |row: usize| match n - 1 - row {
        i if i < 20 => &first[i * row_bytes..][..row_bytes],
        i => &second[(i - 20) * row_bytes..][..row_bytes],
    };
    for isa in CpuIsa::available() {
        let want = PackedMatrix::pack(isa, dtype, n, k, source).unwrap();
        for groups in [1, 2, 3, 100] {
            let mut packer = Packer::new(isa, dtype, n, k).unwrap();
            std::thread::scope(|scope| {
                for mut chunk in packer.chunks(groups) {
                    scope.spawn(move || chunk.pack(source).unwrap());
                }
            });
            let got = packer.finish();
            assert_eq!(
                got.data.as_slice::<u8>(),
                want.data.as_slice::<u8>(),
                "{isa}, {groups} groups a part"
            );
        }
        let mut row = vec![0f32; k];
        gather_row(&want, 3, &mut row);
        let mut expected = vec![0f32; k];
        decode(dtype, source(3), &mut expected).unwrap();
        assert_eq!(row, expected);
    }
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let isa = CpuIsa::detect();
    let new = |dtype, n, k| Packer::new(isa, dtype, n, k).map(|_| ());
    assert!(matches!(new(DType::U32, 1, 1), Err(PackError::NotReal(DType::U32))));
    assert!(matches!(new(DType::Q8_0, 1, 33), Err(PackError::PartialBlock { k: 33, .. })));
    assert!(matches!(new(DType::F32, usize::MAX / 2, 1 << 20), Err(PackError::TooLarge { .. })));
    assert!(matches!(new(DType::F32, 1 << 40, 1 << 30), Err(PackError::TooLarge { .. })));
    let short = PackedMatrix::pack(isa, DType::Q4_0, 3, 64, |row| &[0; 36][row / 2..]).unwrap_err();
    assert_eq!(short.to_string(), "row 2 has 35 bytes where 36 were expected");
}

#[test]
fn empty_matrices_are_ordinary() {
    for (n, k) in [(0, 64), (3, 0), (0, 0)] {
        let w = PackedMatrix::pack(CpuIsa::detect(), DType::Q8_0, n, k, |_| &[]).unwrap();
        assert_eq!((w.n(), w.k()), (n, k));
        let mut out = vec![7f32; 2 * n];
        let x = vec![1f32; 2 * k];
        let bias = vec![0.5f32; n];
        let x = crate::matmul::Activations::F32 { data: &x, stride: k };
        crate::matmul::matmul(&w, x, crate::matmul::RowMap::first(2), Some(&bias), &mut out);
        assert_eq!(out, vec![0.5; 2 * n]);
    }
}
