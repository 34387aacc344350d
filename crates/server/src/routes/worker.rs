//! Workers: they take attempts, and say what came of them.

use std::sync::Arc;
use std::time::Duration;

use abide_kernel::limits::{DELAY_MS_MAX, LEASE_MS_MIN};
use abide_kernel::shard::{Answer, Command, Dispatch};
use abide_kernel::transition::child::StartingChild;
use abide_kernel::transition::claim::Definition;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::fail::Failing;
use abide_kernel::transition::progress::Progressing;
use abide_kernel::transition::record;
use abide_kernel::{ClaimId, Claimant, Fingerprint, Refusal, RunId, Slot, Str, TokenHash, mix};
use abide_protocol::limits::{CLAIMS_MAX, ENTRIES_ALL_MAX, ENTRIES_MAX, OFFERED_MAX, REPORTS_MAX};
use abide_protocol::{
    Attempt, Backoff, ClaimWork, Claims, Entry, Offered, Problem, Recorded, Report, ReportAnswer, Reported, Reports,
    Retry, Say, Scope, Worker, Workers,
};
use abide_runtime::{Claiming, Lately, Offer, Roster, Work};
use futures_util::future::join_all;
use sha2::{Digest, Sha256};

use super::start::spec;
use crate::answer::{Answered, Refused, json, unexpected};
use crate::call::{Call, check_name, in_time};

/// Attempts are handed out together up to so many bytes, and at least one.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long what is promised may take to come.
const AT_ONCE: Duration = Duration::from_secs(5);
/// How long a delay grows at most, unless it is said otherwise.
const DELAY_MS_MAX_DEFAULT: u64 = 3_600_000;

pub(crate) async fn claim(call: Call) -> Answered {
    let asked: ClaimWork = call.body()?;
    let offer = offer(&call, &asked, asked.wait_ms > 0)?;
    let claiming = call.engine.claim(&offer)?;
    let wait = Duration::from_millis(asked.wait_ms);
    let work = if asked.wait_ms == 0 { at_once(claiming).await? } else { call.within(wait, claiming.work()).await };
    if work.is_some() {
        // What came for whoever is not known any more goes back.
        call.still_known().await?;
    }
    hand_out(&call, work.transpose()?, |claims| json(&Claims { claims }))
}

/// What was claimed in the same breath, if anything was.
async fn at_once(claiming: Claiming) -> Result<Option<Result<Work, abide_runtime::Unanswered>>, Refused> {
    if !claiming.is_promised() {
        return Ok(None);
    }
    // What another node has for it may be lost on the way, and goes back then.
    Ok(tokio::time::timeout(AT_ONCE, claiming.work()).await.ok())
}

/// Attempts leave with the answer. What cannot be put into one goes back.
fn hand_out(call: &Call, mut work: Option<Work>, answer: impl FnOnce(Vec<Attempt>) -> Answered) -> Answered {
    if let Some(work) = &mut work {
        let mut bytes = 0;
        let fits = |dispatch: &&Dispatch| {
            bytes += dispatch.bytes();
            bytes <= ANSWER_BYTES_MAX
        };
        let fitting = work.attempts().iter().take_while(fits).count();
        work.keep(fitting.max(1));
        let namespace = call.namespace();
        let noted = |dispatch: &Dispatch| (dispatch.claim.run, namespace.clone(), dispatch.started.spec.queue.clone());
        call.places.note(work.attempts().iter().map(noted));
    }
    let claims = work.iter().flat_map(|work| work.attempts()).map(Attempt::from).collect();
    let answered = answer(claims)?;
    if let Some(work) = work {
        drop(work.take());
    }
    Ok(answered)
}

pub(crate) async fn report(call: Call) -> Answered {
    let Reports { token, reports, next } = call.body()?;
    if reports.len() > REPORTS_MAX {
        return Err(invalid("reports", &format!("at most {REPORTS_MAX} of them"), &reports.len().to_string()));
    }
    let written: usize = reports.iter().map(|report| written(&report.say).len()).sum();
    if written > ENTRIES_ALL_MAX {
        return Err(too_many("entries of the ledger in one request", ENTRIES_ALL_MAX, written));
    }
    let offer = next.map(|next| offer(&call, &next, false)).transpose()?;
    let token = hash(&token);
    let claims: Vec<ClaimId> = reports.iter().map(|report| report.claim).collect();
    // Together: those that are to be looked for elsewhere take one way there.
    let looked = join_all(claims.iter().map(|claim| belongs(&call, claim.run))).await;
    let told = |(report, looked): (Report, Result<(), Refused>)| looked.and_then(|()| command(&call, token, report));
    let commands: Vec<_> = reports.into_iter().zip(looked).map(told).collect();
    let sound = commands.iter().flatten().cloned().collect();
    let (answers, claiming) = call.engine.report(sound, offer.as_ref());
    let mut answers = in_time(answers).await??.into_iter();
    let mut told = Vec::with_capacity(claims.len());
    for (claim, command) in claims.into_iter().zip(commands) {
        told.push(match command {
            Err(Refused(problem)) => ReportAnswer { problem: Some(problem), ..ReportAnswer::default() },
            Ok(_) => answer(&call, claim, answers.next().unwrap_or(Answer::Refused(Refusal::Unknown))).await,
        });
    }
    // The reports are recorded, whatever became of the wish for more.
    let work = match claiming {
        Some(Ok(claiming)) => at_once(claiming).await?.transpose()?,
        Some(Err(_)) | None => None,
    };
    hand_out(&call, work, |claims| json(&Reported { answers: told, claims }))
}

