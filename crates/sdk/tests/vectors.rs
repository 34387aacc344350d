//! The vectors that every SDK must pass (`clients/vectors`), held against the functions and machines of this one: attempts as a
//! server sends them, executed by the hands of a worker, whose words are noted and lead nowhere.

#![cfg(feature = "http")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use abide::{Boxed, Call, Control, FnCtx, Function, Policy, RetryPolicy, StepError, Workflow};
use abide_kernel::shard::{Answer, Command};
use abide_kernel::{Backoff, Choice, Claimant, Payload, Rev, Timestamp, TokenHash};
use abide_protocol::{Attempt, Entry, Instant, Outcome, Report, Say};
use abide_runtime::{AttemptLink, Carrying, Courier, Hands, Program};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

#[path = "vectors/machines.rs"]
mod machines;

const RUN: &str = "0193f2c4a1b20000000000000000000a";
const CHILD: &str = "run_0193f2c4a1b20000000000000000000b";

type Scope = Arc<Mutex<Map<String, Value>>>;

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/../../clients/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn text<'a>(said: &'a Value, field: &str) -> &'a str {
    said[field].as_str().unwrap_or_else(|| panic!("{field} in {said}"))
}

fn instant(said: &Value) -> Timestamp {
    serde_json::from_value::<Instant>(said.clone()).unwrap().0
}

/// What a step of a script came to.
enum Done {
    Gave(Value),
    /// The script is over with it.
    Returned(Value),
}

/// The script of a case, as code. See `clients/vectors/README.md`.
struct Script {
    case: Value,
    calls: Mutex<Vec<Value>>,
    /// How many entries are durable.
    durable: AtomicUsize,
    /// Which calls have ended, by their keys.
    over: Mutex<HashMap<String, watch::Sender<bool>>>,
}

impl Script {
    fn of(case: &Value) -> Arc<Self> {
        let (calls, over) = (Mutex::default(), Mutex::default());
        Arc::new(Self { case: case.clone(), calls, durable: AtomicUsize::new(0), over })
    }

    fn function(self: &Arc<Self>) -> Function {
        let script = self.clone();
        let mut function = Function::new("script", move |ctx: FnCtx, input: Value| {
            let scope: Scope = Arc::default();
            scope.lock().insert("input".into(), input);
            let steps = script.steps(&ctx, &script.case["script"], &scope);
            async move { steps.await.map(Option::unwrap_or_default) }
        });
        if let Some(retry) = self.case.get("retry") {
            function = function.retry(retry_of(retry));
        }
        for control in self.case["controls"].as_array().into_iter().flatten() {
            function = function.control(with_control(control));
        }
        function
    }

