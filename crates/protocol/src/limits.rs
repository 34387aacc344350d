//! Every bound of the protocol.

/// How deep lists and objects of a body may lie in each other: readers that stop at 128 can still read it inside of an
/// answer.
pub const JSON_DEPTH_MAX: usize = 100;
/// The queue of runs and workers that name none.
pub const QUEUE: &str = "default";
/// How long a worker holds an attempt without a heartbeat, unless it says otherwise.
pub const LEASE_MS: u64 = 30_000;
/// Attempts that a worker may ask for at once.
pub const CLAIMS_MAX: u32 = 1_000;
/// Reports in one request.
pub const REPORTS_MAX: usize = 1_000;
/// Entries of the ledger in one report, and in all reports of a request.
pub const ENTRIES_MAX: usize = 1_000;
/// See [`ENTRIES_MAX`].
pub const ENTRIES_ALL_MAX: usize = 10_000;
/// Queues that a worker serves, and workflows that it has.
pub const OFFERED_MAX: usize = 1_000;
/// The longest that a request may wait for something to happen, in milliseconds.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Runs on a page, unless it is said otherwise, and at most.
pub const PAGE: u64 = 50;
/// See [`PAGE`].
pub const PAGE_MAX: u64 = 1_000;
/// Rows of a journal in one answer, unless it is said otherwise, and at most.
pub const ROWS: u64 = 1_000;
/// See [`ROWS`].
pub const ROWS_MAX: u64 = 10_000;
