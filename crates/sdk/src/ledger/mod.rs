//! The ledger as an attempt sees it: what is recorded of its effects and waits, what it adds, and what is not durable
//! yet.
//!
//! Everything durable that a step or function does goes through here. A durable future asks for its entry by name; a
//! [`Drive`](drive::Drive) polls the code, writes what it added, lets effects begin when what they rest on is durable,
//! and hands out what has ended, one entry after the other, in the order that a replay will repeat.

pub(crate) mod answer;
pub(crate) mod children;
pub(crate) mod drive;
mod foreign;
pub(crate) mod manual;
mod patch;
pub(crate) mod points;
mod quiet;
mod retry;
pub(crate) mod review;
mod state;
pub(crate) mod update;
mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;

use abide_kernel::shard::Dispatch;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{EndedAt, ErrorInfo, Moment, Op, OpId, OpKind, OpState, Payload, Policy, Str, Timestamp, limits};
use abide_runtime::{AttemptLink, Beginning, Instead};
use parking_lot::Mutex;

use crate::StepError;
use crate::control::Controls;
use foreign::{CallWake, Calls, Watch};

/// How the code of an attempt lives with its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A step of a machine: it runs from its beginning to its end, and may wait for whatever it likes meanwhile.
    Step,
    /// A function: it is replayed from its beginning, and leaves memory when it waits.
    Function,
}

/// Something that undoes what was done.
pub(crate) struct Undo {
    pub(crate) local: Local,
    pub(crate) call: UndoCall,
}

/// The code of something that undoes what was done.
pub(crate) type UndoCall = Box<dyn FnOnce(points::Call) -> points::Boxed<'static, Result<Payload, StepError>> + Send>;

/// A place in the local list of entries.
pub(crate) type Local = usize;

/// The ledger of one attempt, shared by all clones of its context.
pub(crate) struct Ledger {
    pub(crate) link: AttemptLink,
    pub(crate) controls: Arc<Controls>,
    mode: Mode,
    claim: u32,
    calls: Arc<Calls>,
    watch: Mutex<Option<Arc<Watch>>>,
    state: Mutex<State>,
}

struct State {
    entries: Vec<Known>,
    /// Entries by their key, of those that were recorded before: the key of a new one does not come up again.
    by_key: HashMap<Str, Local>,
    /// Whether a review of an effect was recorded before.
    reviewed: bool,
    /// Entries by their number, from the first that the ledger still has.
    by_op: Vec<Option<Local>>,
    first_op: OpId,
    next_op: OpId,
    /// Names by their text.
    by_name: HashMap<String, usize>,
    names: Vec<Name>,
    /// Entries that ended and that the code takes notice of next: first as it did before, then those that are new.
    replay: VecDeque<Local>,
    fresh: VecDeque<Local>,
    /// How many recorded entries the code has not asked for, and whether it has once come to where it was.
    unasked: usize,
    caught_up: bool,
    /// What is to be written.
    buffer: Vec<Entry>,
    /// The state that the code set last, and the one that is recorded or on its way. Only the last one set counts when
    /// something is written, so a replay that sets them all again writes nothing.
    set: Option<Payload>,
    published: Option<Payload>,
    /// Effects that want to begin.
    wanting: Vec<Local>,
    /// Effects whose calls are under way.
    calling: BTreeSet<Local>,
    /// Entries whose futures are waiting.
    waiting: BTreeMap<Local, Waker>,
    /// Whether an entry ended in this pass over the code, and which others are held back for those to come.
    ended_now: bool,
    held: VecDeque<Local>,
    /// How many entries have ended, as far as this attempt knows.
    ended: u32,
    /// The time of the last thing the code took notice of.
    now: Timestamp,
    /// What ends the attempt, whatever the code makes of it.
    fatal: Option<ErrorInfo>,
    /// Whether what the code waits for did not take place for a reason that is none of its own: the claim goes back, and
    /// nothing is recorded of it.
    given_back: bool,
    /// The input with which the function begins again, if it asked for that.
    again: Option<Payload>,
    /// The run is being cancelled: its code is brought to where it was, and begins nothing new.
    winding_down: bool,
    /// What was decided at edits of the code, by their names.
    patches: HashMap<String, bool>,
    /// What undoes what was done, in the order it was registered.
    undos: Vec<Undo>,
    last_point: Option<(Str, &'static Location<'static>)>,
}

