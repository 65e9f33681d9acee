"""One line of a policy: which metric, where, and what is allowed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from benchgate import units
from benchgate.suite.fields import Expected, Flag, StrictSection, is_stored, positive_share, share
from benchgate.suite.metric_kinds import (
    ADVISORY_METRICS,
    KINDS,
    LATENCY_METRICS,
    OVER_METRICS,
    RATIO_METRICS,
    TASK_METRICS,
    TELEMETRY_METRICS,
    Metric,
    Statistic,
)
from benchgate.suite.metric_kinds import STAGE_METRICS as _OF_A_STAGE

FailureClass = Literal[
    "connect", "tls", "timeout", "http_4xx", "http_429", "http_5xx", "stream_broken", "protocol", "empty"
]


def _margin(text: object, info: ValidationInfo) -> object:
    """`5%` of a latency or throughput, `2 points` of a share: each metric has one meaning of harm, so one unit."""
    if is_stored(info):
        return text
    metric = info.data.get("metric")
    if metric is None:  # it is wrong itself, and so is the check, whatever its margin
        return 0.5
    if KINDS[metric].margin is None:
        raise ValueError(f"means nothing for {metric}, which is held to `{'` or `'.join(KINDS[metric].sides)}`")
    in_percent = metric in RATIO_METRICS
    try:
        margin = units.parse_percent_ratio(text) if in_percent else units.parse_points_ratio(text)
    except ValueError as error:
        meaning = "a part of the baseline's value" if in_percent else "a difference between two shares"
        raise ValueError(f"{error}: the margin of {metric} is {meaning}") from None
    if not (0 < margin < 1 or (margin > 0 and metric == "score")):  # a score may go to 100, or to any number
        raise ValueError(f"{units.show_found(text)} is not a usable margin; it must be above 0 and below 100")
    return margin


def _place(text: str) -> str:
    if text.count("/") > 1 or not all(text.split("/")):
        raise ValueError(f'{units.show_found(text)} is no stage; write a stage, or a class of one as "stage/class"')
    return text


def _as_text(value: object) -> object:
    """A bound may be a whole number, and is kept as it is written."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Margin = Annotated[float, BeforeValidator(_margin), Expected('a margin like "5%" or "2 points"'), Field(gt=0)]
PlaceName = Annotated[str, AfterValidator(_place), Expected('the name of a stage, or "stage/class"')]
Bound = Annotated[str, BeforeValidator(_as_text), Expected('a bound like "500ms", "1%", "8/s" or 4', quantity=True)]


class Check(StrictSection):
    """One policy line: a `margin` against the baseline, or `max` / `min`, an SLO of the candidate itself.

    With `over`, `max` and `min` bound the candidate's value at `stage` by its own value at another one.
    `goodput` with none of them is held to the target of the suite's `slo`.
    """

    metric: Metric
    statistic: Statistic | None = None  # latency metrics only; p50 unless said
    of: FailureClass | None = None  # error_rate only; failures of every class unless said
    stage: PlaceName | None = None  # load metrics only; every stage, each judged apart, unless said
    class_name: str | None = Field(default=None, alias="class")  # of the stage's classes of traffic; each unless said
    over: PlaceName | None = None  # another stage, whose value is what `stage`'s is held against
    task: str | None = None  # evals only; all tasks pooled unless said (of scores each apart), "each" for one per task
    margin: Margin | None = None
    max: Bound | None = None  # "500ms" for latencies, "1%" for error_rate, "1.2x" and "5 points" with `over`
    min: Bound | None = None  # "95%" for goodput and accuracy, "100/s" for throughputs, "2x" with `over`
    required: Flag = Field(default_factory=lambda known: known.get("metric") not in ADVISORY_METRICS)
    block_when: Literal["harm", "breach"] = "harm"

    @field_validator("statistic", "of", "stage", "class_name", "over", "task")
    @classmethod
    def _belongs_to_its_metric(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, owners = info.data.get("metric"), _OWNERS[str(info.field_name)]
        if value is not None and metric is not None and metric not in owners:
            raise ValueError(f"means nothing for {metric}; it belongs to {', '.join(owners)}; remove it")
        return value

    @field_validator("max", "min")
    @classmethod
    def _bounds_its_metric(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric = info.data.get("metric")
        if value is not None and metric is not None:
            _ = _bound(metric, str(info.field_name), value, over=info.data.get("over") is not None)
        return value

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        bounds = [name for name in ("margin", "max", "min") if getattr(self, name) is not None]
        targeted = self.metric == "goodput" and self.over is None
        if len(bounds) > 1 or (not bounds and not targeted):
            found = " and ".join(f"`{name}`" for name in bounds) or "none of them"
            raise ValueError(
                f"a check needs exactly one of `margin` (against the baseline), `max` and `min` (an SLO); found {found}"
            )
        return self

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.class_name is not None and self.stage is not None and "/" in self.stage:
            raise ValueError(f'`class` is said twice: "{self.stage}" names one already; remove one of them')
        if self.over is None:
            return self
        if self.margin is not None:
            raise ValueError("`over` holds the candidate against itself, a `margin` against the baseline; keep one")
        if self.stage is None:
            raise ValueError(f"`over: {self.over}` needs the `stage` that is held against it")
        if self.place == self.over:
            raise ValueError(f'"{self.over}" would be held against itself; name another stage in `over`')
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys that came after 0.1.0 are written only where they are used: a policy keeps its identity."""
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None or key not in _LATER_KEYS}

    @property
    def place(self) -> str | None:
        """The name under which the load that it judges is stored, `stage` or `stage/class`; None for every stage."""
        if self.stage is None or self.class_name is None:
            return self.stage
        return f"{self.stage}/{self.class_name}"

    @property
    def slo_value(self) -> float | None:
        """The bound of an absolute check in base units (of one with `over`: a factor, or a difference), else None."""
        side, text = ("max", self.max) if self.max is not None else ("min", self.min)
        return None if text is None else _bound(self.metric, side, text, over=self.over is not None)


_LATER_KEYS = ("of", "class_name", "class", "over")
_OWNERS = {
    "statistic": LATENCY_METRICS,
    "of": ("error_rate",),
    "stage": _OF_A_STAGE,
    "class_name": tuple(name for name in _OF_A_STAGE if name not in TELEMETRY_METRICS),
    "over": OVER_METRICS,
    "task": TASK_METRICS,
}


def _bound(metric: str, side: str, text: str, *, over: bool) -> float:
    """A `max` or `min` in the metric's own unit, as a base unit; ValueError when it bounds nothing or does not fit."""
    kind = KINDS[metric]
    if over:
        return units.parse_multiple(text) if kind.margin == "percent" else units.parse_points_ratio(text)
    if side not in kind.sides:
        missing, other = ("upper", "min") if side == "max" else ("lower", "max")
        offered = [
            f"`{name}`" for name in (other, "margin") if name in kind.sides or (name == "margin" and kind.margin)
        ]
        raise ValueError(f"{metric} has no {missing} bound; use {' or '.join(offered)}")
    if kind.bound == "duration":
        return units.parse_duration_s(text)
    if kind.bound == "level":  # a rate, or a number in flight: whichever was searched over
        return units.parse_rate_rps(text) if "/" in text else float(units.parse_count(text))
    if kind.bound == "rate":
        return units.parse_rate_rps(text)
    if kind.bound == "nats":
        return units.parse_nats(text)
    if kind.bound == "whole number":
        return float(units.parse_count(text))
    if side == "min":
        return positive_share(text)
    bound = share(text)
    if bound == 1:
        raise ValueError(f"{units.show_found(text)} is met by every deployment; write less than 100%")
    return bound
