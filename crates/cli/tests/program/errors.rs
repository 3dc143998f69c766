//! What the program says when something is wrong, and how it ends.

use crate::support::*;

#[test]
fn a_wrong_command_line_ends_with_2() {
    let model = tests("goldens-gguf/llama.gguf");
    fails(&[], 2);
    fails(&["grind"], 2);
    fails(&["logits", "-m", &model], 2);
    let errors = fails(&["run", "-m", &model, "--threads", "0", "x"], 2);
    assert!(errors.contains("--threads") && errors.contains("at least 1"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--device", "abacus", "x"], 2);
    assert!(errors.contains("abacus") && errors.contains("cpu"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--isa", "mmx", "x"], 2);
    assert!(errors.contains("mmx") && errors.contains("scalar"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--temperature", "-1", "x"], 2);
    assert!(errors.contains("temperature") && errors.contains("-1"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--top-k", "0", "x"], 2);
    assert!(errors.contains("top_k"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--logit-bias", "5", "x"], 2);
    assert!(errors.contains("42=-1.5"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--stop", "", "x"], 2);
    assert!(errors.contains("--stop"), "{errors}");
    let errors = fails(&["logits", "-m", &model, "--ids", "1,two"], 2);
    assert!(errors.contains("two"), "{errors}");
    let errors = fails(&["bench", "-m", &model, "-p", "0", "-n", "0"], 2);
    assert!(errors.contains("nothing to measure"), "{errors}");
}

#[test]
fn a_model_that_is_not_there_is_named() {
    for command in [&["run", "-m", "no/such.gguf", "x"][..], &["inspect", "-m", "no/such.gguf"]] {
        let errors = fails(command, 1);
        assert!(errors.contains("no/such.gguf"), "{errors}");
    }
}

#[test]
fn a_file_that_is_no_model_is_named() {
    let readme = tests("goldens/README.md");
    let errors = fails(&["run", "-m", &readme, "x"], 1);
    assert!(errors.contains("README.md"), "{errors}");
    let errors = fails(&["logits", "-m", &tests("goldens-gguf/bert.gguf"), "--ids", "1"], 1);
    assert!(errors.contains("bert"), "{errors}");
}

#[test]
fn a_prompt_that_is_too_long_says_how_long_and_what_fits() {
    let model = tests("goldens-gguf/llama.gguf");
    let ids = list(&[5; 50]);
    let errors = fails(&["logits", "-m", &model, "--context", "20", "--ids", &ids], 1);
    assert!(errors.contains("50 tokens") && errors.contains("holds 20"), "{errors}");
    let errors = fails(&["run", "-m", &model, "--context", "3", "Hello world, how are you?"], 1);
    assert!(errors.contains("holds 3"), "{errors}");
}

#[test]
fn an_id_beyond_the_vocabulary_is_an_error() {
    let errors = fails(&["logits", "-m", &tests("goldens-gguf/llama.gguf"), "--ids", "1,320"], 1);
    assert!(errors.contains("320"), "{errors}");
}

#[test]
fn a_system_message_needs_a_template() {
    let model = tests("goldens-gguf/llama.gguf");
    let errors = fails(&["run", "-m", &model, "--system", "Be brief.", "x"], 1);
    assert!(errors.contains("no chat template"), "{errors}");
    fails(&["run", "-m", &model, "--system", "Be brief.", "--raw", "x"], 2);
}

#[test]
fn a_text_that_is_too_short_or_missing_has_no_perplexity() {
    let model = tests("goldens-gguf/llama.gguf");
    let file = tempfile::NamedTempFile::new().unwrap();
    let errors = fails(&["perplexity", "-m", &model, "-f", file.path().to_str().unwrap()], 1);
    assert!(errors.contains("at least 2"), "{errors}");
    let errors = fails(&["perplexity", "-m", &model, "-f", "no/such.txt"], 1);
    assert!(errors.contains("no/such.txt"), "{errors}");
}

#[test]
fn goldens_that_are_not_there_are_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let output = gristmill(&["selftest", "--filter", "no such case", "--goldens", path]);
    assert_eq!(output.status.code(), Some(1));
}
