"""Task files: the subset of lm-eval's YAML that a gate can judge without code, over JSONL rows.

Anything outside it is refused when the suite is read, before the servers are under load.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from benchgate.errors import Problem, SuiteError
from benchgate.model.records import INVALID_CHOICE
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.gated_metric import LOCAL_METRICS, can_be_guessed, gated_task
from benchgate.suite.formats import Row, parse_rows
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.suite.yaml import Document, Fault, read_text
from benchgate.system import RECORDED_BYTES, read_text_file

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_JINJA_FILTERS = frozenset(
    {"capitalize", "default", "first", "float", "int", "join", "last", "length", "lower", "replace", "string", "title"}
    | {"tojson", "trim", "upper"}
)
_FORBIDDEN_NODES = (
    nodes.Call, nodes.CallBlock, nodes.Macro, nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends,
)  # fmt: skip
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)
_TARGETS = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # as lm-eval
_template = lru_cache(maxsize=8)(_TARGETS.from_string)
_DATA_KEYS = frozenset({"dataset_path", "dataset_kwargs"})
_SHOWN_CHARACTERS = 300


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSource(_Strict):
    """`dataset_kwargs`: a JSONL file for the test split, and one for few-shot examples."""

    data_files: dict[str, str] = Field(min_length=1, max_length=2)


class Generation(_Strict):
    """Generation settings: greedy unless each item is repeated. Answers are cut at stops beyond a chat's four."""

    temperature: Annotated[float, Field(ge=0, le=2)]
    until: Annotated[list[str], Field(max_length=16)] | None = None
    max_gen_toks: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    do_sample: bool | None = None


class Metric(_Strict):
    """A metric of lm-eval's. The first one is gated unless the suite names another."""

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
            raise ValueError("only exact_match may have characters to ignore")
        return self


class FilterStep(_Strict):
    """A step of a filter, with its parameters. `filter_faults` refuses those of other functions."""

    model_config = ConfigDict(extra="allow")

    function: Literal["regex", "multi_choice_regex", "remove_whitespace", "lowercase", "uppercase", "map", "take_first"]
    regex_pattern: str | None = None
    group_select: int = 0
    fallback: str = INVALID_CHOICE
    ignore_case: bool = False
    ignore_punctuation: bool = False
    regexes_to_ignore: list[str] | None = None
    mapping_dict: Annotated[dict[str, str], Field(min_length=1)] | None = None
    default_value: str | None = None

    @field_validator("regex_pattern")
    @classmethod
    def _is_a_pattern(cls, found: str | None) -> str | None:
        try:
            re.compile(found or "")
        except re.error as exc:
            raise ValueError(f"is no pattern: {exc}") from exc
        return found


_EXTRACTION_PARAMETERS = ("regex_pattern", "group_select", "fallback")
_FILTER_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "regex": _EXTRACTION_PARAMETERS,
    "multi_choice_regex": (*_EXTRACTION_PARAMETERS, "ignore_case", "ignore_punctuation", "regexes_to_ignore"),
    "map": ("mapping_dict", "default_value"),
}


class FilterPipeline(_Strict):
    """Named filter steps in order. The first pipeline is gated unless the suite names another."""

    name: str
    filter: list[FilterStep] = Field(min_length=1)


class Examples(_Strict):
    """Source of few-shot examples: drawn by the seed, the first ones, or listed here."""

    sampler: Literal["default", "first_n"] = "default"
    samples: list[dict[str, Any]] | None = Field(default=None, min_length=1)


class TaskFile(_Strict):
    """A task file. Keys mean what they mean in lm-eval; other keys are refused."""

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


# Every key, for suggesting the nearest one.
KEYS = tuple(
    {
        key
        for model in (TaskFile, DataSource, Generation, Metric, FilterPipeline, Examples)
        for key in model.model_fields
    }
)


