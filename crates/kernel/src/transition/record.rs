//! Record: a step writes to its run's ledger: effects it begins or has ended, and waits.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, child, manual, signal, update, wait, wake};
use serde::{Deserialize, Serialize};

use crate::limits::OPS_MAX;
use crate::spec::{check_key, check_name, check_payload};
use crate::{
    Cursor, Effect, EndedAt, ErrorInfo, Fact, Intended, ManualEnd, Meta, Moment, Op, OpEnd, OpId, OpKind, OpState,
    Payload, Phase, Policy, Published, Refusal, Reply, Resulted, Retries, Retrying, Run, Seen, StartSpec, Str,
    Timestamp, TokenHash, WaitKind, WakeReason,
};

/// What a worker says when its step writes to the ledger.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recording {
    /// The claim's number.
    pub claim: u32,
    /// The hash of the claim's token.
    pub token: TokenHash,
    /// What it writes, in order.
    pub entries: Vec<Entry>,
}

/// One thing that a step writes to the ledger. Under a claim only its worker adds entries, so it numbers them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// It is about to do something, or begins to wait.
    Intend {
        /// The entry's number: the next one for a new entry.
        op: OpId,
        /// Its key.
        key: Str,
        /// The canonical hash of its input, or zero.
        input: u64,
        /// What.
        what: Wanted,
    },
    /// An effect ended.
    End {
        /// The entry's number.
        op: OpId,
        /// How.
        outcome: Result<Payload, Arc<ErrorInfo>>,
        /// When, by the worker's clock.
        at: Timestamp,
    },
    /// An effect failed, and its own retry policy tries it again.
    Again {
        /// The entry's number.
        op: OpId,
        /// How it failed.
        error: Arc<ErrorInfo>,
        /// How long to wait first.
        delay_ms: u64,
    },
    /// The step took notice of an entry that had ended without it.
    See {
        /// The entry's number.
        op: OpId,
    },
    /// The step does not wait for it any more: a person, an instant, a signal or an update.
    Withdraw {
        /// The entry's number.
        op: OpId,
    },
    /// The step waits after all for what it had withdrawn: an instant, a signal or an update.
    WaitAgain {
        /// The entry's number.
        op: OpId,
    },
    /// The step answers an update.
    Answer {
        /// The entry that got it.
        op: OpId,
        /// What it answers.
        reply: Reply,
        /// Set when the code never got it, because it could not read it.
        unread: bool,
    },
    /// The step publishes a state, for those who look at the run from outside.
    Publish {
        /// The state.
        state: Payload,
    },
}

/// What an entry is about to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Wanted {
    /// Outside work under this policy.
    Effect(Policy),
    /// Outside work that a person had to approve first.
    Reviewed {
        /// Its policy.
        policy: Policy,
        /// The entry of the ledger at which it was approved.
        review: OpId,
    },
    /// Work under this policy that undoes something, if the run fails or is cancelled.
    Undo(Policy),
    /// A wait for an instant.
    Timer(Moment),
    /// A wait for one signal.
    Signal {
        /// Its name.
        name: Str,
        /// Until when.
        deadline: Option<Moment>,
    },
    /// A wait for one update.
    Update {
        /// Its name.
        name: Str,
        /// Until when.
        deadline: Option<Moment>,
    },
    /// A child, and a wait for its end.
    Child(Box<StartSpec>),
    /// A mark: the run goes the new way at an edit of its code.
    Patch {
        /// When, by the time that the code sees.
        at: Timestamp,
    },
    /// A manual boundary: a wait for a person.
    Manual(Box<manual::Asking>),
}

/// Writes to the ledger of a claimed step.
///
/// # Errors
/// When the fence is not the current one, the ledger is full, or an entry contradicts what is recorded.
pub fn decide(run: &Run, recording: &Recording, now: Timestamp) -> Result<Transition, Refusal> {
    let index = super::fenced(run, recording.claim, recording.token, now)?;
    let mut transition = Transition::default();
    entries(run, index, recording.claim, &recording.entries, now, &mut transition)?;
    Ok(transition)
}

