//! The workload: workflows that use every way in which a run can wait, fail, branch and end.

use std::time::{Duration, Instant};

use abide::{
    Control, FnCtx, Function, Join, Machine, RetryPolicy, StepError, await_signal, child, done, next, replay, sleep,
    spawn, stop,
};
use serde::{Deserialize, Serialize};

use super::worker::Notes;

/// Five plain steps.
pub(crate) fn plain() -> Machine<u32> {
    Machine::<u32>::new("plain")
        .step("one", async |_, n: u32| Ok(next("two", n + 1)))
        .step("two", async |_, n: u32| Ok(next("three", n + 1)))
        .step("three", async |_, n: u32| Ok(next("four", n + 1)))
        .step("four", async |_, n: u32| Ok(next("five", n + 1)))
        .step("five", async |_, n: u32| Ok(done(&n)))
}

/// Takes the same step again and again, and its journal begins anew every few rows.
pub(crate) fn long() -> Machine<u32> {
    Machine::<u32>::new("long").compact_after(4).step("again", async |_, n: u32| match n {
        0..17 => Ok(next("again", n + 1)),
        n => Ok(done(&n)),
    })
}

/// Waits for two signals, one after the other.
pub(crate) fn signalled() -> Machine<Vec<u32>> {
    Machine::<Vec<u32>>::new("signalled").compact_after(3).step("wait", async |ctx, mut seen: Vec<u32>| {
        seen.extend(ctx.signals::<u32>("go")?);
        seen.sort_unstable();
        seen.dedup();
        if seen.len() >= 2 { Ok(done(&seen)) } else { Ok(await_signal("go", Vec::<u32>::new())) }
    })
}

/// The same for signals that nobody sends again.
pub(crate) fn told() -> Machine<Vec<u32>> {
    Machine::<Vec<u32>>::new("told").step("wait", async |ctx, _: Vec<u32>| {
        let seen = ctx.signals::<u32>("go")?;
        if seen.len() >= 2 { Ok(done(&seen)) } else { Ok(await_signal("go", Vec::<u32>::new())) }
    })
}

/// Carries much from step to step.
pub(crate) fn large() -> Machine<Vec<String>> {
    Machine::<Vec<String>>::new("large")
        .step("one", async |_, parts: Vec<String>| Ok(next("two", parts)))
        .step("two", async |_, parts: Vec<String>| Ok(next("three", parts)))
        .step("three", async |_, parts: Vec<String>| Ok(done(&parts.len())))
}

/// How long a nap is.
const NAP: Duration = Duration::from_millis(20);
/// Instants are whole milliseconds, so that a nap that ends in time may be that much shorter by a finer clock.
const GRAIN: Duration = Duration::from_millis(1);

/// What a run that naps knows: who put it to sleep and when, by that process's own clock.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Nap {
    steps: u32,
    began: Option<(u64, Duration)>,
}

impl Nap {
    fn after(self) -> Self {
        Self { steps: self.steps + 1, ..self }
    }
}

/// Sleeps a little, twice, and once does real waiting inside a step. Somebody outside is told how long the first nap was, where
/// it began and ended in one process: by the clock that measures, whatever people set theirs to.
pub(crate) fn timed(notes: Notes) -> Machine<Nap> {
    let (process, up) = (fastrand::u64(..), Instant::now());
    Machine::<Nap>::new("timed")
        .step("nap", move |_, nap: Nap| {
            // In the state, so that it is of the attempt that counts: one that lost its claim may be late.
            let nap = Nap { began: Some((process, up.elapsed())), ..nap.after() };
            async { Ok(sleep(NAP, nap).then("work")) }
        })
        .step("work", move |ctx, nap: Nap| {
            if let Some((_, began)) = nap.began.filter(|(by, _)| *by == process) {
                let early = if up.elapsed() - began < NAP - GRAIN { "early" } else { "in time" };
                notes.write(&["napped", &ctx.run_id().to_string(), early]);
            }
            async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok(next("again", nap.after()))
            }
        })
        .step("again", async |_, nap: Nap| Ok(sleep(Duration::from_millis(5), nap.after()).then("end")))
        .step("end", async |_, nap: Nap| Ok(done(&nap.steps)))
}

/// Starts children and joins them, keyed ones among them.
pub(crate) fn parent() -> Machine<u32> {
    Machine::<u32>::new("parent")
        .step("fan", async |ctx, n: u32| {
            let key = format!("child-of-{}", ctx.run_id());
            let children =
                [child("plain", &0u32), child("plain", &1u32), child("flaky", &0u32), child("plain", &2u32).key(&key)];
            Ok(spawn(children, "join", n).join(Join::AllTerminal))
        })
        .step("join", async |ctx, _| {
            let ended = ctx.children().iter().filter(|child| child.status().is_some()).count();
            if ended == 4 { Ok(done(&ended)) } else { Ok(stop(StepError::new(format!("{ended} of 4 children ended")))) }
        })
}

/// Fails twice, then goes on; its retries come from a policy.
pub(crate) fn flaky() -> Machine<u32> {
    Machine::<u32>::new("flaky")
        .retry(RetryPolicy { retries_max: Some(10), ..RetryPolicy::exponential(1) })
        .step("try", async |ctx, n: u32| {
            if ctx.retries() < 2 { Err(StepError::new("not yet")) } else { Ok(next("end", n + ctx.retries())) }
        })
        .step(
            "end",
            async |ctx, n: u32| {
                if ctx.retries() < 1 { Ok(replay(n, Duration::from_millis(1))) } else { Ok(done(&n)) }
            },
        )
}

/// Adds what it is asked to, twice, and says each time what it has come to; then somebody must allow it.
pub(crate) fn asked() -> Function {
    Function::new("asked", async |ctx: FnCtx, mut sum: u32| {
        for _ in 0..2 {
            let asked = ctx.update::<u32>("add").await?;
            sum += asked.input();
            asked.answer(&sum)?;
        }
        ctx.approval("allow").await?;
        Ok::<_, StepError>(sum)
    })
}

/// Does what must not happen twice; each time that it does, somebody outside is told.
pub(crate) fn once(notes: Notes) -> Function {
    Function::new("once", move |ctx: FnCtx, n: u32| {
        let notes = notes.clone();
        async move {
            let run = ctx.run_id().to_string();
            let wired = ctx.effect("wire", async |_| {
                notes.write(&["called", &run]);
                tokio::time::sleep(Duration::from_millis(5)).await;
                Ok::<_, StepError>(n + 1)
            });
            wired.unsafe_once().await
        }
    })
    .control(Control::allow().named("wire"))
}
