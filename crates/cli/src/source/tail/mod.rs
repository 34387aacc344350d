//! Tails: what becomes true, told as it does. A server tells it by a stream of events, a database by the nodes that serve
//! it, and of a file its changes are heard.

mod engine;
mod file;
mod server;

use std::collections::VecDeque;

use abide::remote::Http;
use abide_kernel::{Row, Run, RunId, Str};
use abide_protocol::{Ending, Happened, Progress, ResetReason};

use crate::failure::{Exit, Failure};
use crate::options::Asked;
use crate::place::{At, Place};

/// Something that became true.
pub(crate) enum Seen {
    /// Of the run that is followed.
    Row(Box<Row>),
    /// A step of the run says how far it is.
    Progress(Progress),
    /// The run has ended; nothing follows.
    End(Box<Ending>),
    /// Of a run of the tenant that is followed.
    Happened(Happened),
    /// Something is missing here.
    Reset(ResetReason),
}

/// Whoever tells.
pub(crate) enum Tail {
    Server(Box<server::ServerTail>),
    Engine(Box<engine::EngineTail>),
    File(Box<file::FileTail>),
}

impl Tail {
    pub(super) fn of_server(http: Http, asked: Asked, run: Option<RunId>) -> Self {
        Self::Server(Box::new(server::ServerTail::new(http, asked, run)))
    }

    pub(super) fn of_store(place: &Place, namespace: &Str, run: Option<RunId>) -> Result<Self, Failure> {
        place.at.check_exists()?;
        match (&place.at, run) {
            (At::Database(_), _) => Ok(Self::Engine(Box::new(engine::EngineTail::new(place, namespace, run)))),
            (At::File { path, .. }, Some(run)) => Ok(Self::File(Box::new(file::FileTail::new(place, path, run)?))),
            (At::File { path, .. }, None) => {
                let what =
                    format!("of {} one run is followed at a time: nobody but its process sees all", path.display());
                Err(Failure::new(Exit::Usage, "needs_server", what)
                    .hint("name a run, or ask the server that serves it: abide --url http://127.0.0.1:7411 run watch"))
            }
        }
    }

    /// What is told next; nothing at the end. May be given up while it waits.
    pub(crate) async fn next(&mut self) -> Result<Option<Seen>, Failure> {
        match self {
            Self::Server(tail) => tail.next().await,
            Self::Engine(tail) => tail.next().await,
            Self::File(tail) => tail.next().await,
        }
    }

    /// Ends it in good order.
    pub(crate) async fn end(self) {
        if let Self::Engine(tail) = self {
            tail.end().await;
        }
    }
}

/// How far a run was told, by one who looks at it again and again.
struct Telling {
    run: RunId,
    told: u64,
    said: u64,
    waiting: VecDeque<Seen>,
}

impl Telling {
    fn new(run: RunId) -> Self {
        Self { run, told: 0, said: 0, waiting: VecDeque::new() }
    }

    /// Takes note of a run as it stands, with the rows of its journal after what was told.
    fn note(&mut self, run: &Run, rows: Vec<Row>) {
        for row in rows {
            if row.rev.0 > self.told + 1 && self.told > 0 {
                self.waiting.push_back(Seen::Reset(ResetReason::Compacted));
            }
            self.told = row.rev.0;
            self.waiting.push_back(Seen::Row(Box::new(row)));
        }
        let said = run.progress.iter().flat_map(|progress| progress.after(self.said));
        self.waiting.extend(said.map(|said| Seen::Progress(said.into())));
        self.said = self.said.max(run.progress.as_ref().map_or(0, |progress| progress.last()));
        if run.end.is_some() && run.rev.0 <= self.told {
            self.waiting.push_back(Seen::End(Box::new(Ending::of(run))));
        }
    }
}
