//! The test kit: virtual time, faults on demand, crashes everywhere, and replays of old journals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use abide::testing::{Journals, Replayed, Side, TestEngine, Violation, assert_replays, crash_everywhere};
use abide::{
    Call, Control, Engine, Fact, Failure, FnCtx, Function, Machine, Policy, RetryPolicy, Status, StepError, days, done,
    hours, next, secs, sleep,
};

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

/// A trip: flight and hotel are booked and a card is charged under `policy`. When no ticket is left, all is undone.
fn trip(policy: Policy) -> Function {
    let code = move |ctx: FnCtx, tickets: u32| async move {
        for what in ["flight", "hotel"] {
            ctx.effect(what, |_| ok(())).reconcile().await?;
            ctx.undo(&format!("cancel {what}"), |_| ok(()))?;
        }
        let charge: String = ctx.effect("charge", |_| ok("ch_1".to_owned())).policy(policy).await?;
        ctx.undo("refund", |_| ok(()))?;
        if tickets == 0 { Err(StepError::new("sold out").code("sold_out").terminal()) } else { Ok(charge) }
    };
    Function::new("trip", code).control(Control::allow().named("charge"))
}

/// A reminder that waits long and asks for an answer.
fn remind() -> Function {
    Function::new("remind", async |ctx: FnCtx, name: String| {
        let mail: String = ctx.effect("mail", |_| ok(format!("dear {name}"))).await?;
        ctx.sleep(days(30)).await?;
        let answer: Option<String> = ctx.signal("answer").within(days(7)).await?;
        Ok::<_, Failure>((mail, answer))
    })
}

/// AB-3: a wrong policy is found: the report names the effect that ran twice, and its policy.
#[test]
fn a_wrong_policy_is_named() {
    let report = crash_everywhere(|| trip(Policy::Idempotent), &1u32)
        .once("charge")
        .resolves("flight", &())
        .resolves("hotel", &())
        .run();
    assert!(report.points >= 4 && report.crashes == 2 * report.points, "{report}");
    let [Violation::Twice(twice)] = report.violations.as_slice() else {
        panic!("expected one effect that ran twice: {report}");
    };
    assert_eq!((twice.effect.as_str(), twice.policy, twice.times), ("charge", Policy::Idempotent, 2));
    let text = report.to_string();
    assert!(
        text.contains("wrong: charge ran 2 times (policy idempotent) after 1 crash, the first killed before point"),
        "{text}"
    );
}

/// AB-3: with the right policy there is nothing to report: where nobody knows whether the card was charged, somebody finds
/// out, and the trip ends as it would have.
#[test]
fn the_right_policy_leaves_nothing_to_report() {
    let known = |policy: Policy, tickets: u32| {
        let everywhere = crash_everywhere(move || trip(policy), &tickets).once("charge");
        everywhere.resolves("flight", &()).resolves("hotel", &())
    };
    for policy in [Policy::Reconcile, Policy::UnsafeOnce] {
        let report = known(policy, 1).resolves("charge", "ch_1").run();
        report.assert_nothing_twice();
        assert!(report.repeated.is_empty() && report.held.is_empty(), "{report}");
        assert!(report.to_string().ends_with("nothing ran twice\n"), "{report}");
    }
    // Nobody finds out: the run stops for a person, and says so. When it fails, everything is undone.
    let report = known(Policy::UnsafeOnce, 0).run();
    report.assert_ok();
    assert!(report.held.iter().any(|held| held.why.contains("charge")), "{report}");
    assert!(report.undisturbed.contains("sold_out"), "{report}");
    let undone: Vec<&str> = report.repeated.iter().map(|repeated| repeated.effect.as_str()).collect();
    assert!(undone.contains(&"refund") && !undone.contains(&"charge"), "{report}");
}

