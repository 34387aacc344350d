//! Intake: what was asked by SQL becomes commands like any other, given by the node that owns the host shard. Each carries
//! the request id it was noted with: taken in twice, it is done once, and answered as it was the first time.

mod asked;
mod taking;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use abide_kernel::ShardEpoch;
use abide_store::Intake;
use abide_store::intake::HOST;

use crate::driver::Shared;
use taking::{Taking, Took};

/// How long it is left alone after something went wrong.
const AGAIN: Duration = Duration::from_millis(250);
/// How often the tables are looked after, and how soon again when that failed.
const UPKEEP: Duration = Duration::from_secs(6 * 3_600);
const UPKEEP_AGAIN: Duration = Duration::from_secs(60);

/// Takes in until the engine stops.
pub(crate) fn take_in(shared: &Arc<Shared>, mut intake: Box<dyn Intake>) {
    let mut upkeep: Option<(ShardEpoch, Instant)> = None;
    let mut taking: Option<Taking> = None;
    while !shared.is_stopping() {
        let epoch = match shared.hosts() {
            Hosting::Here(epoch) => epoch,
            // Its lease may be renewed at any moment, and nobody says so.
            Hosting::Perhaps => {
                intake.wait(Some(AGAIN));
                continue;
            }
            // Rung when the shard is taken, or the engine stops.
            Hosting::Elsewhere => {
                taking = None;
                intake.wait(None);
                continue;
            }
        };
        let due = upkeep.is_none_or(|(known, at)| known != epoch || at <= Instant::now());
        if due {
            let next = match intake.upkeep(epoch) {
                Ok(()) => UPKEEP,
                Err(fault) => {
                    tracing::warn!(%fault, "the tables could not be looked after; it is tried again soon");
                    UPKEEP_AGAIN
                }
            };
            upkeep = Some((epoch, Instant::now() + next));
        }
        let rest = upkeep.map_or(UPKEEP, |(_, at)| at.saturating_duration_since(Instant::now()));
        // Whoever took in between may have stopped elsewhere.
        let mut current = taking.take().filter(|taking| taking.epoch() == epoch).unwrap_or_else(|| {
            intake.begin_anew();
            Taking::new(shared, epoch, intake.ring())
        });
        match current.turn(intake.as_mut()) {
            Ok(Took::All { again }) => {
                taking = Some(current);
                intake.wait(Some(again.map_or(rest, |again| rest.min(again))));
            }
            Ok(Took::Stale) => {
                drop(current);
                intake.wait(Some(AGAIN));
            }
            Err(fault) => {
                tracing::warn!(%fault, "what was asked by SQL could not be taken in; it is tried again");
                drop(current);
                intake.wait(Some(AGAIN));
            }
        }
    }
}

/// Whether this node takes in.
enum Hosting {
    /// Under this ownership.
    Here(ShardEpoch),
    /// It has the shard, and no lease that lasts.
    Perhaps,
    Elsewhere,
}

impl Shared {
    fn hosts(&self) -> Hosting {
        let now = self.now();
        let mut core = self.core.lock();
        let serves = core.serves(now, HOST) && core.closed.is_none();
        match core.at(HOST).map(|shard| shard.epoch()) {
            Some(epoch) if serves => Hosting::Here(epoch),
            Some(_) => Hosting::Perhaps,
            None => Hosting::Elsewhere,
        }
    }
}

/// Starts the thread that takes in, if the store can be asked by SQL.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<Option<std::thread::JoinHandle<()>>, crate::OpenError> {
    let Some(intake) = shared.visit().intake()? else { return Ok(None) };
    let _ = shared.intake.set(intake.ring());
    let taking = shared.clone();
    let thread = std::thread::Builder::new().name("abide-intake".into()).spawn(move || take_in(&taking, intake))?;
    Ok(Some(thread))
}
