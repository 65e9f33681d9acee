"""The error budget of a suite: what may be written, where each mistake stands; suites without one are as ever."""

from __future__ import annotations

import re

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.error_budget import fewest_requests, show_objective, show_window
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import only_part
from benchgate.suite.schema import Suite
from benchgate.suite.waivers import bounded

SUITE = """\
suite: budget
deployments:
  old: {url: "http://one:8000", model: m}
  new: {url: "http://two:8000", model: m}
baseline: old
candidate: new
BUDGET
load:
  workload: {input: 64 tokens, output: 32 tokens}
  blocks: 10
  sweep:
    - {stage: c4, concurrency: 4, requests: 40}
    - stage: mix
      classes:
        chat: {rate: 4/s, requests: 40, slo: {ttft: 1s}}
        batch: {concurrency: 8, background: true}
gate:
  checks:
    - {metric: error_rate, max: 1%}
"""
WRITTEN = "error_budget: {objective: 99.5%, window: 30d, spent: 40%, stage: c4}"


def suite_with(budget: str) -> Suite:
    return parse_suite(SUITE.replace("BUDGET", budget), "s.yaml")


def faults(budget: str) -> list[str]:
    with pytest.raises(SuiteError) as wrong:
        suite_with(budget)
    return [str(problem) for problem in wrong.value.problems]


def test_what_is_written_is_read_in_base_units_and_kept() -> None:
    suite = suite_with(WRITTEN)
    assert suite.error_budget is not None
    assert suite.to_stored()["error_budget"] == {
        "objective_ratio": 0.995,
        "window_s": 2_592_000.0,
        "spent": {"spent_ratio": 0.4, "file": None, "prometheus": None},
        "metric": "error_rate",
        "stage": "c4",
        "when_blown": "block",
    }
    assert Suite.from_stored(suite.to_stored()) == suite
    assert suite.error_budget.shown == "error budget of 99.5 % over 30 days"


def test_suite_without_one_keeps_its_bytes() -> None:
    assert "error_budget" not in suite_with("").to_stored()
    alone = suite_with(WRITTEN + "\nshadow: {prompts: p.jsonl}").model_copy(
        update={"gate": Suite.from_stored(suite_with("").to_stored()).gate}
    )
    checks = parse_suite(
        SUITE.replace("BUDGET", "shadow: {prompts: p.jsonl}").replace(
            "max: 1%}", "max: 1%}\n    - {metric: shadow_excess, margin: 3 points}"
        ),
        "s.yaml",
    ).gate
    assert only_part(alone.model_copy(update={"gate": checks}), "shadow").error_budget is None


@pytest.mark.parametrize(
    "budget",
    [
        "error_budget: {objective: 99.9%, window: 4h, spent: 112%, stage: mix/chat, metric: goodput, when_blown: warn}",
        "error_budget: {objective: 99%, window: 30d, spent: {share: 0%}, stage: mix}",
        "error_budget: {objective: 99%, window: 30d, spent: {file: budget.json}, stage: c4}",
        'error_budget: {objective: 99%, window: 30d, stage: c4, spent: {prometheus: {url: "${env:PROM}", query: up,'
        ' api_key: "${env:KEY}", headers: {x-scope-orgid: ml, x-key: "${env:OTHER}"}}}}',
    ],
)
def test_a_budget_may_say(budget: str) -> None:
    suite = suite_with(budget)
    assert Suite.from_stored(suite.to_stored()) == suite


@pytest.mark.parametrize(
    ("budget", "place", "says"),
    [
        ("{objective: 100%, window: 30d, spent: 1%, stage: c4}", "7:27", "leaves no budget to spend"),
        ("{objective: 0%, window: 30d, spent: 1%, stage: c4}", "7:27", "is not above 0%"),
        ("{objective: 0.995, window: 30d, spent: 1%, stage: c4}", "7:27", 'write it with its unit, like "5%"'),
        ("{objective: 99%, spent: 1%, stage: c4}", "7:15", "error_budget.window: is required and missing"),
        ("{objective: 99%, window: 30d, stage: c4}", "7:15", "is required and missing"),
        ("{window: 30d, spent: 1%, stage: c4}", "7:15", "error_budget.objective: is required and missing"),
        ("{objective: 99%, window: 1d, spent: 40, stage: c4}", "7:51", "40 is not a percentage"),
        ("{objective: 99%, window: 1d, spent: -1%, stage: c4}", "7:51", "is below 0"),
        ("{objective: 99%, window: 1d, spent: 1e12%, stage: c4}", "7:51", "more than anybody can have spent"),
        ("{objective: 99%, window: 1d, spent: \u0664\u0660%, stage: c4}", "7:51", "is not a percentage"),
        ("{objective: 99%, window: 1d, spent: {}, stage: c4}", "7:51", "exactly one of `share`, `file`"),
        ("{objective: 99%, window: 1d, spent: {share: 1%, file: a}, stage: c4}", "7:51", "exactly one of `share`"),
        ("{objective: 99%, window: 1d, spent: {fil: a}, stage: c4}", "7:52", "did you mean `file`?"),
        ("{objective: 99%, window: 1d, spend: 1%, stage: c4}", "7:44", "did you mean `spent`?"),
        ("{objective: 99%, window: 1d, spent: 1%, stage: c5}", "7:62", "expected one of c4, mix, mix/chat"),
        ("{objective: 99%, window: 1d, spent: 1%}", "7:15", "write `stage: c4`, or another"),
        ("{objective: 99%, window: 1d, spent: 1%, stage: c4, metric: ttft}", "7:74", "expected one of error_rate"),
        ("{objective: 99%, window: 1d, spent: 1%, stage: c4, metric: goodput}", "7:74", "this suite has not for c4"),
        ("{objective: 99%, window: 1d, spent: 1%, stage: c4, when_blown: blok}", "7:78", "did you mean `block`?"),
        ("{objective: 99.99%, window: 1d, spent: 1%, stage: c4}", "7:15", "2,079 requests over all blocks to rule out"),
    ],
)
def test_mistake_has_its_place_and_a_remedy(budget: str, place: str, says: str) -> None:
    (fault,) = faults(f"error_budget: {budget}")
    assert fault.startswith(f"s.yaml:{place}: error_budget"), fault
    assert says in fault


