import contextlib
import gc
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic_ns

import numpy as np
import pytest

from benchgate.errors import TargetError
from benchgate.load.http.library import DISABLED_BY
from benchgate.load.workers import run_stage
from benchgate.model import request_metrics
from benchgate.model.records import ABSENT, ErrorClass
from benchgate.plan.model import PlannedStage
from benchgate.suite.schema import Limits
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    Respond,
    ScriptedServer,
    Step,
    answering,
    chunk,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)
from tests.shells.load_helpers import HALO, WHOLE, closed, limits, opened, run, target_at

MS = 1_000_000


def always(*steps: Step) -> Respond:
    return lambda received: steps


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.fixture
def dead_url() -> Iterator[str]:
    """An address of this machine at which nothing listens, and nothing will."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_request_is_asked_as_planned() -> None:
    with ScriptedServer(answering(lambda received: "a b c d e f g h i j")) as server:
        columns = run(server.url, closed(2)).requests
        first, second = server.requests
    assert first.path == "/v1/chat/completions"
    assert first.headers["accept-encoding"] == "identity"
    assert first.headers["host"] == server.url.removeprefix("http://")
    assert first.body == {
        "model": "scripted",
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": "prompt 0"}],
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert second.prompt == "prompt 1"
    assert columns.output_tokens.tolist() == [8, 8]
    assert columns.input_tokens.tolist() == [2, 2]
    assert columns.finish_reason == ("length", "length")
    assert columns.token_source == ("usage", "usage")


def test_completions_endpoint_is_asked_and_read() -> None:
    with ScriptedServer(answering(lambda received: "a b c")) as server:
        columns = run(server.url, closed(1, endpoint="completions")).requests
        assert server.requests[0].path == "/v1/completions"
    assert (tuple(columns.error), columns.output_tokens.tolist(), len(columns.chunk_ns)) == ((None,), [3], 3)


def test_base_address_with_a_path_is_kept() -> None:
    with ScriptedServer(always(WHOLE)) as server:
        run(f"{server.url}/proxy", closed(1))
        assert server.requests[0].path == "/proxy/v1/chat/completions"


def test_instants_of_a_stream_are_in_order_and_follow_its_pauses() -> None:
    steps: list[Step] = [
        stream_head() + role_event(),
        0.05,
        token("a"),
        0.05,
        token("b"),
        finish("stop"),
        0.05,
        usage(1, 2) + DONE + LAST_CHUNK,
    ]
    with ScriptedServer(always(*steps)) as server:
        result = run(server.url, closed(1))
    columns = result.requests
    first, second = columns.chunk_ns.tolist()
    sent, end = int(columns.sent_ns[0]), int(columns.end_ns[0])
    assert 0 <= columns.intended_ns[0] <= sent
    assert first - sent >= 90 * MS // 2
    assert second - first >= 45 * MS
    assert second <= end
    assert result.window_s == pytest.approx(end / 1e9)


def test_closed_loop_keeps_its_concurrency_and_asks_everything_once() -> None:
    with ScriptedServer(always(stream_head(), 0.01, WHOLE[len(stream_head()) :])) as server:
        columns = run(server.url, closed(20, concurrency=4)).requests
        assert server.connections == 4
        prompts = sorted(received.prompt for received in server.requests)
    assert prompts == sorted(f"prompt {index}" for index in range(20))
    assert columns.index.tolist() == list(range(20))
    flights = sorted([(start, 1) for start in columns.sent_ns] + [(end, -1) for end in columns.end_ns])
    assert int(np.cumsum([step for _, step in flights]).max()) == 4


def test_closed_loop_is_due_slot_by_slot_at_the_start_and_then_when_its_slot_is_free() -> None:
    with ScriptedServer(always(0.05, WHOLE)) as server:  # no answer comes before both slots have begun
        columns = run(server.url, closed(6, concurrency=2)).requests
    assert columns.intended_ns[:2].tolist() == [0, 1_000_000]
    assert (columns.intended_ns[2:] >= columns.end_ns[:2].min()).all()
    assert (columns.sent_ns >= columns.intended_ns).all()


def test_open_loop_schedule_does_not_wait_for_a_slow_server() -> None:
    offsets = [at * 5 * MS for at in range(1, 21)]
    with ScriptedServer(always(stream_head(), 0.3, WHOLE[len(stream_head()) :])) as server:
        columns = run(server.url, opened(offsets)).requests
    assert columns.intended_ns.tolist() == offsets
    assert set(columns.error) == {None}
    assert (columns.sent_ns >= columns.intended_ns).all()
    assert columns.sent_ns.max() < columns.end_ns.min()  # the last was sent before the first was answered


def test_latency_counts_from_the_intended_send() -> None:
    """Both are due at once; the lateness of whichever goes second is the client's, and is in its TTFT."""
    with ScriptedServer(always(WHOLE)) as server:
        columns = run(server.url, opened([0, 0, 0])).requests
    own_delay_s = request_metrics.ttft_s(columns) - request_metrics.ttft_sent_s(columns)
    assert own_delay_s.tolist() == pytest.approx((columns.sent_ns / 1e9).tolist())
    assert (own_delay_s > 0).all()


