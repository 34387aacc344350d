//! The workflows that benchmarks run.

use abide::{
    Control, Failure, FnCtx, Function, Machine, Outcome, Policy, StepError, await_signal, days, done, next, sleep,
};

/// A machine of `steps` steps that do nothing.
pub(crate) fn no_op(name: &str, steps: usize) -> Machine<u32> {
    let mut machine = Machine::<u32>::new(name);
    for step in 1..=steps {
        let following = format!("s{}", step + 1);
        machine = machine.step(&format!("s{step}"), move |_, state: u32| {
            let outcome = if step == steps { done(&state) } else { next(&following, state + 1) };
            std::future::ready(Ok::<Outcome, StepError>(outcome))
        });
    }
    machine
}

/// A machine that waits for a signal, or for a far timer, with its state in hand.
pub(crate) fn parked() -> Machine<String> {
    Machine::<String>::new("parked").step("wait", async |ctx, state: String| {
        let kind = if state.starts_with('s') { "signal" } else { "timer" };
        match (kind, ctx.signal::<u32>("go")?) {
            (_, Some(_)) => Ok(done("woken")),
            ("signal", None) => Ok(await_signal("go", state)),
            (_, None) => Ok(sleep(days(400), state)),
        }
    })
}

/// A function of `count` effects that do nothing.
pub(crate) fn effects(count: usize, policy: Policy) -> Function {
    Function::new("effects", move |ctx: FnCtx, start: u32| async move {
        let mut sum = start;
        for _ in 0..count {
            sum = ctx.effect("add", async |_| Ok::<_, StepError>(sum + 1)).policy(policy).await?;
        }
        Ok::<_, Failure>(sum)
    })
    .control(Control::allow())
}

/// A function that does as many effects as its input says, waits for a signal and tells how many it did.
pub(crate) fn long_past() -> Function {
    Function::new("long_past", async |ctx: FnCtx, effects: usize| {
        let mut did = 0;
        for _ in 0..effects {
            did = ctx.effect("do", async |_| Ok::<_, StepError>(did + 1)).await?;
        }
        ctx.signal::<()>("go").await?;
        Ok::<_, Failure>(did)
    })
}

/// A function that does an effect, waits for a signal and ends; one whose state begins with `e` does not wait.
pub(crate) fn parked_function() -> Function {
    Function::new("parked", async |ctx: FnCtx, state: String| {
        ctx.effect("look", async |_| Ok::<_, StepError>(state.len())).await?;
        if !state.starts_with('e') {
            ctx.signal::<u32>("go").await?;
        }
        Ok::<_, Failure>("woken")
    })
}
