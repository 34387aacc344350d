//! `abide dev`, and the other verbs in its folder.

mod shop;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use shop::Shop;
use shop::served::{Served, Stopping};

const GREET: [&str; 6] = ["run", "start", "greet", "--input", r#"{"name":"Ada"}"#, "--follow"];

/// A store of this folder, without a token, for a first try; the next one goes on with it.
#[test]
fn the_first_five_minutes_need_nothing() {
    let shop = Shop::new();
    let open = shop.abide(&["dev", "--listen", "0.0.0.0:0"]);
    assert!(open.code == 2 && open.err.contains("open_to_all"), "{open:?}");
    assert!(!open.err.contains("--no-auth out") && open.err.contains("abide serve"), "{open:?}");
    assert!(!shop.dir().join(".abide").exists(), "nothing is left behind");
    let served = Served::by(&shop, "dev", &[]);
    let greeted = shop.abide(&GREET).ok();
    assert!(greeted.out.contains("hello Ada, and goodbye Ada"), "{greeted:?}");
    // Without an input, as the help says.
    let greeted = shop.abide(&["run", "start", "greet", "--follow"]).ok();
    assert!(greeted.out.contains("hello world, and goodbye world"), "{greeted:?}");
    let shown = shop.abide(&["config", "show"]).ok();
    assert!(shown.out.contains(&served.url()) && shown.out.contains("abide dev in this folder"), "{shown:?}");
    assert_eq!(served.stop("-INT"), Some(0));

    // What was kept is there without it, and with the next one.
    let runs = shop.abide(&["run", "list", "--json"]).ok().json();
    assert_eq!(runs["runs"][0]["workflow"], "greet", "{runs}");
    let served = Served::by(&shop, "dev", &["--no-example"]);
    assert_eq!(shop.abide(&["run", "list", "--json"]).ok().json()["runs"].as_array().map(Vec::len), Some(2));
    let explained = shop.abide(&["run", "start", "greet", "--json"]).ok().json();
    let run = explained["run"].as_str().expect("a run");
    assert!(shop.abide(&["run", "explain", run]).ok().out.contains("no live worker"), "the example is left out");
    let again = shop.abide(&["dev"]);
    assert!(again.code == 1 && again.err.contains(&served.url()) && again.err.contains("store_in_use"), "{again:?}");
    // What needs a store is told of the one that is there.
    assert_eq!(shop.abide(&["store", "stats", "--json"]).ok().json()["runs"]["done"], 2);
    assert_eq!(served.stop("-TERM"), Some(0));
    assert!(!shop.path().exists(), "no other store was made");
}

/// It tells of itself as any other server does: levels are heard, and what is no collector is refused.
#[test]
fn it_logs_as_a_server_does() {
    let shop = Shop::new();
    let wrong = shop.abide(&["dev", "--log-level", "loud"]);
    assert!(wrong.code == 2 && wrong.err.contains("code: bad_log_level"), "{wrong:?}");
    let wrong = shop.abide(&["dev", "--otlp", "nowhere"]);
    assert!(wrong.code == 2 && wrong.err.contains("code: bad_collector"), "{wrong:?}");
    let mut stopping = Stopping::begin(&shop, "dev", &["--log", "json", "--log-level", "info"]);
    shop.abide(&GREET).ok();
    let line = stopping.hears("\"level\":\"INFO\"");
    assert!(line.starts_with('{'), "{line}");
    stopping.tell("-INT");
    assert_eq!(stopping.ended(), Some(0));
}

/// One that is killed leaves a note of where it was; nobody believes it.
#[test]
fn a_server_that_was_killed_is_not_asked() {
    let shop = Shop::new();
    let served = Served::by(&shop, "dev", &["--no-example"]);
    let run = shop.abide(&["run", "start", "greet", "--json"]).ok().json();
    served.stop("-KILL");
    assert!(shop.dir().join(".abide/dev.json").exists());
    let runs = shop.abide(&["run", "list", "--json"]).ok().json();
    assert_eq!(runs["runs"][0]["run"], run["run"]);
    let served = Served::by(&shop, "dev", &[]);
    assert_eq!(shop.abide(&["run", "list", "--json"]).ok().json()["runs"][0]["run"], run["run"]);
    assert_eq!(served.stop("-INT"), Some(0));
}

/// Whoever owns the store is told in the same way, whichever verb finds out.
#[test]
fn a_store_in_use_is_always_the_same_failure() {
    let shop = Shop::new();
    let served = Served::by(&shop, "dev", &["--no-example", "--store", "sqlite:abide.db"]);
    for args in [&["dev"][..], &["dev", "--store", "sqlite:abide.db"], &["serve", "--store", "sqlite:abide.db"]] {
        let refused = shop.abide(&[args, &["--listen", "localhost:0"]].concat());
        assert!(refused.code == 1 && refused.err.contains("code: store_in_use"), "{refused:?}");
    }
    assert_eq!(served.stop("-INT"), Some(0));
}

/// A folder that may not be written to is named, and what to do there.
#[test]
fn a_folder_that_may_not_be_written_to_is_named() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let shop = Shop::new();
    std::fs::set_permissions(shop.dir(), PermissionsExt::from_mode(0o555)).expect("it is ours");
    let begun = || {
        let mut command = shop.command();
        // Nothing is closed to root.
        if std::fs::metadata(shop.dir()).expect("it is there").uid() == 0 {
            command.uid(65_534).gid(65_534);
        }
        let output = command.args(["dev", "--listen", "127.0.0.1:0"]).output().expect("the binary runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    };
    let said = begun();
    assert!(said.contains(".abide cannot be made") && said.contains(shop.dir().to_str().expect("text")), "{said}");
    assert!(said.contains("--ephemeral") && said.contains("code: unwritable"), "{said}");
    std::fs::set_permissions(shop.dir(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    std::fs::create_dir(shop.dir().join(".abide")).expect("it is made");
    std::fs::set_permissions(shop.dir().join(".abide"), PermissionsExt::from_mode(0o555)).expect("it is ours");
    let said = begun();
    assert!(said.contains(".abide/abide.db.lock") && said.contains("--store sqlite:PATH"), "{said}");
    std::fs::set_permissions(shop.dir().join(".abide"), PermissionsExt::from_mode(0o755)).expect("it is ours");
}

/// A folder that somebody else made has links of names that are known before; what they lead to stays as it is.
#[test]
fn links_in_a_folder_are_not_written_through() {
    let shop = Shop::new();
    let precious = shop.dir().join("precious");
    std::fs::write(&precious, "keep me").expect("it is written");
    std::fs::create_dir(shop.dir().join(".abide")).expect("it is made");
    for name in ["dev.new", "dev.json"] {
        std::os::unix::fs::symlink(&precious, shop.dir().join(".abide").join(name)).expect("it is linked");
    }
    let served = Served::by(&shop, "dev", &["--no-example"]);
    shop.abide(&["run", "list"]).ok();
    assert_eq!(served.stop("-INT"), Some(0));
    let lock = shop.dir().join(".abide/abide.db.lock");
    std::fs::remove_file(&lock).expect("it is there");
    std::os::unix::fs::symlink(&precious, &lock).expect("it is linked");
    let led = shop.abide(&["dev", "--listen", "127.0.0.1:0"]);
    assert!(led.code == 1 && led.err.contains("symbolic link"), "{led:?}");
    assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "keep me");
}

/// Whoever presses Ctrl-C learns what keeps it: attempts of the example, and requests that came in half.
#[test]
fn one_that_stops_says_what_it_waits_for() {
    let shop = Shop::new();
    let mut stopping = Stopping::begin(&shop, "serve", &["--no-auth"]);
    let mut half = stopping.connect();
    half.write_all(
        b"POST /v1/namespaces/default/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
        Content-Length: 20\r\n\r\n{\"workflow\":",
    )
    .expect("it listens");
    // By then it has been read: connections are accepted one after the other.
    let mut whole = stopping.connect();
    whole.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").expect("it listens");
    whole.read_to_end(&mut Vec::new()).expect("it answers");
    stopping.tell("-INT");
    stopping.hears("waiting for 1 open request");
    half.write_all(b"\"greet\"}").expect("it still listens");
    assert_eq!(stopping.ended(), Some(0));
}

#[test]
fn what_is_ephemeral_leaves_nothing() {
    let shop = Shop::new();
    let refused = shop.abide(&["--store", "sqlite:abide.db", "dev", "--ephemeral"]);
    assert!(refused.code == 2 && refused.err.contains("two_places"), "{refused:?}");
    let served = Served::by(&shop, "dev", &["--ephemeral"]);
    shop.abide(&GREET).ok();
    assert_eq!(served.stop("-INT"), Some(0));
    assert_eq!(std::fs::read_dir(shop.dir()).expect("a folder").count(), 0, "the folder is as it was");
}

/// The store that is named is the one that is served, also by the name that it would have anyway.
#[test]
fn a_store_that_is_named_is_served() {
    let shop = Shop::new();
    let served = Served::by(&shop, "dev", &["--store", "sqlite:abide.db"]);
    assert!(shop.path().exists() && !shop.dir().join(".abide/abide.db").exists());
    shop.abide(&GREET).ok();
    assert_eq!(served.stop("-INT"), Some(0));
    assert_eq!(shop.abide(&["run", "list", "--json"]).ok().json()["runs"].as_array().map(Vec::len), Some(1));
}

/// Where the usual port is taken the next one is; whoever asks for one gets that or nothing.
#[test]
fn a_port_that_is_taken_is_passed_over() {
    let shop = Shop::new();
    // It may be taken already, by somebody else.
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 7411));
    let served = Served::where_it_likes(&shop, "dev", &[]);
    assert!(!served.url().ends_with(":7411"), "{}", served.url());
    let greeted = shop.abide(&GREET).ok();
    assert!(greeted.out.contains("hello Ada"), "{greeted:?}");
    let asked = shop.abide(&["dev", "--ephemeral", "--listen", served.url().trim_start_matches("http://")]);
    assert!(asked.code == 2 && asked.err.contains("nobody can listen at"), "{asked:?}");
    assert_eq!(served.stop("-INT"), Some(0));
}
