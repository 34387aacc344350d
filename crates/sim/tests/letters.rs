//! What nodes write to each other, as it travels: every letter is read as it was written, and bytes that nobody wrote are read
//! or refused, without a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use abide_kernel::shard::{Answer, Command};
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::progress::Progressing;
use abide_kernel::transition::record::{Entry, Recording, Wanted};
use abide_kernel::transition::update::Requesting;
use abide_kernel::{
    ClaimId, Claimant, Consume, EndedAt, ErrorInfo, Fingerprint, Moment, Op, OpKind, OpState, Outcome, Payload, Policy,
    RunId, ShardEpoch, ShardId, StartSpec, Str, Timestamp, TokenHash,
};
use abide_runtime::{Happened, Letter, Mail, Offer};
use abide_store::{Filter, Member, Page};
use cluster::{Cluster, LEASE_MS, Stay};

const ALL: [usize; 2] = [0, 1];
const TOKEN: TokenHash = TokenHash(7);

/// How many letters of one shape are changed, and in how many places each.
const EACH: usize = 2;
const PLACES: usize = 400;

type Frame = (Member, Str, Letter);

fn read(text: &[u8]) -> Result<Frame, serde_json::Error> {
    serde_json::from_slice(text)
}

fn written(frame: &Frame) -> Vec<u8> {
    serde_json::to_vec(frame).unwrap()
}

/// Every kind of letter has its name here; a new one does not compile until it has.
fn name(letter: &Letter) -> &'static str {
    match letter {
        Letter::Ask { .. } => "ask",
        Letter::Answer { .. } => "answer",
        Letter::Elsewhere { .. } => "elsewhere",
        Letter::Forget { .. } => "forget",
        Letter::Mail(_) => "mail",
        Letter::Fetched(_) => "fetched",
        Letter::Joined => "joined",
        Letter::Took(_) => "took",
        Letter::Released(_) => "released",
        Letter::Damaged(_) => "damaged",
        Letter::Desk(_) => "desk",
        Letter::Work(_) => "work",
        Letter::Seat { .. } => "seat",
        Letter::Handed { .. } => "handed",
        Letter::Follow { .. } => "follow",
        Letter::Rows { .. } => "rows",
        Letter::Rules { .. } => "rules",
        Letter::Moved { .. } => "moved",
        Letter::WhoWorks { .. } => "who_works",
        Letter::Workers { .. } => "workers",
        Letter::Told { .. } => "told",
    }
}

const NAMES: usize = 21;

fn offer() -> Offer {
    let definition =
        Definition { workflow: "parcel".into(), version: 1, fingerprint: Fingerprint(1), first_step: "pack".into() };
    Offer {
        namespace: Some("default".into()),
        queues: vec!["default".into()],
        definitions: vec![definition],
        by: Claimant::new("hand".into(), TOKEN, 30_000, None),
        most: 2,
        waits: true,
    }
}

/// What may be asked of a run by whoever has, or had, an attempt of it.
fn commands(run: RunId, number: u32) -> Vec<Command> {
    let claim = ClaimId { run, number };
    let error = Arc::new(ErrorInfo::retryable("mail", "it \u{e9} \\ \" came back"));
    let intend = |op, what| Entry::Intend { op, key: format!("op {op}").into(), input: 3, what };
    let entries = vec![
        intend(1, Wanted::Effect(Policy::UnsafeOnce)),
        intend(2, Wanted::Timer(Moment::In(5))),
        intend(3, Wanted::Signal { name: "paid".into(), deadline: None }),
        Entry::End { op: 1, outcome: Err(error), at: Timestamp(5) },
        Entry::Publish { state: Payload::encode(&[1.5, -0.0]).unwrap() },
    ];
    let completing = Completing {
        claim: number,
        token: TOKEN,
        outcome: Arc::new(Outcome::Done { result: Payload::encode("done").unwrap() }),
        consume: Consume::default(),
        error: None,
        compact_after: Some(9),
        entries: Vec::new(),
    };
    let requesting =
        |dedup| Requesting { name: "more".into(), input: Payload::null(), dedup, request: abide_kernel::RequestId(5) };
    let told = |told, dedup| Command::Update { run, asked: Box::new(requesting(dedup)), told };
    vec![
        Command::Heartbeat { claim, token: TOKEN },
        Command::Progress {
            claim,
            token: TOKEN,
            progressing: Box::new(Progressing { name: "rows".into(), value: Payload::encode(&7).unwrap() }),
        },
        told(abide_kernel::shard::Told::Accepted, Some("once".into())),
        told(abide_kernel::shard::Told::Answered, None),
        Command::Compact { run },
        Command::Show { run },
        Command::Unflushed,
        Command::Record { run, recording: Box::new(Recording { claim: number, token: TOKEN, entries }) },
        Command::Complete { run, completing },
        Command::GiveBack { claim, token: TOKEN },
        Command::Requeue { run },
        Command::Purge { run },
    ]
}

