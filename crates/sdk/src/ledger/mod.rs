//! The ledger as an attempt sees it: what is recorded of its effects and waits, what it adds, and what is not durable
//! yet.
//!
//! Everything durable that a step or function does goes through here. A durable future asks for its entry by name; a
//! [`Drive`](drive::Drive) polls the code, writes what it added, lets effects begin when what they rest on is durable,
//! and hands out what has ended, one entry after the other, in the order that a replay will repeat.

pub(crate) mod drive;
mod foreign;
pub(crate) mod manual;
pub(crate) mod points;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

use abide_kernel::shard::Dispatch;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{EndedAt, ErrorInfo, Moment, Op, OpId, OpKind, OpState, Payload, Policy, Str, Timestamp};
use abide_runtime::AttemptLink;
use parking_lot::Mutex;

use crate::StepError;
use foreign::{CallWake, Calls, Watch};

/// How the code of an attempt lives with its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A step of a machine: it runs from its beginning to its end, and may wait for whatever it likes meanwhile.
    Step,
    /// A function: it is replayed from its beginning, and leaves memory when it waits.
    Function,
}

/// A place in the local list of entries.
pub(crate) type Local = usize;

/// The ledger of one attempt, shared by all clones of its context.
pub(crate) struct Ledger {
    pub(crate) link: AttemptLink,
    mode: Mode,
    claim: u32,
    calls: Arc<Calls>,
    watch: Mutex<Option<Arc<Watch>>>,
    state: Mutex<State>,
}

struct State {
    entries: Vec<Known>,
    /// Entries by their key.
    by_key: HashMap<Str, Local>,
    by_op: HashMap<OpId, Local>,
    next_op: OpId,
    /// How many durable points of each name the code has come by.
    ordinals: HashMap<String, u32>,
    /// Names of effects that are under way.
    active: BTreeSet<String>,
    /// Entries that ended and that the code takes notice of next: first as it did before, then those that are new.
    replay: VecDeque<Local>,
    fresh: VecDeque<Local>,
    /// What is to be written.
    buffer: Vec<Entry>,
    /// Effects that want to begin.
    wanting: Vec<Local>,
    /// Effects whose calls are under way.
    calling: BTreeSet<Local>,
    /// Entries whose futures are waiting.
    waiting: BTreeMap<Local, Waker>,
    /// Whether an entry ended in this pass over the code, and whether another is held back for the next.
    ended_now: bool,
    held: bool,
    /// How many entries have ended, as far as this attempt knows.
    ended: u32,
    /// The time of the last thing the code took notice of.
    now: Timestamp,
    /// What ends the attempt, whatever the code makes of it.
    fatal: Option<ErrorInfo>,
    /// The input with which the function begins again, if it asked for that.
    again: Option<Payload>,
    last_point: Option<(Str, &'static Location<'static>)>,
}

/// An entry as this attempt knows it.
struct Known {
    key: Str,
    /// Its number, once it is written or about to be.
    op: Option<OpId>,
    kind: LocalKind,
    input: u64,
    state: OpState,
    /// The claim under which it was begun last.
    claim: u32,
    /// The child, for one that has begun.
    child: Option<abide_kernel::RunId>,
    /// Whether the code has asked for it in this attempt.
    asked: bool,
    /// Whether the code may take notice of its end.
    delivered: bool,
    /// Whether it may begin.
    go: bool,
}

/// What a local entry is, without what only the shard decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalKind {
    Effect(Policy),
    Timer,
    Signal,
    Child,
    Manual,
}

impl LocalKind {
    fn of(kind: &OpKind) -> Self {
        match kind {
            OpKind::Effect(effect) => Self::Effect(effect.policy),
            OpKind::Timer { .. } => Self::Timer,
            OpKind::Signal { .. } => Self::Signal,
            OpKind::Child { .. } => Self::Child,
            OpKind::Manual { .. } => Self::Manual,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Effect(_) => "an effect",
            Self::Timer => "a timer",
            Self::Signal => "a wait for a signal",
            Self::Child => "a child",
            Self::Manual => "a wait for a person",
        }
    }

