//! Scopes: what a token lets its holder do.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a token lets its holder do, in the namespaces it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// See runs, effects, tasks and what surrounds them.
    Read,
    /// Start runs.
    Start,
    /// Send signals and updates.
    Signal,
    /// Cancel, resolve, decide, requeue.
    Operate,
    /// Execute attempts of one queue, or of all with `*`.
    Worker(String),
    /// All of it, and tokens.
    Admin,
}

impl Scope {
    const WORKER: &'static str = "worker:";
    /// Stands for all queues in a token, and for any of them in what a route needs.
    pub const ANY: &'static str = "*";

    /// Whether whoever has this may do what `needed` stands for.
    #[must_use]
    pub fn covers(&self, needed: &Self) -> bool {
        match (self, needed) {
            (Self::Admin, _) => true,
            (Self::Worker(has), Self::Worker(queue)) => has == queue || has == Self::ANY || queue == Self::ANY,
            _ => self == needed,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read"),
            Self::Start => f.write_str("start"),
            Self::Signal => f.write_str("signal"),
            Self::Operate => f.write_str("operate"),
            Self::Worker(queue) => write!(f, "{}{queue}", Self::WORKER),
            Self::Admin => f.write_str("admin"),
        }
    }
}

/// A word that is no scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadScope(String);

impl fmt::Display for BadScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected one of read, start, signal, operate, worker:<queue>, admin, found {:?}", self.0)
    }
}

impl std::error::Error for BadScope {}

impl FromStr for Scope {
    type Err = BadScope;

    fn from_str(text: &str) -> Result<Self, BadScope> {
        match text {
            "read" => Ok(Self::Read),
            "start" => Ok(Self::Start),
            "signal" => Ok(Self::Signal),
            "operate" => Ok(Self::Operate),
            "admin" => Ok(Self::Admin),
            _ => match text.strip_prefix(Self::WORKER) {
                Some(queue) if !queue.is_empty() => Ok(Self::Worker(queue.to_owned())),
                _ => Err(BadScope(text.chars().take(80).collect())),
            },
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Scope {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Scope".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "What a token lets its holder do. `admin` covers all others.",
            "pattern": "^(read|start|signal|operate|admin|worker:.+)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-16
    #[test]
    fn a_scope_has_one_word_and_only_admin_covers_others() {
        let all = ["read", "start", "signal", "operate", "worker:mail", "admin"];
        for word in all {
            let scope: Scope = word.parse().unwrap();
            assert_eq!(scope.to_string(), word);
            for other in all {
                let needed: Scope = other.parse().unwrap();
                assert_eq!(scope.covers(&needed), word == other || word == "admin", "{word} {other}");
            }
        }
        let worker = |queue: &str| Scope::Worker(queue.to_owned());
        assert!(worker("*").covers(&worker("mail")), "one for all queues");
        assert!(worker("mail").covers(&worker(Scope::ANY)), "where any queue will do");
        assert!(!worker("mail").covers(&worker("post")) && !Scope::Read.covers(&worker(Scope::ANY)));
        for wrong in ["", "worker:", "Read", "write"] {
            assert!(wrong.parse::<Scope>().unwrap_err().to_string().contains("expected one of read"), "{wrong}");
        }
    }
}
