//! The promises of the backends and of the lock, tested on each backend.

mod contract;
mod leadership;
mod limits;
mod lock;
mod once;
mod semaphore;

macro_rules! conformance {
    ($($module:ident: $names:tt),* $(,)?) => {
        conformance!(@ memory: OnMemory; $($module: $names),*);
        conformance!(@ zookeeper: OnZooKeeper; $($module: $names),*);
    };
    (@ $backend:ident: $harness:ty; $($module:ident: [$($name:ident),* $(,)?]),*) => {
        mod $backend {
            $(mod $module {
                use support::harness::*;
                $(
                    #[support::judged(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        crate::$module::$name(&<$harness>::start().await).await;
                    }
                )*
            })*
        }
    };
}

/// Makes tests of node names, which run in the dialects (the naming schemes) of other libraries.
macro_rules! dialects {
    ($($module:ident: $dialect:ident),* $(,)?; $names:tt) => {
        $(mod $module {
            const DIALECT: zk_rwlock::Dialect = zk_rwlock::Dialect::$dialect;
            dialects!(@ memory: OnMemory, $names);
            dialects!(@ zookeeper: OnZooKeeper, $names);
        })*
    };
    (@ $backend:ident: $harness:ident, [$($name:ident),* $(,)?]) => {
        mod $backend {
            use support::harness::{Harness, $harness, Speaking};
            $(
                #[support::judged(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::lock::$name(&Speaking(super::DIALECT, $harness::start().await)).await;
                }
            )*
        }
    };
}

/// Makes tests that also run with a lock that keeps its nodes between uses. Tests that count the nodes of one handle are left
/// out.
macro_rules! keeping {
    ($names:tt) => {
        mod keeping {
            keeping!(@ memory: OnMemory, $names);
            keeping!(@ zookeeper: OnZooKeeper, $names);
        }
    };
    (@ $backend:ident: $harness:ident, [$($name:ident),* $(,)?]) => {
        mod $backend {
            use support::harness::{Harness, $harness, Keeping};
            $(
                #[support::judged(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    crate::lock::$name(&Keeping::<$harness>::start().await).await;
                }
            )*
        }
    };
}

