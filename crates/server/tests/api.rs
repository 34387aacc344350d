//! The API over a real socket: what each operation answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use desk::Desk;
use serde_json::{Value, json};

const RUNS: &str = "/v1/namespaces/shop/runs";

/// Starts a run, and says which.
async fn start(caller: &desk::Caller<'_>, body: Value) -> String {
    let heard = caller.post(RUNS, body).await;
    assert_eq!(heard.status, 201, "{heard:?}");
    heard.json()["run"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_seen_and_waited_for() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "greet", "input": "Ada", "labels": {"by": "test"}})).await;
    let ended = ada.get(&format!("{RUNS}/{run}/result?wait_ms=20000")).await.good();
    assert_eq!(ended, json!({"run": run, "status": "done", "ended": true, "result": "hello Ada", "error": null}));
    let shown = ada.get(&format!("{RUNS}/{run}")).await.good();
    assert_eq!((&shown["input"], &shown["result"]), (&json!("Ada"), &json!("hello Ada")));
    assert_eq!((&shown["namespace"], &shown["labels"]), (&json!("shop"), &json!({"by": "test"})));
    let journal = ada.get(&format!("{RUNS}/{run}/journal?limit=1")).await.good();
    assert_eq!(journal["rows"].as_array().unwrap().len(), 1);
    assert_eq!((&journal["rows"][0]["rev"], &journal["next"]), (&json!(1), &json!(2)));
    let state = ada.get(&format!("{RUNS}/{run}/state?rev=1")).await.good();
    assert_eq!((&state["rev"], &state["state"]), (&json!(1), &json!("Ada")));
    assert_eq!(ada.get(&format!("{RUNS}/{run}/state?rev=99")).await.problem(), "invalid");
    assert_eq!(ada.get(&format!("{RUNS}/{run}/explain")).await.good()["reason"], "ended");
    assert_eq!(ada.get(&format!("{RUNS}/{run}/effects")).await.good(), json!({"effects": []}));
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_in_pages_without_gap_or_repeat() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop", "other"]);
    let starts: Vec<Value> = (0..7).map(|n| json!({"workflow": "wait", "input": n, "key": format!("k{n}")})).collect();
    let answers = ada.post(&format!("{RUNS}/batch"), json!({"runs": starts})).await.good();
    let mut started: Vec<&str> =
        answers["answers"].as_array().unwrap().iter().map(|one| one["started"]["run"].as_str().unwrap()).collect();
    ada.post("/v1/namespaces/other/runs", json!({"workflow": "wait"})).await.good();
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = ada.get(&format!("{RUNS}?limit=3&status=open{before}")).await.good();
        seen.extend(page["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        before = format!("&before={next}");
    }
    started.sort_unstable();
    started.reverse();
    assert_eq!(seen, started);
    assert_eq!(ada.get(&format!("{RUNS}?key=k3")).await.good()["runs"].as_array().unwrap().len(), 1);
    for wrong in ["limit=0", "limit=-1", "limit=x", "status=asleep", "before=run_1", "colour=red", "limit=1&limit=2"] {
        assert_eq!(ada.get(&format!("{RUNS}?{wrong}")).await.problem(), "bad_query", "{wrong}");
    }
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_by_label_and_time() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let ops = start(&ada, json!({"workflow": "wait", "labels": {"team": "ops", "größe": "大=&+"}})).await;
    let web = start(&ada, json!({"workflow": "wait", "labels": {"team": "web"}})).await;
    let ended = start(&ada, json!({"workflow": "greet", "input": "Ada", "labels": {"team": "web"}})).await;
    ada.get(&format!("{RUNS}/{ended}/result?wait_ms=20000")).await.good();
    let list = async |query: &str| -> Vec<String> {
        let page = ada.get(&format!("{RUNS}?{query}")).await.good();
        page["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list("label=team%3Dops").await, [ops.as_str()]);
    // Within a millisecond ids are in any order.
    let mut of_web = [web.as_str(), ended.as_str()];
    of_web.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(list("label=team=web").await, of_web);
    assert_eq!(list("label=team=web&status=open").await, [web.as_str()]);
    assert_eq!(list("label=team=ops&label=gr%C3%B6%C3%9Fe=%E5%A4%A7=%26%2B").await, [ops.as_str()]);
    assert_eq!(list("label=team=ops&label=team=web").await, [""; 0]);
    assert_eq!(list("label=team=op").await, [""; 0]);
    let shown = ada.get(&format!("{RUNS}?label=team=ops")).await.good();
    assert_eq!(shown["runs"][0]["labels"], json!({"team": "ops", "größe": "大=&+"}));
    let nudged = loop {
        ada.post(&format!("{RUNS}/{web}/signals"), json!({"name": "nudge"})).await.good();
        let shown = ada.get(&format!("{RUNS}/{web}")).await.good();
        if shown["updated_at"] != shown["created_at"] {
            break shown;
        }
    };
    let (created, updated) = (nudged["created_at"].as_str().unwrap(), nudged["updated_at"].as_str().unwrap());
    assert!(list(&format!("created_before={updated}")).await.contains(&web));
    assert!(!list(&format!("created_after={updated}")).await.contains(&web));
    assert!(list(&format!("updated_after={updated}&created_before={updated}")).await.contains(&web));
    assert!(!list(&format!("updated_before={updated}&created_after={created}")).await.contains(&web));
    for column in ["created", "updated"] {
        let at = shown["runs"][0][format!("{column}_at")].as_str().unwrap();
        assert!(list(&format!("{column}_after={at}")).await.contains(&ops), "from that instant on");
        assert!(!list(&format!("{column}_before={at}")).await.contains(&ops), "and before it");
        assert_eq!(list(&format!("{column}_after=2000-01-01T00:00:00%2B02:00")).await.len(), 3);
        assert_eq!(
            list(&format!("{column}_after=2000-01-01T00:00:00Z&{column}_before=2000-01-02T00:00:00Z")).await.len(),
            0
        );
    }
    for wrong in [
        "label=",
        "label=team",
        "label=%3Dops",
        "created_after=yesterday",
        "updated_before=",
        "created_before=1794000482125",
        "created_after=2026-11-15",
        "created_after=2026-13-45T00:00:00Z",
        "updated_after=2026-11-15T00:00:00Z&updated_after=2026-11-15T00:00:00Z",
    ] {
        let heard = ada.get(&format!("{RUNS}?{wrong}")).await;
        assert_eq!((heard.status, heard.problem().as_str()), (400, "bad_query"), "{wrong}");
        assert!(heard.json()["expected"].as_str().is_some_and(|expected| !expected.is_empty()), "{wrong}");
    }
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_taken_is_a_problem_that_names_the_run() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "wait", "input": 1, "key": "order-17"})).await;
    let taken = ada.post(RUNS, json!({"workflow": "wait", "input": 1, "key": "order-17"})).await;
    assert_eq!((taken.problem(), taken.json()["run"].as_str()), ("key_taken".into(), Some(&*run)));
    let same = json!({"workflow": "wait", "input": 1, "key": "order-17", "on_conflict": "reuse"});
    assert_eq!(ada.post(RUNS, same).await.good(), json!({"run": run, "admission": "reused"}));
    let other = json!({"workflow": "wait", "input": 2, "key": "order-17", "on_conflict": "reuse"});
    assert_eq!(ada.post(RUNS, other).await.problem(), "other_input");
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_signalled_and_cancelled() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "wait", "input": {}})).await;
    let signal = json!({"name": "go", "payload": {"n": 1.50}, "dedup": "once"});
    assert_eq!(
        ada.post(&format!("{RUNS}/{run}/signals"), signal.clone()).await.good(),
        json!({"signal": 1, "duplicate": false})
    );
    assert_eq!(ada.post(&format!("{RUNS}/{run}/signals"), signal).await.status, 200);
    let ended = ada.get(&format!("{RUNS}/{run}/result?wait_ms=20000")).await.good();
    assert_eq!(ended["status"], "done");
    assert_eq!(ada.post(&format!("{RUNS}/{run}/cancel"), json!({})).await.problem(), "run_over");
    let run = start(&ada, json!({"workflow": "wait", "input": {}})).await;
    let waiting = ada.get(&format!("{RUNS}/{run}/result?wait_ms=1")).await.good();
    assert_eq!((&waiting["ended"], &waiting["result"]), (&json!(false), &json!(null)));
    let cancelled = ada.post(&format!("{RUNS}/{run}/cancel"), json!({"reason": "enough"})).await.good();
    assert_eq!(cancelled["duplicate"], false);
    let ended = ada.get(&format!("{RUNS}/{run}/result")).await.good();
    assert_eq!((&ended["status"], &ended["error"]["message"]), (&json!("cancelled"), &json!("enough")));
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_is_asked_and_a_machine_is_not() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "asked"})).await;
    let update = json!({"name": "double", "input": 21, "dedup": "a", "wait_ms": 20000});
    let answer = ada.post(&format!("{RUNS}/{run}/updates"), update.clone()).await.good();
    assert_eq!(answer, json!({"run": run, "update": 1, "answered": true, "duplicate": false, "answer": 42}));
    let again = ada.post(&format!("{RUNS}/{run}/updates"), update).await.good();
    assert_eq!(again, json!({"run": run, "update": 1, "answered": true, "duplicate": true, "answer": 42}));
    let machine = start(&ada, json!({"workflow": "wait"})).await;
    let refused = ada.post(&format!("{RUNS}/{machine}/updates"), json!({"name": "double"})).await;
    assert_eq!(refused.problem(), "no_updates");
    desk.close().await;
}

