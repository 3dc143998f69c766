//! Getting models from a stand-in for the hub that does what real ones do wrong.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::hub::{self, Fault, Hub};
use crate::support::*;

fn llama() -> Vec<u8> {
    fs::read(tests("goldens-gguf/llama.gguf")).unwrap()
}

/// A repository with one GGUF model, of two types.
fn quants() -> Hub {
    let model = llama();
    let other = fs::read(tests("goldens-gguf/qwen2.gguf")).unwrap();
    Hub::new(&[
        ("README.md", b"a tiny model".to_vec()),
        ("tiny-F32.gguf", model),
        ("tiny-Q4_K_M.gguf", other),
        ("mmproj-tiny.gguf", vec![7; 20_000]),
    ])
}

const F32: &str = "hf:owner/tiny:F32";
const FILE: &str = "tiny-F32.gguf";

/// Files in a folder and below, without records and locks.
fn files(dir: &Path) -> Vec<String> {
    let mut all = vec![];
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true if entry.file_name() == "locks" => {}
                true => left.push(entry.path()),
                false => all.push(entry.file_name().into_string().unwrap()),
            }
        }
    }
    all.retain(|name| name != ".gristmill.json");
    all.sort();
    all
}

#[test]
fn a_model_is_pulled_checked_and_used_offline() {
    let hub = quants();
    let path = hub.pull(F32);
    assert_eq!(fs::read(&path).unwrap(), llama());
    assert_eq!((hub.sent(FILE), files(hub.cache())), (llama().len(), vec![FILE.to_owned()]));
    // Of the commit, whatever the branch is now.
    assert!(hub.served().iter().any(|s| s.path == format!("/owner/tiny/resolve/{}/{FILE}", "1".repeat(40))));
    hub.forget();
    assert_eq!(hub.pull(F32), path);
    assert_eq!(hub.pull("hf:owner/tiny:tiny-F32.gguf"), path);
    assert_eq!(hub.sent(FILE), 0);
    hub.forget();
    // By every name, and no server is asked.
    for name in [
        F32,
        "hf:owner/tiny",
        "hf:Owner/Tiny@1111111",
        &*format!("{}/owner/tiny/blob/main/{FILE}", hub.address),
    ] {
        let (code, out, errors) = hub.run(&["logits", "-m", name, "--ids", "1,2"]);
        assert_eq!(code, Some(0), "{name}: {errors}");
        assert_eq!(out, ok(&["logits", "-m", &path, "--ids", "1,2"]));
    }
    assert!(hub.served().is_empty(), "{:?}", hub.served());
    // A tag of the same commit is the same model, from then on offline too.
    assert_eq!(hub.pull("hf:owner/tiny@v1:F32"), path);
    assert_eq!(hub.sent(FILE), 0);
    hub.forget();
    assert_eq!(hub.run(&["inspect", "-m", "hf:owner/tiny@v1:F32"]).0, Some(0));
    assert!(hub.served().is_empty());
    // One that is not there is fetched when it is used.
    let (code, _, errors) = hub.run(&["inspect", "-m", "hf:owner/tiny:q4_k_m"]);
    assert!(code == Some(0) && errors.contains("fetching hf:owner/tiny:tiny-Q4_K_M.gguf"), "{errors}");
    assert!(errors.contains("licence apache-2.0"), "{errors}");
    let (code, _, errors) = hub.run(&["inspect", "-m", "hf:owner/tiny"]);
    assert!(code == Some(1) && errors.contains("several models that were fetched"), "{errors}");
}

#[test]
fn what_a_repository_does_not_say_is_asked_for() {
    let hub = quants();
    let errors = hub.refuses("hf:owner/tiny", 0);
    for part in ["several models", "hf:owner/tiny:tiny-F32.gguf  ", "hf:owner/tiny:tiny-Q4_K_M.gguf", "KiB"] {
        assert!(errors.contains(part), "{errors}");
    }
    assert!(!errors.contains("mmproj"), "{errors}");
    let errors = hub.refuses("hf:owner/tiny:tiny-F16.gguf", 0);
    assert!(errors.contains("did you mean tiny-F32.gguf"), "{errors}");
    let errors = hub.refuses("hf:owner/tyny", 0);
    assert!(
        errors.contains("no repository owner/tyny") && errors.contains("did you mean hf:owner/tiny"),
        "{errors}"
    );
    let errors = hub.refuses("hf:owner/tiny@next:F32", 0);
    assert!(errors.contains("no branch, tag or commit `next`"), "{errors}");
    assert!(files(hub.cache()).is_empty());
    let (code, _, errors) = hub.run(&["inspect", "-m", "owner/tiny"]);
    assert!(code == Some(2) && errors.contains("-m hf:owner/tiny"), "{errors}");
    let (code, _, errors) = hub.run(&["pull", "owner/tiny"]);
    assert!(code == Some(2) && errors.contains("that is hf:owner/tiny"), "{errors}");
    let (code, _, errors) = hub.run(&["pull"]);
    assert!(
        code == Some(2) && errors.contains("smollm2-135m-instruct") && errors.contains("Apache-2.0"),
        "{errors}"
    );
}

