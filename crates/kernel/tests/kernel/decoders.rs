//! Everything that is read from outside, against bytes that nobody wrote: a decoder answers or refuses, and does neither
//! panic nor hang; what it accepts, it writes down again as it was. Facts that decode fold without a panic, whatever they
//! say: a journal in a file has no checksum.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use crate::support::act::payload;
use crate::support::random::config;
use crate::support::script::Script;
use abide_kernel::envelope::{DeadEnvelope, Envelope, Message};
use abide_kernel::limits::PAYLOAD_BYTES_MAX;
use abide_kernel::thread::Thread;
use abide_kernel::{
    BoundaryId, ClaimId, Fact, Facts, LetterId, Outcome, Payload, RequestId, Rev, Row, Run, RunId, Seq, ShardId,
    StartSpec, Status, Timestamp, TraceContext,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Texts as the kernel writes them.
struct Written {
    facts: Vec<String>,
    runs: Vec<String>,
    envelopes: Vec<String>,
    /// What is read by itself too: messages, dead letters, outcomes and what runs were started with.
    parts: Vec<String>,
}

/// What all transcripts write.
fn written() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let mut written = Written { facts: Vec::new(), runs: Vec::new(), envelopes: Vec::new(), parts: Vec::new() };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/transcripts");
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        for file in files {
            let text = fs::read_to_string(file).expect("a transcript");
            let one = text.contains("# shards: 1");
            let mut script = Script::new(if one { 1 } else { 4 }, text.contains("# notify"), one);
            for line in text.lines().filter_map(|line| line.strip_prefix("> ")) {
                script.obey(line);
            }
            let world = &script.world;
            let rows = || world.disks.iter().flat_map(|disk| &disk.rows).filter(|row| !row.facts.is_empty());
            let ids: BTreeSet<RunId> = rows().map(|row| row.run).collect();
            written.facts.extend(rows().map(|row| json(&row.facts)));
            written.runs.extend(ids.iter().filter_map(|id| world.folded(*id)).map(|run| json(&run)));
            written.envelopes.extend(world.disks.iter().flat_map(|disk| &disk.outbox).map(json));
            for envelope in world.disks.iter().flat_map(|disk| &disk.outbox) {
                let dead = DeadEnvelope { reason: "damaged".into(), envelope: envelope.clone() };
                written.parts.extend([json(&envelope.message), json(&dead)]);
            }
            for fact in rows().flat_map(|row| &row.facts) {
                match fact {
                    Fact::Started(started) => written.parts.push(json(&started.spec)),
                    Fact::Completed(completed) => written.parts.push(json(&completed.outcome)),
                    _ => {}
                }
            }
        }
        written
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("json")
}

