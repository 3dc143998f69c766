//! A stand-in for the hub and the servers behind it: what is asked of it is counted, and what it is told to do wrong it does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use sha1::Digest;

use super::program;

/// What goes wrong with an answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Another status, with headers, such as `X-Error-Code: GatedRepo`.
    Status(u16, Vec<(&'static str, String)>),
    /// The connection ends after so many bytes of content.
    Truncate(usize),
    /// Content in pieces of so many bytes with a pause before each.
    Slow(usize, Duration),
    /// The head, then silence.
    Silent(Duration),
    /// Ranges are not looked at.
    NoRanges,
    /// `If-Range` is not looked at.
    NoConditions,
    /// One byte of the content is another.
    Corrupt,
    /// Content of another length than what is said elsewhere.
    Longer,
    /// Another length is told than that of the content.
    Told(u64),
    /// A redirect to this.
    Redirect(String),
}

/// One request and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// Whether the hub was asked, and not the server behind it.
    pub(crate) hub: bool,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    /// Bytes of content that were sent.
    pub(crate) sent: usize,
}

impl Served {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

#[derive(Default)]
struct State {
    commit: String,
    files: BTreeMap<String, Vec<u8>>,
    /// Path, how often still, and what.
    faults: Vec<(String, usize, Fault)>,
    served: Vec<Served>,
}

/// A running stand-in with one repository, `owner/tiny`. Large files come from a server of their own, as LFS files do.
pub(crate) struct Hub {
    /// The hub's address.
    pub(crate) address: String,
    /// The address of the server behind it.
    pub(crate) behind: String,
    state: Arc<Mutex<State>>,
    cache: tempfile::TempDir,
}

/// Files from this size on are LFS files.
const LARGE: usize = 10_000;

impl Hub {
    pub(crate) fn new(files: &[(&str, Vec<u8>)]) -> Hub {
        let files = files.iter().map(|(path, content)| (path.to_string(), content.clone())).collect();
        let state = State { commit: "1".repeat(40), files, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let behind = serve(&state, None);
        let address = serve(&state, Some(behind.clone()));
        Hub { address, behind, state, cache: tempfile::tempdir().unwrap() }
    }

    /// From now on, the next `times` requests whose path contains `path` go wrong.
    pub(crate) fn fault(&self, path: &str, times: usize, fault: Fault) {
        self.state.lock().unwrap().faults.push((path.to_owned(), times, fault));
    }

    /// Everything goes right again, and nothing was asked yet.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock().unwrap();
        state.faults.clear();
        state.served.clear();
    }

    /// Another content and another commit.
    pub(crate) fn change(&self, path: &str, content: Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        state.commit = "2".repeat(40);
        state.files.insert(path.to_owned(), content);
    }

    pub(crate) fn served(&self) -> Vec<Served> {
        self.state.lock().unwrap().served.clone()
    }

    /// Bytes of content that were sent for paths that contain this.
    pub(crate) fn sent(&self, path: &str) -> usize {
        self.served().iter().filter(|s| s.path.contains(path)).map(|s| s.sent).sum()
    }

    /// Waits until so many bytes were sent.
    pub(crate) fn wait_for(&self, path: &str, bytes: usize) {
        let start = Instant::now();
        while self.sent(path) < bytes {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", self.served());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn cache(&self) -> &std::path::Path {
        self.cache.path()
    }

    /// The program with this hub, a cache of its own, and nothing of whoever runs the tests.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
        for name in proxies.into_iter().chain([
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HOME",
            "HF_TOKEN_PATH",
            "XDG_CACHE_HOME",
        ]) {
            command.env_remove(name).env_remove(name.to_lowercase());
        }
        command
            .env("HF_ENDPOINT", &self.address)
            .env("GRISTMILL_CACHE", self.cache())
            .env("HOME", self.cache().join("home"));
        command.args(args);
        command
    }

    /// Runs the program: exit code, standard output and error.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Pulls a model, which must succeed; gives its path.
    pub(crate) fn pull(&self, name: &str) -> String {
        let (code, out, errors) = self.run(&["pull", name, "--timeout", "2"]);
        assert_eq!(code, Some(0), "{name}: {errors}");
        out.trim().to_owned()
    }

    /// Pulls a model, which must fail after so many attempts; gives what is told.
    pub(crate) fn refuses(&self, name: &str, retries: usize) -> String {
        let retries = retries.to_string();
        let (code, out, errors) = self.run(&["pull", name, "--timeout", "2", "--retries", &retries]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{name}: {errors}");
        errors
    }
}

/// Starts a server; without `behind` it is the one that large files come from. Gives its address.
fn serve(state: &Arc<Mutex<State>>, behind: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let state = state.clone();
    let own = address.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, behind, own) = (state.clone(), behind.clone(), own.clone());
            std::thread::spawn(move || answer(stream, &state, &own, behind.as_deref()));
        }
    });
    address
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Vec<u8>,
}

