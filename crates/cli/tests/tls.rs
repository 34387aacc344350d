//! `abide serve --tls-cert … --tls-key …`, as a person would use it.

mod served;
mod shop;

use abide::{Client, Filter, Page};
use served::Served;
use shop::Shop;

/// Puts a new certificate and its key into the folder.
fn certify(shop: &Shop) -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(shop.dir().join("cert.pem"), made.cert.pem()).expect("it is written");
    std::fs::write(shop.dir().join("key.pem"), made.signing_key.serialize_pem()).expect("it is written");
    made.cert.pem()
}

const FILES: [&str; 4] = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];

/// Whether a client that believes this certificate only gets an answer.
async fn answers(url: &str, certificate: &str) -> bool {
    let client = Client::connect(url).trust(certificate).open().expect("a URL of a server");
    client.list(&Filter::default(), &Page::default()).await.is_ok()
}

/// A certificate is renewed by a signal; one that cannot be used leaves the old one in place.
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_certificate_again() {
    let shop = Shop::new();
    let first = certify(&shop);
    let mut served = Served::begin(&shop, &[&["--no-auth", "--listen", "127.0.0.1:0"], &FILES[..]].concat());
    assert!(served.url.starts_with("https://"), "{}", served.url);
    assert!(answers(&served.url, &first).await);

    let key = std::fs::read_to_string(shop.dir().join("key.pem")).expect("it is there");
    let second = certify(&shop);
    let fits = std::fs::read_to_string(shop.dir().join("key.pem")).expect("it is there");
    std::fs::write(shop.dir().join("key.pem"), key).expect("it is written");
    served.tell("-HUP");
    let said = served.until_it_says("SIGHUP");
    assert!(said.contains("tls_other_key"), "{said}");
    assert!(answers(&served.url, &first).await);

    std::fs::write(shop.dir().join("key.pem"), fits).expect("it is written");
    served.tell("-HUP");
    let said = served.until_it_says("SIGHUP");
    assert!(said.contains("another certificate"), "{said}");
    assert!(answers(&served.url, &second).await && !answers(&served.url, &first).await);
}

/// Every verb believes the authority that it is told of, or the certificate itself, whatever that says of itself; and
/// whoever is not believed is told what to do.
#[test]
fn an_authority_is_named() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let shop = Shop::new();
    let write = |name: &str, text: String| std::fs::write(shop.dir().join(name), text).expect("it is written");
    let params = |name: &str, is_ca: IsCa| {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.is_ca = is_ca;
        params
    };
    let authority = || IsCa::Ca(BasicConstraints::Unconstrained);
    let (ca_key, key) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let ca = params("the authority", authority());
    write("ca.pem", ca.self_signed(&ca_key).expect("a certificate").pem());
    let issuer = Issuer::new(ca, ca_key);
    let serve = |certificate: String| {
        write("cert.pem", certificate);
        write("key.pem", key.serialize_pem());
        Served::begin(&shop, &[&["--no-auth", "--listen", "127.0.0.1:0"], &FILES[..]].concat())
    };
    let leaf = params("127.0.0.1", IsCa::NoCa).signed_by(&key, &issuer).expect("a certificate");
    let served = serve(leaf.pem());
    let by = |url: &str, more: &[&str]| shop.abide(&[&["--url", url], more].concat());
    let refused = by(&served.url, &["run", "list"]);
    assert!(refused.code == 1 && refused.err.contains("code: distrusted"), "{refused:?}");
    assert!(refused.err.contains("--ca-file"), "{refused:?}");
    for verb in [&["run", "list"][..], &["run", "start", "greet"], &["queue", "list"], &["worker", "list"]] {
        by(&served.url, &[verb, &["--ca-file", "ca.pem"]].concat()).ok();
    }
    let list = ["--url", &served.url, "run", "list"];
    shop.abide_in(&list, "", &[("ABIDE_CA_FILE", "ca.pem")]).ok();
    let profile = format!("[profile.shop]\nurl = \"{}\"\nca_file = \"ca.pem\"\n", served.url);
    write("abide.toml", profile);
    shop.abide(&["--profile", "shop", "run", "list"]).ok();
    let shown = shop.abide(&["--profile", "shop", "config", "show"]).ok();
    assert!(shown.out.contains("ca_file\t") && shown.out.contains("/ca.pem\tprofile shop"), "{shown:?}");
    let missing = by(&served.url, &["run", "list", "--ca-file", "none.pem"]);
    assert!(missing.code == 2 && missing.err.contains("code: bad_ca_file"), "{missing:?}");
    drop(served);

    // As openssl req -x509 makes it.
    let served = serve(params("127.0.0.1", authority()).self_signed(&key).expect("a certificate").pem());
    by(&served.url, &["run", "list", "--ca-file", "cert.pem"]).ok();
    assert_eq!(by(&served.url, &["run", "list", "--ca-file", "ca.pem"]).code, 1);
    drop(served);
    let served = serve(params("elsewhere.example", authority()).self_signed(&key).expect("a certificate").pem());
    let other = by(&served.url, &["run", "list", "--ca-file", "cert.pem"]);
    assert!(other.code == 1 && other.err.contains("code: distrusted"), "{other:?}");
}

/// Where others may listen in, plain HTTP is warned of, and TLS is not.
#[test]
fn plain_http_for_other_machines_is_warned_of() {
    let shop = Shop::new();
    certify(&shop);
    let elsewhere = ["--listen", "0.0.0.0:0"];
    let mut plain = Served::begin(&shop, &elsewhere);
    assert!(plain.until_it_says("warning").contains("plain HTTP"));
    drop(plain);
    let mut tls = Served::begin(&shop, &[&elsewhere[..], &FILES].concat());
    tls.tell("-HUP");
    assert!(tls.url.starts_with("https://0.0.0.0:"), "{}", tls.url);
    let first = tls.until_it_says("");
    assert!(first.contains("SIGHUP"), "{first}");
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_before_anything_is_made() {
    let shop = Shop::new();
    let serve = |more: &[&str]| shop.abide(&[&["serve", "--listen", "127.0.0.1:0"], more].concat());
    let alone = serve(&FILES[..2]);
    assert!(alone.code == 2 && alone.err.contains("--tls-key"), "{alone:?}");
    let missing = serve(&FILES);
    assert!(missing.code == 2 && missing.err.contains("tls_unreadable"), "{missing:?}");
    certify(&shop);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
    std::fs::write(shop.dir().join("key.pem"), encrypted).expect("it is written");
    let locked = serve(&FILES);
    assert!(
        locked.code == 2 && locked.err.contains("tls_encrypted_key") && locked.err.contains("openssl"),
        "{locked:?}"
    );
    assert!(!shop.path().exists(), "nothing is left behind");
}
