//! Which tokens were seen, for the penalties.

use std::collections::{HashMap, VecDeque};

use super::SamplingOptions;

/// How often a token is in the part of the history that counts.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    /// In prompt and output.
    all: u32,
    /// In the output alone.
    output: u32,
}

/// Counts of the tokens seen, over all of them or over a window of the last.
///
/// Repetition counts prompt and output (as transformers does); presence and frequency count the output alone (as the
/// OpenAI API does).
#[derive(Clone, Debug)]
pub(super) struct History {
    counts: HashMap<u32, Counts>,
    /// The window's tokens and whether each is output, oldest first; unused without a window.
    recent: VecDeque<(u32, bool)>,
    window: Option<usize>,
}

impl History {
    pub(super) fn new(window: Option<usize>) -> Self {
        History { counts: HashMap::new(), recent: VecDeque::new(), window }
    }

    /// Adds a token of the output, or of the prompt.
    pub(super) fn push(&mut self, id: u32, output: bool) {
        let counts = self.counts.entry(id).or_default();
        counts.all += 1;
        counts.output += u32::from(output);
        let Some(window) = self.window else { return };
        self.recent.push_back((id, output));
        if self.recent.len() > window
            && let Some((id, output)) = self.recent.pop_front()
            && let Some(counts) = self.counts.get_mut(&id)
        {
            counts.all -= 1;
            counts.output -= u32::from(output);
            if counts.all == 0 {
                self.counts.remove(&id);
            }
        }
    }

    /// Applies the three penalties to `logits`. Each token is touched once, so the order of the map does not matter.
    pub(super) fn penalise(&self, logits: &mut [f32], options: &SamplingOptions) {
        for (&id, counts) in &self.counts {
            let logit = &mut logits[id as usize];
            if *logit > 0.0 {
                *logit /= options.repetition_penalty;
            } else {
                *logit *= options.repetition_penalty;
            }
            if counts.output > 0 {
                *logit -= options.presence_penalty + options.frequency_penalty * counts.output as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(history: &History, options: &SamplingOptions) -> [f32; 5] {
        let mut logits = [4.0, -4.0, 0.0, 1.0, f32::NEG_INFINITY];
        history.penalise(&mut logits, options);
        logits
    }

    /// Token 0 in the prompt, 1 in both, 3 twice in the output, 4 in the output.
    fn history(window: Option<usize>) -> History {
        let mut history = History::new(window);
        [0, 1].iter().for_each(|&id| history.push(id, false));
        [3, 1, 4, 3].iter().for_each(|&id| history.push(id, true));
        history
    }

    #[test]
    fn repetition_counts_prompt_and_output_and_splits_by_sign() {
        let options = SamplingOptions { repetition_penalty: 2.0, ..Default::default() };
        assert_eq!(penalised(&history(None), &options), [2.0, -8.0, 0.0, 0.5, f32::NEG_INFINITY]);
    }

    #[test]
    fn presence_and_frequency_count_the_output_alone() {
        let options =
            SamplingOptions { presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default() };
        assert_eq!(penalised(&history(None), &options), [4.0, -4.75, 0.0, 0.0, f32::NEG_INFINITY]);
        let all = SamplingOptions { repetition_penalty: 2.0, ..options };
        assert_eq!(penalised(&history(None), &all), [2.0, -8.75, 0.0, -0.5, f32::NEG_INFINITY]);
    }

    #[test]
    fn a_window_forgets_what_left_it() {
        let options = SamplingOptions {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Default::default()
        };
        // The last two tokens are 4 and 3: tokens 0 and 1 are forgotten, 3 counts once.
        assert_eq!(penalised(&history(Some(2)), &options), [4.0, -4.0, 0.0, -0.25, f32::NEG_INFINITY]);
        // The last five: the prompt's 0 is out, its 1 is in.
        assert_eq!(penalised(&history(Some(5)), &options), [4.0, -8.75, 0.0, -0.5, f32::NEG_INFINITY]);
        assert_eq!(history(Some(6)).counts.len(), 4);
    }
}
