"""All that a load reads before its plan can be made: prompts, lengths, schemas, media and tokenizers.

Everything wrong in the files of a suite is reported at once.

Vocabularies have words of a single token, so that synthetic prompts have exactly the tokens they are to have. The
tokenizer counts every word once, not every prompt: tokenizers in use never merge across the space before a word, and a
text of such words is checked to be as long as its parts before any of them is used.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from benchgate.errors import Problem, SuiteError, TargetError, UsageError
from benchgate.load.agent_sessions import load_sessions_file
from benchgate.load.media_files import read_media
from benchgate.load.prompt_sets import read_prompt_set, shown_source
from benchgate.load.traces import (
    MOST_PROBLEMS,
    HeaderError,
    RowError,
    beyond,
    csv_rows,
    load_traces,
    tokens_of,
)
from benchgate.model.arrivals import TracedRequest
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, MediaKind
from benchgate.plan.model import NO_MATERIAL, Material, ObservedLengths, RecordedRequest, RecordedSession
from benchgate.plan.prompts import text_tokens
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Traces
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.suite.formats import parse_json, schema_problem
from benchgate.suite.load import Load, TrafficClass
from benchgate.suite.schema import Suite, declared_context_tokens
from benchgate.suite.workload import Lengths, PromptSet, Workload
from benchgate.system import RECORDED_BYTES, lacking, read_text_file
from benchgate.targets.address import show_address
from benchgate.targets.client import JsonClient
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.error_messages import RequestError, error_text, json_object

Count = Callable[[str], int]  # counts the tokens of a text, with whatever the tokenizer puts around every text
_LEAST_PIECES = 8  # enough for 16 tokens in a row to differ from prompt to prompt
_CHECKED_TOKENS = 64
_TIMEOUT_S = 10.0


def calibrate(kind: str, count: Count, name: str) -> Vocabulary:
    """Return the pieces that are one token each. Raises UsageError if they are too few for varied prompts."""
    usual = VOCABULARIES[kind]
    alone = {piece: count(piece) for piece in usual.pieces}
    least = min(alone.values())
    single = tuple(
        piece for piece in usual.pieces if alone[piece] == least and count(piece + usual.between + piece) == least + 1
    )
    found = f"takes only {len(single)} of our {len(usual.pieces)} {kind} as one token each"
    if len(single) >= _LEAST_PIECES:
        text = usual.between.join((single * _CHECKED_TOKENS)[:_CHECKED_TOKENS])
        if count(text) == least - 1 + _CHECKED_TOKENS:
            return Vocabulary(single, usual.between)
        found = f"makes other tokens of {kind} that stand beside each other than of each alone"
    other = "letters" if kind == "words" else "words"
    raise UsageError(
        f"the tokenizer {name} {found}, so prompts of a stated length cannot be made of them; write `text: {other}`, "
        "or leave `tokenizer` out"
    )


def file_vocabulary(path: Path, kind: str) -> Vocabulary:
    """Calibrate by a `tokenizer.json`. Raises UsageError if it cannot be read or its library is not installed."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        missing = f"the tokenizer {path} needs the library `tokenizers` (or write `tokenizer: server`)"
        raise UsageError(lacking(missing, "tokenizer")) from None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the tokenizer {path} cannot be read: {exc}") from exc
    if "model" not in (json_object(text) or {}):
        raise UsageError(f"{path} is no tokenizer; name the tokenizer.json that comes with the model")
    tokenizer = library.Tokenizer.from_str(text)
    return calibrate(kind, lambda text: len(tokenizer.encode(text).ids), str(path))


class _TokenizeApi(NamedTuple):
    """An engine's endpoint that counts tokens, and the keys of its request and answer."""

    path: str
    text_key: str
    count_key: str | None  # of a number; None: the answer, or its `tokens`, is a list of tokens


_APIS: Mapping[str, _TokenizeApi] = MappingProxyType(
    {
        "vllm": _TokenizeApi("/tokenize", "prompt", "count"),
        "sglang": _TokenizeApi("/tokenize", "prompt", "count"),
        "llamacpp": _TokenizeApi("/tokenize", "content", None),
        "tgi": _TokenizeApi("/tokenize", "inputs", None),
    }
)