    fn same(self, other: Self) -> bool {
        // The policy of an effect may be edited: the one that was recorded counts while it is open.
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// What an effect is to do next.
pub(crate) enum Next {
    /// Begin.
    Go,
    /// Wait.
    Wait,
    /// It ended before, or elsewhere.
    Ended(OpState),
}

impl Ledger {
    pub(crate) fn new(dispatch: &Dispatch, link: AttemptLink, mode: Mode) -> Self {
        let mut state = State {
            entries: Vec::new(),
            by_key: HashMap::new(),
            by_op: HashMap::new(),
            next_op: dispatch.ops_dropped + dispatch.ops.len() as u32 + 1,
            ordinals: HashMap::new(),
            active: BTreeSet::new(),
            replay: VecDeque::new(),
            fresh: VecDeque::new(),
            buffer: Vec::new(),
            wanting: Vec::new(),
            calling: BTreeSet::new(),
            waiting: BTreeMap::new(),
            ended_now: false,
            held: false,
            ended: dispatch.ops_ended,
            now: dispatch.begun_at,
            fatal: None,
            again: None,
            last_point: None,
        };
        let ours = |op: &&Op| op.visit == dispatch.visit && op.cursor == dispatch.cursor;
        let numbered = (dispatch.ops_dropped + 1..).zip(dispatch.ops.iter());
        for (id, op) in numbered.filter(|(_, op)| ours(op)) {
            state.know(id, op);
        }
        state.order_replay(mode);
        let claim = dispatch.claim.number;
        Self { claim, link, mode, calls: Arc::default(), watch: Mutex::new(None), state: Mutex::new(state) }
    }

    /// The time of the last thing the code took notice of: the same in every replay.
    pub(crate) fn now(&self) -> Timestamp {
        self.state.lock().now
    }

    /// Whether the code is being brought to where it was before.
    pub(crate) fn is_replaying(&self) -> bool {
        !self.state.lock().replay.is_empty()
    }

    /// Asks for a new beginning with this input.
    pub(crate) fn begin_again(&self, input: Payload) {
        self.state.lock().again = Some(input);
    }

    pub(crate) fn is_beginning_again(&self) -> bool {
        self.state.lock().again.is_some()
    }

    pub(crate) fn take_again(&self) -> Option<Payload> {
        self.state.lock().again.take()
    }

    /// Effects that failed and may be cured: what a retry begins again when nobody says which of them made it fail.
    pub(crate) fn curable(&self) -> Vec<OpId> {
        let state = self.state.lock();
        let cured = |known: &&Known| matches!(&known.state, OpState::Failed { error, .. } if error.retryable);
        state.entries.iter().filter(cured).filter_map(|known| known.op).collect()
    }

    /// The waker for the call of an effect: it says which effect may go on.
    pub(crate) fn call_waker(&self, local: Local, own: &Waker) -> Waker {
        match self.mode {
            Mode::Step => own.clone(),
            Mode::Function => Waker::from(Arc::new(CallWake { local, calls: self.calls.clone() })),
        }
    }

    /// Ends the attempt with an error that the code cannot answer.
    fn end_attempt(state: &mut State, error: ErrorInfo) {
        state.fatal.get_or_insert(error);
    }

    /// The entry of the next durable point of this name, made if it is new.
    pub(crate) fn point(
        &self,
        name: &str,
        wanted: &Wanted,
        input: u64,
        place: &'static Location<'static>,
    ) -> Result<Local, StepError> {
        let mut state = self.state.lock();
        check_name(name)?;
        let kind = match wanted {
            Wanted::Effect(policy) => LocalKind::Effect(*policy),
            Wanted::Timer(_) => LocalKind::Timer,
            Wanted::Signal { .. } => LocalKind::Signal,
            Wanted::Child(_) => LocalKind::Child,
            Wanted::Manual(_) => LocalKind::Manual,
        };
        if matches!(kind, LocalKind::Effect(_)) && !state.active.insert(name.to_owned()) {
            return Err(overlapping(name));
        }
        let ordinal = state.ordinals.entry(name.to_owned()).or_insert(0);
        *ordinal += 1;
        let key: Str = if *ordinal == 1 { name.into() } else { format!("{name}#{ordinal}").into() };
        state.last_point = Some((key.clone(), place));
        if let Some(local) = state.by_key.get(&key).copied() {
            let known = &mut state.entries[local];
            known.asked = true;
            if let Some(error) = divergence(known, kind, input, place) {
                Self::end_attempt(&mut state, error);
            }
            return Ok(local);
        }
        let local = state.add(Known {
            key,
            op: None,
            kind,
            input,
            state: OpState::Open,
            claim: 0,
            child: None,
            asked: true,
            delivered: false,
            go: false,
        });
        if !matches!(kind, LocalKind::Effect(_)) {
            state.write_intent(local, wanted.clone());
        }
        Ok(local)
    }

    /// How a wait ended, if the code may know; else its future is woken when it may.
    pub(crate) fn ended(&self, local: Local, waker: &Waker) -> Option<OpState> {
        let mut state = self.state.lock();
        let known = &state.entries[local];
        if known.delivered {
            let ended = known.state.clone();
            state.waiting.remove(&local);
            return Some(ended);
        }
        state.wait(local, waker);
        None
    }

    /// The child of an entry, once it has begun.
    pub(crate) fn child(&self, local: Local, waker: &Waker) -> Option<abide_kernel::RunId> {
        let mut state = self.state.lock();
        let child = state.entries[local].child;
        if child.is_none() {
            state.wait(local, waker);
        }
        child
    }

    /// What an effect is to do next.
    pub(crate) fn next(&self, local: Local, waker: &Waker) -> Next {
        let mut state = self.state.lock();
        let known = &state.entries[local];
        if known.delivered {
            let ended = known.state.clone();
            state.release(local);
            return Next::Ended(ended);
        }
        if known.go {
            state.calling.insert(local);
            return Next::Go;
        }
        let in_doubt = matches!(known.kind, LocalKind::Effect(policy) if !policy.replay_safe()) && known.claim != 0;
        if known.state == OpState::Open && !in_doubt && !state.wanting.contains(&local) {
            state.wanting.push(local);
        }
        state.wait(local, waker);
        Next::Wait
    }

    /// The call of an effect is under way: its future is woken when the call may go on.
    pub(crate) fn calling(&self, local: Local, waker: &Waker) {
        self.state.lock().wait(local, waker);
    }

    /// Records how an effect ended. `None`: another entry has ended in this pass, so this one waits for the next.
    pub(crate) fn end(
        &self,
        local: Local,
        outcome: &Result<Payload, ErrorInfo>,
        waker: &Waker,
    ) -> Option<Result<Payload, StepError>> {
        let mut state = self.state.lock();
        if self.mode == Mode::Function && state.ended_now {
            state.held = true;
            state.wait(local, waker);
            return None;
        }
        state.ended_now = true;
        let at = self.link.now().max(state.now);
        state.now = at;
        state.ended += 1;
        let op = state.write_effect(local, self.claim);
        let outcome = outcome.clone().map_err(Arc::new);
        let when = EndedAt { ended: state.ended, seen: 0, at };
        state.entries[local].state = match &outcome {
            Ok(value) => OpState::Done { when, value: value.clone() },
            Err(error) => OpState::Failed { when, error: error.clone() },
        };
        state.buffer.push(Entry::End { op, outcome: outcome.clone(), at });
        state.release(local);
        Some(outcome.map_err(|error| StepError { info: (*error).clone(), op: Some(op) }))
    }

    /// The future of an effect is gone.
    pub(crate) fn release(&self, local: Local) {
        self.state.lock().release(local);
    }

    /// The number of an entry, once it is written or about to be.
    pub(crate) fn op(&self, local: Local) -> Option<OpId> {
        self.state.lock().entries[local].op
    }

    /// The key of an entry.
    pub(crate) fn key(&self, local: Local) -> Str {
        self.state.lock().entries[local].key.clone()
    }
}

impl State {
    fn know(&mut self, id: OpId, op: &Op) {
        let effect = op.effect();
        let local = self.add(Known {
            key: op.key.clone(),
            op: Some(id),
            kind: LocalKind::of(&op.kind),
            input: op.input,
            state: op.state.clone(),
            claim: effect.map_or(0, |effect| effect.claim),
            child: child_of(op),
            asked: false,
            delivered: false,
            go: false,
        });
        self.by_op.insert(id, local);
    }

    fn add(&mut self, known: Known) -> Local {
        let local = self.entries.len();
        self.by_key.insert(known.key.clone(), local);
        self.entries.push(known);
        local
    }

    /// A function takes notice of ends in the order it did before; a step may know them all.
    fn order_replay(&mut self, mode: Mode) {
        let mut seen: Vec<(u32, Local)> = Vec::new();
        let mut fresh: Vec<(u32, Local)> = Vec::new();
        for (local, known) in self.entries.iter_mut().enumerate() {
            let Some(when) = known.state.when() else { continue };
            match mode {
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

    fn wait(&mut self, local: Local, waker: &Waker) {
        match self.waiting.get_mut(&local) {
            Some(known) => known.clone_from(waker),
            None => {
                self.waiting.insert(local, waker.clone());
            }
        }
    }

    fn wake(&mut self, local: Local) -> Option<Waker> {
        self.waiting.remove(&local)
    }

    fn release(&mut self, local: Local) {
        self.waiting.remove(&local);
        self.calling.remove(&local);
        self.wanting.retain(|wanting| *wanting != local);
        let name = self.entries[local].key.split('#').next().unwrap_or_default().to_owned();
        self.active.remove(&name);
    }

    /// Numbers an entry that is new and writes that it begins.
    fn write_intent(&mut self, local: Local, what: Wanted) -> OpId {
        let op = self.next_op;
        self.next_op += 1;
        let known = &mut self.entries[local];
        known.op = Some(op);
        self.by_op.insert(op, local);
        self.buffer.push(Entry::Intend { op, key: known.key.clone(), input: known.input, what });
        op
    }

    /// Writes that an effect begins under this claim, unless that is written.
    fn write_effect(&mut self, local: Local, claim: u32) -> OpId {
        let known = &self.entries[local];
        let LocalKind::Effect(policy) = known.kind else {
            return known.op.unwrap_or_default();
        };
        match known.op {
            None => {
                let op = self.write_intent(local, Wanted::Effect(policy));
                self.entries[local].claim = claim;
                op
            }
            Some(op) => {
                if known.claim != claim && !policy.replay_safe() {
                    let (key, input) = (known.key.clone(), known.input);
                    self.buffer.push(Entry::Intend { op, key, input, what: Wanted::Effect(policy) });
                    self.entries[local].claim = claim;
                }
                op
            }
        }
    }
}

fn child_of(op: &Op) -> Option<abide_kernel::RunId> {
    match op.kind {
        OpKind::Child { run } => Some(run),
        _ => None,
    }
}

fn check_name(name: &str) -> Result<(), StepError> {
    if name.is_empty() || name.contains('#') {
        let message = format!("the name of an effect or wait: expected text without '#', found {name:?}");
        return Err(StepError::new(message).code("bad_name").terminal());
    }
    Ok(())
}

fn overlapping(name: &str) -> StepError {
    let message = format!(
        "two effects named {name:?} overlap in one scope; give them names of their own, or use ctx.scope or ctx.map"
    );
    StepError::new(message).code("overlapping_effects").terminal()
}

/// What does not fit between an entry that is recorded and what the code asks for under its key.
fn divergence(known: &Known, kind: LocalKind, input: u64, place: &Location<'_>) -> Option<ErrorInfo> {
    let found = if !known.kind.same(kind) {
        format!("expected {}, as recorded, found {}", known.kind.name(), kind.name())
    } else if known.input != input && known.input != 0 {
        format!("expected the input it was recorded with (hash {:016x}), found another ({input:016x})", known.input)
    } else {
        return None;
    };
    let message = format!(
        "the code does not fit what is recorded at {:?} ({place}): {found}; nothing was changed. Put the old code back, or guard the edit with ctx.patched",
        known.key
    );
    Some(ErrorInfo::terminal("diverged", &message))
}

/// A moment as the ledger takes it.
pub(crate) fn moment(after: std::time::Duration) -> Moment {
    Moment::In(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
}
