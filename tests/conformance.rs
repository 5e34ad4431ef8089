//! What every backend keeps, and what the lock promises on each of them.

mod support;

#[path = "conformance/harness.rs"]
mod harness;
#[path = "conformance/lock.rs"]
mod lock;

macro_rules! conformance {
    ($($module:ident: [$($name:ident),* $(,)?]),* $(,)?) => {
        mod memory {
            $(mod $module {
                use crate::harness::{Harness, OnMemory};
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        crate::$module::$name(&OnMemory::start().await).await;
                    }
                )*
            })*
        }
        mod zookeeper {
            $(mod $module {
                use crate::harness::{Harness, OnZooKeeper};
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        crate::$module::$name(&OnZooKeeper::start().await).await;
                    }
                )*
            })*
        }
    };
}

conformance! {
    lock: [
        readers_hold_together,
        a_writer_holds_alone,
        a_reader_never_overtakes_a_queued_writer,
        readers_between_two_writers_run_together,
        writers_are_granted_in_the_order_of_their_arrival,
        two_writers_queued_behind_a_reader_hold_one_after_the_other,
        trying_a_taken_lock_writes_nothing_and_names_the_holder,
        try_read_succeeds_beside_readers_and_not_behind_a_waiting_writer,
        a_timeout_says_who_is_in_the_way_and_leaves_no_node,
        a_cancelled_waiter_leaves_no_node_and_wakes_nobody,
        the_successor_of_a_cancelled_waiter_waits_for_the_one_before,
        readers_behind_a_cancelled_writer_join_the_reader_that_holds,
        downgrade_keeps_the_token_and_lets_in_the_readers_directly_behind,
        a_shared_guard_keeps_the_node_until_the_last_one,
        shared_guards_are_lost_together,
        releasing_a_removed_node_says_lost,
        downgrading_a_removed_node_says_lost_and_leaves_nothing,
        a_removed_node_is_a_lost_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_guard_dropped_in_a_panic_frees_the_lock,
        a_plain_thread_acquires_by_blocking,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_transaction_refuses_paths_inside_the_locks_directory,
        a_refused_transaction_says_which_operation_and_why,
        missing_directories_are_made,
        a_directory_deleted_between_uses_is_made_again,
        an_ephemeral_node_is_no_lock_directory,
        wrong_input_is_refused_before_anything_is_sent,
        foreign_children_are_no_contenders,
        a_node_of_another_program_takes_part_in_the_queue,
        the_queue_tells_who_holds_and_who_waits_behind_whom,
        fencing_tokens_rise_with_every_grant_that_excludes_the_last,
        a_waiter_whose_session_ends_is_evicted,
        a_guard_whose_session_ends_is_lost_and_the_handle_goes_on,
        closing_loses_guards_fails_waiters_and_refuses_new_acquisitions,
        a_cut_is_suspect_until_it_is_mended,
        a_lock_delay_holds_off_whoever_waited_for_a_vanished_writer,
        a_lock_delay_does_not_hold_off_after_a_release,
        a_lock_delay_does_not_hold_off_after_a_downgrade,
    ]
}
