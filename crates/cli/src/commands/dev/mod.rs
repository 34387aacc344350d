//! `abide dev`: a server for the first five minutes, with a store of its own in this folder and without login.

use std::net::SocketAddr;
use std::path::Path;

use clap::Args;

use super::serve::Serve;
use crate::failure::Outcome;
use crate::options::{AsJson, Globals, STORE};

/// Where it keeps its things.
const FOLDER: &str = ".abide";

/// Serve a store of this folder, for trying things out.
#[derive(Debug, Args)]
#[command(after_help = "\
The store is .abide/abide.db unless --store says otherwise; it stays there, and the next abide dev goes on with it. Only this
machine is answered, and nobody needs a token. Ctrl-C answers what was asked, and stops.

Examples:
  abide dev
  abide dev --listen 127.0.0.1:0")]
pub(crate) struct Dev {
    #[command(flatten)]
    pub(crate) json: AsJson,
    /// Where to listen; port 0 takes any that is free
    #[arg(long, default_value = "127.0.0.1:7411", value_name = "ADDRESS")]
    listen: SocketAddr,
}

impl Dev {
    pub(crate) fn perform(self, mut globals: Globals) -> Outcome {
        let serve = Serve::for_trying(self.json, self.listen);
        serve.check()?;
        // A project may name the very server that is about to begin.
        if globals.server.as_ref().is_some_and(|asked| asked.from != "--url") {
            globals.server = None;
        }
        if globals.store == STORE {
            std::fs::create_dir_all(FOLDER)?;
            globals.store = format!("sqlite:{}", Path::new(FOLDER).join("abide.db").display());
        }
        serve.perform(&globals)
    }
}
