//! Sixteen virtual lanes on vectors of any width, so that reductions are written once.

use crate::isa::{Isa, VIRTUAL_LANES};

/// Sixteen f32: two vectors of eight, or one of sixteen (then the second is unused).
pub(crate) struct V<S: Isa>([S::F; 2]);

impl<S: Isa> Clone for V<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Isa> Copy for V<S> {}

/// Defines an operation on each lane.
macro_rules! lanewise {
    ($name:ident($($arg:ident),*)) => {
        #[inline(always)]
        pub(crate) fn $name(self, s: S, $($arg: Self),*) -> Self {
            let low = s.$name(self.0[0], $($arg.0[0]),*);
            if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, s.$name(self.0[1], $($arg.0[1]),*)]) }
        }
    };
}

impl<S: Isa> V<S> {
    lanewise!(add(b));
    lanewise!(sub(b));
    lanewise!(mul(b));
    lanewise!(div(b));
    lanewise!(max(b));
    lanewise!(fma(b, c));
    lanewise!(select_lt(b, x, y));

    #[inline(always)]
    pub(crate) fn splat(s: S, x: f32) -> Self {
        V([s.splat(x); 2])
    }

    /// # Safety
    /// `p` must be readable for 16 f32.
    #[inline(always)]
    pub(crate) unsafe fn load(s: S, p: *const f32) -> Self {
        // SAFETY: the caller's contract; the second vector starts within the sixteen.
        unsafe {
            let low = s.load(p);
            if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, s.load(p.add(S::LANES))]) }
        }
    }

    /// # Safety
    /// `p` must be readable for 16 u16.
    #[inline(always)]
    pub(crate) unsafe fn load_f16(s: S, p: *const u16) -> Self {
        // SAFETY: the caller's contract; the second vector starts within the sixteen.
        unsafe {
            let low = s.load_f16(p);
            if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, s.load_f16(p.add(S::LANES))]) }
        }
    }

    /// # Safety
    /// `p` must be readable for 16 u16.
    #[inline(always)]
    pub(crate) unsafe fn load_bf16(s: S, p: *const u16) -> Self {
        // SAFETY: the caller's contract; the second vector starts within the sixteen.
        unsafe {
            let low = s.load_bf16(p);
            if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, s.load_bf16(p.add(S::LANES))]) }
        }
    }

    /// # Safety
    /// `p` must be readable for 16 signed bytes.
    #[inline(always)]
    pub(crate) unsafe fn load_i8(s: S, p: *const i8) -> Self {
        // SAFETY: the caller's contract; the second vector starts within the sixteen.
        unsafe {
            let low = s.cvt(s.load_i8(p.cast()));
            if S::LANES == VIRTUAL_LANES {
                V([low; 2])
            } else {
                V([low, s.cvt(s.load_i8(p.add(S::LANES).cast()))])
            }
        }
    }

    /// The first `n` lanes, zero in the others.
    ///
    /// # Safety
    /// `p` must be readable for `n` f32, and `n` at most 16.
    #[inline(always)]
    pub(crate) unsafe fn load_partial(s: S, p: *const f32, n: usize) -> Self {
        let mut lanes = [0f32; VIRTUAL_LANES];
        // SAFETY: the caller vouches for `n` f32 at `p`; `lanes` holds 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(s, lanes.as_ptr())
        }
    }

    /// # Safety
    /// `p` must be writable for 16 f32.
    #[inline(always)]
    pub(crate) unsafe fn store(self, s: S, p: *mut f32) {
        // SAFETY: the caller's contract; the second vector starts within the sixteen.
        unsafe {
            s.store(p, self.0[0]);
            if S::LANES < VIRTUAL_LANES {
                s.store(p.add(S::LANES), self.0[1]);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn exp(self, s: S) -> Self {
        let low = super::math::exp(s, self.0[0]);
        if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, super::math::exp(s, self.0[1])]) }
    }

    #[inline(always)]
    pub(crate) fn tanh(self, s: S) -> Self {
        let low = super::math::tanh(s, self.0[0]);
        if S::LANES == VIRTUAL_LANES { V([low; 2]) } else { V([low, super::math::tanh(s, self.0[1])]) }
    }

    #[inline(always)]
    pub(crate) fn to_array(self, s: S) -> [f32; VIRTUAL_LANES] {
        let mut lanes = [0f32; VIRTUAL_LANES];
        // SAFETY: `lanes` holds 16.
        unsafe { self.store(s, lanes.as_mut_ptr()) };
        lanes
    }

    /// The first lane.
    #[inline(always)]
    pub(crate) fn first(self, s: S) -> f32 {
        self.to_array(s)[0]
    }

    /// The lanes after folding the upper half onto the lower as far as vectors go, and how many are left.
    #[inline(always)]
    fn folded(self, s: S, fold: impl Fold) -> ([f32; VIRTUAL_LANES], usize) {
        if S::LANES == VIRTUAL_LANES {
            return (self.to_array(s), VIRTUAL_LANES);
        }
        let mut lanes = [0f32; VIRTUAL_LANES];
        // SAFETY: `lanes` holds 16.
        unsafe { s.store(lanes.as_mut_ptr(), fold.vectors(s, self.0[0], self.0[1])) };
        (lanes, S::LANES)
    }

    #[inline(always)]
    fn reduce(self, s: S, fold: impl Fold) -> f32 {
        let (mut a, mut left) = self.folded(s, fold);
        while left > 1 {
            left /= 2;
            for i in 0..left {
                a[i] = fold.scalars(a[i], a[i + left]);
            }
        }
        a[0]
    }

    /// The sum of the lanes, folding the upper half onto the lower until one is left.
    #[inline(always)]
    pub(crate) fn sum(self, s: S) -> f32 {
        self.reduce(s, Sum)
    }

    /// The largest lane. A NaN may be passed over.
    #[inline(always)]
    pub(crate) fn largest(self, s: S) -> f32 {
        self.reduce(s, Largest)
    }
}

/// A way to make one value of two; the same on vectors and scalars.
trait Fold: Copy {
    fn vectors<S: Isa>(self, s: S, a: S::F, b: S::F) -> S::F;
    fn scalars(self, a: f32, b: f32) -> f32;
}

#[derive(Clone, Copy)]
struct Sum;

impl Fold for Sum {
    #[inline(always)]
    fn vectors<S: Isa>(self, s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
    #[inline(always)]
    fn scalars(self, a: f32, b: f32) -> f32 {
        a + b
    }
}

#[derive(Clone, Copy)]
struct Largest;

impl Fold for Largest {
    #[inline(always)]
    fn vectors<S: Isa>(self, s: S, a: S::F, b: S::F) -> S::F {
        s.max(a, b)
    }
    #[inline(always)]
    fn scalars(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
}
