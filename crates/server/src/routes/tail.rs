//! Tails: what becomes true is told as it does, to whoever holds the connection open. Nobody has a thread, a buffer or a
//! timer that fires without need: a commit wakes those whom it concerns, and they read on at their own pace.

use std::fmt::Write;
use std::time::Duration;

use abide_kernel::{Refusal, RunId, Str};
use abide_protocol::{Ending, Following, Happened, Instant, JournalRow, Progress, Reset, ResetReason};
use abide_runtime::{Cursor, RunMoves, Taken, Trail};
use axum::body::{Body, Bytes};
use axum::http::Response;
use futures_util::stream;
use serde::Serialize;
use tokio::time::Instant as Moment;

use crate::answer::{Answered, Refused, internal, streamed};
use crate::call::{Call, in_time};
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_EVENTS_MAX, CHUNK_ROWS_MAX, KEEP_ALIVE};

/// Says that the stream is alive; readers pass it by.
const ALIVE: &[u8] = b":\n\n";

/// What ends a wait.
enum Woken {
    /// There may be something to tell.
    Moved,
    /// Nothing happened for long.
    Quiet,
    /// The stream is over.
    Over,
}

/// What all streams have in common.
struct Stream {
    call: Call,
    /// When it ends, if that was said.
    until: Option<Moment>,
    over: bool,
}

impl Stream {
    fn new(call: Call) -> Self {
        let until = call.number("for_ms").and_then(|ms| Moment::now().checked_add(Duration::from_millis(ms)));
        Self { call, until, over: false }
    }

    /// Waits for something to tell, and for no longer than it takes to say that there is nothing.
    async fn wait(&self, moved: impl Future<Output = bool>) -> Woken {
        let mut stopping = self.call.stopping.clone();
        let alive = Moment::now() + KEEP_ALIVE;
        let until = self.until.filter(|until| *until < alive);
        tokio::select! {
            biased;
            moved = moved => if moved { Woken::Moved } else { Woken::Over },
            _ = stopping.wait_for(|stops| *stops) => Woken::Over,
            () = tokio::time::sleep_until(until.unwrap_or(alive)) => if until.is_some() { Woken::Over } else { Woken::Quiet },
        }
    }

    /// What is said, unless whoever listens may not any more. To know that takes no more than a look at what is
    /// remembered of their token, so that it is asked each time.
    async fn may_hear(&self, piece: impl Into<Bytes>) -> Option<Bytes> {
        self.call.still_known().await.is_ok().then(|| piece.into())
    }
}

/// Somebody who has something to tell.
trait Tells: Send + 'static {
    /// What is told next, once there is something; nothing at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, Refused>> + Send;
}

/// One event as it is sent.
fn event<T: Serialize>(into: &mut String, id: Option<&str>, name: &str, data: &T) -> Result<(), Refused> {
    let data = serde_json::to_string(data).map_err(|error| internal(&error))?;
    // Writing to memory cannot fail.
    if let Some(id) = id {
        let _ = writeln!(into, "id: {id}");
    }
    let _ = writeln!(into, "event: {name}");
    // Payloads are passed on as they were written, with line ends between their words.
    for line in data.split(['\n', '\r']) {
        let _ = writeln!(into, "data: {line}");
    }
    into.push('\n');
    Ok(())
}

/// Where a reader wants to go on: behind the last event that it got, or where it says.
fn asked(call: &Call) -> Option<&str> {
    call.last_event.as_deref().or_else(|| call.asked("after"))
}

fn invalid(expected: String, found: &str) -> Refused {
    let found = found.chars().take(80).collect();
    Refusal::Invalid { what: "the event to go on after".into(), expected, found }.into()
}

/// A run that is followed.
struct RunTail {
    stream: Stream,
    run: RunId,
    moves: RunMoves,
    /// The last revision that was told.
    told: u64,
    /// Where it is read on.
    trail: Trail,
    /// The last thing that a step said and that was told.
    said: u64,
    /// Whether a reader comes back, so that it must hear of what is missing.
    resumes: bool,
    /// Whether it may have moved since it was read. A stream that only says that it is alive reads nothing.
    stirred: bool,
}

pub(crate) async fn run(call: Call) -> Answered {
    let after = asked(&call).map(str::to_owned);
    let id: RunId = call.id("run")?;
    // Followed before it is looked at: whatever comes between the two is seen twice, not missed.
    let moves = call.engine.follow_run(id);
    let run = call.find(id).await?;
    let told = match &after {
        None => 0,
        Some(text) => {
            let rev =
                text.parse().ok().filter(|rev| *rev <= run.rev.0 && text.bytes().all(|byte| byte.is_ascii_digit()));
            rev.ok_or_else(|| invalid(format!("a revision from 0 to {}", run.rev.0), text))?
        }
    };
    let (stream, trail) = (Stream::new(call), Trail::new(id, told + 1));
    let tail = RunTail { stream, run: id, moves, told, trail, said: 0, resumes: told > 0, stirred: true };
    Ok(sent(tail))
}

impl Tells for RunTail {
    async fn next(&mut self) -> Result<Option<Bytes>, Refused> {
        if self.stream.over {
            return Ok(None);
        }
        loop {
            if self.stirred {
                self.moves.look();
                let text = self.read().await?;
                if !text.is_empty() {
                    return Ok(self.stream.may_hear(text).await);
                }
                self.stirred = false;
            }
            match self.stream.wait(self.moves.moved()).await {
                Woken::Moved => self.stirred = true,
                Woken::Quiet => return Ok(self.stream.may_hear(ALIVE).await),
                Woken::Over => return Ok(None),
            }
        }
    }
}

