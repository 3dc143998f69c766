//! One file from one address: continued where it broke off, checked whole, and under its name only then.
//!
//! Until then it is `NAME.part`, beside `NAME.part.json`, which says what the bytes are of.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::header;

use super::address::Address;
use super::failure::{Failure, Kind};
use super::store::room;
use super::web::{Reply, Web};
use crate::output::warn;
use crate::whole::write_bytes;

const BUFFER: usize = 1 << 18;

/// What is said of unfinished files is not longer.
const MOST_STATE: u64 = 1 << 20;
/// After so many bytes it is seen whether there is still room: of some answers nobody says how long they are.
const LOOK: u64 = 32 << 20;

/// What is known of a file before it is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// Its SHA-256, in lower-case hexadecimal.
    Sha256(String),
    /// The name that Git gives its content.
    GitBlob(String),
    /// Nothing.
    None,
}

/// A file to fetch.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) address: Address,
    /// Its name in the folder.
    pub(crate) name: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) check: Check,
}

/// A file that is there.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Another file failed.
#[derive(Debug)]
pub(crate) struct Stopped;

impl std::error::Error for Stopped {}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped, as another file failed")
    }
}

/// What the bytes of an unfinished file are of.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Debug)]
struct State {
    address: String,
    /// The server's name for the content; empty when it gave none.
    validator: String,
    total: Option<u64>,
}

/// The sums of what a file has so far.
struct Sums {
    sha256: Sha256,
    git: Option<Sha1>,
}

impl Sums {
    fn new(wanted: &Wanted, total: Option<u64>) -> Sums {
        let git = matches!(wanted.check, Check::GitBlob(_)).then(|| {
            let mut git = Sha1::new();
            git.update(format!("blob {}\0", total.unwrap_or_default()));
            git
        });
        Sums { sha256: Sha256::new(), git }
    }

    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.git.iter_mut().for_each(|git| git.update(bytes));
    }

    /// The SHA-256, and what is wrong.
    fn verdict(self, check: &Check) -> (String, Option<String>) {
        let sha256 = hex(&self.sha256.finalize());
        let wrong = |what: &str, found: &str, want: &str| {
            (found != want).then(|| format!("has the {what} {found} instead of {want}"))
        };
        let problem = match check {
            Check::Sha256(want) => wrong("SHA-256", &sha256, want),
            Check::GitBlob(want) => {
                wrong("Git SHA-1", &self.git.map(|g| hex(&g.finalize())).unwrap_or_default(), want)
            }
            Check::None => None,
        };
        (sha256, problem)
    }
}

/// In lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Size and SHA-256 of a file.
pub(crate) fn sum_of(path: &Path, mut seen: impl FnMut(u64)) -> Result<Got> {
    let mut sum = Sha256::new();
    let bytes = walk(path, |bytes| {
        sum.update(bytes);
        seen(bytes.len() as u64);
    });
    let bytes = bytes.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(Got { bytes, sha256: hex(&sum.finalize()) })
}

fn walk(path: &Path, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let (mut buffer, mut all) = (vec![0; BUFFER], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(all),
            n => {
                each(&buffer[..n]);
                all += n as u64;
            }
        }
    }
}

/// Bytes of a file that are there already, finished or not.
pub(crate) fn present(dir: &Path, name: &str) -> u64 {
    let size = |path: PathBuf| fs::metadata(path).map(|m| m.len());
    size(dir.join(name)).or_else(|_| size(part_of(dir, name))).unwrap_or(0)
}

/// Where a file of a folder is until it is whole.
pub(super) fn part_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part"))
}

/// Where it is said what the bytes of an unfinished file are of.
pub(super) fn state_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part.json"))
}

/// What is said of an unfinished file; `None` when nothing is, or not in this form.
pub(super) fn read_state<S: DeserializeOwned>(path: &Path) -> Option<S> {
    serde_json::from_reader(BufReader::new(File::open(path).ok()?.take(MOST_STATE))).ok()
}

/// Says what the bytes of an unfinished file are of.
pub(super) fn write_state(path: &Path, state: &impl Serialize) -> Result<()> {
    write_bytes(path, &serde_json::to_vec(state)?)
}

