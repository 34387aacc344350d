//! The OpenAPI 3.1 document, made from the table of routes and the shapes of the messages.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{CODES, Code, Problem, QueryKind, Reach, Route, routes, shape};

/// The document, as it is served and kept in `docs/openapi.json`.
#[must_use]
pub fn document() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut shapes = settings.into_generator();
    let mut paths = Map::new();
    for route in routes() {
        let described = operation(&route, &mut shapes);
        let methods = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        methods[route.method.name().to_lowercase()] = described;
    }
    shapes.subschema_for::<Problem>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Abide",
            "version": "1",
            "description": "Durable execution over HTTP. Every error is application/problem+json with a stable code.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "x-abide-problems": CODES,
        "components": {
            "schemas": shapes.take_definitions(true),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey", "in": "cookie", "name": "abide_session",
                    "description": "Of POST /v1/session. Over TLS it is called __Host-abide_session. Everything but GET also \
                                    needs the header X-CSRF-Token, as POST and GET /v1/session give it.",
                },
            },
        },
    })
}

fn operation(route: &Route, shapes: &mut SchemaGenerator) -> Value {
    let mut described = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [tag(route)],
        "parameters": parameters(route, shapes),
        "responses": responses(route, shapes),
    });
    match &route.scope {
        Some(scope) => described["x-abide-scope"] = json!(scope),
        None if route.reach == Reach::Own => {}
        None => described["security"] = json!([]),
    }
    if let Some(body) = route.body {
        described["requestBody"] = json!({
            "required": !route.body_optional,
            "content": {"application/json": {"schema": body(shapes)}},
        });
    }
    described
}

/// The name of what a route does: `RunStart` as `run_start`.
#[must_use]
pub fn operation_id(route: &Route) -> String {
    let mut id = String::new();
    for letter in format!("{:?}", route.operation).chars() {
        if letter.is_ascii_uppercase() && !id.is_empty() {
            id.push('_');
        }
        id.push(letter.to_ascii_lowercase());
    }
    id
}

/// What it is about: the noun in its path.
fn tag(route: &Route) -> &str {
    if route.reach == Reach::Open || route.operation == crate::Operation::Metrics {
        return "server";
    }
    let noun = |part: &&str| !part.is_empty() && !part.starts_with('{') && !["v1", "namespaces"].contains(part);
    route.path.split('/').find(noun).unwrap_or("server")
}

fn parameters(route: &Route, shapes: &mut SchemaGenerator) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for name in route.parameters() {
        let schema = match name {
            "run" => json!(shapes.subschema_for::<shape::Run>()),
            "boundary" => json!(shapes.subschema_for::<shape::Boundary>()),
            "letter" => json!(shapes.subschema_for::<shape::Letter>()),
            "token" => json!(shapes.subschema_for::<shape::Token>()),
            _ => json!({"type": "string", "minLength": 1, "maxLength": abide_kernel::limits::NAME_BYTES_MAX}),
        };
        all.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    for query in &route.query {
        let schema = match query.kind {
            QueryKind::Text => json!({"type": "string"}),
            QueryKind::Run => json!(shapes.subschema_for::<shape::Run>()),
            QueryKind::Instant => json!(shapes.subschema_for::<crate::Instant>()),
            QueryKind::Label => json!({"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}}),
            QueryKind::Number { from, to: u64::MAX } => json!({"type": "integer", "minimum": from}),
            QueryKind::Number { from, to } => json!({"type": "integer", "minimum": from, "maximum": to}),
        };
        all.push(json!({
            "name": query.name, "in": "query", "required": false, "schema": schema, "description": query.about,
        }));
    }
    if route.idempotent {
        all.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "schema": shapes.subschema_for::<shape::Key>(),
            "description": "A UUID of version 7, or req_<32 hex digits>: a second request with it gets the answer of the first.",
        }));
    }
    if !route.events.is_empty() {
        all.push(json!({
            "name": "Last-Event-ID", "in": "header", "required": false, "schema": {"type": "string"},
            "description": "The id of the last event that came: what follows it is told.",
        }));
    }
    all
}

