"""Recorded agent sessions: their files, and their replay as graphs of calls and waits."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.errors import SuiteError
from benchgate.load.agent_sessions import _graph, _Timed, load_sessions_file
from benchgate.load.material import read_inputs
from benchgate.load.results import StageResult
from benchgate.load.workers import run_stage
from benchgate.model.arrivals import TracedRequest
from benchgate.model.request_metrics import session_e2e_s, session_succeeded
from benchgate.plan.model import PlannedRequest, PlannedStage, RecordedRequest
from benchgate.plan.schedule import Plan, make_plan
from benchgate.suite.schema import Suite
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response
from tests.shells.load_helpers import limits, target_at

WAIT_S = 0.03
WAIT_NS = 30_000_000


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def diamond(name: str) -> dict[str, object]:
    """Plan, two sub-agents side by side, and a join that repeats both answers."""
    slots = [{"role": "assistant", "answer_of": branch} for branch in ("left", "right")]
    return {
        "id": name,
        "calls": [
            {"id": "plan", "messages": [user(f"{name} plan")], "output_tokens": 2},
            {"id": "left", "messages": [user(f"{name} left")], "after": ["plan"], "wait_s": WAIT_S},
            {"id": "right", "messages": [user(f"{name} right")], "after": ["plan"]},
            {
                "id": "join",
                "messages": [user("a"), slots[0], slots[1], user(f"{name} join")],
                "after": ["left", "right"],
            },
        ],
    }


def written(folder: Path, *rows: object) -> Path:
    path = folder / "agents.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def suite(*, requests: int, **arrival: object) -> Suite:
    return Suite.model_validate(
        {
            "suite": "agents",
            "deployments": {"a": {"url": "http://a:1", "model": "m", "engine": "vllm"}},
            "baseline": "a",
            "candidate": "a",
            "load": {
                "workload": {"sessions": "agents.jsonl", "output": "4 tokens"},
                "sweep": [{"stage": "s", "requests": requests, **(arrival or {"concurrency": 1})}],
                "blocks": 2,
                "warmup": 0,
            },
            "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
        }
    )


def planned(folder: Path, *, requests: int, **arrival: object) -> Plan:
    read = suite(requests=requests, **arrival)
    traces, material = read_inputs(read, folder, {})
    return make_plan(read, traces=traces, material=material)


def replay(url: str, stage: PlannedStage) -> StageResult:
    return run_stage(target_at(url), stage, limits=limits())


def test_call_waits_for_all_that_it_depends_on_and_its_tools(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"), diamond("b"))
    plan = planned(tmp_path, requests=4)
    with ScriptedServer(answering(lambda received: f"to {received.prompt}", after_s=0.02)) as server:
        columns = replay(server.url, plan.blocks[0].stages[0]).requests
        last = [request.body or {} for request in server.requests][-1]["messages"]
    assert columns.error == (None,) * 4
    opening, left, right, join = range(4)
    assert columns.intended_ns[right] == columns.end_ns[opening] or columns.intended_ns[right] > columns.end_ns[opening]
    assert columns.intended_ns[left] >= columns.end_ns[opening] + WAIT_NS
    assert columns.sent_ns[right] < columns.sent_ns[left]
    assert columns.intended_ns[join] >= max(columns.end_ns[left], columns.end_ns[right])
    name = last[-1]["content"].split()[0][-1]
    assert [message["content"] for message in last[1:3]] == [f"to {name} left", f"to {name} right"]
    assert columns.session.tolist() == [0, 0, 0, 0]
    assert session_succeeded(columns).tolist() == [True]
    assert session_e2e_s(columns)[0] == (columns.end_ns[join] - columns.intended_ns[opening]) * 1e-9


def test_failed_call_fails_its_session_and_ends_what_depends_on_it(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"), diamond("b"))

    def respond(received: Received) -> Iterator[Step]:
        if received.prompt == "a left":
            yield json_response({"error": {"message": "no memory"}}, status=500)
        else:
            yield from answering(lambda _: "x y")(received)

    plan = planned(tmp_path, requests=8)
    stage = plan.blocks[0].stages[0]
    with ScriptedServer(respond) as server:
        columns = replay(server.url, stage).requests
        assert "a join" not in [received.prompt for received in server.requests]
    failing = 0 if "a plan" in str(stage.requests[0].ask.content) else 4
    errors = [columns.error[row] for row in range(failing, failing + 4)]
    assert errors == [None, "http_5xx", None, "http_5xx"]  # the other branch was answered
    assert columns.sent_ns[failing + 3] == -1
    assert session_succeeded(columns).tolist() == [failing != 0, failing == 0]
    assert np.isinf(session_e2e_s(columns)).tolist() == [failing == 0, failing != 0]


@pytest.mark.parametrize(("count", "apart"), [(60, True), (22, False)])
def test_ramp_sends_sessions_that_no_block_measures_if_there_are_any(tmp_path: Path, count: int, apart: bool) -> None:
    """Two slots and 10 sessions a block, the warm-up 2 of them: 22 are sent, and the ramp repeats 8."""
    written(tmp_path, *(diamond(f"s{number}") for number in range(count)))
    read = suite(requests=40, concurrency=2)
    assert read.load is not None
    read = read.model_copy(update={"load": read.load.model_copy(update={"warmup": "auto"})})
    traces, material = read_inputs(read, tmp_path, {})
    plan = make_plan(read, traces=traces, material=material)

    def names(requests: Iterable[PlannedRequest]) -> set[str]:
        return {name for request in requests for name in re.findall(r"\bs\d+", str(request.ask.content))}

    groups = [plan.blocks[block].stages[0].classes[0] for block in (0, 1)]
    ramps = [names(group.ramp.pool()) for group in groups if group.ramp is not None]
    measured = [names(group.requests) for group in groups]
    assert [len(one) for one in measured] == [10, 10]
    assert not measured[0] & measured[1]
    assert not ramps[0] & measured[0] and not ramps[1] & measured[1]
    assert (not (ramps[0] | ramps[1]) & (measured[0] | measured[1])) is apart
    if apart:
        assert [len(one) for one in ramps] == [8, 8] and not ramps[0] & ramps[1]
    warm = plan.warmup[0].classes[0].requests
    assert len(names(warm)) == 2 and not names(warm) & (measured[0] | measured[1])


def test_open_loop_starts_sessions_at_its_rate_and_both_arms_get_the_same(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"), diamond("b"), diamond("c"))
    plan, again = (planned(tmp_path, requests=8, rate="20/s") for _ in range(2))
    assert plan.sha256 == again.sha256
    requests = plan.blocks[0].stages[0].requests
    assert [request.offset_ns is not None for request in requests] == [True, False, False, False] * 2
    first, second = ({str(r.ask.content) for r in block.stages[0].requests} for block in plan.blocks)
    assert len(first & second) == 4  # of three sessions the second block sends the third one and one again


def test_last_session_of_a_block_is_cut_to_the_planned_requests(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"), diamond("b"))
    turns = [request.turn for request in planned(tmp_path, requests=6).blocks[0].stages[0].requests]
    assert [(turn.session, turn.turn, turn.last) for turn in turns if turn is not None][3:] == [
        (0, 3, True), (1, 0, False), (1, 1, True),
    ]  # fmt: skip


def test_recorded_calls_are_sent_at_any_concurrency(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"))
    sent = planned(tmp_path, requests=4, concurrency=10_001).blocks[0].stages[0].only.requests
    assert [request.ask.recorded for request in sent] == [True] * 4


def test_more_requests_than_a_file_has_calls_are_refused(tmp_path: Path) -> None:
    written(tmp_path, diamond("a"))
    with pytest.raises(SuiteError, match=r"the sessions have 4 calls and .* 5 requests a block"):
        planned(tmp_path, requests=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"messages": [user("x")], "afer": []}, "unknown key; did you mean `after`"),
        ({"messages": [user("x")], "after": ["pln"]}, "found 'pln', which is no earlier call .* did you mean 'plan'"),
        ({"messages": [user("x")], "wait_s": -1}, "found -1; expected seconds"),
        (
            {"messages": [user("x"), {"role": "assistant", "answer_of": "plan"}], "after": []},
            "repeats an answer that it does not wait for",
        ),
        ({"messages": []}, "is no list of messages"),
    ],
)
def test_faulty_session_is_refused_with_its_line(tmp_path: Path, call: dict[str, object], message: str) -> None:
    path = written(tmp_path, diamond("a"), {"calls": [{"id": "plan", "messages": [user("p")]}, call]})
    with pytest.raises(SuiteError, match=message) as caught:
        load_sessions_file(path)
    assert caught.value.problems[0].line == 2


def span(name: str, parent: str, start_ms: int, end_ms: int, **attributes: object) -> dict[str, object]:
    values = [
        {
            "key": f"gen_ai.{key.replace('__', '.')}",
            "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v},
        }
        for key, v in attributes.items()
    ]
    return {
        "traceId": "t1", "spanId": name, "parentSpanId": parent, "name": name, "attributes": values,
        "startTimeUnixNano": str(10**18 + start_ms * 10**6), "endTimeUnixNano": str(10**18 + end_ms * 10**6),
    }  # fmt: skip


def chat(name: str, parent: str, start_ms: int, end_ms: int, *messages: object) -> dict[str, object]:
    texts = json.dumps(messages or [{"role": "user", "parts": [{"type": "text", "content": name}]}])
    more: dict[str, object] = {"usage__output_tokens": 7, "input__messages": texts}
    return span(name, parent, start_ms, end_ms, operation__name="chat", **more)


def otlp(*spans: object) -> dict[str, object]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_become_a_graph_in_which_sub_agents_are_independent(tmp_path: Path) -> None:
    called = [
        {"role": "user", "parts": [{"type": "text", "content": "q"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "r"}]},
    ]
    path = written(
        tmp_path,
        otlp(span("main", "", 0, 900, operation__name="invoke_agent"), chat("plan", "main", 0, 100)),
        otlp(
            span("left", "main", 100, 500, operation__name="invoke_agent"),
            span("right", "main", 100, 500, operation__name="invoke_agent"),
            chat("l1", "left", 110, 200), chat("r1", "right", 120, 150),
            chat("l2", "left", 250, 480), chat("r2", "right", 300, 470),
            chat("join", "main", 500, 800, *called),
        ),
    )  # fmt: skip
    (session,) = load_sessions_file(path)
    graph = [(call.after, round(call.wait_s * 1000)) for call in session.calls]
    assert graph == [((), 0), ((0,), 10), ((0,), 20), ((1,), 50), ((2,), 150), ((3, 4), 20)]
    assert session.calls[-1].request.output_tokens == 7
    joined = session.calls[-1].request
    assert isinstance(joined, RecordedRequest)
    assert joined.messages == (
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"endTimeUnixNano": "9" * 400},
        {"startTimeUnixNano": "-1"},
        {"attributes": [{"key": "gen_ai.usage.output_tokens", "value": {"arrayValue": 5}}]},
        {"attributes": [{"key": "gen_ai.usage.output_tokens", "value": {"kvlistValue": [5]}}]},
    ],
)
def test_spans_of_other_types_are_refused_with_their_line(tmp_path: Path, changed: dict[str, object]) -> None:
    path = written(tmp_path, otlp(chat("plan", "", 0, 1), chat("do", "", 2, 3) | changed))
    with pytest.raises(SuiteError, match=r":1: resourceSpans: is no OTLP export in JSON"):
        load_sessions_file(path)


def test_spans_without_the_content_of_messages_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, otlp(span("plan", "", 0, 1, operation__name="chat")))
    with pytest.raises(SuiteError, match="record the content of messages"):
        load_sessions_file(path)


def weka(**values: object) -> dict[str, object]:
    return {"type": "s", "model": "m", "in": 100, "out": 5, "hash_ids": [1, 2], **values}


@pytest.mark.parametrize("since_s", [0.0, 3.0], ids=["times of the sub-agent", "times of the trace"])
def test_weka_trace_becomes_a_graph_with_its_sub_agent(tmp_path: Path, since_s: float) -> None:
    inner = [weka(t=since_s + 0.0, api_time=1.0), weka(t=since_s + 2.0, api_time=1.0)]
    trace = {
        "id": "t", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
        "requests": [
            weka(t=0.0, api_time=2.0),
            {"t": 3.0, "type": "subagent", "agent_id": "a", "requests": inner},
            weka(t=4.0, api_time=1.0),
            weka(t=7.0, api_time=1.0, hash_ids=[1, 2, 3], **{"in": 150}),
        ],
    }  # fmt: skip
    (session,) = load_sessions_file(written(tmp_path, trace))
    graph = [(call.after, call.wait_s) for call in session.calls]
    assert graph == [((), 0.0), ((0,), 1.0), ((0,), 2.0), ((1,), 1.0), ((2, 3), 1.0)]
    requests = planned(tmp_path, requests=5).blocks[0].stages[0].requests
    first, last = (str(requests[at].ask.prompt).split() for at in (0, 4))
    assert (len(first), len(last)) == (100, 150)
    assert first[:64] == last[:64] and requests[4].ask.output_tokens == 5


def weka_trace(*requests: object) -> dict[str, object]:
    return {"id": "t", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}


def test_weka_call_without_the_time_of_its_answer_is_over_where_it_began(tmp_path: Path) -> None:
    trace = weka_trace(weka(t=0.0, api_time=2.0), weka(t=5.0), weka(t=9.0, api_time=None), weka(t=9.0, api_time=1.0))
    (session,) = load_sessions_file(written(tmp_path, trace))
    assert [(call.after, call.wait_s) for call in session.calls] == [((), 0.0), ((0,), 3.0), ((1,), 4.0), ((2,), 0.0)]


def test_weka_call_without_a_token_is_sent_for_one(tmp_path: Path) -> None:
    (session,) = load_sessions_file(written(tmp_path, weka_trace(weka(t=0.0, out=0))))
    assert session.calls[0].request.output_tokens == 1


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        ({"t": 3.0, "api_time": -1}, "api_time: found -1; expected a time of at least 0"),
        ({"t": None}, "t: found None; expected a time of at least 0"),
        ({"t": 3.0, "out": None}, "out: found None; expected a whole number of tokens"),
        ({"t": 3.0, "out": False}, "out: found False; expected a whole number of tokens"),
        ({"t": 3.0, "type": "x"}, "type: found 'x'; expected n, s or subagent"),
        ({"t": 90_000.0}, "the call waits 89,998 s; at most 86,400 are replayed"),
    ],
)
def test_faulty_weka_call_is_refused_with_its_number(tmp_path: Path, faulty: dict[str, object], message: str) -> None:
    agent = {"t": 1.0, "type": "subagent", "agent_id": "a", "requests": [weka(t=1.0, api_time=1.0), weka(**faulty)]}
    path = written(tmp_path, weka_trace(weka(t=0.0, api_time=1.0), agent))
    with pytest.raises(SuiteError) as caught:
        load_sessions_file(path)
    (problem,) = caught.value.problems
    shown = f"{problem.path}: {problem.message}"
    assert shown.startswith("requests[1].requests[1]") and message in shown
    assert problem.line == 1


AGENTS = st.sampled_from([(), ("x",), ("y",), ("x", "p"), ("x", "q"), ("x", "p", "r"), ("y", "p")])
TIMES = st.tuples(st.integers(0, 6), st.sampled_from([0, 0, 1, 2]))


def dependencies(calls: Sequence[_Timed]) -> list[tuple[int, ...]]:
    """Return what each call depends on, by definition: all that precede it, except those that precede one of them."""
    inside: dict[tuple[str, ...], list[_Timed]] = {}  # the calls of each agent, with those of its sub-agents
    for call in calls:
        for depth in range(len(call.agents) + 1):
            inside.setdefault(call.agents[:depth], []).append(call)

    def precedes(first: int, second: int) -> bool:
        one, two = calls[first], calls[second]
        depth = min(len(one.agents), len(two.agents))
        if first >= second or one.agents[:depth] != two.agents[:depth]:
            return False
        end_ns = one.end_ns if len(one.agents) == depth else max(c.end_ns for c in inside[one.agents[: depth + 1]])
        begin_ns = min(c.start_ns for c in inside[two.agents[: depth + 1]]) if len(two.agents) > depth else two.start_ns
        return end_ns <= begin_ns

    graph = []
    for number in range(len(calls)):
        earlier = [one for one in range(number) if precedes(one, number)]
        graph.append(tuple(one for one in earlier if not any(precedes(one, other) for other in earlier)))
    return graph


@given(st.lists(st.tuples(TIMES, AGENTS), min_size=1, max_size=12))
@settings(max_examples=300)
def test_graph_is_that_of_the_plain_definition(drawn: list[tuple[tuple[int, int], tuple[str, ...]]]) -> None:
    request = TracedRequest(0, 1, 1)
    calls = [_Timed("", start, start + took, agents, request, 1) for (start, took), agents in drawn]
    in_order = sorted(calls, key=lambda call: (call.start_ns, call.end_ns))
    assert [call.after for call in _graph(calls).calls] == dependencies(in_order)


def test_thousands_of_calls_in_a_row_are_read_at_once() -> None:
    request = TracedRequest(0, 1, 1)
    calls = [_Timed("", 2 * number, 2 * number + 1, (), request, 1) for number in range(4_000)]
    began_s = time.process_time()
    session = _graph(calls)
    assert time.process_time() - began_s < 10  # every pair compared, it would be an hour
    assert [call.after for call in session.calls] == [(), *((number,) for number in range(3_999))]


def test_mooncake_rows_of_one_session_follow_each_other(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "input_length": 60, "output_length": 4, "hash_ids": [1]},
        {"session_id": "b", "input_length": 60, "output_length": 4, "hash_ids": [2]},
        {"session_id": "a", "input_length": 90, "output_length": 4, "hash_ids": [1], "delay": 250},
    ]
    first, second = load_sessions_file(written(tmp_path, *rows))
    assert [(call.after, call.wait_s) for call in first.calls] == [((), 0.0), ((0,), 0.25)]
    assert len(second.calls) == 1