/// Letters that take a rare moment to be written.
fn rare(run: RunId, asked: Letter) -> Vec<Letter> {
    let when = EndedAt { ended: 1, seen: 0, at: Timestamp(7) };
    let op = Op {
        key: "mail".into(),
        cursor: 0,
        visit: 1,
        kind: OpKind::Timer { until: Timestamp(9) },
        input: 3,
        at: Timestamp(5),
        state: OpState::Done { when, value: Payload::null() },
    };
    let happened = Happened {
        run,
        workflow: "order".into(),
        rev: 3,
        at: Timestamp(5),
        facts: vec!["ended".into()],
        status: Some(abide::Status::Done),
    };
    vec![
        Letter::Told { claim: ClaimId { run, number: 1 }, id: 1, op: Box::new(op) },
        Letter::Rows { number: 1, rows: vec![("default".into(), happened)] },
        Letter::Follow { heard: Some(4) },
        Letter::Moved { run },
        Letter::Damaged(vec![(ShardId(3), "its \"row\"".into())]),
        Letter::Elsewhere { id: 7, epoch: ShardEpoch(3), serves: Some((ShardId(1), ShardEpoch(4))) },
        Letter::Forget { id: u64::MAX },
        Letter::Fetched(vec![Mail { from: ShardId(0), to: ShardId(1), number: 2 }]),
        asked,
    ]
}

/// What nodes write to each other in a short life together.
fn letters() -> &'static [Frame] {
    static LETTERS: OnceLock<Vec<Frame>> = OnceLock::new();
    LETTERS.get_or_init(|| {
        let mut cluster = Cluster::new(2);
        let mut runs = Vec::new();
        for n in 0..12u64 {
            let client = cluster.client(n as usize % 2);
            let workflow = ["order", "family", "stuck"][n as usize % 3];
            runs.push(cluster.wait(&ALL, async { client.start(workflow, &n).await.unwrap().id() }));
        }
        let engine = cluster.node(0).engine().clone();
        for _ in 0..8 {
            let (request, spec) = (engine.new_request(), StartSpec::new("parcel", Payload::null()));
            let asked = engine.ask(spec.admission_slot(request), Command::Start { request, spec: Box::new(spec) });
            assert!(matches!(cluster.wait(&ALL, asked).unwrap(), Answer::Started(_)));
        }
        for at in [0, 1, 0, 1] {
            let claiming = cluster.node(at).engine().claim(&offer()).unwrap();
            for dispatch in cluster.wait(&ALL, claiming.work()).unwrap().take() {
                let run = dispatch.claim.run;
                for command in commands(run, dispatch.claim.number) {
                    let mut asked = Box::pin(engine.ask(run.slot(), command));
                    // One of them waits for an answer that nobody gives.
                    let _ = cluster::poll(asked.as_mut());
                    cluster.settle();
                }
            }
        }
        for run in &runs {
            let handle = cluster.client(1).run(*run);
            let _ = cluster.wait(&ALL, async { handle.signal("paid", &1u64).await });
            cluster.wait(&ALL, async { handle.show().await.unwrap() });
            let _ = cluster.wait(&ALL, async { handle.cancel("enough").await });
        }
        let (from, to, _) = cluster.post.2.lock().unwrap()[0].clone();
        let asked = Letter::WhoWorks { id: 1, namespace: "default".into() };
        cluster.nodes.iter().flatten().for_each(|node| node.engine().receive(&from, &to.process, asked.clone()));
        let page = Page { most: 10, before: None };
        cluster.wait(&ALL, async { engine.list(&Filter::default(), &page).await.unwrap() });
        cluster.add(Stay::Long);
        cluster.pass_for(LEASE_MS, &[0, 1, 2]);
        let sent = std::mem::take(&mut *cluster.post.2.lock().unwrap());
        let rare = rare(runs[0], asked).into_iter().map(|letter| (from.clone(), to.clone(), letter));
        sent.into_iter().chain(rare).map(|(from, to, letter)| (from, to.process, letter)).collect()
    })
}