def test_a_mistake_in_it_hides_no_other_one() -> None:
    found = faults("error_budget: {objective: 100%, spent: 40, stage: c9, foo: 1}")
    wrong = {fault.split(": ")[1]: fault for fault in found}
    assert set(wrong) == {
        "error_budget.objective", "error_budget.window", "error_budget.spent.share", "error_budget.stage",
        "error_budget.foo",
    }  # fmt: skip
    assert "is required and missing" in wrong["error_budget.window"]
    (only,) = faults("error_budget: {objective: 99%, window: 1d, spent: 1%, stage: [c4]}")
    assert "error_budget.stage: found a list" in only


@pytest.mark.parametrize(
    ("prometheus", "says"),
    [
        ('{url: "http://u:hunter2@prom", query: up}', "holds credentials"),
        ('{url: "http://prom/api/v1/query", query: up}', "ends in /api/v1/query, which benchgate adds itself"),
        ('{url: "http://prom/api/v1", query: up}', "ends in /api/v1,"),
        ('{url: "prom", query: up}', "is not an address"),
        ('{url: "http://prom"}', "`error_budget.spent.prometheus.query`|is required and missing"),
        ('{url: "http://prom", query: up, api_key: hunter2}', "put it in an environment variable"),
        ('{url: "http://prom", query: up, headers: {authorization: hunter2}}', "a secret is never written out"),
        ('{url: "http://prom", query: "${env:QUERY}"}', "a reference is resolved only in"),
        ('{url: "http://prom", query: up, api_key: "${env:K}", headers: {authorization: "${env:K}"}}', "keep one of"),
        ('{url: "http://prom", query: up, headers: {x-a: 5}}', "expected"),
    ],
)
def test_secrets_stand_as_references_and_no_message_repeats_one(prometheus: str, says: str) -> None:
    budget = f"error_budget: {{objective: 99%, window: 1d, stage: c4, spent: {{prometheus: {prometheus}}}}}"
    (fault,) = faults(budget)
    assert re.search(says, fault), fault
    assert "hunter2" not in fault


def test_budget_needs_a_load_with_stages() -> None:
    no_load = re.sub(r"load:.*?gate:", "quality: {tasks: [gsm8k]}\ngate:", SUITE, flags=re.DOTALL)
    no_load = no_load.replace("{metric: error_rate, max: 1%}", "{metric: accuracy, margin: 2 points}")
    with pytest.raises(SuiteError, match="add a `load` with a `sweep`"):
        parse_suite(no_load.replace("BUDGET", WRITTEN), "s.yaml")


def test_stage_unsaid_is_the_operating_one_or_the_only_one() -> None:
    unsaid = WRITTEN.replace(", stage: c4", "")
    one_stage = SUITE[: SUITE.index("    - stage: mix")] + SUITE[SUITE.index("gate:") :]
    parse_suite(one_stage.replace("BUDGET", unsaid), "s.yaml")
    operating = SUITE.replace("  checks:\n    - {metric: error_rate, max: 1%}\n", "  operating: c4\n")
    parse_suite(operating.replace("BUDGET", unsaid), "s.yaml")


def test_class_in_the_background_has_as_many_requests_as_the_others_leave_time_for() -> None:
    suite_with("error_budget: {objective: 99%, window: 1d, spent: 1%, stage: mix/batch}")
    suite_with("error_budget: {objective: 99%, window: 1d, spent: 1%, stage: mix, metric: goodput}")
    (fault,) = faults("error_budget: {objective: 99%, window: 1d, spent: 1%, stage: mix/batch, metric: goodput}")
    assert "mix/batch" in fault


def test_fewest_requests_are_those_of_the_exact_limit() -> None:
    # Published: 299 requests without a failure show at most 1 %, 2,995 at most 0.1 %, at alpha 5 %.
    assert fewest_requests(1 - 0.01 / 14.4, 0.05) == 299
    assert fewest_requests(1 - 0.001 / 14.4, 0.05) == 2_995
    assert fewest_requests(0.9, 0.05) == 2  # even a server that fails always burns 10x


def test_objectives_and_windows_are_shown_with_all_that_counts() -> None:
    assert [show_objective(ratio) for ratio in (0.995, 0.9995, 0.99999)] == ["99.5 %", "99.95 %", "99.999 %"]
    assert [show_window(s) for s in (2_592_000.0, 86_400.0, 7_200.0, 90_000.0, 30.0)] == [
        "30 days",
        "1 day",
        "2 hours",
        "1.04 days",
        "30.0 s",
    ]


@pytest.mark.parametrize("check", ["error_budget", "error_budget_burn@c4"])
def test_no_line_of_a_budget_can_be_waived(check: str) -> None:
    with pytest.raises(ValueError, match="cannot be waived"):
        bounded(check)
