//! One suite for every store: what a [`Store`] promises, as named cases that know nothing of how it is kept.
//!
//! A store joins by a [`Fixture`] and one test for each of [`CASES`]. A case panics when a promise is broken.

pub mod append;
pub mod compact;
pub mod damage;
pub mod envelopes;
pub mod import;
pub mod index;
pub mod journal;
pub mod kept;
pub mod listing;
mod make;
pub mod nodes;
pub mod purge;
pub mod readers;
pub mod reopen;
pub mod tokens;

use std::time::Duration;

use abide_kernel::{RunId, Seq, ShardId};

use crate::Store;

/// How many shards the stores of the suite have.
pub const SHARDS: u16 = 4;

/// What the suite needs to make and to hurt a store.
pub trait Fixture {
    /// Makes an empty store with [`SHARDS`] shards.
    fn make(&mut self) -> Box<dyn Store>;

    /// The process that has `store` dies, and another opens what it left.
    fn reopen(&mut self, store: Box<dyn Store>) -> Box<dyn Store>;

    /// As [`reopen`](Self::reopen), with every index row, checkpoint and watermark deleted in between.
    fn lose_index(&mut self, store: Box<dyn Store>) -> Box<dyn Store>;

    /// As [`reopen`](Self::reopen), with the facts of a journal row changed in between.
    fn corrupt_row(&mut self, store: Box<dyn Store>, shard: ShardId, seq: Seq) -> Box<dyn Store>;

    /// As [`reopen`](Self::reopen), with the checkpoint of a run changed in between.
    fn corrupt_checkpoint(&mut self, store: Box<dyn Store>, run: RunId) -> Box<dyn Store>;
}

macro_rules! cases {
    ($($module:ident::$case:ident),* $(,)?) => {
        &[$((stringify!($case), $module::$case)),*]
    };
}

/// What the suite needs of a store that nodes share.
pub trait Shared {
    /// One more node opens the store, which has [`SHARDS`] shards. The first finds it empty.
    fn join(&mut self) -> Box<dyn Store>;

    /// Time passes, by the store's own clock.
    fn pass(&mut self, time: Duration);
}

/// A promise of a store that nodes share.
pub type SharedCase = fn(&mut dyn Shared);

/// Every case for nodes that share a store, by name.
pub const SHARED_CASES: &[(&str, SharedCase)] = cases![
    nodes::a_shard_is_taken_from_the_dead_and_from_those_who_release_it,
    nodes::a_shard_is_taken_again_by_its_owner,
    nodes::what_a_node_that_left_had_is_free_at_once,
    nodes::who_released_a_shard_writes_nothing,
    nodes::a_node_past_its_lease_writes_nothing,
    nodes::a_group_goes_in_without_the_shards_that_were_taken,
    nodes::a_renewal_tells_who_lives_and_who_owns_what,
    nodes::a_node_is_asked_to_drain,
];

/// A promise of a store.
pub type Case = fn(&mut dyn Fixture);

/// Every case, by name.
pub const CASES: &[(&str, Case)] = cases![
    append::rows_come_back_in_order,
    append::a_stale_owner_writes_nothing,
    append::a_taken_or_skipped_position_is_refused,
    append::a_stale_shard_does_not_stop_its_group,
    append::batches_of_one_shard_follow_each_other_in_a_group,
    append::any_text_of_any_size_comes_back,
    append::appenders_side_by_side_never_overwrite,
    reopen::everything_is_there_after_the_process_died,
    reopen::each_opening_is_a_new_ownership,
    reopen::the_watermark_only_moves_forward,
    reopen::a_shard_that_does_not_exist_is_refused,
    index::a_checkpoint_only_moves_forward,
    index::index_rows_of_a_group_go_in_without_a_stale_shard,
    index::without_index_rows_every_answer_can_be_rebuilt,
    index::a_key_is_found_by_the_run_that_occupies_it,
    index::deadlines_come_in_pages_that_end_between_instants,
    index::ready_runs_come_in_claim_order,
    index::claimed_runs_are_found_by_shard,
    journal::a_journal_is_followed_back_from_its_head,
    journal::a_long_journal_is_read_from_any_revision,
    journal::a_long_journal_is_read_in_pages,
    compact::a_compaction_empties_what_was_before_it,
    compact::a_compacted_run_is_rebuilt_from_the_log_alone,
    compact::a_compaction_can_be_repeated_and_followed_by_a_purge,
    damage::a_damaged_row_is_reported_and_others_are_read,
    damage::a_damaged_checkpoint_is_reported_and_the_journal_is_read,
    envelopes::an_envelope_is_seen_until_it_is_consumed,
    envelopes::a_refused_batch_leaves_its_envelopes_visible,
    envelopes::numbers_go_on_after_the_process_died,
    envelopes::a_taken_number_refuses_the_whole_group,
    envelopes::dead_letters_keep_what_was_set_aside,
    envelopes::a_dead_letter_is_settled_once,
    import::an_empty_store_is_filled,
    listing::every_filter_agrees_with_a_plain_one,
    listing::pages_have_no_gap_and_no_repeat,
    listing::runs_are_found_by_the_beginning_of_their_id,
    purge::a_purge_empties_rows_and_leaves_no_gap,
    purge::a_purge_can_be_repeated,
    readers::readers_see_only_whole_batches,
    readers::reads_and_writes_are_counted,
    readers::sizes_are_counted,
    kept::what_a_server_wrote_down_is_kept_until_it_is_removed,
    tokens::a_token_is_kept_until_it_is_removed,
];
