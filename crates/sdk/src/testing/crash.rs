//! Crash everywhere: a workflow is killed before and after each of its durable points, and must come out the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_kernel::{Choice, EffectView, Fact, OpId, OpState, Payload, Row, RunId, Standing, Status};
use abide_runtime::Program;
use serde::Serialize;

use super::people::{Said, answers};
use super::report::{CrashPoint, CrashReport, Held, Repeated, Side, Violation};
use super::run::Message;
use super::script::Called;
use super::{TestEngine, TestRun};
use crate::{StepError, Workflow};

/// Durable points after which a workflow is given up as one without end.
const POINTS_MAX: usize = 10_000;

type Make = Box<dyn Fn() -> Arc<dyn Program>>;
type Check = Box<dyn Fn() -> Result<(), String>>;

/// Kills a workflow before and after each of its durable points, on a store of its own each time, opens the store
/// again, and looks at what came of it.
///
/// `make` is called for every life of the world: whatever stands for the outside may be made anew in it.
///
/// ```
/// use abide::testing::crash_everywhere;
/// use abide::{Failure, FnCtx, Function, StepError};
///
/// let greet = || Function::new("greet", async |ctx: FnCtx, name: String| {
///     let mail: String = ctx.effect("mail", async |_| Ok::<_, StepError>("sent".to_owned())).await?;
///     Ok::<_, Failure>(format!("{name}: {mail}"))
/// });
/// let report = crash_everywhere(greet, "Ada").run();
/// report.assert_ok();
/// // A mail that is lost with its worker is sent again, which is what its policy says.
/// assert_eq!(report.repeated[0].effect, "mail");
/// ```
pub fn crash_everywhere<W: Workflow, I: Serialize + ?Sized>(
    make: impl Fn() -> W + 'static,
    input: &I,
) -> CrashEverywhere {
    CrashEverywhere {
        make: program_of(make),
        others: Vec::new(),
        input: Payload::encode(input).expect("the input of a workflow has a JSON form"),
        messages: Vec::new(),
        operations: Vec::new(),
        resolutions: Vec::new(),
        people: Vec::new(),
        once: Vec::new(),
        undone: Vec::new(),
        check: None,
        compares_results: true,
    }
}

fn program_of<W: Workflow>(make: impl Fn() -> W + 'static) -> Make {
    Box::new(move || make().into_program().unwrap_or_else(|(workflow, problem)| panic!("{workflow}: {problem}")))
}

/// A workflow that is about to be killed everywhere.
#[must_use = "nothing is killed before run()"]
pub struct CrashEverywhere {
    make: Make,
    others: Vec<Make>,
    input: Payload,
    messages: Vec<(Message, Payload)>,
    operations: Vec<(String, Result<Payload, StepError>)>,
    resolutions: Vec<(String, Payload)>,
    people: Vec<(String, Said)>,
    once: Vec<String>,
    undone: Vec<(String, String)>,
    check: Option<Check>,
    compares_results: bool,
}

/// What came of one life of the world.
struct Life {
    ending: Ending,
    why: String,
    /// Whether a run, or a child of it, is in doubt about an effect.
    in_doubt: bool,
    called: BTreeMap<String, Called>,
    /// What the run had durably when it was killed, if it was.
    durable: Option<usize>,
    journal: Vec<Row>,
    check: Result<(), String>,
    /// What was to undo something, and has not.
    not_undone: Vec<String>,
}

/// What a test gives to a run that waits.
enum Wanted<'a> {
    /// The signal or update at this place.
    Message(usize),
    /// The result of this effect.
    Resolution(String, &'a Payload),
    /// What somebody says at the boundary of this name.
    Decision(&'a str, &'a Said),
}

#[derive(Clone, PartialEq)]
struct Ending {
    status: Status,
    told: String,
}

impl CrashEverywhere {
    /// Another workflow that takes part, such as a child.
    pub fn with<W: Workflow>(mut self, make: impl Fn() -> W + 'static) -> Self {
        self.others.push(program_of(make));
        self
    }