/// The facts of what a step writes, also beside its completion.
pub(super) fn entries(
    run: &Run,
    index: u16,
    claim: u32,
    entries: &[Entry],
    now: Timestamp,
    transition: &mut Transition,
) -> Result<(), Refusal> {
    let mut writing = Writing { run, index, claim, now, next: run.next_op(), begun: Vec::new(), transition };
    for entry in entries {
        writing.entry(entry)?;
    }
    Ok(())
}

struct Writing<'a> {
    run: &'a Run,
    index: u16,
    claim: u32,
    now: Timestamp,
    next: OpId,
    /// Effects that were begun by entries before.
    begun: Vec<OpId>,
    transition: &'a mut Transition,
}

impl Writing<'_> {
    fn entry(&mut self, entry: &Entry) -> Result<(), Refusal> {
        match entry {
            Entry::Intend { op, key, input, what } if *op == self.next => self.intend(*op, key, *input, what),
            Entry::Intend {
                op,
                key,
                what: Wanted::Effect(policy) | Wanted::Reviewed { policy, .. } | Wanted::Undo(policy),
                ..
            } => self.begin_again(*op, key, *policy),
            Entry::Intend { op, key, what: Wanted::Manual(asking), .. } => {
                manual::ask_again(self.known(*op)?, *op, key, asking, self.run)
            }
            Entry::Intend { op, .. } => Err(out_of_order(*op, self.next)),
            Entry::End { op, outcome, at } => self.end(*op, outcome, *at),
            Entry::Again { op, error, delay_ms } => self.again(*op, error, *delay_ms),
            Entry::See { op } => self.see(*op),
            Entry::Withdraw { op } if wait::is_wait(self.run, *op, self.transition) => {
                wait::withdraw(self.run, *op, self.transition);
                Ok(())
            }
            Entry::Withdraw { op } => manual::withdraw(self.run, *op, self.transition),
            Entry::WaitAgain { op } => {
                let entry = self.run.op(*op).ok_or_else(|| out_of_order(*op, self.next))?;
                wait::again(self.run, *op, entry, self.now, self.transition);
                Ok(())
            }
            Entry::Answer { op, reply, unread } => {
                update::answer(self.run, self.index, *op, reply, *unread, self.transition)
            }
            Entry::Publish { state } => self.publish(state),
        }
    }

    fn intend(&mut self, op: OpId, key: &Str, input: u64, what: &Wanted) -> Result<(), Refusal> {
        check_key("ledger key", key)?;
        if self.run.ops.len() + (self.next - self.run.next_op()) as usize >= OPS_MAX {
            return Err(Refusal::Busy { what: "the run's ledger".into(), limit: OPS_MAX as u64 });
        }
        let (cursor, now) = (self.index, self.now);
        let intended = |kind: OpKind| Fact::Intended(Box::new(Intended { op, cursor, key: key.clone(), kind, input }));
        let at_once = match what {
            Wanted::Effect(policy) | Wanted::Reviewed { policy, .. } => {
                let approval = match what {
                    Wanted::Reviewed { review, .. } => Some(manual::approval(self.run, self.index, *review, key)?),
                    _ => None,
                };
                let effect = Effect { policy: *policy, claim: self.claim, approval, ..Effect::default() };
                self.transition.facts.push(intended(OpKind::Effect(effect)));
                self.begun.push(op);
                None
            }
            Wanted::Undo(policy) => {
                let effect = Effect { policy: *policy, undo: true, ..Effect::default() };
                self.transition.facts.push(intended(OpKind::Effect(effect)));
                None
            }
            Wanted::Timer(moment) => self.wait(&intended, OpKind::Timer { until: moment.from(now) }),
            Wanted::Signal { name, deadline } => {
                check_name("signal name", name)?;
                let until = deadline.map(|moment| moment.from(now));
                self.wait(&intended, OpKind::Signal { name: name.clone(), until, got: None })
            }
            Wanted::Update { name, deadline } => {
                check_name("update name", name)?;
                let until = deadline.map(|moment| moment.from(now));
                self.wait(&intended, OpKind::Update { name: name.clone(), until, answered: false })
            }
            Wanted::Child(spec) => {
                spec.validate()?;
                let run = child::begin_op(self.run, self.index, op, key, spec, now, self.transition)?;
                self.transition.facts.push(intended(OpKind::Child { run }));
                None
            }
            Wanted::Patch { at } => {
                self.transition.facts.push(intended(OpKind::Patch));
                self.transition.facts.push(marked(op, *at, now));
                None
            }
            Wanted::Manual(asking) => {
                let asked = manual::ask(self.run, self.index, op, key, asking, now, self.transition)?;
                let (kind, until) = (asked.kind, asked.until);
                self.transition.facts.push(intended(OpKind::Manual { kind, until }));
                until.filter(|until| *until <= now).map(|_| manual::elapse(&asked, self.transition))
            }
        };
        self.next += 1;
        let resulted = at_once.map(|end| Fact::Resulted(Box::new(Resulted { op, end, at: None })));
        self.transition.facts.extend(resulted);
        Ok(())
    }

    /// Begins a wait, and says how it ends at once, if it does.
    fn wait(&mut self, intended: &dyn Fn(OpKind) -> Fact, kind: OpKind) -> Option<OpEnd> {
        let end = wait::begin(self.run, &kind, self.now, self.transition);
        self.transition.facts.push(intended(kind));
        end
    }

    /// An effect that was begun before is begun again: by itself where its policy allows, else only where someone did.
    fn begin_again(&mut self, op: OpId, key: &Str, policy: Policy) -> Result<(), Refusal> {
        let known = self.known(op)?;
        let effect = known.effect().filter(|effect| known.key == *key && effect.policy == policy);
        let Some(effect) = effect.filter(|_| known.cursor == self.index) else {
            return Err(Refusal::invalid(
                "ledger entry",
                &format!("{} as it is recorded", known.key),
                (**key).to_owned(),
            ));
        };
        match &known.state {
            OpState::Open => {}
            // Its error may be cured, and repeating it does no harm.
            OpState::Failed { error, .. } if error.retryable && policy.replay_safe() && !self.begun.contains(&op) => {
                let end = OpEnd::Reopened;
                self.transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end, at: None })));
                self.begun.push(op);
                return Ok(());
            }
            _ => return Err(Refusal::EffectEnded { op }),
        }
        if effect.claim == self.claim || self.begun.contains(&op) {
            return Ok(());
        }
        if !policy.replay_safe() && effect.claim != 0 {
            return Err(Refusal::InDoubt { op, key: known.key.clone() });
        }
        let (kind, input) = (OpKind::Effect(Effect { claim: self.claim, ..effect.clone() }), known.input);
        let intended = Intended { op, cursor: self.index, key: key.clone(), kind, input };
        self.transition.facts.push(Fact::Intended(Box::new(intended)));
        self.begun.push(op);
        Ok(())
    }

    fn publish(&mut self, state: &Payload) -> Result<(), Refusal> {
        check_payload("state", state)?;
        self.transition.facts.push(Fact::Published(Published { state: state.clone() }));
        Ok(())
    }

    fn see(&mut self, op: OpId) -> Result<(), Refusal> {
        // Of one that is not known to have ended, or was seen before, there is nothing new to say.
        if self.known(op)?.state.when().is_some_and(|when| when.seen == 0) {
            self.transition.facts.push(Fact::Seen(Seen { op }));
        }
        Ok(())
    }

    fn end(&mut self, op: OpId, outcome: &Result<Payload, Arc<ErrorInfo>>, at: Timestamp) -> Result<(), Refusal> {
        let end = match outcome {
            Ok(value) => {
                check_payload("effect result", value)?;
                OpEnd::Value(value.clone())
            }
            Err(error) => {
                error.validate()?;
                OpEnd::Error(error.clone())
            }
        };
        self.check_begun(op)?;
        let at = (at < self.now).then_some(at);
        self.transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end, at })));
        Ok(())
    }

    /// Whether this claim has begun an effect that is open, and so may say what became of it.
    fn check_begun(&self, op: OpId) -> Result<(), Refusal> {
        if self.begun.contains(&op) {
            return Ok(());
        }
        let known = self.known(op)?;
        let Some(effect) = known.effect().filter(|_| known.cursor == self.index) else {
            return Err(Refusal::invalid("ledger entry", "an effect of this step", (*known.key).to_owned()));
        };
        if known.state != OpState::Open {
            return Err(Refusal::EffectEnded { op });
        }
        // What another claim began, this one cannot have ended, unless beginning it again needs no word.
        if effect.claim != self.claim && !effect.policy.replay_safe() {
            return Err(Refusal::InDoubt { op, key: known.key.clone() });
        }
        Ok(())
    }

    /// An effect failed and is tried again: only where that does no harm, and only while its error may be cured.
    fn again(&mut self, op: OpId, error: &Arc<ErrorInfo>, delay_ms: u64) -> Result<(), Refusal> {
        error.validate()?;
        self.check_begun(op)?;
        let begun = self.transition.facts.iter().rev().find_map(|fact| match fact {
            Fact::Intended(intended) if intended.op == op => Some(&intended.kind),
            _ => None,
        });
        let kind = begun.or(self.run.op(op).map(|known| &known.kind));
        if !matches!(kind, Some(OpKind::Effect(effect)) if effect.policy.replay_safe()) || !error.retryable {
            let expected = "an error that may be cured, of an effect that may be repeated";
            return Err(Refusal::invalid("retry of an effect", expected, format!("{error} at entry {op}")));
        }
        let until = self.now.after(delay_ms);
        self.transition.facts.push(Fact::Retrying(Box::new(Retrying { op, error: error.clone(), until })));
        if until <= self.now {
            self.transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end: OpEnd::Reopened, at: None })));
        }
        Ok(())
    }

    fn known(&self, op: OpId) -> Result<&Op, Refusal> {
        self.run.op(op).ok_or_else(|| out_of_order(op, self.next))
    }
}

