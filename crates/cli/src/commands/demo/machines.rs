//! The demo's workflows: an order that fans out to its items, retries, waits for payment, sleeps and ships.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use abide::{
    Backoff, Ctx, Join, Machine, RetryPolicy, StepError, await_signal, child, done, minutes, next, sleep, spawn,
};
use serde::{Deserialize, Serialize};

use super::protocol::{Told, tell};

const ITEMS: [&str; 3] = ["lamp", "vase", "chair"];
const PICKING: Duration = Duration::from_millis(120);
const CHARGING: Duration = Duration::from_millis(150);
const SHIPPING: Duration = Duration::from_millis(100);
const COOLING_OFF: Duration = Duration::from_millis(700);
const BACK_OFF_MS: u64 = 150;

/// What an order carries from step to step.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) name: String,
    #[serde(default)]
    packed: Vec<String>,
    #[serde(default)]
    receipt: Option<String>,
}

impl Order {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), packed: Vec::new(), receipt: None }
    }
}

/// What a child works on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Item {
    order: String,
    pub(super) item: String,
}

/// Tells the one who watches that a step executes now: a good moment to be killed.
fn began(ctx: &Ctx, order: &str) {
    tell(&Told::Began { step: ctx.step().to_owned(), order: order.to_owned() });
}

pub(super) fn order(charges: &Path) -> Machine<Order> {
    let charges: Arc<Path> = charges.into();
    Machine::<Order>::new("order")
        .step("reserve", async |ctx, order: Order| {
            began(&ctx, &order.name);
            let items = ITEMS.map(|item| {
                let name = order.name.clone();
                child("pack", &Item { order: name, item: item.into() })
            });
            Ok(spawn(items, "charge", order).join(Join::AllSucceeded))
        })
        .step("charge", move |ctx: Ctx, mut order: Order| {
            let charges = charges.clone();
            async move {
                began(&ctx, &order.name);
                for packed in ctx.children() {
                    order.packed.extend(packed.result::<String>()?);
                }
                // The card service knows the key: called twice, it charges once.
                charge(&charges, &order.name, &ctx.idempotency_key())?;
                tokio::time::sleep(CHARGING).await;
                if ctx.retries() == 0 {
                    return Err(StepError::new("the card service did not answer in time").code("gateway_timeout"));
                }
                order.receipt = Some(ctx.idempotency_key());
                Ok(next("await_payment", order))
            }
        })
        .step("await_payment", async |ctx, order: Order| match ctx.signal::<u32>("paid")? {
            None => Ok(await_signal("paid", order).deadline(minutes(5))),
            Some(_) => Ok(next("cool_off", order)),
        })
        .step("cool_off", async |_, order: Order| Ok(sleep(COOLING_OFF, order).then("ship")))
        .step("ship", async |ctx, order: Order| {
            began(&ctx, &order.name);
            tokio::time::sleep(SHIPPING).await;
            Ok(done(&order))
        })
        .retry(retry())
}

pub(super) fn pack() -> Machine<Item> {
    Machine::<Item>::new("pack")
        .step("pick", async |ctx, item: Item| {
            began(&ctx, &item.order);
            tokio::time::sleep(PICKING).await;
            if item.item == "vase" && ctx.retries() == 0 {
                return Err(StepError::new("the shelf is empty").code("shelf_empty"));
            }
            Ok(done(&item.item))
        })
        .retry(retry())
}

fn retry() -> RetryPolicy {
    RetryPolicy {
        backoff: Backoff::Constant,
        delay_ms: BACK_OFF_MS,
        delay_ms_max: BACK_OFF_MS,
        jitter_percent: 0,
        retries_max: Some(20),
    }
}

/// The outside world: a service that writes down every call it gets.
fn charge(charges: &Path, order: &str, key: &str) -> Result<(), StepError> {
    let mut file = OpenOptions::new().append(true).create(true).open(charges)?;
    file.write_all(format!("{order} {key}\n").as_bytes())?;
    Ok(())
}
