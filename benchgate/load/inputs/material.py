"""Reads the files that a suite's load names, before any request is sent: everything wrong in them is told at once.

All that a load reads before its plan can be made: traces, prompts, lengths, schemas, pictures, and tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchgate.errors import Problem, SuiteError, TargetError, UsageError
from benchgate.load.inputs.prompts import load_prompts_file
from benchgate.load.inputs.tabular import MOST_PROBLEMS, HeaderError, Row, RowError, beyond, csv_rows, tokens_of
from benchgate.load.inputs.traces import load_traces
from benchgate.model.deployment import Arm
from benchgate.plan.model import NO_MATERIAL, Material, ObservedLengths, RecordedRequest
from benchgate.plan.prompts import data_url, text_tokens
from benchgate.plan.salt import MARK_PIECES
from benchgate.plan.schedule import Traces
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.suite.formats import parse_json, schema_problem
from benchgate.suite.load import Load, TrafficClass
from benchgate.suite.schema import Suite, declared_context_tokens
from benchgate.suite.workload import Lengths
from benchgate.system import RECORDED_BYTES, read_text_file
from benchgate.targets.dialect import target_of
from benchgate.targets.tokenizer import file_vocabulary, server_vocabulary

_T = TypeVar("_T")
_PICTURES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"}
_LARGEST_PICTURE = 20 * 2**20

Vocabularies = Callable[[str, str], Vocabulary]
"""Returns the vocabulary for a workload's tokenizer and kind of text. Raises UsageError."""


def load_material(suite_dir: Path, load: Load, vocabulary: Vocabularies, context_tokens: int | None = None) -> Material:
    """All files of a load but its traces. `context_tokens` is what the deployments hold; None: nobody knows yet.

    Raises SuiteError with the problems of all of them, and UsageError where a tokenizer cannot be had.
    """
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
    """A reading of all the files; `problems` are what was wrong in them so far."""

    def __init__(self, suite_dir: Path, load: Load, context_tokens: int | None) -> None:
        self.problems: list[Problem] = []
        self._classes = load.classes()
        self.workloads = [*(traffic.workload for traffic in self._classes), *load.workloads.values()]
        self._suite_dir = suite_dir
        self._mark_tokens = MARK_PIECES if load.salt else 0
        self._context_tokens = context_tokens

    def each(self, names: set[str], how: Callable[[str, Path], _T]) -> dict[str, _T]:
        """Every file that could be read, by its name."""
        found: dict[str, _T] = {}
        for name in sorted(names):
            try:
                found[name] = how(name, self._suite_dir / name)
            except SuiteError as error:
                self.problems.extend(error.problems)
        return found

    def lengths(self, name: str, path: Path) -> tuple[ObservedLengths, ...]:
        """A file of lengths, of which the columns are read that a workload draws from."""
        columns = {
            column
            for workload in self.workloads
            for column in ("input_tokens", "output_tokens")
            if isinstance(length := getattr(workload, column), Lengths) and length.file == name
        }
        most = self._context_tokens
        return read_lengths(path, columns, most)

    def prompts(self, name: str, path: Path) -> tuple[RecordedRequest, ...]:
        """A file of prompts, held to every class of traffic that uses it."""
        users = [traffic for traffic in self._classes if traffic.workload.prompts == name]
        talks = any(traffic.workload.session is not None for traffic in users)
        rows = load_prompts_file(path, conversing=talks)
        bounds = self._mark_tokens, self._context_tokens
        problems = [p for traffic in users for p in _unfit(path, traffic, rows, *bounds)]
        if problems:
            raise SuiteError(problems[:MOST_PROBLEMS])
        return rows


def read_lengths(path: Path, columns: set[str], context_tokens: int | None = None) -> tuple[ObservedLengths, ...]:
    """The rows of a CSV with the columns `input_tokens` and `output_tokens`, or `tokens` for either.

    Raises SuiteError for what cannot be read, lacks one of `columns`, or is no length.
    """
    source, problems, rows = str(path), list[Problem](), list[ObservedLengths]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for row in csv_rows(file):
                try:
                    found = {column: tokens_of(row, _column(row, column)) for column in sorted(columns)}
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


def _column(row: Row, wanted: str) -> str:
    """The column of a length; a file may have a single one for either."""
    if wanted in row.values or "tokens" not in row.values:
        if wanted not in row.values:
            found = ", ".join(f"`{key}`" for key in list(row.values)[:8])
            raise row.misnamed(wanted, f"is missing; found the columns {found}")
        return wanted
    return "tokens"


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
        if workload.endpoint not in ("chat", "responses") and (len(row.messages) != 1 or row.fields):
            what = f"is a conversation, and {workload.endpoint} take one text; use the endpoint chat, or take it out"
            yield Problem(source, row.line, None, "messages", what)
        turns = sum(message.get("role") == "user" for message in row.messages) if workload.session is not None else 1
        marks = mark_tokens * turns
        tokens_in = sum(text_tokens(message) for message in row.messages) + marks
        tokens_out = row.output_tokens or workload.most_output_tokens or 0
        if context_tokens is not None and tokens_in + tokens_out > context_tokens:
            salt = f", {marks} of them from `salt`," if marks else ""
            what = f"has at least {tokens_in:,} tokens{salt} and asks for {tokens_out:,}{beyond(context_tokens)}"
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
    suite: Suite, suite_dir: Path, environment: Mapping[str, str], *, asking: bool = True
) -> tuple[Traces, Material]:
    """The rows of every trace, and what the other files hold.

    Nothing is sent but, for a workload with `tokenizer: server`, questions to the baseline's tokenizer; without
    `asking` not even those, and texts are then made of the usual words. Raises SuiteError with the problems of all
    files, and UsageError where a tokenizer cannot be had.
    """
    if suite.load is None:
        return {}, NO_MATERIAL
    context_tokens = declared_context_tokens(suite)

    def vocabulary(tokenizer: str, kind: str) -> Vocabulary:
        if tokenizer != _SERVER:
            return file_vocabulary(suite_dir / tokenizer, kind)
        if not asking:
            return VOCABULARIES[kind]
        target = target_of(Arm.BASELINE, suite.deployments[suite.baseline], environment, suite_dir)
        try:
            return server_vocabulary(target, kind)
        except TargetError as exc:
            raise UsageError(f"`tokenizer: server`: {exc}") from exc

    problems, traces, material = [], {}, NO_MATERIAL
    try:
        traces = load_traces(suite_dir, suite.load, context_tokens)
    except SuiteError as error:
        problems += error.problems
    try:
        material = load_material(suite_dir, suite.load, vocabulary, context_tokens)
    except SuiteError as error:
        problems += error.problems
    if problems:
        raise SuiteError(problems)
    return traces, material
