//! A repository of the hub: what it holds at which commit, and what to do when it is not to be had.

use std::collections::HashMap;

use anyhow::{Result, anyhow};
use serde::Deserialize;

use super::address::{Address, encoded};
use super::failure::{Failure, Kind};
use super::file::{Check, Wanted};
use super::source::{HubSource, is_plain};
use super::web::Web;

/// Pages of a list of files, of a thousand each.
const MOST_PAGES: usize = 100;

/// Lists of shards are not longer.
const MOST_INDEX: u64 = 64 << 20;

/// What a repository holds.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) repo: String,
    /// The commit, to which everything else is pinned.
    pub(crate) commit: String,
    pub(crate) licence: Option<String>,
    pub(crate) files: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HubFile {
    /// Path in the repository, of plain names.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) check: Check,
}

impl HubFile {
    /// The last part of its path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Size of files together; servers can claim any.
pub(crate) fn bytes_of<'a>(files: impl IntoIterator<Item = &'a HubFile>) -> u64 {
    files.into_iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

#[derive(Deserialize)]
struct Found {
    id: String,
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What a repository holds at a revision.
///
/// # Errors
/// Of the web, worded for whoever asked for this repository.
pub(crate) fn list(web: &Web, source: &HubSource) -> Result<Listing> {
    let explain = |failure| explain(web, source, failure);
    let (owner, name) = source.repo.split_once('/').unwrap_or((&source.repo, ""));
    let api = web.hub.at(["api", "models", owner, name]);
    let revision = source.revision();
    let asked = api.at(["revision", revision]);
    let (found, _): (Revision, _) = web.json(&asked).map_err(explain)?;
    let senseless = |at: &Address, words: &str| Failure::new(at, Kind::Senseless(words.into()));
    if !is_hex(&found.sha, 40) {
        return Err(explain(senseless(&asked, "its commit is none")));
    }
    let commit = found.sha.to_ascii_lowercase();
    let mut page = api.at(["tree", &commit]).with_query("recursive=true");
    let mut files = vec![];
    for _ in 0..MOST_PAGES {
        let (entries, headers): (Vec<TreeEntry>, _) = web.json(&page).map_err(explain)?;
        files.extend(entries.into_iter().filter_map(file_of));
        let next = headers.get("link").and_then(|v| v.to_str().ok()).and_then(next_page);
        let Some(next) = next else {
            let licence = found.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
            let licence = licence.map(|l| l.chars().filter(|c| !c.is_control()).take(100).collect());
            return Ok(Listing { repo: source.repo.clone(), commit, licence, files });
        };
        let here = page;
        page = here.join(next).map_err(|e| explain(senseless(&here, &e.to_string())))?;
        if page.origin() != web.hub.origin() {
            return Err(explain(senseless(&here, "its list of files goes on at another host")));
        }
    }
    Err(explain(senseless(&page, "its list of files does not end")))
}

/// A line of the list, if it is of a file that can be had. Names that lead elsewhere are no files of a model.
fn file_of(entry: TreeEntry) -> Option<HubFile> {
    let fits = entry.kind == "file" && entry.path.split('/').all(is_plain);
    let (bytes, check) = match entry.lfs {
        Some(lfs) => {
            let sum = lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid).to_ascii_lowercase();
            (lfs.size, is_hex(&sum, 64).then_some(Check::Sha256(sum)))
        }
        None => {
            let name = entry.oid.to_ascii_lowercase();
            (entry.size, is_hex(&name, 40).then_some(Check::GitBlob(name)))
        }
    };
    Some(HubFile { path: entry.path, bytes, check: check? }).filter(|_| fits)
}

/// The address of the next page, of a header `<address>; rel="next"`.
fn next_page(link: &str) -> Option<&str> {
    link.split(',').find_map(|one| {
        let (address, what) = one.split_once('>')?;
        what.contains("rel=\"next\"").then(|| address.trim().strip_prefix('<')).flatten()
    })
}

impl Listing {
    /// What to fetch for a file.
    pub(crate) fn wanted(&self, web: &Web, file: &HubFile) -> Wanted {
        let parts = self.repo.split('/').chain(["resolve", &self.commit]).chain(file.path.split('/'));
        Wanted {
            address: web.hub.at(parts),
            name: file.name().to_owned(),
            bytes: Some(file.bytes),
            check: file.check.clone(),
        }
    }

    /// The files of weights that an index lists, each once.
    pub(crate) fn shards(&self, web: &Web, source: &HubSource, index: &HubFile) -> Result<Vec<String>> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: HashMap<String, String>,
        }
        let wanted = self.wanted(web, index);
        let (bytes, _) = web.bytes(&wanted.address, MOST_INDEX).map_err(|f| explain(web, source, f))?;
        let index: Index = serde_json::from_slice(&bytes)
            .map_err(|e| anyhow!("{} of {source} is no list of shards: {e}", index.path))?;
        shards_of(index.weight_map.into_values())
            .map_err(|problem| anyhow!("{} of {source} is no list of shards: {problem}", wanted.name))
    }
}

/// The shards of an index, each once. Files of other kinds are fetched beside them, and two that have one name on some system
/// would be written at once.
fn shards_of(names: impl Iterator<Item = String>) -> Result<Vec<String>, String> {
    let mut shards: Vec<String> = names.collect();
    shards.sort();
    shards.dedup();
    if let Some(other) = shards.iter().find(|name| !name.ends_with(".safetensors")) {
        return Err(format!("{other:?} is no safetensors file"));
    }
    let mut folded: Vec<String> = shards.iter().map(|name| name.to_lowercase()).collect();
    folded.sort();
    match folded.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(format!("two of its shards differ in capital letters alone: {:?}", two[0])),
        None => Ok(shards),
    }
}