fn answer(stream: TcpStream, state: &Mutex<State>, own: &str, behind: Option<&str>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = vec![];
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let request = Served { hub: behind.is_some(), path: path.clone(), headers, sent: 0 };
    let (index, fault, mut answer) = {
        let mut state = state.lock().unwrap();
        let at = state.faults.iter().position(|(part, times, _)| *times > 0 && path.contains(part));
        let fault = at.map(|at| {
            state.faults[at].1 -= 1;
            state.faults[at].2.clone()
        });
        let answer = state.answer(&request, own, behind, fault.as_ref());
        state.served.push(request);
        (state.served.len() - 1, fault, answer)
    };
    match &fault {
        Some(Fault::Status(status, headers)) => {
            answer = Answer { status: *status, headers: headers.clone(), content: b"no".to_vec() };
        }
        Some(Fault::Redirect(to)) => {
            answer = Answer { status: 302, headers: vec![("Location", to.clone())], content: vec![] };
        }
        Some(Fault::Corrupt) => answer.content.iter_mut().take(1).for_each(|b| *b ^= 1),
        Some(Fault::Longer) => answer.content.push(0),
        _ => {}
    }
    let mut stream = stream;
    let told = match fault {
        Some(Fault::Told(length)) => length,
        _ => answer.content.len() as u64,
    };
    let mut head = format!("HTTP/1.1 {} so\r\nContent-Length: {told}\r\n", answer.status);
    answer.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += "Connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    let (piece, pause) = match fault {
        Some(Fault::Slow(piece, pause)) => (piece, pause),
        Some(Fault::Silent(pause)) => (usize::MAX, pause),
        _ => (1 << 14, Duration::ZERO),
    };
    if let Some(Fault::Truncate(bytes)) = fault {
        answer.content.truncate(bytes);
    }
    for piece in answer.content.chunks(piece) {
        std::thread::sleep(pause);
        stream.write_all(piece).ok()?;
        if let Some(served) = state.lock().unwrap().served.get_mut(index) {
            served.sent += piece.len();
        }
    }
    Some(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(&sha2::Sha256::digest(content))
}

fn git_name(content: &[u8]) -> String {
    let mut sum = sha1::Sha1::new();
    sum.update(format!("blob {}\0", content.len()));
    sum.update(content);
    hex(&sum.finalize())
}

impl State {
    fn answer(&self, request: &Served, own: &str, behind: Option<&str>, fault: Option<&Fault>) -> Answer {
        let json = |value: serde_json::Value| Answer {
            status: 200,
            headers: vec![("Content-Type", "application/json".into())],
            content: value.to_string().into_bytes(),
        };
        let missing = |name: &str| Answer {
            status: 404,
            headers: vec![("X-Error-Code", name.into())],
            content: b"not found".to_vec(),
        };
        let path = request.path.split('?').next().unwrap_or_default();
        if behind.is_none() {
            return match path
                .strip_prefix("/large/")
                .or_else(|| path.strip_prefix("/files/"))
                .and_then(|p| self.files.get(p))
            {
                Some(content) => ranged(request, content, fault),
                None => missing(""),
            };
        }
        let commit = &self.commit;
        if path == "/api/models" {
            return json(json!([{ "id": "owner/tiny" }, { "id": "owner/unlike" }]));
        }
        let Some(rest) = path.strip_prefix("/api/models/owner/tiny/") else {
            let Some((_, file)) =
                path.strip_prefix("/owner/tiny/resolve/").and_then(|rest| rest.split_once('/'))
            else {
                return missing("RepoNotFound");
            };
            let Some(content) = self.files.get(file) else { return missing("EntryNotFound") };
            if content.len() < LARGE {
                return ranged(request, content, fault);
            }
            let headers = vec![
                ("Location", format!("{}/large/{file}?signature=secret", behind.unwrap_or_default())),
                ("X-Repo-Commit", commit.clone()),
                ("X-Linked-Etag", format!("\"{}\"", sha256(content))),
                ("X-Linked-Size", content.len().to_string()),
            ];
            return Answer { status: 302, headers, content: vec![] };
        };
        match rest.split_once('/') {
            Some(("revision", name)) if name == "main" || name == "v1" || *name == *commit => json(
                json!({ "id": "owner/tiny", "sha": commit, "gated": false, "tags": ["gguf", "license:apache-2.0"] }),
            ),
            Some(("revision", _)) => missing("RevisionNotFound"),
            Some(("tree", name)) if *name == *commit => {
                let entry = |(path, content): (&String, &Vec<u8>)| match content.len() < LARGE {
                    true => {
                        json!({ "type": "file", "path": path, "size": content.len(), "oid": git_name(content) })
                    }
                    false => json!({
                        "type": "file", "path": path, "size": content.len(), "oid": "0".repeat(40),
                        "lfs": { "oid": sha256(content), "size": content.len(), "pointerSize": 134 },
                    }),
                };
                // Two pages.
                let half = self.files.len() / 2;
                let second = request.path.contains("cursor=");
                let (skip, take) = if second { (half, usize::MAX) } else { (0, half) };
                let mut page = json(self.files.iter().skip(skip).take(take).map(entry).collect());
                if !second {
                    let link = format!("<{own}{path}?recursive=true&cursor=x>; rel=\"next\"");
                    page.headers.push(("Link", link));
                }
                page
            }
            _ => missing("EntryNotFound"),
        }
    }
}

fn ranged(request: &Served, content: &[u8], fault: Option<&Fault>) -> Answer {
    let etag = format!("\"{}\"", &sha256(content)[..16]);
    let start =
        request.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let same = request.header("if-range").is_none_or(|name| name == etag)
        || matches!(fault, Some(Fault::NoConditions));
    let headers = vec![("ETag", etag)];
    match start.filter(|_| same && !matches!(fault, Some(Fault::NoRanges))) {
        Some(start) if start >= content.len() => Answer { status: 416, headers, content: vec![] },
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
            let headers = [headers, vec![("Content-Range", range)]].concat();
            Answer { status: 206, headers, content: content[start..].to_vec() }
        }
        None => Answer { status: 200, headers, content: content.to_vec() },
    }
}
