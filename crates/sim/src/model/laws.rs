//! What must hold, whatever happens: of every row that is appended, and of everything that leaves a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use abide_kernel::shard::Record;
use abide_kernel::{Claim, Completed, Fact, Meta, Outcome, Phase, Row, Run, Seq, Timestamp, TokenHash};

use super::Word;
use super::machine::LEASE_MS;
use super::state::{DELIVERIES_MAX, LAST};
use crate::Violation;

/// What the log says, row by row: the fold, who was given what, and what was recorded.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    /// The run, folded.
    pub(super) run: Option<Arc<Run>>,
    /// Every claim that was made, and the token of whoever holds it.
    pub(super) claims: BTreeMap<u32, TokenHash>,
    /// Every claim under which a result was recorded, and that result.
    pub(super) results: BTreeMap<u32, String>,
    /// Every claim that was given back.
    pub(super) returned: BTreeSet<u32>,
    /// Until when the holder of each claim may be at it, where workers ask for more time: elsewhere it would tell states
    /// apart that are alike.
    pub(super) leases: Option<BTreeMap<u32, Timestamp>>,
    /// Whether whoever has the shard takes all before for dead, and ends what their processes held.
    pub(super) one_owner: bool,
    /// When the shard was taken for the last time, and the last claim that had been made then.
    taken: (Timestamp, u32),
    /// Every claim that ended without its holder.
    lost: BTreeSet<u32>,
    /// How many deliveries of the step were lost since it was scheduled or put back.
    unanswered: u32,
    /// The result of the last step.
    pub(super) done: Option<String>,
    /// Every attempt with a result: life, visit of the step, turn.
    attempts: BTreeSet<(u32, u32, u32)>,
}

/// What a worker returns: it tells who did it, so that nobody's result can pass for another's.
pub(super) fn said(claim: u32, token: TokenHash, word: Word) -> String {
    let verb = if word == Word::Failed { "failed" } else { "done" };
    format!("\"{claim} {verb} by {:x}\"", token.0)
}

/// The run as the rows make it.
pub(super) fn fold(rows: &[Arc<Row>]) -> Result<Run, Violation> {
    let (first, rest) = rows.split_first().ok_or("a journal without rows")?;
    let mut run = Run::begin(first).map_err(|bad| bad.to_string())?;
    rest.iter().for_each(|row| run.apply_row(row));
    Ok(run)
}

/// The run's form without what is kept in memory only.
pub(super) fn text(run: &Run) -> String {
    serde_json::to_string(run).unwrap_or_default()
}

impl Ledger {
    /// A row becomes durable.
    pub(super) fn enter(&mut self, last: Option<&Row>, row: &Row) -> Result<(), Violation> {
        let (seq, rev) = last.map_or((Seq(0), 0), |last| (last.seq, last.rev.0));
        if row.seq != seq.next() || row.rev.0 != rev + 1 || row.prior != seq {
            return Err(format!("the journal has a gap: {row:?} follows {seq:?}"));
        }
        if last.is_some_and(|last| last.at > row.at) {
            return Err(format!("time runs backwards in the journal: {row:?}"));
        }
        // A claim may ride in the row that begins the run.
        let (mut run, facts) = match self.run.take().map(Arc::unwrap_or_clone) {
            Some(run) => (run, &row.facts[..]),
            None => {
                let first = Row { facts: row.facts.iter().take(1).cloned().collect(), ..row.clone() };
                (Run::begin(&first).map_err(|bad| bad.to_string())?, &row.facts[1..])
            }
        };
        for fact in facts {
            self.obey(&run, fact, row)?;
            run.apply(fact, Meta { seq: row.seq, at: row.at });
        }
        run.rev = row.rev;
        run.check()?;
        self.run = Some(Arc::new(run));
        Ok(())
    }

    /// A fact becomes durable for a run that stands so.
    fn obey(&mut self, run: &Run, fact: &Fact, row: &Row) -> Result<(), Violation> {
        if run.end.is_some() && !matches!(fact, Fact::Anomaly(_)) {
            return Err(format!("a run that has ended changes: {fact:?}"));
        }
        let cursor = &run.cursors[0];
        match fact {
            Fact::Started(_) => return Err("a run begins twice".into()),
            Fact::Claimed(claimed) => {
                let ready = matches!(cursor.phase, Phase::Scheduled { visible_at, .. } if visible_at <= row.at);
                if !ready {
                    return Err(format!("claim {} is made while the attempt is {:?}", claimed.claim, cursor.phase));
                }
                let by = claimed.by.as_ref().or(cursor.claimant.as_ref()).ok_or("a claim of nobody")?;
                if self.claims.insert(claimed.claim, by.token).is_some() {
                    return Err(format!("claim {} is made twice", claimed.claim));
                }
                self.lease(claimed.claim, row.at.after(LEASE_MS));
                if self.unanswered >= DELIVERIES_MAX {
                    return Err(format!("claim {} is one delivery too many", claimed.claim));
                }
            }
            Fact::Completed(completed) => self.complete(run, completed)?,
            Fact::Failed(failed) => self.record(run, failed.claim, Word::Failed, &failed.error.message)?,
            Fact::Heartbeat(beat) => {
                held(run, beat.claim)?;
                self.lease(beat.claim, beat.lease_until);
            }
            Fact::Returned(returned) => {
                held(run, returned.claim)?;
                self.returned.insert(returned.claim);
            }
            Fact::Expired(expired) => self.expire(run, expired.claim, row.at)?,
            Fact::DeadLettered(letter) => self.set_aside(&letter.reason.code)?,
            Fact::Requeued(_) => self.unanswered = 0,
            _ => {}
        }
        Ok(())
    }

