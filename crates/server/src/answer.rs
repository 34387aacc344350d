//! Answers: JSON, or a problem.

use abide_kernel::Refusal;
use abide_kernel::shard::Answer;
use abide_protocol::Problem;
use abide_runtime::Unanswered;
use abide_store::{Fault, FaultKind};
use axum::body::Body;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

use crate::audit::Coded;
use crate::limits::LOGIN_TRY_AGAIN;

/// A request that was not carried out.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Box<Problem>);

/// What a route comes to.
pub(crate) type Answered = Result<Response<Body>, Refused>;

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Problem::from(&refusal).into()
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        // What a store says of itself may name paths and hosts: it is for the log.
        tracing::warn!(%fault, "the store could not do what a request needs");
        let detail = match fault.kind {
            FaultKind::Corrupt { .. } => return Problem::new("corrupt", "a stored record is damaged").into(),
            FaultKind::Unknown => return Problem::new("unknown", "whether it was done is not known").into(),
            FaultKind::Refused | FaultKind::Held => "nothing was written",
            FaultKind::Fatal | FaultKind::Unusable | FaultKind::Importing => "it must be looked after and opened anew",
        };
        Problem::new("store_unavailable", format!("the store cannot be used: {detail}")).into()
    }
}

impl From<Unanswered> for Refused {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Refused(refusal) => refusal.into(),
            Unanswered::Store(fault) => fault.into(),
            Unanswered::Gone => Problem::new("closed", "the engine has stopped").into(),
            other => internal(&other),
        }
    }
}

/// A failure of ours: the log says what, the answer only that.
pub(crate) fn internal(what: &dyn std::fmt::Display) -> Refused {
    tracing::error!(%what, "a request failed");
    Problem::new("internal", "the server failed; its log says how").into()
}

/// An answer of the engine that does not fit the question.
pub(crate) fn unexpected(answer: &Answer) -> Refused {
    match answer {
        Answer::Refused(refusal) => refusal.clone().into(),
        other => internal(&format_args!("expected another kind of answer, found {other:?}")),
    }
}

/// An answer as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Answered {
    let text = serde_json::to_vec(value).map_err(|error| internal(&error))?;
    Ok(made(StatusCode::OK, "application/json", text))
}

/// Nothing more to say.
pub(crate) fn done() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(crate) fn text(content_type: &'static str, text: String) -> Response<Body> {
    made(StatusCode::OK, content_type, text.into_bytes())
}

fn made(status: StatusCode, content_type: &'static str, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// Events, as they come. Nobody on the way may hold them back.
pub(crate) fn streamed(body: Body) -> Response<Body> {
    let mut response = made(StatusCode::OK, "text/event-stream", Vec::new());
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    *response.body_mut() = body;
    response
}

impl Refused {
    /// As it is sent.
    pub(crate) fn response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let text = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = made(status, Problem::MEDIA_TYPE, text);
        response.extensions_mut().insert(Coded(self.0.code.clone()));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let seconds = if self.0.code == "too_many_logins" { LOGIN_TRY_AGAIN.as_secs() } else { 1 };
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// As it is sent, with the methods that there are.
    pub(crate) fn allowing(self, methods: &str) -> Response<Body> {
        let mut response = self.response();
        if let Ok(methods) = HeaderValue::from_str(methods) {
            response.headers_mut().insert(ALLOW, methods);
        }
        response
    }
}
