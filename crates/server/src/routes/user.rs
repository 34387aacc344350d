//! Users: made, listed, changed and removed while the server runs.

use abide_protocol::{CreateUser, NewPassword, Problem, User, Users};
use abide_runtime::Engine;
use abide_store::{Fault, Kept};

use crate::answer::{Answered, Refused, done, internal, json};
use crate::call::Call;
use crate::token::sessions_of;
use crate::user::{Account, USER, USERS_MAX, enrol, shown_user, with_password};

pub(crate) async fn list(call: Call) -> Answered {
    let kept = all(&call).await?;
    let users: Result<Vec<User>, _> = kept.iter().rev().map(shown_user).collect();
    json(&Users { users: users.map_err(|error| internal(&error))? })
}

pub(crate) async fn create(call: Call) -> Answered {
    let asked: CreateUser = call.body()?;
    if let Some(user) = made_before(&call, &asked).await? {
        return json(&user);
    }
    // Before the password is hashed, which takes a moment, and after it, because another may have been faster.
    let name = asked.name.clone();
    call.blocking(move |engine| vacant(engine, &name)).await??;
    let (request, now, wish) = (call.key.is_some().then(|| call.request()), call.engine.now(), asked.clone());
    let (kept, user) = call.blocking(move |_| enrol(wish, now)).await??;
    let kept = request.map_or(Ok(kept.clone()), |request| Account::made_by(&kept, request));
    let kept = kept.map_err(|error| internal(&error))?;
    let made = changed(&call, move |engine| {
        vacant(engine, &kept.id)?;
        Ok(engine.keep(&[kept])?)
    });
    if let Err(refused) = made.await {
        // The same request may have been faster, too.
        return made_before(&call, &asked).await?.map_or(Err(refused), |user| json(&user));
    }
    json(&user)
}

/// The user that the same request made before.
async fn made_before(call: &Call, asked: &CreateUser) -> Result<Option<User>, Refused> {
    if call.key.is_none() {
        return Ok(None);
    }
    let (request, asked) = (call.request(), asked.clone());
    let found = call.blocking(move |engine| {
        let known = engine.kept(USER, None, USERS_MAX)?;
        let Some(kept) = known.iter().find(|kept| kept.id == asked.name) else { return Ok(None) };
        let account = Account::read(kept).map_err(|error| internal(&error))?;
        Ok::<_, Refused>(account.is_made_by(request, &asked).then_some(account.user))
    });
    found.await?
}

/// Whether a user of that name can be made.
fn vacant(engine: &Engine, name: &str) -> Result<(), Refused> {
    let known = engine.kept(USER, None, USERS_MAX)?;
    if known.iter().any(|kept| kept.id == name) {
        let problem = Problem::new("user_exists", format!("there is a user {name:?}"));
        return Err(problem.but("a name that nobody has", name).into());
    }
    if known.len() >= USERS_MAX {
        return Err(Problem::new("busy", format!("there are {USERS_MAX} users already")).into());
    }
    Ok(())
}

/// A user with another password has to log in anew everywhere.
pub(crate) async fn password(call: Call) -> Answered {
    let NewPassword { password } = call.body()?;
    let name = call.word("user").to_owned();
    let wanted = name.clone();
    changed(&call, move |engine| {
        let known = with_password(&named(engine, &wanted)?, &password).map_err(|error| internal(&error))??;
        Ok(engine.keep(&[known])?)
    })
    .await?;
    log_out(&call, name).await?;
    Ok(done())
}

pub(crate) async fn remove(call: Call) -> Answered {
    let name = call.word("user").to_owned();
    let wanted = name.clone();
    changed(&call, move |engine| {
        named(engine, &wanted)?;
        Ok(engine.forget(USER, &wanted).map(drop)?)
    })
    .await?;
    log_out(&call, name).await?;
    Ok(done())
}

/// Changes which users there are, one change after the other: each looks at what the one before left.
async fn changed(
    call: &Call,
    change: impl FnOnce(&Engine) -> Result<(), Refused> + Send + 'static,
) -> Result<(), Refused> {
    let logins = call.logins.clone();
    let changing = call.blocking(move |engine| {
        let _one = logins.accounts.lock();
        change(engine)
    });
    changing.await?
}

fn named(engine: &Engine, name: &str) -> Result<Kept, Refused> {
    let found = engine.kept(USER, None, USERS_MAX)?.into_iter().find(|kept| kept.id == name);
    found.ok_or_else(|| Problem::new("not_found", format!("there is no user {name:?}")).into())
}

pub(super) async fn all(call: &Call) -> Result<Vec<Kept>, Refused> {
    Ok(call.blocking(|engine| engine.kept(USER, None, USERS_MAX)).await??)
}

/// Ends all sessions of a user.
async fn log_out(call: &Call, name: String) -> Result<(), Refused> {
    let of = name.clone();
    call.blocking(move |engine| {
        for id in sessions_of(&engine.tokens()?, &of) {
            engine.remove_token(&id)?;
        }
        Ok::<_, Fault>(())
    })
    .await??;
    call.guard.forget_sessions(&name);
    Ok(())
}
