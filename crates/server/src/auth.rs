//! Who asks, and whether they may.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use abide_protocol::{Problem, Reach, Route, Scope};
use abide_runtime::Engine;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::answer::{Refused, internal};
use crate::limits::{TOKEN_LOOKUPS_MAX, TOKEN_TRUSTED, TOKENS_MAX};
use crate::session::{CSRF, Transport};
use crate::token::{self, Record};
use crate::user::{Account, USER};

/// The word for all namespaces.
const ALL: &str = "*";

/// Whoever asks, and what they may: nothing, unless it is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Principal {
    /// Under which name they decide.
    pub(crate) name: String,
    /// The id of their token; none where nobody needs one.
    pub(crate) token: Option<String>,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) namespaces: Vec<String>,
    /// When they are not known any more.
    pub(crate) expires_at: Option<abide_protocol::Instant>,
    /// What a request that changes something must bring, if a cookie says who they are.
    pub(crate) csrf: Option<String>,
}

impl Principal {
    /// Anybody at this machine, where nobody has to say who they are.
    fn anybody() -> Self {
        let (scopes, namespaces) = (vec![Scope::Admin], vec![ALL.into()]);
        Self { name: "anonymous".into(), scopes, namespaces, ..Self::default() }
    }

    fn is_in(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|known| known == ALL || known == namespace)
    }

    /// Whether they may use a route. A namespace that is not theirs is not there, whatever they may do in others.
    pub(crate) fn check(&self, route: &Route, namespace: Option<&str>) -> Result<(), Refused> {
        if let Some(namespace) = namespace
            && !self.is_in(namespace)
        {
            let detail = format!("there is no namespace {namespace:?} for this token");
            return Err(Problem::new("not_found", detail).into());
        }
        if route.reach == Reach::Everywhere && !self.is_in(ALL) {
            let problem = Problem::new("forbidden", "this is about all namespaces, and the token is not");
            return Err(problem.but("a token for the namespaces *", self.namespaces.join(", ")).into());
        }
        route.scope.as_ref().map_or(Ok(()), |needed| self.allows(needed))
    }

    /// Whether a page of ours asks for a change, where a browser would ask for anybody.
    pub(crate) fn check_page(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let Some(csrf) = &self.csrf else { return Ok(()) };
        let given = headers.get(CSRF).and_then(|given| given.to_str().ok());
        if given.is_some_and(|given| token::is_csrf(csrf, given)) {
            return Ok(());
        }
        let found = if given.is_some() { "another" } else { "none" };
        let problem = Problem::new("bad_csrf_token", "a cookie alone changes nothing");
        Err(problem.but("the header X-CSRF-Token of this session", found).into())
    }

    /// Whether they may do what a scope stands for.
    pub(crate) fn allows(&self, needed: &Scope) -> Result<(), Refused> {
        if self.scopes.iter().any(|scope| scope.covers(needed)) {
            return Ok(());
        }
        let has: Vec<String> = self.scopes.iter().map(ToString::to_string).collect();
        let problem = Problem::new("forbidden", format!("this needs the scope {needed}"));
        Err(problem.but(needed.to_string(), has.join(", ")).into())
    }
}

/// What a server asks of those who come.
pub(crate) enum Guard {
    /// Nothing; but they must have meant this machine.
    Loopback,
    /// A token that the store knows.
    Tokens(Remembered),
}

/// The tokens that were looked up lately.
pub(crate) struct Remembered {
    known: Mutex<Looked>,
    /// Whoever makes up tokens has each looked up: so many at once, and the others wait.
    lookups: Semaphore,
}

/// What came of it.
#[derive(Default)]
struct Looked {
    tokens: HashMap<String, Found>,
    /// How often any was forgotten: what was read before that is not remembered after it.
    forgotten: u64,
}

/// A token that was looked up lately, or that there was none.
struct Found {
    record: Option<Arc<Record>>,
    read: Instant,
}

impl Guard {
    pub(crate) fn tokens() -> Self {
        Self::Tokens(Remembered { known: Mutex::default(), lookups: Semaphore::new(TOKEN_LOOKUPS_MAX) })
    }