    /// Does steps one after the other. Gives what is returned, if something is.
    fn steps(
        self: &Arc<Self>,
        ctx: &FnCtx,
        steps: &Value,
        scope: &Scope,
    ) -> Boxed<'static, Result<Option<Value>, StepError>> {
        let (script, ctx, scope) = (self.clone(), ctx.clone(), scope.clone());
        let steps = steps.as_array().cloned().unwrap_or_default();
        Box::pin(async move {
            for step in &steps {
                let step = step.as_object().unwrap();
                let (verb, said) = step.iter().find(|(name, _)| !["as", "catch"].contains(&name.as_str())).unwrap();
                let named = |field: &str| step.get(field).map(|name| name.as_str().unwrap().to_owned());
                match (script.step(&ctx, verb, said, &scope).await, named("catch"), named("as")) {
                    (Err(error), Some(name), _) => {
                        scope.lock().insert(name, json!(error.info().code.to_string()));
                    }
                    (Err(error), None, _) => return Err(error),
                    (Ok(Done::Returned(value)), _, _) => return Ok(Some(value)),
                    (Ok(Done::Gave(value)), _, Some(name)) => {
                        scope.lock().insert(name, value);
                    }
                    (Ok(Done::Gave(_)), _, None) => {}
                }
            }
            Ok(None)
        })
    }

    async fn step(self: &Arc<Self>, ctx: &FnCtx, verb: &str, said: &Value, scope: &Scope) -> Result<Done, StepError> {
        let gave = match verb {
            "return" => return Ok(Done::Returned(value(ctx, said, scope))),
            "patch" => {
                let steps = if ctx.patched(text(said, "name")) { &said["then"] } else { &said["else"] };
                return Ok(self.steps(ctx, steps, scope).await?.map_or(Done::Gave(Value::Null), Done::Returned));
            }
            "scope" => {
                let inside = ctx.scope(text(said, "name"));
                return Ok(self
                    .steps(&inside, &said["do"], scope)
                    .await?
                    .map_or(Done::Gave(Value::Null), Done::Returned));
            }
            "all" => {
                let branches = said.as_array().unwrap().iter().map(|branch| self.steps(ctx, branch, scope));
                ctx.all(branches).await.map(|_| Value::Null)?
            }
            "race" => {
                let branches = said.as_array().unwrap().iter().map(|branch| self.steps(ctx, branch, scope));
                let (place, ended) = ctx.race(branches).await;
                ended.map(|_| json!(place))?
            }
            "publish" => ctx.set_state(&value(ctx, said, scope)).map(|()| Value::Null)?,
            "continue_as_new" => ctx.continue_as_new(&value(ctx, said, scope))?,
            "fail" => return Err(error_of(said)),
            "undo" => {
                let script = self.clone();
                let call = move |call: Call| async move { script.call(call).await.map(drop) };
                ctx.undo(text(said, "name"), call).map(|()| Value::Null)?
            }
            "effect" => self.effect(ctx, said, scope).await?,
            _ => wait(ctx, verb, said).await?,
        };
        Ok(Done::Gave(gave))
    }

    async fn effect(self: &Arc<Self>, ctx: &FnCtx, said: &Value, scope: &Scope) -> Result<Value, StepError> {
        let script = self.clone();
        let call = move |call: Call| {
            let script = script.clone();
            async move { script.call(call).await }
        };
        let policy =
            said.get("policy").map_or(Policy::Idempotent, |named| serde_json::from_value(named.clone()).unwrap());
        let mut effect = ctx.effect(text(said, "name"), call).policy(policy);
        if let Some(input) = said.get("input") {
            effect = effect.input(&value(ctx, input, scope));
        }
        if let Some(retry) = said.get("retry") {
            effect = effect.retry(retry_of(retry));
        }
        effect.await
    }

    /// The code of every effect.
    async fn call(&self, call: Call) -> Result<Value, StepError> {
        let (_, key) = call.key().split_once('/').unwrap();
        let durable = self.durable.load(Ordering::SeqCst);
        self.calls.lock().push(json!({"key": key, "idempotency_key": call.key(), "durable": durable}));
        let ends = self.case["ends"].as_array().cloned().unwrap_or_default();
        if let Some(place) = ends.iter().position(|end| end == key) {
            for before in &ends[..place] {
                let mut over = self.end_of(before.as_str().unwrap()).subscribe();
                over.wait_for(|over| *over).await.unwrap();
            }
        }
        self.end_of(key).send_replace(true);
        match &self.case["effects"][key] {
            Value::Null => Ok(Value::Null),
            end if end.get("error").is_some() => Err(error_of(&end["error"])),
            end => Ok(end["value"].clone()),
        }
    }

    fn end_of(&self, key: &str) -> watch::Sender<bool> {
        self.over.lock().entry(key.into()).or_insert_with(|| watch::Sender::new(false)).clone()
    }
}

/// What a function waits for that is not its own.
async fn wait(ctx: &FnCtx, verb: &str, said: &Value) -> Result<Value, StepError> {
    let within = said["within_ms"].as_u64().map(Duration::from_millis);
    let name = said["name"].as_str().unwrap_or_default();
    match (verb, within) {
        ("sleep", _) if said.get("until").is_some() => ctx.sleep_until(instant(&said["until"])).await?,
        ("sleep", _) => ctx.sleep(Duration::from_millis(said["ms"].as_u64().unwrap())).await?,
        ("signal", None) => return ctx.signal(name).await,
        ("signal", Some(limit)) => return Ok(ctx.signal(name).within(limit).await?.unwrap_or_default()),
        ("child", _) => return ctx.child(name, text(said, "workflow"), &said["input"]).await,
        ("update", _) => {
            let asked = match within {
                None => Some(ctx.update::<Value>(name).await?),
                Some(limit) => ctx.update(name).within(limit).await?,
            };
            let Some(asked) = asked else { return Ok(Value::Null) };
            let input = asked.input().clone();
            match (said.get("reject"), said.get("answer")) {
                (Some(reason), _) => asked.reject(reason.as_str().unwrap()),
                (None, Some(answer)) => asked.answer(answer)?,
                (None, None) => {}
            }
            return Ok(input);
        }
        ("approval", _) => {
            let roles: Vec<&str> =
                said["roles"].as_array().into_iter().flatten().map(|role| role.as_str().unwrap()).collect();
            let mut asking = ctx.approval(name).roles(&roles);
            if let Some(payload) = said.get("payload") {
                asking = asking.payload(payload);
            }
            let asking = within.into_iter().fold(asking, abide::ManualWait::deadline);
            return Ok(asking.await?.choice().map_or(Value::Null, |choice| json!(word(choice))));
        }
        ("task", _) => return within.into_iter().fold(ctx.task(name, &said["form"]), abide::TaskWait::deadline).await,
        (other, _) => panic!("nobody knows the verb {other}"),
    }
    Ok(Value::Null)
}

