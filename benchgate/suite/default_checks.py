"""The checks of a suite that writes none: what every promotion should be held to, by what the suite measures.

Few are required, because a candidate that is no worse must pass all of them. What each margin can carry is for the
plan to say. The stored suite shows them, so a run is judged by what stood there when it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchgate.model.metric import MEAN, METRICS
from benchgate.suite.checks import Check
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Load, Suite
from benchgate.suite.shadow import Shadow
from benchgate.suite.stages import Level
from benchgate.units import as_written, show_percent, show_points

Line = dict[str, Any]
"""A check as a suite writes it."""

_IN_ORDER = tuple(field.alias or name for name, field in Check.model_fields.items())
_MEDIAN, _TAIL = "5%", "10%"  # margins of a latency; a mean has that of the median
_RATE = "5%"
_FAILURES = "1 points"
_VALIDITY = "2 points"
_ACCURACY, _OF_ONE_TASK = "2 points", "5 points"
_PERPLEXITY = "2%"
_SHADOW = "5 points"
_TO_BE_A_TAIL = {"p95": 59, "p99": 299}  # requests that have an upper limit of the quantile at 5 %
_TAILS = 5  # as many times that over all blocks, or a few numbers would have to carry the check


def with_usual_checks(suite: Suite) -> Suite:
    """The suite as it is, or with the usual checks where it writes none."""
    if suite.gate.checks:
        return suite
    return suite.model_copy(update={"gate": suite.gate.model_copy(update={"checks": usual_checks(suite)})})


def usual_checks(suite: Suite) -> tuple[Check, ...]:
    """Those of every section, in order; none where a suite measures only what needs a bound of its author's."""
    lines: list[Line] = []
    if suite.load is not None:
        lines += _of_load(suite, suite.load)
    if suite.quality is not None:
        lines += _of_quality(suite.quality)
    if suite.divergence is not None:
        lines.append({"metric": "perplexity", "margin": _PERPLEXITY})
    if suite.shadow is not None:
        lines += _of_shadow(suite.shadow)
    return tuple(Check.model_validate(line) for line in lines)


def line_of(check: Check) -> str:
    """A check as a suite writes it, on one line."""
    dumped = check.model_dump(by_alias=True, exclude_unset=True)
    said = {key: dumped[key] for key in _IN_ORDER if key in dumped}
    if check.margin is not None:
        in_percent = METRICS[check.metric].margin == "percent"
        shown = as_written((show_percent if in_percent else show_points)(check.margin))
        said["margin"] = shown.replace(" %", "%")
    words = {True: "true", False: "false"}
    return (
        "{" + ", ".join(f"{key}: {words.get(value, value)}" for key, value in said.items() if value is not None) + "}"
    )


def _of_load(suite: Suite, load: Load) -> Iterator[Line]:
    """At the operating stage required, elsewhere advisory; where none is named, required at every stage."""
    levels = [level for level in load.levels() if not level.background]
    operating = suite.gate.operating
    if operating not in {name for level in levels for name in (level.name, level.stage)}:
        yield from _at_every(suite, load, levels)
    else:
        yield from _at_one(suite, load, levels, str(operating))
    if load.capacity is not None:
        # Brackets of two equal deployments may lie twice their resolution apart.
        yield {"metric": "capacity", "margin": f"{max(10.0, 250 * load.capacity.resolution_ratio):g}%"}


def _at_one(suite: Suite, load: Load, levels: Sequence[Level], operating: str) -> Iterator[Line]:
    """First what is required. Of a class that operates the failures of its whole stage count: what else runs there,
    in the background too, is faster for a server that drops it."""
    own = operating.split("/")[0]
    for chosen in (True, False):
        usual: Line = {} if chosen else {"required": False}
        for stage in dict.fromkeys(level.stage for level in levels if (level.stage == own) is chosen):
            yield {"metric": "error_rate", "stage": stage, "margin": _FAILURES, **usual}
        for level in levels:
            if (operating in (level.name, level.stage)) is chosen:
                yield from ({**line, "stage": level.name, **usual} for line in _of_level(suite, load, level))


def _at_every(suite: Suite, load: Load, levels: Sequence[Level]) -> Iterator[Line]:
    """What holds for all levels is one line without a stage; what only some of them have names each."""
    if levels:
        yield {"metric": "error_rate", "margin": _FAILURES}
    lines = {level.name: list(_of_level(suite, load, level)) for level in levels}
    told: list[Line] = []
    for name, of_level in lines.items():
        for line in of_level:
            if all(line in others for others in lines.values()):
                if line not in told:
                    told.append(line)
                    yield line
            else:
                yield {**line, "stage": name}


def _of_level(suite: Suite, load: Load, level: Level) -> Iterator[Line]:
    workload = level.workload
    streamed = workload.generates and workload.streams
    first = "ttft" if streamed else "e2e"
    yield {"metric": first, "margin": _MEDIAN}
    part = _of_a_part(level, load)
    yield {"metric": first, **part}
    if _is_tail(level, load, "p99"):
        yield {"metric": first, "statistic": "p99", "margin": _TAIL, "required": False}
    most = workload.most_output_tokens
    if streamed and (most is None or most >= 2):
        yield {"metric": "tpot", "margin": _MEDIAN}
        yield {"metric": "tpot", **part}
    yield {"metric": "output_throughput" if workload.generates else "request_throughput", "margin": _RATE}
    if suite.slo is not None or level.slo is not None:
        yield {"metric": "goodput"}
    if workload.answer_schema is not None or workload.tools is not None:
        yield {"metric": "validity", "margin": _VALIDITY}


def _of_a_part(level: Level, load: Load) -> Line:
    """What sees that some of the requests slow, which a median does not: their tail, or where they are too few for one
    the mean over pairs. The tail first, because a single failed request makes a mean infinite."""
    if _is_tail(level, load, "p95"):
        return {"statistic": "p95", "margin": _TAIL}
    return {"statistic": MEAN, "margin": _MEDIAN}


def _is_tail(level: Level, load: Load, statistic: str) -> bool:
    """Whether the blocks have requests enough for several numbers of this kind."""
    return level.course.requests * load.blocks >= _TAILS * _TO_BE_A_TAIL[statistic]


def _of_quality(quality: Quality) -> Iterator[Line]:
    """One required check over all tasks sees a small loss everywhere; an advisory one of each names where."""
    scored = [entry.name for entry in quality.tasks if entry.scale == "continuous"]
    if len(scored) < len(quality.tasks):
        yield {"metric": "accuracy", "margin": _ACCURACY}
    if len(quality.tasks) - len(scored) > 1:
        yield {"metric": "accuracy", "task": "each", "margin": _OF_ONE_TASK, "required": False}
    yield from ({"metric": "score", "task": name, "margin": _ACCURACY} for name in scored)
    if quality.repeat_baseline:
        yield {"metric": "flips", "margin": _OF_ONE_TASK}


def _of_shadow(shadow: Shadow) -> Iterator[Line]:
    """Some disagreement is expected of a changed model; what blocks is more than the margin."""
    yield {"metric": "shadow_excess", "margin": _SHADOW, "block_when": "breach"}
    if shadow.judge is not None:
        yield {"metric": "judge_loss", "margin": _SHADOW}
