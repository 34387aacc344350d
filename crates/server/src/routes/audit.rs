//! The audit as it is read, and the limits of this server.

use abide_kernel::limits as kernel;
use abide_protocol::limits::{CLAIMS_MAX, ENTRIES_MAX, JSON_DEPTH_MAX, PAGE, PAGE_MAX, REPORTS_MAX, ROWS_MAX};
use abide_protocol::{Audit, Bounds, Change};

use crate::answer::{Answered, internal, json};
use crate::audit::{AUDIT, audit_change, is_name};
use crate::call::{Call, bad_query};

pub(crate) async fn list(call: Call) -> Answered {
    let most = call.number("limit").unwrap_or(PAGE) as usize;
    let before = call.asked("before").map(str::to_owned);
    if let Some(wrong) = before.as_deref().filter(|before| !is_name(before)) {
        return Err(bad_query("before", "the id of a change", wrong));
    }
    // One more than is shown says whether there is another page.
    let kept = call.blocking(move |engine| engine.kept(AUDIT, before.as_deref(), most + 1)).await??;
    let more = kept.len() > most;
    let read = kept.iter().take(most).map(audit_change);
    let changes: Vec<Change> = read.collect::<Result<_, _>>().map_err(|error| internal(&error))?;
    let next = changes.last().map(|last| last.id.clone()).filter(|_| more);
    json(&Audit { changes, next })
}

pub(crate) fn limits(call: &Call) -> Answered {
    let limits = &call.limits;
    json(&Bounds {
        body_bytes_max: limits.body_bytes_max as u64,
        json_depth_max: JSON_DEPTH_MAX as u64,
        payload_bytes_max: kernel::PAYLOAD_BYTES_MAX as u64,
        name_bytes_max: kernel::NAME_BYTES_MAX as u64,
        key_bytes_max: kernel::KEY_BYTES_MAX as u64,
        wait_ms_max: limits.wait_max.as_millis() as u64,
        page_max: PAGE_MAX,
        rows_max: ROWS_MAX,
        batch_starts_max: kernel::BATCH_STARTS_MAX as u64,
        claims_max: u64::from(CLAIMS_MAX),
        reports_max: REPORTS_MAX as u64,
        entries_max: ENTRIES_MAX as u64,
        progress_bytes_max: kernel::PROGRESS_BYTES_MAX as u64,
        progress_names_max: kernel::PROGRESS_NAMES_MAX as u64,
        connections_max: limits.connections_max as u64,
        requests_per_second_max: u64::from(limits.requests_per_second_max),
    })
}
