//! Children: runs that a function starts and waits for, one by one or many at once.

use std::collections::HashSet;
use std::fmt::Display;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use abide_kernel::transition::record::Wanted;
use abide_kernel::{Barrier, ErrorInfo, Join, Moment, OpState, Refusal, RunId, Str};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::de::DeserializeOwned;

use super::points::{self, Boxed, decode_end};
use super::{Ledger, Local, moment};
use crate::{ChildStart, StepError};

/// A child that was started: its id, and its end to wait for.
#[must_use = "a child begins when it is awaited"]
pub struct ChildCall<T> {
    ledger: Arc<Ledger>,
    name: String,
    wanted: Result<Wanted, StepError>,
    input: u64,
    place: &'static Location<'static>,
    result: PhantomData<fn() -> T>,
}

impl<T> ChildCall<T> {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        name: String,
        namespace: &Str,
        start: ChildStart,
        place: &'static Location<'static>,
    ) -> Self {
        let mut input = 0;
        let wanted = start.spec.and_then(|child| {
            let mut spec = child.spec;
            spec.namespace = namespace.clone();
            let bad = |refusal: Refusal| ErrorInfo::terminal(refusal.code(), &format!("child {name:?}: {refusal}"));
            spec.validate().map_err(bad)?;
            input = spec.input.canonical_hash().max(1);
            Ok(Wanted::Child(Box::new(spec)))
        });
        Self { ledger, name, wanted: wanted.map_err(StepError::of), input, place, result: PhantomData }
    }
}

impl<T: DeserializeOwned + Send + 'static> ChildCall<T> {
    /// Starts it, and does not wait for its end.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn started(self) -> Result<StartedChild<T>, StepError> {
        let local = self.ledger.point(&self.name, &self.wanted?, self.input, self.place)?;
        let ledger = self.ledger;
        let run = poll_fn(|cx| ledger.child(local, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
        Ok(StartedChild { ledger, local, run, result: PhantomData })
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for ChildCall<T> {
    type Output = Result<T, StepError>;
    type IntoFuture = Boxed<'static, Result<T, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let local = self.ledger.point(&self.name, &self.wanted?, self.input, self.place)?;
            ended_child(&self.ledger, local).await
        })
    }
}

/// A child that has begun.
pub struct StartedChild<T> {
    ledger: Arc<Ledger>,
    local: Local,
    run: RunId,
    result: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> StartedChild<T> {
    /// The child.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.run
    }

    /// Waits for its end and gives its result.
    ///
    /// # Errors
    /// The child's error, when it did not end well.
    pub async fn result(&self) -> Result<T, StepError> {
        ended_child(&self.ledger, self.local).await
    }
}

async fn ended_child<T: DeserializeOwned>(ledger: &Ledger, local: Local) -> Result<T, StepError> {
    let state = poll_fn(|cx| ledger.ended(local, cx.waker()).map_or(Poll::Pending, Poll::Ready)).await;
    match state {
        // A retry does not begin a child again, so it is nobody's effect.
        OpState::Failed { error, .. } => Err(StepError::of((*error).clone())),
        state => decode_end(ledger, local, state),
    }
}

/// Many children, started at once and waited for together. They begin when it is awaited.
#[must_use = "children begin when they are awaited"]
pub struct Children<T> {
    ledger: Arc<Ledger>,
    /// Before the names of the children, and the name of the timer.
    name: String,
    calls: Result<Vec<ChildCall<T>>, StepError>,
    join: Join,
    limit: Option<Moment>,
    place: &'static Location<'static>,
}

impl<T> Children<T> {
    pub(crate) fn new<K: Display>(
        ledger: Arc<Ledger>,
        name: String,
        namespace: &Str,
        children: impl IntoIterator<Item = (K, ChildStart)>,
        place: &'static Location<'static>,
    ) -> Self {
        let mut names = HashSet::new();
        let calls = children.into_iter().map(|(key, start)| {
            let named = format!("{name}[{key}]");
            if !names.insert(named.clone()) {
                let message = format!("expected keys that differ among the children {name:?}, found {key} twice");
                return Err(StepError::new(message).code("invalid").terminal());
            }
            Ok(ChildCall::new(ledger.clone(), named, namespace, start, place))
        });
        let calls = calls.collect();
        Self { ledger, name, calls, join: Join::default(), limit: None, place }
    }

