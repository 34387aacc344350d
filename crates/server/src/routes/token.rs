//! Tokens: made, listed and revoked while the server runs.

use abide_protocol::{CreateToken, Problem, Token, Tokens};

use crate::answer::{Answered, Refused, done, internal, json};
use crate::call::Call;
use crate::token::{id_for, mint_again, shown};

pub(crate) async fn list(call: Call) -> Answered {
    let stored = call.blocking(|engine| engine.tokens()).await??;
    let tokens: Result<Vec<Token>, _> = stored.iter().map(shown).collect();
    json(&Tokens { tokens: tokens.map_err(|error| internal(&error))? })
}

pub(crate) async fn create(call: Call) -> Answered {
    let asked: CreateToken = call.body()?;
    let (id, logins, now) = (id_for(call.request()), call.logins.clone(), call.engine.now());
    let made = call.blocking(move |engine| {
        let _one = logins.accounts.lock();
        let (stored, created) = mint_again(id.clone(), engine.token(&id)?.as_ref(), asked, now)?;
        engine.write_token(&stored)?;
        Ok::<_, Refused>(created)
    });
    let created = made.await??;
    // The same token may have had another secret before.
    call.guard.forget(&created.token.token);
    json(&created)
}

pub(crate) async fn revoke(call: Call) -> Answered {
    let id = call.word("token").to_owned();
    let revoked = id.clone();
    let found = call.blocking(move |engine| engine.remove_token(&revoked)).await??;
    call.guard.forget(&id);
    if found { Ok(done()) } else { Err(Problem::new("not_found", format!("there is no token {id:?}")).into()) }
}
