"""Every fault of the practice server, as a client sees it on the wire."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from benchgate.model.text_anomalies import find_anomalies
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import FAULTS, SHAPES, parse_fault
from tests.fakes.waiting import eventually
from tests.shells.sim_client import COMPLETIONS, Raw, asking, request_bytes, talk

SILENCE_S = 0.4  # long against the 2 ms between two tokens
DONE = "[DONE]"
WORDS = 8


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    with serve_sim(sim_settings(ttft_s=0.004, itl_s=0.002)) as served:
        yield served


def meet(sim: Sim, fault: str, *, stream: bool = True, until_silent_s: float = 10) -> Raw:
    return talk(
        sim.port, request_bytes(body=asking(WORDS, stream=stream), headers={"x-sim-fault": fault}),
        until_silent_s=until_silent_s,
    )  # fmt: skip


def whole_answer(raw: Raw) -> bool:
    return raw.status == 200 and len(raw.text.split()) == WORDS and raw.finish == "length"


def counted(raw: Raw, tokens: int = WORDS) -> bool:
    """Whether the answer ends well, and its usage counts so many tokens."""
    ends_well = raw.status == 200 and raw.finish == "length" and raw.events[-1] == DONE
    return ends_well and [usage["completion_tokens"] for usage in usages(raw)] == [tokens]


def deltas(raw: Raw) -> list[dict[str, Any]]:
    """The deltas with output, each with the index of its choice."""
    choices = [choice for event in raw.events if isinstance(event, dict) for choice in event["choices"]]
    return [choice["delta"] | {"index": choice["index"]} for choice in choices if choice["delta"]][1:]


def usages(raw: Raw) -> list[dict[str, int]]:
    return [event["usage"] for event in raw.events if isinstance(event, dict) and event.get("usage")]


STREAMED: dict[str, Callable[[Raw], bool]] = {
    "error-after:2": lambda r: (
        r.status == 200 and len(r.text.split()) == 2 and "error" in r.events[-2] and r.events[-1] == DONE
    ),
    "error-first": lambda r: r.status == 200 and list(r.events[0]) == ["error"] and r.events[1:] == [DONE],
    "cut-after:2": lambda r: (
        r.data.endswith(b"0\r\n\r\n") and len(r.text.split()) == 2 and r.finish is None and DONE not in r.events
    ),
    "reset-after:2": lambda r: r.ended == "reset" and len(r.text.split()) == 2 and not r.data.endswith(b"\n\r\n"),
    "abort-after:2": lambda r: r.finish == "abort" and len(r.text.split()) == 2 and r.events[-1] == DONE,
    "empty-answer": lambda r: r.text == "" and r.finish == "stop" and r.events[-1] == DONE and len(r.events) == 4,
    "empty-body": lambda r: r.status == 200 and r.body == b"" and r.data.endswith(b"0\r\n\r\n"),
    "http-error": lambda r: r.status == 500 and "PracticeError" in r.body.decode(),
    "http-error:503:text": lambda r: r.status == 503 and "text/plain" in r.head and b"{" not in r.body,
    "rate-limited:3s": lambda r: r.status == 429 and "retry-after: 3" in r.head,
    "no-usage": lambda r: whole_answer(r) and usages(r) == [] and r.events[-1] == DONE,
    "zero-usage": lambda r: whole_answer(r) and set(usages(r)[0].values()) == {0},
    "late-usage:20ms": lambda r: whole_answer(r) and r.events[-2] == DONE and len(usages(r)) == 1,
    "no-done": lambda r: whole_answer(r) and DONE not in r.events and len(usages(r)) == 1,
    "multi-token:3": lambda r: whole_answer(r) and len(r.events[1]["choices"][0]["delta"]["content"].split()) == 3,
    "merged:3": lambda r: whole_answer(r) and r.data.count(b"data: ") >= 2 * r.data.count(b"\r\ndata: ") - 4,
    "usage-times:1.5": lambda r: len(r.text.split()) == WORDS and counted(r, 12),
    "other-model:gpt": lambda r: (
        whole_answer(r) and {event["model"] for event in r.events if isinstance(event, dict)} == {"gpt"}
    ),
    "half-text": lambda r: len(r.text.split()) == WORDS / 2 and counted(r) and len(deltas(r)) == WORDS / 2,
    "half-text+multi-token:4": lambda r: len(r.text.split()) == WORDS / 2 and counted(r) and len(deltas(r)) == 2,
    "reasoning-only": lambda r: (
        r.text == "" and counted(r) and [list(d) for d in deltas(r)] == [["reasoning_content", "index"]] * WORDS
    ),
    "blank-text": lambda r: r.text == " \n" * 4 and counted(r) and len(deltas(r)) == WORDS,
    "zero-width-text": lambda r: r.text == "\u200b" * WORDS and counted(r),
    "repeated-text": lambda r: r.text == "!" * WORDS and counted(r),
    "repeated-text:ab": lambda r: r.text == "ab" * WORDS and counted(r),
    "wrong-answer": lambda r: whole_answer(r) and counted(r) and r.events[-1] == DONE,
    "other-script": lambda r: find_anomalies(r.text).script == "Cyrillic" and counted(r),
    "unasked-call": lambda r: (
        r.text == "" and r.finish == "tool_calls" and all("tool_calls" in delta for delta in deltas(r))
        and list(json.loads("".join(d["tool_calls"][0]["function"]["arguments"] for d in deltas(r)))) == ["query"]
    ),
    "second-choice": lambda r: counted(r) and [delta["index"] for delta in deltas(r)] == [0, 0, 0, 0, 1, 1, 1, 1],
    "second-choice+multi-token:3": lambda r: (
        counted(r) and [(d["index"], len(d["content"].split())) for d in deltas(r)] == [(0, 3), (0, 1), (1, 2), (1, 2)]
    ),
    "fast-when-seen": whole_answer,
    "no-done+multi-token:2": lambda r: whole_answer(r) and DONE not in r.events and len(r.events) == 6,
    "stall-after:2:400ms": lambda r: whole_answer(r) and len(before_silence(r).text.split()) == 2,
}  # fmt: skip

SILENT: dict[str, Callable[[Raw], bool]] = {
    "hang-after:2": lambda r: len(r.text.split()) == 2 and DONE not in r.events,
    "hang-after:0": lambda r: r.data == b"",
    "no-answer": lambda r: r.data == b"",
}

DOCUMENTS: dict[str, Callable[[Raw], bool]] = {
    "error-after:2": lambda r: r.status == 500 and "error" in json.loads(r.body),
    "cut-after": lambda r: r.status == 200 and not valid_json(r.body),
    "reset-after": lambda r: r.ended == "reset" and not valid_json(r.body),
    "abort-after": lambda r: json.loads(r.body)["choices"][0]["finish_reason"] == "abort",
    "empty-answer": lambda r: json.loads(r.body)["choices"][0]["message"]["content"] == "",
    "empty-body": lambda r: r.status == 200 and r.body == b"",
    "no-usage": lambda r: json.loads(r.body)["usage"] is None,
    "zero-usage": lambda r: set(json.loads(r.body)["usage"].values()) == {0},
    "usage-times": lambda r: json.loads(r.body)["usage"]["completion_tokens"] == 9,
    "other-model": lambda r: json.loads(r.body)["model"] == "other",
    "half-text": lambda r: len(message(r)["content"].split()) == WORDS / 2,
    "reasoning-only": lambda r: message(r)["content"] is None and len(message(r)["reasoning_content"].split()) == WORDS,
    "blank-text": lambda r: message(r)["content"].split() == [],
    "zero-width-text": lambda r: message(r)["content"] == "\u200b" * WORDS,
    "repeated-text": lambda r: message(r)["content"] == "!" * WORDS,
    "unasked-call": lambda r: message(r)["content"] is None and len(message(r)["tool_calls"]) == 1,
    "second-choice": lambda r: [len(c["message"]["content"].split()) for c in json.loads(r.body)["choices"]] == [4, 4],
    "stall-after:2:200ms": lambda r: valid_json(r.body),
}


def message(raw: Raw) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw.body)["choices"][0]["message"]
    return found


def valid_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def valid_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def before_silence(raw: Raw) -> Raw:
    """What came before the longest pause."""
    gaps = [late - early for (early, _), (late, _) in pairwise(raw.reads)]
    return Raw(raw.reads[: gaps.index(max(gaps)) + 1], raw.ended)


@pytest.mark.parametrize("fault", STREAMED)
def test_streamed_fault_is_on_the_wire(sim: Sim, fault: str) -> None:
    raw = meet(sim, fault)
    assert STREAMED[fault](raw), raw


def test_wrong_answer_differs_in_its_last_word_alone(sim: Sim) -> None:
    right, wrong = (meet(sim, fault).text.split() for fault in ("no-done", "wrong-answer"))
    assert right[:-1] == wrong[:-1]
    assert right[-1] != wrong[-1]


@pytest.mark.parametrize("fault", SILENT)
def test_silent_fault_stays_silent(sim: Sim, fault: str) -> None:
    raw = meet(sim, fault, until_silent_s=SILENCE_S)
    assert raw.ended == "open"
    assert SILENT[fault](raw), raw


@pytest.mark.parametrize("fault", DOCUMENTS)
def test_fault_of_a_document_is_on_the_wire(sim: Sim, fault: str) -> None:
    raw = meet(sim, fault, stream=False)
    assert DOCUMENTS[fault](raw), raw


@pytest.mark.parametrize(
    ("fault", "tokens"),
    [
        *((f"{ending}-after:3", 3) for ending in ("error", "cut", "reset", "abort", "hang", "stall")),
        *((whole, 0) for whole in ("error-first", "empty-answer", "empty-body")),
        ("half-text", WORDS / 2),
    ],
)
def test_truth_of_a_fault_is_the_same_for_a_stream_and_a_whole_answer(sim: Sim, fault: str, tokens: float) -> None:
    found = list[dict[str, Any]]()
    for stream in (True, False):
        sim.reset()
        meet(sim, fault, stream=stream, until_silent_s=SILENCE_S / 2)
        assert eventually(lambda: sim.truth()["in_flight"] == 0)
        truth = sim.truth(with_requests=True)
        counts = {name: truth[name] for name in ("finished", "failed", "aborted", "output_tokens", "faults")}
        found.append(counts | {"rows": [(row["outcome"], row["output_tokens"]) for row in truth["rows"]]})
    assert found[0] == found[1]
    assert found[0]["output_tokens"] == tokens


def test_aborted_document_holds_and_counts_what_came_before(sim: Sim) -> None:
    document = json.loads(meet(sim, "abort-after:3", stream=False).body)
    assert len(document["choices"][0]["message"]["content"].split()) == 3
    assert document["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["stall-after:0:300ms", "stall-after:3:300ms"])
def test_answer_whose_tokens_take_no_time_stalls_all_the_same(fault: str, stream: bool) -> None:
    with serve_sim(sim_settings(ttft_s=0.004, itl_s=0)) as served:
        raw = meet(served, fault, stream=stream)
        truth = served.truth()
    words = raw.text if stream else message(raw)["content"]
    assert len(words.split()) == WORDS
    assert (truth["finished"], truth["faults"]) == (1, {fault: 1})
    assert truth["e2e_s"]["max"] >= 0.3


@pytest.mark.parametrize("stream", [True, False])
def test_pause_begins_with_the_token_before_it(stream: bool) -> None:
    with serve_sim(sim_settings(ttft_s=0.3, itl_s=0.002)) as served:
        meet(served, "stall-after:3:300ms", stream=stream)
        assert served.truth()["e2e_s"]["max"] >= 0.6


def test_endless_stream_goes_on_past_its_max_tokens(sim: Sim) -> None:
    request = request_bytes(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "stream": True}, {"x-sim-fault": "endless"})
    with socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(request)
        seen = b""
        while seen.count(b"data: ") < 20:
            seen += sock.recv(65_536)
    assert b'"finish_reason":"length"' not in seen


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("fault", "asked", "key", "text"),
    [
        ("endless+repeated-text", {}, "content", "!"),
        ("reasoning-only+endless", {}, "reasoning_content", None),
        ("endless", {"response_format": SCHEMA}, "content", None),
        ("endless", {"tools": [TOOL]}, "tool_calls", None),
        ("endless", {"prompt": "say: a b"}, "content", None),
    ],
)
def test_endless_answer_has_a_text_in_every_token(
    fault: str, asked: dict[str, Any], key: str, text: str | None
) -> None:
    request = request_bytes(body=asking(2, **asked), headers={"x-sim-fault": fault})
    settings = sim_settings(ttft_s=0, itl_s=0.002, says_ratio=1)
    with serve_sim(settings) as sim, socket.create_connection(("127.0.0.1", sim.port), timeout=10) as sock:
        sock.sendall(request)
        seen = b""
        while seen.count(b"data: ") < 60:
            seen += sock.recv(65_536)
    whole = seen[: seen.rindex(b"\r\n") + 2]
    outputs = [delta[key] for delta in deltas(Raw([(0, whole)], "open"))]
    texts = [out[0]["function"]["arguments"] if key == "tool_calls" else out for out in outputs]
    assert len(texts) > 50
    assert all(texts) if text is None else set(texts) == {text}


@pytest.mark.parametrize("shape", SHAPES)
def test_error_body_has_each_of_the_five_shapes(sim: Sim, shape: str) -> None:
    raw = meet(sim, f"http-error:422:{shape}")
    document = json.loads(raw.body) if shape != "text" else {}
    found = document.get("error", document.get("detail"))
    expected = {"object": dict, "string": str, "detail": str, "detail-list": list, "text": type(None)}[shape]
    assert (raw.status, type(found)) == (422, expected)


def test_every_fault_there_is_has_a_test_here() -> None:
    tested = {part.partition(":")[0] for spec in (*STREAMED, *SILENT, *DOCUMENTS) for part in spec.split("+")}
    assert {kind.name for kind in FAULTS} - tested == {"endless"}


def test_answer_shorter_than_the_fault_waits_for_still_meets_it(sim: Sim) -> None:
    raw = meet(sim, "error-after:100")
    assert len(raw.text.split()) == WORDS
    assert "error" in raw.events[-2]
    assert raw.finish is None


@pytest.mark.slow
def test_shares_are_met_in_number_and_follow_from_the_seed() -> None:
    shares = ("http-error:500:text@30%", "rate-limited@20%")
    seen: list[list[str]] = []
    failed = limited = 0
    for _ in range(2):
        with serve_sim(sim_settings(ttft_s=0, itl_s=0, faults=shares, seed=5)) as sim:
            requests = [request_bytes(body=asking(1, stream=False), keep=True) for _ in range(200)]
            raw = talk(sim.port, *requests, request_bytes("/health"))
            statuses = re.findall(r"HTTP/1.1 (\d+)", raw.data.decode())[:-1]
            failed, limited = statuses.count("500"), statuses.count("429")
            truth = sim.truth()
        assert truth["faults"] == {"http-error:500:text": failed, "rate-limited": limited}
        assert (truth["finished"], truth["failed"]) == (200 - failed - limited, failed + limited)
        seen.append(statuses)
    assert seen[0] == seen[1]
    assert 40 <= failed <= 80
    assert 25 <= limited <= 55


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("eror-after", "did you mean error-after"),
        ("xyz", "--list-faults shows them all"),
        ("error-after:x", "not a whole number"),
        ("error-after:1:2", "too many values"),
        ("http-error:200", "no status of an error"),
        ("http-error:500:xml", "none of object"),
        ("stall-after:3:5", "not a duration"),
        ("usage-times:0", "no factor"),
        ("usage-times:x", "no factor"),
        ("other-model:", "the text is empty"),
        ("blank-text:few", "not a whole number"),
        ("no-done@5", "not a percentage"),
        ("no-done@150%", "more than the whole"),
        ("no-done+", "there is no fault ''"),
    ],
)
def test_fault_that_cannot_be_read_is_named_with_what_to_write(spec: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_fault(spec)


def test_request_that_asks_for_an_unknown_fault_is_told_so(sim: Sim) -> None:
    raw = meet(sim, "eror-after")
    assert raw.status == 400
    assert "did you mean error-after" in raw.body.decode()
