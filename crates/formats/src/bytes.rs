//! The bytes of a file: mapped, or held in memory.

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// The most files that one model is opened from. Each is a mapping of its own, of which systems allow a process some: Linux
/// 65530 unless it is told otherwise, and says of more that there is no memory.
pub(crate) const MAX_SHARDS: usize = 16_384;

/// A read-only run of bytes, cheap to clone.
#[derive(Clone)]
pub struct Bytes(Inner);

#[derive(Clone)]
enum Inner {
    Memory(Arc<[u8]>),
    /// Apart from `Memory`, which a vector would have to be copied into.
    Vector(Arc<Vec<u8>>),
    #[cfg(not(target_arch = "wasm32"))]
    Mapped(Arc<memmap2::Mmap>),
}

impl Bytes {
    /// Maps a file read-only.
    ///
    /// The file must not be truncated or rewritten in place while it is in use: pages that are no longer there end
    /// the process with SIGBUS, and changed bytes change the model. Replacing it by renaming another file over it
    /// is safe. An empty file gives empty bytes.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or mapped: always in browsers, which have no files.
    pub fn map(path: &Path) -> std::io::Result<Self> {
        let file = open_regular(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(Inner::Memory(Arc::from([]))));
        }
        Self::map_file(&file)
    }

    #[cfg(target_arch = "wasm32")]
    fn map_file(_file: &File) -> std::io::Result<Self> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn map_file(file: &File) -> std::io::Result<Self> {
        // SAFETY: the map is read-only, owned by this value, and as long as the file was when it was mapped, so the slice
        // that `deref` lends is valid while the map lives, provided that nobody changes the file meanwhile. That no
        // program can ensure; it is asked of the caller above. Should it happen all the same, the damage is bounded:
        // the bytes are untrusted anyway, offsets are copied out when they are checked and never read from the map
        // again, so that other bytes give other numbers, not other addresses.
        let map = unsafe { memmap2::Mmap::map(file)? };
        Ok(Self(Inner::Mapped(Arc::new(map))))
    }

    /// Lets the system take back the memory that mapped pages of a part of `range` hold; reading them again brings them back
    /// from the file. `part` counts from the start of the range and may reach beyond its end. Nothing happens to bytes in
    /// memory, or where the system has no such call.
    pub(crate) fn release(&self, range: &Range<usize>, part: Range<usize>) {
        let range = released(range, part);
        #[cfg(unix)]
        if let Inner::Mapped(map) = &self.0
            && range.start < range.end
            && range.end <= map.len()
        {
            // SAFETY: the map is a read-only view of a file and never written, so a dropped page reads the same again.
            // Advice that the system refuses costs memory, never results.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Pages are at least so large; where they are larger, the system rounds for itself.
const PAGE: usize = 4096;

/// The part of a range, without pages that the rest of the range shares: who reads that is not to fetch them again.
fn released(range: &Range<usize>, part: Range<usize>) -> Range<usize> {
    let [start, end] = [part.start, part.end].map(|at| range.start + at.min(range.len()));
    let start = if start > range.start { start.next_multiple_of(PAGE) } else { start };
    let end = if end < range.end { end / PAGE * PAGE } else { end };
    start..end
}

/// Opens a regular file. Anything else may block for ever (a pipe) or never end (a device), and a folder out of an
/// archive can hold links to such.
fn open_regular(path: &Path) -> std::io::Result<File> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

/// Reads a whole regular file into memory.
pub(crate) fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Memory(bytes) => bytes,
            Inner::Vector(bytes) => bytes,
            #[cfg(not(target_arch = "wasm32"))]
            Inner::Mapped(map) => map,
        }
    }
}

impl From<Arc<[u8]>> for Bytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(Inner::Memory(bytes))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Inner::Vector(Arc::new(bytes)))
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.0 {
            Inner::Memory(_) | Inner::Vector(_) => "in memory",
            #[cfg(not(target_arch = "wasm32"))]
            Inner::Mapped(_) => "mapped",
        };
        write!(f, "{} bytes, {kind}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_released_without_pages_of_the_rest() {
        let range = 100..100_000;
        assert_eq!(released(&range, 0..usize::MAX), range);
        assert_eq!(released(&range, 0..50_000), 100..49_152);
        assert_eq!(released(&range, 50_000..99_900), 53_248..100_000);
        assert_eq!(released(&range, 4_000..9_000), 8_192..8_192);
        assert!(released(&range, 4_000..5_000).is_empty());
        assert!(released(&range, usize::MAX..usize::MAX).is_empty());
    }

    #[test]
    fn what_is_in_memory_is_not_copied() {
        let vector = vec![7u8; 100];
        let at = vector.as_ptr();
        let bytes = Bytes::from(vector);
        assert_eq!((bytes.as_ptr(), bytes.clone().as_ptr(), bytes.len()), (at, at, 100));
        let shared: Arc<[u8]> = Arc::from([1u8, 2, 3]);
        assert_eq!(Bytes::from(shared.clone()).as_ptr(), shared.as_ptr());
    }
}