fn responses(route: &Route, shapes: &mut SchemaGenerator) -> Value {
    let mut all = Map::new();
    let mut good = json!({"description": route.summary});
    if let Some(answer) = route.answer {
        good["content"] = json!({"application/json": {"schema": answer(shapes)}});
    } else if !route.events.is_empty() {
        let events = route.events.iter().map(|(name, shape)| ((*name).to_owned(), json!(shape(shapes))));
        let events: Map<String, Value> = events.collect();
        good["content"] = json!({"text/event-stream": {"schema": {"type": "string"}, "x-abide-events": events}});
    } else if route.status == 200 && route.operation == crate::Operation::Metrics {
        good["content"] = json!({"application/openmetrics-text": {"schema": {"type": "string"}}});
    } else if route.status == 200 {
        good["content"] = json!({"application/json": {"schema": {"type": "object"}}});
    }
    all.insert(route.status.to_string(), good);
    for code in problems(route) {
        let shape = shapes.subschema_for::<Problem>();
        let entry = all.entry(code.status.to_string()).or_insert_with(
            || json!({"description": "", "content": {Problem::MEDIA_TYPE: {"schema": shape}}, "x-abide-codes": []}),
        );
        if let Some((name, about)) = header(code.status) {
            entry["headers"] = json!({name: {"description": about, "schema": {"type": "string"}}});
        }
        let codes = entry["x-abide-codes"].as_array_mut().expect("it was made as one");
        codes.push(json!(code.name));
        let names: Vec<&str> = codes.iter().filter_map(Value::as_str).collect();
        entry["description"] = json!(names.join(", "));
    }
    Value::Object(all)
}

/// What else an answer of a status says.
fn header(status: u16) -> Option<(&'static str, &'static str)> {
    match status {
        401 => Some(("WWW-Authenticate", "How to say who asks.")),
        429 | 503 => Some(("Retry-After", "After so many seconds it may be tried again.")),
        _ => None,
    }
}

/// Every problem that a route may answer with, by its status.
#[must_use]
pub fn problems(route: &Route) -> Vec<&'static Code> {
    let mut names: Vec<&str> =
        vec!["internal", "too_many_connections", "bad_host", "bad_query", "too_large", "malformed", "request_timeout"];
    names.extend(["bad_request", "uri_too_long", "headers_too_large"]);
    if route.reach != Reach::Open {
        names.extend([
            "unauthenticated",
            "bad_csrf_token",
            "forbidden",
            "rate_limited",
            "busy",
            "corrupt",
            "unknown",
            "closed",
            "store_unavailable",
        ]);
    }
    if route.method != crate::Method::Get {
        names.push("cross_site");
    }
    if route.operation == crate::Operation::Ready {
        names.push("closed");
    }
    if route.reach == Reach::Namespace {
        names.extend(["not_found", "invalid"]);
    }
    if route.parameters().next().is_some() {
        names.push("bad_id");
    }
    if route.body.is_some() {
        names.extend(["unsupported_media_type", "too_deep"]);
    }
    if route.idempotent {
        names.push("bad_idempotency_key");
    }
    names.extend(route.problems);
    names.sort_unstable();
    names.dedup();
    let mut codes: Vec<&'static Code> = names.into_iter().map(Code::of).collect();
    codes.sort_by_key(|code| code.status);
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document that is kept is the one that is served. `UPDATE_OPENAPI=1` writes it anew.
    #[test]
    fn the_kept_document_is_the_one_of_this_release() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == text, "docs/openapi.json is of another release; UPDATE_OPENAPI=1 cargo test -p abide-protocol");
    }

    #[test]
    fn every_shape_that_is_named_is_there() {
        let document = document();
        let text = document.to_string();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        assert!(text.contains("\"additionalProperties\":false"));
    }
}
