//! Model files that are made in pieces, by several threads, and are there whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use gristmill::parts::formats::gguf::Head;

use crate::output::byte_bar;

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
/// It is written under another name, its first bytes last, brought to the disk and renamed: whatever interrupts this,
/// nothing that could be taken for a model is left, and an older file of the name stays until the new one is whole.
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
    let mut part = path.to_owned().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = write_part(&part, head, pieces, threads, make);
    let moved = written.and_then(|()| Ok(std::fs::rename(&part, path)?));
    moved.inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })?;
    // The new name, too, is to outlive a loss of power. Folders cannot be opened on every system.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn write_part<T: Sync>(
    part: &Path,
    head: &Head,
    pieces: &[Piece<T>],
    threads: usize,
    make: impl Fn(&T, &mut Vec<u8>) -> Result<()> + Sync,
) -> Result<()> {
    let mut file = File::create(part).with_context(|| format!("{} cannot be made", part.display()))?;
    file.set_len(head.len)?;
    let bar = byte_bar("writing");
    bar.set_length(head.len);
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        // Its own file, for its own position.
        let mut file = OpenOptions::new().write(true).open(part)?;
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
    file.sync_data()?;
    file.write_all(&head.bytes)?;
    Ok(file.sync_all()?)
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
            let part = std::fs::read(dir.path().join("m.gguf.part")).unwrap();
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
        // What an earlier run left is in nobody's way.
        std::fs::write(dir.path().join("m.gguf.part"), b"longer than all of the file that is to be written")
            .unwrap();
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
        assert_eq!(failed.unwrap_err().to_string(), "the third");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
