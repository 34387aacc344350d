//! Instants on the network: RFC 3339 in UTC with milliseconds.

use std::fmt;
use std::str::FromStr;

use abide_kernel::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant, written like `2026-11-15T21:08:02.125Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Timestamp);

impl From<Timestamp> for Instant {
    fn from(at: Timestamp) -> Self {
        Self(at)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0.0) {
            Ok(at) => write!(f, "{at:.3}"),
            // Past the year 9999 there is no such text.
            Err(_) => f.write_str("9999-12-31T23:59:59.999Z"),
        }
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Text that is no instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadInstant;

impl BadInstant {
    /// What an instant looks like.
    pub const EXPECTED: &str = "an instant like 2026-11-15T21:08:02.125Z";
}

impl fmt::Display for BadInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", Self::EXPECTED)
    }
}

impl std::error::Error for BadInstant {}

impl FromStr for Instant {
    type Err = BadInstant;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let at: jiff::Timestamp = text.parse().map_err(|_| BadInstant)?;
        Ok(Self(Timestamp(at.as_millisecond())))
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Instant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Instant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_has_milliseconds_and_comes_back() {
        let at = Instant(Timestamp(1_794_000_482_125));
        let text = serde_json::to_string(&at).unwrap();
        assert_eq!(text, "\"2026-11-06T21:28:02.125Z\"");
        assert_eq!(serde_json::from_str::<Instant>(&text).unwrap(), at);
        assert_eq!(Instant(Timestamp(0)).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Instant(Timestamp(i64::MAX)).to_string(), "9999-12-31T23:59:59.999Z");
        assert!(
            serde_json::from_str::<Instant>("\"yesterday\"").unwrap_err().to_string().contains("expected an instant")
        );
    }
}
