//! Settings of a store: a few names and values, each under a checksum.

use abide_kernel::SLOTS;

use crate::Fault;
use crate::sum::Sum;

/// How many shards the store was made with.
pub(crate) const SHARDS: &str = "shards";

/// There while the store is being filled from elsewhere.
pub(crate) const IMPORTING: &str = "importing";

pub(crate) fn sum(name: &str, value: &str) -> i64 {
    Sum::of("setting").text(Some(name)).text(Some(value)).end()
}

/// The number that a setting holds, if it is as it was written.
pub(crate) fn number(name: &str, value: &str, checksum: i64) -> Result<u64, Fault> {
    let damaged = |what: &str| Fault::corrupt(None, None, format!("setting {name}: {what}, found {value:?}"));
    let number = value.parse().map_err(|_| damaged("expected a number"))?;
    if sum(name, value) != checksum {
        return Err(damaged("its checksum does not match"));
    }
    Ok(number)
}

/// A number of shards, if there can be so many.
pub(crate) fn shards(count: u64) -> Result<u16, Fault> {
    let fits = u16::try_from(count).ok().filter(|count| (1..=SLOTS).contains(count));
    fits.ok_or_else(|| {
        let message = format!("setting {SHARDS}: expected a number from 1 to {SLOTS}, found {count}");
        Fault::corrupt(None, None, message)
    })
}
