//! Every bound of the kernel. Past one of them the answer is a typed `busy` or `too_large`, never a crash.

/// Longest name of a workflow, step, queue, signal or namespace, in bytes.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest unique key, concurrency key, deduplication key or child key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_000;
/// Largest single payload: an input, a state, a result or a signal's body, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most signals that may wait in one run's inbox.
pub const INBOX_SIGNALS_MAX: usize = 10_000;
/// How many deduplication keys a run remembers; the oldest is forgotten first.
pub const DEDUP_KEYS_MAX: usize = 1_024;
/// Most updates that may wait for one run's answer.
pub const UPDATES_MAX: usize = 1_000;
/// How many answers to updates a run remembers; the oldest is forgotten first.
pub const ANSWERS_MAX: usize = 256;
/// Most children one run may have.
pub const CHILDREN_MAX: usize = 10_000;
/// Most names one await may listen to.
pub const AWAIT_NAMES_MAX: usize = 64;
/// Most steps of a run that may be open side by side.
pub const CURSORS_MAX: usize = 1_000;
/// Most entries a run's ledger may have: effects and waits of one visit of a step. Continue as new before that.
pub const OPS_MAX: usize = 100_000;
/// What people were asked that a run remembers once it is over; the oldest is forgotten first.
pub const MANUALS_MAX: usize = 128;
/// Most events of one manual boundary: how often it may go from one person to another.
pub const MANUAL_EVENTS_MAX: usize = 256;
/// Most roles that a manual boundary, or a person at one, may name.
pub const ROLES_MAX: usize = 64;
/// Longest note that a person leaves with a decision, in bytes.
pub const NOTE_BYTES_MAX: usize = 16 * 1024;
/// Most labels a run may carry.
pub const LABELS_MAX: usize = 64;
/// Anomalies kept per run; later ones are only counted.
pub const ANOMALIES_MAX: usize = 32;
/// Names under which one visit of a step may say how far it has come.
pub const PROGRESS_NAMES_MAX: usize = 32;
/// Largest value that a step says of its progress, in bytes.
pub const PROGRESS_BYTES_MAX: usize = 4 * 1024;
/// How much of what its steps said a run remembers; the oldest is forgotten first.
pub const PROGRESS_EVENTS_MAX: usize = 64;
/// An attempt that was delivered this often without an answer goes to the dead letters.
pub const DELIVERIES_MAX_DEFAULT: u32 = 20;
/// How long an attempt waits for its definition, unless it is said otherwise: a day, in milliseconds.
pub const DEFINITION_WAIT_MS_DEFAULT: u64 = 24 * 3_600 * 1_000;
/// Attempts without a definition that become dead letters in one tick of a shard.
pub const ORPHANS_AT_ONCE_MAX: usize = 1_024;
/// Longest delay, deadline or lease that can be asked for: one hundred years, in milliseconds.
pub const DELAY_MS_MAX: u64 = 100 * 365 * 24 * 3_600 * 1_000;
/// Shortest lease, so that a heartbeat has a chance.
pub const LEASE_MS_MIN: u64 = 10;
/// Runs that may be started by one batch.
pub const BATCH_STARTS_MAX: usize = 10_000;
/// Longest error message kept, in bytes; the rest is cut.
pub const ERROR_BYTES_MAX: usize = 16 * 1024;
/// Commands that may wait for one run or key that is being loaded.
pub const WAITING_COMMANDS_MAX: usize = 10_000;
/// How many starts a shard remembers by request in each of its two generations, so that a retry is recognised.
pub const RECENT_STARTS_MAX: usize = 200_000;
/// Most caps and rates one process may have.
pub const THROTTLE_RULES_MAX: usize = 1_024;
/// Deadlines of runs outside memory that are read ahead at a time.
pub const DUE_WINDOW_MAX: usize = 1_024;
/// Waiting attempts without a concurrency key that are kept in memory for one queue, workflow and version; up to twice
/// as many before the rest is left to the store.
pub const READY_WINDOW_MAX: usize = 4_096;
/// Waiting attempts of one concurrency key that are kept in memory, likewise.
pub const KEY_WINDOW_MAX: usize = 32;
/// Waiting attempts that are read at a time: few enough that nobody waits long behind them.
pub const READY_PAGE_MAX: usize = 512;
/// Runs that were loaded and may leave again, before they are seen off; up to twice as many while nothing is committed.
pub const VISITORS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs are written against these numbers: 4 MiB, 16 KiB, 4 KiB, a day and a hundred years.
    #[test]
    fn sizes_and_times_are_what_people_were_told() {
        assert_eq!((PAYLOAD_BYTES_MAX, NOTE_BYTES_MAX, ERROR_BYTES_MAX), (4_194_304, 16_384, 16_384));
        assert_eq!((PROGRESS_BYTES_MAX, DEFINITION_WAIT_MS_DEFAULT), (4_096, 86_400_000));
        assert_eq!(DELAY_MS_MAX, 3_153_600_000_000);
    }
}