/// A mark ends with its beginning, and its step has seen it.
fn marked(op: OpId, at: Timestamp, now: Timestamp) -> Fact {
    let end = OpEnd::Value(Payload::null());
    Fact::Resulted(Box::new(Resulted { op, end, at: (at < now).then_some(at) }))
}

fn out_of_order(op: OpId, next: OpId) -> Refusal {
    let expected = format!("an entry that exists, or the next one, {next}");
    Refusal::Invalid { what: "ledger entry".into(), expected, found: format!("{op}") }
}

/// Open waits of the run whose instant has come.
pub(super) fn expire(run: &Run, now: Timestamp, transition: &mut Transition) {
    let due = run.open_ops().filter(|(_, op)| op.due().is_some_and(|due| due <= now)).map(|(id, _)| id);
    for op in due.collect::<Vec<OpId>>() {
        let effect = run.op(op).is_some_and(|entry| entry.effect().is_some());
        let ended = match run.manual(op) {
            Some(manual) => manual::elapse(&manual.asked, transition),
            // It has waited for long enough to be tried again.
            None if effect => OpEnd::Reopened,
            None => OpEnd::Elapsed,
        };
        end(run, op, ended, transition);
    }
}

/// An open entry ends, or may begin again, from outside the step: whoever waits for it wakes.
pub(super) fn end(run: &Run, op: OpId, end: OpEnd, transition: &mut Transition) {
    let Some(entry) = run.op(op).filter(|entry| entry.state == OpState::Open) else {
        return;
    };
    transition.facts.push(Fact::Resulted(Box::new(Resulted { op, end, at: None })));
    wake_cursor(run, entry.cursor, transition);
}

