//! Stepping: polls the code of a machine's step, and keeps its ledger once it has one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use abide_kernel::transition::record::Entry;
use abide_kernel::{Consume, ErrorInfo, OpId, Outcome};
use abide_runtime::Verdict;

use crate::Ctx;
use crate::ledger::drive::{Drive, Driven};

/// How the code of a step came out.
pub(crate) enum Stepped<T> {
    /// It returned.
    Returned(T, Written),
    /// It is over otherwise.
    Ended(Verdict),
}

/// What a step wrote to the ledger and is not handed over, and which effects a retry begins again.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) entries: Vec<Entry>,
    pub(crate) curable: Vec<OpId>,
}

/// A step that executes.
pub(crate) struct Stepping<T> {
    ctx: Ctx,
    code: Code<T>,
}

enum Code<T> {
    /// It has done nothing durable so far.
    Plain(Pin<Box<dyn Future<Output = T> + Send>>),
    Driven(Drive<T>),
    Over,
}

impl<T> Stepping<T> {
    pub(crate) fn new(ctx: Ctx, code: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        Self { ctx, code: Code::Plain(code) }
    }
}

impl<T> Future for Stepping<T> {
    type Output = Stepped<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Stepped<T>> {
        if let Code::Plain(code) = &mut self.code {
            let polled = code.as_mut().poll(cx);
            let Some(ledger) = self.ctx.used_ledger().cloned() else {
                return polled.map(|value| Stepped::Returned(value, Written::default()));
            };
            if let Poll::Ready(value) = polled {
                let written = Written { entries: ledger.take_buffer(), curable: ledger.curable() };
                return Poll::Ready(Stepped::Returned(value, written));
            }
            // From its first durable act on, the ledger is kept with every poll.
            if let Code::Plain(code) = std::mem::replace(&mut self.code, Code::Over) {
                self.code = Code::Driven(Drive::new(ledger, code));
            }
        }
        let Code::Driven(drive) = &mut self.code else {
            return Poll::Pending;
        };
        let driven = match Pin::new(drive).poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(driven) => driven,
        };
        let curable = self.ctx.used_ledger().map(|ledger| ledger.curable()).unwrap_or_default();
        Poll::Ready(match driven {
            Driven::Returned(value, entries) => Stepped::Returned(value, Written { entries, curable }),
            Driven::SetAside(error) => Stepped::Ended(Verdict::SetAside { error }),
            Driven::Suspended { seen, entries } => Stepped::Ended(Verdict::Outcome {
                outcome: Outcome::Suspend { seen },
                consume: Consume::Presented,
                error: None,
                compact_after: None,
                entries,
            }),
            Driven::Lost => Stepped::Ended(Verdict::Abandoned { give_back: false }),
            Driven::GivenBack => Stepped::Ended(Verdict::Abandoned { give_back: true }),
            Driven::Panicked(text, entries) => {
                let error = ErrorInfo::retryable("panic", &text);
                Stepped::Ended(Verdict::Failed { error, retry: None, entries, reopen: curable })
            }
        })
    }
}
