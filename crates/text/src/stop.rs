//! Stop strings over a stream of text.

/// Looks for stop strings in text that arrives in chunks.
///
/// Text is released as soon as it cannot be part of a stop string; what may be the beginning of one is held back. The
/// stop string that is complete first wins (the longest of those that end together). The outcome does not depend on
/// how the text was cut into chunks.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text received and not released.
    held: String,
    /// What the last call released.
    out: String,
    stopped: Option<usize>,
}

/// A stop string was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Which, as an index into the list given to [`StopStrings::new`].
    pub index: usize,
}

/// A stop string with its Knuth-Morris-Pratt table.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each matched length, the longest shorter prefix that is also a suffix.
    fallback: Vec<usize>,
    /// How many bytes match at the end of the text so far.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length;
        }
        Self { bytes, fallback, matched: 0 }
    }

    /// Takes in one byte; whether the pattern is now complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopStrings {
    /// Stops at any of `stops`. Returns `None` when one of them is empty: it would match everywhere.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Option<Self> {
        let patterns: Vec<Pattern> = stops.into_iter().map(|stop| Pattern::new(stop.as_ref())).collect();
        let valid = patterns.iter().all(|pattern| !pattern.bytes.is_empty());
        valid.then(|| Self { patterns, held: String::new(), out: String::new(), stopped: None })
    }

    /// Takes in `text` and returns the text that is now certain to lie before any stop string, and the stop string once
    /// one is complete. After that everything is swallowed and the same stop is reported.
    pub fn push(&mut self, text: &str) -> (&str, Option<Stopped>) {
        self.out.clear();
        if self.stopped.is_none() {
            self.scan(text);
        }
        (&self.out, self.stopped.map(|index| Stopped { index }))
    }

    /// Ends the text: what was held back is released, since no stop string can complete any more.
    pub fn finish(&mut self) -> &str {
        self.out.clear();
        self.out.push_str(&self.held);
        self.held.clear();
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        &self.out
    }

    fn scan(&mut self, text: &str) {
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in (before..).zip(text.bytes()) {
            // (length, index) of the longest stop string that ends here, the first of equals.
            let mut found: Option<(usize, usize)> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.step(byte) && found.is_none_or(|(length, _)| pattern.bytes.len() > length) {
                    found = Some((pattern.bytes.len(), index));
                }
            }
            if let Some((length, index)) = found {
                self.out.push_str(&self.held[..at + 1 - length]);
                self.held.clear();
                self.stopped = Some(index);
                return;
            }
        }
        // A partial match begins with the first byte of a stop string, so this never cuts a character.
        let partial = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - partial);
        self.out.push_str(&self.held);
        self.held = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<usize>) {
        let mut stop = StopStrings::new(stops).unwrap();
        let (mut text, mut index) = (String::new(), None);
        for chunk in chunks {
            let (out, stopped) = stop.push(chunk);
            text.push_str(out);
            index = stopped.map(|s| s.index);
        }
        text.push_str(stop.finish());
        (text, index)
    }

    #[test]
    fn found_across_chunks() {
        assert_eq!(run(&["END"], &["abE", "N", "Dxyz"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["aab"], &["aaaa", "b"]), ("aa".into(), Some(0)));
        assert_eq!(run(&["END"], &["abEN"]), ("abEN".into(), None));
        assert_eq!(run(&[], &["abEN"]), ("abEN".into(), None));
    }

    #[test]
    fn first_complete_wins_then_the_longest() {
        assert_eq!(run(&["abc", "b"], &["xabc"]), ("xa".into(), Some(1)));
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&["ab", "ab"], &["xab"]), ("x".into(), Some(0)));
    }

    #[test]
    fn holds_back_only_what_may_match() {
        let mut stop = StopStrings::new(["\nUser:", "日本"]).unwrap();
        assert_eq!(stop.push("Hello\nUs").0, "Hello");
        assert_eq!(stop.push("ed 日").0, "\nUsed ");
        assert_eq!(stop.push("曜").0, "日曜");
        assert_eq!(stop.push("日本").1, Some(Stopped { index: 1 }));
        assert_eq!(stop.push("more"), ("", Some(Stopped { index: 1 })));
    }

    #[test]
    fn empty_stop_is_refused() {
        assert!(StopStrings::new(["a", ""]).is_none());
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_search(text in "[ab\u{e9}\u{e8}]{0,24}", stops in prop::collection::vec("[ab\u{e9}]{1,4}", 0..4),
                                      cuts in prop::collection::vec(0usize..6, 0..24)) {
            let expected = (0..=text.len()).filter(|&end| text.is_char_boundary(end)).find_map(|end| {
                let hits = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
                hits.map(|stop| stop.len()).max().map(|length| &text[..end - length])
            });
            let mut stop = StopStrings::new(&stops).unwrap();
            let (mut out, mut stopped) = (String::new(), false);
            let mut chars = text.chars();
            let mut cuts = cuts.into_iter();
            while !chars.as_str().is_empty() {
                let chunk: String = chars.by_ref().take(cuts.next().unwrap_or(3)).collect();
                let (released, hit) = stop.push(&chunk);
                out.push_str(released);
                stopped = hit.is_some();
            }
            out.push_str(stop.finish());
            prop_assert_eq!(stopped, expected.is_some());
            prop_assert_eq!(out.as_str(), expected.unwrap_or(&text));
        }
    }
}
