//! The folder of fetched models.
//!
//! A file of the catalogue lies there under its own name. Every other model has a folder of its own, `KIND/GROUP/NAME-HASH`, with
//! its record. What is being fetched is put together in `partial/`, checked, and moved to its place in one step: so what has a
//! place is complete, whatever was killed before.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use gristmill::ByteSize;
use sha2::{Digest, Sha256};

use super::choose;
use super::file::hex;
use super::record::Record;
use super::source::{HubSource, Source};
use crate::catalogue::Entry;
use crate::output::{note, warn};

const PARTIAL: &str = "partial";
const LOCKS: &str = "locks";
const KINDS: [&str; 3] = ["hf", "url", "pip"];

/// Space that is to stay free.
const SPARE: u64 = 64 << 20;

/// The folder of fetched models.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) dir: PathBuf,
}

/// A model's place in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    kind: &'static str,
    group: String,
    leaf: String,
}

/// A model that is there.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) folder: PathBuf,
    pub(crate) record: Record,
}

impl Stored {
    /// What to open.
    ///
    /// # Errors
    /// Files are missing or have other sizes.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        if let Some(damage) = self.record.damage(&self.folder) {
            let name = &self.record.name;
            bail!(
                "{damage}: it is damaged; `gristmill models remove {name}` and `gristmill pull {name}` mend that"
            );
        }
        Ok(self.record.path(&self.folder))
    }
}

impl Place {
    /// The place of what `names` identify; the last is to be recognised by people.
    pub(crate) fn new(kind: &'static str, group: &str, names: &[&str]) -> Place {
        let mut hash = Sha256::new();
        for part in [group].iter().chain(names) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        // Whatever the system makes of capital letters, places of two models differ.
        let mut sum = hex(&hash.finalize());
        sum.truncate(12);
        let last = names.last().copied().unwrap_or_default();
        Place { kind, group: plain(group), leaf: format!("{}-{sum}", plain(last)) }
    }

    fn key(&self) -> String {
        format!("{}-{}", self.kind, self.leaf)
    }
}

/// The group of a repository.
pub(crate) fn group_of(repo: &str) -> String {
    repo.to_ascii_lowercase().replace('/', "--")
}

/// A name for a folder, on every system.
fn plain(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let text: String = text.chars().map(plain).take(80).collect();
    let text = text.trim_matches('.');
    if text.is_empty() { "model".to_owned() } else { text.to_owned() }
}

impl Store {
    /// The folder: the one given, else what `GRISTMILL_CACHE` names, else `gristmill/models` in the user's cache folder. A
    /// variable that is empty counts as not set.
    pub(crate) fn new(given: Option<&Path>) -> Result<Store> {
        if let Some(dir) = given.map(Path::to_owned).or_else(|| path_in("GRISTMILL_CACHE")) {
            return Ok(Store { dir });
        }
        let base = user_cache().ok_or_else(|| {
            anyhow!("there is no home folder to keep fetched models in: name a folder with --cache-dir, or a model with -m")
        })?;
        Ok(Store { dir: base.join("gristmill/models") })
    }

