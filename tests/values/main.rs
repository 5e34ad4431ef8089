//! A value behind the lock: its promises on both backends, and faults of network, server and process.

mod checks;
mod comforts;
mod crashes;
mod doubts;
mod kept;
mod restores;
mod wire;

macro_rules! on_both {
    ($(in $file:ident: $($name:ident),* $(,)?;)*) => {
        mod memory {
            use support::harness::{Harness, OnMemory};
            $($(
                #[support::judged(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$file::$name(&OnMemory::start().await).await;
                }
            )*)*
        }
        mod zookeeper {
            use support::harness::{Harness, OnZooKeeper};
            $($(
                #[support::judged(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::$file::$name(&OnZooKeeper::start().await).await;
                }
            )*)*
        }
    };
}

on_both! {
    in checks:
    what_was_committed_is_what_everyone_reads,
    what_was_not_committed_is_discarded,
    a_value_that_was_never_written_is_an_error,
    an_empty_node_counts_as_never_written,
    the_initial_value_is_written_once_whoever_reads_first,
    a_write_begins_with_the_initial_value_and_writes_it_only_with_a_commit,
    commits_under_one_lock_are_counted_and_all_say_who_wrote_them,
    an_operator_sees_lines_of_text_and_the_value,
    increments_of_many_tasks_are_never_lost,
    a_value_stays_as_it_is_while_it_is_read,
    foreign_bytes_are_an_error_and_stay_until_they_are_replaced,
    a_value_of_another_type_is_an_error_and_stays,
    a_value_of_another_format_is_an_error_and_stays,
    a_value_of_a_newer_schema_is_an_error_and_stays,
    a_value_of_an_older_schema_is_migrated_and_kept_so_by_the_next_commit,
    a_value_that_cannot_be_read_again_is_not_written,
    a_value_as_large_as_allowed_is_written_and_a_larger_one_is_not,
    a_commit_after_the_lock_was_lost_changes_nothing,
    a_write_without_the_lock_is_noticed_and_not_replaced,
    a_deletion_without_the_lock_is_noticed,
    a_dropped_commit_is_done_or_not_and_the_next_one_finds_out,
    a_downgrade_keeps_the_lock_and_reads_what_was_committed,
    trying_and_waiting_in_vain_say_who_is_in_the_way,
    reads_can_be_kept,
    a_plain_thread_reads_and_writes_by_blocking,
    wrong_options_are_refused_unsent,
    bytes_strings_and_formats_of_ones_own_are_kept_as_they_are,
    the_copy_and_the_changes_follow_what_others_commit,
    values_between_two_looks_are_passed_over_and_the_newest_is_not,
    the_changes_are_a_stream_that_wakes_whoever_polls_it,
    our_own_commits_are_in_the_copy_when_they_return,
    a_value_that_is_made_later_is_told_however_much_of_its_path_is_missing,
    a_deletion_and_foreign_bytes_are_told_and_the_last_value_stays,
    whoever_asks_when_the_value_is_gone_is_not_given_it,
    what_happened_while_cut_off_is_told_afterwards,
    the_end_of_a_session_does_not_end_the_watch,
    a_coordinator_that_is_closed_ends_the_changes_and_the_last_value_stays,
    many_threads_ask_for_the_copy_at_once_and_it_never_goes_back;

    in comforts:
    the_initial_value_serves_whoever_begins_with_the_changes_or_the_copy,
    the_initial_value_waits_for_a_writer_and_gives_way_to_its_value,
    an_initial_value_that_cannot_be_written_is_an_error_of_the_changes,
    a_live_value_is_always_there_and_follows,
    a_live_value_is_refused_where_there_is_none,
    an_update_changes_the_value_and_none_is_lost,
    an_update_begins_again_when_a_client_without_the_lock_was_faster,
    an_update_begins_again_when_its_session_has_ended,
    an_update_whose_node_was_removed_ends_with_that_error,
    waiting_for_a_value_ends_with_the_first_that_is_wanted,
    waits_and_updates_end_in_time,
    a_format_is_asked_on_the_callers_threads_alone_and_under_no_lock;
}
