//! Workflows that use every verb: a machine with children, a leaf, and a function whose input says what it does.

use std::sync::Arc;

use abide::{
    Boxed, Call, Control, Failure, FnCtx, Function, Join, Machine, Policy, RetryPolicy, StepError, Workflow,
    await_signal, child, done, hours, minutes, next, replay, sleep, spawn, stop,
};
use abide_runtime::Program;

use crate::truth::Witness;

/// Everything that a node of the world can execute.
///
/// # Panics
/// When a workflow is not as it should be.
pub(crate) fn programs(witness: &Witness) -> Vec<Arc<dyn Program>> {
    let leaf = leaf(witness.clone()).into_program();
    let order = order(witness.clone()).into_program();
    let trip = trip(witness.clone()).into_program();
    let planned = |program: Result<Arc<dyn Program>, (String, String)>| match program {
        Ok(program) => program,
        Err((workflow, problem)) => panic!("{workflow}: {problem}"),
    };
    [leaf, order, trip].into_iter().map(planned).collect()
}

/// A child: one call, and an end.
fn leaf(witness: Witness) -> Machine<u64> {
    Machine::<u64>::new("leaf")
        .step("only", move |ctx, n: u64| {
            let witness = witness.clone();
            async move {
                let key = ctx.idempotency_key();
                witness.call(ctx.run_id(), None, key, Policy::Idempotent).await?;
                Ok(done(&n))
            }
        })
        .retry(RetryPolicy { retries_max: Some(3), ..RetryPolicy::exponential(1_000) })
}

/// A machine: an effect, a signal with a deadline, children under every kind of join, a sleep.
fn order(witness: Witness) -> Machine<u64> {
    let join = |n: u64| match n % 4 {
        0 => Join::AllTerminal,
        1 => Join::AllSucceeded,
        2 => Join::Any,
        _ => Join::Quorum(2),
    };
    Machine::<u64>::new("order")
        .step("charge", move |ctx, n: u64| {
            let witness = witness.clone();
            async move {
                let run = ctx.run_id();
                let charged = ctx.effect("charge", |call: Call| {
                    let key = call.key().to_owned();
                    async move { witness.call(run, Some("charge"), key, Policy::Dedupe).await }
                });
                charged.dedupe().await?;
                Ok(next("pay", n))
            }
        })
        .step("pay", async |ctx, n: u64| match ctx.signal::<u64>("paid")? {
            Some(_) => Ok(next("ship", n)),
            None if ctx.timed_out() => Ok(next("ship", n)),
            None => {
                ctx.progress("asked", &n).await?;
                Ok(await_signal("paid", n).deadline(hours(2)))
            }
        })
        .step("ship", move |_, n: u64| async move {
            let count = n % 5;
            let children = (0..count).map(|index| match n % 3 {
                0 => child("leaf", &index).key(&format!("leaf-{}", index % 2)),
                _ => child("leaf", &index),
            });
            let join = match join(n) {
                Join::Quorum(of) if u64::from(of) > count => Join::AllTerminal,
                join => join,
            };
            let spawned = spawn(children, "rest", n).join(join);
            // Without a deadline nothing but word of its children wakes it.
            Ok(if n & 8 == 0 { spawned.deadline(hours(5)) } else { spawned })
        })
        .step("rest", async |ctx, n: u64| {
            if ctx.attempt() == 0 && n.is_multiple_of(5) {
                Ok(sleep(minutes(10), n).then("end"))
            } else {
                Ok(next("end", n))
            }
        })
        .step("end", async |_, n: u64| Ok(done(&n)))
        .on_error(
            async |error: StepError, ctx, n: u64| {
                if ctx.attempt() < 4 { replay(n, minutes(1)) } else { stop(error) }
            },
        )
}

/// A function that does what the bits of its input say.
fn trip(witness: Witness) -> Function {
    let code = move |ctx: FnCtx, n: u64| {
        let witness = witness.clone();
        async move { travel(ctx, n, witness).await }
    };
    Function::new("trip", code)
        .retry(RetryPolicy { retries_max: Some(4), ..RetryPolicy::exponential(1_000) })
        .operation("pay", Policy::UnsafeOnce)
        .control(Control::allow().named("pay"))
        .control(Control::interrupt().named("wire").deadline(hours(12)))
}

