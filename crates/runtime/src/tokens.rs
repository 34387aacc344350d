//! Tokens of a server's clients: kept beside the runs, in the same store. The engine reads nothing in them.

use abide_store::{Fault, StoredToken};

use crate::driver::Shared;

impl Shared {
    pub(crate) fn tokens(&self) -> Result<Vec<StoredToken>, Fault> {
        self.reader.lock().tokens()
    }

    pub(crate) fn write_token(&self, token: &StoredToken) -> Result<(), Fault> {
        let written = self.store.lock().write_token(token);
        // The driver may have found the store busy just now, and gone to sleep.
        self.bell.ring();
        written
    }

    pub(crate) fn remove_token(&self, id: &str) -> Result<bool, Fault> {
        let removed = self.store.lock().remove_token(id);
        self.bell.ring();
        removed
    }
}
