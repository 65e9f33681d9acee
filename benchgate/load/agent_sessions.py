"""Files of recorded agent sessions, as JSON Lines.

A session is a graph of model calls. A line is a session of our own (`calls`), an OTLP export of OpenTelemetry GenAI
spans (`resourceSpans`), a Weka or AgentX trace (`requests`), or a row of a Mooncake trace with a `session_id`. The kind
of a line is known by its keys; one file may hold several.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.load.prompt_sets import KEPT, LIMITS, read_limit, read_message
from benchgate.load.traces import MOST_PROBLEMS, MOST_TOKENS, RowError, number_of
from benchgate.model.arrivals import TracedRequest
from benchgate.plan.model import RecordedCall, RecordedRequest, RecordedSession
from benchgate.suite.formats import parse_object
from benchgate.system import RECORDED_BYTES, read_text_file

_CALL_KEYS = ("id", "messages", "after", "wait_s", "output_tokens", *LIMITS, *KEPT)
_ANSWER_OF = "answer_of"
_LONGEST_WAIT_S = 86_400.0


def load_sessions_file(path: Path) -> tuple[RecordedSession, ...]:
    """Read every session of a file. Raises SuiteError."""
    source = str(path)
    try:
        text = read_text_file(path, RECORDED_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the sessions cannot be read ({error}); `sessions` names a JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    sessions: list[RecordedSession] = []
    spans: list[_Span] = []
    rows: dict[str, RecordedSession] = {}  # of Mooncake traces, by session
    problems: list[Problem] = []

    def read(line: int, values: Mapping[str, object]) -> None:
        if "calls" in values:
            sessions.append(_own_session(values, line))
        elif "resourceSpans" in values:
            spans.extend(_spans(values, line))
        elif "requests" in values:
            sessions.append(_weka_session(values, line))
        elif "session_id" in values:
            name = str(values["session_id"])
            rows[name] = _with_mooncake_row(rows.get(name), values, line)
        else:
            found = ", ".join(f"`{key}`" for key in list(values)[:8]) or "an empty object"
            raise RowError(
                line, None, "", f"found {found}; expected `calls`, `resourceSpans`, `requests` or `session_id`"
            )

    for line, row in enumerate(text.split("\n"), start=1):
        if not row.strip():
            continue
        try:
            read(line, parse_object(row))
        except RowError as error:
            problems.append(error.problem(source))
        except ValueError as error:
            problems.append(RowError(line, None, "", str(error)).problem(source))
        if len(problems) == MOST_PROBLEMS:
            break
    if not problems:
        try:
            sessions += [*rows.values(), *_sessions_of_spans(spans)]
        except RowError as error:
            problems.append(error.problem(source))
    if not sessions and not problems:
        problems.append(Problem(source, None, None, "", "the file has no sessions; write one JSON object for each"))
    if problems:
        raise SuiteError(problems)
    return tuple(sessions)


def _own_session(values: Mapping[str, object], line: int) -> RecordedSession:
    _require_known(values, ("id", "calls"), line)
    found = values["calls"]
    if not isinstance(found, list) or not found or not all(isinstance(call, dict) for call in found):
        raise RowError(line, None, "calls", "is no list of calls; write at least one object")
    numbers: dict[str, int] = {}
    calls: list[RecordedCall] = []
    ancestors: list[set[int]] = []
    for number, call in enumerate(found):
        _require_known(call, _CALL_KEYS, line)
        name = call.get("id", str(number + 1))
        if not isinstance(name, str) or name in numbers:
            raise RowError(line, None, "id", f"found {name!r} of call {number + 1}; expected a text that no other has")
        after = _after(call, numbers, number, line)
        ancestors.append(set(after).union(*(ancestors[parent] for parent in after)))
        messages, slots = _messages(call.get("messages"), numbers, line)
        for slot in slots:
            if slot not in ancestors[number]:
                what = f"call {name!r} repeats an answer that it does not wait for; name its call in `after`"
                raise RowError(line, None, _ANSWER_OF, what)
        wait_s = number_of(call.get("wait_s", 0))
        if wait_s is None or not 0 <= wait_s <= _LONGEST_WAIT_S:
            raise RowError(line, None, "wait_s", f"found {call['wait_s']!r}; expected seconds, 0 to 86,400")
        fields = {key: call[key] for key in KEPT if call.get(key) is not None}
        limit = read_limit(call, ("output_tokens", *LIMITS), line)
        numbers[name] = number
        calls.append(RecordedCall(RecordedRequest(messages, limit, fields, line), after, wait_s, slots))
    return RecordedSession(tuple(calls), line)


def _require_known(values: Mapping[str, object], known: Sequence[str], line: int) -> None:
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"expected {', '.join(known)}"
            raise RowError(line, None, key, f"unknown key; {hint}")


def _after(call: Mapping[str, object], numbers: Mapping[str, int], number: int, line: int) -> tuple[int, ...]:
    """Return the calls that one waits for: the one before it unless it names others."""
    names = call.get("after")
    if names is None:
        return (number - 1,) if number else ()
    if not isinstance(names, list):
        raise RowError(line, None, "after", f"found {names!r}; expected a list of ids of calls")
    return tuple(_known_call(name, numbers, "after", line) for name in names)


def _known_call(name: object, numbers: Mapping[str, int], key: str, line: int) -> int:
    if not isinstance(name, str) or name not in numbers:
        near = get_close_matches(str(name), numbers, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name a call that stands before it"
        raise RowError(line, None, key, f"found {name!r}, which is no earlier call of the session; {hint}")
    return numbers[name]


def _messages(
    found: object, numbers: Mapping[str, int], line: int
) -> tuple[tuple[Mapping[str, object], ...], tuple[int, ...]]:
    """Return the messages of a call, and the calls whose answers fill its slots."""
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "messages", "is no list of messages; write at least one")
    messages: list[Mapping[str, object]] = []
    slots: list[int] = []
    for message in found:
        if isinstance(message, dict) and _ANSWER_OF in message:
            if set(message) != {"role", _ANSWER_OF} or message["role"] != "assistant":
                what = "stands in a message of the assistant that has nothing else but its role"
                raise RowError(line, None, _ANSWER_OF, what)
            slots.append(_known_call(message[_ANSWER_OF], numbers, _ANSWER_OF, line))
            messages.append({"role": "assistant", "content": None})
            continue
        whole = read_message(message, line)
        # Only a slot has no content: servers take an empty one beside tool calls.
        messages.append(whole if whole.get("content") is not None else {**whole, "content": ""})
    if not any(message["role"] == "user" for message in messages):
        raise RowError(line, None, "messages", "has no message of a user to be answered")
    return tuple(messages), tuple(slots)


_NS = 1e-9
_OPERATIONS = ("chat", "generate_content", "text_completion")  # calls of a model, by `gen_ai.operation.name`
_AGENTS = ("invoke_agent", "create_agent", "invoke_workflow")


@dataclass(frozen=True, slots=True)
class _Span:
    """Span of an OTLP export."""

    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, object]
    line: int

    @property
    def operation(self) -> object:
        return self.attributes.get("gen_ai.operation.name")


def _spans(values: Mapping[str, object], line: int) -> list[_Span]:
    """Return all spans of one export request."""
    try:
        return [
            _span(span, line)
            for resource in _list_of(values["resourceSpans"])
            for scope in _list_of(resource.get("scopeSpans", []))
            for span in _list_of(scope.get("spans", []))
        ]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        what = (
            f"is no OTLP export in JSON ({type(error).__name__}: {error}); write one ExportTraceServiceRequest a line"
        )
        raise RowError(line, None, "resourceSpans", what) from None


def _list_of(found: object) -> list[dict[str, object]]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise TypeError("expected a list of objects")
    return found


def _span(span: Mapping[str, object], line: int) -> _Span:
    attributes = {str(one["key"]): _value(one["value"]) for one in _list_of(span.get("attributes", []))}
    times = [int(str(span[f"{edge}TimeUnixNano"])) for edge in ("start", "end")]
    if times[1] < times[0]:
        raise ValueError("a span ends before it starts")
    if times[0] < 0 or times[1] >= 2**64:
        raise ValueError("an instant of a span is beyond 64 bits")
    return _Span(
        str(span["traceId"]),
        str(span["spanId"]),
        str(span.get("parentSpanId") or ""),
        times[0],
        times[1],
        attributes,
        line,
    )


def _value(found: object) -> object:
    """Return an OTLP AnyValue as plain JSON."""
    if not isinstance(found, dict) or len(found) > 1:
        raise TypeError("an attribute has no value of one type")
    for kind, value in found.items():
        if kind == "arrayValue":
            return [_value(one) for one in value.get("values", [])]
        if kind == "kvlistValue":
            return {one["key"]: _value(one["value"]) for one in value.get("values", [])}
        return int(value) if kind == "intValue" else value
    return None


def _sessions_of_spans(spans: Sequence[_Span]) -> list[RecordedSession]:
    """Make a session of the model calls of each conversation, or of each trace that names none."""
    known = {(span.trace, span.span): span for span in spans}
    groups: dict[object, list[_Span]] = {}
    for span in spans:
        if span.operation in _OPERATIONS:
            key = span.attributes.get("gen_ai.conversation.id") or span.trace
            groups.setdefault(key, []).append(span)
    return [
        _graph(
            [
                _Timed(f"span {one.span}", one.start_ns, one.end_ns, _agents_of(one, known), _request(one), one.line)
                for one in calls
            ]
        )
        for calls in groups.values()
    ]


@dataclass(frozen=True, slots=True)
class _Timed:
    """Recorded call with its times and the agents around it, outermost first. `place` is for messages."""

    place: str
    start_ns: int
    end_ns: int
    agents: tuple[str, ...]
    request: RecordedRequest | TracedRequest
    line: int


def _graph(timed: Sequence[_Timed], block_tokens: int | None = None) -> RecordedSession:
    """Return the graph of calls: one depends on those that were over before it began, in its own or a related agent.

    It names the latest of them, and not those that these depend on themselves.

    Agents are related if one runs inside the other, so sub-agents side by side stay independent of each other. Beside
    calls of the outer agent, an inner one counts as a whole: the outer agent waits for its result.
    """
    calls = sorted(timed, key=lambda call: (call.start_ns, call.end_ns))
    spans: dict[tuple[str, ...], tuple[int, int]] = {}  # start and end of the calls of each agent
    for call in calls:
        for depth in range(len(call.agents) + 1):
            first_ns, last_ns = spans.get(call.agents[:depth], (call.start_ns, call.end_ns))
            spans[call.agents[:depth]] = min(first_ns, call.start_ns), max(last_ns, call.end_ns)

    def precedes(first: int, second: int) -> bool:
        one, two = calls[first], calls[second]
        depth = min(len(one.agents), len(two.agents))
        if first >= second or one.agents[:depth] != two.agents[:depth]:
            return False
        end_ns, start_ns = one.end_ns, two.start_ns
        if len(one.agents) > depth:
            end_ns = spans[one.agents[: depth + 1]][1]
        if len(two.agents) > depth:
            start_ns = spans[two.agents[: depth + 1]][0]
        return end_ns <= start_ns

    recorded: list[RecordedCall] = []
    ancestors: list[int] = []  # of each call, as the bits of a number
    for number, call in enumerate(calls):
        parents: list[int] = []
        known, left = 0, (1 << number) - 1
        while left:
            latest = left.bit_length() - 1
            left &= ~(1 << latest)
            if precedes(latest, number):
                parents.append(latest)
                known |= 1 << latest | ancestors[latest]
                left &= ~known
        ancestors.append(known)
        after = tuple(reversed(parents))
        since_ns = max((calls[one].end_ns for one in after), default=calls[0].start_ns)
        wait_s = (call.start_ns - since_ns) * _NS
        if wait_s > _LONGEST_WAIT_S:
            raise RowError(call.line, None, call.place, f"the call waits {wait_s:,.0f} s; at most 86,400 are replayed")
        recorded.append(RecordedCall(call.request, after, round(wait_s, 6)))
    return RecordedSession(tuple(recorded), calls[0].line, block_tokens)


def _agents_of(span: _Span, known: Mapping[tuple[str, str], _Span]) -> tuple[str, ...]:
    """Return the spans of the agents around a span, outermost first."""
    agents: list[str] = []
    met: set[str] = set()
    above = known.get((span.trace, span.parent))
    while above is not None and above.span not in met:
        met.add(above.span)
        if above.operation in _AGENTS:
            agents.append(above.span)
        above = known.get((above.trace, above.parent))
    return tuple(reversed(agents))


def _request(span: _Span) -> RecordedRequest:
    found = _structured(span, "gen_ai.input.messages")
    if not isinstance(found, list) or not found:
        what = f"span {span.span} has none; record the content of messages, which instrumentations leave out by default"
        raise RowError(span.line, None, "gen_ai.input.messages", what)
    messages: list[Mapping[str, object]] = []
    system = _structured(span, "gen_ai.system_instructions")
    if isinstance(system, list):
        messages.append({"role": "system", "content": _text_of(system)})
    for message in found:
        messages += _chat_messages(message, span.line)
    read, _ = _messages(messages, {}, span.line)
    tokens = span.attributes.get("gen_ai.usage.output_tokens") or span.attributes.get("gen_ai.request.max_tokens")
    limit = read_limit({"output_tokens": tokens}, ("output_tokens",), span.line)
    tools = _structured(span, "gen_ai.tool.definitions")
    fields = {"tools": [_tool(tool) for tool in tools]} if isinstance(tools, list) and tools else {}
    return RecordedRequest(read, limit, fields, span.line)


def _structured(span: _Span, name: str) -> object:
    """Return an attribute that is written as a structure, or as a text of JSON."""
    found = span.attributes.get(name)
    if not isinstance(found, str):
        return found
    try:
        return json.loads(found)
    except (ValueError, RecursionError):
        raise RowError(span.line, None, name, f"of span {span.span} is neither a list nor JSON") from None


def _chat_messages(message: object, line: int) -> list[Mapping[str, object]]:
    """Return a message of the GenAI conventions as OpenAI spells it: each response of a tool is one of its own."""
    parts = message.get("parts") if isinstance(message, dict) else None
    if (
        not isinstance(message, dict)
        or not isinstance(parts, list)
        or not all(isinstance(part, dict) for part in parts)
    ):
        raise RowError(line, None, "gen_ai.input.messages", "a message has no `parts`; expected role and parts")
    messages: list[Mapping[str, object]] = []
    calls, text = [], _text_of(parts)
    for part in parts:
        if part.get("type") == "tool_call":
            arguments = part.get("arguments")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            function = {"name": part.get("name"), "arguments": written}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif part.get("type") == "tool_call_response":
            response = part.get("response", part.get("result"))
            result = response if isinstance(response, str) else json.dumps(response)
            messages.append({"role": "tool", "tool_call_id": part.get("id"), "content": result})
        elif part.get("type") not in ("text", "reasoning"):
            what = f"found a part of type {part.get('type')!r}; expected text, reasoning, tool_call, tool_call_response"
            raise RowError(line, None, "gen_ai.input.messages", what)
    if text or calls or not messages:
        own = {"role": message.get("role"), "content": text}
        messages.append({**own, "tool_calls": calls} if calls else own)
    return messages


def _text_of(parts: Sequence[object]) -> str:
    texts = [part.get("content") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def _tool(tool: object) -> object:
    """Return a tool as OpenAI spells it; the conventions have its function's keys beside `type`."""
    if not isinstance(tool, dict) or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