def server_vocabulary(target: Target, kind: str) -> Vocabulary:
    """Calibrate by the server's own token counts. Raises UsageError if it does not report them."""
    api = _APIS.get(target.dialect.engine)
    if api is None:
        raise UsageError(
            f"`tokenizer: server` needs a server's /tokenize, which {target.dialect.engine} has not; name the "
            "tokenizer.json of its model"
        )
    where = f"the {target.arm} at {show_address(target.url)}"
    with JsonClient(target, connect_s=_TIMEOUT_S, total_s=_TIMEOUT_S) as client:
        return calibrate(kind, lambda text: _count_tokens(client, api, text, target, where), f"of {where}")


def _count_tokens(client: JsonClient, api: _TokenizeApi, text: str, target: Target, where: str) -> int:
    body: dict[str, object] = {api.text_key: text}
    if api.count_key is not None:
        body["model"] = target.model
    try:
        response = client.send("POST", api.path, body)
    except RequestError as exc:
        raise UsageError(f"{where} does not say how many tokens a text is: {exc}") from exc
    try:
        found = json.loads(response.body) if response.status == 200 else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        found = found.get(api.count_key or "tokens")
    count = len(found) if isinstance(found, list) else found
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        answer = target.redact(f"HTTP {response.status}: {error_text(response.body)}")
        raise UsageError(f"{where} does not say how many tokens a text is: {answer}")
    return count


_T = TypeVar("_T")

# Returns the vocabulary for a workload's tokenizer and kind of text. Raises UsageError.
Vocabularies = Callable[[str, str], Vocabulary]


def load_material(
    suite_dir: Path,
    load: Load,
    vocabulary: Vocabularies,
    context_tokens: int | None = None,
    *,
    contacting: bool = True,
) -> Material:
    """Read all files but traces; `context_tokens` None: unknown. Raises SuiteError or UsageError (tokenizer)."""
    reading = _Reading(suite_dir, load, context_tokens, contacting)
    material = Material(
        lengths=reading.each({name for w in reading.workloads for name in w.files}, reading.lengths),
        prompts=reading.prompts(),
        sessions=reading.each({w.sessions for w in reading.workloads if w.sessions is not None}, reading.sessions),
        schemas=reading.each({w.answer_schema for w in reading.workloads if isinstance(w.answer_schema, str)}, _schema),
        tools=reading.each({w.tools for w in reading.workloads if isinstance(w.tools, str)}, _tools),
        media=reading.media(),
        vocabularies={
            (w.tokenizer, w.text): vocabulary(w.tokenizer, w.text) for w in reading.workloads if w.tokenizer is not None
        },
    )
    if reading.problems:
        raise SuiteError(list(dict.fromkeys(reading.problems)))
    return material


