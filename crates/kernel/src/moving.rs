//! Moving: journals go from store to store, and the stores may share out their runs otherwise.
//!
//! Facts name neither shards nor positions, with two exceptions that belong to the store a run lives in: whether its
//! business key is held by a record in another shard, and, in a compacted run, its place in line. What is packed says
//! neither; whoever unpacks it adds what is true there.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::transition::{complete, start};
use crate::{Fact, Facts, Phase, Row, Run, RunId, Seq, ShardMap, Started, Status};

/// A record that holds the key of a run which lives in another shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    /// The record.
    pub record: RunId,
    /// Its first facts.
    pub facts: Facts,
}

/// Whether the row begins a record that only holds a key: it is not packed, and made anew where it is needed.
#[must_use]
pub fn begins_holder(row: &Row) -> bool {
    matches!(row.facts.first(), Some(Fact::Started(started)) if started.reserves.is_some())
}

/// Takes out of a row what only its own store knows.
pub fn pack(row: &mut Row) {
    (row.seq, row.prior) = (Seq(0), Seq(0));
    match row.facts.first_mut() {
        Some(Fact::Started(started)) => started.reservation = None,
        Some(Fact::Compacted(run)) => settle_in(run, None, Seq(0)),
        _ => {}
    }
}

/// Adds to a row that has its position what a store knows that shares out its runs like this. A run that begins with the
/// row and whose key is at home in another shard needs a record there.
#[must_use]
pub fn unpack(row: &mut Row, map: ShardMap) -> Option<Holder> {
    let (id, seq) = (row.run, row.seq);
    match row.facts.first_mut() {
        Some(Fact::Started(started)) => {
            let holder = holder(id, started, map);
            started.reservation = holder.as_ref().map(|holder| holder.record);
            holder
        }
        Some(Fact::Compacted(run)) => {
            let holder = holder(id, &run.started, map);
            settle_in(run, holder.as_ref().map(|holder| holder.record), seq);
            holder
        }
        _ => None,
    }
}

/// The facts of a record whose key is free.
#[must_use]
pub fn freed() -> Facts {
    Facts::from_iter([complete::ended(Status::Done)])
}

fn holder(id: RunId, started: &Started, map: ShardMap) -> Option<Holder> {
    started.spec.key.as_ref()?;
    let record = start::reservation_id(id, &started.spec, started.request);
    if map.home(record.slot()) == map.home(id.slot()) {
        return None;
    }
    // The run is there already: nobody has to wait for it.
    let facts = Facts::from_iter([Fact::Started(Box::new(start::held(id, started))), Fact::Begun]);
    Some(Holder { record, facts })
}

fn settle_in(run: &mut Run, reservation: Option<RunId>, place: Seq) {
    if run.started.reservation != reservation {
        Arc::make_mut(&mut run.started).reservation = reservation;
    }
    for cursor in &mut run.cursors {
        match &mut cursor.phase {
            Phase::Scheduled { arrival, .. } => *arrival = place,
            Phase::Claimed(claim) => claim.arrival = place,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{Concurrency, OnConflict, Payload, RequestId, Rev, StartSpec, StatusSet, Timestamp, UniqueKey};

    /// A run whose business key and concurrency key are at home in different slots, as one shard has it.
    fn keyed() -> Row {
        let mut spec = StartSpec::new("flow", Payload::null());
        spec.key =
            Some(UniqueKey { key: "order-1".into(), occupied: StatusSet::OPEN, on_conflict: OnConflict::Reject });
        spec.concurrency = Some(Concurrency { key: "customer-2".into(), limit: 1 });
        let request = RequestId::new(Timestamp(5), 77);
        let id = spec.run_id(request);
        let facts = start::decide(id, start::started(spec, request, None), Timestamp(5)).facts;
        Row { seq: Seq(9), run: id, rev: Rev(1), prior: Seq(0), at: Timestamp(5), facts }
    }

    /// AB-8: wherever the key of a run is at home elsewhere, a record holds it there; and nothing of that is carried on.
    #[test]
    fn a_key_is_held_where_it_is_at_home() {
        let mut packed = keyed();
        pack(&mut packed);
        let one = unpack(&mut packed.clone(), ShardMap::new(1));
        assert_eq!(one, None, "one shard holds both");
        let many = ShardMap::new(4096);
        let mut row = packed.clone();
        let held = unpack(&mut row, many).expect("they are at home in different shards");
        assert_ne!(many.home(held.record.slot()), many.home(row.run.slot()));
        let run = Run::begin(&row).expect("it begins");
        assert_eq!(run.started.reservation, Some(held.record));
        assert!(!run.occupies_key());
        let first =
            Row { seq: Seq(1), run: held.record, rev: Rev(1), prior: Seq(0), at: row.at, facts: held.facts.clone() };
        assert!(begins_holder(&first) && !begins_holder(&row));
        let mut record = Run::begin(&first).expect("it begins");
        assert!(record.occupies_key() && !record.awaits_beginning());
        record.check().expect("it is sound");
        record.apply_row(&Row { rev: Rev(2), facts: freed(), ..first });
        assert!(!record.occupies_key());
        pack(&mut row);
        assert_eq!(row, packed);
    }

    /// AB-8: a compacted run has a place in line that means nothing elsewhere.
    #[test]
    fn a_compacted_run_leaves_its_place_behind() {
        let run = Run::begin(&keyed()).expect("it begins");
        let facts = Facts::from_iter([Fact::Compacted(Box::new(run))]);
        let mut row = Row { facts, ..keyed() };
        pack(&mut row);
        row.seq = Seq(3);
        let held = unpack(&mut row, ShardMap::new(4096)).expect("they are at home in different shards");
        let run = Run::begin(&row).expect("it begins");
        assert_eq!(run.started.reservation, Some(held.record));
        let places: Vec<Seq> = run
            .cursors
            .iter()
            .filter_map(|cursor| match cursor.phase {
                Phase::Scheduled { arrival, .. } => Some(arrival),
                _ => None,
            })
            .collect();
        assert_eq!(places, [Seq(3)]);
    }

    /// AB-8: what is packed of a compacted run says nothing of the store that it was in, whatever its steps do.
    #[test]
    fn a_packed_run_says_nothing_of_its_store() {
        let mut run = Run::begin(&keyed()).expect("it begins");
        let claim = crate::Claim {
            number: 1,
            lease_until: Timestamp(9),
            extended_until: Timestamp(0),
            visible_at: Timestamp(5),
            arrival: Seq(9),
            seen: 0,
        };
        let mut other = run.cursors[0].clone();
        other.phase = Phase::Claimed(claim);
        run.cursors.push(other);
        Arc::make_mut(&mut run.started).reservation = Some(RunId(1));
        let mut row = Row { facts: Facts::from_iter([Fact::Compacted(Box::new(run))]), ..keyed() };
        pack(&mut row);
        let Some(Fact::Compacted(packed)) = row.facts.first() else { panic!("expected a whole run") };
        assert_eq!(packed.started.reservation, None);
        let places: Vec<Seq> = packed
            .cursors
            .iter()
            .filter_map(|cursor| match &cursor.phase {
                Phase::Scheduled { arrival, .. } => Some(*arrival),
                Phase::Claimed(claim) => Some(claim.arrival),
                _ => None,
            })
            .collect();
        assert_eq!(places, [Seq(0), Seq(0)]);
    }
}
