//! Drive: polls the code of an attempt and keeps its ledger. See the module above for the order of things.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_kernel::transition::record::Entry;
use abide_kernel::{ErrorInfo, Op, OpId, OpState, Policy, Refusal};
use abide_runtime::Unanswered;

use super::foreign::Watch;
use super::{Ledger, Local, LocalKind, Mode};

/// Passes over a function that wakes itself, before that counts as a loop without end.
const PASSES_MAX: usize = 100_000;

/// What a panic says when a timer, socket or task of the runtime was to be made outside of it.
const OUTSIDE: &str = "context of a Tokio 1.x runtime";

/// Refusals of an engine elsewhere that another attempt would get as well.
const SET_ASIDE: [&str; 7] =
    ["invalid", "busy", "too_large", "not_approved", "second_boundary", "malformed", "too_deep"];

/// How an attempt's code came out.
pub(crate) enum Driven<T> {
    /// It returned, and this is still to be written beside its outcome.
    Returned(T, Vec<Entry>),
    /// It waits for its ledger, having seen so many entries end.
    Suspended {
        /// How many.
        seen: u32,
        /// What is to be written.
        entries: Vec<Entry>,
    },
    /// It does not fit what is recorded, or waits for what the engine cannot see.
    SetAside(ErrorInfo),
    /// The claim ended without it.
    Lost,
    /// Whether its last words were recorded is not known, or it cannot go on for a reason that is none of its own: the claim
    /// goes back.
    GivenBack,
    /// It panicked.
    Panicked(String, Vec<Entry>),
}

type Record = Pin<Box<dyn Future<Output = Result<(), Unanswered>> + Send>>;

/// The code of an attempt, and its ledger.
pub(crate) struct Drive<T> {
    ledger: Arc<Ledger>,
    code: Pin<Box<dyn Future<Output = T> + Send>>,
    watch: Arc<Watch>,
    /// Whether the code was polled once: from then on it says itself when it may go on.
    begun: bool,
    records: Vec<Record>,
}

impl<T> Drive<T> {
    pub(crate) fn new(ledger: Arc<Ledger>, code: Pin<Box<dyn Future<Output = T> + Send>>) -> Self {
        let watch: Arc<Watch> = Arc::default();
        if ledger.mode == Mode::Function {
            *ledger.watch.lock() = Some(watch.clone());
        }
        Self { ledger, code, watch, begun: false, records: Vec::new() }
    }

    /// The same attempt, with other code in the place of what has come to its end.
    pub(crate) fn then<U>(self, code: Pin<Box<dyn Future<Output = U> + Send>>) -> Drive<U> {
        self.ledger.proceed();
        Drive { ledger: self.ledger, code, watch: self.watch, begun: false, records: self.records }
    }

    /// Polls the code until nothing more happens by itself.
    fn poll_code(&mut self, cx: &mut Context<'_>) -> Result<Poll<T>, String> {
        let polled = |code: &mut Pin<Box<dyn Future<Output = T> + Send>>, waker: &Waker| {
            catch_unwind(AssertUnwindSafe(|| code.as_mut().poll(&mut Context::from_waker(waker))))
                .map_err(|panic| panic_text(&panic))
        };
        if self.ledger.mode == Mode::Step {
            return polled(&mut self.code, cx.waker());
        }
        // A function hears of everything by its own waker. What only wakes the task, such as a commit, is the ledger's.
        if !self.watch.take_again() && self.begun {
            return Ok(Poll::Pending);
        }
        self.begun = true;
        let waker = Waker::from(self.watch.clone());
        for _ in 0..PASSES_MAX {
            self.watch.enter();
            let _hush = self.ledger.hush();
            let result = polled(&mut self.code, &waker);
            self.watch.leave();
            match result? {
                Poll::Ready(value) => return Ok(Poll::Ready(value)),
                Poll::Pending if self.watch.take_again() => {}
                Poll::Pending => return Ok(Poll::Pending),
            }
        }
        Err("the function wakes itself without end".into())
    }