/// What is known of a name.
struct Name {
    /// How many durable points of this name the code has come by.
    points: u32,
    /// Whether an effect of this name is under way.
    active: bool,
}

/// An entry as this attempt knows it.
struct Known {
    key: Str,
    /// Where its name is, once the code has asked for it.
    name: Option<usize>,
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
    /// Whether it failed before and is begun again.
    reopens: bool,
    /// Whether an attempt before gave it up.
    withdrawn: bool,
    /// Whether its end is held back for a later pass over the code.
    held: bool,
    /// Whether its future is gone, or has nothing more to wait for.
    released: bool,
    /// How often it failed and was tried again by its own retry policy.
    failures: u32,
    /// Whether it waits to be tried again.
    resting: bool,
    /// Where a person approved it.
    review: Option<OpId>,
    /// Whether the update that it got is answered.
    answered: bool,
}

impl Known {
    /// An entry that nothing is known of yet.
    fn new(key: Str, kind: LocalKind, input: u64) -> Self {
        Self {
            key,
            name: None,
            op: None,
            kind,
            input,
            state: OpState::Open,
            claim: 0,
            child: None,
            asked: false,
            delivered: false,
            go: false,
            reopens: false,
            withdrawn: false,
            held: false,
            released: false,
            failures: 0,
            resting: false,
            review: None,
            answered: false,
        }
    }

    /// Whether it waits for something that may take long and needs no worker: a person, or its time to be tried again.
    fn is_held_up(&self) -> bool {
        self.is_in_doubt() || self.resting || self.kind == LocalKind::Manual && self.state == OpState::Open
    }

    /// Whether it may or may not have happened under an earlier claim, and must not be repeated.
    fn is_in_doubt(&self) -> bool {
        let once = matches!(self.kind, LocalKind::Effect(policy) if !policy.replay_safe());
        once && self.state == OpState::Open && self.claim != 0 && !self.go
    }
}

/// What a local entry is, without what only the shard decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalKind {
    Effect(Policy),
    Timer,
    Signal,
    Update,
    Child,
    Patch,
    Manual,
}

