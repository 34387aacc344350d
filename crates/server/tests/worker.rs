//! Workers over a real socket: they take attempts, say what came of them, and get definite answers to all that is wrong.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use abide_protocol::Scope;
use desk::{Caller, Desk};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const RUNS: &str = "/v1/namespaces/shop/runs";
const CLAIMS: &str = "/v1/namespaces/shop/worker/claims";
const REPORTS: &str = "/v1/namespaces/shop/worker/reports";
const SECRET: &str = "a secret of the worker";

fn hash(token: &str) -> String {
    Sha256::digest(token)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a worker asks for.
fn wants() -> Value {
    let workflow = json!({"workflow": "parcel", "version": 1, "fingerprint": "00000000000000aa", "first_step": "pack"});
    json!({"worker": "hand-1", "token_hash": hash(SECRET), "workflows": [workflow], "wait_ms": 20_000})
}

fn with(mut base: Value, field: &str, value: Value) -> Value {
    base[field] = value;
    base
}

async fn start(caller: &Caller<'_>) -> String {
    let heard = caller.post(RUNS, json!({"workflow": "parcel", "input": {"to": "Ada"}})).await;
    heard.good()["run"].as_str().unwrap().to_owned()
}

async fn claim(caller: &Caller<'_>) -> Value {
    let given = caller.post(CLAIMS, wants()).await.good();
    assert_eq!(given["claims"].as_array().unwrap().len(), 1, "{given}");
    given["claims"][0].clone()
}

/// Says one thing of an attempt, and what the answer to it is.
async fn say(caller: &Caller<'_>, token: &str, claim: &Value, say: Value) -> Value {
    let told = caller.post(REPORTS, json!({"token": token, "reports": [{"claim": claim, "say": say}]})).await.good();
    told["answers"][0].clone()
}

fn code(answer: &Value) -> &str {
    answer["problem"]["code"].as_str().unwrap_or_else(|| panic!("expected a problem, found {answer}"))
}

/// AB-19, SQ-30, SQ-41, SQ-44, SQ-45: a worker takes an attempt, goes on with what follows from its report, and the end is
/// the run's. The same report again changes nothing, another one is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_carries_a_run_to_its_end() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let (run, first) = tokio::join!(start(&ada), claim(&ada));
    assert_eq!((&first["run"], &first["step"], &first["attempt"]), (&json!(run), &json!("pack"), &json!(1)));
    assert_eq!((&first["input"], &first["ledger"], &first["next_op"]), (&json!({"to": "Ada"}), &json!([]), &json!(1)));
    let beat = say(&ada, SECRET, &first["claim"], json!({"heartbeat": {}})).await;
    assert!(beat["lease_until"].as_str() >= first["lease_until"].as_str(), "{beat}");

    let packed = json!({"complete": {"outcome": {"next": {"step": "send", "state": {"packed": true}}}}});
    let report = json!({"claim": first["claim"], "say": packed});
    let told = ada.post(REPORTS, json!({"token": SECRET, "reports": [report], "next": wants()})).await.good();
    assert_eq!(told["answers"][0]["recorded"]["duplicate"], false, "{told}");
    let second = &told["claims"][0];
    assert_eq!((&second["step"], &second["state"]), (&json!("send"), &json!({"packed": true})));

    assert_eq!(say(&ada, SECRET, &first["claim"], packed).await["recorded"]["duplicate"], true);
    let other = json!({"complete": {"outcome": {"done": {"result": 1}}}});
    assert_eq!(code(&say(&ada, SECRET, &first["claim"], other).await), "conflicting_completion");

    let sent = json!({"complete": {"outcome": {"done": {"result": "sent"}}}});
    assert_eq!(say(&ada, SECRET, &second["claim"], sent.clone()).await["recorded"]["duplicate"], false);
    let ended = ada.get(&format!("{RUNS}/{run}/result?wait_ms=20000")).await.good();
    assert_eq!((&ended["status"], &ended["result"]), (&json!("done"), &json!("sent")));
    // After the end.
    assert_eq!(code(&say(&ada, SECRET, &second["claim"], json!({"heartbeat": {}})).await), "run_over");
    assert_eq!(say(&ada, SECRET, &second["claim"], sent).await["recorded"]["duplicate"], true);
    desk.close().await;
}

