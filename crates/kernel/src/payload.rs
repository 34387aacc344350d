//! Payloads: the user's data, as JSON text that passes through untouched.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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
        // Decoding into a `Value` sorts object keys; what cannot be decoded that way is hashed as it stands.
        match serde_json::from_str::<serde_json::Value>(self.text()).map(|value| serde_json::to_string(&value)) {
            Ok(Ok(text)) => stable_hash(text.as_bytes()),
            _ => stable_hash(self.text().as_bytes()),
        }
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

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_passes_untouched_and_compares_by_meaning_when_asked() {
        let one = Payload::parse(r#"{"a": 1, "b":2}"#).expect("json");
        let two = Payload::parse(r#"{"b":2,"a":1}"#).expect("json");
        assert_eq!(one.text(), r#"{"a": 1, "b":2}"#);
        assert_ne!(one, two);
        assert_eq!(one.canonical_hash(), two.canonical_hash());
        assert!(Payload::parse("{").is_err());
        assert!(Payload::parse("1 2").is_err());
    }
}
