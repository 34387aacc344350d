//! Listing: which runs, and what is shown of them without their payloads.

use std::ops::RangeInclusive;

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::shard::Record;
use abide_kernel::{LetterId, RunId, Status, Str, Timestamp};

/// Which runs.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Filter {
    /// Of this tenant.
    pub namespace: Option<Str>,
    /// Of this workflow.
    pub workflow: Option<Str>,
    /// In one of these statuses; empty means any.
    pub statuses: Vec<Status>,
    /// In this queue.
    pub queue: Option<Str>,
    /// With this business key.
    pub key: Option<Str>,
    /// Children of this run.
    pub parent: Option<RunId>,
    /// With all of these labels.
    pub labels: Vec<(Str, Str)>,
    /// Started in this time.
    pub created: Period,
    /// Last changed in this time.
    pub updated: Period,
}

/// A time: from an instant on, and before another. Two that follow each other have no run in common, and none between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// At this instant or after it.
    pub from: Option<Timestamp>,
    /// Before this instant.
    pub before: Option<Timestamp>,
}

impl Period {
    /// Whether an instant lies in it.
    #[must_use]
    pub fn holds(&self, at: Timestamp) -> bool {
        self.from.is_none_or(|from| at >= from) && self.before.is_none_or(|before| at < before)
    }
}

impl Filter {
    /// Whether a run matches.
    #[must_use]
    pub fn matches(&self, listed: &Listed) -> bool {
        fn same<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        same(self.namespace.as_ref(), Some(&listed.namespace))
            && same(self.workflow.as_ref(), Some(&listed.workflow))
            && same(self.queue.as_ref(), Some(&listed.queue))
            && same(self.key.as_ref(), listed.key.as_ref())
            && same(self.parent.as_ref(), listed.parent.as_ref())
            && (self.statuses.is_empty() || self.statuses.contains(&listed.status))
            && self.labels.iter().all(|label| listed.labels.contains(label))
            && self.created.holds(listed.created_at)
            && self.updated.holds(listed.updated_at)
    }
}

/// Which part of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// At most so many.
    pub most: usize,
    /// Only runs older than this one: the last of the page before.
    pub before: Option<RunId>,
}

impl Default for Page {
    fn default() -> Self {
        Self { most: 50, before: None }
    }
}

/// A run in a listing: a redacted summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The run.
    pub run: RunId,
    /// Its tenant.
    pub namespace: Str,
    /// Its workflow.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// Its queue.
    pub queue: Str,
    /// Its status.
    pub status: Status,
    /// Its step.
    pub step: Option<Str>,
    /// Its business key.
    pub key: Option<Str>,
    /// Its parent.
    pub parent: Option<RunId>,
    /// The words it can be found by.
    pub labels: Vec<(Str, Str)>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When something happens to it by itself.
    pub due: Option<Timestamp>,
    /// Its revision.
    pub rev: u64,
}

impl From<&Record> for Listed {
    fn from(record: &Record) -> Self {
        Self {
            run: record.run,
            namespace: record.namespace.clone(),
            workflow: record.workflow.clone(),
            version: record.version,
            queue: record.queue.clone(),
            status: record.status,
            step: record.step.clone(),
            key: record.key.clone(),
            parent: record.parent,
            labels: record.labels.clone(),
            created_at: record.created_at,
            updated_at: record.updated_at,
            due: record.due,
            rev: record.rev.0,
        }
    }
}

/// An envelope that was set aside.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetterItem {
    /// Its number in the store.
    pub id: LetterId,
    /// When.
    pub at: Timestamp,
    /// The node that gave up.
    pub node: String,
    /// What was set aside, and why.
    pub dead: DeadEnvelope,
}

/// Sizes and counts of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Journal rows.
    pub journal_rows: u64,
    /// Index rows of runs, by status.
    pub runs: Vec<(String, u64)>,
    /// Envelopes not consumed yet.
    pub envelopes: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The store's format.
    pub format: u32,
}

/// The bounds of a filter in time, as a condition on an index row says them.
pub(crate) fn instants(filter: &Filter) -> [(&'static str, Option<Timestamp>); 4] {
    [
        ("created_at >=", filter.created.from),
        ("created_at <", filter.created.before),
        ("updated_at >=", filter.updated.from),
        ("updated_at <", filter.updated.before),
    ]
}

/// The ids that begin with `prefix`; `None` when no id can. Only lower case, as ids are written.
pub(crate) fn prefix_range(prefix: &str) -> Option<RangeInclusive<RunId>> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if prefix.len() > 32 || !prefix.bytes().all(digit) {
        return None;
    }
    let bound = |text: String| u128::from_str_radix(&text, 16).map(RunId).ok();
    Some(bound(format!("{prefix:0<32}"))?..=bound(format!("{prefix:f<32}"))?)
}
