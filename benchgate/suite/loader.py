"""Parser of suites: returns a `Suite`, or reports every problem at once, with line and column. Opens no file.

A suite without checks gets default ones, by what it measures. Few are required, because a candidate that is no worse
must pass all of them. The stored suite holds them, so that a run is judged by those of the day it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from benchgate.errors import SuiteError
from benchgate.model.metric import MEAN, METRICS
from benchgate.suite.checks import Check
from benchgate.suite.load import Load, TrafficClass
from benchgate.suite.messages import faults_of
from benchgate.suite.quality import Quality
from benchgate.suite.rules.base import SECTIONS, valid_part, written_positions
from benchgate.suite.rules.suite import broken_references, broken_rules
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import stage_part
from benchgate.suite.yaml import Fault, Path, Plain, read_text
from benchgate.units import as_written, show_percent, show_points

_NO_DEFAULTS = (
    "what this suite measures has no usual checks, because only its author can say what is enough; write `gate.checks`"
)
_TOO_COARSE = "the usual margin of capacity, 2.5 times this, is not below 100%; write less, or write `gate.checks`"
_HELPERS = ("shadow.judge", "shadow.similarity", "error_budget.spent.prometheus")
_REFERENCES = (
    *(f"deployments.*.{key}" for key in ("api_key", "proxy", "url", "metrics", "gpu", "headers.*", "ready.metrics.*")),
    *(f"deployments.*.metrics.{key}" for key in ("#", "#.url", "replicas.#", "replicas.#.url")),
    *(f"deployments.*.metrics.{key}" for key in ("page", "prometheus", "api_key")),
    *(f"{helper}.{key}" for helper in _HELPERS for key in ("api_key", "url", "headers.*")),
)
"""Keys whose references are resolved; `*` is any key, `#` any position in a list."""
_DEPLOYMENT_KEYS = "`api_key`, `url`, `proxy`, `metrics`, `gpu`, `ready.metrics` and the values of its `headers`"


def parse_suite(text: str, source: str) -> Suite:
    """Parse a suite. `source` is the name of the text in messages, usually a file.

    Raises SuiteError with all problems: those of YAML alone if it is unreadable, else those of every key and value, and
    those of every rule between sections whose parts are valid.
    """
    document = read_text(text, source)
    problems = document.problems + [document.problem(fault) for fault in _stray_references(document.data, ())]
    reported = {problem.path for problem in problems}
    suite, faults = _validate(document.data)
    problems += [problem for fault in faults if (problem := document.problem(fault)).path not in reported]
    if problems or suite is None:
        raise SuiteError(list(dict.fromkeys(problems)))  # a rule may repeat a finding of pydantic
    return suite


def _validate(data: dict[str, Plain]) -> tuple[Suite | None, list[Fault]]:
    """Return the suite, and every fault of its keys, values and rules."""
    faults: list[Fault] = []
    broken: frozenset[Path] = frozenset()
    try:
        suite: Suite | None = Suite.model_validate(data)
    except ValidationError as error:
        faults = faults_of(error)
        suite, broken = valid_part(data)
    if suite is None:
        return None, faults
    found = broken_references(suite, broken)
    if not faults and not found:
        if not suite.gate.checks:
            gate = suite.gate.model_copy(update={"checks": default_checks(suite)})
            suite = suite.model_copy(update={"gate": gate})
            if suite.load is not None and suite.load.capacity is not None and _capacity_margin(suite.load) is None:
                found.append(Fault(("load", "capacity", "resolution"), _TOO_COARSE))
        if not (suite.gate.checks or found) and any(getattr(suite, section) is not None for section in SECTIONS):
            found.append(Fault(("gate",), _NO_DEFAULTS))
    found += broken_rules(suite, broken | {fault.path for fault in found})
    positions = written_positions(data, broken)

    def written(path: Path) -> Path:
        """Return a path as in the text, where a stage with `each` is one entry of the sweep."""
        in_sweep = path[:2] == ("load", "sweep") and len(path) > 2
        return (*path[:2], positions[int(path[2])], *path[3:]) if in_sweep else path

    for fault in found:
        other = None if fault.other is None else written(fault.other)
        faults.append(replace(fault, path=written(fault.path), other=other))
    return suite, faults


def _stray_references(value: Plain, path: Path) -> Iterator[Fault]:
    """Yield references where they are not resolved, but would be sent or stored as they are."""
    if isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _stray_references(inner, (*path, part))
    elif isinstance(value, str) and "${" in value:
        for keys in (reference.split(".") for reference in _REFERENCES):
            if len(path) == len(keys) and all(map(_is_at, path, keys)):
                return
        where = f"a deployment's {_DEPLOYMENT_KEYS}"
        if path[:1] == ("shadow",):
            where += ", and in `api_key`, `url` and `headers` of `judge` and `similarity`"
        if path[:1] == ("error_budget",):
            where += ", and in `api_key`, `url` and `headers` of `spent.prometheus`"
        yield Fault(path, f"a reference is resolved only in {where}; write the value itself")


def _is_at(part: str | int, key: str) -> bool:
    return isinstance(part, int) if key == "#" else key in ("*", part)


Line = dict[str, Any]  # a check as a suite writes it

_KEYS = tuple(field.alias or name for name, field in Check.model_fields.items())
_MEDIAN, _TAIL = "5%", "10%"  # margins of a latency; a mean has that of the median
_RATE = "5%"
_FAILURES = "1 points"
_VALIDITY = "2 points"
_ACCURACY, _PER_TASK = "2 points", "5 points"
_PERPLEXITY = "2%"
_SHADOW = "5 points"
_LEAST_FOR_TAIL = {"p95": 59, "p99": 299}  # requests for an upper limit of the quantile at 5 %
_TAILS = 5  # times that many over all blocks, or a few values would decide the check


def default_checks(suite: Suite) -> tuple[Check, ...]:
    """Return the default checks of every section; empty if all that is measured needs bounds by the author."""
    lines: list[Line] = []
    if suite.load is not None:
        lines += _load_checks(suite, suite.load)
    if suite.quality is not None:
        lines += _eval_checks(suite.quality)
        lines += _verified_checks(suite)
    if suite.divergence is not None and suite.divergence.way != "cut":
        lines.append({"metric": "perplexity", "margin": _PERPLEXITY})
    if suite.shadow is not None:  # a changed model may disagree a little, so only a breach of the margin blocks
        lines.append({"metric": "shadow_excess", "margin": _SHADOW, "block_when": "breach"})
        if suite.shadow.judge is not None:
            lines.append({"metric": "judge_loss", "margin": _SHADOW})
    return tuple(Check.model_validate(line) for line in lines)


def line_of(check: Check) -> str:
    """Return a check as a suite writes it, on one line."""
    dumped = check.model_dump(by_alias=True, exclude_unset=True)
    line = {key: dumped[key] for key in _KEYS if dumped.get(key) is not None}
    if check.margin is not None:
        in_percent = METRICS[check.metric].margin == "percent"
        shown = as_written(show_percent if in_percent else show_points, check.margin)
        line["margin"] = shown.replace(" %", "%")
    words = {True: "true", False: "false"}
    return "{" + ", ".join(f"{key}: {words.get(value, value)}" for key, value in line.items()) + "}"


def _load_checks(suite: Suite, load: Load) -> Iterator[Line]:
    """Yield checks, required at the operating stage and advisory elsewhere; without one, required everywhere."""
    classes = [traffic for traffic in traffic_classes(suite) if not traffic.is_background]
    operating = suite.gate.operating
    if operating in {name for traffic in classes for name in (traffic.name, traffic.stage)}:
        yield from _at_operating_stage(load, classes, str(operating))
    else:
        yield from _at_every_stage(load, classes)
    if (margin := _capacity_margin(load)) is not None:
        yield {"metric": "capacity", "margin": margin}


def _capacity_margin(load: Load) -> str | None:
    """Return the margin of a capacity; None without a search, and for one so coarse that no margin is left.

    Brackets of two equal deployments may lie twice their resolution apart.
    """
    percent = 100.0 if load.capacity is None else max(10.0, 250 * load.capacity.resolution_ratio)
    shown = f"{percent:g}"
    return f"{shown}%" if float(shown) < 100 else None


def _at_operating_stage(load: Load, classes: Sequence[TrafficClass], operating: str) -> Iterator[Line]:
    """Yield the required checks first. If a class is operating, failures of its whole stage count.

    A server that drops the rest of a stage, background included, is faster for the operating class.
    """
    own = stage_part(operating)
    for chosen in (True, False):
        required: Line = {} if chosen else {"required": False}
        for stage in dict.fromkeys(traffic.stage for traffic in classes if (traffic.stage == own) is chosen):
            yield {"metric": "error_rate", "stage": stage, "margin": _FAILURES, **required}
        for traffic in classes:
            if (operating in (traffic.name, traffic.stage)) is chosen:
                yield from ({**line, "stage": traffic.name, **required} for line in _class_checks(traffic, load))


def _at_every_stage(load: Load, classes: Sequence[TrafficClass]) -> Iterator[Line]:
    """Yield checks that all classes have without a stage, and the others once for each class."""
    if classes:
        yield {"metric": "error_rate", "margin": _FAILURES}
    lines = {traffic.name: list(_class_checks(traffic, load)) for traffic in classes}
    common: list[Line] = []
    for name, own in lines.items():
        for line in own:
            if not all(line in others for others in lines.values()):
                yield {**line, "stage": name}
            elif line not in common:
                common.append(line)
                yield line


def _class_checks(traffic: TrafficClass, load: Load) -> Iterator[Line]:
    workload, requests = traffic.workload, traffic.schedule.requests // max(1, len(load.regions)) * load.blocks
    streamed = workload.generates and workload.streams
    first = "ttft" if streamed else "e2e"
    # A median does not notice that a part of the requests is slower: a tail does, or with few requests a mean. The tail
    # is better, because a single failed request makes a mean infinite.
    slow_part = {"statistic": MEAN, "margin": _MEDIAN}
    if requests >= _TAILS * _LEAST_FOR_TAIL["p95"]:
        slow_part = {"statistic": "p95", "margin": _TAIL}
    yield {"metric": first, "margin": _MEDIAN}
    yield {"metric": first, **slow_part}
    if requests >= _TAILS * _LEAST_FOR_TAIL["p99"]:
        yield {"metric": first, "statistic": "p99", "margin": _TAIL, "required": False}
    most = workload.most_output_tokens
    if streamed and (most is None or most >= 2):
        yield {"metric": "tpot", "margin": _MEDIAN}
        yield {"metric": "tpot", **slow_part}
    yield {"metric": "output_throughput" if workload.generates else "request_throughput", "margin": _RATE}
    if traffic.slo is not None:
        yield {"metric": "goodput"}
    if workload.answer_schema is not None or workload.tools is not None:
        yield {"metric": "validity", "margin": _VALIDITY}


def _verified_checks(suite: Suite) -> Iterator[Line]:
    operating = suite.gate.operating
    chosen = None if operating is None else stage_part(operating)
    for stage in suite.load.sweep if suite.load is not None else ():
        if stage.verify_ratio is not None:
            required: Line = {} if chosen in (None, stage.name) else {"required": False}
            yield {"metric": "accuracy", "stage": stage.name, "margin": _PER_TASK, **required}


def _eval_checks(quality: Quality) -> Iterator[Line]:
    """Yield one required check over all tasks, for a small loss everywhere, and an advisory one for each task."""
    scored = [entry.name for entry in quality.tasks if entry.scale == "continuous"]
    if len(scored) < len(quality.tasks):
        yield {"metric": "accuracy", "margin": _ACCURACY}
    if len(quality.tasks) - len(scored) > 1:
        yield {"metric": "accuracy", "task": "each", "margin": _PER_TASK, "required": False}
    yield from ({"metric": "score", "task": name, "margin": _ACCURACY} for name in scored)
    if quality.repeat_baseline:
        yield {"metric": "flips", "margin": _PER_TASK}
