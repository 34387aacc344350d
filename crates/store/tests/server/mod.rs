//! One PostgreSQL server for all tests of a file, with a schema for each.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use abide_pg_testing::{FAST, Server};
use abide_store::postgres::PostgresStore;
use abide_store::{PostgresUrl, StoreUrl};

/// It goes with this process.
pub fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start_with(FAST))
}

/// A schema that no other test has.
pub struct Schema {
    pub name: String,
    pub shards: u16,
}

impl Schema {
    pub fn new(shards: u16) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Self { name: format!("store_{}", COUNT.fetch_add(1, Ordering::Relaxed)), shards }
    }

    pub fn url(&self) -> PostgresUrl {
        parse(&server().url()).with_schema(&self.name).expect("a plain name")
    }

    pub fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.url(), self.shards).expect("the store opens")
    }

    /// Changes a store behind its back; answers with what the statement returns.
    pub fn edit(&self, sql: &str) -> String {
        server().psql(&format!("SET search_path = {}; SET timezone = 'UTC'; {sql}", self.name))
    }
}

pub fn parse(url: &str) -> PostgresUrl {
    match url.parse() {
        Ok(StoreUrl::Postgres(url)) => url,
        other => panic!("expected the URL of a database, found {other:?}"),
    }
}
