//! Opening PostgreSQL stores: what is made, what is refused, and what the guide says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod server;

use std::process::Command;
use std::thread;

use abide_kernel::shard::{Batch, Flush, Record};
use abide_kernel::{Facts, Rev, Row, RunId, Seq, ShardEpoch, ShardId, Slot, Status, Timestamp};
use abide_pg_testing::{FAST, Server};
use abide_store::intake::{Answered, Started};
use abide_store::postgres::{PostgresStore, open_read_only};
use abide_store::{Fault, FaultKind, Filter, Page, Reader, Store, Verdict};
use server::{Schema, parse, server};

const GUIDE: &str = include_str!("../../../docs/postgres.md");

fn refused(opened: Result<PostgresStore, Fault>, kind: FaultKind, says: &str) {
    let fault = opened.expect_err("it is refused");
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.to_string().contains(says), "{fault}");
}

/// The blocks of the guide that are SQL, by the word that follows it.
fn blocks(word: &str) -> Vec<&'static str> {
    let fence = format!("```sql {word}\n");
    GUIDE.split(&*fence).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// SQ-14: nodes that come at the same time make one store, and all find what the first one made.
#[test]
fn a_store_is_made_once() {
    let schema = Schema::new(3);
    let opening: Vec<_> = (0..6)
        .map(|node| {
            let url = schema.url();
            thread::spawn(move || PostgresStore::open(&url, 3 + node).unwrap().map().count())
        })
        .collect();
    let counts: Vec<u16> = opening.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    assert_eq!(schema.edit("SELECT count(*), sum(epoch) FROM shard"), format!("{}|0", counts[0]));
}

/// SQ-14: making tables, and changing large ones, takes as long as it takes; waiting for whoever uses them does not. As many shards
/// as there can be are made by a few statements.
#[test]
fn a_store_is_made_without_a_limit_of_time() {
    let server = Server::start_with(FAST);
    server.psql(
        "CREATE TABLE seen (statement text, lock text);
         CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_setting('statement_timeout'), current_setting('lock_timeout'));
         END $$;
         CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION note();",
    );
    let store = PostgresStore::open(&parse(&server.url()), 4_096).unwrap();
    assert_eq!(server.psql("SELECT DISTINCT statement FROM seen"), "0");
    assert_eq!(server.psql("SELECT lock FROM seen GROUP BY lock ORDER BY count(*) DESC LIMIT 1"), "10s");
    let made = "SELECT count(*), sum(id) FROM abide.shard JOIN abide.progress ON shard = id";
    assert_eq!((store.map().count(), server.psql(made)), (4_096, format!("4096|{}", 4_096 * 4_095 / 2)));
    drop(store);
    let mut again = PostgresStore::open(&parse(&server.url()), 1).unwrap();
    assert_eq!(again.open_shard(ShardId(4_095), "p").unwrap().epoch.0, 1);
}

/// Several stores are in one database, each in a schema of its own.
#[test]
fn stores_in_one_database_know_nothing_of_each_other() {
    let (one, other) = (Schema::new(1), Schema::new(2));
    let (mut first, mut second) = (one.open(), other.open());
    first.open_shard(ShardId(0), "a").unwrap();
    assert_eq!(second.open_shard(ShardId(0), "a").unwrap().epoch.0, 1);
    assert_eq!((first.map().count(), second.map().count()), (1, 2));
    // A name may be a word of SQL.
    let mut third = PostgresStore::open(&one.url().with_schema("user").unwrap(), 3).unwrap();
    assert_eq!(third.open_shard(ShardId(2), "a").unwrap().epoch.0, 1);
}