    /// Hands the buffer over, to be written.
    fn submit(&mut self) {
        let entries = self.ledger.state.lock().take_entries();
        if !entries.is_empty() {
            self.records.push(Box::pin(self.ledger.link.record(entries)));
        }
    }

    /// Whether all that was handed over is durable; an error when some of it was refused.
    fn poll_records(&mut self, cx: &mut Context<'_>) -> Result<bool, Unanswered> {
        let mut refused = None;
        self.records.retain_mut(|record| match record.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(error)) => {
                refused.get_or_insert(error);
                false
            }
        });
        refused.map_or(Ok(self.records.is_empty()), Err)
    }

    fn ended(&self, error: &Unanswered) -> Driven<T> {
        match error {
            Unanswered::Refused(Refusal::Unknown) => Driven::GivenBack,
            Unanswered::Refused(
                refusal @ (Refusal::Invalid { .. }
                | Refusal::Busy { .. }
                | Refusal::TooLarge { .. }
                | Refusal::NotApproved { .. }
                | Refusal::SecondBoundary { .. }),
            ) => Driven::SetAside(ErrorInfo::terminal(refusal.code(), &refusal.to_string())),
            Unanswered::Said { code, detail } if SET_ASIDE.contains(&code.as_str()) => {
                Driven::SetAside(ErrorInfo::terminal(code, detail))
            }
            _ => Driven::Lost,
        }
    }

    /// How the attempt ends whatever the code makes of it, if it does.
    fn ended_by_ledger(&self) -> Option<Driven<T>> {
        let mut state = self.ledger.state.lock();
        match state.fatal.take() {
            Some(error) => Some(Driven::SetAside(error)),
            None => state.given_back.then_some(Driven::GivenBack),
        }
    }

    fn foreign(&self) -> Driven<T> {
        let after = match &self.ledger.state.lock().last_point {
            Some((key, place)) => format!("after {key:?} ({place})"),
            None => "before its first durable point".to_owned(),
        };
        let message = format!(
            "the function waits for something that the engine cannot see, {after}: a timer, socket, channel or lock of another library. Use ctx.sleep, ctx.signal, or do it inside an effect"
        );
        Driven::SetAside(ErrorInfo::terminal("foreign_wait", &message))
    }
}

impl<T> Future for Drive<T> {
    type Output = Driven<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Driven<T>> {
        let this = &mut *self;
        this.ledger.calls.attach(cx.waker());
        this.watch.attach(cx.waker());
        // What wakes the task most often is a commit, so what waits for it begins before anything else is looked at.
        if !(this.records.is_empty() || this.ledger.link.is_cancelled()) {
            match this.poll_records(cx) {
                Err(error) => return Poll::Ready(this.ended(&error)),
                Ok(true) => {
                    this.ledger.let_go();
                }
                Ok(false) => {}
            }
        }
        loop {
            if this.ledger.mode == Mode::Function && this.ledger.link.is_cancelled() {
                return Poll::Ready(Driven::Lost);
            }
            this.ledger.hear();
            let polled = match this.poll_code(cx) {
                Ok(polled) => polled,
                Err(text) if this.ledger.mode == Mode::Function && text.contains(OUTSIDE) => {
                    return Poll::Ready(this.foreign());
                }
                Err(text) => return Poll::Ready(Driven::Panicked(text, this.ledger.take_buffer())),
            };
            if let Some(ended) = this.ended_by_ledger() {
                return Poll::Ready(ended);
            }
            if let Poll::Ready(value) = polled {
                return Poll::Ready(Driven::Returned(value, this.ledger.take_buffer()));
            }
            if this.watch.heard_foreign() {
                return Poll::Ready(this.foreign());
            }
            if this.ledger.pass() || this.ledger.deliver() {
                continue;
            }
            if this.ledger.winds_down() {
                return Poll::Ready(Driven::Suspended { seen: 0, entries: this.ledger.take_buffer() });
            }
            if this.ledger.write_wanted() {
                continue;
            }
            // Before it suspends, all is written with the outcome: one row, and one commit.
            if this.records.is_empty() && this.ledger.rests() {
                if this.ledger.waits_for_nothing() {
                    return Poll::Ready(this.foreign());
                }
                let entries = this.ledger.take_buffer();
                let seen = this.ledger.state.lock().ended;
                return Poll::Ready(Driven::Suspended { seen, entries });
            }
            if this.records.is_empty() && this.ledger.is_stuck() {
                let seen = this.ledger.state.lock().ended;
                return Poll::Ready(Driven::Suspended { seen, entries: this.ledger.take_buffer() });
            }
            this.submit();
            match this.poll_records(cx) {
                Err(error) => return Poll::Ready(this.ended(&error)),
                Ok(true) if this.ledger.let_go() => continue,
                Ok(true) if this.ledger.rests() => continue,
                Ok(_) => {}
            }
            if this.ledger.listens() && this.ledger.link.poll_news(cx) {
                continue;
            }
            return Poll::Pending;
        }
    }
}

