//! The script language of transcripts: one command per line, words apart by blanks, options as `name=value`.

use std::collections::BTreeMap;
use std::sync::Arc;

use abide_kernel::shard::{Command, Output, Told};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::signal::Sent;
use abide_kernel::transition::update::Requesting;
use abide_kernel::{
    ChildSpec, ClaimId, Concurrency, Consume, ErrorInfo, Join, Moment, OnConflict, Outcome, Payload, PlannedStep,
    Reply, RequestId, RetryPolicy, RunId, Scheduled, StartSpec, Status, StatusSet, Str, Timestamp, TokenHash,
    UniqueKey,
};

use super::text::Aliases;
use super::{BASE, Crash, Hand, World, check, definition, token};

/// One line: the words in order, and the options.
struct Line<'a> {
    words: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Self {
        let mut line = Self { words: Vec::new(), options: BTreeMap::new() };
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some((name, value)) if name.chars().all(char::is_alphabetic) => {
                    line.options.insert(name, value);
                }
                _ => line.words.push(word),
            }
        }
        line
    }

    fn word(&self, index: usize) -> &'a str {
        self.words.get(index).copied().unwrap_or_else(|| panic!("a word at {index} in {:?}", self.words))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let value = self.options.get(name)?;
        value.parse().ok()
    }

    fn names(&self, name: &str) -> Option<Vec<Str>> {
        let value = self.options.get(name)?;
        Some(value.split(',').map(Str::from).collect())
    }

    fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }
}

fn json(text: Option<&&str>) -> Payload {
    Payload::parse(text.copied().unwrap_or("{}")).expect("json without blanks")
}

/// A world that is driven by lines of text.
pub struct Script {
    pub world: World,
    aliases: Aliases,
    requests: BTreeMap<String, RequestId>,
    /// Whether the order of answers and dispatches is shown; it depends on how many shards there are.
    in_order: bool,
}

impl Script {
    pub fn new(shards: u16, notify: bool, in_order: bool) -> Self {
        let mut world = World::new(shards);
        if notify {
            world.notify = true;
            world.crash(Crash::BeforeAppend);
        }
        Self { world, aliases: Aliases::default(), requests: BTreeMap::new(), in_order }
    }

    /// Obeys one line and gives back what came of it.
    pub fn obey(&mut self, text: &str) -> Vec<String> {
        let line = Line::parse(text);
        match line.word(0) {
            "worker" => self.worker(&line),
            "start" => self.start(&line),
            "claim" => {
                let most = line.words.get(2).map_or(1, |n| n.parse().expect("a number"));
                self.world.claim(line.word(1), most);
            }
            "tick" => self.world.tick(line.word(1).parse().expect("milliseconds")),
            "hold" => self.world.held = true,
            "durable" => {
                self.world.held = false;
                self.world.durable();
            }
            "crash" => {
                self.world.held = false;
                self.world.crash(if line.has("late") { Crash::AfterAppend } else { Crash::BeforeAppend });
            }
            "flush" => self.world.flush(),
            "forget" => self.world.forget_index(),
            "memory" => {
                let count = self.world.resident_runs();
                return vec![format!("{count} runs in memory")];
            }
            verb => {
                let run = self.aliases.id(line.word(1));
                let command = self.command(verb, run, &line);
                self.world.submit(command);
            }
        }
        if line.options.get("then") == Some(&"claim") {
            self.world.held = false;
        }
        check::check(&self.world);
        self.report()
    }

    fn report(&mut self) -> Vec<String> {
        let rows = std::mem::take(&mut self.world.new_rows);
        let world = &self.world;
        let reservation = |id: RunId| world.folded(id).is_some_and(|run| run.is_reservation());
        let mut lines = self.aliases.rows(&rows, &reservation);
        let outputs: Vec<Output> = std::mem::take(&mut self.world.outputs);
        let mut told: Vec<String> = outputs.iter().filter_map(|output| self.aliases.output(output)).collect();
        if !self.in_order {
            told.sort();
        }
        lines.extend(told);
        let lost = std::mem::take(&mut self.world.lost);
        lines.extend(lost.iter().map(|_| "answer: unknown".to_string()));
        lines
    }