fn word(choice: Choice) -> &'static str {
    match choice {
        Choice::Resume => "resume",
        Choice::Approve => "approve",
        Choice::Reject => "reject",
        Choice::Complete => "complete",
    }
}

fn value(ctx: &FnCtx, expression: &Value, scope: &Scope) -> Value {
    match expression {
        Value::Array(items) => items.iter().map(|item| value(ctx, item, scope)).collect(),
        Value::Object(fields) if fields.len() == 1 => match fields.iter().next().unwrap() {
            (verb, Value::String(name)) if verb == "$" => scope.lock()[name].clone(),
            (verb, Value::String(name)) if verb == "$random" => json!(format!("{:016x}", ctx.random(name))),
            (verb, Value::String(name)) if verb == "$uuid" => json!(ctx.uuid(name)),
            (verb, _) if verb == "$now" => json!(Instant(ctx.now()).to_string()),
            _ => expression.clone(),
        },
        _ => expression.clone(),
    }
}

fn error_of(said: &Value) -> StepError {
    let error = StepError::new(text(said, "message")).code(text(said, "code"));
    let error = if said["retryable"] == true { error } else { error.terminal() };
    match said.get("details") {
        Some(details) => error.details(Payload::encode(details).unwrap()),
        None => error,
    }
}

fn with_control(said: &Value) -> Control {
    let rule = match text(said, "rule") {
        "allow" => Control::allow(),
        "block" => Control::block(),
        _ => Control::interrupt(),
    };
    match said.get("name") {
        Some(name) => rule.named(name.as_str().unwrap()),
        None => rule,
    }
}

fn retry_of(said: &Value) -> RetryPolicy {
    let number = |field: &str, otherwise: u64| said[field].as_u64().unwrap_or(otherwise);
    RetryPolicy {
        backoff: match said["backoff"].as_str() {
            Some("constant") => Backoff::Constant,
            Some("linear") => Backoff::Linear,
            _ => Backoff::Exponential,
        },
        delay_ms_max: number("delay_ms_max", 3_600_000),
        jitter_percent: u8::try_from(number("jitter_percent", 0)).unwrap(),
        retries_max: said["retries_max"].as_u64().map(|most| u32::try_from(most).unwrap()),
        ..RetryPolicy::exponential(number("delay_ms", 1_000))
    }
}

