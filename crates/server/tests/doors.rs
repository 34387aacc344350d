//! Who gets in: every route of the table against every way to be wrong, over a real socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use abide::Engine;
use abide_protocol::{Reach, Route, Scope, routes};
use abide_server::{Limits, ServeError, Server};
use desk::{BODY_BYTES_MAX, Caller, Desk, Heard};
use serde_json::{Value, json};

/// A run, a boundary, a letter and a token that look right.
fn filled(route: &Route, namespace: &str) -> String {
    let run = "run_0193f2c4a1b2000000000000000000aa";
    route
        .path
        .replace("{namespace}", namespace)
        .replace("{run}", run)
        .replace("{boundary}", "manual_0193f2c4a1b2000000000000000000aa.1")
        .replace("{letter}", "letter_1")
        .replace("{queue}", "mail")
        .replace("{process}", "1a2b-0193f2c4a1b2c3d4")
        .replace("{token}", "0193f2c4a1b20000")
        .replace("{user}", "ada")
}

async fn knock(caller: &Caller<'_>, route: &Route, path: &str, body: Option<String>) -> Heard {
    // A stream would last.
    let path =
        &if route.events.is_empty() || path.contains('?') { path.to_owned() } else { format!("{path}?for_ms=0") };
    let method = route.method.name().parse().unwrap();
    caller.send(method, path, &[("content-type", "application/json")], body).await
}

fn guarded() -> impl Iterator<Item = Route> {
    routes().into_iter().filter(|route| route.reach != Reach::Open)
}

/// AB-16: without a token, or with one that is wrong, ended or revoked, nobody gets anywhere and learns nothing.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_in_without_a_token() {
    let desk = Desk::open("memory:").await;
    let ended = desk.make(&[Scope::Admin], &["*"], Some(1)).secret.to_string();
    let good = desk.make(&[Scope::Admin], &["*"], None);
    let revoked = desk.make(&[Scope::Admin], &["*"], None);
    let admin = desk.with(&good.secret);
    assert_eq!(desk.with(&revoked.secret).get("/v1/tokens").await.status, 200);
    let gone = admin.send(reqwest::Method::DELETE, &format!("/v1/tokens/{}", revoked.token.token), &[], None).await;
    assert_eq!(gone.status, 204);
    let forged = format!("{}{}", &good.secret[..good.secret.len() - 4], "0000");
    let wrong = [ended.as_str(), &revoked.secret, &forged, "abide_", "secret"];
    for route in guarded() {
        let path = filled(&route, "shop");
        let heard = knock(&desk.nobody(), &route, &path, None).await;
        assert_eq!((heard.status, heard.problem()), (401, "unauthenticated".into()), "{path}");
        for token in wrong {
            let heard = knock(&desk.with(token), &route, &path, None).await;
            assert_eq!((heard.status, heard.problem()), (401, "unauthenticated".into()), "{path} {token}");
            assert!(!heard.text.contains("shop"), "{heard:?}");
        }
    }
    desk.close().await;
}

/// AB-16: a token that allows everything but what a route needs is refused, and says what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_the_scope_is_refused() {
    let desk = Desk::open("memory:").await;
    let all = [Scope::Read, Scope::Start, Scope::Signal, Scope::Operate, Scope::Worker("default".into())];
    for route in guarded() {
        // What is one's own needs no scope.
        let Some(needed) = route.scope.clone() else { continue };
        let others: Vec<Scope> = all.iter().filter(|scope| !scope.covers(&needed)).cloned().collect();
        let path = filled(&route, "shop");
        let heard = knock(&desk.with(&desk.token(&others, &["*"])), &route, &path, None).await;
        assert_eq!((heard.status, heard.problem()), (403, "forbidden".into()), "{path}");
        assert_eq!(heard.json()["expected"], needed.to_string(), "{path}");
        // With just that scope it is let in, whatever comes of it then.
        let heard = knock(&desk.with(&desk.token(&[needed], &["*"])), &route, &path, None).await;
        assert!(![401, 403].contains(&heard.status) && heard.status < 500, "{path} {heard:?}");
    }
    desk.close().await;
}

