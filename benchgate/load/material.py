"""All that a load reads before its plan can be made: prompts, lengths, schemas, pictures and tokenizers.

Everything wrong in the files of a suite is reported at once. Prompts are JSON Lines of our own (`prompt`), of chat
requests as OpenAI spells them (`messages`, bare or as the `body` of a batch or a log), or of conversations as ShareGPT
spells them; the last also as one JSON array, as they are passed around.

Vocabularies have words of a single token, so that synthetic prompts have exactly the tokens they are to have. The
tokenizer counts every word once, not every prompt: tokenizers in use never merge across the space before a word, and a
text of such words is checked to be as long as its parts before any of them is used.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from benchgate.errors import Problem, SuiteError, TargetError, UsageError
from benchgate.load.traces import (
    MOST_PROBLEMS,
    MOST_TOKENS,
    HeaderError,
    RowError,
    beyond,
    csv_rows,
    load_traces,
    tokens_of,
)
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS
from benchgate.plan.model import NO_MATERIAL, Material, ObservedLengths, RecordedRequest
from benchgate.plan.prompts import data_url, text_tokens
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Traces
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.suite.formats import parse_json, parse_object, schema_problem
from benchgate.suite.load import Load, TrafficClass
from benchgate.suite.schema import Suite, declared_context_tokens
from benchgate.suite.workload import Lengths
from benchgate.system import RECORDED_BYTES, read_text_file
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
        raise UsageError(
            f"the tokenizer {path} needs the library `tokenizers`; run `pip install tokenizers`, or write "
            "`tokenizer: server`"
        ) from None
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
    except ValueError:
        found = None
    if isinstance(found, dict):
        found = found.get(api.count_key or "tokens")
    count = len(found) if isinstance(found, list) else found
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        answer = target.redact(f"HTTP {response.status}: {error_text(response.body)}")
        raise UsageError(f"{where} does not say how many tokens a text is: {answer}")
    return count


_OWN = ("id", "prompt", "system", "output_tokens")
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
             "bing": "assistant", "bard": "assistant", "system": "system"}  # fmt: skip
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_KEPT = ("tools", "tool_choice", "response_format", "stop")  # of a logged request; how it was sampled is not
_LIMITS = ("max_tokens", "max_completion_tokens")


def load_prompts_file(path: Path, *, conversing: bool) -> tuple[RecordedRequest, ...]:
    """Read every request, conversations whole with `conversing`, else up to a question. Raises SuiteError."""
    source = str(path)
    try:
        text = read_text_file(path, RECORDED_BYTES, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"the prompts cannot be read ({error}); `prompts` names a JSON or JSONL file beside the suite"
        raise SuiteError([Problem(source, None, None, "", what)]) from error
    rows: list[RecordedRequest] = []
    problems: list[Problem] = []
    for line, element in _elements(text):
        try:
            rows.append(_recorded(parse_object(element), line, conversing))
        except RowError as error:
            problems.append(error.problem(source))
        except ValueError as error:
            problems.append(RowError(line, None, "", str(error)).problem(source))
        if len(problems) == MOST_PROBLEMS:
            break
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no prompts; write one JSON object for each"))
    if problems:
        raise SuiteError(problems)
    return tuple(rows)


def _elements(text: str) -> Iterator[tuple[int, str]]:
    """The text of every object with the line it begins at: of a JSON array, or line by line."""
    if not text.lstrip().startswith("["):
        yield from ((n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
        return
    decoder, at, line = json.JSONDecoder(), text.index("[") + 1, 1
    counted = 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        line, counted = line + text.count("\n", counted, at), at
        if at >= len(text) or text[at] == "]":
            if at >= len(text):
                yield line, "["  # cut off: the array never ends, and so it is no JSON
            return
        try:
            _, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            yield line, text[at : at + 200]  # whoever reads it says what is wrong there; nothing below can be found
            return
        yield line, text[at:end]
        at = end


def _recorded(values: dict[str, object], line: int, conversing: bool) -> RecordedRequest:
    body = values.get("body")
    if isinstance(body, dict):
        values = body
    if "prompt" in values:
        return _own(values, line)
    if "messages" in values:
        return _logged(values, line)
    if "conversations" in values:
        return _conversation(values, line, conversing)
    found = ", ".join(f"`{key}`" for key in list(values)[:8]) or "an empty object"
    raise RowError(line, None, "", f"found {found}; expected `prompt`, `messages` (a chat request) or `conversations`")


def _own(values: dict[str, object], line: int) -> RecordedRequest:
    if not set(values) & set(_LIMITS):  # a completion request as OpenAI spells it has further fields
        for key in values:
            if key not in _OWN:
                near = get_close_matches(key, _OWN, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(_OWN)}"
                raise RowError(line, None, key, f"unknown key; {hint}")
    messages: list[Mapping[str, object]] = []
    if values.get("system") is not None:
        messages.append({"role": "system", "content": _text(values, "system", line)})
    messages.append({"role": "user", "content": _text(values, "prompt", line)})
    return RecordedRequest(tuple(messages), _limit(values, ("output_tokens", *_LIMITS), line), {}, line)


def _logged(values: dict[str, object], line: int) -> RecordedRequest:
    found = values["messages"]
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "messages", "is no list of messages; write at least one")
    messages = [_message(message, line) for message in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the answer was recorded too; it is generated again
    if not any(message["role"] == "user" for message in messages):
        raise RowError(line, None, "messages", "has no message of a user to be answered")
    fields = {key: values[key] for key in _KEPT if values.get(key) is not None}
    return RecordedRequest(tuple(messages), _limit(values, _LIMITS, line), fields, line)


def _message(message: object, line: int) -> Mapping[str, object]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        role = message.get("role") if isinstance(message, dict) else message
        raise RowError(line, None, "messages", f"found the role {role!r}; expected one of {', '.join(sorted(_ROLES))}")
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise RowError(line, None, "messages", f"the message of the {message['role']} has no `content`")
    if content is not None and not isinstance(content, str | list):
        raise RowError(line, None, "messages", "a `content` is neither text nor a list of parts")
    return message


def _conversation(values: dict[str, object], line: int, conversing: bool) -> RecordedRequest:
    found = values["conversations"]
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "conversations", "is no list of turns; take the row out")
    messages: list[Mapping[str, object]] = []
    for turn in found:
        speaker = _SPEAKERS.get(str(turn.get("from"))) if isinstance(turn, dict) else None
        if speaker is None:
            raise RowError(line, None, "conversations", "a turn has no `from` that is human, gpt or system")
        messages.append({"role": speaker, "content": _text(turn, "value", line)})
        if speaker == "user" and not conversing:
            break
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    if not messages:
        raise RowError(line, None, "conversations", "has no turn of a human to be answered; take the row out")
    return RecordedRequest(tuple(messages), None, {}, line)


def _text(values: Mapping[str, object], key: str, line: int) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not found.strip():
        raise RowError(line, None, key, f"found {'an empty text' if isinstance(found, str) else repr(found)[:40]}; "
                       "expected a text")  # fmt: skip
    return found


def _limit(values: Mapping[str, object], keys: tuple[str, ...], line: int) -> int | None:
    for key in keys:
        found = values.get(key)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST_TOKENS:
            raise RowError(line, None, key, f"found {found!r}; expected a whole number of tokens, 1 to {MOST_TOKENS:,}")
        return found
    return None


_T = TypeVar("_T")
_PICTURES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}
_LARGEST_PICTURE = 20 * 2**20

# Returns the vocabulary for a workload's tokenizer and kind of text. Raises UsageError.
Vocabularies = Callable[[str, str], Vocabulary]


def load_material(suite_dir: Path, load: Load, vocabulary: Vocabularies, context_tokens: int | None = None) -> Material:
    """Read all files but traces; `context_tokens` None: unknown. Raises SuiteError or UsageError (tokenizer)."""
    reading = _Reading(suite_dir, load, context_tokens)
    material = Material(
        lengths=reading.each({name for w in reading.workloads for name in w.files}, reading.lengths),
        prompts=reading.each({w.prompts for w in reading.workloads if w.prompts is not None}, reading.prompts),
        schemas=reading.each({w.answer_schema for w in reading.workloads if isinstance(w.answer_schema, str)}, _schema),
        tools=reading.each({w.tools for w in reading.workloads if isinstance(w.tools, str)}, _tools),
        images=reading.each({name for w in reading.workloads if w.images for name in w.images.files}, _picture),
        vocabularies={
            (w.tokenizer, w.text): vocabulary(w.tokenizer, w.text) for w in reading.workloads if w.tokenizer is not None
        },
    )
    if reading.problems:
        raise SuiteError(list(dict.fromkeys(reading.problems)))
    return material


class _Reading:
    def __init__(self, suite_dir: Path, load: Load, context_tokens: int | None) -> None:
        self.problems: list[Problem] = []
        self._classes = load.classes()
        self.workloads = [*(traffic.workload for traffic in self._classes), *load.workloads.values()]
        self._suite_dir = suite_dir
        self._mark_tokens = MARK_PIECES if load.salt else 0
        self._context_tokens = context_tokens

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

    def prompts(self, name: str, path: Path) -> tuple[RecordedRequest, ...]:
        """Read a file of prompts, and check it for every class of traffic that uses it."""
        users = [traffic for traffic in self._classes if traffic.workload.prompts == name]
        talks = any(traffic.workload.session is not None for traffic in users)
        rows = load_prompts_file(path, conversing=talks)
        bounds = self._mark_tokens, self._context_tokens
        problems = [p for traffic in users for p in _unfit(path, traffic, rows, *bounds)]
        if problems:
            raise SuiteError(problems[:MOST_PROBLEMS])
        return rows


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
    path: Path, traffic: TrafficClass, rows: Sequence[RecordedRequest], mark_tokens: int, context_tokens: int | None
) -> Iterator[Problem]:
    """Yield why a class of traffic cannot send a file of prompts. Salting adds `mark_tokens` to each turn of a user."""
    workload, source = traffic.workload, str(path)
    planned = traffic.schedule.requests
    if len(rows) < planned:
        what = (
            f'the file has {len(rows):,} prompts and "{traffic.name}" sends {planned:,} requests a block; '
            f"write `requests: {len(rows)}` or fewer, or name a longer file"
        )
        yield Problem(source, None, None, "", what)
    for row in rows:
        if ENDPOINTS[workload.endpoint].messages_key is None and (len(row.messages) != 1 or row.fields):
            what = f"is a conversation, and {workload.endpoint} take one text; use the endpoint chat, or take it out"
            yield Problem(source, row.line, None, "messages", what)
        turns = sum(message.get("role") == "user" for message in row.messages) if workload.session is not None else 1
        marks = mark_tokens * turns
        tokens_in = sum(text_tokens(message) for message in row.messages) + marks
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


def _picture(_: str, path: Path) -> str:
    source, kind = str(path), _PICTURES.get(path.suffix.lower())
    if kind is None:
        what = f'"{path.suffix}" is no kind of picture that servers take; name a file {", ".join(sorted(_PICTURES))}'
        raise SuiteError([Problem(source, None, None, "", what)])
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SuiteError([Problem(source, None, None, "", f"the picture cannot be read ({error})")]) from error
    if not 0 < len(content) <= _LARGEST_PICTURE:
        what = f"has {len(content):,} bytes; a picture has 1 to {_LARGEST_PICTURE:,}"
        raise SuiteError([Problem(source, None, None, "", what)])
    return data_url(content, kind)


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
            load_material(suite_dir, suite.load, vocabulary, context_tokens)
        except SuiteError as another:
            raise SuiteError([*error.problems, *another.problems]) from error
        raise
    return traces, load_material(suite_dir, suite.load, vocabulary, context_tokens)
