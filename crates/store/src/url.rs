//! Store URLs: one text that says where the facts are kept.

mod postgres;

use std::path::PathBuf;
use std::str::FromStr;

pub use postgres::PostgresUrl;
#[cfg(feature = "postgres")]
pub(crate) use postgres::Tls;
use postgres::without_password;

/// Where the facts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In memory: gone with the process.
    Memory,
    /// In one file.
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What an acknowledgement means.
        durability: Durability,
    },
    /// In a schema of a PostgreSQL database, which nodes share.
    Postgres(PostgresUrl),
}

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It survives power loss.
    #[default]
    Full,
    /// It survives the end of the process; the last moments may be lost with the power.
    Relaxed,
}

/// How many shards a new store has that nodes share.
const SHARED_SHARDS: u16 = 64;

/// A text that is no store URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a store like sqlite:abide.db, sqlite:abide.db?durability=relaxed, postgres://user@host/database?schema=abide or memory:, found {found:?}{hint}"
)]
pub struct BadUrl {
    found: String,
    hint: &'static str,
}

impl FromStr for StoreUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        let bad = |hint| BadUrl { found: without_password(text).chars().take(200).collect(), hint };
        if text == "memory:" || text == "memory" {
            return Ok(Self::Memory);
        }
        if text.starts_with("postgres:") || text.starts_with("postgresql:") {
            return PostgresUrl::parse(text).map(Self::Postgres).map_err(bad);
        }
        let (path, query) = match text.strip_prefix("sqlite:") {
            Some(rest) => rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query))),
            None => return Err(bad("; a plain path needs sqlite: in front")),
        };
        if path.is_empty() {
            return Err(bad("; the path is missing"));
        }
        let durability = match query {
            None | Some("" | "durability=full") => Durability::Full,
            Some("durability=relaxed") => Durability::Relaxed,
            Some(_) => return Err(bad("; the only option is durability=full or durability=relaxed")),
        };
        Ok(Self::Sqlite { path: PathBuf::from(path), durability })
    }
}

impl StoreUrl {
    /// How many shards a store that is made new gets, unless it is said otherwise: one, or enough for many nodes.
    #[must_use]
    pub fn shards_default(&self) -> u16 {
        match self {
            Self::Memory | Self::Sqlite { .. } => 1,
            Self::Postgres(_) => SHARED_SHARDS,
        }
    }

    /// The same with another meaning of an acknowledgement, where it has one.
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        match self {
            Self::Memory => Self::Memory,
            Self::Sqlite { path, .. } => Self::Sqlite { path, durability },
            Self::Postgres(url) => Self::Postgres(url.with_durability(durability)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SQ-14: where facts are kept is said once, checked, and never taken from a request.
    #[test]
    fn a_store_url_says_what_was_expected() {
        let url: StoreUrl = "sqlite:a b.db?durability=relaxed".parse().unwrap();
        assert_eq!(url, StoreUrl::Sqlite { path: "a b.db".into(), durability: Durability::Relaxed });
        assert_eq!("memory:".parse(), Ok(StoreUrl::Memory));
        for wrong in ["", "abide.db", "sqlite:", "sqlite:x?sync=off", "postgres:x"] {
            let error = wrong.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("sqlite:abide.db"), "{error}");
        }
    }
    /// Whatever is written there, the answer is a place or says what was expected, and is not longer than it must be.
    #[test]
    fn any_text_is_a_place_or_refused() {
        let parts =
            ["sqlite:", "memory:", "postgres://", "?", "durability=", "relaxed", "full", "\u{0}", "ж", "/", " ", "x"];
        for seed in 0..20_000u64 {
            let draw = |n: u64| abide_kernel::mix(seed * 16 + n) as usize;
            let text: String = (0..draw(0) % 8).map(|n| parts[draw(n as u64 + 1) % parts.len()]).collect();
            match text.parse::<StoreUrl>() {
                Ok(StoreUrl::Memory) => assert!(text.starts_with("memory")),
                Ok(StoreUrl::Postgres(_)) => assert!(text.starts_with("postgres")),
                Ok(StoreUrl::Sqlite { path, .. }) => {
                    let path = path.to_str().unwrap();
                    assert!(!path.is_empty() && text[7..].starts_with(path), "{text:?}");
                }
                Err(bad) => assert!(bad.to_string().contains("sqlite:abide.db"), "{bad}"),
            }
        }
        let long = "ж".repeat(1_000_000).parse::<StoreUrl>().unwrap_err().to_string();
        assert!(long.len() < 2_000, "{}", long.len());
    }
}
