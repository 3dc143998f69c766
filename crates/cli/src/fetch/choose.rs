//! Which files of a repository are the model that was asked for. Nothing is guessed in silence.

use anyhow::{Result, bail};
use gristmill::ByteSize;
use gristmill::parts::formats::gguf::ShardName;

use super::hub::{HubFile, Listing, nearest};
use super::source::HubSource;

/// Files beside the weights of a folder.
const BESIDE: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What a folder of safetensors is asked for with.
pub(crate) const FOLDER: &str = "safetensors";

/// The files of one model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A GGUF file, or its shards in order.
    Gguf(Vec<HubFile>),
    /// A folder; with an index, whose shards are to be added.
    Folder { files: Vec<HubFile>, index: Option<HubFile> },
}

/// A GGUF model of a repository.
struct Group<'a> {
    /// Path without number of shard and ending.
    stem: &'a str,
    /// How many shards there should be.
    of: usize,
    files: Vec<&'a HubFile>,
}

/// Stem and numbers of `stem-00001-of-00003.gguf`.
fn shard(path: &str) -> Option<(&str, usize, usize)> {
    let stem = path.strip_suffix(".gguf")?;
    Some(match ShardName::parse(path) {
        Some(ShardName { prefix, number, count, .. }) => {
            (&path[..prefix.len()], number as usize, count as usize)
        }
        None => (stem, 1, 1),
    })
}

fn groups(files: &[HubFile]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = vec![];
    for file in files {
        // Parts of a model for pictures, and data for quantising, are no models.
        let other =
            ["mmproj", "imatrix"].iter().any(|start| file.name().to_ascii_lowercase().starts_with(start));
        let Some((stem, _, of)) = shard(&file.path).filter(|_| !other) else { continue };
        match groups.iter_mut().find(|g| g.stem == stem && g.of == of) {
            Some(group) => group.files.push(file),
            None => groups.push(Group { stem, of, files: vec![file] }),
        }
    }
    groups
}

impl Group<'_> {
    fn whole(self, repo: &str) -> Result<Choice> {
        let mut files: Vec<(usize, &HubFile)> =
            self.files.iter().filter_map(|f| Some((shard(&f.path)?.1, *f))).collect();
        files.sort_by_key(|(number, _)| *number);
        if !files.iter().map(|(number, _)| *number).eq(1..=self.of) {
            let there: Vec<_> = files.iter().map(|(number, _)| number.to_string()).collect();
            bail!(
                "{} of {repo} is in {} shards, of which only {} are there",
                self.stem,
                self.of,
                there.join(", ")
            );
        }
        Ok(Choice::Gguf(files.into_iter().map(|(_, file)| file.clone()).collect()))
    }
}

/// Whether the name at the end of a path ends with this type, or is this name.
fn ends_with(stem: &str, choice: &str) -> bool {
    let name = stem.rsplit('/').next().unwrap_or(stem);
    let (name, choice) = (name.to_ascii_uppercase(), choice.to_ascii_uppercase());
    let before = name.strip_suffix(&choice);
    before.is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']))
}

/// Whether a choice means the model that was chosen by this path.
pub(crate) fn means(choice: &str, path: &str) -> bool {
    let named = |path: &str| path == choice || path.rsplit('/').next() == Some(choice);
    let (Some(asked), Some(there)) = (shard(choice), shard(path)) else {
        return choice.eq_ignore_ascii_case(path)
            || shard(path).is_some_and(|(stem, ..)| ends_with(stem, choice));
    };
    // Any shard of it will do.
    named(path) || (there.2 > 1 && asked.2 == there.2 && ends_with(there.0, asked.0))
}