@pytest.mark.parametrize(
    "stage", [closed(40, concurrency=4), opened([at * MS for at in range(40)])], ids=["closed", "open"]
)
def test_dead_server_gives_one_failed_record_per_request(dead_url: str, stage: PlannedStage) -> None:
    columns = run(dead_url, stage).requests
    assert columns.index.tolist() == list(range(40))
    assert set(columns.error) == {ErrorClass.CONNECT}
    assert set(columns.sent_ns.tolist()) == {ABSENT}
    assert not request_metrics.succeeded(columns).any()


@pytest.mark.slow
def test_dead_server_does_not_keep_a_long_stage_busy(dead_url: str) -> None:
    columns = run(dead_url, closed(20_000, concurrency=4)).requests
    details = [detail or "" for detail in columns.error_detail]
    tried = sum(not detail.startswith("not tried") for detail in details)
    assert len(columns) == 20_000
    assert tried < 2000
    assert "refused" in details[0].lower() and "refused" in details[-1].lower()


def test_server_that_dies_in_the_middle_leaves_records_of_both_kinds() -> None:
    def respond(received: Received) -> Iterable[Step]:
        if len(server.requests) > 3:
            server.stop()
            return [HALO, 5.0]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(8)).requests
    assert columns.error[:3] == (None, None, None)
    assert columns.error[3] == ErrorClass.STREAM_BROKEN
    assert set(columns.error[4:]) == {ErrorClass.CONNECT}


@pytest.mark.parametrize(
    ("begin", "again", "within", "said"),
    [
        (stream_head() + role_event(), b"", limits(first_token_s=0.1), "no output within 0.1 s"),
        (b"", b"", limits(first_token_s=0.1), "no output within 0.1 s"),
        (HALO, b"", limits(stall_s=0.1), "no further output came for 0.1 s"),
        (HALO, token("x"), limits(total_s=0.2), "not over within 0.2 s"),
        (stream_head(), chunk(b": \n\n"), limits(first_token_s=0.2), "no output within 0.2 s"),
        (HALO, chunk(b": \n\n"), limits(stall_s=0.2), "no further output came for 0.2 s"),
    ],
    ids=["role only", "silence", "stall", "endless", "comments only", "comments after output"],
)
def test_every_wait_has_a_limit(begin: bytes, again: bytes, within: Limits, said: str) -> None:
    """The server goes on with the same for as long as anybody would wait, and then ends its answer well."""
    for_long: list[Step] = [0.02, again] * 1200
    with ScriptedServer(always(begin, *for_long, finish("stop") + DONE + LAST_CHUNK)) as server:
        columns = run(server.url, closed(1), within).requests
    assert columns.error == (ErrorClass.TIMEOUT,)
    assert said in (columns.error_detail[0] or "")
    assert columns.end_ns.tolist() == [ABSENT]


def test_slow_first_token_is_no_stall() -> None:
    with ScriptedServer(always(stream_head() + role_event(), 0.3, WHOLE[len(stream_head()) :])) as server:
        columns = run(server.url, closed(1), limits(stall_s=0.1, first_token_s=20)).requests
    assert columns.error == (None,)


def test_stream_of_many_gaps_below_the_stall_limit_is_whole() -> None:
    gap: list[Step] = [token("x"), 0.05]
    steps: list[Step] = [stream_head(), *gap * 6, finish("stop") + LAST_CHUNK]
    with ScriptedServer(always(*steps)) as server:
        columns = run(server.url, closed(1), limits(stall_s=0.2)).requests
    assert (tuple(columns.error), tuple(columns.token_source), columns.output_tokens.tolist()) == (
        (None,),
        ("chunks",),
        [6],
    )


