//! URLs of PostgreSQL databases: what the client knows of, and a few options of our own beside it.

use std::fmt;
#[cfg(feature = "postgres")]
use std::path::Path;
use std::path::PathBuf;

use super::Durability;

/// The schema of a store whose URL names none.
const SCHEMA: &str = "abide";
/// PostgreSQL cuts longer names off.
const SCHEMA_BYTES_MAX: usize = 63;

/// Where a store is in a PostgreSQL database. It may hold a password, which it does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// The URL without our own options.
    address: String,
    schema: String,
    durability: Durability,
    strict: bool,
    tls: Tls,
    root_certificate: Option<PathBuf>,
}

/// How far a connection is encrypted, and whether the server has to prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    Off,
    /// If the server can.
    Prefer,
    /// By whoever answers; by the one that a given root certificate vouches for.
    Require,
    /// By the host that was named.
    Verify,
}

impl PostgresUrl {
    /// Reads a URL, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (place, query) = text.split_once('?').map_or((text, ""), |(place, query)| (place, query));
        if !place.starts_with("postgres://") && !place.starts_with("postgresql://") {
            return Err("; after the colon come two slashes, as in postgres://user@host/database");
        }
        let mut url = Self {
            address: place.to_owned(),
            schema: SCHEMA.to_owned(),
            durability: Durability::Full,
            strict: false,
            tls: Tls::Prefer,
            root_certificate: None,
        };
        let mut rest = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let Some((name, value)) = option.split_once('=') else {
                return Err("; an option has a name and a value, as in schema=abide");
            };
            if !url.set(name, value)? {
                rest.push(option);
            }
        }
        if !rest.is_empty() {
            url.address = format!("{place}?{}", rest.join("&"));
        }
        url.check()?;
        Ok(url)
    }

    /// Takes an option of our own. Whether it is one.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, &'static str> {
        match (name, value) {
            ("schema", schema) if is_plain(schema) => self.schema = schema.to_owned(),
            ("schema", _) => {
                return Err(
                    "; a schema's name has at most 63 small letters, digits and underscores, and begins with no digit",
                );
            }
            ("durability", "full") => self.durability = Durability::Full,
            ("durability", "relaxed") => self.durability = Durability::Relaxed,
            ("durability", _) => return Err("; durability is full or relaxed"),
            ("strict", "true") => self.strict = true,
            ("strict", "false") => self.strict = false,
            ("strict", _) => return Err("; strict is true or false"),
            ("sslmode", "disable") => self.tls = Tls::Off,
            ("sslmode", "prefer") => self.tls = Tls::Prefer,
            ("sslmode", "require") => self.tls = Tls::Require,
            ("sslmode", "verify-full") => self.tls = Tls::Verify,
            ("sslmode", _) => return Err("; sslmode is disable, prefer, require or verify-full"),
            ("sslrootcert", path) => self.root_certificate = Some(PathBuf::from(path)),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the client understands the rest.
    #[cfg(feature = "postgres")]
    fn check(&self) -> Result<(), &'static str> {
        self.address
            .parse::<tokio_postgres::Config>()
            .map(drop)
            .map_err(|_| "; the client does not understand its address or one of its options")
    }

    #[cfg(not(feature = "postgres"))]
    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// The schema that holds the store.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// What an acknowledgement means.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The same with another meaning of an acknowledgement.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same in another schema.
    ///
    /// # Errors
    /// What a name of a schema has to be.
    pub fn with_schema(mut self, schema: &str) -> Result<Self, super::BadUrl> {
        match self.set("schema", schema) {
            Ok(_) => Ok(self),
            Err(hint) => Err(super::BadUrl { found: schema.chars().take(200).collect(), hint }),
        }
    }

    /// Whether a server that may lose what it acknowledged is refused.
    #[must_use]
    pub fn strict(&self) -> bool {
        self.strict
    }

    /// What the client gets. It may hold a password.
    #[cfg(feature = "postgres")]
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn tls(&self) -> Tls {
        self.tls
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn root_certificate(&self) -> Option<&Path> {
        self.root_certificate.as_deref()
    }
}

/// As it was given, without the password.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.address.contains('?') { '&' } else { '?' };
        write!(out, "{}{separator}schema={}", without_password(&self.address), self.schema)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PostgresUrl({self})")
    }
}

/// A name that stands for itself between quotes, and is the same without them unless it is a word of SQL.
fn is_plain(name: &str) -> bool {
    let sign = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    let short = (1..=SCHEMA_BYTES_MAX).contains(&name.len());
    short
        && name.bytes().all(sign)
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.starts_with("pg_")
}

/// A URL as it may be shown.
pub(super) fn without_password(text: &str) -> String {
    let (place, query) = text.split_once('?').map_or((text, None), |(place, query)| (place, Some(query)));
    let mut shown = match place.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (user, host))) => {
            let user = user.split_once(':').map_or(user.to_owned(), |(name, _)| format!("{name}:***"));
            format!("{scheme}://{user}@{host}")
        }
        None => place.to_owned(),
    };
    for (index, option) in query.unwrap_or_default().split('&').filter(|option| !option.is_empty()).enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        shown.push_str(if option.starts_with("password=") { "password=***" } else { option });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreUrl;

    fn parse(text: &str) -> PostgresUrl {
        match text.parse() {
            Ok(StoreUrl::Postgres(url)) => url,
            other => panic!("expected the URL of a database, found {other:?}"),
        }
    }

    #[test]
    fn our_own_options_are_taken_out() {
        let url =
            parse("postgresql://ada:secret@db/orders?schema=eu_1&strict=true&connect_timeout=3&durability=relaxed");
        assert_eq!((url.schema(), url.strict(), url.durability()), ("eu_1", true, Durability::Relaxed));
        assert_eq!(url.address, "postgresql://ada:secret@db/orders?connect_timeout=3");
        assert_eq!(parse("postgres://db").schema(), "abide");
        assert_eq!(parse("postgres://db?sslmode=verify-full&sslrootcert=/a.pem").tls, Tls::Verify);
    }

    /// SQ-14: what is wrong is said, and a password is shown to nobody.
    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        let wrong = [
            "schema=A",
            "schema=1a",
            "schema=a%20b",
            "schema=pg_x",
            "schema=",
            "schema",
            "durability=maybe",
            "strict=1",
            "sslmode=verify-ca",
            "no_such_option=1",
        ];
        for option in wrong {
            let text = format!("postgres://ada:secret@db/orders?password=secret&{option}");
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains("postgres://ada:***@db/orders") && !error.contains("secret"), "{error}");
        }
        let url = parse("postgres://ada:secret@db/orders?password=secret");
        for shown in [format!("{url:?}"), format!("{url}"), format!("{:?}", StoreUrl::Postgres(url.clone()))] {
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}
