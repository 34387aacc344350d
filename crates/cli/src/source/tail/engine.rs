//! The tail of a store in a database: a guest among its nodes, whom they tell what happens.

use std::collections::VecDeque;
use std::time::Duration;

use abide_kernel::{RunId, Str};
use abide_protocol::{Happened, Instant, ResetReason};
use abide_runtime::{Engine, Following, RunMoves, Taken};

use super::{Seen, Telling};
use crate::failure::Failure;
use crate::place::Place;

/// Events that are taken at once.
const TAKEN_MAX: usize = 100;

/// A guest that follows.
pub(crate) struct EngineTail {
    place: Place,
    namespace: Str,
    run: Option<RunId>,
    visit: Option<Visit>,
}

struct Visit {
    engine: Engine,
    follows: Follows,
}

enum Follows {
    Run(RunMoves, Telling),
    All(Following, VecDeque<Seen>),
}

impl EngineTail {
    pub(super) fn new(place: &Place, namespace: &Str, run: Option<RunId>) -> Self {
        Self { place: place.clone(), namespace: namespace.clone(), run, visit: None }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Seen>, Failure> {
        if self.visit.is_none() {
            self.visit = Some(self.enter()?);
        }
        let Some(Visit { engine, follows }) = &mut self.visit else { return Ok(None) };
        match follows {
            Follows::Run(moves, telling) => loop {
                if let Some(seen) = telling.waiting.pop_front() {
                    return Ok(Some(seen));
                }
                moves.look();
                let run = engine.show(telling.run).await?;
                let rows = match run.rev.0 > telling.told {
                    true => engine.journal(telling.run, telling.told + 1).await?,
                    false => Vec::new(),
                };
                telling.note(&run, rows);
                if telling.waiting.is_empty() && !moves.moved().await {
                    return Ok(None);
                }
            },
            Follows::All(following, waiting) => loop {
                if let Some(seen) = waiting.pop_front() {
                    return Ok(Some(seen));
                }
                match following.take(TAKEN_MAX) {
                    Taken::Reset => waiting.push_back(Seen::Reset(ResetReason::Lagged)),
                    Taken::Events(events) => waiting.extend(events.iter().map(|event| Seen::Happened(shown(event)))),
                }
                if waiting.is_empty() && !following.moved().await {
                    return Ok(None);
                }
            },
        }
    }

    fn enter(&self) -> Result<Visit, Failure> {
        // Opening connects and waits, which other tasks of this thread would have to wait for.
        let engine = tokio::task::block_in_place(|| self.place.own_here())?;
        let follows = match self.run {
            Some(run) => Follows::Run(engine.follow_run(run), Telling::new(run)),
            None => Follows::All(engine.follow(&self.namespace, None)?, VecDeque::new()),
        };
        Ok(Visit { engine, follows })
    }

    pub(super) async fn end(self) {
        if let Some(visit) = self.visit {
            visit.engine.stop(Duration::from_secs(5)).await;
        }
    }
}

fn shown(happened: &abide_runtime::Happened) -> Happened {
    Happened {
        run: happened.run,
        workflow: happened.workflow.to_string(),
        rev: happened.rev,
        at: Instant(happened.at),
        facts: happened.facts.iter().map(ToString::to_string).collect(),
        status: happened.status,
    }
}
