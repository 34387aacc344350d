//! The command line against a server: every verb says the same as against the store itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::{Control, Engine, Failure, FnCtx, Function, Machine, StepError, await_signal, done, hours, sleep};
use serde_json::{Value, json};
use shop::served::Served;
use shop::{Answer, Shop};

/// An effect of which nobody knows what became, a person who is asked, and a run that is never claimed again.
fn workflows(calls: &Arc<AtomicU32>) -> (Function, Function, Machine<Value>, Machine<Value>) {
    let calls = calls.clone();
    let refund = Function::new("refund", move |ctx: FnCtx, (): ()| {
        let calls = calls.clone();
        async move {
            ctx.effect("note", async |_| Ok::<_, StepError>("größe \u{1b}[31m".to_owned())).await?;
            let call = async |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
                Ok::<_, StepError>(())
            };
            ctx.effect("refund", call).unsafe_once().await?;
            Ok::<_, Failure>(())
        }
    })
    .control(Control::allow().named("refund"));
    let launch = Function::new("launch", async |ctx: FnCtx, kind: String| {
        match kind.as_str() {
            "approval" => drop(ctx.approval("spend").payload(&json!({"大": 5})).roles(&["finance"]).await?),
            "task" => drop(ctx.task::<Value>("pack", &json!({"box": "large"})).roles(&["store"]).await?),
            _ => drop(ctx.pause("hold").await?),
        }
        Ok::<_, Failure>(())
    });
    let waits =
        Machine::<Value>::new("waits").step("wait", async |ctx, state: Value| match ctx.signal::<Value>("paid")? {
            None => {
                ctx.progress("asked", &json!({"大": 1})).await?;
                Ok(await_signal("paid", state))
            }
            Some(paid) => Ok(done(&paid)),
        });
    let other = Machine::<Value>::new("other")
        .step("rest", async |_, state: Value| match state.as_str() {
            Some("fails") => Err(StepError::new("no \u{202e}way").terminal()),
            Some("ends") => Ok(done("大 and \u{7f} large")),
            _ => Ok(sleep(hours(1), state).then("wake")),
        })
        .step("wake", async |_, state: Value| Ok(done(&state)));
    (refund, launch, waits, other)
}

/// A store with a run in every situation, by what they are called here.
async fn stocked() -> (Shop, BTreeMap<&'static str, String>) {
    let (shop, calls) = (Shop::new(), Arc::new(AtomicU32::new(0)));
    let engine = async || {
        let (refund, launch, waits, other) = workflows(&calls);
        let engine = Engine::open(&shop.url()).register(refund).register(launch).register(waits).register(other);
        engine.node("shop").start().await.unwrap()
    };
    let first = engine().await;
    let mut runs = BTreeMap::new();
    let client = first.client().clone();
    let start = async |workflow: &str, input: Value| client.start(workflow, &input).await.unwrap().id().to_string();
    for name in ["waits", "signalled", "cancelled"] {
        runs.insert(name, start("waits", json!({"name": "größe \u{1b}[31m\u{202e}"})).await);
    }
    for name in ["approval", "rejected"] {
        runs.insert(name, start("launch", json!("approval")).await);
    }
    for name in ["task", "given"] {
        runs.insert(name, start("launch", json!("task")).await);
    }
    runs.insert("paused", start("launch", json!("pause")).await);
    runs.insert("sleeps", start("other", json!("sleeps")).await);
    runs.insert("fails", start("other", json!("fails")).await);
    runs.insert("ends", start("other", json!("ends")).await);
    runs.insert("doubted", start("refund", Value::Null).await);
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    first.stop(Duration::ZERO).await;
    let second = engine().await;
    for (name, status) in [("doubted", "in_doubt"), ("sleeps", "sleeping"), ("fails", "failed"), ("ends", "done")] {
        shop.await_status(&runs[name], status);
    }
    for name in ["waits", "signalled", "cancelled"] {
        shop.await_status(&runs[name], "awaiting_signal");
    }
    let boundaries = ["approval", "rejected", "task", "given", "paused"];
    for name in boundaries {
        shop.await_status(&runs[name], "awaiting_decision");
    }
    second.stop(Duration::from_secs(5)).await;
    for (name, boundary) in
        boundaries.into_iter().zip(["approval.id", "rejected.id", "task.id", "given.id", "paused.id"])
    {
        let shown = shop.abide(&["run", "show", &runs[name], "--json"]).ok().json();
        runs.insert(boundary, shown["boundary"].as_str().unwrap().to_owned());
    }
    runs.insert("unclaimed", shop.start("nobody", &["--queue", "mail", "--key", "大", "--label", "大=a=b"]));
    (shop, runs)
}

