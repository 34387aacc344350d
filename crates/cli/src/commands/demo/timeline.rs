//! The life of one order, drawn from its journal and those of its children: when it worked, failed, waited, and was
//! killed.

use std::path::Path;

use abide_kernel::{Fact, Meta, Phase, Row, Run, RunId, Timestamp};
use abide_runtime::Snapshot;
use abide_store::sqlite::open_read_only;

use super::machines::Item;
use super::story::{Kill, Story};
use crate::failure::Failure;
use crate::screen::{Screen, Tone};

const LABEL_COLUMNS: usize = 16;
const CHART_COLUMNS_MAX: usize = 96;

/// What a run did for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Worked,
    Lost,
    Failed,
    Waited,
}

struct Bar {
    from: Timestamp,
    to: Timestamp,
    doing: Doing,
}

struct Lane {
    label: String,
    bars: Vec<Bar>,
}

pub(super) fn draw(screen: &Screen, dir: &Path, story: &Story) -> Result<(), Failure> {
    let mut snapshot = Snapshot::read(Box::new(open_read_only(&dir.join(super::STORE))?))?;
    let mut best: Option<(usize, String, Run)> = None;
    for order in &story.orders {
        let Some(stored) = order.run.map(|run| snapshot.show(run)).transpose()?.flatten() else {
            continue;
        };
        let struck = story.kills.iter().filter(|kill| lived(&stored.run, kill)).count();
        if best.as_ref().is_none_or(|(most, ..)| struck > *most) {
            best = Some((struck, order.name.clone(), stored.run));
        }
    }
    let Some((struck, name, run)) = best else {
        return Ok(());
    };
    let lanes = lanes_of(&mut snapshot, &run, &story.kills)?;
    let end = run.end.as_ref().map_or(run.updated_at, |end| end.at);
    let chart = Chart {
        screen,
        from: run.created_at,
        to: end.max(run.created_at.after(1)),
        columns: screen.columns().saturating_sub(LABEL_COLUMNS + 4).clamp(20, CHART_COLUMNS_MAX),
    };
    screen.line("")?;
    let took = end.since(run.created_at) as f64 / 1000.0;
    let title = format!("{name}, {took:.2} s from start to end, {struck} kills on the way");
    screen.line(&format!("  {}", screen.paint(Tone::Strong, &title)))?;
    screen.line("")?;
    for lane in &lanes {
        chart.lane(lane, &story.kills)?;
    }
    chart.foot(&story.kills)
}

fn lived(run: &Run, kill: &Kill) -> bool {
    let end = run.end.as_ref().map_or(run.updated_at, |end| end.at);
    run.created_at <= kill.at && kill.at <= end
}

/// One lane per step of the order, with its children's lanes where they began.
fn lanes_of(snapshot: &mut Snapshot, run: &Run, kills: &[Kill]) -> Result<Vec<Lane>, Failure> {
    let mut lanes = Vec::new();
    let children: Vec<RunId> = run.children.iter().map(|child| child.id).collect();
    for id in std::iter::once(run.id).chain(children) {
        let rows = snapshot.journal(id, 0)?.unwrap_or_default();
        let prefix = rows.first().and_then(|row| match row.facts.first() {
            Some(Fact::Started(started)) if id != run.id => started.spec.input.decode::<Item>().ok(),
            _ => None,
        });
        for (step, bar) in bars(&rows, kills) {
            let label = prefix.as_ref().map_or_else(|| step.clone(), |item| format!("  {step} {}", item.item));
            match lanes.iter_mut().find(|lane: &&mut Lane| lane.label == label) {
                Some(lane) => lane.bars.push(bar),
                None => lanes.push(Lane { label, bars: vec![bar] }),
            }
        }
    }
    lanes.sort_by_key(|lane| lane.bars.iter().map(|bar| bar.from).min());
    Ok(lanes)
}

/// What a run did, by step, read from its journal.
fn bars(rows: &[Row], kills: &[Kill]) -> Vec<(String, Bar)> {
    let mut bars = Vec::new();
    let mut since: Option<(String, Timestamp)> = None;
    let mut run: Option<Run> = None;
    for row in rows {
        let meta = Meta { seq: row.seq, at: row.at };
        for fact in &row.facts {
            let ends = match fact {
                Fact::Completed(_) => Some(Doing::Worked),
                Fact::Failed(_) => Some(Doing::Failed),
                Fact::Expired(_) => Some(Doing::Lost),
                Fact::Woken(_) => Some(Doing::Waited),
                _ => None,
            };
            if let (Some(doing), Some((step, from))) = (ends, since.take_if(|_| ends.is_some())) {
                // The loss is recorded when the store is opened again; the work ended with the process.
                let died = kills.iter().map(|kill| kill.at).find(|at| *at >= from && *at <= row.at);
                let to = died.filter(|_| doing == Doing::Lost).unwrap_or(row.at);
                bars.push((step, Bar { from, to, doing }));
            }
            match &mut run {
                Some(run) => run.apply(fact, meta),
                None => run = Run::begin(row).ok(),
            }
            let cursor = run.as_ref().and_then(|run| run.cursors.first());
            let Some((step, phase)) = cursor.and_then(|cursor| Some((cursor.step.as_ref()?, &cursor.phase))) else {
                continue;
            };
            match phase {
                // A wait belongs to the step that asked for it.
                Phase::Claimed(_) | Phase::Waiting(_) if since.is_none() => {
                    since = Some((step.to_string(), row.at));
                }
                _ => {}
            }
        }
    }
    bars
}

