"""The tests' own reader of GitHub's expressions says what GitHub's documentation says of each operator."""

from __future__ import annotations

import pytest

from tests.e2e.github_expressions import Value, evaluate, holds

pytestmark = pytest.mark.beside

CONTEXT: dict[str, Value] = {
    "inputs.on": True,
    "inputs.off": False,
    "inputs.text": "false",
    "needs.a.result": "success",
}
GOOD = {"always": True, "success": True, "failure": False, "cancelled": False}
BAD = {"always": True, "success": False, "failure": True, "cancelled": False}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.on", "true"),
        ("inputs.off", "false"),
        ("inputs.nowhere", ""),
        ("inputs.nowhere || 'else'", "else"),
        ("inputs.off && 'a' || 'b'", "b"),
        ("inputs.text && 'a' || 'b'", "a"),  # the text 'false' is true
        ("inputs.nowhere != ''", "false"),
        ("'A' == 'a'", "true"),  # without regard to case
        ("!(inputs.on && inputs.off) == true", "true"),
        ("'it''s'", "it's"),
        ("needs.a.result == 'success' && (inputs.off || inputs.on)", "true"),
    ],
)
def test_an_expression_comes_to_what_github_says(expression: str, value: str) -> None:
    assert evaluate(f"<${{{{ {expression} }}}}>", CONTEXT) == f"<{value}>"


@pytest.mark.parametrize(
    ("condition", "after_success", "after_failure"),
    [
        (None, True, False),
        ("${{ inputs.on }}", True, False),  # success() is meant where no status is asked for
        ("${{ always() }}", True, True),
        ("${{ !cancelled() && inputs.on }}", True, True),
        ("${{ failure() }}", False, True),
        ("${{ always() && inputs.off }}", False, False),
    ],
)
def test_a_job_runs_when_github_would_run_it(condition: str | None, after_success: bool, after_failure: bool) -> None:
    assert (holds(condition, CONTEXT, GOOD), holds(condition, CONTEXT, BAD)) == (after_success, after_failure)


@pytest.mark.parametrize(
    "expression", ["contains(inputs.on, 'a')", "inputs.on &", "inputs.on inputs.off", "(inputs.on", "on", ""]
)
def test_what_the_reader_does_not_know_is_an_error_and_no_guess(expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        evaluate(f"${{{{ {expression} }}}}", CONTEXT)