#[test]
fn the_token_goes_to_the_hub_alone_and_is_never_shown() {
    let hub = quants();
    let token = "hf_notToBeSeenAnywhere";
    let run = |name: &str| {
        let output = hub.command(&["pull", name, "--retries", "0"]).env("HF_TOKEN", token).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!text.contains(token) && !text.contains("signature"), "{text}");
        text
    };
    run(F32);
    let served = hub.served();
    let with = |hub: bool| {
        served.iter().filter(|s| s.hub == hub).map(|s| s.header("authorization")).collect::<Vec<_>>()
    };
    let bearer = format!("Bearer {token}");
    assert!(with(true).iter().all(|t| *t == Some(&bearer)) && with(true).len() > 2, "{served:?}");
    assert_eq!(with(false), [None], "{served:?}");
    // Nor does an address that is not the hub's get it.
    hub.forget();
    run(&format!("{}/files/{FILE}", hub.behind));
    assert_eq!(hub.served().iter().map(|s| s.header("authorization")).collect::<Vec<_>>(), [None]);
    // Of the file that the hub's own tools write.
    let home = hub.cache().join("home/.cache/huggingface");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("token"), format!("{token}\n")).unwrap();
    hub.forget();
    hub.pull("hf:owner/tiny:Q4_K_M");
    assert_eq!(hub.served()[0].header("authorization"), Some(&*bearer));
    let (_, out, _) = hub.run(&["models", "list", "--json"]);
    assert!(!out.contains(token), "{out}");
}

#[test]
fn a_broken_connection_is_continued_where_it_broke() {
    let size = llama().len();
    for (fault, times) in [
        (Fault::Truncate(50_000), 3),
        (Fault::Status(503, vec![]), 1),
        (Fault::Status(429, vec![("Retry-After", "1".into())]), 1),
        (Fault::Silent(Duration::from_secs(4)), 1),
    ] {
        let hub = quants();
        let (path, slow) = match &fault {
            Fault::Status(..) => ("resolve/", false),
            Fault::Silent(_) => ("/large/", true),
            _ => ("/large/", false),
        };
        hub.fault(path, times, fault.clone());
        assert_eq!(fs::read(hub.pull(F32)).unwrap(), llama(), "{fault:?}");
        let served = hub.served();
        let ranges: Vec<_> = served
            .iter()
            .filter(|s| !s.hub)
            .map(|s| s.header("range").unwrap_or_default().to_owned())
            .collect();
        if let Fault::Truncate(bytes) = fault {
            let want = |n: usize| format!("bytes={}-", n * bytes);
            assert_eq!(ranges, ["".to_owned(), want(1), want(2), want(3)]);
            let conditions = served.iter().filter(|s| !s.hub && s.header("if-range").is_some()).count();
            assert_eq!((hub.sent("/large/"), conditions), (size, 3), "nothing comes twice");
        } else if !slow {
            assert_eq!(hub.sent("/large/"), size);
        }
    }
}