struct Chart<'a> {
    screen: &'a Screen,
    from: Timestamp,
    to: Timestamp,
    columns: usize,
}

impl Chart<'_> {
    fn column(&self, at: Timestamp) -> usize {
        let whole = self.to.since(self.from).max(1);
        let part = at.since(self.from).min(whole);
        (part * (self.columns as u64 - 1) / whole) as usize
    }

    fn lane(&self, lane: &Lane, kills: &[Kill]) -> Result<(), Failure> {
        let mut cells: Vec<(char, Tone)> = vec![(' ', Tone::Plain); self.columns];
        for kill in self.visible(kills) {
            cells[self.column(kill.at)] = ('┊', Tone::Bad);
        }
        for bar in &lane.bars {
            let (from, to) = (self.column(bar.from), self.column(bar.to));
            let cell = match bar.doing {
                Doing::Worked => ('█', Tone::Good),
                Doing::Lost => ('▒', Tone::Bad),
                Doing::Failed => ('█', Tone::Waiting),
                Doing::Waited => ('─', Tone::Faint),
            };
            for place in &mut cells[from..=to] {
                let struck = place.0 == '┊' && bar.doing == Doing::Waited;
                *place = if struck { ('┼', Tone::Bad) } else { cell };
            }
            match bar.doing {
                Doing::Failed => cells[to] = ('✗', Tone::Waiting),
                Doing::Lost => cells[to] = ('✂', Tone::Bad),
                Doing::Worked | Doing::Waited => {}
            }
        }
        let mut drawn = String::new();
        // Runs of one tone are painted in one piece, or a line would be mostly colour codes.
        for piece in cells.chunk_by(|one, other| one.1 == other.1) {
            let text: String = piece.iter().map(|(sign, _)| sign).collect();
            drawn.push_str(&self.screen.paint(piece[0].1, &text));
        }
        let label = crate::text::cut(&lane.label, LABEL_COLUMNS).into_owned();
        self.screen.line(&format!("  {label:LABEL_COLUMNS$}{drawn}"))
    }

    /// Kills that fall into the order's life, with those that share a column drawn once.
    fn visible<'k>(&self, kills: &'k [Kill]) -> impl Iterator<Item = &'k Kill> {
        let (from, to) = (self.from, self.to);
        kills.iter().filter(move |kill| from <= kill.at && kill.at <= to)
    }

    fn foot(&self, kills: &[Kill]) -> Result<(), Failure> {
        let mut marks = vec![' '; self.columns + 3];
        for (number, kill) in (1..).zip(kills).filter(|(_, kill)| self.from <= kill.at && kill.at <= self.to) {
            let text = number.to_string();
            let start = self.column(kill.at);
            // Two kills that fall together stand side by side.
            let free = (start..marks.len()).find(|column| marks[*column] == ' ').unwrap_or(start);
            for (offset, sign) in text.chars().enumerate() {
                if let Some(mark) = marks.get_mut(free + offset) {
                    *mark = sign;
                }
            }
        }
        let marks: String = marks.into_iter().collect();
        let line = format!("  {:LABEL_COLUMNS$}{}", "kill", self.screen.paint(Tone::Bad, marks.trim_end()));
        self.screen.line(&line)?;
        let whole = self.to.since(self.from);
        let end = format!("{:.2}s", whole as f64 / 1000.0);
        let gap = self.columns.saturating_sub(2 + end.len());
        let axis = format!("  {:LABEL_COLUMNS$}0s{:gap$}{end}", "", "");
        self.screen.line(&self.screen.paint(Tone::Faint, &axis))?;
        self.screen.line("")?;
        let legend = [
            (Tone::Good, "█ worked"),
            (Tone::Waiting, "█✗ failed, tried again"),
            (Tone::Bad, "▒✂ died with the process, ran again"),
            (Tone::Faint, "─ waited"),
        ];
        let legend: Vec<String> = legend.iter().map(|(tone, text)| self.screen.paint(*tone, text)).collect();
        self.screen.line(&format!("  {}", legend.join("   ")))
    }
}
