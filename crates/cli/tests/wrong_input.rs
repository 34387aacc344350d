//! Wrong input at every door: an exit code that tells, nothing on standard output, and what to do on standard error.

mod shop;

use shop::{Answer, Shop};

#[track_caller]
fn refused(answer: &Answer, exit: i32, code: &str) {
    assert_eq!(answer.code, exit, "{answer:?}");
    assert!(answer.err.contains(&format!("code: {code}\n")), "{answer:?}");
    assert!(answer.err.starts_with("error: "), "{answer:?}");
    assert!(answer.out.is_empty(), "{answer:?}");
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let shop = Shop::new();
    for verb in [
        vec!["run", "list"],
        vec!["run", "signal", "run_0", "paid"],
        vec!["run", "cancel", "run_0"],
        vec!["store", "check"],
        vec!["store", "migrate"],
        vec!["doctor"],
        vec!["dead-letter", "list"],
    ] {
        refused(&shop.abide(&verb), 3, "no_store");
    }
    assert!(!shop.path().exists());
}

#[test]
fn a_directory_a_foreign_file_and_a_wrong_url_are_told_apart() {
    let shop = Shop::new();
    std::fs::create_dir(shop.path()).unwrap();
    let answer = shop.abide(&["run", "list"]);
    refused(&answer, 1, "store_unusable");
    assert!(answer.err.contains("is a directory"), "{answer:?}");
    refused(&shop.abide(&["run", "start", "greet"]), 1, "store_unusable");

    let text = shop.dir().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be taken for one").unwrap();
    let answer = shop.abide(&["--store", "sqlite:notes.txt", "run", "list"]);
    refused(&answer, 1, "store_unusable");
    assert!(answer.err.contains("not an Abide store"), "{answer:?}");

    for url in ["abide.db", "mysql://x", "sqlite:", "memory:"] {
        refused(&shop.abide(&["--store", url, "run", "list"]), 2, "bad_store");
    }
    let missing = shop.abide(&["--store", "sqlite:no/such/folder/abide.db", "run", "start", "greet"]);
    refused(&missing, 1, "store_unusable");
    assert!(missing.err.contains("does not exist"), "{missing:?}");
}

#[test]
fn an_id_is_checked_looked_for_and_made_unique() {
    let shop = Shop::new();
    let (one, two) = (shop.start("greet", &[]), shop.start("greet", &[]));
    for wrong in ["", "run_", "run_xyz", "order-17", "run_00000000000000000000000000000000000"] {
        refused(&shop.abide(&["run", "show", wrong]), 2, "bad_id");
    }
    for verb in [
        vec!["run", "show"],
        vec!["run", "history"],
        vec!["run", "explain"],
        vec!["run", "cancel"],
        vec!["run", "purge"],
        vec!["dead-letter", "requeue"],
        vec!["dead-letter", "discard"],
        vec!["run", "list", "--parent"],
        vec!["run", "list", "--before"],
    ] {
        refused(&shop.abide(&[&verb[..], &["run_ffff"]].concat()), 3, "not_found");
    }
    refused(&shop.abide(&["run", "signal", "run_ffff", "paid"]), 3, "not_found");
    let ambiguous = shop.abide(&["run", "show", "run_0"]);
    refused(&ambiguous, 2, "ambiguous_id");
    assert!(ambiguous.err.contains(&one) && ambiguous.err.contains(&two), "{ambiguous:?}");
    shop.abide(&["run", "show", &one.to_uppercase().replace("RUN_", "")]).ok();
    refused(&shop.abide(&["-n", "other", "run", "show", &one]), 3, "not_found");
}

#[test]
fn a_payload_must_be_json_and_must_be_there() {
    let shop = Shop::new();
    let run = shop.start("greet", &[]);
    for input in ["Ada", "{", "1 2", "", "{\"a\":NaN}"] {
        refused(&shop.abide(&["run", "start", "greet", "--input", input]), 2, "bad_json");
        refused(&shop.abide(&["run", "signal", &run, "paid", "--payload", input]), 2, "bad_json");
        refused(&shop.abide_with(&["run", "start", "greet", "--input", "-"], input), 2, "bad_json");
    }
    refused(&shop.abide(&["run", "start", "greet", "--input-file", "gone.json"]), 2, "unreadable");
    refused(&shop.abide(&["run", "start", "greet", "--input-file", "."]), 2, "unreadable");
    let large = format!("\"{}\"", "x".repeat(5 * 1024 * 1024));
    refused(&shop.abide_with(&["run", "start", "greet", "--input", "-"], &large), 2, "too_large");
    assert_eq!(shop.abide(&["run", "list"]).ok().out.lines().count(), 1, "nothing was started");
}

