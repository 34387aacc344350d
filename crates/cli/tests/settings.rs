//! Settings: files, environment and options, who goes before whom, and what is wrong with them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod shop;

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::Value;
use shop::{Answer, Shop};

#[track_caller]
fn refused(answer: &Answer, exit: i32, code: &str) {
    assert_eq!(answer.code, exit, "{answer:?}");
    assert!(answer.err.contains(&format!("code: {code}\n")), "{answer:?}");
    assert!(answer.out.is_empty(), "{answer:?}");
}

/// The value of a setting, and who said it.
fn said(answer: Answer, key: &str) -> (String, String) {
    let settings = answer.ok().json();
    let all = settings["settings"].as_array().unwrap();
    let found = all.iter().find(|setting| setting["key"] == key).unwrap_or(&Value::Null);
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("value"), text("from"))
}

#[test]
fn every_value_says_where_it_comes_from() {
    let shop = Shop::new();
    let show = ["config", "show", "--json"];
    assert_eq!(said(shop.abide(&show), "store"), ("sqlite:abide.db".into(), "default".into()));
    std::fs::create_dir_all(shop.dir().join(".config/abide")).unwrap();
    let user = "[profile.default]\nnamespace = \"user\"\ncolor = \"never\"\n\n[profile.far]\nurl = \"http://far:1\"\ntoken_file = \"~/far\"\n";
    std::fs::write(shop.dir().join(".config/abide/config.toml"), user).unwrap();
    let (value, from) = said(shop.abide(&show), "namespace");
    assert!(value == "user" && from.starts_with("profile default of ") && from.ends_with("config.toml"), "{from}");
    // The folder's profile goes before the user's of the same name, whole.
    std::fs::write(shop.dir().join("abide.toml"), "[profile.default]\nstore = \"sqlite:here.db\"\n").unwrap();
    assert_eq!(said(shop.abide(&show), "store").0, "sqlite:here.db");
    assert_eq!(said(shop.abide(&show), "color"), ("auto".into(), "default".into()));
    let far = said(shop.abide(&["--profile", "far", "config", "show", "--json"]), "token");
    assert_eq!(far.0, format!("in {}", shop.dir().join("far").display()));
    let env = [("ABIDE_STORE", "sqlite:env.db"), ("DATABASE_URL", "postgres://x/y")];
    assert_eq!(said(shop.abide_in(&show, "", &env), "store"), ("sqlite:env.db".into(), "ABIDE_STORE".into()));
    let flag = shop.abide_in(&["--store", "sqlite:flag.db", "config", "show", "--json"], "", &env);
    assert_eq!(said(flag, "store"), ("sqlite:flag.db".into(), "--store".into()));
    let secret = shop.abide_in(&["--url", "http://h:1", "config", "show"], "", &[("ABIDE_TOKEN", "abide_secret")]).ok();
    assert!(secret.out.contains("token\tset\tABIDE_TOKEN\n") && !secret.out.contains("secret"), "{secret:?}");
    let password = shop.abide_in(&["config", "show"], "", &[("ABIDE_STORE", "postgres://ada:hush@h/d")]).ok();
    assert!(!format!("{password:?}").contains("hush"), "{password:?}");
}

#[test]
fn what_is_wrong_with_settings_is_named() {
    let shop = Shop::new();
    let with = |text: &str, args: &[&str]| {
        std::fs::write(shop.dir().join("abide.toml"), text).unwrap();
        shop.abide(args)
    };
    let list = ["run", "list"];
    let near = with("[profile.default]\nnamspace = \"shop\"\n", &list);
    refused(&near, 2, "unknown_key");
    assert!(near.err.contains("profile.default.namspace") && near.err.contains("did you mean namespace?"), "{near:?}");
    let top = with("[profiles.default]\nnamespace = \"shop\"\n", &list);
    assert!(top.err.contains("did you mean profile?"), "{top:?}");
    let secret = with("[profile.default]\ntoken = \"abide_hush\"\n", &list);
    assert!(secret.err.contains("token_file") && !secret.err.contains("hush"), "{secret:?}");
    let broken = with("[profile.default]\nurl = \n", &list);
    refused(&broken, 2, "bad_config");
    assert!(broken.err.contains("abide.toml, line 2"), "{broken:?}");
    refused(&with("[profile.default]\nnamespace = 7\n", &list), 2, "bad_config");
    refused(&with("profile = 7\n", &list), 2, "bad_config");
    let word = with("[profile.default]\noutput = \"jsn\"\n", &list);
    refused(&word, 2, "bad_setting");
    assert!(word.err.contains("did you mean json?"), "{word:?}");
    refused(&with("[profile.default]\nstore = \"sqlite:a\"\nurl = \"http://h:1\"\n", &list), 2, "two_places");
    let named = with("[profile.shop]\n", &["--profile", "shp", "run", "list"]);
    refused(&named, 2, "no_profile");
    assert!(named.err.contains("did you mean shop?"), "{named:?}");
    std::fs::remove_file(shop.dir().join("abide.toml")).unwrap();
    refused(&shop.abide_in(&list, "", &[("ABIDE_CONFIG", "nowhere.toml")]), 2, "bad_config");
    let both = ["--store", "sqlite:a", "--url", "http://h:1", "run", "list"];
    refused(&shop.abide(&both), 2, "two_places");
    let json = shop.abide(&[&both[..], &["--json"]].concat());
    let error: Value = serde_json::from_str(&json.err).unwrap();
    assert_eq!(error["error"]["code"], "two_places");
    for url in ["h:1", "http://ada:hush@h:1", "http://h:1/v1"] {
        let bad = shop.abide(&["--url", url, "run", "list"]);
        refused(&bad, 2, "bad_url");
        assert!(!bad.err.contains("hush"), "{bad:?}");
    }
}