    fn worker(&mut self, line: &Line<'_>) {
        let mut hand = Hand::new(line.word(1), &[]);
        hand.lease_ms = line.number("lease").unwrap_or(1_000);
        hand.local = line.has("local");
        if let Some(queues) = line.names("queues") {
            hand.queues = queues.iter().map(|queue| queue.to_string()).collect();
        }
        let flows = line.names("flows").unwrap_or_else(|| vec!["flow".into()]);
        hand.definitions = flows.iter().map(|flow| definition(flow)).collect();
        self.world.join(hand);
    }

    fn start(&mut self, line: &Line<'_>) {
        let spec = self.spec(line, 2);
        let name = line.word(1);
        let again = line.options.get("again");
        let request = match again {
            Some(first) => self.requests[*first],
            None => self.world.request(),
        };
        self.requests.insert(name.into(), request);
        self.aliases.insert(spec.run_id(request), name);
        self.world.submit(Command::Start { request, spec: Box::new(spec) });
    }

    fn spec(&self, line: &Line<'_>, at: usize) -> StartSpec {
        let (flow, version) = line.word(at).split_once('@').unwrap_or((line.word(at), "1"));
        let mut spec = StartSpec::new(flow, json(line.options.get("input")));
        spec.version = version.parse().expect("a version");
        spec.queue = line.options.get("queue").copied().unwrap_or("default").into();
        spec.priority = line.number("priority").unwrap_or(0);
        spec.deliveries_max = line.number("deliveries");
        spec.eligible_at = line.number("eligible").map(|ms| BASE.after(ms));
        spec.deadline = line.number("deadline").map(|ms| BASE.after(ms));
        spec.concurrency = line.options.get("limit").map(|limit| {
            let (key, limit) = limit.split_once(':').unwrap_or((limit, "1"));
            Concurrency { key: key.into(), limit: limit.parse().expect("a limit") }
        });
        spec.key = line.options.get("key").map(|key| UniqueKey {
            key: (*key).into(),
            occupied: line.names("occupied").map_or(StatusSet::OPEN, |names| {
                let statuses: Vec<Status> = names.iter().map(|name| name.parse().expect("a status")).collect();
                StatusSet::of(&statuses)
            }),
            on_conflict: if line.has("reuse") { OnConflict::Reuse } else { OnConflict::Reject },
        });
        for step in line.names("steps").unwrap_or_default() {
            let (step, needs) = step.split_once('<').unwrap_or((&step, ""));
            let needs = needs.split('+').filter(|need| !need.is_empty()).map(Str::from).collect();
            spec.steps.push(PlannedStep { step: step.into(), needs });
        }
        spec
    }