impl Ledger {
    /// Takes in what the shard told, and wakes the futures of effects whose calls may go on.
    fn hear(&self) {
        while let Some((id, op)) = self.link.told() {
            self.told(id, &op);
        }
        let woken = self.calls.take();
        if woken.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let wakers: Vec<Waker> = woken.into_iter().filter_map(|local| state.wake(local)).collect();
        drop(state);
        // Inside the watch of the next poll these would look foreign, so they are woken through the tree here.
        for waker in wakers {
            self.quietly(waker);
        }
    }

    fn told(&self, id: OpId, op: &Op) {
        let mut state = self.state.lock();
        let Some(local) = state.numbered(id) else {
            return;
        };
        let known = &mut state.entries[local];
        known.child = super::child_of(op).or(known.child);
        // Someone may have allowed it once more.
        known.claim = op.effect().map_or(known.claim, |effect| effect.claim);
        known.resting = known.resting && op.due().is_some();
        let ended = known.state == OpState::Open && op.state != OpState::Open;
        if ended {
            known.state = op.state.clone();
            state.ended += 1;
        }
        match (ended, self.mode) {
            (true, Mode::Step) => state.entries[local].delivered = true,
            (true, Mode::Function) => state.fresh.push_back(local),
            (false, _) => {}
        }
        let reviews = state.wake_manual(local);
        let waker = state.wake(local);
        drop(state);
        waker.into_iter().chain(reviews).for_each(|waker| self.quietly(waker));
    }

    /// Wakes a durable future: what is heard now is no foreign wake-up.
    fn quietly(&self, waker: Waker) {
        if let Some(watch) = &*self.watch.lock() {
            watch.enter();
            waker.wake();
            watch.leave();
        } else {
            waker.wake();
        }
    }

    /// Ends a pass over the code; whether one more is due, because an entry's end was held back. It is one entry that goes
    /// on: were all of them woken for each that ends, a thousand branches would be a million polls.
    fn pass(&self) -> bool {
        let mut state = self.state.lock();
        state.ended_now = false;
        while let Some(local) = state.held.pop_front() {
            state.entries[local].held = false;
            // One whose future is gone waits for nothing.
            if let Some(waker) = state.wake(local) {
                drop(state);
                self.quietly(waker);
                return true;
            }
        }
        false
    }

    /// Lets the code take notice of the next entry that has ended. Whether there was one.
    fn deliver(&self) -> bool {
        let mut state = self.state.lock();
        let local = match state.replay.pop_front() {
            Some(local) => local,
            None => {
                let Some(local) = state.fresh.pop_front() else {
                    return false;
                };
                state.go_beyond();
                if let Some(op) = state.entries[local].op {
                    state.buffer.push(Entry::See { op });
                }
                local
            }
        };
        let known = &mut state.entries[local];
        known.delivered = true;
        // The pass that follows is for this one alone: an effect that ends in it as well is held back, or a replay, which has
        // the two one after the other, could have another winner.
        let when = known.state.when();
        state.ended_now = true;
        if let Some(when) = when {
            state.now = state.now.max(when.at);
        }
        let reviews = state.wake_manual(local);
        let waker = state.wake(local);
        drop(state);
        waker.into_iter().chain(reviews).for_each(|waker| self.quietly(waker));
        true
    }

