"""The language of policies: the least change that matters, changes either way, means, lengths of answers."""

from __future__ import annotations

import pytest

from benchgate.errors import EvidenceError, SuiteError
from benchgate.suite.checks import Check
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

SUITE = """\
suite: policy
deployments:
  old: {url: "http://one:8000", model: m}
  new: {url: "http://two:8000", model: m}
baseline: old
candidate: new
load:
  workload: {input: 64 tokens, output: 32 tokens}
  blocks: 10
  sweep:
    - {stage: c4, concurrency: 4, requests: 40}
    - stage: mix
      classes:
        chat: {rate: 4/s, requests: 40}
        batch: {concurrency: 8, background: true}
quality: {tasks: [gsm8k]}
gate:
  checks:
    - {metric: error_rate, max: 1%}
    - {metric: accuracy, margin: 2 points}
    - CHECK
"""


def suite_with(check: str) -> Suite:
    return parse_suite(SUITE.replace("CHECK", check), "s.yaml")


def check_of(check: str) -> Check:
    return suite_with(check).gate.checks[-1]


@pytest.mark.parametrize(
    "check",
    [
        "{metric: ttft, margin: 5%, min_abs: 2ms}",
        "{metric: output_throughput, margin: 5%, min_abs: 0.5/s}",
        "{metric: itl, statistic: p95, margin: 5%, direction: either}",
        "{metric: request_throughput, margin: 5%, direction: either}",
        "{metric: ttft, margin: 5%, direction: worse}",
        "{metric: e2e, statistic: mean, margin: 5%}",
        "{metric: output_length, margin: 10%}",
        "{metric: output_length, stage: mix/chat, margin: 10%, direction: either, required: false}",
    ],
)
def test_a_policy_may_say(check: str) -> None:
    suite = suite_with(check)
    assert Suite.from_stored(suite.to_stored()) == suite


def test_a_stored_suite_that_this_version_does_not_know_is_refused_by_its_first_strange_word() -> None:
    stored = suite_with("{metric: ttft, margin: 5%}").to_stored()
    stored["deployments"]["new"]["chiplets"] = 4
    with pytest.raises(EvidenceError, match=r"cannot read the run's suite \(deployments\.new\.chiplets: Extra"):
        Suite.from_stored(stored)
    with pytest.raises(EvidenceError, match=r"\(all of it: "):
        Suite.from_stored("none")


def test_a_least_change_is_kept_as_it_is_written_and_read_in_base_units() -> None:
    assert check_of("{metric: tpot, margin: 5%, min_abs: 0.5ms}").least_change == 0.0005
    assert check_of("{metric: output_throughput, margin: 5%, min_abs: 30/m}").least_change == 0.5
    assert check_of("{metric: tpot, margin: 5%}").least_change is None


def test_keys_that_are_not_used_are_not_stored_so_that_a_policy_keeps_its_identity() -> None:
    stored = check_of("{metric: ttft, margin: 5%}").model_dump(mode="json")
    assert not {"min_abs", "direction"} & set(stored)
    assert check_of("{metric: ttft, margin: 5%, direction: either}").model_dump()["direction"] == "either"
    assert check_of("{metric: output_length, margin: 5%}").direction == "either"


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("{metric: ttft, margin: 5%, min_abs: 2}",
         '21:43: gate.checks[2].min_abs: "2" is not a duration; write it like "500ms"'),
        ("{metric: ttft, margin: 5%, min_abs: 2%}", '"2%" is not a duration'),
        ("{metric: output_throughput, margin: 5%, min_abs: 2ms}", '"2ms" is not a rate'),
        ("{metric: error_rate, stage: c4, margin: 1 points, min_abs: 1 points}",
         "means nothing for error_rate, whose margin is a difference in points already; write that"),
        ("{metric: output_length, margin: 5%, min_abs: 2 tokens}",
         "means nothing for output_length; it belongs to ttft, ttfot"),
        ("{metric: ttft, max: 1s, min_abs: 2ms}", "`min_abs` belongs to a comparison with the baseline"),
        ("{metric: ttft, max: 1s, direction: either}", "`direction: either` belongs to a comparison with the baseline"),
        ("{metric: ttft, max: 1s, statistic: mean}", "`statistic: mean` belongs to a comparison with the baseline"),
        ("{metric: ttft, max: 1s, block_when: harm}", "`block_when` belongs to a comparison with the baseline"),
        ("{metric: ttft, margin: 5%, min_abs: 2ms, direction: either}", "bounds every change; keep one"),
        ("{metric: accuracy, task: gsm8k, margin: 5 points, direction: either}",
         "direction: means nothing for accuracy; it belongs to ttft"),
        ("{metric: ttft, margin: 5%, direction: eiter}", 'found "eiter"; did you mean `either`?'),
        ("{metric: output_length, margin: 5%, direction: worse}", "longer answers are no worse than shorter ones"),
        ("{metric: output_length, max: 5%}", "output_length has no upper bound; use `margin`"),
        ("{metric: output_lenght, margin: 5%}", "did you mean `output_length`?"),
        ("{metric: output_length, margin: 5 points}", "the margin of output_length is a part of the baseline's value"),
        ("{metric: output_length, statistic: p50, margin: 5%}", "statistic: means nothing for output_length"),
        ("{metric: output_length, stage: mixed, margin: 5%}", "did you mean `mix`?"),
        ("{metric: ttft, statistic: men, margin: 5%}", 'found "men"; did you mean `mean`?'),
        ("{metric: itl, statistic: mean, margin: 5%}", "itl has many values a request"),
        ("{metric: ttft, statistic: mean, stage: mix/batch, margin: 5%}",
         'statistic: mean is judged request by request, and of "mix/batch", which runs in the background'),
        ("{metric: ttft, margin: 5%, min_absolute: 2ms}", "did you mean `min_abs`?"),
        ("{metric: ttfft, margin: 5%, min_abs: 2ms, direction: either}", "did you mean `ttft`?"),
    ],
)  # fmt: skip
def test_what_a_policy_cannot_mean_is_refused_with_its_place(check: str, says: str) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_with(check)
    (problem,) = caught.value.problems
    assert says in str(problem)


def test_an_endpoint_without_tokens_has_no_length_of_answers() -> None:
    text = SUITE.replace("{input: 64 tokens, output: 32 tokens}", "{input: 64 tokens, endpoint: embeddings}")
    with pytest.raises(SuiteError, match="output_length is undefined for embeddings, which count no tokens"):
        parse_suite(text.replace("CHECK", "{metric: output_length, margin: 5%}"), "s.yaml")


def test_bound_of_the_client_beyond_a_second_is_refused_with_the_most_it_may_be() -> None:
    text = SUITE.replace("checks:", "client: {send_lag_max: 5s}\n  checks:").replace(
        "CHECK", "{metric: ttft, margin: 5%}"
    )
    with pytest.raises(SuiteError, match=r'found "5s"; expected a duration of at most 1s, like "50ms"'):
        parse_suite(text, "s.yaml")