/// A folder's file names a server, and what is kept for others is not sent there.
#[test]
fn a_folder_does_not_get_at_a_token() {
    let shop = Shop::new();
    std::fs::write(shop.dir().join("abide.toml"), "[profile.default]\nurl = \"http://evil.example:1\"\n").unwrap();
    let withheld = shop.abide_in(&["run", "list"], "", &[("ABIDE_TOKEN", "abide_hush")]);
    refused(&withheld, 2, "token_withheld");
    assert!(withheld.err.contains("--url") && withheld.err.contains("config.toml"), "{withheld:?}");
    let shown = shop.abide_in(&["config", "show"], "", &[("ABIDE_TOKEN", "abide_hush")]).ok();
    assert!(shown.out.contains("token\twithheld\tABIDE_TOKEN\n"), "{shown:?}");
    let theirs = "[profile.default]\nurl = \"http://evil.example:1\"\ntoken_file = \"~/.ssh/id_rsa\"\n";
    std::fs::write(shop.dir().join("abide.toml"), theirs).unwrap();
    refused(&shop.abide(&["run", "list"]), 2, "bad_config");
}

/// A file that nobody named and that may not be read, like those of another home, stops nobody.
#[test]
fn a_home_that_may_not_be_read_is_passed_over() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let shop = Shop::new();
    let home = shop.dir().join("home");
    std::fs::create_dir(&home).unwrap();
    let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(shop.dir(), 0o777);
    mode(&home, 0o000);
    let abide = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = shop.command();
        command.args(args).env("HOME", &home).envs(env.iter().copied());
        // Nothing is closed to root.
        if std::fs::metadata(&home).unwrap().uid() == 0 {
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    };
    let shown = abide(&["config", "show"], &[]).ok();
    assert!(shown.out.contains("config.toml\tthe user, unreadable: "), "{shown:?}");
    assert!(shown.err.contains("config.toml is passed over"), "{shown:?}");
    let named = home.join("config.toml").display().to_string();
    refused(&abide(&["config", "show"], &[("ABIDE_CONFIG", named.as_str())]), 2, "bad_config");
    mode(&home, 0o700);
}

/// What is shown is what holds, by whichever option it was said, wherever that stands.
#[test]
fn json_may_be_asked_for_anywhere() {
    let shop = Shop::new();
    for args in [["--json", "config", "show"], ["config", "--json", "show"], ["config", "show", "--json"]] {
        assert_eq!(said(shop.abide(&args), "output"), ("json".into(), "--json".into()));
    }
    let lines = shop.abide(&["-o", "jsonl", "config", "show", "--json"]).ok();
    assert!(lines.out.lines().all(|line| line.starts_with("{\"")), "{lines:?}");
    let error = shop.abide(&["--json", "run", "list"]);
    assert!(error.err.starts_with("{\"error\""), "{error:?}");
}

/// A store that abide dev left is what commands in its folder look at, and is not taken for a server that runs.
#[test]
fn a_store_that_was_kept_is_said_to_be() {
    let shop = Shop::new();
    std::fs::create_dir(shop.dir().join(".abide")).unwrap();
    let old = format!("sqlite:{}", shop.dir().join(".abide/abide.db").display());
    shop.abide(&["--store", &old, "run", "start", "greet"]).ok();
    let (value, from) = said(shop.abide(&["config", "show", "--json"]), "store");
    assert!(value.ends_with(".abide/abide.db") && from.starts_with("kept by abide dev"), "{value} {from}");
}

