//! The outside work of runs, and what becomes of that which is in doubt.

use std::sync::Arc;

use abide_kernel::shard::Command;
use abide_kernel::transition::resolve::Resolving;
use abide_kernel::{ErrorInfo, Resolution, Standing, Status};
use abide_protocol::{Effect, EffectPage, Effects, How, Resolve, RunEffect};
use abide_store::Filter;

use super::cancel::recorded;
use super::people;
use super::run::listed;
use crate::answer::{Answered, Refused, json};
use crate::call::Call;

pub(crate) async fn of_run(call: Call) -> Answered {
    let run = call.run().await?;
    json(&Effects { effects: run.effects().map(|effect| Effect::of(run.id, &effect)).collect() })
}

pub(crate) async fn in_doubt(call: Call) -> Answered {
    let mut filter = Filter::default();
    filter.statuses = vec![Status::InDoubt];
    let (found, next) = listed(&call, filter).await?;
    let mut effects = Vec::new();
    for listed in found {
        let run = match call.find(listed.run).await {
            Ok(run) => run,
            Err(Refused(problem)) if problem.code == "not_found" => continue,
            Err(other) => return Err(other),
        };
        let doubted = run.effects().filter(|effect| effect.standing == Standing::InDoubt);
        effects.extend(doubted.map(|effect| RunEffect { run: run.id, effect: Effect::of(run.id, &effect) }));
    }
    json(&EffectPage { effects, next })
}

pub(crate) async fn resolve(call: Call) -> Answered {
    let Resolve { effect, how, interrupt, actor, roles, note } = call.body()?;
    let run = call.run().await?.id;
    let resolving = Resolving {
        key: effect.into(),
        interrupt,
        how: match how {
            How::Value(value) => Resolution::Value(value),
            How::Failed(message) => Resolution::Failed(Arc::new(ErrorInfo::terminal("resolved_as_failed", &message))),
            How::Retry => Resolution::Retry,
            How::Compensated => Resolution::Compensated,
        },
        actor: people::actor(&call, actor.as_deref())?,
        roles: roles.into_iter().map(Into::into).collect(),
        note: note.map(Into::into),
        request: call.request(),
    };
    recorded(&call.ask(run.slot(), Command::Resolve { run, resolving: Box::new(resolving) }).await?)
}
