"""The part of lm-eval's task language that a gate can vouch for without code, as types, over rows of one's own.

A task outside it is refused when the suite is read, not when the servers are already under load.


What lm-eval's `exact_match` leaves out before it compares, so that nothing of a target may be left to compare.

Task files over rows of one's own: lm-eval's YAML and JSONL → planned tasks, or every problem with its place.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from benchgate.errors import Problem, SuiteError
from benchgate.plan.evals import PlannedTask
from benchgate.quality.tasks.gated_metric import LOCAL_METRICS, judged_task
from benchgate.suite.formats import Row, parse_rows
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.suite.yaml import Document, Fault, read_text
from benchgate.text_files import RECORDED_BYTES, text_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


_FILTERS = frozenset(
    {"capitalize", "default", "first", "float", "int", "join", "last", "length", "lower", "replace", "string", "title"}
    | {"tojson", "trim", "upper"}
)
_ACTIVE = (nodes.Call, nodes.CallBlock, nodes.Macro, nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSource(_Strict):
    """`dataset_kwargs`: a JSONL file for the split that is judged, and one for few-shot examples."""

    data_files: dict[str, str] = Field(min_length=1, max_length=2)


class Generation(_Strict):
    """How answers are generated: greedy unless each item is asked several times.

    A chat endpoint takes four stop texts; the answer is cut at the others after it came.
    """

    temperature: Annotated[float, Field(ge=0, le=2)]
    until: Annotated[list[str], Field(max_length=16)] | None = None
    max_gen_toks: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    do_sample: bool | None = None


class Metric(_Strict):
    """A score of lm-eval's. The first is judged unless the suite names another."""

    metric: Literal["exact_match", "acc", "acc_norm", "acc_bytes", "acc_mutual_info", "bleu", "chrf", "chrf++"]
    aggregation: Literal["mean", "bleu", "chrf", "chrf++"] | None = None
    higher_is_better: Literal[True] = True
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_numbers: bool = False
    regexes_to_ignore: list[str] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        proper = self.metric if self.metric in ("bleu", "chrf", "chrf++") else "mean"
        if self.aggregation not in (None, proper):
            raise ValueError(f"{self.metric} is aggregated by `{proper}`")
        ignoring = self.ignore_case or self.ignore_punctuation or self.ignore_numbers or self.regexes_to_ignore
        if ignoring and self.metric != "exact_match":
            raise ValueError("what is ignored is said of exact_match alone")
        return self


class FilterStep(_Strict):
    """One step between the answer and its comparison, with that step's own parameters."""

    model_config = ConfigDict(extra="allow")

    function: Literal["regex", "multi_choice_regex", "remove_whitespace", "lowercase", "uppercase", "map", "take_first"]
    regex_pattern: str | None = None

    @field_validator("regex_pattern")
    @classmethod
    def _is_a_pattern(cls, found: str | None) -> str | None:
        try:
            re.compile(found or "")
        except re.error as exc:
            raise ValueError(f"is no pattern: {exc}") from exc
        return found


class FilterPipeline(_Strict):
    """Named steps in order. The first pipeline is judged unless the suite names another."""

    name: str
    filter: list[FilterStep] = Field(min_length=1)


class Examples(_Strict):
    """Where few-shot examples come from: drawn by the seed, or the first ones; or written out here."""

    sampler: Literal["default", "first_n"] = "default"
    samples: list[dict[str, Any]] | None = Field(default=None, min_length=1)


class TaskFile(_Strict):
    """One task file. Keys and their meaning are lm-eval's; what is not here is refused."""

    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    dataset_path: Literal["json"]
    dataset_kwargs: DataSource
    test_split: str
    fewshot_split: str | None = None
    output_type: Literal["generate_until", "multiple_choice", "loglikelihood"]
    doc_to_text: str
    doc_to_target: str
    doc_to_choice: str | list[str] | None = None
    generation_kwargs: Generation | None = None
    metric_list: list[Metric] = Field(min_length=1)
    filter_list: list[FilterPipeline] | None = Field(default=None, min_length=1)
    description: str = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    num_fewshot: Annotated[int, Field(ge=0, le=64)] = 0
    fewshot_config: Examples | None = None
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    metadata: dict[str, Any] | None = None