/// A change to a text: bytes are flipped, cut out, said twice, or other numbers are put in place of numbers.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Cut(usize, usize),
    Twice(usize, usize),
    Number(usize, u64),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![0u64..5, Just(u64::MAX), Just(1 << 31), Just(i64::MAX as u64)];
    prop_oneof![
        2 => (any::<usize>(), 1u8..).prop_map(|(at, with)| Change::Flip(at, with)),
        1 => (any::<usize>(), 1usize..40).prop_map(|(at, length)| Change::Cut(at, length)),
        1 => (any::<usize>(), 1usize..40).prop_map(|(at, length)| Change::Twice(at, length)),
        4 => (any::<usize>(), number).prop_map(|(at, number)| Change::Number(at, number)),
        1 => (any::<usize>(), proptest::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn changed(text: &str, changes: &[Change]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for change in changes {
        let length = bytes.len().max(1);
        let part = |at: usize, most: usize| (at % length)..(at % length + most).min(bytes.len());
        match change {
            Change::Flip(at, with) => bytes.iter_mut().skip(at % length).take(1).for_each(|byte| *byte ^= with),
            Change::Cut(at, most) => drop(bytes.drain(part(*at, *most))),
            Change::Twice(at, most) => {
                let said = bytes[part(*at, *most)].to_vec();
                bytes.splice(at % length..at % length, said);
            }
            Change::Number(at, number) => renumber(&mut bytes, *at, *number),
            Change::Insert(at, with) => drop(bytes.splice(at % length..at % length, with.iter().copied())),
        }
    }
    bytes
}

/// Puts another number in place of the one that stands at or behind `at`.
fn renumber(bytes: &mut Vec<u8>, at: usize, number: u64) {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let from = at % bytes.len().max(1);
    let Some(begin) = bytes.iter().skip(from).position(digit).map(|behind| from + behind) else { return };
    let length = bytes[begin..].iter().take_while(|byte| digit(byte)).count();
    bytes.splice(begin..begin + length, number.to_string().into_bytes());
}

/// What is accepted is written down again as it was.
fn decode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let text = json(&value);
    let again: T = serde_json::from_str(&text).unwrap_or_else(|bad| panic!("{bad}: {text}"));
    assert_eq!(json(&again), text, "what was read is written as it was");
    Some(value)
}

/// As how many things, beside a payload, it can be read.
fn decode_all(bytes: &[u8]) -> usize {
    decode::<Payload>(bytes);
    [
        decode::<Facts>(bytes).is_some(),
        decode::<Run>(bytes).is_some(),
        decode::<Envelope>(bytes).is_some(),
        decode::<DeadEnvelope>(bytes).is_some(),
        decode::<Message>(bytes).is_some(),
        decode::<Outcome>(bytes).is_some(),
        decode::<StartSpec>(bytes).is_some(),
    ]
    .into_iter()
    .filter(|read| *read)
    .count()
}

/// Folds facts into every run there is, and as the beginning of one.
fn fold(facts: &Facts) {
    let row = |rev, prior| Row { seq: Seq(9), run: RunId(7), rev, prior, at: Timestamp(5), facts: facts.clone() };
    if let Ok(run) = Run::begin(&row(Rev(1), Seq(0))) {
        look(&run);
    }
    // A few of them each time, and others the next.
    let (runs, step) = (&written().runs, 1 + json(facts).len() % 7);
    for text in runs.iter().step_by(step * 3) {
        let mut run: Run = serde_json::from_str(text).expect("a run");
        run.apply_row(&row(Rev(run.rev.0 + 1), Seq(3)));
        look(&run);
    }
}

/// What is asked of every run that was read.
fn look(run: &Run) {
    let _ = (run.check(), run.status(), run.next_due(), run.occupies_key(), run.journal_rows());
}

#[test]
fn everything_written_is_read_as_it_was() {
    let Written { facts, runs, envelopes, parts } = written();
    assert!(facts.len() > 200 && runs.len() > 40 && envelopes.len() > 10 && parts.len() > 100, "{}", parts.len());
    assert!(parts.iter().all(|text| decode_all(text.as_bytes()) > 0), "each is something");
    facts.iter().for_each(|text| fold(&decode(text.as_bytes()).expect("facts")));
    runs.iter().for_each(|text| look(&decode(text.as_bytes()).expect("a run")));
    envelopes.iter().for_each(|text| drop(decode::<Envelope>(text.as_bytes()).expect("an envelope")));
}

/// Depth is the reader's stack, and length is its memory: both have an end.
#[test]
fn deep_and_long_documents_are_refused_or_carried() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let carried = Payload::parse(deep.clone()).expect("a document");
    assert_eq!(carried.text(), deep);
    assert_eq!(carried.canonical_hash(), Payload::parse(deep.clone()).expect("a document").canonical_hash());
    assert!(carried.decode::<serde_json::Value>().is_err(), "nobody's stack is that deep");
    assert!(Payload::parse("[".repeat(100_000)).is_err());
    decode_all(deep.as_bytes());
    let nested = r#"{"forward":{"slot":1,"message":"#.repeat(5_000);
    assert!(serde_json::from_str::<Message>(&nested).is_err());
    let long = |bytes: usize| StartSpec::new("flow", payload(&format!("\"{}\"", "x".repeat(bytes - 2))));
    assert_eq!(long(PAYLOAD_BYTES_MAX).validate(), Ok(()));
    assert_eq!(long(PAYLOAD_BYTES_MAX + 1).validate().expect_err("a refusal").code(), "too_large");
}

