//! `cargo xtask sim` runs this: many seeds, or the story of one.

#![allow(clippy::print_stdout, reason = "it answers at the terminal")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use abide_sim::Plan;
use abide_sim::model::{Bounds, explore};
use clap::Parser;
use parking_lot::Mutex;

#[derive(Parser)]
#[command(about = "Lives through worlds, each from one seed, and looks for anything that was not promised.")]
struct Options {
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One seed alone, with its story.
    #[arg(long)]
    seed: Option<u64>,
    /// Live through the seeds of `regressions.txt` as well, each of which once failed.
    #[arg(long)]
    regressions: bool,
    /// Stop at the first seed that fails, or at the first law that the model breaks.
    #[arg(long)]
    first: bool,
    /// Instead of many faults in each world, one: everything that is asked of the store goes wrong, in every way, each in a world of
    /// its own, all with the first of the seeds.
    #[arg(long)]
    each_fault: bool,
    /// Instead of seeds, every order of everything that can happen to the claims of one run.
    #[arg(long)]
    model: bool,
}

struct Sum {
    questions: u64,
    nodes: BTreeMap<usize, u64>,
    faults: BTreeMap<&'static str, u64>,
    sometimes: BTreeMap<&'static str, u64>,
    verbs: BTreeMap<String, u64>,
    failed: BTreeMap<u64, String>,
}

