//! Every instruction set against the portable code, lane by lane and bit by bit.

use super::*;

/// Runs every operation on 16 lanes of each input and returns all results as bits.
#[derive(Clone, Copy)]
struct AllOps<'a> {
    a: &'a [f32; VIRTUAL_LANES],
    b: &'a [f32; VIRTUAL_LANES],
    c: &'a [f32; VIRTUAL_LANES],
    w: &'a [u8; 4 * VIRTUAL_LANES],
    x: [i8; 4],
}

/// Results of [`AllOps`].
const OPS: usize = 32;

/// Those of arithmetic and of conversions to and from shorter floats, where the bits of a NaN are left open.
const OPEN_NAN: [usize; 10] = [0, 1, 2, 3, 4, 5, 8, 22, 23, 24];

impl AllOps<'_> {
    /// Compares every instruction set with the portable code.
    fn compare(self, round: impl std::fmt::Debug) {
        let all = CpuIsa::available();
        let portable = all[0].run(self);
        for isa in &all[1..] {
            for (i, (got, want)) in isa.run(self).iter().zip(&portable).enumerate() {
                assert_eq!((got.len(), want.len()), (VIRTUAL_LANES, VIRTUAL_LANES), "{isa} op {i}");
                for (g, w) in got.iter().zip(want) {
                    let nan = f32::from_bits(*g).is_nan() && f32::from_bits(*w).is_nan();
                    assert!(
                        g == w || nan && OPEN_NAN.contains(&i),
                        "{isa} op {i} round {round:?}: {g:x} {w:x}"
                    );
                }
            }
        }
    }
}

impl Kernel for AllOps<'_> {
    type Out = Vec<Vec<u32>>;

    #[inline(always)]
    fn run<S: Isa>(self, s: S) -> Self::Out {
        let mut all: Vec<Vec<u32>> = vec![Vec::new(); OPS];
        for at in (0..VIRTUAL_LANES).step_by(S::LANES) {
            let mut n = 0;
            let mut put_i = |v: S::I| {
                let mut lanes = [0u32; VIRTUAL_LANES];
                // SAFETY: `lanes` has room for the widest vector.
                unsafe { s.store_i(lanes.as_mut_ptr().cast(), v) };
                all[n].extend_from_slice(&lanes[..S::LANES]);
                n += 1;
            };
            // SAFETY: `at + LANES` stays within the 16 lanes of each array.
            let (a, b, c, w) = unsafe {
                (
                    s.load(self.a.as_ptr().add(at)),
                    s.load(self.b.as_ptr().add(at)),
                    s.load(self.c.as_ptr().add(at)),
                    s.load_i(self.w.as_ptr().add(4 * at)),
                )
            };
            for f in [
                s.add(a, b),
                s.sub(a, b),
                s.mul(a, b),
                s.div(a, b),
                s.fma(a, b, c),
                s.fnma(a, b, c),
                s.max(a, b),
                s.min(a, b),
                s.sqrt(s.abs(a)),
                s.select_lt(a, b, c, a),
                s.cvt(w),
            ] {
                put_i(s.bits(f));
            }
            let v = s.bits(b);
            for i in [
                s.round_i(a),
                s.add_i(w, v),
                s.sub_i(w, v),
                s.and_i(w, v),
                s.or_i(w, v),
                s.shl::<3>(w),
                s.shr::<5>(w),
                s.sra::<5>(w),
                s.max_i(w, v),
            ] {
                put_i(i);
            }
            // SAFETY: within the arrays as above; the f16 halves lie in the 64 bytes of `w`.
            unsafe {
                put_i(s.load_u8(self.w.as_ptr().add(at)));
                put_i(s.load_i8(self.w.as_ptr().add(at)));
                put_i(s.bits(s.load_f16(self.w.as_ptr().cast::<u16>().add(at))));
                put_i(s.bits(s.load_bf16(self.w.as_ptr().cast::<u16>().add(at))));
                let mut h = [0u16; VIRTUAL_LANES];
                s.store_f16(h.as_mut_ptr(), a);
                put_i(s.bits(s.load_f16(h.as_ptr())));
                // Part of the first vector: of later ones, wider vectors have none.
                put_i(if at == 0 { s.bits(s.load_partial(self.a.as_ptr(), 5)) } else { s.splat_i(0) });
            }
            let x = s.splat_i(i32::from_le_bytes(self.x.map(|v| v as u8)));
            let nibble = s.and_i(w, s.splat_i(0x0f0f_0f0f));
            let six = s.and_i(w, s.splat_i(0x3f3f_3f3f));
            let pair = |x: [i8; 4], times: i16| {
                let (lo, hi) = (i16::from(x[0]) + i16::from(x[1]), i16::from(x[2]) + i16::from(x[3]));
                s.splat_i(i32::from(times * lo) & 0xffff | i32::from(times * hi) << 16)
            };
            // 8 times 2 * 15 * 127 fits an i16.
            let mut acc = s.dot_zero();
            for _ in 0..8 {
                acc = s.dot(acc, nibble, x);
            }
            put_i(s.dot_sum(acc));
            // SAFETY: within the 64 bytes.
            put_i(s.dot_scaled(acc, s.scale(unsafe { s.load_i8(self.w.as_ptr().add(at)) })));
            // 4 times 2 * 63 * 127 wraps an i16 on the way; shifted by -32 the total fits.
            let mut acc = s.dot_shifted(pair(self.x, 4), s.splat_i(-32i32 & 0xffff | (-32 << 16)));
            for _ in 0..4 {
                acc = s.dot(acc, six, x);
            }
            put_i(s.dot_sum(acc));
            let bytes = s.bytes(w);
            let mut acc = s.dot_i8_start(pair(self.x, 2));
            for _ in 0..2 {
                acc = s.dot_i8(acc, bytes, x);
            }
            put_i(acc);
            let entries = std::array::from_fn(|i| self.w[3 * i] as i8);
            put_i(s.lookup(s.table(&entries), nibble));
            // Two products of 127 and 127 fit an i16.
            let seven = s.and_i(w, s.splat_i(0x7f7f_7f7f));
            put_i(s.dot_sum(s.dot(s.dot_zero(), seven, x)));
        }
        all
    }
}

