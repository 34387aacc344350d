//! What the demo and its worker say to each other: JSON, a line each. The worker acknowledges only what is durable.

use std::io::{self, Write};

use abide_kernel::RunId;
use serde::{Deserialize, Serialize};

/// What the worker is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Start an order.
    Start { number: u64, order: String },
    /// Send an order's payment.
    Pay { number: u64, order: String, run: RunId },
}

/// What the worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    /// The store is open and work goes on.
    Ready,
    /// What was asked is durable.
    Acknowledged { number: u64, run: RunId },
    /// What was asked was refused.
    Refused { number: u64, why: String },
    /// A step executes now.
    Began { step: String, order: String },
}

/// Says it at once. If nobody listens any more, the end of standard input tells the worker.
pub(super) fn tell(told: &Told) {
    let line = serde_json::to_string(told).unwrap_or_default();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
