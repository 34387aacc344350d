//! Reading verbs: beside a running engine, without index rows, and safe for a terminal.

mod shop;

use serde_json::json;
use shop::Shop;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_works_beside_a_running_engine() {
    let shop = Shop::new();
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().start("waits", &json!({"n": 1})).key("order-1").await.unwrap();
    let id = run.id().to_string();
    // It is acknowledged, so it is seen, whatever of it is flushed.
    let listed = shop.abide(&["run", "list", "--json"]).ok().json();
    assert_eq!(listed["runs"][0]["run"], id);
    shop.await_status(&id, "awaiting_signal");
    let shown = shop.abide(&["run", "show", &id]).ok().out;
    assert!(shown.contains("waiting for\tsignal paid\n"), "{shown}");
    let history = shop.abide(&["run", "history", &id]).ok().out;
    assert!(history.contains("waits for signal paid"), "{history}");
    shop.abide(&["store", "check"]).ok();
    let stats = shop.abide(&["store", "stats", "--json"]).ok().json();
    assert_eq!(stats["runs"]["awaiting_signal"], 1);
    let holder = stats["holder"].as_str().unwrap();
    assert!(holder.contains("the test's engine"), "{holder}");
    run.signal("paid", &7).await.unwrap();
    assert_eq!(run.result::<u32>().await.unwrap(), 7);
    assert_eq!(shop.abide(&["run", "show", &id, "--json"]).ok().json()["result"], 7);
    engine.stop(std::time::Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_is_refused_while_an_engine_holds_the_store_and_names_it() {
    let shop = Shop::new();
    let engine = shop.engine().start().await.unwrap();
    let run = engine.client().start("waits", &0).await.unwrap().id().to_string();
    for verb in [
        vec!["run", "start", "waits"],
        vec!["run", "signal", &run, "paid"],
        vec!["run", "cancel", &run],
        vec!["run", "purge", &run, "--yes"],
        vec!["dead-letter", "requeue", &run],
        vec!["dead-letter", "discard", &run],
        vec!["store", "migrate"],
    ] {
        let answer = shop.abide(&verb);
        assert_eq!(answer.code, 1, "{answer:?}");
        assert!(answer.err.contains("code: store_in_use"), "{answer:?}");
        let holder = format!("process {} (the test's engine)", std::process::id());
        assert!(answer.err.contains(&holder), "{answer:?}");
    }
    engine.stop(std::time::Duration::from_secs(5)).await;
    shop.abide(&["run", "cancel", &run]).ok();
}

#[test]
fn without_index_rows_every_answer_is_the_same() {
    let shop = Shop::new();
    let run = shop.start("greet", &["--key", "a", "--input", r#"{"big":12345678901234567890}"#]);
    let other = shop.start("greet", &["--queue", "slow", "--concurrency", "tenant:2"]);
    shop.abide(&["run", "signal", &run, "paid", "--payload", "[1, 2]"]).ok();
    shop.abide(&["run", "cancel", &other]).ok();
    let gone = shop.start("greet", &[]);
    shop.abide(&["run", "cancel", &gone]).ok();
    shop.abide(&["run", "purge", &gone, "--yes"]).ok();
    let ask = || {
        let mut answers = String::new();
        for args in [
            vec!["run", "list"],
            vec!["run", "list", "--status", "open", "--queue", "default"],
            vec!["run", "list", "--key", "a", "--json"],
            vec!["run", "show", &run, "--json"],
            vec!["run", "history", &run, "--json"],
            vec!["run", "show", &other],
            vec!["store", "stats"],
            vec!["store", "check", "--json"],
        ] {
            answers.push_str(&shop.abide(&args).ok().out);
        }
        assert_eq!(shop.abide(&["run", "show", &gone]).code, 3);
        answers
    };
    let before = ask();
    assert!(before.contains("12345678901234567890"), "numbers are shown exactly: {before}");
    assert_eq!(shop.edit("DELETE FROM run; UPDATE shard SET watermark = 0"), 1);
    assert_eq!(ask(), before);
}

#[test]
fn pages_and_filters_lead_from_run_to_run() {
    let shop = Shop::new();
    let runs: Vec<String> = (0..5).map(|n| shop.start(if n == 2 { "other" } else { "greet" }, &[])).collect();
    let first = shop.abide(&["run", "ls", "--limit", "2"]).ok();
    let ids: Vec<&str> = first.out.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(ids, [&runs[4], &runs[3]]);
    assert_eq!(first.err, format!("more with --before {}\n", runs[3]));
    let rest = shop.abide(&["-o", "jsonl", "run", "ls", "--before", &runs[3]]).ok();
    assert_eq!(rest.out.lines().count(), 3);
    assert!(rest.err.is_empty());
    let others = shop.abide(&["run", "list", "--workflow", "other"]).ok().out;
    assert!(others.starts_with(&runs[2]), "{others}");
    assert_eq!(others.lines().count(), 1);
    assert_eq!(shop.abide(&["run", "list", "--status", "done,failed"]).ok().out, "");
    assert_eq!(shop.abide(&["-n", "elsewhere", "run", "list"]).ok().out, "");
    let wrong = shop.abide(&["run", "list", "--status", "running"]);
    assert!(wrong.code == 2 && wrong.err.contains("awaiting_signal"), "{wrong:?}");
}

#[test]
fn runs_are_found_by_their_labels_and_their_times() {
    let shop = Shop::new();
    let ops = shop.start("greet", &["--label", "team=ops", "--label", "größe=大"]);
    let web = shop.start("greet", &["--label", "team=web"]);
    shop.start("greet", &[]);
    let list = |more: &[&str]| {
        let answer = shop.abide(&[&["run", "list"], more].concat()).ok();
        answer.out.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(&["--label", "team=ops"]), [ops.as_str()]);
    assert_eq!(list(&["--label", "team=web"]), [web.as_str()]);
    assert_eq!(list(&["--label", "größe=大", "--label", "team=ops"]), [ops.as_str()]);
    assert_eq!(list(&["--label", "größe=大", "--label", "team=web"]), [""; 0]);
    let shown = shop.abide(&["run", "list", "--label", "team=web", "--json"]).ok().json();
    assert_eq!(shown["runs"][0]["labels"], serde_json::json!({"team": "web"}));
    let created = shown["runs"][0]["created_at"].as_str().unwrap();
    assert!(list(&["--created-after", created]).contains(&web));
    assert!(!list(&["--created-before", created]).contains(&web));
    assert_eq!(list(&["--created-after", "1h"]).len(), 3);
    assert_eq!(list(&["--updated-before", "1h"]).len(), 0);
    for (option, value, expected) in [
        ("--label", "team", "NAME=VALUE"),
        ("--label", "=ops", "NAME=VALUE"),
        ("--created-after", "yesterday", "or how long ago"),
        ("--updated-before", "", "or how long ago"),
    ] {
        let wrong = shop.abide(&["run", "list", option, value]);
        assert!(wrong.code == 2 && wrong.err.contains(expected), "{wrong:?}");
    }
}

/// What a workflow's author or a stranger put into a payload must not command the reader's terminal.
#[test]
fn control_characters_never_reach_the_terminal_raw() {
    let shop = Shop::new();
    let nasty = "\u{9b}2J\u{202e}evil\u{7f}";
    let input = serde_json::to_string(nasty).unwrap();
    let key = "key\u{1b}]0;owned\u{7}";
    let run = shop.start("greet", &["--input", &input, "--key", key, "--label", "l=\u{1b}[31m"]);
    shop.abide(&["run", "signal", &run, "paid", "--payload", &input]).ok();
    let same = shop.abide(&["run", "start", "greet", "--key", key]);
    for args in [
        vec!["run", "list"],
        vec!["run", "list", "--json"],
        vec!["run", "show", &run],
        vec!["run", "show", &run, "--json"],
        vec!["run", "history", &run],
        vec!["-o", "jsonl", "run", "history", &run],
        vec!["--color", "never", "run", "explain", &run],
        vec!["run", "cancel", &run, "--reason", "\u{1b}c"],
        vec!["run", "show", &run],
        vec!["run", "show", "\u{1b}[31m"],
        vec!["--store", "sqlite:\u{1b}[31m", "run", "list"],
    ] {
        let answer = shop.abide(&args);
        for text in [&answer.out, &answer.err, &same.err] {
            let raw = |sign: char| (sign.is_control() && !"\n\t".contains(sign)) || sign == '\u{202e}';
            assert!(!text.contains(raw), "{args:?}: {text:?}");
        }
    }
    let shown = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    assert_eq!(shown["state"], nasty, "a program gets it unharmed");
}

#[test]
fn colour_and_times_are_as_asked() {
    let shop = Shop::new();
    let run = shop.start("greet", &[]);
    assert!(!shop.abide(&["run", "show", &run]).ok().out.contains('\u{1b}'));
    let relative = shop.abide(&["--time", "relative", "run", "show", &run]).ok().out;
    assert!(relative.contains(" ago\n"), "{relative}");
    let iso = shop.abide(&["--time", "iso", "run", "show", &run]).ok().out;
    assert!(!iso.contains(" ago\n"), "{iso}");
}
