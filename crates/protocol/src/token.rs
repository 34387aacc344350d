//! Tokens: who may do what where.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Instant, Scope, Secret};

/// A token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Whose it is, for people: decisions are made under this name.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Where: names of namespaces, or `*` for all.
    pub namespaces: Vec<String>,
    /// For how long, in milliseconds; for ever if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Its id, by which it is revoked.
    #[schemars(with = "crate::shape::Token")]
    pub token: String,
    /// Whose it is.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Where.
    pub namespaces: Vec<String>,
    /// When it was made.
    pub created_at: Instant,
    /// When it ends.
    pub expires_at: Option<Instant>,
}

/// A token that was made. The secret is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CreatedToken {
    /// The token.
    #[serde(flatten)]
    pub token: Token,
    /// What to send as `Authorization: Bearer …`. It is kept nowhere.
    #[schemars(with = "String")]
    pub secret: Secret,
}

/// The tokens of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// The tokens.
    pub tokens: Vec<Token>,
}
