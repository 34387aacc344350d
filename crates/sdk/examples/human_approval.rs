//! A person decides: an expense above a limit waits for an approval, with a deadline after which it is rejected.
//!
//! `cargo run --example human_approval`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function, StepError};

async fn expense(ctx: FnCtx, amount: u32) -> Result<String, Failure> {
    if amount > 100 {
        let decision = ctx
            .approval("expense")
            .payload(&amount)
            .roles(&["finance"])
            .deadline(Duration::from_secs(3_600))
            .reject_on_timeout()
            .await?;
        if !decision.is_approved() {
            return Ok(format!("{amount} rejected by {}", decision.actor().unwrap_or("nobody")));
        }
    }
    ctx.effect("pay", async |_| Ok::<_, StepError>(format!("{amount} paid"))).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("memory:").register(Function::new("expense", expense)).start().await?;
    let client = engine.client();
    for (amount, yes) in [(40, true), (400, true), (4_000, false)] {
        let run = client.start("expense", &amount).await?;
        if amount > 100 {
            // A person would see it in `abide approval list`; here the example answers for them.
            let asked = loop {
                if let Some(asked) = run.boundary().await? {
                    break asked;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            println!("asked about {amount}: {}", asked.manual.asked.kind);
            let answer = if yes { run.approve(asked.id, "ada") } else { run.reject(asked.id, "ada") };
            answer.role("finance").await?;
        }
        println!("{}", run.result::<String>().await?);
    }
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
