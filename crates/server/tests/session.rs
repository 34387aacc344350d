//! People: users with a role, who log in with a password and get a cookie; and everything that a cookie alone must not do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use abide::Engine;
use abide_protocol::{CreateUser, Password, Role, Scope};
use abide_server::{Tls, enrol};
use desk::{Desk, client};
use reqwest::{Method, Response};
use serde_json::{Value, json};

const RUNS: &str = "/v1/namespaces/shop/runs";
const PASSWORD: &str = "correct horse battery";

/// A browser: what it was given, and what its pages know.
struct Browser<'a> {
    desk: &'a Desk,
    http: reqwest::Client,
    cookie: String,
    csrf: String,
}

async fn log_in(desk: &Desk, name: &str, password: &str) -> Response {
    let body = json!({"name": name, "password": password}).to_string();
    let request = client(&[]).post(desk.url("/v1/session")).header("content-type", "application/json");
    request.body(body).send().await.unwrap()
}

impl<'a> Browser<'a> {
    async fn log_in(desk: &'a Desk, name: &str, password: &str) -> Self {
        let answer = log_in(desk, name, password).await;
        assert_eq!(answer.status(), 200);
        let given = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
        let session: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        let cookie = given.split(';').next().unwrap().to_owned();
        Self { desk, http: client(&[]), cookie, csrf: session["csrf_token"].as_str().unwrap().to_owned() }
    }

    /// The status, and the code of a problem.
    async fn ask(&self, method: Method, path: &str, csrf: Option<&str>, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method, self.desk.url(path)).header("cookie", &self.cookie);
        if let Some(csrf) = csrf {
            request = request.header("x-csrf-token", csrf);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn start(&self, csrf: Option<&str>) -> (u16, Value) {
        self.ask(Method::POST, RUNS, csrf, Some(json!({"workflow": "wait"}))).await
    }
}

fn user(name: &str, role: Role, namespaces: &[&str]) -> CreateUser {
    let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    CreateUser { name: name.into(), role, namespaces, password: Password::new(PASSWORD) }
}

fn enrolled(desk: &Desk, asked: CreateUser) {
    let engine = desk.engine.runtime().unwrap();
    engine.keep(&[enrol(asked, engine.now()).unwrap().0]).unwrap();
}

/// AB-16: a session is what its user may do, in a cookie that no script reads and no other site sends, and ends when it is told to.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_begun_used_and_ended() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Operator, &["shop"]));
    let answer = log_in(&desk, "ada", PASSWORD).await;
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("abide_session=abide_") && !cookie.contains("Secure"), "{cookie}");
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict") && cookie.contains("; Path=/;"));
    let secret = cookie.split(['=', ';']).nth(1).unwrap();
    let said: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert!(!said.to_string().contains(secret), "the cookie is the browser's alone");
    assert_eq!(said["scopes"], json!(["read", "start", "signal", "operate"]));

    let ada = Browser::log_in(&desk, "ada", PASSWORD).await;
    let (status, shown) = ada.ask(Method::GET, "/v1/session", None, None).await;
    assert_eq!((status, &shown["name"], &shown["csrf_token"]), (200, &json!("ada"), &json!(ada.csrf)));
    assert_eq!(ada.ask(Method::GET, RUNS, None, None).await.0, 200);
    assert_eq!(ada.ask(Method::GET, "/v1/namespaces/bank/runs", None, None).await.0, 404);
    assert_eq!(ada.start(Some(&ada.csrf)).await.0, 201);
    assert_eq!(ada.ask(Method::GET, "/v1/users", None, None).await.1["code"], "forbidden");

    assert_eq!(ada.ask(Method::DELETE, "/v1/session", None, None).await.1["code"], "bad_csrf_token");
    assert_eq!(ada.ask(Method::DELETE, "/v1/session", Some(&ada.csrf), None).await.0, 204);
    assert_eq!(ada.ask(Method::GET, "/v1/session", None, None).await.1["code"], "unauthenticated");
    desk.close().await;
}

