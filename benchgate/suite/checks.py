"""The `checks` of a policy: metric, place, and margin or bounds in the unit of the metric."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from benchgate import units
from benchgate.model.metric import (
    ADVISORY_METRICS,
    EITHER_DIRECTION_METRICS,
    FAILURE_METRICS,
    LATENCY_METRICS,
    MEAN,
    METRICS,
    MIN_ABS_METRICS,
    OVER_STAGE_METRICS,
    PER_ACCELERATOR_METRICS,
    PERCENT_METRICS,
    POINTS_METRICS,
    REGIONAL_METRICS,
    TASK_METRICS,
    TELEMETRY_METRICS,
    MetricName,
    Statistic,
)
from benchgate.model.metric import STAGE_METRICS as _OF_A_STAGE
from benchgate.suite.load import TrafficClass
from benchgate.suite.stages import TrafficName, stage_part, traffic_name
from benchgate.suite.types import (
    WHOLE,
    Expected,
    Flag,
    Name,
    Section,
    Written,
    is_stored,
    key,
    optional,
    positive_share,
    share,
    text,
)


def _margin(found: object, info: ValidationInfo) -> object:
    """Parse `5%` or `2 points`: every metric has one of the two units."""
    if is_stored(info):
        return found
    metric = info.data.get("metric")
    if metric is None:  # it is wrong itself, and so is the check, whatever its margin
        return 0.5
    if METRICS[metric].margin is None:
        raise ValueError(f"means nothing for {metric}, which is held to `{'` or `'.join(METRICS[metric].bounds)}`")
    in_percent = metric in PERCENT_METRICS
    try:
        margin = units.parse_percent_ratio(found) if in_percent else units.parse_points_ratio(found)
    except ValueError as error:
        meaning = "a part of the baseline's value" if in_percent else "a difference between two shares"
        raise ValueError(f"{error}: the margin of {metric} is {meaning}") from None
    if not (0 < margin < 1 or (margin > 0 and metric == "score")):  # a score may go to 100, or to any number
        raise ValueError(f"{units.show_found(found)} is not a usable margin; it must be above 0 and below 100")
    return margin


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Margin = Annotated[
    float, BeforeValidator(_margin), Expected('a margin like "5%" or "2 points"'), Field(gt=0),
    Written(*(text(units.PATTERNS[parse]) for parse in (units.parse_percent_ratio, units.parse_points_ratio))),
]  # fmt: skip
Bound = Annotated[
    str, BeforeValidator(_as_text), Expected('a bound like "500ms", "1%", "8/s" or 4', quantity=True),
    Written(text(), WHOLE),
]  # fmt: skip
LeastChange = Annotated[
    str, BeforeValidator(_as_text), Expected('a change like "2ms", or "0.5/s" of a throughput', quantity=True),
    Written(*(text(units.PATTERNS[parse]) for parse in (units.parse_duration_s, units.parse_rate_rps))),
]  # fmt: skip


def least_change(metric: str, written: str) -> float:
    """Parse a `min_abs` to seconds or per second. Raises ValueError for another unit or metric."""
    if metric in MIN_ABS_METRICS:
        return units.parse_duration_s(written) if metric in LATENCY_METRICS else units.parse_rate_rps(written)
    if metric in POINTS_METRICS:
        raise ValueError(f"means nothing for {metric}, whose margin is a difference in points already; write that")
    raise ValueError(f"means nothing for {metric}; it belongs to {', '.join(MIN_ABS_METRICS)}; remove it")


def bound_value(metric: str, side: str, written: str, *, over: bool) -> float:
    """Parse a `max` or `min` to the metric's base unit. Raises ValueError for another unit or metric."""
    kind = METRICS[metric]
    if over:
        return units.parse_multiple(written) if kind.margin == "percent" else units.parse_points_ratio(written)
    if side not in kind.bounds:
        missing, other = ("upper", "min") if side == "max" else ("lower", "max")
        offered = [f"`{name}`" for name in (other,) if name in kind.bounds] + ["`margin`"] * (kind.margin is not None)
        raise ValueError(f"{metric} has no {missing} bound; use {' or '.join(offered)}")
    if kind.bound_type == "level":  # a rate or a concurrency, whichever the search is over
        return units.parse_rate_rps(written) if "/" in written else float(units.parse_count(written))
    if kind.bound_type in _PARSERS:
        return _PARSERS[kind.bound_type](written)
    if side == "min":
        return positive_share(written)
    bound = share(written)
    if bound == 1:
        raise ValueError(f"{units.show_found(written)} is met by every deployment; write less than 100%")
    return bound


_PARSERS: Mapping[str | None, Callable[[object], float]] = {
    "duration": units.parse_duration_s,
    "rate": units.parse_rate_rps,
    "money": units.parse_usd,
    "nats": units.parse_nats,
    "energy": units.parse_joules,
    "whole number": units.parse_count,
}
FailureClass = Literal[
    "connect", "tls", "timeout", "http_4xx", "http_429", "http_5xx", "stream_broken", "protocol", "empty"
]
Direction = Literal["worse", "either"]


