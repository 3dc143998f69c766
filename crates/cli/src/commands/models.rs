//! `gristmill models`: what was fetched.

use std::io::Write;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use gristmill::ByteSize;
use serde_json::json;

use crate::args::CACHE_DIR;
use crate::catalogue::ENTRIES;
use crate::error::Usage;
use crate::fetch::source::Source;
use crate::fetch::store::{Stored, size_of};
use crate::fetch::{Fetcher, WebOptions, sum_of};
use crate::output::{byte_bar, note, results};

/// List, check and remove fetched models
#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[arg(long, value_name = "DIR", global = true, help = CACHE_DIR)]
    cache_dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Name, size, architecture and type, and when it came
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read models again and compare their checksums
    Verify {
        /// Names as `list` prints them [default: all]
        names: Vec<String>,
    },
    /// Remove models
    Remove {
        /// Names as `list` prints them
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Remove what unfinished fetches left
    Clean,
}

/// A model that is there.
struct Kept {
    name: String,
    about: String,
    /// Seconds since 1970.
    fetched: u64,
    licence: Option<String>,
    path: PathBuf,
    /// Path, size and SHA-256 of each file.
    files: Vec<(PathBuf, u64, String)>,
    /// With a folder of its own.
    stored: Option<Stored>,
}

impl Kept {
    fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, (_, bytes, _)| sum.saturating_add(*bytes))
    }

    fn commit(&self) -> Option<&str> {
        self.stored.as_ref()?.record.commit.as_deref()
    }

    fn short_commit(&self) -> Option<&str> {
        self.stored.as_ref()?.record.short_commit()
    }
}

/// Runs the command.
pub(crate) fn run(args: &ModelsArgs) -> Result<()> {
    let fetcher = Fetcher::new(args.cache_dir.as_deref(), WebOptions::default())?;
    match &args.action {
        None => list(&fetcher, false),
        Some(Action::List { json }) => list(&fetcher, *json),
        Some(Action::Verify { names }) => verify(&fetcher, names),
        Some(Action::Remove { names }) => remove(&fetcher, names),
        Some(Action::Clean) => clean(&fetcher),
    }
}

fn all(fetcher: &Fetcher) -> Vec<Kept> {
    let dir = &fetcher.store.dir;
    let catalogue = ENTRIES.iter().filter_map(|entry| {
        let path = dir.join(entry.file);
        let found = std::fs::metadata(&path).ok().filter(|m| m.is_file())?;
        let age = found.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Some(Kept {
            name: entry.name.to_owned(),
            about: entry.about.to_owned(),
            fetched: age.map_or(0, |d| d.as_secs()),
            licence: Some(entry.licence.to_owned()),
            files: vec![(path.clone(), entry.bytes, entry.sha256.to_owned())],
            path,
            stored: None,
        })
    });
    let recorded = fetcher.store.all().into_iter().map(|stored| {
        let record = &stored.record;
        let files = record.files.iter().map(|f| (stored.folder.join(&f.name), f.bytes, f.sha256.clone()));
        Kept {
            name: record.name.clone(),
            about: record.about.clone(),
            fetched: record.fetched / 1000,
            licence: record.licence.clone(),
            path: record.path(&stored.folder),
            files: files.collect(),
            stored: Some(stored.clone()),
        }
    });
    catalogue.chain(recorded).collect()
}

fn list(fetcher: &Fetcher, as_json: bool) -> Result<()> {
    let all = all(fetcher);
    if as_json {
        let models = all.iter().map(|kept| {
            json!({
                "name": kept.name,
                "path": kept.path.to_string_lossy(),
                "bytes": kept.bytes(),
                "about": kept.about,
                "licence": kept.licence,
                "commit": kept.commit(),
                "fetched": kept.fetched,
            })
        });
        return results().json(&models.collect::<Vec<_>>());
    }
    let mut out = results();
    if all.is_empty() {
        note(format_args!("no models in {}: `gristmill pull` fetches some", fetcher.store.dir.display()));
    }
    // Commits tell apart what has one name.
    let shown = |kept: &Kept| {
        let twice = all.iter().filter(|other| other.name == kept.name).count() > 1;
        match (kept.short_commit(), twice) {
            (Some(commit), true) => format!("{} (commit {commit})", kept.name),
            _ => kept.name.clone(),
        }
    };
    let names: Vec<String> = all.iter().map(shown).collect();
    let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
    let (first, third) =
        (width(&mut names.iter().map(String::len)), width(&mut all.iter().map(|k| k.about.len())));
    for (name, kept) in names.iter().zip(&all) {
        let (size, about, date) = (ByteSize(kept.bytes()), &kept.about, date(kept.fetched));
        writeln!(out, "{name:first$}  {size:>10}  {about:third$}  {date}")?;
    }
    let unfinished: u64 = fetcher.store.unfinished().iter().map(|folder| size_of(folder)).sum();
    if unfinished > 0 {
        note(format_args!(
            "unfinished fetches hold {}: `gristmill pull` goes on with them, `gristmill models clean` removes them",
            ByteSize(unfinished)
        ));
    }
    Ok(())
}