/// AB-3: what was to undo something and did not is named, whether the engine knows of it or the test says so.
#[test]
fn a_compensation_that_did_not_run_is_named() {
    let forgetful = || {
        Function::new("trip", async |ctx: FnCtx, _: String| {
            ctx.effect("charge", |_| ok(())).await?;
            Err::<(), _>(StepError::new("sold out").code("sold_out").terminal())
        })
    };
    let forgotten = |report: &abide::testing::CrashReport| {
        let refund =
            |violation: &&Violation| matches!(violation, Violation::NotUndone { undo, .. } if undo == "refund");
        report.violations.iter().filter(refund).count()
    };
    let report = crash_everywhere(forgetful, "Ada").undone_by("charge", "refund").run();
    assert_eq!(forgotten(&report), report.crashes + 1, "{report}");

    let helpless = || {
        Function::new("trip", async |ctx: FnCtx, _: String| {
            ctx.effect("charge", |_| ok(())).await?;
            ctx.undo("refund", async |_| Err(StepError::new("the bank is gone").terminal()))?;
            Err::<(), _>(StepError::new("sold out").code("sold_out").terminal())
        })
    };
    let report = crash_everywhere(helpless, "Ada").run();
    assert_eq!(forgotten(&report), report.crashes + 1, "{report}");
}

/// AB-3: a run that comes out otherwise after a crash is named, with where it was killed.
#[test]
fn a_run_that_ends_otherwise_is_named() {
    let calls = Arc::new(AtomicU32::new(0));
    let counting = move || {
        let calls = calls.clone();
        calls.store(0, Ordering::SeqCst);
        Function::new("count", move |ctx: FnCtx, (): ()| {
            let calls = calls.clone();
            async move { ctx.effect("count", |_| ok(calls.fetch_add(1, Ordering::SeqCst) + 1)).await }
        })
    };
    let report = crash_everywhere(counting.clone(), &()).run();
    let otherwise = report.violations.iter().find_map(|violation| match violation {
        Violation::EndedOtherwise { at, found, .. } => Some((at.side, found.as_str())),
        _ => None,
    });
    assert_eq!(otherwise, Some((Side::Before, "done with 2")), "{report}");
    crash_everywhere(counting, &()).any_result().run().assert_ok();
}

/// AB-3: signals, timers, children, retries and machines are killed everywhere too, in virtual time, and come out the same.
#[test]
fn everything_survives_being_killed_everywhere() {
    let report = crash_everywhere(remind, "Ada").signal("answer", "yes").run();
    report.assert_ok();
    assert!(report.undisturbed.contains("yes"), "{report}");
    assert_eq!(report.repeated.len(), 1, "{report}");

    let parent = || {
        Function::new("parent", async |ctx: FnCtx, (): ()| {
            let answer: (String, Option<String>) = ctx.child("ask", "remind", "Ada").await?;
            Ok::<_, Failure>(answer.0)
        })
    };
    crash_everywhere(parent, &()).with(remind).run().assert_ok();

    let flaky = || {
        Function::new("flaky", async |ctx: FnCtx, (): ()| ctx.effect("call", |_| ok(7)).await)
            .retry(RetryPolicy::exponential(1_000))
    };
    let report = crash_everywhere(flaky, &()).fails("call", StepError::new("not yet")).returns("call", &8).run();
    report.assert_ok();
    assert!(report.undisturbed.contains('8'), "{report}");

    let machine = || {
        Machine::<u32>::new("count")
            .step("one", async |_, n: u32| Ok(sleep(hours(1), n + 1).then("two")))
            .step("two", async |_, n: u32| Ok(next("three", n + 1)))
            .step("three", async |_, n: u32| Ok(done(&n)))
    };
    crash_everywhere(machine, &1u32).run().assert_ok();
}

/// The test's own view of the world is asked after every crash.
#[test]
fn the_world_is_checked_after_every_crash() {
    let charges = Arc::new(AtomicU32::new(0));
    let bank = charges.clone();
    let pay = move || {
        bank.store(0, Ordering::SeqCst);
        let bank = bank.clone();
        Function::new("pay", move |ctx: FnCtx, (): ()| {
            let bank = bank.clone();
            async move { ctx.effect("charge", |_: Call| ok(bank.fetch_add(1, Ordering::SeqCst))).await }
        })
    };
    let once = move || match charges.load(Ordering::SeqCst) {
        1 => Ok(()),
        found => Err(format!("expected one charge, found {found}")),
    };
    let report = crash_everywhere(pay, &()).check(once).run();
    let found = |violation: &Violation| matches!(violation, Violation::Check { at: Some(_), found } if found.contains("found 2"));
    assert!(report.violations.iter().any(found), "{report}");
}