impl RunTail {
    /// Reads on in the journal, as far as fits into one piece, and up to the end of the run.
    async fn read(&mut self) -> Result<String, Refused> {
        let mut text = String::new();
        let run = self.stream.call.find(self.run).await?;
        if run.rev.0 > self.told {
            let reading = self.stream.call.engine.read_on(&mut self.trail, CHUNK_ROWS_MAX, CHUNK_BYTES_MAX);
            for row in in_time(reading).await?? {
                if row.rev.0 > self.told + 1 && self.resumes {
                    event(&mut text, None, "reset", &Reset { reason: ResetReason::Compacted })?;
                }
                self.resumes = true;
                self.told = row.rev.0;
                let row = JournalRow { rev: row.rev.0, seq: row.seq.0, at: Instant(row.at), facts: row.facts };
                event(&mut text, Some(&row.rev.to_string()), "row", &row)?;
            }
            if self.told < run.rev.0 && !text.is_empty() {
                return Ok(text);
            }
        }
        // Without an id: a reader goes on behind rows, and is told again what is kept of the rest.
        let mut trimmed = run.progress.as_ref().map(|progress| progress.trimmed).filter(|last| *last > self.said);
        for said in run.progress.iter().flat_map(|progress| progress.after(self.said)) {
            // What is not kept any more is missing before the first that is.
            let progress = Progress { trimmed: trimmed.take(), ..Progress::from(said) };
            event(&mut text, None, "progress", &progress)?;
        }
        self.said = self.said.max(run.progress.as_ref().map_or(0, |progress| progress.last()));
        if run.end.is_some() && run.rev.0 <= self.told {
            // It may have begun anew between the two looks.
            let run = self.stream.call.find(self.run).await?;
            if run.end.is_some() && run.rev.0 == self.told {
                event(&mut text, None, "end", &Ending::of(&run))?;
                self.stream.over = true;
            }
        }
        Ok(text)
    }
}

/// A namespace that is followed.
struct Tail {
    stream: Stream,
    following: abide_runtime::Following,
    /// Whether the first thing was said.
    begun: bool,
    /// Whether something was told before, so that whoever misses something was too slow.
    told: bool,
}

pub(crate) async fn namespace(call: Call) -> Answered {
    let after = asked(&call)
        .map(|text| parse(text).ok_or_else(|| invalid("the id of an event of this namespace".into(), text)));
    let namespace: Str = call.namespace();
    let following = call.engine.follow(&namespace, after.transpose()?)?;
    let tail = Tail { stream: Stream::new(call), following, begun: false, told: false };
    Ok(sent(tail))
}

impl Tells for Tail {
    async fn next(&mut self) -> Result<Option<Bytes>, Refused> {
        loop {
            let text = self.read()?;
            if !text.is_empty() {
                return Ok(self.stream.may_hear(text).await);
            }
            match self.stream.wait(self.following.moved()).await {
                Woken::Moved => {}
                Woken::Quiet => return Ok(self.stream.may_hear(ALIVE).await),
                Woken::Over => return Ok(None),
            }
        }
    }
}

impl Tail {
    fn read(&mut self) -> Result<String, Refused> {
        let mut text = String::new();
        let begins = !std::mem::replace(&mut self.begun, true);
        let mut cursor = self.following.cursor();
        match self.following.take(CHUNK_EVENTS_MAX) {
            Taken::Reset => {
                let reason = if self.told { ResetReason::Lagged } else { ResetReason::Gone };
                event(&mut text, Some(&written(self.following.cursor())), "reset", &Reset { reason })?;
            }
            Taken::Events(events) => {
                if begins {
                    event(&mut text, Some(&written(cursor)), "following", &Following {})?;
                }
                for happened in events {
                    cursor.after += 1;
                    event(&mut text, Some(&written(cursor)), "happened", &shown(&happened))?;
                }
            }
        }
        self.told = true;
        Ok(text)
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

fn written(cursor: Cursor) -> String {
    format!("{:016x}-{}", cursor.ring, cursor.after)
}

fn parse(text: &str) -> Option<Cursor> {
    let (ring, after) = text.split_once('-')?;
    let cursor = Cursor { ring: u64::from_str_radix(ring, 16).ok()?, after: after.parse().ok()? };
    // One that is spelled otherwise was not given out by a server.
    (written(cursor) == text).then_some(cursor)
}

/// The answer: whatever there is to tell, for as long as there is something. What fails ends the stream, and the reader
/// comes back to hear why.
fn sent(tail: impl Tells) -> Response<Body> {
    let pieces = stream::unfold(tail, |mut tail| async move {
        let piece = tail.next().await.ok().flatten()?;
        Some((Ok::<_, std::convert::Infallible>(piece), tail))
    });
    streamed(Body::from_stream(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AB-13: an event is one event, however its payload was written.
    #[test]
    fn line_ends_in_payloads_stay_inside_of_their_event() {
        let payload = abide_kernel::Payload::parse("{\"a\":\n\r\n\"b\\nc\"}").unwrap();
        let mut text = String::new();
        event(&mut text, Some("7"), "row", &payload).unwrap();
        assert_eq!(text, "id: 7\nevent: row\ndata: {\"a\":\ndata: \ndata: \ndata: \"b\\nc\"}\n\n");
    }

    #[test]
    fn a_cursor_has_one_text() {
        let cursor = Cursor { ring: 0xab, after: 12 };
        assert_eq!(parse(&written(cursor)), Some(cursor));
        for wrong in [
            "",
            "-",
            "12",
            "00000000000000ab",
            "00000000000000ab-",
            "00000000000000ab-+1",
            "ab-1",
            "00000000000000ag-1",
            "+0000000000000ab-1",
            "00000000000000AB-1",
            "00000000000000ab-01",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
