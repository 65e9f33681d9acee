"""`benchgate load --trace`: recorded traffic sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.load.results import StageResult, no_rows
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import SyntheticRequests, describe, run_load_test
from benchgate.model.run import ClientUse
from benchgate.plan.slot_share import SlotShare
from benchgate.report.load_result import render_load
from benchgate.report.screen import Screen
from tests.fakes.scripted_server import ScriptedServer
from tests.shells.load_helpers import WHOLE

ROWS = '{"at_s": 5.0, "input_tokens": 3}\n{"at_s": 5.02, "output_tokens": 9}\n{"at_s": 5.1}\n{"at_s": 9.0}\n'


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "day.jsonl"
    path.write_text(ROWS)
    return str(path)


def options_of(trace: str | None, **more: object) -> LoadOptions:
    given = {"url": "http://127.0.0.1:1", "model": "m", "engine": "openai", "workers": "1", "trace": trace}
    return LoadOptions.parse(**{**given, "warmup": "0", **more})  # type: ignore[arg-type]  # typed by name


def test_rows_are_sent_with_their_own_lengths(trace: str) -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document = run_load_test(options_of(trace, url=server.url, requests=3, input_tokens=5, output_tokens=4))
        asked = [
            (len(received.prompt.split()), received.body["max_tokens"])
            for received in server.requests
            if received.body is not None
        ]
    assert sorted(asked) == [(3, 4), (5, 4), (5, 9)]
    requests: Any = document["requests"]
    assert (requests["ok"], requests["ramp"]) == (3, 0)  # a trace keeps its edges
    load = document["load"]
    assert isinstance(load, dict)
    assert (load["trace"], load["speed"], load["rate_rps"], load["arrival"]) == (trace, 1.0, None, None)


@pytest.mark.parametrize(
    ("rows", "lengths", "shown"),
    [
        (ROWS, (100, 128), "tokens as in its rows, else 100 in, 128 out"),
        ('{"at_s": 0, "input_tokens": 3}\n' * 4, (None, 128), "tokens as in its rows, else 128 out"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 9}\n' * 4, (None, None), "tokens as in its rows"),
    ],
)
def test_lengths_are_stated_for_rows_that_have_none(
    trace: str, rows: str, lengths: tuple[int | None, ...], shown: str
) -> None:
    Path(trace).write_text(rows)
    options = options_of(trace, requests=4)
    empty = StageResult.of(no_rows(), 0.0, ClientUse(0.0, 0.0, 1))
    document: Any = describe(options, "openai", empty, partial=True, warmup=0)
    assert (document["load"]["input_tokens"], document["load"]["output_tokens"]) == lengths
    assert f"at speed 1, 4 requests; {shown}\n" in render_load(document, Screen(200))


def test_instants_are_the_recorded_gaps_divided_by_the_speed(trace: str) -> None:
    planned = list(SyntheticRequests(options_of(trace, speed=2.0, requests=4)))
    assert [request.offset_ns for request in planned] == [0, 10_000_000, 50_000_000, 2_000_000_000]


def test_workers_share_the_rows_between_them(trace: str) -> None:
    whole = SyntheticRequests(options_of(trace, requests=4))
    shares = [list(whole.share(SlotShare(worker, 3, 3))) for worker in range(3)]
    assert [[request.index for request in share] for share in shares] == [[0, 3], [1], [2]]
    assert sorted((r for share in shares for r in share), key=lambda r: r.index) == list(whole)


def test_more_rows_within_a_duration_than_are_read_are_refused(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --requests a million rows are read: the load would end before its duration, and nobody would notice."""
    monkeypatch.setattr("benchgate.load.standalone.options._MOST_ROWS", 3)
    with pytest.raises(UsageError, match=r"3 rows or more within 0\.2 s; write --requests instead"):
        options_of(trace, duration="200ms")
    assert len(list(SyntheticRequests(options_of(trace, duration="50ms")))) == 2


def test_a_duration_takes_the_rows_that_are_due_within_it(trace: str) -> None:
    assert len(list(SyntheticRequests(options_of(trace, duration="100ms")))) == 3
    assert len(list(SyntheticRequests(options_of(trace, duration="100ms", speed=0.5)))) == 2


def test_rates_of_a_replay_are_those_of_its_rows(trace: str) -> None:
    options = options_of(trace, requests=4)
    assert (options.offered_rps, options.peak_rps) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": "8/s"}, "exactly one of --concurrency .*, --rate .* and --trace"),
        ({"concurrency": 2}, "exactly one of --concurrency"),
        ({"requests": 9}, "has 4 rows, fewer than the 9 requests"),
        ({"speed": 0.0}, "--trace: 0 is no speed"),
        ({"arrival": "constant"}, "--arrival means nothing without --rate"),
        ({"duration": "1s"}, "exactly one of --requests and --duration"),
        ({"service_time": "1s"}, "--trace has none; leave it out"),
    ],
)
def test_options_that_do_not_fit_a_trace_are_refused(trace: str, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options_of(trace, **{"requests": 4, **wrong})


def test_fault_in_the_trace_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at_s,input_tokens\n0,x\n")
    with pytest.raises(SuiteError, match=r"t\.csv:2:3: input_tokens: found 'x'"):
        options_of(str(path), requests=1)