    fn command(&mut self, verb: &str, run: RunId, line: &Line<'_>) -> Command {
        let held = self.world.dispatches.get(&run);
        let number = line.number("claim").or_else(|| held.map(|dispatch| dispatch.claim.number)).unwrap_or(1);
        let worker = line.options.get("as").map_or_else(
            || held.map_or("w1".to_string(), |dispatch| self.world.hands[dispatch.worker.0 as usize].name.clone()),
            |name| (*name).to_string(),
        );
        let (token, claim) = (token(&worker), ClaimId { run, number });
        match verb {
            "complete" => Command::Complete { run, completing: self.completing(number, token, line) },
            "fail" => Command::Fail {
                run,
                failing: Box::new(Failing {
                    claim: number,
                    token,
                    error: Arc::new(ErrorInfo {
                        retryable: !line.has("terminal"),
                        ..ErrorInfo::retryable(line.word(2), "it broke")
                    }),
                    retry: line.number("retry").map(|delay| RetryPolicy {
                        retries_max: line.number("most"),
                        ..RetryPolicy::exponential(delay)
                    }),
                    seed: 1,
                    entries: Vec::new(),
                    reopen: Vec::new(),
                    set_aside: false,
                }),
            },
            "heartbeat" => Command::Heartbeat { claim, token },
            "giveback" => Command::GiveBack { claim, token },
            "child" => Command::StartChild {
                run,
                starting: Box::new(StartingChild {
                    claim: number,
                    token,
                    key: line.options.get("named").copied().unwrap_or("").into(),
                    spec: self.spec(line, 2),
                    metadata: None,
                }),
            },
            "signal" => self.signal(run, line),
            "update" => self.update(run, line),
            "record" => recording(run, number, token, line),
            "cancel" => Command::Cancel {
                run,
                request: self.named_request(line),
                cascade: line.has("cascade"),
                reason: Arc::new(ErrorInfo::terminal("cancelled", "by a person")),
            },
            "wake" => Command::Wake { run, token: line.word(2).parse().expect("a token") },
            "schedule" => schedule(run, line),
            "notified" => Command::Notified { run, cursor: 0, turn: line.word(2).parse().expect("a turn") },
            "requeue" => Command::Requeue { run },
            "discard" => Command::Discard { run },
            "compact" => Command::Compact { run },
            "purge" => Command::Purge { run },
            "recover" => Command::Recover { run, journal: Vec::new() },
            "watch" => Command::Watch { run },
            "show" => Command::Show { run },
            other => panic!("no such command: {other}"),
        }
    }

    fn completing(&self, claim: u32, token: TokenHash, line: &Line<'_>) -> Completing {
        Completing {
            claim,
            token,
            outcome: Arc::new(self.outcome(line)),
            consume: if line.options.contains_key("consume") { Consume::ByName } else { Consume::Presented },
            error: line.options.get("handled").map(|code| Arc::new(ErrorInfo::retryable(code, "handled"))),
            compact_after: line.number("compact"),
            entries: entries(line),
        }
    }

    fn signal(&mut self, run: RunId, line: &Line<'_>) -> Command {
        Command::Signal {
            run,
            sent: Box::new(Sent {
                name: line.word(2).into(),
                payload: json(line.words.get(3)),
                dedup: line.options.get("dedup").map(|key| (*key).into()),
                request: self.named_request(line),
            }),
        }
    }

    fn update(&mut self, run: RunId, line: &Line<'_>) -> Command {
        Command::Update {
            run,
            asked: Box::new(Requesting {
                name: line.word(2).into(),
                input: json(line.words.get(3)),
                dedup: line.options.get("dedup").map(|key| (*key).into()),
                request: self.named_request(line),
            }),
            told: if line.has("accepted") { Told::Accepted } else { Told::Answered },
        }
    }

    /// The request called `request=…`, the same every time it is named, or a new one.
    fn named_request(&mut self, line: &Line<'_>) -> RequestId {
        let fresh = self.world.request();
        match line.options.get("request") {
            Some(name) => *self.requests.entry((*name).into()).or_insert(fresh),
            None => fresh,
        }
    }

    fn outcome(&self, line: &Line<'_>) -> Outcome {
        let then = line.options.get("then").map(|step| Str::from(*step));
        let deadline = line.number("deadline").map(Moment::In);
        match line.word(2) {
            "next" => Outcome::Next { step: line.word(3).into(), state: json(line.words.get(4)) },
            "replay" => Outcome::Replay { delay_ms: line.number("delay").unwrap_or(0), state: json(line.words.get(3)) },
            "await" => Outcome::Await {
                signals: line.word(3).split('+').map(Str::from).collect(),
                then,
                deadline,
                state: json(line.words.get(4)),
            },
            "sleep" => Outcome::Sleep {
                until: line
                    .number("at")
                    .map_or(Moment::In(line.number("ms").unwrap_or(0)), |at: i64| Moment::At(Timestamp(BASE.0 + at))),
                then,
                state: json(line.words.get(3)),
            },
            "spawn" => Outcome::Spawn {
                // Children are written `flow`, `flow:key` or `flow:key:concurrency`.
                children: line.words[3..].iter().map(|text| child(text)).collect(),
                then: then.unwrap_or_else(|| "joined".into()),
                join: line.options.get("join").map_or(Join::AllTerminal, |join| join_of(join)),
                deadline,
                state: Payload::parse("{}").expect("json"),
            },
            "suspend" => Outcome::Suspend { seen: line.number("seen").unwrap_or(0) },
            "done" => Outcome::Done { result: json(line.words.get(3)) },
            "stop" => Outcome::Stop { error: ErrorInfo::terminal(line.word(3), "it was stopped") },
            "continue" => Outcome::ContinueAsNew { input: json(line.words.get(3)) },
            other => panic!("no such outcome: {other}"),
        }
    }
}

