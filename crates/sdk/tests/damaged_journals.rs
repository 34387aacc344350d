//! Exported journals that somebody edited: `Journals::check` and `abide check --journals` read files without a checksum, so
//! whatever stands in them is answered, and nothing panics or hangs.

use abide::testing::{Journals, Replayed, TestEngine};
use abide::{FnCtx, Function, Machine, StepError, days, done, next};
use abide_kernel::mix;

async fn ok<T>(value: T) -> Result<T, StepError> {
    Ok(value)
}

/// Effects, a wait, a timer and two lives.
fn function() -> Function {
    Function::new("order", async |ctx: FnCtx, n: u32| {
        let paid: u32 = ctx.effect("pay", move |_| ok(n + 1)).input(&n).await?;
        ctx.sleep(days(1)).await?;
        let word: Option<String> = ctx.signal("word").within(days(2)).await?;
        if n == 0 { ctx.continue_as_new(&paid) } else { Ok(word) }
    })
}

fn machine() -> Machine<u32> {
    Machine::<u32>::new("count")
        .step("begin", async |_, n: u32| Ok(if n < 3 { next("again", n + 1) } else { done(&n) }))
        .step("again", async |_, n: u32| Ok(next("begin", n)))
}

/// A journal with a change drawn by lot: a byte, a line or a number is another, is gone or comes twice.
fn changed(text: &str, seed: u64) -> String {
    let draw = |n: u64| mix(seed * 16 + n) as usize;
    let mut bytes = text.as_bytes().to_vec();
    let at = draw(1) % bytes.len();
    match draw(0) % 5 {
        0 => bytes[at] ^= 1 << (draw(2) % 7),
        1 => drop(bytes.drain(at..(at + draw(2) % 30).min(text.len()))),
        2 => {
            let said = bytes[at..(at + draw(2) % 30).min(text.len())].to_vec();
            bytes.splice(at..at, said);
        }
        3 => {
            let mut lines: Vec<&str> = text.lines().collect();
            let (one, two) = (draw(2) % lines.len(), draw(3) % lines.len());
            lines.swap(one, two);
            return lines.join("\n");
        }
        _ => {
            let behind = bytes[at..].iter().position(u8::is_ascii_digit).map_or(0, |behind| at + behind);
            let length = bytes[behind..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = [0, 1, 9, u64::MAX, 1 << 31, i64::MAX as u64][draw(2) % 6].to_string();
            bytes.splice(behind..behind + length, number.into_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn whatever_stands_in_a_journal_is_answered() {
    let engine = TestEngine::new().register(function()).register(machine());
    let (order, count) = (engine.start("order", &0u32), engine.start("count", &0u32));
    engine.settle();
    order.signal("word", "yes").result::<Option<String>>().unwrap();
    let journals = Journals::new().register(function()).register(machine());
    let mut unreadable = 0;
    for journal in [order.export(), count.export()] {
        assert!(matches!(journals.check_text(&journal), Replayed::Fits { .. }));
        for seed in 0..3_000 {
            let text = changed(&journal, seed);
            let answer = journals.check_text(&text);
            assert!(!answer.to_string().is_empty());
            unreadable += u32::from(matches!(answer, Replayed::Unreadable { .. }));
        }
    }
    assert!(unreadable > 1_000, "most changes are noticed: {unreadable}");
}

#[test]
fn a_file_that_is_no_journal_is_unreadable() {
    let journals = Journals::new().register(machine());
    let deep = "[".repeat(100_000);
    for text in ["", "\n\n", "{}", "null", "\u{0}", &deep, "{\"format\":1}"] {
        assert!(matches!(journals.check_text(text), Replayed::Unreadable { .. }), "{:?}", &text[..text.len().min(20)]);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bytes.jsonl"), [0xff, 0xfe, 0x00]).unwrap();
    let report = journals.check(folder.path());
    assert!(matches!(report.journals[0].1, Replayed::Unreadable { .. }), "{report}");
}
