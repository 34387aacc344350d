//! Tails over a real socket: what becomes true is told in order, once, and to nobody else.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use desk::{Caller, Desk, Event, Events};
use serde_json::{Value, json};

const RUNS: &str = "/v1/namespaces/shop/runs";
const EVENTS: &str = "/v1/namespaces/shop/events";

async fn start(caller: &Caller<'_>, workflow: &str, namespace: &str) -> String {
    let body = json!({"workflow": workflow, "input": "Ada"});
    let started = caller.post(&format!("/v1/namespaces/{namespace}/runs"), body).await.good();
    started["run"].as_str().unwrap().to_owned()
}

async fn signal(caller: &Caller<'_>, run: &str) {
    caller.post(&format!("{RUNS}/{run}/signals"), json!({"name": "go", "payload": {"x": 1}})).await.good();
}

/// The rows of a journal, as they are asked for.
async fn journal(caller: &Caller<'_>, run: &str) -> Vec<Value> {
    caller.get(&format!("{RUNS}/{run}/journal")).await.good()["rows"].as_array().unwrap().clone()
}

fn rows(events: &[Event]) -> Vec<Value> {
    events.iter().filter(|event| event.name == "row").map(|event| event.data.clone()).collect()
}

/// Reads up to an event about a run with one of these facts.
async fn until(events: &mut Events, run: &str, fact: &str) -> Vec<Event> {
    let mut seen = Vec::new();
    loop {
        let event = events.next().await.unwrap();
        let facts = event.data["facts"].as_array().cloned().unwrap_or_default();
        let is_it = event.data["run"] == run && facts.contains(&json!(fact));
        seen.push(event);
        if is_it {
            return seen;
        }
    }
}

/// AB-13: a journal that is larger than a piece of a stream, or than a page, is told whole by several.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_journal_is_told_in_pieces() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, "wait", "shop").await;
    for number in 0..12 {
        let note = json!({"name": "note", "payload": {"number": number, "text": "x".repeat(50_000)}});
        ada.post(&format!("{RUNS}/{run}/signals"), note).await.good();
    }
    signal(&ada, &run).await;
    let told = rows(&ada.follow(&format!("{RUNS}/{run}/events"), None).await.rest().await);
    assert_eq!(told, journal(&ada, &run).await);
    let (mut paged, mut from) = (Vec::new(), Some(1));
    while let Some(next) = from {
        let page = ada.get(&format!("{RUNS}/{run}/journal?from={next}&limit=3")).await.good();
        let rows = page["rows"].as_array().unwrap();
        assert!((1..=3).contains(&rows.len()), "{}", rows.len());
        paged.extend(rows.iter().cloned());
        from = page["next"].as_u64();
    }
    assert_eq!(paged, told);
}

/// AB-13: a run is told row by row as it goes on, in order, without gap or repeat, up to its end; whoever comes back is told
/// what it has not heard.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_to_its_end() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, "wait", "shop").await;
    let path = format!("{RUNS}/{run}/events");
    let mut first = ada.follow(&path, None).await;
    let begun = first.next().await.unwrap();
    assert_eq!((begun.id.as_deref(), begun.name.as_str()), (Some("1"), "row"));
    assert!(begun.data["facts"][0]["started"].is_object(), "{begun:?}");
    signal(&ada, &run).await;
    let mut heard = vec![begun];
    heard.extend(first.rest().await);

    let told = journal(&ada, &run).await;
    assert_eq!(rows(&heard), told);
    for event in heard.iter().filter(|event| event.name == "row") {
        assert_eq!(event.id, Some(event.data["rev"].to_string()));
    }
    let end = heard.last().unwrap();
    assert_eq!(
        (end.name.as_str(), &end.data["status"], &end.data["result"]),
        ("end", &json!("done"), &json!({"x": 1}))
    );
    assert_eq!(heard.iter().filter(|event| event.name != "row").count(), 1);

    for after in 0..=told.len() {
        let again = ada.follow(&path, Some(&after.to_string())).await.rest().await;
        assert_eq!(rows(&again), told[after..]);
        assert_eq!(again.last(), Some(end));
        assert_eq!(ada.follow(&format!("{path}?after={after}"), None).await.rest().await, again);
    }
    // What a reader got last goes before what it asked for at first.
    assert_eq!(ada.follow(&format!("{path}?after=0"), Some(&told.len().to_string())).await.rest().await.len(), 1);
    desk.close().await;
}