#[test]
fn what_does_not_pass_is_an_error_that_says_what_to_do() {
    let code = |name: &str| vec![("X-Error-Code", name.to_owned())];
    let words = || vec![("X-Error-Message", "a word of the hub".to_owned())];
    for (path, fault, retries, parts) in [
        (
            "revision/",
            Fault::Status(401, code("GatedRepo")),
            0,
            &["accept its licence", "/owner/tiny", "HF_TOKEN", "/settings/tokens"][..],
        ),
        ("resolve/", Fault::Status(403, code("GatedRepo")), 0, &["accept its licence", "HF_TOKEN"]),
        (
            "revision/",
            Fault::Status(401, code("RepoNotFound")),
            0,
            &["no repository owner/tiny", "private", "did you mean hf:owner/tiny"],
        ),
        ("resolve/", Fault::Status(403, words()), 0, &["not given to everybody", "a word of the hub"]),
        ("resolve/", Fault::Status(404, code("EntryNotFound")), 0, &["no longer in owner/tiny"]),
        (
            "resolve/",
            Fault::Status(429, vec![("Retry-After", "4000".into())]),
            3,
            &["429", "try again in 4000 s", "HF_TOKEN"],
        ),
        ("tree/", Fault::Status(500, vec![]), 1, &["going on in 0.5 s", "500 (fault of the server)"]),
        ("/large/", Fault::Status(503, vec![]), 1, &["503", "server not available"]),
        ("/large/", Fault::Truncate(7000), 0, &["broke off after 7000 bytes of"]),
        ("/large/", Fault::Silent(Duration::from_secs(5)), 0, &["broke off after 0 bytes"]),
        ("/large/", Fault::Corrupt, 0, &["has the SHA-256", "instead of", "was removed"]),
        ("/large/", Fault::Longer, 0, &["bytes there, and should have"]),
        ("revision/", Fault::Longer, 0, &["makes no sense"]),
        (
            "resolve/",
            Fault::Redirect("http://example.invalid/x".into()),
            0,
            &["example.invalid", "--allow-http"],
        ),
        ("resolve/", Fault::Redirect("file:///etc/passwd".into()), 0, &["file:///etc/passwd", "no address"]),
        ("resolve/", Fault::Redirect("?again".into()), 0, &["redirects"]),
    ] {
        let hub = quants();
        hub.fault(path, 99, fault.clone());
        let errors = hub.refuses(F32, retries);
        for part in parts {
            assert!(errors.contains(part), "{path} {fault:?}: {part:?} is not in {errors}");
        }
        let left = files(hub.cache());
        assert!(!left.iter().any(|name| name == FILE), "{fault:?}: {left:?}");
        if matches!(fault, Fault::Corrupt) {
            assert!(left.is_empty(), "{left:?}");
        }
        let (code, out, _) = hub.run(&["models"]);
        assert_eq!((code, out.as_str()), (Some(0), ""), "{fault:?}");
        // What was left is gone on with.
        hub.forget();
        assert_eq!(fs::read(hub.pull(F32)).unwrap(), llama());
    }
}

#[test]
fn nobody_at_the_address_is_told_as_such() {
    let hub = quants();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    // As many retries as one likes: who is offline is told soon, once, and what there is without a connection.
    for (hub_address, cause) in
        [(address.as_str(), "connection was refused"), ("https://hub.invalid", "hub.invalid is not")]
    {
        for name in [F32.to_owned(), format!("{hub_address}/model.gguf")] {
            let start = std::time::Instant::now();
            let (code, _, errors) = hub.run(&["pull", &name, "--hub", hub_address, "--retries", "9"]);
            assert!(code == Some(1) && errors.contains(cause), "{errors}");
            assert!(["`gristmill models`", "`-m FILE`"].iter().all(|part| errors.contains(part)), "{errors}");
            assert_eq!(errors.matches("check the connection").count(), 1, "{errors}");
            // A resolver may take its own time, nine waits from half a second would take minutes.
            assert!(!errors.contains("going on in") && start.elapsed() < Duration::from_secs(60), "{errors}");
        }
    }
    // Whoever answers there speaks no TLS.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tls = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let (code, _, errors) = hub.run(&["pull", F32, "--hub", &tls, "--retries", "0"]);
    assert!(code == Some(1) && errors.contains("is not secure"), "{errors}");
    let (code, _, errors) = hub.run(&["pull", F32, "--hub", "abacus"]);
    assert!(code == Some(2) && errors.contains("abacus"), "{errors}");
}

#[test]
fn proxies_of_the_environment_are_asked() {
    let hub = quants();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        use std::io::{BufRead, Write};
        let (mut stream, _) = listener.accept().unwrap();
        // All of the request: a connection closed with some of it unread is reset, and the answer lost.
        let lines = std::io::BufReader::new(&stream).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").unwrap();
        lines[0].clone()
    });
    let mut command = hub.command(&["pull", F32, "--hub", "https://hub.invalid", "--retries", "0"]);
    let output = command.env("HTTPS_PROXY", proxy).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("proxy"), "{errors}");
    assert!(asked.join().unwrap().starts_with("CONNECT hub.invalid:443 "));
}

