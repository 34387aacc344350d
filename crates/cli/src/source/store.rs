//! A store as a source: read beside whoever serves it, or owned for a moment to change one thing.

use std::sync::Arc;

use abide_kernel::explain::explain;
use abide_kernel::shard::{Answer, Command, Settling};
use abide_kernel::{LetterId, Refusal, RequestId, Row, Run, RunId, Standing, StartSpec, Status, Str, Timestamp};
use abide_protocol::{
    Audit, Boundary, Bounds, CreateToken, CreateUser, CreatedToken, DeadAttempt, Effect, Explanation, Nodes, Password,
    Queue, QueueHeld, RunEffect, State, Token, User, Workers, Workflows,
};
use abide_runtime::{QueueRule, Snapshot, Wire};
use abide_server::{AUDIT, audit_change, audit_mark, mint, prune_audit, shown, shown_nodes, shown_queue, shown_rule};
use abide_store::{Cluster, DeadLetterItem, FaultKind, Filter, Listed, Membership, Page, PostgresUrl};
use tokio::runtime::Runtime;

use super::tail::Tail;
use super::{QueueChange, Source, Wanted};
use crate::commands::node::no_nodes;
use crate::commands::run::surroundings::around;
use crate::failure::{Exit, Failure};
use crate::owner::{open_database, rouse};
use crate::place::{At, Place};

/// Runs that are read at a time when boundaries are listed.
const RUNS_AT_ONCE: usize = 200;
/// Changes that are read at a time when they are counted.
const AUDIT_PAGE: usize = 1_000;

/// A store.
pub(crate) struct Stored {
    place: Place,
    /// As it was read; anew after a change.
    snapshot: Option<Snapshot>,
    /// The way by which nodes were told something: word is under way as long as it is there.
    wire: Option<(Runtime, Arc<Wire>)>,
}

impl Stored {
    pub(super) fn of(place: Place) -> Self {
        Self { place, snapshot: None, wire: None }
    }

    fn snapshot(&mut self) -> Result<&mut Snapshot, Failure> {
        if self.snapshot.is_none() {
            self.snapshot = Some(self.place.snapshot()?);
        }
        Ok(self.snapshot.as_mut().expect("it was just read"))
    }

    fn filter(&self, statuses: &[Status]) -> Filter {
        let mut filter = Filter::default();
        filter.namespace = self.place.namespace.as_deref().map(Into::into);
        filter.statuses = statuses.to_vec();
        filter
    }

    /// The tenant of what belongs to one.
    fn namespace(&self) -> Str {
        self.place.namespace.as_deref().unwrap_or("default").into()
    }

    /// At most so many runs of these statuses, whole.
    fn runs(&mut self, statuses: &[Status], most: usize) -> Result<Vec<Run>, Failure> {
        let filter = self.filter(statuses);
        let snapshot = self.snapshot()?;
        let mut runs = Vec::new();
        for listed in snapshot.list(&filter, &Page { most, before: None })? {
            runs.extend(snapshot.show(listed.run)?.map(|stored| stored.run));
        }
        Ok(runs)
    }

    /// The store's database, which nodes share; a file has none.
    fn database(&self) -> Result<&PostgresUrl, Failure> {
        match &self.place.at {
            At::Database(url) => Ok(url),
            At::File { path, .. } => Err(no_nodes(&path.display().to_string())),
        }
    }

    fn membership(&self) -> Result<Membership, Failure> {
        self.database()?;
        Ok(self.place.membership()?.unwrap_or_default())
    }
}

impl Source for Stored {
    fn shown(&self) -> String {
        self.place.shown()
    }

    fn whole(&self) -> String {
        self.place.shown()
    }

