//! The project's own chores, as `cargo xtask <verb>`. One file per verb; this one only reads the command line
//! and hands over. Nothing of the product may depend on this crate.

// A chore answers at the terminal; that is what it is for.
#![allow(clippy::print_stdout)]

mod api_fuzz;
mod bench_postgres;
mod clients;
mod crash;
mod house;
mod known_bugs;
mod mutants;
mod setup;
mod sim;
mod test;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "The chores of the Abide workspace.")]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Sets the machine up and runs every check; the last line is `tests: N`.
    Test(test::Options),
    /// Kills a process under load again and again and looks for anything lost; the last line is one JSON object.
    Crash(crash::Options),
    /// The process that `crash` kills.
    #[command(hide = true)]
    CrashWorker(crash::worker::Options),
    /// The process that `crash --transactions` kills.
    #[command(hide = true)]
    CrashTransactions(crash::transactions::WorkerOptions),
    /// Moves stores with open runs of every kind from a file to PostgreSQL and back; the last line is one JSON object.
    House(house::Options),
    /// Lives through worlds, each from one seed, and looks for anything wrong; the last line is one JSON object.
    Sim(sim::Options),
    /// Changes the kernel in small ways and looks for changes that no test notices; the last line is one JSON object.
    Mutants(mutants::Options),
    /// Asks a server whatever its OpenAPI document allows, and what it does not; the last line is one JSON object.
    ApiFuzz(api_fuzz::Options),
    /// Runs `abide bench` against a PostgreSQL server of its own.
    BenchPostgres(bench_postgres::Options),
    /// Checks what the compiler can't: crate arrows, kernel purity, sizes, names in documents.
    Tidy,
}

fn main() -> ExitCode {
    let verb = CommandLine::parse().verb;
    let answer = workspace_root().and_then(|root| match verb {
        Verb::Test(options) => test::perform(&root, &options),
        Verb::Crash(options) => crash::perform(&options),
        Verb::CrashWorker(options) => crash::worker::perform(&options),
        Verb::CrashTransactions(options) => crash::transactions::work(&options),
        Verb::House(options) => house::perform(&options),
        Verb::Sim(options) => sim::perform(&root, &options),
        Verb::Mutants(options) => mutants::perform(&root, &options),
        Verb::ApiFuzz(options) => api_fuzz::perform(&root, &options),
        Verb::BenchPostgres(options) => bench_postgres::perform(&root, &options),
        Verb::Tidy => tidy::perform(&root),
    });
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Cargo says at run time where this package is. The place it was compiled in is the second choice, because
/// a shared target folder may hold a binary that was built in another clone.
fn workspace_root() -> Result<PathBuf> {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package
        .ancestors()
        .nth(2)
        .map(Path::to_path_buf)
        .with_context(|| format!("expected this package in crates/xtask, found it in {}", package.display()))
}