@pytest.mark.parametrize("compiled", ["1", "0"], ids=["compiled", "not compiled"])
def test_response_is_cut_at_its_cap_while_it_still_comes(monkeypatch: pytest.MonkeyPatch, compiled: str) -> None:
    """It would end well, were it waited for."""
    monkeypatch.setenv(DISABLED_BY, compiled)
    for module in ("http.exchange", "http.reader"):
        monkeypatch.setattr(f"benchgate.load.{module}.LARGEST_RESPONSE_BYTES", 20_000)
    monkeypatch.setattr("benchgate.load.http.connection._CHECKED_EVERY_BYTES", 4_000)
    end = finish("stop") + DONE + LAST_CHUNK
    with ScriptedServer(always(stream_head(), *[token("x" * 500)] * 10_000, end)) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.PROTOCOL,)
    assert "longer than 20000 bytes" in (columns.error_detail[0] or "")


def test_closed_loop_for_a_time_records_only_requests_it_sent() -> None:
    with ScriptedServer(always(0.02, WHOLE)) as server:
        columns = run(server.url, closed(10_000, concurrency=2), until_s=0.2).requests
        assert len(columns) == len(server.requests) < 100
    assert set(columns.error) == {None}
    assert columns.intended_ns.max() <= 0.2e9


def test_open_loop_for_a_time_ends_with_it() -> None:
    with ScriptedServer(always(WHOLE)) as server:
        columns = run(server.url, opened([at * 20 * MS for at in range(100)]), until_s=0.1).requests
    assert columns.intended_ns.tolist() == [at * 20 * MS for at in range(6)]


def test_no_redirect_is_followed() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    with ScriptedServer(always(moved)) as server:
        columns = run(server.url, closed(1)).requests
    assert columns.error == (ErrorClass.PROTOCOL,)


def test_tls_failure_is_its_own_class() -> None:
    """As when https is asked of a port that speaks http and says so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse_two() -> None:  # the connection opened before the start, and the request's own
            for _ in range(2):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    accepted.recv(65536)

        server = threading.Thread(target=refuse_two, daemon=True)
        server.start()
        columns = run(f"https://127.0.0.1:{listener.getsockname()[1]}", closed(1)).requests
        server.join(10)
    assert columns.error == (ErrorClass.TLS,)


def test_running_out_of_files_is_the_clients_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened_now = open_files()
    monkeypatch.setattr("benchgate.load.http.pool._raise_open_files_limit", lambda: None)
    with ScriptedServer(always(0.2, WHOLE)) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened_now + 24, hard))
        try:
            columns = run(server.url, closed(60, concurrency=60), limits(first_token_s=0.5)).requests
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(columns) == 60
    assert ErrorClass.CLIENT in columns.error


def test_key_is_sent_and_never_recorded() -> None:
    refusal = json_response({"error": {"message": "bad key sk-very-secret"}}, status=401)
    with ScriptedServer(always(refusal)) as server:
        target = target_at(server.url, api_key="sk-very-secret")
        columns = run_stage(target, closed(1), limits=limits()).requests
        assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert columns.error_detail == ("HTTP 401: bad key [redacted]",)


@pytest.mark.parametrize(
    "url", ["ftp://s3cr3t", "http://", "http://host:s3cr3t", "http://user:s3cr3t@host", "http://host/?s3cr3t"]
)
def test_address_that_is_none_is_refused_before_anything_is_sent_and_not_repeated(url: str) -> None:
    with pytest.raises(TargetError) as refused:
        run(url, closed(1))
    assert "s3cr3t" not in str(refused.value)


def test_key_with_a_line_end_is_refused_without_showing_it() -> None:
    target = target_at("http://127.0.0.1:1/tenant-sk-1", api_key="sk-1\r\nx: y")
    with pytest.raises(TargetError) as refused:
        run_stage(target, closed(1), limits=limits())
    assert "sk-1" not in str(refused.value)


def test_interrupt_passes_through_and_closes_the_sockets() -> None:
    def respond(received: Received) -> Iterable[Step]:
        os.kill(os.getpid(), signal.SIGINT)
        return [HALO, 20.0, CLOSE]

    files = open_files()
    with ScriptedServer(respond) as server:
        with pytest.raises(KeyboardInterrupt):
            run(server.url, closed(4))
        assert len(server.requests) == 1
    assert gc.isenabled()
    assert open_files() <= files


@pytest.fixture
def soon_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a target for down after a fifth of the usual time, and try it again five times as often."""
    for name in ("_OPEN_AFTER_NS", "_ATTEMPT_EVERY_NS"):
        monkeypatch.setattr(f"benchgate.load.http.pool.{name}", 200 * MS)


