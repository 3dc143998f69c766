//! Conversations on one cache.

use std::path::{Path, PathBuf};

use checks::variants::with_metadata;
use gristmill::parts::formats::gguf::Value;
use gristmill::{
    Chat, Checkpoint, EngineError, EngineOptions, Error, Generate, Interrupt, Llm, LoadOptions, Message,
    Resumption, SessionError, StopReason,
};

const TEMPLATE: &str = "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('bad words') }}{% endif %}\
    <{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/goldens-gguf/{case}.gguf"))
}

/// A golden with a chat template and this context.
fn load(case: &str, context: usize) -> Llm {
    let checkpoint = Checkpoint::open(&golden(case)).unwrap();
    let template = ("tokenizer.chat_template", Value::String(TEMPLATE.to_owned()));
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    std::fs::write(file.path(), with_metadata(&checkpoint, &[template]).unwrap()).unwrap();
    let engine = EngineOptions { context: Some(context), max_sequences: 1, ..EngineOptions::default() };
    Llm::load(file.path(), &LoadOptions { engine, ..LoadOptions::default() }).unwrap()
}

fn options(tokens: usize) -> Generate {
    Generate { ignore_end: true, ..Generate::default() }.max_tokens(tokens)
}

/// The texts of the messages.
fn texts(chat: &Chat) -> Vec<String> {
    let text =
        |message: &Message| serde_json::to_value(&message.content).unwrap().as_str().unwrap().to_owned();
    chat.messages().iter().map(text).collect()
}

#[test]
fn turns_are_those_of_the_whole_conversation_and_computed_once() {
    for case in ["llama", "lfm2"] {
        let (mut llm, mut other) = (load(case, 512), load(case, 512));
        let mut chat = Chat::new(&mut llm).unwrap();
        chat.set_system(Some("Be brief."));
        let mut prompt = 0;
        for question in ["Why is the sky blue?", "And at sunset?", "Is that all?"] {
            let before = chat.stats();
            let mut reply = chat.say(question, &options(8)).unwrap();
            let answer: String = reply.by_ref().map(Result::unwrap).collect();
            let outcome = reply.outcome().unwrap();
            assert_eq!(outcome.reason, StopReason::MaxTokens);
            drop(reply);
            let asked = &chat.messages()[..chat.messages().len() - 1];
            assert_eq!(answer, other.chat(asked, &options(8)).unwrap().text().unwrap(), "{case}: {question}");
            // All of the prompt before, but for its last token, is there.
            assert!(outcome.reused_tokens + 1 >= prompt, "{case}: {} of {prompt}", outcome.reused_tokens);
            prompt = outcome.prompt_tokens;
            assert_eq!(chat.stats().reused - before.reused, outcome.reused_tokens);
            assert_eq!(chat.stats().computed - before.computed, prompt - outcome.reused_tokens);
        }
        assert_eq!((chat.stats().answers, chat.stats().generated), (3, 24));
        assert_eq!(texts(&chat).len(), 7);
    }
}

#[test]
fn questions_are_taken_back_and_answered_again() {
    let mut llm = load("lfm2", 512);
    let mut chat = Chat::new(&mut llm).unwrap();
    assert!(matches!(chat.retry(&options(8)), Err(Error::Chat(_))));
    chat.set_system(Some("one"));
    assert!(matches!(chat.retry(&options(8)), Err(Error::Chat(_))));
    let first = chat.say("Why?", &options(8)).unwrap().text().unwrap();
    let mut reply = chat.retry(&options(8)).unwrap();
    assert_eq!(reply.by_ref().map(Result::unwrap).collect::<String>(), first);
    let outcome = reply.outcome().unwrap();
    assert_eq!(outcome.reused_tokens, outcome.prompt_tokens - 1);
    drop(reply);
    let hot = options(8).temperature(5.0).seed(1);
    let other = chat.retry(&hot).unwrap().text().unwrap();
    assert_eq!(texts(&chat), ["one", "Why?", &other]);
    assert_ne!(other, first);
    let second = chat.say("How?", &options(8)).unwrap().text().unwrap();
    assert_eq!(chat.undo().as_deref(), Some("How?"));
    assert_eq!(texts(&chat), ["one", "Why?", &other]);
    assert_eq!(chat.say("How?", &options(8)).unwrap().text().unwrap(), second);
    chat.set_system(Some("two"));
    assert_eq!((chat.system(), chat.messages()[0].role.as_str()), (Some("two"), "system"));
    chat.set_system(None);
    assert_eq!(
        (chat.undo().as_deref(), chat.undo().as_deref(), chat.undo()),
        (Some("How?"), Some("Why?"), None)
    );
    chat.set_system(Some("three"));
    assert!(!chat.say("Why?", &options(8)).unwrap().text().unwrap().is_empty());
    chat.clear();
    assert_eq!((texts(&chat), chat.stats().answers), (vec!["three".to_owned()], 0));
}

