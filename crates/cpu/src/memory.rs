//! Memory for weights, KV pools and activations.
//!
//! [`HugeBuf`] is zeroed anonymous memory that asks the system for huge pages, [`Slabs`] where many buffers share them.
//! [`SharedSlice`] is the one way in which workers write disjoint parts of one buffer.

use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Every [`HugeBuf`] starts at a multiple of this many bytes.
pub const ALIGN: usize = 64;
/// Size and alignment of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[error("the system refused {bytes} bytes of memory: {source}; free some, or use a smaller context or model")]
pub struct MemoryError {
    /// What was asked for.
    pub bytes: usize,
    /// The system's reason.
    pub source: std::io::Error,
}

/// What a [`HugeBuf`] was backed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// The buffer is too small for huge pages, or the system has none to offer.
    Ordinary,
    /// The system accepted the request for huge pages. It still grants them one by one as memory is touched:
    /// [`HugeBuf::huge_bytes`] counts what it gave.
    HugeAdvised,
}

/// Zeroed memory, aligned to [`ALIGN`] bytes.
#[derive(Debug)]
pub struct HugeBuf {
    /// `None` when the length is 0. Others may have buffers in the same one.
    region: Option<Arc<Region>>,
    /// The first byte, which nobody but this buffer reaches, nor those that follow.
    start: *mut u8,
    len: usize,
}

// SAFETY: as for a `Vec<u8>`: the bytes are the buffer's own, and written through `&mut` or by the contract of `start`.
unsafe impl Send for HugeBuf {}
// SAFETY: as for Send.
unsafe impl Sync for HugeBuf {}

/// Memory that was mapped at once.
#[derive(Debug)]
struct Region {
    map: MmapMut,
    /// Bytes before the first that is used.
    skipped: usize,
    pages: Pages,
}

/// Buffers that live about as long, such as the matrices of a model, in memory that they share: it is returned when the
/// last of its neighbours is gone. Apart, each ends in ordinary pages, because its last megabytes do not fill a huge one:
/// products of 8 MB matrices then read at 0.87 of the bus instead of 0.96, of 1.4 MB at 0.83.
#[derive(Debug, Default)]
pub struct Slabs(
    /// The region that is given from as long as one of its buffers lives, and the bytes given.
    Mutex<(Weak<Region>, usize)>,
);

/// What is mapped at once. Only what is touched takes memory.
const SLAB: usize = 64 << 20;

impl Slabs {
    /// Nothing is mapped yet.
    #[must_use]
    pub const fn new() -> Self {
        Slabs(Mutex::new((Weak::new(), 0)))
    }

    /// `len` zero bytes.
    ///
    /// # Errors
    /// As [`HugeBuf::zeroed`].
    pub fn zeroed(&self, len: usize) -> Result<HugeBuf, MemoryError> {
        if len == 0 || len >= SLAB {
            // Up to a whole page: what is lost is little of so much.
            let mut buffer = HugeBuf::zeroed(len.checked_next_multiple_of(HUGE_PAGE).unwrap_or(len))?;
            buffer.len = len;
            return Ok(buffer);
        }
        let mut slabs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (slab, given) = &mut *slabs;
        let region = match slab.upgrade().filter(|_| *given + len <= SLAB) {
            Some(region) => region,
            None => {
                let region = Region::new(SLAB)?;
                (*slab, *given) = (Arc::downgrade(&region), 0);
                region
            }
        };
        let start = region.start().wrapping_add(*given);
        *given = (*given + len).next_multiple_of(ALIGN);
        Ok(HugeBuf { region: Some(region), start, len })
    }
}

impl Region {
    /// `len` bytes from a multiple of [`HUGE_PAGE`] on if they are at least that many.
    fn new(len: usize) -> Result<Arc<Region>, MemoryError> {
        let refused = |source| MemoryError { bytes: len, source };
        let large = len >= HUGE_PAGE;
        let mapped = len.checked_add(if large { HUGE_PAGE } else { 0 });
        let mapped = mapped.ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?;
        let map = MmapMut::map_anon(mapped).map_err(refused)?;
        let skipped = if large { map.as_ptr().addr().wrapping_neg() % HUGE_PAGE } else { 0 };
        let pages = if large { advise(&map, skipped, len) } else { Pages::Ordinary };
        Ok(Arc::new(Region { map, skipped, pages }))
    }

