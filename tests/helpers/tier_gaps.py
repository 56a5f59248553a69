"""Tests that are about something that a tier does not have. What a feature names is missing from the tier's `features`, so that
strict refuses the policy (tests/platforms/test_tiers.py); the tests of everything else run on every tier.

To see whether an entry is still needed: take it out, and run with SANDBOX_TEST_TIER=<tier>.
"""

GAPS = {
    "bubblewrap": {
        "bubblewrap follows links: where the policy would protect or deny one, the command does not run": """
            test_commands_run_beside_a_protected_name_that_is_a_link test_a_protected_link_cannot_be_replaced
            test_the_target_of_a_protected_link_is_protected test_nothing_on_the_way_to_a_protected_target_can_be_replaced
            test_the_missing_target_of_a_protected_link_cannot_be_supplied test_git_works_where_its_directory_is_a_link
            test_a_forged_pointer_inside_the_workspace_opens_nothing_protected[link
            test_a_forged_pointer_to_somewhere_else_grants_nothing[link
            test_the_pointer_stays_and_so_does_what_it_names[link test_a_commit_works_there_in_commit_mode[link
            test_a_pointer_forged_by_an_earlier_run_opens_no_other_repository
            test_a_planted_protected_name_does_not_reveal_what_is_hidden""",
        "bubblewrap takes 9000 arguments": "test_six_thousand_rules_are_enforced",
    },
    "landlock": {
        "METADATA": "test_metadata_and_content_outside_stay_as_they_are test_device_nodes_of_the_host_keep_their_mode_and_times",
        "DENIED_NAMES": """
            test_a_root_inside_a_denied_path_works_and_shows_nothing_else test_a_denied_working_directory_shows_nothing
            test_a_workspace_inside_a_hidden_directory_is_all_that_shows_of_it
            test_a_readable_path_inside_a_hidden_one test_a_working_directory_that_is_hidden_inside_is_refused_by_name""",
        "DENIED_IN_ROOTS": """
            test_a_denied_file_cannot_be_reached_by_another_name test_what_is_denied_is_not_carried_away_where_roots_nest
            test_what_is_denied_is_not_carried_away_in_a_shared_tmp
            test_secrets_of_a_home_that_is_a_link_are_hidden_by_both_names[workspace test_a_denied_tracked_file_cannot_be_read_nor_replaced
            test_git_works_in_a_tree_with_a_denied_directory test_patterns_of_every_form_match_what_they_say
            test_a_pattern_applies_below_every_root test_a_pattern_sees_files_that_came_after_the_first_run
            test_a_match_that_is_a_link_hides_what_it_leads_to test_six_thousand_rules_are_enforced
            test_thousands_of_rules_of_all_kinds_at_once test_repositories_among_the_secrets_of_a_home_stay_hidden
            test_start_up_files_in_a_denied_directory_of_a_home_stay_hidden test_a_path_may_have_any_name
            test_a_pattern_is_only_a_pattern_where_it_says_so test_a_path_in_deny_write_stays_hidden_inside_a_denied_directory
            test_a_pattern_denies_at_every_depth_wherever_the_command_starts test_protected_names_inside_a_denied_directory_stay_hidden
            test_trust_in_a_repository_survives_a_hidden_git_configuration""",
        "PROTECTED_PATHS": """
            test_a_forged_pointer_inside_the_workspace_opens_nothing_protected
            test_nothing_on_the_way_to_a_protected_target_can_be_replaced
            test_hooks_and_configuration_of_every_repository_stay test_a_commit_goes_through_in_commit_mode_and_not_in_read_only
            test_names_that_tools_of_the_host_trust_are_like_git test_the_pointer_stays_and_so_does_what_it_names
            test_the_todo_of_a_rebase_in_progress_stays_as_the_user_left_it test_commit_mode_does_not_open_what_deny_write_closed
            test_protected_git_configuration_can_be_read_and_not_written test_refs_are_removed_in_a_linked_worktree
            test_what_git_executes_stays_read_only_beside_a_worktree test_without_the_git_option_a_commit_is_clearly_denied
            test_a_commit_in_a_submodule_arrives_and_its_hooks_stay test_a_separate_git_directory_in_the_workspace_is_protected
            test_the_target_of_a_protected_link_is_protected test_a_protected_link_cannot_be_replaced
            test_git_works_where_its_directory_is_a_link test_a_pattern_denies_writing_at_every_depth
            test_read_only_and_writable_directories_nest test_a_denied_file_in_the_hooks_does_not_open_them
            test_a_linked_worktree_in_the_root_does_not_open_the_repository test_a_submodule_does_not_open_the_repository
            test_what_is_read_only_stays_so_around_what_is_denied_in_it test_a_home_directory_as_a_root_keeps_its_start_up_files
            test_files_in_a_root_can_be_replaced test_the_files_of_rules_cannot_be_written""",
        "PRIVATE_TMP": """
            test_no_root_where_the_current_directory_is_no_workspace test_named_pipes_made_inside_work
            test_a_temporary_directory_always_exists_and_is_writable[env=
            test_hard_coded_temporary_directories_are_private test_runs_at_the_same_time_do_not_share_temporary_files
            test_launches_from_threads_each_get_their_own test_temporary_files_and_commands_work_without_a_home
            test_values_of_variables_stay_out_of_every_command_line test_a_file_system_flag_of_the_mounts_is_what_was_promised
            test_mounts_of_the_host_that_come_later_do_not_appear_writable""",
        "PRIVATE_DEV": """
            test_multiprocessing_works test_shared_memory_of_50_megabytes_works test_shared_memory_is_private
            test_process_substitution_and_terminals_of_its_own test_devices_of_the_host_are_not_there
            test_the_kernels_buttons_are_out_of_reach test_shared_memory_and_message_queues_of_the_host_are_not_there""",
        "LOOPBACK": """
            test_the_sandbox_is_the_same test_ordinary_servers_and_clients_inside test_errors_are_the_kernels_own
            test_a_connect_that_blocks_does_not_outlive_the_wall_limit test_a_path_stays_shut_with_the_hosts_network
            test_a_server_in_the_background_ends_with_its_command_and_is_named test_a_socket_of_the_host_cannot_be_connected_to
            test_a_socket_whose_kernel_name_is_not_its_path_is_shut_as_well test_an_abstract_socket_is_out_of_reach_in_every_network_mode
            test_a_socket_that_appears_during_the_run_is_shut_as_well test_sockets_made_inside_work
            test_a_socket_bound_in_another_network_namespace_is_shut_as_well test_only_the_common_socket_families_exist
            test_a_port_of_the_host_is_out_of_reach test_event_loops_are_woken_by_other_threads test_no_lease_and_no_flow_label
            test_what_one_sandbox_listens_on_is_not_there_for_another""",
        "CHOSEN_SOCKETS": "test_one_socket_can_be_opened_by_name_and_only_that_one",
        "PROCESS_LIST": """
            test_processes_outside_cannot_be_looked_into test_the_first_process_inside_keeps_its_secrets
            test_no_other_call_reaches_a_process_outside test_process_1_does_not_show_the_commands_arguments""",
        "the policies of these tests are refused by this tier": "test_nothing_is_left_behind_by_a_hundred_failing_launches",
    },
}


def gap(tier: str, function: str, parameters: str) -> str | None:
    """Why a test does not run on a tier. An entry `name[word` is about those parameters that contain the word."""
    for reason, tests in GAPS.get(tier, {}).items():
        for entry in tests.split():
            name, _, word = entry.partition("[")
            if name == function and word in parameters:
                return reason
    return None