/// Words with the runs that they name.
fn filled(words: &str, runs: &BTreeMap<&str, String>) -> Vec<String> {
    let fill = |word: &str| {
        let mut word = word.to_owned();
        for (name, run) in runs {
            word = word
                .replace(&format!("{{{name}}}"), run)
                .replace(&format!("<{name}>"), &run.replace("run_", "manual_"));
        }
        word
    };
    words.split(' ').map(fill).collect()
}

/// What does not depend on who was asked and when: runs by their names, and no ages.
fn plain(text: &str, runs: &BTreeMap<&str, String>) -> String {
    let mut text = text.to_owned();
    for (name, run) in runs.iter().filter(|(_, run)| run.starts_with("run_")) {
        text = text.replace(&run["run_".len()..], name);
    }
    let ages = |part: &str| part.trim_start_matches(|sign: char| sign.is_ascii_digit()).to_owned();
    let mut parts = text.split("\"oldest_age_ms\":");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + &ages(part))
}

fn ask(shop: &Shop, at: &[&str], words: &[String]) -> Answer {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    shop.abide(&[at, &words].concat())
}

/// Whatever can be looked at.
const LOOKS: &[&str] = &[
    "run list",
    "run list --status open --limit 3",
    "run list --workflow other --status failed,done",
    "run list --key 大",
    "run list --before {sleeps} --limit 2",
    "run list --parent {waits}",
    "run list --label 大=a=b",
    "run list --label 大=a",
    "run list --created-after 1h --updated-before 2100-01-01T00:00:00+02:00 --limit 2",
    "run list --created-before 1h",
    "run show {waits}",
    "run show {doubted}",
    "run show {fails}",
    "run show {ends}",
    "run show {task}",
    "run state {waits}",
    "run state {waits} --rev 1",
    "run state {waits} --rev 999",
    "run state {ends}",
    "run history {waits}",
    "run history {doubted} --from 3",
    "run export {ends}",
    "effect list",
    "effect list {doubted}",
    "effect list {waits}",
    "effect show {doubted} refund",
    "effect show {doubted} note",
    "effect show {doubted} nothing",
    "approval list",
    "approval list --role finance",
    "approval list --role other",
    "approval list --run {approval}",
    "approval show {approval.id}",
    "task list --assignee ada",
    "task list",
    "task show {task.id}",
    "task show <waits>.1",
    "task show nonsense",
    "dead-letter list",
    "queue list",
    "run show run_ffff",
    "run show run_0",
    "run list --status nonsense",
];

