//! The screen: data on standard output, as a table, as tab-separated lines or as JSON; the rest on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use abide_kernel::{RunId, Status, Timestamp};
use anstyle::{AnsiColor, Style};
use comfy_table::{Attribute, Color, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::failure::Failure;
use crate::options::{Colour, Format, Globals, TimeStyle};
use crate::text::{clean, iso, relative, safe_json};

/// How a word is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Faint,
    Good,
    Busy,
    Waiting,
    Bad,
}

/// A piece of text in an answer, cleaned of what a terminal would obey.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self::toned(text, Tone::Plain)
    }

    pub(crate) fn toned(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: clean(text.as_ref()).into_owned(), tone }
    }

    pub(crate) fn status(status: Status) -> Self {
        Self::toned(status.name(), tone_of(status))
    }
}

/// The tone of a status.
pub(crate) fn tone_of(status: Status) -> Tone {
    match status {
        Status::Done => Tone::Good,
        Status::Failed | Status::DeadLettered | Status::InDoubt => Tone::Bad,
        Status::Cancelled => Tone::Faint,
        Status::Executing | Status::Runnable => Tone::Busy,
        Status::AwaitingSignal | Status::Sleeping | Status::AwaitingChildren | Status::AwaitingDecision => {
            Tone::Waiting
        }
    }
}

/// Where answers go, and how they look there.
pub(crate) struct Screen {
    format: Format,
    terminal: bool,
    coloured: bool,
    times: TimeStyle,
    now: Timestamp,
    asks: String,
}

impl Screen {
    pub(crate) fn new(globals: &Globals) -> Self {
        let terminal = io::stdout().is_terminal();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let usual = if terminal { TimeStyle::Relative } else { TimeStyle::Iso };
        Self {
            format: globals.output,
            terminal,
            coloured: is_coloured(globals.color, terminal),
            times: globals.time.unwrap_or(usual),
            now: Timestamp(wall.as_millis() as i64),
            asks: globals.asks.clone(),
        }
    }

    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// An instant as the caller wants it.
    pub(crate) fn time(&self, at: Timestamp) -> String {
        match self.times {
            TimeStyle::Relative => relative(at, self.now),
            TimeStyle::Iso => iso(at),
        }
    }

    /// A run's id: on a terminal a prefix that is long enough to find it, else in full.
    pub(crate) fn id(&self, run: RunId) -> String {
        let full = run.to_string();
        if self.terminal && self.is_text() { full[..SHORT_ID].to_owned() } else { full }
    }

    /// A line to copy, with the options that said whom to ask this time.
    pub(crate) fn command(&self, line: &str) -> String {
        match line.strip_prefix("abide ") {
            Some(rest) => format!("abide {}{rest}", self.asks),
            None => line.to_owned(),
        }
    }

    /// Text in its tone. It must be clean already.
    pub(crate) fn paint(&self, tone: Tone, text: &str) -> String {
        let style = style(tone);
        if self.coloured { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// Rows under heads on a terminal, tab-separated lines without heads otherwise.
    pub(crate) fn table(&self, heads: &[&str], rows: Vec<Vec<Cell>>) -> Result<(), Failure> {
        if !self.terminal {
            let mut out = io::stdout().lock();
            for row in rows {
                let texts: Vec<String> = row.into_iter().map(|cell| cell.text).collect();
                writeln!(out, "{}", texts.join("\t"))?;
            }
            return Ok(());
        }
        let mut out = io::stdout().lock();
        for line in arranged(heads, rows, self.coloured, self.width()).lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// One thing's fields, a line each.
    pub(crate) fn fields(&self, fields: &[(&str, Cell)]) -> Result<(), Failure> {
        let widest = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = io::stdout().lock();
        for (name, cell) in fields {
            if self.terminal {
                let name = self.paint(Tone::Faint, &format!("{name:widest$}"));
                writeln!(out, "{name}  {}", self.paint(cell.tone, &cell.text))?;
            } else {
                writeln!(out, "{name}\t{}", cell.text)?;
            }
        }
        Ok(())
    }

    /// One row at once, for what has no end: tab-separated, and spaced on a terminal.
    pub(crate) fn cells(&self, cells: &[Cell]) -> Result<(), Failure> {
        let between = if self.terminal { "  " } else { "\t" };
        let texts: Vec<String> = cells.iter().map(|cell| self.paint(cell.tone, cell.text.trim_start())).collect();
        let mut out = io::stdout().lock();
        writeln!(out, "{}", texts.join(between))?;
        out.flush()?;
        Ok(())
    }

    /// A line of text as data. It must be clean already.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        writeln!(io::stdout().lock(), "{text}")?;
        Ok(())
    }

    /// One JSON document.
    pub(crate) fn document<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::new(crate::failure::Exit::Failure, "unencodable", error.to_string()))?;
        self.line(&safe_json(&text))
    }

