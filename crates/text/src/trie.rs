//! Byte strings to tokens, found by their prefixes.

use crate::TokenizerError;

/// The longest token in bytes. Real ones have at most 128; looking for tokens takes this many steps a byte at worst.
const LONGEST: usize = 1024;
/// No token ends here.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    /// The children lie one after the other, in order of their labels.
    first: u32,
    count: u32,
    token: u32,
}

/// A prefix tree.
pub(crate) struct Trie {
    nodes: Vec<Node>,
    /// The byte that leads to each node.
    labels: Vec<u8>,
}

impl Trie {
    /// Of equal texts the last one counts; empty ones are left out.
    pub(crate) fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], u32)>) -> Result<Self, TokenizerError> {
        let mut sorted: Vec<(&[u8], u32)> = tokens.filter(|(text, _)| !text.is_empty()).collect();
        if let Some((text, id)) = sorted.iter().find(|(text, _)| text.len() > LONGEST) {
            let length = text.len();
            let message = format!("token {id} is {length} bytes long; at most {LONGEST} are accepted");
            return Err(TokenizerError::BadVocab(message));
        }
        sorted.sort_unstable();
        let mut trie = Self { nodes: vec![Node { first: 0, count: 0, token: NONE }], labels: vec![0] };
        // Nodes are numbered level by level, so that the children of one are neighbours.
        let mut level = vec![(0u32, 0usize..sorted.len())];
        for depth in 0.. {
            let mut next = Vec::new();
            for (node, mut range) in level {
                while range.start < range.end && sorted[range.start].0.len() == depth {
                    trie.nodes[node as usize].token = sorted[range.start].1;
                    range.start += 1;
                }
                trie.nodes[node as usize].first = trie.nodes.len() as u32;
                while range.start < range.end {
                    let label = sorted[range.start].0[depth];
                    let same = sorted[range.clone()].partition_point(|(text, _)| text[depth] <= label);
                    next.push((trie.nodes.len() as u32, range.start..range.start + same));
                    trie.nodes.push(Node { first: 0, count: 0, token: NONE });
                    trie.labels.push(label);
                    trie.nodes[node as usize].count += 1;
                    range.start += same;
                }
            }
            if next.is_empty() {
                break;
            }
            level = next;
        }
        Ok(trie)
    }

    /// The tokens that `text` begins with, from the shortest: length and token.
    pub(crate) fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        let steps = text.iter().enumerate().map_while(move |(at, &byte)| {
            node = self.child(node, byte)?;
            Some((at + 1, self.nodes[node].token))
        });
        steps.filter(|&(_, token)| token != NONE)
    }

    /// The token that is `text`.
    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        self.prefixes(text).find(|&(length, _)| length == text.len()).map(|(_, token)| token)
    }

    fn child(&self, node: usize, byte: u8) -> Option<usize> {
        let Node { first, count, .. } = self.nodes[node];
        let labels = &self.labels[first as usize..(first + count) as usize];
        // Few nodes have many children.
        let at = match labels.len() {
            0..=8 => labels.iter().position(|&label| label == byte),
            _ => labels.binary_search(&byte).ok(),
        };
        at.map(|at| first as usize + at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_are_those_of_a_list(
            tokens in prop::collection::vec("[a-d]{0,4}", 0..60),
            text in "[a-d]{0,8}",
        ) {
            let entries = || tokens.iter().map(|t| t.as_bytes()).zip(0..);
            let trie = Trie::new(entries()).unwrap();
            let last = |part: &str| tokens.iter().rposition(|t| t == part && !t.is_empty()).map(|at| at as u32);
            let expected: Vec<(usize, u32)> =
                (1..=text.len()).filter_map(|end| Some((end, last(&text[..end])?))).collect();
            prop_assert_eq!(trie.prefixes(text.as_bytes()).collect::<Vec<_>>(), expected);
            prop_assert_eq!(trie.get(text.as_bytes()), last(&text));
        }
    }

    #[test]
    fn tokens_beyond_reason_are_refused() {
        let long = vec![b'a'; LONGEST + 1];
        let message = Trie::new([(&long[..], 7)].into_iter()).err().unwrap().to_string();
        assert!(message.contains("token 7") && message.contains("1025"), "{message}");
    }
}
