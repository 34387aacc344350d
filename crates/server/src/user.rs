//! Users: how they are made, kept and recognised. A store has a hash of the password (argon2id), and never the password.

use std::sync::LazyLock;

use abide_kernel::{Refusal, RequestId, Timestamp};
use abide_protocol::{CreateUser, Instant, Password, Role, User};
use abide_store::Kept;
use argon2::Argon2;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use serde::{Deserialize, Serialize};

use crate::limits::{PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN};
use crate::token::{invalid, mark, named, some};

/// Under which kind the store keeps them.
pub const USER: &str = "user";

/// How many a store has at most: all are read to find one.
pub const USERS_MAX: usize = 1_000;

/// What is kept of a user.
#[derive(Serialize, Deserialize)]
pub(crate) struct Account {
    #[serde(flatten)]
    pub(crate) user: User,
    /// Of the password, with its salt and the parameters of argon2id.
    hash: String,
    /// The request that made it, if that had a key: it may come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<RequestId>,
}

/// What is kept of a user cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("user {name:?}: {source}")]
pub struct BadUser {
    name: String,
    #[source]
    source: serde_json::Error,
}

/// What is to be kept of a user. It takes a moment: guessing a password from its hash should take many.
///
/// # Errors
/// When what is asked makes no sense; nothing is made then.
pub fn enrol(asked: CreateUser, now: Timestamp) -> Result<(Kept, User), Refusal> {
    let CreateUser { name, role, namespaces, password } = asked;
    check_name(&name)?;
    some("namespaces", namespaces.len())?;
    namespaces.iter().try_for_each(|namespace| named("namespace", namespace))?;
    if role == Role::Admin && namespaces.len() > 1 && namespaces.iter().any(|namespace| namespace == "*") {
        return Err(invalid("namespaces", "* alone, or names", "* beside others".into()));
    }
    let user = User { name, role, namespaces, created_at: Instant(now) };
    let hash = hashed(&password)?;
    Ok((Account { user: user.clone(), hash, request: None }.kept(), user))
}

/// What is to be kept of a user with another password.
///
/// # Errors
/// When the password makes no sense, or what is kept cannot be read.
pub fn with_password(kept: &Kept, password: &Password) -> Result<Result<Kept, Refusal>, BadUser> {
    let account = Account::read(kept)?;
    Ok(hashed(password).map(|hash| Account { hash, ..account }.kept()))
}

/// A user as people see it.
///
/// # Errors
/// When what is kept cannot be read.
pub fn shown_user(kept: &Kept) -> Result<User, BadUser> {
    Account::read(kept).map(|account| account.user)
}

impl Account {
    /// Notes which request made it.
    pub(crate) fn made_by(kept: &Kept, request: RequestId) -> Result<Kept, BadUser> {
        Ok(Self { request: Some(request), ..Self::read(kept)? }.kept())
    }

    /// Whether this request made it, and asks for what it is now. It takes a moment, as logging in does.
    pub(crate) fn is_made_by(&self, request: RequestId, asked: &CreateUser) -> bool {
        let same = self.user.role == asked.role && self.user.namespaces == asked.namespaces;
        self.request == Some(request) && same && is_of(Some(self), &asked.password)
    }

    pub(crate) fn read(kept: &Kept) -> Result<Self, BadUser> {
        serde_json::from_str(&kept.body).map_err(|source| BadUser { name: kept.id.clone(), source })
    }

    /// What marks it: neither an account with another password nor another one of the same name has the same.
    pub(crate) fn mark(&self) -> String {
        mark(&self.hash)
    }

    fn kept(&self) -> Kept {
        let body = serde_json::to_string(self).expect("an account is plain data with text keys");
        Kept { kind: USER.into(), id: self.user.name.clone(), body }
    }
}

/// Whether the password is that of the account. It takes as long when there is no account: how long it takes tells nobody
/// which names there are.
pub(crate) fn is_of(account: Option<&Account>, password: &Password) -> bool {
    static NOBODY: LazyLock<String> = LazyLock::new(|| {
        hashed(&Password::new("a password of nobody at all")).expect("a password of the right length is hashed")
    });
    let hash = account.map_or_else(|| NOBODY.as_str(), |account| account.hash.as_str());
    let fits = Argon2::default().verify_password(password.bytes(), hash).is_ok();
    fits && account.is_some()
}

/// A name in a path and a header: nothing that means something there.
fn check_name(name: &str) -> Result<(), Refusal> {
    named("name", name)?;
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.@+".contains(letter);
    match name.chars().all(is_plain) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(invalid("name", "letters, digits and - _ . @ +", format!("{name:?}"))),
    }
}

fn hashed(password: &Password) -> Result<String, Refusal> {
    let found = password.bytes().len();
    if !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&found) {
        let expected = format!("{PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes");
        return Err(invalid("password", &expected, format!("{found} bytes")));
    }
    let hash = Argon2::default().hash_password(password.bytes());
    Ok(hash.expect("there is memory and chance for a hash").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> CreateUser {
        CreateUser {
            name: "ada".into(),
            role: Role::Operator,
            namespaces: vec!["shop".into()],
            password: Password::new("correct horse"),
        }
    }

    /// AB-16: what is kept recognises the password and does not hold it.
    #[test]
    fn a_user_is_recognised_by_what_is_kept_and_not_told_by_it() {
        let (kept, user) = enrol(asked(), Timestamp(7)).unwrap();
        assert_eq!((kept.kind.as_str(), kept.id.as_str(), user.role), (USER, "ada", Role::Operator));
        assert!(kept.body.contains("$argon2id$") && !kept.body.contains("horse"), "{kept:?}");
        let account = Account::read(&kept).unwrap();
        assert!(is_of(Some(&account), &Password::new("correct horse")));
        assert!(!is_of(Some(&account), &Password::new("correct horsf")));
        assert!(!is_of(None, &Password::new("a password of nobody at all")), "nobody has no password");
        let changed = with_password(&kept, &Password::new("another horse")).unwrap().unwrap();
        let account = Account::read(&changed).unwrap();
        assert!(is_of(Some(&account), &Password::new("another horse")) && account.user == user);
        assert_ne!(enrol(asked(), Timestamp(7)).unwrap().0.body, kept.body, "salted");
    }

    #[test]
    fn wishes_that_make_no_sense_are_refused() {
        let wishes = [
            CreateUser { name: String::new(), ..asked() },
            CreateUser { name: "a/b".into(), ..asked() },
            CreateUser { name: "..".into(), ..asked() },
            CreateUser { namespaces: Vec::new(), ..asked() },
            CreateUser { namespaces: vec!["".into()], ..asked() },
            CreateUser { role: Role::Admin, namespaces: vec!["*".into(), "shop".into()], ..asked() },
            CreateUser { password: Password::new("short"), ..asked() },
            CreateUser { password: Password::new("x".repeat(PASSWORD_BYTES_MAX + 1)), ..asked() },
        ];
        for wish in wishes {
            let refused = enrol(wish, Timestamp(0)).unwrap_err();
            assert!(matches!(refused, Refusal::Invalid { .. }), "{refused:?}");
        }
        let (kept, _) = enrol(asked(), Timestamp(0)).unwrap();
        assert!(with_password(&kept, &Password::new("short")).unwrap().is_err());
    }
}