/// AB-16: what is in another namespace is not there: the same words for what exists and what does not.
#[tokio::test(flavor = "multi_thread")]
async fn another_namespace_is_not_there() {
    let desk = Desk::open("memory:").await;
    let (shop, bank) = (desk.admin(&["shop"]), desk.admin(&["bank"]));
    let started = shop.post("/v1/namespaces/shop/runs", json!({"workflow": "wait", "input": "canary"})).await.good();
    let run = started["run"].as_str().unwrap();
    for route in guarded() {
        let body = route.body.map(|_| sample(&route));
        match route.reach {
            Reach::Namespace => {
                let path = filled(&route, "shop");
                let heard = knock(&bank, &route, &path, body.clone()).await;
                assert_eq!((heard.status, heard.problem()), (404, "not_found".into()), "{path}");
                // Of one's own namespace, with the id of a run of another.
                let path = filled(&route, "bank").replace("run_0193f2c4a1b2000000000000000000aa", run);
                let path = path.replace("manual_0193f2c4a1b2000000000000000000aa", &run.replace("run_", "manual_"));
                let heard = knock(&bank, &route, &path, body).await;
                if path.contains(&run[4..]) {
                    assert_eq!((heard.status, heard.problem()), (404, "not_found".into()), "{path}");
                    let missing = run.replace(&run[30..], "aaaaaa");
                    let elsewhere = path.replace(&run[4..], &missing[4..]);
                    let none = knock(&bank, &route, &elsewhere, route.body.map(|_| sample(&route))).await;
                    assert_eq!(none.text.replace(&missing[4..], &run[4..]), heard.text, "{path}");
                }
                assert!(!heard.text.contains("canary"), "{path} {heard:?}");
            }
            Reach::Everywhere => {
                let heard = knock(&bank, &route, &filled(&route, "bank"), body).await;
                assert_eq!((heard.status, heard.problem()), (403, "forbidden".into()), "{}", route.path);
            }
            Reach::Anywhere | Reach::Own | Reach::Open => {}
        }
    }
    let untouched = shop.get(&format!("/v1/namespaces/shop/runs/{run}")).await.good();
    assert_eq!(untouched["anomalies"], 0);
    desk.close().await;
}

/// A body that each route that takes one could take.
fn sample(route: &Route) -> String {
    let known = [
        ("/batch", json!({"runs": []})),
        ("/runs", json!({"workflow": "wait"})),
        ("/signals", json!({"name": "go"})),
        ("/updates", json!({"name": "double", "wait_ms": 1})),
        ("/effects/resolve", json!({"effect": "e", "how": "retry"})),
        ("/users", json!({"name": "eve", "role": "reader", "namespaces": ["*"], "password": "long enough"})),
        ("/password", json!({"password": "long enough"})),
        ("/tokens", json!({"name": "eve", "scopes": ["admin"], "namespaces": ["*"]})),
    ];
    let found = known.iter().find(|(end, _)| route.path.ends_with(end));
    found.map_or_else(|| json!({}), |(_, body)| body.clone()).to_string()
}

/// Whatever is wrong with a request has its own answer, on every route.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_or_cannot_be_read_is_refused() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    for route in guarded() {
        let path = filled(&route, "shop");
        let method: reqwest::Method = route.method.name().parse().unwrap();
        let unknown = knock(&admin, &route, &format!("{path}?colour=red"), None).await;
        assert_eq!(unknown.problem(), "bad_query", "{path}");
        let large = format!("{{\"x\":\"{}\"}}", "y".repeat(BODY_BYTES_MAX));
        let heard = knock(&admin, &route, &path, Some(large)).await;
        assert_eq!((heard.status, heard.problem()), (413, "too_large".into()), "{path}");
        if let Some(parameter) = route.parameters().find(|name| ["run", "boundary", "letter"].contains(name)) {
            let path = route.path.replace("{namespace}", "shop").replace(&format!("{{{parameter}}}"), "nonsense");
            let heard = knock(&admin, &route, &path, route.body.map(|_| sample(&route))).await;
            assert_eq!((heard.status, heard.problem()), (400, "bad_id".into()), "{path}");
        }
        if route.body.is_none() {
            assert_eq!(knock(&admin, &route, &path, Some("{}".into())).await.problem(), "malformed", "{path}");
            continue;
        }
        for wrong in ["{", "[1", "nonsense", "[]", "{\"colour\":\"red\"}", "\u{0}", "{} {}"] {
            let heard = knock(&admin, &route, &path, Some(wrong.into())).await;
            assert_eq!((heard.status, heard.problem()), (400, "malformed".into()), "{path} {wrong}");
        }
        let deep = format!("{{\"x\":{}{}}}", "[".repeat(100), "]".repeat(100));
        assert_eq!(knock(&admin, &route, &path, Some(deep)).await.problem(), "too_deep", "{path}");
        if !route.body_optional {
            assert_eq!(knock(&admin, &route, &path, None).await.problem(), "malformed", "{path}");
        }
        let plain = admin.send(method, &path, &[("content-type", "text/plain")], Some(sample(&route))).await;
        assert_eq!((plain.status, plain.problem()), (415, "unsupported_media_type".into()), "{path}");
    }
    desk.close().await;
}