/// Time skips to the next deadline and not beyond what the test asks for; signals are one-liners.
#[test]
fn time_passes_only_when_nothing_else_happens() {
    let engine = TestEngine::new().register(remind());
    let (waits, answers) = (engine.start("remind", "Ada"), engine.start("remind", "Bob"));
    assert_eq!(waits.status(), Status::Sleeping);
    assert_eq!(engine.elapsed(), Duration::ZERO);
    engine.advance(days(30));
    assert_eq!(waits.status(), Status::AwaitingSignal);
    engine.advance(hours(1));
    answers.signal("answer", "yes");
    type Answer = (String, Option<String>);
    assert_eq!(answers.result::<Answer>().unwrap(), ("dear Bob".into(), Some("yes".into())));
    assert_eq!(engine.elapsed(), days(30) + hours(1));
    assert_eq!(waits.result::<Answer>().unwrap(), ("dear Ada".into(), None));
    assert_eq!(engine.elapsed(), days(37));
}

/// A run that nothing can move any more says what it waits for; one that has no end is given up.
#[test]
fn what_does_not_end_is_explained() {
    let asks = Function::new("asks", async |ctx: FnCtx, (): ()| ctx.signal::<u32>("number").await);
    let ticks = Machine::<u32>::new("ticks").step("tick", async |_, n: u32| Ok(sleep(secs(1), n)));
    let engine = TestEngine::new().register(asks).register(ticks).skips_max(50);
    let asks = engine.start("asks", &());
    let told = |panic: Box<dyn std::any::Any + Send>| *panic.downcast::<String>().expect("a panic with a message");
    let blocked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(asks.result::<u32>())));
    let blocked = told(blocked.expect_err("it is blocked"));
    assert!(blocked.starts_with("run-1 is blocked:") && blocked.contains("signal number"), "{blocked}");
    let ticks = engine.start("ticks", &0u32);
    let endless = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(ticks.result::<u32>())));
    assert!(told(endless.expect_err("it has no end")).contains("50 skips"), "it says how far it went");
    assert_eq!(engine.elapsed(), secs(50));
    assert_eq!(asks.signal("number", &7u32).result::<u32>().unwrap(), 7);
}

/// JI-33: operations are given by the test, bound to the durable identity of their effects; what the journal says is
/// there to assert on.
#[test]
fn operations_are_scripted() {
    let pay = || {
        let code = async |ctx: FnCtx, (): ()| {
            let mut receipts = Vec::new();
            for item in ["book", "pen"] {
                let receipt: String = ctx
                    .scope(item)
                    .effect("charge", async |_| Err::<String, _>(StepError::new("no bank here")))
                    .await?;
                receipts.push(receipt);
            }
            ctx.sleep(hours(1)).await?;
            Ok::<_, Failure>(receipts)
        };
        Function::new("pay", code).retry(RetryPolicy::exponential(1_000))
    };
    let engine = TestEngine::new().register(pay());
    let book = engine.operation("book/charge").fails(StepError::new("busy")).returns("ch_1");
    let pen = engine.operation("pen/charge").returns("ch_2");
    let run = engine.start("pay", &());
    engine.advance(secs(30));
    engine.restart();
    assert_eq!(run.result::<Vec<String>>().unwrap(), ["ch_1", "ch_2"]);
    assert_eq!((book.calls(), pen.calls()), (2, 1));
    let effects: Vec<String> = run.effects().iter().map(|effect| format!("{} {}", effect.key, effect.policy)).collect();
    assert_eq!(effects, ["book/charge idempotent", "pen/charge idempotent"]);
}

