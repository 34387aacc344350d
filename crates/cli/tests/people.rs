//! `task`, `approval` and `run resume`: people see what is asked of them, and answer.

mod shop;

use std::time::Duration;

use abide::{Engine, Failure, FnCtx, Function};
use serde_json::{Value, json};
use shop::served::Served;
use shop::{Answer, Shop};

fn launch() -> Function {
    Function::new("launch", async |ctx: FnCtx, (): ()| {
        let resumed = ctx.pause("hold").await?;
        let decision = ctx.approval("spend").payload(&json!({"amount": 5})).roles(&["finance"]).await?;
        let packed: Value = ctx.task("pack", &json!({"box": "large"})).roles(&["store"]).await?;
        let who = [resumed.actor(), decision.actor(), decision.note()].map(|text| text.map(str::to_owned));
        Ok::<_, Failure>((who, decision.is_approved(), packed))
    })
}

/// Lets an engine bring the run to what it does next, and go.
async fn advance(shop: &Shop, run: &str, status: &str) {
    let engine = Engine::open(&shop.url()).register(launch()).start().await.expect("an engine");
    shop.await_status(run, status);
    engine.stop(Duration::from_secs(5)).await;
}

fn boundary(shop: &Shop, run: &str) -> String {
    let shown = shop.abide(&["run", "show", run, "--json"]).ok().json();
    shown["boundary"].as_str().expect("a boundary").to_owned()
}

/// The command fails with this code.
fn refused(answer: &Answer, code: &str) {
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.err.contains(&format!("code: {code}")), "{answer:?}");
}

fn events(shop: &Shop, id: &str) -> Vec<String> {
    let shown = shop.abide(&["task", "show", id, "--json"]).ok().json();
    let events = shown["events"].as_array().expect("events").clone();
    events.iter().map(|event| event["event"].as_str().expect("a word").to_owned()).collect()
}

