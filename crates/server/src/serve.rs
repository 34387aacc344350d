//! The way of every request: host, token, namespace, scope, query, key and body are looked at here, in this order, by
//! what the table of routes says. What arrives at a route has passed them all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use abide_kernel::TraceContext;
use abide_protocol::{
    BadKey, IdempotencyKey, Method, Operation, Problem, Query as Known, QueryKind, Reach, Route, routes,
};
use abide_runtime::Engine;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Response, StatusCode, Uri};
use axum::routing::{MethodFilter, MethodRouter};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use tokio::sync::{RwLock, Semaphore, watch};

use crate::Limits;
use crate::access::Access;
use crate::answer::{Answered, Refused, internal};
use crate::audit::{Actor, Auditor, Told};
use crate::auth::{Guard, Principal};
use crate::blocking::Blocking;
use crate::call::{Call, bad_query, check_name};
use crate::limits::{
    BODY_ARRIVES, BODY_RESERVED_MAX, DRAINED_BYTES_MAX, HEADERS_BYTES_MAX, KEY_AHEAD_MS_MAX, LOGIN_BYTES_MAX,
    URI_BYTES_MAX,
};
use crate::places::Places;
use crate::rate::Rates;
use crate::routes::perform;
use crate::session::{Transport, Tries};

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) limits: Limits,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) auditor: Auditor,
    pub(crate) rates: Rates,
    pub(crate) logins: Arc<Logins>,
    pub(crate) places: Arc<Places>,
    pub(crate) blocking: Arc<Blocking>,
    pub(crate) changing: Changing,
}

/// Held by whatever changes something until it is in the audit, so that a server that stops can wait for it.
pub(crate) type Changing = Arc<RwLock<()>>;

/// What logging in needs.
pub(crate) struct Logins {
    pub(crate) transport: Transport,
    pub(crate) tries: Tries,
    /// Those who log in, or wait until their passwords are looked at.
    pub(crate) places: Arc<Semaphore>,
    /// Passwords that may be looked at together.
    pub(crate) turns: Arc<Semaphore>,
    /// Held by whoever looks which users or tokens there are, and writes one because of it.
    pub(crate) accounts: parking_lot::Mutex<()>,
}

type Parameters = Result<Path<HashMap<String, String>>, PathRejection>;

/// Every route, and problems for all that is none.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let mut by_path: BTreeMap<String, (MethodRouter, Vec<&'static str>)> = BTreeMap::new();
    for route in routes() {
        let (filter, name) = match route.method {
            Method::Get => (MethodFilter::GET, "GET, HEAD"),
            Method::Post => (MethodFilter::POST, "POST"),
            Method::Put => (MethodFilter::PUT, "PUT"),
            Method::Delete => (MethodFilter::DELETE, "DELETE"),
        };
        let (path, shared) = (route.path.clone(), shared.clone());
        let route = Arc::new(route);
        let handler = move |path: Parameters, request: Request| answer(shared.clone(), route.clone(), path, request);
        let (methods, names) = by_path.remove(&path).unwrap_or_default();
        by_path.insert(path, (methods.on(filter, handler), [names, vec![name]].concat()));
    }
    let mut router = Router::new();
    for (path, (methods, names)) in by_path {
        let allowed = names.join(", ");
        let methods = methods.fallback(move |request: Request| {
            let allowed = allowed.clone();
            async move {
                let access = Access::stray(request.method());
                let detail = format!("{} knows no {}", request.uri().path(), request.method());
                let problem = Problem::new("method_not_allowed", detail).but(&*allowed, request.method().as_str());
                access.answered(Refused::from(problem).allowing(&allowed))
            }
        });
        router = router.route(&path, methods);
    }
    router.fallback(async |request: Request| {
        let access = Access::stray(request.method());
        let path: String = request.uri().path().chars().take(200).collect();
        access.answered(Refused::from(Problem::new("no_route", format!("there is no path {path:?}"))).response())
    })
}