/// JI-31: what the code works with is given to it when it goes on, and is no part of the run; what it did stays.
#[test]
fn capabilities_are_given_anew() {
    let greet = |bank: &'static str| {
        Function::new("greet", move |ctx: FnCtx, (): ()| async move {
            let before: String = ctx.effect("before", |_| ok(bank.to_owned())).await?;
            ctx.sleep(days(1)).await?;
            let after: String = ctx.effect("after", |_| ok(bank.to_owned())).await?;
            Ok::<_, Failure>([before, after])
        })
    };
    let engine = TestEngine::new().register(greet("old bank"));
    let run = engine.start("greet", &());
    engine.deploy(greet("new bank"));
    assert_eq!(run.result::<[String; 2]>().unwrap(), ["old bank", "new bank"]);
}

/// JI-33: a journal of the shape that a test wants is brought in, and the run goes on from there.
#[test]
fn journals_are_brought_in() {
    let engine = TestEngine::new().register(order(Edit::None));
    let text = engine.start("order", "book").signal("address", "there").export();
    // As it stood before its last step, with another price on record.
    let cut: Vec<&str> = text.lines().collect();
    let cut = cut[..cut.len() - 1].join("\n").replace("\"value\":\"ch_1\"", "\"value\":\"ch_9\"");
    let engine = TestEngine::new().register(order(Edit::None));
    let charge = engine.operation("charge").returns("never");
    let run = engine.import(&cut);
    assert_eq!(run.result::<String>().unwrap(), "book ch_9 to there");
    assert_eq!(charge.calls(), 0);
    assert!(run.history().starts_with("1 +0s started"), "{}", run.history());
}

/// A store that is taken over, an index that is lost, a process that dies: the run goes on.
#[test]
fn faults_are_one_liners() {
    let engine = TestEngine::new().register(remind()).register(trip(Policy::UnsafeOnce));
    let mail = engine.operation("mail").returns("dear Ada");
    engine.conflict_next_append();
    let run = engine.start("remind", "Ada");
    engine.advance(days(1));
    engine.restart();
    engine.lose_checkpoints();
    engine.advance(days(29));
    engine.crash_at_append(0, Side::Before);
    run.signal("answer", "yes");
    assert_eq!(run.result::<(String, Option<String>)>().unwrap().1.as_deref(), Some("yes"));
    assert_eq!(mail.calls(), 1);

    // The trip is killed while it charges: nobody knows, until somebody says.
    let trip = engine.start("trip", &1u32);
    let undisturbed = trip.result::<String>().unwrap();
    for after in 0..8 {
        let trip = engine.start("trip", &1u32);
        engine.crash_at_append(after, Side::Before);
        engine.run_until_blocked();
        while let Some(doubted) = trip.effects().into_iter().find(|effect| effect.interrupt.is_some()) {
            match &*doubted.key {
                "charge" => trip.resolve("charge", "ch_1"),
                other => trip.resolve_retry(other),
            };
        }
        assert_eq!(trip.result::<String>().unwrap(), undisturbed);
    }
}

/// An append that finds another owner is refused whole: what hung on it is done again.
#[test]
fn a_conflict_is_met_by_the_next_append() {
    let engine = TestEngine::new();
    let (other, conflicts) = (engine.clone(), Arc::new(AtomicU32::new(0)));
    let code = move |ctx: FnCtx, (): ()| {
        let (other, conflicts) = (other.clone(), conflicts.clone());
        async move {
            let call = async |_| {
                if conflicts.fetch_add(1, Ordering::SeqCst) == 0 {
                    other.conflict_next_append();
                }
                Ok::<_, StepError>(7)
            };
            ctx.effect("call", call).await
        }
    };
    engine.deploy(Function::new("call", code));
    assert_eq!(engine.start("call", &()).result::<u32>().unwrap(), 7);
    assert_eq!(engine.operation("call").calls(), 2);
}