/// Waits until a list of what is asked of people has one entry, by the end of the run's step.
async fn only(caller: &desk::Caller<'_>, noun: &str) -> Value {
    for _ in 0..10_000 {
        let page = caller.get(&format!("/v1/namespaces/shop/{noun}")).await.good();
        if let Some(found) = page["boundaries"].as_array().unwrap().first() {
            return found.clone();
        }
        tokio::task::yield_now().await;
    }
    panic!("nobody is asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_and_completes() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "review", "input": 90})).await;
    let asked = only(&ada, "approvals").await;
    assert_eq!((&asked["run"], &asked["payload"], &asked["standing"]), (&json!(run), &json!(90), &json!("open")));
    let at = format!("/v1/namespaces/shop/approvals/{}", asked["boundary"].as_str().unwrap());
    assert_eq!(ada.post(&format!("{at}/approve"), json!({})).await.problem(), "wrong_role");
    let said = ada.post(&format!("{at}/approve"), json!({"roles": ["finance"], "note": "fine"})).await.good();
    assert_eq!(said["duplicate"], false);
    assert_eq!(ada.get(&format!("{RUNS}/{run}/result?wait_ms=20000")).await.good()["result"], true);
    let shown = ada.get(&at).await.good();
    assert_eq!((&shown["decision"]["actor"], &shown["decision"]["note"]), (&json!("ada"), &json!("fine")));
    // What is an approval is no task.
    let as_task = at.replace("approvals", "tasks");
    assert_eq!(ada.get(&as_task).await.problem(), "not_found");

    let run = start(&ada, json!({"workflow": "chore", "input": "sweep"})).await;
    let asked = only(&ada, "tasks").await;
    let at = format!("/v1/namespaces/shop/tasks/{}", asked["boundary"].as_str().unwrap());
    ada.post(&format!("{at}/claim"), json!({"actor": "bob"})).await.good();
    assert_eq!(ada.post(&format!("{at}/complete"), json!({"payload": "swept"})).await.problem(), "not_assignee");
    ada.post(&format!("{at}/release"), json!({"actor": "bob"})).await.good();
    ada.post(&format!("{at}/complete"), json!({"payload": "swept"})).await.good();
    assert_eq!(ada.get(&format!("{RUNS}/{run}/result?wait_ms=20000")).await.good()["result"], "swept");
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_can_execute_says_so() {
    let desk = Desk::open("memory:").await;
    let ada = desk.admin(&["shop"]);
    let run = start(&ada, json!({"workflow": "elsewhere", "version": 3})).await;
    assert_eq!(ada.get(&format!("{RUNS}/{run}/explain")).await.good()["reason"], "no_worker_workflow");
    assert_eq!(ada.get("/v1/namespaces/shop/effects").await.good()["effects"], json!([]));
    assert_eq!(ada.get("/v1/namespaces/shop/dead-letters").await.good()["runs"], json!([]));
    let requeue = format!("/v1/namespaces/shop/dead-letters/{run}/requeue");
    let refused = ada.send(reqwest::Method::POST, &requeue, &[], None).await;
    assert_eq!(refused.problem(), "not_dead_lettered");
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_as_a_whole_is_seen() {
    let desk = Desk::open("memory:").await;
    let all = desk.admin(&["*"]);
    assert_eq!(all.get("/v1/dead-letters").await.good(), json!({"letters": []}));
    assert_eq!(all.get("/v1/nodes").await.good()["nodes"].as_array().unwrap().len(), 1);
    let metrics = all.get("/metrics").await;
    assert!(
        metrics.kind.starts_with("application/openmetrics-text")
            && metrics.text.contains("\nabide_store_commits_total ")
    );
    let nobody = desk.nobody();
    assert_eq!(nobody.get("/healthz").await.good()["status"], "ok");
    assert_eq!(nobody.get("/readyz").await.good()["status"], "ready");
    assert_eq!(nobody.get("/v1/openapi.json").await.good()["openapi"], "3.1.0");
    desk.close().await;
}
