//! The process that is killed: it opens the store, makes load, and writes a line for every acknowledgement.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abide::{
    Client, ClientError, Engine, Filter, OnConflict, Page, Refusal, RunHandle, RunId, Standing, Status, StatusSet,
};
use abide_runtime::points;
use anyhow::{Context, Result};
use clap::Args;

use super::workload::Nap;
use super::{audit, by_sql, nodes, workload};

/// What the process is told.
#[derive(Args)]
pub(crate) struct Options {
    /// The URL of the store.
    #[arg(long)]
    store: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    shards: u16,
    #[arg(long)]
    point: Option<String>,
    #[arg(long, default_value_t = 1)]
    count: u64,
    #[arg(long)]
    sabotage: Option<String>,
    /// Make load beside another process on the same file.
    #[arg(long)]
    contend: bool,
    /// Make no new load; let everything end, then stop.
    #[arg(long)]
    drain: bool,
    /// Make so many runs, let them end, then stop.
    #[arg(long)]
    few: Option<u64>,
    /// Make so many runs that fill the log, then stop.
    #[arg(long)]
    large: Option<u64>,
    #[arg(long)]
    lease_ms: Option<u64>,
    /// The name of this node of several. What it asks for in vain, because another or the database is away, it gives up, and
    /// goes on with something else.
    #[arg(long, requires = "node_lease_ms")]
    node: Option<String>,
    #[arg(long)]
    node_lease_ms: Option<u64>,
    /// Where it listens for other nodes, and the address that they are told.
    #[arg(long, requires = "advertise")]
    listen: Option<SocketAddr>,
    #[arg(long)]
    advertise: Option<String>,
}

/// Tasks that make load at once.
pub(super) const LOADERS: u64 = 12;
/// How long a run may take to end when nothing disturbs it.
const ENDING: Duration = Duration::from_secs(20);
/// The kind of run that does what must not happen twice. After a crash somebody has to say what became of it.
pub(super) const ONCE: u8 = 10;
/// The kind of run that answers updates, and then waits for a person.
const ASKED: u8 = 11;
/// The last kind.
pub(super) const KINDS: u8 = ASKED;
/// How long a run may take before somebody looks whether it is in doubt.
const DOUBTED: Duration = Duration::from_secs(1);
/// What a large run carries: two dozen of them fill the log.
const LARGE_BYTES: usize = 100 * 1024;