/// SE-38: a letter is read as it was written.
#[test]
fn a_letter_is_read_as_it_was_written() {
    let names: BTreeSet<&str> = letters().iter().map(|(.., letter)| name(letter)).collect();
    assert_eq!(names.len(), NAMES, "{names:?}");
    for frame in letters() {
        let text = written(frame);
        let again = read(&text).map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&text))).unwrap();
        // As text it would be the same if something were left out each time. How long a claim was extended is known to
        // memory alone, and does not travel with a run.
        let shows = matches!(&frame.2, Letter::Answer { answer, .. } if matches!(**answer, Answer::Run(..)));
        assert!(shows || format!("{again:?}") == format!("{frame:?}"), "{again:?}\n{frame:?}");
        assert_eq!(written(&again), text);
    }
}

/// What a letter is, and what is asked or answered in it.
fn shape(letter: &Letter) -> String {
    let value = serde_json::to_value(letter).unwrap();
    let inner = value.get("ask").map(|ask| &ask["command"]).or(value.get("answer").map(|answer| &answer["answer"]));
    let tag = inner.and_then(|inner| inner.as_object().and_then(|inner| inner.keys().next()).cloned());
    format!("{} {}", name(letter), tag.unwrap_or_default())
}

/// A text with something else in one place: a bit, a byte, a piece less or twice, or another number.
fn changes(text: &[u8], at: usize) -> Vec<Vec<u8>> {
    let end = (at + 9).min(text.len());
    let put = |with: &[u8]| [&text[..at], with, &text[at + 1..]].concat();
    let mut changed = vec![
        put(&[text[at] ^ 1]),
        put(&[text[at] ^ 0x80]),
        put(b""),
        text[..at].to_vec(),
        [&text[..at], &text[end..]].concat(),
        [&text[..end], &text[at..]].concat(),
    ];
    if text[at].is_ascii_digit() {
        changed.extend([&b"0"[..], b"-1", b"18446744073709551615", b"1e400", b"null", b"[]"].map(put));
    }
    changed
}

/// SE-38: what nobody wrote is refused, or read as something that can be written and read again.
#[test]
fn a_letter_that_nobody_wrote_is_read_or_refused() {
    let mut by_shape: BTreeMap<String, Vec<&Frame>> = BTreeMap::new();
    for frame in letters() {
        by_shape.entry(shape(&frame.2)).or_default().push(frame);
    }
    assert!(by_shape.len() > NAMES, "{:?}", by_shape.keys());
    let (mut accepted, mut refused) = (0, 0);
    for frame in by_shape.values().flat_map(|frames| frames.iter().take(EACH)) {
        let text = written(frame);
        for at in (0..text.len()).step_by(text.len().div_ceil(PLACES)) {
            for changed in changes(&text, at) {
                let Ok(frame) = read(&changed) else {
                    refused += 1;
                    continue;
                };
                accepted += 1;
                let once = written(&frame);
                let twice = read(&once).map(|frame| written(&frame)).map_err(|error| error.to_string());
                assert_eq!(twice, Ok(once), "{}", String::from_utf8_lossy(&changed));
            }
        }
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} accepted, {refused} refused");
}
