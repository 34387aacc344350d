//! Tokens of a server's clients: kept beside the runs, in the same store. The engine reads nothing in them.

use abide_store::{Fault, StoredToken};

use crate::driver::Shared;

impl Shared {
    pub(crate) fn tokens(&self) -> Result<Vec<StoredToken>, Fault> {
        self.reader.lock().tokens()
    }

    pub(crate) fn write_token(&self, token: &StoredToken) -> Result<(), Fault> {
        self.visit().write_token(token)
    }

    pub(crate) fn remove_token(&self, id: &str) -> Result<bool, Fault> {
        self.visit().remove_token(id)
    }
}