@pytest.mark.usefixtures("soon_down")
def test_stage_reports_when_its_target_went_away() -> None:
    def respond(received: Received) -> Iterable[Step]:
        if len(server.requests) == 4:
            server.stop()
        return [0.05, WHOLE]

    with ScriptedServer(respond) as server:
        result = run(server.url, closed(10_000), until_s=1.5)
    assert result.down_after_s is not None
    assert 0.1 < result.down_after_s < result.client.wall_s
    assert result.requests.error[:3] == (None, None, None)
    assert set(result.requests.error[4:]) == {ErrorClass.CONNECT}


@pytest.mark.slow
@pytest.mark.usefixtures("soon_down")
@pytest.mark.parametrize("concurrency", [None, 2])
def test_server_that_restarts_in_the_middle_of_a_stage_is_measured_again(concurrency: int | None) -> None:
    """It refuses every connection for half a second."""
    stage = closed(10_000, concurrency) if concurrency else opened([at * 20 * MS for at in range(400)])
    began_ns = monotonic_ns()

    def respond(received: Received) -> Iterable[Step]:
        if monotonic_ns() - began_ns > 500 * MS:
            first.stop()
            stopped.set()
        return [0.01, WHOLE]

    def restart() -> None:
        stopped.wait(10)
        time.sleep(0.5)
        stack.enter_context(ScriptedServer(always(0.01, WHOLE), port=first.port))

    stopped = threading.Event()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ScriptedServer(respond))
        restarting = threading.Thread(target=restart)
        restarting.start()
        result = run(first.url, stage, until_s=3)
        restarting.join(10)
    columns = result.requests
    late = columns.intended_ns > 2200 * MS
    assert result.down_after_s is None
    assert ErrorClass.CONNECT in columns.error
    assert late.sum() >= 20
    assert request_metrics.succeeded(columns)[late].all()


@pytest.mark.parametrize("stage", [closed(1), opened([0])], ids=["closed", "open"])
def test_a_stage_may_open_as_many_files_as_the_system_lets_it(stage: PlannedStage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with ScriptedServer(always(WHOLE)) as server:
            run(server.url, stage)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_target_that_refuses_some_connections_is_not_given_up() -> None:
    """It serves one connection for as long as it is used, and refuses every other one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve_one() -> None:
            accepted, _ = listener.accept()
            listener.close()
            with accepted:
                while accepted.recv(65536):
                    time.sleep(0.02)
                    accepted.sendall(WHOLE)

        server = threading.Thread(target=serve_one, daemon=True)
        server.start()
        result = run(f"http://127.0.0.1:{port}", closed(10_000, concurrency=3), until_s=2)
        server.join(10)
    columns = result.requests
    assert ErrorClass.CONNECT in columns.error
    assert result.down_after_s is None
    assert columns.intended_ns[request_metrics.succeeded(columns)].max() > 1500 * MS


def test_stage_that_reached_its_target_gave_nothing_up() -> None:
    with ScriptedServer(always(WHOLE)) as server:
        result = run(server.url, closed(3))
    assert result.down_after_s is None


def test_window_lasts_to_the_last_intended_send_also_when_the_target_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three due at once make the target's absence certain after a second; the last is due long after."""
    monkeypatch.setattr("benchgate.load.http.pool._GIVE_UP_NS", 1_000 * MS)

    def respond(received: Received) -> Iterable[Step]:
        server.stop()
        return [WHOLE]

    with ScriptedServer(respond) as server:
        result = run(server.url, opened([0, *[at * 300 * MS for at in range(1, 8)], 30_000 * MS]))
    assert result.client.wall_s < 20  # not waited for
    assert result.window_s == 30


def test_client_use_is_that_of_the_stage() -> None:
    with ScriptedServer(always(0.05, WHOLE)) as server:
        result = run(server.url, closed(4))
    assert result.client.workers == 1
    assert result.client.wall_s >= result.window_s >= 0.2
    assert 0 < result.client.cpu_s < result.client.wall_s + 1