    /// Sends a signal when the run waits for it. Several are sent in the order given.
    ///
    /// # Panics
    /// When the payload has no JSON form.
    pub fn signal<P: Serialize + ?Sized>(mut self, name: &str, payload: &P) -> Self {
        let payload = Payload::encode(payload).expect("the payload of a signal has a JSON form");
        self.messages.push((Message::Signal(name.into()), payload));
        self
    }

    /// Asks the run for an update when it waits for it. Signals and updates go in the order given.
    ///
    /// # Panics
    /// When the input has no JSON form.
    pub fn update<I: Serialize + ?Sized>(mut self, name: &str, input: &I) -> Self {
        let input = Payload::encode(input).expect("the input of an update has a JSON form");
        self.messages.push((Message::Update(name.into()), input));
        self
    }

    /// An effect of this name returns this, and its own code is not called.
    ///
    /// # Panics
    /// When the value has no JSON form.
    pub fn returns<T: Serialize + ?Sized>(mut self, effect: &str, value: &T) -> Self {
        let value = Payload::encode(value).expect("what an operation returns has a JSON form");
        self.operations.push((effect.into(), Ok(value)));
        self
    }

    /// An effect of this name fails, and its own code is not called.
    pub fn fails(mut self, effect: &str, error: StepError) -> Self {
        self.operations.push((effect.into(), Err(error)));
        self
    }

    /// Whenever an effect of this name is in doubt, somebody finds out that it took place, with this result. Without
    /// this the run stops there, and the report says so.
    ///
    /// # Panics
    /// When the value has no JSON form.
    pub fn resolves<T: Serialize + ?Sized>(mut self, effect: &str, value: &T) -> Self {
        let value = Payload::encode(value).expect("what an effect returned has a JSON form");
        self.resolutions.push((effect.into(), value));
        self
    }

    /// Whenever the run asks for an approval of this name, or has an effect of this name reviewed, this person approves. They
    /// act in every role that is asked for.
    pub fn approves(self, name: &str, actor: &str) -> Self {
        self.says(name, Said::new(Choice::Approve, actor))
    }

    /// Whenever the run asks for it, this person rejects, and says why.
    pub fn rejects(self, name: &str, actor: &str, note: &str) -> Self {
        self.says(name, Said::new(Choice::Reject, actor).note(note))
    }

    /// Whenever the run pauses under this name, this person lets it go on.
    pub fn resumes(self, name: &str, actor: &str) -> Self {
        self.says(name, Said::new(Choice::Resume, actor))
    }

    /// Whenever the run asks for the task of this name, this person hands in this result.
    ///
    /// # Panics
    /// When the result has no JSON form.
    pub fn completes<T: Serialize + ?Sized>(self, name: &str, actor: &str, result: &T) -> Self {
        self.says(name, Said::new(Choice::Complete, actor).payload(result))
    }

    fn says(mut self, name: &str, said: Said) -> Self {
        self.people.push((name.into(), said));
        self
    }

    /// An effect of this name must not be executed more often than when nothing is killed, whatever its policy says: the
    /// other side does not recognise a repetition.
    pub fn once(mut self, effect: &str) -> Self {
        self.once.push(effect.into());
        self
    }

    /// When the run does not end well after `effect`, then `undo` must have run. What is registered with `ctx.undo` is
    /// looked after without this.
    pub fn undone_by(mut self, effect: &str, undo: &str) -> Self {
        self.undone.push((effect.into(), undo.into()));
        self
    }

    /// Asked after every life of the world whether it is as it should be.
    pub fn check(mut self, check: impl Fn() -> Result<(), String> + 'static) -> Self {
        self.check = Some(Box::new(check));
        self
    }

    /// Lets the result be another one after a crash. Without this it must be the same.
    pub fn any_result(mut self) -> Self {
        self.compares_results = false;
        self
    }

