//! What a server and an engine tell of themselves: traces to a collector, counts with the dashboard and the alerts that are
//! made for them, and lines of the log that keep secrets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod served;
mod shop;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::otlp::Otlp;
use abide::{Ctx, Engine, Machine, RetryPolicy, StepError, done, next};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Said;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use served::Served;
use shop::Shop;
use yaml_rust2::{Yaml, YamlLoader};

const LONG: Duration = Duration::from_secs(20);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ABOVE: &str = "00f067aa0ba902b7";
const RUNS: &str = "/v1/namespaces/default/runs";

/// A collector of traces, that keeps what it is sent.
struct Collector {
    url: String,
    sent: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    async fn listen() -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let kept = sent.clone();
        let take = async move |body: Bytes| {
            kept.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
            [("content-type", "application/x-protobuf")]
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, sent }
    }

    /// Spans by their names, which must be of this service; attempts at the same step in their order.
    fn spans(&self, service: &str) -> BTreeMap<String, Vec<Span>> {
        let mut spans: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        for sent in &self.sent.lock().unwrap().iter().flat_map(|sent| &sent.resource_spans).collect::<Vec<_>>() {
            let of = &sent.resource.as_ref().unwrap().attributes;
            assert!(of.iter().any(|pair| pair.key == "service.name" && said(pair.value.as_ref()) == service));
            for span in sent.scope_spans.iter().flat_map(|scope| &scope.spans) {
                spans.entry(span.name.clone()).or_default().push(span.clone());
            }
        }
        spans.values_mut().for_each(|same| same.sort_by_key(|span| span.start_time_unix_nano));
        spans
    }
}