    fn lease(&mut self, claim: u32, until: Timestamp) {
        if let Some(leases) = &mut self.leases {
            let known = leases.entry(claim).or_default();
            *known = until.max(*known);
        }
    }

    /// Whether the holder of the claim may be at it until then, and after a crash as well.
    pub(super) fn is_leased(&self, claim: u32, until: Timestamp) -> bool {
        self.leases.as_ref().is_some_and(|leases| leases.get(&claim) >= Some(&until))
    }

    /// The first step leads on, and the last one ends the run.
    fn complete(&mut self, run: &Run, completed: &Completed) -> Result<(), Violation> {
        let last = run.cursors[0].step.as_deref() == Some(LAST);
        let said = match &*completed.outcome {
            Outcome::Next { state, .. } if !last => state.text(),
            Outcome::Done { result } if last => {
                self.done = Some(result.text().to_owned());
                result.text()
            }
            other => return Err(format!("nobody said {other:?} of {:?}", run.cursors[0].step)),
        };
        self.unanswered = 0;
        self.record(run, completed.claim, Word::Done, said)
    }

    /// A node takes the shard. It does not know for how long the holder of a claim was told that it may be at it, which is not
    /// always written: the claim lasts for another lease.
    pub(super) fn take_over(&mut self, at: Timestamp) {
        let last = self.claims.last_key_value().map_or(0, |(claim, _)| *claim);
        self.taken = (at, last);
    }

    /// A lease ends when its time has come, or with the process in which its holder lived.
    fn expire(&mut self, run: &Run, claim: u32, at: Timestamp) -> Result<(), Violation> {
        let lease_until = held(run, claim)?.lease_until;
        let (taken_at, last) = self.taken;
        let rearmed = if claim <= last { taken_at.after(LEASE_MS) } else { lease_until };
        let dies = self.one_owner && run.cursors[0].claimant.as_ref().is_some_and(|by| by.process.is_some());
        if at < lease_until.max(rearmed) && !dies {
            return Err(format!("claim {claim} ends at {at:?}, before its lease"));
        }
        self.lost.insert(claim);
        self.unanswered += 1;
        Ok(())
    }

    /// What nobody answered is given up after so many deliveries, and not before.
    fn set_aside(&self, code: &str) -> Result<(), Violation> {
        if code == "deliveries_exhausted" && self.unanswered != DELIVERIES_MAX {
            return Err(format!("an attempt is set aside after {} deliveries", self.unanswered));
        }
        Ok(())
    }

    /// A result is recorded once, of whoever holds the claim and nobody else.
    fn record(&mut self, run: &Run, claim: u32, word: Word, text: &str) -> Result<(), Violation> {
        held(run, claim)?;
        let cursor = &run.cursors[0];
        if self.claims.get(&claim).is_none_or(|token| text != said(claim, *token, word)) {
            return Err(format!("{text} is recorded under claim {claim}, of another"));
        }
        let first = self.results.insert(claim, text.to_owned()).is_none();
        if !first || !self.attempts.insert((run.epoch, cursor.visit, cursor.turn)) {
            return Err(format!("an attempt has two results: claim {claim}, turn {}", cursor.turn));
        }
        Ok(())
    }

    /// A worker is told to stop only if its claim has ended without it.
    pub(super) fn is_lost(&self, claim: u32) -> Result<(), Violation> {
        if self.lost.contains(&claim) { Ok(()) } else { Err(format!("claim {claim} is revoked, and was not lost")) }
    }

    /// An index row says what the log says.
    pub(super) fn compare(&self, record: &Record) -> Result<(), Violation> {
        let run = self.run.as_deref().ok_or("an index row of no run")?;
        if record.rev != run.rev || record.status != run.status() {
            return Err(format!("an index row at rev {} of {}", record.rev.0, run.rev.0));
        }
        if record.checkpoint.is_empty() {
            return Ok(());
        }
        same("the checkpoint", &String::from_utf8_lossy(&record.checkpoint), run)
    }

    /// What a node has in memory is the fold of the log.
    pub(super) fn compare_memory(&self, memory: Option<&Run>) -> Result<(), Violation> {
        match (memory, self.run.as_deref()) {
            (Some(memory), Some(run)) => same("memory", &text(memory), run),
            (Some(_), None) => Err("memory has a run that the log does not have".into()),
            (None, _) => Ok(()),
        }
    }
}

fn same(what: &str, found: &str, run: &Run) -> Result<(), Violation> {
    let expected = text(run);
    if found == expected { Ok(()) } else { Err(format!("{what} is not the fold: {found}, expected {expected}")) }
}

/// The claim, if it is the one that is held: a word of any other takes no effect.
fn held(run: &Run, claim: u32) -> Result<&Claim, Violation> {
    match &run.cursors[0].phase {
        Phase::Claimed(held) if held.number == claim => Ok(held),
        other => Err(format!("a word under claim {claim} takes effect while the attempt is {other:?}")),
    }
}
