//! The events of a stream, as a server tells them (`text/event-stream`).

use std::collections::VecDeque;
use std::time::Duration;

use super::Http;
use super::http::{Ask, Trouble, problem, unreachable};

/// How long a stream may be silent: servers say more often than this that they are alive.
const SILENT_MAX: Duration = Duration::from_secs(90);
/// The most that one event may hold.
const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Something that a stream told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Where to go on after it.
    pub id: Option<String>,
    /// What it is.
    pub name: String,
    /// What it says.
    pub data: String,
}

/// A stream of events.
#[derive(Debug)]
pub struct Events {
    answer: reqwest::Response,
    parser: Parser,
}

impl Http {
    /// Follows a stream, behind the last event that came.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn follow(&self, ask: &Ask<'_>, last: Option<&str>) -> Result<Events, Trouble> {
        let mut request = self.request(ask).header("Accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let silent = |_| Trouble::Unreachable("no answer in time".into());
        let answer = tokio::time::timeout(SILENT_MAX, request.send()).await.map_err(silent)?.map_err(unreachable)?;
        if !answer.status().is_success() {
            return Err(problem(answer).await);
        }
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(Trouble::Nonsense(format!("expected text/event-stream, found {kind:?}")));
        }
        Ok(Events { answer, parser: Parser::default() })
    }
}

impl Events {
    /// The next event; none when the stream has ended. May be given up while it waits.
    ///
    /// # Errors
    /// When the connection broke, or an event has no end.
    pub async fn next(&mut self) -> Result<Option<Event>, Trouble> {
        loop {
            if let Some(event) = self.parser.events.pop_front() {
                return Ok(Some(event));
            }
            let silent = |_| Trouble::Unreachable("the stream fell silent".into());
            match tokio::time::timeout(SILENT_MAX, self.answer.chunk()).await.map_err(silent)?.map_err(unreachable)? {
                Some(piece) => self.parser.read(&piece)?,
                None => return Ok(None),
            }
        }
    }
}

/// Makes events of pieces, wherever they are cut.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    event: Event,
    events: VecDeque<Event>,
}

impl Parser {
    fn read(&mut self, piece: &[u8]) -> Result<(), Trouble> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() + self.event.data.len() > EVENT_BYTES_MAX {
                return Err(Trouble::Nonsense(format!("an event of more than {EVENT_BYTES_MAX} bytes")));
            }
            if self.line.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                self.take(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        if line.is_empty() {
            let mut event = std::mem::take(&mut self.event);
            // Every line of data brought a line end.
            event.data.pop();
            if !event.name.is_empty() {
                self.events.push_back(event);
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            // A remark, or something of a later release.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_the_stream_is_cut() {
        let text = "id: 7\nevent: row\ndata: {\"a\":\ndata: \"é\"}\n\n:\n\nevent: end\r\ndata: {}\r\n\r\n";
        let row = Event { id: Some("7".into()), name: "row".into(), data: "{\"a\":\n\"é\"}".into() };
        let end = Event { id: None, name: "end".into(), data: "{}".into() };
        for at in 0..text.len() {
            let mut parser = Parser::default();
            parser.read(&text.as_bytes()[..at]).unwrap();
            parser.read(&text.as_bytes()[at..]).unwrap();
            assert_eq!(Vec::from(parser.events), [row.clone(), end.clone()], "{at}");
        }
    }
}
