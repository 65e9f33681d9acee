"""Waivers: every mistake in a file of them has its place, and one lets through what it names and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.interim import ContinueLoad, next_step
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome, Verdict, Waiver, Waivers, WaiverUse
from benchgate.report.document import document_json, verdict_document
from benchgate.report.text import render_text
from benchgate.suite.schema import Suite
from benchgate.suite.waivers import check_ceiling, check_persons, parse_waivers
from tests.fakes.measured import Effect, Noise, SuiteText, measured
from tests.fakes.rendered import render_markdown

TODAY = date(2026, 3, 1)
GOOD = {
    "suite": "made-up",
    "check": "ttft-p50@c4",
    "deployment": "candidate",
    "ceiling": "40%",
    "expires": "2026-04-01",
    "owner": "serving",
    "issue": "SRV-1",
    "reason": "known",
    "approved_by": "release",
}
SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "3%"}]).suite()
QUIET = Noise(cv=0.005)
SLOW = measured(SUITE, Effect(slowdown=1.3), noise=QUIET)
FINGERPRINT = SLOW.run.arms[Arm.CANDIDATE].fingerprint


def text_of(*entries: dict[str, str]) -> str:
    """Every entry begins in the third column; a key of the first stands in the line after the one before."""
    lines = ["waivers:"]
    for entry in entries:
        lines += [f"{'  - ' if at == 0 else '    '}{key}: {value}" for at, (key, value) in enumerate(entry.items())]
    return "\n".join(lines) + "\n"


def faults(*entries: dict[str, str]) -> list[str]:
    with pytest.raises(SuiteError) as wrong:
        parse_waivers(text_of(*entries), "w.yaml", TODAY)
    return [str(problem) for problem in wrong.value.problems]


def one(**changes: str) -> Waivers:
    return parse_waivers(text_of(GOOD | changes), "w.yaml", TODAY).waivers


def use_of(verdict: Verdict) -> tuple[Outcome, str, WaiverUse, str]:
    (state,) = verdict.waivers
    return verdict.outcome, verdict.checks[0].shown, state.use, state.why


def test_a_file_says_what_it_says() -> None:
    file = parse_waivers(text_of(GOOD), "w.yaml", TODAY)
    (waiver,) = file.waivers.entries
    assert waiver == Waiver(**(GOOD | {"expires": date(2026, 4, 1)}))  # type: ignore[arg-type]  # texts but one
    assert (file.places, file.notes, file.waivers.as_of) == (((2, 5),), (), TODAY)
    assert parse_waivers("waivers: []\n", "w.yaml", TODAY).waivers.entries == ()


@pytest.mark.parametrize(
    ("key", "value", "place", "says"),
    [
        ("suite", "two words", "2:12", "expected a name"),
        ("check", "ttfd-p50@c4", "3:12", "ttft"),
        ("check", "error_budget_burn@c4", "3:12", "cannot be waived"),
        ("deployment", "1 2", "4:17", "expected a name"),
        ("ceiling", "3 points", "5:14", "%"),
        ("ceiling", "8", "5:14", "8"),
        ("expires", "2026-02-30", "6:14", "write it like 2026-12-31"),
        ("expires", "soon", "6:14", "write it like 2026-12-31"),
        ("expires", "2026-08-29", "6:14", "more than 180 days ahead; write 2026-08-28 at most"),
        ("owner", "1", "7:12", "the person who answers for it"),
        ("owner", '"\\u200b"', "10:18", "is no name"),
        ("approved_by", "Serving", "10:18", "somebody else has to approve it"),
        ("release", "abc", "11:14", "fingerprint"),
        ("release", "123456789012", "11:14", "in quotes"),
        ("release", "ABCDEFABCDEF", "11:14", "fingerprint"),
        ("until", "x", "11:5", "unknown key"),
    ],
)
def test_a_mistake_is_told_where_it_stands(key: str, value: str, place: str, says: str) -> None:
    (fault,) = faults(GOOD | {key: value})
    assert fault.startswith(f"w.yaml:{place}: ")
    assert says in fault


@pytest.mark.parametrize("key", list(GOOD))
def test_whatever_is_missing_is_named(key: str) -> None:
    (fault,) = faults({k: v for k, v in GOOD.items() if k != key})
    assert fault.startswith(f"w.yaml:2:5: waivers[0].{key}: is required and missing; expected ")


def test_every_mistake_is_told_at_once_and_a_slip_once() -> None:
    told = faults(GOOD | {"expires": "x", "ceiling": "8"}, {**GOOD, "check": "tpot-p50@c4", "ownr": "x"}, GOOD, GOOD)
    assert [fault.split(": ")[0] for fault in told] == ["w.yaml:5:14", "w.yaml:6:14", "w.yaml:20:5", "w.yaml:30:5"]
    (slip,) = faults({"ownr" if key == "owner" else key: value for key, value in GOOD.items()})
    assert "did you mean" in slip and "owner" in slip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("waiver: []\n", "did you mean"),
        ("{}\n", "waivers: is required and missing; expected a list of waivers"),
        ("waivers: 3\n", "expected a list of waivers"),
        ("waivers: [3]\n", "expected a mapping with the keys suite, check"),
        ("- 3\n", "the file of waivers is a list"),
        ("", "the file of waivers is empty"),
    ],
)
def test_what_is_no_file_of_waivers_is_refused(text: str, says: str) -> None:
    with pytest.raises(SuiteError, match=re.escape(says)):
        parse_waivers(text, "w.yaml", TODAY)


@pytest.mark.parametrize(
    "twin",
    ["ann@example.org", " ANN@example.org ", "a\u200bnn@example.org", "\uff41nn@example.org", "ann@example.org\ufe0f"],
)
def test_nobody_approves_what_they_answer_for_however_they_spell_it(twin: str) -> None:
    with pytest.raises(ValueError, match="is the owner too"):
        check_persons("Ann@example.org", twin)
    check_persons("ann@example.org", "anna@example.org")


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ("ttft-p50@c4", "8%", "8ms"),
        ("ttft-p95@c4:slo", "600ms", "8%"),
        ("error_rate@c4", "3 points", "3%"),
        ("error_rate@c4:slo", "3%", "3 points"),
        ("goodput@c4:slo", "90%", "90ms"),
        ("accuracy:add", "2 points", "2%"),
        ("ttft-p95@c8:max-over-c4", "3x", "600ms"),
    ],
)
def test_a_ceiling_is_in_the_unit_of_its_check(check: str, good: str, bad: str) -> None:
    check_ceiling(check, good)
    with pytest.raises(ValueError, match=bad.split()[0]):
        check_ceiling(check, bad)


def test_many_waivers_that_end_on_one_day_are_worth_a_word() -> None:
    several = [GOOD | {"check": f"ttft-p50@c{n}"} for n in range(5)]
    (note,) = parse_waivers(text_of(*several), "w.yaml", TODAY).notes
    assert "5 waivers end on 2026-04-01" in note
    assert parse_waivers(text_of(*several[:4]), "w.yaml", TODAY).notes == ()
    assert parse_waivers(text_of(*several), "w.yaml", date(2026, 4, 2)).notes == ()


def test_harm_shown_below_the_ceiling_is_waived_and_any_other_is_not() -> None:
    assert use_of(judge(SUITE, SLOW, waivers=one()))[:3] == (Outcome.WARN, "WAIVED", WaiverUse.USED)
    outcome, shown, use, why = use_of(judge(SUITE, SLOW, waivers=one(ceiling="30%")))  # the harm itself: not below it
    assert (outcome, shown, use) == (Outcome.BLOCK, "BLOCK", WaiverUse.UNUSED)
    assert "not shown to stay within its ceiling of 30%" in why


def test_what_is_promoted_by_waivers_alone_says_so_first() -> None:
    waived = judge(SUITE, SLOW, waivers=one())
    assert waived.reason.startswith("candidate may be promoted only because 1 check is waived: Time to first token p50")
    assert waived.next_step is not None and waived.next_step.startswith("mend it before the end of 2026-04-01")
    ttft: dict[str, object] = {"metric": "ttft", "margin": "10%"}
    both = SuiteText([ttft, {**ttft, "metric": "tpot"}, {"metric": "error_rate", "max": "3%"}]).suite()
    slow = measured(both, Effect(slowdown=1.3), noise=QUIET)
    entries = [GOOD, GOOD | {"check": "tpot-p50@c4"}]
    verdict = judge(both, slow, waivers=parse_waivers(text_of(*entries), "w.yaml", TODAY).waivers)
    assert verdict.reason.startswith("candidate may be promoted only because 2 checks are waived: ")
    strict = SuiteText([ttft, {"metric": "error_rate", "max": "0.1%"}]).suite()
    failing = measured(strict, Effect(slowdown=1.05, failed=1), noise=QUIET)
    verdict = judge(strict, failing, waivers=one(check="error_rate@c4:slo", ceiling="5%"))
    assert [check.shown for check in verdict.checks] == ["WARN", "WAIVED"]
    assert "only because 1 check is waived: Error rate" in verdict.reason  # not what warns by itself


def test_what_is_waived_while_it_is_open_is_to_be_measured_and_not_mended() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "3%"}]).suite()
    loud = measured(suite, Effect(slowdown=1.05), noise=Noise(cv=0.1))
    assert judge(suite, loud).checks[0].outcome is Outcome.INCONCLUSIVE
    check = judge(suite, loud, waivers=one()).checks[0]
    assert check.shown == "WAIVED"
    assert check.advice is not None and check.advice.startswith("measure more, until it is settled, before the end of")
    assert "mend" not in check.advice


@pytest.mark.parametrize(
    ("effect", "noise", "outcome", "ceiling"),
    [
        (Effect(slowdown=1.05), Noise(cv=0.12), Outcome.INCONCLUSIVE, "60%"),
        (Effect(slowdown=1.3), QUIET, Outcome.BLOCK, "40%"),
    ],
)
def test_an_advisory_check_stops_nothing_and_is_not_waived(
    effect: Effect, noise: Noise, outcome: Outcome, ceiling: str
) -> None:
    ttft: dict[str, object] = {"metric": "ttft", "margin": "10%", "required": False}
    suite = SuiteText([ttft, {"metric": "error_rate", "max": "3%"}]).suite()
    run = measured(suite, effect, noise=noise)
    assert judge(suite, run).checks[0].outcome is outcome
    verdict = judge(suite, run, waivers=one(ceiling=ceiling))
    why = "the check is advisory: it stops no promotion"
    assert use_of(verdict) == (judge(suite, run).outcome, outcome.value, WaiverUse.UNUSED, why)


def test_a_waiver_is_of_one_release_and_one_that_names_none_is_told_of() -> None:
    assert "names no release" in use_of(judge(SUITE, SLOW, waivers=one()))[3]
    named = judge(SUITE, SLOW, waivers=one(release=f'"{FINGERPRINT[:12]}"'))
    assert use_of(named)[:3] == (Outcome.WARN, "WAIVED", WaiverUse.USED)
    assert "names no release" not in use_of(named)[3]
    other = use_of(judge(SUITE, SLOW, waivers=one(release='"0123456789ab"')))
    assert other[:3] == (Outcome.BLOCK, "BLOCK", WaiverUse.UNUSED)
    assert f"is {FINGERPRINT[:12]}" in other[3]


def test_of_another_model_under_the_same_name_nothing_is_waived() -> None:
    candidate = replace(SLOW.run.arms[Arm.CANDIDATE], model="another")
    other = replace(SLOW, run=replace(SLOW.run, arms={**SLOW.run.arms, Arm.CANDIDATE: candidate}))
    assert judge(SUITE, other, waivers=one(release=f'"{FINGERPRINT[:12]}"')).outcome is Outcome.BLOCK


def test_a_waiver_of_another_release_keeps_no_load_going() -> None:
    stored = SUITE.to_stored()
    load = {key: value for key, value in stored["load"].items() if key != "blocks"} | {"looks": [8, 16]}
    looked = Suite.from_stored({**stored, "load": load})
    assert isinstance(next_step(looked, SLOW, one(release=f'"{FINGERPRINT[:12]}"', ceiling="30%")), ContinueLoad)
    assert not isinstance(next_step(looked, SLOW, one(release='"0123456789ab"', ceiling="30%")), ContinueLoad)


def test_a_verdict_tells_its_waivers_whole_and_without_any_keeps_its_bytes() -> None:
    entries = [
        GOOD | {"expires": "2026-03-15"},
        GOOD | {"check": "ttft-p95@c4"},
        GOOD | {"check": "error_rate@c4:slo", "ceiling": "4%", "expires": "2026-02-28"},
    ]
    waivers = parse_waivers(text_of(*entries), "w.yaml", TODAY).waivers
    verdict = judge(SUITE, SLOW, waivers=waivers)
    document = json.loads(document_json(verdict_document(SLOW.run, verdict)))
    told = document["waivers"]
    assert told["as_of"] == "2026-03-01"
    assert [told[use][0]["check"] for use in ("used", "unused", "expired")] == [e["check"] for e in entries]
    assert [waiver["days_left"] for waiver in told["expiring"]] == [14]
    assert document["checks"][0]["outcome"] == "WAIVED"
    assert document["checks"][0]["waiver"] == entries[0] | {"outcome": "BLOCK"}
    for page in (render_text(verdict, SLOW.run), render_markdown(SLOW, verdict)):
        assert "WAIVED" in page and "ends in 14 days" in page
        assert "is unused: no check has this id; did you mean" in page
        assert "is expired: it expired at the end of" in page
    bare = json.loads(document_json(verdict_document(SLOW.run, judge(SUITE, SLOW))))
    assert "waivers" not in bare and "waiver" not in bare["checks"][0]


def test_a_waiver_soon_ends_from_fourteen_days_on() -> None:
    soon = [
        judge(SUITE, SLOW, waivers=one(expires=str(TODAY + timedelta(days=days)))).waivers[0].expires_soon
        for days in (-1, 0, 14, 15)
    ]
    assert soon == [False, True, True, False]


def test_the_example_in_the_docs_is_a_file_of_waivers() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/release.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml title=\"waivers.yaml\"\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (waiver,) = parse_waivers(example, "docs/guides/release.md", date(2026, 11, 21)).waivers.entries
    assert waiver.release is not None
