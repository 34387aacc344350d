//! TLS over a real socket: certificates that are made here, believed by real clients, renewed while connections go on, and
//! refused where they cannot be used.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod desk;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use abide::{Client, ClientError, Ctx, Engine, Machine, StartError, done};
use abide_server::{Limits, Tls, TlsError};
use desk::{Desk, believing, client};
use reqwest::Version;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LONG: Duration = Duration::from_secs(20);

/// A folder with a certificate that vouches for itself, and its key.
struct Papers {
    folder: TempDir,
    certificate: String,
}

impl Papers {
    fn new() -> Self {
        let mut papers = Self { folder: TempDir::new().unwrap(), certificate: String::new() };
        papers.renew();
        papers
    }

    /// Puts another certificate in the place of what is there.
    fn renew(&mut self) {
        let names = ["127.0.0.1".to_owned(), "shop.test".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        self.certificate = made.cert.pem();
        self.put("cert.pem", &self.certificate);
        self.put("key.pem", &made.signing_key.serialize_pem());
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self) -> Result<Tls, TlsError> {
        Tls::read(self.path("cert.pem"), self.path("key.pem"))
    }
}

async fn desk(tls: &Tls) -> Desk {
    let engine = desk::workflows(Engine::open("memory:")).start().await.unwrap();
    Desk::over(engine, |server| server.tls(tls.clone()).without_login()).await
}

/// Both versions of HTTP are spoken inside of TLS, as the client likes it, and nothing outside of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_chooses_the_version_of_http() {
    let papers = Papers::new();
    let desk = desk(&papers.read().unwrap()).await;
    assert!(desk.server.url().starts_with("https://127.0.0.1:"), "{}", desk.server.url());
    let url = format!("{}/v1/nodes", desk.server.url());
    let two = client(&[&papers.certificate]).get(&url).send().await.unwrap();
    assert_eq!((two.status().as_u16(), two.version()), (200, Version::HTTP_2));
    let one = believing(&[&papers.certificate]).http1_only().build().unwrap().get(&url).send().await.unwrap();
    assert_eq!((one.status().as_u16(), one.version()), (200, Version::HTTP_11));
    let stranger = Papers::new();
    let refused = client(&[&stranger.certificate]).get(&url).send().await.unwrap_err();
    assert!(format!("{refused:?}").contains("InvalidCertificate"), "{refused:?}");
    let plain = client(&[]).get(url.replace("https:", "http:")).send().await;
    assert!(plain.is_err(), "{plain:?}");
    desk.close().await;
}

/// The host that was meant is looked at in either version of HTTP: the second has no header for it.
#[tokio::test(flavor = "multi_thread")]
async fn another_host_is_refused_in_both_versions_of_http() {
    let papers = Papers::new();
    let desk = desk(&papers.read().unwrap()).await;
    let address = desk.server.address();
    let url = format!("https://shop.test:{}/v1/nodes", address.port());
    let knows = || believing(&[&papers.certificate]).resolve("shop.test", address);
    for (client, version) in [(knows(), Version::HTTP_2), (knows().http1_only(), Version::HTTP_11)] {
        let heard = client.build().unwrap().get(&url).send().await.unwrap();
        assert_eq!((heard.status().as_u16(), heard.version()), (421, version));
        assert!(heard.text().await.unwrap().contains("bad_host"));
    }
    desk.close().await;
}

/// The Rust SDK, as a worker and as a client, over TLS; and it does not speak with whom it cannot believe.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_and_a_client_in_rust_speak_tls() {
    let papers = Papers::new();
    let engine = Engine::open("memory:").start().await.unwrap();
    let tls = papers.read().unwrap();
    let desk = Desk::over(engine, |server| server.tls(tls)).await;
    let token = desk.token(&[abide_protocol::Scope::Admin], &["shop"]);
    let url = desk.server.url();
    let greet =
        Machine::<String>::new("greet").step("say", async |_: Ctx, name: String| Ok(done(&format!("hello {name}"))));
    let worker = Engine::open(&url).token(&token).namespace("shop").trust(papers.certificate.clone());
    let worker = worker.register(greet).start().await.unwrap();
    let connect = || Client::connect(&url).token(&token).namespace("shop");
    let client = connect().trust(papers.certificate.clone()).open().unwrap();
    let run = client.start("greet", &"Ada").await.unwrap();
    let said: String = tokio::time::timeout(LONG, run.result()).await.unwrap().unwrap();
    assert_eq!(said, "hello Ada");

    let Err(refused) = connect().open().unwrap().start("greet", &"Eve").await else { panic!("it was believed") };
    assert!(matches!(&refused, ClientError::Distrusted(why) if why.contains("certificate")), "{refused:?}");
    let wrong = connect().trust("not a certificate").open();
    assert!(matches!(&wrong, Err(StartError::Server { problem, .. }) if problem.contains("BEGIN CERTIFICATE")));
    worker.stop(LONG).await;
    desk.close().await;
}