/// AB-16: a cookie alone changes nothing; another session's word does not help; neither is a session a token, nor a token a session.
#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_alone_changes_nothing() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Admin, &["*"]));
    let ada = Browser::log_in(&desk, "ada", PASSWORD).await;
    let other = Browser::log_in(&desk, "ada", PASSWORD).await;
    assert_ne!(ada.csrf, other.csrf);
    for wrong in [None, Some(""), Some("00"), Some(&other.csrf[..]), Some(&ada.csrf[1..])] {
        let (status, problem) = ada.start(wrong).await;
        assert_eq!((status, &problem["code"]), (403, &json!("bad_csrf_token")), "{wrong:?}");
    }
    for route in abide_protocol::routes().iter().filter(|route| route.method.name() != "GET") {
        if route.reach == abide_protocol::Reach::Open {
            continue;
        }
        let path = route.path.replace("{namespace}", "shop").replace(['{', '}'], "");
        let (status, problem) = ada.ask(route.method.name().parse().unwrap(), &path, None, None).await;
        assert_eq!((status, &problem["code"]), (403, &json!("bad_csrf_token")), "{path}");
    }
    let secret = ada.cookie.split_once('=').unwrap().1;
    assert_eq!(desk.with(secret).get(RUNS).await.problem(), "unauthenticated");
    let token = desk.token(&[Scope::Admin], &["*"]);
    let posing = Browser { cookie: format!("abide_session={token}"), ..ada };
    assert_eq!(posing.ask(Method::GET, RUNS, None, None).await.1["code"], "unauthenticated");
    // A token ends by being revoked.
    let gone = desk.with(&token).send(Method::DELETE, "/v1/session", &[], None).await;
    assert_eq!(gone.problem(), "not_found");
    assert_eq!(desk.with(&token).get("/v1/session").await.good()["csrf_token"], Value::Null);
    desk.close().await;
}

/// AB-16: whoever guesses learns nothing of which names there are, is stopped soon, and stands in the audit; others log in meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn guessing_is_in_vain() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Reader, &["shop"]));
    enrolled(&desk, user("bob", Role::Reader, &["shop"]));
    let mut answers = Vec::new();
    for (name, password) in [("ada", "wrong password"), ("eve", "wrong password"), ("eve", PASSWORD), ("ADA", PASSWORD)]
    {
        let answer = log_in(&desk, name, password).await;
        assert!(answer.headers().get("set-cookie").is_none());
        answers.push((answer.status().as_u16(), answer.text().await.unwrap()));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]) && answers[0].0 == 401, "{answers:?}");
    assert!(answers[0].1.contains("login_failed"));
    let mut refused = 0;
    for _ in 0..8 {
        let answer = log_in(&desk, "ada", "wrong password").await;
        refused += u32::from(answer.status() == 429);
        if refused == 1 {
            assert_eq!(answer.headers()["retry-after"], "10");
            assert!(answer.text().await.unwrap().contains("too_many_logins"));
        }
    }
    assert!(refused > 0);
    Browser::log_in(&desk, "bob", PASSWORD).await;
    let audit = desk.admin(&["*"]).get("/v1/audit").await;
    assert!(!audit.text.contains(PASSWORD) && !audit.text.contains("eve"), "{audit:?}");
    let changes = audit.good();
    let told: Vec<(&str, u64, &str)> = changes["changes"].as_array().unwrap().iter().map(told).collect();
    assert_eq!(told[0], ("bob", 200, ""));
    assert!(
        told.contains(&("ada", 401, "login_failed")) && told.contains(&("(unknown)", 401, "login_failed")),
        "{told:?}"
    );
    desk.close().await;
}

fn told(change: &Value) -> (&str, u64, &str) {
    assert_eq!(change["operation"], "session_begin");
    (change["name"].as_str().unwrap(), change["status"].as_u64().unwrap(), change["code"].as_str().unwrap_or_default())
}