    /// The first byte.
    fn start(&self) -> *mut u8 {
        self.map.as_ptr().cast_mut().wrapping_add(self.skipped)
    }
}

impl HugeBuf {
    /// `len` zero bytes, from a multiple of [`HUGE_PAGE`] on if it is at least that large. The system provides pages as they
    /// are first touched.
    ///
    /// # Errors
    /// [`MemoryError`] when the address space or the commit limit is exhausted.
    pub fn zeroed(len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            return Ok(Self {
                region: None,
                start: std::ptr::NonNull::<[u64; 8]>::dangling().as_ptr().cast(),
                len,
            });
        }
        let region = Region::new(len)?;
        Ok(Self { start: region.start(), region: Some(region), len })
    }

    /// Bytes in the buffer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether huge pages were asked for and the request was accepted.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.region.as_ref().map_or(Pages::Ordinary, |region| region.pages)
    }

    /// Bytes of the buffer that lie in huge pages now, where the system tells (Linux). Reads the process's memory map:
    /// for reports.
    #[must_use]
    pub fn huge_bytes(&self) -> Option<usize> {
        let start = self.start.addr();
        huge_bytes_in(&std::fs::read_to_string("/proc/self/smaps").ok()?, start..start + self.len)
    }

    /// The first byte, for workers that write disjoint parts. What it points to may be written as long as no slice of
    /// the buffer is alive; dangling when the buffer is empty.
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// The buffer as values of `T`.
    ///
    /// # Panics
    /// When the length is not a multiple of the size of `T`, or `T` needs more than 64-byte alignment.
    #[must_use]
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        // SAFETY: the region lives as long as the buffer, whose own these bytes are; all bytes are initialised.
        bytemuck::cast_slice(unsafe { std::slice::from_raw_parts(self.start.cast_const(), self.len) })
    }

    /// The buffer as values of `T` that may be written.
    ///
    /// # Panics
    /// As [`HugeBuf::as_slice`].
    #[must_use]
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        // SAFETY: as for `as_slice`; the buffer is borrowed exclusively.
        bytemuck::cast_slice_mut(unsafe { std::slice::from_raw_parts_mut(self.start, self.len) })
    }
}

/// Memory that the system could give this process now, in bytes, where it tells (Linux).
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(target_os = "linux")]
fn advise(map: &MmapMut, start: usize, len: usize) -> Pages {
    match map.advise_range(memmap2::Advice::HugePage, start, len) {
        Ok(()) => Pages::HugeAdvised,
        Err(_) => Pages::Ordinary,
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &MmapMut, _: usize, _: usize) -> Pages {
    Pages::Ordinary
}

/// Sums the `AnonHugePages` of the mappings that overlap `range`, at most what the overlap holds.
fn huge_bytes_in(smaps: &str, range: Range<usize>) -> Option<usize> {
    let (mut overlap, mut huge) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        if let Some(kib) = first.eq("AnonHugePages:").then(|| words.next()).flatten() {
            huge += overlap.min(kib.parse::<usize>().ok()? << 10);
        } else if let Some((low, high)) = first.split_once('-') {
            let (low, high) = (usize::from_str_radix(low, 16).ok()?, usize::from_str_radix(high, 16).ok()?);
            overlap = high.min(range.end).saturating_sub(low.max(range.start));
        }
    }
    Some(huge)
}