/// A renewed certificate is shown to whoever connects from then on; a stream that is there goes on. What cannot be used
/// changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_while_connections_go_on() {
    let mut papers = Papers::new();
    let tls = papers.read().unwrap();
    let desk = desk(&tls).await;
    let url = |path: &str| format!("{}/v1/namespaces/shop{path}", desk.server.url());
    let first = client(&[&papers.certificate]);
    let mut stream = first.get(url("/events")).send().await.unwrap();
    let following = stream.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&following).contains("event: following"));

    papers.put("key.pem", "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n");
    assert!(matches!(tls.read_again(), Err(TlsError::Malformed { .. } | TlsError::Unusable { .. })));
    let old = papers.certificate.clone();
    let listed = async |certificate: &str| client(&[certificate]).get(url("/runs")).send().await;
    assert_eq!(listed(&old).await.unwrap().status(), 200);

    papers.renew();
    assert!(tls.read_again().unwrap());
    assert!(!tls.read_again().unwrap(), "it is the same");
    assert_eq!(listed(&papers.certificate).await.unwrap().status(), 200);
    assert!(listed(&old).await.is_err());
    let second = client(&[&papers.certificate]);
    let body = json!({"workflow": "wait"}).to_string();
    let started = second.post(url("/runs")).header("content-type", "application/json").body(body);
    let started: Value = serde_json::from_str(&started.send().await.unwrap().text().await.unwrap()).unwrap();
    let told = tokio::time::timeout(LONG, stream.chunk()).await.unwrap().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&told).contains(started["run"].as_str().unwrap()));
    drop(stream);
    desk.close().await;
}

/// Whoever connects and does not come to speak TLS holds a connection for so long and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_has_its_time() {
    let papers = Papers::new();
    let engine = Engine::open("memory:").start().await.unwrap();
    let mut limits = Limits::default();
    limits.handshake_max = Duration::from_millis(50);
    let tls = papers.read().unwrap();
    let desk = Desk::within(engine, limits, |server| server.tls(tls).without_login()).await;
    for said in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut silent = TcpStream::connect(desk.server.address()).await.unwrap();
        silent.write_all(said).await.unwrap();
        let mut heard = Vec::new();
        let ended = tokio::time::timeout(LONG, silent.read_to_end(&mut heard)).await;
        assert!(ended.is_ok(), "it may stay for ever");
    }
    desk.close().await;
}

/// A server that stops does not wait for those who have not said anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_does_not_hold_up_the_end() {
    let papers = Papers::new();
    let desk = desk(&papers.read().unwrap()).await;
    let address: SocketAddr = desk.server.address();
    let _silent = TcpStream::connect(address).await.unwrap();
    // Accepted in order: whoever is answered came after it.
    let url = format!("{}/healthz", desk.server.url());
    assert_eq!(client(&[&papers.certificate]).get(url).send().await.unwrap().status(), 200);
    let began = std::time::Instant::now();
    desk.close().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

/// Everything that may be wrong with the files has an error of its own, before anybody is answered.
#[test]
fn files_that_cannot_be_used_are_refused() {
    let papers = Papers::new();
    let (certificate, key) = (papers.text("cert.pem"), papers.text("key.pem"));
    let with = |certificate: &str, key: &str| {
        papers.put("cert.pem", certificate);
        papers.put("key.pem", key);
        papers.read().map(|_| ()).unwrap_err()
    };
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let of_old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMIIB\n\
                  -----END RSA PRIVATE KEY-----\n";
    let nonsense = "-----BEGIN PRIVATE KEY-----\nbm9uc2Vuc2U=\n-----END PRIVATE KEY-----\n";
    let broken = &certificate[..certificate.len() / 2];
    assert!(matches!(with(&certificate, encrypted), TlsError::EncryptedKey { .. }));
    assert!(matches!(with(&certificate, of_old), TlsError::EncryptedKey { .. }));
    assert!(matches!(with(&certificate, &certificate), TlsError::NoKey { .. }));
    assert!(matches!(with(&certificate, ""), TlsError::NoKey { .. }));
    assert!(matches!(with(&certificate, nonsense), TlsError::Unusable { .. }));
    assert!(matches!(with(&key, &key), TlsError::NoCertificate { .. }));
    assert!(matches!(with(broken, &key), TlsError::Malformed { .. }));
    let other = Papers::new().text("key.pem");
    let mismatch = with(&certificate, &other);
    assert!(matches!(mismatch, TlsError::OtherKey { .. }), "{mismatch:?}");
    let secret = other.lines().nth(1).unwrap();
    assert!(!mismatch.to_string().contains(secret), "no key is told");
    let gone = Tls::read(papers.path("none.pem"), papers.path("key.pem")).unwrap_err();
    assert!(matches!(gone, TlsError::Unreadable { .. }) && gone.to_string().contains("none.pem"), "{gone:?}");
    papers.put("cert.pem", &certificate);
    papers.put("key.pem", &key);
    assert!(papers.read().is_ok());
}