/// Real processes, killed for real, at several points: the next one asks for what is missing and nothing else.
#[test]
fn a_killed_pull_is_continued() {
    let size = llama().len();
    for at in [0, 1, size / 3, size - 20_000] {
        let hub = quants();
        hub.fault("/large/", 1, Fault::Slow(4096, Duration::from_millis(5)));
        let mut child =
            hub.command(&["pull", F32]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        match at {
            // Before the first byte of the file.
            0 => hub.wait_for("", 1),
            at => hub.wait_for("/large/", at),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let left = files(hub.cache());
        assert!(!left.iter().any(|name| name == FILE), "{left:?}");
        let part = find(hub.cache(), "tiny-F32.gguf.part");
        let there = part.map_or(0, |part| fs::metadata(part).unwrap().len()) as usize;
        assert!(there + 65_536 >= at, "{there} of {at}");
        assert_eq!(hub.run(&["models", "list"]).1, "");
        hub.forget();
        assert_eq!(fs::read(hub.pull(F32)).unwrap(), llama(), "killed at {at}");
        assert_eq!(hub.sent("/large/"), size - there, "killed at {at}");
        assert_eq!(files(hub.cache()), [FILE]);
    }
}

fn find(dir: &Path, name: &str) -> Option<std::path::PathBuf> {
    let entries: Vec<_> = fs::read_dir(dir).ok()?.flatten().map(|e| e.path()).collect();
    let here = entries.iter().find(|p| p.file_name().is_some_and(|n| n == name)).cloned();
    here.or_else(|| entries.iter().filter(|p| p.is_dir()).find_map(|dir| find(dir, name)))
}

#[test]
fn bytes_that_changed_while_nobody_looked_are_fetched_again() {
    let hub = quants();
    hub.fault("/large/", 1, Fault::Truncate(60_000));
    hub.refuses(F32, 0);
    let part = find(hub.cache(), "tiny-F32.gguf.part").unwrap();
    let mut bytes = fs::read(&part).unwrap();
    bytes[1000] ^= 1;
    fs::write(&part, bytes).unwrap();
    let (code, out, errors) = hub.run(&["pull", F32]);
    assert!(code == Some(0) && errors.contains("is now fetched from its beginning"), "{errors}");
    assert_eq!(fs::read(out.trim()).unwrap(), llama());
}

#[test]
fn a_file_that_changes_on_its_server_is_never_two_halves() {
    let new: Vec<u8> = llama().iter().map(|b| b ^ 0x55).collect();
    for (fault, sha256) in
        [(None, false), (Some(Fault::NoConditions), false), (Some(Fault::NoRanges), false), (None, true)]
    {
        let hub = quants();
        let mut url = format!("{}/files/{FILE}", hub.behind);
        if sha256 {
            url += &format!("#sha256={}", hub::sha256(&new));
        }
        hub.fault("/files/", 1, Fault::Truncate(60_000));
        hub.refuses(&url, 0);
        hub.change(FILE, new.clone());
        if let Some(fault) = &fault {
            hub.fault("/files/", 1, fault.clone());
        }
        let path = hub.pull(&url);
        assert!(fs::read(path).unwrap() == new, "{fault:?} {sha256}");
    }
    // The same file goes on.
    let hub = quants();
    let url = format!("{}/files/{FILE}", hub.behind);
    hub.fault("/files/", 1, Fault::Truncate(60_000));
    assert_eq!(fs::read(hub.pull(&url)).unwrap(), llama());
    assert_eq!(hub.sent("/files/"), llama().len());
    hub.forget();
    let (code, ..) = hub.run(&["inspect", "-m", &url]);
    assert!(code == Some(0) && hub.served().is_empty());
    let errors = hub.refuses(&format!("{url}#sha256={}", "0".repeat(64)), 0);
    assert!(errors.contains("has the SHA-256"), "{errors}");
}

#[test]
fn two_at_once_fetch_once() {
    let hub = quants();
    hub.fault("/large/", 1, Fault::Slow(16_384, Duration::from_millis(20)));
    let start = || hub.command(&["pull", F32]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children = [start(), start()];
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    let paths: Vec<_> = outputs.iter().map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).collect();
    assert!(paths[0] == paths[1] && outputs.iter().all(|o| o.status.success()), "{outputs:?}");
    let waited =
        outputs.iter().filter(|o| String::from_utf8_lossy(&o.stderr).contains("waiting for it")).count();
    assert_eq!((hub.sent("/large/"), waited), (llama().len(), 1));
}

/// The weights of the `llama` golden in two shards with their index.
fn shards() -> BTreeMap<String, Vec<u8>> {
    let (header, data) = safetensors();
    let header: BTreeMap<String, Value> = serde_json::from_str(&header).unwrap();
    let tensors: Vec<_> = header.into_iter().filter(|(name, _)| name != "__metadata__").collect();
    let (mut files, mut index) = (BTreeMap::new(), serde_json::Map::new());
    for (number, tensors) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", number + 1);
        let (mut head, mut body) = (serde_json::Map::new(), vec![]);
        for (name, info) in tensors {
            let [from, to] = [0, 1].map(|i| info["data_offsets"][i].as_u64().unwrap() as usize);
            let at = body.len();
            body.extend_from_slice(&data[from..to]);
            head.insert(
                name.clone(),
                json!({ "dtype": info["dtype"], "shape": info["shape"], "data_offsets": [at, body.len()] }),
            );
            index.insert(name.clone(), json!(file));
        }
        files.insert(file, joined(&Value::Object(head).to_string(), &body));
    }
    let index = json!({ "metadata": {}, "weight_map": index });
    files.insert("model.safetensors.index.json".into(), index.to_string().into_bytes());
    files
}

#[test]
fn a_folder_comes_with_its_shards_and_nothing_else() {
    let mut content = shards();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        if let Ok(bytes) = fs::read(tests(&format!("goldens/llama/{name}"))) {
            content.insert(name.into(), bytes);
        }
    }
    let mut want: Vec<String> = content.keys().cloned().collect();
    want.sort();
    for name in ["README.md", "pytorch_model.bin", "original/model.safetensors", "onnx/config.json"] {
        content.insert(name.into(), vec![1; 20_000]);
    }
    let list: Vec<(&str, Vec<u8>)> =
        content.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let hub = Hub::new(&list);
    // Both shards are under way before one has come.
    hub.fault("/large/model-", 2, Fault::Slow(8192, Duration::from_millis(10)));
    let mut child =
        hub.command(&["pull", "hf:owner/tiny"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    hub.wait_for("/large/model-00001", 1);
    hub.wait_for("/large/model-00002", 1);
    let sent = hub.sent("/large/model-");
    assert!(sent < content["model-00001-of-00002.safetensors"].len(), "{sent}");
    child.kill().unwrap();
    child.wait().unwrap();
    let path = hub.pull("hf:owner/tiny");
    let total: usize = want.iter().filter(|n| n.contains("-of-")).map(|n| content[n].len()).sum();
    assert!(hub.sent("/large/model-") < total + 200_000);
    assert_eq!(files(hub.cache()), want);
    let ids = golden_ids("llama", "input_ids");
    let (whole, split) = (logits(&tests("goldens/llama"), &ids, &[]), logits(&path, &ids, &[]));
    assert!(whole == split);
    // A small file is checked by its name in Git.
    let hub = Hub::new(&list);
    hub.fault("/resolve/1111111111111111111111111111111111111111/config.json", 9, Fault::Corrupt);
    let errors = hub.refuses("hf:owner/tiny", 0);
    assert!(errors.contains("config.json") && errors.contains("Git SHA-1"), "{errors}");
    assert!(!hub.cache().join("hf").exists());
}

#[test]
fn fetched_models_are_listed_verified_and_removed() {
    let hub = quants();
    let path = hub.pull(F32);
    hub.pull("hf:owner/tiny:Q4_K_M");
    let (_, out, _) = hub.run(&["models", "list", "--json"]);
    let listed: Value = serde_json::from_str(&out).unwrap();
    let first =
        listed.as_array().unwrap().iter().find(|m| m["name"] == "hf:owner/tiny:tiny-F32.gguf").unwrap();
    assert_eq!((&first["about"], &first["licence"]), (&json!("llama BF16"), &json!("apache-2.0")));
    assert!(first["bytes"] == llama().len() && first["commit"] == "1".repeat(40) && first["path"] == path);
    let (code, out, _) = hub.run(&["models", "verify"]);
    assert!(code == Some(0) && out.lines().count() == 2 && out.matches("whole").count() == 2, "{out}");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (code, out, errors) = hub.run(&["models", "verify", F32]);
    assert!(code == Some(1) && out.contains("damaged") && out.contains("SHA-256"), "{out}");
    assert!(errors.contains("models remove"), "{errors}");
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (code, _, errors) = hub.run(&["inspect", "-m", F32]);
    assert!(code == Some(1) && errors.contains("damaged") && errors.contains("models remove"), "{errors}");
    let (code, out, _) = hub.run(&["models", "remove", F32]);
    assert!(code == Some(0) && out.contains("removed") && out.contains("KiB free again"), "{out}");
    assert!(!Path::new(&path).exists() && hub.run(&["models"]).1.lines().count() == 1);
    let (code, _, errors) = hub.run(&["models", "remove", "hf:owner/tiny:F32"]);
    assert!(
        code == Some(2) && errors.contains("was not fetched; what was:\n  hf:owner/tiny:tiny-Q4_K_M.gguf"),
        "{errors}"
    );
    // A later commit lies beside the earlier one until that is removed.
    hub.change("tiny-Q4_K_M.gguf", llama());
    let (_, out, errors) = hub.run(&["pull", "hf:owner/tiny:Q4_K_M"]);
    assert!(errors.contains("models remove hf:owner/tiny@111111111111:tiny-Q4_K_M.gguf"), "{errors}");
    assert!(hub.run(&["inspect", "-m", "hf:owner/tiny:Q4_K_M"]).1.contains("llama"), "the latest is used");
    let (code, _, errors) = hub.run(&["models", "remove", "hf:owner/tiny:Q4_K_M"]);
    assert!(code == Some(2) && errors.contains("several") && errors.contains("222222222222"), "{errors}");
    assert_eq!(hub.run(&["models", "remove", "hf:owner/tiny@111111111111:tiny-Q4_K_M.gguf"]).0, Some(0));
    assert!(Path::new(out.trim()).exists());
    // Unfinished ones.
    hub.fault("/large/", 1, Fault::Truncate(50_000));
    hub.refuses(F32, 0);
    let (_, _, errors) = hub.run(&["models"]);
    assert!(errors.contains("unfinished fetches hold 49."), "{errors}");
    assert!(hub.run(&["models", "clean"]).1.contains("49."));
    assert_eq!(files(hub.cache()), ["tiny-Q4_K_M.gguf"]);
}

#[test]
fn a_model_of_the_catalogue_that_lies_there_is_listed() {
    let hub = quants();
    let path = hub.cache().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    fs::File::create(&path).unwrap().set_len(98_362_432).unwrap();
    let (_, out, _) = hub.run(&["models"]);
    assert!(
        out.contains("smollm2-135m-instruct") && out.contains("93.8 MiB") && out.contains("llama Q4_1"),
        "{out}"
    );
    assert_eq!(hub.run(&["pull", "smollm2-135m-instruct"]).1.trim(), path.to_str().unwrap());
    let (code, out, _) = hub.run(&["models", "verify", "smollm2-135m-instruct"]);
    assert!(code == Some(1) && out.contains("SHA-256"), "{out}");
    assert!(hub.run(&["models", "remove", "smollm2-135m-instruct"]).1.contains("93.8 MiB free"));
    assert!(!path.exists());
}

/// Whatever length a server tells, nothing is written that the disk has no room for.
#[test]
fn what_has_no_room_is_not_begun() {
    let hub = quants();
    let url = format!("{}/files/{FILE}", hub.behind);
    hub.fault("/files/", 1, Fault::Told(1 << 60));
    let errors = hub.refuses(&url, 0);
    assert!(errors.contains("are free there"), "{errors}");
    let part = find(hub.cache(), &format!("{FILE}.part")).unwrap();
    assert_eq!(fs::metadata(part).unwrap().len(), 0);
    assert_eq!(fs::read(hub.pull(&url)).unwrap(), llama());
}

/// A list of shards that names other files of the model: each would be fetched twice at once, into one file.
#[test]
fn shards_are_no_other_files_of_the_model() {
    let index = br#"{"weight_map":{"a":"config.json","b":"tokenizer.json"}}"#;
    let hub = Hub::new(&[
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
    ]);
    let errors = hub.refuses("hf:owner/tiny", 0);
    assert!(errors.contains("is no list of shards") && errors.contains("config.json"), "{errors}");
    assert!(files(hub.cache()).is_empty());
}
