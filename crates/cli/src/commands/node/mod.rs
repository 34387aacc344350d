//! `abide node …`: the nodes that share a store.

mod drain;
mod list;
mod resume;

use abide_store::{Living, Membership, PostgresUrl};
use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::{AsJson, Globals};
use crate::owner::{open_database, rouse};
use crate::place::{At, Place};

/// The nodes that share a store: list, drain, resume.
#[derive(Debug, Args)]
pub(crate) struct Command {
    #[command(flatten)]
    pub(crate) json: AsJson,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List nodes: who lives, until when, and what they serve.
    #[command(visible_alias = "ls")]
    List(list::List),
    /// Have a node hand its shards to the others and take none.
    Drain(drain::Drain),
    /// Have a node that drains take its share again.
    Resume(resume::Resume),
}

impl Command {
    pub(crate) fn perform(self, globals: &Globals) -> Outcome {
        match self.verb {
            Verb::List(list) => list.perform(globals),
            Verb::Drain(drain) => drain.perform(globals),
            Verb::Resume(resume) => resume.perform(globals),
        }
    }
}

/// The store's database, which nodes share; a file has none.
fn database(place: &Place) -> Result<&PostgresUrl, Failure> {
    match &place.at {
        At::Database(url) => Ok(url),
        At::File { path, .. } => {
            let what = format!("{} is a store for one process at a time: it has no nodes", path.display());
            Err(Failure::usage("no_nodes", what)
                .hint("abide store stats says which process holds it; nodes share a store in PostgreSQL"))
        }
    }
}

fn membership(place: &Place) -> Result<Membership, Failure> {
    database(place)?;
    Ok(place.membership()?.unwrap_or_default())
}

/// How many shards a process serves.
fn shards(seen: &Membership, process: &str) -> Vec<u16> {
    let owned = seen.shards.iter().filter(|owned| owned.owner.as_deref() == Some(process));
    owned.map(|owned| owned.shard.0).collect()
}

/// The node that is meant: by its name, or by its process or the beginning of that.
fn find<'a>(seen: &'a Membership, text: &str) -> Result<&'a Living, Failure> {
    let named = |living: &&Living| *living.member.node == *text;
    let process = |living: &&Living| living.member.process.starts_with(text);
    let mut found: Vec<&Living> = seen.living.iter().filter(named).collect();
    if found.is_empty() {
        found = seen.living.iter().filter(process).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let what = format!("no node {text} lives");
            Err(Failure::new(Exit::NotFound, "no_node", what).hint("abide node list shows who does"))
        }
        several => {
            let mut hint = String::from("give its process; these have that name:");
            several.iter().for_each(|living| hint.push_str(&format!("\n  {}", living.member.process)));
            Err(Failure::usage("ambiguous_node", format!("{text} may be one of several nodes")).hint(hint))
        }
    }
}

/// Says whether a node is to drain, and lets it know at once, if it can be reached. Then `wait` has the word, while the
/// letter is under way.
fn ask(
    place: &Place,
    seen: &Membership,
    process: &str,
    draining: bool,
    wait: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    use abide_store::Cluster;
    let mut store = open_database(database(place)?)?;
    if !store.drain(process, draining)? {
        let what = format!("process {process} has just left");
        return Err(Failure::new(Exit::NotFound, "no_node", what).hint("abide node list shows who lives"));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let wire = runtime.block_on(rouse(&mut store, seen));
    let waited = wait();
    drop(wire);
    waited
}