conformance! {
    limits: [
        a_holder_hears_of_its_limit_before_the_next_grant,
        permits_are_given_up_at_their_limit,
        a_use_over_its_limit_ends_its_kept_node,
    ],
    contract: [
        a_request_is_sent_although_its_reply_is_dropped,
        a_request_can_be_sent_from_a_plain_thread,
        requests_take_effect_in_the_order_of_the_calls,
        a_delete_and_the_next_create_keep_their_order,
        a_refused_delete_does_not_affect_the_next_create,
        a_read_sent_after_a_write_sees_it,
        a_nodes_stat_is_that_of_its_creation,
        a_sync_shows_what_others_wrote,
        sequence_numbers_rise_and_have_ten_digits,
        creation_ids_rise_also_in_a_directory_made_anew,
        a_transaction_takes_effect_as_a_whole,
        a_failed_transaction_changes_nothing_and_says_why,
        a_check_changes_nothing_and_fires_no_watch,
        a_watch_reports_new_data,
        a_watch_reports_a_deletion,
        a_watch_reports_the_set_of_a_set_and_delete,
        a_watch_reports_the_delete_of_a_replacement,
        a_missing_node_cannot_be_watched,
        several_watches_on_one_node_all_fire,
        an_event_precedes_the_reply_that_shows_its_change,
        an_event_missed_while_cut_off_fires_on_reconnect,
        a_child_watch_reports_a_child_made_or_deleted,
        a_child_watch_ignores_data_and_grandchildren,
        a_child_watch_reports_its_deleted_parent,
        a_missed_child_event_fires_on_reconnect,
        only_ephemeral_nodes_go_with_their_session,
        an_ended_session_fails_every_request,
        after_an_end_the_next_slot_is_on_a_fresh_session,
        closing_ends_the_session_and_refuses_slots,
        a_disconnected_session_reconnects_after_the_cut,
        a_refusal_says_why,
        an_empty_container_can_be_deleted,
        a_write_makes_the_lease_valid,
        a_lease_runs_out_when_no_quorum_answers,
        a_server_is_left_with_the_same_session,
        a_background_task_runs_without_its_caller,
        a_slot_of_either_client_serves_a_lock,
    ],
    lock: [
        readers_hold_together,
        a_writer_holds_alone,
        a_reader_never_overtakes_a_queued_writer,
        readers_between_two_writers_run_together,
        writers_are_granted_in_the_order_of_their_arrival,
        a_holder_that_asks_again_is_last_in_the_queue,
        a_contender_that_lost_the_lock_can_get_it_again,
        two_writers_behind_a_reader_hold_in_turn,
        a_try_of_a_taken_lock_names_the_holder,
        try_read_fails_behind_a_waiting_writer,
        a_timeout_names_the_holder_and_leaves_no_node,
        a_cancelled_waiter_leaves_no_node_and_wakes_nobody,
        a_waiter_behind_a_cancelled_one_keeps_waiting,
        readers_behind_a_cancelled_writer_hold,
        a_downgrade_keeps_the_token_and_lets_readers_in,
        a_shared_guard_keeps_the_node_until_the_last_one,
        shared_guards_are_lost_together,
        uses_of_a_kept_node_share_its_loss,
        an_idle_node_is_given_up_to_a_waiter,
        a_node_that_was_asked_for_admits_no_new_use,
        an_operator_asks_by_setting_the_directorys_data,
        an_operators_ask_call_ends_a_kept_node_after_its_use,
        a_node_that_idles_too_long_is_given_up,
        each_use_restarts_the_idle_time,
        releasing_a_removed_node_is_a_loss,
        downgrading_a_removed_node_is_a_loss,
        a_removed_node_loses_the_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        a_waiter_behind_a_lost_local_node_is_granted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_waker_may_poll_its_task_inside_a_request,
        a_guard_dropped_in_a_panic_frees_the_lock,
        a_plain_thread_acquires_by_blocking,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_transaction_refuses_paths_inside_the_directory,
        a_refused_transaction_says_which_operation_and_why,
        missing_directories_are_made,
        a_directory_deleted_between_uses_is_made_again,
        an_ephemeral_node_is_no_lock_directory,
        wrong_input_is_refused_unsent,
        foreign_children_are_no_contenders,
        a_node_of_another_program_takes_part_in_the_queue,
        the_queue_shows_holders_and_waiters_in_order,
        fencing_tokens_rise_with_every_exclusive_grant,
        a_waiter_whose_session_ends_is_evicted,
        an_expired_guard_is_lost_and_its_handle_works,
        closing_ends_guards_waiters_and_acquisitions,
        a_guard_cut_off_is_suspect_until_the_reconnect,
        a_write_that_a_waiter_missed_while_cut_off_is_no_hand_off,
        a_holder_learns_of_its_first_waiter,
        evicting_by_token_removes_that_member_only,
        a_session_outlasts_the_lease_of_its_guards,
        a_survey_finds_every_queue_below_a_prefix,
    ],
    once: [
        work_is_done_again_only_after_the_period,
        work_done_while_a_contender_waited_is_not_repeated,
        the_next_waiter_repeats_failed_work,
        one_of_many_contenders_does_the_work,
        a_holder_whose_session_ended_records_nothing,
        a_holder_whose_node_was_removed_records_nothing,
        the_record_outlives_the_directory,
        a_node_that_is_no_record_is_refused_and_stays,
        work_under_a_lock_of_any_dialect_is_done_once,
    ],
    leadership: [
        one_candidate_leads_and_everybody_can_ask_who,
        a_resigning_leader_queues_up_behind_the_next,
        a_transaction_of_a_past_term_is_refused,
        an_expired_leader_campaigns_on_a_new_session,
        an_evicted_leader_campaigns_again,
        a_stopped_or_dropped_candidate_leaves,
        the_result_of_the_work_ends_the_campaign,
        a_panic_of_the_work_gives_the_lock_back,
        closing_ends_the_campaign_with_an_error,
        a_candidate_resigns_while_it_is_unhealthy,
        an_observer_sees_each_leader_and_none,
        wrong_options_are_refused_unsent,
    ],
    semaphore: [
        there_are_never_more_holders_than_permits,
        permits_are_granted_in_the_order_of_arrival,
        a_waiter_for_several_permits_blocks_the_queue,
        several_permits_are_taken_and_returned_at_once,
        a_try_without_a_free_permit_names_the_holders,
        a_try_for_a_permit_overtakes_no_waiter,
        a_timeout_names_holders_and_leaves_no_node,
        a_cancelled_head_lets_in_the_next_waiter,
        a_different_number_of_permits_is_an_error,
        only_one_of_two_first_numbers_of_permits_is_set,
        a_handle_without_a_number_of_permits_reads_it,
        more_permits_than_exist_are_refused_unsent,
        a_raised_number_of_permits_lets_in_waiters,
        a_lowered_number_of_permits_evicts_nobody,
        a_waiter_for_more_permits_than_are_left_fails,
        a_number_of_permits_changed_by_hand_is_noticed,
        a_removed_permit_is_lost_and_free_again,
        a_removed_waiter_for_a_permit_is_evicted,
        evicting_by_token_removes_one_holder_or_waiter,
        an_expired_permit_is_lost_and_free_again,
        a_waiter_whose_session_ends_gets_no_permit,
        a_permit_cut_off_is_suspect_until_reconnected,
        a_transaction_commits_while_a_permit_is_held,
        a_transaction_refuses_paths_inside_the_semaphore,
        a_foreign_node_among_permits_is_an_error,
        an_unreadable_number_of_permits_is_an_error,
        a_path_of_a_value_is_no_lock, a_path_of_something_else_gets_no_number,
        a_refused_user_without_a_number_leaves_no_node,
        first_users_at_once_make_one_semaphore,
        a_semaphore_is_removed_unless_it_is_used,
        a_removal_spares_what_is_no_part_of_the_semaphore,
        a_permits_tokens_rise_with_every_grant,
        the_queue_of_a_semaphore_shows_all_members,
        a_holder_of_a_permit_learns_of_the_first_waiter,
        on_wait_names_the_holders_of_permits,
        a_permit_dropped_outside_a_runtime_is_free_again,
        a_plain_thread_acquires_a_permit_by_blocking,
        deleted_nodes_of_a_semaphore_are_made_again,
        wrong_numbers_and_paths_are_refused_unsent,
        closing_loses_permits_and_fails_waiters,
        a_survey_shows_a_semaphore_as_one_queue,
        a_survey_shows_holders_of_a_damaged_semaphore,
    ]
}

