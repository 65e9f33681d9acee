"""The practice server as a whole: its routes, its limits and the truth it tells."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from benchgate.sim.content import WORDS
from benchgate.sim.http_server import LARGEST_HEAD_BYTES
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import ListenAddress, sim_settings
from tests.fakes import certificates
from tests.fakes.waiting import eventually
from tests.shells.sim_client import CHAT, COMPLETIONS, asking, read_all, request_bytes, talk

QUICK = sim_settings(ttft_s=0.004, itl_s=0.002, context_tokens=200)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(QUICK) as served:
        yield served


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def document(sim: Sim, path: str, body: object = None) -> tuple[int, Any]:
    raw = talk(sim.port, request_bytes(path, body))
    return raw.status, json.loads(raw.body)


def test_words_are_a_power_of_two_and_of_one_length() -> None:
    assert len(set(WORDS)) == len(WORDS) == 64
    assert {len(word) for word in WORDS} == {6}


def test_stream_has_role_tokens_finish_usage_and_done(sim: Sim) -> None:
    raw = talk(sim.port, request_bytes(body=asking(3)))
    role, first, second, third, usage, done = raw.events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in (first, second, third)] == [None, None, "length"]
    assert len(raw.text.split()) == 3
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert done == "[DONE]"
    assert raw.data.endswith(b"0\r\n\r\n")


def test_every_chunk_of_a_stream_says_its_own_length(sim: Sim) -> None:
    raw = talk(sim.port, request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 40, "stream": True}))
    assert len(raw.text.split()) == 40  # unchunked by the sizes alone
    assert [event["object"] for event in raw.events[:-1]] == ["text_completion"] * 40


def test_usage_comes_only_when_asked_for_and_in_every_event_when_that_is_asked(sim: Sim) -> None:
    plain = talk(sim.port, request_bytes(body=asking(2) | {"stream_options": None}))
    assert "usage" not in plain.body.decode()
    running = talk(
        sim.port,
        request_bytes(body=asking(2) | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    )
    counts = [event["usage"]["completion_tokens"] for event in running.events[:-1]]
    assert counts == [0, 1, 2, 2]


def test_document_says_what_the_stream_says(sim: Sim) -> None:
    streamed = talk(sim.port, request_bytes(body=asking(8)))
    status, whole = document(sim, CHAT, asking(8, stream=False))
    assert status == 200
    assert whole["choices"][0]["message"]["content"] == streamed.text
    assert whole["usage"]["completion_tokens"] == 8


def test_equal_prompts_get_equal_answers_and_others_others(sim: Sim) -> None:
    texts = [talk(sim.port, request_bytes(body=asking(8, prompt=p))).text for p in ("a b", "a b", "a c", "b d")]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    with serve_sim(sim_settings(ttft_s=0, itl_s=0, seed=1)) as other:
        assert talk(other.port, request_bytes(body=asking(8, prompt="a b"))).text != texts[0]


def test_answers_end_by_themselves_within_their_bounds_unless_told_not_to() -> None:
    with serve_sim(sim_settings(ttft_s=0, itl_s=0, output_tokens=(3, 6))) as sim:
        answers = [document(sim, CHAT, asking(5, prompt=f"p {i}", stream=False))[1] for i in range(30)]
        lengths = {a["usage"]["completion_tokens"]: a["choices"][0]["finish_reason"] for a in answers}
        assert lengths == {3: "stop", 4: "stop", 5: "length"}
        _, whole = document(sim, CHAT, asking(9, stream=False, ignore_eos=True))
        assert whole["usage"]["completion_tokens"] == 9


def test_chunks_of_several_tokens_begin_with_one_alone() -> None:
    with serve_sim(sim_settings(ttft_s=0, itl_s=0.001, chunk_tokens=4)) as sim:
        raw = talk(sim.port, request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 10, "stream": True}))
        assert [len(event["choices"][0]["text"].split()) for event in raw.events[:-1]] == [1, 4, 4, 1]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (asking() | {"model": "nope"}, 404, "The model `nope` does not exist"),
        (b"{", 400, "JSON decode error"),
        (b"[]", 400, "must be a JSON object"),
        ({"max_tokens": 3}, 400, "Field required"),
        (asking(0), 400, "max_tokens must be at least 1, got 0"),
        (asking(500), 400, "max_model_len=200"),
        (asking(1, prompt="x " * 300), 400, "maximum context length is 200"),
        (asking(n=2), 400, "n, best_of and echo"),
        (asking(stream=False, stream_options={"include_usage": True}), 400, "Stream options"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "content of text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_request_that_cannot_be_served_is_refused_as_vllm_does(sim: Sim, body: object, status: int, says: str) -> None:
    found, told = document(sim, CHAT, body)
    assert found == status
    assert says in told["error"]["message"]
    assert told["error"]["code"] == status


def test_small_routes_say_what_they_are_for(sim: Sim) -> None:
    assert talk(sim.port, request_bytes("/health")).status == 200
    assert document(sim, "/version")[1]["version"].startswith("sim-")
    model = document(sim, "/v1/models")[1]["data"][0]
    assert (model["id"], model["max_model_len"]) == ("sim", 200)
    assert document(sim, "/tokenize", {"prompt": "a b  c"})[1]["count"] == 3
    assert document(sim, "/tokenize", {"messages": [{"role": "user", "content": "a b"}]})[1]["count"] == 2
    assert document(sim, "/nowhere") == (404, {"detail": "Not Found"})
    assert document(sim, CHAT) == (405, {"detail": "Method Not Allowed"})


def test_metrics_count_in_vllms_names(sim: Sim) -> None:
    def value(name: str) -> float:
        page = talk(sim.port, request_bytes("/metrics")).body.decode()
        return float(next(line for line in page.splitlines() if line.startswith(name + "{")).rsplit(" ", 1)[1])

    names = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count")
    before = [value(name) for name in names]
    talk(sim.port, request_bytes(body=asking(7)))
    sim.reset()  # of the truth, which no counter follows
    assert [value(name) - was for name, was in zip(names, before, strict=True)] == [7, 3, 1]
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    assert "process_start_time_seconds " in talk(sim.port, request_bytes("/metrics")).body.decode()


def test_truth_agrees_with_a_client_on_the_same_machine() -> None:
    with serve_sim(sim_settings(ttft_s=0.03, itl_s=0.01)) as sim:
        sent_ns = time.monotonic_ns()
        raw = talk(sim.port, request_bytes(body=asking(5), headers={"x-request-id": "mine"}))
        truth = sim.truth(with_requests=True)
    (row,) = truth["rows"]
    assert (row["id"], row["outcome"], row["output_tokens"], row["fault"]) == ("mine", "finished", 5, None)
    assert sent_ns < row["received_ns"] < row["first_ns"] < raw.reads[-1][0]
    assert row["last_ns"] - row["received_ns"] >= 70_000_000  # never before its time
    assert (truth["requests"], truth["finished"], truth["output_tokens"], truth["max_in_flight"]) == (1, 1, 5, 1)
    assert truth["ttft_s"]["p50"] == (row["first_ns"] - row["received_ns"]) / 1e9 >= 0.03
    assert truth["e2e_s"]["max"] == (row["last_ns"] - row["received_ns"]) / 1e9
    assert truth["itl_s"]["n"] == 4
    assert 4 * truth["itl_s"]["mean"] == pytest.approx((row["last_ns"] - row["first_ns"]) / 1e9)
    assert truth["schedule_lag_s"]["n"] == 5
    assert truth["cpu_s"] > 0


def test_truth_begins_anew_with_a_reset_and_is_undefined_without_requests(sim: Sim) -> None:
    talk(sim.port, request_bytes(body=asking(2)))
    sim.reset()
    truth = sim.truth()
    assert (truth["requests"], truth["output_tokens"], truth["span_s"]) == (0, 0, None)
    assert truth["ttft_s"] == {"n": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None}


def test_client_that_leaves_frees_its_place_at_once() -> None:
    costs = sim_settings(prefill_s=0.0001, decode_s=0.005, batch=1)
    with serve_sim(costs) as sim:
        with socket.create_connection(("127.0.0.1", sim.port)) as sock:
            sock.sendall(request_bytes(body=asking(50_000)))
            assert sock.recv(100)
        raw = talk(sim.port, request_bytes(body=asking(3)))  # it would wait for minutes
        assert raw.finish == "length"
        truth = sim.truth(with_requests=True)
    assert (truth["aborted"], truth["finished"], truth["in_flight"]) == (1, 1, 0)
    assert [row["outcome"] for row in truth["rows"]] == ["aborted", "finished"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue_status", "stream", "status", "says"),
    [
        (None, True, 200, "data: [DONE]"),
        (None, False, 503, "Service Unavailable"),
        (429, True, 429, "retry-after: 1"),
        (429, False, 429, "retry-after: 1"),
    ],
)
def test_full_queue_refuses_as_it_is_told(queue_status: int | None, stream: bool, status: int, says: str) -> None:
    costs = sim_settings(batch=1, queue=0, queue_status=queue_status)
    with serve_sim(costs) as sim, socket.create_connection(("127.0.0.1", sim.port)) as first:
        first.sendall(request_bytes(body=asking(50_000)))
        first.recv(100)
        raw = talk(sim.port, request_bytes(body=asking(2, stream=stream)))
        assert raw.status == status
        assert says in raw.data.decode()
        assert "currently busy" in raw.body.decode()
        assert sim.truth()["failed"] == 1


def test_requests_on_one_connection_are_answered_one_after_the_other(sim: Sim) -> None:
    bodies = [request_bytes(body=asking(2, prompt=f"p {i}"), keep=True) for i in range(5)]
    raw = talk(sim.port, b"".join(bodies) + request_bytes("/health"))
    assert raw.data.count(b"HTTP/1.1 200 OK") == 6
    assert raw.data.count(b"[DONE]") == 5


def test_request_may_come_byte_by_byte_and_in_chunks(sim: Sim) -> None:
    whole = request_bytes(body=asking(2))
    raw = talk(sim.port, *(whole[at : at + 1] for at in range(len(whole))))
    assert raw.finish == "length"
    content = json.dumps(asking(2)).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (content[:9], content[9:])) + b"0\r\n\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert talk(sim.port, head.encode(), chunks).finish == "length"


def test_client_that_waits_for_leave_to_send_its_body_gets_it(sim: Sim) -> None:
    head, _, body = request_bytes(body=asking(2), headers={"expect": "100-continue"}).partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert read_all(sock).finish == "length"


@pytest.mark.parametrize(
    "garbage", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"x" * (LARGEST_HEAD_BYTES + 1)]
)
def test_bytes_that_are_no_request_end_the_connection(sim: Sim, garbage: bytes) -> None:
    raw = talk(sim.port, garbage)
    assert raw.status in (400, 431)
    assert raw.ended != "open"


def test_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not() -> None:
    with serve_sim(sim_settings(ttft_s=0.7, itl_s=0, keep_alive_s=0.5)) as sim:
        raw = talk(sim.port, request_bytes(body=asking(2), keep=True))
    assert raw.finish == "length"
    assert raw.ended == "closed"


def test_connections_are_refused_until_the_server_is_ready() -> None:
    with serve_sim(sim_settings(ready_after_s=1.0)) as sim:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", sim.port))
        assert eventually(lambda: accepts(sim.port))


@pytest.mark.slow
def test_server_on_a_unix_socket_answers_there(tmp_path: Path) -> None:
    path = str(tmp_path / "sim.sock")
    with serve_sim(sim_settings(ttft_s=0, itl_s=0), ListenAddress(uds=path)) as sim:
        assert sim.url == f"unix:{path}"
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=path), base_url="http://sim") as client:
            assert client.post(CHAT, json=asking(3, stream=False)).json()["usage"]["completion_tokens"] == 3
        assert sim.truth()["finished"] == 1
    with serve_sim(sim_settings(), ListenAddress(uds=path)) as again:  # the file that was left is no obstacle
        assert again.alive()


@pytest.mark.slow
def test_server_speaks_tls_and_can_demand_a_client_certificate() -> None:
    tls = ListenAddress(
        cert=str(certificates.TLS / "server.pem"),
        key=str(certificates.TLS / "server.key"),
        client_ca=certificates.CA,
    )
    with serve_sim(sim_settings(ttft_s=0, itl_s=0), tls) as sim:
        context = ssl.create_default_context(cafile=certificates.CA)
        url = f"https://localhost:{sim.port}"
        with httpx2.Client(verify=context, base_url=url) as stranger, pytest.raises(httpx2.TransportError):
            stranger.get("/health").raise_for_status()
        context.load_cert_chain(certificates.CLIENT_CERT, certificates.CLIENT_KEY)
        with httpx2.Client(verify=context, base_url=url) as known:
            answer = known.post(CHAT, json=asking(3))
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.slow
def test_truth_can_be_asked_over_tls() -> None:
    cert, key = str(certificates.TLS / "server.pem"), str(certificates.TLS / "server.key")
    with serve_sim(sim_settings(), ListenAddress(cert=cert, key=key)) as sim:
        assert sim.truth()["requests"] == 0