/// Answers a request, whatever comes of it.
async fn answer(shared: Arc<Shared>, route: Arc<Route>, path: Parameters, request: Request) -> Response<Body> {
    let mut access = Access::begin(&route, request.method());
    let principal = match identify(&shared, &route, request.uri(), request.headers()).await {
        Ok(principal) => principal,
        Err(refused) => return access.answered(refused.response()),
    };
    access.known(principal.as_ref());
    access.answered(let_in(shared, route, principal, path, request).await)
}

/// Answers a request of somebody who may ask, and keeps who asked for a change.
async fn let_in(
    shared: Arc<Shared>,
    route: Arc<Route>,
    principal: Option<Principal>,
    path: Parameters,
    request: Request,
) -> Response<Body> {
    if !is_audited(&route) {
        return carry_out_whatever_comes(&shared, &route, principal, path, request).await;
    }
    let target = request.uri().path().to_owned();
    // Whoever hangs up takes this future along: what changes something, and who asked for it, must not go with it.
    let changing = shared.changing.clone().read_owned().await;
    let kept = tokio::spawn(async move {
        let response = carry_out_whatever_comes(&shared, &route, principal.clone(), path, request).await;
        let said = || Some(Principal { name: response.extensions().get::<Actor>()?.0.clone(), ..Principal::default() });
        if let Some(who) = principal.or_else(said) {
            let told = Told::of(&response);
            shared.auditor.keep(&shared.engine, &who, &route, &target, told).await;
        }
        drop(changing);
        response
    });
    kept.await.unwrap_or_else(|error| internal(&error).response())
}

/// Carries out a request, and makes an answer of whatever goes wrong.
async fn carry_out_whatever_comes(
    shared: &Shared,
    route: &Route,
    principal: Option<Principal>,
    path: Parameters,
    request: Request,
) -> Response<Body> {
    let carrying = carry_out(shared, route, principal, path, request);
    let carried = std::panic::AssertUnwindSafe(carrying).catch_unwind();
    match carried.await {
        Ok(Ok(mut response)) => {
            if response.status() == StatusCode::OK {
                *response.status_mut() = StatusCode::from_u16(route.status).unwrap_or(StatusCode::OK);
            }
            response
        }
        Ok(Err(refused)) => refused.response(),
        Err(_) => internal(&format_args!("{:?} panicked", route.operation)).response(),
    }
}

/// Whether it is kept who asked for it. What workers do is in the journals of their runs, with their names.
fn is_audited(route: &Route) -> bool {
    route.method != Method::Get && !matches!(route.operation, Operation::WorkerClaim | Operation::WorkerReport)
}

