//! Nodes: several processes share a PostgreSQL server under load. One fault after the other strikes a node, its
//! connections, what the nodes say to each other, or the server itself; everybody has to go on, and nothing acknowledged may be lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use abide::{Client, ClientError, Refusal, RunHandle};
use abide_pg_testing::Server;
use abide_runtime::Audit;
use abide_store::postgres::{open_read_only, raw_client};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::by_sql::{ask_for_ever, parse};
use super::door::Door;
use super::ledger::Ledger;
use super::pauses::send;
use super::process::{Plan, Process, Shared, Task};
use super::report::{PATIENCE, tell};
use super::worker::{KINDS, LOADERS, Notes, feed, load_kind};
use super::{Options, audit};

/// How long a node is believed to live, and how long its claims last.
const NODE_LEASE_MS: u64 = 2_000;
const CLAIM_LEASE_MS: u64 = 1_000;
/// Cycles after which a fresh store is begun: an audit reads the whole journal.
const CYCLES_PER_STORE: u64 = 10;
/// Acknowledgements of every node before the fault of a cycle, and after it.
const ACKNOWLEDGED_MIN: u64 = 40;
/// How long the last open runs may take to end.
const DRAINING: Duration = Duration::from_secs(180);
/// A dead node's work is taken over so long after its lease at the latest, at the median.
const TAKEOVER_MS_MAX: f64 = NODE_LEASE_MS as f64 + 1_000.0;
/// Faults after which the median says something.
const TAKEOVERS_MIN: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A node is killed with SIGKILL, and another started in its place.
    NodeKilled,
    /// A node is stopped for longer than its lease, and goes on as if nothing had been.
    NodePaused,
    /// What the others say does not reach a node for a while; what it says reaches them.
    LinkCutOneWay,
    /// No node reaches another for a while.
    LinkCut,
    /// What a node is told is lost for a while, and the connections by which it is told end.
    LinkBroken,
    /// The server ends all connections.
    ConnectionsEnded,
    /// The server is stopped in good order, and started again.
    ServerStopped,
    /// Every process of the server is killed.
    ServerKilled,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::NodeKilled,
        Self::NodePaused,
        Self::LinkCutOneWay,
        Self::LinkCut,
        Self::LinkBroken,
        Self::ConnectionsEnded,
        Self::ServerStopped,
        Self::ServerKilled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::NodeKilled => "node_killed",
            Self::NodePaused => "node_paused",
            Self::LinkCutOneWay => "link_cut_one_way",
            Self::LinkCut => "link_cut",
            Self::LinkBroken => "link_broken",
            Self::ConnectionsEnded => "connections_ended",
            Self::ServerStopped => "server_stopped",
            Self::ServerKilled => "server_killed",
        }
    }
}

struct Node {
    name: String,
    process: Process,
    door: Door,
    /// Acknowledgements so far.
    acknowledged: u64,
}

struct Harness<'a> {
    options: &'a Options,
    server: Server,
    url: String,
    nodes: Vec<Node>,
    lives: u64,
    chance: fastrand::Rng,
    ledger: Ledger,
    faults: BTreeMap<&'static str, u64>,
    takeovers_ms: Vec<f64>,
    connections_ended: usize,
    letters_held: u64,
    letters_lost: u64,
}

pub(crate) fn perform(options: &Options) -> Result<()> {
    ensure!(options.nodes > 1, "expected at least 2 nodes, found {}", options.nodes);
    let server = Server::start();
    let mut harness = Harness {
        options,
        url: String::new(),
        server,
        nodes: Vec::new(),
        lives: 0,
        chance: fastrand::Rng::with_seed(options.seed),
        ledger: Ledger::default(),
        faults: Fault::ALL.iter().map(|fault| (fault.name(), 0)).collect(),
        takeovers_ms: Vec::new(),
        connections_ended: 0,
        letters_held: 0,
        letters_lost: 0,
    };
    let mut deck = Vec::new();
    for cycle in 0..options.cycles {
        if cycle % CYCLES_PER_STORE == 0 {
            harness.finish()?;
            harness.begin(cycle)?;
        }
        if deck.is_empty() {
            deck = Fault::ALL.to_vec();
            harness.chance.shuffle(&mut deck);
        }
        let fault = deck.pop().unwrap_or(Fault::NodeKilled);
        harness.cycle(fault).with_context(|| format!("cycle {cycle}, {}", fault.name()))?;
        let Ledger { lost, .. } = &harness.ledger;
        eprintln!("cycle {cycle}: {}, {} acknowledged, {lost} lost", fault.name(), harness.ledger.acknowledged());
    }
    harness.finish()?;
    harness.report()
}

