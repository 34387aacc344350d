//! What is asked by SQL, as the node that takes it in reads it: each once, whoever commits first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::Duration;

use abide_kernel::{RequestId, RunId, ShardEpoch};
use abide_pg_testing::{FAST, Server};
use abide_store::intake::{Answered, Asked, HOST, Started};
use abide_store::postgres::PostgresStore;
use abide_store::{Intake, Member, Store, StoreUrl, Verdict};
use tokio_postgres::{Client, NoTls};

struct World {
    server: Server,
    store: PostgresStore,
    epoch: ShardEpoch,
}

impl World {
    fn new() -> Self {
        let server = Server::start_with(FAST);
        let StoreUrl::Postgres(url) = server.url().parse().unwrap() else { panic!("{}", server.url()) };
        let mut store = PostgresStore::open(&url, 1).unwrap();
        let member = Member { process: "ada".into(), node: "ada".into(), address: "".into(), draining: false };
        store.cluster().unwrap().renew(&member, Duration::from_secs(600)).unwrap();
        let epoch = store.open_shard(HOST, "ada").unwrap().epoch;
        Self { server, store, epoch }
    }

    fn intake(&self) -> Box<dyn Intake> {
        self.store.intake().unwrap().unwrap()
    }

    /// Answers what was asked; gives the inputs.
    fn accept(&self, intake: &mut dyn Intake, asked: &[Asked]) -> Vec<String> {
        let answer = |one: &Asked| {
            let run = Some(RunId(one.request.0));
            Answered { request: one.request, run, code: "accepted".into(), message: None }
        };
        let answers: Vec<Answered> = asked.iter().map(answer).collect();
        assert_eq!(intake.answer(self.epoch, &answers).unwrap(), Verdict::Durable);
        asked.iter().map(|one| one.payload.clone()).collect()
    }

    fn ask(&self, n: u32) -> RequestId {
        self.server.psql(&format!("SELECT abide.start('order', '{n}')")).parse().unwrap()
    }
}

/// A session that stays open between its statements.
fn session(world: &World) -> (tokio::runtime::Runtime, Client) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, connection) = runtime.block_on(tokio_postgres::connect(&world.server.url(), NoTls)).unwrap();
    runtime.spawn(connection);
    (runtime, client)
}

/// AB-7: a transaction that was under way when others were read is read when it commits, by this host and by the next.
#[test]
fn whoever_was_under_way_is_read_later() {
    let world = World::new();
    let mut intake = world.intake();
    assert!(intake.read(10).unwrap().is_empty());
    intake.is_through();
    let (runtime, slow) = session(&world);
    for begin in ["BEGIN; SELECT abide.start('order', '1')", "BEGIN; SAVEPOINT s; SELECT abide.start('order', '3')"] {
        runtime.block_on(slow.batch_execute(begin)).unwrap();
        world.ask(2);
        let read = intake.read(10).unwrap();
        assert_eq!(world.accept(intake.as_mut(), &read), ["2"]);
        assert!(intake.read(10).unwrap().is_empty());
        intake.is_through();
        runtime.block_on(slow.batch_execute("COMMIT")).unwrap();
        assert_eq!(world.intake().read(10).unwrap().len(), 1);
        let late = intake.read(10).unwrap();
        let late = world.accept(intake.as_mut(), &late);
        assert_eq!(late, [if begin.contains("'1'") { "1" } else { "3" }]);
        assert!(intake.read(10).unwrap().is_empty());
        intake.is_through();
    }
    assert!(world.intake().read(10).unwrap().is_empty());
}

/// AB-7: everything is read once, in order, whether it is answered or not; anew it is what has no answer. What is large is read
/// in parts.
#[test]
fn what_has_no_answer_is_read_again() {
    let world = World::new();
    let mut intake = world.intake();
    let asked: Vec<RequestId> = (0..4).map(|n| world.ask(n)).collect();
    let ids = |read: Vec<Asked>| read.into_iter().map(|one| one.request).collect::<Vec<_>>();
    let first = intake.read(1).unwrap();
    assert_eq!(ids(intake.read(2).unwrap()), asked[1..3]);
    assert_eq!(ids(intake.read(10).unwrap()), asked[3..]);
    assert_eq!(intake.started(asked[0]).unwrap(), Started::Waiting);
    world.accept(intake.as_mut(), &first);
    assert_eq!(intake.started(asked[0]).unwrap(), Started::Run(RunId(asked[0].0)));
    assert_eq!(intake.started(RequestId(7)).unwrap(), Started::Nothing);
    assert!(intake.read(10).unwrap().is_empty());
    let late = world.ask(4);
    assert_eq!(ids(intake.read(10).unwrap()), [late], "what waits for its answer is not looked at again");
    intake.begin_anew();
    assert_eq!(ids(intake.read(10).unwrap()), [&asked[1..], &[late]].concat());
    assert!(intake.read(10).unwrap().is_empty());
    let large = "SELECT abide.start('order', to_jsonb(repeat('x', 4000000))) FROM generate_series(1, 4)";
    world.server.psql(large);
    assert!(intake.read(10).unwrap().len() < 4);
}

/// AB-7: a place is noted when everything before it is answered, and not before: whoever takes in next reads what is not.
#[test]
fn a_place_is_noted_when_all_before_it_is_answered() {
    let world = World::new();
    let noted = || world.server.psql("SELECT number, snapshot FROM abide.intake");
    let begin = noted();
    let mut intake = world.intake();
    let (first, second) = (world.ask(1), world.ask(2));
    let read = intake.read(10).unwrap();
    assert!(intake.read(10).unwrap().is_empty());
    world.accept(intake.as_mut(), &read[1..]);
    assert_eq!(noted(), begin);
    world.server.psql("UPDATE abide.intake SET at = at + 86400000 * 365::bigint * 1000");
    let next = world.intake().read(10).unwrap();
    assert_eq!(next.iter().map(|one| one.request).collect::<Vec<_>>(), [first]);
    assert_ne!(first, second);
    world.accept(intake.as_mut(), &read[..1]);
    assert!(intake.read(10).unwrap().is_empty());
    intake.is_through();
    world.ask(3);
    let read = intake.read(10).unwrap();
    world.accept(intake.as_mut(), &read);
    let after = noted();
    assert!(after != begin && after.lines().count() == 1, "{begin} {after}");
}

/// AB-7, SE-39: a server that was killed may count transactions anew from before a snapshot that it gave out. Whoever asks in
/// one of those is read all the same, because a connection that ended may have ended with the server.
#[test]
fn who_has_the_number_of_a_lost_transaction_is_read() {
    let world = World::new();
    let mut intake = world.intake();
    let first = world.ask(1);
    let read = intake.read(10).unwrap();
    world.accept(intake.as_mut(), &read);
    assert!(intake.read(10).unwrap().is_empty());
    intake.is_through();
    let second = world.ask(2);
    world.server.psql("UPDATE abide.request SET xid = '3'");
    assert!(intake.read(10).unwrap().is_empty(), "as long as the server lives no number comes twice");
    intake.is_through();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE '%request%'";
    assert_eq!(world.server.psql(end), "t");
    let read = intake.read(10).unwrap();
    assert_eq!(read.iter().map(|one| one.request).collect::<Vec<_>>(), [second]);
    assert_eq!(world.accept(intake.as_mut(), &read), ["2"]);
    assert!(intake.read(10).unwrap().is_empty());
    assert_ne!(intake.started(first).unwrap(), Started::Waiting);
}