/// The files that a source means.
///
/// # Errors
/// It means none or several; what there is is listed.
pub(crate) fn choose(listing: &Listing, source: &HubSource) -> Result<Choice> {
    let mut groups = groups(&listing.files);
    let folder = folder(&listing.files);
    let repo = &listing.repo;
    let Some(choice) = &source.choice else {
        return match (groups.len(), folder) {
            (0, Some(folder)) => Ok(folder),
            (1, None) => groups.remove(0).whole(repo),
            (0, None) => {
                bail!("{repo} holds no GGUF file and no safetensors folder{}", holds(&listing.files))
            }
            (_, folder) => {
                bail!("{repo} holds several models: name one{}", offers(repo, &groups, folder.is_some()))
            }
        };
    };
    if let Some(folder) = folder.clone()
        && choice.eq_ignore_ascii_case(FOLDER)
    {
        return Ok(folder);
    }
    // A file by its path or name, any shard of it.
    let named = groups.iter().position(|g| g.files.iter().any(|f| f.path == *choice));
    let named = named.or_else(|| groups.iter().position(|g| g.files.iter().any(|f| f.name() == choice)));
    if let Some(at) = named {
        return groups.swap_remove(at).whole(repo);
    }
    if let Some(file) = listing.files.iter().find(|f| f.path == *choice && f.path.ends_with(".gguf")) {
        return Ok(Choice::Gguf(vec![file.clone()]));
    }
    if listing.files.iter().any(|f| f.path == *choice) {
        bail!(
            "{choice} of {repo} is no model: a model is a GGUF file, or the folder as a whole (`:{FOLDER}`){}",
            offers(repo, &groups, folder.is_some())
        );
    }
    let fitting: Vec<usize> = (0..groups.len()).filter(|&at| ends_with(groups[at].stem, choice)).collect();
    match fitting[..] {
        [at] => groups.swap_remove(at).whole(repo),
        [] => {
            let paths = listing.files.iter().map(|f| f.path.as_str()).filter(|p| p.ends_with(".gguf"));
            let near = nearest(choice, paths);
            let near = if near.is_empty() {
                String::new()
            } else {
                format!("; did you mean {}?", near.join(" or "))
            };
            bail!("{repo} holds no `{choice}`{near}{}", offers(repo, &groups, folder.is_some()))
        }
        _ => {
            let groups: Vec<Group> = groups
                .into_iter()
                .enumerate()
                .filter(|(at, _)| fitting.contains(at))
                .map(|(_, g)| g)
                .collect();
            bail!("`{choice}` is part of several names: name one file{}", offers(repo, &groups, false))
        }
    }
}

/// The folder of safetensors that a repository is, if it is one.
fn folder(files: &[HubFile]) -> Option<Choice> {
    let find = |name: &str| files.iter().find(|f| f.path == name).cloned();
    find(CONFIG)?;
    let mut beside: Vec<HubFile> = BESIDE.iter().filter_map(|name| find(name)).collect();
    if let Some(single) = find(SINGLE) {
        beside.push(single);
        return Some(Choice::Folder { files: beside, index: None });
    }
    let index = find(INDEX)?;
    beside.push(index.clone());
    Some(Choice::Folder { files: beside, index: Some(index) })
}

/// Bytes of files, by what a server says of them.
fn bytes_of(files: &[&HubFile]) -> u64 {
    files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
}

/// What can be asked for, one a line.
fn offers(repo: &str, groups: &[Group], folder: bool) -> String {
    let line = |choice: &str, bytes: u64| format!("\n  hf:{repo}:{choice}  {}", ByteSize(bytes));
    let mut lines: Vec<String> = groups.iter().map(|g| line(&g.files[0].path, bytes_of(&g.files))).collect();
    if folder {
        lines.push(format!("\n  hf:{repo}:{FOLDER}  the folder of safetensors"));
    }
    if lines.is_empty() { String::new() } else { format!(":{}", lines.concat()) }
}

/// What there is instead.
fn holds(files: &[HubFile]) -> String {
    let ends = |end: &str| files.iter().any(|f| f.path.ends_with(end));
    if ends(".bin") || ends(".pth") || ends(".pt") {
        return ": its weights are PyTorch's own files, which can run code when they are read; look for the same model as GGUF or \
                safetensors"
            .to_owned();
    }
    if ends(".safetensors") {
        return format!(
            ": its safetensors files are not named {SINGLE} or listed in {INDEX} beside {CONFIG}"
        );
    }
    format!(" ({} files of other kinds)", files.len())
}

#[cfg(test)]
mod tests {
    use super::super::file::Check;
    use super::*;