/// Whoever looks by a server sees what whoever reads the store sees, as text and as JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_shows_what_its_store_holds() {
    let (shop, runs) = stocked().await;
    let served = Served::begin(&shop, &["--no-auth"]);
    let url = served.url();
    for verb in LOOKS {
        let words = filled(verb, &runs);
        for json in [false, true] {
            let mut words = words.clone();
            words.extend(json.then(|| "--json".to_owned()));
            let (here, there) = (ask(&shop, &[], &words), ask(&shop, &["--url", &url], &words));
            assert_eq!(plain(&there.out, &runs), plain(&here.out, &runs), "{verb} {there:?}");
            assert_eq!(there.code, here.code, "{verb} {there:?} {here:?}");
            assert!(there.code == 0 || there.err.contains("code"), "{verb} {there:?}");
            let raw = |sign: char| sign.is_control() && sign != '\n' && sign != '\t' || sign == '\u{202e}';
            assert!(!there.out.contains(raw) && !there.err.contains(raw), "{verb} {there:?}");
        }
    }
    let shown = ask(&shop, &["--url", &url], &filled("run show {waits}", &runs)).ok();
    assert!(shown.out.contains("progress\tasked {\"大\":1} "), "{shown:?}");
    // Ids may be cut short as far as they are one run's, and the words are the same whoever says no.
    let short = &runs["unclaimed"][..24];
    let found = shop.abide(&["--url", &url, "run", "show", short, "--json"]).ok().json();
    assert_eq!(found["run"], runs["unclaimed"].as_str());
    let nothing = shop.abide(&["--url", &url, "run", "show", &runs["waits"].replace("run_0", "run_f")]);
    assert!(nothing.code == 3 && nothing.err.contains("code: not_found"), "{nothing:?}");
    // Why a run does not move: the same reason, and the store's own word on who holds it beside.
    for name in ["waits", "sleeps", "unclaimed", "approval", "doubted", "ends"] {
        let words = filled(&format!("run explain {{{name}}} --json"), &runs);
        let (mut here, there) = (ask(&shop, &[], &words).ok().json(), ask(&shop, &["--url", &url], &words).ok().json());
        here["evidence"].as_object_mut().unwrap().remove("store_held_by");
        assert_eq!(there["reason"], here["reason"], "{there} {here}");
        assert_eq!(there["next_actions"], here["next_actions"], "{there} {here}");
    }
    let workers = shop.abide(&["worker", "list"]);
    assert!(workers.code == 2 && workers.err.contains("code: needs_server"), "{workers:?}");
    assert_eq!(shop.abide(&["--url", &url, "worker", "list"]).ok().out, "");
    assert_eq!(shop.abide(&["--url", &url, "node", "list", "--json"]).ok().json()["nodes"][0]["living"], true);
}

/// Whatever can be changed.
const CHANGES: &[&str] = &[
    "run signal {signalled} paid --payload 5 --dedup once --json",
    "run signal {signalled} paid --payload 5 --dedup once --json",
    "run signal {signalled} paid",
    "run signal run_ffff paid",
    "run update {doubted} rename --input 1 --dedup form --json",
    "run update {doubted} rename --input 1 --dedup form",
    "run cancel {cancelled} --reason twice --cascade",
    "run cancel {cancelled} --json",
    "run start nobody --key 大",
    "run start nobody --input {",
    "approval approve {approval.id} --as ada --role store",
    "approval approve {approval.id} --as ada --role finance --note seen --json",
    "approval approve {approval.id} --as eve --role finance",
    "approval reject {rejected.id} --as ada --role finance --payload [1]",
    "task claim {task.id} --as ada --role store --json",
    "task claim {task.id} --as eve --role store",
    "task release {task.id} --as ada --role store",
    "task claim {given.id} --as lead --role store --for eve",
    "task complete {given.id} --as lead --role store",
    "task complete {given.id} --as eve --role store --result {\"weight\":3}",
    "run resume <paused>.9 --as ada",
    "run resume {paused.id} --as ada --note today --json",
    "effect resolve {doubted} refund --retry --interrupt 77",
    "effect resolve {doubted} refund --result \"re_1\" --actor ada --note seen --json",
    "effect resolve {doubted} refund --fail twice",
    "dead-letter requeue {waits}",
    "dead-letter discard letter_7",
    "queue pause mail --json",
    "queue limit mail --at-most 3 --rate 10/1s",
    "queue resume mail",
    "queue limit mail --json",
    "run compact {ends}",
    "run compact {ends} --yes --json",
    "run compact {ends} --yes",
    "run purge {waits} --yes",
    "run purge {ends} --yes",
    "run purge {ends} --yes",
    "token create --name --scope read --in *",
    "token revoke 0193f2c4a1b20000",
];

