//! Files that are there whole or not at all.

use std::fs::{self, FileType, Permissions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use tempfile::NamedTempFile;

/// Symbolic links that are followed from one to the next, as many as Linux follows.
const MOST_LINKS: usize = 40;

/// Writes a file so that its name stands for all of it or for what it stood for before: what `write` writes goes to a new file
/// in the same folder, which takes the name in the end. A name that is a symbolic link stays one: the file it leads to is
/// written. A file that is replaced hands its permissions on.
///
/// # Errors
/// Something is there that is no regular file, such as a folder or a device; the folder is not there or cannot be written; what
/// `write` gives.
pub(crate) fn write_whole<T>(path: &Path, write: impl FnOnce(&mut NamedTempFile) -> Result<T>) -> Result<T> {
    write_for(Readers::All, path, write)
}

/// Writes these bytes as [`write_whole`] does.
///
/// # Errors
/// As [`write_whole`].
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, |file| Ok(file.write_all(bytes)?))
}

/// Writes what nobody else is to read, as [`write_whole`] does.
///
/// # Errors
/// As [`write_whole`].
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    write_for(Readers::User, path, |file| Ok(file.write_all(bytes)?))
}

/// Who may read a new file, where the system knows such things.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// Those of any new file.
    All,
    /// The user alone.
    User,
}

fn write_for<T>(
    readers: Readers,
    path: &Path,
    write: impl FnOnce(&mut NamedTempFile) -> Result<T>,
) -> Result<T> {
    let written = target_of(path).and_then(|(target, permissions)| {
        let folder = folder_of(&target)?;
        let prefix = prefix_of(&target);
        remove_left(folder, &prefix);
        #[cfg(not(unix))]
        let _ = readers;
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(SUFFIX);
        #[cfg(unix)]
        if readers == Readers::All {
            // What the process masks is taken off. Without this a temporary file is for the user alone.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(Permissions::from_mode(0o666));
        }
        let mut file = builder.tempfile_in(folder)?;
        // While this lives, no other writer takes it for one that was left. A system that cannot lock leaves it to be removed by
        // hand.
        let _ = file.as_file().try_lock();
        let result = write(&mut file)?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        file.as_file().sync_all()?;
        file.persist(&target)?;
        // The name, too, is to outlive a loss of power. Folders cannot be opened on every system.
        if let Ok(folder) = fs::File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(result)
    });
    written.with_context(|| format!("{} cannot be written", path.display()))
}

/// The folder that a file is to be in.
///
/// # Errors
/// It is not there.
pub(crate) fn folder_of(file: &Path) -> Result<&Path> {
    let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    match folder.is_dir() {
        true => Ok(folder),
        false if folder.exists() => bail!("{} is no folder", folder.display()),
        false => bail!("the folder {} is not there", folder.display()),
    }
}

const SUFFIX: &str = ".part";

/// How the names of unfinished files for this one begin.
fn prefix_of(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let short: String = name.chars().take(40).collect();
    format!(".gristmill-{short}-")
}

/// Removes what writers of the same file left that were killed. Those that live hold a lock.
fn remove_left(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let left = name.to_str().is_some_and(|name| name.starts_with(prefix) && name.ends_with(SUFFIX));
        let file = || fs::OpenOptions::new().write(true).open(entry.path());
        if left
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && file().is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file that a name leads to, with its permissions if it is there.
fn target_of(path: &Path) -> Result<(PathBuf, Option<Permissions>)> {
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let found = match fs::symlink_metadata(&target) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((target, None)),
            Err(error) => return Err(error.into()),
        };
        if found.is_file() {
            return Ok((target, Some(found.permissions())));
        }
        if !found.is_symlink() {
            bail!("it is {}, and only a regular file is replaced", kind(found.file_type()));
        }
        let next = fs::read_link(&target)?;
        // Relative to the folder of the link.
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(anyhow!("more than {MOST_LINKS} symbolic links lead from one to the next"))
}