/// Wakes a cursor that waits for its ledger.
pub(super) fn wake_cursor(run: &Run, index: u16, transition: &mut Transition) {
    let Some(cursor) = run.cursors.get(usize::from(index)) else {
        return;
    };
    if let Phase::Waiting(wait) = &cursor.phase
        && matches!(wait.kind, WaitKind::Ledger)
    {
        wake::push(index, cursor, wait, WakeReason::Ledger, transition);
    }
}

/// How many entries have ended once the transition's facts are folded.
pub(super) fn ended_after(run: &Run, transition: &Transition) -> u32 {
    run.ops_ended + transition.facts.iter().filter(|fact| matches!(fact, Fact::Resulted(_))).count() as u32
}

/// Whether something is open that a step could wait for, once the transition's facts are folded.
pub(super) fn open_after(run: &Run, index: u16, transition: &Transition) -> bool {
    let ended = |id: OpId| {
        let ends = |fact: &Fact| matches!(fact, Fact::Resulted(resulted) if resulted.op == id);
        transition.facts.iter().any(ends)
    };
    let begun = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Intended(intended) if !is_armed(&intended.kind) => Some(intended.op),
        _ => None,
    });
    // What is only there to undo something is nothing to wait for.
    let open = run.open_ops().filter(|(_, op)| op.cursor == index && !is_armed(&op.kind)).map(|(id, _)| id);
    open.chain(begun).any(|id| !ended(id))
}

