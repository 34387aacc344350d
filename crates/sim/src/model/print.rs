//! Prints: two states with the same print are the same state.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::Xxh3Default;

/// Fields that decide nothing, where there is one run. Some are the same in every state: how the run and the shard were
/// set up. Some are only recorded: instants that are past, what was refused, how many rows and batches there were.
/// Checkpoints and the rows after them fold to what the log folds to, which is a law of its own.
fn is_silent(field: &str) -> bool {
    matches!(
        field,
        "config"
            | "started"
            | "workers"
            | "anomalies"
            | "arrival"
            | "at"
            | "batches_durable"
            | "batches_sealed"
            | "begun_at"
            | "checkpoint"
            | "created_at"
            | "gathering"
            | "head"
            | "last_executed"
            | "prior"
            | "recent"
            | "rev"
            | "rows"
            | "sealed"
            | "seq"
            | "through"
            | "updated_at"
    )
}

/// A hash of whatever says all about itself by `Debug`, silent fields apart.
#[derive(Default)]
pub(super) struct Print {
    hash: Xxh3Default,
    /// One more field that is left out.
    without: Option<&'static str>,
    /// How deep within the value of a silent field.
    silent: Option<u32>,
}

impl Print {
    /// The print of one value.
    pub(super) fn of(value: &impl fmt::Debug) -> u128 {
        let mut print = Self::default();
        print.add(value);
        print.end()
    }

    /// An empty print, from which one more field is left out.
    #[cfg(test)]
    pub(super) fn without(field: &'static str) -> Self {
        Self { without: Some(field), ..Self::default() }
    }

    pub(super) fn add(&mut self, value: &impl fmt::Debug) {
        // Writing to a hash cannot fail.
        let _ = write!(self, "{value:?};");
        self.silent = None;
    }

    pub(super) fn end(&self) -> u128 {
        self.hash.digest128()
    }

    /// Where the value of a silent field ends within the text.
    fn skip(&mut self, text: &str) -> Option<usize> {
        let mut depth = self.silent?;
        for (index, byte) in text.bytes().enumerate() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b',' | b')' | b']' | b'}' if depth == 0 => {
                    self.silent = None;
                    return Some(index);
                }
                b')' | b']' | b'}' => depth -= 1,
                _ => {}
            }
        }
        self.silent = Some(depth);
        None
    }
}

impl Write for Print {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.silent.is_some() {
            if let Some(end) = self.skip(text) {
                self.hash.update(&text.as_bytes()[end..]);
            }
        } else if is_silent(text) || self.without == Some(text) {
            self.silent = Some(0);
        } else {
            self.hash.update(text.as_bytes());
        }
        Ok(())
    }
}