pub(crate) async fn list(call: Call) -> Answered {
    let Roster { workers, silent } = call.engine.roster(&call.namespace()).await;
    let shown = |(node, worker): (Str, Lately)| Worker {
        worker: worker.name.to_string(),
        queues: worker.queues.iter().map(ToString::to_string).collect(),
        workflows: worker.definitions.iter().map(offered).collect(),
        node: node.to_string(),
        seen_at: worker.seen.into(),
    };
    let mut workers: Vec<Worker> = workers.into_iter().map(shown).collect();
    workers.sort_by(|one, other| (&one.worker, &one.node).cmp(&(&other.worker, &other.node)));
    json(&Workers { workers, silent: silent.iter().map(ToString::to_string).collect() })
}

fn offered(definition: &Definition) -> Offered {
    Offered {
        workflow: definition.workflow.to_string(),
        version: definition.version,
        fingerprint: format!("{:016x}", definition.fingerprint.0),
        first_step: definition.first_step.to_string(),
    }
}

fn invalid(what: &str, expected: &str, found: &str) -> Refused {
    let found: String = found.chars().take(80).collect();
    Problem::new("invalid", format!("{what}: expected {expected}, found {found:?}")).but(expected, found).into()
}

/// The hash of a token, as the kernel keeps it.
fn hash(token: &str) -> TokenHash {
    let digest = Sha256::digest(token.as_bytes());
    TokenHash(u128::from_be_bytes(digest[..16].try_into().expect("a digest has 32 bytes")))
}

/// What a worker can execute, if it may.
fn offer(call: &Call, asked: &ClaimWork, waits: bool) -> Result<Offer, Refused> {
    let bounded = |what: &str, found: usize| match found {
        0 => Err(invalid(what, "at least one", "none")),
        1..=OFFERED_MAX => Ok(()),
        more => Err(invalid(what, &format!("at most {OFFERED_MAX} of them"), &more.to_string())),
    };
    bounded("queues", asked.queues.len())?;
    bounded("workflows", asked.workflows.len())?;
    check_name("worker", &asked.worker)?;
    if asked.most == 0 || asked.most > CLAIMS_MAX {
        return Err(invalid("most", &format!("a number from 1 to {CLAIMS_MAX}"), &asked.most.to_string()));
    }
    if !(LEASE_MS_MIN..=DELAY_MS_MAX).contains(&asked.lease_ms) {
        let expected = format!("a number from {LEASE_MS_MIN} to {DELAY_MS_MAX}");
        return Err(invalid("lease_ms", &expected, &asked.lease_ms.to_string()));
    }
    for queue in &asked.queues {
        check_name("queues", queue)?;
        call.principal.allows(&Scope::Worker(queue.clone()))?;
    }
    let token = TokenHash(hex(&asked.token_hash, 32, "token_hash")?);
    let definitions = asked.workflows.iter().map(definition).collect::<Result<_, _>>()?;
    Ok(Offer {
        namespace: Some(call.namespace()),
        queues: asked.queues.iter().map(|queue| queue.as_str().into()).collect(),
        definitions,
        by: Claimant::new(asked.worker.as_str().into(), token, asked.lease_ms, None),
        most: asked.most as usize,
        waits,
    })
}

fn definition(offered: &Offered) -> Result<Definition, Refused> {
    check_name("workflow", &offered.workflow)?;
    check_name("first_step", &offered.first_step)?;
    Ok(Definition {
        workflow: offered.workflow.as_str().into(),
        version: offered.version,
        fingerprint: Fingerprint(hex(&offered.fingerprint, 16, "fingerprint")? as u64),
        first_step: offered.first_step.as_str().into(),
    })
}

fn hex(text: &str, digits: usize, what: &str) -> Result<u128, Refused> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
    number.ok_or_else(|| invalid(what, &format!("{digits} hexadecimal digits"), text))
}

