//! What a server takes at most, as far as whoever runs it decides that.

use std::time::Duration;

use abide_protocol::limits::WAIT_MS_MAX;
use abide_server::Limits;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use crate::input::{duration, size};

/// The least that a body may be allowed: starts and reports must get through.
const BODY_BYTES_MIN: usize = 64 * 1024;
/// The most: a body is in memory, whole.
const BODY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What a server takes at most.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct Bounds {
    /// The largest body of a request, like 8MiB
    #[arg(long, env = "ABIDE_MAX_BODY", value_name = "SIZE", value_parser = body)]
    max_body: Option<usize>,
    /// The most connections at once, of which each stream of events holds one; 20000 if absent
    #[arg(long, env = "ABIDE_MAX_CONNECTIONS", value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000_000))]
    max_connections: Option<usize>,
    /// The most requests of one token in a second; 10000 if absent
    #[arg(long, env = "ABIDE_MAX_RATE", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_rate: Option<u32>,
    /// The longest that a request may wait for something to happen; 60s if absent, which is the most
    #[arg(long, env = "ABIDE_MAX_WAIT", value_name = "DURATION", value_parser = wait)]
    max_wait: Option<Duration>,
}

fn body(text: &str) -> Result<usize, String> {
    let found = size(text)?;
    match (BODY_BYTES_MIN..=BODY_BYTES_MAX).contains(&found) {
        true => Ok(found),
        false => Err(format!("expected 64KiB to 256MiB, found {text}")),
    }
}

fn wait(text: &str) -> Result<Duration, String> {
    let found = duration(text)?;
    match found <= Duration::from_millis(WAIT_MS_MAX) {
        true => Ok(found),
        false => Err(format!("expected at most 60s, found {text}")),
    }
}

impl Bounds {
    /// What holds, with the usual for what was not said.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.body_bytes_max = self.max_body.unwrap_or(limits.body_bytes_max);
        limits.connections_max = self.max_connections.unwrap_or(limits.connections_max);
        limits.requests_per_second_max = self.max_rate.unwrap_or(limits.requests_per_second_max);
        limits.wait_max = self.max_wait.unwrap_or(limits.wait_max);
        limits
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        bounds: Bounds,
    }

    #[test]
    fn what_is_said_holds_and_the_rest_is_as_usual() {
        let usual = Limits::default();
        assert_eq!(Bounds::default().limits(), usual);
        let given = ["abide", "--max-body", "1MiB", "--max-connections", "7", "--max-rate", "3", "--max-wait", "5s"];
        let found = Only::parse_from(given).bounds.limits();
        assert_eq!((found.body_bytes_max, found.connections_max), (1024 * 1024, 7));
        assert_eq!((found.requests_per_second_max, found.wait_max), (3, Duration::from_secs(5)));
        assert_eq!(found.head_max, usual.head_max);
        for wrong in [["--max-body", "1KiB"], ["--max-body", "1TB"], ["--max-connections", "0"], ["--max-wait", "2m"]] {
            assert!(Only::try_parse_from([&["abide"][..], &wrong].concat()).is_err(), "{wrong:?}");
        }
    }
}
