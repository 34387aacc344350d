//! The tail of a server: its stream of events, taken up again where it broke.

use std::time::Duration;

use abide::ClientError;
use abide::remote::{Ask, Event, Events, Http, Trouble};
use abide_kernel::{Rev, Row, RunId, Seq};
use abide_protocol::{JournalRow, Reset};
use serde::de::DeserializeOwned;

use super::Seen;
use crate::failure::{Exit, Failure};
use crate::options::Asked;
use crate::source::server::{Doing, failed};

/// How often in a row a stream is taken up again that tells nothing.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// A stream of a server.
pub(crate) struct ServerTail {
    http: Http,
    asked: Asked,
    run: Option<RunId>,
    events: Option<Events>,
    /// Where to go on.
    last: Option<String>,
    /// The last thing that a step said: a stream that is taken up again repeats it.
    said: u64,
    tries: u32,
}

impl ServerTail {
    pub(super) fn new(http: Http, asked: Asked, run: Option<RunId>) -> Self {
        Self { http, asked, run, events: None, last: None, said: 0, tries: 0 }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Seen>, Failure> {
        loop {
            let told = match &mut self.events {
                None => match self.open().await {
                    Ok(events) => {
                        self.events = Some(events);
                        continue;
                    }
                    Err(trouble) => Err(trouble),
                },
                Some(events) => events.next().await,
            };
            match told {
                Ok(Some(event)) => {
                    self.tries = 0;
                    if let Some(seen) = self.read(event)? {
                        return Ok(Some(seen));
                    }
                }
                // It ends in good order when the server stops, and is taken up again with whoever comes.
                Ok(None) => self.again(Trouble::Unreachable("the stream ended".into())).await?,
                Err(trouble) => self.again(trouble).await?,
            }
        }
    }

    async fn open(&self) -> Result<Events, Trouble> {
        let path = self.run.map_or_else(|| "/events".to_owned(), |run| format!("/runs/{run}/events"));
        self.http.follow(&Ask::get(&path), self.last.as_deref()).await
    }

    async fn again(&mut self, trouble: Trouble) -> Result<(), Failure> {
        let first = self.last.is_none() && self.events.is_none();
        self.events = None;
        self.tries += 1;
        if first || !trouble.may_pass() || self.tries > TRIES_MAX {
            // Of what was being followed nobody knows what became.
            let doing = if first { Doing::Looking } else { Doing::Changing };
            return Err(failed(&self.asked, doing, ClientError::from(trouble)));
        }
        tokio::time::sleep(PAUSE * self.tries).await;
        Ok(())
    }

    /// What an event says; nothing if it is of no concern.
    fn read(&mut self, event: Event) -> Result<Option<Seen>, Failure> {
        self.last = event.id.clone().or_else(|| self.last.take());
        match event.name.as_str() {
            "row" => {
                let JournalRow { rev, seq, at, facts } = self.parse(&event)?;
                let run = self.run.unwrap_or(RunId(0));
                let row = Row { seq: Seq(seq), run, rev: Rev(rev), prior: Seq(0), at: at.0, facts };
                Ok(Some(Seen::Row(Box::new(row))))
            }
            "progress" => {
                let progress: abide_protocol::Progress = self.parse(&event)?;
                let is_new = progress.seq > self.said;
                self.said = self.said.max(progress.seq);
                Ok(is_new.then_some(Seen::Progress(progress)))
            }
            "end" => Ok(Some(Seen::End(Box::new(self.parse(&event)?)))),
            "happened" => Ok(Some(Seen::Happened(self.parse(&event)?))),
            "reset" => {
                let Reset { reason } = self.parse(&event)?;
                Ok(Some(Seen::Reset(reason)))
            }
            // That it follows, or something of a later release.
            _ => Ok(None),
        }
    }

    fn parse<T: DeserializeOwned>(&self, event: &Event) -> Result<T, Failure> {
        serde_json::from_str(&event.data).map_err(|error| {
            let what = format!("{} tells {:?} in another shape: {error}", self.asked.url, event.name);
            Failure::new(Exit::Failure, "not_abide", what)
        })
    }
}