/// What is changed by a server comes to the same as what is changed in the store itself, word for word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_changes_what_its_store_holds() {
    let ((here, mine), (there, theirs)) = tokio::join!(stocked(), stocked());
    let served = Served::begin(&there, &["--no-auth"]);
    let url = served.url();
    for verb in CHANGES {
        let (one, other) =
            (ask(&here, &[], &filled(verb, &mine)), ask(&there, &["--url", &url], &filled(verb, &theirs)));
        assert_eq!(plain(&other.out, &theirs), plain(&one.out, &mine), "{verb} {one:?} {other:?}");
        assert_eq!(other.code, one.code, "{verb} {one:?} {other:?}");
        let code = |answer: &Answer| answer.err.lines().find(|line| line.contains("code: ")).map(str::to_owned);
        assert_eq!(code(&other), code(&one), "{verb} {one:?} {other:?}");
        if one.code == 0 {
            assert_eq!(plain(&other.err, &theirs), plain(&one.err, &mine), "{verb}");
        }
    }
    let verb = "run start new --input {\"大\":1} --queue mail --delay 1h --label a=b --json";
    let (one, other) = (ask(&here, &[], &filled(verb, &mine)), ask(&there, &["--url", &url], &filled(verb, &theirs)));
    assert_eq!(other.ok().json()["admission"], one.ok().json()["admission"]);
    // Runs that began in the same millisecond are in no order.
    let statuses = |shop: &Shop, at: &[&str]| -> Vec<String> {
        let listed = shop.abide(&[at, &["run", "list", "--json"]].concat()).ok().json();
        let mut statuses: Vec<String> =
            listed["runs"].as_array().unwrap().iter().map(|run| run["status"].to_string()).collect();
        statuses.sort_unstable();
        statuses
    };
    assert_eq!(statuses(&there, &["--url", &url]), statuses(&here, &[]));
    for verb in ["store check", "store stats", "doctor"] {
        let refused = ask(&there, &["--url", &url], &filled(verb, &theirs));
        assert!(refused.code == 2 && refused.err.contains("code: needs_store"), "{verb} {refused:?}");
    }
}