/// SQ-32, SQ-34, SQ-43: without the token, with another's, for a claim that is not the current one or was never made: a
/// typed refusal each, and nothing changes. What was refused stands in the run's story.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_the_workers_own_is_refused() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada).await;
    let held = claim(&ada).await;
    let done = json!({"complete": {"outcome": {"done": {"result": 1}}}});
    for wrong in [json!({"heartbeat": {}}), done.clone(), json!({"give_back": {}})] {
        assert_eq!(code(&say(&ada, "a guess", &held["claim"], wrong).await), "wrong_token");
    }
    let later = held["claim"].as_str().unwrap().replace("_1", "_2");
    assert_eq!(code(&say(&ada, SECRET, &json!(later), done.clone()).await), "stale_claim");
    let nowhere = format!("claim_{}_1", "0".repeat(32));
    assert_eq!(code(&say(&ada, SECRET, &json!(nowhere), done.clone()).await), "not_found");
    let rev = |shown: Value| shown["rev"].clone();
    let before = rev(ada.get(&format!("{RUNS}/{run}")).await.good());

    assert!(say(&ada, SECRET, &held["claim"], json!({"give_back": {}})).await["recorded"].is_object());
    assert_eq!(code(&say(&ada, SECRET, &held["claim"], done.clone()).await), "stale_claim");
    let again = claim(&ada).await;
    assert_eq!((&again["attempt"], &again["reclaims"]), (&json!(1), &json!(0)), "it never began: {before}");
    assert_eq!(say(&ada, SECRET, &again["claim"], done).await["recorded"]["duplicate"], false);
    desk.close().await;
}

/// SQ-35, SQ-38: a worker that says nothing loses its attempt when its lease ends, and what it says afterwards is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_is_another_workers_chance() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    start(&ada).await;
    let short = with(wants(), "lease_ms", json!(100));
    let first = ada.post(CLAIMS, short).await.good()["claims"][0].clone();
    let second = ada.post(CLAIMS, with(wants(), "worker", json!("hand-2"))).await.good()["claims"][0].clone();
    assert_eq!((&second["run"], &second["reclaims"], &second["attempt"]), (&first["run"], &json!(1), &json!(2)));
    let done = json!({"complete": {"outcome": {"done": {"result": "late"}}}});
    assert_eq!(code(&say(&ada, SECRET, &first["claim"], done).await), "stale_claim");
    assert!(say(&ada, SECRET, &second["claim"], json!({"heartbeat": {}})).await["lease_until"].is_string());
    desk.close().await;
}

/// AB-16: a worker serves the queues that its token names, in the namespaces that it names, and nothing of others leaks.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_has_its_queues_and_its_namespace() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop", "other"]);
    let mail = desk.with(&desk.token(&[Scope::Worker("mail".into())], &["shop"]));
    assert_eq!(mail.post(CLAIMS, wants()).await.problem(), "forbidden");
    assert_eq!(mail.post("/v1/namespaces/other/worker/claims", wants()).await.problem(), "not_found");
    assert_eq!(mail.get(RUNS).await.problem(), "forbidden");
    let reader = desk.with(&desk.token(&[Scope::Read], &["shop"]));
    assert_eq!(reader.post(CLAIMS, wants()).await.problem(), "forbidden");

    start(&ada).await;
    let held = claim(&ada).await;
    let elsewhere = "/v1/namespaces/other/worker/reports";
    for token in ["a guess", SECRET] {
        let report = json!({"token": token, "reports": [{"claim": held["claim"], "say": {"heartbeat": {}}}]});
        let told = ada.post(elsewhere, report).await.good();
        assert_eq!(code(&told["answers"][0]), "not_found", "{token}");
    }
    let at_once = with(wants(), "wait_ms", json!(0));
    let another = with(at_once.clone(), "token_hash", json!(hash("another")));
    let given = ada.post("/v1/namespaces/other/worker/claims", another).await.good();
    assert_eq!(given, json!({"claims": []}));
    let all = desk.with(&desk.token(&[Scope::Worker("*".into())], &["shop"]));
    assert_eq!(all.post(CLAIMS, at_once).await.good(), json!({"claims": []}));
    let workers = ada.get("/v1/namespaces/shop/workers").await.good();
    assert_eq!(workers["workers"][0]["worker"], "hand-1");
    assert_eq!(ada.get("/v1/namespaces/other/workers").await.good()["workers"].as_array().unwrap().len(), 1);
    desk.close().await;
}