    /// Writes the intents of effects that must be written before they begin and what is waited for again, and lets effects
    /// begin that rest on nothing. Whether there were any.
    fn write_wanted(&self) -> bool {
        self.wait_again();
        let mut state = self.state.lock();
        let at_once = |local: &Local| match state.entries[*local].kind {
            LocalKind::Effect(policy) => policy == Policy::Pure || policy.intends_first(),
            LocalKind::Timer
            | LocalKind::Signal
            | LocalKind::Update
            | LocalKind::Child
            | LocalKind::Patch
            | LocalKind::Manual => false,
        };
        if !state.wanting.iter().any(at_once) {
            return false;
        }
        let mut free = Vec::new();
        for local in state.wanting.clone() {
            match state.entries[local].kind {
                LocalKind::Effect(Policy::Pure) => free.push(local),
                LocalKind::Effect(policy) if policy.intends_first() => {
                    state.write_effect(local, self.claim);
                }
                _ => {}
            }
        }
        state.wanting.retain(|local| !free.contains(local));
        drop(state);
        self.begin(&free)
    }

    /// Lets effects begin. Whether there were any.
    fn begin(&self, locals: &[Local]) -> bool {
        for local in locals {
            let mut state = self.state.lock();
            state.entries[*local].go = true;
            let waker = state.wake(*local);
            drop(state);
            waker.into_iter().for_each(|waker| self.quietly(waker));
        }
        !locals.is_empty()
    }

    /// Whether the shard may have something to tell.
    fn listens(&self) -> bool {
        self.mode == Mode::Function || !(self.state.lock().waiting.is_empty() || self.link.is_cancelled())
    }

    /// Everything is durable: effects that wanted to begin do. Whether there were any.
    fn let_go(&self) -> bool {
        let mut state = self.state.lock();
        if !state.buffer.is_empty() || state.winding_down {
            return false;
        }
        let wanting = std::mem::take(&mut state.wanting);
        drop(state);
        self.begin(&wanting)
    }

    /// Whether a function has nothing under way: all it does is wait.
    fn rests(&self) -> bool {
        let state = self.state.lock();
        self.mode == Mode::Function && state.calling.is_empty() && state.wanting.is_empty()
    }

    /// Whether a step waits for an effect that is in doubt, rests or is reviewed, and does nothing else that is durable: it
    /// lets go of its claim until the effect may go on.
    fn is_stuck(&self) -> bool {
        if self.mode == Mode::Function {
            return false;
        }
        let state = self.state.lock();
        let idle = state.calling.is_empty() && state.wanting.is_empty();
        idle && state.waiting.keys().any(|local| state.entries[*local].is_held_up())
    }

    /// Whether nothing that the code waits for is in the ledger.
    fn waits_for_nothing(&self) -> bool {
        let state = self.state.lock();
        !state.waiting.keys().any(|local| state.entries[*local].state == OpState::Open)
    }

    /// Whether the run is being cancelled, so that nothing new begins in its code.
    fn winds_down(&self) -> bool {
        self.state.lock().winding_down
    }

    /// What follows may begin something again.
    fn proceed(&self) {
        let mut state = self.state.lock();
        state.winding_down = false;
        state.go_beyond();
        state.wanting.clear();
        state.names.iter_mut().for_each(|name| name.active = false);
        state.waiting.clear();
    }

    /// Puts back what was to be written beside an outcome, because more follows.
    pub(crate) fn put_back(&self, entries: Vec<Entry>) {
        self.state.lock().buffer.splice(0..0, entries);
    }

    pub(crate) fn take_buffer(&self) -> Vec<Entry> {
        self.state.lock().take_entries()
    }
}

pub(super) fn panic_text(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked with something that is no text".into())
}
