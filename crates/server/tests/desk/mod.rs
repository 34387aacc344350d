//! A server over a real socket, and whoever asks it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::LazyLock;
use std::time::Duration;

use abide::{Engine, EngineBuilder, Failure, FnCtx, Function, Machine, await_signal, done};
use abide_protocol::{CreateToken, CreatedToken, Route, Scope, openapi, routes};
use abide_server::{Limits, Listening, Server, mint};
use reqwest::{Method, Response};
use serde_json::Value;

/// The largest body that the server of these tests takes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// An engine with its server.
pub struct Desk {
    pub engine: Engine,
    pub server: Listening,
    http: reqwest::Client,
}

/// What came back.
#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub kind: String,
    pub text: String,
}

impl Heard {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The answer of a request that was carried out.
    pub fn good(&self) -> Value {
        assert!(self.status < 300, "{self:?}");
        self.json()
    }

    /// The code of a problem, which says all that a problem says.
    pub fn problem(&self) -> String {
        assert_eq!(self.kind, "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        for field in ["type", "title", "detail", "what_to_do"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {problem}");
        }
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// Whoever asks over a socket, and believes these authorities only, given as PEM.
pub fn client(authorities: &[&str]) -> reqwest::Client {
    believing(authorities).build().unwrap()
}

pub fn believing(authorities: &[&str]) -> reqwest::ClientBuilder {
    // Another test may have done it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let trusted = authorities.iter().map(|pem| reqwest::Certificate::from_pem(pem.as_bytes()).unwrap());
    reqwest::Client::builder().no_proxy().tls_certs_only(trusted)
}

/// Workflows that do a little of everything.
pub fn workflows(builder: EngineBuilder) -> EngineBuilder {
    let greet = Machine::<String>::new("greet").step("say", async |_, name: String| Ok(done(&format!("hello {name}"))));
    let wait = Machine::<Value>::new("wait").step("park", async |ctx: abide::Ctx, state: Value| {
        match ctx.signal::<Value>("go")? {
            Some(said) => Ok(done(&said)),
            None => Ok(await_signal("go", state)),
        }
    });
    let asked = Function::new("asked", async |ctx: FnCtx, _: Value| {
        let asked = ctx.update::<u32>("double").await?;
        let twice = asked.input() * 2;
        asked.answer(&twice)?;
        Ok::<_, Failure>(twice)
    });
    let review = Function::new("review", async |ctx: FnCtx, amount: u32| {
        let decision = ctx.approval("refund").payload(&amount).roles(&["finance"]).await?;
        Ok::<_, Failure>(decision.is_approved())
    });
    let chore = Function::new("chore", async |ctx: FnCtx, what: String| {
        let result: String = ctx.task("do it", &what).await?;
        Ok::<_, Failure>(result)
    });
    builder.register(greet).register(wait).register(asked).register(review).register(chore)
}

impl Desk {
    /// A server where everybody needs a token.
    pub async fn open(url: &str) -> Self {
        let engine = workflows(Engine::open(url)).start().await.unwrap();
        Self::over(engine, |server| server).await
    }

    pub async fn over(engine: Engine, how: impl FnOnce(Server) -> Server) -> Self {
        Self::within(engine, Limits::default(), how).await
    }

    pub async fn within(engine: Engine, mut limits: Limits, how: impl FnOnce(Server) -> Server) -> Self {
        limits.body_bytes_max = BODY_BYTES_MAX;
        let server = how(Server::new(engine.runtime().unwrap()).limits(limits));
        let server = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        Self { engine, server, http: client(&[]) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// A token, kept by the store.
    pub fn token(&self, scopes: &[Scope], namespaces: &[&str]) -> String {
        self.make(scopes, namespaces, None).secret.to_string()
    }

    pub fn make(&self, scopes: &[Scope], namespaces: &[&str], expires_in_ms: Option<u64>) -> CreatedToken {
        let engine = self.engine.runtime().unwrap();
        let asked = CreateToken {
            name: "ada".into(),
            scopes: scopes.to_vec(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            expires_in_ms,
        };
        let (stored, created) = mint(asked, engine.now()).unwrap();
        engine.write_token(&stored).unwrap();
        created
    }

    /// Somebody who may do everything in these namespaces.
    pub fn admin(&self, namespaces: &[&str]) -> Caller<'_> {
        self.with(&self.token(&[Scope::Admin], namespaces))
    }

    pub fn with(&self, token: &str) -> Caller<'_> {
        Caller { desk: self, token: Some(token.to_owned()) }
    }

    pub fn nobody(&self) -> Caller<'_> {
        Caller { desk: self, token: None }
    }

