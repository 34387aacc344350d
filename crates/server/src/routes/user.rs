//! Users: made, listed, changed and removed while the server runs.

use abide_protocol::{CreateUser, NewPassword, Problem, User, Users};
use abide_store::{Fault, Kept};

use crate::answer::{Answered, Refused, done, internal, json};
use crate::call::Call;
use crate::token::sessions_of;
use crate::user::{USER, USERS_MAX, enrol, shown_user, with_password};

pub(crate) async fn list(call: Call) -> Answered {
    let kept = all(&call).await?;
    let users: Result<Vec<User>, _> = kept.iter().rev().map(shown_user).collect();
    json(&Users { users: users.map_err(|error| internal(&error))? })
}

pub(crate) async fn create(call: Call) -> Answered {
    let asked: CreateUser = call.body()?;
    let known = all(&call).await?;
    if known.iter().any(|kept| kept.id == asked.name) {
        let problem = Problem::new("user_exists", format!("there is a user {:?}", asked.name));
        return Err(problem.but("a name that nobody has", asked.name).into());
    }
    if known.len() >= USERS_MAX {
        return Err(Problem::new("busy", format!("there are {USERS_MAX} users already")).into());
    }
    let now = call.engine.now();
    let (kept, user) = call.blocking(move |_| enrol(asked, now)).await??;
    call.blocking(move |engine| engine.keep(&[kept])).await??;
    json(&user)
}

/// A user with another password has to log in anew everywhere.
pub(crate) async fn password(call: Call) -> Answered {
    let NewPassword { password } = call.body()?;
    let kept = named(&call).await?;
    let changed =
        call.blocking(move |_| with_password(&kept, &password)).await?.map_err(|error| internal(&error))??;
    let name = changed.id.clone();
    call.blocking(move |engine| engine.keep(&[changed])).await??;
    log_out(&call, name).await?;
    Ok(done())
}

pub(crate) async fn remove(call: Call) -> Answered {
    let name = named(&call).await?.id;
    let removed = name.clone();
    call.blocking(move |engine| engine.forget(USER, &removed)).await??;
    log_out(&call, name).await?;
    Ok(done())
}

async fn named(call: &Call) -> Result<Kept, Refused> {
    let name = call.word("user");
    let found = all(call).await?.into_iter().find(|kept| kept.id == name);
    found.ok_or_else(|| Problem::new("not_found", format!("there is no user {name:?}")).into())
}

pub(super) async fn all(call: &Call) -> Result<Vec<Kept>, Refused> {
    Ok(call.blocking(|engine| engine.kept(USER, None, USERS_MAX)).await??)
}

/// Ends all sessions of a user.
async fn log_out(call: &Call, name: String) -> Result<(), Refused> {
    call.blocking(move |engine| {
        for id in sessions_of(&engine.tokens()?, &name) {
            engine.remove_token(&id)?;
        }
        Ok::<_, Fault>(())
    })
    .await??;
    call.guard.forget();
    Ok(())
}
