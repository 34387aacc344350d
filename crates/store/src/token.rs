//! Tokens by which clients of a server are known: an id, and what the server wrote down about it. The store reads
//! nothing in them.

use crate::Fault;
use crate::sum::Sum;

/// What is kept of a token. Its secret is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredToken {
    /// Its id.
    pub id: String,
    /// What the server wrote down, as JSON.
    pub body: String,
}

impl StoredToken {
    pub(crate) fn sum(&self) -> i64 {
        Sum::of("token").text(Some(&self.id)).text(Some(&self.body)).end()
    }

    /// The token, if it is as it was written: nobody gets in by a row that somebody else made.
    pub(crate) fn check(self, checksum: i64) -> Result<Self, Fault> {
        if self.sum() == checksum {
            return Ok(self);
        }
        Err(Fault::corrupt(None, None, format!("token {}: its checksum does not match", self.id)))
    }
}
