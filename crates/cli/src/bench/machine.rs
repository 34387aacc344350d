//! The workflows that benchmarks run.

use abide::{Machine, Outcome, StepError, await_signal, days, done, next, sleep};

/// A machine of `steps` steps that do nothing.
pub(crate) fn no_op(steps: usize) -> Machine<u32> {
    let mut machine = Machine::<u32>::new("no_op");
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