    /// Whether a request was meant for here. Where anybody may ask, a page of somebody else must not make a browser do
    /// so under a name of its own that leads here.
    pub(crate) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        if matches!(self, Self::Tokens(_)) {
            return Ok(());
        }
        let host = host(uri, headers);
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => host,
        };
        if ["127.0.0.1", "localhost", "[::1]"].contains(&name) {
            return Ok(());
        }
        let problem = Problem::new("bad_host", "without login only this machine is answered");
        Err(problem.but("Host: 127.0.0.1 or localhost", host.chars().take(80).collect::<String>()).into())
    }

    /// Whether a page of somebody else has a browser change something here, where the browser alone makes somebody
    /// known: without login, by a cookie, and at the login itself. Browsers say where a page is from, and no page can
    /// say otherwise; programs say nothing.
    pub(crate) fn check_site(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<(), Refused> {
        let by_browser = principal.is_none_or(|principal| principal.csrf.is_some());
        if matches!(self, Self::Tokens(_)) && !by_browser {
            return Ok(());
        }
        let said = |name| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
        let foreign = match (said("sec-fetch-site"), said("origin")) {
            (Some("same-origin" | "none"), _) | (None, None) => return Ok(()),
            (Some(site), _) => format!("Sec-Fetch-Site: {site}"),
            // Older browsers, and plain HTTP from another machine.
            (None, Some(origin)) => {
                let from = origin.split_once("://").map(|(_, from)| from);
                if from.is_some_and(|from| from.eq_ignore_ascii_case(host(uri, headers))) {
                    return Ok(());
                }
                format!("Origin: {origin}")
            }
        };
        let problem = Problem::new("cross_site", "a page of another site asks for a change");
        Err(problem.but("a page of this server, or no page", foreign.chars().take(120).collect::<String>()).into())
    }

    /// Who asks: by a token, or by the cookie of a session.
    pub(crate) async fn identify(
        &self,
        engine: &Arc<Engine>,
        headers: &HeaderMap,
        transport: Transport,
    ) -> Result<Principal, Refused> {
        let Self::Tokens(known) = self else { return Ok(Principal::anybody()) };
        let nobody = |detail: &str| Refused::from(Problem::new("unauthenticated", detail));
        let (text, by_cookie) = match (headers.get(AUTHORIZATION), transport.of(headers)) {
            (Some(header), _) => {
                let text = header.to_str().ok().and_then(bearer);
                (text.ok_or_else(|| nobody("the Authorization header is not of the form Bearer <token>"))?, false)
            }
            (None, Some(cookie)) => (cookie, true),
            (None, None) => return Err(nobody("the request has no Authorization header")),
        };
        // One sentence for all that is wrong with a token: whoever guesses learns nothing.
        let unknown = || nobody("the token is not known, was revoked or has ended");
        let (id, secret) = token::parse(text).ok_or_else(unknown)?;
        let record = known.find(engine, id).await?.ok_or_else(unknown)?;
        let ended = record.expires_at.is_some_and(|at| at.0 <= engine.now());
        // What a browser sends by itself is not what a program says, and the other way round.
        if ended || !record.is_of(id, secret) || record.session_of.is_some() != by_cookie {
            return Err(unknown());
        }
        Ok(Principal {
            name: record.name.clone(),
            token: Some(id.to_owned()),
            scopes: record.scopes.clone(),
            namespaces: record.namespaces.clone(),
            expires_at: record.expires_at,
            csrf: by_cookie.then(|| token::csrf(secret)),
        })
    }

    /// Whether somebody who was let in would be let in again. A store that cannot be read says nothing against them.
    pub(crate) async fn still_knows(&self, engine: &Arc<Engine>, principal: &Principal) -> bool {
        let (Self::Tokens(known), Some(id)) = (self, &principal.token) else { return true };
        match known.find(engine, id).await {
            Ok(Some(record)) => record.expires_at.is_none_or(|at| at.0 > engine.now()),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Reads a token anew before it is believed again.
    pub(crate) fn forget(&self, id: &str) {
        self.forget_those(|known, _| known == id);
    }

    /// The same for all sessions of a user.
    pub(crate) fn forget_sessions(&self, name: &str) {
        self.forget_those(|_, record| record.is_some_and(|record| record.session_of.as_deref() == Some(name)));
    }

    fn forget_those(&self, those: impl Fn(&str, Option<&Record>) -> bool) {
        if let Self::Tokens(Remembered { known, .. }) = self {
            let mut known = known.lock();
            known.tokens.retain(|id, found| !those(id, found.record.as_deref()));
            known.forgotten += 1;
        }
    }
}

/// The host that a request names. HTTP/2 has it beside the path.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let named = uri.authority().map(Authority::as_str);
    named.or_else(|| headers.get(HOST)?.to_str().ok()).unwrap_or_default()
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start())
}

impl Remembered {
    /// What is known of a token, by what was read of it lately or by the store.
    async fn find(&self, engine: &Arc<Engine>, id: &str) -> Result<Option<Arc<Record>>, Refused> {
        if let Some(recent) = self.known.lock().fresh(id) {
            return Ok(recent);
        }
        let _place = self.lookups.acquire().await.map_err(|error| internal(&error))?;
        // Another request with the same token may have been faster.
        let forgotten = {
            let known = self.known.lock();
            if let Some(recent) = known.fresh(id) {
                return Ok(recent);
            }
            known.forgotten
        };
        let (reading, wanted) = (engine.clone(), id.to_owned());
        let reading = tokio::task::spawn_blocking(move || read(&reading, &wanted));
        let record = reading.await.map_err(|error| internal(&error))??.map(Arc::new);
        self.known.lock().remember(id, &record, forgotten);
        Ok(record)
    }
}