/// AB-13: the numbers of a run's events are those of its journal, so that they outlive the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let desk = Desk::open(&url).await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, "wait", "shop").await;
    let mut events = ada.follow(&format!("{RUNS}/{run}/events"), None).await;
    let mut last = String::new();
    loop {
        let event = events.next().await.unwrap();
        last = event.id.clone().unwrap_or(last);
        if event.data["facts"].to_string().contains("await") {
            break;
        }
    }
    desk.close().await;
    assert_eq!(events.rest().await, [], "a server that stops ends its streams");

    let desk = Desk::open(&url).await;
    let ada = desk.admin(&["shop"]);
    let mut events = ada.follow(&format!("{RUNS}/{run}/events"), Some(&last)).await;
    signal(&ada, &run).await;
    let next = events.next().await.unwrap();
    assert_eq!(next.id, Some((last.parse::<u64>().unwrap() + 1).to_string()));
    assert_eq!(events.rest().await.last().unwrap().name, "end");
    desk.close().await;
}

/// AB-13, AB-16: a namespace is followed from now on, and nothing of another one ever shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_is_followed_and_no_other() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop", "bank"]);
    let before = start(&ada, "wait", "shop").await;
    let mut events = ada.follow(EVENTS, None).await;
    assert_eq!(events.next().await.unwrap().name, "following");
    let other = start(&ada, "greet", "bank").await;
    ada.get(&format!("/v1/namespaces/bank/runs/{other}/result?wait_ms=20000")).await.good();
    let run = start(&ada, "greet", "shop").await;
    let mut seen = until(&mut events, &run, "ended").await;
    assert_eq!(seen.last().unwrap().data["status"], "done");
    signal(&ada, &before).await;
    seen.extend(until(&mut events, &before, "ended").await);
    let text = format!("{seen:?}");
    assert!(!text.contains(&other) && !text.contains("Ada"), "{text}");
    for run in [&run, &before] {
        let told =
            seen.iter().filter(|event| event.data["run"] == **run).map(|event| event.data["rev"].as_u64().unwrap());
        let told: Vec<u64> = told.collect();
        let last = journal(&ada, run).await.len() as u64;
        assert_eq!(told, (told[0]..=last).collect::<Vec<u64>>(), "in order, without gap or repeat");
    }
    // From anywhere in between, the rest is told again.
    let from = seen.len() / 2;
    let id = seen[from].id.clone().unwrap();
    let mut again = ada.follow(EVENTS, Some(&id)).await;
    let heard = until(&mut again, &before, "ended").await;
    let heard: Vec<&Event> = heard.iter().filter(|event| event.name == "happened").collect();
    assert_eq!(heard, seen[from + 1..].iter().collect::<Vec<_>>());
    desk.close().await;
}

/// AB-13: whoever comes back to what is not kept any more, or reads slower than things happen, is told so.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_told_is_said() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let mut unknown = ada.follow(EVENTS, Some("00000000000000ab-7")).await;
    let reset = unknown.next().await.unwrap();
    assert_eq!((reset.name.as_str(), &reset.data["reason"]), ("reset", &json!("gone")));
    let id = reset.id.unwrap();
    // More than is kept, before anybody reads on.
    let starts: Vec<Value> = (0..1_000).map(|_| json!({"workflow": "greet", "input": "Ada"})).collect();
    let mut last = Value::Null;
    for _ in 0..2 {
        let answers = ada.post(&format!("{RUNS}/batch"), json!({"runs": starts})).await.good();
        last = answers["answers"].as_array().unwrap().last().unwrap()["started"]["run"].clone();
    }
    ada.get(&format!("{RUNS}/{}/result?wait_ms=20000", last.as_str().unwrap())).await.good();
    let reset = ada.follow(EVENTS, Some(&id)).await.next().await.unwrap();
    assert_eq!((reset.name.as_str(), &reset.data["reason"]), ("reset", &json!("gone")));
    desk.close().await;
}