def contradictions(spec: TaskFile) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield contradictions between the keys of a task file, each with its place."""
    for number, metric in enumerate(spec.metric_list):
        fitting = LOCAL_METRICS[spec.output_type]
        if metric.metric not in fitting:
            yield ("metric_list", number, "metric"), f"{spec.output_type} has no {metric.metric}; use {listed(fitting)}"
    if spec.output_type == "generate_until":
        if spec.generation_kwargs is None:
            yield ("generation_kwargs",), "is missing; write {temperature: 0, until: []} at least"
        elif spec.generation_kwargs.until is None:  # lm-eval would take the `fewshot_delimiter`, a blank line
            what = "is missing, and lm-eval would end every answer at its first blank line"
            yield ("generation_kwargs", "until"), f"{what}; list the stop texts, or write `until: []` for none"
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


def filter_faults(spec: TaskFile) -> Iterator[Fault]:
    """Yield the parameters that a filter step does not have, and those of `map` that are missing.

    lm-eval's own default of `map` makes answers None, which its metrics do not take for wrong.
    """
    for number, pipeline in enumerate(spec.filter_list or ()):
        for place, step in enumerate(pipeline.filter):
            known = _FILTER_PARAMETERS.get(step.function, ())
            given = {*step.model_fields_set, *(step.model_extra or ())} - {"function"}
            where = ("filter_list", number, "filter", place)
            for name in sorted(given - set(known)):
                near = get_close_matches(name, known, n=1)
                has = f"it has {listed(known)}" if known else "it has none; remove it"
                hint = f"did you mean `{near[0]}`?" if near else has
                yield Fault((*where, name), f"unknown parameter of `{step.function}`; {hint}", at_key=True)
            if step.function == "map":
                uses = {"mapping_dict": "the answers and what each stands for", "default_value": "a text for others"}
                for name, use in uses.items():
                    if getattr(step, name) is None:
                        yield Fault((*where, name), f"is missing; give {use}")


def template_fault(text: str, columns: frozenset[str], *, constant: bool = False) -> str | None:
    """Return the fault of a `doc_to_text`, `doc_to_target` or `description` over rows with these columns, or None.

    It must be a column's name or a Jinja template, with at least one column unless it may be `constant`. lm-eval
    renders templates outside a sandbox, so calls, macros and imports are refused.
    """
    if text in columns:
        return None
    try:
        tree = Environment(autoescape=False).parse(text)
        filters = {node.name for node in tree.find_all(nodes.Filter)} - _JINJA_FILTERS
        names = set() if filters else meta.find_undeclared_variables(tree)  # which compiles it
    except TemplateSyntaxError as exc:
        return f"not a template: {str(exc.message).partition(chr(10))[0]}"
    except RecursionError:
        return "not a template: it is nested too deeply"
    if filters:
        return f"the filter {listed(filters)} is not allowed in a task; use {listed(_JINJA_FILTERS)}"
    if not names and not constant:
        return f"{text!r} is neither a column of the rows ({listed(columns)}) nor a template with one, like {{{{id}}}}"
    if unknown := names - columns:
        return f"the rows have no {listed(unknown)}; their columns are {listed(columns)}"
    if next(tree.find_all(_FORBIDDEN_NODES), None) is not None:
        return "calls, macros and imports are not allowed in a task; use columns, literals, conditions and filters"
    return None


def target_fault(text: str, row: Mapping[str, object], metric: Mapping[str, Any]) -> str | None:
    """Return the fault of a row's target under a gated `exact_match`, or None.

    An empty target would accept an empty answer. lm-eval parses a target that looks like a list, and then compares
    something else than its text.
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
    return ignored_target_fault([target], metric)


def options_of(choice: str | list[str], row: Mapping[str, object]) -> list[str]:
    """Return the options of a row. Raises ValueError for fewer than two, an empty or a duplicate one."""
    found = row.get(choice) if isinstance(choice, str) else choice
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(one, str) and one for one in found):
        raise ValueError(f"the options are {str(found)[:60]}, not a list of two texts or more")
    if len(set(found)) != len(found):
        raise ValueError(f"the options {str(found)[:60]} hold one twice")
    return found


def option_fault(text: str, choice: str | list[str], row: Mapping[str, object]) -> str | None:
    """Return the fault of a multiple-choice row, in its options or in the target among them, or None."""
    try:
        options = options_of(choice, row)
        target = _rendered(text, row)
    except ValueError as exc:
        return str(exc)
    if isinstance(target, str) and target.isdigit() and text not in row:
        try:  # as lm-eval does with a rendered template
            number = int(ast.literal_eval(target))
        except (SyntaxError, ValueError):
            return f"the target {target[:60]!r} is no number that lm-eval reads; write it as 0, 1, 2, …"
        if target in options and (number >= len(options) or options[number] != target):
            other = f"which is {options[number]!r}" if number < len(options) else f"and there are {len(options)}"
            way = "make `doc_to_target` a column: of option numbers, or of texts"
            return f"lm-eval takes the target {target!r} for option {number}, {other}, counted from 0; {way}"
        target = number
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
        return _template(text).render(row)
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as exc:
        raise ValueError(f"the target cannot be rendered: {exc}") from exc