class _Reading:
    def __init__(self, suite_dir: Path, load: Load, context_tokens: int | None, contacting: bool) -> None:
        self.problems: list[Problem] = []
        self._classes = load.classes()
        self.workloads = [*(traffic.workload for traffic in self._classes), *load.workloads.values()]
        if load.capacity is not None and load.capacity.workload is None:  # no stage may have that of the search
            self.workloads.append(load.workload)
        self._suite_dir = suite_dir
        self._mark_tokens = MARK_PIECES if load.salt else 0
        self._context_tokens = context_tokens
        self._contacting = contacting

    def each(self, names: set[str], how: Callable[[str, Path], _T]) -> dict[str, _T]:
        """Read files. Return those that could be read, by name."""
        found: dict[str, _T] = {}
        for name in sorted(names):
            try:
                found[name] = how(name, self._suite_dir / name)
            except SuiteError as error:
                self.problems.extend(error.problems)
        return found

    def lengths(self, name: str, path: Path) -> tuple[ObservedLengths, ...]:
        """Read the columns of a file of lengths that a workload draws from."""
        columns = {
            column
            for workload in self.workloads
            for column in ("input_tokens", "output_tokens")
            if isinstance(length := getattr(workload, column), Lengths) and length.file == name
        }
        return read_lengths(path, columns, self._context_tokens)

    def prompts(self) -> dict[str, tuple[RecordedRequest, ...]]:
        """Read every set of prompts, and check it for each workload that sends it."""
        sets = {prompts.name: prompts for w in self.workloads if (prompts := w.prompt_set) is not None}
        return self.each(set(sets), lambda name, _: self._prompt_set(sets[name]))

    def _prompt_set(self, prompt_set: PromptSet) -> tuple[RecordedRequest, ...]:
        users = [workload for workload in self.workloads if workload.prompt_set == prompt_set]
        conversing = any(workload.session is not None for workload in users)
        rows = read_prompt_set(self._suite_dir, prompt_set, conversing=conversing, contacting=self._contacting)
        source, bounds = shown_source(self._suite_dir, prompt_set), (self._mark_tokens, self._context_tokens)
        problems = []
        for traffic in self._classes:
            planned = traffic.schedule.requests
            if traffic.workload.prompt_set == prompt_set and len(rows) < planned:
                what = (
                    f'there are {len(rows):,} prompts and "{traffic.name}" sends {planned:,} requests a block; '
                    f"write `requests: {len(rows)}` or fewer, or name more prompts"
                )
                problems.append(Problem(source, None, None, "", what))
        problems += [problem for workload in users for problem in _unfit(source, workload, rows, *bounds)]
        if problems:
            raise SuiteError(list(dict.fromkeys(problems))[:MOST_PROBLEMS])
        return rows

    def media(self) -> dict[tuple[MediaKind, str], tuple[str, ...]]:
        """Read the files of media, by their kind and name in the suite."""
        found: dict[tuple[MediaKind, str], tuple[str, ...]] = {}
        for workload in self.workloads:
            for kind, media in workload.media.items():
                sent_whole = ENDPOINTS[workload.endpoint].transcribes  # whose addresses are mistakes
                names = {name for name in media.files if sent_whole or (kind, name) not in found}
                read = self.each(names, partial(read_media, kind, whole=sent_whole))
                found.update({(kind, name): addresses for name, addresses in read.items()})
        return found

    def sessions(self, name: str, path: Path) -> tuple[RecordedSession, ...]:
        """Read a file of agent sessions, and check it for every class of traffic that uses it."""
        rows = load_sessions_file(path)
        problems: list[Problem] = []
        calls = sum(len(session.calls) for session in rows)
        for traffic in self._classes:
            if traffic.workload.sessions != name:
                continue
            planned = traffic.schedule.requests
            if calls < planned:
                what = f'the sessions have {calls:,} calls and "{traffic.name}" sends {planned:,} requests a block'
                remedy = f"write `requests: {calls}` or fewer, or name a longer file"
                problems.append(Problem(str(path), None, None, "", f"{what}; {remedy}"))
            for session in rows:
                requests = [call.request for call in session.calls]
                problems += _too_long(path, session.line, requests, traffic, self._mark_tokens, self._context_tokens)
        if problems:
            raise SuiteError(list(dict.fromkeys(problems))[:MOST_PROBLEMS])
        return rows


def _too_long(
    path: Path,
    line: int,
    requests: Sequence[RecordedRequest | TracedRequest],
    traffic: TrafficClass,
    mark_tokens: int,
    context_tokens: int | None,
) -> Iterator[Problem]:
    for number, request in enumerate(requests, start=1):
        if isinstance(request, RecordedRequest):
            marks = mark_tokens * sum(message.get("role") == "user" for message in request.messages)
            tokens_in = sum(text_tokens(message) for message in request.messages) + marks
        else:
            tokens_in = request.input_tokens or 0
        tokens_out = request.output_tokens or traffic.workload.most_output_tokens or 0
        if context_tokens is not None and tokens_in + tokens_out > context_tokens:
            what = f"call {number} has at least {tokens_in:,} tokens and requests {tokens_out:,}"
            yield Problem(str(path), line, None, "", f"{what}{beyond(context_tokens)}; take the session out")


def read_lengths(path: Path, columns: set[str], context_tokens: int | None = None) -> tuple[ObservedLengths, ...]:
    """Read a CSV with `input_tokens` and `output_tokens`, or `tokens` for either. Raises SuiteError."""
    source, problems, rows = str(path), list[Problem](), list[ObservedLengths]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv_rows(file):
                try:
                    found = {}
                    for column in sorted(columns):
                        key = column if column in row.values else "tokens"  # a single one for either
                        if key not in row.values:
                            names = ", ".join(f"`{name}`" for name in list(row.values)[:8])
                            raise row.misnamed(column, f"is missing; found the columns {names}")
                        found[column] = tokens_of(row, key)
                    if context_tokens is not None and sum(found.values()) > context_tokens:
                        what = f"comes to {sum(found.values()):,} tokens{beyond(context_tokens)}; take the row out"
                        raise RowError(row.line, None, "", what)
                    rows.append(ObservedLengths(found.get("input_tokens"), found.get("output_tokens")))
                except HeaderError:
                    raise
                except RowError as error:
                    problems.append(error.problem(source))
                if len(problems) == MOST_PROBLEMS:
                    break
    except (OSError, UnicodeDecodeError) as error:
        what = f"the lengths cannot be read ({error}); `file` names a CSV beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    except RowError as error:
        problems.append(error.problem(source))
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no rows; write a header and one row a request"))
    if problems:
        raise SuiteError(problems)
    return tuple(rows)