/// AB-16: tokens are made, listed and revoked by a server, for those who may; what a token does not allow is refused.
#[test]
fn a_token_says_who_may_what() {
    let shop = Shop::new();
    let secret = |answer: Answer| answer.ok().out.trim().to_owned();
    let admin = secret(shop.abide(&["token", "create", "--name", "ada", "--scope", "admin", "--in", "*"]));
    let served = Served::begin(&shop, &[]);
    let url = served.url();
    let by =
        |token: &str, args: &[&str]| shop.abide_in(&[&["--url", &url], args].concat(), "", &[("ABIDE_TOKEN", token)]);
    let refused = |answer: &Answer, exit: i32, code: &str| {
        assert!(answer.code == exit && answer.err.contains(&format!("code: {code}\n")), "{answer:?}");
        assert!(!answer.err.contains("abide_"), "no secret is shown: {answer:?}");
    };
    refused(&shop.abide(&["--url", &url, "run", "list"]), 1, "unauthenticated");
    refused(&by("abide_wrong", &["run", "list"]), 1, "unauthenticated");
    let bank = secret(by(
        &admin,
        &["token", "create", "--name", "bank", "--scope", "read", "--scope", "start", "--in", "bank"],
    ));
    refused(&by(&bank, &["run", "list"]), 3, "not_found");
    refused(&by(&bank, &["token", "list"]), 1, "forbidden");
    let run = by(&bank, &["-n", "bank", "run", "start", "greet"]).ok().out.trim().to_owned();
    refused(&by(&bank, &["-n", "bank", "run", "cancel", &run]), 1, "forbidden");
    assert_eq!(by(&bank, &["-n", "bank", "run", "list"]).ok().out.lines().count(), 1);
    assert_eq!(by(&admin, &["run", "list"]).ok().out, "", "another namespace is meant");
    refused(&by(&admin, &["run", "show", &run]), 3, "not_found");
    assert!(by(&bank, &["-n", "bank", "dead-letter", "list"]).ok().err.contains("nothing was set aside"));
    let listed = by(&admin, &["token", "list", "--json"]).ok();
    assert_eq!(listed.out, shop.abide(&["token", "list", "--json"]).ok().out);
    let id = bank.split('_').nth(1).unwrap();
    by(&admin, &["token", "revoke", id]).ok();
    refused(&by(&bank, &["-n", "bank", "run", "list"]), 1, "unauthenticated");
    refused(&by(&admin, &["token", "revoke", id]), 3, "not_found");
    // From a file, of which the line end does not count.
    std::fs::write(shop.dir().join("token"), format!("{admin}\n")).unwrap();
    shop.abide(&["--url", &url, "--token-file", "token", "token", "list"]).ok();
    shop.abide_in(&["--url", &url, "token", "list"], "", &[("ABIDE_TOKEN_FILE", "token")]).ok();
    refused(&shop.abide(&["--url", &url, "--token-file", "nowhere", "run", "list"]), 2, "bad_token_file");
    std::fs::write(shop.dir().join("large"), "x".repeat(10_000)).unwrap();
    refused(&shop.abide(&["--url", &url, "--token-file", "large", "run", "list"]), 2, "bad_token");
}

/// Lines to copy ask whom this one asked; what was not given is not needed again.
#[tokio::test(flavor = "multi_thread")]
async fn lines_to_copy_have_what_they_need() {
    let (shop, runs) = stocked().await;
    let served = Served::begin(&shop, &["--no-auth"]);
    let url = served.url();
    let explained = shop.abide(&["--url", &url, "-n", "default", "run", "explain", &runs["waits"]]).ok();
    let line = format!("abide --url {url} -n default run signal {}", runs["waits"]);
    assert!(explained.out.contains(&line), "{explained:?}");
    let started = shop.abide(&["--url", &url, "-n", "it's", "run", "start", "greet"]).ok();
    let line = format!(r"follow it: abide --url {url} -n 'it'\''s' run watch {}", started.out.trim());
    assert!(started.err.contains(&line), "{started:?}");
    let started = shop.abide_in(&["run", "start", "greet"], "", &[("ABIDE_URL", &url)]).ok();
    assert!(started.err.contains("follow it: abide run watch "), "{started:?}");
    let failed = shop.abide(&["--url", &url, "run", "watch", &runs["fails"]]);
    assert!(failed.err.contains(&format!("look at it: abide --url {url} run show ")), "{failed:?}");

    // The server of a file has nobody to hand anything to, and says so as the file itself does.
    let listed = shop.abide(&["--url", &url, "node", "list", "--json"]).ok().json();
    let process = listed["nodes"][0]["process"].as_str().unwrap().to_owned();
    for verb in ["drain", "resume"] {
        let refused = shop.abide(&["--url", &url, "node", verb, &process]);
        assert!(refused.code == 2 && refused.err.contains("code: no_nodes"), "{refused:?}");
    }
}

