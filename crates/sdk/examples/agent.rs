//! A durable agent: a loop of model calls and tools that survives being killed between and inside them.
//!
//! The model is a capability that you plug in; here it is a script, so that the example ends by itself. The tools show
//! all five policies: `clock` is pure, `search` idempotent, the model itself dedupe, `ship` reconcile, and `refund` must
//! not happen twice: it waits for an approval, and is in doubt after a crash. After a few model calls the agent pauses
//! until someone lets it go on.
//!
//! ```text
//! cargo run --example agent
//! cargo run --example agent -- --store sqlite:agent.db --die-in refund
//! cargo run --example agent -- --store sqlite:agent.db
//! abide --store sqlite:agent.db effect resolve <run> "refund" --result '"refunded"'
//! ```

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::{Duration, Instant};

use abide::{Control, Engine, Failure, FnCtx, Function, OnConflict, Policy, RunHandle, Status, StepError};
use serde::{Deserialize, Serialize};

/// What the model says next.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Turn {
    Use { tool: String, with: String },
    Answer(String),
}

/// A model: given what was said so far, what comes next.
trait Model: Send + Sync + 'static {
    fn next(&self, transcript: &[String]) -> Turn;
}

/// A model that follows a script.
struct Scripted;

impl Model for Scripted {
    fn next(&self, transcript: &[String]) -> Turn {
        let tools = ["clock", "search", "ship", "refund"];
        match tools.get(transcript.len() - 1) {
            Some(tool) => Turn::Use { tool: (*tool).into(), with: "order 17".into() },
            None => Turn::Answer(format!("done after {} tools", tools.len())),
        }
    }
}

/// How many model calls the agent has before it must ask.
const BUDGET: usize = 3;

/// The worst moment to die in: after the money left, before anybody wrote that down.
fn die() -> ! {
    let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    std::process::abort()
}

async fn use_tool(ctx: &FnCtx, tool: &str, with: &str, die_in: Option<&str>) -> Result<String, Failure> {
    let dies = die_in == Some(tool);
    let act = async |_| {
        println!("tool {tool}: {with}");
        if dies {
            die();
        }
        Ok::<_, StepError>(format!("{tool} done for {with}"))
    };
    match tool {
        "clock" => ctx.effect("clock", act).pure().await,
        "search" => ctx.effect("search", act).input(with).await,
        "ship" => ctx.effect("ship", act).input(with).reconcile().await,
        "refund" => {
            let asked = ctx.approval("approve refund").payload(with).roles(&["support"]).await?;
            if !asked.is_approved() {
                return Ok("the refund was rejected".into());
            }
            ctx.effect("refund", act).input(with).unsafe_once().await
        }
        other => Err(StepError::new(format!("there is no tool {other:?}")).terminal()),
    }
}

async fn agent(ctx: FnCtx, model: &dyn Model, task: String, die_in: Option<&str>) -> Result<String, Failure> {
    let mut transcript = vec![task];
    for call in 0.. {
        if call > 0 && call % BUDGET == 0 {
            ctx.pause("budget").payload(&call).await?;
        }
        let turn: Turn = ctx.effect("model", async |_| Ok::<_, StepError>(model.next(&transcript))).dedupe().await?;
        match turn {
            Turn::Answer(answer) => return Ok(answer),
            Turn::Use { tool, with } => transcript.push(use_tool(&ctx, &tool, &with, die_in).await?),
        }
    }
    Err(StepError::new("the agent never came to an end").terminal())
}

/// Answers what the agent asks, as a person would with `abide approval approve` and `abide run resume`, until it has ended
/// or is in doubt.
async fn attend(run: &RunHandle) -> Result<Status, Box<dyn std::error::Error>> {
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        let shown = run.show().await?;
        if shown.status().is_terminal() || shown.status() == Status::InDoubt {
            return Ok(shown.status());
        }
        if let Some(asked) = run.boundary().await? {
            println!("asked: {} {:?}", asked.manual.asked.kind, asked.manual.asked.key);
            let answer = match asked.manual.asked.kind {
                abide::ManualKind::Pause => run.resume(asked.id, "ada"),
                _ => run.approve(asked.id, "ada").role("support"),
            };
            answer.await?;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err("the agent did not end in time".into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1)).cloned();
    let store = option("--store").unwrap_or_else(|| "memory:".into());
    let die_in: Option<&'static str> = option("--die-in").map(|tool| &*Box::leak(tool.into_boxed_str()));
    let function =
        Function::new(
            "agent",
            move |ctx: FnCtx, task: String| async move { agent(ctx, &Scripted, task, die_in).await },
        )
        .operation("refund", Policy::UnsafeOnce)
        .control(Control::allow().named("refund"));
    let engine = Engine::open(&store).register(function).start().await?;
    let run =
        engine.client().start("agent", "please refund order 17").key("agent").on_conflict(OnConflict::Reuse).await?;
    println!("run {}", run.id());
    match attend(&run).await? {
        Status::InDoubt => {
            for effect in run.effects().await?.iter().filter(|effect| effect.interrupt.is_some()) {
                println!("in doubt: {} ({}), key {}", effect.key, effect.policy, effect.idempotency_key);
                println!(
                    "say what became of it: abide --store {store} effect resolve {} {} --result …",
                    run.id(),
                    effect.key
                );
            }
        }
        _ => println!("answer: {}", run.result::<String>().await?),
    }
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