/// AB-16: users are made, listed, changed and removed by whoever may; their sessions end with their password and with them.
#[tokio::test(flavor = "multi_thread")]
async fn users_are_made_changed_and_removed() {
    let desk = Desk::open("memory:").await;
    let root = desk.admin(&["*"]);
    let asked = |name: &str| json!({"name": name, "role": "operator", "namespaces": ["shop"], "password": PASSWORD});
    let made = root.post("/v1/users", asked("ada")).await;
    assert_eq!(made.status, 201);
    assert!(!made.text.contains(PASSWORD) && !made.text.contains("argon2"), "{made:?}");
    assert_eq!(root.post("/v1/users", asked("ada")).await.problem(), "user_exists");
    let mut short = asked("bob");
    short["password"] = json!("short");
    assert_eq!(root.post("/v1/users", short).await.problem(), "invalid");
    assert_eq!(root.post("/v1/users", asked("a/b")).await.problem(), "invalid");
    let listed = root.get("/v1/users").await;
    assert!(!listed.text.contains("argon2") && listed.json()["users"].as_array().unwrap().len() == 1, "{listed:?}");

    let ada = Browser::log_in(&desk, "ada", PASSWORD).await;
    let changed = root.put("/v1/users/ada/password", json!({"password": "another horse"})).await;
    assert_eq!(changed.status, 204);
    assert_eq!(ada.ask(Method::GET, RUNS, None, None).await.0, 401, "the old password's sessions are over");
    assert_eq!(log_in(&desk, "ada", PASSWORD).await.status(), 401);
    let ada = Browser::log_in(&desk, "ada", "another horse").await;
    assert_eq!(root.put("/v1/users/eve/password", json!({"password": "another horse"})).await.problem(), "not_found");
    assert_eq!(root.send(Method::DELETE, "/v1/users/ada", &[], None).await.status, 204);
    assert_eq!(ada.ask(Method::GET, RUNS, None, None).await.0, 401);
    assert_eq!(root.send(Method::DELETE, "/v1/users/ada", &[], None).await.problem(), "not_found");
    let audit = root.get("/v1/audit").await;
    for operation in ["user_create", "user_password", "user_remove", "session_begin"] {
        assert!(audit.text.contains(operation), "{operation} {audit:?}");
    }
    assert!(!audit.text.contains("horse"), "{audit:?}");
    desk.close().await;
}

/// A user has so many sessions at once; one more ends the oldest.
#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_of_too_many_sessions_ends() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Reader, &["shop"]));
    let first = Browser::log_in(&desk, "ada", PASSWORD).await;
    let second = Browser::log_in(&desk, "ada", PASSWORD).await;
    for _ in 0..9 {
        Browser::log_in(&desk, "ada", PASSWORD).await;
    }
    assert_eq!(first.ask(Method::GET, RUNS, None, None).await.0, 401);
    assert_eq!(second.ask(Method::GET, RUNS, None, None).await.0, 200);
    desk.close().await;
}

/// AB-16: over TLS the cookie goes nowhere else, and comes from nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn over_tls_the_cookie_is_secure() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let engine = Engine::open("memory:").start().await.unwrap();
    let tls = Tls::read(certificate, key).unwrap();
    let desk = Desk::over(engine, |server| server.tls(tls)).await;
    enrolled(&desk, user("ada", Role::Reader, &["shop"]));
    let http = client(&[&made.cert.pem()]);
    let url = |path: &str| format!("{}{path}", desk.server.url());
    let body = json!({"name": "ada", "password": PASSWORD}).to_string();
    let answer =
        http.post(url("/v1/session")).header("content-type", "application/json").body(body).send().await.unwrap();
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.starts_with("__Host-abide_session=") && cookie.contains("; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let ask = async |cookie: &str| http.get(url(RUNS)).header("cookie", cookie).send().await.unwrap().status().as_u16();
    assert_eq!(ask(cookie).await, 200);
    assert_eq!(ask(&cookie.replace("__Host-", "")).await, 401, "a page of a neighbour could have set that one");
    desk.close().await;
}

/// AB-16: a session that a login writes after its user was removed, or got another password, is good for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_raced_a_change_is_over() {
    let desk = Desk::open("memory:").await;
    let engine = desk.engine.runtime().unwrap();
    let account = || enrol(user("ada", Role::Reader, &["shop"]), engine.now()).unwrap().0;
    for again in [None, Some(account())] {
        engine.keep(&[account()]).unwrap();
        let ada = Browser::log_in(&desk, "ada", PASSWORD).await;
        assert_eq!(ada.ask(Method::GET, RUNS, None, None).await.0, 200);
        // As the login of another server would leave it: the account is not the one that was looked at any more.
        let session = engine.tokens().unwrap().into_iter().find(|token| token.body.contains("session_of")).unwrap();
        let path = "/v1/users/ada";
        assert_eq!(desk.admin(&["*"]).send(Method::DELETE, path, &[], None).await.status, 204);
        again.iter().for_each(|kept| engine.keep(std::slice::from_ref(kept)).unwrap());
        engine.write_token(&session).unwrap();
        assert_eq!(ada.ask(Method::GET, RUNS, None, None).await.0, 401);
    }
    desk.close().await;
}