/// What a server says of another server is told, and the token goes to neither it nor whoever it names.
#[test]
fn a_redirect_is_not_followed() {
    let shop = Shop::new();
    let (server, other) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (url, elsewhere) = (server.local_addr().unwrap(), other.local_addr().unwrap());
    let redirecting = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        let head = format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{elsewhere}/v1\r\n");
        stream.write_all((head + "Content-Length: 0\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    });
    let list = ["--url", &format!("http://{url}"), "run", "list"];
    let answer = shop.abide_in(&list, "", &[("ABIDE_TOKEN", "abide_hush")]);
    redirecting.join().unwrap();
    refused(&answer, 1, "not_abide");
    let said = answer.err.contains(&format!("http://{elsewhere}/v1")) && answer.err.contains("not followed");
    assert!(said, "{answer:?}");
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "nobody came");
}

/// Whoever answers at the address, if anybody does, is told apart.
#[test]
fn a_server_that_is_not_there_or_another_is_told_apart() {
    let shop = Shop::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("http://{address}");
    let page = "<html>\u{1b}[31mhello</html>";
    let foreign = std::thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let mut heard = [0; 4096];
            let _ = stream.read(&mut heard).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
            stream.write_all((head + page).as_bytes()).unwrap();
        }
    });
    refused(&shop.abide(&["--url", &url, "run", "list"]), 1, "not_abide");
    refused(&shop.abide(&["--url", &url, "run", "start", "greet"]), 1, "not_abide");
    let run = format!("run_{}", "0".repeat(32));
    let watched = shop.abide(&["--url", &url, "run", "watch", &run]);
    refused(&watched, 1, "not_abide");
    foreign.join().unwrap();
    // Nobody is there any more.
    // Of a question that was not answered nothing is left open, and of a change nobody knows.
    let looking = [&["run", "list"][..], &["run", "watch", &run], &["token", "list"], &["user", "list"]];
    let changing = [&["run", "start", "greet"][..], &["token", "revoke", "x"], &["queue", "pause", "mail"]];
    for (args, exit) in looking.into_iter().map(|args| (args, 1)).chain(changing.into_iter().map(|args| (args, 5))) {
        let nobody = shop.abide(&[&["--url", &url], args].concat());
        refused(&nobody, exit, "unreachable");
        assert!(nobody.err.contains(&url), "{nobody:?}");
    }
}

/// AB-15: what a server goes by is said by options, by the environment, by files and by nobody, in this order.
#[test]
fn what_a_server_goes_by_says_where_it_comes_from() {
    let shop = Shop::new();
    let show = ["config", "show", "--json"];
    let shown = |key: &str, env: &[(&str, &str)]| said(shop.abide_in(&show, "", env), key);
    assert_eq!(shown("serve.listen", &[]), ("127.0.0.1:7411".into(), "default".into()));
    std::fs::create_dir_all(shop.dir().join(".config/abide")).unwrap();
    let user =
        "[serve]\nlisten = \"0.0.0.0:80\"\nmax_rate = 7\ntls_cert = \"cert.pem\"\notlp = \"http://u:hush@h:1\"\n";
    std::fs::write(shop.dir().join(".config/abide/config.toml"), user).unwrap();
    let (value, from) = shown("serve.max_rate", &[]);
    assert!(value == "7" && from.starts_with("serve of ") && from.ends_with("config.toml"), "{from}");
    assert_eq!(shown("serve.max_rate", &[("ABIDE_MAX_RATE", "9")]), ("9".into(), "ABIDE_MAX_RATE".into()));
    let cert = shop.dir().join(".config/abide/cert.pem").display().to_string();
    assert_eq!(shown("serve.tls_cert", &[]).0, cert, "from where the file is");
    assert_eq!(shown("serve.otlp", &[]).0, "set", "it may have a password");
    // The key is nowhere: nobody begins to speak plainly instead.
    refused(&shop.abide(&["serve", "--listen", "127.0.0.1:0"]), 2, "tls_no_key");
    std::fs::write(shop.dir().join("abide.toml"), "[serve]\nmax_rate = 8\nlisten = \"127.0.0.1:1\"\n").unwrap();
    assert_eq!((shown("serve.max_rate", &[]).0, shown("serve.listen", &[]).0), ("8".into(), "127.0.0.1:1".into()));
}

/// AB-15, AB-16: a folder may be somebody else's; its file opens no door, and what nobody knows is named.
#[test]
fn the_file_of_a_folder_opens_no_door() {
    let shop = Shop::new();
    let with = |text: &str| {
        std::fs::write(shop.dir().join("abide.toml"), format!("[serve]\n{text}\n")).unwrap();
        shop.abide(&["config", "show"])
    };
    for wrong in
        ["listen = \"0.0.0.0:1\"", "tls_key = \"k\"", "otlp = \"http://evil:1\"", "node_listen = \"0.0.0.0:1\""]
    {
        refused(&with(wrong), 2, "bad_config");
    }
    let unknown = with("max_bodies = \"1MiB\"");
    refused(&unknown, 2, "unknown_key");
    assert!(unknown.err.contains("did you mean max_body?"), "{unknown:?}");
    refused(&with("max_body = \"1TB\""), 2, "bad_setting");
    refused(&with("drain = 1.5"), 2, "bad_config");
    with("drain = \"5s\"\nlog = \"json\"\nmax_body = 1048576").ok();
    std::fs::write(shop.dir().join("abide.toml"), "[server]\n").unwrap();
    refused(&shop.abide(&["config", "show"]), 2, "unknown_key");
}
