//! Abide at a terminal: run, inspect, repair, measure.

mod bench;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Durable execution: programs that survive crashes, deploys and month-long waits.
#[derive(Debug, Parser)]
#[command(name = "abide", version)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure the engine against what the same store can do raw.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> std::process::ExitCode {
    match Cli::parse().command {
        Verb::Bench(bench) => report(bench.measure()),
    }
}

fn report(result: anyhow::Result<()>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
