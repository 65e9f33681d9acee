"""Waivers as a user has them: given to a run, written for a stored one, and held against its verdict."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchgate.cli import options
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here

# Its client may be late, by a lot: what is asked of it is no time.
pytestmark = [pytest.mark.beside, pytest.mark.slow]


SUITE = """
suite: waived
deployments:
  plain: {sim: {ttft: 250ms, itl: 2ms}}
  slow: {sim: {ttft: 350ms, itl: 2ms}}
baseline: plain
candidate: slow
load:
  workload: {input: 8 tokens, output: 4 tokens}
  looks: [3, 4]
  warmup: 0
  sweep: [{stage: c4, concurrency: 4, requests: 8}]
gate:
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks:
    - {metric: error_rate, max: 50%}
    - {metric: ttft, margin: 10%}
"""
TODAY = datetime.now(UTC).date()
WRITTEN = f"""# reviewed by serving
waivers:
    # known since spring
    - suite: waived   # this one
      check: ttft-p50@c4
      deployment: slow
      ceiling: "90%"
      expires: {TODAY + timedelta(days=30)}
      owner: serving
      issue: SRV-1
      reason: a cache is cold
      approved_by: release
"""
WHO = ("--owner", "serving", "--issue", "SRV-2", "--reason", "a cache is cold", "--approved-by", "release")
LAST_DAY = str(TODAY + timedelta(days=10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was measured with a waiver of the one check that blocks."""
    here_is = tmp_path_factory.mktemp("waived")
    (here_is / "suite.yaml").write_text(SUITE)
    (here_is / "tolerated.yaml").write_text(WRITTEN)
    ran = here(here_is, "run", "suite.yaml", "--waivers", "tolerated.yaml", "--format", "json")
    (here_is / "said.json").write_text(ran.stdout)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return here_is


def gate(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    said = here(folder, "gate", "--format", "json", *arguments)
    return said.returncode, json.loads(said.stdout)


def waive(folder: Path, file: str, *, check: str = "ttft-p50@c4", ceiling: str = "90%", day: str = LAST_DAY) -> str:
    said = here(
        folder, "waive", check, "--run", "@latest", "--ceiling", ceiling, "--expires", day, *WHO, "--file", file
    )
    return said.stderr if said.returncode == 2 else f"{said.returncode}: {said.stdout}"


@pytest.mark.slow
def test_a_run_is_judged_with_the_waivers_it_was_given(folder: Path) -> None:
    document = json.loads((folder / "said.json").read_text())
    assert document["outcome"] == "WARN"
    assert [check["outcome"] for check in document["checks"]] == ["PASS", "WAIVED"]
    (used,) = document["waivers"]["used"]
    assert (used["issue"], document["waivers"]["as_of"]) == ("SRV-1", document["run"]["started_at"][:10])
    assert gate(folder, "--waivers", "tolerated.yaml") == (0, document)
    assert gate(folder)[0] == 10
    with Store.open(str(folder / STORE), create=False) as store:
        looks: list[Any] = [data for kind, data in store.events(document["run"]["id"]) if kind == "look"]
    assert looks[-1]["checks"][1]["outcome"] == "WAIVED"  # by which it was known when to stop


def test_waive_writes_an_entry_of_the_release_and_keeps_the_rest(folder: Path) -> None:
    assert waive(folder, "new.yaml").startswith("0: new.yaml: ttft-p50@c4 of waived on slow is waived up to 90% until ")
    code, document = gate(folder, "--waivers", "new.yaml")
    (used,) = document["waivers"]["used"]
    assert (code, used["release"]) == (0, document["arms"]["candidate"]["fingerprint"][:12])
    others = WRITTEN.replace("suite: waived ", "suite: other ")
    (folder / "kept.yaml").write_text(others)
    assert waive(folder, "kept.yaml").startswith("0: ")
    text = (folder / "kept.yaml").read_text()
    assert text.startswith(others) and text.count("suite: waived") == 1
    (folder / "empty.yaml").write_text("# none yet\nwaivers: []\n")
    assert waive(folder, "empty.yaml").startswith("0: ")
    assert (folder / "empty.yaml").read_text().startswith("# none yet\nwaivers:\n  - suite: waived\n")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"check": "ttft-p51@c4"}, "did you mean"),
        ({"check": "error_rate@c4:slo", "ceiling": "60%"}, "the check is PASS without it"),
        ({"ceiling": "20%"}, "the regression is not shown to stay within its ceiling of 20%"),
        ({"ceiling": "3ms"}, "ceiling"),
        ({"day": str(TODAY - timedelta(days=1))}, "is past"),
        ({"day": str(TODAY + timedelta(days=200))}, "more than 180 days ahead"),
        ({"day": "soon"}, "write it like 2026-12-31"),
    ],
)
def test_waive_refuses_what_would_not_help_and_writes_nothing(folder: Path, changes: dict[str, str], says: str) -> None:
    assert says in waive(folder, "refused.yaml", **changes)
    assert not (folder / "refused.yaml").exists()