KEYS = tuple(
    {
        key
        for model in (TaskFile, DataSource, Generation, Metric, FilterPipeline, Examples)
        for key in model.model_fields
    }
)
"""Every key of the language, for naming the nearest one."""


def contradictions(spec: TaskFile) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What keys of a task file say against each other, and where."""
    for number, metric in enumerate(spec.metric_list):
        fitting = LOCAL_METRICS[spec.output_type]
        if metric.metric not in fitting:
            yield ("metric_list", number, "metric"), f"{spec.output_type} has no {metric.metric}; use {listed(fitting)}"
    if spec.output_type == "generate_until":
        if spec.generation_kwargs is None:
            yield ("generation_kwargs",), "is missing; write {temperature: 0} at least"
        if spec.doc_to_choice is not None:
            yield ("doc_to_choice",), "options belong to `output_type: multiple_choice`"
    else:
        if spec.generation_kwargs is not None or spec.filter_list is not None or spec.repeats > 1:
            given = next(k for k in ("generation_kwargs", "filter_list", "repeats") if k in spec.model_fields_set)
            yield (given,), "nothing is generated here; leave it out"
        if spec.output_type == "multiple_choice" and spec.doc_to_choice is None:
            yield ("doc_to_choice",), "is missing; name the column with the options, or list them"
    splits = spec.dataset_kwargs.data_files
    if spec.test_split not in splits:
        yield ("test_split",), f"`data_files` has no split {spec.test_split!r}; it has {listed(splits)}"
    if spec.fewshot_split is not None and spec.fewshot_split not in splits:
        yield ("fewshot_split",), f"`data_files` has no split {spec.fewshot_split!r}; it has {listed(splits)}"
    for split in splits.keys() - {spec.test_split, spec.fewshot_split}:
        yield ("dataset_kwargs", "data_files", split), "is neither the `test_split` nor the `fewshot_split`; remove it"


def template_fault(text: str, columns: frozenset[str]) -> str | None:
    """What is wrong with a `doc_to_text` or `doc_to_target` over rows with these columns; None when nothing is.

    It is the name of a column, or a Jinja template that mentions at least one. lm-eval renders templates unguarded, so
    nothing that calls or loads is let through.
    """
    if text in columns:
        return None
    try:
        tree = Environment(autoescape=False).parse(text)
    except TemplateSyntaxError as exc:
        return f"not a template: {exc.message}"
    names = meta.find_undeclared_variables(tree)
    if not names:
        return f"{text!r} is neither a column of the rows ({listed(columns)}) nor a template with one, like {{{{id}}}}"
    if unknown := names - columns:
        return f"the rows have no {listed(unknown)}; their columns are {listed(columns)}"
    filters = {node.name for node in tree.find_all(nodes.Filter)} - _FILTERS
    if filters:
        return f"the filter {listed(filters)} is not allowed in a task; use {listed(_FILTERS)}"
    if next(tree.find_all(_ACTIVE), None) is not None:
        return "calls, macros and imports are not allowed in a task; use columns, literals, conditions and filters"
    return None


def target_fault(text: str, row: Mapping[str, object], metric: Mapping[str, Any]) -> str | None:
    """What is wrong with the target that a sound `doc_to_target` gives for a row; None when nothing is.

    An empty target would let an empty answer count as right, and one of which `metric`, the judged `exact_match`,
    ignores all would let any answer of that kind. A target that looks like a list is one to lm-eval, which
    then compares the answer with something else than the text that stands there.
    """
    try:
        target = _rendered(text, row)
    except ValueError as exc:
        return str(exc)
    if not isinstance(target, str) or not target.strip():
        return f"the target is {target!r}, not a text to match"
    if target.startswith("[") and target.endswith("]"):
        return (
            f"the target {target[:60]!r} looks like a list, which lm-eval would read and not match as it stands; "
            "write targets without the outer brackets"
        )
    try:
        ignored = nothing_left([target], metric) is not None
    except ValueError as exc:
        return str(exc)
    return IGNORED.format(target[:60]) if ignored else None


def options_of(choice: str | list[str], row: Mapping[str, object]) -> list[str]:
    """The options of a row; ValueError for fewer than two, an empty one, or one that stands twice."""
    found = row.get(choice) if isinstance(choice, str) else choice
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"the options are {str(found)[:60]}, not a list of two texts or more")
    if len(set(found)) != len(found):
        raise ValueError(f"the options {str(found)[:60]} hold one twice")
    return found


def option_fault(text: str, choice: str | list[str], row: Mapping[str, object]) -> str | None:
    """What is wrong with a row of multiple choice: its options, or the target that is to be one of them."""
    try:
        options = options_of(choice, row)
        target = _rendered(text, row)
    except ValueError as exc:
        return str(exc)
    if isinstance(target, str) and target.isdigit() and text not in row:
        target = ast.literal_eval(target.lstrip("0") or "0")  # as lm-eval reads a template
    if isinstance(target, bool) or not isinstance(target, int | str):
        return f"the target is {target!r}, neither the number of an option nor its text"
    if isinstance(target, int) and not 0 <= target < len(options):
        return f"the target is option {target}, and there are {len(options)}, counted from 0"
    if isinstance(target, str) and target not in options:
        return f"the target {target[:60]!r} is none of the options"
    return None


def _rendered(text: str, row: Mapping[str, object]) -> object:
    if text in row:
        return row[text]
    try:
        return _TARGETS.from_string(text).render(row)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as exc:
        raise ValueError(f"the target cannot be rendered: {exc}") from exc


IGNORED = "nothing is left of the target {!r} once what the metric ignores is taken out, so other answers are right too"

_TARGETS = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # as lm-eval


def listed(names: Iterable[str]) -> str:
    """`a`, `b`, in order of the alphabet."""
    return ", ".join(f"`{name}`" for name in sorted(names))


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


def exact_match_of(metrics: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The `exact_match` of a `metric_list`, the last one as lm-eval has it; empty where there is none."""
    found = [metric for metric in metrics if metric.get("metric") == "exact_match"]
    return found[-1] if found else {}