fn kind(file: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kinds = [
            (file.is_fifo(), "a named pipe"),
            (file.is_socket(), "a socket"),
            (file.is_block_device() || file.is_char_device(), "a device"),
        ];
        if let Some((_, name)) = kinds.iter().find(|(is, _)| *is) {
            return name;
        }
    }
    if file.is_dir() { "a folder" } else { "no file" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> Result<()> {
        write_bytes(path, text.as_bytes())
    }

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_written_and_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(dir.path().join("model.gguf.part"), "of somebody else").unwrap();
        for text in ["one", "the other"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let failed = write_whole(&path, |file| -> Result<()> {
            file.write_all(b"half of")?;
            bail!("the mill stands still")
        });
        let problem = format!("{:#}", failed.unwrap_err());
        assert!(problem.contains("model.gguf cannot be written: the mill"), "{problem}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "the other");
        assert_eq!(names(dir.path()), ["model.gguf", "model.gguf.part"]);
        assert_eq!(fs::read_to_string(dir.path().join("model.gguf.part")).unwrap(), "of somebody else");
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_by_the_next_of_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let others = [".gristmill-other.gguf-abc.part", ".gristmill-model.gguf-abc.party", "model.gguf.part"];
        for name in others.into_iter().chain([".gristmill-model.gguf-killed.part"]) {
            fs::write(dir.path().join(name), "half of").unwrap();
        }
        write_whole(&path, |_| {
            // The next does not take what is being written now.
            let during = names(dir.path()).len();
            write(&path, "one").unwrap();
            assert_eq!(names(dir.path()).len(), during + 1);
            Ok(())
        })
        .unwrap();
        write(&path, "two").unwrap();
        let mut want: Vec<String> = others.into_iter().chain(["model.gguf"]).map(str::to_owned).collect();
        want.sort();
        assert_eq!(names(dir.path()), want);
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
    }

    #[test]
    fn what_is_no_file_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let refused = |path: &Path, kind: &str| {
            let problem = format!("{:#}", write(path, "x").unwrap_err());
            assert!(problem.contains(&path.display().to_string()) && problem.contains(kind), "{problem}");
        };
        refused(&folder, "a folder");
        refused(&dir.path().join("none/model.gguf"), "none is not there");
        assert!(folder.is_dir());
        assert_eq!(names(dir.path()), ["folder"]);
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_sockets_are_refused_and_stay() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let (pipe, socket) = (dir.path().join("pipe"), dir.path().join("socket"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, kind) in [(&pipe, "a named pipe"), (&socket, "a socket")] {
            let problem = format!("{:#}", write(path, "x").unwrap_err());
            assert!(problem.contains(kind), "{problem}");
        }
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
        assert_eq!(names(dir.path()), ["pipe", "socket"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_are_those_of_any_file() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        fs::create_dir(at("deep")).unwrap();
        symlink("deep/second", at("first")).unwrap();
        symlink("model.gguf", at("deep/second")).unwrap();
        // At first the links lead to nothing.
        for text in ["one", "the other"] {
            write(&at("first"), text).unwrap();
            assert_eq!(fs::read_to_string(at("deep/model.gguf")).unwrap(), text);
            fs::set_permissions(at("deep/model.gguf"), Permissions::from_mode(0o640)).unwrap();
        }
        assert_eq!((names(dir.path()), names(&at("deep")).len()), (vec!["deep".into(), "first".into()], 2));
        write(&at("first"), "once more").unwrap();
        assert_eq!(mode(&at("deep/model.gguf")), 0o640);
        fs::write(at("plain"), "").unwrap();
        write(&at("whole"), "").unwrap();
        assert_eq!(mode(&at("whole")), mode(&at("plain")));
        write_private(&at("private"), b"x").unwrap();
        write_private(&at("deep/model.gguf"), b"x").unwrap();
        assert_eq!((mode(&at("private")), mode(&at("deep/model.gguf"))), (0o600, 0o640));
        symlink("round", at("about")).unwrap();
        symlink("about", at("round")).unwrap();
        let problem = format!("{:#}", write(&at("round"), "x").unwrap_err());
        assert!(problem.contains("symbolic links"), "{problem}");
    }
}
