//! Workers outside of the process: they ask, are given, report, and leave.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::explain::Reason;
use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{Claimant, Consume, Fingerprint, Outcome, Payload, Phase, Refusal, RunId, StartSpec, TokenHash};
use abide_runtime::{Config, Engine, Offer};
use abide_store::memory::MemoryStore;

const TOKEN: TokenHash = TokenHash(7);

fn engine() -> Engine {
    let mut config = Config::default();
    config.pools.clear();
    Engine::open(Box::new(MemoryStore::new(4)), config).unwrap()
}

fn definition(version: u32) -> Definition {
    Definition { workflow: "order".into(), version, fingerprint: Fingerprint(1), first_step: "first".into() }
}

/// Each worker has a token of its own.
fn token(namespace: &str) -> TokenHash {
    if namespace == "one" { TOKEN } else { TokenHash(8) }
}

fn offer(namespace: &str, most: usize) -> Offer {
    Offer {
        namespace: Some(namespace.into()),
        queues: vec!["default".into()],
        definitions: vec![definition(1)],
        by: Claimant::new("hand".into(), token(namespace), 30_000, None),
        most,
        waits: true,
    }
}

async fn start(engine: &Engine, namespace: &str) -> RunId {
    let mut spec = StartSpec::new("order", Payload::null());
    spec.namespace = namespace.into();
    let request = engine.new_request();
    let slot = spec.admission_slot(request);
    match engine.ask(slot, Command::Start { request, spec: Box::new(spec) }).await.unwrap() {
        Answer::Started(StartAnswer::Created(run)) => run,
        other => panic!("expected a run, found {other:?}"),
    }
}

fn complete(dispatch: &Dispatch, outcome: Outcome) -> (abide_kernel::Slot, Command) {
    let completing = Completing {
        claim: dispatch.claim.number,
        token: TOKEN,
        outcome: Arc::new(outcome),
        consume: Consume::default(),
        error: None,
        compact_after: None,
        entries: Vec::new(),
    };
    let run = dispatch.claim.run;
    (run.slot(), Command::Complete { run, completing })
}

/// SQ-31, SQ-43, SQ-44: one who waits is given what is started later; what follows from its report comes with the answer,
/// by the same commit; and the same report again changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_report_brings_the_next_attempt() {
    let engine = engine();
    let claiming = engine.claim(&offer("one", 1)).unwrap();
    assert!(!claiming.is_promised());
    let run = start(&engine, "one").await;
    let mut given = claiming.work().await.unwrap().take();
    assert_eq!(given.len(), 1);
    let first = given.remove(0);
    assert_eq!((first.claim.run, &*first.step), (run, "first"));

    let before = engine.metrics().store.commits;
    let next = Outcome::Next { step: "second".into(), state: Payload::null() };
    let (answers, claiming) = engine.report(vec![complete(&first, next.clone())], Some(&offer("one", 1)));
    let claiming = claiming.unwrap().unwrap();
    assert!(claiming.is_promised());
    assert!(matches!(answers.await.unwrap()[..], [Answer::Recorded { duplicate: false, .. }]));
    let second = claiming.work().await.unwrap().take().remove(0);
    assert_eq!((second.claim.run, &*second.step), (run, "second"));
    assert_eq!(engine.metrics().store.commits - before, 1, "the report and the claim share a commit");

    let (answers, _) = engine.report(vec![complete(&first, next)], None);
    let answers = answers.await.unwrap();
    assert!(matches!(answers[..], [Answer::Recorded { duplicate: true, .. }]), "{answers:?}");
    let other = complete(&first, Outcome::Done { result: Payload::null() });
    let (answers, _) = engine.report(vec![other], None);
    let answers = answers.await.unwrap();
    assert!(matches!(answers[..], [Answer::Refused(Refusal::ConflictingCompletion { .. })]), "{answers:?}");
    engine.stop(Duration::from_secs(5)).await;
}

/// SQ-35: what was claimed for one who has gone goes back at once, and does not count as delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_nobody_takes_goes_back() {
    let engine = engine();
    let run = start(&engine, "one").await;
    let promised = engine.claim(&offer("one", 1)).unwrap();
    assert!(promised.is_promised());
    drop(promised);
    // And one who was given it and did not take it.
    drop(engine.claim(&offer("one", 1)).unwrap().work().await.unwrap());
    let given = engine.claim(&offer("one", 1)).unwrap().work().await.unwrap().take();
    assert_eq!((given[0].claim.run, given[0].reclaims), (run, 0));
    engine.stop(Duration::from_secs(5)).await;
}

/// D25: one who waits keeps those who come after from nothing that it cannot execute itself; other namespaces' runs and
/// other versions are not its business, and what nobody has waits and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn each_is_given_what_it_can_execute() {
    let engine = engine();
    let run = start(&engine, "one").await;
    let alone = engine.explain(run).await.unwrap();
    assert!(matches!(alone.reason, Reason::NoWorker(_)), "{alone:?}");
    let stranger = engine.claim(&offer("two", 10)).unwrap();
    let other = engine.claim(&Offer { definitions: vec![definition(2)], ..offer("one", 10) }).unwrap();
    let unserved = engine.explain(run).await.unwrap();
    assert!(matches!(unserved.reason, Reason::NoWorker(_)), "{unserved:?}");
    assert!(!stranger.is_promised() && !other.is_promised());
    let given = engine.claim(&offer("one", 10)).unwrap().work().await.unwrap().take();
    assert_eq!(given[0].claim.run, run);
    let shown = engine.show(run).await.unwrap();
    assert!(matches!(shown.cursors[0].phase, Phase::Claimed(_)));
    for namespace in ["one", "two"] {
        let roster = engine.roster(&namespace.into()).await;
        assert!(roster.workers.len() == 1 && roster.silent.is_empty(), "one entry for each worker: {roster:?}");
    }
    engine.stop(Duration::from_secs(5)).await;
    assert!(stranger.work().await.is_err());
}