def exact_match_of(metrics: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last `exact_match` of a `metric_list`, as lm-eval does. Empty without one."""
    found = [metric for metric in metrics if metric.get("metric") == "exact_match"]
    return found[-1] if found else {}


def ignored_target_fault(targets: Sequence[str], metric: Mapping[str, Any]) -> str | None:
    """Return the fault of a row's targets that are empty after the normalisation of `exact_match`, or None.

    Of a target with letters or digits, one must be left. Beside others, a target of punctuation alone may be emptied:
    answers that match it then have neither letters nor digits.
    """
    emptied = []
    for target in targets:
        left = target
        for pattern in metric.get("regexes_to_ignore") or ():
            try:
                left = re.sub(pattern, "", left)
            except re.error as exc:
                return f"`regexes_to_ignore` has {pattern!r}, which is no pattern: {exc}"
        if metric.get("ignore_punctuation"):
            left = left.translate(_PUNCTUATION)
        if metric.get("ignore_numbers"):
            left = left.translate(_DIGITS)
        if not left.strip() or (_has_alphanumeric(target) and not _has_alphanumeric(left)):
            emptied.append(target)
    if len(emptied) < len(targets):
        emptied = list(filter(_has_alphanumeric, emptied))
    if not emptied:
        return None
    ignored = f"nothing is left of the target {emptied[0][:60]!r} once what the metric ignores is taken out"
    return f"{ignored}, so other answers are right too"


def _has_alphanumeric(text: str) -> bool:
    return any(map(str.isalnum, text))


def listed(names: Iterable[str]) -> str:
    """Join names in alphabetical order, in backticks."""
    return ", ".join(f"`{name}`" for name in sorted(names))


def read_task_file(path: Path, entry: TaskEntry, quality: Quality) -> tuple[list[PlannedTask], list[Problem]]:
    """Return the task of a file, or every problem of it and its rows."""
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
        return [], [_schema_problem(document, error) for error in exc.errors()]
    found = [*(Fault(place, message) for place, message in contradictions(spec)), *filter_faults(spec)]
    if found:
        return [], [document.problem(fault) for fault in found]
    task, faults = _with_rows(document, spec, path, entry, quality)
    return [] if task is None else [task], faults


def _with_rows(
    document: Document, spec: TaskFile, path: Path, entry: TaskEntry, quality: Quality
) -> tuple[PlannedTask | None, list[Problem]]:
    rows, problems = _rows(spec, spec.test_split, path)
    own_shots = spec.fewshot_split not in (None, spec.test_split)
    shots, shot_problems = _rows(spec, str(spec.fewshot_split), path) if own_shots else ([], [])
    problems += shot_problems
    template_problems = [
        problem
        for found in (rows, shots)
        if found
        for problem in _template_problems(document, spec, frozenset(found[0].values))
    ]
    if not rows or problems:
        return None, problems + template_problems
    problems = template_problems or _target_problems(rows, path, spec, entry.metric or spec.metric_list[0].metric)
    problems = problems or _fallback_problems(document, spec, rows, path, entry.filter)
    config: dict[str, object] = {key: value for key, value in document.data.items() if key not in _DATA_KEYS}
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    if few_shot is not None and few_shot != spec.num_fewshot:
        config["num_fewshot"] = few_shot
    if entry.max_tokens is not None and spec.generation_kwargs is not None:
        config["generation_kwargs"] = {**document.data["generation_kwargs"], "max_gen_toks": entry.max_tokens}  # type: ignore[dict-item]  # a mapping: it was read as one
    if (fault := _examples_fault(spec, config, len(shots) if own_shots else len(rows) - 1)) is not None:
        from_file = entry.few_shot is None and quality.few_shot is None
        in_file = document.problem(Fault(("num_fewshot",), fault))
        problems.append(in_file if from_file else _entry_problem(fault, document, entry, quality))
    if problems:
        return None, problems
    # The suite names a task by its file; the name in the file is lm-eval's.
    task = gated_task(entry.name, config, tuple(row.values for row in rows), entry, quality)
    if isinstance(task, str):
        return None, [_entry_problem(task, document, entry, quality)]
    guesses: tuple[float, ...] = ()
    if spec.output_type == "multiple_choice" and can_be_guessed(task.metric):
        guesses = tuple(1 / len(options_of(spec.doc_to_choice or [], row.values)) for row in rows)
    return replace(task, shots=tuple(row.values for row in shots), guesses=guesses), []


def _entry_problem(message: str, document: Document, entry: TaskEntry, quality: Quality) -> Problem:
    # A mistake in how the task is gated is the suite's if it has keys for the task, else the file's.
    if all(getattr(entry, key) is None for key in ("few_shot", "filter", "metric", "cluster", "scale")) and (
        quality.few_shot is None
    ):
        return document.problem(Fault((), message))
    number = quality.tasks.index(entry)
    return Problem("", None, None, f"quality.tasks[{number}]", f"{entry.task}: {message}")


def _examples_fault(spec: TaskFile, config: dict[str, object], available: int) -> str | None:
    count = int(str(config.get("num_fewshot") or 0))
    samples = spec.fewshot_config.samples if spec.fewshot_config else None
    if count == 0:
        return None
    if spec.fewshot_split is None and samples is None:
        sources = "`fewshot_split`, or `fewshot_config: {samples: […]}`"
        return f"{count} examples are requested; name their source: {sources}"
    known = available if spec.fewshot_split is not None else len(samples or ())
    return f"{count} examples are requested, and there are {known}" if count > known else None


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
        source, shape = str(data_path), {key: type(value) for key, value in rows[0].values.items()}
        for row in rows:
            for key in shape.keys() ^ row.values.keys():
                has, lacks = ("the first row", "this one") if key in shape else ("this row", "the first")
                problems.append(Problem(source, row.line, None, key, f"{has} has this key and {lacks} has not"))
            for key, value in row.values.items():
                if key in shape and type(value) is not shape[key]:
                    message = f"is {type(value).__name__}, but {shape[key].__name__} in the first row"
                    problems.append(Problem(source, row.line, None, key, message))
    return rows, problems


def file_text(path: Path, referrer: str) -> tuple[str | None, list[Problem]]:
    """Return the text of a file, or its problem; `referrer` is where the file is named."""
    try:
        return read_text_file(path, RECORDED_BYTES), []
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        return None, [Problem(str(path), None, None, "", f"cannot be read ({reason}); it is named as {referrer}")]


def _target_problems(rows: Sequence[Row], path: Path, spec: TaskFile, gated_metric: str) -> list[Problem]:
    source = normpath(path.parent / spec.dataset_kwargs.data_files[spec.test_split])
    target = spec.doc_to_target
    place = target if target in rows[0].values else "doc_to_target"
    if spec.output_type == "multiple_choice" and spec.doc_to_choice is not None:
        faults = [(row, option_fault(target, spec.doc_to_choice, row.values)) for row in rows]
    else:
        metric = exact_match_of(one.model_dump() for one in spec.metric_list if one.metric == gated_metric)
        faults = [(row, target_fault(target, row.values, metric)) for row in rows]
    return [Problem(source, row.line, None, place, fault) for row, fault in faults if fault is not None]


def _fallback_problems(
    document: Document, spec: TaskFile, rows: Sequence[Row], path: Path, gated_filter: str | None
) -> list[Problem]:
    """Refuse texts for unread answers that are targets: unread answers score 0, and so would all of those rows."""
    pipelines = spec.filter_list or []
    gated = gated_filter or next((one.name for one in pipelines), None)
    lines: dict[str, int] = {}
    for row in rows if pipelines else ():
        lines.setdefault(_comparable(str(_rendered(spec.doc_to_target, row.values))), row.line)
    data = spec.dataset_kwargs.data_files[spec.test_split]
    problems = []
    for number, pipeline in enumerate(pipelines):
        for place, step in enumerate(pipeline.filter if pipeline.name == gated else ()):
            for name in ("fallback", "default_value"):
                text = str(getattr(step, name))
                if name in _FILTER_PARAMETERS.get(step.function, ()) and _comparable(text) in lines:
                    first = f"a target, first on line {lines[_comparable(text)]} of {data}"
                    message = f"{text[:60]!r} is {first}, and unread answers score 0; use a text that is no target"
                    problems.append(document.problem(Fault(("filter_list", number, "filter", place, name), message)))
    return problems


def _comparable(text: str) -> str:
    return text.strip().casefold()


def _template_problems(document: Document, spec: TaskFile, columns: frozenset[str]) -> list[Problem]:
    texts = [(key, getattr(spec, key)) for key in ("doc_to_text", "doc_to_target")]
    faults = [(key, template_fault(text, columns)) for key, text in texts]
    if "{" in spec.description:
        faults.append(("description", template_fault(spec.description, columns, constant=True)))
    return [document.problem(Fault((key,), fault)) for key, fault in faults if fault is not None]


def _schema_problem(document: Document, error: ErrorDetails) -> Problem:
    path, kind = error["loc"], error["type"]
    if kind == "extra_forbidden":
        near = get_close_matches(str(path[-1]), KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the keys of a task are {', '.join(TaskFile.model_fields)}"
        return document.problem(Fault(path, f"unknown key; {hint}", at_key=True))
    if kind == "missing":
        return document.problem(Fault(path, "is missing"))
    expected = f"expected {error['ctx']['expected']}" if kind == "literal_error" else error["msg"]
    message = f"{expected.removeprefix('Value error, ')}, found {error['input']!r}"
    return document.problem(Fault(path, message[:_SHOWN_CHARACTERS]))
