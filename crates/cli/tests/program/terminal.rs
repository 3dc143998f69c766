//! `chat` at a terminal: a pseudo-terminal whose other end this is.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{Terminal, with_template};

/// A program at a terminal.
struct Screen {
    keys: File,
    shown: Receiver<Vec<u8>>,
    /// Everything shown so far, and how much of it was waited for.
    text: String,
    seen: usize,
    child: Child,
}

impl Screen {
    fn run(args: &[&str], cache: &std::path::Path) -> Screen {
        let terminal = Terminal::open();
        let other = || terminal.end();
        let mut command = Command::new("setsid");
        // In a session of its own, so that the terminal is its own and Ctrl-C is for it.
        command.arg("--ctty").arg(env!("CARGO_BIN_EXE_gristmill")).args(args);
        command.env("GRISTMILL_CACHE", cache).env("TERM", "xterm").env("NO_COLOR", "1");
        let child = command.stdin(other()).stdout(other()).stderr(other()).spawn().expect("setsid starts");
        let keys = terminal.other;
        let mut reader = keys.try_clone().expect("a descriptor");
        let (sender, shown) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Screen { keys, shown, text: String::new(), seen: 0, child }
    }

    fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).expect("the terminal takes keys");
    }

    /// Waits until a text is shown behind what was waited for before.
    fn wait_for(&mut self, wanted: &str) {
        self.wait_until(&format!("{wanted:?}"), |shown| shown.find(wanted).map(|at| at + wanted.len()));
    }

    /// Waits until `end` gives a place behind what was waited for before.
    fn wait_until(&mut self, what: &str, end: impl Fn(&str) -> Option<usize>) {
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = end(&self.text[self.seen..]) {
                self.seen += at;
                return;
            }
            match self.shown.recv_timeout(late.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.text += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{what} is not shown: {}", &self.text[self.seen..]),
            }
        }
    }

    fn ends(mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("the program ends") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the program goes on: {}", &self.text[self.seen..]);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_interrupt_ends_the_answer_and_keeps_the_conversation() {
    let model = with_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>");
    let cache = tempfile::tempdir().unwrap();
    // Answers that nobody waits for the end of.
    let args = ["chat", "-m", model.path().to_str().unwrap(), "--ignore-eos", "-c", "200000", "-t", "1"];
    let mut screen = Screen::run(&args, cache.path());
    screen.wait_for("Ctrl-D leaves");
    screen.wait_for("> ");
    screen.press("Why is it?\r");
    // The editor has left the terminal, and the answer has begun.
    screen.wait_for("[?2004l");
    // A token can be several characters: control characters are shown as escapes.
    screen.wait_until("an answer", |shown| (shown.trim().len() > 60).then_some(0));
    screen.press("\x03");
    screen.wait_for("; broken off");
    screen.wait_for("> ");
    // At the prompt it gives up the line.
    screen.press("never said\x03");
    screen.wait_for("> ");
    // So it is given up where a key is no character.
    screen.press(b"caf\xe9 never");
    screen.wait_for("no text in UTF-8");
    screen.wait_for("> ");
    screen.press("\x03");
    screen.wait_for("> ");
    screen.press("/history\r");
    screen.wait_for("user: Why is it?");
    screen.wait_for("assistant: ");
    screen.wait_for("> ");
    screen.press("/set max-tokens 5\r");
    screen.wait_for("max_tokens 5");
    screen.press("And \\\r");
    screen.wait_for("[K. ");
    screen.press("then?\r");
    // What was computed of the answer that was broken off is there.
    screen.wait_for(" of them from the cache; 5 generated");
    let shown = &screen.text[..screen.seen];
    assert!(!shown.contains(" 0 of them from the cache; 5 generated"), "{shown}");
    screen.wait_for("> ");
    screen.press("/undo\r");
    screen.wait_for("taken back: And \r\nthen?");
    screen.wait_for("> ");
    screen.press("\x04");
    screen.wait_for("is not kept");
    assert_eq!(screen.ends(), Some(0));
    let history = std::fs::read_to_string(cache.path().join("chat-history")).unwrap();
    assert!(history.contains("Why is it?") && !history.contains("never said"), "{history}");
}
