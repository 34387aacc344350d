//! `abide node …`: the nodes that share a store.

mod drain;
mod list;
mod resume;

use abide_protocol::{Node, Nodes};
use clap::{Args, Subcommand};

use crate::failure::{Exit, Failure, Outcome};
use crate::options::Globals;
use crate::source::Source;

/// The nodes that share a store: list, drain, resume.
#[derive(Debug, Args)]
pub(crate) struct Command {
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

/// The node that is meant: by its name, or by its process or the beginning of that.
fn find<'a>(seen: &'a Nodes, text: &str) -> Result<&'a Node, Failure> {
    // The server of a store in a file names itself, and has nobody to hand anything to.
    if seen.shards == 0 {
        return Err(no_nodes("the server's store"));
    }
    let living = || seen.nodes.iter().filter(|node| node.living);
    let mut found: Vec<&Node> = living().filter(|node| node.node == text).collect();
    if found.is_empty() {
        found = living().filter(|node| node.process.starts_with(text)).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let what = format!("no node {text} lives");
            Err(Failure::new(Exit::NotFound, "no_node", what).hint("abide node list shows who does"))
        }
        several => {
            let mut hint = String::from("give its process; these have that name:");
            several.iter().for_each(|node| hint.push_str(&format!("\n  {}", node.process)));
            Err(Failure::usage("ambiguous_node", format!("{text} may be one of several nodes")).hint(hint))
        }
    }
}

/// A store in a file has no nodes.
pub(crate) fn no_nodes(store: &str) -> Failure {
    let what = format!("{store} is a store for one process at a time: it has no nodes");
    let hint = "abide store stats says which process holds it; nodes share a store in PostgreSQL";
    Failure::usage("no_nodes", what).hint(hint)
}

/// How many shards a process serves.
fn shards(source: &mut dyn Source, process: &str) -> Result<usize, Failure> {
    let seen = source.nodes()?;
    Ok(seen.nodes.iter().find(|node| node.process == process).map_or(0, |node| node.shards.len()))
}