/// Whatever is no place to go on after is refused, and a stream ends when it was said to.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_none_is_refused() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, "wait", "shop").await;
    let get =
        async |path: String, last: &str| ada.send(reqwest::Method::GET, &path, &[("last-event-id", last)], None).await;
    for wrong in ["99", "-1", "x", "1x", "+1", "18446744073709551616"] {
        assert_eq!(get(format!("{RUNS}/{run}/events"), wrong).await.problem(), "invalid", "{wrong}");
        assert_eq!(get(EVENTS.into(), wrong).await.problem(), "invalid", "{wrong}");
    }
    assert_eq!(ada.get(&format!("{RUNS}/{run}/events?after=99")).await.problem(), "invalid");
    assert_eq!(ada.get(&format!("{EVENTS}?after=nonsense")).await.problem(), "invalid");
    assert_eq!(ada.get(&format!("{EVENTS}?for_ms=-1")).await.problem(), "bad_query");
    let heard = ada.get(&format!("{RUNS}/{run}/events?for_ms=0")).await;
    assert!(heard.text.contains("event: row") && !heard.text.contains("event: end"), "{heard:?}");
    desk.close().await;
}

/// AB-16: a token that was revoked hears nothing more, however busy the stream is.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_stream_ends_with_its_token() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["*"]);
    let made = desk.make(&[abide_protocol::Scope::Read], &["shop"], None);
    let eve = desk.with(&made.secret);
    let run = start(&ada, "wait", "shop").await;
    let (mut events, mut rows) =
        (eve.follow(EVENTS, None).await, eve.follow(&format!("{RUNS}/{run}/events"), None).await);
    assert_eq!(events.next().await.unwrap().name, "following");
    while !rows.next().await.unwrap().data["facts"].to_string().contains("await") {}
    let gone = ada.send(reqwest::Method::DELETE, &format!("/v1/tokens/{}", made.token.token), &[], None).await;
    assert_eq!(gone.status, 204);
    signal(&ada, &run).await;
    let last = start(&ada, "greet", "shop").await;
    let heard = events.rest().await;
    assert!(heard.iter().all(|event| event.data["run"] != json!(last)), "{heard:?}");
    assert_eq!(rows.rest().await, []);
    desk.close().await;
}

/// AB-13: what was said faster than it could be told is missing, and the reader hears so.
#[tokio::test(flavor = "multi_thread")]
async fn progress_that_was_left_out_is_said() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, "parcel", "shop").await;
    let mut events = ada.follow(&format!("{RUNS}/{run}/events"), None).await;
    let wants = json!({"worker": "hand", "token_hash": "2bb80d537b1da3e38bd30361aa855686", "wait_ms": 20_000,
                       "workflows": [{"workflow": "parcel", "first_step": "pack"}]});
    let held = ada.post("/v1/namespaces/shop/worker/claims", wants).await.good()["claims"][0]["claim"].clone();
    while !events.next().await.unwrap().data["facts"].to_string().contains("claimed") {}
    let say = |value: u32| json!({"claim": held, "say": {"progress": {"name": "rows", "value": value}}});
    let reports: Vec<Value> = (1..=200).map(say).collect();
    // The token whose hash is above.
    let told =
        ada.post("/v1/namespaces/shop/worker/reports", json!({"token": "secret", "reports": reports})).await.good();
    assert!(told["answers"][0]["lease_until"].is_string(), "{told}");
    let mut heard = 0;
    let mut missing = 0;
    loop {
        let event = events.next().await.unwrap();
        if event.name != "progress" {
            continue;
        }
        heard += 1;
        if let Some(trimmed) = event.data["trimmed"].as_u64() {
            missing += 1;
            assert!(trimmed < event.data["seq"].as_u64().unwrap(), "{event:?}");
        }
        if event.data["value"] == 200 {
            break;
        }
    }
    assert!(heard == 200 || missing > 0, "{heard} of 200 came, and nothing was said of the others");
    desk.close().await;
}
