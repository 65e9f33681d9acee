"""Every claim of SECURITY.md is held by tests that are named here. A new sentence there needs one here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from benchgate.load.http.parser import LARGEST_RESPONSE_BYTES, MalformedResponse, split_head

ROOT = Path(__file__).parents[2]
ADVICE = (
    "Use [dask's TLS]",
    "An answer that succeeds in both orders is not detected",
    "There is no sandbox",
    "Only a signature, or a store that the author could not write to",
)
"""Sentences that claim nothing: they say what the reader must do, or what is not defended."""

HELD_BY: dict[str, tuple[str, ...]] = {
    "An undefined required value is INVALID.": (
        "core/test_decide_edges.py::test_an_undefined_number_makes_its_check_invalid_and_takes_no_share_of_the_error",
        "core/test_rule_edges.py::test_a_number_that_is_undefined_is_missing_whatever_the_others_say",
    ),
    "A status code alone proves nothing.": (
        "shells/test_load_decode.py::test_200_without_a_whole_answer_fails",
        "shells/test_quality_answer.py::test_a_200_that_is_no_answer_is_refused_with_its_reason",
    ),
    "The action is green only with exit code 0": (
        "shells/test_action_gate.py::test_only_pass_and_warn_with_exit_code_0_are_green",
        "e2e/test_action.py::test_a_gate_whose_benchgate_is_missing_crashes_or_is_killed_is_red_and_an_error",
    ),
    "The shipped workflow [ends in a job]": (
        "e2e/test_action_workflow.py::test_the_required_job_always_runs_and_looks_at_every_job_that_decides",
        "e2e/test_action_workflow.py::"
        "test_the_required_job_is_good_only_after_a_gate_that_passed_and_all_that_was_asked_for",
    ),
    "Every output escapes it.": (
        "shells/test_report_html.py::test_hostile_text_stays_text_wherever_a_report_has_any",
        "shells/test_report_markdown.py::test_hostile_text_never_becomes_markdown",
        "e2e/test_hostile_output.py::test_no_command_prints_a_word_of_a_server_or_a_suite_raw",
    ),
    "The HTML loads nothing and works without JavaScript.": (
        "shells/test_report_html.py::test_the_file_asks_nobody_for_anything_and_runs_its_own_script_alone",
        "e2e/test_report_browser.py::test_every_number_can_be_read_without_a_script_and_under_jenkins_policy",
    ),
    "Its content security policy allows its one script": (
        "shells/test_report_html.py::test_the_content_policy_allows_this_style_and_this_script_and_nothing_else",
    ),
    "All printed text is [escaped]": (
        "core/test_escape.py::test_no_attack_reaches_a_log",
        "e2e/test_hostile_output.py::test_no_command_prints_a_word_of_a_server_or_a_suite_raw",
        "shells/test_escaped_streams.py::test_what_python_and_its_libraries_write_is_escaped",
    ),
    "A test forbids other writes.": (
        "core/test_one_way_out.py::test_only_one_module_writes_to_the_standard_streams",
        "core/test_one_way_out.py::test_every_way_past_it_is_found",
    ),
    "Outputs of the action are enumerated values and ids.": (
        "shells/test_action_gate.py::"
        "test_the_outputs_of_the_action_are_those_of_its_gate_and_a_gate_that_was_not_reached_is_an_error",
        "shells/test_action_gate.py::test_outputs_of_other_programs_do_not_reach_the_caller",
    ),
    "Suites hold references": (
        "core/test_suite_loader.py::test_stored_suite_shows_every_default_and_no_resolved_secret",
        "core/test_suite_loader.py::test_reference_stands_for_its_variable_and_plain_text_for_itself",
    ),
    "Every credential that is read, or that the environment names, is registered.": (
        "shells/test_credentials.py::test_whatever_resolves_a_credential_registers_it",
        "shells/test_credentials.py::test_a_variable_that_means_a_credential_is_registered",
    ),
    "A variable named like a key or token does not count if it holds a short word or number.": (
        "shells/test_credentials.py::test_a_variable_that_means_a_credential_is_registered",
    ),
    "From 8 characters on, none is stored, printed, or left": (
        "e2e/test_key_canaries.py::test_no_key_is_written_whatever_the_servers_repeat",
        "shells/test_credentials.py::test_no_spelling_of_a_known_credential_passes_a_writer",
    ),
    "OpenSSL alone reads keys of client certificates.": (
        "shells/test_targets_route.py::test_files_that_cannot_be_used_are_named_and_not_quoted",
    ),
    "Keys are not part of the task graph.": (
        "shells/test_load_cluster.py::test_shard_with_its_key_is_no_argument_of_a_task",
    ),
    "Certificates and host names of `https` servers are always verified.": (
        "shells/test_load_tls.py::test_certificate_that_does_not_hold_fails_every_request_as_tls",
        "shells/test_load_reach.py::test_certificate_is_checked_inside_the_tunnel_too",
    ),
    "Redirects are not followed, and no proxy is used": (
        "shells/test_load_worker.py::test_no_redirect_is_followed",
        "shells/test_spending.py::test_redirects_are_not_followed",
        "shells/test_targets_route.py::test_probe_and_shadow_go_the_way_of_their_targets",
    ),
    "Texts are stored only if the suite says so": (
        "shells/test_shadow_mirror.py::test_texts_are_kept_only_when_asked_for",
        "e2e/test_canaries.py::test_neither_prompts_nor_answers_leave_the_users_file_whatever_the_servers_do",
    ),
    "Its errors quote no server; those of load may.": (
        "shells/test_shadow_mirror.py::test_what_a_server_repeats_of_a_prompt_is_not_kept_with_an_error",
        "e2e/test_canaries.py::test_nor_where_a_judge_and_embeddings_repeat_what_they_read",
    ),
    "A judge or embeddings endpoint receives texts only": (
        "core/test_security_claims.py::test_judge_and_embeddings_are_refused_unless_texts_may_be_sent",
    ),
    "Answers stand between random marks, both orders are judged": (
        "shells/test_shadow_assessors.py::test_a_judge_is_asked_in_both_positions_and_only_agreement_counts",
        "shells/test_shadow_assessors.py::test_a_judge_that_fails_or_says_something_else_is_missing_and_no_loss",
        "shells/test_shadow_assessors.py::test_an_answer_that_asks_for_its_own_victory_wins_nothing_by_its_place",
    ),
    "YAML tags and duplicate keys are errors.": (
        "core/test_suite_text.py::test_what_a_suite_does_not_need_of_yaml_is_refused_with_its_place",
    ),
    "Depth and size are limited, aliases included.": (
        "core/test_suite_text.py::test_what_a_suite_does_not_need_of_yaml_is_refused_with_its_place",
        "shells/test_fuzz.py::test_any_mutation_of_a_valid_input_is_read_or_refused",
    ),
    "Commands run only with `--allow-actions`": (
        "e2e/test_init.py::test_suite_that_runs_commands_is_refused_unless_that_is_allowed",
        "shells/test_replica_counts.py::test_doctor_runs_a_command_only_where_it_is_allowed",
        "e2e/test_promotion.py::test_plan_names_what_it_did_not_look_into_and_neither_fetches_data_nor_runs_code",
    ),
    "Evals that run code need `allow_unsafe_code` and `--allow-code`.": (
        "e2e/test_promotion.py::test_suite_alone_is_no_consent_to_run_code",
    ),
    "Time, events and bytes are limited": (
        "core/test_security_claims.py::test_a_head_and_a_body_have_the_limits_that_are_stated",
        "shells/test_load_decode.py::test_stream_of_too_many_events_is_malformed",
        "shells/test_json_client.py::test_endless_body_is_not_read_to_its_end",
    ),
    "Ambiguous framing ends the connection.": (
        "shells/test_load_bodies.py::test_response_that_cannot_be_read_in_one_way_is_a_protocol_error",
    ),
    "Input that cannot be read is refused": (
        "shells/test_fuzz.py::test_an_input_that_once_crashed_is_read_or_refused",
        "shells/test_fuzz.py::test_any_mutation_of_a_valid_input_is_read_or_refused",
        "shells/test_load_sanitized.py::test_bodies_and_sockets_give_no_report",
    ),
    "The action [refuses it]": (
        "e2e/test_action.py::test_only_a_change_of_the_repository_itself_is_measured",
        "e2e/test_action.py::test_a_change_is_admitted_before_anything_is_installed_read_or_sent",
    ),
    "A promotion records the commit of the weights.": (
        "shells/test_release_promote.py::test_revision_that_was_measured_is_recorded_and_read_back",
    ),
    "Candidates at a branch or tag, or whose server reports": (
        "shells/test_release_promote.py::test_weights_under_a_name_that_may_move_are_promoted_by_nothing",
    ),
    "Both run only after the promotion is stored": (
        "e2e/test_promotion_hook.py::test_hook_runs_once_for_a_promotion_that_is_recorded_and_again_only_when_asked",
        "e2e/test_promotion_hook.py::test_hook_never_runs_for_a_run_that_is_refused_and_is_told_of_an_override",
    ),
    "Hooks run without a shell": ("shells/test_hook.py::test_what_a_model_is_called_is_a_value_and_never_a_command",),
    "It only reads, listens on this machine by default": (
        "shells/test_release_server.py::test_slow_clients_keep_nobody_out",
        "shells/test_release_server.py::test_whoever_sends_a_byte_now_and_then_is_left_when_the_time_is_over",
        "shells/test_release_server.py::"
        "test_connection_over_the_limit_is_closed_unanswered_while_all_others_wait_for_answers",
        "core/test_security_claims.py::test_the_verdict_server_listens_on_this_machine_by_default",
    ),
    "It [answers no]": (
        "shells/test_release_server.py::test_a_store_that_cannot_be_read_is_no_yes",
        "shells/test_release_server.py::test_a_forged_verdict_that_is_not_whole_and_a_warning_where_none_may_be_say_no",
    ),
    "`benchgate verify` compares the [statement]": (
        "shells/test_release_verify.py::test_one_changed_byte_of_the_report_is_found",
        "shells/test_release_verify.py::test_one_changed_byte_of_the_suite_is_found_a_comment_too",
        "shells/test_release_verify.py::test_pass_that_was_forged_of_a_blocked_run_is_found_by_its_store",
    ),
    "Locks have hashes, releases younger than a week": (
        "core/test_repository.py::test_every_locked_requirement_is_exact_and_hashed",
        "core/test_repository.py::test_every_action_used_is_pinned",
        "core/test_security_claims.py::test_every_lock_leaves_out_releases_younger_than_a_week",
    ),
    "Advisories on them are read every night": (
        "core/test_security_claims.py::test_every_night_reads_the_advisories_on_every_lock_of_the_product",
        "core/test_licences.py::test_every_locked_package_has_an_allowed_licence",
    ),
    "Workflow jobs may only read": (
        "core/test_repository.py::test_workflows_may_only_read_but_for_the_jobs_that_say_why_and_always_end",
    ),
    "Releases use trusted publishing": (
        "core/test_security_claims.py::test_releases_are_published_without_a_password_with_provenance_and_parts",
        "e2e/test_builds.py::test_two_builds_have_the_same_bytes",
        "e2e/test_builds.py::test_the_parts_list_names_every_locked_part_with_its_hashes_twice_the_same",
    ),
}


def claims() -> list[str]:
    """Return every sentence of the defences in the table of SECURITY.md."""
    rows = re.findall(r"^\| .+ \| (.+) \|$", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [sentence for row in rows[1:] for sentence in re.split(r"(?<=\.)\s+(?=[A-Z`])", row)]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_every_claim_is_held_by_a_test_or_is_advice() -> None:
    found = claims()
    assert len(found) > 40
    known = (*HELD_BY, *ADVICE)
    assert [sentence for sentence in found if not sentence.startswith(known)] == []
    assert [start for start in known if not any(sentence.startswith(start) for sentence in found)] == []


@pytest.mark.parametrize("claim", HELD_BY)
def test_the_tests_of_a_claim_exist(claim: str) -> None:
    assert HELD_BY[claim]
    for test in HELD_BY[claim]:
        file, _, name = test.partition("::")
        assert name in names_in(file), test


# ---- claims that no other test holds


def test_a_head_and_a_body_have_the_limits_that_are_stated() -> None:
    stated = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "64 MiB a response, 64 KiB its head" in stated and LARGEST_RESPONSE_BYTES == 64 * 2**20
    start = b"HTTP/1.1 200 OK\r\n"
    with pytest.raises(MalformedResponse, match="longer than 65536 bytes"):
        split_head(start + b"x: " + b"y" * 65_536)
    found = split_head(start + b"content-length: 67108865\r\n\r\n")
    assert found is not None
    with pytest.raises(MalformedResponse, match="at most 67108864 bytes"):
        _ = found[0].content_length


@pytest.mark.parametrize("helper", ["judge", "similarity"])
def test_judge_and_embeddings_are_refused_unless_texts_may_be_sent(helper: str) -> None:
    from benchgate.errors import SuiteError
    from benchgate.suite.loader import parse_suite

    text = (
        "suite: s\ndeployments: {a: {sim: {}}, b: {sim: {}}}\nbaseline: a\ncandidate: b\n"
        f"shadow: {{prompts: p.jsonl, {helper}: {{url: 'https://h', model: m}}}}\n"
        "gate: {allow_underpowered: true}\n"
    )
    with pytest.raises(SuiteError, match="send_text"):
        parse_suite(text, "suite.yaml")
    parse_suite(text.replace("model: m", "model: m, send_text: true"), "suite.yaml")


def test_the_verdict_server_listens_on_this_machine_by_default() -> None:
    import inspect

    from benchgate.cli.release import verdict_server

    assert inspect.signature(verdict_server).parameters["host"].default == "127.0.0.1"


def test_every_lock_leaves_out_releases_younger_than_a_week() -> None:
    script = (ROOT / "scripts/lock").read_text(encoding="utf-8").replace("\\\n", "")
    resolving = [line for line in script.splitlines() if line.strip().startswith("uv pip compile")]
    assert len(resolving) == 2 and all('--exclude-newer "7 days"' in line for line in resolving)


def test_every_night_reads_the_advisories_on_every_lock_of_the_product() -> None:
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))
    [command] = [step["run"] for step in nightly["jobs"]["audit"]["steps"] if "run" in step]
    assert "pip-audit --strict" in command
    locks = re.search(r"for lock in (.+); do", command)
    tools = {"audit", "fuzz", "mutation"}  # of nightly jobs alone
    product = {path.stem for path in (ROOT / "requirements").glob("*.txt")} - tools
    assert locks is not None and product == set(locks[1].split())
    assert product == {"base", "demo", "action", "dev", "build", "compiler", "release"}


def test_releases_are_published_without_a_password_with_provenance_and_parts() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["index"]["permissions"] == {"id-token": "write"} and "secrets." not in text
    attested = [step["with"] for step in jobs["attest"]["steps"] if step["uses"].startswith("actions/attest@")]
    parts = {"subject-path": "dist/*", "sbom-path": "release/benchgate.cdx.json"}
    assert attested == [{"subject-path": "dist/*"}, parts]
