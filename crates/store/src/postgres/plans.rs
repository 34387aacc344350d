//! Every read and write on the engine's path is by an index: a store with millions of ended runs opens as fast as a new
//! one.

use abide_pg_testing::{FAST, Server};

use super::PostgresStore;
use super::append::{MESSAGES, ROW, ROWS};
use super::cluster::RENEW;
use super::connect::{Role, Settings};
use super::flush::{CLEAR, FLUSH};
use super::intake::{ANSWER, READ, STARTED};
use super::read::{CHAIN, CLAIMED, DUE, ENVELOPES, KEY, LINES, NEXT_DUE, PLACES, READY, RECORD, SCAN, TRAIL};
use super::shard::{NUMBERS, STANDING};
use crate::{PostgresUrl, StoreUrl};

fn url(server: &Server) -> PostgresUrl {
    match server.url().parse() {
        Ok(StoreUrl::Postgres(url)) => url,
        other => panic!("expected the URL of a database, found {other:?}"),
    }
}

/// How many values a statement takes.
fn values(sql: &str) -> usize {
    let numbers = sql.split('$').skip(1).filter_map(|rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    });
    numbers.max().unwrap_or(0)
}

/// AB-10, D11: also when the tables have never been looked at by the planner, and when they are large.
#[test]
fn the_engine_reads_and_writes_by_index() {
    let server = Server::start_with(FAST);
    let url = url(&server);
    drop(PostgresStore::open(&url, 4).unwrap());
    let settings = Settings::of(&url).unwrap();
    let asked = [
        (READ, "Index Scan using request_other_xid_number_idx"),
        (ANSWER, "Index Cond: (number = ($7 - 1))"),
        (STARTED, "Index Scan using request_answer_other_pkey"),
    ];
    let expected = [
        (ROW, "journal_pkey"),
        (ROWS, "journal_pkey"),
        (MESSAGES, "journal_pkey"),
        (FLUSH, "progress_pkey"),
        (CLEAR, "envelope_pkey"),
        (SCAN, "Index Scan using journal_pkey on journal"),
        (CHAIN, "Index Scan using journal_pkey on journal j_1"),
        (TRAIL, "Index Scan using journal_pkey on journal j_1"),
        (PLACES, "Index Scan using journal_pkey on journal"),
        (RECORD, "Index Scan using run_pkey"),
        (CLAIMED, "using run_claimed"),
        (READY, "Index Scan using run_by_line"),
        (LINES, "using run_by_line"),
        (DUE, "using run_by_due"),
        (NEXT_DUE, "using run_by_due"),
        (KEY, "Index Scan using run_by_occupies"),
        (ENVELOPES, "Index Scan using envelope_pkey"),
        (NUMBERS, "using envelope_cursor_pkey"),
        (STANDING, "Index Scan using journal_pkey"),
        (RENEW, "Insert on node"),
    ];
    let fill = "INSERT INTO run SELECT gen_random_uuid(), n, 1, 0, 0, n % 1000, 0, n, 0, 1, 0, n % 4, false, NULL, 'n', 'w',
            'q', CASE n % 50 WHEN 0 THEN 'executing' ELSE 'done' END, NULL, NULL, 'key ' || n, NULL, 'line ' || n % 7, '{}'
        FROM generate_series(1, 20000) n;
        INSERT INTO journal SELECT gen_random_uuid(), 1, 0, n, 0, 0, s, '[]' FROM generate_series(1, 5000) n, generate_series(0, 3) s;
        INSERT INTO envelope SELECT n, 0, s, 0, '{}' FROM generate_series(1, 5000) n, generate_series(0, 3) s;
        INSERT INTO request SELECT gen_random_uuid(), n, n::text::xid8, 'start', '{}', 'null' FROM generate_series(1, 5000) n;
        INSERT INTO request_answer SELECT id, 0, NULL, 'accepted', NULL FROM request;
        INSERT INTO intake SELECT n, 0, '1:1:' FROM generate_series(1, 5000) n;
        ANALYZE";
    let all = expected.into_iter().map(|one| (Role::Owner, one)).chain(asked.map(|one| (Role::Intake, one)));
    for prepare in ["SELECT", fill] {
        server.psql(&format!("{} {prepare}", settings.session(Role::Owner)));
        for (role, (sql, index)) in all.clone() {
            let session = settings.session(role);
            // A day that does not have the id is not in the plan: one of them has this.
            let value = if sql == STARTED { "'00000000-0000-0000-0000-000000000001'" } else { "NULL" };
            let nothing = vec![value; values(sql)].join(", ");
            let call = if nothing.is_empty() { String::new() } else { format!("({nothing})") };
            let plan = server.psql(&format!("{session} PREPARE p AS {sql}; EXPLAIN EXECUTE p{call}"));
            assert!(plan.contains(index), "{sql}\n{plan}");
            check(sql, &plan);
        }
    }
}

/// No table that grows is read whole: not in its own order, not in an index's, not for a hash.
fn check(sql: &str, plan: &str) {
    let lines: Vec<&str> = plan.lines().collect();
    for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
        for table in
            ["journal", "run", "envelope", "envelope_cursor", "progress", "request", "request_answer", "intake"]
        {
            // Days are tables of their own, by number.
            let is_it = |name: &str| name.trim_end_matches("_other").trim_end_matches(is_digit_or_line) == table;
            let words: Vec<&str> = line.split([' ', '(']).collect();
            let is_scan = line.contains("Scan") && words.windows(2).any(|pair| pair[0] == "on" && is_it(pair[1]));
            let found = next.contains("Index Cond") || next.contains("TID Cond");
            assert!(!is_scan || found, "{line}\n{sql}\n{plan}");
        }
    }
}

fn is_digit_or_line(sign: char) -> bool {
    sign.is_ascii_digit() || sign == '_'
}