    /// A folder in the store, made.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("the cache folder {} cannot be made", folder.display()))?;
        Ok(folder)
    }

    /// Whether the file of a catalogue's entry is there.
    ///
    /// # Errors
    /// A file is there and has another size.
    pub(crate) fn has(&self, entry: &Entry) -> Result<bool> {
        let path = self.dir.join(entry.file);
        match fs::metadata(&path) {
            Ok(meta) if meta.len() == entry.bytes => Ok(true),
            Ok(meta) => bail!(
                "{} has {} bytes instead of {}: it is damaged; delete it to fetch it again",
                path.display(),
                meta.len(),
                entry.bytes
            ),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    /// Has one process at a time fetch a model; the others wait here.
    pub(crate) fn lock(&self, key: &str) -> Result<File> {
        let path = self.folder(LOCKS)?.join(plain(key));
        let lock = lock_file(&path)?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            note("another gristmill is fetching this model: waiting for it");
        }
        lock.lock().with_context(|| format!("{} cannot be locked", path.display()))?;
        Ok(lock)
    }

    /// The folder in which a model is put together, by whoever has its lock.
    pub(crate) fn staging(&self, key: &str) -> Result<PathBuf> {
        self.folder(&format!("{PARTIAL}/{}", plain(key)))
    }

    /// Sees that so many bytes can be written.
    ///
    /// # Errors
    /// They have no room.
    pub(crate) fn room(&self, bytes: u64) -> Result<()> {
        room(&self.dir, bytes)
    }

    fn at(&self, place: &Place) -> PathBuf {
        self.dir.join(place.kind).join(&place.group).join(&place.leaf)
    }

    /// The model at a place.
    pub(crate) fn get(&self, place: &Place) -> Result<Option<Stored>> {
        let folder = self.at(place);
        Ok(Record::read(&folder)?.map(|record| Stored { folder, record }))
    }

    /// Has a model at its place: the one that is there, or what `fetch` puts into the folder it is given.
    pub(crate) fn put(&self, place: &Place, fetch: impl FnOnce(&Path) -> Result<Record>) -> Result<Stored> {
        let _lock = self.lock(&place.key())?;
        if let Some(stored) = self.get(place)? {
            return Ok(stored);
        }
        let staging = self.staging(&place.key())?;
        let record = fetch(&staging)?;
        // What an earlier attempt left beside the files.
        for entry in fs::read_dir(&staging)?.flatten() {
            if !record.files.iter().any(|file| *file.name == *entry.file_name()) {
                let _ = fs::remove_file(entry.path()).or_else(|_| fs::remove_dir_all(entry.path()));
            }
        }
        record.write(&staging)?;
        let folder = self.at(place);
        if fs::symlink_metadata(&folder).is_ok() {
            // Without a record it is no model, and a folder takes the place of an empty one only.
            self.remove(&folder)?;
        }
        let parent = self.folder(&format!("{}/{}", place.kind, place.group))?;
        fs::rename(&staging, &folder).with_context(|| format!("{} cannot be written", folder.display()))?;
        if let Ok(parent) = File::open(parent) {
            let _ = parent.sync_all();
        }
        Ok(Stored { folder, record })
    }

    /// All models with a record, the latest first. A record that cannot be read is told of.
    pub(crate) fn all(&self) -> Vec<Stored> {
        let mut all = vec![];
        for kind in KINDS {
            for group in folders(&self.dir.join(kind)) {
                for folder in folders(&group) {
                    match Record::read(&folder) {
                        Ok(Some(record)) => all.push(Stored { folder, record }),
                        Ok(None) => {}
                        Err(e) => warn(format_args!("{e:#}")),
                    }
                }
            }
        }
        all.sort_by_key(|stored| std::cmp::Reverse(stored.record.fetched));
        all
    }

    /// The models of the hub that a source means, the latest first.
    pub(crate) fn of_hub(&self, source: &HubSource) -> Vec<Stored> {
        let means = |stored: &Stored| match Source::parse(&stored.record.name, &public()) {
            Ok(Some(Source::Hub(there))) => {
                let commit = stored.record.commit.as_deref().unwrap_or_default();
                let asked = source.revision();
                let revision = stored.record.revisions.iter().any(|r| r == asked)
                    || (asked.len() >= 7 && commit.starts_with(&asked.to_ascii_lowercase()));
                let choice = match (&source.choice, &there.choice) {
                    (None, _) => true,
                    (Some(asked), Some(there)) => choose::means(asked, there),
                    (Some(_), None) => false,
                };
                there.repo.eq_ignore_ascii_case(&source.repo) && revision && choice
            }
            _ => false,
        };
        let mut all = self.all();
        all.retain(means);
        all
    }

    /// Removes a model's folder: out of sight in one step, then its files. Gives the bytes that are free again.
    pub(crate) fn remove(&self, folder: &Path) -> Result<u64> {
        let bytes = size_of(folder);
        let partial = self.folder(PARTIAL)?;
        let out = tempfile::Builder::new().prefix("removed-").tempdir_in(&partial)?;
        let gone = out.path().join("model");
        fs::rename(folder, &gone).with_context(|| format!("{} cannot be removed", folder.display()))?;
        out.close().with_context(|| format!("{} cannot be removed whole", gone.display()))?;
        // The group's folder goes with its last model.
        if let Some(group) = folder.parent() {
            let _ = fs::remove_dir(group);
        }
        Ok(bytes)
    }

    /// Removes what unfinished fetches left, except of those that are running. Gives the bytes that are free again, and how
    /// many fetches are running.
    pub(crate) fn clean(&self) -> Result<(u64, usize)> {
        let (mut bytes, mut running) = (0, 0);
        for folder in self.unfinished() {
            let key = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let lock = lock_file(&self.folder(LOCKS)?.join(&key))?;
            if lock.try_lock().is_err() {
                running += 1;
                continue;
            }
            bytes += size_of(&folder);
            fs::remove_dir_all(&folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
        }
        Ok((bytes, running))
    }

    /// The folders of unfinished fetches, those of earlier versions too.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let mut all = folders(&self.dir.join(PARTIAL));
        let earlier =
            |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(".fetch-"));
        all.extend(folders(&self.dir).into_iter().filter(earlier));
        all
    }
}