    /// When they have been waited for: by default, when all have ended. Those that have not ended by then go on.
    pub fn join(mut self, join: Join) -> Self {
        self.join = join;
        self
    }

    /// Waits no longer than this.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(moment(limit));
        self
    }
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Children<T> {
    type Output = Result<Joined<T>, StepError>;
    type IntoFuture = Boxed<'static, Result<Joined<T>, StepError>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.joined())
    }
}

impl<T: DeserializeOwned + Send + 'static> Children<T> {
    async fn joined(self) -> Result<Joined<T>, StepError> {
        let Self { ledger, name, calls, join, limit, place } = self;
        let calls = calls?;
        check_quorum(join, calls.len())?;
        let mut joined = Joined { join, ended: Vec::with_capacity(calls.len()) };
        let mut running = FuturesUnordered::new();
        // All begin before any is waited for.
        for (index, call) in calls.into_iter().enumerate() {
            let local = ledger.point(&call.name, &call.wanted?, call.input, place)?;
            let ledger = ledger.clone();
            joined.ended.push(None);
            running.push(async move { (index, ended_child(&ledger, local).await) });
        }
        let timer = [&*name, " within"].concat();
        let mut late: Option<Boxed<'_, Result<OpState, StepError>>> =
            limit.map(|limit| Box::pin(points::wait(&ledger, &timer, Wanted::Timer(limit), 0, place)) as _);
        while !joined.barrier().satisfied() {
            // What ends is delivered one at a time, so a replay finds the same children ended.
            let next = poll_fn(|cx| {
                if let Poll::Ready(ended) = running.poll_next_unpin(cx) {
                    return Poll::Ready(Ok(ended));
                }
                match &mut late {
                    Some(timer) => Pin::new(timer).poll(cx).map(|over| over.map(|_| None)),
                    None => Poll::Pending,
                }
            });
            match next.await? {
                Some((index, result)) => joined.ended[index] = Some(result),
                None => break,
            }
        }
        Ok(joined)
    }
}

fn check_quorum(join: Join, children: usize) -> Result<(), StepError> {
    match join {
        Join::Quorum(k) if k == 0 || k as usize > children => {
            let message = format!("expected a quorum from 1 to {children}, the number of children, found {k}");
            Err(StepError::new(message).code("invalid").terminal())
        }
        _ => Ok(()),
    }
}

/// How a child ended; `None` while it has not.
type End<T> = Option<Result<T, StepError>>;

/// Children that were waited for together, in the order they were given.
#[derive(Debug)]
pub struct Joined<T> {
    join: Join,
    ended: Vec<End<T>>,
}

impl<T> Joined<T> {
    fn barrier(&self) -> Barrier {
        let mut barrier = Barrier { join: self.join, pending: 0, succeeded: 0, failed: 0 };
        for ended in &self.ended {
            match ended {
                None => barrier.pending += 1,
                Some(Ok(_)) => barrier.succeeded += 1,
                Some(Err(_)) => barrier.failed += 1,
            }
        }
        barrier
    }

    /// Whether what was waited for came about: all ended, all succeeded, one did, or so many as were asked for.
    #[must_use]
    pub fn is_met(&self) -> bool {
        let Barrier { pending, succeeded, failed, .. } = self.barrier();
        match self.join {
            Join::AllTerminal => pending == 0,
            Join::AllSucceeded => pending + failed == 0,
            Join::Any => succeeded > 0,
            Join::Quorum(k) => succeeded >= k,
        }
    }

    /// How each ended; `None` for those that had not.
    #[must_use]
    pub fn ended(&self) -> &[Option<Result<T, StepError>>] {
        &self.ended
    }

    /// What those gave that succeeded, in their order.
    #[must_use]
    pub fn succeeded(self) -> Vec<T> {
        self.ended.into_iter().flatten().filter_map(Result::ok).collect()
    }

    /// What each gave, when all succeeded.
    ///
    /// # Errors
    /// The first error in their order, or that one has not ended.
    pub fn all(self) -> Result<Vec<T>, StepError> {
        let (mut values, mut open) = (Vec::with_capacity(self.ended.len()), 0);
        for ended in self.ended {
            match ended {
                Some(ended) => values.push(ended?),
                None => open += 1,
            }
        }
        if open > 0 {
            let message = format!("expected all children to have ended, found {open} that have not");
            return Err(StepError::new(message).code("not_ended"));
        }
        Ok(values)
    }
}