_LOCAL = 2**40  # separates the hashes of traces whose hashes are their own


def _weka_session(values: Mapping[str, object], line: int) -> RecordedSession:
    """Return the graph of a trace of kv-cache-tester or AgentX: requests, and sub-agents with requests of their own."""
    block = values.get("block_size")
    if not isinstance(block, int) or not 1 <= block <= MOST_TOKENS:
        raise RowError(line, None, "block_size", f"found {block!r}; expected the tokens of a hash")
    scope = values.get("hash_id_scope")
    if scope not in ("local", "global"):
        raise RowError(line, None, "hash_id_scope", f"found {scope!r}; expected local or global")
    calls = _weka_calls(values["requests"], (), 0.0, line * _LOCAL if scope == "local" else 0, line)
    if not calls:
        raise RowError(line, None, "requests", "has no calls; take the trace out")
    return _graph(calls, block)


def _weka_calls(found: object, agents: tuple[str, ...], since_s: float, scope: int, line: int) -> list[_Timed]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RowError(line, None, "requests", "is no list of requests")
    calls: list[_Timed] = []
    for number, one in enumerate(found):
        place = f"requests[{number}]"
        try:
            start_s = _seconds(one, "t", line) + since_s
            if one.get("type") == "subagent":
                agent = f"{one.get('agent_id')} {number}"
                inner = _weka_calls(one.get("requests"), (*agents, agent), _sub_agent_s(one, start_s), scope, line)
                calls += (replace(call, place=f"{place}.{call.place}") for call in inner)
            elif one.get("type") in ("n", "s"):
                calls.append(_weka_call(one, agents, start_s, scope, line, place))
            else:
                raise RowError(line, None, "type", f"found {one.get('type')!r}; expected n, s or subagent")
        except RowError as error:
            raise RowError(line, None, f"{place}.{error.key}", str(error)) from None
    return calls