    pub async fn close(self) {
        self.server.stop(Duration::from_secs(5)).await;
        self.engine.stop(Duration::from_secs(5)).await;
    }
}

/// Whoever asks.
#[derive(Clone)]
pub struct Caller<'a> {
    desk: &'a Desk,
    token: Option<String>,
}

impl Caller<'_> {
    pub async fn get(&self, path: &str) -> Heard {
        self.send(Method::GET, path, &[], None).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Heard {
        self.send(Method::PUT, path, &[("content-type", "application/json")], Some(body.to_string())).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Heard {
        self.send(Method::POST, path, &[("content-type", "application/json")], Some(body.to_string())).await
    }

    /// The same, under an idempotency key.
    pub async fn keyed(&self, path: &str, key: &str, body: Value) -> Heard {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        self.send(Method::POST, path, &headers, Some(body.to_string())).await
    }

    /// Follows what is told at a path, behind an event if one is named.
    pub async fn follow(&self, path: &str, after: Option<&str>) -> Events {
        let mut request = self.desk.http.get(self.desk.url(path)).bearer_auth(self.token.as_deref().unwrap());
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { response, text: String::new() }
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Option<String>) -> Heard {
        let mut request = self.desk.http.request(method.clone(), self.desk.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let heard = heard(request.send().await.unwrap()).await;
        documented(&method, path, &heard);
        heard
    }
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi::document);

/// Whether the document knows the answer: its status, its media type, its code, and what it must say.
fn documented(method: &Method, path: &str, heard: &Heard) {
    let path = path.split('?').next().unwrap();
    let Some(route) = routes().into_iter().find(|route| route.method.name() == method.as_str() && fits(route, path))
    else {
        assert!(["no_route", "method_not_allowed"].contains(&&*heard.problem()), "{path} {heard:?}");
        return;
    };
    let document = &*DOCUMENT;
    let answers = &document["paths"][&route.path][method.as_str().to_lowercase()]["responses"];
    let answer = &answers[heard.status.to_string()];
    assert!(answer.is_object(), "{path} {heard:?}");
    let Some(content) = answer["content"].as_object() else {
        assert_eq!(heard.text, "", "{path}");
        return;
    };
    let kind = heard.kind.split(';').next().unwrap();
    let shape = content.get(kind).unwrap_or_else(|| panic!("{path} {heard:?}"));
    if let Some(codes) = answer["x-abide-codes"].as_array() {
        assert!(codes.contains(&heard.json()["code"]), "{path} {heard:?}");
    }
    let Some(named) = shape["schema"]["$ref"].as_str() else { return };
    let shape = document.pointer(named.trim_start_matches('#')).unwrap();
    for field in shape["required"].as_array().unwrap() {
        assert!(heard.json().get(field.as_str().unwrap()).is_some(), "{path} {field} {heard:?}");
    }
}

fn fits(route: &Route, path: &str) -> bool {
    let (known, given): (Vec<_>, Vec<_>) = (route.path.split('/').collect(), path.split('/').collect());
    let same = |(known, given): (&&str, &&str)| known.starts_with('{') && !given.is_empty() || known == given;
    known.len() == given.len() && known.iter().zip(&given).all(same)
}

async fn heard(response: Response) -> Heard {
    let kind = response.headers().get("content-type").map_or("", |kind| kind.to_str().unwrap()).to_owned();
    Heard { status: response.status().as_u16(), kind, text: response.text().await.unwrap() }
}

/// A stream of events.
pub struct Events {
    response: Response,
    text: String,
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub id: Option<String>,
    pub name: String,
    pub data: Value,
}

impl Events {
    /// The next event; none at the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = read(event);
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
                continue;
            }
            let piece = tokio::time::timeout(Duration::from_secs(20), self.response.chunk()).await.unwrap().unwrap();
            let Some(piece) = piece else {
                assert_eq!(self.text, "", "the stream ends in the middle of an event");
                return None;
            };
            self.text += std::str::from_utf8(&piece).unwrap();
        }
    }

    /// All events up to the end.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

/// An event as it was sent, unless it only says that the stream is alive.
fn read(text: &str) -> Option<Event> {
    let field = |name: &str| -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect()
    };
    let name = field("event").first()?.to_string();
    let data = serde_json::from_str(&field("data").join("\n")).unwrap();
    Some(Event { id: field("id").first().map(ToString::to_string), name, data })
}