/// What can be executed is what the node has itself and what workers of the namespace offer: a server without a program
/// of its own once said that there is nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_workers_offer_is_listed() {
    const WORKFLOWS: &str = "/v1/namespaces/shop/workflows";
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop", "other"]);
    let at_once = with(wants(), "wait_ms", json!(0));
    let another = with(with(at_once.clone(), "worker", json!("hand-2")), "token_hash", json!(hash("another")));
    for asked in [at_once, another] {
        ada.post(CLAIMS, asked).await.good();
    }
    let listed = ada.get(WORKFLOWS).await.good();
    let named =
        |name: &str| listed["workflows"].as_array().unwrap().iter().find(|one| one["workflow"] == name).cloned();
    let parcel = json!({"workflow": "parcel", "version": 1, "fingerprint": "00000000000000aa", "first_step": "pack",
        "embedded": false, "workers": 2});
    assert_eq!(named("parcel"), Some(parcel), "{listed}");
    let greet = named("greet").expect("the node has it itself");
    assert_eq!((&greet["embedded"], &greet["workers"], &listed["silent"]), (&json!(true), &json!(0), &json!([])));

    let elsewhere = ada.get("/v1/namespaces/other/workflows").await.good();
    assert!(!elsewhere.to_string().contains("parcel") && elsewhere.to_string().contains("greet"), "{elsewhere}");
    let reader = desk.with(&desk.token(&[Scope::Read], &["shop"]));
    assert_eq!(reader.get(WORKFLOWS).await.good(), listed);
    let worker = desk.with(&desk.token(&[Scope::Worker("*".into())], &["shop"]));
    assert_eq!(worker.get(WORKFLOWS).await.problem(), "forbidden");
    desk.close().await;
}

/// Wrong, huge, empty: what is wrong is said before anything happens.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_says_wrongly_is_told_apart() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let wrong = [
        ("queues", json!([])),
        ("queues", json!(["*"])),
        ("queues", json!(["q".repeat(1_000)])),
        ("workflows", json!([{"workflow": "parcel", "first_step": ""}])),
        ("workflows", json!([])),
        ("worker", json!("")),
        ("most", json!(0)),
        ("most", json!(1_000_000)),
        ("lease_ms", json!(0)),
        ("token_hash", json!("short")),
        ("token_hash", json!("G".repeat(32))),
        ("workflows", json!([{"workflow": "parcel", "first_step": "pack", "fingerprint": "+0000000000000aa"}])),
    ];
    for (field, value) in wrong {
        let heard = ada.post(CLAIMS, with(wants(), field, value.clone())).await;
        assert_eq!(heard.problem(), "invalid", "{field} {value}");
    }
    assert_eq!(ada.post(CLAIMS, with(wants(), "colour", json!("red"))).await.problem(), "malformed");
    start(&ada).await;
    let held = claim(&ada).await["claim"].clone();
    let reports = |say: Value| json!({"token": SECRET, "reports": [{"claim": held, "say": say}]});
    for say in [json!({"sing": {}}), json!({"complete": {}}), json!({"complete": {"outcome": {"fly": {}}}}), json!(7)] {
        assert_eq!(ada.post(REPORTS, reports(say.clone())).await.problem(), "malformed", "{say}");
    }
    let see = vec![json!({"see": {"op": 1}}); 1_001];
    let told = ada.post(REPORTS, reports(json!({"record": {"entries": see}}))).await.good();
    assert_eq!(code(&told["answers"][0]), "too_large");
    let claimless = json!({"token": SECRET, "reports": [{"claim": "claim_1", "say": {"heartbeat": {}}}]});
    assert_eq!(ada.post(REPORTS, claimless).await.problem(), "malformed");
    let nameless = json!({"complete": {"outcome": {"next": {"step": ""}}}});
    let intend = json!({"intend": {"op": 9, "key": "a", "what": {"timer": {"until": {"in_ms": 5}}}}});
    let told = ada.post(REPORTS, reports(nameless)).await.good();
    assert_eq!(code(&told["answers"][0]), "invalid");
    let told = ada.post(REPORTS, reports(json!({"record": {"entries": [intend]}}))).await.good();
    assert_eq!(code(&told["answers"][0]), "invalid", "{told}");
    assert!(say(&ada, SECRET, &held, json!({"heartbeat": {}})).await["lease_until"].is_string(), "nothing happened");
    desk.close().await;
}