async fn travel(ctx: FnCtx, n: u64, witness: Witness) -> Result<u64, Failure> {
    let run = ctx.run_id();
    let call = |effect: &'static str, policy: Policy| {
        let witness = witness.clone();
        move |call: Call| {
            let (witness, key) = (witness.clone(), call.key().to_owned());
            async move { witness.call(run, Some(effect), key, policy).await }
        }
    };
    ctx.effect("quote", call("quote", Policy::Pure)).pure().await?;
    ctx.effect("book", call("book", Policy::Idempotent)).await?;
    let undoes = |effect: &'static str| {
        let undoing = call(effect, Policy::Idempotent);
        ctx.undo(effect, move |given| {
            let undone = undoing(given);
            async move { undone.await.map(|_| ()) }
        })
    };
    undoes("unbook")?;
    ctx.set_state(&n)?;
    if n & 1 != 0 {
        ctx.signal::<u64>("go").within(hours(1)).await?;
    }
    if n & 2 != 0 {
        let leaf: Result<u64, StepError> = ctx.child("leaf", "leaf", &n).await;
        ctx.set_state(&leaf.is_ok())?;
    }
    ctx.effect("mail", call("mail", Policy::Dedupe))
        .dedupe()
        .retry(RetryPolicy { retries_max: Some(2), ..RetryPolicy::exponential(500) })
        .await?;
    undoes("recall")?;
    if n & 4 != 0 {
        ctx.approval("allow").deadline(hours(20)).await?;
    }
    if n & 8 != 0 {
        ctx.effect("pay", call("pay", Policy::UnsafeOnce)).unsafe_once().await?;
    }
    if n & 16 != 0 {
        ctx.effect("wire", call("wire", Policy::Reconcile)).reconcile().await?;
    }
    if n & 32 != 0
        && let Some(asked) = ctx.update::<u64>("add").within(hours(2)).await?
    {
        let sum = asked.input() + n;
        asked.answer(&sum)?;
    }
    if n & 64 != 0 {
        let leaves = (0..3).map(|index: u64| (index, child("leaf", &index)));
        ctx.children::<u64, _>("leaves", leaves).join(Join::Quorum(2)).within(hours(3)).await?;
    }
    if n & 128 != 0 {
        ctx.sleep(minutes(30)).await?;
    }
    if n & 256 != 0 {
        // A call that may take long, and what happens to the run meanwhile.
        let (calls, hears) = (ctx.scope("calls"), ctx.scope("hears"));
        let weigh = call("calls/weigh", Policy::Idempotent);
        let both: [Boxed<'_, Result<(), Failure>>; 2] = [
            Box::pin(async move { calls.effect("weigh", weigh).await.map(|_| ()) }),
            Box::pin(async move { hears.signal::<u64>("go").within(hours(1)).await.map(|_| ()) }),
        ];
        ctx.all(both).await?;
    }
    wait_for_somebody(&ctx, n).await?;
    if n & AGAIN != 0 {
        return ctx.continue_as_new(&(n - AGAIN));
    }
    Ok(n)
}

/// The bit of a trip's input that has it begin anew without that bit.
pub(crate) const AGAIN: u64 = 4096;

/// What undoes what a trip did, in the order in which it is registered.
pub(crate) const UNDOING: [&str; 2] = ["unbook", "recall"];

/// Waits of which one ends without being served, and waits for people.
async fn wait_for_somebody(ctx: &FnCtx, n: u64) -> Result<(), Failure> {
    if n & 512 != 0 {
        let (sleeps, hears) = (ctx.scope("sleeps"), ctx.scope("hears again"));
        let first: [Boxed<'_, Result<(), Failure>>; 2] = [
            Box::pin(async move { sleeps.sleep(minutes(20)).await }),
            Box::pin(async move { hears.signal::<u64>("go").await.map(|_| ()) }),
        ];
        ctx.race(first).await.1?;
    }
    if n & 1024 != 0 {
        ctx.task::<u64>("sort", &n).await?;
    }
    if n & 2048 != 0 {
        ctx.pause("halt").await?;
    }
    Ok(())
}
