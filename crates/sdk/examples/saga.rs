//! A saga: a trip is booked piece by piece, and when a piece fails, what was booked is cancelled, the last first.
//!
//! `cargo run --example saga`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use abide::{ClientError, Engine, Failure, FnCtx, Function, StepError};

/// A booking office: it takes the key that makes a repeated call the same call.
async fn book(what: &str, key: &str) -> Result<String, StepError> {
    if what == "car" {
        return Err(StepError::new("no car is left").code("no_car").terminal());
    }
    println!("booked {what}");
    Ok(format!("{what} under {}", key.rsplit('/').next().unwrap_or_default()))
}

async fn trip(ctx: FnCtx, (): ()) -> Result<Vec<String>, Failure> {
    let mut booked = Vec::new();
    for what in ["flight", "hotel", "car"] {
        let booking = ctx.effect(what, async |call| book(what, call.key()).await).await?;
        ctx.undo(&format!("cancel {what}"), async move |_| {
            println!("cancelled {what}");
            Ok::<_, StepError>(())
        })?;
        booked.push(booking);
    }
    Ok(booked)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("memory:").register(Function::new("trip", trip)).start().await?;
    let run = engine.client().start("trip", &()).await?;
    match run.result::<Vec<String>>().await {
        Err(ClientError::RunFailed { error, .. }) => println!("the trip failed: {error}"),
        other => println!("the trip ended: {other:?}"),
    }
    for effect in run.effects().await? {
        println!("{}: {}", effect.key, effect.standing.name());
    }
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
