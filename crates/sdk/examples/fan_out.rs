//! Fan-out: a function starts a child for every page, waits for all of them, and adds up what they found.
//!
//! `cargo run --example fan_out`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function, StepError};

async fn count_words(ctx: FnCtx, page: String) -> Result<usize, Failure> {
    ctx.effect("count", async |_| Ok::<_, StepError>(page.split_whitespace().count())).dedupe().await
}

async fn count_book(ctx: FnCtx, pages: Vec<String>) -> Result<usize, Failure> {
    let numbered = pages.into_iter().enumerate();
    let counts: Vec<usize> =
        ctx.map("page", numbered, |ctx, page| async move { ctx.child("count", "count_words", &page).await }).await?;
    for (page, words) in counts.iter().enumerate() {
        ctx.effect(&format!("report {page}"), async |_| {
            println!("page {page}: {words} words");
            Ok::<_, StepError>(())
        })
        .await?;
    }
    Ok(counts.iter().sum())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::open("memory:")
        .register(Function::new("count_words", count_words))
        .register(Function::new("count_book", count_book))
        .start()
        .await?;
    let pages = ["call me Ishmael", "some years ago", "never mind how long precisely"];
    let run = engine.client().start("count_book", &pages).await?;
    let words: usize = run.result().await?;
    println!("{words} words on {} pages", pages.len());
    engine.stop(Duration::from_secs(1)).await;
    Ok(())
}
