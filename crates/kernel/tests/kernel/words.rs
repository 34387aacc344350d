//! The words people and other programs read: refusals, names, ids, and what is left out of what is written.

use crate::support::act::{completing, flow, payload};
use crate::support::{BASE, Hand, World};
use abide_kernel::shard::Command;
use abide_kernel::thread::Thread;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{
    BadJournal, Choice, Fact, Outcome, Policy, Refusal, Run, RunId, Standing, StartSpec, Status, StatusSet,
};

/// A refusal says what was expected and what was found, in words of its own.
#[test]
fn refusals_say_what_is_wrong() {
    let (op, run) = (3, RunId(7));
    let key = || "charge".into();
    let cases = [
        (Refusal::SecondBoundary { op, open: 2 }, "while entry 2 still does"),
        (Refusal::StaleBoundary { op, current: Some(4) }, "waits at boundary 4"),
        (Refusal::StaleBoundary { op, current: None }, "does not wait for a person"),
        (Refusal::AlreadyDecided { op, decided: "approved".into(), by: None }, "was approved before by its deadline"),
        (Refusal::DecisionLate { op, until: BASE }, "was over at 1000000000000 ms"),
        (Refusal::NotAssignee { op, assignee: "ada".into() }, "is assigned to ada"),
        (Refusal::WrongRole { op, roles: vec!["a".into(), "b".into()] }, "asks for the role a or b"),
        (Refusal::InDoubt { op, key: key() }, "may or may not have happened"),
        (Refusal::Cancelling { run }, "is being cancelled already"),
        (Refusal::NoEffect { key: key() }, "no effect \"charge\""),
        (Refusal::NotInDoubt { key: key(), found: "running".into() }, "is running, not in doubt"),
        (Refusal::WrongInterrupt { given: Some(1), current: 2 }, "interrupt 1 is not the one"),
        (Refusal::WrongInterrupt { given: None, current: 2 }, "needs the interrupt it answers, which is 2"),
        (Refusal::NotApproved { op, key: key() }, "only when its review is approved"),
        (Refusal::EffectEnded { op }, "what was recorded stands"),
    ];
    for (refusal, words) in cases {
        assert!(refusal.to_string().contains(words), "{}: {refusal}", refusal.code());
        assert!(!refusal.may_retry(), "{refusal}");
    }
    assert!(Refusal::Unknown.may_retry() && Refusal::Busy { what: "x".into(), limit: 1 }.may_retry());
}

/// One word for each thing, the same wherever it is read.
#[test]
fn things_have_one_word() {
    let standings = [
        Standing::NotStarted,
        Standing::Running,
        Standing::InDoubt,
        Standing::Committed,
        Standing::Failed,
        Standing::Compensated,
    ];
    for standing in standings {
        assert_eq!(serde_json::to_value(standing).expect("json"), standing.name());
    }
    for choice in [Choice::Resume, Choice::Approve, Choice::Reject, Choice::Complete] {
        assert_eq!(serde_json::to_value(choice).expect("json"), choice.to_string());
    }
    for policy in Policy::ALL {
        assert_eq!(serde_json::to_value(policy).expect("json"), policy.to_string());
        assert!("once".parse::<Policy>().expect_err("no policy").to_string().contains(policy.name()));
    }
    let unknown = "asleep".parse::<Status>().expect_err("no status").to_string();
    assert!(unknown.contains("sleeping"), "{unknown}");
    for wrong in ["", "run", "run:7", "dispatch:", "run_index:", "queue:x"] {
        let error = wrong.parse::<Thread>().expect_err("no thread").to_string();
        assert!(error.contains("run_catalog") && error.ends_with(&format!("{wrong:?}")), "{error}");
    }
    assert_eq!(BadJournal("why".into()).to_string(), "why");
    assert_eq!(format!("{:?}", payload("{\"n\":1}")), "{\"n\":1}");
    assert!(StatusSet::of(&[Status::Done, Status::Done]).contains(Status::Done), "naming one twice changes nothing");
}

/// What has nothing to say is not written: a start and a run are as long as what they hold.
#[test]
fn what_is_not_said_is_not_written() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    let Some(Fact::Started(started)) = world.disks[0].rows[0].facts.first() else { panic!("it began") };
    let keys = |value: serde_json::Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(serde_json::to_value(&started.spec).expect("json")), ["input", "version", "workflow"]);
    let folded = serde_json::to_value(world.folded(run).expect("a run")).expect("json");
    assert_eq!(
        keys(folded.clone()),
        ["begun_at", "created_at", "cursors", "format", "id", "rev", "started", "state", "updated_at"]
    );
    assert_eq!(keys(folded["cursors"][0].clone()), ["phase", "turn", "visit"]);
}

/// JI-26: an effect in doubt says under which key the other side may know it, and what an answer must name; no other does.
#[test]
fn an_effect_in_doubt_says_how_to_settle_it() {
    let mut world = World::new(1);
    world.join(Hand::new("w1", &["flow"]));
    let run = world.start(flow());
    assert_eq!(world.claim("w1", 1), 1);
    let mut suspends = completing(&world, run, Outcome::Suspend { seen: 0 });
    let begin = |op: u32, key: &str, policy: Policy| Entry::Intend {
        op,
        key: key.into(),
        input: 0,
        what: Wanted::Effect(policy),
    };
    suspends.entries = vec![begin(1, "charge", Policy::UnsafeOnce), begin(2, "mail", Policy::Idempotent)];
    world.ask(Command::Complete { run, completing: suspends });
    let run: Run = world.folded(run).expect("a run");
    let effects: Vec<_> = run.effects().collect();
    assert_eq!(effects[0].idempotency_key, format!("{}-0-begin-1/charge", run.id));
    let doubts: Vec<Option<String>> = effects
        .iter()
        .map(|effect| effect.doubt().map(|doubt| doubt.to_string().replace(&run.id.to_string(), "r")))
        .collect();
    let said = "unsafe_once_incomplete_effect: effect \"charge\" (r-0-begin-1/charge) may or may not have happened; interrupt 1 waits for an answer";
    assert_eq!(doubts, [Some(said.to_owned()), None]);
    assert_eq!((effects[0].interrupt, effects[1].interrupt), (Some(1), None));
}

/// A plan names steps that come before, each once.
#[test]
fn a_plan_needs_what_comes_before() {
    let plan = |steps: &[(&str, &[&str])]| {
        let planned = |(step, needs): &(&str, &[&str])| abide_kernel::PlannedStep {
            step: (*step).into(),
            needs: needs.iter().map(|need| (*need).into()).collect(),
        };
        StartSpec { steps: steps.iter().map(planned).collect(), ..flow() }.validate().map_err(|refusal| refusal.code())
    };
    assert_eq!(plan(&[("a", &[]), ("b", &["a"])]), Ok(()));
    assert_eq!(plan(&[("a", &[]), ("b", &["c"])]), Err("invalid"));
    assert_eq!(plan(&[("a", &[]), ("b", &["b"])]), Err("invalid"));
    assert_eq!(plan(&[("a", &[]), ("a", &[])]), Err("invalid"));
}
