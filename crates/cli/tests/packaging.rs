//! The files that others install Abide with: they cannot be run here, and are held to what the binary understands.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use shop::Shop;
use yaml_rust2::{Yaml, YamlLoader};

fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../../packaging/{name}", env!("CARGO_MANIFEST_DIR")))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

/// Options and environment variables that `abide serve` knows.
fn known() -> String {
    Shop::new().abide(&["serve", "--help"]).ok().out
}

fn knows_options(of: &str, words: &str, known: &str) {
    for option in words.split(|letter: char| letter.is_whitespace() || "=\",[]".contains(letter)) {
        if option.starts_with("--") {
            assert!(known.contains(&format!("{option} ")), "{of}: serve has no {option}");
        }
    }
}

/// Whether every variable of ours that is set is one that is read.
fn knows_variables(of: &str, text: &str, known: &str) {
    let ours = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    for name in ours.filter(|word| word.starts_with("ABIDE_") || word.starts_with("OTEL_")) {
        // What asks whether the container is well.
        assert!(known.contains(name) || name == "ABIDE_HEALTH", "{of}: nobody reads {name}");
    }
}

/// A server holds its file: whoever follows a block of the document from top to bottom was once refused the first token.
#[test]
fn the_first_token_is_made_before_the_server_begins() {
    let document = std::fs::read_to_string(path("../docs/deploying.md")).unwrap();
    let blocks = document.split("```").skip(1).step_by(2);
    let begins = |block: &str| ["systemctl enable", "docker run -p"].iter().find_map(|begin| block.find(begin));
    let mut found = 0;
    for (block, begins) in blocks.filter_map(|block| Some((block, begins(block)?))) {
        assert!(block.find("token create").is_some_and(|made| made < begins), "{block}");
        found += 1;
    }
    assert_eq!(found, 2);
}

#[test]
fn the_unit_of_systemd_is_whole_and_hardened() {
    let (unit, known) = (text("abide.service"), known());
    let mut section = "";
    let mut said: Vec<(&str, &str, &str)> = Vec::new();
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{line}"));
                said.push((section, key, value));
            }
        }
    }
    let value = |section: &str, key: &str| {
        said.iter()
            .find(|said| (said.0, said.1) == (section, key))
            .map(|said| said.2)
            .unwrap_or_else(|| panic!("{key}"))
    };
    assert!(value("Service", "ExecStart").starts_with("/usr/bin/abide serve "));
    assert!(value("Service", "ExecReload").contains("-HUP"), "a certificate is read again");
    for (key, expected) in [
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("CapabilityBoundingSet", ""),
        ("Restart", "always"),
    ] {
        assert_eq!(value("Service", key), expected, "{key}");
    }
    assert_eq!(value("Install", "WantedBy"), "multi-user.target");
    knows_options("abide.service", value("Service", "ExecStart"), &known);
    let variables: Vec<&str> = said.iter().filter(|said| said.1 == "Environment").map(|said| said.2).collect();
    knows_variables("abide.service", &variables.join(" "), &known);
}

/// Where systemd is, it reads the unit itself.
#[test]
fn systemd_understands_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    // It wants the program to be there, wherever that is.
    let unit = text("abide.service").replace("/usr/bin/abide", env!("CARGO_BIN_EXE_abide"));
    let file = folder.path().join("abide.service");
    std::fs::write(&file, unit).unwrap();
    let Ok(verified) = Command::new("systemd-analyze").arg("verify").arg("--man=no").arg(&file).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(!said.contains("abide.service:"), "{said}");
}

#[test]
fn the_image_runs_as_nobody_and_says_whether_it_is_well() {
    let (file, known) = (text("Dockerfile"), known());
    let joined = file.replace("\\\n", " ");
    let lines: Vec<&str> = joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let known_words = [
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "VOLUME",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ];
    for line in &lines {
        assert!(known_words.contains(&line.split(' ').next().unwrap()), "{line}");
    }
    let froms: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with("FROM ")).collect();
    assert_eq!(froms.len(), 2, "what builds it is not in it");
    let last = &lines[froms[1]..];
    let find = |word: &str| last.iter().find(|line| line.starts_with(word)).unwrap_or_else(|| panic!("{word}"));
    assert!(find("USER").trim_start_matches("USER ").split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)));
    assert!(find("HEALTHCHECK").contains("ABIDE_HEALTH") && find("ENV").contains("/healthz"));
    assert_eq!(*find("ENTRYPOINT"), "ENTRYPOINT [\"abide\"]");
    assert!(find("CMD").contains("\"serve\""));
    knows_options("Dockerfile", find("CMD"), &known);
    knows_variables("Dockerfile", find("ENV"), &known);
    // What is copied is there, and the toolchain is the one that is asked for.
    for copied in lines.iter().filter_map(|line| line.strip_prefix("COPY ")).filter(|line| !line.starts_with("--from"))
    {
        let mut names: Vec<&str> = copied.split(' ').collect();
        names.pop();
        assert!(names.iter().all(|name| path("..").join(name).exists()), "{copied}");
    }
    let manifest = text("../Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(lines[0].starts_with(&format!("FROM rust:{version}-")), "{}", lines[0]);
}