    /// Kills the workflow everywhere.
    ///
    /// # Panics
    /// When the workflow does not come to an end when nothing is killed.
    pub fn run(self) -> CrashReport {
        let workflow = (self.make)().definition().workflow.to_string();
        let undisturbed = self.live(&workflow, None);
        let mut report = CrashReport {
            workflow: workflow.clone(),
            points: 0,
            crashes: 0,
            undisturbed: undisturbed.ending.told.clone(),
            repeated: Vec::new(),
            held: Vec::new(),
            violations: Vec::new(),
        };
        assert!(
            undisturbed.ending.status.is_terminal(),
            "{workflow} does not end when nothing is killed: {}",
            undisturbed.why
        );
        self.judge_world(None, &undisturbed, &mut report);
        for point in 0..POINTS_MAX {
            for side in [Side::Before, Side::After] {
                let life = self.live(&workflow, Some((point, side)));
                let Some(durable) = life.durable else {
                    continue;
                };
                report.crashes += 1;
                report.points = point + 1;
                let what = written(&undisturbed.journal, durable, side);
                self.judge(&CrashPoint { number: point + 1, side, what }, &undisturbed, &life, &mut report);
            }
            if report.points <= point {
                break;
            }
        }
        let (once, repeated) = (&self.once, &report.repeated);
        let forbidden = |repeated: &&Repeated| {
            !repeated.policy.replay_safe() || once.iter().any(|name| named(&repeated.effect, name))
        };
        let twice: Vec<Violation> = repeated.iter().filter(forbidden).cloned().map(Violation::Twice).collect();
        report.violations.splice(0..0, twice);
        report
    }

    /// One life of the world, with at most one crash in it.
    fn live(&self, workflow: &str, crash: Option<(usize, Side)>) -> Life {
        let engine = TestEngine::new();
        for make in std::iter::once(&self.make).chain(&self.others) {
            engine.add(make());
        }
        for (name, answer) in &self.operations {
            let operation = engine.operation(name);
            match answer {
                Ok(value) => operation.returns(value),
                Err(error) => operation.fails(error.clone()),
            };
        }
        if let Some((point, side)) = crash {
            engine.crash_at_append(point, side);
            // Both ways to recover are walked: by checkpoints, and by the journal alone.
            if point % 2 == 1 {
                engine.lose_checkpoints_with_crashes();
            }
        }
        let run = engine.start(workflow, &self.input);
        self.play(&engine, &run);
        let shown = run.show();
        let ending = self.ending(&shown);
        let why = if ending.status.is_terminal() { String::new() } else { run.why() };
        let durable = engine.crashes().first().map(|rows| rows_of(rows, run.id()));
        let called = engine.script().called();
        let check = self.check.as_ref().map_or(Ok(()), |check| check());
        let undone = |view: &EffectView| matches!(view.standing, Standing::Committed | Standing::Compensated);
        // What would undo something of an old life is forgotten.
        let kept = shown.ops().filter(|(_, op)| !matches!(op.state, OpState::Elapsed { .. }));
        let effects = kept.filter_map(|(id, _)| shown.effect_view(id));
        let not_undone = effects.filter(|view| view.undo && !undone(view)).map(|view| view.key.to_string());
        let not_undone = not_undone.collect();
        let in_doubt = engine.has_any(Status::InDoubt);
        Life { ending, why, in_doubt, called, durable, journal: run.journal(), check, not_undone }
    }

    /// Lets the run go on until it has ended or nothing more can happen, and gives it what it waits for.
    fn play(&self, engine: &TestEngine, run: &TestRun) {
        let mut messages: Vec<&(Message, Payload)> = self.messages.iter().collect();
        loop {
            let stopped = engine.run_until(|| run.has_ended() || self.wanted(run, &messages).is_some());
            match self.wanted(run, &messages).filter(|_| stopped && !run.has_ended()) {
                Some(Wanted::Message(index)) => match messages.remove(index) {
                    (Message::Signal(name), payload) => run.send(name, payload),
                    (Message::Update(name), input) => run.request(name, input),
                },
                Some(Wanted::Resolution(key, value)) => {
                    run.resolve(&key, value);
                }
                Some(Wanted::Decision(name, said)) => {
                    run.answer(name, said);
                }
                None => return,
            }
        }
    }