/// What to do about a failure.
pub(crate) fn explain(web: &Web, source: &HubSource, failure: Failure) -> anyhow::Error {
    let (hub, repo) = (&web.hub, &source.repo);
    let page = format!("{hub}/{repo}");
    let token = if web.has_token() {
        "the token that is set has no right to it: make one at"
    } else {
        "set HF_TOKEN to a token, which is made at"
    };
    let token = format!("{token} {hub}/settings/tokens");
    let advice = match (failure.status(), failure.name()) {
        (Some(401 | 403), "GatedRepo") => {
            format!(
                "{repo} is given to those who accept its licence: do that at {page}, signed in, then {token}"
            )
        }
        (Some(404), "RevisionNotFound") => {
            format!("{repo} has no branch, tag or commit `{}`: {page} shows what there is", source.revision())
        }
        (Some(404), "EntryNotFound") => {
            format!("the file is no longer in {repo}: run this again for what is there now")
        }
        (Some(401 | 404), "RepoNotFound") | (Some(404), _) => {
            let near = near(web, repo);
            let near =
                if near.is_empty() { String::new() } else { format!("; did you mean {}", near.join(" or ")) };
            format!("{hub} has no repository {repo}, or it is private{near}. For a private one, {token}")
        }
        (Some(401 | 403), _) => {
            format!(
                "{repo} is not given to everybody: look at {page}, signed in, whether there is something to accept; then {token}"
            )
        }
        (Some(429), _) if !web.has_token() => {
            "with a token in HF_TOKEN more is allowed; try again later".to_owned()
        }
        _ => return anyhow::Error::new(failure),
    };
    anyhow!("{advice} ({failure})")
}

/// Repositories of similar names, as the hub finds them. That it finds none is no failure of its own.
fn near(web: &Web, repo: &str) -> Vec<String> {
    let name = repo.rsplit('/').next().unwrap_or(repo);
    let query = format!("limit=20&search={}", encoded(name));
    let address = web.hub.at(["api", "models"]).with_query(&query);
    let Ok(reply) = web.get(&address, &[]) else { return vec![] };
    let mut body = reply.body;
    let text = body.with_config().limit(1 << 20).read_to_vec().unwrap_or_default();
    let found: Vec<Found> = serde_json::from_slice(&text).unwrap_or_default();
    let plain = |id: &String| super::source::is_repository(id);
    let names: Vec<String> = found.into_iter().map(|f| f.id).filter(plain).collect();
    nearest(repo, names.iter().map(String::as_str)).into_iter().map(|n| format!("hf:{n}")).collect()
}

/// The names that are most like one, at most three.
pub(crate) fn nearest<'a>(name: &str, among: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let name = name.to_ascii_lowercase();
    let like = |other: &str| strsim::jaro_winkler(&name, &other.to_ascii_lowercase());
    let mut near: Vec<(f64, &str)> =
        among.into_iter().map(|n| (like(n), n)).filter(|(l, _)| *l > 0.75).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().map(|(_, n)| n).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_lead_elsewhere_or_cannot_be_checked_are_no_files() {
        let line = |json: &str| file_of(serde_json::from_str(json).unwrap());
        let git = "a".repeat(40);
        let plain =
            |path: &str| line(&format!(r#"{{"type":"file","path":"{path}","size":5,"oid":"{git}"}}"#));
        assert_eq!(plain("x/config.json").unwrap().check, Check::GitBlob(git.clone()));
        for path in ["../config.json", "/etc/passwd", "a//b", "a/../b", "a\\\\b", ".git", "C:x", ""] {
            assert_eq!(plain(path), None, "{path}");
        }
        let sum = "B".repeat(64);
        let lfs = |sum: &str| {
            line(&format!(
                r#"{{"type":"file","path":"m.gguf","size":3,"oid":"{git}","lfs":{{"oid":"{sum}","size":9,"pointerSize":3}}}}"#
            ))
        };
        let file = lfs(&sum).unwrap();
        assert_eq!((file.bytes, file.check), (9, Check::Sha256(sum.to_lowercase())));
        assert_eq!(lfs("12"), None);
        assert_eq!(line(r#"{"type":"directory","path":"x","oid":"","size":0}"#), None);
    }

    #[test]
    fn shards_are_files_of_their_own() {
        let of = |names: &[&str]| shards_of(names.iter().map(|name| (*name).to_owned()));
        let two = ["a.safetensors".to_owned(), "b.safetensors".to_owned()];
        assert_eq!(of(&["b.safetensors", "a.safetensors", "b.safetensors"]), Ok(two.to_vec()));
        for (names, problem) in [
            (["a.safetensors", "config.json"], "config.json"),
            (["a.safetensors", "a.safetensors.part"], "no safetensors file"),
            (["a.safetensors", "A.safetensors"], "capital letters"),
        ] {
            let error = of(&names).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn pages_and_near_names_are_found() {
        assert_eq!(next_page(r#"<https://h/a?cursor=1>; rel="next""#), Some("https://h/a?cursor=1"));
        assert_eq!(next_page(r#"<https://h/a>; rel="prev""#), None);
        assert_eq!(nearest("Lama-3.gguf", ["Llama-3.gguf", "readme"]), ["Llama-3.gguf"]);
    }
}