/// Every answer to a wrong request is one that the document has.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_route_has_an_answer_of_its_own() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    for path in ["/", "/v1", "/v2/namespaces/shop/runs", "/v1/namespaces/shop", "/v1/namespaces//runs/x/y/z"] {
        let heard = admin.get(path).await;
        assert_eq!((heard.status, heard.problem()), (404, "no_route".into()), "{path}");
    }
    for route in routes() {
        let heard = admin.send(reqwest::Method::PATCH, &filled(&route, "shop"), &[], None).await;
        assert_eq!((heard.status, heard.problem()), (405, "method_not_allowed".into()), "{}", route.path);
        assert!(heard.json()["expected"].as_str().unwrap().contains(route.method.name()));
    }
    desk.close().await;
}

/// AB-16: tokens are made and listed without their secrets by whoever may, and never by others.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_made_listed_and_revoked() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    let asked = json!({"name": "bob", "scopes": ["read", "worker:mail"], "namespaces": ["shop"]});
    let made = admin.post("/v1/tokens", asked).await;
    assert_eq!(made.status, 201);
    let made = made.json();
    let bob = desk.with(made["secret"].as_str().unwrap());
    assert_eq!(bob.get("/v1/namespaces/shop/runs").await.status, 200);
    assert_eq!(bob.get("/v1/tokens").await.problem(), "forbidden");
    let listed = admin.get("/v1/tokens").await;
    assert!(!listed.text.contains("secret") && !listed.text.contains("hash"), "{listed:?}");
    assert_eq!(listed.json()["tokens"].as_array().unwrap().len(), 2);
    let path = format!("/v1/tokens/{}", made["token"].as_str().unwrap());
    assert_eq!(admin.send(reqwest::Method::DELETE, &path, &[], None).await.status, 204);
    assert_eq!(admin.send(reqwest::Method::DELETE, &path, &[], None).await.problem(), "not_found");
    assert_eq!(bob.get("/v1/namespaces/shop/runs").await.problem(), "unauthenticated");
    let nonsense = json!({"name": "", "scopes": ["read"], "namespaces": ["shop"]});
    assert_eq!(admin.post("/v1/tokens", nonsense).await.problem(), "invalid");
    desk.close().await;
}

/// Without login a server answers this machine only, and only to its own name.
#[tokio::test(flavor = "multi_thread")]
async fn without_login_only_this_machine_is_answered() {
    let engine = Engine::open("memory:").start().await.unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let refused = Server::new(engine.runtime().unwrap()).without_login().listen(address.parse().unwrap()).await;
        assert!(matches!(refused.map(drop), Err(ServeError::OpenToAll { .. })), "{address}");
    }
    let desk = Desk::over(engine, Server::without_login).await;
    let nobody = desk.nobody();
    assert_eq!(nobody.get("/v1/namespaces/shop/runs").await.status, 200);
    for host in ["evil.example", "evil.example:7411", "127.0.0.1.evil.example", ""] {
        let heard = nobody.send(reqwest::Method::GET, "/v1/namespaces/shop/runs", &[("host", host)], None).await;
        assert_eq!((heard.status, heard.problem()), (421, "bad_host".into()), "{host}");
    }
    let local = nobody.send(reqwest::Method::GET, "/v1/tokens", &[("host", "localhost:1")], None).await;
    assert_eq!(local.status, 200);
    desk.close().await;
}

