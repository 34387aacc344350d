//! When the demo kills its worker: named moments, in turn, and what they look like from outside.

use super::protocol::Told;
use abide_kernel::{Status, mix};

/// A moment at which the worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    AfterStart,
    WhileChildren,
    WhileOpening,
    WhileCharging,
    AfterSignal,
    WhileSleeping,
    AtRandom,
}

impl Point {
    /// The moments in the order in which they are struck.
    pub(super) const ALL: [Self; 7] = [
        Self::AfterStart,
        Self::WhileChildren,
        Self::WhileOpening,
        Self::WhileCharging,
        Self::AfterSignal,
        Self::WhileSleeping,
        Self::AtRandom,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::AfterStart => "after_start",
            Self::WhileChildren => "while_children",
            Self::WhileOpening => "while_opening",
            Self::WhileCharging => "while_charging",
            Self::AfterSignal => "after_signal",
            Self::WhileSleeping => "while_sleeping",
            Self::AtRandom => "at_random",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::AfterStart => "right after it acknowledged a start",
            Self::WhileChildren => "while children pick items",
            Self::WhileOpening => "while it opens the store again",
            Self::WhileCharging => "in the middle of charging a card",
            Self::AfterSignal => "right after it acknowledged a payment",
            Self::WhileSleeping => "while an order sleeps",
            Self::AtRandom => "at a random moment",
        }
    }

    /// Whether what the worker just said is the moment.
    pub(super) fn is_told(self, told: &Told, is_start: impl Fn(u64) -> bool) -> bool {
        match (self, told) {
            (Self::AfterStart, Told::Acknowledged { number, .. }) => is_start(*number),
            (Self::AfterSignal, Told::Acknowledged { number, .. }) => !is_start(*number),
            (Self::WhileChildren, Told::Began { step, .. }) => step == "pick",
            (Self::WhileCharging, Told::Began { step, .. }) => step == "charge",
            _ => false,
        }
    }

    /// Whether runs in these statuses are the moment.
    pub(super) fn is_seen(self, statuses: &[Status]) -> bool {
        self == Self::WhileSleeping && statuses.contains(&Status::Sleeping)
    }
}

/// Random numbers: where the kills fall should differ from time to time.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(now.as_nanos() as u64 ^ u64::from(std::process::id()))
    }

    /// A number from `from` to below `to`.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        from + mix(self.0) % (to - from)
    }
}
