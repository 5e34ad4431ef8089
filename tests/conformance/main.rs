//! What every backend keeps, and what the lock promises on each of them.

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

/// What concerns names, in the dialects of other libraries.
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

/// What holds also for locks that keep their nodes between uses. What is left out counts the nodes of one handle.
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
        a_holder_hears_that_its_time_is_over_before_the_next_is_granted,
        permits_are_given_up_once_their_holder_has_heard_that_its_time_is_over,
        a_kept_node_goes_when_one_of_its_uses_has_lasted_too_long,
    ],
    contract: [
        a_request_is_sent_at_the_call_even_if_its_reply_is_dropped,
        a_request_can_be_sent_from_a_plain_thread,
        requests_take_effect_in_the_order_of_the_calls,
        a_removal_and_the_create_beside_it_that_follows_keep_their_order,
        a_refused_removal_leaves_the_create_after_it_as_it_is,
        a_read_sent_after_a_write_sees_it,
        a_nodes_stat_is_that_of_its_creation,
        a_sync_shows_what_others_wrote,
        sequence_numbers_rise_over_all_sessions_and_have_ten_digits,
        creation_ids_rise_also_in_a_directory_made_anew,
        a_transaction_takes_effect_as_a_whole,
        a_transaction_that_fails_changes_nothing_and_says_where,
        a_check_changes_nothing_and_fires_no_watch,
        a_watch_tells_of_new_data,
        a_watch_tells_of_the_deletion,
        a_watch_on_a_node_set_and_deleted_in_one_transaction_tells_the_change,
        a_watch_tells_of_the_deletion_when_a_transaction_replaces_the_node,
        a_missing_node_cannot_be_watched,
        several_watches_on_one_node_all_tell,
        an_event_comes_before_the_answer_of_a_read_that_shows_it,
        what_happened_while_disconnected_is_told_after_the_reconnect,
        a_watch_on_children_shows_them_and_tells_when_one_comes_or_goes,
        a_watch_on_children_tells_nothing_of_their_data_nor_of_theirs,
        a_watch_on_children_tells_that_their_parent_is_gone_and_needs_one,
        changes_of_children_while_disconnected_are_told_after_the_reconnect,
        ephemeral_nodes_go_with_their_session_and_others_stay,
        a_session_that_is_over_answers_everything_with_that,
        after_an_end_the_next_berth_is_on_a_fresh_session,
        closing_ends_the_session_and_refuses_further_berths,
        a_session_that_was_cut_off_is_connected_again_when_it_is_mended,
        a_refusal_says_why,
        a_container_holds_children_and_can_be_deleted_when_empty,
        a_write_makes_the_lease_valid,
        a_lease_runs_out_when_no_quorum_answers,
        a_chore_runs_without_its_caller,
        a_berth_on_either_client_serves_a_lock,
    ],
    lock: [
        readers_hold_together,
        a_writer_holds_alone,
        a_reader_never_overtakes_a_queued_writer,
        readers_between_two_writers_run_together,
        writers_are_granted_in_the_order_of_their_arrival,
        whoever_drops_a_lock_and_asks_for_it_again_is_the_last_in_line,
        whoever_drops_a_lock_that_was_taken_away_gets_it_again,
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
        uses_of_a_kept_node_share_its_transactions_and_its_loss,
        an_idle_node_is_given_up_to_whoever_waits_for_it,
        a_node_that_is_asked_for_goes_with_its_uses_and_admits_no_other,
        an_operator_asks_by_setting_the_directorys_data,
        a_lock_that_is_asked_for_by_hand_is_given_up_after_its_uses,
        a_node_that_was_idle_for_long_is_given_up,
        a_node_is_kept_for_so_long_after_each_use,
        releasing_a_removed_node_says_lost,
        downgrading_a_removed_node_says_lost_and_leaves_nothing,
        a_removed_node_is_a_lost_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        who_waits_behind_a_lost_node_of_its_process_is_granted,
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
        a_holder_that_asks_learns_of_the_first_whom_it_keeps_out,
        evicting_by_token_removes_that_member_and_nobody_else,
        a_session_outlasts_the_lease_of_its_guards,
        a_survey_finds_every_queue_below_a_prefix,
    ],
    once: [
        what_was_done_is_done_again_only_after_the_period,
        what_was_done_while_a_contender_waited_is_not_done_again,
        work_that_failed_is_done_by_the_next_who_waits,
        of_many_that_start_together_one_does_the_work,
        a_holder_whose_session_ended_records_nothing,
        a_holder_whose_node_was_removed_records_nothing,
        the_record_outlives_the_directory_and_shows_who_did_it,
        a_node_that_is_no_record_is_refused_and_stays,
        work_under_a_lock_of_any_dialect_is_done_once,
    ],
    leadership: [
        one_candidate_leads_and_everybody_can_ask_who,
        resigning_hands_over_to_the_next_and_queues_up_behind,
        a_term_of_the_past_says_so_and_its_transaction_is_refused,
        a_leader_whose_session_ends_campaigns_with_a_new_one,
        a_leader_whose_node_is_removed_is_told_and_campaigns_again,
        a_candidate_that_is_stopped_or_dropped_leaves_the_queue,
        what_the_work_gives_is_returned_and_ends_the_campaign,
        a_panic_of_the_work_goes_on_and_gives_the_lock_back,
        closing_the_client_ends_the_campaign_with_an_error,
        an_unhealthy_candidate_resigns_and_comes_back_when_it_is_well,
        an_observer_is_told_of_each_leader_and_of_none,
        wrong_options_are_refused_before_anything_is_sent,
    ],
    semaphore: [
        at_most_as_many_hold_as_there_are_permits,
        permits_are_granted_in_the_order_of_arrival,
        whoever_wants_several_permits_holds_up_those_behind,
        several_permits_are_taken_and_given_back_at_once,
        trying_writes_nothing_when_no_permit_is_free_and_names_the_holders,
        trying_for_a_permit_overtakes_nobody_who_waits,
        a_timeout_names_the_holders_of_permits_and_leaves_no_node,
        a_cancelled_waiter_at_the_head_makes_room_for_the_next,
        another_number_of_permits_is_an_error_that_says_both,
        of_two_first_numbers_one_is_written_and_the_other_refused,
        a_handle_without_a_number_goes_by_the_ensembles,
        more_permits_than_there_are_are_refused_before_anything_is_sent,
        a_raised_number_lets_in_who_waits,
        a_lowered_number_throws_nobody_out,
        who_waits_for_more_than_there_are_left_gets_an_error,
        a_number_changed_by_hand_is_noticed_by_the_head,
        a_removed_permit_is_lost_and_free_again,
        a_removed_waiter_for_a_permit_is_evicted,
        evicting_by_token_removes_one_holder_or_waiter_of_permits,
        a_permit_whose_session_ends_is_lost_and_free_again,
        a_waiter_whose_session_ends_gets_no_permit,
        a_cut_makes_a_permit_suspect_until_it_is_mended,
        a_transaction_commits_while_a_permit_is_held,
        a_transaction_refuses_paths_inside_the_semaphore,
        a_node_that_is_no_permit_is_an_error_and_no_grant,
        data_that_are_no_number_are_an_error_and_no_grant,
        a_permits_tokens_rise_with_every_grant,
        a_semaphores_queue_tells_who_holds_and_who_waits,
        a_holder_of_a_permit_learns_of_the_first_who_waits,
        on_wait_tells_who_has_the_permits,
        a_permit_dropped_outside_a_runtime_is_free_again,
        a_plain_thread_acquires_a_permit_by_blocking,
        the_nodes_of_a_semaphore_deleted_between_uses_are_made_again,
        wrong_numbers_and_paths_are_refused_before_anything_is_sent,
        closing_loses_permits_and_fails_those_who_wait,
        a_survey_shows_a_semaphore_as_one_queue,
        a_survey_shows_who_holds_permits_also_without_a_queue_or_a_number,
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
        two_writers_queued_behind_a_reader_hold_one_after_the_other,
        trying_a_taken_lock_writes_nothing_and_names_the_holder,
        try_read_succeeds_beside_readers_and_not_behind_a_waiting_writer,
        a_timeout_says_who_is_in_the_way_and_leaves_no_node,
        a_cancelled_waiter_leaves_no_node_and_wakes_nobody,
        the_successor_of_a_cancelled_waiter_waits_for_the_one_before,
        readers_behind_a_cancelled_writer_join_the_reader_that_holds,
        downgrade_keeps_the_token_and_lets_in_the_readers_directly_behind,
        a_shared_guard_keeps_the_node_until_the_last_one,
        releasing_a_removed_node_says_lost,
        downgrading_a_removed_node_says_lost_and_leaves_nothing,
        a_removed_node_is_a_lost_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_directory_deleted_between_uses_is_made_again,
        the_queue_tells_who_holds_and_who_waits_behind_whom,
        fencing_tokens_rise_with_every_grant_that_excludes_the_last,
        a_waiter_whose_session_ends_is_evicted,
        a_guard_whose_session_ends_is_lost_and_the_handle_goes_on,
        evicting_by_token_removes_that_member_and_nobody_else,
    ]
}