fn main() -> ExitCode {
    abide_sim::panics::watch();
    let options = Options::parse();
    if options.model {
        return model(options.first);
    }
    if options.each_fault {
        return each_fault(options.from);
    }
    if let Some(seed) = options.seed {
        return match live(seed, Some(|line| println!("{line}"))).outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
        };
    }
    let mut sum = live_all(&options);
    if options.regressions {
        for seed in abide_sim::regressions() {
            add(&mut sum, seed, live_twice(seed));
        }
    }
    for (seed, violation) in sum.failed.iter().take(20) {
        println!("seed {seed}: {violation}\n    to replay it: cargo xtask sim --seed {seed}");
    }
    let never = if options.seeds >= ENOUGH { sum.never() } else { Vec::new() };
    if !never.is_empty() {
        println!("in {} seeds this never happened: {never:?}", options.seeds);
    }
    let lived: u64 = sum.nodes.values().sum();
    let operations = sum.questions / lived.max(1);
    let object = serde_json::json!({
        "seeds": options.seeds,
        "operations": operations,
        "nodes": sum.nodes,
        "faults": sum.faults,
        "sometimes": sum.sometimes,
        "verbs": sum.verbs,
        "failed": sum.failed.len(),
    });
    println!("{object}");
    let enough = options.seeds < ENOUGH || operations >= OPERATIONS_MIN;
    if sum.failed.is_empty() && never.is_empty() && enough { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seeds in which everything must have happened at least once.
const ENOUGH: u64 = 500;
/// How much must be asked in a world, on average.
const OPERATIONS_MIN: u64 = 300;

/// Nothing has happened yet: what has to is there, with nought.
impl Default for Sum {
    fn default() -> Self {
        let zero = |names: &[&'static str]| names.iter().map(|name| (*name, 0)).collect();
        Self {
            questions: 0,
            nodes: BTreeMap::new(),
            faults: zero(abide_sim::FAULTS),
            sometimes: zero(abide_sim::rare::SOMETIMES),
            verbs: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }
}

impl Sum {
    /// What must have happened in so many seeds, and has not: faults and rare things, and verbs done and refused.
    fn never(&self) -> Vec<String> {
        let never = self.faults.iter().chain(&self.sometimes).filter(|(_, times)| **times == 0);
        let verbs = abide_sim::VERBS.iter().flat_map(|(done, refused, verb)| {
            let done = done.then(|| format!("{verb} done"));
            done.into_iter().chain(refused.then(|| format!("{verb} refused")))
        });
        let verbs = verbs.filter(|verb| !self.verbs.contains_key(verb));
        never.map(|(what, _)| (*what).to_owned()).chain(verbs).collect()
    }
}

/// Looks at every state of the model, and says how many there are: those of each slice, and their sum, in which a state of two
/// slices counts twice. With `first`, the slices that are still looked at when one is broken are left as they are.
fn model(first: bool) -> ExitCode {
    let began = std::time::Instant::now();
    let (said, heard) = std::sync::mpsc::channel();
    for bounds in Bounds::all() {
        let said = said.clone();
        // Nobody waits for it: it is over with the process. If nobody hears it any more, it is not needed.
        std::thread::spawn(move || drop(said.send((bounds, explore(&bounds)))));
    }
    drop(said);
    let (mut states, mut acts, mut slices) = (0, 0, 0);
    for (bounds, explored) in heard {
        println!("{bounds:?}");
        match explored {
            Ok(explored) => {
                println!("    complete: {explored:?}");
                (states, acts, slices) = (states + explored.states, acts + explored.acts, slices + 1);
            }
            Err(broken) => {
                println!("    {}", broken.violation);
                broken.acts.iter().for_each(|act| println!("    {act:?}"));
                if first {
                    break;
                }
            }
        }
    }
    let (seconds, complete) = (began.elapsed().as_secs(), slices == Bounds::all().len());
    let sum = serde_json::json!({
        "slices": slices,
        "states": states,
        "acts": acts,
        "complete": complete,
        "seconds": seconds,
    });
    println!("{sum}");
    if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lives through worlds in which the first append goes wrong, the second, and so on until all went well; and so each operation,
/// and each way of going wrong.
fn each_fault(seed: u64) -> ExitCode {
    let plans = Mutex::new(Plan::all(seed).collect::<Vec<_>>());
    let (worlds, failed) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let try_all = || {
        while let Some(mut plan) = { plans.lock().pop() } {
            loop {
                let (lived, struck) =
                    caught(|| abide_sim::live_with(&plan, None)).unwrap_or_else(|lived| (lived, true));
                if let Err(violation) = lived.outcome {
                    println!("{plan:?}: {violation}");
                    failed.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                if !struck {
                    break;
                }
                plan.well += 1;
            }
            *worlds.lock().entry(format!("{:?}", plan.operation)).or_insert(0) += plan.well;
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(try_all))));
    let (worlds, failed) = (worlds.into_inner(), failed.into_inner());
    println!("{}", serde_json::json!({ "seed": seed, "worlds": worlds, "failed": failed }));
    let all_struck = worlds.values().all(|worlds| *worlds > 0);
    if failed == 0 && all_struck { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn live_all(options: &Options) -> Sum {
    let next = AtomicU64::new(options.from);
    let sum = Mutex::new(Sum::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let found = options.first && !sum.lock().failed.is_empty();
                    if seed >= options.from + options.seeds || found {
                        return;
                    }
                    // The lock is taken when the world is over: worlds live side by side.
                    let lived = live_twice(seed);
                    add(&mut sum.lock(), seed, lived);
                }
            });
        }
    });
    sum.into_inner()
}

/// Lives through a seed; a panic of the world itself is a violation too.
fn live(seed: u64, listener: Option<abide_sim::Listener>) -> abide_sim::Lived {
    caught(|| abide_sim::live(seed, listener)).unwrap_or_else(|lived| lived)
}

/// What came of a world, or that it panicked.
fn caught<T>(live: impl FnOnce() -> T) -> Result<T, abide_sim::Lived> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(live)).map_err(|_| abide_sim::Lived {
        outcome: Err(format!("the world panicked: {}", abide_sim::panics::take().unwrap_or_default())),
        hash: 0,
        nodes: 0,
        questions: 0,
        faults: BTreeMap::new(),
        sometimes: BTreeMap::new(),
        verbs: BTreeMap::new(),
    })
}

/// Every seed lives twice: what differs then does not follow from the seed.
fn live_twice(seed: u64) -> abide_sim::Lived {
    let (mut first, second) = (live(seed, None), live(seed, None));
    if first.outcome.is_ok() && (first.hash != second.hash || second.outcome.is_err()) {
        first.outcome = Err("two lives of this seed differ".into());
    }
    first
}

fn add(sum: &mut Sum, seed: u64, lived: abide_sim::Lived) {
    sum.questions += lived.questions;
    *sum.nodes.entry(lived.nodes).or_default() += 1;
    for (fault, count) in lived.faults {
        *sum.faults.entry(fault).or_default() += count;
    }
    for (what, count) in lived.sometimes {
        *sum.sometimes.entry(what).or_default() += count;
    }
    for ((verb, well), count) in lived.verbs {
        *sum.verbs.entry(format!("{verb} {}", if well { "done" } else { "refused" })).or_default() += count;
    }
    if let Err(violation) = lived.outcome {
        sum.failed.insert(seed, violation);
    }
}