/// One name is one user, however many ask for it at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_given_once() {
    let desk = Desk::open("memory:").await;
    let root = desk.admin(&["*"]);
    let asked = json!({"name": "ada", "role": "reader", "namespaces": ["shop"], "password": PASSWORD});
    let all = futures_util::future::join_all((0..6).map(|_| root.post("/v1/users", asked.clone()))).await;
    let mut answers: Vec<u16> = all.iter().map(|heard| heard.status).collect();
    answers.sort_unstable();
    assert_eq!(answers, [201, 409, 409, 409, 409, 409]);
    desk.close().await;
}

/// Nobody is known before a login: it may be no larger than a name and a password, and only so many may wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_small() {
    let desk = Desk::open("memory:").await;
    let answer = log_in(&desk, "ada", &"x".repeat(8 * 1024)).await;
    assert_eq!(answer.status(), 413);
    let (http, url) = (client(&[]), desk.url("/v1/session"));
    let many = futures_util::future::join_all((0..200).map(|number| {
        let body = json!({"name": format!("nobody {number}"), "password": "wrong password"}).to_string();
        http.post(&url).header("content-type", "application/json").body(body).send()
    }));
    let answers: Vec<u16> = many.await.into_iter().map(|answer| answer.unwrap().status().as_u16()).collect();
    assert!(answers.contains(&401) && answers.contains(&429), "{answers:?}");
    desk.close().await;
}

/// AB-16: what was refused before it was looked at is in the audit too: once for a name that is tried too often.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_at_the_door_are_kept() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Admin, &["*"]));
    let ada = Browser::log_in(&desk, "ada", PASSWORD).await;
    assert_eq!(ada.start(None).await.1["code"], "bad_csrf_token");
    for _ in 0..10 {
        log_in(&desk, "ada", "wrong password").await;
    }
    let audit = desk.admin(&["*"]).get("/v1/audit").await.good();
    let of = |code: &str| audit["changes"].as_array().unwrap().iter().filter(|change| change["code"] == code).count();
    assert_eq!((of("bad_csrf_token"), of("too_many_logins")), (1, 1), "{audit}");
    assert!(audit["changes"].as_array().unwrap().iter().all(|change| change["name"] == "ada"), "{audit}");
    desk.close().await;
}

/// AB-16: behind somebody who speaks TLS, browsers are told to send the cookie in no other way.
#[tokio::test(flavor = "multi_thread")]
async fn behind_tls_the_cookie_is_secure() {
    let desk = Desk::over(Engine::open("memory:").start().await.unwrap(), |server| server.behind_tls()).await;
    enrolled(&desk, user("ada", Role::Reader, &["shop"]));
    let answer = log_in(&desk, "ada", PASSWORD).await;
    let given = answer.headers()["set-cookie"].to_str().unwrap();
    assert!(given.starts_with("__Host-abide_session=") && given.ends_with("; Secure"), "{given}");
}

/// AB-16, AB-12: whoever logged in decides under their own name; only one who may do everything names another.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_logged_in_decides_under_their_own_name() {
    let desk = Desk::open("memory:").await;
    enrolled(&desk, user("ada", Role::Operator, &["shop"]));
    enrolled(&desk, user("root", Role::Admin, &["*"]));
    let (ada, root) = (Browser::log_in(&desk, "ada", PASSWORD).await, Browser::log_in(&desk, "root", PASSWORD).await);
    let started = desk.admin(&["shop"]).post(RUNS, json!({"workflow": "wait"})).await.good();
    let run = started["run"].as_str().unwrap();
    let resolve = format!("{RUNS}/{run}/effects/resolve");
    let task = format!("/v1/namespaces/shop/tasks/manual_{}.1/claim", &run[4..]);
    for (path, body) in [(&resolve, json!({"effect": "pay", "how": "retry"})), (&task, json!({}))] {
        let with = |actor: Option<&str>| {
            let mut body = body.clone();
            actor.into_iter().for_each(|actor| body["actor"] = json!(actor));
            Some(body)
        };
        let forbidden = ada.ask(Method::POST, path, Some(&ada.csrf), with(Some("eve"))).await;
        assert_eq!((forbidden.0, forbidden.1["code"].as_str()), (403, Some("forbidden")), "{path}");
        for (who, actor) in [(&ada, Some("ada")), (&ada, None), (&root, Some("eve"))] {
            let passed = who.ask(Method::POST, path, Some(&who.csrf), with(actor)).await;
            assert_ne!(passed.1["code"], "forbidden", "{path} {actor:?}");
        }
    }
}
