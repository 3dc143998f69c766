//! Model files that are made in pieces, by several threads, and are there whole or not at all.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, bail};
use gristmill::parts::formats::gguf::Head;
use tempfile::NamedTempFile;

use crate::output::byte_bar;
use crate::whole::write_whole;

/// A piece of a file.
pub(crate) struct Piece<T> {
    /// Where its bytes belong.
    pub(crate) at: u64,
    /// What they are made of.
    pub(crate) what: T,
}

/// Writes the file `path`: `make` gives the bytes of each piece, in a buffer that the thread keeps. Pieces are begun in
/// their order.
///
/// Its first bytes are written last: whatever interrupts this, nothing that could be taken for a model is left, under no name.
/// Otherwise as [`write_whole`].
///
/// # Errors
/// What `make` says, and the system's; the unfinished file is removed.
pub(crate) fn write<T: Sync>(
    path: &Path,
    head: &Head,
    pieces: &[Piece<T>],
    threads: usize,
    make: impl Fn(&T, &mut Vec<u8>) -> Result<()> + Sync,
) -> Result<()> {
    write_whole(path, |file| write_pieces(file, head, pieces, threads, make))
}

fn write_pieces<T: Sync>(
    file: &mut NamedTempFile,
    head: &Head,
    pieces: &[Piece<T>],
    threads: usize,
    make: impl Fn(&T, &mut Vec<u8>) -> Result<()> + Sync,
) -> Result<()> {
    file.as_file().set_len(head.len)?;
    let shared = &*file;
    let bar = byte_bar("writing", Some(head.len));
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        // Its own file, for its own position.
        let mut file = shared.reopen()?;
        let mut buffer = vec![];
        while !failed.load(Ordering::Relaxed)
            && let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
        {
            make(&piece.what, &mut buffer)?;
            file.seek(SeekFrom::Start(piece.at))?;
            file.write_all(&buffer)?;
            bar.inc(buffer.len() as u64);
        }
        Ok(())
    };
    let work = || work().inspect_err(|_| failed.store(true, Ordering::Relaxed));
    let ended = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a thread panicked")));
        // Every thread is waited for, whatever the others say.
        let ended: Vec<Result<()>> = ended.collect();
        ended.into_iter().collect::<Result<()>>()
    });
    bar.finish_and_clear();
    ended?;
    file.as_file().sync_data()?;
    Ok(file.write_all(&head.bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head { bytes: b"GGUF".to_vec(), places: vec![], len: 4 + 64 }
    }

    fn pieces() -> Vec<Piece<u8>> {
        (0..8).map(|i| Piece { at: 4 + 8 * u64::from(i), what: i }).collect()
    }

    #[test]
    fn until_the_end_there_is_no_model_and_the_old_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, b"old").unwrap();
        write(&path, &head(), &pieces(), 2, |what, out| {
            // What a process leaves that is killed here.
            let mut names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
            let part = std::fs::read(names.find(|name| *name != path).unwrap()).unwrap();
            assert_eq!(part[..4], [0; 4]);
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            out.clear();
            out.extend([*what; 8]);
            Ok(())
        })
        .unwrap();
        let want: Vec<u8> = b"GGUF".iter().copied().chain((0..64).map(|i| i / 8)).collect();
        assert_eq!(std::fs::read(&path).unwrap(), want);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, b"old").unwrap();
        let failed =
            write(
                &path,
                &head(),
                &pieces(),
                3,
                |what, _| {
                    if *what == 3 { bail!("the third") } else { Ok(()) }
                },
            );
        assert!(format!("{:#}", failed.unwrap_err()).ends_with("m.gguf cannot be written: the third"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
