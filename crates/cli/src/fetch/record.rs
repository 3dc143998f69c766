//! What is written beside a fetched model: where it came from and what its files are.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::source::is_plain;
use crate::whole::write_bytes;

/// The record's name in a model's folder.
pub(super) const RECORD: &str = ".gristmill.json";

const VERSION: u32 = 1;

/// Records are not longer.
const MOST: u64 = 4 << 20;

/// A model that was fetched whole.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Record {
    version: u32,
    /// What it is called; `-m` and `pull` take it.
    pub(crate) name: String,
    /// The commit of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// Branches and tags that were at the commit when they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) revisions: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) licence: Option<String>,
    /// Architecture and types; empty when this program does not read it.
    #[serde(default)]
    pub(crate) about: String,
    /// The file to open; without one, the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) main: Option<String>,
    pub(crate) files: Vec<FileRecord>,
    /// When it was last asked of its source: milliseconds since 1970.
    pub(crate) fetched: u64,
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_millis() as u64)
}

/// A file of a model.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl Record {
    pub(crate) fn new(name: String, files: Vec<FileRecord>) -> Record {
        Record {
            version: VERSION,
            name,
            commit: None,
            revisions: vec![],
            licence: None,
            about: String::new(),
            main: None,
            files,
            fetched: now(),
        }
    }

    /// Notes that it was asked for again, by a revision.
    pub(crate) fn renew(&mut self, revision: &str) {
        if !self.revisions.iter().any(|r| r == revision) {
            self.revisions.push(revision.to_owned());
        }
        self.fetched = now();
    }

    /// The record of a folder; `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not one that this program wrote.
    pub(crate) fn read(folder: &Path) -> Result<Option<Record>> {
        let path = folder.join(RECORD);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(e) => return Err(e).with_context(|| path.display().to_string()),
        };
        let mut text = vec![];
        file.take(MOST + 1).read_to_end(&mut text).with_context(|| path.display().to_string())?;
        let read = || -> Result<Record> {
            if text.len() as u64 > MOST {
                bail!("it is longer than {MOST} bytes");
            }
            let record: Record = serde_json::from_slice(&text)?;
            if record.version != VERSION {
                bail!("it is of version {}, and this program knows {VERSION}", record.version);
            }
            let names = record.files.iter().map(|f| &f.name);
            // What is opened, summed or removed by a record lies in its folder.
            if let Some(name) = names.chain(&record.main).find(|name| !is_plain(name)) {
                bail!("{name:?} is no file of its folder");
            }
            if record.files.is_empty() {
                bail!("it names no files");
            }
            let texts =
                [&record.name, &record.about].into_iter().chain(&record.commit).chain(&record.licence);
            let texts = texts.chain(&record.revisions).chain(record.files.iter().map(|f| &f.sha256));
            // All of them are printed.
            if texts.flat_map(|text| text.chars()).any(char::is_control) {
                bail!("it has control characters in it");
            }
            let hex = |c: &String| !c.is_empty() && c.bytes().all(|b| b.is_ascii_hexdigit());
            if !record.commit.iter().all(hex) {
                bail!("its commit is none");
            }
            Ok(record)
        };
        let read = read().map_err(|e| {
            anyhow!(
                "{} is no record of a fetched model ({e:#}): remove its folder and fetch the model again",
                path.display()
            )
        });
        read.map(Some)
    }

    /// Writes it into a folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        write_bytes(&folder.join(RECORD), &text)
    }

    /// What to open, in its folder.
    pub(crate) fn path(&self, folder: &Path) -> std::path::PathBuf {
        self.main.as_ref().map_or_else(|| folder.to_owned(), |main| folder.join(main))
    }

    /// The commit as people tell it from others.
    pub(crate) fn short_commit(&self) -> Option<&str> {
        self.commit.as_deref().map(|commit| commit.get(..12).unwrap_or(commit))
    }

    /// Size of its files together.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, f| sum.saturating_add(f.bytes))
    }

    /// What is wrong with the sizes of the files.
    pub(crate) fn damage(&self, folder: &Path) -> Option<String> {
        self.files.iter().find_map(|file| {
            let path = folder.join(&file.name);
            match fs::metadata(&path) {
                Ok(found) if found.len() == file.bytes => None,
                Ok(found) => {
                    Some(format!("{} has {} bytes instead of {}", path.display(), found.len(), file.bytes))
                }
                Err(e) => Some(format!("{}: {e}", path.display())),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_written_and_hostile_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Record::read(dir.path()).unwrap().is_none());
        let file = FileRecord { name: "m.gguf".into(), bytes: 3, sha256: "0".repeat(64) };
        let mut record = Record::new("hf:a/b".into(), vec![file]);
        record.main = Some("m.gguf".into());
        record.commit = Some("0123456789abcdef".into());
        record.renew("main");
        record.licence = Some("mit".into());
        record.about = "llama Q4_0".into();
        record.write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(RECORD)).unwrap();
        let again = Record::read(dir.path()).unwrap().unwrap();
        assert_eq!((again.name.as_str(), again.bytes()), ("hf:a/b", 3));
        assert!(again.damage(dir.path()).unwrap().contains("m.gguf"));
        fs::write(dir.path().join("m.gguf"), "abc").unwrap();
        assert_eq!(again.damage(dir.path()), None);
        for (from, to) in [
            ("\"m.gguf\"", "\"../m.gguf\""),
            ("\"m.gguf\"", "\"/etc/passwd\""),
            ("\"version\": 1", "\"version\": 2"),
            ("hf:a/b", "hf:\\u001b[2J"),
            ("mit", "\\u001b[2J"),
            ("llama", "\\u001b[2J"),
            ("\"main\"", "\"\\n\""),
            ("\"000", "\"\\r"),
            // Its twelfth byte is within a character.
            ("0123456789abcdef", "0123456789aüü"),
            ("0123456789abcdef", ""),
            ("{", "["),
            ("\"bytes\": 3", "\"bytes\": -3"),
        ] {
            assert!(text.contains(from), "{text}");
            fs::write(dir.path().join(RECORD), text.replacen(from, to, 9)).unwrap();
            let problem = Record::read(dir.path()).unwrap_err().to_string();
            assert!(problem.contains("no record of a fetched model"), "{from}: {problem}");
        }
        fs::write(dir.path().join(RECORD), vec![b' '; MOST as usize + 2]).unwrap();
        assert!(Record::read(dir.path()).is_err());
    }
}
