//! Users of a store: read beside whoever serves it, or changed by owning it for a moment.

use abide_kernel::Timestamp;
use abide_protocol::{CreateUser, Password, User};
use abide_runtime::Engine;
use abide_server::{BadUser, USER, USERS_MAX, enrol, sessions_of, shown_user, with_password};
use abide_store::{Fault, Kept};

use crate::failure::{Exit, Failure};
use crate::place::Place;

impl Place {
    pub(super) fn users(&self) -> Result<Vec<User>, Failure> {
        let kept = self.reader()?.kept(USER, None, USERS_MAX)?;
        Ok(kept.iter().rev().map(shown_user).collect::<Result<_, BadUser>>()?)
    }

    pub(super) fn add_user(&self, asked: CreateUser, now: Timestamp) -> Result<User, Failure> {
        let (kept, user) = enrol(asked, now)?;
        let is_new = self.change_or_make(async |owner| {
            tokio::task::block_in_place(|| {
                if find(&owner.engine, &kept.id)?.is_some() {
                    return Ok(false);
                }
                owner.engine.keep(std::slice::from_ref(&kept))?;
                Ok(true)
            })
        })?;
        if !is_new {
            let what = format!("there is a user {:?} in {}", user.name, self.shown());
            return Err(Failure::new(Exit::Failure, "user_exists", what)
                .hint("abide user password gives a user another password"));
        }
        Ok(user)
    }

    pub(super) fn remove_user(&self, name: &str) -> Result<bool, Failure> {
        self.change(async |owner| {
            tokio::task::block_in_place(|| {
                let found = owner.engine.forget(USER, name)?;
                log_out(&owner.engine, name)?;
                Ok(found)
            })
        })
    }

    pub(super) fn change_password(&self, name: &str, password: &Password) -> Result<bool, Failure> {
        self.change(async |owner| {
            tokio::task::block_in_place(|| {
                let Some(kept) = find(&owner.engine, name)? else { return Ok(false) };
                let changed = with_password(&kept, password)??;
                owner.engine.keep(&[changed])?;
                log_out(&owner.engine, name)?;
                Ok(true)
            })
        })
    }
}

/// The user of a name, among those that are kept.
fn find(engine: &Engine, name: &str) -> Result<Option<Kept>, Fault> {
    Ok(engine.kept(USER, None, USERS_MAX)?.into_iter().find(|kept| kept.id == name))
}

/// Ends all sessions of a user. Servers take notice within five seconds.
fn log_out(engine: &Engine, name: &str) -> Result<(), Fault> {
    for id in sessions_of(&engine.tokens()?, name) {
        engine.remove_token(&id)?;
    }
    Ok(())
}

impl From<BadUser> for Failure {
    fn from(bad: BadUser) -> Self {
        Self::new(Exit::Failure, "corrupt", bad.to_string())
    }
}