/// Fetches a file into a folder that is this process's own. `stop` ends it early, as a failure of another file does.
///
/// # Errors
/// The server's, after some patience; the system's; the content is not what it should be, in which case it is gone.
pub(crate) fn download(
    web: &Web,
    wanted: &Wanted,
    dir: &Path,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> Result<Got> {
    let path = dir.join(&wanted.name);
    if path.is_file() {
        // Of a fetch that ended between this file and another. Only what can be checked is worth keeping.
        let mut sums = Sums::new(wanted, wanted.bytes);
        let bytes = walk(&path, |bytes| sums.update(bytes))?;
        if let (sha256, None) = sums.verdict(&wanted.check)
            && wanted.check != Check::None
        {
            bar.inc(bytes);
            return Ok(Got { bytes, sha256 });
        }
        fs::remove_file(&path)?;
    }
    let mut part = Part::open(wanted, dir, bar)?;
    let mut again = true;
    loop {
        let ended = part.fill(web, stop)?;
        let (sha256, problem) = ended.verdict(&wanted.check);
        let Some(problem) = problem else {
            part.file.sync_all()?;
            fs::rename(&part.path, &path).with_context(|| format!("{} cannot be written", path.display()))?;
            let _ = fs::remove_file(&part.state_path);
            return Ok(Got { bytes: part.len, sha256 });
        };
        let resumed = part.resumed;
        part.restart(State::default())?;
        let told = format!("{} of {} {problem}", wanted.name, wanted.address);
        if !(again && resumed) {
            part.remove();
            bail!(
                "{told}: what came is not that file, and was removed. Run this again; if it stays so, the server or a \
                 proxy on the way to it gives something else"
            );
        }
        warn(format_args!(
            "{told}: it was continued from an earlier attempt, and is now fetched from its beginning"
        ));
        again = false;
    }
}

/// An unfinished file.
struct Part<'a> {
    wanted: &'a Wanted,
    path: PathBuf,
    state_path: PathBuf,
    file: File,
    state: State,
    sums: Sums,
    len: u64,
    /// Not all of its bytes are of one answer.
    resumed: bool,
    bar: &'a ProgressBar,
}