/// A slice of which several workers write disjoint parts at once.
#[derive(Debug, Clone, Copy)]
pub struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is exclusively borrowed for 'a, and every access goes through the unsafe methods, whose contract
// forbids overlapping use.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares `slice` until the borrow ends.
    #[must_use]
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Shares `len` elements from `start`.
    ///
    /// # Safety
    /// The elements stay valid for 'a, and are accessed meanwhile only through the unsafe methods of shared slices.
    #[must_use]
    pub unsafe fn from_raw(start: *mut T, len: usize) -> Self {
        Self { start, len, borrow: PhantomData }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the slice starts.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.start
    }

    /// The elements `range`, still shared.
    ///
    /// # Panics
    /// When `range` is not inside the slice.
    #[must_use]
    pub fn narrow(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside 0..{}", self.len);
        Self { start: self.start.wrapping_add(range.start), len: range.len(), borrow: PhantomData }
    }

    /// The elements `range`, to write.
    ///
    /// # Safety
    /// While the result lives, nobody else reads or writes these elements.
    ///
    /// # Panics
    /// When `range` is not inside the slice.
    #[must_use]
    pub unsafe fn part_mut(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside 0..{}", self.len);
        // SAFETY: in bounds by the assertion; unaliased by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements `range`, to read.
    ///
    /// # Safety
    /// While the result lives, nobody writes these elements.
    ///
    /// # Panics
    /// When `range` is not inside the slice.
    #[must_use]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside 0..{}", self.len);
        // SAFETY: in bounds by the assertion; not written to by the caller's contract.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_aligned() {
        for len in [0, 4, 100, 4096, HUGE_PAGE - 64, HUGE_PAGE, 3 * HUGE_PAGE + 4096] {
            let mut buf = HugeBuf::zeroed(len).unwrap();
            assert_eq!(buf.len(), len);
            assert!(buf.as_slice::<u8>().iter().all(|&b| b == 0));
            if len > 0 {
                let align = if len >= HUGE_PAGE { HUGE_PAGE } else { ALIGN };
                assert_eq!(buf.as_slice::<u8>().as_ptr().addr() % align, 0, "{len}");
                *buf.as_mut_slice::<u32>().last_mut().unwrap() = 7;
                assert_eq!(buf.as_slice::<u8>()[len - 4], 7);
            }
        }
    }

    #[test]
    fn neighbours_share_pages_and_nothing_else() {
        let lens = [100, 4096, 3 * HUGE_PAGE + 64, SLAB / 2, SLAB / 2, SLAB + 4];
        let slabs = Slabs::new();
        let mut all = lens.map(|len| slabs.zeroed(len).unwrap());
        for (i, buf) in all.iter_mut().enumerate() {
            assert_eq!((buf.len(), buf.start().addr() % ALIGN), (lens[i], 0));
            assert!(buf.as_slice::<u8>().iter().all(|&b| b == 0), "{i}");
            buf.as_mut_slice::<u8>().fill(i as u8 + 1);
        }
        for (i, buf) in all.iter().enumerate() {
            assert!(buf.as_slice::<u8>().iter().all(|&b| b == i as u8 + 1), "{i}");
        }
        let [kept, rest @ ..] = all;
        drop(rest);
        assert!(kept.as_slice::<u8>().iter().all(|&b| b == 1), "memory outlives the neighbours");
        // What those that are gone used is not given again.
        assert!(slabs.zeroed(SLAB / 4).unwrap().as_slice::<u8>().iter().all(|&b| b == 0));
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        for len in [usize::MAX, usize::MAX - HUGE_PAGE, 1 << 62] {
            assert_eq!(HugeBuf::zeroed(len).unwrap_err().bytes, len);
            assert!(Slabs::new().zeroed(len).unwrap_err().bytes >= len);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn granted_huge_pages_are_counted() {
        let mut buf = HugeBuf::zeroed(4 * HUGE_PAGE).unwrap();
        assert_eq!(buf.huge_bytes(), Some(0), "nothing is granted before it is touched");
        buf.as_mut_slice::<u8>().fill(1);
        let granted = buf.huge_bytes().unwrap();
        assert!(granted.is_multiple_of(HUGE_PAGE) && granted <= 4 * HUGE_PAGE, "{granted}");
    }

    #[test]
    fn the_memory_map_is_read_by_overlap() {
        let smaps = "1000000-1600000 rw-p 00000000 00:00 0\nSize: 6144 kB\nAnonHugePages:      4096 kB\nVmFlags: rd wr\n\
                     2000000-2200000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      2048 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x1000000..0x1600000), Some(4 << 20));
        assert_eq!(huge_bytes_in(smaps, 0x1400000..0x2200000), Some(4 << 20));
        assert_eq!(huge_bytes_in(smaps, 0x3000000..0x3200000), Some(0));
    }

    #[test]
    fn workers_write_disjoint_parts() {
        let mut data = [0u32; 10];
        let shared = SharedSlice::new(&mut data);
        std::thread::scope(|scope| {
            for i in 0..5 {
                // SAFETY: each thread has its own two elements.
                scope.spawn(move || unsafe { shared.part_mut(2 * i..2 * i + 2) }.fill(i as u32));
            }
        });
        assert_eq!(data, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }
}