/// AB-19: a function's ledger over the wire: an effect's intent before its result, a wait that suspends, and what both ended
/// with in the next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_is_kept_over_the_wire() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada).await;
    let held = claim(&ada).await["claim"].clone();
    let effect = json!({"intend": {"op": 1, "key": "charge", "input": "00000000000000ff", "what": {"effect": {"policy": "unsafe_once"}}}});
    let told = say(&ada, SECRET, &held, json!({"record": {"entries": [effect]}})).await;
    assert!(told["recorded"].is_object() || code(&told) == "not_approved", "{told}");
    let effect = json!({"intend": {"op": 1, "key": "charge", "input": "00000000000000ff", "what": {"effect": {"policy": "idempotent"}}}});
    let ended = json!({"done": {"op": 1, "value": {"paid": 5}, "at": "2026-11-16T10:00:00.000Z"}});
    let wait =
        json!({"intend": {"op": 2, "key": "go", "what": {"signal": {"name": "go", "deadline": {"in_ms": 60_000}}}}});
    let entries = if told["recorded"].is_object() { json!([ended, wait]) } else { json!([effect, ended, wait]) };
    let suspend = json!({"complete": {"outcome": {"suspend": {"seen": 1}}, "entries": entries}});
    let told = say(&ada, SECRET, &held, suspend).await;
    assert!(told["recorded"].is_object(), "{told}");
    ada.post(&format!("{RUNS}/{run}/signals"), json!({"name": "go", "payload": "now"})).await.good();
    let next = claim(&ada).await;
    let ledger = next["ledger"].as_array().unwrap();
    assert_eq!(ledger.len(), 2, "{next}");
    assert_eq!((&ledger[0]["key"], &ledger[0]["end"]["value"]), (&json!("charge"), &json!({"paid": 5})));
    assert_eq!((&ledger[1]["what"]["signal"]["name"], &ledger[1]["end"]["value"]), (&json!("go"), &json!("now")));
    assert_eq!((&next["next_op"], &next["ended"], &next["woken_by"]), (&json!(3), &json!(2), &json!("ledger")));
    let failed = json!({"fail": {"error": {"code": "broken", "message": "it broke", "retryable": true}, "retry": {"delay_ms": 1}}});
    assert!(say(&ada, SECRET, &next["claim"], failed).await["recorded"].is_object());
    let retried = claim(&ada).await;
    assert_eq!((&retried["retries"], &retried["attempt"]), (&json!(1), &json!(2)));
    desk.close().await;
}

/// A signal that a wait had got and gives back lets the step that awaits it go on at once: it is in the inbox by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_given_back_is_not_missed() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada).await;
    let held = claim(&ada).await["claim"].clone();
    let wait = json!({"intend": {"op": 1, "key": "go", "what": {"signal": {"name": "go"}}}});
    assert!(say(&ada, SECRET, &held, json!({"record": {"entries": [wait]}})).await["recorded"].is_object());
    ada.post(&format!("{RUNS}/{run}/signals"), json!({"name": "go", "payload": "now"})).await.good();
    let parks = json!({"complete": {"entries": [{"withdraw": {"op": 1}}], "outcome": {"await": {"signals": ["go"]}}}});
    let told = say(&ada, SECRET, &held, parks).await;
    assert!(told["recorded"].is_object(), "{told}");
    let next = claim(&ada).await;
    assert_eq!((&next["run"], &next["signals"][0]["payload"]), (&json!(run), &json!("now")));
    desk.close().await;
}

