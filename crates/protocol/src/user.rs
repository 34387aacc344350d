//! Users: people who log in with a name and a password, and what they may do by their role. And sessions, which they get for it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Instant, Scope};

/// What somebody is there for, as a set of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// All of it, tokens and users included.
    Admin,
    /// See, start, signal, cancel, decide.
    Operator,
    /// Execute attempts of all queues.
    Worker,
    /// See.
    Reader,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Worker, Self::Reader];

    /// What it allows.
    #[must_use]
    pub fn scopes(self) -> Vec<Scope> {
        match self {
            Self::Admin => vec![Scope::Admin],
            Self::Operator => vec![Scope::Read, Scope::Start, Scope::Signal, Scope::Operate],
            Self::Worker => vec![Scope::Worker(Scope::ANY.into())],
            Self::Reader => vec![Scope::Read],
        }
    }

    /// Its word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Worker => "worker",
            Self::Reader => "reader",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRole(String);

impl fmt::Display for BadRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected one of admin, operator, worker, reader, found {:?}", self.0)
    }
}

impl std::error::Error for BadRole {}

impl FromStr for Role {
    type Err = BadRole;

    fn from_str(text: &str) -> Result<Self, BadRole> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| BadRole(text.chars().take(80).collect()))
    }
}

/// A password. It is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "password"))]
pub struct Password(String);

impl Password {
    /// What somebody typed.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What it is made of, for hashing it and nothing else.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// A user that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// The name: decisions are made under it.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// Where: names of namespaces, or `*` for all.
    pub namespaces: Vec<String>,
    /// By what they are known: at least 10 bytes.
    pub password: Password,
}

/// Another password for a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPassword {
    /// By what they are known from now on: at least 10 bytes.
    pub password: Password,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct User {
    /// The name.
    pub name: String,
    /// What they may do.
    pub role: Role,
    /// Where.
    pub namespaces: Vec<String>,
    /// When it was made.
    pub created_at: Instant,
}

/// The users of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Users {
    /// The users.
    pub users: Vec<User>,
}

/// Who wants a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The name.
    pub name: String,
    /// The password.
    pub password: Password,
}

/// Who asks, and what they may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// The name of the user or of the token.
    pub name: String,
    /// What they may do.
    pub scopes: Vec<Scope>,
    /// Where: names of namespaces, or `*` for all.
    pub namespaces: Vec<String>,
    /// When it ends.
    pub expires_at: Option<Instant>,
    /// What to send as `X-CSRF-Token` with everything but `GET`; only where a cookie says who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-16
    #[test]
    fn a_role_has_one_word_and_only_an_admin_may_all() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
            let covers = |needed: &Scope| role.scopes().iter().any(|scope| scope.covers(needed));
            assert_eq!(covers(&Scope::Admin), role == Role::Admin);
            assert_eq!(covers(&Scope::Operate), matches!(role, Role::Admin | Role::Operator));
            assert_eq!(covers(&Scope::Read), role != Role::Worker);
            assert_eq!(covers(&Scope::Worker("mail".into())), matches!(role, Role::Admin | Role::Worker));
        }
        assert!("root".parse::<Role>().unwrap_err().to_string().contains("expected one of admin"));
        let login = Login { name: "ada".into(), password: Password::new("canary") };
        assert!(!format!("{login:?}").contains("canary"));
    }
}
