//! The machines of the vectors: an attempt at a step, and everything that is said of it.

use std::sync::Arc;
use std::time::Duration;

use abide::{Boxed, Call, Ctx, Machine, Outcome, Policy, StepError, Workflow, await_any, done, next, replay};
use abide_kernel::Consume;
use abide_protocol::{Entry, Say};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::{Noted, Script, attempted, error_of, retry_of, text, vectors, with_control};

type Scope = Arc<Mutex<Map<String, Value>>>;

fn machine(script: &Arc<Script>) -> Machine<Value> {
    let case = &script.case;
    let inside = script.clone();
    let mut machine = Machine::<Value>::new("script")
        .step("run", move |ctx: Ctx, _: Value| outcome(&inside, ctx, &inside.case["script"], Scope::default()));
    if case.get("on_error").is_some() {
        let inside = script.clone();
        machine = machine.on_error(move |error: StepError, ctx: Ctx, _: Value| {
            let scope = Scope::default();
            scope.lock().insert("error".into(), json!(error.info().code.to_string()));
            let steps = outcome(&inside, ctx, &inside.case["on_error"], scope);
            async move { steps.await.unwrap() }
        });
    }
    if let Some(retry) = case.get("retry") {
        machine = machine.retry(retry_of(retry));
    }
    if let Some(rows) = case["compact_after"].as_u64() {
        machine = machine.compact_after(rows);
    }
    for control in case["controls"].as_array().into_iter().flatten() {
        machine = machine.control(with_control(control));
    }
    machine
}

/// Does steps one after the other, up to the outcome.
fn outcome(script: &Arc<Script>, ctx: Ctx, steps: &Value, scope: Scope) -> Boxed<'static, Result<Outcome, StepError>> {
    let (script, steps) = (script.clone(), steps.as_array().cloned().unwrap_or_default());
    Box::pin(async move {
        for step in &steps {
            let step = step.as_object().unwrap();
            let (verb, said) = step.iter().find(|(name, _)| *name != "as").unwrap();
            let gave = match verb.as_str() {
                "outcome" => return Ok(outcome_of(said, &scope)),
                "fail" => return Err(error_of(said)),
                "effect" => effect(&script, &ctx, said).await?,
                "start_child" => {
                    let child = ctx.start_child(text(said, "workflow"), text(said, "key"), &said["input"]).await?;
                    json!(child.to_string())
                }
                other => panic!("nobody knows the verb {other}"),
            };
            if let Some(name) = step.get("as") {
                scope.lock().insert(name.as_str().unwrap().into(), gave);
            }
        }
        panic!("a step has an outcome")
    })
}

async fn effect(script: &Arc<Script>, ctx: &Ctx, said: &Value) -> Result<Value, StepError> {
    let script = script.clone();
    let call = move |call: Call| {
        let script = script.clone();
        async move { script.call(call).await }
    };
    let policy = said.get("policy").map_or(Policy::Idempotent, |named| serde_json::from_value(named.clone()).unwrap());
    let effect = ctx.effect(text(said, "name"), call).policy(policy);
    match said.get("input") {
        Some(input) => effect.input(input).await,
        None => effect.await,
    }
}

fn outcome_of(said: &Value, scope: &Scope) -> Outcome {
    let value = |said: &Value| match said.get("$") {
        Some(name) => scope.lock()[name.as_str().unwrap()].clone(),
        None => said.clone(),
    };
    let (kind, fields) = said["of"].as_object().unwrap().iter().next().unwrap();
    let made = match kind.as_str() {
        "next" => next(text(fields, "step"), value(&fields["state"])),
        "replay" => replay(value(&fields["state"]), Duration::from_millis(fields["delay_ms"].as_u64().unwrap())),
        "await" => {
            let names: Vec<&str> = fields["signals"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            await_any(&names, value(&fields["state"]))
        }
        "done" => done(&value(&fields["result"])),
        other => panic!("nobody knows the outcome {other}"),
    };
    match said.get("consume") {
        Some(consume) => made.consume(serde_json::from_value::<Consume>(consume.clone()).unwrap()),
        None => made,
    }
}

/// What this SDK does in a case.
async fn stepped(case: &Value) -> Value {
    let script = Script::of(case);
    let program = machine(&script).into_program().unwrap();
    let Noted { say, written, children, calls } = attempted(&script, program).await;
    let all = |entries: Vec<Entry>| [written, entries].concat();
    match say {
        Say::Complete { outcome, entries, consume, handled, compact_after } => {
            let mut complete = json!({"outcome": outcome});
            if consume != Consume::default() {
                complete["consume"] = json!(consume);
            }
            if let Some(error) = handled {
                complete["handled"] = json!({"code": error.code, "retryable": error.retryable});
            }
            if let Some(rows) = compact_after {
                complete["compact_after"] = json!(rows);
            }
            json!({"written": all(entries), "calls": calls, "children": children, "complete": complete})
        }
        Say::Fail { error, retry, entries, .. } => {
            let fail = json!({"code": error.code, "retryable": error.retryable, "retried": retry.is_some()});
            json!({"written": all(entries), "calls": calls, "children": children, "fail": fail})
        }
        other => panic!("expected an end, found {other:?}"),
    }
}

/// What is expected, with the defaults of the protocol filled in.
fn expected(case: &Value) -> Value {
    let mut expect = super::expected(case);
    if let Some(outcome) = expect.get_mut("complete").and_then(|complete| complete.get_mut("outcome")) {
        let read: abide_protocol::Outcome = serde_json::from_value(outcome.take()).unwrap();
        *outcome = json!(read);
    }
    for child in expect["children"].as_array_mut().unwrap() {
        let read: abide_protocol::Start = serde_json::from_value(child["start"].take()).unwrap();
        child["start"] = json!(read);
    }
    expect
}

/// AB-19: a step of a machine says the same of itself in every SDK.
#[tokio::test(flavor = "multi_thread")]
async fn steps_are_the_same_in_every_sdk() {
    let cases = vectors("machines");
    assert!(cases.len() > 10);
    for case in cases {
        let found = stepped(&case).await;
        let expected = expected(&case);
        assert_eq!(found, expected, "{}:\nfound    {found}\nexpected {expected}", case["name"]);
    }
}
