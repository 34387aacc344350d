//! Workflows of which each waits in another way when its store is moved. In their first life some never come to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use abide::{
    Control, EngineBuilder, Failure, FnCtx, Function, Join, Machine, Policy, RetryPolicy, StepError, await_signal,
    child, done, sleep, spawn,
};

/// Whether the store was moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Moved(Arc<AtomicBool>, Arc<AtomicU64>);

impl Moved {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// How often it was paid since, which must not happen by itself.
    pub(super) fn paid_again(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }

    fn pay(&self) {
        self.1.fetch_add(u64::from(self.is()), Ordering::SeqCst);
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Never returns before.
    async fn or_never(&self) {
        if !self.is() {
            std::future::pending::<()>().await;
        }
    }
}

/// Every workflow, for an engine of either life.
pub(super) fn all(builder: EngineBuilder, moved: &Moved, nap: Duration) -> EngineBuilder {
    builder
        .register(waits())
        .register(naps(nap))
        .register(joins())
        .register(pays(moved.clone()))
        .register(asks())
        .register(packs())
        .register(tries(moved.clone(), nap))
        .register(works(moved.clone()))
}

/// Parked on a signal. Its journal begins anew with every park.
fn waits() -> Machine<u64> {
    Machine::<u64>::new("waits").compact_after(2).step("wait", async |ctx, n: u64| match ctx.signal::<u64>("paid")? {
        Some(paid) => Ok(done(&(n + paid))),
        None => Ok(await_signal("paid", n)),
    })
}

fn naps(nap: Duration) -> Machine<u64> {
    Machine::<u64>::new("naps")
        .step("rest", move |_, n: u64| async move { Ok(sleep(nap, n).then("wake")) })
        .step("wake", async |_, n: u64| Ok(done(&n)))
}

/// Waits for children: one in its own shard, one at home where its key is.
fn joins() -> Machine<u64> {
    Machine::<u64>::new("joins")
        .step("ask", async |ctx, n: u64| {
            let key = format!("child of {}", ctx.run_id());
            Ok(spawn([child("waits", &n), child("waits", &n).key(&key)], "end", n).join(Join::AllSucceeded))
        })
        .step("end", async |ctx, n: u64| Ok(done(&(n + ctx.children().len() as u64))))
}

/// What must not happen twice was begun, and nobody knows what became of it.
fn pays(moved: Moved) -> Function {
    Function::new("pays", move |ctx: FnCtx, n: u64| {
        let moved = moved.clone();
        async move {
            let call = move |_| {
                let moved = moved.clone();
                async move {
                    moved.pay();
                    moved.or_never().await;
                    Ok::<u64, StepError>(n)
                }
            };
            let paid: u64 = ctx.effect("pay", call).policy(Policy::UnsafeOnce).await?;
            Ok::<_, Failure>(paid)
        }
    })
    .control(Control::allow().named("pay"))
}

fn asks() -> Function {
    Function::new("asks", async |ctx: FnCtx, n: u64| {
        let decision = ctx.approval("spend").payload(&n).await?;
        Ok::<_, Failure>(u64::from(decision.is_approved()))
    })
}

fn packs() -> Function {
    Function::new("packs", async |ctx: FnCtx, _: u64| {
        let weight: u64 = ctx.task("pack", "one box").await?;
        Ok::<_, Failure>(weight)
    })
}

/// Failed, and is tried again after a while.
fn tries(moved: Moved, nap: Duration) -> Machine<u64> {
    let wait = u64::try_from(nap.as_millis()).unwrap_or(u64::MAX);
    Machine::<u64>::new("tries").retry(RetryPolicy { retries_max: Some(1_000), ..RetryPolicy::exponential(wait) }).step(
        "try",
        move |_, n: u64| {
            let moved = moved.clone();
            async move { if moved.is() { Ok(done(&n)) } else { Err(StepError::new("not yet")) } }
        },
    )
}

/// Executes for as long as its first engine lives.
fn works(moved: Moved) -> Machine<u64> {
    Machine::<u64>::new("works").step("work", move |_, n: u64| {
        let moved = moved.clone();
        async move {
            moved.or_never().await;
            Ok(done(&n))
        }
    })
}
