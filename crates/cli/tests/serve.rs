//! `abide serve` and `abide token`, as a person would use them.

mod shop;

use serde_json::{Value, json};
use shop::Shop;
use shop::served::Served;

/// AB-16: a token of the command line opens the server, the store has only its hash, and a signal ends it in order.
#[test]
fn a_token_opens_the_server_and_a_signal_ends_it() {
    let shop = Shop::new();
    let made = shop.abide(&["token", "create", "--name", "ada", "--scope", "admin", "--in", "*"]).ok();
    let secret = made.out.trim().to_owned();
    let listed = shop.abide(&["token", "list", "--json"]).ok();
    assert!(!listed.out.contains(&secret[30..]), "{listed:?}");
    assert_eq!(listed.json()["tokens"][0]["name"], "ada");

    let served = Served::begin(&shop, &[]);
    let runs = "/v1/namespaces/default/runs";
    assert_eq!(served.ask("GET", runs, "abide_none", "").0, 401);
    let (status, started) = served.ask("POST", runs, &secret, r#"{"workflow":"greet","input":"Ada"}"#);
    assert_eq!(status, 201, "{started}");
    let started: Value = serde_json::from_str(&started).expect("JSON");
    let run = started["run"].as_str().expect("a run");
    let (_, why) = served.ask("GET", &format!("{runs}/{run}/explain"), &secret, "");
    assert!(why.contains("\"no_worker\""), "{why}");
    // Looking works beside it; changing does not, and says who has the store.
    assert_eq!(shop.abide(&["run", "show", run, "--json"]).ok().json()["status"], "runnable");
    let held = shop.abide(&["token", "create", "--name", "eve", "--scope", "read", "--in", "*"]);
    assert!(held.code == 1 && held.err.contains("store_in_use"), "{held:?}");
    assert_eq!(served.stop("-TERM"), Some(0));

    let id = listed.json()["tokens"][0]["token"].as_str().expect("an id").to_owned();
    shop.abide(&["token", "revoke", &id]).ok();
    assert_eq!(shop.abide(&["token", "revoke", &id]).code, 3);
    let served = Served::begin(&shop, &[]);
    assert_eq!(served.ask("GET", runs, &secret, "").0, 401);
    assert_eq!(served.stop("-INT"), Some(0));
}

#[test]
fn without_login_it_answers_this_machine_only() {
    let shop = Shop::new();
    let open = shop.abide(&["serve", "--no-auth", "--listen", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.err.contains("open_to_all"), "{open:?}");
    assert!(!shop.path().exists(), "nothing is left behind");
    let served = Served::begin(&shop, &["--no-auth"]);
    assert_eq!(served.ask("GET", "/v1/nodes", "", "").0, 200);
    assert_eq!(served.stop("-TERM"), Some(0));
}

#[test]
fn a_token_that_makes_no_sense_is_refused_before_anything_is_made() {
    let shop = Shop::new();
    for wrong in [
        ["--name", "ada", "--scope", "everything", "--in", "*"],
        ["--name", "", "--scope", "read", "--in", "*"],
        ["--name", "ada", "--scope", "read", "--in", ""],
    ] {
        let refused = shop.abide(&[&["token", "create"][..], &wrong].concat());
        assert_eq!(refused.code, 2, "{refused:?}");
    }
    assert!(!shop.path().exists());
}

const WORKER: &str = "/v1/namespaces/default/worker";
const SECRET: &str = "a secret of the worker";

/// What a worker asks for.
fn wants(most: u32, lease_ms: u64, wait_ms: u64) -> Value {
    let hash = "f09c2a037ba69c74dd493dafcbe83de8";
    let workflow = json!({"workflow": "parcel", "fingerprint": "00000000000000aa", "first_step": "s1"});
    json!({"worker": "hand", "token_hash": hash, "workflows": [workflow], "most": most, "lease_ms": lease_ms, "wait_ms": wait_ms})
}

/// SQ-35, SQ-38, SQ-43, SQ-44: a worker that sends its last hundred requests again, answers twice and otherwise, answers after
/// its lease, or speaks for a claim of another run changes nothing, is told by typed refusals, and stands in the story of the
/// runs.
#[test]
fn a_worker_that_repeats_itself_changes_nothing() {
    let shop = Shop::new();
    let served = Served::begin(&shop, &["--no-auth"]);
    let ask = |path: &str, body: &Value| -> Value {
        let (status, said) = served.ask("POST", path, "", &body.to_string());
        assert!(status < 300, "{said}");
        serde_json::from_str(&said).expect("JSON")
    };
    let runs: Vec<String> = (0..12)
        .map(|_| {
            let begun = ask("/v1/namespaces/default/runs", &json!({"workflow": "parcel"}));
            begun["run"].as_str().expect("a run").to_owned()
        })
        .collect();
    let mut sent: Vec<(String, Value)> = Vec::new();
    let mut send = |path: &str, body: Value| -> Value {
        sent.push((format!("{WORKER}{path}"), body.clone()));
        ask(&format!("{WORKER}{path}"), &body)
    };
    let report = |claim: &Value, say: Value| json!({"token": SECRET, "reports": [{"claim": claim, "say": say}]});
    // Every run goes through nine steps, each claimed, kept and completed for itself.
    for _ in 0..runs.len() * 9 {
        let given = send("/claims", wants(1, 30_000, 10_000));
        let attempt = &given["claims"][0];
        let claim = &attempt["claim"];
        send("/reports", report(claim, json!({"heartbeat": {}})));
        let step: u32 = attempt["step"].as_str().and_then(|step| step[1..].parse().ok()).expect("a step");
        let outcome = match step {
            9 => json!({"done": {"result": step}}),
            _ => json!({"next": {"step": format!("s{}", step + 1), "state": step}}),
        };
        let told = send("/reports", report(claim, json!({"complete": {"outcome": outcome}})));
        assert_eq!(told["answers"][0]["recorded"]["duplicate"], false, "{told}");
    }
    let shown = |run: &String| shop.abide(&["run", "show", run, "--json"]).ok().json();
    let ends: Vec<Value> = runs.iter().map(|run| shown(run)["result"].clone()).collect();
    assert!(ends.iter().all(|end| *end == json!(9)), "{ends:?}");

    let codes = ["run_over", "stale_claim", "conflicting_completion"];
    for (path, body) in sent.iter().rev().take(100) {
        let mut body = body.clone();
        // What was waited for does not come again.
        if body.get("wait_ms").is_some() {
            body["wait_ms"] = json!(0);
        }
        let told = ask(path, &body);
        assert!(told["claims"].as_array().is_none_or(Vec::is_empty), "{told}");
        for answer in told["answers"].as_array().into_iter().flatten() {
            let refused = answer["problem"]["code"].as_str().is_some_and(|code| codes.contains(&code));
            assert!(refused || answer["recorded"]["duplicate"] == true, "{answer}");
        }
    }
    let last = |run: &String| runs.iter().position(|known| known == run).expect("one of them");
    for run in &runs {
        assert_eq!(shown(run)["result"], ends[last(run)]);
        assert_eq!(shown(run)["status"], "done");
    }
    after_its_lease(&shop, &ask, &runs[0]);
}

/// After its lease, otherwise than before, and for the claim of another run, which has ended with 9.
fn after_its_lease(shop: &Shop, ask: &impl Fn(&str, &Value) -> Value, ended: &str) {
    let shown = |run: &str| shop.abide(&["run", "show", run, "--json"]).ok().json();
    let report = |claim: &Value, say: Value| json!({"token": SECRET, "reports": [{"claim": claim, "say": say}]});
    let begun = ask("/v1/namespaces/default/runs", &json!({"workflow": "parcel"}));
    let run = begun["run"].as_str().expect("a run").to_owned();
    let late = ask(&format!("{WORKER}/claims"), &wants(1, 100, 10_000))["claims"][0]["claim"].clone();
    let again = ask(&format!("{WORKER}/claims"), &wants(1, 30_000, 10_000))["claims"][0].clone();
    assert_eq!((&again["run"], &again["reclaims"]), (&json!(run), &json!(1)));
    let done = |result: u32| json!({"complete": {"outcome": {"done": {"result": result}}}});
    let code = |claim: &Value, say: Value| -> String {
        let told = ask(&format!("{WORKER}/reports"), &report(claim, say));
        told["answers"][0]["problem"]["code"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(code(&late, done(1)), "stale_claim");
    let other = again["claim"].as_str().expect("a claim").replace(&run["run_".len()..], &ended["run_".len()..]);
    assert!(["run_over", "stale_claim"].contains(&&*code(&json!(other), done(2))));
    assert_eq!(code(&again["claim"], done(3)), "");
    assert_eq!(code(&again["claim"], done(4)), "conflicting_completion");
    assert_eq!((&shown(&run)["result"], &shown(ended)["result"]), (&json!(3), &json!(9)));
    let story = shop.abide(&["run", "show", &run]).ok().out;
    assert!(story.contains("anomaly"), "{story}");
}

/// AB-16: where nobody can make a token beside the server, the first comes in a file, once, and only to a store without any.
#[test]
fn a_first_token_is_for_a_store_that_has_none() {
    let shop = Shop::new();
    let token = |digit: &str| format!("abide_{}_{}", digit.repeat(16), digit.repeat(64));
    let put = |text: &str| std::fs::write(shop.dir().join("first"), text).unwrap();
    put("secret");
    let wrong = shop.abide(&["serve", "--listen", "127.0.0.1:0", "--first-token-file", "first"]);
    assert!(wrong.code == 2 && wrong.err.contains("bad_first_token"), "{wrong:?}");
    put(&format!("{}\n", token("a")));
    let served = Served::begin(&shop, &["--first-token-file", "first"]);
    assert_eq!(served.ask("GET", "/v1/tokens", &token("a"), "").0, 200);
    assert_eq!(served.stop("-TERM"), Some(0));
    put(&token("b"));
    let served = Served::begin(&shop, &["--first-token-file", "first"]);
    assert_eq!(served.ask("GET", "/v1/tokens", &token("b"), "").0, 401);
    assert_eq!(served.ask("GET", "/v1/tokens", &token("a"), "").0, 200);
    assert_eq!(served.stop("-TERM"), Some(0));
}

/// AB-16: who changed what is listed beside the server and over it, and what is old is removed by one who says so.
#[test]
fn the_audit_is_listed_and_pruned() {
    let shop = Shop::new();
    let served = Served::begin(&shop, &["--no-auth", "--max-rate", "77"]);
    let start = r#"{"workflow":"greet","input":"Ada"}"#;
    assert_eq!(served.ask("POST", "/v1/namespaces/default/queues/mail/pause", "", "").0, 200);
    assert_eq!(served.ask("POST", "/v1/namespaces/default/runs", "", start).0, 201);
    assert_eq!(served.ask("POST", "/v1/namespaces/default/queues/mail/resume", "", "").0, 200);
    let url = served.url();
    let over = |args: &[&str]| shop.abide(&[&["--url", url.as_str()], args].concat());
    let listed = over(&["audit", "list", "--json"]).ok().json()["changes"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 3, "{listed}");
    assert_eq!(shop.abide(&["audit", "list", "--json"]).ok().json()["changes"], listed);
    let page = shop.abide(&["audit", "list", "--limit", "1"]).ok();
    let next = listed[0]["id"].as_str().unwrap();
    assert!(page.err.contains(&format!("--before {next}")), "{page:?}");
    let rest = shop.abide(&["audit", "list", "--json", "--before", next]).ok().json()["changes"].clone();
    assert_eq!(rest.as_array().unwrap().len(), 2);
    assert!(over(&["audit", "prune", "--before", "1d", "--yes"]).err.contains("needs_store"));
    assert_eq!(over(&["limit", "list", "--json"]).ok().json()["requests_per_second_max"], 77);
    assert_eq!(over(&["workflow", "list", "--json"]).ok().json()["workflows"], json!([]));
    assert!(shop.abide(&["workflow", "list"]).err.contains("needs_server"));
    assert_eq!(served.stop("-TERM"), Some(0));

    let prune = |more: &[&str]| shop.abide(&[&["audit", "prune", "--json"], more].concat());
    assert_eq!(prune(&["--before", "1d", "--dry-run"]).ok().json()["changes"], 0);
    assert_eq!(prune(&["--before", "0s", "--dry-run"]).ok().json()["changes"], 3);
    let asked = prune(&["--before", "0s"]);
    assert!(asked.code == 2 && asked.err.contains("not_confirmed"), "{asked:?}");
    assert_eq!(prune(&["--before", "0s", "--yes"]).ok().json()["changes"], 3);
    assert_eq!(shop.abide(&["audit", "list", "--json"]).ok().json()["changes"], json!([]));
}