pub(crate) fn perform(options: &Options) -> Result<()> {
    if let Some(point) = &options.point {
        points::arm(point, options.count);
    }
    if options.sabotage.is_some() {
        points::sabotage_ack_before_commit();
    }
    let mut runtime = if options.few.is_some() || options.large.is_some() {
        // Calls are counted thread by thread by the tool that makes them fail.
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    runtime.worker_threads(2).enable_all().build()?.block_on(serve(options))
}

async fn serve(options: &Options) -> Result<()> {
    let notes = Notes::default();
    let mut engine = Engine::open(&options.store);
    if let Some(lease_ms) = options.lease_ms {
        engine = engine.lease(Duration::from_millis(lease_ms));
    }
    if let (Some(node), Some(lease_ms)) = (&options.node, options.node_lease_ms) {
        engine = engine.node(node).node_lease(Duration::from_millis(lease_ms));
    }
    if let (Some(listen), Some(advertise)) = (options.listen, &options.advertise) {
        engine = engine.listen(listen).advertise(advertise);
    }
    let engine = engine
        .register(workload::plain())
        .register(workload::long())
        .register(workload::signalled())
        .register(workload::told())
        .register(workload::timed(notes.clone()))
        .register(workload::parent())
        .register(workload::flaky())
        .register(workload::large())
        .register(workload::once(notes.clone()))
        .register(workload::asked())
        .queue("default", 32)
        .shards(options.shards)
        .flush_after(200)
        .start()
        .await
        .context("opening the engine")?;
    let client = engine.client();
    if options.drain {
        if options.node.is_some() {
            by_sql::all_answered(&options.store).await?;
        }
        drain(&client, &notes).await?;
        engine.stop(Duration::from_secs(10)).await;
        return Ok(());
    }
    let loaded = match (options.few, options.large) {
        _ if options.node.is_some() => nodes::load_for_ever(&client, &notes, options.seed, &options.store).await,
        (Some(runs), _) => few(&client, &notes, options.seed, runs).await,
        (None, Some(runs)) => large(&client, &notes, runs).await,
        (None, None) => load_for_ever(&client, &notes, options).await,
    };
    if let Err(error) = &loaded {
        // Whoever listens learns why no more is to come. Who wanted something done may have been told only that nobody knows what
        // became of it; who reads is told why.
        let look = Page { most: 1, before: None };
        let read = tokio::time::timeout(Duration::from_secs(5), client.list(&Filter::default(), &look)).await;
        let why = read.ok().and_then(Result::err).map(|why| format!("; {why:#}")).unwrap_or_default();
        notes.write(&["closed", &format!("{error:#}{why}").replace(['\t', '\n'], " ")]);
    }
    engine.stop(Duration::from_secs(10)).await;
    loaded
}

async fn load_for_ever(client: &Client, notes: &Notes, options: &Options) -> Result<()> {
    // Runs that earlier lives left behind need their signals, and end in this life.
    let (rest, told) = (client.clone(), notes.clone());
    let resumed = tokio::spawn(async move { feed(&rest, &told).await });
    let mut loaders = Vec::new();
    for loader in 0..LOADERS {
        let (client, notes) = (client.clone(), notes.clone());
        let mut chance = fastrand::Rng::with_seed(options.seed ^ loader.wrapping_mul(0x9e37_79b9));
        let contends = options.contend;
        loaders.push(tokio::spawn(async move {
            loop {
                let done = load(&client, &notes, &mut chance).await;
                if contends { nodes::give_up(done).await? } else { done? }
            }
        }));
    }
    for loader in loaders {
        let ended: Result<()> = loader.await?;
        ended?;
    }
    resumed.await?
}

/// One run after the other, so that every life of this kind asks the same of the disk.
async fn few(client: &Client, notes: &Notes, seed: u64, runs: u64) -> Result<()> {
    let mut chance = fastrand::Rng::with_seed(seed);
    for _ in 0..runs {
        load(client, notes, &mut chance).await?;
    }
    Ok(())
}

/// Runs whose input fills the log: it is brought into the file in between.
async fn large(client: &Client, notes: &Notes, runs: u64) -> Result<()> {
    let input = vec!["x".repeat(LARGE_BYTES)];
    for _ in 0..runs {
        let run = client.start("large", &input).await?;
        let id = run.id().to_string();
        notes.write(&["started", &id]);
        end(&run, notes, &id).await?;
    }
    Ok(())
}

/// Lines to the one outside, whole or not at all.
#[derive(Clone, Default)]
pub(super) struct Notes(Arc<Mutex<()>>);

impl Notes {
    pub(super) fn write(&self, words: &[&str]) {
        let _held = self.0.lock();
        let line = format!("{}\t.\n", words.join("\t"));
        let mut out = std::io::stdout().lock();
        // Whoever reads is gone only when this process is about to be.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

/// One run by chance, from its start to its end.
async fn load(client: &Client, notes: &Notes, chance: &mut fastrand::Rng) -> Result<()> {
    let kind = chance.u8(0..=KINDS);
    load_kind(client, notes, chance, kind).await
}

/// One run of a kind.
pub(super) async fn load_kind(client: &Client, notes: &Notes, chance: &mut fastrand::Rng, kind: u8) -> Result<()> {
    let start = match kind {
        0..=2 => client.start("plain", &0u32),
        3 => client.start("long", &0u32),
        4 => client.start("timed", &Nap::default()),
        5 => client.start("parent", &0u32),
        6 => client.start("flaky", &0u32),
        7 => {
            let key = format!("k{}", chance.u32(0..20));
            let start = client.start("plain", &0u32).key(&key).on_conflict(OnConflict::Reuse);
            start.concurrency(&key, 1).occupied(StatusSet::OPEN)
        }
        ONCE => client.start("once", &0u32),
        ASKED => client.start("asked", &0u32),
        _ => client.start("signalled", &Vec::<u32>::new()),
    };
    // Claims that are lost to faults set nothing aside: nobody would put it back.
    let run = start.deliveries_max(u32::MAX).await?;
    let id = run.id().to_string();
    notes.write(&["started", &id]);
    if matches!(kind, 8 | 9) {
        signal(&run, notes, &id, 1).await?;
        if chance.u8(0..8) == 0 {
            match run.cancel("by chance").await {
                Ok(()) => notes.write(&["cancelled", &id]),
                Err(ClientError::Refused(_)) => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
        signal(&run, notes, &id, 2).await?;
    }
    if kind == ASKED {
        for number in 1..=UPDATES {
            let key = update_key(&id, number);
            let sum: u32 = run.update("add", &number).dedup(&key).await?;
            notes.write(&["updated", &id, &key, &sum.to_string()]);
        }
        while !approve(&run, notes).await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    end(&run, notes, &id).await
}

/// Waits for the end of a run. What is in doubt, because a fault struck while its effect was called, waits for somebody's word.
pub(super) async fn end(run: &RunHandle, notes: &Notes, id: &str) -> Result<()> {
    let told = loop {
        if let Ok(told) = tokio::time::timeout(DOUBTED, run.result::<serde_json::Value>()).await {
            break told;
        }
        for effect in run.effects().await?.into_iter().filter(|effect| effect.standing == Standing::InDoubt) {
            nodes::resolve(run, &effect.key).await?;
        }
    };
    let shown = run.show().await?;
    if shown.end.is_none() && matches!(told, Ok(_) | Err(ClientError::RunFailed { .. })) {
        // Whatever the loader makes of errors.
        notes.write(&["contradicted", id]);
    }
    anyhow::ensure!(shown.end.is_some(), "waiting for {id} came to {told:?}, and it is {}", shown.status());
    notes.write(&["ended", id, &audit::ending(&shown)]);
    Ok(())
}

async fn signal(run: &RunHandle, notes: &Notes, id: &str, number: u32) -> Result<()> {
    let key = format!("{id}-{number}");
    match run.signal("go", &number).dedup(&key).await {
        Ok(_) => {
            notes.write(&["signalled", id, &key]);
            Ok(())
        }
        Err(ClientError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How much a run is asked to add.
const UPDATES: u32 = 2;

fn update_key(id: &str, number: u32) -> String {
    format!("{id}-add-{number}")
}

/// Approves what the run asks of a person. Whether it is done with that: it may not have come to it.
async fn approve(run: &RunHandle, notes: &Notes) -> Result<bool> {
    let Some(open) = run.boundary().await? else { return Ok(run.show().await?.end.is_some()) };
    match run.approve(open.id, "harness").await {
        Ok(_) => notes.write(&["approved", &run.id().to_string()]),
        // Another was quicker.
        Err(ClientError::Refused(
            Refusal::AlreadyDecided { .. } | Refusal::StaleBoundary { .. } | Refusal::RunOver { .. },
        )) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// Gives runs of earlier lives what they may still wait for, now or when the step that executes has ended.
pub(super) async fn feed(client: &Client, notes: &Notes) -> Result<()> {
    for run in open_runs(client, "signalled").await? {
        for number in 1..=2u32 {
            let key = format!("{}-{number}", run.id());
            let _ = run.signal("go", &number).dedup(&key).await;
        }
    }
    for run in open_runs(client, "asked").await? {
        for number in 1..=UPDATES {
            let key = update_key(&run.id().to_string(), number);
            let _ = run.update::<u32, _>("add", &number).dedup(&key).accepted().await;
        }
        let _ = approve(&run, notes).await;
    }
    Ok(())
}

async fn open_runs(client: &Client, workflow: &str) -> Result<Vec<RunHandle>> {
    let mut filter = Filter::default();
    filter.workflow = Some(workflow.into());
    filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    let mut page = Page { most: 200, before: None };
    let mut open = Vec::new();
    loop {
        let runs = client.list(&filter, &page).await?;
        let Some(last) = runs.last() else { return Ok(open) };
        page.before = Some(last.run);
        open.extend(runs.iter().map(|listed| client.run(listed.run)));
    }
}

/// Waits until nothing is open any more. A run that was held by a dead node is in doubt only when its claim has ended, so
/// that whatever runs may need is looked after again and again.
async fn drain(client: &Client, notes: &Notes) -> Result<()> {
    let mut filter = Filter::default();
    filter.statuses = Status::ALL.into_iter().filter(|status| !status.is_terminal()).collect();
    let mut waited: Option<(RunId, Instant)> = None;
    loop {
        feed(client, notes).await?;
        nodes::settle_doubts(client).await?;
        let open = client.list(&filter, &Page { most: 1, before: None }).await?;
        let Some(first) = open.first() else { return Ok(()) };
        let since = waited.filter(|(run, _)| *run == first.run).map_or_else(Instant::now, |(_, since)| since);
        let (status, step) = (first.status, &first.step);
        anyhow::ensure!(since.elapsed() < ENDING, "{} does not end: it is {status} at {step:?}", first.run);
        waited = Some((first.run, since));
        let ended = client.run(first.run);
        let _ = tokio::time::timeout(Duration::from_secs(1), ended.result::<serde_json::Value>()).await;
    }
}
