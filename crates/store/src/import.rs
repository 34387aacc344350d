//! Import: an empty store is filled from elsewhere. Until that has come to its end, nobody opens it to work on it.

use crate::transaction::Outcome;
use crate::{DeadLetterItem, Fault, FaultKind};

/// What whoever fills a store needs of it, beside what every owner does. The shards are taken before it begins.
pub trait Import {
    /// Marks the store as one that is being filled. From now on it can be opened by nobody, and no shard of it taken.
    ///
    /// # Errors
    /// When the store holds anything, or cannot be written.
    fn begin_import(&mut self) -> Result<(), Fault>;

    /// Keeps an envelope that was set aside elsewhere, under a number of its own.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn import_letter(&mut self, letter: &DeadLetterItem) -> Result<(), Fault>;

    /// Keeps what a transaction of the users' own came to elsewhere.
    ///
    /// # Errors
    /// When the store has no such transactions, or cannot be written.
    fn import_outcome(&mut self, outcome: &Outcome) -> Result<(), Fault>;

    /// Takes the mark away: everything is there.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn end_import(&mut self) -> Result<(), Fault>;
}

/// A store that was being filled when whoever filled it ended.
pub(crate) fn unfinished(what: &str, remove: &str) -> Fault {
    let message = format!(
        "{what} holds a part of what was to be imported: the import is under way, or did not come to its end. If it is not under way, {remove}, and import again"
    );
    Fault::new(FaultKind::Importing, message)
}

/// A store that cannot be filled, because it holds something.
pub(crate) fn not_empty(what: &str) -> Fault {
    let message = format!("{what} is not empty: expected a store that nothing was written to; import into a new one");
    Fault::new(FaultKind::Unusable, message)
}
