"""The root of the suite language: `Suite`, its `gate`, and its small sections.

Fields hold base units (`_s`, `_rps`, `_ratio`, `_usd`); in YAML the same keys carry human units without the suffix,
like `ttft: 500ms`. Every default is written in a field and nowhere else, so the stored suite has them all. What one
section may hold is checked here; what sections require of each other is checked in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, Strict, ValidationError, ValidationInfo, field_validator, model_validator

from benchgate import units
from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS
from benchgate.suite.checks import Check
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.error_budget import ErrorBudget, budget_stage
from benchgate.suite.load import Load, TrafficClass
from benchgate.suite.quality import Divergence, Quality, Shadow, stage_of_task, verified_name
from benchgate.suite.stages import SloSpec, TrafficName, with_inherited_slos
from benchgate.suite.types import (
    Duration,
    Expected,
    Flag,
    Name,
    PositivePercent,
    Section,
    SharedField,
    Text,
    Whole,
    is_stored,
    key,
    optional,
    quantity,
)
from benchgate.units import as_written, show_duration, show_percent

NOISE_MAX_AGE_S = 30 * 86_400.0


class Limits(Section):
    """Time limits of every request, measured or not.

    A request that exceeds one has failed with the class `timeout`, or `connect`. Comments and events without output do
    not end a silence.
    """

    connect_s: Duration = key("Time to open the connection", default=5.0, alias="connect")
    first_token_s: Duration = key("Time from sending to the first output", default=60.0, alias="first_token")
    stall_s: Duration = key("Longest time without output after the first", default=30.0, alias="stall")
    total_s: Duration = key("Time of the whole request", default=300.0, alias="total")
    ready_s: Duration = key(
        "Wait for a deployment's first real completion, before anything is measured. A server that refuses connections "
        "is waited for only if this is written, or the deployment declares `ready`",
        default=120.0,
        alias="ready",
    )


class Start(Section):
    """Repeated starts of each deployment, before anything else is measured, for the metric `cold_start`.

    Only for deployments that benchgate starts: `embedded`, `sim`, and those with commands in their own `start`.
    """

    times: Whole = key("Number of starts of each deployment", default=5, ge=2, le=100)


_Bound = Annotated[  # above a second hardly any latency would still be the server's
    Duration, Field(gt=0, le=1), Expected('a duration of at most 1s, like "50ms"')
]


class ClientBounds(Section):
    """Bounds beyond which the load generator was the bottleneck of a stage execution.

    Its block is left out, on both arms. If that is more than a quarter of a stage's blocks, everything timed there is
    INVALID. See docs/adr/09-client-bound-blocks.md.
    """

    send_lag_p99_s: _Bound = key(
        "99th percentile of the send lag, without the time to open a connection", default=0.005, alias="send_lag_p99"
    )
    send_lag_max_s: _Bound = key("Largest send lag of a request", default=0.050, alias="send_lag_max")
    read_delay_p99_s: _Bound = key(
        "99th percentile of the time that received data waited for the client; in a stage shorter than 2 s the median",
        default=0.005,
        alias="read_delay_p99",
    )
    read_delay_max_s: _Bound = key(
        "Longest time that received data waited for the client", default=0.050, alias="read_delay_max"
    )
    cpu_share: PositivePercent = key("Share of one core used by the busiest worker over 5 s", default=0.70, alias="cpu")
    achieved_ratio: PositivePercent = key("Achieved share of the offered rate", default=0.99, alias="achieved")

    def unusual(self) -> str:
        """Return the bounds that differ from their defaults, as a suite spells them: `send_lag_p99 30 ms`."""
        return ", ".join(
            f"{field.alias} {_shown(name, value)}"
            for name, field in type(self).model_fields.items()
            if (value := getattr(self, name)) != field.default
        )

    def widened(self) -> str:
        """Return the bounds that allow more than their defaults: `send lag p99 100 ms (usual 5 ms)`."""
        shown = []
        for name, field in type(self).model_fields.items():
            value, usual = getattr(self, name), field.default
            if value < usual if name == "achieved_ratio" else value > usual:
                words = str(field.alias).replace("_", " ")
                shown.append(f"{words} {_shown(name, value)} (usual {_shown(name, usual)})")
        return ", ".join(shown)


def _shown(name: str, value: float) -> str:
    return as_written(show_duration if name.endswith("_s") else show_percent, value)


_Points = Annotated[float, *quantity(units.parse_points_ratio, 'points like "5 points"', show=units.show_points)]
_Percent = Annotated[float, *quantity(units.parse_percent_ratio, 'a percentage like "10%"', show=units.show_percent)]


class Creep(Section):
    """Largest loss since the release that was promoted `releases` promotions ago, this one included.

    It holds for every required check that compares the arms and whose losses add up: latencies, rates and perplexity
    in percent, shares of requests and of eval items in points. Advisory, unless it is `required`.
    """

    releases: Whole = key("Largest number of promotions added up, this one included", default=10, ge=2, le=50)
    margin: _Percent = key("Largest total loss of latencies, rates, costs and perplexity", default=0.10, gt=0, lt=1)
    points: _Points = key("Largest total loss of shares of requests and of eval items", default=0.05, gt=0, lt=1)
    required: Flag = key(
        "`true`: an accumulated loss can block, a missing link warns, and if nothing can be added up although the "
        "baseline changed the run is INCONCLUSIVE; `false`: it can only warn",
        default=False,
    )


class Gate(Section):
    """The policy: checks, error rate, and what may differ between the arms."""

    alpha: Annotated[float, Strict()] = key("Error rate of each one-sided test", default=0.05, ge=1e-12, lt=0.5)
    warn_fraction: PositivePercent = key("A value beyond this share of an SLO is WARN", default=0.8)
    allow_different: tuple[SharedField, ...] = key(
        "Differences between the arms that are part of the change; any other of these differences makes every "
        "comparison of speed INVALID. Differences that the deployments declare (`engine`, `engine_version`, "
        "`accelerator`, `accelerators`) need no entry",
        default=(),
    )
    client: ClientBounds = key(
        "Bounds on the load generator's own delays. Default: all defaults", default=ClientBounds()
    )
    allow_underpowered: Flag = optional(
        "`true`: measure even if required checks are known not to carry their margins, with a warning", default=False
    )
    creep: Creep | None = optional(
        "Largest loss over several promotions together; nothing is added up without this section"
    )
    noise_max_age_s: Duration = optional(
        "A noise profile older than this when a run ends is stale: it is mentioned beside a live baseline, and "
        "without one it cannot support a decision",
        default=NOISE_MAX_AGE_S,
        alias="noise_max_age",
    )
    operating: TrafficName | None = optional(
        "Stage at which the default checks are required. Only if `checks` is not written. Default: every stage"
    )
    checks: tuple[Check, ...] = key("The checks, at least one. Default: the default checks", default=(), min_length=1)

    @model_validator(mode="after")
    def _operating_is_of_default_checks(self, info: ValidationInfo) -> Self:
        if self.operating is not None and self.checks and not is_stored(info):
            raise ValueError("`operating` is for the usual checks; a check that is written names its own `stage`")
        return self


class Suite(Section):
    """A suite: what to measure on which deployments, and the policy.

    At least one of `start`, `load`, `quality`, `divergence` and `shadow` is required. The same deployment may be both
    arms: that measures the noise, or runs a drill. Two names for one `url` and `model` are an error.
    """

    suite: Name = key("Name of the suite; runs with one name form a trend")
    seed: Whole = key(
        "Seed of all prompts (before salting), arrival times and request seeds", default=0, ge=0, lt=2**63
    )
    deployments: dict[Name, DeploymentSpec] = key("The deployments that can be compared, by name", min_length=1)
    prices: Text | None = optional(
        "A file of prices by deployment and day, for deployments that have neither `price` nor `token_prices`"
    )
    baseline: Name = key("Name of the accepted reference. `--baseline` chooses another", default="baseline")
    candidates: tuple[Name, ...] = optional(
        "Several candidates, instead of `candidate`: each is judged by itself", default=(), min_length=1
    )
    candidate: Name = key(
        "Name of the deployment to be judged. `--candidate` chooses another. Default: the first of "
        "`candidates`, else `candidate`",
        default_factory=lambda known: next(iter(known.get("candidates", ())), "candidate"),
    )
    change: Text | None = optional(
        "What the candidate changes, in words; the report shows it beside the differences it found"
    )
    limits: Limits = key("Time limits of every request. Default: all defaults", default=Limits())
    start: Start | None = optional("Start the deployments repeatedly to measure their cold start")
    slo: SloSpec | None = key("Latency bounds that a good request meets", default=None)
    error_budget: ErrorBudget | None = optional("Error budget of production, and how much of it is spent")
    load: Load | None = key("The load sweep", default=None)
    quality: Quality | None = key("The evals: tasks with known answers", default=None)
    divergence: Divergence | None = optional("Compare next-token probabilities on fixed texts")
    shadow: Shadow | None = key("Compare answers to recorded prompts", default=None)
    gate: Gate = key(
        "The policy: which checks decide, and what they allow. Default: the default checks", default=Gate()
    )

    @model_validator(mode="before")
    @classmethod
    def _classes_inherit_the_slo(cls, data: Any, info: ValidationInfo) -> Any:
        return data if is_stored(info) or not isinstance(data, dict) else with_inherited_slos(data)

    @field_validator("candidates")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f'"{twice}" is listed twice; each candidate is judged once')
        return names

    @field_validator("candidate")
    @classmethod
    def _one_way(cls, name: str, info: ValidationInfo) -> str:
        if info.data.get("candidates"):
            raise ValueError("`candidates` names them all already; keep one of the two")
        return name

    @property
    def regions(self) -> Mapping[str, str]:
        """Return the regions that send the load, each with the address of its scheduler; empty for one place."""
        return self.load.regions if self.load is not None else {}

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages of its load."""
        return tuple(stage.name for stage in self.load.sweep) if self.load is not None else ()

    @property
    def arm_names(self) -> dict[Arm, str]:
        """Return the name of each arm's deployment."""
        return {Arm.BASELINE: self.baseline, Arm.CANDIDATE: self.candidate}

    def unit_name(self, task: str) -> str:
        """Return the suite's name of an observed task: its own or that of its group, with its stage (`add@c16`)."""
        entry, stage = self.quality.entry(task) if self.quality is not None else None, stage_of_task(task)
        if entry is None:
            return task
        return entry.name if stage is None else verified_name(entry.name, stage)

    def to_stored(self) -> dict[str, Any]:
        """Return plain JSON with every default filled in and all quantities in base units, without secrets."""
        return self.model_dump(mode="json", by_alias=False)

    @classmethod
    def from_stored(cls, data: object) -> Suite:
        """Read what `to_stored` returned, for a calibration too. Raises EvidenceError for any other data."""
        if isinstance(data, Mapping):
            data = {key: value for key, value in data.items() if key != "calibration"}
        try:
            return cls.model_validate(data, by_name=True, by_alias=False, context={"stored": True})
        except (ValidationError, UnicodeEncodeError) as error:  # the latter for half of a surrogate pair
            fault = str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_context=False, include_input=False)[0]
                fault = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
            raise EvidenceError(
                f"this version of benchgate cannot read the run's suite ({fault}); use the version that made the run"
            ) from None


