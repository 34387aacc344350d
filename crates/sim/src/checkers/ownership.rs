//! Nobody writes under an ownership that has ended.

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    match view.usurped() {
        Some((shard, ended, owned)) => {
            let (shard, ended, owned) = (shard.0, ended.0, owned.0);
            Err(format!("ownership: shard {shard} took rows of epoch {ended} when epoch {owned} owned it"))
        }
        None => Ok(()),
    }
}