dialects! {
    curator: Curator, curator_mutex: CuratorMutex, kazoo: Kazoo;
    [
        readers_hold_together,
        a_writer_holds_alone,
        a_reader_never_overtakes_a_queued_writer,
        readers_between_two_writers_run_together,
        writers_are_granted_in_the_order_of_their_arrival,
        two_writers_behind_a_reader_hold_in_turn,
        a_try_of_a_taken_lock_names_the_holder,
        try_read_fails_behind_a_waiting_writer,
        a_timeout_names_the_holder_and_leaves_no_node,
        a_cancelled_waiter_leaves_no_node_and_wakes_nobody,
        a_waiter_behind_a_cancelled_one_keeps_waiting,
        readers_behind_a_cancelled_writer_hold,
        a_downgrade_keeps_the_token_and_lets_readers_in,
        a_shared_guard_keeps_the_node_until_the_last_one,
        releasing_a_removed_node_is_a_loss,
        downgrading_a_removed_node_is_a_loss,
        a_removed_node_loses_the_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_directory_deleted_between_uses_is_made_again,
        the_queue_shows_holders_and_waiters_in_order,
        fencing_tokens_rise_with_every_exclusive_grant,
        a_waiter_whose_session_ends_is_evicted,
        an_expired_guard_is_lost_and_its_handle_works,
        evicting_by_token_removes_that_member_only,
    ]
}

keeping! {
    [
        a_contender_that_lost_the_lock_can_get_it_again,
        two_writers_behind_a_reader_hold_in_turn,
        a_timeout_names_the_holder_and_leaves_no_node,
        a_shared_guard_keeps_the_node_until_the_last_one,
        shared_guards_are_lost_together,
        an_idle_node_is_given_up_to_a_waiter,
        downgrading_a_removed_node_is_a_loss,
        a_removed_node_loses_the_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        a_waiter_behind_a_lost_local_node_is_granted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_waker_may_poll_its_task_inside_a_request,
        a_guard_dropped_in_a_panic_frees_the_lock,
        a_plain_thread_acquires_by_blocking,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_transaction_refuses_paths_inside_the_directory,
        a_refused_transaction_says_which_operation_and_why,
        a_directory_deleted_between_uses_is_made_again,
        a_node_of_another_program_takes_part_in_the_queue,
        a_waiter_whose_session_ends_is_evicted,
        an_expired_guard_is_lost_and_its_handle_works,
        closing_ends_guards_waiters_and_acquisitions,
        a_guard_cut_off_is_suspect_until_the_reconnect,
        a_write_that_a_waiter_missed_while_cut_off_is_no_hand_off,
        a_holder_learns_of_its_first_waiter,
        evicting_by_token_removes_that_member_only,
        a_session_outlasts_the_lease_of_its_guards,
    ]
}
