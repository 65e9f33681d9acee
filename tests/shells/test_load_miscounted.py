"""A server whose usage does not fit what it sent has no TPOT that could be judged: INVALID, neither slow nor fast."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.checks.capacity import ArmSearch
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns
from benchgate.model.request_metrics import miscounted
from benchgate.model.run import ClientUse
from benchgate.stats.capacity_search import SearchSettings
from benchgate.suite.schema import ClientBounds
from tests.fakes.blocks import record
from tests.fakes.scripted_server import DONE, LAST_CHUNK, ScriptedServer, finish, role_event, stream_head, token, usage

FEWER = "fewer tokens than there were pieces of text (bound 1%)"
MORE = "more than 8 requested tokens, in too few pieces of text (bound 1%)"

SETTINGS = SearchSettings(
    over="concurrency",
    lowest=1,
    highest=8,
    target_ratio=0.9,
    resolution_ratio=0.1,
    probe_requests=200,
    budget_requests=None,
    alpha=0.025,
)


@pytest.fixture(autouse=True)
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is never the bottleneck, whatever else this machine is doing."""
    monkeypatch.setattr("benchgate.load.standalone.run.saturation_reasons", lambda use, columns, rate: ())


def loaded(pieces: int, counted: int, slo: str | None, words: str = "a") -> dict[str, Any]:
    """A load of answers in so many pieces, which the server counts as so many tokens; 8 were asked for."""
    steps = [
        stream_head() + role_event(),
        *[token(words)] * pieces,
        finish("length"),
        usage(3, counted),
        DONE + LAST_CHUNK,
    ]
    with ScriptedServer(lambda received: steps) as server:
        options = LoadOptions.parse(
            url=server.url,
            model="m",
            engine="openai",
            workers="1",
            concurrency=2,
            requests=12,
            output_tokens=8,
            slo=slo,
        )
        return dict(json.loads(json.dumps(run_load_test(options))))


@pytest.mark.parametrize(
    ("pieces", "counted", "fault"),
    [
        (8, 8, None),
        (8, 7, None),  # the tail of a token, withheld
        (8, 6, FEWER),
        (2, 8, None),  # merged
        (8, 9, None),  # one more, in the last piece
        (5, 9, None),
        (8, 10, MORE),
        (9, 80, MORE),
        (2, 30, MORE),
        (30, 30, None),  # it passes the limit, and sends what it counts
    ],
)
def test_token_counts_are_compared_with_the_pieces_of_text(pieces: int, counted: int, fault: str | None) -> None:
    rows = [replace(record(index, 0.01, tokens=pieces), output_tokens=counted) for index in range(12)]
    expected = None if fault is None else f"in 100 % of the answers the server's usage counts {fault}"
    assert miscounted(RequestColumns.pack(rows), 8) == expected


@pytest.mark.parametrize("counted", [6, 10])
def test_a_load_with_miscounted_tokens_has_an_invalid_tpot(counted: int) -> None:
    document = loaded(8, counted, "tpot=60s,ttft=60s")
    assert (document["verdict"]["outcome"], document["verdict"]["exit_code"]) == ("INVALID", 12)
    assert document["verdict"]["reason"].startswith(document["miscounted"])


def test_miscounted_tokens_leave_bounds_without_tokens_valid() -> None:
    document = loaded(8, 4, "ttft=60s,e2e=60s")
    assert document["miscounted"] is not None
    assert "usage" not in document["verdict"]["reason"]


def test_two_miscounted_answers_of_twenty_prove_nothing() -> None:
    def told(counted: int) -> str | None:
        rows = [record(index, 0.01, tokens=10) for index in range(20)]
        odd = [replace(one, output_tokens=counted) for one in rows]
        assert miscounted(RequestColumns.pack(odd[:2] + rows[2:]), 10) is None
        return miscounted(RequestColumns.pack(odd[:3] + rows[3:]), 10)

    assert told(5) == f"in 15.0 % of the answers the server's usage counts {FEWER}"
    assert (
        told(50) == f"in 15.0 % of the answers the server's usage counts {MORE.replace('8 requested', '10 requested')}"
    )


def test_a_search_compares_counts_with_the_requested_tokens() -> None:
    rows = RequestColumns.pack([replace(record(index, 0.01, tokens=2), output_tokens=8000) for index in range(50)])
    search = ArmSearch(SETTINGS, Slo(tpot_s=0.001), ClientBounds(), 8)
    search.take(1, rows, ClientUse(cpu_s=0.1, wall_s=20, workers=1))
    assert MORE in (search.fault or "")


def answers(count: int, odd: int) -> RequestColumns:
    sound = [record(index, 0.01, tokens=10) for index in range(count)]
    return RequestColumns.pack([replace(one, output_tokens=5) for one in sound[:odd]] + sound[odd:])


@pytest.mark.parametrize(
    ("slo", "odd", "ends"), [(Slo(tpot_s=60), 3, True), (Slo(tpot_s=60), 2, False), (Slo(ttft_s=60), 200, False)]
)
def test_miscounted_tokens_end_a_search_by_tpot(slo: Slo, odd: int, ends: bool) -> None:
    search = ArmSearch(SETTINGS, slo, ClientBounds())
    search.take(1, answers(200, odd), ClientUse(cpu_s=0.1, wall_s=20, workers=1))
    if ends:
        assert ([look.counts for look in search.looks], search.next) == ([None], None)
        assert FEWER in (search.fault or "")
        assert "no TPOT can be judged" in (search.fault or "")
    else:
        assert FEWER not in (search.fault or "")