fn yaml(name: &str) -> Yaml {
    let mut all = YamlLoader::load_from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

/// The paths of all values, where a list, and what is empty, is one.
fn leaves(of: &Yaml, at: &str, all: &mut BTreeSet<String>) {
    match of.as_hash().filter(|below| !below.is_empty()) {
        Some(below) => below.iter().for_each(|(key, value)| {
            leaves(value, &format!("{at}.{}", key.as_str().unwrap()), all);
        }),
        None => drop(all.insert(at.trim_start_matches('.').to_owned())),
    }
}

const TEMPLATES: &[&str] = &["_helpers.tpl", "config.yaml", "server.yaml", "service.yaml"];

/// What a chart uses is in its values, and what is in its values is used.
#[test]
fn the_chart_uses_the_values_that_it_has() {
    let chart = yaml("helm/abide/Chart.yaml");
    assert_eq!((chart["name"].as_str(), chart["apiVersion"].as_str()), (Some("abide"), Some("v2")));
    assert_eq!(chart["appVersion"].as_str(), Some(env!("CARGO_PKG_VERSION")));
    let (mut values, mut used) = (BTreeSet::new(), BTreeSet::new());
    leaves(&yaml("helm/abide/values.yaml"), "", &mut values);
    let mut found: Vec<String> = std::fs::read_dir(path("helm/abide/templates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, TEMPLATES);
    for name in TEMPLATES {
        let template = text(&format!("helm/abide/templates/{name}"));
        let is_of_a_path = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
        for at in template.split(".Values.").skip(1) {
            used.insert(at[..at.find(|letter| !is_of_a_path(letter)).unwrap()].to_owned());
        }
        let actions: Vec<&str> = template.split("{{").skip(1).map(|rest| rest.split_once("}}").unwrap().0).collect();
        let first = |action: &&str| action.trim_matches(['-', ' ']).split(' ').next().unwrap().to_owned();
        let words: Vec<String> = actions.iter().map(first).collect();
        let count = |word: &str| words.iter().filter(|found| *found == word).count();
        assert_eq!(count("if") + count("with") + count("define"), count("end"), "{name}");
    }
    for path in &used {
        let below = format!("{path}.");
        assert!(values.iter().any(|value| value == path || value.starts_with(&below)), "values.yaml has no {path}");
    }
    for value in &values {
        assert!(used.iter().any(|path| value == path || value.starts_with(&format!("{path}."))), "nobody uses {value}");
    }
}

/// What a chart tells the server, the server understands; without its actions a template is YAML.
#[test]
fn the_chart_speaks_as_the_server_does() {
    let known = known();
    for name in TEMPLATES.iter().filter(|name| name.ends_with(".yaml")) {
        let template = text(&format!("helm/abide/templates/{name}"));
        let mut plain = String::new();
        for line in template.lines().filter(|line| {
            let line = line.trim();
            !(line.starts_with("{{") && line.ends_with("}}"))
        }) {
            let mut rest = line;
            while let Some((before, after)) = rest.split_once("{{") {
                plain += before;
                plain += "1";
                rest = after.split_once("}}").unwrap().1;
            }
            plain += rest;
            plain.push('\n');
        }
        let read = YamlLoader::load_from_str(&plain).unwrap_or_else(|error| panic!("{name}: {error}\n{plain}"));
        assert!(read[0]["kind"].as_str().is_some() && !read[0]["metadata"]["name"].is_badvalue(), "{name}");
        knows_variables(name, &template, &known);
        if read[0]["kind"].as_str() == Some("StatefulSet") {
            let container = &read[0]["spec"]["template"]["spec"]["containers"][0];
            let args: Vec<&str> = container["args"].as_vec().unwrap().iter().filter_map(Yaml::as_str).collect();
            assert_eq!(args[0], "serve");
            knows_options(name, &args.join(" "), &known);
            for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
                assert_eq!(container[probe]["httpGet"]["path"].as_str(), Some(path));
            }
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"].as_bool(), Some(true));
            assert_eq!(read[0]["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"].as_bool(), Some(true));
        }
    }
}

/// A page of the manual for every verb, and what shells need; also where no store is.
#[test]
fn the_manual_and_completions_know_every_verb() {
    let shop = Shop::new();
    shop.abide(&["man", "--dir", "man1"]).ok();
    for verb in ["abide", "abide-serve", "abide-user-add", "abide-run-list"] {
        let page = std::fs::read_to_string(shop.dir().join(format!("man1/{verb}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains("SYNOPSIS"), "{verb}: {page}");
    }
    assert!(!shop.dir().join("man1/abide-demo-worker.1").exists(), "what is hidden has none");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let written = shop.abide(&["completions", shell]).ok().out;
        assert!(written.contains("serve") && written.contains("tls-cert"), "{shell}");
    }
    assert_eq!(shop.abide(&["completions", "csh"]).code, 2);
    std::fs::write(shop.dir().join("taken"), "").unwrap();
    let taken = shop.abide(&["man", "--dir", "taken"]);
    assert!(taken.code == 2 && taken.err.contains("unwritable"), "{taken:?}");
    assert!(!shop.path().exists());
}