fn said(value: Option<&opentelemetry_proto::tonic::common::v1::AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Said::StringValue(text)) => text.clone(),
        Some(Said::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    Some(said(pair.value.as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Its first attempt fails.
fn order() -> Machine<u32> {
    Machine::<u32>::new("order")
        .retry(RetryPolicy::exponential(1))
        .step("charge", async |ctx: Ctx, tries: u32| match ctx.attempt() {
            0 => Err(StepError::new("no route").code("network")),
            _ => Ok(next("ship", tries)),
        })
        .step("ship", async |_, _: u32| Ok(done(&"sent")))
}

/// One trace, the attempts below the start, each with what it is of.
fn is_one_trace(collector: &Collector, service: &str, run: &str) {
    let spans = collector.spans(service);
    let names: Vec<(&str, usize)> = spans.iter().map(|(name, same)| (name.as_str(), same.len())).collect();
    assert_eq!(names, [("end order", 1), ("order charge", 2), ("order ship", 1), ("start order", 1)]);
    let start = &spans["start order"][0];
    assert_eq!(hex(&start.parent_span_id), ABOVE, "whoever asked is above it");
    for span in spans.values().flatten() {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
        assert_eq!(attribute(span, "abide.run.id").as_deref(), Some(run));
        assert_eq!(attribute(span, "abide.workflow").as_deref(), Some("order"));
        assert_eq!(attribute(span, "abide.queue").as_deref(), Some("default"));
        if span.name != "start order" {
            assert_eq!(span.parent_span_id, start.span_id, "{span:?}");
        }
    }
    let attempts = [("order charge", 0, Some("network")), ("order charge", 1, None), ("order ship", 0, None)];
    for (name, attempt, error) in attempts {
        let span = &spans[name][attempt];
        assert_eq!(attribute(span, "abide.step").as_deref(), name.split(' ').nth(1));
        assert_eq!(attribute(span, "abide.attempt"), Some(attempt.to_string()));
        assert_eq!(attribute(span, "error.type").as_deref(), error);
        let failed = span.status.as_ref().is_some_and(|status| status.code == 2);
        assert_eq!(failed, error.is_some(), "{span:?}");
    }
}

fn traceparent() -> String {
    format!("00-{TRACE}-{ABOVE}-01")
}

/// AB-20: a run that a server was asked for inside of a trace, whose attempts a worker executed over HTTP, one of them in vain.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_one_trace_from_a_server() {
    let (shop, collector) = (Shop::new(), Collector::listen().await);
    let more = ["--no-auth", "--listen", "127.0.0.1:0", "--otlp", &collector.url, "--otlp-service", "shop"];
    let served = Served::begin(&shop, &more);
    let worker = Engine::open(&served.url).register(order()).start().await.unwrap();
    let asked = json!({"workflow": "order", "input": 1});
    let (status, started) = served.ask("POST", RUNS, &[("traceparent", &traceparent())], Some(asked)).await;
    assert_eq!(status, 201, "{started}");
    let started: Value = serde_json::from_str(&started).unwrap();
    let run = started["run"].as_str().unwrap().to_owned();
    let (_, ended) = served.ask("GET", &format!("{RUNS}/{run}/result?wait_ms=20000"), &[], None).await;
    assert!(ended.contains("\"sent\""), "{ended}");
    worker.stop(LONG).await;
    tokio::task::spawn_blocking(move || served.stop()).await.unwrap();
    is_one_trace(&collector, "shop", &run);
}

/// AB-20: the same of an engine that executes it itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_one_trace_from_an_engine() {
    let collector = Collector::listen().await;
    let traces = Otlp::open(&collector.url, "till").unwrap();
    let engine = Engine::open("memory:").tracer(traces).register(order()).start().await.unwrap();
    let run = engine.client().start("order", &1u32).trace(traceparent().parse().unwrap()).await.unwrap();
    run.result::<String>().await.unwrap();
    let id = run.id().to_string();
    engine.stop(LONG).await;
    drop(run);
    // What is left is sent when the last who has the engine lets go of it.
    tokio::task::spawn_blocking(move || drop(engine)).await.unwrap();
    is_one_trace(&collector, "till", &id);
}

/// The names of the metrics that are promised.
const PROMISED: &[&str] = &[
    "abide_runs_started_total",
    "abide_runs_completed_total",
    "abide_run_duration_seconds_bucket",
    "abide_step_attempts_total",
    "abide_schedule_to_start_seconds_bucket",
    "abide_queue_depth",
    "abide_queue_oldest_age_seconds",
    "abide_timers_overdue",
    "abide_leases_expired_total",
    "abide_fenced_writes_total",
    "abide_divergences_total",
    "abide_append_seconds_bucket",
    "abide_fsync_seconds_bucket",
    "abide_batch_rows_bucket",
    "abide_store_bytes",
    "abide_build_info",
];

/// Every series of an answer, with the labels it has.
fn series(answer: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in answer.lines().filter(|line| !line.starts_with('#')) {
        let (named, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = named.split_once('{').unwrap_or((named, ""));
        let labels = labels.split("\",").filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
        all.entry(name.to_owned()).or_default().extend(labels);
    }
    all
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The series that an expression of PromQL reads, with the labels that it chooses by.
fn read_by(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for (at, _) in expression.match_indices("abide_") {
        if expression[..at].ends_with(is_of_a_name) {
            continue;
        }
        let (name, rest) = expression[at..]
            .split_at(expression[at..].find(|letter| !is_of_a_name(letter)).unwrap_or(expression.len() - at));
        let chosen = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(chosen, _)| chosen);
        let labels = chosen.split(',').filter_map(|pair| Some(pair.split_once(['=', '!'])?.0.trim().to_owned()));
        all.push((name.to_owned(), labels.collect()));
    }
    all
}

/// The labels that an expression groups by.
fn grouped_by(expression: &str) -> Vec<String> {
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    groups.flat_map(|group| group.split(',').map(|label| label.trim().to_owned())).collect()
}

fn document(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../docs/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The expressions of the dashboard and of the alerts.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&document("telemetry/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row");
    let mut all = Vec::new();
    for panel in panels {
        assert!(panel["title"].is_string() && panel["description"].is_string(), "{panel}");
        let asked: Vec<&str> =
            panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap()).collect();
        assert!(!asked.is_empty(), "{panel}");
        all.extend(asked.into_iter().map(str::to_owned));
    }
    let alerts = YamlLoader::load_from_str(&document("telemetry/alerts.yaml")).unwrap();
    let rules = alerts[0]["groups"][0]["rules"].as_vec().unwrap();
    assert!(rules.len() > 5);
    for rule in rules {
        assert!(rule["alert"].as_str().is_some_and(|name| name.starts_with("Abide")), "{rule:?}");
        assert!(!rule["annotations"]["summary"].is_badvalue() && rule["annotations"]["what_to_do"] != Yaml::BadValue);
        assert!(["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()));
        all.push(rule["expr"].as_str().unwrap().to_owned());
    }
    all
}

/// AB-20: what is promised to be counted is, under its name, and the dashboard and the alerts ask for nothing else. No run
/// and no key is a label.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_has_the_names_that_dashboards_and_alerts_use() {
    let shop = Shop::new();
    let served = Served::begin(&shop, &["--no-auth", "--listen", "127.0.0.1:0"]);
    let worker = Engine::open(&served.url).register(order()).start().await.unwrap();
    let start = async |more: Value| {
        let mut asked = json!({"workflow": "order", "input": 1});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, started) = served.ask("POST", RUNS, &[], Some(asked)).await;
        assert_eq!(status, 201, "{started}");
        serde_json::from_str::<Value>(&started).unwrap()["run"].as_str().unwrap().to_owned()
    };
    let run = start(json!({"key": "canary-key"})).await;
    let (_, ended) = served.ask("GET", &format!("{RUNS}/{run}/result?wait_ms=20000"), &[], None).await;
    assert!(ended.contains("\"sent\""), "{ended}");
    // Nobody serves this queue: it has a depth, once the index has it.
    start(json!({"queue": "idle"})).await;
    let counted = async {
        loop {
            let (_, answer) = served.ask("GET", "/metrics", &[], None).await;
            if answer.contains("abide_queue_depth{queue=\"idle\"} 1") {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(LONG, counted).await.unwrap();
    worker.stop(LONG).await;
    assert!(!answer.contains("canary-key") && !answer.contains(&run), "{answer}");
    // Without the infinite bound nothing can be said of quantiles.
    let histograms = answer.lines().filter(|line| line.ends_with(" histogram")).count();
    assert!(histograms > 4 && answer.matches("le=\"+Inf\"").count() >= histograms, "{answer}");
    let known = series(&answer);
    for name in PROMISED {
        assert!(known.contains_key(*name), "{name}: {answer}");
    }
    // These come with the place where they were collected.
    let placed = ["job", "instance"];
    for expression in expressions() {
        let read = read_by(&expression);
        assert!(!read.is_empty(), "{expression}");
        let grouped = grouped_by(&expression);
        for (name, chosen) in read {
            let labels = known.get(&name).unwrap_or_else(|| panic!("{name} in {expression}"));
            for label in chosen.iter().chain(&grouped) {
                assert!(labels.contains(label) || placed.contains(&label.as_str()), "{label} in {expression}");
            }
        }
    }
    for name in PROMISED {
        let named = name.trim_end_matches("_bucket");
        assert!(document("telemetry.md").contains(named), "{named} is not in docs/telemetry.md");
    }
}

/// The lines of a part of a log in JSON.
fn lines(log: &str, target: &str) -> Vec<Value> {
    let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|line| line["target"] == target).collect()
}

/// A run that failed once, and a log with everything that was asked meanwhile: which run, and the log.
async fn logged() -> (String, String) {
    let shop = Shop::new();
    let token = shop.abide(&["token", "create", "--name", "ada", "--scope", "admin", "--in", "*"]).ok().out;
    let levels = "off,abide::run=info,abide::access=info";
    let served = Served::begin(&shop, &["--listen", "127.0.0.1:0", "--log", "json", "--log-level", levels]);
    let worker = Engine::open(&served.url).token(token.trim()).register(order()).start().await.unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let known = [("authorization", bearer.as_str())];
    let start = json!({"workflow": "order", "input": 1});
    let (_, started) = served.ask("POST", RUNS, &known, Some(start)).await;
    let run = serde_json::from_str::<Value>(&started).unwrap()["run"].as_str().unwrap().to_owned();
    let (_, ended) = served.ask("GET", &format!("{RUNS}/{run}/result?wait_ms=20000"), &known, None).await;
    assert!(ended.contains("\"sent\""), "{ended}");
    for path in ["/healthz", "/readyz", "/v1/nothing?secret=canary", "/v1/openapi.json"] {
        served.ask("GET", path, &[], None).await;
    }
    served.ask("PATCH", RUNS, &known, None).await;
    served.ask("GET", &format!("{RUNS}?key=canary"), &[("authorization", "Bearer abide_canary")], None).await;
    let wrong = json!({"name": "ada", "password": "canary-canary"});
    served.ask("POST", "/v1/session", &[], Some(wrong)).await;
    worker.stop(LONG).await;
    (run, tokio::task::spawn_blocking(move || served.stop()).await.unwrap())
}

/// Also of attempts of a worker outside, one of which failed.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_run_is_a_line_with_its_step_and_attempt() {
    let (run, log) = logged().await;
    let mut changes: Vec<(u64, String, Value, Value)> = Vec::new();
    for line in lines(&log, "abide::run") {
        assert_eq!((&line["run"], &line["workflow"]), (&json!(run), &json!("order")), "{line}");
        let first = line["message"].as_str().unwrap().split(',').next().unwrap().to_owned();
        changes.push((line["rev"].as_u64().unwrap(), first, line["step"].clone(), line["attempt"].clone()));
    }
    let revisions: Vec<u64> = changes.iter().map(|change| change.0).collect();
    assert_eq!(revisions, (1..=changes.len() as u64).collect::<Vec<_>>(), "one line for each: {log}");
    let ends: Vec<(&str, &str, u64)> = changes
        .iter()
        .filter(|(_, first, ..)| first == "failed" || first == "completed")
        .map(|(_, first, step, attempt)| (first.as_str(), step.as_str().unwrap(), attempt.as_u64().unwrap()))
        .collect();
    assert_eq!(ends, [("failed", "charge", 0), ("completed", "charge", 1), ("completed", "ship", 0)], "{log}");
}

/// Paths, queries and what is in headers and bodies are in none; and who asks whether it is well has none.
#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_a_line_that_says_who_asked_for_which_route() {
    let (run, log) = logged().await;
    assert!(!log.contains("canary") && !log.contains("healthz") && !log.contains("readyz"), "{log}");
    let asked = lines(&log, "abide::access");
    assert!(asked.iter().all(|line| !line.to_string().contains(&run)), "{log}");
    let unknown = json!("(unknown)");
    for (method, route, status, principal, code) in [
        ("POST", "/v1/namespaces/{namespace}/runs", 201, json!("ada"), Value::Null),
        ("GET", "/v1/namespaces/{namespace}/runs/{run}/result", 200, json!("ada"), Value::Null),
        ("GET", "/v1/namespaces/{namespace}/runs", 401, Value::Null, json!("unauthenticated")),
        ("GET", "/v1/openapi.json", 200, Value::Null, Value::Null),
        ("GET", "", 404, Value::Null, json!("no_route")),
        ("PATCH", "", 405, Value::Null, json!("method_not_allowed")),
        ("POST", "/v1/session", 401, unknown, json!("login_failed")),
    ] {
        let of = |line: &&Value| line["method"] == method && line["route"] == route;
        let found: Vec<&Value> = asked.iter().filter(of).collect();
        let [line] = found[..] else { panic!("{method} {route}: {found:?}") };
        assert_eq!((&line["status"], &line["principal"], &line["code"]), (&json!(status), &principal, &code), "{line}");
        assert!(line["ms"].as_f64().is_some_and(|ms| ms >= 0.0) && line["level"] == "INFO", "{line}");
        assert_eq!(line["token"].is_string(), principal == "ada", "{line}");
    }
}

/// AB-20: whatever a server logs, at its most talkative and in either version of HTTP, it tells no secret and no payload.
#[tokio::test(flavor = "multi_thread")]
async fn no_line_of_the_log_tells_a_secret_or_a_payload() {
    let shop = Shop::new();
    let made = shop.abide(&["token", "create", "--name", "ada", "--scope", "admin", "--in", "*"]).ok();
    let token = made.out.trim().to_owned();
    let forged = format!("{}{}", &token[..token.len() - 8], "deadbeef");
    let served = Served::begin(&shop, &["--listen", "127.0.0.1:0", "--log", "json", "--log-level", "trace"]);
    let tattle = Machine::<Value>::new("tattle").step("tell", async |ctx: Ctx, state: Value| {
        match ctx.signal::<Value>("go")? {
            Some(_) if ctx.attempt() == 0 => Err(StepError::new("canary-message").code("spoken")),
            Some(said) => Ok(done(&said)),
            None => Ok(abide::await_signal("go", state)),
        }
    });
    let worker = Engine::open(&served.url).token(&token).register(tattle.retry(RetryPolicy::exponential(1)));
    let worker = worker.start().await.unwrap();
    let bearer = format!("Bearer {token}");
    let ask = async |method: &str, path: &str, body: Option<Value>| {
        let (status, said) = served.ask(method, path, &[("authorization", &bearer)], body).await;
        assert!(status < 300, "{said}");
        said
    };
    let started = ask("POST", RUNS, Some(json!({"workflow": "tattle", "input": "canary-input"}))).await;
    let run = serde_json::from_str::<Value>(&started).unwrap()["run"].as_str().unwrap().to_owned();
    let signal = json!({"name": "go", "payload": "canary-payload"});
    ask("POST", &format!("{RUNS}/{run}/signals"), Some(signal)).await;
    let ended = ask("GET", &format!("{RUNS}/{run}/result?wait_ms=20000"), None).await;
    assert!(ended.contains("canary-payload"), "{ended}");
    let refused = served.ask("GET", RUNS, &[("authorization", &format!("Bearer {forged}"))], None).await;
    assert_eq!(refused.0, 401);
    let malformed = served.ask("POST", RUNS, &[("authorization", &bearer)], Some(json!({"canary-field": 1}))).await;
    assert_eq!(malformed.0, 400);
    // The second version of HTTP has another library below.
    let two = served::builder().http2_prior_knowledge().build().unwrap();
    let heard = two.get(format!("{}{RUNS}?key=canary-query", served.url)).header("authorization", &bearer);
    assert_eq!(heard.send().await.unwrap().status(), 200);
    worker.stop(LONG).await;
    let said = tokio::task::spawn_blocking(move || served.stop()).await.unwrap();
    assert!(said.contains("abide::run") && said.contains(&run), "it logs: {said}");
    let secrets = [&token[23..], &forged[23..], "canary-input", "canary-payload", "canary-message", "canary-field"];
    for line in said.lines() {
        assert!(secrets.iter().all(|secret| !line.contains(secret)), "{line}");
    }
}