impl<'a> Part<'a> {
    fn open(wanted: &'a Wanted, dir: &Path, bar: &'a ProgressBar) -> Result<Part<'a>> {
        let path = part_of(dir, &wanted.name);
        let state_path = state_of(dir, &wanted.name);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        let sums = Sums::new(wanted, wanted.bytes);
        let state: Option<State> = read_state(&state_path);
        let state = state.filter(|state| state.address == wanted.address.to_string());
        let mut part = Part {
            wanted,
            path,
            state_path,
            file,
            state: State::default(),
            sums,
            len: 0,
            resumed: false,
            bar,
        };
        match state {
            Some(state) if part.wanted.bytes.is_none_or(|bytes| state.total == Some(bytes)) => {
                part.len = walk(&part.path, |bytes| part.sums.update(bytes))?;
                part.resumed = part.len > 0;
                part.state = state;
                bar.inc(part.len);
            }
            _ => part.restart(State::default())?,
        }
        Ok(part)
    }

    /// Begins anew with bytes of this.
    fn restart(&mut self, state: State) -> Result<()> {
        self.bar.dec(self.len);
        self.file.set_len(0)?;
        if !state.address.is_empty() {
            write_state(&self.state_path, &state)?;
        }
        self.sums = Sums::new(self.wanted, state.total);
        (self.state, self.len, self.resumed) = (state, 0, false);
        Ok(())
    }

    fn remove(self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.state_path);
    }

    /// Fetches what is missing and gives the sums of the whole.
    fn fill(&mut self, web: &Web, stop: &AtomicBool) -> Result<Sums> {
        // What is no failure of the web ends it at once.
        let mut other = None;
        let gained = std::cell::Cell::new(0u64);
        let ended = web.patiently(
            || gained.get(),
            || {
                let before = self.len;
                let ended = self.attempt(web, stop);
                gained.set(gained.get() + self.len.saturating_sub(before));
                match ended {
                    Ok(()) => Ok(()),
                    Err(error) => match error.downcast::<Failure>() {
                        Ok(failure) => Err(failure),
                        Err(error) => {
                            other = Some(error);
                            Ok(())
                        }
                    },
                }
            },
        );
        ended?;
        match other {
            Some(error) => Err(error),
            None => Ok(std::mem::replace(&mut self.sums, Sums::new(self.wanted, None))),
        }
    }

    fn attempt(&mut self, web: &Web, stop: &AtomicBool) -> Result<()> {
        if self.len > 0 && self.state.total == Some(self.len) {
            return Ok(());
        }
        let strong = !self.state.validator.is_empty() && !self.state.validator.starts_with("W/");
        // Without a name of the content, and nothing to check it by, nobody knows whether more bytes are of the same file.
        if self.len > 0 && !strong && self.wanted.check == Check::None {
            self.restart(State::default())?;
        }
        let mut headers = vec![];
        if self.len > 0 {
            headers.push((header::RANGE, format!("bytes={}-", self.len)));
            if strong {
                headers.push((header::IF_RANGE, self.state.validator.clone()));
            }
        }
        let reply = match web.get(&self.wanted.address, &headers) {
            Err(failure) if failure.status() == Some(416) && self.len > 0 => {
                self.restart(State::default())?;
                web.get(&self.wanted.address, &[])?
            }
            reply => reply?,
        };
        let reply = self.fits(web, reply)?;
        let (at, mut body) = (reply.at, reply.body.into_reader());
        let (mut buffer, total) = (vec![0; BUFFER], self.state.total);
        let fail = |kind| Failure::new(&at, kind);
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut look = self.len;
        while total.is_none_or(|total| self.len <= total) {
            if stop.load(Ordering::Relaxed) {
                return Err(Stopped.into());
            }
            let n = match body.read(&mut buffer) {
                Ok(0) if total.is_none_or(|total| self.len == total) => return Ok(()),
                Ok(0) => return Err(fail(Kind::Broken { got: self.len, of: total, cause: None }).into()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    return Err(fail(Kind::Broken { got: self.len, of: total, cause: Some(e) }).into());
                }
            };
            if self.len >= look {
                room(folder, total.map_or(LOOK, |total| total - self.len))?;
                look = self.len + LOOK;
            }
            self.file.write_all(&buffer[..n]).with_context(|| {
                format!(
                    "{} cannot be written; what is there is kept, and continued next time",
                    self.path.display()
                )
            })?;
            self.sums.update(&buffer[..n]);
            self.len += n as u64;
            self.bar.inc(n as u64);
        }
        let problem =
            format!("more came than the {} bytes of {}", total.unwrap_or_default(), self.wanted.name);
        self.restart(State::default())?;
        Err(fail(Kind::Senseless(problem)).into())
    }

    /// Sees that an answer continues what is there, or begins anew with it.
    fn fits(&mut self, web: &Web, mut reply: Reply) -> Result<Reply> {
        if reply.status == 206 {
            let (start, total) = content_range(&reply).unwrap_or((u64::MAX, None));
            let other = self.state.validator != validator(&reply) && !validator(&reply).is_empty();
            // Of checked files, each server may have its own name for the content.
            let changed = other && self.wanted.check == Check::None;
            if start == self.len && total == self.state.total && !changed {
                self.resumed = true;
                return Ok(reply);
            }
            // Not what was asked for: once more, for all of it.
            reply = web.get(&self.wanted.address, &[])?;
        }
        let kind = |words: String| Failure::new(&reply.at, Kind::Senseless(words));
        if reply.status != 200 {
            return Err(kind("a part of the file came where all of it was asked for".into()).into());
        }
        let total = reply.header(header::CONTENT_LENGTH).and_then(|n| n.trim().parse().ok());
        if let (Some(total), Some(bytes)) = (total, self.wanted.bytes)
            && total != bytes
        {
            return Err(kind(format!("the file has {total} bytes there, and should have {bytes}")).into());
        }
        let state = State {
            address: self.wanted.address.to_string(),
            validator: validator(&reply).to_owned(),
            total: self.wanted.bytes.or(total),
        };
        self.restart(state)?;
        Ok(reply)
    }
}

/// The server's name for the content.
fn validator(reply: &Reply) -> &str {
    reply.header(header::ETAG).or_else(|| reply.header(header::LAST_MODIFIED)).unwrap_or_default()
}

/// Start and total of `bytes 5-9/10`.
fn content_range(reply: &Reply) -> Option<(u64, Option<u64>)> {
    let range = reply.header(header::CONTENT_RANGE)?.trim().strip_prefix("bytes")?.trim();
    let (range, total) = range.split_once('/')?;
    Some((range.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
}
