//! The reference store against the suite for every store, and its faults on demand.

use abide_kernel::{RunId, Seq, ShardId};
use abide_store::Store;
use abide_store::conformance::{
    self, Fixture, SHARDS, append, compact, damage, envelopes, import, index, journal, kept, listing, purge, readers,
    reopen, tokens,
};
use abide_store::memory::{MemoryStore, Rot};

struct InMemory(MemoryStore);

fn fixture() -> InMemory {
    InMemory(MemoryStore::new(SHARDS))
}

impl Fixture for InMemory {
    fn make(&mut self) -> Box<dyn Store> {
        Box::new(self.0.clone())
    }

    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store> {
        drop(store);
        Box::new(self.0.clone())
    }

    fn lose_index(&mut self, store: Box<dyn Store>) -> Box<dyn Store> {
        self.0.faults().lose_index();
        self.reopen(store)
    }

    fn corrupt_row(&mut self, store: Box<dyn Store>, shard: ShardId, seq: Seq) -> Box<dyn Store> {
        assert!(self.0.faults().rot(Rot::Row(shard, seq), 0));
        self.reopen(store)
    }

    fn corrupt_checkpoint(&mut self, store: Box<dyn Store>, run: RunId) -> Box<dyn Store> {
        assert!(self.0.faults().rot(Rot::Checkpoint(run), 0));
        self.reopen(store)
    }
}

/// SQ-6, SQ-9: kind and data of every entry come back, in order, without gap, reorder or duplicate.
#[test]
fn rows_come_back_in_order() {
    append::rows_come_back_in_order(&mut fixture());
}

/// SQ-8 (D2): an append under a stale fence is refused and writes nothing.
#[test]
fn a_stale_owner_writes_nothing() {
    append::a_stale_owner_writes_nothing(&mut fixture());
}

/// SQ-8, SQ-9: positions are dense, and a conflicting append writes nothing.
#[test]
fn a_taken_or_skipped_position_is_refused() {
    append::a_taken_or_skipped_position_is_refused(&mut fixture());
}

/// GD-46: a group goes in as one, says what really went in, and a conflict stops only its own shard.
#[test]
fn a_stale_shard_does_not_stop_its_group() {
    append::a_stale_shard_does_not_stop_its_group(&mut fixture());
}

/// GD-46: a conflict within the group is caught as well as one against what is stored.
#[test]
fn batches_of_one_shard_follow_each_other_in_a_group() {
    append::batches_of_one_shard_follow_each_other_in_a_group(&mut fixture());
}

/// SE-19 (D31): payloads are JSON in UTF-8 and pass untouched, up to the cap.
#[test]
fn any_text_of_any_size_comes_back() {
    append::any_text_of_any_size_comes_back(&mut fixture());
}

/// SQ-16: concurrent appenders use expected positions; the losers are refused and look again.
#[test]
fn appenders_side_by_side_never_overwrite() {
    append::appenders_side_by_side_never_overwrite(&mut fixture());
}

/// SQ-12, SE-1, SE-39: entries, checkpoints and messages survive the process, in one store.
#[test]
fn everything_is_there_after_the_process_died() {
    reopen::everything_is_there_after_the_process_died(&mut fixture());
}

/// SQ-13 (D2): the fence is in the store, so that a dead owner's appends are refused after a restart too.
#[test]
fn each_opening_is_a_new_ownership() {
    reopen::each_opening_is_a_new_ownership(&mut fixture());
}

/// SQ-10, SQ-12: how far index rows are complete is exact, survives, and never moves back.
#[test]
fn the_watermark_only_moves_forward() {
    reopen::the_watermark_only_moves_forward(&mut fixture());
}

/// SQ-14: what a store holds is its configuration, never what a caller names.
#[test]
fn a_shard_that_does_not_exist_is_refused() {
    reopen::a_shard_that_does_not_exist_is_refused(&mut fixture());
}

/// SQ-10: a checkpoint says its revision, and only a newer one overwrites it.
#[test]
fn a_checkpoint_only_moves_forward() {
    index::a_checkpoint_only_moves_forward(&mut fixture());
}

/// I3: index rows of a shard that was taken stay out, and do not stop those of others.
#[test]
fn index_rows_of_a_group_go_in_without_a_stale_shard() {
    index::index_rows_of_a_group_go_in_without_a_stale_shard(&mut fixture());
}

/// SQ-6, SQ-11, SQ-64 (D1): with checkpoints and index rows deleted, the log gives the same answers.
#[test]
fn without_index_rows_every_answer_can_be_rebuilt() {
    index::without_index_rows_every_answer_can_be_rebuilt(&mut fixture());
}

/// A business key leads to one run at a time.
#[test]
fn a_key_is_found_by_the_run_that_occupies_it() {
    index::a_key_is_found_by_the_run_that_occupies_it(&mut fixture());
}

/// SE-17, SE-37: delayed work is kept by its instant, and none is missed however it is paged.
#[test]
fn deadlines_come_in_pages_that_end_between_instants() {
    index::deadlines_come_in_pages_that_end_between_instants(&mut fixture());
}

/// SE-17: work that can be claimed is found again in its order.
#[test]
fn ready_runs_come_in_claim_order() {
    index::ready_runs_come_in_claim_order(&mut fixture());
}

/// Held runs are found when their shard is opened.
#[test]
fn claimed_runs_are_found_by_shard() {
    index::claimed_runs_are_found_by_shard(&mut fixture());
}