impl Looked {
    fn fresh(&self, id: &str) -> Option<Option<Arc<Record>>> {
        let found = self.tokens.get(id).filter(|found| found.read.elapsed() < TOKEN_TRUSTED)?;
        Some(found.record.clone())
    }

    /// Remembers what came of a lookup, unless something was forgotten since it began. Strangers must not have tokens
    /// forgotten that are known: when there is no room, those that nobody knows go first.
    fn remember(&mut self, id: &str, record: &Option<Arc<Record>>, forgotten: u64) {
        if self.forgotten != forgotten {
            self.tokens.remove(id);
            return;
        }
        if self.tokens.len() >= TOKENS_MAX {
            self.tokens.retain(|_, found| found.record.is_some() && found.read.elapsed() < TOKEN_TRUSTED);
        }
        if self.tokens.len() >= TOKENS_MAX {
            self.tokens.clear();
        }
        self.tokens.insert(id.to_owned(), Found { record: record.clone(), read: Instant::now() });
    }
}

/// A token, if the store has it. A session is good for as long as the account is the one that it was begun for,
/// whatever became of it while somebody logged in.
fn read(engine: &Engine, id: &str) -> Result<Option<Record>, Refused> {
    let Some(stored) = engine.token(id)? else { return Ok(None) };
    let record = Record::read(&stored).map_err(|error| internal(&error))?;
    let Some(name) = &record.session_of else { return Ok(Some(record)) };
    let Some(kept) = engine.kept_as(USER, name)? else { return Ok(None) };
    let account = Account::read(&kept).map_err(|error| internal(&error))?;
    Ok(Some(record).filter(|record| record.account == Some(account.mark())))
}

#[cfg(test)]
mod tests {
    use abide_protocol::CreateToken;

    use super::*;

    fn record(session_of: Option<&str>) -> Option<Arc<Record>> {
        let (name, scopes, namespaces) = ("n".into(), vec![Scope::Read], vec![ALL.into()]);
        let asked = CreateToken { name, scopes, namespaces, expires_in_ms: None };
        let (stored, _) = token::mint(asked, abide_kernel::Timestamp(0)).unwrap();
        let mut record = Record::read(&stored).unwrap();
        record.session_of = session_of.map(Into::into);
        Some(Arc::new(record))
    }

    fn remember(guard: &Guard, id: &str, record: Option<Arc<Record>>) {
        let Guard::Tokens(Remembered { known, .. }) = guard else { unreachable!("tokens are asked for") };
        let mut known = known.lock();
        let forgotten = known.forgotten;
        known.remember(id, &record, forgotten);
    }

    fn remembered(guard: &Guard) -> Vec<String> {
        let Guard::Tokens(Remembered { known, .. }) = guard else { unreachable!("tokens are asked for") };
        let mut ids: Vec<String> = known.lock().tokens.keys().cloned().collect();
        ids.sort();
        ids
    }

    /// AB-16: one who logs in or out has nobody else's token read again.
    #[test]
    fn one_token_is_forgotten_and_the_others_stay() {
        let guard = Guard::tokens();
        for (id, of) in [("a", None), ("b", None), ("s", Some("ada")), ("t", Some("bob"))] {
            remember(&guard, id, record(of));
        }
        guard.forget("a");
        assert_eq!(remembered(&guard), ["b", "s", "t"]);
        guard.forget_sessions("ada");
        assert_eq!(remembered(&guard), ["b", "t"]);
    }

    /// AB-16: what was read before something changed is not believed after it.
    #[test]
    fn a_lookup_that_was_overtaken_is_not_remembered() {
        let guard = Guard::tokens();
        let Guard::Tokens(Remembered { known, .. }) = &guard else { unreachable!("tokens are asked for") };
        let before = known.lock().forgotten;
        guard.forget("a");
        known.lock().remember("a", &record(None), before);
        assert!(remembered(&guard).is_empty());
    }

    /// AB-16: made-up tokens take bounded room, and have no token forgotten that is known.
    #[test]
    fn strangers_have_nobody_forgotten() {
        let guard = Guard::tokens();
        remember(&guard, "known", record(None));
        for number in 0..TOKENS_MAX + 10 {
            remember(&guard, &number.to_string(), None);
        }
        let ids = remembered(&guard);
        assert!(ids.len() <= TOKENS_MAX && ids.contains(&"known".to_owned()));
    }
}