/// Whether an entry is only there to undo something, should it come to that.
pub(super) fn is_armed(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Effect(effect) if effect.undo && effect.claim == 0)
}

/// The cursor begins a new life: what would undo something of the old one is forgotten.
pub(super) fn disarm(run: &Run, index: u16, transition: &mut Transition) {
    let known = run.open_ops().filter(|(_, op)| op.cursor == index && is_armed(&op.kind)).map(|(id, _)| id);
    let begun = transition.facts.iter().filter_map(|fact| match fact {
        Fact::Intended(intended) if is_armed(&intended.kind) => Some(intended.op),
        _ => None,
    });
    let armed: Vec<OpId> = known.chain(begun).collect();
    let forgotten = armed.into_iter().map(|op| Resulted { op, end: OpEnd::Withdrawn, at: None });
    transition.facts.extend(forgotten.map(|resulted| Fact::Resulted(Box::new(resulted))));
}

pub(super) fn apply_intended(run: &mut Run, intended: &Intended, meta: Meta) {
    let visit = run.cursors.get(usize::from(intended.cursor)).map_or(0, |cursor: &Cursor| cursor.visit);
    if let Some(op) = run.op_mut(intended.op) {
        op.kind = intended.kind.clone();
        return;
    }
    forget_left(run, intended.cursor, visit);
    if intended.op != run.next_op() {
        return;
    }
    run.open.push(intended.op);
    Arc::make_mut(&mut run.ops).push(Op {
        key: intended.key.clone(),
        cursor: intended.cursor,
        visit,
        kind: intended.kind.clone(),
        input: intended.input,
        at: meta.at,
        state: OpState::Open,
    });
}

/// Drops entries of visits that the cursor has left, from the oldest on, as far as nothing of them is open.
fn forget_left(run: &mut Run, cursor: u16, visit: u32) {
    let left = |op: &Op| op.cursor == cursor && op.visit < visit && op.state != OpState::Open;
    let count = run.ops.iter().take_while(|op| left(op)).count();
    if count > 0 {
        Arc::make_mut(&mut run.ops).drain(..count);
        run.ops_dropped += count as u32;
    }
}

