//! What an attempt knows of its ledger, and how it changes.

use std::task::Waker;

use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{Op, OpId, OpKind, OpState, REVIEW, Str};

use super::{Known, Local, LocalKind, Mode, Name, State, child_of, overlapping};
use crate::StepError;

impl State {
    pub(super) fn know(&mut self, id: OpId, op: &Op) {
        let effect = op.effect();
        let retries = effect.and_then(|effect| effect.retries.as_deref());
        let local = self.add(Known {
            op: Some(id),
            state: op.state.clone(),
            claim: effect.map_or(0, |effect| effect.claim),
            child: child_of(op),
            answered: matches!(op.kind, OpKind::Update { answered: true, .. }),
            withdrawn: op.is_withdrawn(),
            failures: retries.map_or(0, |retries| retries.failures),
            resting: op.due().is_some() && effect.is_some(),
            ..Known::new(op.key.clone(), LocalKind::of(&op.kind), op.input)
        });
        self.unasked += 1;
        self.reviewed |= op.key.ends_with(REVIEW);
        self.by_key.insert(op.key.clone(), local);
        self.number(id, local);
    }

    pub(super) fn add(&mut self, known: Known) -> Local {
        self.entries.push(known);
        self.entries.len() - 1
    }

    pub(super) fn number(&mut self, op: OpId, local: Local) {
        let index = (op - self.first_op) as usize;
        if self.by_op.len() <= index {
            self.by_op.resize(index + 1, None);
        }
        self.by_op[index] = Some(local);
    }

    /// The entry of this number, if it is one of this attempt's.
    pub(super) fn numbered(&self, op: OpId) -> Option<Local> {
        let index = op.checked_sub(self.first_op)?;
        *self.by_op.get(index as usize)?
    }

    /// A function takes notice of ends in the order it did before; a step may know them all.
    pub(super) fn order_replay(&mut self, mode: Mode) {
        let mut seen: Vec<(u32, Local)> = Vec::new();
        let mut fresh: Vec<(u32, Local)> = Vec::new();
        for (local, known) in self.entries.iter_mut().enumerate() {
            // What was given up ended for nobody.
            let Some(when) = known.state.when().filter(|_| !known.withdrawn) else { continue };
            let curable = matches!(&known.state, OpState::Failed { error, .. } if error.retryable);
            let repeatable = matches!(known.kind, LocalKind::Effect(policy) if policy.replay_safe());
            match mode {
                // A step has no past: an error that may be cured is met by trying again.
                Mode::Step if curable && repeatable => {
                    known.state = OpState::Open;
                    known.reopens = true;
                }
                Mode::Step => known.delivered = true,
                Mode::Function if when.seen > 0 => seen.push((when.seen, local)),
                Mode::Function => fresh.push((when.ended, local)),
            }
        }
        seen.sort_unstable();
        fresh.sort_unstable();
        self.replay = seen.into_iter().map(|(_, local)| local).collect();
        self.fresh = fresh.into_iter().map(|(_, local)| local).collect();
    }

    /// Takes what is to be written, with the state that the code has set since.
    pub(super) fn take_entries(&mut self) -> Vec<Entry> {
        let mut entries = std::mem::take(&mut self.buffer);
        if let Some(state) = self.set.take().filter(|state| self.published.as_ref() != Some(state)) {
            self.published = Some(state.clone());
            entries.push(Entry::Publish { state });
        }
        entries
    }

    pub(super) fn wait(&mut self, local: Local, waker: &Waker) {
        match self.waiting.get_mut(&local) {
            Some(known) => known.clone_from(waker),
            None => {
                self.waiting.insert(local, waker.clone());
            }
        }
    }

    pub(super) fn wake(&mut self, local: Local) -> Option<Waker> {
        self.waiting.remove(&local)
    }

    /// Takes the wakers of reviews that wait for their turn to ask, when a wait for a person is over.
    pub(super) fn wake_manual(&mut self, over: Local) -> Vec<Waker> {
        if self.entries[over].kind != LocalKind::Manual {
            return Vec::new();
        }
        let deferred = |local: &&Local| {
            let known = &self.entries[**local];
            known.kind == LocalKind::Manual && known.op.is_none()
        };
        let deferred: Vec<Local> = self.waiting.keys().filter(deferred).copied().collect();
        deferred.into_iter().filter_map(|local| self.wake(local)).collect()
    }

    pub(super) fn release(&mut self, local: Local) {
        if std::mem::replace(&mut self.entries[local].released, true) {
            return;
        }
        self.waiting.remove(&local);
        self.calling.remove(&local);
        self.wanting.retain(|wanting| *wanting != local);
        if let Some(name) = self.entries[local].name {
            self.names[name].active = false;
        }
    }

    /// A name's place, and which durable point of this name comes next. Of effects, one of a name is under way at a time.
    pub(super) fn next_of(&mut self, name: &str, effect: bool) -> Result<(usize, u32), StepError> {
        let Some(place) = self.by_name.get(name).copied() else {
            self.by_name.insert(name.to_owned(), self.names.len());
            self.names.push(Name { points: 1, active: effect });
            return Ok((self.names.len() - 1, 1));
        };
        let known = &mut self.names[place];
        if effect && std::mem::replace(&mut known.active, true) {
            return Err(overlapping(name));
        }
        known.points += 1;
        Ok((place, known.points))
    }

    /// The key of the next durable point of this name.
    pub(super) fn next_key(&self, name: &str) -> Str {
        let points = self.by_name.get(name).map_or(0, |place| self.names[*place].points);
        if points == 0 { name.into() } else { format!("{name}#{}", points + 1).into() }
    }

    /// The number under which the next durable point of this name is recorded, if it is.
    pub(super) fn recorded_next(&self, name: &str) -> Option<OpId> {
        self.by_key.get(&self.next_key(name)).and_then(|local| self.entries[*local].op)
    }

    /// Numbers an entry that is new and writes that it begins.
    pub(super) fn write_intent(&mut self, local: Local, what: Wanted) -> OpId {
        let op = self.next_op;
        self.next_op += 1;
        self.entries[local].op = Some(op);
        self.number(op, local);
        let known = &self.entries[local];
        self.buffer.push(Entry::Intend { op, key: known.key.clone(), input: known.input, what });
        op
    }

    /// Writes that an effect begins under this claim, unless that is written.
    pub(super) fn write_effect(&mut self, local: Local, claim: u32) -> OpId {
        let known = &self.entries[local];
        let LocalKind::Effect(policy) = known.kind else {
            return known.op.unwrap_or_default();
        };
        match known.op {
            None => {
                let wanted = match known.review {
                    Some(review) => Wanted::Reviewed { policy, review },
                    None => Wanted::Effect(policy),
                };
                let op = self.write_intent(local, wanted);
                self.entries[local].claim = claim;
                op
            }
            Some(op) => {
                if known.reopens || known.claim != claim && !policy.replay_safe() {
                    let (key, input) = (known.key.clone(), known.input);
                    self.buffer.push(Entry::Intend { op, key, input, what: Wanted::Effect(policy) });
                    self.entries[local].claim = claim;
                    self.entries[local].reopens = false;
                }
                op
            }
        }
    }
}