/// A history is the same text whenever the same happens: ids have aliases, times are relative, chance is left out.
#[test]
fn histories_are_golden() {
    let told = |engine: TestEngine| {
        let parent = Function::new("parent", async |ctx: FnCtx, (): ()| {
            let answer: (String, Option<String>) = ctx.child("ask", "remind", "Ada").await?;
            Ok::<_, Failure>(answer.0)
        });
        let engine = engine.register(remind()).register(parent);
        engine.advance(Duration::from_millis(1_500));
        let run = engine.start("parent", &());
        run.result::<String>().unwrap();
        run.history()
    };
    let history = told(TestEngine::new());
    assert_eq!(history, told(TestEngine::new()));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parent.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &history).unwrap();
    }
    assert_eq!(history, std::fs::read_to_string(&path).unwrap(), "UPDATE_GOLDEN=1 writes it anew");
}

/// The kit works inside an async test too, beside the test's own runtime.
#[tokio::test]
async fn it_works_inside_a_runtime() {
    let slow = Function::new("slow", async |ctx: FnCtx, (): ()| {
        ctx.effect("wait", async |_| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, StepError>(5)
        })
        .await
    });
    let engine = TestEngine::with_shards(4).register(slow);
    assert_eq!(engine.start("slow", &()).result::<u32>().unwrap(), 5);
    assert_eq!(engine.elapsed(), Duration::ZERO);
}