#[test]
fn names_and_keys_are_checked_before_anything_is_made() {
    let shop = Shop::new();
    refused(&shop.abide(&["run", "start", ""]), 2, "invalid");
    refused(&shop.abide(&["run", "start", "a\u{1b}[31m"]), 2, "invalid");
    refused(&shop.abide(&["run", "start", &"x".repeat(300)]), 2, "too_large");
    refused(&shop.abide(&["run", "start", "greet", "--key", ""]), 2, "invalid");
    refused(&shop.abide(&["run", "start", "greet", "--concurrency", "k:0"]), 2, "invalid");
    assert!(!shop.path().exists());
}

/// Whatever is done in it, a namespace is a name; and as a part of a path it is one as well.
#[test]
fn a_namespace_is_a_name_for_every_verb() {
    let shop = Shop::new();
    shop.start("greet", &[]);
    for name in ["", "a\u{7}b", "..", "."] {
        for verb in [&["run", "list"][..], &["run", "start", "greet"], &["queue", "list"], &["config", "show"]] {
            let answer = shop.abide(&[&["-n", name], verb].concat());
            refused(&answer, 2, "invalid");
            assert!(answer.err.contains("--namespace"), "{answer:?}");
        }
    }
    refused(&shop.abide(&["-n", &"x".repeat(300), "run", "list"]), 2, "too_large");
    for queue in ["", "..", "a\nb"] {
        for verb in ["pause", "resume", "limit"] {
            let answer = shop.abide(&["queue", verb, queue]);
            refused(&answer, 2, "bad_id");
            assert!(answer.err.contains("the name of a queue"), "{answer:?}");
        }
    }
}

#[test]
fn options_are_read_as_their_help_says() {
    let shop = Shop::new();
    for concurrency in ["k:x", "k:", "a:b"] {
        let answer = shop.abide(&["run", "start", "greet", "--concurrency", concurrency]);
        assert!(answer.code == 2 && answer.err.contains("KEY:N"), "{answer:?}");
    }
    assert!(!shop.path().exists());
    for input in ["-5", "-1.5e3", "-0.25"] {
        let run = shop.start("greet", &["--input", input, "--concurrency", "a:b:2", "--delay", "2d"]);
        let shown = shop.abide(&["run", "export", &run]).ok();
        assert!(shown.out.contains(input), "{shown:?}");
        shop.abide(&["run", "signal", &run, "paid", "--payload", input]).ok();
    }
    shop.abide(&["token", "create", "--name", "a", "--scope", "read", "--in", "*", "--expires", "90d"]).ok();
    for level in ["nonsense", "debgu"] {
        let answer = shop.abide(&["serve", "--log-level", level, "--listen", "127.0.0.1:0"]);
        refused(&answer, 2, "bad_log_level");
    }
    for listen in [":7601", "7601"] {
        let answer = shop.abide(&["serve", "--listen", listen]);
        assert!(answer.code == 2 && answer.err.contains("127.0.0.1:7411"), "{answer:?}");
    }
}

#[test]
fn a_run_that_is_over_or_open_refuses_what_does_not_fit() {
    let shop = Shop::new();
    let run = shop.start("greet", &[]);
    refused(&shop.abide(&["run", "purge", &run]), 2, "not_confirmed");
    refused(&shop.abide(&["run", "purge", &run, "--yes"]), 1, "run_open");
    refused(&shop.abide(&["dead-letter", "requeue", &run]), 1, "not_dead_lettered");
    refused(&shop.abide(&["dead-letter", "discard", &run]), 1, "not_dead_lettered");
    shop.abide(&["run", "cancel", &run]).ok();
    refused(&shop.abide(&["run", "cancel", &run]), 1, "run_over");
    refused(&shop.abide(&["run", "signal", &run, "paid"]), 1, "run_over");
}

#[test]
fn an_error_for_a_program_is_json() {
    let shop = Shop::new();
    for args in [vec!["-o", "json", "run", "list"], vec!["run", "list", "--json"]] {
        let answer = shop.abide(&args);
        let error: serde_json::Value = serde_json::from_str(&answer.err).unwrap();
        assert_eq!(error["error"]["code"], "no_store");
        assert_eq!(answer.code, 3);
    }
}

#[test]
fn errors_read_like_this() {
    let shop = Shop::new();
    assert_eq!(
        shop.abide(&["run", "list"]).err,
        "error: there is no store at abide.db\n  give its path with --store sqlite:PATH or in ABIDE_STORE, or start \
         an engine on it; --url asks a server\n  code: no_store\n"
    );
    assert_eq!(
        shop.abide(&["run", "start", "greet", "--input", "Ada"]).err,
        "error: the input is not JSON: expected value at line 1 column 1\n  text needs quotes of its own: '\"Ada\"' \
         or '{\"name\":\"Ada\"}'\n  code: bad_json\n"
    );
}