/// Names that no run could have are refused everywhere, before anything is written under them.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_none_are_refused() {
    let desk = Desk::open("memory:").await;
    let admin = desk.admin(&["*"]);
    for namespace in ["*", "a%0Ab", "%7F"] {
        let started = admin.post(&format!("/v1/namespaces/{namespace}/runs"), json!({"workflow": "wait"})).await;
        assert_eq!((started.status, started.problem()), (422, "invalid".into()), "{namespace}");
        let listed = admin.get(&format!("/v1/namespaces/{namespace}/runs")).await;
        assert_eq!(listed.problem(), "invalid", "{namespace}");
        let paused = admin
            .send(reqwest::Method::POST, &format!("/v1/namespaces/{namespace}/queues/mail/pause"), &[], None)
            .await;
        assert_eq!(paused.problem(), "invalid", "{namespace}");
    }
    for queue in ["a%0Ab", "%00"] {
        let path = format!("/v1/namespaces/shop/queues/{queue}");
        assert_eq!(admin.send(reqwest::Method::POST, &format!("{path}/pause"), &[], None).await.problem(), "invalid");
        assert_eq!(admin.put(&format!("{path}/limits"), json!({"at_most": 1})).await.problem(), "invalid");
    }
    let token = desk.token(&[Scope::Admin], &["*"]);
    let nowhere = desk::client(&[]).get(desk.url("/v1/namespaces//runs")).bearer_auth(token).send().await.unwrap();
    assert!([404, 422].contains(&nowhere.status().as_u16()), "{nowhere:?}");
    assert_eq!(admin.get("/v1/audit?before=zzz").await.problem(), "bad_query");
    let late = admin.get("/v1/namespaces/shop/runs/run_0193f2c4a1b2000000000000000000aa/result?wait_ms=60001").await;
    assert_eq!((late.problem(), &late.json()["expected"]), ("bad_query".into(), &json!("a number from 0 to 60000")));
    desk.close().await;
}

/// AB-16: without login a page of somebody else must not change anything by way of a browser at this machine.
#[tokio::test(flavor = "multi_thread")]
async fn another_site_changes_nothing_without_login() {
    let engine = desk::workflows(Engine::open("memory:")).start().await.unwrap();
    let desk = Desk::over(engine, Server::without_login).await;
    let (nobody, runs) = (desk.nobody(), "/v1/namespaces/shop/runs");
    let here = desk.server.address().to_string();
    let own = format!("http://{here}");
    let ask = async |name: &str, value: &str| {
        let headers = [("content-type", "application/json"), (name, value)];
        nobody.send(reqwest::Method::POST, runs, &headers, Some(json!({"workflow": "wait"}).to_string())).await
    };
    let foreign = [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
        ("origin", "http://127.0.0.1:1"),
        ("origin", "null"),
    ];
    for (name, value) in foreign {
        let heard = ask(name, value).await;
        assert_eq!((heard.status, heard.problem()), (403, "cross_site".into()), "{name}: {value}");
    }
    assert_eq!(nobody.get(runs).await.good()["runs"], json!([]));
    for (name, value) in [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none"), ("origin", &own)] {
        assert_eq!(ask(name, value).await.status, 201, "{name}: {value}");
    }
    let led = nobody.send(reqwest::Method::GET, runs, &[("sec-fetch-site", "cross-site")], None).await;
    assert_eq!(led.status, 200, "what only looks may come from anywhere");
    desk.close().await;
}

