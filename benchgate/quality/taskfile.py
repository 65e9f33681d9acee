"""The part of lm-eval's task language that a gate can vouch for, as types: greedy text, exact match, local rows.

A task outside it is refused when the suite is read, not when the servers are already under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jinja2 import Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

_FILTERS = frozenset(
    {"capitalize", "default", "first", "float", "int", "join", "last", "length", "lower", "replace", "string", "title"}
    | {"tojson", "trim", "upper"}
)
_ACTIVE = (nodes.Call, nodes.CallBlock, nodes.Macro, nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSource(_Strict):
    """`dataset_kwargs`: one JSONL file under the name of the test split."""

    data_files: dict[str, str] = Field(min_length=1, max_length=1)


class Generation(_Strict):
    """How answers are generated: greedy, with at most the four stop texts that a chat endpoint takes."""

    temperature: Annotated[float, Field(ge=0, le=0)]
    until: Annotated[list[str], Field(max_length=4)] | None = None
    max_gen_toks: Annotated[int, Field(ge=1)] | None = None
    do_sample: Literal[False] = False


class ExactMatch(_Strict):
    """The only metric: an answer is right or wrong."""

    metric: Literal["exact_match"]
    aggregation: Literal["mean"] = "mean"
    higher_is_better: Literal[True] = True
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_numbers: bool = False
    regexes_to_ignore: list[str] | None = None


class FilterStep(_Strict):
    """One step between the answer and its comparison, with that step's own parameters."""

    model_config = ConfigDict(extra="allow")

    function: Literal["regex", "remove_whitespace", "lowercase", "uppercase", "take_first"]


class FilterPipeline(_Strict):
    """Named steps in order; one pipeline, so that an item has one score."""

    name: str
    filter: list[FilterStep] = Field(min_length=1)


class TaskFile(_Strict):
    """One task file. Keys and their meaning are lm-eval's; what is not here is refused."""

    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    dataset_path: Literal["json"]
    dataset_kwargs: DataSource
    test_split: str
    output_type: Literal["generate_until"]
    doc_to_text: str
    doc_to_target: str
    generation_kwargs: Generation
    metric_list: list[ExactMatch] = Field(min_length=1, max_length=1)
    filter_list: list[FilterPipeline] | None = Field(default=None, min_length=1, max_length=1)
    description: str = ""
    num_fewshot: Literal[0] = 0
    repeats: Literal[1] = 1
    metadata: dict[str, Any] | None = None


KEYS = tuple(
    {key for model in (TaskFile, DataSource, Generation, ExactMatch, FilterPipeline) for key in model.model_fields}
)
"""Every key of the language, for naming the nearest one."""


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
        return f"{text!r} is neither a column of the rows ({_listed(columns)}) nor a template with one, like {{{{id}}}}"
    if unknown := names - columns:
        return f"the rows have no {_listed(unknown)}; their columns are {_listed(columns)}"
    filters = {node.name for node in tree.find_all(nodes.Filter)} - _FILTERS
    if filters:
        return f"the filter {_listed(filters)} is not allowed in a task; use {_listed(_FILTERS)}"
    if next(tree.find_all(_ACTIVE), None) is not None:
        return "calls, macros and imports are not allowed in a task; use columns, literals, conditions and filters"
    return None


def target_fault(text: str, row: Mapping[str, object]) -> str | None:
    """What is wrong with the target that a sound `doc_to_target` gives for a row; None when nothing is.

    An empty target would let an empty answer count as right. A target that looks like a list is one to lm-eval, which
    then compares the answer with something else than the text that stands there.
    """
    if text in row:
        target = row[text]
    else:
        try:
            target = _TARGETS.from_string(text).render(row)
        except (TemplateError, TypeError, ValueError, ArithmeticError) as exc:
            return f"the target cannot be rendered: {exc}"
    if not isinstance(target, str) or not target.strip():
        return f"the target is {target!r}, not a text to match"
    if target.startswith("[") and target.endswith("]"):
        return (
            f"the target {target[:60]!r} looks like a list, which lm-eval would read and not match as it stands; "
            "write targets without the outer brackets"
        )
    return None


_TARGETS = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # as lm-eval


def _listed(names: frozenset[str] | set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
