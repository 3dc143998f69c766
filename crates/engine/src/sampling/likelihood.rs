//! Probabilities of tokens as the model gives them.

/// The natural logarithm of the sum of exponentials of a row of logits, in f64: what a logit less this is, is the logarithm
/// of the token's probability.
pub(super) fn log_normaliser(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln()
}

/// `-ln softmax(logits)[id]` in f64. The mean over a text's tokens is the logarithm of its perplexity.
///
/// # Panics
/// When `id` is beyond the row.
pub fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    log_normaliser(logits) - f64::from(logits[id as usize])
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

    #[test]
    fn likelihoods_are_those_of_softmax() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
        near(negative_log_likelihood(&[0.0, 0.0, 0.0, 0.0], 2), 4f64.ln());
        near(negative_log_likelihood(&[1000.0, 1001.0], 0), (1.0 + 1f64.exp()).ln());
        near(negative_log_likelihood(&[1000.0, 1001.0], 1), (1.0 + 1f64.exp()).ln() - 1.0);
        near(negative_log_likelihood(&[f32::NEG_INFINITY, 3.0], 1), 0.0);
    }
}