    /// What the run waits for, and the test has.
    fn wanted(&self, run: &TestRun, messages: &[&(Message, Payload)]) -> Option<Wanted<'_>> {
        let awaited = run.awaited();
        if let Some(index) = messages.iter().position(|(message, _)| awaited.contains(message)) {
            return Some(Wanted::Message(index));
        }
        if let Some(asked) = run.asks()
            && let Some((name, said)) = self.people.iter().find(|(name, said)| answers(&asked, name, said))
        {
            return Some(Wanted::Decision(name, said));
        }
        let doubted = run.effects().into_iter().filter(|effect| effect.standing == Standing::InDoubt);
        doubted.map(|effect| effect.key).find_map(|key| {
            let found = self.resolutions.iter().find(|(name, _)| named(&key, name));
            found.map(|(_, value)| Wanted::Resolution(key.to_string(), value))
        })
    }

    fn ending(&self, run: &abide_kernel::Run) -> Ending {
        let status = run.status();
        let told = match (status, &run.result, &run.last_error) {
            (Status::Done, Some(result), _) if self.compares_results => format!("{status} with {}", result.text()),
            (Status::Failed | Status::Cancelled, _, Some(error)) => format!("{status}: {error}"),
            _ => status.to_string(),
        };
        Ending { status, told }
    }

    fn judge(&self, at: &CrashPoint, undisturbed: &Life, life: &Life, report: &mut CrashReport) {
        for (identity, called) in &life.called {
            let usual = undisturbed.called.get(identity).map_or(1, |called| called.times);
            if called.times > usual {
                note(&mut report.repeated, called, at);
            }
        }
        if life.in_doubt {
            report.held.push(Held { at: at.clone(), why: life.why.clone() });
        } else if life.ending != undisturbed.ending {
            let found = match life.why.is_empty() {
                true => life.ending.told.clone(),
                false => format!("{}, because {}", life.ending.told, life.why),
            };
            let (at, expected) = (at.clone(), undisturbed.ending.told.clone());
            report.violations.push(Violation::EndedOtherwise { at, expected, found });
        }
        self.judge_world(Some(at), life, report);
    }

    /// What does not depend on how it goes when nothing is killed.
    fn judge_world(&self, at: Option<&CrashPoint>, life: &Life, report: &mut CrashReport) {
        let ran = |name: &str| life.called.values().any(|called| named(&called.key, name));
        if life.ending.status.is_terminal() && life.ending.status != Status::Done {
            let forgotten = self.undone.iter().filter(|(effect, undo)| ran(effect) && !ran(undo));
            for undo in forgotten.map(|(_, undo)| undo).chain(&life.not_undone) {
                report.violations.push(Violation::NotUndone { at: at.cloned(), undo: undo.clone() });
            }
        }
        if let Err(found) = &life.check {
            report.violations.push(Violation::Check { at: at.cloned(), found: found.clone() });
        }
    }
}

fn note(repeated: &mut Vec<Repeated>, called: &Called, at: &CrashPoint) {
    match repeated.iter_mut().find(|known| known.effect == called.key) {
        Some(known) => {
            known.times = known.times.max(called.times);
            known.at.push(at.clone());
        }
        None => repeated.push(Repeated {
            effect: called.key.clone(),
            policy: called.policy,
            times: called.times,
            at: vec![at.clone()],
        }),
    }
}

/// Whether a key is of this name: the name alone, or one of several.
fn named(key: &str, name: &str) -> bool {
    key == name || key.split('#').next() == Some(name)
}

fn rows_of(rows: &[Row], run: RunId) -> usize {
    rows.iter().filter(|row| row.run == run).count()
}

/// What the append wrote at which the run was killed, by the journal of the run that nobody killed.
fn written(journal: &[Row], durable: usize, side: Side) -> String {
    let row = match side {
        Side::Before => journal.get(durable),
        Side::After => journal.get(durable.saturating_sub(1)),
    };
    let said = |fact: &Fact| match fact {
        Fact::Intended(intended) => format!("intended {}", intended.key),
        Fact::Resulted(resulted) => format!("resulted {}", key_of(journal, resulted.op)),
        other => other.kind().to_owned(),
    };
    row.map_or_else(|| "its end".to_owned(), |row| row.facts.iter().map(said).collect::<Vec<_>>().join(", "))
}

/// The key of an entry of the ledger.
fn key_of(journal: &[Row], op: OpId) -> &str {
    let facts = journal.iter().flat_map(|row| &row.facts);
    let mut keys = facts.filter_map(|fact| match fact {
        Fact::Intended(intended) if intended.op == op => Some(&*intended.key),
        _ => None,
    });
    keys.next().unwrap_or_default()
}