fn schedule(run: RunId, line: &Line<'_>) -> Command {
    let intent = Scheduled {
        cursor: 0,
        turn: line.word(2).parse().expect("a turn"),
        step: line.words.get(3).map(|step| (*step).into()),
        visible_at: line.number("at").map(|ms| BASE.after(ms)),
    };
    Command::Schedule { run, intent }
}

fn recording(run: RunId, claim: u32, token: TokenHash, line: &Line<'_>) -> Command {
    Command::Record { run, recording: Box::new(Recording { claim, token, entries: entries(line) }) }
}

/// What a step writes to the ledger, each as one word: `wait:1:name` for an update, `await:1:name` for a signal,
/// `sleep:1:50` for milliseconds, `mark:1:edit`, `see:1`, `withdraw:1`, `again:1`, `answer:1:json`, `reject:1:reason`,
/// `unread:1:reason`, `publish:json`.
fn entries(line: &Line<'_>) -> Vec<Entry> {
    line.words.iter().filter_map(|word| entry(word)).collect()
}

fn entry(word: &str) -> Option<Entry> {
    let (what, rest) = word.split_once(':')?;
    if what == "publish" {
        return Some(Entry::Publish { state: json(Some(&rest)) });
    }
    let (op, rest) = rest.split_once(':').unwrap_or((rest, ""));
    let op = op.parse().ok()?;
    let intend = |what: Wanted| Entry::Intend { op, key: format!("{op} {rest}").into(), input: 0, what };
    let rejected = || Reply::Rejected(Arc::new(ErrorInfo::terminal("rejected", rest)));
    Some(match what {
        "wait" => intend(Wanted::Update { name: rest.into(), deadline: None }),
        "await" => intend(Wanted::Signal { name: rest.into(), deadline: None }),
        "sleep" => intend(Wanted::Timer(Moment::In(rest.parse().ok()?))),
        "again" => Entry::WaitAgain { op },
        "mark" => intend(Wanted::Patch { at: BASE }),
        "see" => Entry::See { op },
        "withdraw" => Entry::Withdraw { op },
        "answer" => Entry::Answer { op, reply: Reply::Value(json(Some(&rest))), unread: false },
        "reject" => Entry::Answer { op, reply: rejected(), unread: false },
        "unread" => Entry::Answer { op, reply: rejected(), unread: true },
        _ => return None,
    })
}

fn join_of(text: &str) -> Join {
    match text {
        "all" => Join::AllTerminal,
        "succeeded" => Join::AllSucceeded,
        "any" => Join::Any,
        quorum => Join::Quorum(quorum.parse().expect("a quorum")),
    }
}

fn child(text: &str) -> ChildSpec {
    let mut parts = text.split(':');
    let mut spec = StartSpec::new(parts.next().unwrap_or("flow"), Payload::null());
    if let Some(key) = parts.next().filter(|key| !key.is_empty()) {
        spec.key = Some(UniqueKey { key: key.into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reuse });
    }
    if let Some(key) = parts.next() {
        spec.concurrency = Some(Concurrency { key: key.into(), limit: 1 });
    }
    ChildSpec { spec }
}