def compared(text: str, metric: Mapping[str, Any]) -> str:
    """What is compared of an answer or a target, as `exact_match` has it but for its case.

    ValueError for a pattern of `regexes_to_ignore` that is none.
    """
    for pattern in metric.get("regexes_to_ignore") or ():
        try:
            text = re.sub(pattern, "", text)
        except re.error as exc:
            raise ValueError(f"`regexes_to_ignore` has {pattern!r}, which is no pattern: {exc}") from exc
    if metric.get("ignore_punctuation"):
        text = text.translate(_PUNCTUATION)
    return text.translate(_DIGITS) if metric.get("ignore_numbers") else text


def nothing_left(targets: Sequence[str], metric: Mapping[str, Any]) -> str | None:
    """The first of a row's right answers of which nothing is left that tells it from others; None where something is.

    Of a text with letters or digits one must be left. Beside others, a right answer of signs alone may go: what matches
    it then has neither letter nor digit. ValueError as for `compared`.
    """
    emptied = [target for target in targets if _says_nothing(target, compared(target, metric))]
    if len(emptied) == len(targets):
        return next(iter(emptied), None)
    return next((target for target in emptied if _speaks(target)), None)


def _says_nothing(target: str, left: str) -> bool:
    return not left.strip() or (_speaks(target) and not _speaks(left))


def _speaks(text: str) -> bool:
    return any(map(str.isalnum, text))


_DATA_KEYS = frozenset({"dataset_path", "dataset_kwargs"})
_TEMPLATES = ("doc_to_text", "doc_to_target", "description")
_KNOWN_KEYS = f"the keys of a task are {', '.join(TaskFile.model_fields)}"
_SHOWN_CHARACTERS = 300