    fn beginning(&mut self, digits: &str, most: usize) -> Result<Vec<RunId>, Failure> {
        let namespace = self.place.namespace.clone();
        let snapshot = self.snapshot()?;
        let mut found = snapshot.find(digits, most)?;
        // One of another tenant is not there. One that cannot be read is shown as what it is.
        if let (Some(namespace), [run]) = (namespace, found.as_slice())
            && let Ok(Some(stored)) = snapshot.show(*run)
            && *stored.run.started.spec.namespace != *namespace
        {
            found.clear();
        }
        Ok(found)
    }

    fn list(&mut self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, Failure> {
        Ok(self.snapshot()?.list(filter, page)?)
    }

    fn show(&mut self, run: RunId) -> Result<Run, Failure> {
        let stored = self.snapshot()?.show(run)?;
        stored.map(|stored| stored.run).ok_or_else(|| Refusal::NotFound { run }.into())
    }

    fn journal(&mut self, run: RunId) -> Result<Vec<Row>, Failure> {
        self.snapshot()?.journal(run, 0)?.ok_or_else(|| Refusal::NotFound { run }.into())
    }

    fn state(&mut self, run: RunId, rev: Option<u64>) -> Result<State, Failure> {
        let now = self.show(run)?;
        let then = match rev {
            Some(rev) if rev != now.rev.0 => folded_to(&self.journal(run)?, rev, &now)?,
            Some(_) | None => now,
        };
        Ok(State { run, rev: then.rev.0, status: then.status(), state: then.visible_state().clone() })
    }

    fn explain(&mut self, run: RunId, now: Timestamp) -> Result<Explanation, Failure> {
        let keeper = self.place.keeper_of(run)?;
        let snapshot = self.snapshot()?;
        let stored = match snapshot.show(run) {
            Ok(Some(stored)) => stored,
            Ok(None) => return Err(Refusal::NotFound { run }.into()),
            Err(fault) if matches!(fault.kind, FaultKind::Corrupt { .. }) => return Ok(damaged(run, &fault.message)),
            Err(fault) => return Err(fault.into()),
        };
        let now = now.max(stored.run.updated_at);
        let around = around(snapshot, keeper.as_ref(), &stored.run, now)?;
        let told = explain(&stored.run, &around, now);
        let mut evidence: std::collections::BTreeMap<String, String> = told.evidence.into_iter().collect();
        evidence.insert("store_held_by".into(), keeper.map_or("nobody".into(), |keeper| keeper.shown()));
        Ok(Explanation {
            run,
            reason: told.reason.code().into(),
            sentence: told.sentence,
            evidence,
            next_actions: told.next_actions,
        })
    }

    fn effects_in_doubt(&mut self, most: usize) -> Result<Vec<RunEffect>, Failure> {
        let mut found = Vec::new();
        for run in self.runs(&[Status::InDoubt], most)? {
            let doubted = run.effects().filter(|effect| effect.standing == Standing::InDoubt);
            found.extend(doubted.map(|effect| RunEffect { run: run.id, effect: Effect::of(run.id, &effect) }));
        }
        Ok(found)
    }

    fn boundaries(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Boundary>, Failure> {
        // A run that is in doubt about an effect may ask for a person as well.
        let filter = self.filter(&[Status::AwaitingDecision, Status::InDoubt]);
        let snapshot = self.snapshot()?;
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let listed = snapshot.list(&filter, &Page { most: RUNS_AT_ONCE, before })?;
            for listed in &listed {
                let Some(stored) = snapshot.show(listed.run)? else { continue };
                let run = &stored.run;
                let open = run.manual.iter().filter(|manual| manual.end.is_none());
                let open = open.map(|manual| Boundary::of(run.boundary_id(manual), &run.started.spec.workflow, manual));
                found.extend(open.filter(|boundary| wanted.matches(boundary)));
            }
            before = listed.last().map(|last| last.run);
            if listed.len() < RUNS_AT_ONCE || found.len() >= wanted.most {
                found.truncate(wanted.most);
                return Ok(found);
            }
        }
    }

    fn dead_attempts(&mut self, most: usize) -> Result<Vec<DeadAttempt>, Failure> {
        let runs = self.runs(&[Status::DeadLettered], most)?;
        Ok(runs.iter().flat_map(DeadAttempt::of).collect())
    }

    fn dead_messages(&mut self) -> Result<Vec<DeadLetterItem>, Failure> {
        Ok(self.snapshot()?.dead_letters()?)
    }

    fn queues(&mut self, now: Timestamp) -> Result<Vec<Queue>, Failure> {
        let namespace = self.namespace();
        let seen = self.snapshot()?.queues(&namespace, now)?;
        Ok(seen.iter().map(|seen| shown_queue(seen, now)).collect())
    }

    fn change_queue(&mut self, queue: &str, change: QueueChange) -> Result<QueueHeld, Failure> {
        let (namespace, queue): (Str, Str) = (self.namespace(), queue.into());
        let change = move |rule: &mut QueueRule| match change {
            QueueChange::Pause => rule.paused = true,
            QueueChange::Resume => rule.paused = false,
            QueueChange::Limit(limits) => {
                rule.at_most = limits.at_most;
                rule.rate = limits.rate.map(|rate| (rate.count, rate.per_ms));
            }
        };
        let rule = self.place.change(async |owner| {
            let changed = tokio::task::block_in_place(|| owner.engine.change_queue(&namespace, &queue, change));
            Ok(changed?)
        })?;
        Ok(shown_rule(&rule))
    }

    fn workers(&mut self) -> Result<Workers, Failure> {
        let what =
            format!("{} does not know who executes its runs: workers are known to the server they ask", self.shown());
        Err(Failure::usage("needs_server", what).hint("ask that server: abide --url http://127.0.0.1:7411 worker list"))
    }

    fn workflows(&mut self) -> Result<Workflows, Failure> {
        let what = format!("{} does not know what workers have: they tell the server they ask", self.shown());
        Err(Failure::usage("needs_server", what)
            .hint("ask that server: abide --url http://127.0.0.1:7411 workflow list"))
    }

    fn limits(&mut self) -> Result<Bounds, Failure> {
        let what = format!("{} is a store, and these are limits of a server", self.shown());
        Err(Failure::usage("needs_server", what).hint("ask a server: abide --url http://127.0.0.1:7411 limit list"))
    }

    fn audit(&mut self, before: Option<&str>, most: usize) -> Result<Audit, Failure> {
        let kept = self.place.reader()?.kept(AUDIT, before, most + 1)?;
        let more = kept.len() > most;
        let corrupt = |error: serde_json::Error| Failure::new(Exit::Failure, "corrupt", error.to_string());
        let changes: Result<Vec<_>, _> = kept.iter().take(most).map(audit_change).collect();
        let changes = changes.map_err(corrupt)?;
        let next = changes.last().map(|last| last.id.clone()).filter(|_| more);
        Ok(Audit { changes, next })
    }

    fn audit_before(&mut self, at: Timestamp) -> Result<u64, Failure> {
        let (mut reader, mut before, mut count) = (self.place.reader()?, audit_mark(at), 0);
        loop {
            let page = reader.kept(AUDIT, Some(&before), AUDIT_PAGE)?;
            count += page.len() as u64;
            match page.last() {
                Some(last) if page.len() == AUDIT_PAGE => before = last.id.clone(),
                _ => return Ok(count),
            }
        }
    }

    fn prune_audit(&mut self, at: Timestamp) -> Result<u64, Failure> {
        self.place.change(async |owner| Ok(tokio::task::block_in_place(|| prune_audit(&owner.engine, at))?))
    }

    fn nodes(&mut self) -> Result<Nodes, Failure> {
        Ok(shown_nodes(&self.membership()?))
    }

    fn drain(&mut self, process: &str, draining: bool) -> Result<(), Failure> {
        let (seen, mut store) = (self.membership()?, open_database(self.database()?)?);
        if !store.drain(process, draining)? {
            let what = format!("process {process} has just left");
            return Err(Failure::new(Exit::NotFound, "no_node", what).hint("abide node list shows who lives"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // Word that cannot be sent costs time: it finds out when it renews its lease.
        if let Ok(wire) = runtime.block_on(rouse(&mut store, &seen)) {
            self.wire = Some((runtime, wire));
        }
        Ok(())
    }

    fn tokens(&mut self) -> Result<Vec<Token>, Failure> {
        let stored = self.place.reader()?.tokens()?;
        let read = |stored| shown(stored).map_err(|bad| Failure::new(Exit::Failure, "corrupt", bad.to_string()));
        stored.iter().map(read).collect()
    }

    fn create_token(&mut self, asked: CreateToken, now: Timestamp) -> Result<CreatedToken, Failure> {
        let (stored, created) = mint(asked, now)?;
        self.place
            .change_or_make(async |owner| Ok(tokio::task::block_in_place(|| owner.engine.write_token(&stored))?))?;
        Ok(created)
    }

    fn revoke_token(&mut self, id: &str) -> Result<bool, Failure> {
        self.place.change(async |owner| Ok(tokio::task::block_in_place(|| owner.engine.remove_token(id))?))
    }

    fn users(&mut self) -> Result<Vec<User>, Failure> {
        self.place.users()
    }

    fn add_user(&mut self, asked: CreateUser, now: Timestamp) -> Result<User, Failure> {
        self.place.add_user(asked, now)
    }

    fn remove_user(&mut self, name: &str) -> Result<bool, Failure> {
        self.place.remove_user(name)
    }

    fn change_password(&mut self, name: &str, password: Password) -> Result<bool, Failure> {
        self.place.change_password(name, &password)
    }

    fn start(&mut self, request: RequestId, spec: StartSpec) -> Result<(Answer, bool), Failure> {
        let is_new = !self.place.at.exists()?;
        let answer = self.place.change_or_make(async |owner| {
            let command = Command::Start { request, spec: Box::new(spec.clone()) };
            owner.ask(spec.admission_slot(request), command).await
        })?;
        self.snapshot = None;
        Ok((answer, is_new))
    }

    fn tell(&mut self, run: RunId, command: Command) -> Result<Answer, Failure> {
        self.snapshot = None;
        self.place.change(async |owner| owner.tell(run, command).await)
    }

    fn settle(&mut self, letter: LetterId, how: Settling) -> Result<(), Failure> {
        self.place.change(async |owner| owner.settle(letter, how).await)
    }

    fn tail(&mut self, run: Option<RunId>) -> Result<Tail, Failure> {
        Tail::of_store(&self.place, &self.namespace(), run)
    }
}

/// A run whose record is damaged does not move either, and that is the reason.
/// A run as it stood at a revision: its journal, folded up to there.
fn folded_to(rows: &[Row], rev: u64, now: &Run) -> Result<Run, Failure> {
    let first = rows.first().ok_or(Refusal::NotFound { run: now.id })?;
    if rev < first.rev.0 || rev > now.rev.0 {
        let expected = format!("a revision from {} to {}", first.rev.0, now.rev.0);
        return Err(Refusal::Invalid { what: "rev".into(), expected, found: rev.to_string() }.into());
    }
    let mut folded = Run::begin(first).map_err(|bad| Failure::new(Exit::Failure, "corrupt", bad.to_string()))?;
    rows[1..].iter().take_while(|row| row.rev.0 <= rev).for_each(|row| folded.apply_row(row));
    Ok(folded)
}

fn damaged(run: RunId, found: &str) -> Explanation {
    Explanation {
        run,
        reason: "damaged".into(),
        sentence: format!("its record is damaged, so nothing can be done to it: {found}"),
        evidence: std::collections::BTreeMap::new(),
        next_actions: vec!["abide store check".into()],
    }
}