/// The path that a variable of the environment holds; an empty one holds none.
pub(super) fn path_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The folder where this user's programs keep what can be had again.
pub(super) fn user_cache() -> Option<PathBuf> {
    let home = || path_in("HOME").or_else(|| path_in("USERPROFILE")).map(|home| home.join(".cache"));
    path_in("XDG_CACHE_HOME").filter(|dir| dir.is_absolute()).or_else(home)
}

/// Sees that so many bytes can be written to a folder.
///
/// # Errors
/// They have no room.
pub(crate) fn room(dir: &Path, bytes: u64) -> Result<()> {
    // Where the system does not tell, the attempt will.
    let Ok(free) = fs4::available_space(dir) else { return Ok(()) };
    if bytes > 0 && free < bytes.saturating_add(SPARE) {
        bail!(
            "{} more are to be written to {}, and only {} are free there: free some (`gristmill models` lists what was \
             fetched), or name another folder with --cache-dir",
            ByteSize(bytes),
            dir.display(),
            ByteSize(free)
        );
    }
    Ok(())
}

/// The file that is locked. What is in it, should it be a link to some other file, stays.
fn lock_file(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| format!("{} cannot be written", path.display()))
}

/// Names in records that the hub's pages also have are read alike whatever hub is set.
fn public() -> super::address::Address {
    super::web::public_hub()
}

/// The folders in a folder, in order; links are none.
fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> =
        entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect();
    all.sort();
    all
}

