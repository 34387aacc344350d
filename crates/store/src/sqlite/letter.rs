//! Dead letters and cursors: envelopes that were set aside, and how far each shard has consumed those of the others.

use abide_kernel::envelope::{DeadEnvelope, Envelope};
use abide_kernel::{LetterId, ShardId, Timestamp};
use rusqlite::{Connection, params};

use super::fault::fault;
use super::setting;
use crate::sum::Sum;
use crate::{DeadLetterItem, Fault};

/// Sets an envelope aside under a number that was never used.
pub(super) fn set_aside(connection: &Connection, at: Timestamp, node: &str, dead: &DeadEnvelope) -> Result<(), Fault> {
    let body = serde_json::to_string(&dead.envelope).expect("envelopes have a JSON form");
    let id = setting::read(connection, setting::LETTERS)? + 1;
    let sum = sum(id as i64, at.0, node, &dead.reason, &body);
    setting::write(connection, setting::LETTERS, id)
        .and_then(|()| {
            connection
                .prepare_cached(
                    "INSERT INTO dead_letter (id, at, node, reason, body, checksum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![id as i64, at.0, node, &*dead.reason, body, sum])
        })
        .map(drop)
        .map_err(|error| fault("setting an envelope aside", error))
}

/// All that were set aside, in order.
pub(super) fn read_all(connection: &Connection) -> Result<Vec<DeadLetterItem>, Fault> {
    let doing = |error| fault("reading dead letters", error);
    let mut statement = connection
        .prepare_cached("SELECT id, at, node, reason, body, checksum FROM dead_letter ORDER BY id")
        .map_err(doing)?;
    let mut rows = statement.query([]).map_err(doing)?;
    let mut items = Vec::new();
    while let Some(row) = rows.next().map_err(doing)? {
        let id: i64 = row.get(0).map_err(doing)?;
        let damaged = |what: &str| Fault::corrupt(None, None, format!("dead letter {id} is damaged: {what}"));
        let wrong = |error: rusqlite::Error| damaged(&error.to_string());
        let at: i64 = row.get(1).map_err(wrong)?;
        let [node, reason, body] = [row.get(2), row.get(3), row.get(4)].map(|text| text.map_err(wrong));
        let (node, reason, body): (String, String, String) = (node?, reason?, body?);
        if sum(id, at, &node, &reason, &body) != row.get::<_, i64>(5).map_err(wrong)? {
            return Err(damaged("its checksum does not match"));
        }
        let envelope: Envelope = serde_json::from_str(&body).map_err(|error| damaged(&error.to_string()))?;
        let dead = DeadEnvelope { envelope, reason: reason.into() };
        items.push(DeadLetterItem { id: LetterId(id as u64), at: Timestamp(at), node, dead });
    }
    Ok(items)
}

fn sum(id: i64, at: i64, node: &str, reason: &str, body: &str) -> i64 {
    Sum::of("dead_letter").number(id).number(at).text(Some(node)).text(Some(reason)).text(Some(body)).end()
}

/// Notes that a shard has consumed another's envelopes up to a number; never back.
pub(super) fn consume(connection: &Connection, receiver: u16, sender: u16, number: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO envelope_cursor (receiver, sender, number, checksum) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (receiver, sender) DO UPDATE SET number = excluded.number, checksum = excluded.checksum
             WHERE excluded.number > number",
        )?
        .execute(params![receiver, sender, number, cursor_sum(receiver, sender, number)])?;
    Ok(())
}

/// How far the envelopes between shards were consumed: receiver, sender and number, of those to or from a shard.
pub(super) fn cursors(connection: &Connection, shard: ShardId) -> Result<Vec<(u16, u16, i64)>, Fault> {
    let doing = |error| fault("reading envelope numbers", error);
    let mut statement = connection
        .prepare_cached(
            "SELECT receiver, sender, number, checksum FROM envelope_cursor WHERE receiver = ?1 OR sender = ?1",
        )
        .map_err(doing)?;
    let mut rows = statement.query([shard.0]).map_err(doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(doing)? {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, i64>(3)?));
        let (receiver, sender, number, checksum) = read().map_err(doing)?;
        if cursor_sum(receiver, sender, number) != checksum {
            let message = format!(
                "the cursor of shard {receiver} over envelopes from shard {sender} is damaged: its checksum does not match"
            );
            return Err(Fault::corrupt(None, None, message));
        }
        found.push((receiver, sender, number));
    }
    Ok(found)
}

fn cursor_sum(receiver: u16, sender: u16, number: i64) -> i64 {
    Sum::of("envelope_cursor").number(i64::from(receiver)).number(i64::from(sender)).number(number).end()
}
