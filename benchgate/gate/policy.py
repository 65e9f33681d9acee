"""The policy's lines made concrete: one metric, at one place of the load or on one task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchgate.gate.comparison import Comparison
from benchgate.gate.evidence.blocks import Measure
from benchgate.gate.evidence.items import is_continuous, units_of
from benchgate.model.metric import (
    LATENCY_METRICS,
    METRICS,
    QUANTILES,
    STAGE_METRICS,
    TASK_METRICS,
    TELEMETRY_METRICS,
    Slo,
)
from benchgate.model.run import Evidence
from benchgate.suite.checks import Check, judges, regions_of
from benchgate.suite.quality import stage_of_task, verified_name
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import region_name, split_region


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """Check of the policy made concrete. `stage` is the name of its load: as stored, or of one region (`c4@eu`).

    `task` is the observed task; that of items sent among a load has the stage in its name (`add@c16`).
    `slo` and `target_ratio` are those of the requests there. `levels` are the closed-loop stages of the sweep, by name,
    with their concurrency, among which a knee is searched.
    """

    check: Check
    statistic: str | None = None
    stage: str | None = None
    task: str | None = None
    slo: Slo | None = None
    target_ratio: float | None = None
    levels: tuple[tuple[str, int], ...] = ()

    @property
    def id(self) -> str:
        """Return a stable name, like `ttft-p95@c4`, `goodput@c4:slo` or `capacity:per-accelerator`."""
        parts = (self.check.metric, self.check.of, self.statistic)
        name = "-".join(part for part in parts if part is not None)
        place = self.stage or self.task or self.check.stage
        per = f":per-{self.check.per}" if self.check.per is not None else ""
        absolute = ""
        if self.check.margin is None:
            side = "max" if self.check.max is not None else "min"
            if self.check.over is not None:
                side += f"-over-{self.check.over}"
            elif len(METRICS[self.check.metric].bounds) == 1:
                side = "slo"
            absolute = f":{side}"
        return f"{name}@{place}{per}{absolute}" if place else f"{name}{per}{absolute}"

    @property
    def q(self) -> float:
        """Return the judged quantile of a latency; for a mean, that of the statistic it accompanies."""
        return QUANTILES.get(self.statistic or "p50", 0.5)

    @property
    def measure(self) -> Measure:
        """Return the judged statistic of a latency, a rate, a length or a cost."""
        return Measure(self.check.metric, self.q, self.statistic, self.slo, each=self.check.per is not None)

    @property
    def stages(self) -> tuple[str, ...]:
        """Return every place of the load that the check reads, as stored."""
        if self.levels:
            return tuple(name for name, _ in self.levels)
        return tuple(split_region(stage)[0] for stage in (self.stage, self.check.over) if stage is not None)

    @property
    def over(self) -> str | None:
        """Return the name of the load that it is held over, in the same region."""
        region = None if self.stage is None else split_region(self.stage)[1]
        return None if self.check.over is None else region_name(self.check.over, region)


def concrete_checks(suite: Suite, evidence: Evidence) -> Iterator[CheckSpec]:
    """Yield the policy's checks, one per place of the load and per task where it names none."""
    return specs_over(suite, scales_of(evidence))


def scales_of(evidence: Evidence) -> dict[str, bool]:
    """Return, for every observed task, True if either arm's items have scores other than right and wrong."""
    scales: dict[str, bool] = {}
    for observation in evidence.quality:
        if observation.repeat == 0:
            scales[observation.task] = scales.get(observation.task, False) or is_continuous(observation)
    return scales


def specs_over(suite: Suite, continuous: Mapping[str, bool]) -> Iterator[CheckSpec]:
    """Yield the policy's checks over the observed tasks, of which `continuous` ones have scores by degrees.

    A group with one such task has scores by degrees itself, whatever the order of its tasks.
    """
    names: dict[str, bool] = {}
    for task, scored in continuous.items():
        name = suite.unit_name(task)
        names[name] = names.get(name, False) or scored
    for check in suite.gate.checks:
        if check.metric in TELEMETRY_METRICS:  # a server is that of its whole stage, whatever classes it has
            for stage in dict.fromkeys(
                place.stage for place in traffic_classes(suite) if check.stage in (None, place.stage)
            ):
                yield CheckSpec(check, stage=stage)
        elif check.metric in STAGE_METRICS:
            statistic = (check.statistic or "p50") if check.metric in LATENCY_METRICS else None
            for place in traffic_classes(suite):
                if judges(check, place, suite.gate.checks):
                    for region in regions_of(check, suite.regions):
                        stage = region_name(place.name, region)
                        yield CheckSpec(check, statistic, stage, slo=place.slo, target_ratio=place.target_ratio)
        elif check.metric == "capacity":
            yield CheckSpec(check)
        elif check.metric == "knee":
            sweep = suite.load.sweep if suite.load is not None else ()
            levels = tuple((stage.name, stage.concurrency) for stage in sweep if stage.concurrency is not None)
            yield CheckSpec(check, levels=levels)
        elif check.metric in TASK_METRICS and (check.task == "each" or (check.task, check.metric) == (None, "score")):
            tasks = judged_by(check, suite.gate.checks, names)
            yield from (CheckSpec(check, task=task) for task in tasks)
            if not tasks:
                yield CheckSpec(check, task=check.task)
        elif check.task is not None and check.stage is not None:
            yield CheckSpec(check, task=verified_name(check.task, check.stage))
        else:
            yield CheckSpec(check, task=check.task)


def judged_by(check: Check, checks: Sequence[Check], names: Mapping[str, bool]) -> list[str]:
    """Return the names of the tasks that a check without a task judges: those of its stage and kind of score.

    Accuracy and flips leave a task scored by degrees to a check of its score, and a score leaves the others to their
    accuracy. Without such a check of the same stage they keep it and find that they cannot judge it: no task stays
    unjudged without a message. A required check leaves nothing to an advisory one.
    """
    of_scores = check.metric == "score"
    others = "accuracy" if of_scores else "score"
    alike = [c for c in checks if c.metric == others and c.stage == check.stage]
    elsewhere = {c.task for c in alike if c.required or not check.required}
    here = {name: scored for name, scored in names.items() if stage_of_task(name) == check.stage}
    return [n for n, scored in here.items() if scored == of_scores or not elsewhere & {None, "each", n}]


def judged_units(spec: CheckSpec, suite: Suite, comparison: Comparison) -> Mapping[str, tuple[str, ...]]:
    """Return the tasks and groups that a check of evals judges, each with its observed tasks."""
    units = units_of(suite, comparison)
    if spec.task is not None and spec.task != "each":
        return {spec.task: units.get(spec.task, (spec.task,))}
    scales = scales_of(comparison.judged)
    names = {name: any(scales[task] for task in tasks) for name, tasks in units.items()}
    return {name: units[name] for name in judged_by(spec.check, suite.gate.checks, names)}
