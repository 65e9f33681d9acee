"""`benchgate runs` and `show`, the names @latest and @previous, and completion, over a store with every kind of run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from benchgate.cli import completion, options
from benchgate.errors import UsageError
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import decide_stored
from benchgate.report.screen import PLAIN, STYLES, Cell, Screen, Style, table_lines
from benchgate.store.queries import RunFilter
from benchgate.store.repository import Store
from tests.fakes.promotable import BLOCKED, begun
from tests.fakes.quick_command import told

pytest_plugins = ["tests.shells.store_databases"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str, dict[str, str]]]:
    address = str(tmp_path_factory.mktemp("runs") / "benchgate.db")
    with Store.open(address) as store:
        ids = {
            "good": begun(store, day="2026-01-01", label="nightly-1"),
            "bad": begun(store, BLOCKED, day="2026-01-02", label="nightly-2"),
            "noise": begun(store, day="2026-01-03", calibration=True),
            "partial": begun(store, day="2026-01-04", status=RunStatus.PARTIAL),
        }
        for name in ("good", "bad"):
            decide_stored(store, ids[name])
        yield store, address, ids


Kept = tuple[Store, str, dict[str, str]]


def test_runs_are_listed_newest_first_with_verdict_and_duration(kept: Kept) -> None:
    _, address, ids = kept
    result = told("runs", "--store", address)
    heading, *rows = result.stdout.splitlines()
    assert heading.split() == ["RUN", "LABEL", "STARTED", "SUITE", "ARMS", "VERDICT", "TOOK"]
    assert [row.split()[0] for row in rows] == [ids[name][:13] for name in ("partial", "noise", "bad", "good")]
    assert "partial" in rows[0] and "calibration" in rows[1]
    assert "■ BLOCK" in rows[2]
    assert "nightly-1" in rows[3] and "● PASS" in rows[3] and rows[3].endswith("1 h")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--verdict", "block"], ["bad"]),
        (["--label", "nightly-*"], ["bad", "good"]),
        (["--since", "2026-01-03"], ["partial", "noise"]),
        (["--since", "400000d", "--limit", "1"], ["partial"]),  # the year 931
        (["--suite", "nothing"], []),
    ],
)
def test_runs_are_filtered(kept: Kept, words: list[str], names: list[str]) -> None:
    _, address, ids = kept
    found = json.loads(told("runs", *words, "--format", "json", "--store", address).stdout)
    assert [one["id"] for one in found] == [ids[name] for name in names]


def test_a_filter_that_nothing_matches_is_told_from_an_empty_store(kept: Kept, tmp_path: Path) -> None:
    assert "no stored run matches" in told("runs", "--suite", "x", "--store", kept[1]).stderr
    Store.open(str(tmp_path / "empty.db")).close()
    assert "the store has no run yet" in told("runs", "--store", str(tmp_path / "empty.db")).stderr
    with pytest.raises(UsageError, match="expected a day like 2026-11-20, or an age like 7d or 12h"):
        told("runs", "--since", "yesterday", "--store", kept[1])


def test_ages_and_days_limit_a_list(kept: Kept) -> None:
    for age in ("1d", "12h"):
        assert json.loads(told("runs", "--since", age, "--format", "json", "--store", kept[1]).stdout) == []


def test_show_describes_a_run_and_names_the_next_commands(kept: Kept) -> None:
    _, address, ids = kept
    text = told("show", "nightly-2", "--store", address).stdout
    assert text.startswith(f"run {ids['bad']}\n")
    for part in ("label      nightly-2", "baseline", "candidate", "load:", "quality:", "■ BLOCK: "):
        assert part in text
    assert f"benchgate report {ids['bad']}\n" in text
    document = json.loads(told("show", "nightly-2", "--format", "json", "--store", address).stdout)
    assert (document["verdict"], document["took_s"]) == ("BLOCK", 3600.0)
    assert {one["kind"] for one in document["measured"]} == {"load", "quality", "shadow"}


def test_latest_and_previous_skip_incomplete_runs_and_say_so(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    store, _, ids = kept
    assert (store.resolve("@latest"), store.resolve("@previous")) == (ids["bad"], ids["good"])
    assert store.resolve("@latest", partial=True) == ids["partial"]
    assert options.find_run(store, "@latest") == ids["bad"]
    assert f"the newer run {ids['partial']} is not complete and skipped" in capsys.readouterr().err
    assert options.find_run(store, "nightly-2") == ids["bad"]
    assert capsys.readouterr().err == ""


def test_in_a_store_of_partial_runs_the_latest_is_one_of_them(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "partial.db")) as store:
        partial = begun(store, status=RunStatus.PARTIAL)
        assert options.find_run(store, "@latest") == partial


def test_previous_is_never_the_latest_again_nor_an_incomplete_run_beside_a_complete_one(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "one.db")) as store:
        begun(store, day="2026-01-02", status=RunStatus.PARTIAL)
        whole = begun(store, day="2026-01-03")
        begun(store, day="2026-01-04", status=RunStatus.PARTIAL)
        assert store.resolve("@latest") == whole
        with pytest.raises(UsageError, match="@previous means nothing here: the store has fewer than two complete"):
            store.resolve("@previous")
        before = begun(store, day="2026-01-01")
        assert store.resolve("@previous") == before


def test_only_an_asterisk_of_a_label_is_any_text_and_no_label_matches_none(store: Store) -> None:
    ids = {label: begun(store, label=label) for label in ("pr[1]?", "pr1x", None)}
    for words, labels in {"pr[1]?": ["pr[1]?"], "pr[1]*": ["pr[1]?"], "pr?": [], "*": ["pr1x", "pr[1]?"]}.items():
        found = {one.run.id for one in store.list_runs(RunFilter(label=words))}
        assert found == {ids[label] for label in labels}


def test_filters_combine(kept: Kept) -> None:
    store, _, ids = kept
    (one,) = store.list_runs(RunFilter(label="nightly-*", outcome=Outcome.PASS, limit=5))
    assert (one.run.id, one.outcome, one.promotion) == (ids["good"], Outcome.PASS, None)


def test_names_are_completed_from_the_store_and_never_fail(kept: Kept, tmp_path: Path) -> None:
    _, address, ids = kept
    context = typer.Context(typer.core.TyperCommand("any"))
    context.params = {"store": address}

    def names(complete: completion.Complete, text: str = "") -> list[str]:
        return [name for name, _ in complete(context, text)]

    assert {"@latest", "nightly-1", ids["partial"]} <= set(names(completion.complete_runs))
    assert names(completion.complete_runs, "nightly") == ["nightly-2", "nightly-1"]
    assert names(completion.complete_labels) == ["nightly-2", "nightly-1"]
    assert len(names(completion.complete_suites)) == 1
    assert len(names(completion.complete_stages)) > 0
    context.params["run"] = "nightly-2"
    assert any(name.startswith("ttft") for name in names(completion.complete_checks))
    for broken in (tmp_path / "missing.db", tmp_path):
        context.params["store"] = str(broken)
        assert names(completion.complete_runs) == []


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("run s.yaml --resume --run night", {"nightly-1", "nightly-2"}),
        pytest.param("publish nightly-1", {"nightly-1"}, marks=pytest.mark.slow),
        pytest.param("gate @la", {"@latest"}, marks=pytest.mark.slow),
    ],
)
def test_bash_completes_names_of_runs(kept: Kept, line: str, completed: set[str]) -> None:
    """The shell's own completion, with the script that benchgate gives it."""
    program = Path(sys.executable).with_name("benchgate")
    words = " ".join(shlex.quote(word) for word in ("benchgate", *line.split()))
    script = f"""
eval "$({shlex.quote(str(program))} --show-completion bash)"
COMP_WORDS=({words}) COMP_CWORD=$(({len(line.split())}))
_benchgate_completion {shlex.quote(str(program))}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "BENCHGATE_STORE": kept[1]}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == completed, done.stderr


def test_a_table_is_cut_to_the_screen_and_coloured_only_there() -> None:
    rows: list[list[str | Cell]] = [["a" * 30, ("PASS", STYLES[Outcome.PASS])], ["b", ("BLOCK", Style.RED)]]
    plain = list(table_lines(PLAIN, ["NAME", "VERDICT"], rows, shrink=[0]))
    assert plain[1] == f"{'a' * 30}  PASS"
    narrow = list(table_lines(Screen(20, colour=True), ["NAME", "VERDICT"], rows, shrink=[0]))
    assert narrow[1] == f"{'a' * 5}…{'a' * 5}  \x1b[32mPASS\x1b[0m"
    assert list(Screen().wrapped("\x1b[31mred")) == ["\\x1b[31mred"]


def test_a_field_of_requests_called_calibration_makes_no_calibration(tmp_path: Path) -> None:
    address = str(tmp_path / "benchgate.db")
    with Store.open(address) as store:
        begun(store, day="2026-01-01")
        newest = begun(store, day="2026-01-02", extra={"calibration": True})
        assert store.resolve("@latest") == newest