def is_sent_by_grpc(suite: Suite) -> bool:
    """Return True for a suite whose load uses gRPC."""
    return any(ENDPOINTS[traffic.workload.endpoint].by_grpc for traffic in traffic_classes(suite))


def traffic_classes(suite: Suite) -> tuple[TrafficClass, ...]:
    """Return every class of traffic of the suite's sweep, in order; empty without a load."""
    return suite.load.classes(suite.slo) if suite.load is not None else ()


def all_traffic(suite: Suite) -> tuple[TrafficClass, ...]:
    """Return every class of traffic of the sweep, then that of the capacity search if there is one."""
    searched = suite.load.search_traffic(suite.slo) if suite.load is not None else None
    return (*traffic_classes(suite), *([] if searched is None else [searched]))


def policy_parts(suite: Suite) -> list[Any]:
    """Return what `--policy` takes from a suite, as stored: gate, SLO, error budget, and SLOs of classes of traffic."""
    stored = suite.to_stored()
    own = {traffic.name: traffic.slo_spec for traffic in traffic_classes(suite) if traffic.has_own_slo}
    slos = {name: spec and spec.model_dump(mode="json", by_alias=False) for name, spec in own.items()}
    return [stored["gate"], stored.get("slo"), stored.get("error_budget"), slos]