def _sub_agent_s(agent: Mapping[str, object], start_s: float) -> float:
    """Return the instant from which the times of a sub-agent count.

    Published traces count them from the start of the trace, raw ones from the sub-agent's own.
    """
    inner = agent.get("requests")
    times = [number_of(one.get("t")) for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
    return start_s if any(time is not None and time < start_s for time in times) else 0.0


def _weka_call(
    values: Mapping[str, object], agents: tuple[str, ...], start_s: float, scope: int, line: int, place: str
) -> _Timed:
    # A response's time is optional: without it, the call counts as over where it began.
    took_s = 0.0 if values.get("api_time") is None else _seconds(values, "api_time", line)
    if type(values.get("out")) is int and values["out"] == 0:
        # A response without a token still cost its prompt. No server takes a limit of 0: kv-cache-tester sends 1.
        values = {**values, "out": 1}
    request = _traced(values, "in", "out", scope, line)
    return _Timed(place, round(start_s / _NS), round((start_s + took_s) / _NS), agents, request, line)


def _with_mooncake_row(session: RecordedSession | None, values: Mapping[str, object], line: int) -> RecordedSession:
    """Add a row to its session: a call after the one before, `delay` milliseconds after its answer."""
    calls = () if session is None else session.calls
    wait_s = _seconds(values, "delay", line) / 1000 if calls and "delay" in values else 0.0
    request = _traced(values, "input_length", "output_length", 0, line)
    call = RecordedCall(request, (len(calls) - 1,) if calls else (), wait_s)
    return RecordedSession((*calls, call), line if session is None else session.line)


def _seconds(values: Mapping[str, object], key: str, line: int) -> float:
    found = number_of(values.get(key))
    if found is None or not 0 <= found <= _LONGEST_WAIT_S * 1000:
        raise RowError(line, None, key, f"found {values.get(key)!r}; expected a time of at least 0")
    return found


def _traced(values: Mapping[str, object], key_in: str, key_out: str, scope: int, line: int) -> TracedRequest:
    tokens = []
    for key in (key_in, key_out):
        found = values.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST_TOKENS:
            raise RowError(line, None, key, f"found {found!r}; expected a whole number of tokens, 1 to {MOST_TOKENS:,}")
        tokens.append(found)
    hashes = values.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(one) is int and 0 <= one < _LOCAL for one in hashes):
        raise RowError(line, None, "hash_ids", "is no list of whole numbers")
    return TracedRequest(0, tokens[0], tokens[1], tuple(scope + one for one in hashes), line)
