//! The access log: a line for each request, with who asked what, how it was answered and how long that took. It names the
//! route and never the path, so that neither ids nor anything of a query, a header or a body is in it.

use std::time::Instant;

use abide_protocol::{Operation, Route};
use axum::body::Body;
use axum::http::{Method, Response};
use tracing::Level;

use crate::audit::{Actor, Coded};
use crate::auth::Principal;

/// What its lines are called, for filters.
const LOG: &str = "abide::access";

/// A request that is being answered. Whoever drops it without an answer was hung up on.
pub(crate) struct Access {
    line: Option<Line>,
}

struct Line {
    began: Instant,
    method: Method,
    route: String,
    principal: Option<String>,
    token: Option<String>,
}

impl Access {
    /// A request for a route. Those that ask whether the server is well say nothing: they come all the time.
    pub(crate) fn begin(route: &Route, method: &Method) -> Self {
        match route.operation {
            Operation::Health | Operation::Ready => Self { line: None },
            _ => Self::of(&route.path, method),
        }
    }

    /// A request for what is no route, or no method of one.
    pub(crate) fn stray(method: &Method) -> Self {
        Self::of("", method)
    }

    fn of(route: &str, method: &Method) -> Self {
        let line = || Line {
            began: Instant::now(),
            method: method.clone(),
            route: route.to_owned(),
            principal: None,
            token: None,
        };
        Self { line: tracing::enabled!(target: LOG, Level::INFO).then(line) }
    }

    /// Who asks is known.
    pub(crate) fn known(&mut self, principal: Option<&Principal>) {
        if let (Some(line), Some(principal)) = (&mut self.line, principal) {
            line.principal = Some(principal.name.clone());
            line.token = principal.token.clone();
        }
    }

    /// It was answered; of an answer that lasts, its beginning.
    pub(crate) fn answered(mut self, response: Response<Body>) -> Response<Body> {
        if let Some(line) = self.line.take() {
            let extensions = response.extensions();
            let code = extensions.get::<Coded>().map(|coded| coded.0.as_str());
            let said = extensions.get::<Actor>().map(|actor| actor.0.as_str());
            line.write(Some(response.status().as_u16()), code, said);
        }
        response
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.write(None, None, None);
        }
    }
}

impl Line {
    fn write(&self, status: Option<u16>, code: Option<&str>, said: Option<&str>) {
        let principal = self.principal.as_deref().or(said);
        let (method, route, token) = (self.method.as_str(), self.route.as_str(), self.token.as_deref());
        // A method may be any word: at most so much of it.
        let method: String = method.chars().take(20).collect();
        let ms = self.began.elapsed().as_secs_f64() * 1_000.0;
        let what = if status.is_some() { "answered" } else { "hung up before the answer" };
        tracing::info!(target: LOG, method, route, status, ms, principal, token, code, "{what}");
    }
}
