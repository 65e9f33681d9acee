"""Recorded prompts: rows of a file, of a data set, or of the set that ships, as requests.

JSON Lines of our own (`prompt`), of chat requests as OpenAI spells them (`messages`, bare or as the `body` of a batch
or a log), or of conversations as ShareGPT spells them; the last also as one JSON array, as they are passed around. Data
sets are read by the library `datasets` in a child process: it takes seconds to import and starts threads, which a load
generator must not have when it forks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from benchgate.errors import Problem, SuiteError, UsageError, suggestion
from benchgate.load.traces import MOST_PROBLEMS, MOST_TOKENS, RowError
from benchgate.plan.model import RecordedRequest
from benchgate.suite.formats import parse_object
from benchgate.suite.workload import BUILTIN_PROMPTS, PromptSet, is_file_source
from benchgate.system import RECORDED_BYTES, lacking, read_text_file

_READER = "benchgate.load.data_set_rows"
_DATA_SET_FILES = (".parquet", ".csv", ".arrow")
_BUILTIN_FILE = "builtin_prompts.jsonl"
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_OWN = ("id", "prompt", "system", "output_tokens", "category")
_KINDS = ("prompt", "messages", "conversations")
_SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
             "bing": "assistant", "bard": "assistant", "system": "system"}  # fmt: skip
_ROLES = ("system", "developer", "user", "assistant", "tool")
KEPT = ("tools", "tool_choice", "response_format", "stop")  # of a logged request; how it was sampled is not
LIMITS = ("max_tokens", "max_completion_tokens")
_READ = (*_OWN, *_KINDS, *KEPT, *LIMITS)
_MOST_VALUES = 50  # distinct values of a column that are remembered for an error message


def shown_source(folder: Path, prompt_set: PromptSet) -> str:
    """Return the source of a set for error messages: of a file, its path."""
    return str(folder / prompt_set.source) if is_file_source(prompt_set.source) else prompt_set.source


def read_prompt_set(
    folder: Path, prompt_set: PromptSet, *, conversing: bool, contacting: bool = True
) -> tuple[RecordedRequest, ...]:
    """Read the requests of a set, conversations whole with `conversing`, else up to a question.

    A file is relative to `folder`. Without `contacting` a data set of the Hub is read from this machine's cache alone.
    Raises SuiteError, and UsageError if the library `datasets` is missing.
    """
    source = shown_source(folder, prompt_set)
    rows: list[RecordedRequest] = []
    problems: list[Problem] = []
    met: dict[str, dict[str, None]] = {column: {} for column in prompt_set.where}
    with closing(_rows(folder / prompt_set.source, source, prompt_set, contacting)) as found:
        for line, values in found:
            try:
                if isinstance(values, RowError):
                    raise values
                if (request := _chosen(values, prompt_set, met, line)) is not None:
                    rows.append(_recorded(request, line, conversing))
            except RowError as error:
                problems.append(error.problem(source))
            if len(problems) == MOST_PROBLEMS or len(rows) == prompt_set.limit:
                break
    if not rows and not problems and any(met.values()):
        column, values_met = next((column, list(values)) for column, values in met.items() if values)
        for word in _values_of(prompt_set, column):
            if word not in values_met:
                problems.append(Problem(source, None, None, f"where.{column}", f'no row has "{word}"; '
                                        f"{suggestion(word, values_met)}"))  # fmt: skip
        problems = problems or [Problem(source, None, None, "where", "no row has all of these values; name others")]
    if not rows and not problems:
        problems.append(Problem(source, None, None, "", "the file has no prompts; write one JSON object for each"))
    if problems:
        raise SuiteError(problems)
    return tuple(rows)


def _rows(
    path: Path, source: str, prompt_set: PromptSet, contacting: bool
) -> Generator[tuple[int, dict[str, object] | RowError], None, None]:
    """Yield every row of the source with its line, or what is wrong there."""
    if prompt_set.repository is not None or path.is_dir() or path.suffix.lower() in _DATA_SET_FILES:
        yield from _data_set_rows(path, source, prompt_set, contacting)
        return
    if prompt_set.source == BUILTIN_PROMPTS:
        text = files("benchgate.load").joinpath(_BUILTIN_FILE).read_text(encoding="utf-8")
    else:
        try:
            text = read_text_file(path, RECORDED_BYTES, "utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            what = f"the prompts cannot be read ({error}); `prompts` names a JSON or JSONL file beside the suite"
            raise SuiteError([Problem(source, None, None, "", what)]) from error
    for line, element in _elements(text):
        try:
            yield line, parse_object(element)
        except ValueError as error:
            yield line, RowError(line, None, "", str(error))


def _data_set_rows(
    path: Path, source: str, prompt_set: PromptSet, contacting: bool
) -> Iterator[tuple[int, dict[str, object]]]:
    if find_spec("datasets") is None:
        raise UsageError(lacking(f"the prompts {source} need the library `datasets`, which is missing", "eval"))
    columns = {} if prompt_set.columns is None else prompt_set.columns.model_dump(exclude_none=True)
    repository, commit = prompt_set.repository or (None, None)
    job = {
        "path": None if repository else str(path.resolve()), "repository": repository, "commit": commit,
        "subset": prompt_set.subset, "split": prompt_set.split, "files": prompt_set.files,
        "columns": {
            **{f"columns.{key}": column for key, column in columns.items()},
            **{f"where.{column}": column for column in prompt_set.where},
        },
        "optional": [] if columns else list(_READ),
    }  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if not contacting:
        environment |= dict.fromkeys(_OFFLINE, "1")
    command = [sys.executable, "-P", "-m", _READER, json.dumps(job)]
    size = 0
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line, text in enumerate(process.stdout):
                found, size = json.loads(text), size + len(text)
                if isinstance(found, list):
                    yield line, found[0]
                elif "problem" in found:
                    raise SuiteError([Problem(source, None, None, found["key"], found["problem"])])
                elif not columns and not set(found["columns"]) & set(_KINDS):
                    names = ", ".join(f"`{name}`" for name in found["columns"][:20])
                    what = (
                        f"no column is called {', '.join(_KINDS)}; found {names}; write `columns: {{prompt: COLUMN}}`"
                    )
                    raise SuiteError([Problem(source, None, None, "columns", what)])
                if size > RECORDED_BYTES:
                    what = f"the rows are longer than {RECORDED_BYTES // 2**20:,} MiB; write a `limit` of rows"
                    raise SuiteError([Problem(source, None, None, "limit", what)])
            process.wait()  # its output ends a moment before it does
        finally:
            stopped = process.poll() is None
            process.kill()  # does nothing to a process that has ended; a limit may leave rows unread
        if process.wait() != 0 and not stopped:
            log.seek(0)
            last = log.read().decode(errors="replace").strip().rsplit("\n", 1)[-1][:300] or "its log is empty"
            raise SuiteError([Problem(source, None, None, "", f"the library `datasets` could not read it: {last}")])


def _chosen(
    values: dict[str, object], prompt_set: PromptSet, met: dict[str, dict[str, None]], line: int
) -> dict[str, object] | None:
    """Return the columns of a row that are read; None for a row that is not sent. Values of `where` go into `met`."""
    sent = True
    for column in prompt_set.where:
        value = _column(values, column, f"where.{column}", line)
        word = value if isinstance(value, str) else json.dumps(value)
        if len(met[column]) < _MOST_VALUES:
            met[column][word] = None
        sent = sent and word in _values_of(prompt_set, column)
    if not sent:
        return None
    if prompt_set.columns is not None:
        chosen = prompt_set.columns.model_dump(exclude_none=True).items()
        return {key: _column(values, column, f"columns.{key}", line) for key, column in chosen}
    return {key: value for key, value in values.items() if key in _READ or key not in prompt_set.where}


def _values_of(prompt_set: PromptSet, column: str) -> tuple[str, ...]:
    values = prompt_set.where[column]
    return (values,) if isinstance(values, str) else values


def _column(values: dict[str, object], column: str, key: str, line: int) -> object:
    if column not in values:
        raise RowError(line, None, key, f'has no column "{column}"; {suggestion(column, values)}')
    return values[column]


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
        if at >= len(text):
            yield line, "["  # cut off: the array never ends, and so it is no JSON
            return
        if text[at] == "]":
            if text[at + 1 :].strip():  # further rows, which nobody would miss
                yield line, text[at : at + 200]
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
    if not set(values) & set(LIMITS):  # a completion request as OpenAI spells it has further fields
        for key in values:
            if key not in _OWN:
                near = get_close_matches(key, _OWN, n=1)
                hint = f"did you mean `{near[0]}`?" if near else f"a row has {', '.join(_OWN)}"
                raise RowError(line, None, key, f"unknown key; {hint}")
    messages: list[Mapping[str, object]] = []
    if values.get("system") is not None:
        messages.append({"role": "system", "content": _text(values, "system", line)})
    messages.append({"role": "user", "content": _text(values, "prompt", line)})
    return RecordedRequest(tuple(messages), read_limit(values, ("output_tokens", *LIMITS), line), {}, line)


def _logged(values: dict[str, object], line: int) -> RecordedRequest:
    found = values["messages"]
    if not isinstance(found, list) or not found:
        raise RowError(line, None, "messages", "is no list of messages; write at least one")
    messages = [read_message(message, line) for message in found]
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()  # the answer was recorded too; it is generated again
    if not any(message["role"] == "user" for message in messages):
        raise RowError(line, None, "messages", "has no message of a user to be answered")
    fields = {key: values[key] for key in KEPT if values.get(key) is not None}
    return RecordedRequest(tuple(messages), read_limit(values, LIMITS, line), fields, line)


def read_message(message: object, line: int) -> Mapping[str, object]:
    """Return a message of a chat request. Raises RowError unless it is one."""
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
    first = [message["role"] for message in messages].index("user")
    return RecordedRequest(tuple(messages), None, {}, line, first + 1)


def _text(values: Mapping[str, object], key: str, line: int) -> str:
    found = values.get(key)
    if not isinstance(found, str) or not found.strip():
        raise RowError(line, None, key, f"found {'an empty text' if isinstance(found, str) else repr(found)[:40]}; "
                       "expected a text")  # fmt: skip
    return found


def read_limit(values: Mapping[str, object], keys: tuple[str, ...], line: int) -> int | None:
    """Return the answer length under the first of these keys; None without one. Raises RowError."""
    for key in keys:
        found = values.get(key)
        if found is None:
            continue
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST_TOKENS:
            raise RowError(line, None, key, f"found {found!r}; expected a whole number of tokens, 1 to {MOST_TOKENS:,}")
        return found
    return None
