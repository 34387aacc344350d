//! Dead letters and cursors: envelopes that were set aside, and how far each shard has consumed those of the others.

use abide_kernel::envelope::DeadEnvelope;
use abide_kernel::{ShardId, Timestamp};
use rusqlite::{Connection, params};

use super::fault::fault;
use super::setting;
use crate::letter::{RawLetter, check_cursor, cursor_sum};
use crate::{DeadLetterItem, Fault};

/// Sets an envelope aside under a number that was never used.
pub(super) fn set_aside(connection: &Connection, at: Timestamp, node: &str, dead: &DeadEnvelope) -> Result<(), Fault> {
    let id = setting::read(connection, setting::LETTERS)? + 1;
    let letter = RawLetter::of(id as i64, at, node, dead);
    setting::write(connection, setting::LETTERS, id)
        .and_then(|()| {
            connection
                .prepare_cached(
                    "INSERT INTO dead_letter (id, at, node, reason, body, checksum) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![letter.id, letter.at, letter.node, letter.reason, letter.body, letter.sum()])
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
        let letter = RawLetter { id, at, node: node?, reason: reason?, body: body? };
        items.push(letter.decode(row.get(5).map_err(wrong)?)?);
    }
    Ok(items)
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
        check_cursor(receiver, sender, number, checksum)?;
        found.push((receiver, sender, number));
    }
    Ok(found)
}