#[test]
fn every_instruction_set_computes_the_same_bits() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    for round in 0..2000 {
        let mut floats =
            || std::array::from_fn(|_| (next() as f32 / 1e9 - 1.0) * [1.0, 1e3, 1e-6][round % 3]);
        let (a, b, c) = (floats(), floats(), floats());
        let w = std::array::from_fn(|_| next() as u8);
        // The extremes of `x` come up in every third round.
        let x = std::array::from_fn(|_| {
            if round % 3 == 0 { [127i8, -127][next() as usize % 2] } else { (next() % 255) as i8 }
        })
        .map(|x: i8| x.max(-127));
        AllOps { a: &a, b: &b, c: &c, w: &w, x }.compare(round);
    }
}

/// What is no number, what does not fit an i32 or a binary16, signs of zeros, ties, and the largest products of bytes.
#[test]
fn every_instruction_set_computes_the_same_bits_at_the_edges() {
    const TWO_31: f32 = 2147483648.0;
    let edges = [
        [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, TWO_31, -TWO_31, TWO_31.next_down(), 1e10],
        [(-TWO_31).next_down(), -1e10, 0.0, -0.0, 0.5, -0.5, 1.5, 2.5],
        // Halfway to the first binary16 that is infinite, the next below, ties among normal and subnormal ones.
        [65520.0, 65519.996, -65520.0, 1.000_488_3, 1.001_464_8, 2f32.powi(-25), 3.0 * 2f32.powi(-25), 1e-8],
        [f32::MAX, f32::MIN_POSITIVE, 1e-40, -1e-45, 8388609.0, -8388607.5, 4194304.5, 1.0],
    ];
    let edges = edges.as_flattened();
    let lanes = |from: usize, step: usize| -> [f32; VIRTUAL_LANES] {
        std::array::from_fn(|i| edges[(from + step * i) % edges.len()])
    };
    let bytes = [0x80u8, 0x7f, 0xff, 0x00, 0x81];
    // Every edge meets every other.
    for first in [0, VIRTUAL_LANES] {
        for second in 0..edges.len() {
            let (a, b, c) = (lanes(first, 1), lanes(second, 1), lanes(second, 5));
            for x in [[127i8; 4], [-127; 4], [127, 127, -127, -127], [0, -1, 1, -127]] {
                for w in bytes {
                    AllOps { a: &a, b: &b, c: &c, w: &[w; 4 * VIRTUAL_LANES], x }
                        .compare((first, second, x, w));
                }
            }
        }
    }
}

#[test]
fn the_portable_code_gives_the_exact_integers() {
    let x = [127i8, -127, 5, -1];
    let w: [u8; 4 * VIRTUAL_LANES] = std::array::from_fn(|i| (i * 37 + 200) as u8);
    let zero = [0f32; VIRTUAL_LANES];
    for isa in CpuIsa::available() {
        let out = isa.run(AllOps { a: &zero, b: &zero, c: &zero, w: &w, x });
        for lane in 0..VIRTUAL_LANES {
            let dot = |code: &dyn Fn(u8) -> i32| -> i32 {
                (0..4).map(|i| code(w[4 * lane + i]) * i32::from(x[i])).sum()
            };
            assert_eq!(out[26][lane] as i32, 8 * dot(&|b| i32::from(b & 15)), "{isa} nibbles");
            assert_eq!(
                out[27][lane] as i32,
                8 * dot(&|b| i32::from(b & 15)) * i32::from(w[lane] as i8),
                "{isa} scaled"
            );
            assert_eq!(out[28][lane] as i32, 4 * dot(&|b| i32::from(b & 63) - 32), "{isa} shifted");
            assert_eq!(out[29][lane] as i32, 2 * dot(&|b| i32::from(b as i8)), "{isa} bytes");
            let looked_up: [u8; 4] = std::array::from_fn(|i| w[3 * usize::from(w[4 * lane + i] & 15)]);
            assert_eq!(out[30][lane], u32::from_le_bytes(looked_up), "{isa} looked up");
        }
    }
}

#[test]
fn an_unknown_instruction_set_is_refused_by_name() {
    let error = "mmx".parse::<CpuIsa>().unwrap_err().to_string();
    assert!(error.contains("`mmx`") && error.contains("scalar"), "{error}");
    assert_eq!("scalar".parse::<CpuIsa>().unwrap(), CpuIsa::Scalar(Scalar));
}