def budget_classes(suite: Suite) -> tuple[TrafficClass, ...]:
    """Return the classes of traffic whose failures an error budget counts, background as in checks of failures."""
    budget = suite.error_budget
    if budget is None:
        return ()
    name = budget_stage(budget, suite.gate.operating, suite.stage_names)
    counts_background = budget.metric == "error_rate"
    return tuple(
        traffic
        for traffic in traffic_classes(suite)
        if traffic.name == name
        or (traffic.stage == name and (counts_background or not traffic.is_background or traffic.has_own_slo))
    )


_COMPARISONS = ("quality", "divergence", "shadow")


def measured_arms(suite: Suite) -> tuple[Arm, ...]:
    """Return both arms, or the candidate alone if it is the baseline too and no check compares the two."""
    checks = suite.gate.checks
    compares = not checks or any(check.margin is not None for check in checks)
    compares = compares or any(getattr(suite, name) is not None for name in _COMPARISONS)
    return _arms(suite.baseline == suite.candidate and not compares)


def measured_usd_per_hour(suite: Suite) -> float | None:
    """Return the price of all measured deployments, one that is both arms once; None without a price by the hour."""
    usd = 0.0
    for name in sorted({getattr(suite, arm.value) for arm in measured_arms(suite)}):
        deployment = suite.deployments[name]
        if deployment.usd_per_hour is None:
            return None
        usd += deployment.usd_per_hour * deployment.accelerators
    return usd


def arms_of_stored(stored: Mapping[str, Any]) -> tuple[Arm, ...]:
    """Return the measured arms of a stored suite."""
    checks = (stored.get("gate") or {}).get("checks") or ()
    compares = any(check.get("margin") is not None for check in checks)
    compares = compares or not checks or any(stored.get(name) is not None for name in _COMPARISONS)
    same = stored.get("baseline") is not None and stored.get("baseline") == stored.get("candidate")
    return _arms(same and not compares)


def _arms(is_single: bool) -> tuple[Arm, ...]:
    return (Arm.CANDIDATE,) if is_single else (Arm.BASELINE, Arm.CANDIDATE)


def declared_context_tokens(suite: Suite) -> int | None:
    """Return the smaller context length of the two arms; None if the suite has neither."""
    lengths = (suite.deployments[name].context_length for name in (suite.baseline, suite.candidate))
    return min((tokens for tokens in lengths if tokens is not None), default=None)
