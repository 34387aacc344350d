//! `abide dev`: a server for the first five minutes, with a store of its own in this folder, a worker that has an example, and
//! without login.

mod example;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use clap::Args;

use super::serve::Serve;
use crate::failure::{Exit, Failure, Outcome};
use crate::input::address;
use crate::nearby::{FOLDER, FROM, Nearby, kept};
use crate::options::Globals;
use crate::place::Place;
use crate::telemetry::Telemetry;
pub(super) use example::Example;

/// Where it listens unless that is taken.
const PORT: u16 = 7411;
/// How many ports are tried.
const PORTS: u16 = 20;

/// Serve a store of this folder, for trying things out.
#[derive(Debug, Args)]
#[command(after_help = "\
The store is .abide/abide.db unless --store, ABIDE_STORE or the profile says otherwise; it stays there, and the next abide dev
goes on with it. Other commands in this folder find the server by themselves. Only this machine is answered, and nobody needs a
token. A worker is there too, with one workflow, greet. Ctrl-C lets the worker finish, answers what was asked, and stops.

Examples:
  abide dev
  abide run start greet --input '{\"name\":\"Ada\"}' --follow
  abide dev --ephemeral --no-example
  abide dev --listen 127.0.0.1:0")]
pub(crate) struct Dev {
    /// Where to listen, and port 0 takes any that is free; if absent 127.0.0.1:7411, or the next port that is free
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Forget everything at the end
    #[arg(long)]
    ephemeral: bool,
    /// Leave out the worker with the example
    #[arg(long)]
    no_example: bool,
    #[command(flatten)]
    telemetry: Telemetry,
}

impl Dev {
    pub(crate) fn perform(self, mut globals: Globals) -> Outcome {
        let begun = Instant::now();
        let listen = self.listen.unwrap_or((Ipv4Addr::LOCALHOST, PORT).into());
        let ports = if self.listen.is_some() { 1 } else { PORTS };
        let serve = Serve::for_trying(listen, self.telemetry, Trial { begun, ports, example: !self.no_example });
        serve.check().map_err(|failure| {
            failure.hint("abide dev is for this machine: leave --listen out; abide serve answers others, by tokens")
        })?;
        // A project may name the very server that is about to begin.
        if globals.server.as_ref().is_some_and(|asked| asked.from != "--url") {
            globals.server = None;
        }
        if self.ephemeral {
            if globals.store_named {
                let what = format!("--ephemeral forgets its store, and {} is named as the store", globals.store);
                return Err(Failure::usage("two_places", what).hint("give one of the two"));
            }
            let scratch = tempfile::Builder::new().prefix("abide-dev-").tempdir()?;
            globals.store = format!("sqlite:{}", scratch.path().join("abide.db").display());
            return serve.perform(&globals);
        }
        if !globals.store_named {
            if let Some(there) = Nearby::find(Path::new("")) {
                let what = format!("{FROM} runs already: process {}, {}", there.pid, there.url);
                return Err(Failure::new(Exit::Failure, "store_in_use", what)
                    .hint("use it, or stop it with Ctrl-C; --ephemeral begins another with a store of its own"));
            }
            let store = kept(Path::new(""));
            let folder = Path::new(FOLDER);
            std::fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
            globals.store = format!("sqlite:{}", store.display());
        }
        serve.perform(&globals)
    }
}

/// The folder of the store cannot be made.
fn unwritable(folder: &Path, error: &std::io::Error) -> Failure {
    let shown = std::path::absolute(folder).unwrap_or(folder.into());
    let what = format!("{} cannot be made: {error}", shown.display());
    Failure::new(Exit::Failure, "unwritable", what)
        .hint("go to a folder that you may write to; or name a store, --store sqlite:PATH; or keep none, --ephemeral")
}

/// What a server does beside serving, for one who tries it out.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Since when it is being waited for.
    pub(super) begun: Instant,
    /// How many ports it may try, one after the other.
    pub(super) ports: u16,
    /// Whether there is a worker with an example.
    pub(super) example: bool,
}

impl Trial {
    /// What to try next.
    pub(super) fn guide(&self, place: &Place, url: &str) -> Vec<String> {
        // A database may have other servers, and nobody finds this one in the folder.
        let asks = if place.file().is_some() { String::new() } else { format!("--url {url} ") };
        let example = format!("try      abide {asks}run start greet --input '{{\"name\":\"Ada\"}}' --follow");
        let mut lines = Vec::new();
        lines.extend(self.example.then_some(example));
        lines.push(format!("{}  abide {asks}run list", if self.example { "       " } else { "try    " }));
        lines.push("workers  docs/workers.md, docs/python.md, docs/typescript.md".into());
        lines
    }
}