impl LocalKind {
    fn of(kind: &OpKind) -> Self {
        match kind {
            OpKind::Effect(effect) => Self::Effect(effect.policy),
            OpKind::Timer { .. } => Self::Timer,
            OpKind::Signal { .. } => Self::Signal,
            OpKind::Update { .. } => Self::Update,
            OpKind::Child { .. } => Self::Child,
            OpKind::Patch => Self::Patch,
            OpKind::Manual { .. } => Self::Manual,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Effect(_) => "an effect",
            Self::Timer => "a timer",
            Self::Signal => "a wait for a signal",
            Self::Update => "a wait for an update",
            Self::Child => "a child",
            Self::Patch => "the mark of an edit",
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
    pub(crate) fn new(dispatch: &Dispatch, link: AttemptLink, mode: Mode, controls: Arc<Controls>) -> Self {
        let mut state = State {
            entries: Vec::new(),
            by_key: HashMap::new(),
            reviewed: false,
            by_op: Vec::new(),
            first_op: dispatch.ops_dropped + 1,
            next_op: dispatch.ops_dropped + dispatch.ops.len() as u32 + 1,
            by_name: HashMap::new(),
            names: Vec::new(),
            replay: VecDeque::new(),
            fresh: VecDeque::new(),
            unasked: 0,
            caught_up: false,
            buffer: Vec::new(),
            set: None,
            published: dispatch.published.clone(),
            wanting: Vec::new(),
            calling: BTreeSet::new(),
            waiting: BTreeMap::new(),
            ended_now: false,
            held: VecDeque::new(),
            ended: dispatch.ops_ended,
            now: dispatch.begun_at,
            fatal: None,
            given_back: false,
            again: None,
            winding_down: dispatch.cancelling,
            patches: HashMap::new(),
            undos: Vec::new(),
            last_point: None,
        };
        let ours = |op: &&Op| op.visit == dispatch.visit && op.cursor == dispatch.cursor;
        let numbered = (dispatch.ops_dropped + 1..).zip(dispatch.ops.iter());
        for (id, op) in numbered.filter(|(_, op)| ours(op)) {
            state.know(id, op);
        }
        state.order_replay(mode);
        let claim = dispatch.claim.number;
        Self { claim, link, controls, mode, calls: Arc::default(), watch: Mutex::new(None), state: Mutex::new(state) }
    }

    /// The time of the last thing the code took notice of: the same in every replay.
    pub(crate) fn now(&self) -> Timestamp {
        self.state.lock().now
    }

    /// Sets the state that is seen from outside. It is written with what is written next.
    pub(crate) fn publish(&self, state: Payload) {
        self.state.lock().set = Some(state);
    }

    /// Asks for a new beginning with this input.
    pub(crate) fn begin_again(&self, input: Payload) {
        self.state.lock().again = Some(input);
    }

    /// Remembers what undoes what was done.
    pub(crate) fn push_undo(&self, undo: Undo) {
        self.state.lock().undos.push(undo);
    }

    /// Takes what undoes what was done, the last first.
    pub(crate) fn take_undos(&self) -> Vec<Undo> {
        let mut undos = std::mem::take(&mut self.state.lock().undos);
        undos.reverse();
        undos
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

    /// Gives the attempt back, for another to begin anew. The code hears nothing of it.
    pub(crate) async fn give_back<T>(&self) -> T {
        self.state.lock().given_back = true;
        self.calls.wake();
        std::future::pending().await
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
            Wanted::Effect(policy) | Wanted::Reviewed { policy, .. } | Wanted::Undo(policy) => {
                LocalKind::Effect(*policy)
            }
            Wanted::Timer(_) => LocalKind::Timer,
            Wanted::Signal { .. } => LocalKind::Signal,
            Wanted::Update { .. } => LocalKind::Update,
            Wanted::Child(_) => LocalKind::Child,
            Wanted::Patch { .. } => LocalKind::Patch,
            Wanted::Manual(_) => LocalKind::Manual,
        };
        let effect = matches!(wanted, Wanted::Effect(_));
        let (called, ordinal) = state.next_of(name, effect)?;
        let key: Str = if ordinal == 1 { name.into() } else { [name, "#", &ordinal.to_string()].concat().into() };
        state.last_point = Some((key.clone(), place));
        if let Some(observer) = self.link.observer() {
            observer.asked(self.link.claim().run, &key);
        }
        if let Some(local) = state.by_key.get(&key).copied() {
            state.ask(local);
            let known = &mut state.entries[local];
            known.name = Some(called);
            known.released = false;
            if let Some(error) = divergence(known, kind, input, place) {
                Self::end_attempt(&mut state, error);
            }
            return Ok(local);
        }
        state.go_beyond();
        let local = state.add(Known { name: Some(called), asked: true, ..Known::new(key, kind, input) });
        if !effect {
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
        let ready = known.state == OpState::Open && !known.is_in_doubt() && !known.resting;
        if ready && !state.wanting.contains(&local) {
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
            if !std::mem::replace(&mut state.entries[local].held, true) {
                state.held.push_back(local);
            }
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

    /// What takes the place of an effect's call, by whoever watches.
    pub(crate) fn instead(&self, local: Local, identity: &str) -> Instead {
        let Some(observer) = self.link.observer() else {
            return Instead::Nothing;
        };
        let (key, kind) = {
            let known = &self.state.lock().entries[local];
            (known.key.clone(), known.kind)
        };
        let LocalKind::Effect(policy) = kind else {
            return Instead::Nothing;
        };
        observer.begins(Beginning::new(self.link.claim().run, &key, identity, policy))
    }

    /// Whether a function has called an effect that may be called again, so that no more is in doubt after a panic than before.
    pub(crate) fn may_come_again(&self, local: Local) -> bool {
        let kind = self.state.lock().entries[local].kind;
        self.mode == Mode::Function && matches!(kind, LocalKind::Effect(policy) if policy.replay_safe())
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

fn child_of(op: &Op) -> Option<abide_kernel::RunId> {
    match op.kind {
        OpKind::Child { run } => Some(run),
        _ => None,
    }
}

/// How long a name in its scope may be: what is recorded adds the number of its turn, and that it is reviewed.
const NAME_BYTES_MAX: usize = limits::KEY_BYTES_MAX - 20;

fn check_name(name: &str) -> Result<(), StepError> {
    let found = if name.is_empty() {
        "none".to_owned()
    } else if name.contains('#') {
        format!("{name:?}")
    } else if name.len() > NAME_BYTES_MAX {
        format!("{} bytes", name.len())
    } else {
        return Ok(());
    };
    let message = format!(
        "the name of an effect or wait, with its scope: expected text of 1 to {NAME_BYTES_MAX} bytes without '#', found {found}"
    );
    Err(StepError::new(message).code("bad_name").terminal())
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
