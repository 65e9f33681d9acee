"""The state of a run as a live block, a plain line and Prometheus metrics; `time.monotonic` is a clock of the test."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable

import pytest

from benchgate.cli import progress
from benchgate.cli.progress import PlainProgress, RunProgress, block, plain_line
from benchgate.cli.progress_metrics import serve_metrics
from benchgate.errors import UsageError
from benchgate.load.live import LiveFigures
from benchgate.model.deployment import Arm
from benchgate.pipeline.progress import Phase

A, B = Arm.BASELINE, Arm.CANDIDATE


def figures(ttft_s: float | None = 0.12, *, failed: int = 0, in_flight: int = 0) -> LiveFigures:
    tpot_s = None if ttft_s is None else ttft_s / 10
    return LiveFigures(10.0, 50, failed, in_flight, None if ttft_s is None else 4.0, ttft_s, tpot_s)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets seconds pass."""
    now_s = 1000.0

    def advance(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr("benchgate.cli.progress.time.monotonic", lambda: now_s)
    return advance


def lines(state: RunProgress) -> list[str]:
    return block(state).plain.split("\n")


@pytest.fixture
def measuring(passes: Callable[[float], None]) -> RunProgress:
    """A run in its second block: the stage c2 takes 5 s on each arm, the stage c8 takes 20 s."""
    state = RunProgress("f16 vs q8")
    state.price(36.0)
    state.begin(Phase("load", 12, cycle=4, at_most=True))
    for stage, arm in (("c2", A), ("c2", B), ("c8", B), ("c8", A)):
        state.stage(arm, stage, "block 1 of 3")
        passes(5.0 if stage == "c2" else 20.0)
        state.executed(figures(0.12 if stage == "c2" else 0.24, failed=arm is B), billed_usd=0.25)
        state.step(f"stage {stage} on {arm}")
    state.look("after 1 block: 1 of 2 checks settled; open: ttft-p50@c2")
    state.stage(B, "c2", "block 2 of 3")
    state.figures(figures(0.13, failed=2, in_flight=2))
    passes(2.0)
    return state


def test_block_shows_place_figures_of_both_arms_looks_time_left_and_money(measuring: RunProgress) -> None:
    assert lines(measuring) == [
        "f16 vs q8",
        "━━━━━━━───────────── load 4/12, block 2 of 3, stage c2 on candidate",
        "                TTFT p50    TPOT p50        rate      errors   in flight",
        "  baseline        120 ms     12.0 ms      4.00/s           0           0",
        "▶ candidate       130 ms     13.0 ms      4.00/s           4           2",
        "after 1 block: 1 of 2 checks settled; open: ttft-p50@c2",
        "0:52 elapsed, at most 1:38 left of load, $1.52 spent",
    ]
    assert max(map(len, lines(measuring))) <= 80


def test_what_follows_the_load_is_named_until_it_begins(measuring: RunProgress) -> None:
    measuring.follow(["800 eval items", "200 shadow prompts"])
    assert lines(measuring)[-1] == "then 800 eval items, 200 shadow prompts" and len(lines(measuring)) <= 8
    assert plain_line(measuring).endswith("; then 800 eval items, 200 shadow prompts")
    measuring.begin(Phase("quality", 2))
    assert "then" not in plain_line(measuring)


def test_plain_line_has_the_same_figures(measuring: RunProgress) -> None:
    assert plain_line(measuring) == (
        "f16 vs q8: load 4/12, block 2 of 3, stage c2 on candidate"
        "; baseline TTFT 120 ms, TPOT 12.0 ms, 4.00/s, 0 errors, 0 in flight"
        "; candidate TTFT 130 ms, TPOT 13.0 ms, 4.00/s, 4 errors, 2 in flight"
        "; after 1 block: 1 of 2 checks settled; open: ttft-p50@c2"
        "; 0:52 elapsed, at most 1:38 left of load, $1.52 spent"
    )


def test_errors_of_an_execution_count_once(measuring: RunProgress) -> None:
    measuring.executed(figures(failed=3), billed_usd=0.0)
    assert measuring.errors(B) == 5
    measuring.stage(B, "c2", "block 3 of 3")
    assert measuring.errors(B) == 5


def test_arm_that_was_not_measured_at_this_stage_has_no_figures_of_another(measuring: RunProgress) -> None:
    measuring.stage(A, "c4", "block 2 of 3")
    assert measuring.arms == {}
    measuring.figures(figures(None, in_flight=4))
    assert lines(measuring)[3] == "▶ baseline             -           -           -           0           4"


def test_phase_of_items_shows_count_pace_and_time_left(passes: Callable[[float], None]) -> None:
    state = RunProgress("f16 vs q8")
    state.begin(Phase("quality", 4))
    state.items(0, 400)
    assert state.totals == "0:00 elapsed"
    passes(10.0)
    state.items(100, 400)
    assert lines(state)[1:] == [
        "━━━━━─────────────── quality 100/400, 10.0/s",
        "0:10 elapsed, about 0:30 left of quality",
    ]


def test_status_is_shown_until_a_step_is_done() -> None:
    state = RunProgress("f16 vs q8")
    state.begin(Phase("deployments", 2))
    state.status("the baseline f16 is starting")
    assert lines(state)[2] == "the baseline f16 is starting"
    state.step("baseline f16 answers")
    assert len(lines(state)) == 3


def test_log_has_phases_notes_and_the_state_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    written = threading.Event()

    def log(line: str) -> None:
        logged.append(line)
        if "0/2" in line:
            written.set()

    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "inform", log)
    state = PlainProgress("f16 vs q8")
    with state.shown():
        state.begin(Phase("deployments", 2))
        state.note("a warning")
        assert written.wait(60)
    assert {"f16 vs q8: deployments", "f16 vs q8: a warning", "f16 vs q8: deployments 0/2; 0:00 elapsed"} <= {*logged}


def test_prometheus_reads_the_same_figures(measuring: RunProgress) -> None:
    measuring.title = 'a "quoted" name'
    with serve_metrics(measuring, "0") as url:
        assert url.startswith("http://127.0.0.1:")
        page = urllib.request.urlopen(url).read().decode()
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert samples['benchgate_run_ttft_p50_seconds{arm="candidate"}'] == "0.13"
    assert samples['benchgate_run_failed_requests_total{arm="candidate"}'] == "4.0"
    assert samples["benchgate_run_phase_steps_done"] == "4.0"
    assert samples["benchgate_run_phase_left_seconds"] == "98.0"
    assert samples["benchgate_run_usd_total"] == "1.52"
    assert r'title="a \"quoted\" name"' in page


@pytest.mark.parametrize("address", ["http", "70000", "localhost:", "host.invalid:9464"])
def test_address_for_prometheus_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=f"--serve-metrics {address}: "), serve_metrics(RunProgress("x"), address):
        pass


def test_port_for_prometheus_that_is_taken_is_refused() -> None:
    with serve_metrics(RunProgress("x"), "0") as url:
        port = url.rpartition(":")[2].partition("/")[0]
        with pytest.raises(UsageError, match="in use; choose another"), serve_metrics(RunProgress("y"), port):
            pass