#[test]
fn what_is_refused_leaves_the_conversation_as_it_was() {
    let mut llm = load("llama", 96);
    let mut chat = Chat::new(&mut llm).unwrap();
    chat.say("Why?", &options(8)).unwrap().text().unwrap();
    let before = texts(&chat);
    let long = "so ".repeat(200);
    let error = chat.say(long, &options(8)).err().unwrap();
    assert!(matches!(error, Error::Engine(EngineError::PromptTooLong { context: 96, .. })), "{error}");
    assert!(matches!(chat.say("bad", &options(8)).err(), Some(Error::Template(_))));
    let empty_stop = chat.retry(&options(8).stop("")).err().unwrap();
    assert!(matches!(empty_stop, Error::Option { .. }));
    assert_eq!(texts(&chat), before);
    // Output that fills the context says so, and the turn after it does not fit.
    let mut reply = chat.say("Go on", &Generate { ignore_end: true, ..Generate::default() }).unwrap();
    reply.by_ref().for_each(|piece| drop(piece.unwrap()));
    assert_eq!(reply.outcome().unwrap().reason, StopReason::ContextFull);
    drop(reply);
    assert!(chat.tokens().unwrap() > 80);
    assert!(chat.say("And now?", &options(8)).is_err());
    assert_eq!(texts(&chat).len(), before.len() + 2);
    let no_template = Llm::load(golden("llama"), &LoadOptions::default());
    assert!(matches!(Chat::new(&mut no_template.unwrap()).err(), Some(Error::Template(_))));
}

#[test]
fn an_answer_that_is_broken_off_is_kept_as_far_as_it_was_read() {
    for case in ["llama", "lfm2"] {
        let (mut llm, mut other) = (load(case, 4096), load(case, 4096));
        let mut chat = Chat::new(&mut llm).unwrap();
        let interrupt = Interrupt::new();
        let mut reply = chat.say("Why?", &options(4000)).unwrap().until(&interrupt);
        let mut text = reply.next().unwrap().unwrap();
        let raiser = interrupt.clone();
        let thread = std::thread::spawn(move || raiser.raise());
        text.extend(reply.by_ref().map(Result::unwrap));
        thread.join().unwrap();
        assert_eq!(reply.outcome().unwrap().reason, StopReason::Interrupted);
        drop(reply);
        assert_eq!(texts(&chat), ["Why?", &text]);
        // Still raised: nothing is said, and the question goes.
        assert_eq!(chat.say("How?", &options(8)).unwrap().until(&interrupt).text().unwrap(), "");
        assert_eq!(texts(&chat), ["Why?", &text]);
        interrupt.clear();
        // Dropping the stream breaks off, too.
        let mut reply = chat.say("Who?", &options(4000)).unwrap().until(&interrupt);
        let part = reply.next().unwrap().unwrap();
        drop(reply);
        assert_eq!(texts(&chat)[3], part);
        let mut reply = chat.say("How?", &options(8)).unwrap();
        let answer: String = reply.by_ref().map(Result::unwrap).collect();
        assert!(reply.outcome().unwrap().reused_tokens > 0);
        drop(reply);
        let asked = &chat.messages()[..chat.messages().len() - 1];
        assert_eq!(answer, other.chat(asked, &options(8)).unwrap().text().unwrap());
    }
}

