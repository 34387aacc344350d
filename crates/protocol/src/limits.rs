//! Every bound of the protocol.

/// How deep lists and objects of a body may lie in each other: readers that stop at 128 can still read it inside of an
/// answer.
pub const JSON_DEPTH_MAX: usize = 100;
/// Runs on a page, unless it is said otherwise, and at most.
pub const PAGE: u64 = 50;
/// See [`PAGE`].
pub const PAGE_MAX: u64 = 1_000;
/// Rows of a journal in one answer, unless it is said otherwise, and at most.
pub const ROWS: u64 = 1_000;
/// See [`ROWS`].
pub const ROWS_MAX: u64 = 10_000;