/// Whoever says nothing, or never comes to the end of it, is not waited for, in whichever version of HTTP; whoever
/// waits for an answer is.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_nothing_is_not_waited_for() {
    let engine = desk::workflows(Engine::open("memory:")).start().await.unwrap();
    let mut limits = Limits::default();
    limits.head_max = Duration::from_millis(200);
    let desk = Desk::within(engine, limits, |server| server).await;
    let settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    // A head of one field that goes on in a frame which never comes.
    let unended = format!("{settings}\0\0\u{1}\u{1}\0\0\0\0\u{1}\u{2}");
    let beginnings = ["", "PRI * HT", "GET / HTTP/1.1\r\nhost: ", settings, unended.as_str()];
    for beginning in beginnings {
        let mut stream = TcpStream::connect(desk.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        // It ends, or is cut off; the time of the read is not up.
        let ended = stream.read_to_end(&mut Vec::new());
        let cut = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(ended.as_ref().is_ok() || ended.as_ref().is_err_and(cut), "{beginning:?} {ended:?}");
    }
    let ada = desk.admin(&["shop"]);
    let started = ada.post("/v1/namespaces/shop/runs", json!({"workflow": "wait"})).await.good();
    let path = format!("/v1/namespaces/shop/runs/{}", started["run"].as_str().unwrap());
    assert_eq!(ada.get(&format!("{path}/result?wait_ms=1000")).await.good()["ended"], false);
    assert_eq!(ada.get(&format!("{path}/events?for_ms=1000")).await.status, 200);
    desk.close().await;
}

/// A body that is announced as too large is refused before it comes, however large: the server once waited for it, with
/// as much memory set aside as a body may have.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_announced_as_too_large_is_refused_at_once() {
    let desk = Desk::open("memory:").await;
    let secret = desk.token(&[Scope::Admin], &["*"]);
    for announced in ["99999999999".to_owned(), (BODY_BYTES_MAX + 1).to_string()] {
        let mut stream = TcpStream::connect(desk.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let head = format!(
            "POST /v1/namespaces/shop/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {secret}\r\n\
             content-type: application/json\r\ncontent-length: {announced}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413", "{announced}");
    }
    desk.close().await;
}

/// A server that stops answers what was asked, and does not wait for what was asked in half.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_head_does_not_hold_up_the_end() {
    for beginning in ["", "PRI * HT", "GET / HTTP/1.1\r\nhost: "] {
        let desk = Desk::open("memory:").await;
        let mut stream = TcpStream::connect(desk.server.address()).unwrap();
        stream.write_all(beginning.as_bytes()).unwrap();
        // By then the server has accepted it, as it does one after the other.
        assert_eq!(desk.nobody().get("/healthz").await.status, 200);
        let Desk { engine, server, .. } = desk;
        let stopped = tokio::time::timeout(Duration::from_secs(10), server.stop(Duration::from_secs(60)));
        assert!(stopped.await.is_ok(), "{beginning:?}");
        engine.stop(Duration::from_secs(5)).await;
    }
}

/// What HTTP/1 refuses below the routes is a problem too: it was once a bare line without a body.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_a_problem() {
    let desk = Desk::open("memory:").await;
    let long = "x".repeat(70_000);
    let many = "a: b\r\n".repeat(101);
    let cases = [
        ("hello\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET /healthz HTTP/9.9\r\nhost: a\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET /healthz HTTP/1.1\r\nho st: a\r\n\r\n".to_owned(), 400, "bad_request"),
        (format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414, "uri_too_long"),
        (format!("GET /healthz HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431, "headers_too_large"),
        // What HTTP takes, and the server does not.
        (
            format!("GET /healthz?a={} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", &long[..40_000]),
            414,
            "uri_too_long",
        ),
        (
            format!("GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: {long}\r\n\r\n"),
            431,
            "headers_too_large",
        ),
    ];
    for (said, status, code) in cases {
        let mut stream = TcpStream::connect(desk.server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{error}: {code}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        let shown = &said[..40.min(said.len())];
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{shown}: {answer}");
        assert!(head.contains("content-type: application/problem+json"), "{shown}: {answer}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{shown}: {answer}");
        let problem: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{shown}");
    }
    // The second version of HTTP refuses neither by itself.
    let two = desk::believing(&[]).http2_prior_knowledge().build().unwrap();
    let heard = two.get(desk.url("/healthz")).header("x", &long).send().await.unwrap();
    assert_eq!(heard.status(), 431);
    assert!(heard.text().await.unwrap().contains("\"headers_too_large\""));
    desk.close().await;
}