#[test]
fn conversations_are_saved_and_go_on() {
    for case in ["llama", "lfm2"] {
        let mut llm = load(case, 512);
        let mut chat = Chat::new(&mut llm).unwrap();
        chat.set_system(Some("Be brief."));
        chat.say("Why?", &options(8)).unwrap().text().unwrap();
        // Saved at once after an answer that is broken off.
        drop(chat.say("Who?", &options(30)).unwrap().next());
        let bytes = chat.save().unwrap();
        let want = chat.say("How?", &options(8)).unwrap().text().unwrap();

        let mut llm = load(case, 512);
        let mut chat = Chat::new(&mut llm).unwrap();
        chat.say("Something else", &options(8)).unwrap().text().unwrap();
        for damaged in [&bytes[..bytes.len() - 1], b"", b"no session"] {
            assert!(matches!(chat.load(damaged), Err(Error::Engine(EngineError::Session(_)))));
        }
        assert_eq!(texts(&chat)[0], "Something else");
        assert!(matches!(chat.load(&bytes).unwrap(), Resumption::Restored(n) if n > 20));
        assert_eq!((texts(&chat).len(), chat.system()), (5, Some("Be brief.")));
        let mut reply = chat.say("How?", &options(8)).unwrap();
        assert_eq!(reply.by_ref().map(Result::unwrap).collect::<String>(), want);
        assert!(reply.outcome().unwrap().reused_tokens > 10);
        drop(reply);

        // In an engine of another context its messages go on, computed again.
        let mut llm = load(case, 480);
        let mut chat = Chat::new(&mut llm).unwrap();
        let Resumption::Recomputed(why) = chat.load(&bytes).unwrap() else { panic!("restored") };
        assert!(why.contains("fingerprint"), "{why}");
        let mut reply = chat.say("How?", &options(8)).unwrap();
        assert_eq!(reply.by_ref().map(Result::unwrap).collect::<String>(), want);
        assert_eq!(reply.outcome().unwrap().reused_tokens, 0);
    }
    // A session that no conversation is of.
    let mut llm = load("llama", 512);
    let session = llm.engine().open_session();
    let bytes = pollster::block_on(llm.engine().save_session(session, b"").unwrap()).unwrap();
    let error = Chat::new(&mut llm).unwrap().load(&bytes).unwrap_err().to_string();
    assert!(error.contains("without a conversation"), "{error}");
    assert_eq!(SessionError::Foreign.to_string(), "this is not a saved session");
}

/// What is beside the states may be anybody's: counts of any size, messages of any role, in any order.
#[test]
fn notes_that_nobody_wrote_do_no_harm() {
    let mut llm = load("llama", 512);
    let most = usize::MAX;
    let stats = format!(r#"{{"answers":{most},"reused":{most},"computed":{most},"generated":{most}}}"#);
    let message = |role: &str| format!(r#"{{"role":"{role}","content":"Why?"}}"#);
    let [user, assistant, other] = ["user", "assistant", "\\u001b"].map(message);
    for (messages, answers) in [
        (String::new(), false),
        (assistant.clone(), false),
        (format!("{assistant},{assistant}"), true),
        (format!("{user},{assistant}"), true),
        (other, true),
    ] {
        let session = llm.engine().open_session();
        let note = format!(r#"{{"messages":[{messages}],"stats":{stats}}}"#);
        let saving = llm.engine().save_session(session, note.as_bytes()).unwrap();
        let bytes = pollster::block_on(saving).unwrap();
        llm.engine().close_session(session);
        let mut chat = Chat::new(&mut llm).unwrap();
        chat.load(&bytes).unwrap_or_else(|e| panic!("{note}: {e}"));
        let before = texts(&chat).len();
        let again = chat.retry(&options(2)).map(|reply| reply.text().unwrap());
        assert_eq!(again.is_ok(), answers, "{note}");
        chat.say("How?", &options(2)).unwrap().text().unwrap();
        let stats = chat.stats();
        assert_eq!([stats.answers, stats.reused, stats.computed, stats.generated], [most; 4]);
        chat.undo().unwrap();
        assert!(texts(&chat).len().abs_diff(before) <= 1, "{note}");
        chat.save().unwrap();
    }
}