/// Users are made, listed, changed and removed by a server as by its store.
#[test]
fn users_are_kept_by_a_server_too() {
    let shop = Shop::new();
    let all = |way: &[&str], name: &str| {
        let by = |args: &[&str]| shop.abide(&[way, args].concat());
        let given = |args: &[&str]| shop.abide_with(&[way, args, &["--password-file", "-"]].concat(), "long enough\n");
        let add = ["user", "add", name, "--role", "reader", "--in", "shop"];
        let done = [
            given(&add),
            given(&add),
            by(&["user", "list"]),
            given(&["user", "password", name]),
            by(&["user", "remove", name]),
            by(&["user", "remove", name]),
            given(&["user", "password", name]),
        ];
        done.map(|answer| {
            let code = answer.err.lines().find(|line| line.contains("code: ")).map(str::to_owned);
            let said = if code.is_none() { answer.err.clone() } else { String::new() };
            (answer.code, code, said, answer.out.split('\t').next().map(str::to_owned))
        })
    };
    let here = all(&[], "ada");
    let served = Served::begin(&shop, &["--no-auth"]);
    let there = all(&["--url", &served.url()], "ada");
    assert_eq!(here, there);
    assert_eq!(here.map(|(code, ..)| code), [0, 1, 0, 0, 0, 3, 3]);
}

/// Whoever is not known is told where a token comes from, and whose was not sent.
#[test]
fn a_token_that_is_missing_or_wrong_says_where_one_comes_from() {
    let shop = Shop::new();
    shop.abide(&["token", "create", "--name", "ada", "--role", "admin", "--in", "*"]).ok();
    let secret = shop.abide(&["token", "create", "--name", "eve", "--role", "admin", "--in", "*"]).ok().out;
    let token = shop.abide(&["token", "list", "--json"]).ok().json()["tokens"][0]["token"].as_str().unwrap().to_owned();
    let served = Served::begin(&shop, &[]);
    let url = served.url();
    let told = |answer: &Answer| {
        assert!(answer.code == 1 && answer.err.contains("code: unauthenticated\n"), "{answer:?}");
        for way in ["ABIDE_TOKEN,", "ABIDE_TOKEN_FILE", "--token-file", "profile"] {
            assert!(answer.err.contains(way), "{way}: {answer:?}");
        }
    };
    let list = ["--url", url.as_str(), "run", "list"];
    let none = shop.abide(&list);
    told(&none);
    assert!(none.err.contains("no token was sent"), "{none:?}");
    let wrong = shop.abide_in(&list, "", &[("ABIDE_TOKEN", "abide_wrong")]);
    told(&wrong);
    assert!(wrong.err.contains("the token of ABIDE_TOKEN"), "{wrong:?}");
    std::fs::write(shop.dir().join("abide.toml"), "[profile.default]\nurl = \"http://h:1\"\ntoken_file = \"t\"\n")
        .unwrap();
    let withheld = shop.abide(&list);
    told(&withheld);
    assert!(withheld.err.contains("profile default of abide.toml is for that profile's own server"), "{withheld:?}");

    let env = [("ABIDE_TOKEN", secret.trim())];
    let by = |args: &[&str]| shop.abide_in(&[&["--url", &url], args].concat(), "", &env);
    // It belongs to no namespace.
    by(&["token", "create", "--name", "bob", "--role", "reader", "--in", "shop"]).ok();
    let bob = by(&["token", "list", "--json"]).ok().json();
    let bob = bob["tokens"].as_array().unwrap().iter().find(|token| token["name"] == "bob").unwrap().clone();
    by(&["token", "revoke", bob["token"].as_str().unwrap()]).ok();
    let again = by(&["token", "revoke", bob["token"].as_str().unwrap()]);
    assert!(again.code == 3 && !again.err.contains("namespace") && again.err.contains(&url), "{again:?}");
    assert_ne!(bob["token"], token.as_str());
    let short = by(&["user", "add", "ada", "--role", "reader", "--in", "shop", "--password-file", "abide.toml"]);
    assert!(short.code == 0, "{short:?}");
    std::fs::write(shop.dir().join("short"), "short").unwrap();
    let short = by(&["user", "password", "ada", "--password-file", "short"]);
    assert!(short.code == 2 && short.err.contains("bytes"), "{short:?}");
}