/// SQ-9: a run's journal is ordered, dense and its own.
#[test]
fn a_journal_is_followed_back_from_its_head() {
    journal::a_journal_is_followed_back_from_its_head(&mut fixture());
}

/// SQ-9: also over thousands of rows.
#[test]
fn a_long_journal_is_read_from_any_revision() {
    journal::a_long_journal_is_read_from_any_revision(&mut fixture());
}

#[test]
fn a_long_journal_is_read_in_pages() {
    journal::a_long_journal_is_read_in_pages(&mut fixture());
}

/// SQ-15: a corrupted entry is surfaced with run and position; it is never replayed or skipped.
#[test]
fn a_damaged_row_is_reported_and_others_are_read() {
    damage::a_damaged_row_is_reported_and_others_are_read(&mut fixture());
}

/// SQ-11, SQ-15: a corrupted checkpoint is surfaced, and the journal does not need it.
#[test]
fn a_damaged_checkpoint_is_reported_and_the_journal_is_read() {
    damage::a_damaged_checkpoint_is_reported_and_the_journal_is_read(&mut fixture());
}

/// SE-17: messages are durable and in order, and each is consumed once.
#[test]
fn an_envelope_is_seen_until_it_is_consumed() {
    envelopes::an_envelope_is_seen_until_it_is_consumed(&mut fixture());
}

/// SE-25: when the commit that consumes a message fails, the message is visible again.
#[test]
fn a_refused_batch_leaves_its_envelopes_visible() {
    envelopes::a_refused_batch_leaves_its_envelopes_visible(&mut fixture());
}

/// SE-37, SE-39: messages wait while nobody is there, and numbers go on after.
#[test]
fn numbers_go_on_after_the_process_died() {
    envelopes::numbers_go_on_after_the_process_died(&mut fixture());
}

/// SQ-8: a message is written once; a conflict writes nothing of the group.
#[test]
fn a_taken_number_refuses_the_whole_group() {
    envelopes::a_taken_number_refuses_the_whole_group(&mut fixture());
}

/// A dead letter keeps the whole envelope, why, when and by whom.
#[test]
fn dead_letters_keep_what_was_set_aside() {
    envelopes::dead_letters_keep_what_was_set_aside(&mut fixture());
}

/// A listing answers as one who looks at every run.
#[test]
fn every_filter_agrees_with_a_plain_one() {
    listing::every_filter_agrees_with_a_plain_one(&mut fixture());
}

/// Keyset pages miss nothing and repeat nothing.
#[test]
fn pages_have_no_gap_and_no_repeat() {
    listing::pages_have_no_gap_and_no_repeat(&mut fixture());
}

/// The first digits of an id find it.
#[test]
fn runs_are_found_by_the_beginning_of_their_id() {
    listing::runs_are_found_by_the_beginning_of_their_id(&mut fixture());
}

/// GD-31, SQ-9: what a run held dies with it, signals included, and the log has no gap.
#[test]
fn a_purge_empties_rows_and_leaves_no_gap() {
    purge::a_purge_empties_rows_and_leaves_no_gap(&mut fixture());
}

/// GD-31: a purge that comes again after a crash changes nothing more.
#[test]
fn a_purge_can_be_repeated() {
    purge::a_purge_can_be_repeated(&mut fixture());
}

/// D32: a dead letter is taken out with what follows from it, and only once.
#[test]
fn a_dead_letter_is_settled_once() {
    envelopes::a_dead_letter_is_settled_once(&mut fixture());
}

/// D1: what was before a compacted row goes; the journal begins with it.
#[test]
fn a_compaction_empties_what_was_before_it() {
    compact::a_compaction_empties_what_was_before_it(&mut fixture());
}

/// D1: the log is the truth, also of a run that was compacted.
#[test]
fn a_compacted_run_is_rebuilt_from_the_log_alone() {
    compact::a_compacted_run_is_rebuilt_from_the_log_alone(&mut fixture());
}

/// D1, GD-31: a compaction may come again after a crash, and a purge takes what it left.
#[test]
fn a_compaction_can_be_repeated_and_followed_by_a_purge() {
    compact::a_compaction_can_be_repeated_and_followed_by_a_purge(&mut fixture());
}

/// D34: beside the owner, a reader sees a batch whole or not at all.
#[test]
fn readers_see_only_whole_batches() {
    readers::readers_see_only_whole_batches(&mut fixture());
}

/// A store that is left alone is neither read nor written, and that can be seen.
#[test]
fn reads_and_writes_are_counted() {
    readers::reads_and_writes_are_counted(&mut fixture());
}

/// Counts are of what is there.
#[test]
fn sizes_are_counted() {
    readers::sizes_are_counted(&mut fixture());
}

/// AB-8: only an empty store is filled, and what was set aside elsewhere is kept as it was.
#[test]
fn an_empty_store_is_filled() {
    import::an_empty_store_is_filled(&mut fixture());
}

/// AB-16
#[test]
fn what_a_server_wrote_down_is_kept_until_it_is_removed() {
    kept::what_a_server_wrote_down_is_kept_until_it_is_removed(&mut fixture());
}

/// AB-16
#[test]
fn a_token_is_kept_until_it_is_removed() {
    tokens::a_token_is_kept_until_it_is_removed(&mut fixture());
}

/// A case that this file forgets would be a promise nobody checks here.
#[test]
fn every_case_of_the_suite_is_called() {
    let source = include_str!("memory.rs");
    for (name, _) in conformance::CASES {
        assert!(source.contains(&format!("::{name}(&mut fixture());")), "{name} is not called");
    }
}
