"""From text to a suite and back to the store, whatever happens to the text."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchgate.errors import SuiteError, UsageError
from benchgate.model.metric import Slo
from benchgate.suite.address import resolve_secret
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import rule_problems, with_arms
from benchgate.suite.schema import Gate, Suite
from tests.core.test_suite_problems import SUITE


def load() -> Suite:
    return parse_suite(SUITE, "s.yaml")


def test_quantities_are_in_base_units() -> None:
    suite = load()
    assert suite.load is not None
    assert suite.slo is not None
    assert suite.deployments["a"].price == 4.0
    assert suite.limits.total_s == 120.0
    assert suite.slo.per_request == Slo(ttft_s=0.5)
    assert suite.load.workload.input_tokens == 64
    assert suite.load.sweep[1].rate_rps == 8.0
    assert [check.margin for check in suite.gate.checks] == [0.05, None, 0.02, 0.03, None]


def test_absolute_bounds_are_in_the_base_unit_of_their_metric() -> None:
    checks = [
        {"metric": "ttft", "max": "500ms"},
        {"metric": "error_rate", "max": "0%"},
        {"metric": "goodput", "min": "95%"},
        {"metric": "output_throughput", "min": "100/s"},
        {"metric": "ttft", "margin": "5%"},
    ]
    gate = Gate.model_validate({"checks": checks})
    assert [check.slo_value for check in gate.checks] == [0.5, 0.0, 0.95, 100.0, None]


def test_embedded_deployment_speaks_llamacpp_and_others_openai_unless_said() -> None:
    engines = {name: spec.engine for name, spec in load().deployments.items()}
    assert engines == {"a": "vllm", "b": "openai", "c": "llamacpp"}


def test_trailing_slash_of_an_address_is_dropped() -> None:
    suite = parse_suite(SUITE.replace("http://one:8000", "http://one:8000//"), "s.yaml")
    assert suite.deployments["a"].url == "http://one:8000"


def test_stored_suite_reads_back_as_the_same_suite() -> None:
    suite = load()
    through_json = json.loads(json.dumps(suite.to_stored(), allow_nan=False))
    assert Suite.from_stored(through_json) == suite


def test_stored_suite_shows_every_default_and_no_resolved_secret() -> None:
    stored = load().to_stored()
    assert stored["limits"] == {
        "connect_s": 5.0,
        "first_token_s": 60.0,
        "stall_s": 30.0,
        "total_s": 120.0,
        "ready_s": 120.0,
    }
    assert stored["gate"]["warn_fraction"] == 0.8
    assert stored["gate"]["checks"][0]["required"] is True
    assert stored["load"]["warmup"] == "auto"
    assert stored["deployments"]["c"]["embedded"]["slots"] == 8
    assert stored["deployments"]["b"]["api_key"] == "${env:KEY}"


def test_stored_suite_is_not_read_as_a_suite_file() -> None:
    with pytest.raises(SuiteError, match=r"limits\.connect_s: unknown key; did you mean `connect`"):
        parse_suite(json.dumps(load().to_stored()), "s.json")


def test_arms_chosen_on_the_command_line_replace_the_suites_own() -> None:
    suite = load()
    assert with_arms(suite, None, None) == suite
    changed = with_arms(suite, "b", "c")
    assert (changed.baseline, changed.candidate) == ("b", "c")
    assert (suite.baseline, suite.candidate) == ("a", "b")


def test_both_arms_may_be_one_deployment_on_purpose() -> None:
    assert with_arms(load(), "a", "a").candidate == "a"


def test_unknown_arm_is_a_usage_error_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match='candidate: no deployment is named "q8"; expected one of a, b, c'):
        with_arms(load(), None, "q8")


def test_arms_of_one_endpoint_are_refused_on_the_command_line_too() -> None:
    text = SUITE.replace("c: {embedded: {weights: q8_0}}", 'c: {url: "http://one:8000", model: m}')
    with pytest.raises(UsageError, match="same endpoint in both arms"):
        with_arms(parse_suite(text, "s.yaml"), "a", "c")


def test_another_gate_is_held_to_what_the_suite_measures() -> None:
    gate = Gate.model_validate({"checks": [{"metric": "ttft", "stage": "c8", "margin": "5%"}]})
    problems = rule_problems(load().model_copy(update={"gate": gate}))
    assert [problem.path for problem in problems] == ["gate.checks[0].stage"]
    assert rule_problems(load()) == []


def test_reference_stands_for_its_variable_and_plain_text_for_itself() -> None:
    assert resolve_secret("${env:KEY}", {"KEY": "abc"}) == "abc"
    assert resolve_secret("http://one", {}) == "http://one"


@pytest.mark.parametrize(
    ("environment", "said"),
    [({}, "KEY is not set"), ({"KEY": ""}, "KEY is empty"), ({"KEY": "hunter2\n"}, "KEY holds a line break")],
)
def test_variable_that_cannot_be_used_is_named_and_its_value_is_not(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        resolve_secret("${env:KEY}", environment)
    assert "hunter2" not in str(caught.value)


LINES = SUITE.splitlines()
PIECES = [
    "~", "{}", "[]", "-1", "0", "1e400", "yes", "5%", "2 points", "${env:X}", "&x", "*x", "!!str", "\t", "---", "...",
    "{", "}", "[", "]", ":", "- ", "#", "'", '"', "|", ">", "? ", "%", "@", "`", ",", "\n", "\x00", "\ud800", "\x85",
    "<<: ", "=", "ä\U0001f40d", "9" * 400, "url", "embedded", "margin: ", "metric: ", "stage: ", "max: 1s", "p99",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The valid suite with some lines dropped, doubled, moved or spoilt."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(lines) - 1))
        line = lines[position]
        match draw(st.sampled_from(["drop", "double", "move", "insert", "replace", "cut"])):
            case "drop" if len(lines) > 1:
                del lines[position]
            case "double":
                lines.insert(position, line)
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(position))
            case "insert":
                at = draw(st.integers(0, len(line)))
                lines[position] = line[:at] + draw(st.sampled_from(PIECES)) + line[at:]
            case "replace":
                key, _, _ = line.partition(":")
                lines[position] = f"{key}: {draw(st.sampled_from(PIECES) | st.text(max_size=8))}"
            case _:
                lines[position] = line[: draw(st.integers(0, len(line)))]
    return "\n".join(lines)


@settings(max_examples=2 * settings().max_examples)
@given(mutated())
@example(
    "deployments: {a: [], b: 1, c: {url: []}}\ngate: {checks: [1, {}, {metric: []}]}\nload: []\nquality: {tasks: 3}"
)
@example("load: {sweep: {a: 1}, blocks: x}\ngate: []\nbaseline: {}\ndeployments: [a]\nshadow: 1")
def test_spoilt_suite_is_a_suite_or_a_suite_error_in_our_own_words(text: str) -> None:
    try:
        suite = parse_suite(text, "s.yaml")
    except SuiteError as error:
        assert error.problems
        for phrase in ("Input should", "Extra inputs", "Value error", "Pydantic", "pydantic", "valid string"):
            assert phrase not in str(error)
    else:
        assert Suite.from_stored(suite.to_stored()) == suite