def test_waive_refuses_a_second_one_for_the_same_check(folder: Path) -> None:
    (folder / "once.yaml").write_text(WRITTEN)
    assert "is waived in line 4 already" in waive(folder, "once.yaml")
    assert (folder / "once.yaml").read_text() == WRITTEN


def test_a_waiver_that_has_expired_does_not_live_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "week.yaml").write_text(WRITTEN.replace(str(TODAY + timedelta(days=30)), str(TODAY + timedelta(days=7))))
    at_first = gate(folder, "--waivers", "week.yaml")
    monkeypatch.setattr(options, "today", lambda: TODAY + timedelta(days=7))
    assert gate(folder, "--waivers", "week.yaml", "--as-of", str(TODAY)) == at_first
    monkeypatch.setattr(options, "today", lambda: TODAY + timedelta(days=8))
    code, document = gate(folder, "--waivers", "week.yaml")
    assert (code, [one["issue"] for one in document["waivers"]["expired"]]) == (10, ["SRV-1"])
    revived = here(folder, "gate", "--waivers", "week.yaml", "--as-of", str(TODAY))
    assert revived.returncode == 2
    assert "week.yaml:4:" in revived.stderr and "an earlier day does not revive it" in revived.stderr


def test_a_waiver_that_expired_before_the_run_began_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was read on the day before: the run waited for its servers, or another candidate was measured first."""
    yesterday = TODAY - timedelta(days=1)
    (folder / "expired.yaml").write_text(WRITTEN.replace(str(TODAY + timedelta(days=30)), str(yesterday)))
    monkeypatch.setattr(options, "today", lambda: yesterday)
    ran = here(folder, "run", "suite.yaml", "--waivers", "expired.yaml", "--format", "json", "--store", "later.db")
    document = json.loads(ran.stdout)
    assert (ran.returncode, [one["issue"] for one in document["waivers"]["expired"]]) == (10, ["SRV-1"])
    assert document["waivers"]["as_of"] == document["run"]["started_at"][:10]


def test_an_entry_added_later_does_not_keep_an_earlier_day_from_being_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = TODAY + timedelta(days=7)
    entry = WRITTEN[WRITTEN.index("    - suite") :].replace("slow", "plain")
    text = WRITTEN + entry.replace(str(TODAY + timedelta(days=30)), str(later + timedelta(days=180)))
    (folder / "longer.yaml").write_text(text)
    at_first = gate(folder, "--waivers", "tolerated.yaml")
    monkeypatch.setattr(options, "today", lambda: later)
    assert gate(folder, "--waivers", "longer.yaml", "--as-of", str(TODAY)) == at_first


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--as-of", str(TODAY)), "add --waivers"),
        (("--waivers", "tolerated.yaml", "--as-of", str(TODAY - timedelta(days=9))), "when the run was measured"),
        (("--waivers", "tolerated.yaml", "--as-of", str(TODAY + timedelta(days=1))), "today"),
        (("--waivers", "tolerated.yaml", "--as-of", "monday"), "write it like 2026-12-31"),
        (("--waivers", "nowhere.yaml"), "nowhere.yaml cannot be read"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    said = here(folder, "gate", *arguments)
    assert (said.returncode, says in said.stderr) == (2, True), said.stderr


def test_a_waiver_that_fits_nothing_of_its_suite_is_told_with_its_place(folder: Path) -> None:
    text = WRITTEN.replace("ttft-p50@c4", "ttft-p50@c5").replace("deployment: slow", "deployment: slwo")
    (folder / "misfit.yaml").write_text(text)
    said = here(folder, "gate", "--waivers", "misfit.yaml")
    assert said.returncode == 10
    assert 'misfit.yaml:4:7: waived has no deployment "slwo"; did you mean `slow`?' in said.stderr
    assert 'waived has no check "ttft-p50@c5"' in said.stderr