class Check(Section):
    """A check of the policy: a `margin` against the baseline, or `max` / `min`, an SLO of the candidate itself.

    With `direction: either` a change in both directions is a regression, and the margin holds on both sides.
    With `over`, `max` and `min` bound the candidate's value at `stage` relative to its value at another one.
    `goodput` without any of them is held to the target of the `slo`.
    """

    metric: MetricName = key("The metric that is judged")
    statistic: Statistic | None = key(
        "Statistic of a latency. `mean` is the geometric mean over paired requests, only with a `margin`; "
        "`itl` has none. Default: `p50`",
        default=None,
    )
    of: FailureClass | None = optional("Failures that an `error_rate` counts. Default: all classes of failures")
    stage: TrafficName | None = key(
        "Stage at which a load metric is judged, or `accuracy` by the items of the stage's `verify`. Default: every "
        "stage, each judged separately; `accuracy` by the evals",
        default=None,
    )
    class_name: str | None = optional(
        "Class of traffic that is judged. Without it `error_rate` (of all failures), and `goodput` if the "
        "class has its own `slo`, also judge a class in the background, unless a check of either names it; "
        "all other metrics judge such a class only by name. Default: every class that is not in the "
        "background",
        alias="class",
    )
    region: Name | None = optional(
        "Region of `load.regions` in which a latency, `goodput` or `error_rate` is judged. Default: every region, each "
        "judged separately; all other metrics are of all regions together"
    )
    per: Literal["accelerator"] | None = optional(
        f"With `{'`, `'.join(PER_ACCELERATOR_METRICS[:-1])}` and `{PER_ACCELERATOR_METRICS[-1]}`: the value of each "
        "arm divided by its `accelerators`, which the deployments must then state; `margin`, `min` and `min_abs` are "
        "those of one accelerator. Not with `over`"
    )
    over: TrafficName | None = optional(
        "Stage whose value the candidate's value at `stage` is compared with; `max` and `min` then bound the "
        "ratio or difference"
    )
    task: str | None = key(
        "Task at which `accuracy`, `score` and `flips` are judged; `each` makes one check per entry of "
        "`quality.tasks`. A group of lm-eval's is one task: all of its items count alike. Default: all tasks "
        "pooled with equal weight; `score` judges each separately",
        default=None,
    )
    margin: Margin | None = key("Largest regression against the baseline that is allowed", default=None)
    min_abs: LeastChange | None = optional(
        "With the `margin` of a latency or throughput: a smaller change is no regression, however large its ratio"
    )
    direction: Direction = key(
        "Direction of change that counts as a regression. `either`, with the `margin` of a latency, "
        "throughput or `output_length`: PASS only if neither a rise nor a fall reaches the margin. Default: "
        "`worse`; `either` for `output_length`",
        default_factory=lambda known: "either" if known.get("metric") == "output_length" else "worse",
        exclude_if=lambda value: value == "worse",
    )
    max: Bound | None = key("Upper bound of the candidate's own value", default=None)
    min: Bound | None = key("Lower bound of the candidate's own value", default=None)
    required: Flag = key(
        "`false`: the check is shown and can warn, but never block. Default: `true`; `false` for "
        f"`{'`, `'.join(ADVISORY_METRICS[:-1])}` and `{ADVISORY_METRICS[-1]}`",
        default_factory=lambda known: known.get("metric") not in ADVISORY_METRICS,
    )
    block_when: Literal["harm", "breach"] = key(
        "BLOCK on proof of any regression (`harm`), or only of one beyond the margin (`breach`)", default="harm"
    )
    allow_underpowered: Flag = optional("The same as in `gate`, for this check alone", default=False)

    @field_validator("statistic", "of", "stage", "class_name", "region", "per", "over", "task")
    @classmethod
    def _belongs_to_its_metric(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, owners = info.data.get("metric"), _OWNERS[str(info.field_name)]
        if value is not None and metric is not None and metric not in owners:
            why = ", which does not add up over accelerators" if info.field_name == "per" else ""
            raise ValueError(f"means nothing for {metric}{why}; it belongs to {', '.join(owners)}; remove it")
        if metric in ("itl", "session_e2e") and info.field_name == "statistic" and value == MEAN:
            why = "itl has many values a request" if metric == "itl" else "session_e2e has one value a session"
            other = "tpot" if metric == "itl" else "p50"
            raise ValueError(f"{why}, and a mean is judged request by request; judge {other}")
        return value

    @field_validator("direction")
    @classmethod
    def _may_go_both_ways(cls, value: Direction, info: ValidationInfo) -> Direction:
        metric = info.data.get("metric")
        if value == "either" and metric is not None and metric not in EITHER_DIRECTION_METRICS:
            owners = ", ".join(EITHER_DIRECTION_METRICS)
            raise ValueError(f"means nothing for {metric}; it belongs to {owners}; remove it")
        if value == "worse" and metric == "output_length":
            raise ValueError("longer answers are no worse than shorter ones; write `either`, or remove it")
        return value

    @field_validator("min_abs", "max", "min")
    @classmethod
    def _has_the_unit_of_its_metric(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        if value is not None and metric is not None and info.field_name == "min_abs":
            least_change(metric, value)
        elif value is not None and metric is not None:
            bound_value(metric, str(info.field_name), value, over=info.data.get("over") is not None)
        return value

    @model_validator(mode="after")
    def _keys_fit_together(self, info: ValidationInfo) -> Self:
        bounds = [name for name in ("margin", "max", "min") if getattr(self, name) is not None]
        targeted = self.metric == "goodput" and self.over is None
        if len(bounds) > 1 or (not bounds and not targeted):
            found = " and ".join(f"`{name}`" for name in bounds) or "none of them"
            remedy = "leave out one" if bounds else "add one, like `margin: 10%`"
            needs = "a check needs exactly one of `margin` (against the baseline), `max` and `min` (an SLO)"
            raise ValueError(f"{needs}; found {found}: {remedy}")
        compared = {
            "min_abs": self.min_abs is not None,
            "direction: either": self.direction == "either",
            "statistic: mean": self.statistic == MEAN,
            "block_when": "block_when" in self.model_fields_set and not is_stored(info),
        }
        for spelling, is_compared in compared.items():
            if is_compared and self.margin is None:
                raise ValueError(f"`{spelling}` belongs to a comparison with the baseline; give the check a `margin`")
        if self.min_abs is not None and self.direction == "either":
            raise ValueError("`min_abs` bounds a regression, and `direction: either` bounds every change; keep one")
        if self.class_name is not None and self.stage is not None and stage_part(self.stage) != self.stage:
            raise ValueError(f'`class` is given twice: "{self.stage}" names one already; remove one of them')
        if self.over is None:
            return self
        if self.margin is not None:
            raise ValueError("`over` holds the candidate against itself, a `margin` against the baseline; keep one")
        if self.stage is None:
            raise ValueError(f"`over: {self.over}` needs the `stage` that is held against it")
        if self.per is not None:
            same = "both stages of `over` are served by the same accelerators, so `per` changes nothing"
            raise ValueError(f"{same}; remove it")
        if self.place == self.over:
            raise ValueError(f'"{self.over}" would be held against itself; name another stage in `over`')
        return self

    @property
    def place(self) -> str | None:
        """Stage or class (`stage/class`) of a load check; None for every stage."""
        return None if self.stage is None else traffic_name(self.stage, self.class_name)

    @property
    def slo_value(self) -> float | None:
        """Bound in base units, a factor or a difference with `over`; None for a margin."""
        side, text = ("max", self.max) if self.max is not None else ("min", self.min)
        return None if text is None else bound_value(self.metric, side, text, over=self.over is not None)

    @property
    def least_change(self) -> float | None:
        """`min_abs` in seconds or per second."""
        return None if self.min_abs is None else least_change(self.metric, self.min_abs)


_OWNERS = {
    "statistic": LATENCY_METRICS,
    "of": ("error_rate",),
    "stage": (*_OF_A_STAGE, "accuracy"),
    "class_name": tuple(name for name in _OF_A_STAGE if name not in TELEMETRY_METRICS),
    "region": REGIONAL_METRICS,
    "per": PER_ACCELERATOR_METRICS,
    "over": OVER_STAGE_METRICS,
    "task": TASK_METRICS,
}


def judges(check: Check, traffic: TrafficClass, checks: Sequence[Check]) -> bool:
    """Return True if a check of the policy judges a class of traffic.

    A class in the background is judged by checks that name it. Its failures are also judged by checks of all failures
    (servers that drop it are faster for the rest), unless such a check names it: `error_rate`, and `goodput` if the
    class has its own SLO.
    """
    if not covers(check, traffic):
        return False
    if not traffic.is_background or _names(check, traffic):
        return True
    if not _counts_all_failures(check) or (check.metric == "goodput" and not traffic.has_own_slo):
        return False
    return not any(_counts_all_failures(other) and _names(other, traffic) for other in checks)


def regions_of(check: Check, regions: Collection[str]) -> tuple[str | None, ...]:
    """Return the regions that a check is judged in, one by one; None alone for all of them together."""
    if not regions or check.metric not in REGIONAL_METRICS:
        return (None,)
    return tuple(regions) if check.region is None else (check.region,)


def covers(check: Check, traffic: TrafficClass) -> bool:
    """Return True if the `stage` and `class` of a check fit a class of traffic."""
    return check.place in (None, traffic.stage, traffic.name) and check.class_name in (None, traffic.class_name)


def _counts_all_failures(check: Check) -> bool:
    return check.metric in FAILURE_METRICS and check.of is None and check.over is None


def _names(check: Check, traffic: TrafficClass) -> bool:
    return covers(check, traffic) and (check.class_name is not None or check.place == traffic.name)
