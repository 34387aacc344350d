//! Looking at runs of a server: lists, journals, and runs folded from them.

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::explain::{Explanation, Reason};
use abide_kernel::shard::Settling;
use abide_kernel::{LetterId, Rev, Row, Run, RunId, Seq, Timestamp};
use abide_protocol::limits::PAGE_MAX;
use abide_protocol::{Instant, Journal, Letter, Letters, RunPage, RunRecord, RunSummary};
use abide_store::{DeadLetterItem, Filter, Listed, Page};

use super::Http;
use super::http::Ask;
use crate::ClientError;

impl Http {
    /// Runs that match, newest first.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn list(&self, filter: &Filter, page: &Page) -> Result<Vec<Listed>, ClientError> {
        let http = match &filter.namespace {
            Some(namespace) => self.within(namespace),
            None => self.clone(),
        };
        let statuses: Vec<String> = filter.statuses.iter().map(ToString::to_string).collect();
        let mut found: Vec<Listed> = Vec::new();
        let mut before = page.before;
        while found.len() < page.most {
            let left = (page.most - found.len()).min(PAGE_MAX as usize);
            let instant = |at: Option<Timestamp>| at.map(|at| Instant(at).to_string());
            let mut ask = Ask::get("/runs")
                .with("workflow", filter.workflow.as_ref().map(ToString::to_string))
                .with("status", (!statuses.is_empty()).then(|| statuses.join(",")))
                .with("queue", filter.queue.as_ref().map(ToString::to_string))
                .with("key", filter.key.as_ref().map(ToString::to_string))
                .with("parent", filter.parent.map(|run| run.to_string()))
                .with("created_after", instant(filter.created.from))
                .with("created_before", instant(filter.created.before))
                .with("updated_after", instant(filter.updated.from))
                .with("updated_before", instant(filter.updated.before))
                .with("limit", Some(left.to_string()))
                .with("before", before.map(|run| run.to_string()));
            for (name, value) in &filter.labels {
                ask = ask.with("label", Some(format!("{name}={value}")));
            }
            let RunPage { runs, next } = http.ask(ask).await?;
            found.extend(runs.into_iter().map(listed));
            before = next;
            if before.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// The run's journal from a revision on.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn journal(&self, run: RunId, from: u64) -> Result<Vec<Row>, ClientError> {
        let path = format!("/runs/{run}/journal");
        let mut rows: Vec<Row> = Vec::new();
        let mut from = Some(from);
        while let Some(next) = from {
            let ask = Ask::get(&path).with("from", Some(next.to_string()));
            let journal: Journal = self.ask(ask).await?;
            for row in journal.rows {
                let prior = rows.last().map_or(Seq(0), |row| row.seq);
                let (seq, rev, at) = (Seq(row.seq), Rev(row.rev), row.at.0);
                rows.push(Row { seq, run, rev, prior, at, facts: row.facts });
            }
            from = journal.next;
        }
        Ok(rows)
    }

    /// The run as it stands.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn show(&self, run: RunId) -> Result<Run, ClientError> {
        let path = format!("/runs/{run}/record");
        let RunRecord { record } = self.ask(Ask::get(&path)).await?;
        Ok(record)
    }

    /// Why a run does not move.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn explain(&self, run: RunId) -> Result<Explanation, ClientError> {
        let path = format!("/runs/{run}/explain");
        let told: abide_protocol::Explanation = self.ask(Ask::get(&path)).await?;
        Ok(Explanation {
            reason: Reason::Told(told.reason.into()),
            sentence: told.sentence,
            evidence: told.evidence.into_iter().collect(),
            next_actions: told.next_actions,
        })
    }

    /// Messages that were set aside.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetterItem>, ClientError> {
        let Letters { letters } = self.ask(Ask::get("/dead-letters").over()).await?;
        let item = |letter: Letter| {
            let what = || format!("the message of {}", letter.letter);
            let envelope = serde_json::from_value(letter.message.clone());
            let envelope = envelope.map_err(|source| ClientError::Codec { what: what(), source })?;
            let dead = DeadEnvelope { envelope, reason: letter.reason.as_str().into() };
            Ok(DeadLetterItem { id: letter.letter, at: letter.at.0, node: letter.node.clone(), dead })
        };
        letters.into_iter().map(item).collect()
    }

    /// Settles a message that was set aside.
    ///
    /// # Errors
    /// When there is no answer, or the answer is a problem.
    pub async fn settle(&self, letter: LetterId, how: Settling) -> Result<(), ClientError> {
        let verb = match how {
            Settling::Requeue => "requeue",
            Settling::Discard => "discard",
        };
        let path = format!("/dead-letters/{letter}/{verb}");
        Ok(self.once(&Ask::verb(&path).over()).await?)
    }
}

fn listed(summary: RunSummary) -> Listed {
    let text = |text: Option<String>| text.map(Into::into);
    Listed {
        run: summary.run,
        namespace: summary.namespace.into(),
        workflow: summary.workflow.into(),
        version: summary.version,
        queue: summary.queue.into(),
        status: summary.status,
        step: text(summary.step),
        key: text(summary.key),
        parent: summary.parent,
        labels: summary.labels.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        created_at: summary.created_at.0,
        updated_at: summary.updated_at.0,
        due: summary.due.map(|at| at.0),
        rev: summary.rev,
    }
}
