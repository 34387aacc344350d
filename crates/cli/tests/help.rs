//! What the command line says of itself. With `UPDATE_GOLDEN=1` the files are written anew.

mod shop;

use std::path::Path;

use shop::Shop;

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("the golden file is there");
    assert_eq!(found, expected, "{name} differs; UPDATE_GOLDEN=1 writes it anew");
}

#[test]
fn help_shows_the_nouns_and_examples() {
    let shop = Shop::new();
    golden("help.txt", &shop.abide(&["--help"]).ok().out);
    golden("run-help.txt", &shop.abide(&["run", "--help"]).ok().out);
    golden("run-watch-help.txt", &shop.abide(&["run", "watch", "--help"]).ok().out);
    golden("config-show-help.txt", &shop.abide(&["config", "show", "--help"]).ok().out);
    golden("run-start-help.txt", &shop.abide(&["run", "start", "--help"]).ok().out);
}

#[test]
fn every_verb_has_help_with_an_example() {
    let shop = Shop::new();
    let verbs: [&[&str]; 55] = [
        &["audit", "list"],
        &["audit", "prune"],
        &["workflow", "list"],
        &["limit", "list"],
        &["effect", "list"],
        &["effect", "show"],
        &["effect", "resolve"],
        &["run", "list"],
        &["run", "show"],
        &["run", "watch"],
        &["run", "history"],
        &["run", "export"],
        &["run", "explain"],
        &["run", "start"],
        &["run", "signal"],
        &["run", "update"],
        &["run", "resume"],
        &["run", "cancel"],
        &["run", "compact"],
        &["run", "purge"],
        &["approval", "list"],
        &["approval", "approve"],
        &["approval", "reject"],
        &["task", "list"],
        &["task", "show"],
        &["task", "claim"],
        &["task", "release"],
        &["task", "complete"],
        &["dead-letter", "list"],
        &["dead-letter", "requeue"],
        &["dead-letter", "discard"],
        &["queue", "list"],
        &["queue", "pause"],
        &["queue", "resume"],
        &["queue", "limit"],
        &["worker", "list"],
        &["config", "show"],
        &["node", "list"],
        &["store", "check"],
        &["store", "stats"],
        &["store", "migrate"],
        &["dev"],
        &["serve"],
        &["token", "create"],
        &["token", "list"],
        &["token", "revoke"],
        &["user", "add"],
        &["user", "list"],
        &["user", "remove"],
        &["user", "password"],
        &["completions"],
        &["man"],
        &["check"],
        &["doctor"],
        &["demo"],
    ];
    for verb in verbs {
        let help = shop.abide(&[verb, &["--help"]].concat()).ok().out;
        assert!(help.contains("Examples:\n  abide "), "{verb:?} has no example: {help}");
    }
}

#[test]
fn a_usage_error_ends_with_2_and_says_what_is_possible() {
    let shop = Shop::new();
    for wrong in [
        vec!["run", "lits"],
        vec!["run", "list", "--limit", "0"],
        vec!["run", "start", "greet", "--input", "1", "--input-file", "x"],
        vec!["run", "start", "greet", "--delay", "soon"],
        vec!["run", "start", "greet", "--on-conflict", "reuse"],
        vec!["-o", "yaml", "run", "list"],
        vec![],
    ] {
        let answer = shop.abide(&wrong);
        assert_eq!(answer.code, 2, "{wrong:?} {answer:?}");
        assert!(answer.out.is_empty(), "data only on standard output: {answer:?}");
        assert!(!answer.err.is_empty());
    }
}
