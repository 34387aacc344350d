//! Check: what must hold of every run after every transition, whoever folded it.

use alloc::format;
use alloc::string::String;

use crate::{Cursor, Op, OpKind, OpState, Phase, Run, UpdateState, WaitKind, limits};

impl Run {
    /// What must hold of every run after every transition. It is checked before anything is appended.
    ///
    /// # Errors
    /// What does not hold: a bug of ours.
    pub fn check(&self) -> Result<(), String> {
        if self.inbox.len() > limits::INBOX_SIGNALS_MAX {
            return Err(format!("inbox holds {} signals", self.inbox.len()));
        }
        if let (Some(first), Some(last)) = (self.inbox.first(), self.inbox.last())
            && (first.id > last.id || last.id > self.signals)
        {
            return Err(format!("inbox is out of order: {} to {} of {}", first.id, last.id, self.signals));
        }
        for cursor in &self.cursors {
            self.check_cursor(cursor)?;
        }
        self.check_manual()?;
        self.check_signals()?;
        self.check_updates()?;
        if self.end.is_none()
            && !self.is_reservation()
            && self.cursors.iter().all(|c| matches!(c.phase, Phase::Finished { .. } | Phase::Closed))
        {
            return Err("every cursor is finished, but the run has not ended".into());
        }
        Ok(())
    }

    /// A run asks for one person at a time, through an entry of its ledger that is open, and for none once it has ended.
    fn check_manual(&self) -> Result<(), String> {
        let mut open = self.manual.iter().filter(|manual| manual.end.is_none()).map(|manual| manual.asked.op);
        let Some(op) = open.next() else {
            return Ok(());
        };
        if let Some(second) = open.next() {
            return Err(format!("boundary {second} is open beside boundary {op}"));
        }
        if self.end.is_some() {
            return Err(format!("the run has ended, but boundary {op} is open"));
        }
        if self.op(op).is_none_or(|entry| entry.state != OpState::Open) {
            return Err(format!("boundary {op} is open, but its entry of the ledger is not"));
        }
        Ok(())
    }

    /// A signal is in the inbox only where no entry of the ledger waits for it.
    fn check_signals(&self) -> Result<(), String> {
        if self.end.is_some() || self.inbox.is_empty() {
            return Ok(());
        }
        for (id, op) in self.open_ops().filter(|(_, op)| self.is_current(op)) {
            if let OpKind::Signal { name, .. } = &op.kind
                && self.inbox.iter().any(|signal| signal.name == *name)
            {
                return Err(format!("entry {id} waits for signal {name:?}, which is in the inbox"));
            }
        }
        Ok(())
    }

    /// An update waits only where nobody waits for it, and one that was given is with a wait that got it.
    fn check_updates(&self) -> Result<(), String> {
        for update in &self.updates {
            match update.state {
                UpdateState::Waiting { .. } => {
                    let waits = |op: &Op| matches!(&op.kind, OpKind::Update { name, .. } if *name == update.name);
                    if self.end.is_none() && self.open_ops().any(|(_, op)| waits(op) && self.is_current(op)) {
                        return Err(format!("the run waits for update {}, which waits for it", update.id));
                    }
                }
                // Its entry may be forgotten with the visit that it was of.
                UpdateState::Given { op }
                    if self.op(op).is_some_and(|op| !matches!(op.state, OpState::Done { .. })) =>
                {
                    return Err(format!("update {} is with entry {op}, which did not get it", update.id));
                }
                UpdateState::Given { .. } | UpdateState::Answered { .. } => {}
            }
        }
        Ok(())
    }

    fn check_cursor(&self, cursor: &Cursor) -> Result<(), String> {
        let open = self.end.is_none();
        match &cursor.phase {
            Phase::Closed => {
                (!open).then_some(()).ok_or_else(|| "a cursor is closed, but the run has not ended".into())
            }
            Phase::Finished { .. } => Ok(()),
            _ if !open => Err("the run has ended, but a cursor is open".into()),
            Phase::Claimed(claim) if claim.number > self.claims || cursor.claimant.is_none() => {
                Err(format!("claim {} of {} has no claimant or was never made", claim.number, self.claims))
            }
            Phase::Waiting(wait) if wait.token > self.tokens => {
                Err(format!("wait token {} was never made", wait.token))
            }
            Phase::Waiting(wait) => match &wait.kind {
                WaitKind::Signal { names, after }
                    if self.inbox.iter().any(|signal| signal.id > *after && names.contains(&signal.name)) =>
                {
                    Err("the run waits for a signal that is in its inbox".into())
                }
                WaitKind::Children(barrier) if barrier.satisfied() => {
                    Err("the run waits on a satisfied barrier".into())
                }
                WaitKind::Timer if wait.until.is_none() => Err("the run sleeps without an end".into()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