pub(super) fn apply_resulted(run: &mut Run, resulted: &Resulted, meta: Meta) {
    let mut when = EndedAt { ended: run.ops_ended + 1, seen: 0, at: resulted.at.unwrap_or(meta.at) };
    if matches!(resulted.end, OpEnd::Value(_) | OpEnd::Error(_)) {
        // Its step ended it, and so has seen it.
        when.seen = run.ops_seen + 1;
    }
    let state = match &resulted.end {
        OpEnd::Value(value) => OpState::Done { when, value: value.clone() },
        OpEnd::Error(error) => OpState::Failed { when, error: error.clone() },
        OpEnd::Elapsed => OpState::Elapsed { when },
        OpEnd::Signal(id) => signal::apply_given(run, resulted.op, *id, when),
        OpEnd::Update(id) => update::apply_given(run, resulted.op, *id, when),
        OpEnd::Child => child::op_state(run, resulted.op, when),
        OpEnd::Decision => manual::op_state(run, resulted.op, when),
        // Nobody waits for it: that it is over is all that a replay could ask for. See `Op::is_withdrawn`.
        OpEnd::Withdrawn => OpState::Elapsed { when },
        OpEnd::Reopened => OpState::Open,
    };
    match &resulted.end {
        OpEnd::Elapsed => manual::close(run, Some(resulted.op), ManualEnd::TimedOut, meta),
        OpEnd::Withdrawn => {
            signal::apply_withdrawn(run, resulted.op);
            update::apply_withdrawn(run, resulted.op);
            manual::close(run, Some(resulted.op), ManualEnd::Withdrawn, meta);
        }
        _ => {}
    }
    let reopened = state == OpState::Open;
    let Some(op) = run.op_mut(resulted.op) else {
        return;
    };
    op.state = state;
    if reopened {
        if let OpKind::Effect(effect) = &mut op.kind {
            effect.claim = 0;
            if let Some(retries) = &mut effect.retries {
                Arc::make_mut(retries).until = None;
            }
        }
        if !run.open.contains(&resulted.op) {
            run.open.push(resulted.op);
        }
        return;
    }
    run.ops_ended = when.ended;
    run.ops_seen = run.ops_seen.max(when.seen);
    run.open.retain(|open| *open != resulted.op);
}

pub(super) fn apply_retrying(run: &mut Run, retrying: &Retrying) {
    let Some(OpKind::Effect(effect)) = run.op_mut(retrying.op).map(|op| &mut op.kind) else {
        return;
    };
    let failures = effect.retries.as_ref().map_or(0, |retries| retries.failures) + 1;
    let (error, until) = (retrying.error.clone(), Some(retrying.until));
    effect.retries = Some(Arc::new(Retries { failures, error, until }));
    effect.claim = 0;
}

pub(super) fn apply_seen(run: &mut Run, seen: Seen) {
    let next = run.ops_seen + 1;
    if let Some(when) = run.op_mut(seen.op).and_then(|op| op.state.when_mut()).filter(|when| when.seen == 0) {
        when.seen = next;
        run.ops_seen = next;
        signal::apply_seen(run, seen.op);
    }
}

/// A text of what an entry is, for errors and people.
#[must_use]
pub fn describe(op: &Op) -> String {
    match &op.kind {
        OpKind::Effect(effect) => format!("effect {:?} ({})", op.key, effect.policy),
        OpKind::Timer { .. } => format!("timer {:?}", op.key),
        OpKind::Signal { name, .. } => format!("wait {:?} for signal {name:?}", op.key),
        OpKind::Update { name, .. } => format!("wait {:?} for update {name:?}", op.key),
        OpKind::Child { run } => format!("child {:?} ({run})", op.key),
        OpKind::Patch => format!("mark {:?}", op.key),
        OpKind::Manual { kind, .. } => format!("{kind} {:?}", op.key),
    }
}