/// BU-28, BU-29, BU-30, BU-31, AB-13: what a worker says of its progress is shown at once, found again after a number, told to
/// those who follow the run and to the next attempt; whoever does not hold the claim is not heard.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_followed_and_told_to_the_next_attempt() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let (run, first) = tokio::join!(start(&ada), claim(&ada));
    let mut events = ada.follow(&format!("{RUNS}/{run}/events"), None).await;
    let progress = |name: &str, value: Value| json!({"progress": {"name": name, "value": value}});
    for (name, value) in [("rows", json!(1)), ("phase", json!("pack")), ("rows", json!(2))] {
        let said = say(&ada, SECRET, &first["claim"], progress(name, value)).await;
        assert!(said["lease_until"].is_string() && said["recorded"].is_null(), "{said}");
    }
    let shown = ada.get(&format!("{RUNS}/{run}")).await.good();
    assert_eq!(shown["progress"], json!({"rows": 2, "phase": "pack"}));
    let all = ada.get(&format!("{RUNS}/{run}/progress")).await.good();
    assert_eq!((&all["latest"], &all["trimmed"]), (&shown["progress"], &json!(false)));
    let told = all["events"].as_array().unwrap();
    assert_eq!(
        told.iter().map(|event| event["value"].clone()).collect::<Vec<_>>(),
        [json!(1), json!("pack"), json!(2)]
    );
    for (index, event) in told.iter().enumerate() {
        let rest = ada.get(&format!("{RUNS}/{run}/progress?after={}", event["seq"])).await.good();
        assert_eq!(rest["events"].as_array().unwrap(), &told[index + 1..]);
    }
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let event = events.next().await.unwrap();
        heard.extend((event.name == "progress").then_some(event.data));
    }
    assert_eq!(&heard, told);

    assert_eq!(code(&say(&ada, "another", &first["claim"], progress("rows", json!(9))).await), "wrong_token");
    assert_eq!(code(&say(&ada, SECRET, &first["claim"], progress("", json!(9))).await), "invalid");
    let large = json!("x".repeat(5_000));
    assert_eq!(code(&say(&ada, SECRET, &first["claim"], progress("rows", large)).await), "too_large");
    let retry = json!({"delay_ms": 0});
    let broken = json!({"code": "broken", "message": "broken", "retryable": true});
    let failed = say(&ada, SECRET, &first["claim"], json!({"fail": {"error": broken, "retry": retry}})).await;
    assert_eq!(failed["recorded"]["duplicate"], false, "{failed}");
    let second = claim(&ada).await;
    assert_eq!(second["progress"], json!({"rows": 2, "phase": "pack"}));
    assert_eq!(code(&say(&ada, SECRET, &first["claim"], progress("rows", json!(9))).await), "stale_claim");
    let sent = json!({"complete": {"outcome": {"done": {"result": "sent"}}}});
    say(&ada, SECRET, &second["claim"], sent).await;
    assert_eq!(events.rest().await.last().unwrap().name, "end");
    desk.close().await;
}

/// AB-16: a run that is not in memory is of its namespace all the same: what is reported for it from another one
/// changes nothing, whether the secret is right or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_rest_is_of_its_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let desk = Desk::open(&url).await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada).await;
    let held = claim(&ada).await["claim"].clone();
    let parks = json!({"complete": {"outcome": {"await": {"signals": ["go"]}}}});
    assert!(say(&ada, SECRET, &held, parks.clone()).await["recorded"].is_object());
    let before = ada.get(&format!("{RUNS}/{run}")).await.good();
    desk.close().await;

    let desk = Desk::open(&url).await;
    let (shop, other) = (desk.admin(&["shop"]), desk.admin(&["other"]));
    let done = json!({"complete": {"outcome": {"done": {"result": 1}}}});
    for (token, said) in [("a guess", json!({"heartbeat": {}})), ("a guess", done), (SECRET, parks)] {
        let report = json!({"token": token, "reports": [{"claim": held, "say": said}]});
        let told = other.post("/v1/namespaces/other/worker/reports", report).await.good();
        assert_eq!(code(&told["answers"][0]), "not_found", "{token}");
    }
    assert_eq!(shop.get(&format!("{RUNS}/{run}")).await.good(), before);
    desk.close().await;
}

/// AB-16: a token for one queue reports for that queue alone, also with the secret of a claim of another.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reports_for_its_own_queues() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    start(&ada).await;
    let held = claim(&ada).await["claim"].clone();
    let done = json!({"complete": {"outcome": {"done": {"result": 1}}}});
    let mail = desk.with(&desk.token(&[Scope::Worker("mail".into())], &["shop"]));
    assert_eq!(code(&say(&mail, SECRET, &held, done.clone()).await), "forbidden");
    let own = desk.with(&desk.token(&[Scope::Worker("default".into())], &["shop"]));
    assert_eq!(say(&own, SECRET, &held, done).await["recorded"]["duplicate"], false);
    desk.close().await;
}

/// AB-16: a token that was revoked while its worker waited gets nothing, and what came for it is another's.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_under_a_revoked_token_brings_nothing() {
    let desk = Desk::open("memory:").await;
    let root = desk.admin(&["*"]);
    let made = desk.make(&[Scope::Worker("*".into())], &["shop"], None);
    let worker = desk.with(&made.secret);
    let revoked = async {
        while root.get("/v1/namespaces/shop/workers").await.good()["workers"] == json!([]) {}
        let gone = root.send(reqwest::Method::DELETE, &format!("/v1/tokens/{}", made.token.token), &[], None).await;
        assert_eq!(gone.status, 204);
        start(&root).await
    };
    let (waited, run) = tokio::join!(worker.post(CLAIMS, wants()), revoked);
    assert_eq!(waited.problem(), "unauthenticated");
    let next = claim(&root).await;
    assert_eq!((&next["run"], &next["attempt"]), (&json!(run), &json!(1)));
    desk.close().await;
}