def read_file(path: Path, entry: TaskEntry, quality: Quality) -> tuple[list[PlannedTask], list[Problem]]:
    """The task of a file, unless something is wrong with it or its rows; and all that is."""
    text, faults = file_text(path, "a task of `quality.tasks`")
    if text is None:
        return [], faults
    try:
        document = read_text(text, str(path))
    except SuiteError as exc:
        return [], exc.problems
    if document.problems:
        return [], document.problems
    try:
        spec = TaskFile.model_validate(document.data)
    except ValidationError as exc:
        return [], [_from_pydantic(document, error) for error in exc.errors()]
    if faults := [document.problem(Fault(place, message)) for place, message in contradictions(spec)]:
        return [], faults
    task, faults = _with_rows(document, spec, path, entry, quality)
    return [] if task is None else [task], faults


def _with_rows(
    document: Document, spec: TaskFile, path: Path, entry: TaskEntry, quality: Quality
) -> tuple[PlannedTask | None, list[Problem]]:
    rows, problems = _rows(spec, spec.test_split, path)
    apart = spec.fewshot_split not in (None, spec.test_split)
    shots, faults = _rows(spec, str(spec.fewshot_split), path) if apart else ([], [])
    problems += faults
    mistaken = [
        fault
        for found in (rows, shots)
        if found
        for fault in _template_problems(document, spec, frozenset(found[0].values))
    ]
    if not rows or problems:
        return None, problems + mistaken
    if not mistaken:
        source = normpath(path.parent / spec.dataset_kwargs.data_files[spec.test_split])
        mistaken = _target_problems(rows, source, spec, entry.metric or spec.metric_list[0].metric)
    config = _lm_eval_config(document, spec, entry, quality)
    if (problem := _examples_problem(spec, config, len(shots) if apart else len(rows) - 1)) is not None:
        asked_here = entry.few_shot is None and quality.few_shot is None
        at_file = document.problem(Fault(("num_fewshot",), problem))
        mistaken.append(at_file if asked_here else _of_the_entry(problem, document, entry, quality))
    if mistaken:
        return None, mistaken
    # The suite names a task by its file; the name inside is lm-eval's own.
    made = judged_task(entry.name, config, tuple(row.values for row in rows), entry, quality)
    if isinstance(made, str):
        return None, [_of_the_entry(made, document, entry, quality)]
    chance = _chance(spec, rows) if spec.output_type == "multiple_choice" else None
    return replace(made, shots=tuple(row.values for row in shots), chance=chance), []


def _of_the_entry(message: str, document: Document, entry: TaskEntry, quality: Quality) -> Problem:
    """Where the suite says more of a task than its name, a mistake in how it is judged stands there."""
    if all(getattr(entry, key) is None for key in ("few_shot", "filter", "metric", "cluster", "scale")) and (
        quality.few_shot is None
    ):
        return document.problem(Fault((), message))
    number = quality.tasks.index(entry)
    return Problem("", None, None, f"quality.tasks[{number}]", f"{entry.task}: {message}")


def _lm_eval_config(document: Document, spec: TaskFile, entry: TaskEntry, quality: Quality) -> dict[str, object]:
    """The task as lm-eval takes it, with what the suite says of it; rows are handed over beside it."""
    config: dict[str, object] = {key: value for key, value in document.data.items() if key not in _DATA_KEYS}
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    if few_shot is not None and few_shot != spec.num_fewshot:
        config["num_fewshot"] = few_shot
    if entry.max_tokens is not None and spec.generation_kwargs is not None:
        config["generation_kwargs"] = {**document.data["generation_kwargs"], "max_gen_toks": entry.max_tokens}  # type: ignore[dict-item]  # a mapping: it was read as one
    return config


def _examples_problem(spec: TaskFile, config: dict[str, object], there: int) -> str | None:
    """Why as many few-shot examples as are asked for cannot be shown."""
    asked = int(str(config.get("num_fewshot") or 0))
    samples = spec.fewshot_config.samples if spec.fewshot_config else None
    if asked == 0:
        return None
    if spec.fewshot_split is None and samples is None:
        return f"{asked} examples are asked for; say where from: `fewshot_split`, or `fewshot_config: {{samples: […]}}`"
    known = there if spec.fewshot_split is not None else len(samples or ())
    return f"{asked} examples are asked for, and there are {known}" if asked > known else None