    /// Several things: one document that holds them under their name, or a line each.
    pub(crate) fn documents<T: Serialize>(&self, name: &str, values: &[T]) -> Result<(), Failure> {
        if self.format == Format::Jsonl {
            return values.iter().try_for_each(|value| self.document(value));
        }
        self.document(&std::collections::BTreeMap::from([(name, values)]))
    }

    /// A remark that is not part of the answer.
    pub(crate) fn remark(&self, text: &str) {
        if self.is_text() {
            eprintln!("{}", clean(text));
        }
    }

    /// What whoever runs a server must learn, in whatever form it answers.
    pub(crate) fn notice(&self, text: &str) {
        eprintln!("{}", clean(text));
    }

    /// How wide it is.
    pub(crate) fn columns(&self) -> usize {
        usize::from(self.width())
    }

    fn width(&self) -> u16 {
        wide(std::env::var("COLUMNS").ok().as_deref(), Table::new().width())
    }
}

/// How wide a terminal is, by what the environment says and what it says itself. Some say 0, and mean that they do not know.
fn wide(columns: Option<&str>, reported: Option<u16>) -> u16 {
    let said = columns.and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    said.or(reported.filter(|columns| *columns > 0)).unwrap_or(100)
}

/// Rows under heads, so wide at most.
fn arranged(heads: &[&str], rows: Vec<Vec<Cell>>, coloured: bool, width: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width);
    if coloured {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(heads.iter().map(|head| comfy_table::Cell::new(head).add_attribute(Attribute::Dim)));
    for row in rows {
        table.add_row(row.into_iter().map(comfy_cell));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// How much of an id is shown on a terminal: beyond the shared time and slot, 28 bits of its own.
const SHORT_ID: usize = 4 + 22;

fn is_coloured(choice: Colour, terminal: bool) -> bool {
    match choice {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
            let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
            terminal && !dumb && !set("NO_COLOR")
        }
    }
}

fn style(tone: Tone) -> Style {
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    match tone {
        Tone::Plain => Style::new(),
        Tone::Strong => Style::new().bold(),
        Tone::Faint => Style::new().dimmed(),
        Tone::Good => colour(AnsiColor::Green),
        Tone::Busy => colour(AnsiColor::Cyan),
        Tone::Waiting => colour(AnsiColor::Yellow),
        Tone::Bad => colour(AnsiColor::Red),
    }
}

fn comfy_cell(cell: Cell) -> comfy_table::Cell {
    let plain = comfy_table::Cell::new(cell.text);
    match cell.tone {
        Tone::Plain => plain,
        Tone::Strong => plain.add_attribute(Attribute::Bold),
        Tone::Faint => plain.add_attribute(Attribute::Dim),
        Tone::Good => plain.fg(Color::DarkGreen),
        Tone::Busy => plain.fg(Color::DarkCyan),
        Tone::Waiting => plain.fg(Color::DarkYellow),
        Tone::Bad => plain.fg(Color::DarkRed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terminals of containers and of some editors report no columns: a table was one letter per line.
    #[test]
    fn a_terminal_that_reports_no_width_is_as_wide_as_any() {
        assert_eq!((wide(None, Some(0)), wide(Some("0"), None), wide(Some("wide"), Some(0))), (100, 100, 100));
        assert_eq!((wide(Some("60"), Some(0)), wide(Some("60"), Some(80)), wide(Some("0"), Some(80))), (60, 60, 80));
    }

    #[test]
    fn a_table_is_as_wide_as_it_is_told_coloured_or_not() {
        for coloured in [false, true] {
            let row = || vec![Cell::new("greetings of a workflow"), Cell::new("waits for somebody to answer")];
            let lines = |width| arranged(&["WORKFLOW", "STATUS"], vec![row()], coloured, width).lines().count();
            assert_eq!((lines(100), lines(30) > 2), (2, true), "coloured: {coloured}");
        }
    }
}
