//! The example of `abide dev`: a worker in the same process, that asks the server over HTTP as any other would.

use std::time::Duration;

use abide::{Engine, FnCtx, Function, StepError};
use serde::Deserialize;

use crate::failure::{Exit, Failure};

/// A worker that has `greet`.
pub(in crate::commands) struct Example {
    engine: Engine,
}

#[derive(Deserialize)]
struct Person {
    name: Option<String>,
}

/// Says hello, waits for a second, and says goodbye: long enough to be killed in between.
/// Whoever names nobody greets the world.
async fn greet(ctx: FnCtx, person: Option<Person>) -> Result<String, abide::Failure> {
    let name = person.and_then(|person| person.name).unwrap_or_else(|| "world".into());
    let hello: String = ctx.effect("hello", async |_| Ok::<_, StepError>(format!("hello {name}"))).await?;
    ctx.sleep(Duration::from_secs(1)).await?;
    let goodbye: String = ctx.effect("goodbye", async |_| Ok::<_, StepError>(format!("goodbye {name}"))).await?;
    Ok(format!("{hello}, and {goodbye}"))
}

impl Example {
    /// Begins to ask for attempts.
    pub(in crate::commands) async fn begin(url: &str) -> Result<Self, Failure> {
        let engine = Engine::open(url).node("example of abide dev").register(Function::new("greet", greet));
        let begun = engine.queue("default", 4).start().await;
        let engine = begun.map_err(|error| Failure::new(Exit::Failure, "example", error.to_string()))?;
        Ok(Self { engine })
    }

    /// How many attempts it executes now.
    pub(in crate::commands) fn executing(&self) -> usize {
        self.engine.metrics().executing
    }

    /// Finishes what it executes, and asks for nothing more.
    pub(in crate::commands) async fn end(&self, limit: Duration) {
        self.engine.stop(limit).await;
    }
}
