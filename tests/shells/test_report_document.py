from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from benchgate.errors import ExitCode
from benchgate.model.verdict import Outcome
from benchgate.report.document import Terms, document_json, verdict_document, with_exit_code
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.golden import assert_golden


def test_a_blocked_run_has_the_document_it_had() -> None:
    assert_golden("verdict-block.json", document_json(verdict_document(fake.run(), fake.verdict())))


@pytest.mark.parametrize(
    ("outcome", "strict", "code"),
    [
        (Outcome.PASS, False, 0),
        (Outcome.WARN, False, 0),
        (Outcome.WARN, True, 10),
        (Outcome.BLOCK, False, 10),
        (Outcome.INCONCLUSIVE, False, 11),
        (Outcome.INVALID, False, 12),
    ],
)
def test_the_document_has_the_outcome_and_its_exit_code(outcome: Outcome, strict: bool, code: int) -> None:
    document = verdict_document(fake.run(), fake.verdict(outcome), terms=Terms(strict=strict))
    assert (document["outcome"], document["exit_code"]) == (outcome.value, code)
    assert document["promotes"] is (code == 0)


def test_a_verdict_that_could_not_be_kept_does_not_promote() -> None:
    passed = verdict_document(fake.run(), fake.verdict(Outcome.PASS))
    unkept = with_exit_code(passed, ExitCode.PUBLISH_FAILED)
    assert (passed["promotes"], unkept["promotes"], unkept["exit_code"]) == (True, False, 13)
    assert unkept["outcome"] == "PASS"


def _check_of(**changes: object) -> dict[str, object]:
    check = replace(fake.check(), **changes)  # type: ignore[arg-type]  # the fields are named by each test
    document = verdict_document(fake.run(), replace(fake.verdict(), checks=(check,)))
    checks = json.loads(document_json(document))["checks"]
    assert isinstance(checks, list)
    assert isinstance(checks[0], dict)
    return checks[0]


def test_infinities_are_texts_and_missing_values_null() -> None:
    check = _check_of(harm=math.inf, lower=-math.inf, upper=None)
    assert (check["harm"], check["lower"], check["upper"]) == ("inf", "-inf", None)


def test_numbers_keep_twelve_digits_and_no_negative_zero() -> None:
    check = _check_of(harm=1 / 3, lower=-0.0)
    assert check["harm"] == 0.333333333333
    assert math.copysign(1, check["lower"]) == 1  # type: ignore[arg-type]  # a number, by the assertion above


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="must be None"):
        _check_of(harm=math.nan)


def test_a_stored_comparison_holds_both_runs_and_their_candidates() -> None:
    document = verdict_document(fake.run("run-b"), fake.verdict(), against=fake.run("run-a"))
    text = json.loads(document_json(document))
    assert text["against"]["id"] == "run-a"
    assert text["arms"]["baseline"] == text["arms"]["candidate"] | {"run_id": "run-a"}
    assert text["against"]["outcome"] is None


def test_a_stored_comparison_holds_what_became_of_its_reference() -> None:
    terms = Terms(reference_outcome=Outcome.BLOCK)
    document = verdict_document(fake.run("run-b"), fake.verdict(), against=fake.run("run-a"), terms=terms)
    assert json.loads(document_json(document))["against"]["outcome"] == "BLOCK"


def test_another_slo_than_the_runs_own_is_told_and_makes_the_policy_another() -> None:
    run, verdict = fake.run(), fake.verdict()
    own = Suite.from_stored(run.suite)
    assert own.slo is not None
    laxer = own.model_copy(update={"slo": own.slo.model_copy(update={"ttft_s": 9.0})})
    same, other = (verdict_document(run, verdict, terms=Terms(policy=policy)) for policy in (own, laxer))
    assert (same["policy_replaced"], same["slo"]) == (False, run.suite["slo"])
    assert (other["policy_replaced"], other["slo"]) == (True, {**own.to_stored()["slo"], "ttft_s": 9.0})


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_hostile_text_survives_exactly_and_in_ascii(text: str) -> None:
    spelled = document_json(verdict_document(hostile.run(text), hostile.verdict(text)))
    assert spelled.isascii()
    assert json.loads(spelled)["reason"] == text
