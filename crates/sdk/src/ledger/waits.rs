//! Waits for an instant, a signal or an update. One that the code gives up, because it lost a race or its branch was
//! dropped, is withdrawn: what it got, or gets until that is recorded, is for the next wait of its name.

use std::future::poll_fn;
use std::task::Poll;

use abide_kernel::transition::record::Entry;
use abide_kernel::{EndedAt, OpState};

use super::{Ledger, Local};

impl Ledger {
    /// How a wait ends. The code waits as long as the future lives.
    pub(super) async fn outcome(&self, local: Local) -> OpState {
        let waits = Waits { ledger: self, local };
        let state = poll_fn(|cx| self.ended(local, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        drop(waits);
        state
    }

    /// The code does not wait any more, because it gave the wait up. Nothing is written when the code has had what it
    /// waited for, or when the whole function leaves memory: what it had to write was taken before.
    fn wait_no_more(&self, local: Local) {
        let mut state = self.state.lock();
        state.waiting.remove(&local);
        let (at, ended) = (state.now, state.ended + 1);
        let known = &mut state.entries[local];
        let open = match &known.state {
            OpState::Open => true,
            OpState::Done { when, .. } => when.seen == 0,
            OpState::Failed { .. } | OpState::Elapsed { .. } => false,
        };
        if std::mem::replace(&mut known.delivered, true) || !open {
            return;
        }
        known.state = OpState::Elapsed { when: EndedAt { ended, seen: 0, at } };
        if let Some(op) = known.op {
            state.ended = ended;
            state.fresh.retain(|fresh| *fresh != local);
            state.buffer.push(Entry::Withdraw { op });
        }
    }

    /// Waits again for what an attempt before gave up and the code now waits for, with nothing left to take notice of. A
    /// replay gives it up again before it comes to this; a retry, which tries again what had failed, may not.
    pub(super) fn wait_again(&self) {
        let mut state = self.state.lock();
        let given_up = |local: &&Local| state.entries[**local].withdrawn;
        for local in state.waiting.keys().filter(given_up).copied().collect::<Vec<Local>>() {
            let known = &mut state.entries[local];
            (known.withdrawn, known.state) = (false, OpState::Open);
            let op = known.op;
            state.buffer.extend(op.map(|op| Entry::WaitAgain { op }));
        }
    }
}

/// The code waits as long as this lives.
struct Waits<'a> {
    ledger: &'a Ledger,
    local: Local,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // A function that panics is tried again, and then waits for the same.
        if !std::thread::panicking() {
            self.ledger.wait_no_more(self.local);
        }
    }
}