/// Who asks comes first: whoever is unknown learns nothing of what there is.
async fn identify(
    shared: &Shared,
    route: &Route,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Principal>, Refused> {
    check_head(uri, headers)?;
    shared.guard.check_host(uri, headers)?;
    if route.reach == Reach::Open {
        return Ok(None);
    }
    let principal = shared.guard.identify(&shared.engine, headers, shared.logins.transport).await?;
    if let Some(token) = &principal.token {
        shared.rates.ask(token, std::time::Instant::now())?;
    }
    Ok(Some(principal))
}

/// Whether the head of a request has a size that one may have. HTTP itself refuses only what is larger by far.
fn check_head(uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let asked = uri.path_and_query().map_or(0, |asked| asked.as_str().len());
    if asked > URI_BYTES_MAX {
        let problem = Problem::new("uri_too_long", "the path and its query are too long");
        return Err(problem.but(format!("at most {URI_BYTES_MAX} bytes"), format!("{asked} bytes")).into());
    }
    let said: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if said > HEADERS_BYTES_MAX {
        let problem = Problem::new("headers_too_large", "the headers are too large");
        return Err(problem.but(format!("at most {HEADERS_BYTES_MAX} bytes"), format!("{said} bytes")).into());
    }
    Ok(())
}

/// Whether a change is asked for by a program, or by a page of ours.
fn check_page(shared: &Shared, route: &Route, who: Option<&Principal>, request: &Request) -> Result<(), Refused> {
    if route.method == Method::Get {
        return Ok(());
    }
    shared.guard.check_site(request.uri(), request.headers(), who)?;
    who.map_or(Ok(()), |who| who.check_page(request.headers()))
}

async fn carry_out(
    shared: &Shared,
    route: &Route,
    principal: Option<Principal>,
    path: Parameters,
    request: Request,
) -> Answered {
    check_page(shared, route, principal.as_ref(), &request)?;
    let (parts, body) = request.into_parts();
    let Path(path) = path.map_err(|bad| Problem::new("bad_id", format!("the path: {bad}")))?;
    if let Some(principal) = &principal {
        principal.check(route, path.get("namespace").map(String::as_str))?;
    }
    if let Some(namespace) = path.get("namespace") {
        check_name("namespace", namespace)?;
    }
    let query = query(route, &parts.uri)?;
    let key = key(route, &parts.headers, shared.engine.now())?;
    let body = read(shared, route, &parts.headers, body).await?;
    let call = Call {
        operation: route.operation,
        engine: shared.engine.clone(),
        guard: shared.guard.clone(),
        logins: shared.logins.clone(),
        places: shared.places.clone(),
        blocking: shared.blocking.clone(),
        limits: shared.limits,
        stopping: shared.stopping.clone(),
        principal: principal.unwrap_or_default(),
        path,
        query,
        last_event: last_event(route, &parts.headers),
        trace: trace(&parts.headers),
        body,
        key,
    };
    perform(call).await
}

/// The query, if it says only what the route knows, and that once unless it may be said more often.
fn query(route: &Route, uri: &Uri) -> Result<Vec<(String, String)>, Refused> {
    let bad = |error| Problem::new("bad_query", format!("the query cannot be read: {error}"));
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri).map_err(bad)?;
    if route.reach == Reach::Open {
        return Ok(pairs);
    }
    for (index, (name, value)) in pairs.iter().enumerate() {
        let Some(known) = route.query.iter().find(|known| known.name == name) else {
            let known: Vec<&str> = route.query.iter().map(|query| query.name).collect();
            let expected = if known.is_empty() { "no parameter".to_owned() } else { known.join(", ") };
            return Err(bad_query("the query", &expected, name));
        };
        check(known, value)?;
        let again = known.kind != QueryKind::Label;
        if again && pairs[..index].iter().any(|(other, _)| other == name) {
            return Err(bad_query(name, "it once", "it twice"));
        }
    }
    Ok(pairs)
}

/// Whether a parameter is what the table says. Ids are read where they are used.
fn check(known: &Known, value: &str) -> Result<(), Refused> {
    let QueryKind::Number { from, to } = known.kind else { return Ok(()) };
    // `parse` would also take a sign.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    match value.parse::<u64>() {
        Ok(number) if digits && (from..=to).contains(&number) => Ok(()),
        _ => Err(bad_query(known.name, &format!("a number from {from} to {to}"), value)),
    }
}

/// The key by which a second request is known, where the route heeds one.
fn key(route: &Route, headers: &HeaderMap, now: abide_kernel::Timestamp) -> Result<Option<IdempotencyKey>, Refused> {
    let Some(header) = headers.get("idempotency-key").filter(|_| route.idempotent) else { return Ok(None) };
    let text = header.to_str().unwrap_or_default();
    let key: IdempotencyKey = text.parse().map_err(|bad: BadKey| {
        Problem::new("bad_idempotency_key", bad.to_string()).but(BadKey::EXPECTED, bad.found.clone())
    })?;
    if key.made_at().since(now) > KEY_AHEAD_MS_MAX {
        let made = abide_protocol::Instant(key.made_at());
        let detail = format!("the key says it was made at {made}, which is yet to come");
        let problem = Problem::new("bad_idempotency_key", detail);
        return Err(problem.but("a key made by now", made.to_string()).into());
    }
    Ok(Some(key))
}

