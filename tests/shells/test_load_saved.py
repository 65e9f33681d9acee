"""Loads kept in the store by `benchgate load --save`: in trends, beside each other, and never promoted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import ExitCode, PublishError, UsageError
from benchgate.gate.summary.metric_rows import NumberPair
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.store.repository import Store
from tests.fakes import quick_command
from tests.fakes.scripted_server import (
    DONE,
    LAST_CHUNK,
    ScriptedServer,
    Step,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)

CANARY = "sk-canary-0f-somebody"


def paced(gap_s: float) -> list[Step]:
    tokens: list[Step] = [step for word in "abcd" for step in (gap_s, token(word))]
    return [stream_head() + role_event(), *tokens, finish("length") + usage(7, 4) + DONE + LAST_CHUNK]


def saved(address: str, gap_s: float, *words: str, saturated: tuple[str, ...] = ()) -> quick_command.Told:
    """Send a load and save it. Its client is saturated for these reasons, however busy the machine is."""
    with ScriptedServer(lambda received: paced(gap_s)) as server, pytest.MonkeyPatch.context() as patched:
        patched.setattr("benchgate.load.standalone.run.saturation_reasons", lambda *_: saturated)
        said = ["load", f"{server.url}/tenant-path/v1", "--model", "m", "--engine", "openai", "--workers", "1"]
        said += ["--warmup", "0", "--concurrency", "2", "--requests", "60", "--slo", "ttft=1s"]
        return quick_command.told(*said, "--store", address, *words)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", CANARY)
        address = str(tmp_path_factory.mktemp("loads") / "benchgate.db")
        first = saved(address, 0.004, "--label", "before")
        saved(address, 0.012, "--label", "after")
    assert "saved as run" in first.stderr and "benchgate compare RUN before" in first.stderr
    yield address


def test_a_saved_load_is_a_run_measured_by_benchgate_load(kept: str) -> None:
    with Store.open(kept) as store:
        run = store.run(store.resolve("before"))
        metrics = {(row.name, row.statistic): row for row in store.metrics(run.id)}
    assert run.measured_by == "benchgate load" and run.suite_name == "load"
    tpot = metrics["tpot", "p50"]
    assert (tpot.arm, tpot.stage, tpot.n) == (Arm.CANDIDATE, "c2", 60)
    assert tpot.lower is not None and tpot.upper is not None
    assert tpot.lower <= tpot.value <= tpot.upper
    assert {"request_throughput", "output_throughput", "error_rate", "goodput"} <= {name for name, _ in metrics}


def test_neither_the_key_nor_the_path_of_the_address_is_stored(kept: str) -> None:
    stored = b"".join(path.read_bytes() for path in Path(kept).parent.iterdir() if path.is_file())
    assert CANARY.encode() not in stored and b"tenant-path" not in stored


def test_two_saved_loads_are_compared_with_intervals_and_decide_nothing(kept: str) -> None:
    text = quick_command.told("compare", "before", "after", "--store", kept)
    result = quick_command.told("compare", "before", "after", "--store", kept, "--format", "json")
    assert text.exit_code == result.exit_code == 11
    document: Any = json.loads(result.stdout)
    assert document["promotes"] is False
    assert "not measure the same workload" not in text.stdout
    (tpot,) = (one for one in document["numbers"] if (one["name"], one["statistic"]) == ("tpot", "p50"))
    assert 0 < tpot["change_lower_ratio"] < tpot["change_ratio"] < tpot["change_upper_ratio"]
    assert "tpot p50 c2" in text.stdout and "intervals cover the variation inside each run" in text.stdout


def test_loads_of_other_prompts_or_without_a_salt_are_another_workload(tmp_path: Path) -> None:
    address, prompts = str(tmp_path / "runs.db"), tmp_path / "p.jsonl"
    for label, text, salt in (("a", "one", "7"), ("b", "one", "8"), ("c", "two", "7"), ("d", "one", "0")):
        prompts.write_text("".join(f'{{"prompt": "{text} {row}"}}\n' for row in range(60)))
        saved(address, 0.001, "--label", label, "--prompts", str(prompts), "--salt", salt)
    with Store.open(address) as store:
        workloads = [store.run(store.resolve(label)).measurement_sha256 for label in "abcd"]
    assert workloads[0] == workloads[1]
    assert len(set(workloads)) == 3


def test_trend_sees_saved_loads_and_promote_refuses_them(kept: str) -> None:
    trend = quick_command.told("trend", "tpot", "--suite", "load", "--store", kept)
    assert "before" in trend.stdout and "after" in trend.stdout
    with pytest.raises(UsageError):
        quick_command.told("promote", "after", "--store", kept)


def test_a_label_that_is_taken_is_refused_before_a_request_is_sent(kept: str) -> None:
    with pytest.raises(UsageError, match=r"--label before: run .* has it already"):
        saved(kept, 0.0, "--label", "before")
    with pytest.raises(UsageError, match="--save keeps a load test"):
        quick_command.told("load", "http://h:1", "--save", "--search", "rate", "--store", kept)


def row(value: float, lower: float | None, upper: float | None) -> MetricRow:
    return MetricRow(Arm.CANDIDATE, "ttft", "p50", "c2", None, value, 60, lower, upper)


def pair(before: MetricRow | None, after: MetricRow | None) -> NumberPair:
    return NumberPair("ttft", "p50", "c2", None, before, after, None, None)


def test_a_load_is_saved_also_where_its_result_cannot_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "benchgate.db")
    monkeypatch.setattr("benchgate.cli.saying.raw_stream", lambda name: None)
    with pytest.raises(PublishError, match="standard output is closed"):
        saved(address, 0.001, "--label", "kept")
    with Store.open(address) as store:
        assert store.metrics(store.resolve("kept"))


def test_load_that_is_invalid_is_printed_and_not_saved(tmp_path: Path) -> None:
    address = str(tmp_path / "benchgate.db")
    told = saved(address, 0.001, "--label", "busy", saturated=("a late worker", "another"))
    assert told.exit_code == ExitCode.INVALID
    assert "60 of 60 succeeded" in told.stdout
    assert "not saved: the client was the bottleneck: a late worker; another; " in told.stderr
    with ScriptedServer(lambda received: [json_response({"error": "no"}, status=500)]) as server:
        said = ["load", f"{server.url}/v1", "--model", "m", "--engine", "openai", "--workers", "1", "--warmup", "0"]
        refused = quick_command.told(*said, "--concurrency", "2", "--requests", "4", "--save", "--store", address)
    assert refused.exit_code == ExitCode.INVALID
    assert "not saved: no request to " in refused.stderr and "HTTP 500" in refused.stderr
    with Store.open(address) as store:
        assert store.runs() == []


def test_the_interval_of_a_change_joins_those_of_both_runs() -> None:
    limits = pair(row(1.0, 0.5, 2.0), row(2.0, 1.0, 4.0)).change_limits
    assert limits is not None
    # Both vary by a factor of 2 either way: the ratio by 2 ** sqrt(2).
    assert limits.lower == pytest.approx(2 / 2**2**0.5 - 1)
    assert limits.upper == pytest.approx(2 * 2**2**0.5 - 1)
    exact = pair(row(1.0, 1.0, 1.0), row(2.0, 2.0, 2.0)).change_limits
    assert exact is not None and (exact.lower, exact.upper) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("unknown", [None, row(1.0, None, None), row(0.0, 0.0, 0.1), row(1.0, 0.0, 2.0)])
def test_without_both_intervals_a_change_has_none(unknown: MetricRow | None) -> None:
    known = row(1.0, 0.5, 2.0)
    assert pair(known, unknown).change_limits is None
    assert pair(unknown, known).change_limits is None