/// SQ-57, SE-3, SE-4, SE-10: a person finds what is asked, answers it, and the run goes on with what they said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_answer_from_the_command_line() {
    let shop = Shop::new();
    let run = shop.start("launch", &[]);

    // What `explain` says to do is what moves it, also with an id that is cut short.
    advance(&shop, &run, "awaiting_decision").await;
    let told = shop.abide(&["run", "explain", &run, "--json"]).ok().json();
    let action = told["next_actions"][0].as_str().expect("an action").replace("NAME", "ada");
    let words: Vec<&str> = action.split(' ').skip(1).collect();
    let hold = boundary(&shop, &run);
    assert_eq!(words, ["run", "resume", &hold, "--as", "ada"]);
    assert!(shop.abide(&["run", "show", &run]).ok().out.contains(&hold));
    assert_eq!(shop.abide(&["approval", "list"]).ok().out, "");
    shop.abide(&words).ok();
    refused(&shop.abide(&words), "already_decided");

    advance(&shop, &run, "awaiting_decision").await;
    let spend = boundary(&shop, &run);
    let listed = shop.abide(&["approval", "ls"]).ok().out;
    assert!(listed.starts_with(&format!("{spend}\tlaunch\tspend\topen\tfinance\t-\t")), "{listed}");
    assert_eq!(shop.abide(&["approval", "list", "--role", "sales"]).ok().out, "");
    assert_eq!(shop.abide(&["task", "list"]).ok().out, "");
    refused(&shop.abide(&["approval", "approve", &spend, "--as", "ada"]), "wrong_role");
    refused(&shop.abide(&["approval", "reject", &hold, "--as", "ada"]), "already_decided");
    let short = spend.replace(&run[20..][..16], "");
    let approve = ["approval", "approve", &short, "--as", "ada", "--role", "finance", "--note", "fine", "--json"];
    assert_eq!(shop.abide(&approve).ok().json(), json!({"boundary": spend, "choice": "approve", "duplicate": false}));

    advance(&shop, &run, "awaiting_decision").await;
    let pack = boundary(&shop, &run);
    assert_eq!(shop.abide(&["approval", "list"]).ok().out, "", "what is over waits for nobody");
    let role = ["--role", "store"];
    let task = |words: &[&str]| shop.abide(&[&["task"], words, &role].concat());
    task(&["claim", &pack, "--as", "bob"]).ok();
    refused(&task(&["complete", &pack, "--as", "eve"]), "not_assignee");
    refused(&task(&["claim", &pack, "--as", "eve"]), "not_assignee");
    task(&["claim", &pack, "--as", "lead", "--for", "eve", "--take-over"]).ok();
    task(&["release", &pack, "--as", "eve", "--note", "on leave"]).ok();
    task(&["claim", &pack, "--as", "bob"]).ok();
    assert_eq!(shop.abide(&["task", "list", "--assignee", "eve"]).ok().out, "");
    assert_eq!(shop.abide(&["task", "list", "--assignee", "bob"]).ok().out.lines().count(), 1);
    task(&["complete", &pack, "--as", "bob", "--result", r#"{"weight":3}"#]).ok();
    assert_eq!(events(&shop, &pack), ["created", "assigned", "reassigned", "released", "assigned", "completed"]);

    advance(&shop, &run, "done").await;
    let shown = shop.abide(&["run", "show", &run, "--json"]).ok().json();
    assert_eq!(shown["result"], json!([["ada", "ada", "fine"], true, {"weight": 3}]));
    assert_eq!(shown["boundary"], Value::Null);
    look_back(&shop, &run, &pack);
}

/// SE-3: what people were asked stays readable when the run is over.
fn look_back(shop: &Shop, run: &str, pack: &str) {
    assert_eq!(shop.abide(&["task", "list"]).ok().out, "");
    let listed = shop.abide(&["task", "list", "--run", run, "--json"]).ok().json();
    assert_eq!((&listed["tasks"][0]["standing"], &listed["tasks"][1]), (&json!("completed"), &Value::Null));
    assert_eq!(listed["tasks"][0]["payload"], json!({"box": "large"}));
    assert_eq!(listed["tasks"][0]["decision"]["payload"], json!({"weight": 3}));
    let shown = shop.abide(&["task", "show", pack]).ok().out;
    assert!(shown.contains("on leave") && shown.contains("bob"), "{shown}");
    let told = shop.abide(&["run", "history", run]).ok().out;
    for said in
        ["waits for approval spend", "spend: approve by ada (fine)", "given to eve by lead", "given back by eve"]
    {
        assert!(told.contains(said), "{said}: {told}");
    }
    refused(&shop.abide(&["task", "complete", pack, "--as", "bob", "--role", "store"]), "run_over");
}

/// What is no boundary is said to be none, before anything is opened to write.
#[test]
fn a_wrong_id_is_explained() {
    let shop = Shop::new();
    let run = shop.start("launch", &[]);
    for wrong in [&run, "manual_", "manual_0193", "manual_0193.x", "nonsense"] {
        let answer = shop.abide(&["approval", "approve", wrong, "--as", "ada"]);
        assert_eq!(answer.code, 2, "{answer:?}");
        assert!(answer.err.contains("code: bad_id"), "{answer:?}");
    }
    let none = format!("manual_{}.1", &run["run_".len()..]);
    assert_eq!(shop.abide(&["task", "show", &none]).code, 3);
    refused(&shop.abide(&["approval", "approve", &none, "--as", "ada"]), "stale_boundary");
    let nobody = shop.abide(&["approval", "approve", &none]);
    assert!(nobody.code == 2 && nobody.err.contains("code: no_actor"), "{nobody:?}");
}

/// AB-16: a server knows whose token it is; nobody has to say it again, or something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_takes_the_name_of_the_token() {
    let shop = Shop::new();
    let run = shop.start("launch", &[]);
    advance(&shop, &run, "awaiting_decision").await;
    let hold = boundary(&shop, &run);
    let made = shop.abide(&["token", "create", "--name", "grace", "--role", "operator", "--in", "*"]).ok();
    let served = Served::begin(&shop, &[]);
    let url = served.url();
    let token = [("ABIDE_TOKEN", made.out.trim())];
    shop.abide_in(&["--url", &url, "run", "resume", &hold], "", &token).ok();
    assert_eq!(served.stop("-TERM"), Some(0));
    let told = shop.abide(&["run", "history", &run]).ok().out;
    assert!(told.contains("hold: resume by grace"), "{told}");
}
