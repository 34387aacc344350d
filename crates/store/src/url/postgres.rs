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
        let shown = without_password(&self.address);
        let separator = if shown.contains('?') { '&' } else { '?' };
        write!(out, "{shown}{separator}schema={}", self.schema)
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

/// Options whose values are for everybody to see.
const SHOWN: [&str; 11] = [
    "application_name",
    "connect_timeout",
    "dbname",
    "durability",
    "host",
    "port",
    "schema",
    "sslmode",
    "sslrootcert",
    "strict",
    "target_session_attrs",
];

/// A URL as it may be shown, and any text in place of one. A password may have every sign in it that has a meaning elsewhere, if
/// somebody forgot to write it as `%3F`: what cannot be told from one is left out.
pub(super) fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        let is_database = text.starts_with("postgres");
        return if is_database { "postgres:***".to_owned() } else { text.to_owned() };
    };
    let (place, query) = rest.split_once('?').map_or((rest, ""), |(place, query)| (place, query));
    let first = |text: &str| text.split([':', '@', '/', '?']).next().unwrap_or_default().to_owned();
    if query.contains('@') {
        return format!("{scheme}://{}:***", first(place));
    }
    let (user, place) = place.rsplit_once('@').map_or((None, place), |(user, place)| (Some(user), place));
    let hosts = place.split('/').next().unwrap_or_default();
    let has_port = |host: &str| {
        let (_, behind) = host.rsplit_once(']').unwrap_or(("", host));
        behind.split_once(':').is_none_or(|(_, port)| port.bytes().all(|sign| sign.is_ascii_digit()))
    };
    let mut shown = match user {
        Some(user) if user.contains(':') => format!("{scheme}://{}:***@{place}", first(user)),
        Some(user) => format!("{scheme}://{user}@{place}"),
        None if hosts.split(',').all(has_port) => format!("{scheme}://{place}"),
        None => format!("{scheme}://{}:***", first(place)),
    };
    for (index, option) in query.split('&').filter(|option| !option.is_empty()).enumerate() {
        shown.push(if index == 0 { '?' } else { '&' });
        match option.split_once('=') {
            Some((name, _)) if SHOWN.contains(&name) => shown.push_str(option),
            Some((name, _)) => shown.push_str(&format!("{name}=***")),
            None => shown.push_str("***"),
        }
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
        for (text, shown) in [
            ("postgres://ada:se?cret@db/orders", "postgres://ada:***"),
            ("postgres://ada:se/c:r@et@db/orders?schema=A", "postgres://ada:***@db/orders?schema=A"),
            ("postgres://ada:se?c&ret@db/orders?schema=A", "postgres://ada:***"),
            ("postgres://ada@db/orders?schema=A&password=se@cret", "postgres://ada:***"),
            ("postgres://ada@db/orders?pasword=secret", "postgres://ada@db/orders?pasword=***"),
            ("postgres://ada@db/orders?secret", "postgres://ada@db/orders?***"),
            ("postgres://ada:secret%40db/orders", "postgres://ada:***"),
            ("postgres:ada:secret@db/orders", "postgres:***"),
            ("postgres://db:5432,[::1]:5433/orders?schema=A", "postgres://db:5432,[::1]:5433/orders?schema=A"),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(&format!("{shown:?}")), "{text}: {error}");
        }
        let url = parse("postgres://ada:secret@db/orders?password=se@cret");
        assert!(!format!("{url}").contains("cret"), "{url}");
        let url = parse("postgres://ada:secret@db/orders?password=secret");
        for shown in [format!("{url:?}"), format!("{url}"), format!("{:?}", StoreUrl::Postgres(url.clone()))] {
            assert!(!shown.contains("secret"), "{shown}");
        }
    }
}
