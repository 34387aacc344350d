//! Resolve: a person, or a program that knows, says what became of an effect that is in doubt.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Transition, manual, record};
use serde::{Deserialize, Serialize};

use crate::spec::check_payload;
use crate::{
    Approval, Dedup, EndedAt, ErrorInfo, Fact, Interrupt, Meta, OpId, OpKind, OpState, Refusal, RequestId, Resolution,
    Resolved, Run, Standing, Str, limits,
};

/// What someone says of an effect that is in doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolving {
    /// The effect's key in the ledger.
    pub key: Str,
    /// The interrupt that is answered: the claim under which the effect was begun. A retry must name it.
    pub interrupt: Option<u32>,
    /// What became of it, or what is to become of it.
    pub how: Resolution,
    /// Who says so.
    pub actor: Str,
    /// The roles in which they do: a retry of an effect that was reviewed needs one of those the review asked for.
    pub roles: Vec<Str>,
    /// Why.
    pub note: Option<Str>,
    /// The client's request.
    pub request: RequestId,
}

/// Resolves an effect that is in doubt. An empty transition means: this request had done so before.
///
/// # Errors
/// When the run has ended, there is no such effect, it is not in doubt, or another interrupt is meant.
pub fn decide(run: &Run, resolving: &Resolving) -> Result<Transition, Refusal> {
    manual::check_person(&resolving.actor, &resolving.roles, resolving.note.as_deref())?;
    match &resolving.how {
        Resolution::Value(value) => check_payload("effect result", value)?,
        Resolution::Failed(error) => error.validate()?,
        Resolution::Retry | Resolution::Compensated => {}
    }
    if run.dedup.iter().any(|seen| seen.request == resolving.request) {
        return Ok(Transition::default());
    }
    if let Some(end) = &run.end {
        return Err(Refusal::RunOver { run: run.id, status: end.status });
    }
    let newest = |(id, op): (OpId, &crate::Op)| (op.key == resolving.key && op.effect().is_some()).then_some(id);
    let Some(op) = run.ops().filter_map(newest).last() else {
        return Err(Refusal::NoEffect { key: resolving.key.clone() });
    };
    let standing = run.standing(op);
    let effect = run.op(op).and_then(crate::Op::effect);
    let (Some(Standing::InDoubt), Some(effect)) = (standing, effect) else {
        let found = standing.map_or("no effect", Standing::name).into();
        return Err(Refusal::NotInDoubt { key: resolving.key.clone(), found });
    };
    let wrong = match (resolving.interrupt, &resolving.how) {
        (Some(interrupt), _) => interrupt != effect.claim,
        (None, how) => matches!(how, Resolution::Retry),
    };
    if wrong {
        return Err(Refusal::WrongInterrupt { given: resolving.interrupt, current: effect.claim });
    }
    if resolving.how == Resolution::Retry {
        manual::check_reviewer(run, &resolving.key, &resolving.roles)?;
    }
    let mut transition = Transition::of([Fact::Resolved(Box::new(Resolved {
        op,
        how: resolving.how.clone(),
        actor: resolving.actor.clone(),
        note: resolving.note.clone(),
        request: resolving.request,
    }))]);
    let cursor = run.op(op).map_or(0, |op| op.cursor);
    record::wake_cursor(run, cursor, &mut transition);
    Ok(transition)
}

pub(super) fn apply(run: &mut Run, resolved: &Resolved, meta: Meta) {
    if run.dedup.len() >= limits::DEDUP_KEYS_MAX {
        run.dedup.remove(0);
    }
    run.dedup.push(Dedup { key: None, request: resolved.request, signal: 0 });
    let when = EndedAt { ended: run.ops_ended + 1, seen: 0, at: meta.at };
    let failed = |error: Arc<ErrorInfo>| OpState::Failed { when, error };
    let state = match &resolved.how {
        Resolution::Value(value) => OpState::Done { when, value: value.clone() },
        Resolution::Failed(error) => failed(error.clone()),
        Resolution::Compensated => {
            let message = "the effect was in doubt, and someone has undone it by hand";
            failed(Arc::new(ErrorInfo::terminal(COMPENSATED, message)))
        }
        Resolution::Retry => OpState::Open,
    };
    let allowed = state == OpState::Open;
    let Some(op) = run.op_mut(resolved.op) else {
        return;
    };
    op.state = state;
    if let (true, OpKind::Effect(effect)) = (allowed, &mut op.kind) {
        let (actor, note) = (resolved.actor.clone(), resolved.note.clone());
        let interrupt = Interrupt::Doubt(effect.claim);
        effect.approval = Some(Arc::new(Approval { interrupt, actor, note, at: meta.at }));
        effect.claim = 0;
        return;
    }
    run.ops_ended = when.ended;
    run.open.retain(|open| *open != resolved.op);
}

/// The code of the error of an effect that was undone by hand.
pub const COMPENSATED: &str = "compensated";
