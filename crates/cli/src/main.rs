//! Abide at a terminal: run, inspect, repair, measure.

mod bench;
mod bounds;
mod commands;
mod descriptors;
mod failure;
mod input;
mod interrupt;
mod keeper;
mod nearby;
mod options;
mod owner;
mod password;
mod place;
mod screen;
mod settings;
mod source;
mod telemetry;
mod text;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::{Exit, Failure, Outcome};
use options::{Flags, Format, Globals};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Durable execution: programs that survive crashes, deploys and month-long waits.
#[derive(Debug, Parser)]
#[command(name = "abide", version, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Verb,
}

const EXAMPLES: &str = "\
Examples:
  abide demo                                   see a workflow survive being killed
  abide run list --status failed               what went wrong
  abide run explain run_0193                   why a run does not move
  abide run watch run_0193                     what happens to it, as it happens
  abide --url http://127.0.0.1:7411 run list   the same of a server
  abide run signal run_0193 paid --payload '{\"amount\":5}'
  abide -o jsonl run history run_0193          for jq

Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 the run failed (--wait, --follow, watch), 5 timeout or unknown, 130 interrupted";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs: list, show, state, watch, history, export, explain, start, signal, update, resume, cancel, compact, purge.
    Run(commands::run::Command),
    /// Decisions for people: list, show, approve, reject.
    Approval(commands::approval::Command),
    /// Work for people: list, show, claim, release, complete.
    Task(commands::task::Command),
    /// Attempts and messages that were set aside: list, requeue, discard.
    DeadLetter(commands::dead_letter::Command),
    /// Outside work of runs: list, show, resolve what is in doubt.
    Effect(commands::effect::Command),
    /// Queues: list, pause, resume, limit.
    Queue(commands::queue::Command),
    /// Workers of a server: list.
    Worker(commands::worker::Command),
    /// The store itself: check, stats, migrate, export, import.
    Store(commands::store::Command),
    /// The nodes that share a store: list, drain, resume.
    Node(commands::node::Command),
    /// Serve a store of this folder, for trying things out.
    Dev(commands::dev::Dev),
    /// Answer over HTTP for a store.
    Serve(commands::serve::Serve),
    /// Workflows that somebody can execute for a server: list.
    Workflow(commands::workflow::Command),
    /// What a server takes at most: list.
    Limit(commands::limit::Command),
    /// Who changed what over HTTP: list, prune.
    Audit(commands::audit::Command),
    /// Who may ask a server, and for what: create, list, revoke.
    Token(commands::token::Command),
    /// What holds for this command line, and who said so: show.
    Config(commands::config::Command),
    /// People who log in to a server: add, list, remove, password.
    User(commands::user::Command),
    /// Look whether exported journals are whole, and which workflows they need.
    Check(commands::check::Check),
    /// Look for what needs a person: expired claims, overdue timers, dead letters, foreign programs.
    Doctor(commands::doctor::Doctor),
    /// Write what a shell needs to complete commands.
    Completions(commands::completions::Completions),
    /// Write a page of the manual for every verb.
    Man(commands::man::Man),
    /// Watch a workflow survive being killed again and again.
    Demo(commands::demo::Demo),
    /// The process that the demo kills.
    #[command(hide = true)]
    DemoWorker(commands::demo::DemoWorker),
    /// Measure the engine against what the same store can do raw.
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let Cli { mut flags, mut command } = Cli::parse();
    // Whoever speaks TLS here does so with it; it fails only where it was done before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A benchmark has a server of its own, beside the store.
    if matches!(command, Verb::Bench(_)) {
        flags.url = None;
    }
    let asked = flags.output.unwrap_or(if flags.json { Format::Json } else { Format::Text });
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let settings = match Settings::resolve(&flags, &env, Path::new("")) {
        Ok(settings) => settings,
        Err(failure) => return report(Err(failure), asked),
    };
    if matches!(command, Verb::Serve(_)) && !settings.serve.is_empty() {
        command = told(&settings);
    }
    let globals = settings.globals.clone();
    let format = globals.output;
    let screen = screen::Screen::new(&globals);
    settings.remarks.iter().for_each(|remark| screen.remark(remark));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    settings::strange(names).iter().for_each(|remark| screen.remark(remark));
    report(perform(command, globals, &settings), format)
}

/// The command once more, with what files say of a server in place of the defaults.
fn told(settings: &Settings) -> Verb {
    let command = Cli::command().mut_subcommand("serve", |serve| settings::serve::with_told(serve, &settings.serve));
    let parsed = Cli::from_arg_matches(&command.get_matches());
    parsed.unwrap_or_else(|error| error.exit()).command
}

fn perform(command: Verb, globals: Globals, settings: &Settings) -> Outcome {
    match command {
        Verb::Run(run) => run.perform(&globals),
        Verb::Approval(approval) => approval.perform(&globals),
        Verb::Task(task) => task.perform(&globals),
        Verb::DeadLetter(dead_letter) => dead_letter.perform(&globals),
        Verb::Effect(effect) => effect.perform(&globals),
        Verb::Queue(queue) => queue.perform(&globals),
        Verb::Worker(worker) => worker.perform(&globals),
        Verb::Store(store) => store.perform(&globals),
        Verb::Node(node) => node.perform(&globals),
        Verb::Dev(dev) => dev.perform(globals),
        Verb::Serve(serve) => serve.perform(&globals),
        Verb::Workflow(workflow) => workflow.perform(&globals),
        Verb::Limit(limit) => limit.perform(&globals),
        Verb::Audit(audit) => audit.perform(&globals),
        Verb::Token(token) => token.perform(&globals),
        Verb::Config(config) => config.perform(&globals, settings),
        Verb::User(user) => user.perform(&globals),
        Verb::Check(check) => check.perform(&globals),
        Verb::Doctor(doctor) => doctor.perform(&globals),
        Verb::Completions(completions) => completions.perform(),
        Verb::Man(man) => man.perform(),
        Verb::Demo(demo) => demo.perform(&globals),
        Verb::DemoWorker(worker) => worker.perform(),
        Verb::Bench(bench) => bench.measure(&globals.store).map(|()| Exit::Ok).map_err(Failure::from),
    }
}

fn report(outcome: Outcome, format: Format) -> ExitCode {
    let exit = match outcome {
        Ok(exit) => exit,
        Err(failure) if failure.is_closed_pipe() => Exit::Ok,
        Err(failure) if format == Format::Text => {
            eprint!("{}", failure.text());
            failure.exit
        }
        Err(failure) => {
            eprintln!("{}", failure.json());
            failure.exit
        }
    };
    ExitCode::from(exit as u8)
}