/// The place in a trace that the request came from. What cannot be read says nothing, as the standard has it.
fn trace(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get("traceparent")?.to_str().ok()?.parse().ok()
}

/// The last event that a reader got, where the route answers with events. What is no text is no id of ours.
fn last_event(route: &Route, headers: &HeaderMap) -> Option<String> {
    let header = headers.get("last-event-id").filter(|_| !route.events.is_empty())?;
    Some(String::from_utf8_lossy(header.as_bytes()).into_owned())
}

/// The body, if it is one that the route takes.
async fn read(shared: &Shared, route: &Route, headers: &HeaderMap, body: Body) -> Result<Bytes, Refused> {
    // Of nobody who is known little is read, and little more thrown away.
    let (limit, drained) = match route.reach {
        Reach::Open => (LOGIN_BYTES_MAX.min(shared.limits.body_bytes_max), 8 * LOGIN_BYTES_MAX),
        Reach::Own | Reach::Namespace | Reach::Anywhere | Reach::Everywhere => {
            (shared.limits.body_bytes_max, DRAINED_BYTES_MAX)
        }
    };
    let bytes = tokio::time::timeout(BODY_ARRIVES, collect(headers, body, limit, drained))
        .await
        .map_err(|_| Problem::new("request_timeout", format!("the body took longer than {BODY_ARRIVES:?}")))??;
    if bytes.is_empty() {
        return match route.body.is_some() && !route.body_optional {
            true => Err(Problem::new("malformed", "there is no body").but("a JSON document", "nothing").into()),
            false => Ok(bytes),
        };
    }
    if route.body.is_none() {
        let problem = Problem::new("malformed", "this takes no body");
        return Err(problem.but("no body", format!("{} bytes", bytes.len())).into());
    }
    let said = headers.get(CONTENT_TYPE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let kind = said.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let found: String = said.chars().take(80).collect();
        let problem = Problem::new("unsupported_media_type", "the body is not said to be JSON");
        return Err(problem.but("Content-Type: application/json", found).into());
    }
    Ok(bytes)
}

/// Reads a body up to a limit. One that is said to be larger is refused before it comes; what comes nevertheless is read
/// and thrown away for a while, so that its sender gets to read why.
async fn collect(headers: &HeaderMap, mut body: Body, limit: usize, drained: usize) -> Result<Bytes, Refused> {
    let said = headers.get(CONTENT_LENGTH).and_then(|said| said.to_str().ok()?.parse().ok()).unwrap_or(0);
    if said > limit {
        // It ends with the connection at the latest.
        tokio::spawn(tokio::time::timeout(BODY_ARRIVES, drain(body, limit + drained)));
        return Err(too_large(limit, said));
    }
    // What is only announced gets no room yet.
    let (mut bytes, mut found) = (Vec::with_capacity(said.min(BODY_RESERVED_MAX)), 0usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::new("malformed", format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        found += data.len();
        if found <= limit {
            bytes.extend_from_slice(&data);
        } else if found > limit + drained {
            break;
        }
    }
    if found > limit { Err(too_large(limit, found)) } else { Ok(bytes.into()) }
}

/// Reads up to so many bytes and throws them away.
async fn drain(mut body: Body, most: usize) {
    let mut found = 0;
    while let Some(Ok(frame)) = body.frame().await {
        found += frame.data_ref().map_or(0, Bytes::len);
        if found > most {
            break;
        }
    }
}

fn too_large(limit: usize, found: usize) -> Refused {
    let problem = Problem::new("too_large", format!("the body is larger than {limit} bytes"));
    problem.but(format!("at most {limit} bytes"), format!("{found} bytes")).into()
}
