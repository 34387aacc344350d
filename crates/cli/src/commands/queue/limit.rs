//! `abide queue limit`: what a queue may do at most.

use std::time::Duration;

use abide_protocol::{QueueLimits, QueueRate};
use clap::Args;

use super::change;
use crate::failure::Outcome;
use crate::input::duration;
use crate::options::Globals;
use crate::source::QueueChange;

/// Say what a queue may do at most.
#[derive(Debug, Args)]
#[command(after_help = "\
It takes the place of what was said before: what is not given has no limit. The queue of one namespace is meant: default
unless -n says otherwise.

Examples:
  abide queue limit mail --at-most 5
  abide queue limit mail --rate 100/1m
  abide queue limit mail                      no limit any more")]
pub(crate) struct Limit {
    /// The queue
    queue: String,
    /// How many of its attempts may execute at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    at_most: Option<u32>,
    /// How fast they may begin: so many in so long
    #[arg(long, value_name = "N/DURATION", value_parser = rate)]
    rate: Option<QueueRate>,
}

fn rate(text: &str) -> Result<QueueRate, String> {
    let expected = || format!("expected a number and a duration like 100/1m, found {text:?}");
    let (count, per) = text.split_once('/').ok_or_else(expected)?;
    let count: u32 = count.parse().ok().filter(|count| *count > 0).ok_or_else(expected)?;
    let per: Duration = duration(per)?;
    let per_ms = u64::try_from(per.as_millis()).ok().filter(|ms| *ms > 0).ok_or_else(expected)?;
    Ok(QueueRate { count, per_ms })
}

impl Limit {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let limits = QueueLimits { at_most: self.at_most, rate: self.rate };
        change(globals, &self.queue, QueueChange::Limit(limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        assert_eq!(rate("100/1m"), Ok(QueueRate { count: 100, per_ms: 60_000 }));
        for wrong in ["", "100", "0/1m", "100/", "100/0s", "-1/1m", "5/soon"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