impl Harness<'_> {
    /// A store of its own, and nodes on it.
    fn begin(&mut self, cycle: u64) -> Result<()> {
        self.url = format!("{}?schema=crash_{cycle}", self.server.url());
        self.ledger.turn_page();
        for index in 0..self.options.nodes {
            let node = self.start(index)?;
            self.nodes.push(node);
        }
        Ok(())
    }

    fn plan(&mut self, name: &str, task: Task, door: Option<&Door>) -> Plan {
        let mut plan = Plan::new(self.options, Path::new(""), self.chance.u64(..), task);
        plan.lease_ms = Some(CLAIM_LEASE_MS);
        plan.shared = Some(Shared {
            url: self.url.clone(),
            node: name.to_owned(),
            lease_ms: NODE_LEASE_MS,
            door: door.map(|door| (door.node(), door.address())),
        });
        plan
    }

    fn start(&mut self, index: usize) -> Result<Node> {
        self.lives += 1;
        let name = format!("node-{index}-{}", self.lives);
        let door = Door::build()?;
        let process = self.plan(&name, Task::Load, Some(&door)).start()?;
        Ok(Node { name, process, door, acknowledged: 0 })
    }

    /// Lets everybody work, strikes, and lets everybody work again.
    fn cycle(&mut self, fault: Fault) -> Result<()> {
        self.all_go_on()?;
        let soon = Duration::from_millis(self.chance.u64(0..300));
        self.listen_for(soon)?;
        *self.faults.entry(fault.name()).or_default() += 1;
        match fault {
            Fault::NodeKilled => self.kill_node()?,
            Fault::NodePaused => self.pause_node()?,
            Fault::LinkCutOneWay => {
                let index = self.chance.usize(..self.nodes.len());
                self.cut_links(index..index + 1)?;
            }
            Fault::LinkCut => self.cut_links(0..self.nodes.len())?,
            Fault::LinkBroken => self.break_link()?,
            Fault::ConnectionsEnded => self.end_connections()?,
            Fault::ServerStopped => {
                self.server.stop();
                self.away()?;
            }
            Fault::ServerKilled => {
                self.server.kill();
                self.away()?;
            }
        }
        self.all_go_on()
    }

    /// Nothing is said to these nodes, for less than leases last or for longer.
    fn cut_links(&mut self, nodes: std::ops::Range<usize>) -> Result<()> {
        self.nodes[nodes.clone()].iter().for_each(|node| node.door.close());
        let cut = Duration::from_millis(self.chance.u64(NODE_LEASE_MS / 4..NODE_LEASE_MS * 2));
        self.listen_for(cut)?;
        let held: u64 = self.nodes[nodes].iter().map(|node| node.door.open().0).sum();
        ensure!(held > 0, "nobody said anything for {cut:?}, so nothing was cut off");
        self.letters_held += held;
        Ok(())
    }

    /// What one node is told is lost.
    fn break_link(&mut self) -> Result<()> {
        let index = self.chance.usize(..self.nodes.len());
        self.nodes[index].door.break_down();
        let broken = Duration::from_millis(self.chance.u64(NODE_LEASE_MS / 4..NODE_LEASE_MS * 2));
        self.listen_for(broken)?;
        let (_, lost) = self.nodes[index].door.open();
        ensure!(lost > 0, "nobody said anything for {broken:?}, so nothing was lost");
        self.letters_lost += lost;
        Ok(())
    }

    /// Ends what the nodes have open; each of them has a connection at least.
    fn end_connections(&mut self) -> Result<()> {
        let ended = self.server.psql(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE application_name LIKE 'abide%' AND pid <> pg_backend_pid()",
        );
        let ended: usize = ended.trim().parse().context("counting the connections that were ended")?;
        let nodes = self.nodes.len();
        ensure!(ended >= nodes, "{ended} connections of {nodes} nodes were ended");
        self.connections_ended += ended;
        Ok(())
    }

    /// The server is away for a while, perhaps for longer than leases last.
    fn away(&mut self) -> Result<()> {
        let away = if self.chance.bool() { NODE_LEASE_MS / 4 } else { NODE_LEASE_MS * 3 / 2 };
        let away = Duration::from_millis(self.chance.u64(0..away));
        self.listen_for(away)?;
        self.server.restart();
        Ok(())
    }

    /// Kills a node, and measures how long it takes until another commits in one of its shards.
    fn kill_node(&mut self) -> Result<()> {
        let index = self.chance.usize(..self.nodes.len());
        let node = self.nodes.swap_remove(index);
        let was = self.ask(async |asking: &Asking| asking.served(&node.name).await)?;
        let killed = Instant::now();
        node.process.kill(&mut self.ledger)?;
        let heads = self.ask(async |asking: &Asking| asking.heads(&was).await)?;
        loop {
            ensure!(killed.elapsed() < PATIENCE, "nobody took over from {} in {PATIENCE:?}", node.name);
            self.hear()?;
            if self.ask(async |asking: &Asking| asking.is_gone_on(&heads, &node.name).await)? {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if !heads.is_empty() {
            self.takeovers_ms.push(killed.elapsed().as_secs_f64() * 1_000.0);
        }
        let again = self.start(index)?;
        self.nodes.push(again);
        Ok(())
    }

    fn pause_node(&mut self) -> Result<()> {
        let index = self.chance.usize(..self.nodes.len());
        send(&self.nodes[index].process.child, Signal::STOP)?;
        let pause = Duration::from_millis(self.chance.u64(NODE_LEASE_MS * 5 / 4..NODE_LEASE_MS * 2));
        let listened = self.listen_for(pause);
        send(&self.nodes[index].process.child, Signal::CONT)?;
        listened
    }

    /// Waits until every node has acknowledged something more.
    fn all_go_on(&mut self) -> Result<()> {
        let enough: Vec<u64> = self.nodes.iter().map(|node| node.acknowledged + ACKNOWLEDGED_MIN).collect();
        let began = Instant::now();
        loop {
            self.hear()?;
            let behind = self.nodes.iter().zip(&enough).find(|(node, enough)| node.acknowledged < **enough);
            let Some((node, _)) = behind else { return Ok(()) };
            ensure!(began.elapsed() < PATIENCE, "{} acknowledges nothing more for {PATIENCE:?}", node.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn listen_for(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.hear()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Notes what the nodes said. None of them may end by itself.
    fn hear(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            loop {
                match node.process.lines.try_recv() {
                    Ok(line) => {
                        let before = self.ledger.acknowledged();
                        self.ledger.note(&line);
                        node.acknowledged += (self.ledger.acknowledged() - before) as u64;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        bail!("{} ended by itself: {:?}", node.name, self.ledger.closed)
                    }
                }
            }
        }
        Ok(())
    }

    /// Kills every node, lets everything come to its end undisturbed, and looks at it.
    fn finish(&mut self) -> Result<()> {
        if self.nodes.is_empty() {
            return Ok(());
        }
        for node in std::mem::take(&mut self.nodes) {
            node.process.kill(&mut self.ledger)?;
        }
        let status = self.plan("drain", Task::Drain, None).start()?.end(&mut self.ledger, DRAINING)?;
        if !status.success() {
            self.ledger.problems.push(format!("the last process ended with {status}"));
            self.ledger.unfinished += 1;
        }
        let mut reader = open_read_only(&parse(&self.url)?).context("opening the store to audit it")?;
        let found = audit::audit_with(&mut reader, &self.ledger)?;
        self.ledger.unfinished += found.open;
        self.ledger.add(&found);
        let problems = Audit::of(&mut reader)?.problems;
        self.ledger.rebuild_mismatches += problems.len() as u64;
        self.ledger.problems.extend(problems.into_iter().take(5).map(|problem| problem.what));
        Ok(())
    }

    fn ask<T>(&self, what: impl AsyncFnOnce(&Asking) -> Result<T>) -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = parse(&self.url)?;
        runtime.block_on(async {
            let asking = Asking(raw_client(&url).await?);
            what(&asking).await
        })
    }

    fn report(&self) -> Result<()> {
        let mut takeovers = self.takeovers_ms.clone();
        takeovers.sort_by(f64::total_cmp);
        let takeover_p50_ms = takeovers.get(takeovers.len() / 2).map(|ms| ms.round());
        let particular = json!({
            "cycles": self.options.cycles,
            "nodes": self.options.nodes,
            "shards": self.options.shards,
            "seed": self.options.seed,
            "node_lease_ms": NODE_LEASE_MS,
            "asked_by_sql": self.ledger.asked_in_all,
            "asked_not_once": self.ledger.asked_not_once,
            "takeover_p50_ms": takeover_p50_ms,
            "takeovers": takeovers.len(),
            "faults": self.faults,
            "connections_ended": self.connections_ended,
            "letters_held": self.letters_held, "letters_lost": self.letters_lost,
        });
        tell(&self.ledger, particular)?;
        ensure!(!self.ledger.calls.is_empty(), "nothing was done that must not happen twice, so nothing was shown");
        ensure!(self.ledger.asked_in_all > 0, "nothing was asked by SQL, so nothing was shown of that");
        let slow = takeover_p50_ms.filter(|ms| takeovers.len() >= TAKEOVERS_MIN && *ms > TAKEOVER_MS_MAX);
        ensure!(slow.is_none(), "taking over takes {slow:?} ms, and {TAKEOVER_MS_MAX} ms are promised");
        Ok(())
    }
}

/// What is asked of the database beside the nodes.
struct Asking(tokio_postgres::Client);

impl Asking {
    /// The shards of a node.
    async fn served(&self, node: &str) -> Result<Vec<i16>> {
        let sql = "SELECT s.id FROM shard s JOIN node n ON n.process = s.owner WHERE n.node = $1";
        let rows = self.0.query(sql, &[&node]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Where the logs of shards end.
    async fn heads(&self, shards: &[i16]) -> Result<Vec<(i16, i64)>> {
        let sql = "SELECT s.id, coalesce((SELECT max(seq) FROM journal j WHERE j.shard = s.id), 0)
            FROM shard s WHERE s.id = ANY($1)";
        let rows = self.0.query(sql, &[&shards]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    /// Whether another has committed in one of the shards of a node.
    async fn is_gone_on(&self, heads: &[(i16, i64)], node: &str) -> Result<bool> {
        if heads.is_empty() {
            return Ok(true);
        }
        let (ids, seqs): (Vec<i16>, Vec<i64>) = heads.iter().copied().unzip();
        let sql = "SELECT EXISTS (SELECT FROM unnest($1::smallint[], $2::bigint[]) AS h (shard, seq)
            JOIN shard s ON s.id = h.shard JOIN node n ON n.process = s.owner AND n.node <> $3
            WHERE EXISTS (SELECT FROM journal j WHERE j.shard = h.shard AND j.seq > h.seq))";
        Ok(self.0.query_one(sql, &[&ids, &seqs, &node]).await?.try_get(0)?)
    }
}

/// The load of a node of several: what fails because another node or the database is away is given up.
pub(super) async fn load_for_ever(client: &Client, notes: &Notes, seed: u64, url: &str) -> Result<()> {
    let mut loaders = Vec::new();
    let (asking, asked) = (url.to_owned(), notes.clone());
    loaders.push(tokio::spawn(async move { ask_for_ever(&asking, &asked, seed).await }));
    for loader in 0..LOADERS {
        let (client, notes) = (client.clone(), notes.clone());
        let mut chance = fastrand::Rng::with_seed(seed ^ loader.wrapping_mul(0x9e37_79b9));
        loaders.push(tokio::spawn(async move {
            loop {
                let kind = chance.u8(0..=KINDS);
                give_up(load_kind(&client, &notes, &mut chance, kind).await).await?;
            }
        }));
    }
    let (client, notes) = (client.clone(), notes.clone());
    loaders.push(tokio::spawn(async move {
        loop {
            // Others left runs behind that need their signals, or somebody who says what became of them.
            give_up(feed(&client, &notes).await).await?;
            give_up(settle_doubts(&client).await).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }));
    for loader in loaders {
        let ended: Result<()> = loader.await?;
        ended?;
    }
    Ok(())
}

/// Nothing more can be asked of an engine that has closed; anything else may go well the next time.
pub(super) async fn give_up(done: Result<()>) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(Refusal::Closed { .. }) | ClientError::Engine(_)) => Err(error),
        _ => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(())
        }
    }
}

/// Says of every effect that is in doubt that it took place.
pub(super) async fn settle_doubts(client: &Client) -> Result<()> {
    for (run, effect) in client.in_doubt(1_000).await? {
        resolve(&run, &effect.key).await?;
    }
    Ok(())
}

/// Says what became of an effect in doubt.
pub(super) async fn resolve(run: &RunHandle, key: &str) -> Result<()> {
    match run.resolve(key).actor("harness").value(&0u32).await {
        // Another was quicker.
        Ok(()) | Err(ClientError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