/// An attempt as a worker gets it, with what the case says.
fn attempt_of(case: &Value) -> Attempt {
    let with = |over: &Value, under: Value| {
        let Value::Object(mut fields) = under else { panic!("an object") };
        fields.extend(over.as_object().cloned().unwrap_or_default());
        Value::Object(fields)
    };
    let entries = case["ledger"].as_array().cloned().unwrap_or_default();
    let ledger: Vec<Value> =
        entries.iter().map(|entry| with(entry, json!({"visit": 1, "at": case["clock"]}))).collect();
    let ended = ledger.iter().filter_map(|entry| entry["end"]["ended"].as_u64()).max().unwrap_or(0);
    let plain = json!({
        "claim": format!("claim_{RUN}_2"), "lease_until": case["clock"], "run": format!("run_{RUN}"), "workflow": "script",
        "version": 1, "queue": "default", "step": "run", "epoch": 0, "visit": 1, "attempt": 1, "retries": 0, "reclaims": 0,
        "input": null, "state": null, "signals": [], "children": [], "next_op": ledger.len() + 1, "ledger": ledger,
        "ended": ended, "begun_at": "2026-11-16T12:00:00.000Z", "cancelling": false,
    });
    serde_json::from_value(with(&case["attempt"], plain)).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// Records everything at once, under a clock that stands still.
struct Notes {
    clock: Timestamp,
    handle: Handle,
    script: Arc<Script>,
    written: Mutex<Vec<Entry>>,
    children: Mutex<Vec<Value>>,
}

impl Courier for Notes {
    fn carry(&self, command: Command) -> Carrying {
        let said = Report::of(command, self.clock).unwrap().say;
        let answer = match said {
            Say::Record { entries } => {
                let mut written = self.written.lock();
                written.extend(entries);
                self.script.durable.store(written.len(), Ordering::SeqCst);
                Answer::Recorded { rev: Rev(1), duplicate: false }
            }
            Say::StartChild { key, start } => {
                self.children.lock().push(json!({"key": key, "start": start}));
                Answer::Child(CHILD.parse().unwrap())
            }
            other => panic!("expected a record or a child, found {other:?}"),
        };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn now(&self) -> Timestamp {
        self.clock
    }

    fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// What an attempt came to.
struct Noted {
    /// Its end.
    say: Say,
    /// What was recorded before.
    written: Vec<Entry>,
    children: Vec<Value>,
    calls: Vec<Value>,
}

async fn attempted(script: &Arc<Script>, program: Arc<dyn Program>) -> Noted {
    let (case, handle) = (&script.case, Handle::current());
    let clock = instant(&case["clock"]);
    let (written, children) = (Mutex::default(), Mutex::default());
    let notes = Arc::new(Notes { clock, handle: handle.clone(), script: script.clone(), written, children });
    let attempt = attempt_of(case);
    let link = AttemptLink::carried(attempt.claim, TokenHash(0), notes.clone());
    let by = Claimant::new("nobody".into(), TokenHash(0), 30_000, None);
    let dispatch = Box::new(attempt.into_dispatch("default", &by));
    let (done, ended) = oneshot::channel();
    let hands = Hands::new(1, handle).unwrap();
    hands.execute(program, abide_runtime::Attempt { dispatch, link }, move |command| drop(done.send(command)));
    let command = ended.await.unwrap().unwrap_or_else(|| panic!("{}: the attempt was given up", case["name"]));
    let say = Report::of(command, clock).unwrap().say;
    let (written, children) = (notes.written.lock().clone(), notes.children.lock().clone());
    Noted { say, written, children, calls: script.calls.lock().clone() }
}

/// What this SDK does in a case.
async fn replayed(case: &Value) -> Value {
    let script = Script::of(case);
    let Noted { say, written, calls, .. } = attempted(&script, script.function().into_program().unwrap()).await;
    let all = |entries: Vec<Entry>| [written, entries].concat();
    match say {
        Say::Complete { outcome, entries, .. } => json!({"written": all(entries), "calls": calls, "outcome": outcome}),
        Say::Fail { error, retry, entries, reopen, set_aside } => {
            let mut fail = json!({"code": error.code, "retryable": error.retryable, "retried": retry.is_some()});
            if set_aside {
                fail["set_aside"] = json!(true);
            }
            if !reopen.is_empty() {
                fail["reopen"] = json!(reopen);
            }
            json!({"written": all(entries), "calls": calls, "fail": fail})
        }
        other => panic!("expected an end, found {other:?}"),
    }
}

/// What is expected, with the defaults of the protocol filled in.
fn expected(case: &Value) -> Value {
    let mut expect = case["expect"].clone();
    let written: Vec<Entry> = serde_json::from_value(expect["written"].take()).unwrap();
    expect["written"] = json!(written);
    if let Some(outcome) = expect.get_mut("outcome") {
        let read: Outcome = serde_json::from_value(outcome.take()).unwrap();
        *outcome = json!(read);
    }
    expect
}

/// AB-19: a function comes to the same over a ledger in every SDK.
#[tokio::test(flavor = "multi_thread")]
async fn replays_are_the_same_in_every_sdk() {
    let cases = vectors("replay");
    assert!(cases.len() > 50);
    for case in cases {
        let found = replayed(&case).await;
        let expected = expected(&case);
        assert_eq!(found, expected, "{}:\nfound    {found}\nexpected {expected}", case["name"]);
    }
}

/// AB-19: every policy does the same with whatever is recorded of an effect, in every SDK.
#[tokio::test(flavor = "multi_thread")]
async fn policies_are_the_same_in_every_sdk() {
    for case in vectors("policies") {
        let entry = case["recorded"].get("entry");
        let mut ledger = Vec::new();
        if let Some(entry) = entry {
            let mut known = json!({"op": 1, "key": "e", "what": entry["what"], "end": entry["end"]});
            known["what"]["effect"]["policy"] = case["policy"].clone();
            ledger.push(known);
        }
        let script = json!([{"effect": {"name": "e", "policy": case["policy"]}, "as": "v", "catch": "v"}, {"return": {"$": "v"}}]);
        let told = json!({
            "clock": "2026-11-16T12:00:10.000Z", "script": script, "ledger": ledger, "controls": [{"rule": "allow"}],
            "effects": {"e": {"value": "called"}},
        });
        let found = replayed(&told).await;
        let rests = entry.is_some_and(|entry| entry["what"]["effect"]["retry_at"].is_string());
        let verb = if entry.is_none() { "begin" } else { "repeat" };
        let told = match (found["calls"].get(0), &found["outcome"]) {
            (Some(call), _) if call["durable"] == 0 => verb.to_owned(),
            (Some(_), _) => format!("intend then {verb}"),
            (None, outcome) if outcome.get("suspend").is_some() => if rests { "rest" } else { "in doubt" }.to_owned(),
            (None, outcome) => if outcome["done"]["result"] == "recorded" { "value" } else { "error" }.to_owned(),
        };
        assert_eq!(json!(told), case["expect"], "{}, {}", case["policy"], case["recorded"]["name"]);
    }
}
