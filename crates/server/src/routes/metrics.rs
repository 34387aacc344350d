//! Counts, in the text format of Prometheus. No run, key or namespace is ever a label.

use std::fmt::Write;

use abide_runtime::Metrics;

use crate::answer::{Answered, text};
use crate::call::Call;

pub(crate) async fn count(call: Call) -> Answered {
    let metrics = call.blocking(|engine| engine.metrics()).await?;
    Ok(text("text/plain; version=0.0.4; charset=utf-8", written(&metrics)))
}

fn written(metrics: &Metrics) -> String {
    let store = &metrics.store;
    let rows = [
        ("abide_runs_resident", "gauge", "Runs in memory.", metrics.resident_runs as u64),
        ("abide_attempts_executing", "gauge", "Attempts that local workers execute.", metrics.executing as u64),
        ("abide_index_rows_behind", "gauge", "Runs whose index rows are behind.", metrics.behind as u64),
        ("abide_store_reads_total", "counter", "Reads of the store.", store.reads),
        ("abide_store_writes_total", "counter", "Writes to the store.", store.writes),
        ("abide_store_commits_total", "counter", "Batches made durable.", store.commits),
        ("abide_journal_rows_total", "counter", "Journal rows made durable.", store.rows),
        ("abide_journal_bytes_total", "counter", "Bytes of facts made durable.", store.fact_bytes),
    ];
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        "# HELP abide_build_info The release.\n# TYPE abide_build_info gauge\nabide_build_info{{version=\"{version}\"}} 1\n"
    );
    for (name, kind, help, value) in rows {
        // Writing to memory cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    text
}
