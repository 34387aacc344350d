//! Secrets: text that is sent to whom it is for, and shown to nobody by accident.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Text by which somebody gets in. It reads as text wherever text is wanted, and `{:?}` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// What is to be kept to oneself.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-16: what is logged of a message tells no secret; what is sent does.
    #[test]
    fn a_secret_is_sent_and_not_shown() {
        let made = crate::Reports { token: Secret::new("hush"), reports: Vec::new(), next: None };
        assert!(!format!("{made:?}").contains("hush"));
        let text = serde_json::to_string(&made).unwrap();
        assert!(text.contains("\"hush\""));
        assert_eq!(serde_json::from_str::<crate::Reports>(&text).unwrap().token, made.token);
    }
}