/// Bytes of all files in a folder.
pub(crate) fn size_of(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size_of(&entry.path()),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
        _ => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::super::record::FileRecord;
    use super::*;

    #[test]
    fn places_differ_and_are_plain() {
        let of = |names: &[&str]| Place::new("hf", "a--b", names);
        assert_ne!(of(&["c", "x.gguf"]), of(&["d", "x.gguf"]));
        assert_ne!(of(&["cd", "x"]), of(&["c", "dx"]));
        assert_ne!(of(&["X"]).leaf.to_lowercase(), of(&["x"]).leaf.to_lowercase());
        assert!(of(&["c", "q/../x:y"]).leaf.starts_with("q_.._x_y-"));
        assert!(of(&[".."]).leaf.starts_with("model-"));
    }

    fn put(store: &Store, place: &Place, text: &str) -> Result<Stored> {
        store.put(place, |dir| {
            fs::write(dir.join("m.gguf"), text)?;
            fs::write(dir.join(".gristmill-m.gguf-x.part"), "of an earlier attempt")?;
            let file = FileRecord { name: "m.gguf".into(), bytes: text.len() as u64, sha256: String::new() };
            let mut record = Record::new("hf:a/b:q/m-Q4_0.gguf".into(), vec![file]);
            record.main = Some("m.gguf".into());
            record.commit = Some("0123456789abcdef".into());
            record.renew("main");
            Ok(record)
        })
    }

    #[test]
    fn a_model_is_put_once_found_and_removed_with_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().to_owned() };
        let place = Place::new("hf", "a--b", &["0123", "m.gguf"]);
        assert!(store.put(&place, |_| bail!("the mill stands still")).is_err());
        assert!(store.all().is_empty() && store.unfinished().len() == 1);
        let path = put(&store, &place, "abc").unwrap().path().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert!(store.unfinished().is_empty());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2, "the file and its record");
        // What is there is not fetched again.
        assert_eq!(fs::read(put(&store, &place, "xyz").unwrap().path().unwrap()).unwrap(), b"abc");
        let found = |text: &str| match Source::parse(text, &public()).unwrap() {
            Some(Source::Hub(source)) => store.of_hub(&source).len(),
            other => panic!("{other:?}"),
        };
        for (text, times) in [
            ("hf:a/b", 1),
            ("hf:a/b@main", 1),
            ("hf:a/b@v1", 0),
            ("hf:A/B:Q4_0", 1),
            ("hf:a/b:m-Q4_0.gguf", 1),
            ("hf:a/b@0123456", 1),
            ("hf:a/b@0124", 0),
            ("hf:a/b:Q8_0", 0),
            ("hf:a/c", 0),
        ] {
            assert_eq!(found(text), times, "{text}");
        }
        fs::write(&path, "ab").unwrap();
        let stored = store.get(&place).unwrap().unwrap();
        assert!(stored.path().unwrap_err().to_string().contains("has 2 bytes instead of 3"));
        assert!(store.remove(&stored.folder).unwrap() > 2);
        assert!(store.all().is_empty() && !stored.folder.parent().unwrap().exists());
        assert!(store.unfinished().is_empty());
    }

    /// What was there before is neither taken for a model nor in the way of one.
    #[test]
    fn a_place_without_a_record_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().to_owned() };
        let place = Place::new("hf", "a--b", &["0123", "m.gguf"]);
        let stored = put(&store, &place, "abc").unwrap();
        fs::remove_file(stored.folder.join(super::super::record::RECORD)).unwrap();
        assert_eq!(fs::read(put(&store, &place, "xyz").unwrap().path().unwrap()).unwrap(), b"xyz");
        store.remove(&stored.folder).unwrap();
        fs::create_dir_all(stored.folder.parent().unwrap()).unwrap();
        fs::write(&stored.folder, "a file").unwrap();
        assert_eq!(fs::read(put(&store, &place, "123").unwrap().path().unwrap()).unwrap(), b"123");
        assert!(store.unfinished().is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_in_the_cache_folder_cost_nobody_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().join("store") };
        let mine = dir.path().join("mine");
        fs::create_dir(&mine).unwrap();
        fs::write(mine.join("thesis"), "years of work").unwrap();
        let key = Place::new("hf", "a--b", &["0123", "m.gguf"]);
        let link = |from: &Path, to: &Path| {
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, from).unwrap();
        };
        for lock in [key.key(), "left".into()] {
            link(&store.dir.join(LOCKS).join(lock), &mine.join("thesis"));
        }
        fs::create_dir_all(store.dir.join(PARTIAL).join("left")).unwrap();
        link(&store.dir.join(PARTIAL).join("left/deep"), &mine);
        link(&store.dir.join(PARTIAL).join("other"), &mine);
        link(&store.at(&key), &mine);
        put(&store, &key, "abc").unwrap();
        store.clean().unwrap();
        assert_eq!(fs::read_to_string(mine.join("thesis")).unwrap(), "years of work");
        assert_eq!(fs::read_dir(&mine).unwrap().count(), 1);
    }

    #[test]
    fn cleaning_leaves_what_is_being_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().to_owned() };
        for key in ["running", "left"] {
            fs::write(store.staging(key).unwrap().join("x.part"), "12345").unwrap();
        }
        fs::create_dir(dir.path().join(".fetch-earlier")).unwrap();
        let _lock = store.lock("running").unwrap();
        assert_eq!(store.clean().unwrap(), (5, 1));
        assert_eq!(store.unfinished(), [dir.path().join("partial/running")]);
    }

    #[test]
    fn what_has_no_room_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { dir: dir.path().to_owned() };
        store.room(0).unwrap();
        let problem = store.room(1 << 60).unwrap_err().to_string();
        assert!(problem.contains("are free there"), "{problem}");
    }
}