proptest! {
    #![proptest_config(config(4_000, 31))]

    #[test]
    fn changed_facts_decode_and_fold_or_are_refused(
        which in any::<usize>(),
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        let texts = &written().facts;
        if let Some(facts) = decode::<Facts>(&changed(&texts[which % texts.len()], &changes)) {
            fold(&facts);
        }
    }

    #[test]
    fn changed_checkpoints_decode_or_are_refused(
        which in any::<usize>(),
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        let texts = &written().runs;
        if let Some(run) = decode::<Run>(&changed(&texts[which % texts.len()], &changes)) {
            look(&run);
        }
    }

    #[test]
    fn changed_envelopes_decode_or_are_refused(
        which in any::<usize>(),
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        let texts = &written().envelopes;
        if let Some(envelope) = decode::<Envelope>(&changed(&texts[which % texts.len()], &changes)) {
            let Envelope { message, to, .. } = envelope;
            let _: (_, ShardId) = (message.kind(), to);
        }
    }

    #[test]
    fn changed_parts_decode_or_are_refused(
        which in any::<usize>(),
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        let texts = &written().parts;
        decode_all(&changed(&texts[which % texts.len()], &changes));
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }

    /// An id has one spelling.
    #[test]
    fn arbitrary_texts_are_no_ids_or_have_one_spelling(
        text in prop_oneof![
            ".{0,60}",
            "(run|req|letter)_[0-9a-fA-F+]{0,34}",
            "(run|req)_[0-9a-f]{31}[0-9a-fA-F+]",
            "letter_[+0-9]{1,21}",
            "claim_[0-9a-f]{31}[0-9a-fA-F]_[+0-9]{1,11}",
            "manual_[0-9a-f]{31}[0-9a-fA-F][.][+0-9]{1,11}",
            "(run|dispatch|run_index):(run_[0-9a-f]{32}|[a-z:é]{0,9})",
            "[a-z_]{0,20}",
        ],
    ) {
        one_spelling::<RunId>(&text)?;
        one_spelling::<RequestId>(&text)?;
        one_spelling::<LetterId>(&text)?;
        one_spelling::<ClaimId>(&text)?;
        one_spelling::<BoundaryId>(&text)?;
        one_spelling::<Thread>(&text)?;
        if let Ok(status) = text.parse::<Status>() {
            prop_assert_eq!(status.name(), text);
        }
    }

    /// A later version of the header may say more, and its other flags are not ours: what is read is written in our version.
    #[test]
    fn a_place_in_a_trace_is_read_as_it_is_written(
        text in prop_oneof![
            ".{0,60}",
            "(00|01|ff|fé)-[0-9a-f]{31}[0-9a-fA+]-[0-9a-f]{16}-[0-9a-f]{2}(-more)?",
            "00-0{32}-[0-9a-f]{16}-0[01]",
            "00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]",
        ],
    ) {
        if let Ok(place) = text.parse::<TraceContext>() {
            let written = place.to_string();
            prop_assert_eq!(written.parse::<TraceContext>(), Ok(place));
            prop_assert_eq!(&written[2..53], &text[2..53], "the trace and the span");
        }
    }
}

fn one_spelling<T: FromStr + Display>(text: &str) -> Result<(), TestCaseError> {
    if let Ok(id) = text.parse::<T>() {
        prop_assert_eq!(id.to_string(), text);
    }
    Ok(())
}
