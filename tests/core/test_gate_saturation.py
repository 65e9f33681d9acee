"""What makes a client the bottleneck, each at its bound: what it lost, and where it was late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.evidence.client_saturation import doubtful_failures, losses, saturation_reasons, strains
from benchgate.model.records import ABSENT, ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse
from benchgate.suite.schema import ClientBounds

MS = 1_000_000
IDLE = ClientUse(cpu_s=0.1, wall_s=10, workers=1)  # as an older run recorded it: nothing but CPU
ABLE = ClientUse(
    cpu_s=1.0,
    wall_s=10,
    workers=1,
    busiest_share=0.2,
    read_delay_p50_s=0.0001,
    read_delay_p99_s=0.001,
    read_delay_max_s=0.004,
    read_delay_by="canary",
)


def requests(
    lags_ms: Sequence[float | None], *, every_ms: float = 100, error: ErrorClass = ErrorClass.CONNECT
) -> RequestColumns:
    """One request every so often, each sent so late (None: never, for this reason)."""
    return RequestColumns.pack(
        [
            RequestRecord(
                index=index,
                intended_ns=(intended := int(index * every_ms * MS)),
                sent_ns=None if lag is None else intended + int(lag * MS),
                chunk_ns=() if lag is None else (intended + int(lag * MS) + 50 * MS,),
                end_ns=None if lag is None else intended + int(lag * MS) + 50 * MS,
                input_tokens=1,
                output_tokens=None if lag is None else 1,
                token_source=TokenSource.USAGE,
                finish_reason=None if lag is None else "stop",
                http_status=None if lag is None else 200,
                error=error if lag is None else None,
                error_detail=None if lag is None else "refused",
            )
            for index, lag in enumerate(lags_ms)
        ]
    )


USUAL = ClientBounds()


def connecting(columns: RequestColumns, *waited_ms: float | None) -> RequestColumns:
    """The same, where each waited so long for a connection before it was sent."""
    waited_ns = [ABSENT if waited is None else int(waited * MS) for waited in waited_ms]
    return replace(columns, connecting_ns=np.array(waited_ns, dtype=np.int64))


PUNCTUAL = requests([0.1] * 100)


def test_an_idle_and_punctual_client_is_not_saturated() -> None:
    assert saturation_reasons(ABLE, PUNCTUAL, 10.0) == ()
    assert saturation_reasons(IDLE, PUNCTUAL, 10.0) == ()


def test_waiting_for_a_connection_to_be_opened_is_no_lateness_of_the_client() -> None:
    """A handshake over a long way takes several round trips."""
    far = requests([0.1] * 95 + [150.0] * 5)
    assert saturation_reasons(ABLE, connecting(far, *[None] * 95, *[149.0] * 5), 10.0) == ()
    assert saturation_reasons(ABLE, connecting(far, *[None] * 95, *[90.0] * 5), 10.0) != ()
    assert saturation_reasons(ABLE, connecting(far, *[None] * 100), 10.0) != ()


@pytest.mark.parametrize(
    ("lags_ms", "says"),
    [
        ([0.1] * 98 + [5.1] * 2, "the p99 of the send lag is 5.10 ms (bound 5 ms)"),
        ([0.1] * 98 + [5.0] * 2, None),
        ([0.1] * 99 + [49.0], None),  # one in a hundred is not the p99, and in fewer a hiccup
        ([0.1] * 9 + [49.0], None),
        ([0.1] * 8 + [49.0] * 2, "the p99 of the send lag is 49.0 ms"),
        ([0.1] * 199 + [50.1], "a request was sent 50.1 ms late (bound 50 ms)"),
        ([0.1] * 297 + [6.0] * 3, None),
        ([0.1] * 296 + [6.0] * 4, "the p99 of the send lag is 6.00 ms"),
    ],
)
def test_lateness_of_sends(lags_ms: list[float], says: str | None) -> None:
    found = strains(ABLE, requests(lags_ms), None, USUAL)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (replace(ABLE, busiest_share=0.70), None),
        (replace(ABLE, busiest_share=0.71), "71.0 % of a core per worker over 5 s (bound 70%)"),
        (replace(ABLE, busiest_share=None, wall_s=2, cpu_s=1.4), None),
        (
            replace(ABLE, busiest_share=None, wall_s=2, cpu_s=1.5),
            "75.0 % of a core per worker over the stage (bound 70%)",
        ),
        (replace(ABLE, busiest_share=None, wall_s=0.9, cpu_s=0.9), None),  # start costs; the read delay decides
        (replace(ABLE, busiest_share=None, wall_s=2, cpu_s=2.8, workers=2), None),
        (replace(IDLE, cpu_s=8.5), None),
        (replace(IDLE, cpu_s=8.6), "86.0 % of a core per worker over the stage (bound 85%)"),
        (replace(IDLE, wall_s=0.1, cpu_s=0.09), "90.0 % of a core"),
        (replace(IDLE, cpu_s=0, wall_s=0), "100 % of a core"),
        (replace(ABLE, busiest_share=None, wall_s=0, cpu_s=0), "100 % of a core"),
    ],
)
def test_processor_time_of_the_client(use: ClientUse, says: str | None) -> None:
    found = strains(use, PUNCTUAL, None, USUAL)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (replace(ABLE, read_delay_p99_s=0.005), None),
        (
            replace(ABLE, read_delay_p99_s=0.0051),
            "the p99 of how long what had arrived waited for the client is 5.10 ms",
        ),
        (replace(ABLE, read_delay_max_s=0.050), None),
        (replace(ABLE, read_delay_max_s=0.051), "waited 51.0 ms for the client (bound 50 ms)"),
        # Too short for a p99: the worst of twenty looks is one stall.
        (replace(ABLE, wall_s=0.4, busiest_share=None, cpu_s=0.1, read_delay_p99_s=0.04, read_delay_max_s=0.04), None),
        (replace(ABLE, wall_s=0.4, busiest_share=None, cpu_s=0.1, read_delay_p50_s=0.006), "the median of how long"),
        (replace(ABLE, wall_s=0.4, busiest_share=None, cpu_s=0.1, read_delay_max_s=0.06), "waited 60.0 ms"),
    ],
)
def test_lateness_of_reads(use: ClientUse, says: str | None) -> None:
    found = strains(use, PUNCTUAL, None, USUAL)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_a_client_that_measures_itself_and_lacks_its_read_delay_is_not_taken_to_be_punctual() -> None:
    lacking = replace(ABLE, read_delay_p50_s=None, read_delay_p99_s=None, read_delay_max_s=None, read_delay_by=None)
    assert strains(lacking, PUNCTUAL, None, USUAL) == ("how late the client read what had arrived was not measured",)


def test_a_rate_that_was_not_reached_is_strain() -> None:
    # 1,000 sends over 9.99 s; the last one lags by 1 % of that and the 5 ms that any send may have.
    def behind(by_ms: float) -> tuple[str, ...]:
        lags = [by_ms * index / 999 for index in range(1000)]
        return strains(ABLE, requests(lags, every_ms=10), 100.0, USUAL)

    assert not any("requests/s" in reason for reason in behind(100.0))
    assert any("the client sent 98.9 requests/s where 100 were offered (bound 99%)" in r for r in behind(110.0))


def test_a_short_stage_may_lag_by_as_much_as_one_send_may() -> None:
    assert strains(ABLE, requests([0.0, 0.0, 0.0, 0.0, 0.0, 4.9], every_ms=60), 16.0, USUAL) == ()


def test_a_random_schedule_slower_than_its_rate_is_no_fault_of_the_client() -> None:
    assert strains(ABLE, requests([0.1] * 20, every_ms=130), 10.0, USUAL) == ()


def test_a_closed_loop_has_no_rate_to_reach() -> None:
    lags = [0.04 * index for index in range(100)]
    assert strains(ABLE, requests(lags, every_ms=0.1), None, USUAL) == ()


def test_a_server_that_takes_no_connection_does_not_make_the_client_saturated() -> None:
    for error in (ErrorClass.CONNECT, ErrorClass.TLS):
        assert saturation_reasons(ABLE, requests([None] * 50, error=error), 10.0) == ()


def test_requests_never_sent_for_no_reason_of_the_servers_are_lost() -> None:
    columns = requests([0.1] * 9 + [None], error=ErrorClass.CLIENT)
    assert losses(ABLE, columns) == ("1 of 10 requests were never sent (allowed: none)",)
    unexplained = RequestColumns.from_columns({**columns.to_columns(), "error": (None,) * 10})
    assert losses(ABLE, unexplained) == ("1 of 10 requests were never sent (allowed: none)",)


def test_faults_of_the_clients_own_and_its_workers_are_losses() -> None:
    columns = requests([0.1] * 3)
    faulty = RequestColumns.from_columns({**columns.to_columns(), "error": (None, "client", None)})
    (reason,) = losses(ABLE, faulty)
    assert reason.startswith("1 of 3 requests failed by a fault of the load generator's own machine")
    late = replace(ABLE, faults=("worker 2 of 4 started 1.3 s late",))
    assert losses(late, columns) == ("worker 2 of 4 started 1.3 s late",)
    assert saturation_reasons(late, columns, None) == ("worker 2 of 4 started 1.3 s late",)


def bounds(**texts: str) -> ClientBounds:
    return ClientBounds.model_validate(texts)


def test_a_policy_may_ask_less_of_the_client_and_more() -> None:
    late, delayed = requests([6.0] * 100), replace(ABLE, read_delay_p99_s=0.006)
    patient = bounds(send_lag_p99="7ms", read_delay_p99="7ms")
    assert strains(delayed, late, None, patient) == ()
    assert len(strains(delayed, late, None, USUAL)) == 2
    assert strains(ABLE, PUNCTUAL, None, bounds(send_lag_p99="50us")) != ()


def test_bounds_of_a_policys_own_are_told_as_a_suite_spells_them() -> None:
    assert USUAL.unusual() == ""
    assert bounds(send_lag_p99="30ms", cpu="90%").unusual() == "send_lag_p99 30 ms, cpu 90 %"


def test_no_policy_lets_the_client_be_later_than_a_second() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1"):
        bounds(read_delay_max="1.1s")


@pytest.mark.parametrize("lacking", ["read_delay_p50_s", "read_delay_p99_s", "read_delay_max_s"])
def test_one_of_the_read_delays_that_is_missing_makes_all_of_them_unknown(lacking: str) -> None:
    unknown = replace(ABLE, **{lacking: None})  # type: ignore[arg-type]  # by name
    assert strains(unknown, PUNCTUAL, None, USUAL) == ("how late the client read what had arrived was not measured",)


@pytest.mark.parametrize(("wall_s", "strained"), [(1.99, False), (2.0, True)])
def test_two_seconds_are_the_shortest_stage_whose_p99_is_more_than_one_stall(wall_s: float, strained: bool) -> None:
    stalled = replace(ABLE, wall_s=wall_s, busiest_share=None, cpu_s=0.1, read_delay_p99_s=0.04, read_delay_max_s=0.04)
    assert bool(strains(stalled, PUNCTUAL, None, USUAL)) is strained


@pytest.mark.parametrize(("wall_s", "strained"), [(0.99, False), (1.0, True)])
def test_a_second_is_the_shortest_stage_whose_processor_time_tells(wall_s: float, strained: bool) -> None:
    busy = replace(ABLE, wall_s=wall_s, busiest_share=None, cpu_s=0.8 * wall_s)
    assert bool(strains(busy, PUNCTUAL, None, USUAL)) is strained


@pytest.mark.parametrize("error", list(ErrorClass))
def test_failures_that_a_client_may_have_caused_are_those_without_an_answer(error: ErrorClass) -> None:
    its_own = {ErrorClass.TIMEOUT, ErrorClass.CONNECT, ErrorClass.TLS, ErrorClass.CLIENT}
    assert doubtful_failures(requests([0.1, None], error=error)) == (error in its_own)


def test_lateness_alone_saturates_and_by_the_bounds_that_are_given() -> None:
    late = requests([6.0] * 100)
    assert len(saturation_reasons(ABLE, late, None)) == 1
    assert saturation_reasons(ABLE, late, None, bounds(send_lag_p99="7ms")) == ()