def _unfit(
    source: str, workload: Workload, rows: Sequence[RecordedRequest], mark_tokens: int, context_tokens: int | None
) -> Iterator[Problem]:
    """Yield which rows of prompts a workload cannot send. Salting adds `mark_tokens` to each turn of a user."""
    for row in rows:
        messages = row.single_messages if workload.session is None else row.messages
        if ENDPOINTS[workload.endpoint].messages_key is None and (len(messages) != 1 or row.fields):
            what = f"is a conversation, and {workload.endpoint} take one text; use the endpoint chat, or take it out"
            yield Problem(source, row.line, None, "messages", what)
        turns = sum(message.get("role") == "user" for message in messages) if workload.session is not None else 1
        marks = mark_tokens * turns
        tokens_in = sum(text_tokens(message) for message in messages) + marks
        tokens_out = row.output_tokens or workload.most_output_tokens or 0
        if context_tokens is not None and tokens_in + tokens_out > context_tokens:
            salt = f", {marks} of them from `salt`," if marks else ""
            what = f"has at least {tokens_in:,} tokens{salt} and requests {tokens_out:,}{beyond(context_tokens)}"
            what += "; take it out"
            yield Problem(source, row.line, None, "", what)


def _json(path: Path, key: str) -> object:
    source = str(path)
    try:
        return parse_json(read_text_file(path, RECORDED_BYTES, "utf-8-sig"))
    except json.JSONDecodeError as error:
        problem = Problem(source, error.lineno, error.colno, "", f"not JSON: {error.msg}; `{key}` names a JSON file")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(
            source, None, None, "", f"cannot be read ({error}); `{key}` names a JSON file beside the suite"
        )
    except ValueError as error:
        problem = Problem(source, None, None, "", str(error))
    raise SuiteError([problem])


def _schema(_: str, path: Path) -> Mapping[str, object]:
    found = _json(path, "schema")
    if isinstance(found, dict) and found:
        if (problem := schema_problem(found)) is not None:
            raise SuiteError([Problem(str(path), None, None, "", f"is no JSON schema: {problem}")])
        return found
    raise SuiteError([Problem(str(path), 1, 1, "", 'holds no JSON schema; write an object like {"type": "object"}')])


def _tools(_: str, path: Path) -> Sequence[Mapping[str, object]]:
    found = _json(path, "tools")
    if isinstance(found, list) and found and all(isinstance(tool, dict) for tool in found):
        return found
    raise SuiteError([Problem(str(path), 1, 1, "", "holds no list of tools; write them as OpenAI spells them")])


_SERVER = "server"


def read_inputs(
    suite: Suite, suite_dir: Path, environment: Mapping[str, str], *, contacting: bool = True
) -> tuple[Traces, Material]:
    """Read the rows of every trace, and what the other files hold.

    Nothing is sent but, for a workload with `tokenizer: server`, requests to the baseline's tokenizer; without
    `contacting` not even those, and texts are then made of the usual words. Raises SuiteError with the problems of all
    files, and UsageError where a tokenizer cannot be had.
    """
    if suite.load is None:
        return {}, NO_MATERIAL
    context_tokens = declared_context_tokens(suite)

    def vocabulary(tokenizer: str, kind: str) -> Vocabulary:
        if tokenizer != _SERVER:
            return file_vocabulary(suite_dir / tokenizer, kind)
        if not contacting:
            return VOCABULARIES[kind]
        target = target_of(Arm.BASELINE, suite.deployments[suite.baseline], environment, suite_dir)
        try:
            return server_vocabulary(target, kind)
        except TargetError as exc:
            raise UsageError(f"`tokenizer: server`: {exc}") from exc

    try:
        traces = load_traces(suite_dir, suite.load, context_tokens)
    except SuiteError as error:
        try:
            load_material(suite_dir, suite.load, vocabulary, context_tokens, contacting=contacting)
        except SuiteError as another:
            raise SuiteError([*error.problems, *another.problems]) from error
        raise
    return traces, load_material(suite_dir, suite.load, vocabulary, context_tokens, contacting=contacting)
