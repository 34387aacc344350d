//! Asking a run from a terminal: its state, and updates that an engine answers.

mod shop;

use abide::{Engine, Failure, FnCtx, Function, Status};
use shop::Shop;

fn names() -> Function {
    Function::new("names", async |ctx: FnCtx, mut name: String| {
        loop {
            ctx.set_state(&name)?;
            let asked = ctx.update::<String>("rename").await?;
            match asked.input().as_str() {
                "" => asked.reject("a name has letters"),
                "end" => {
                    asked.answer("bye")?;
                    return Ok::<_, Failure>(name);
                }
                other => {
                    other.clone_into(&mut name);
                    asked.answer(&format!("hello {name}"))?;
                }
            }
        }
    })
}

/// AB-14: the command line shows the state that a function set, records what it is asked, and shows what an engine answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_asked_from_the_command_line() {
    let shop = Shop::new();
    let engine = Engine::open(&shop.url()).register(names()).start().await.unwrap();
    let run = engine.client().start("names", "Ada").await.unwrap();
    while run.show().await.unwrap().status() != Status::AwaitingSignal {
        tokio::task::yield_now().await;
    }
    let id = run.id().to_string();
    let shown = shop.abide(&["run", "show", &id]).ok().out;
    assert!(shown.contains("state\t\"Ada\"\n") && shown.contains("input\t\"Ada\"\n"), "{shown}");
    let why = shop.abide(&["run", "explain", &id]).ok().out;
    assert!(why.contains("waits for update rename") && why.contains(&format!("abide run update {id} rename")), "{why}");
    let held = shop.abide(&["run", "update", &id, "rename"]);
    assert!(held.code == 1 && held.err.contains("store_in_use"), "{held:?}");
    engine.stop(std::time::Duration::from_secs(5)).await;
    let ask = |input: &str, key: &str| {
        let input = format!("{input:?}");
        shop.abide(&["run", "update", &id, "rename", "--input", &input, "--dedup", key])
    };
    assert!(ask("Eve", "a").ok().err.contains("an engine that executes it answers"));
    assert!(ask("Eve", "a").ok().err.contains("has not answered"));
    assert!(ask("", "b").ok().err.contains("is asked for rename"));
    let wrong = ask("Bob", "a");
    assert!(wrong.code == 2 && wrong.err.contains("dedup key"), "{wrong:?}");
    let shown = shop.abide(&["run", "show", &id]).ok().out;
    assert!(shown.contains("asked to\trename"), "{shown}");
    let engine = Engine::open(&shop.url()).register(names()).start().await.unwrap();
    let run = engine.client().run(run.id());
    assert_eq!(run.update::<String, _>("rename", "end").await.unwrap(), "bye");
    engine.stop(std::time::Duration::from_secs(5)).await;
    assert!(ask("Eve", "a").ok().err.contains("answered rename: \"hello Eve\""));
    // Its state is read as it is and as it was, and only where it was something.
    let state = |more: &[&str]| shop.abide(&[&["run", "state", &id], more].concat());
    assert_eq!(state(&[]).ok().out, "\"Eve\"\n");
    let began = state(&["--rev", "1", "--json"]).ok().json();
    assert_eq!((began["rev"].as_u64(), began["state"].as_str()), (Some(1), Some("Ada")), "{began}");
    for rev in ["0", "999"] {
        let none = state(&["--rev", rev]);
        assert!(none.code == 2 && none.err.contains("a revision from 1 to "), "{none:?}");
    }
    assert!(ask("", "b").ok().err.contains("rejected rename: rejected: a name has letters"));
    let told =
        shop.abide(&["run", "update", &id, "rename", "--input", "\"Eve\"", "--dedup", "a", "--json"]).ok().json();
    assert_eq!((&told["answer"], &told["duplicate"]), (&"hello Eve".into(), &true.into()));
    let over = shop.abide(&["run", "update", &id, "rename"]);
    assert!(over.code == 1 && over.err.contains("run_over"), "{over:?}");
    let history = shop.abide(&["run", "history", &id]).ok().out;
    for said in
        ["the state is \"Eve\"", "update rename is asked for: \"Eve\"", "update rename is answered: \"hello Eve\""]
    {
        assert!(history.contains(said), "{said} in {history}");
    }
    let state = &shop.abide(&["run", "show", &id, "--json"]).ok().json()["state"];
    assert_eq!(state, "Eve");
    shop.abide(&["store", "check"]).ok();
}
