//! A function that survives: it greets, sleeps a little, and greets again. Kill it at any moment and start it again.
//!
//! `cargo run --example hello`, or `cargo run --example hello -- sqlite:hello.db` to see it go on after a kill.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function, OnConflict, StepError};

async fn greet(ctx: FnCtx, name: String) -> Result<String, Failure> {
    let said = |what: String| async move {
        println!("{what}");
        Ok::<_, StepError>(what)
    };
    ctx.effect("hello", |_| said(format!("hello {name}"))).await?;
    ctx.sleep(Duration::from_millis(200)).await?;
    ctx.effect("goodbye", |_| said(format!("goodbye {name}"))).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&url).register(Function::new("greet", greet)).start().await?;
    let run = engine.client().start("greet", "Ada").key("ada").on_conflict(OnConflict::Reuse).await?;
    let last: String = run.result().await?;
    println!("{} ended with {last:?}", run.id());
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
