//! Payloads: the user's data, as JSON text that passes through untouched.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ids::stable_hash;

/// One JSON document, kept as the text it arrived as and never re-encoded.
#[derive(Clone)]
pub struct Payload(Arc<RawValue>);

impl Payload {
    /// The JSON document `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(Arc::from(RawValue::NULL.to_owned()))
    }

    /// Encodes a value.
    ///
    /// # Errors
    /// When the value has no JSON form (a map with keys that are not text, a failing `Serialize`).
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// Takes text that claims to be JSON, and checks it.
    ///
    /// # Errors
    /// When the text is not exactly one JSON document.
    pub fn parse(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self::from)
    }

    /// Decodes the document.
    ///
    /// # Errors
    /// When the document does not have the shape of `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.text())
    }

    /// The JSON text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// How many bytes the text has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text().len()
    }

    /// A hash that is the same for documents that differ only in white space and in the order of their keys.
    #[must_use]
    pub fn canonical_hash(&self) -> u64 {
        // What cannot be decoded that way is hashed as it stands.
        match serde_json::from_str::<Value>(self.text()) {
            Ok(value) => stable_hash(canonical(&value).as_bytes()),
            Err(_) => stable_hash(self.text().as_bytes()),
        }
    }
}

/// A number as ECMAScript writes it, which says for every number how: the shortest digits that mean it, without a fraction
/// where there is none.
fn float(number: f64) -> String {
    let text = alloc::format!("{:e}", number.abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let sign = if number < 0.0 { "-" } else { "" };
    // Where the point is, counted from the first digit.
    let point = exponent.parse::<i32>().unwrap_or_default() + 1;
    let count = digits.len() as i32;
    let zeros = |count: i32| "0".repeat(count.unsigned_abs() as usize);
    match point {
        1..=21 if count <= point => alloc::format!("{sign}{digits}{}", zeros(point - count)),
        1..=21 => {
            let (whole, fraction) = digits.split_at(point as usize);
            alloc::format!("{sign}{whole}.{fraction}")
        }
        -5..=0 => alloc::format!("{sign}0.{}{digits}", zeros(point)),
        _ => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            alloc::format!("{sign}{first}{dot}{rest}e{:+}", point - 1)
        }
    }
}

/// The text of what can always be written.
fn plain<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// JSON without white space, with sorted keys and with numbers written one way. Said here, and not left to `Value`: other
/// crates of a build can make that one keep the order and the digits it has read.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields = fields.iter().map(|(name, value)| alloc::format!("{}:{}", plain(*name), canonical(value)));
            alloc::format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => alloc::format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), _, _) => plain(&number),
            (_, Some(number), _) => plain(&number),
            (_, _, Some(number)) => float(number),
            (None, None, None) => alloc::string::ToString::to_string(number),
        },
        Value::String(text) => plain(text),
        Value::Bool(_) | Value::Null => plain(value),
    }
}

impl From<Box<RawValue>> for Payload {
    fn from(raw: Box<RawValue>) -> Self {
        Self(Arc::from(raw))
    }
}

impl Default for Payload {
    fn default() -> Self {
        Self::null()
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.text() == other.text()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Reads a payload that is there. Serde takes `null` for nothing, but a value that is null is a value.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Payload>, D::Error> {
    Payload::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_ecmascript_does() {
        let numbers = [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (0.000_001, "0.000001"),
            (0.000_000_1, "1e-7"),
            (1.25e-9, "1.25e-9"),
            (123_456_789_012_345_680.0, "123456789012345680"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5e300, "1.5e+300"),
            (5e-324, "5e-324"),
        ];
        for (number, text) in numbers {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn text_passes_untouched_and_compares_by_meaning_when_asked() {
        let one = Payload::parse(r#"{"a": 1, "b":2}"#).expect("json");
        let two = Payload::parse(r#"{"b":2,"a":1}"#).expect("json");
        assert_eq!(one.text(), r#"{"a": 1, "b":2}"#);
        assert_ne!(one, two);
        assert_eq!(one.canonical_hash(), two.canonical_hash());
        let hash = |text: &str| Payload::parse(text).expect("json").canonical_hash();
        assert_eq!(hash("[1.0, -0.0, 1e2, 25e-1]"), hash("[1,0,100,2.5]"));
        assert_ne!(hash("1"), hash("1.5"));
        assert!(Payload::parse("{").is_err());
        assert!(Payload::parse("1 2").is_err());
    }
}