/// A store of a newer release, tables of somebody else, and a schema without a store are left as they are.
#[test]
fn what_is_not_ours_is_left_alone() {
    let newer = Schema::new(1);
    drop(newer.open());
    // With its checksum: a release that knows it wrote it.
    newer.edit("UPDATE setting SET value = 'two' WHERE name = 'format'");
    let corrupt = FaultKind::Corrupt { run: None, position: None };
    refused(PostgresStore::open(&newer.url(), 1), corrupt, "expected a number");

    let foreign = Schema::new(1);
    server().psql(&format!("CREATE SCHEMA {0}; CREATE TABLE {0}.orders (id int)", foreign.name));
    refused(PostgresStore::open(&foreign.url(), 1), FaultKind::Unusable, "not Abide's");

    let none = Schema::new(1);
    let fault = open_read_only(&none.url()).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unusable);
    assert_eq!(server().psql(&format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{}'", none.name)), "0");
    refused(PostgresStore::open(&none.url(), 0), FaultKind::Unusable, "1 to 4096");

    let nowhere = parse("postgres://postgres@%2Ftmp%2Fno-such-folder/postgres");
    refused(PostgresStore::open(&nowhere, 1), FaultKind::Refused, "cannot be reached");
}

/// SQ-12, SQ-14: a server that may lose what it acknowledged is refused by those who say `strict`.
#[test]
fn an_unsafe_server_is_refused_when_told_so() {
    let schema = Schema::new(1);
    let url = |options: &str| parse(&format!("{}?schema={}{options}", server().url(), schema.name));
    drop(PostgresStore::open(&url(""), 1).unwrap());
    let off = "&strict=true&options=-c%20synchronous_commit%3Doff";
    let found = "fsync and full_page_writes and synchronous_commit off";
    refused(PostgresStore::open(&url(off), 1), FaultKind::Unusable, found);
    let found = "fsync and full_page_writes off";
    refused(PostgresStore::open(&url("&strict=true&durability=relaxed"), 1), FaultKind::Unusable, found);

    let safe = Server::start();
    let url = parse(&format!("{}?strict=true", safe.url()));
    drop(PostgresStore::open(&url, 1).unwrap());
    // Only what is asked for is relaxed, and only for this store.
    let url = parse(&format!("{}?strict=true&durability=relaxed", safe.url()));
    drop(PostgresStore::open(&url, 1).unwrap());
}

fn rows(run: RunId) -> Vec<Row> {
    let texts = [r#"[{"requeued":{"cursor":3}}]"#, r#"["parent_purged",{"expired":{"claim":4}}]"#];
    let facts = |text: &str| serde_json::from_str::<Facts>(text).unwrap();
    let row = |(seq, text): (u64, &str)| Row {
        seq: Seq(seq),
        run,
        rev: Rev(seq),
        prior: Seq(seq - 1),
        at: Timestamp(1_700_000_000_000 + seq as i64),
        facts: facts(text),
    };
    (1u64..).zip(texts).map(row).collect()
}

fn record(run: RunId) -> Record {
    Record {
        run,
        head: Seq(1),
        rev: Rev(1),
        namespace: "default".into(),
        workflow: "orders".into(),
        version: 2,
        queue: "default".into(),
        status: Status::Sleeping,
        step: Some("charge".into()),
        key: None,
        occupies: None,
        parent: None,
        labels: Vec::new(),
        created_at: Timestamp(1_700_000_000_000),
        updated_at: Timestamp(1_700_000_000_002),
        due: Some(Timestamp(1_700_000_060_000)),
        ready: None,
        reservation: false,
        checkpoint: b"{}".to_vec(),
    }
}

fn write_something(store: &mut dyn Store, run: RunId) {
    let opened = store.open_shard(ShardId(0), "p").unwrap();
    let mut batch = Batch { epoch: opened.epoch, rows: rows(run), ..Batch::default() };
    batch.consumed = vec![(ShardId(0), 1)];
    store.append(&[batch]).unwrap();
    let flush = Flush { epoch: opened.epoch, through: Seq(1), records: vec![record(run)], ..Flush::default() };
    store.flush(&[flush]).unwrap();
}

/// SQ-6: a run can be followed with plain SQL, beside the running engine; every statement of the guide runs.
#[test]
fn the_guide_follows_a_run() {
    let schema = Schema::new(1);
    let mut store = schema.open();
    let run = RunId::new(Timestamp(1_700_000_000_000), Slot(7), 42);
    write_something(&mut store, run);
    let of_run = |sql: &str| {
        let sql = sql.replace("run_018bcfe568000000000000000000002a", &run.to_string());
        schema.edit(&sql.replace("abide.", ""))
    };
    let [follow] = blocks("follow")[..] else { panic!("the guide follows one run") };
    assert_eq!(
        of_run(follow),
        "1|2023-11-14 22:13:20.001+00|requeued|{\"cursor\":3}\n\
         2|2023-11-14 22:13:20.002+00|parent_purged|\n\
         2|2023-11-14 22:13:20.002+00|expired|{\"claim\":4}"
    );
    let others = blocks("look");
    assert!(others.len() >= 3);
    assert!(others.iter().all(|sql| !of_run(sql).is_empty() || sql.contains("dead_letter") || sql.contains("nodes")));
}

/// AB-8: what was filled in part is opened by nobody, and a node that has it open already takes nothing.
#[test]
fn a_store_that_was_filled_in_part_is_refused() {
    let schema = Schema::new(2);
    let (mut importer, mut waiting) = (schema.open(), schema.open());
    importer.open_shard(ShardId(0), "p").unwrap();
    importer.import().begin_import().unwrap();
    drop(importer);
    let words = format!("DROP SCHEMA \"{}\" CASCADE", schema.name);
    refused(PostgresStore::open(&schema.url(), 2), FaultKind::Importing, &words);
    assert_eq!(waiting.open_shard(ShardId(1), "q").unwrap_err().kind, FaultKind::Importing);
    assert_eq!(open_read_only(&schema.url()).unwrap().stats().unwrap().journal_rows, 0);
}

/// SQ-14, SE-6: an engine needs no more than what the guide gives to its role, and whoever looks needs less.
#[test]
fn a_role_of_least_privilege_is_enough() {
    let server = Server::start_with(FAST);
    let [roles] = blocks("roles")[..] else { panic!("the guide makes the roles once") };
    let [grants] = blocks("grants")[..] else { panic!("the guide gives permissions once") };
    server.psql(roles);
    let url = |role: &str| parse(&server.url().replace("postgres@", &format!("{role}@")));
    refused(PostgresStore::open(&url("abide_engine"), 1), FaultKind::Unusable, "permission denied");
    drop(PostgresStore::open(&url("abide_owner"), 1).unwrap());
    server.psql(grants);

    let mut store = PostgresStore::open(&url("abide_engine"), 1).unwrap();
    let run = RunId::new(Timestamp(1_700_000_000_000), Slot(7), 42);
    write_something(&mut store, run);
    let member = abide_store::Member { process: "p".into(), node: "n".into(), address: "".into(), draining: false };
    let cluster = store.cluster().unwrap();
    cluster.renew(&member, std::time::Duration::from_secs(60)).unwrap();
    cluster.leave("p").unwrap();
    let opened = store.open_shard(ShardId(0), "p").unwrap();
    let purge = Flush { epoch: opened.epoch, purged: vec![(run, Seq(2))], ..Flush::default() };
    store.flush(&[purge]).unwrap();
    let token = abide_store::StoredToken { id: "a".into(), body: "{}".into() };
    store.write_token(&token).unwrap();
    assert_eq!(store.reader().unwrap().tokens().unwrap(), [token]);

    // Whoever asks by SQL sees nothing of ours, and what they ask is taken in by the engine.
    let [asker] = blocks("asker")[..] else { panic!("the guide gives the right to ask once") };
    server.psql(&format!("CREATE ROLE shop LOGIN; {asker}"));
    let asked = server.psql("SET ROLE shop; SELECT abide.start('order', '1')");
    assert_eq!(server.psql(&format!("SET ROLE shop; SELECT status FROM abide.request('{asked}')")), "waiting");
    for ours in ["TABLE abide.request", "TABLE abide.journal", "SELECT abide.ask('start', '{}', '1')"] {
        let refusal = format!(
            "SET ROLE shop; DO $$ BEGIN EXECUTE '{}'; RAISE 'it may'; EXCEPTION WHEN insufficient_privilege THEN END $$",
            ours.replace('\'', "''")
        );
        server.psql(&refusal);
    }
    let mut intake = store.intake().unwrap().unwrap();
    intake.upkeep(opened.epoch).unwrap();
    let request = intake.read(10).unwrap()[0].request;
    assert_eq!(request.to_string(), asked);
    let answer = Answered { request, run: Some(run), code: "accepted".into(), message: None };
    assert_eq!(intake.answer(ShardEpoch(opened.epoch.0 - 1), std::slice::from_ref(&answer)).unwrap(), Verdict::Stale);
    assert_eq!(intake.read(10).unwrap().len(), 1);
    assert_eq!(intake.answer(opened.epoch, &[answer]).unwrap(), Verdict::Durable);
    assert!(intake.read(10).unwrap().is_empty());
    assert_eq!(intake.started(request).unwrap(), Started::Run(run));

    let mut reader = open_read_only(&url("abide_reader")).unwrap();
    assert!(reader.list(&Filter::default(), &Page::default()).unwrap().is_empty());
    assert_eq!(reader.stats().unwrap().journal_rows, 2);
    let hidden = reader.tokens().unwrap_err();
    assert!(hidden.to_string().contains("permission denied"), "{hidden}");
    assert!(store.remove_token("a").unwrap());
    refused(
        PostgresStore::open(&url("abide_reader"), 1)
            .and_then(|mut store| store.open_shard(ShardId(0), "p").map(|_| store)),
        FaultKind::Unusable,
        "permission denied",
    );
}

/// A server is spoken to in secret where that is asked for, and only if it is the one that was meant.
#[test]
fn a_server_proves_who_it_is() {
    let mut server = Server::start_with(FAST);
    let [key, certificate] = ["server.key", "server.crt"].map(|name| server.folder().join(name));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    server.give(&key);
    server.give(&certificate);
    server.psql("ALTER SYSTEM SET ssl = on");
    server.psql(&format!("ALTER SYSTEM SET ssl_key_file = '{}'", key.display()));
    server.psql(&format!("ALTER SYSTEM SET ssl_cert_file = '{}'", certificate.display()));
    let url = server.listen();
    let open = |options: &str| PostgresStore::open(&parse(&format!("{url}?{options}")), 1);
    let encrypted = || {
        server.psql("SELECT bool_or(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'abide%'")
    };
    let root = format!("sslmode=verify-full&sslrootcert={}", certificate.display());
    for (options, secret) in [("sslmode=disable", "f"), ("", "t"), ("sslmode=require", "t"), (&*root, "t")] {
        let store = open(options).unwrap();
        assert_eq!(encrypted(), secret, "{options}");
        drop(store);
        while !encrypted().is_empty() {
            thread::yield_now();
        }
    }
    refused(open("sslmode=verify-full"), FaultKind::Refused, "TLS");
    let elsewhere = url.replace("localhost", "127.0.0.1");
    let other = PostgresStore::open(&parse(&format!("{elsewhere}?{root}")), 1);
    refused(other, FaultKind::Refused, "TLS");
}