/// What `order` did yesterday.
fn order(edit: Edit) -> Function {
    Function::new("order", move |ctx: FnCtx, item: String| async move {
        let price: u32 = ctx.effect("price", |_| ok(5)).await?;
        let amount = if edit == Edit::Amount { price + 1 } else { price };
        if edit == Edit::Kind {
            ctx.child::<String, _>("charge", "bank", &amount).await?;
        }
        let name = if edit == Edit::Name { "debit" } else { "charge" };
        let charge: String = ctx.effect(name, |_| ok("ch_1".to_owned())).input(&amount).await?;
        if edit == Edit::Later {
            ctx.effect("thanks", |_| ok(())).await?;
        }
        let address: String = ctx.signal("address").await?;
        let suffix = if edit == Edit::Result { "!" } else { "" };
        Ok::<_, Failure>(format!("{item} {charge} to {address}{suffix}"))
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Edit {
    None,
    Amount,
    Kind,
    Name,
    Later,
    Result,
}

/// AB-2: yesterday's journals are replayed on today's code, with nothing done outside; the report says which diverge, where
/// and why.
#[test]
fn journals_are_replayed_on_todays_code() {
    let engine = TestEngine::new().register(order(Edit::None));
    let (open, ended) = (engine.start("order", "book"), engine.start("order", "pen"));
    ended.signal("address", "here").result::<String>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("open.jsonl"), open.export()).unwrap();
    std::fs::write(folder.path().join("ended.jsonl"), ended.export()).unwrap();

    assert_replays(order(Edit::None), folder.path());
    let told = |edit: Edit| {
        let report = Journals::new().register(order(edit)).check(folder.path());
        let lines: Vec<String> = report.journals.iter().map(|(_, replayed)| replayed.to_string()).collect();
        (report.is_ok(), lines)
    };
    let charge = |fact: &Fact| matches!(fact, Fact::Intended(intended) if &*intended.key == "charge");
    let recorded = open.journal().iter().find(|row| row.facts.iter().any(charge)).expect("it is recorded").rev.0;
    let (fits, lines) = told(Edit::Amount);
    assert!(!fits);
    for line in &lines {
        assert!(line.starts_with(&format!("diverges from what is recorded at rev {recorded}: ")), "{line}");
        assert!(line.contains("\"charge\" (crates/sdk/tests/testing.rs:") && line.contains("input"), "{line}");
    }
    let (_, lines) = told(Edit::Kind);
    assert!(lines.iter().all(|line| line.contains("expected an effect, as recorded, found a child")), "{lines:?}");
    // One entry is no longer asked for, and another is new: an open run goes on, one that ended did not do that.
    let (_, lines) = told(Edit::Name);
    assert!(lines[0].starts_with("diverges: ") && lines[0].contains("\"debit\""), "{lines:?}");
    assert_eq!(lines[1], "fits; not asked for any more: charge, signal address; goes on with debit");
    let (_, lines) = told(Edit::Later);
    assert!(lines[0].contains("\"thanks\""), "{lines:?}");
    assert!(lines[1].starts_with("fits; ") && lines[1].ends_with("goes on with thanks"), "{lines:?}");
    let (_, lines) = told(Edit::Result);
    assert!(lines[0].contains("expected the result \"pen ch_1 to here\""), "{lines:?}");
    assert_eq!(lines[1], "fits");
}

/// AB-2: the open runs of a store are replayed on today's code, beside the engine that holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_runs_of_a_store_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("abide.db");
    let url = format!("sqlite:{}", path.display());
    let engine = Engine::open(&url).register(order(Edit::None)).start().await.unwrap();
    let (open, ended) =
        (engine.client().start("order", "book").await.unwrap(), engine.client().start("order", "pen").await.unwrap());
    ended.signal("address", "here").await.unwrap();
    ended.result::<String>().await.unwrap();
    while open.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    let check = |edit: Edit| Journals::new().register(order(edit)).check_store(&path).unwrap();
    let report = check(Edit::None);
    assert_eq!(report.journals.len(), 1, "{report}");
    assert_eq!(report.journals[0].0, open.id().to_string());
    report.assert_ok();
    assert!(check(Edit::Amount).to_string().contains("diverges"), "{report}");
    engine.stop(Duration::from_secs(5)).await;
}

/// AB-2: a journal that is torn, or that nobody has code for, is not taken for one that fits; neither is an empty folder.
#[test]
fn a_journal_that_cannot_be_replayed_is_no_success() {
    let engine = TestEngine::new().register(order(Edit::None));
    let text = engine.start("order", "book").export();
    let check = |text: &str| Journals::new().register(order(Edit::None)).check_text(text);
    let torn: Vec<&str> = text.lines().enumerate().filter(|(line, _)| *line != 1).map(|(_, line)| line).collect();
    let unreadable = |text: &str, part: &str| {
        let Replayed::Unreadable { why } = check(text) else {
            panic!("expected that it cannot be read");
        };
        assert!(why.contains(part), "{why}");
    };
    unreadable(&torn.join("\n"), "line 2: expected revision 2, found 3");
    unreadable(&text.replace("\"format\":1", "\"format\":9"), "line 1: expected format 1, found 9");
    unreadable("", "found none");
    let none = Journals::new().check_text(&text);
    assert_eq!(none, Replayed::NoCode { workflow: "order".into(), version: 1 });
    let folder = tempfile::tempdir().unwrap();
    assert!(!Journals::new().register(order(Edit::None)).check(folder.path()).is_ok());
    assert!(!Journals::new().register(order(Edit::None)).check(folder.path().join("none")).is_ok());
}

/// AB-2: functions that began again are replayed life by life; machines need the steps that open runs stand at.
#[test]
fn earlier_lives_and_machines_are_checked_too() {
    let count = |step: &'static str| {
        Function::new("count", move |ctx: FnCtx, n: u32| async move {
            let name = if n == 0 { step } else { "add" };
            let next: u32 = ctx.effect(name, move |_| ok(n + 1)).input(&n).await?;
            if next < 3 { ctx.continue_as_new(&next) } else { Ok(next) }
        })
    };
    let machine = |name: &str| {
        let step = async |_, n: u32| Ok(sleep(days(1), n));
        Machine::<u32>::new("tick").step("begin", async |_, n: u32| Ok(next("tick", n))).step(name, step)
    };
    let engine = TestEngine::new().register(count("add")).register(machine("tick"));
    let (counted, ticks) = (engine.start("count", &0u32), engine.start("tick", &0u32));
    engine.settle();
    let check = |function: Function, machine: Machine<u32>| {
        let journals = Journals::new().register(function).register(machine);
        [journals.check_text(&counted.export()), journals.check_text(&ticks.export())].map(|found| found.to_string())
    };
    assert_eq!(check(count("add"), machine("tick")), ["fits", "fits"]);
    let [counts, ticks] = check(count("plus"), machine("tock"));
    assert!(counts.contains("\"plus\""), "{counts}");
    assert!(ticks.contains("the run stands at step \"tick\", which the code does not have"), "{ticks}");
}
