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
    everyone_reads_the_committed_value,
    an_uncommitted_change_is_discarded,
    a_missing_value_is_an_error,
    an_empty_node_counts_as_never_written,
    the_initial_value_is_written_once,
    a_write_starts_from_the_initial_value,
    commits_under_one_lock_are_counted_and_signed,
    an_operator_sees_lines_of_text_and_the_value,
    increments_of_many_tasks_are_never_lost,
    a_value_stays_as_it_is_while_it_is_read,
    foreign_bytes_are_an_error_until_they_are_replaced,
    a_value_of_another_type_is_an_error_and_stays,
    a_value_of_another_format_is_an_error_and_stays,
    a_value_of_a_newer_schema_is_an_error_and_stays,
    a_value_of_an_older_schema_is_migrated,
    a_value_that_cannot_be_decoded_is_not_written,
    only_values_within_the_size_limit_are_written,
    a_commit_after_the_lock_was_lost_changes_nothing,
    a_write_without_the_lock_is_noticed_and_not_replaced,
    a_deletion_without_the_lock_is_noticed,
    a_dropped_commit_is_settled_by_the_next_one,
    a_downgrade_keeps_the_lock_and_the_committed_value,
    failed_tries_and_waits_name_the_holder,
    reads_can_be_kept,
    a_plain_thread_reads_and_writes_by_blocking,
    wrong_options_are_refused_unsent,
    bytes_strings_and_custom_formats_are_stored_as_given,
    the_copy_and_the_changes_follow_other_commits,
    a_poll_of_the_changes_gives_the_newest_value,
    the_changes_are_a_stream,
    a_commit_updates_the_copy_before_it_returns,
    the_changes_report_a_value_made_later,
    the_changes_report_a_deletion_and_foreign_bytes,
    a_deleted_value_is_not_given_to_new_observers,
    the_changes_report_a_commit_after_the_reconnect,
    the_end_of_a_session_does_not_end_the_watch,
    closing_ends_the_changes_and_keeps_the_last_value,
    the_copy_never_goes_back_for_any_of_many_threads;

    in comforts:
    changes_and_copies_write_the_initial_value,
    the_initial_value_gives_way_to_a_writers_value,
    an_unwritable_initial_value_fails_the_changes,
    a_live_value_is_always_there_and_follows,
    a_live_value_of_a_missing_value_is_refused,
    no_update_is_lost,
    an_update_is_repeated_after_a_write_without_lock,
    an_update_is_repeated_when_its_session_has_ended,
    an_update_with_a_removed_node_is_an_error,
    a_wait_ends_with_the_first_matching_value,
    waits_and_updates_end_in_time,
    a_format_runs_on_callers_threads_without_locks;
}
