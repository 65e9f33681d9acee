from collections.abc import Sequence

from benchgate.gate.saturation import saturation_reasons
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse

MS = 1_000_000
IDLE = ClientUse(cpu_s=0.1, wall_s=10, workers=1)


def requests(lags_ms: Sequence[float | None], *, every_ms: int = 100, ttft_ms: int = 50) -> RequestColumns:
    """One request every so often, each sent so late (None: never, for want of a connection)."""
    return RequestColumns.pack(
        [
            RequestRecord(
                index=index,
                intended_ns=(intended := index * every_ms * MS),
                sent_ns=None if lag is None else intended + int(lag * MS),
                chunk_ns=() if lag is None else (intended + int(lag * MS) + ttft_ms * MS,),
                end_ns=None if lag is None else intended + int(lag * MS) + ttft_ms * MS,
                input_tokens=1,
                output_tokens=None if lag is None else 1,
                token_source=TokenSource.USAGE,
                finish_reason=None if lag is None else "stop",
                http_status=None if lag is None else 200,
                error=ErrorClass.CONNECT if lag is None else None,
                error_detail=None if lag is None else "refused",
            )
            for index, lag in enumerate(lags_ms)
        ]
    )


def test_idle_and_punctual_client_is_not_saturated() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 100), 10.0) == ()


def test_busy_client_is_saturated() -> None:
    (reason,) = saturation_reasons(ClientUse(cpu_s=18, wall_s=10, workers=2), requests([0.1] * 100), None)
    assert "90.0 % of a core" in reason


def test_cpu_is_shared_among_workers() -> None:
    assert saturation_reasons(ClientUse(cpu_s=16, wall_s=10, workers=2), requests([0.1] * 100), None) == ()


def test_client_without_wall_time_is_saturated() -> None:
    assert saturation_reasons(ClientUse(cpu_s=0, wall_s=0, workers=1), requests([0.1]), None) != ()


def test_lateness_that_could_change_a_verdict_is_saturation() -> None:
    (reason,) = saturation_reasons(IDLE, requests([0.1] * 90 + [30.0] * 10), None)
    assert "p99 of the send lag is 30.0 ms" in reason
    (reason,) = saturation_reasons(IDLE, requests([0.1] * 40 + [9.0] * 60), None)
    assert "median of the send lag is 9.00 ms" in reason


def test_a_lateness_of_few_requests_that_their_tail_can_bear_is_none() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 90 + [9.0] * 10), None) == ()


def test_lateness_small_beside_what_is_measured_is_none() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 90 + [9.0] * 10, ttft_ms=500), None) == ()


def test_one_late_request_in_two_hundred_is_none() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 199 + [900.0]), None) == ()


def test_one_late_request_among_few_is_a_hiccup_and_two_are_not() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 9 + [900.0]), None) == ()
    assert saturation_reasons(IDLE, requests([0.1] * 8 + [900.0] * 2), None) != ()


def test_lateness_below_five_milliseconds_is_none_however_fast_the_server() -> None:
    assert saturation_reasons(IDLE, requests([4.9] * 100, ttft_ms=1), None) == ()


def test_rate_that_was_not_reached_is_saturation() -> None:
    falling_behind = [0.1 * index for index in range(100)]
    reasons = saturation_reasons(IDLE, requests(falling_behind, every_ms=1, ttft_ms=5000), 1000.0)
    assert reasons == ("the client sent 909 requests/s where 1e+03 were offered",)


def test_random_schedule_slower_than_its_rate_is_no_fault_of_the_client() -> None:
    assert saturation_reasons(IDLE, requests([0.1] * 20, every_ms=130), 10.0) == ()


def test_server_that_is_down_does_not_make_the_client_saturated() -> None:
    assert saturation_reasons(IDLE, requests([None] * 50), 10.0) == ()


def test_faults_of_the_clients_own_are_saturation() -> None:
    columns = requests([0.1] * 3)
    faulty = RequestColumns.from_columns({**columns.to_columns(), "error": (None, "client", None)})
    assert saturation_reasons(IDLE, faulty, None) == ("1 of 3 requests failed by a fault of the client's own",)