keeping! {
    [
        whoever_drops_a_lock_that_was_taken_away_gets_it_again,
        two_writers_queued_behind_a_reader_hold_one_after_the_other,
        a_timeout_says_who_is_in_the_way_and_leaves_no_node,
        a_shared_guard_keeps_the_node_until_the_last_one,
        shared_guards_are_lost_together,
        an_idle_node_is_given_up_to_whoever_waits_for_it,
        downgrading_a_removed_node_says_lost_and_leaves_nothing,
        a_removed_node_is_a_lost_lock_and_stops_the_work,
        a_removed_waiter_is_evicted,
        who_waits_behind_a_lost_node_of_its_process_is_granted,
        a_guard_dropped_outside_a_runtime_frees_the_lock,
        a_guard_dropped_in_a_panic_frees_the_lock,
        a_plain_thread_acquires_by_blocking,
        a_transaction_commits_while_the_lock_is_held,
        a_transaction_after_a_removal_changes_nothing,
        a_transaction_refuses_paths_inside_the_locks_directory,
        a_refused_transaction_says_which_operation_and_why,
        a_directory_deleted_between_uses_is_made_again,
        a_node_of_another_program_takes_part_in_the_queue,
        a_waiter_whose_session_ends_is_evicted,
        a_guard_whose_session_ends_is_lost_and_the_handle_goes_on,
        closing_loses_guards_fails_waiters_and_refuses_new_acquisitions,
        a_cut_is_suspect_until_it_is_mended,
        a_holder_that_asks_learns_of_the_first_whom_it_keeps_out,
        evicting_by_token_removes_that_member_and_nobody_else,
        a_session_outlasts_the_lease_of_its_guards,
    ]
}
