//! `cargo xtask bench-postgres`: `abide bench …` against a PostgreSQL server that lives only for it, with the durable
//! settings that a server comes with.

use std::path::Path;
use std::process::Command;

use abide_pg_testing::Server;
use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::setup::cargo_path;

#[derive(Args)]
pub(crate) struct Options {
    /// What `abide bench` is told, such as: steps --in-flight 256 --json
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

pub(crate) fn perform(root: &Path, options: &Options) -> Result<()> {
    let mut build = Command::new(cargo_path());
    build.current_dir(root).args(["build", "--release", "--quiet", "--package", "abide-cli"]);
    ensure!(build.status().context("cargo could not be started")?.success(), "the command line does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    // Counting costs a little: only where statements are what is measured.
    let counts = options.bench.first().is_some_and(|bench| bench == "idle");
    let settings: &[(&str, &str)] = if counts { &[("shared_preload_libraries", "pg_stat_statements")] } else { &[] };
    let server = Server::start_with(settings);
    let mut bench = Command::new(target.join("release/abide"));
    bench.arg("bench").args(&options.bench).env("ABIDE_STORE", server.url());
    let ended = bench.status().context("the command line could not be started")?;
    let left = server.psql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'abide%'");
    ensure!(ended.success(), "the benchmark ended with {ended}");
    ensure!(left == "0", "the benchmark left {left} schemas behind");
    Ok(())
}
