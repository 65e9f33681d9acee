"""The part of lm-eval's task language that a gate can vouch for without code, as types, over rows of one's own.

A task outside it is refused when the suite is read, not when the servers are already under load.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from benchgate.quality.ignoring import nothing_left
from benchgate.quality.metrics import LOCAL_METRICS

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