/// Whether a run is of this namespace, and of a queue that whoever asks may serve. A command that is sent leaves a
/// trace, so that it is looked at before: in memory, where what is claimed here is, or wherever the run rests.
async fn belongs(call: &Call, run: RunId) -> Result<(), Refused> {
    let known = call.engine.place(run).or_else(|| call.places.find(run));
    let queue = match known {
        Some((namespace, _)) if namespace != call.namespace() => return Err(Problem::not_found(run).into()),
        Some((_, queue)) => queue,
        None => {
            let queue = call.find(run).await?.started.spec.queue.clone();
            call.places.note([(run, call.namespace(), queue.clone())]);
            queue
        }
    };
    call.principal.allows(&Scope::Worker(queue.to_string()))
}

/// What the kernel is told.
fn command(call: &Call, token: TokenHash, report: Report) -> Result<(Slot, Command), Refused> {
    let Report { claim, say } = report;
    let (run, number) = (claim.run, claim.number);
    let command = match say {
        Say::Heartbeat {} => Command::Heartbeat { claim, token },
        Say::Progress { name, value } => {
            let progressing = Box::new(Progressing { name: name.into(), value });
            Command::Progress { claim, token, progressing }
        }
        Say::GiveBack {} => Command::GiveBack { claim, token },
        Say::Record { entries: written } => {
            let recording = record::Recording { claim: number, token, entries: entries(call, written)? };
            Command::Record { run, recording: Box::new(recording) }
        }
        Say::Complete { outcome, entries: written, consume, handled, compact_after } => {
            let outcome = outcome.into_kernel(|start| spec(call, start)).into();
            let entries = entries(call, written)?;
            let error = handled.map(|error| Arc::new(error.into()));
            let completing = Completing { claim: number, token, outcome, consume, error, compact_after, entries };
            Command::Complete { run, completing }
        }
        Say::StartChild { key, start } => {
            let spec = spec(call, *start);
            let starting = StartingChild { claim: number, token, key: key.into(), spec, metadata: None };
            Command::StartChild { run, starting: Box::new(starting) }
        }
        Say::Fail { error, retry: again, entries: written, reopen, set_aside } => {
            let failing = Failing {
                claim: number,
                token,
                error: Arc::new(error.into()),
                retry: again.map(retry).transpose()?,
                seed: mix(run.0 as u64) ^ u64::from(number),
                entries: entries(call, written)?,
                reopen,
                set_aside,
            };
            Command::Fail { run, failing: Box::new(failing) }
        }
    };
    Ok((run.slot(), command))
}

/// What a report writes to the ledger.
fn written(say: &Say) -> &[Entry] {
    match say {
        Say::Record { entries } | Say::Complete { entries, .. } | Say::Fail { entries, .. } => entries,
        Say::Heartbeat {} | Say::Progress { .. } | Say::GiveBack {} | Say::StartChild { .. } => &[],
    }
}

fn too_many(what: &str, limit: usize, found: usize) -> Refused {
    Refusal::TooLarge { what: what.into(), limit: limit as u64, found: found as u64 }.into()
}

fn entries(call: &Call, written: Vec<Entry>) -> Result<Vec<record::Entry>, Refused> {
    if written.len() > ENTRIES_MAX {
        return Err(too_many("entries of the ledger in one report", ENTRIES_MAX, written.len()));
    }
    let entry = |entry: Entry| {
        let made = entry.into_kernel(|start| spec(call, start));
        made.map_err(|wrong| Problem::new("invalid", wrong).into())
    };
    written.into_iter().map(entry).collect()
}

fn retry(asked: Retry) -> Result<abide_kernel::RetryPolicy, Refused> {
    let Retry { backoff, delay_ms, delay_ms_max, jitter_percent, retries_max } = asked;
    if jitter_percent > 100 {
        return Err(invalid("jitter_percent", "a number from 0 to 100", &jitter_percent.to_string()));
    }
    let backoff = match backoff {
        Backoff::Constant => abide_kernel::Backoff::Constant,
        Backoff::Linear => abide_kernel::Backoff::Linear,
        Backoff::Exponential => abide_kernel::Backoff::Exponential,
    };
    let delay_ms_max = delay_ms_max.unwrap_or(DELAY_MS_MAX_DEFAULT);
    Ok(abide_kernel::RetryPolicy { backoff, delay_ms, delay_ms_max, jitter_percent, retries_max })
}

/// What became of a report. Of a run in another namespace it says that there is none.
async fn answer(call: &Call, claim: ClaimId, answer: Answer) -> ReportAnswer {
    let mut told = ReportAnswer::default();
    match answer {
        Answer::Recorded { rev, duplicate } => told.recorded = Some(Recorded { rev: rev.0, duplicate }),
        Answer::Child(child) => told.child = Some(child),
        Answer::Extended { lease_until } => told.lease_until = Some(lease_until.into()),
        Answer::Refused(refusal) => {
            let problem = match call.find(claim.run).await {
                Ok(_) => Problem::from(&refusal),
                Err(Refused(problem)) => *problem,
            };
            told.problem = Some(Box::new(problem));
        }
        other => told.problem = Some(unexpected(&other).0),
    }
    told
}
