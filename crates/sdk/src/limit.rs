//! Limits: what a queue, a workflow or a namespace may do at most, whatever the number of its runs.

use std::time::Duration;

use abide_kernel::shard::{Rate, Rule, Scope};

/// A cap or a rate on the attempts of a queue, a workflow or a namespace.
///
/// Attempts that are held up wait in their place, and those of others go on. A limit holds within one engine. Each
/// queue, workflow or namespace has one limit, which may say both things. A rate lets `count` attempts begin at once
/// and the rest evenly; it begins anew with the engine.
///
/// ```
/// use std::time::Duration;
///
/// use abide::{Engine, Limit, Machine, done};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let welcome = Machine::<String>::new("welcome").step("send", async |_, name: String| Ok(done(&name)));
///
/// let engine = Engine::open("memory:")
///     .register(welcome)
///     .limit(Limit::queue("default").at_most(5))
///     .limit(Limit::workflow("welcome").at_most(2).rate(100, Duration::from_secs(1)))
///     .limit(Limit::namespace("acme").rate(1_000, Duration::from_secs(60)))
///     .start()
///     .await?;
/// let run = engine.client().start("welcome", "Ada").await?;
/// assert_eq!(run.result::<String>().await?, "Ada");
/// # engine.stop(Duration::from_secs(1)).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a limit holds once it is given to an engine"]
pub struct Limit(Rule);

impl Limit {
    /// A limit of a queue.
    pub fn queue(name: &str) -> Self {
        Self::of(Scope::Queue(name.into()))
    }

    /// A limit of a workflow, for all its versions together.
    pub fn workflow(name: &str) -> Self {
        Self::of(Scope::Workflow(name.into()))
    }

    /// A limit of a namespace.
    pub fn namespace(name: &str) -> Self {
        Self::of(Scope::Namespace(name.into()))
    }

    fn of(scope: Scope) -> Self {
        Self(Rule { scope, at_most: None, rate: None })
    }

    /// So many attempts execute at once, and no more. A run that waits is not counted.
    pub fn at_most(mut self, attempts: u32) -> Self {
        self.0.at_most = Some(attempts);
        self
    }

    /// So many attempts begin in such a time, and no more in the long run. Retries are counted.
    pub fn rate(mut self, attempts: u32, per: Duration) -> Self {
        let per_ms = u64::try_from(per.as_millis()).unwrap_or(u64::MAX);
        self.0.rate = Some(Rate { count: attempts, per_ms });
        self
    }
}

impl From<Limit> for Rule {
    fn from(limit: Limit) -> Self {
        limit.0
    }
}
