//! A server for one page on this machine: files, and reports back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Longest report.
const REPORT: usize = 1 << 20;

/// Serves until the program ends. Folders are given with the start of the addresses they appear under, and the address
/// `/` is `index.html` in the first. Gives the server's address and the reports that are sent to `/report`.
pub(crate) fn serve(folders: Vec<(&'static str, PathBuf)>) -> Result<(SocketAddr, Receiver<String>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no port to serve a page on")?;
    let address = listener.local_addr()?;
    let (reports, received) = channel();
    let folders = Arc::new(folders);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (folders, reports) = (folders.clone(), reports.clone());
            // A thread each: browsers open connections that they then say nothing on.
            std::thread::spawn(move || {
                // One that stops in the middle of a request is no fault of the server's.
                let _ = answer(&stream, &folders, &reports);
            });
        }
    });
    Ok((address, received))
}

fn answer(stream: &TcpStream, folders: &[(&str, PathBuf)], reports: &Sender<String>) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    from.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, path) =
        (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        if from.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    match (method.as_str(), path.as_str()) {
        ("POST", "/report") if length <= REPORT => {
            let mut body = vec![0; length];
            from.read_exact(&mut body)?;
            respond(stream, "204 No Content", "text/plain", b"")?;
            reports.send(String::from_utf8(body)?)?;
            Ok(())
        }
        ("GET", path) => {
            match file(folders, path).and_then(|file| Some((std::fs::read(&file).ok()?, file))) {
                Some((bytes, file)) => respond(stream, "200 OK", kind(&file), &bytes),
                None => respond(stream, "404 Not Found", "text/plain", b"there is no such file"),
            }
        }
        _ => bail!("{method} {path}"),
    }
}

/// The file behind an address, which stays inside its folder.
fn file(folders: &[(&str, PathBuf)], path: &str) -> Option<PathBuf> {
    let path = if path == "/" { "/index.html" } else { path };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let (start, folder) = folders.iter().rev().find(|(start, _)| path.starts_with(start))?;
    let names: Vec<&str> = path[start.len()..].split('/').collect();
    let inside = names.iter().all(|n| !n.is_empty() && !n.starts_with('.') && n.chars().all(plain));
    inside.then(|| folder.join(names.join("/")))
}

fn kind(file: &Path) -> &'static str {
    match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &[u8]) -> Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_in_their_folders() {
        let folders = [("/", PathBuf::from("page")), ("/build/", PathBuf::from("built"))];
        let file = |path| file(&folders, path).map(|f| f.to_string_lossy().replace('\\', "/"));
        assert_eq!(file("/").as_deref(), Some("page/index.html"));
        assert_eq!(file("/a.js").as_deref(), Some("page/a.js"));
        assert_eq!(file("/build/b/c.wasm").as_deref(), Some("built/b/c.wasm"));
        for path in
            ["", "x", "//", "/../x", "/build/../x", "/build//x", "/build/", "/%2e%2e/x", "/a\\b", "/.git/x"]
        {
            assert_eq!(file(path), None, "{path}");
        }
    }
}
