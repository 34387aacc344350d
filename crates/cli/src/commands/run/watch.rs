//! `abide run watch`: what happens to a run, or to all of a tenant, as it happens.

use std::time::Duration;

use abide_kernel::{Row, Status};
use abide_protocol::{Ending, Happened, Progress, ResetReason};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::history::{Teller, Told as Line, brief, tone_of};
use crate::failure::{Exit, Failure, Outcome};
use crate::input::duration;
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::source::{Seen, Source, Tail};
use crate::text::safe_json;

/// Follow a run, or all runs, and tell what happens as it does.
#[derive(Debug, Args)]
#[command(after_help = "\
It ends when the run ends: with 0 if that went well, else with 4. Without a run it goes on until Ctrl-C, which ends it
with 130. A server and the nodes of a database tell what happens; of a store in a file the changes of the file are heard,
for one run at a time. With -o json or jsonl every event is a line of its own.

Examples:
  abide run watch run_0193f2c4a1b2
  abide --url http://127.0.0.1:7411 -n shop run watch
  abide -o jsonl run watch run_0193f2c4a1b2 | jq -r .words")]
pub(crate) struct Watch {
    /// The run: its id or the beginning of it; without it, all runs of the namespace
    id: Option<String>,
    /// No longer than this; exit 5 then
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
}

impl Watch {
    pub(super) fn perform(self, globals: &Globals) -> Outcome {
        let screen = Screen::new(globals);
        let mut source = <dyn Source>::of(globals)?;
        let run = self.id.as_deref().map(|id| source.find(id)).transpose()?;
        let tail = source.tail(run)?;
        if run.is_none() {
            screen.remark(&format!("following {}; Ctrl-C ends it", source.shown()));
        }
        follow(&screen, tail, Told::Everything, self.timeout)
    }
}

/// What is told of a run that is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Everything,
    /// How it ended, and nothing before.
    End,
}

/// Follows to the end, or until somebody has had enough.
pub(super) fn follow(screen: &Screen, mut tail: Tail, told: Told, timeout: Option<Duration>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut watching = Watching { screen, teller: Teller::default(), told };
    runtime.block_on(async {
        let followed = tokio::select! {
            // Whoever has had enough is heard first, however much there is to tell.
            biased;
            heard = tokio::signal::ctrl_c() => heard.map_err(Failure::from).and(Err(interrupted())),
            () = elapsed(timeout) => Err(late(timeout)),
            followed = watching.follow(&mut tail) => followed,
        };
        tail.end().await;
        followed
    })
}

async fn elapsed(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted", "interrupted; what was followed goes on")
}

fn late(timeout: Option<Duration>) -> Failure {
    let what = format!("it has not ended within {:?}", timeout.unwrap_or_default());
    let hint = "it goes on; abide run explain says what it waits for";
    Failure::new(Exit::Unknown, "timeout", what).hint(hint)
}

struct Watching<'a> {
    screen: &'a Screen,
    teller: Teller,
    told: Told,
}

/// An event for programs.
#[derive(Serialize)]
struct Event<'a, T: Serialize> {
    event: &'a str,
    #[serde(flatten)]
    told: T,
}

impl Watching<'_> {
    async fn follow(&mut self, tail: &mut Tail) -> Outcome {
        while let Some(seen) = tail.next().await? {
            match seen {
                Seen::End(ending) => return self.end(&ending),
                _ if self.told == Told::End => {}
                Seen::Row(row) => self.row(&row)?,
                Seen::Progress(progress) => self.progress(&progress)?,
                Seen::Happened(happened) => self.happened(&happened)?,
                Seen::Reset(reason) => self.reset(reason)?,
            }
        }
        Err(Failure::new(Exit::Unknown, "unknown", "whoever told what happens has stopped"))
    }

    fn event(&self, event: &str, told: impl Serialize) -> Result<(), Failure> {
        self.screen.document(&Event { event, told })
    }

    fn row(&mut self, row: &Row) -> Result<(), Failure> {
        let told: Line<'_> = self.teller.tell(row)?;
        if !self.screen.is_text() {
            return self.event("row", told);
        }
        let (rev, when) = (told.rev.to_string(), self.screen.time(row.at));
        self.screen.cells(&[
            Cell::toned(format!("{rev:>4}"), Tone::Faint),
            Cell::toned(when, Tone::Faint),
            Cell::toned(told.words, tone_of(row)),
        ])
    }

    fn progress(&self, progress: &Progress) -> Result<(), Failure> {
        if !self.screen.is_text() {
            return self.event("progress", progress);
        }
        let words = format!("{} is at {} {}", progress.step, progress.name, brief(&progress.value));
        self.screen.cells(&[
            Cell::toned("   -", Tone::Faint),
            Cell::toned(self.screen.time(progress.at.0), Tone::Faint),
            Cell::toned(words, Tone::Busy),
        ])
    }

    fn happened(&self, happened: &Happened) -> Result<(), Failure> {
        if !self.screen.is_text() {
            return self.event("happened", happened);
        }
        let status = happened.status.map(|status| format!(" as {status}")).unwrap_or_default();
        let tone = match happened.status {
            None => Tone::Plain,
            Some(Status::Done) => Tone::Good,
            Some(_) => Tone::Bad,
        };
        self.screen.cells(&[
            Cell::toned(self.screen.time(happened.at.0), Tone::Faint),
            Cell::toned(self.screen.id(happened.run), Tone::Strong),
            Cell::new(&happened.workflow),
            Cell::toned(format!("{}{status}", happened.facts.join(", ")), tone),
        ])
    }

    fn reset(&mut self, reason: ResetReason) -> Result<(), Failure> {
        self.teller = Teller::default();
        if !self.screen.is_text() {
            return self.event("reset", json!({"reason": reason}));
        }
        self.screen.remark(match reason {
            ResetReason::Gone | ResetReason::Lagged => "more happened than could be told: something is missing here",
            ResetReason::Compacted => "its journal has begun anew since: what was between is not told",
        });
        Ok(())
    }

    fn end(&self, ending: &Ending) -> Outcome {
        let well = ending.status == Status::Done;
        if !self.screen.is_text() {
            let (status, error) = (json!(ending.status), json!(ending.error));
            let result = ending.result.clone().unwrap_or_default();
            let event = if self.told == Told::Everything { r#""event":"end","# } else { "" };
            // By hand, so that the result passes untouched.
            let text = format!(
                r#"{{{event}"run":"{}","status":{status},"result":{},"error":{error}}}"#,
                ending.run,
                result.text()
            );
            self.screen.line(&safe_json(&text))?;
        } else if self.told == Told::End && well {
            self.screen.line(&safe_json(ending.result.clone().unwrap_or_default().text()))?;
        } else if !well || self.told == Told::Everything {
            let why = ending.error.as_ref().map(|error| format!(": {}: {}", error.code, error.message));
            self.screen.remark(&format!("{} ended as {}{}", ending.run, ending.status, why.unwrap_or_default()));
            if !well {
                let look = self.screen.command(&format!("abide run show {}", ending.run));
                self.screen.remark(&format!("look at it: {look}"));
            }
        }
        Ok(if well { Exit::Ok } else { Exit::RunFailed })
    }
}