def _rows(spec: TaskFile, split: str, path: Path) -> tuple[list[Row], list[Problem]]:
    data_path = Path(normpath(path.parent / spec.dataset_kwargs.data_files[split]))
    text, problems = file_text(data_path, f"the `data_files` of {path.name}")
    if text is None:
        return [], problems
    rows, problems = parse_rows(text, str(data_path))
    if not rows and all(problem.line is None for problem in problems):
        where = f"it is named as the `data_files` of {path.name}"
        problems = [replace(problem, message=f"{problem.message}; {where}") for problem in problems]
    if rows:
        problems += _shape_problems(rows, str(data_path))
    return rows, problems


def file_text(path: Path, what: str) -> tuple[str | None, list[Problem]]:
    """The text of a file, or why there is none; `what` says where it is named."""
    try:
        return text_of(path, RECORDED_BYTES), []
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        return None, [Problem(str(path), None, None, "", f"cannot be read ({reason}); it is named as {what}")]


def _shape_problems(rows: Sequence[Row], source: str) -> list[Problem]:
    """Rows must look like the first one: same keys, same types."""
    shape = {key: type(value) for key, value in rows[0].values.items()}
    problems = []
    for row in rows:
        for key in shape.keys() ^ row.values.keys():
            has, lacks = ("the first row", "this one") if key in shape else ("this row", "the first")
            problems.append(Problem(source, row.line, None, key, f"{has} has this key and {lacks} has not"))
        for key, value in row.values.items():
            if key in shape and type(value) is not shape[key]:
                expected, found = shape[key].__name__, type(value).__name__
                problems.append(Problem(source, row.line, None, key, f"is {found}, but {expected} in the first row"))
    return problems


def _target_problems(rows: Sequence[Row], source: str, spec: TaskFile, judged: str) -> list[Problem]:
    target = spec.doc_to_target
    place = target if target in rows[0].values else "doc_to_target"
    if spec.output_type == "multiple_choice" and spec.doc_to_choice is not None:
        faults = [(row, option_fault(target, spec.doc_to_choice, row.values)) for row in rows]
    else:
        metric = exact_match_of(one.model_dump() for one in spec.metric_list if one.metric == judged)
        faults = [(row, target_fault(target, row.values, metric)) for row in rows]
    return [Problem(source, row.line, None, place, fault) for row, fault in faults if fault is not None]


def _chance(spec: TaskFile, rows: Sequence[Row]) -> float:
    """What guessing among the options scores on average."""
    options = [len(options_of(spec.doc_to_choice or [], row.values)) for row in rows]
    return sum(1 / number for number in options) / len(options)


def _template_problems(document: Document, spec: TaskFile, columns: frozenset[str]) -> list[Problem]:
    texts = [(key, getattr(spec, key)) for key in _TEMPLATES if key != "description" or "{" in spec.description]
    faults = [(key, template_fault(text, columns)) for key, text in texts]
    return [document.problem(Fault((key,), fault)) for key, fault in faults if fault is not None]


def _from_pydantic(document: Document, error: ErrorDetails) -> Problem:
    """pydantic's finding at its place in the file; an unknown key comes with the nearest known one."""
    path = error["loc"]
    if error["type"] == "extra_forbidden":
        near = get_close_matches(str(path[-1]), KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else _KNOWN_KEYS
        return document.problem(Fault(path, f"unknown key; {hint}", at_key=True))
    found = "" if error["type"] == "missing" else f", found {error['input']!r}"
    return document.problem(Fault(path, f"{_in_words(error)}{found}"[:_SHOWN_CHARACTERS]))


def _in_words(error: ErrorDetails) -> str:
    """The finding without the words that are only pydantic's own."""
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "literal_error":
        return f"expected {error['ctx']['expected']}"
    return error["msg"].removeprefix("Value error, ")
