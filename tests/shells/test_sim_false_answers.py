"""Answers that are false only at times: under load, for prompts that came before, or in what the truth counts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from benchgate.errors import UsageError
from benchgate.model.request import Endpoint
from benchgate.sim.encoders import ChoiceScript
from benchgate.sim.endpoints import SERVED
from benchgate.sim.fault_injection import falsify
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import parse_fault
from tests.shells.sim_client import PATIENCE_S, asking, read_all, request_bytes, talk

WORDS = 8
NS = 1_000_000_000


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(sim_settings(ttft_s=0.004, itl_s=0.002)) as served:
        yield served


def test_fault_above_a_load_spares_the_request_that_is_alone_and_strikes_the_one_that_is_not() -> None:
    settings = sim_settings(ttft_s=0.004, itl_s=0.002, faults=("repeated-text:!:1",))
    with serve_sim(settings) as sim:
        alone = talk(sim.port, request_bytes(body=asking(WORDS)))
        assert len(alone.text.split()) == WORDS
        assert sim.truth()["faults"] == {}
        # The first request hangs until it is closed, so the second is not alone however fast the machine is.
        with socket.create_connection(("127.0.0.1", sim.port), timeout=PATIENCE_S) as first:
            first.sendall(request_bytes(body=asking(WORDS), headers={"x-sim-fault": "hang-after:1"}))
            assert first.recv(2**16)
            crowded = talk(sim.port, request_bytes(body=asking(WORDS)))
        assert crowded.text == "!" * WORDS
        assert sim.truth()["faults"]["repeated-text:!:1"] == 1


def test_fault_above_a_load_leaves_what_is_joined_to_it() -> None:
    with serve_sim(sim_settings(ttft_s=0, itl_s=0, faults=("blank-text:1+no-done",))) as sim:
        raw = talk(sim.port, request_bytes(body=asking(WORDS)))
    assert len(raw.text.split()) == WORDS
    assert "[DONE]" not in raw.events


def test_prompt_that_came_before_is_answered_faster_and_another_is_not() -> None:
    # Times of the queue model are stated in the truth, so nothing here depends on the machine.
    settings = sim_settings(service_s=0.04, service_until="last-token", faults=("fast-when-seen:8",))
    with serve_sim(settings) as sim:
        for prompt in ("one two", "one two", "three four", "one two"):
            talk(sim.port, request_bytes(body=asking(2, prompt=prompt)))
        rows = sim.truth(with_requests=True)["rows"]
    assert [row["service_ns"] / NS for row in rows] == [0.04, 0.005, 0.04, 0.005]


def test_inputs_that_came_before_are_answered_faster_and_others_are_not() -> None:
    def ranking(query: str, *texts: str) -> tuple[str, dict[str, object]]:
        return "/v1/rerank", {"query": query, "documents": [*texts]}

    def embedding(*texts: str) -> tuple[str, dict[str, object]]:
        return "/v1/embeddings", {"input": [*texts]}

    sent = (
        embedding("a", "b"), embedding("a", "c"), embedding("a", "b"), embedding("a"),
        ranking("q", "a", "b"), ranking("q", "a", "b"), ranking("p", "a", "b"),
    )  # fmt: skip
    with serve_sim(sim_settings(service_s=0.04, faults=("fast-when-seen:8",))) as sim:
        for path, body in sent:
            assert talk(sim.port, request_bytes(path, body)).status == 200
        rows = sim.truth(with_requests=True)["rows"]
    assert [row["service_ns"] / NS for row in rows] == [0.04, 0.04, 0.005, 0.04, 0.04, 0.005, 0.04]


def test_prompt_counts_as_seen_also_where_it_came_without_the_fault() -> None:
    settings = sim_settings(service_s=0.04, service_until="last-token", faults=("fast-when-seen:8@50%",), seed=2)
    with serve_sim(settings) as sim:
        for _ in range(12):
            talk(sim.port, request_bytes(body=asking(2)))
        rows = sim.truth(with_requests=True)["rows"]
    faulty = [row["fault"] is not None for row in rows]
    assert not faulty[0]
    assert any(faulty)
    assert [row["service_ns"] / NS for row in rows] == [0.005 if fault else 0.04 for fault in faulty]


def test_engine_whose_steps_are_shared_cannot_be_fast_for_one_prompt() -> None:
    with pytest.raises(UsageError, match="paced server or a queue"):
        sim_settings(batch=32, faults=("fast-when-seen",))


def test_truth_counts_the_half_that_was_sent_and_the_model_that_was_asked(sim: Sim) -> None:
    sim.reset()
    talk(sim.port, request_bytes(body=asking(WORDS), headers={"x-sim-fault": "half-text+other-model"}))
    truth = sim.truth()
    assert truth["output_tokens"] == WORDS / 2
    assert list(truth["by_model"]) == ["sim"]


def test_last_token_left_out_still_brings_the_finish_reason(sim: Sim) -> None:
    raw = talk(sim.port, request_bytes(body=asking(2), headers={"x-sim-fault": "half-text"}))
    assert (len(raw.text.split()), raw.finish) == (1, "length")


def test_offered_tool_is_called_as_ever_whatever_text_was_to_be_false(sim: Sim) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    request = request_bytes(body=asking(WORDS, stream=False, tools=[tool]), headers={"x-sim-fault": "blank-text"})
    (call,) = json.loads(talk(sim.port, request).body)["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {})


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [("completions", "reasoning-only"), ("completions", "unasked-call"), ("responses", "second-choice")],
)
def test_fault_that_has_no_meaning_for_an_endpoint_changes_nothing(endpoint: Endpoint, fault: str) -> None:
    body = {"input": "x", "prompt": "x"}
    ask = SERVED[endpoint].request("", json.dumps(body).encode(), sim_settings())
    assert falsify(ask, parse_fault(fault).spec) is ask


@pytest.mark.parametrize("fault", ["blank-text", "reasoning-only", "unasked-call"])
def test_responses_say_the_same_false_answer(sim: Sim, fault: str) -> None:
    body = {"input": "one two", "max_output_tokens": WORDS}
    raw = talk(sim.port, request_bytes("/v1/responses", body, {"x-sim-fault": fault}))
    (item,) = json.loads(raw.body)["output"]
    assert item["type"] == {"blank-text": "message", "reasoning-only": "reasoning"}.get(fault, "function_call")
    assert json.loads(raw.body)["usage"]["output_tokens"] == WORDS


def test_connection_goes_on_after_a_false_answer(sim: Sim) -> None:
    with socket.create_connection(("127.0.0.1", sim.port), timeout=PATIENCE_S) as sock:
        sock.sendall(request_bytes(body=asking(WORDS), headers={"x-sim-fault": "half-text"}, keep=True))
        sock.sendall(request_bytes(body=asking(WORDS)))
        raw = read_all(sock)
    assert raw.data.count(b"data: [DONE]") == 2


def test_long_answer_does_not_repeat_itself_and_its_events_say_what_its_text_says() -> None:
    ask = SERVED["chat"].request("", json.dumps(asking(1500)).encode(), sim_settings())
    words = ask.answer.text(0, 1500).split()
    runs = [tuple(words[at : at + 6]) for at in range(len(words) - 5)]
    assert len(set(runs)) > 0.95 * len(runs)
    assert sorted(words[:64]) == sorted(words[64:128]) == sorted(set(words))
    script = ChoiceScript(ask, 1, 2)
    framed = [script.framed_token(at).partition(b"data: ")[2].strip() for at in (1, 63, 64, 700, 1400)]
    told = [json.loads(event)["choices"][0]["delta"]["content"].strip() for event in framed]
    assert told == [words[at] for at in (1, 63, 64, 700, 1400)]
