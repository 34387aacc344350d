//! The program of the README: an order is charged, waits for its payment, and ends.

#![allow(clippy::print_stdout)]

use abide::{Engine, Machine, OnConflict, StepError, await_signal, days, done, next, replay, secs, stop};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    id: String,
    charge: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Payment {
    amount: u32,
}

/// A payment provider that takes an idempotency key: called twice with the same one, it charges once.
async fn charge(order: &str, idempotency_key: &str) -> Result<String, StepError> {
    Ok(format!("charge of {order} under {idempotency_key}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkout = Machine::<Order>::new("checkout")
        .version(1)
        .step("charge", async |ctx, mut order: Order| {
            order.charge = Some(charge(&order.id, &ctx.idempotency_key()).await?);
            Ok(next("await_payment", order))
        })
        .step("await_payment", async |ctx, order: Order| match ctx.signal::<Payment>("paid")? {
            None => Ok(await_signal("paid", order).deadline(days(3))),
            Some(_) => Ok(done(&order.id)),
        })
        .on_error(
            async |error, ctx, order: Order| {
                if ctx.attempt() < 5 { replay(order, secs(2 << ctx.attempt())) } else { stop(error) }
            },
        );

    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).register(checkout).start().await?;
    let order = Order { id: "order-17".into(), charge: None };
    let run = engine.client().start("checkout", &order).key("order-17").on_conflict(OnConflict::Reuse).await?;
    run.signal("paid", &Payment { amount: 42 }).dedup("stripe-evt-9").await?;
    let id: String = run.result().await?;
    println!("{} ended with {id}", run.id());
    engine.stop(secs(5)).await;
    Ok(())
}
