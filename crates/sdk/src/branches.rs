//! Branches: several durable things at once, each in a scope of its own.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::{Boxed, Failure, FnCtx};

impl FnCtx {
    /// Does the same for every item, all at once, each in a scope named `name[key]`. Gives the results in the order of
    /// the items, once all have ended, or the first error in that order.
    ///
    /// Keys must differ: they are what a replay knows the items by.
    ///
    /// # Errors
    /// The first error, in the order of the items.
    pub async fn map<K, I, F, R, T>(
        &self,
        name: &str,
        items: impl IntoIterator<Item = (K, I)>,
        each: F,
    ) -> Result<Vec<T>, Failure>
    where
        K: Display,
        F: Fn(Self, I) -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let branches = items.into_iter().map(|(key, item)| each(self.scope(&format!("{name}[{key}]")), item));
        all(branches).await
    }

    /// Waits for all of them. Gives their results in their order, once all have ended, or the first error in that order.
    /// Make each with a scope of its own: `ctx.scope("a")`.
    ///
    /// # Errors
    /// The first error, in the order given.
    pub async fn all<R, T>(&self, branches: impl IntoIterator<Item = R>) -> Result<Vec<T>, Failure>
    where
        R: Future<Output = Result<T, Failure>>,
    {
        all(branches).await
    }

    /// Waits for the first of them to end, and gives up the others: its place in the order given, and what it gave. A
    /// replay has the same winner. An effect that is given up while it executes is not recorded as ended. A wait that is
    /// given up is withdrawn: what was sent to it goes to the next wait for that name, and its timer wakes nobody.
    ///
    /// # Panics
    /// When there are none.
    pub async fn race<'a, T>(&self, branches: impl IntoIterator<Item = Boxed<'a, T>>) -> (usize, T) {
        let mut branches: Vec<Boxed<'a, T>> = branches.into_iter().collect();
        assert!(!branches.is_empty(), "a race needs someone to run");
        poll_fn(|cx| {
            for (index, branch) in branches.iter_mut().enumerate() {
                if let Poll::Ready(value) = Pin::new(branch).poll(cx) {
                    return Poll::Ready((index, value));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Only branches that were woken are polled, in the order they were: a thousand of them cost no more than they must.
async fn all<R, T>(branches: impl IntoIterator<Item = R>) -> Result<Vec<T>, Failure>
where
    R: Future<Output = Result<T, Failure>>,
{
    let numbered = branches.into_iter().enumerate().map(|(index, branch)| async move { (index, branch.await) });
    let mut running: FuturesUnordered<_> = numbered.collect();
    let mut ended: Vec<Option<Result<T, Failure>>> = (0..running.len()).map(|_| None).collect();
    while let Some((index, result)) = running.next().await {
        ended[index] = Some(result);
    }
    ended.into_iter().flatten().collect()
}
