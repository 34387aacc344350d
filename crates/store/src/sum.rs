//! Checksums over the columns of a table: each value with its kind and length, so that no two rows look the same.

use xxhash_rust::xxh3::Xxh3Default;

/// A checksum that is being made.
pub(crate) struct Sum(Xxh3Default);

impl Sum {
    /// Begins with what the row is one of: a row of another table is not this one.
    pub(crate) fn of(table: &str) -> Self {
        Self(Xxh3Default::new()).text(Some(table))
    }

    pub(crate) fn number(self, number: i64) -> Self {
        self.maybe(Some(number))
    }

    pub(crate) fn maybe(mut self, number: Option<i64>) -> Self {
        let mut bytes = [0; 9];
        bytes[0] = u8::from(number.is_some());
        bytes[1..].copy_from_slice(&number.unwrap_or_default().to_be_bytes());
        self.0.update(&bytes);
        self
    }

    pub(crate) fn text(self, text: Option<&str>) -> Self {
        self.bytes(text.map(str::as_bytes))
    }

    pub(crate) fn bytes(self, bytes: Option<&[u8]>) -> Self {
        let mut sum = self.maybe(bytes.map(|bytes| bytes.len() as i64));
        sum.0.update(bytes.unwrap_or_default());
        sum
    }

    pub(crate) fn end(self) -> i64 {
        self.0.digest() as i64
    }
}