    fn listing(paths: &[&str]) -> Listing {
        let file = |path: &&str| HubFile { path: path.to_string(), bytes: 1 << 20, check: Check::None };
        Listing {
            repo: "a/b".into(),
            commit: "c".repeat(40),
            licence: None,
            files: paths.iter().map(file).collect(),
        }
    }

    fn choice(paths: &[&str], choice: Option<&str>) -> Result<Vec<String>, String> {
        let source = HubSource { repo: "a/b".into(), revision: None, choice: choice.map(str::to_owned) };
        let files = match choose(&listing(paths), &source).map_err(|e| e.to_string())? {
            Choice::Gguf(files) | Choice::Folder { files, .. } => files,
        };
        Ok(files.into_iter().map(|f| f.path).collect())
    }

    const QUANTS: &[&str] = &["README.md", "m-Q4_K_M.gguf", "m-Q4_0.gguf", "m.f16.gguf", "mmproj-m-f16.gguf"];

    #[test]
    fn types_and_files_choose() {
        for (asked, want) in [
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q4_0", "m-Q4_0.gguf"),
            ("F16", "m.f16.gguf"),
            ("m-Q4_0.gguf", "m-Q4_0.gguf"),
        ] {
            assert_eq!(choice(QUANTS, Some(asked)).unwrap(), [want]);
        }
        assert_eq!(choice(QUANTS, Some("mmproj-m-f16.gguf")).unwrap(), ["mmproj-m-f16.gguf"]);
        assert_eq!(choice(&["one.gguf", "mmproj-x.gguf", "README.md"], None).unwrap(), ["one.gguf"]);
    }

    #[test]
    fn several_without_a_choice_are_listed_with_sizes() {
        let problem = choice(QUANTS, None).unwrap_err();
        for part in ["several", "hf:a/b:m-Q4_K_M.gguf  1.0 MiB", "hf:a/b:m.f16.gguf"] {
            assert!(problem.contains(part), "{problem}");
        }
        assert!(!problem.contains("mmproj"), "{problem}");
        let both = [QUANTS, &["config.json", "model.safetensors"]].concat();
        assert!(choice(&both, None).unwrap_err().contains("hf:a/b:safetensors"));
        assert_eq!(choice(&both, Some("safetensors")).unwrap(), ["config.json", "model.safetensors"]);
        let problem = choice(QUANTS, Some("Q4_1")).unwrap_err();
        assert!(problem.contains("holds no `Q4_1`") && problem.contains("m-Q4_0.gguf"), "{problem}");
        let problem = choice(&["x-Q4_0.gguf", "y-Q4_0.gguf"], Some("Q4_0")).unwrap_err();
        assert!(problem.contains("several names"), "{problem}");
        // `K_M` is the end of a name and still no type of it.
        assert!(choice(QUANTS, Some("K_M")).is_ok());
        assert!(choice(QUANTS, Some("_M")).is_err());
    }

    #[test]
    fn shards_come_together_in_order_or_not_at_all() {
        let shards = ["q/m-Q8_0-00002-of-00002.gguf", "q/m-Q8_0-00001-of-00002.gguf", "m-Q4_0.gguf"];
        let want = ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"];
        for asked in ["Q8_0", "q/m-Q8_0-00002-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"] {
            assert_eq!(choice(&shards, Some(asked)).unwrap(), want);
        }
        let problem = choice(&shards[1..], Some("Q8_0")).unwrap_err();
        assert!(problem.contains("in 2 shards, of which only 1"), "{problem}");
    }

    #[test]
    fn a_folder_is_what_is_read_and_nothing_else() {
        let paths = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "chat_template.jinja",
            "original/consolidated.00.pth",
        ];
        let want = ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json"];
        assert_eq!(choice(&paths, None).unwrap(), want);
        let problem = choice(&["config.json", "pytorch_model.bin"], None).unwrap_err();
        assert!(problem.contains("PyTorch"), "{problem}");
        let problem = choice(&paths, Some("config.json")).unwrap_err();
        assert!(problem.contains("`:safetensors`"), "{problem}");
    }
}