/// The day, in UTC.
fn date(seconds: u64) -> String {
    // Days since 1 March of the year 0, in eras of 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) = (if month < 10 { month + 3 } else { month - 9 }, year + era * 400);
    format!("{:04}-{month:02}-{day:02}", year + u64::from(month <= 2))
}

/// The models that a name means.
fn named(fetcher: &Fetcher, mut all: Vec<Kept>, name: &str) -> Result<Vec<Kept>> {
    let folders: Vec<PathBuf> = match fetcher.source(name).ok().flatten() {
        Some(Source::Hub(source)) => fetcher.store.of_hub(&source).into_iter().map(|s| s.folder).collect(),
        _ => vec![],
    };
    let names: Vec<String> = all.iter().map(|kept| kept.name.clone()).collect();
    let exact = all.iter().any(|kept| kept.name == name);
    all.retain(|kept| {
        let of_hub = kept.stored.as_ref().is_some_and(|s| folders.contains(&s.folder));
        if exact { kept.name == name } else { kept.name.eq_ignore_ascii_case(name) || of_hub }
    });
    if all.is_empty() {
        return Err(Usage::error(match &names[..] {
            [] => format!("`{name}` was not fetched: nothing was"),
            names => format!("`{name}` was not fetched; what was:\n  {}", names.join("\n  ")),
        }));
    }
    Ok(all)
}

fn verify(fetcher: &Fetcher, names: &[String]) -> Result<()> {
    let kept = match names {
        [] => all(fetcher),
        names => {
            let found = names.iter().map(|name| named(fetcher, all(fetcher), name));
            found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
        }
    };
    let mut damaged = 0;
    for kept in &kept {
        let bar = byte_bar("reading", Some(kept.bytes()));
        let problem =
            kept.files.iter().find_map(|(path, bytes, sha256)| match sum_of(path, |n| bar.inc(n)) {
                Ok(got) if got.bytes == *bytes && got.sha256 == *sha256 => None,
                Ok(got) if got.bytes != *bytes => {
                    Some(format!("{} has {} bytes instead of {bytes}", path.display(), got.bytes))
                }
                Ok(got) => {
                    Some(format!("{} has the SHA-256 {} instead of {sha256}", path.display(), got.sha256))
                }
                Err(e) => Some(format!("{e:#}")),
            });
        bar.finish_and_clear();
        match problem {
            None => writeln!(results(), "{}  whole", kept.name)?,
            Some(problem) => {
                damaged += 1;
                writeln!(results(), "{}  damaged: {problem}", kept.name)?;
            }
        }
    }
    if damaged > 0 {
        bail!(
            "{damaged} of {} are damaged: `gristmill models remove` and `gristmill pull` mend that",
            kept.len()
        );
    }
    Ok(())
}

fn remove(fetcher: &Fetcher, names: &[String]) -> Result<()> {
    for name in names {
        let kept = named(fetcher, all(fetcher), name)?;
        if kept.len() > 1 {
            let each = kept.iter().map(|k| match k.short_commit() {
                Some(commit) => format!("\n  {} of commit {commit}", k.name),
                None => format!("\n  {}", k.name),
            });
            return Err(Usage::error(format!(
                "`{name}` means several: name one, or its commit as in hf:owner/name@0123456789ab:file{}",
                each.collect::<String>()
            )));
        }
        for kept in kept {
            let bytes = match &kept.stored {
                Some(stored) => fetcher.store.remove(&stored.folder)?,
                None => {
                    let bytes = std::fs::metadata(&kept.path)?.len();
                    std::fs::remove_file(&kept.path)?;
                    bytes
                }
            };
            writeln!(results(), "{}  removed, {} free again", kept.name, ByteSize(bytes))?;
        }
    }
    Ok(())
}

fn clean(fetcher: &Fetcher) -> Result<()> {
    let (bytes, running) = fetcher.store.clean()?;
    writeln!(results(), "{} free again", ByteSize(bytes))?;
    if running > 0 {
        note(format_args!("{running} being fetched now, which were left alone"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let at = |days: u64| date(days * 86_400 + 5);
        assert_eq!(
            [at(0), at(58), at(59), at(789), at(790), at(11_016)].join(" "),
            "1970-01-01 1970-02-28 1970-03-01 1972-02-29 1972-03-01 2000-02-29"
        );
        assert_eq!(at(20_787), "2026-11-30");
    }
}
