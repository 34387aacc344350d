//! Sessions: begun with a name and a password, looked at, and ended.

use abide_protocol::{Login, Problem, Session};
use abide_runtime::Engine;
use abide_store::Fault;
use axum::body::Body;
use axum::http::Response;
use axum::http::header::SET_COOKIE;

use crate::answer::{Answered, Refused, done, internal, json};
use crate::audit::Actor;
use crate::call::Call;
use crate::limits::{LOGINS_TOGETHER, LOGINS_WAITING_MAX};
use crate::session::TooOften;
use crate::token::{old_sessions, session};
use crate::user::{Account, USER, is_of};

/// Who fails is told the same, whether there is such a user or not, after the same time.
pub(crate) async fn begin(call: Call) -> Answered {
    let Login { name, password } = call.body()?;
    // Each takes memory and a core for a moment: many at once must not take all, nor wait for ever.
    let place = call.logins.places.clone().try_acquire_owned().map_err(|_| full())?;
    let often = call.logins.tries.begin(&name, std::time::Instant::now());
    if often == Err(TooOften::Again) {
        return Err(TooOften::Again.into());
    }
    let wanted = name.clone();
    let kept = call.blocking(move |engine| engine.kept_as(USER, &wanted)).await??;
    let account = kept.as_ref().map(Account::read).transpose().map_err(|error| internal(&error))?;
    // A name that nobody has may be a password in the wrong field.
    let actor = Actor(account.as_ref().map_or_else(|| "(unknown)".into(), |account| account.user.name.clone()));
    if let Err(often) = often {
        return Ok(named(Refused::from(often), actor));
    }
    let turn = call.logins.turns.clone().acquire_owned().await.map_err(|error| internal(&error))?;
    let looked = call.blocking(move |_| {
        let fits = is_of(account.as_ref(), &password);
        drop((turn, place));
        account.filter(|_| fits)
    });
    let Some(account) = looked.await? else {
        let problem = Problem::new("login_failed", "the name or the password is not right");
        return Ok(named(problem.into(), actor));
    };
    call.logins.tries.right(&name);
    let made = session(&account, call.engine.now());
    let stored = made.stored;
    let replacing = move |engine: &Engine| {
        let replaced = replace_old(engine, &account.user.name)?;
        engine.write_token(&stored)?;
        Ok::<_, Fault>([replaced, vec![stored.id]].concat())
    };
    call.blocking(replacing).await??.iter().for_each(|id| call.guard.forget(id));
    let mut answer = json(&made.session)?;
    answer.headers_mut().insert(SET_COOKIE, call.logins.transport.give(&made.secret));
    answer.extensions_mut().insert(actor);
    Ok(answer)
}

fn full() -> Refused {
    let problem = Problem::new("too_many_logins", "too many log in at once");
    problem.but(format!("at most {} at once", LOGINS_TOGETHER + LOGINS_WAITING_MAX), "more").into()
}

/// A refusal that is kept in the audit under the name of whom it is about.
fn named(refused: Refused, actor: Actor) -> Response<Body> {
    let mut response = refused.response();
    response.extensions_mut().insert(actor);
    response
}

/// Sessions that have ended go, and the oldest of those of whom has too many.
fn replace_old(engine: &Engine, name: &str) -> Result<Vec<String>, Fault> {
    let old = old_sessions(&engine.tokens()?, name, engine.now());
    for id in &old {
        engine.remove_token(id)?;
    }
    Ok(old)
}

pub(crate) fn show(call: &Call) -> Answered {
    let who = &call.principal;
    json(&Session {
        name: who.name.clone(),
        scopes: who.scopes.clone(),
        namespaces: who.namespaces.clone(),
        expires_at: who.expires_at,
        csrf_token: who.csrf.clone(),
    })
}

pub(crate) async fn end(call: Call) -> Answered {
    let (Some(id), Some(_)) = (call.principal.token.clone(), &call.principal.csrf) else {
        let problem = Problem::new("not_found", "there is no session: a token says who asks, or nobody needs one");
        return Err(problem.but("the cookie of a session", "none").into());
    };
    let ended = id.clone();
    call.blocking(move |engine| engine.remove_token(&id)).await??;
    call.guard.forget(&ended);
    let mut answer = done();
    answer.headers_mut().insert(SET_COOKIE, call.logins.transport.take());
    Ok(answer)
}
