"""Differences between the two deployments of a comparison, and whether the suite declares them as the change.

The candidate itself (weights, model name, address, price) may differ. Everything that serves it must be the same or be
declared, by the deployments' own keys (`accelerators`, `accelerator`, `engine`, `engine_version`) or by the policy's
`allow_different`: a faster engine would hide slower weights. Differences observed during the measurement (cache hits,
clocks, order) are listed for the reader and cannot be declared. See docs/adr/18-declared-differences.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from benchgate.gate.comparison import Comparison, LiveBaseline, arms_of, paired_load
from benchgate.gate.evidence.telemetry import answer_hit_ratio, server_hit_ratio, windows_of
from benchgate.model.deployment import Arm, Deployment, canonical_json, flatten_json
from benchgate.model.run import AT_THE_START, Evidence, Run
from benchgate.model.telemetry import Gauge
from benchgate.model.verdict import Difference
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_percent

FLAGS = "flags"  # name of the fact that holds a server's start-up settings

_EACH_AN_ACCELERATOR = ("tp_size", "tensor_parallel_size", "pp_size", "pipeline_parallel_size", "num_shard")
_REPLICAS = ("dp_size", "data_parallel_size")
_SHARED_REPLICAS = "enable_dp_attention"  # SGLang's data parallelism over the accelerators of `tp_size`
PARALLEL_FLAGS = frozenset({*_EACH_AN_ACCELERATOR, *_REPLICAS, "ep_size"})
"""Flags that spread one model over accelerators. Experts share the accelerators of `tp_size`."""

_MODEL = re.compile(r"(?:A|B|H|L|V|GB|GH|MI|RTX)[0-9]{2,4}[A-Z]{0,2}|[LT]4", re.IGNORECASE)
"""Accelerator model such as A100, L40S, GB200 or MI300X; names of machines do not match."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Deployment with the accelerator and engine version that its suite declares; None if undeclared."""

    deployment: Deployment
    accelerator: str | None = None
    engine_version: str | None = None

    @property
    def version(self) -> str | None:
        """Return the engine version that the server reports, else the declared one."""
        reported = self.deployment.facts.get("engine_version", self.deployment.settings.get("engine_version"))
        return self.engine_version if reported is None else str(reported)

    @property
    def contradicting_version(self) -> str | None:
        """Return the reported version if it contradicts the declared one, else None."""
        return None if self.engine_version in (None, self.version) else self.version


def declared(run: Run, arm: Arm) -> Declared | None:
    """Return an arm with the values that the run's own suite declares; None if the run did not record the arm."""
    deployment = run.arms.get(arm)
    if deployment is None:
        return None
    deployments = run.suite.get("deployments")
    spec = deployments.get(deployment.name) if isinstance(deployments, Mapping) else None
    stored = spec if isinstance(spec, Mapping) else {}
    texts = (stored.get(key) for key in ("accelerator", "engine_version"))
    kind, version = (text if isinstance(text, str) and text else None for text in texts)
    return Declared(deployment, kind, version)


def declaring_key(field: str, flag: str | None, one: Declared, other: Declared) -> str | None:
    """Return the deployment key that declares a difference; None if none does or the servers contradict it.

    `field` is the name of the difference in `gate.allow_different`, `flag` the name of an engine flag.
    """
    sides = (one.deployment, other.deployment)
    if field in ("accelerators", "engine"):
        return field
    if field in ("engine_version", "engine_flags") and sides[0].engine != sides[1].engine:
        return "engine"
    if field == "engine_version":
        versions = (one.engine_version, other.engine_version)
        stated = None not in versions and versions[0] != versions[1]
        return "engine_version" if stated and one.contradicting_version is other.contradicting_version is None else None
    counts_differ = sides[0].accelerators != sides[1].accelerators
    if field == "engine_flags" and flag in PARALLEL_FLAGS:
        spread = all(accelerators_by_flags(side) == side.accelerators for side in sides)
        return "accelerators" if counts_differ and spread else None
    return _declared_hardware(one, other) if field == "hardware" else None


def _declared_hardware(one: Declared, other: Declared) -> str | None:
    names = [reported_accelerators(side.deployment) for side in (one, other)]
    drivers = {str(side.deployment.facts.get("driver")) for side in (one, other)}
    if len(drivers) > 1:
        return None
    if any(len(found) != side.deployment.accelerators for found, side in zip(names, (one, other), strict=True)):
        return None
    if set(names[0]) == set(names[1]):
        return "accelerators"
    kinds = (one.accelerator, other.accelerator)
    if kinds[0] is None or kinds[1] is None or kinds[0].casefold() == kinds[1].casefold():
        return None
    named = all(is_kind(kind, name) for kind, found in zip(kinds, names, strict=True) if kind for name in found)
    return "accelerator" if named else None


def keys_to_write(field: str, flag: str | None, one: Declared, other: Declared) -> Iterator[str]:
    """Yield each `deployments.NAME.KEY: VALUE` that would declare a difference of this field."""
    for side, opposite in ((one, other), (other, one)):
        deployment = side.deployment
        names, others = reported_accelerators(deployment), reported_accelerators(opposite.deployment)
        key = f"deployments.{deployment.name}"
        count: int | None = None
        if field == "hardware" and names:
            count = len(names)
        elif flag in PARALLEL_FLAGS:
            count = accelerators_by_flags(deployment)
        if count is not None and count != deployment.accelerators:
            yield f"`{key}.accelerators: {count}`"
        if field == "hardware" and names and set(names) != set(others):
            kind = next(iter(sorted(models_in(names[0]))), names[0])
            if side.accelerator is None or not is_kind(side.accelerator, names[0]):
                yield f"`{key}.accelerator: {kind}`"
        if field == "engine_version":
            version = side.version
            yield f"`{key}.engine_version`" if version is None else f'`{key}.engine_version: "{version}"`'


def reported_accelerators(deployment: Deployment) -> list[str]:
    """Return the names of the deployment's accelerators as reported by `gpu`; [] if unreported."""
    names = deployment.facts.get("accelerator_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def accelerators_by_flags(deployment: Deployment) -> int:
    """Return the number of accelerators over which the engine's flags spread the model; 1 by default."""
    flags = deployment.facts.get(FLAGS)
    if not isinstance(flags, Mapping):
        return 1
    shared = str(flags.get(_SHARED_REPLICAS, False)).casefold() in ("true", "1")
    found = [flags.get(name, 1) for name in (*_EACH_AN_ACCELERATOR, *(() if shared else _REPLICAS))]
    return math.prod(n for n in found if isinstance(n, int) and not isinstance(n, bool) and n >= 1)


def models_in(name: str) -> set[str]:
    """Return the accelerator models in a name: `NVIDIA H100 80GB HBM3` gives H100."""
    return {word.upper() for word in re.split("[^A-Za-z0-9]+", name) if _MODEL.fullmatch(word)}


def is_kind(kind: str, name: str) -> bool:
    """Return True if an accelerator name reported by a server matches the kind declared in a suite."""
    models = models_in(kind)
    return bool(models & models_in(name)) if models else kind.casefold() in name.casefold()


_WARMER = 0.01  # of the prompts' tokens
_OTHER_CLOCK = 0.02  # of the faster accelerator


def observed_differences(evidence: Evidence, suite: Suite) -> Iterator[Difference]:
    """Yield differences of cache hits, clocks and order between the arms of a run."""
    stages = [stage.name for stage in suite.load.sweep] if suite.load is not None else []
    for stage in stages:
        names = [level.name for level in traffic_classes(suite) if level.stage == stage]
        ratios = [server_hit_ratio(evidence, stage, arm) for arm in Arm]
        if None in ratios:
            ratios = [answer_hit_ratio(evidence, names, arm) for arm in Arm]
        baseline, candidate = ratios
        if baseline is not None and candidate is not None and abs(baseline - candidate) > _WARMER:
            what = f"prompt tokens found in the prefix cache, stage {stage}"
            yield Difference(what, show_percent(baseline), show_percent(candidate), declared=False)
    for stage in stages:
        clocks = []
        for arm in Arm:
            means = [window.mean(Gauge.GPU_CLOCK) for window in windows_of(evidence, stage, arm).values()]
            known = [mean for mean in means if mean is not None]
            clocks += [fmean(known)] if known else []
        if len(clocks) == len(Arm) and abs(clocks[0] - clocks[1]) > _OTHER_CLOCK * max(clocks):
            theirs, ours = (f"{clock / 1e6:,.0f} MHz" for clock in clocks)
            yield Difference(f"the accelerators' clock, stage {stage}", theirs, ours, declared=False)
    first, of = dict.fromkeys(Arm, 0), 0
    for stage in dict.fromkeys(o.stage for o in evidence.load):
        for one, other in paired_load(evidence, stage):
            first[Arm.BASELINE if one.position < other.position else Arm.CANDIDATE] += 1
            of += 1
    if first[Arm.BASELINE] != first[Arm.CANDIDATE]:
        theirs, ours = (f"{first[arm]:,} of {of:,}" for arm in Arm)
        yield Difference("blocks of a stage measured first", theirs, ours, declared=False)


NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class _Shared:
    """Field that both arms must share, read from the first present of the settings and facts `names`."""

    title: str
    names: tuple[str, ...] = ()
    value_of: Callable[[Deployment], object] | None = None  # replaces the lookup by `names`

    def value(self, deployment: Deployment) -> object:
        if self.value_of is not None:
            return self.value_of(deployment)
        known = {**deployment.settings, **deployment.facts}
        return next((known[name] for name in self.names if name in known), None)


def _request_fields(deployment: Deployment) -> object:
    """Return extra fields and headers of requests as JSON: a gateway may route by them."""
    fields = {name: value for name in _REQUEST_FIELDS if (value := deployment.settings.get(name))}
    return canonical_json(fields).decode("utf-8", "replace") if fields else "none"


def _hardware(deployment: Deployment) -> object:
    """Format as `8 x NVIDIA H200, driver 570.1`."""
    names = deployment.facts.get("accelerator_names")
    if not isinstance(names, list) or not names:
        return None
    counts = {str(name): names.count(name) for name in names}
    accelerators = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    driver = deployment.facts.get("driver")
    return accelerators if driver is None else f"{accelerators}, driver {driver}"


_REQUEST_FIELDS = ("extra", "leave_out", "headers")
_FIELDS: Mapping[str, _Shared] = MappingProxyType(
    {
        "engine": _Shared("the engine", value_of=lambda d: d.engine),
        "engine_version": _Shared("the engine's version", ("engine_version",)),  # as reported or declared
        "context": _Shared("the longest context", ("max_model_len", "context_tokens", "n_ctx")),
        "slots": _Shared("the slots", ("slots", "total_slots")),
        "threads": _Shared("the threads", ("threads",)),
        "vocabulary": _Shared("the size of the vocabulary", ("n_vocab",)),
        "chat_template": _Shared("the chat template", ("chat_template_sha256",)),
        "accelerators": _Shared("the number of accelerators", value_of=lambda d: d.accelerators),
        "hardware": _Shared("the hardware", ("accelerator_names", "driver"), _hardware),
        "request_fields": _Shared("the extra fields or headers of requests", _REQUEST_FIELDS, _request_fields),
        "proxy": _Shared(
            "the network path", ("proxy",), lambda d: "by a proxy" if d.settings.get("proxy") else "direct"
        ),
    }
)
_SPELLING = "max_tokens_field"
"""Spelling of requests, not part of serving: listed as a difference, judged only by its effects."""
_READ = frozenset({FLAGS, _SPELLING, *(name for field in _FIELDS.values() for name in field.names)})
_OPT_IN = ("hardware",)
"""Fields reported only if the suite requests them (`gpu`): a value of one arm alone declares nothing."""


def differences(comparison: Comparison, suite: Suite) -> tuple[Difference, ...]:
    """Return the differences between the two sides, undeclared ones first; () if one deployment was measured alone.

    For the arms of one run this includes differences observed during the measurement.
    """
    sides = sides_of(comparison)
    if sides is None or any(fault.when == AT_THE_START for run in comparison.runs for fault in run.target_faults):
        return ()
    pair = declared_sides(comparison)
    found = [] if pair is None else [*compare_deployments(*pair, suite.gate.allow_different)]
    theirs, ours = (str(side.settings.get(_SPELLING) or "max_tokens") for side in sides)
    if theirs != ours:
        what = "the request field for the maximum number of tokens"
        found.append(Difference(what, theirs, ours, declared=False))
    if isinstance(comparison, LiveBaseline):
        found += observed_differences(comparison.judged, suite)
    return tuple(sorted(found, key=lambda one: (one.declared, one.field is None)))


def declared_sides(comparison: Comparison) -> tuple[Declared, Declared] | None:
    """Return both sides with the values that their suites declare; None if there are no two."""
    if sides_of(comparison) is None:
        return None
    baseline = declared(comparison.baseline_run.run, comparison.baseline_arm)
    candidate = declared(comparison.judged.run, Arm.CANDIDATE)
    return None if baseline is None or candidate is None else (baseline, candidate)


def sides_of(comparison: Comparison) -> tuple[Deployment, Deployment] | None:
    """Return the two compared deployments; None if one was measured alone or is not recorded."""
    if isinstance(comparison, LiveBaseline) and len(arms_of(comparison.judged)) < len(Arm):
        return None
    baseline = comparison.baseline_run.run.arms.get(comparison.baseline_arm)
    candidate = comparison.judged.run.arms.get(Arm.CANDIDATE)
    return None if baseline is None or candidate is None else (baseline, candidate)


def vocabulary_warning(comparison: Comparison, suite: Suite) -> str | None:
    """Return a warning if the policy lets the vocabulary differ and the servers do not report the same one."""
    sides = sides_of(comparison)
    if sides is None or "vocabulary" not in suite.gate.allow_different:
        return None
    if not may_differ_in_vocabulary(*sides, suite):
        return None
    return "tokens of different vocabularies hold different amounts of text: use e2e or request_throughput"


def may_differ_in_vocabulary(one: Deployment, other: Deployment, suite: Suite) -> bool:
    """Return True if the vocabularies differ, or one is unreported and the policy allows a difference."""
    baseline, candidate = (_FIELDS["vocabulary"].value(deployment) for deployment in (one, other))
    if baseline is None or candidate is None:
        return "vocabulary" in suite.gate.allow_different
    return baseline != candidate


def compare_deployments(baseline: Declared, candidate: Declared, allowed: Collection[str]) -> tuple[Difference, ...]:
    """Return the differences of two deployments: first in fields that they must share, then in the candidate itself.

    `field` of a declared one is the deployment key, or the name in `allowed`, that declares it.
    """
    shared = [_difference(one, baseline, candidate, allowed) for one in _shared(baseline, candidate)]
    one, other = _itself(baseline.deployment), _itself(candidate.deployment)
    itself = [
        Difference(name, one.get(name, NOT_REPORTED), other.get(name, NOT_REPORTED), declared=True)
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    ]
    return (*shared, *itself)


def keys_declaring(baseline: Declared, candidate: Declared, allowed: Collection[str]) -> dict[str, str]:
    """Return the suite lines that would declare the undeclared differences, each with its field."""
    keys: dict[str, str] = {}
    for found in _shared(baseline, candidate):
        if not _difference(found, baseline, candidate, allowed).declared:
            keys |= dict.fromkeys(keys_to_write(found.field, found.flag, baseline, candidate), found.field)
    return keys


@dataclass(frozen=True, slots=True)
class _FieldDifference:
    """Shared field, or flag of the engine, whose values differ."""

    field: str
    flag: str | None
    title: str
    theirs: object
    ours: object


def _difference(
    found: _FieldDifference, baseline: Declared, candidate: Declared, allowed: Collection[str]
) -> Difference:
    theirs, ours = (NOT_REPORTED if value is None else str(value) for value in (found.theirs, found.ours))
    if found.field in _OPT_IN and None in (found.theirs, found.ours):
        return Difference(found.title, theirs, ours, declared=False)
    key = declaring_key(found.field, found.flag, baseline, candidate)
    if key is None and found.field in allowed:
        key = found.field
    return Difference(found.title, theirs, ours, declared=key is not None, field=key or found.field)


def _shared(baseline: Declared, candidate: Declared) -> Iterator[_FieldDifference]:
    one, other = baseline.deployment, candidate.deployment
    for name, field in _FIELDS.items():
        theirs, ours = field.value(one), field.value(other)
        if name == "engine_version":
            theirs, ours = baseline.version, candidate.version
        if theirs != ours:
            yield _FieldDifference(name, None, field.title, theirs, ours)
    flags, others = _flags(one), _flags(other)
    if flags is None or others is None:
        if flags != others:
            yield _FieldDifference(
                "engine_flags", None, "the engine's flags", flags and "reported", others and "reported"
            )
        return
    for flag in sorted(flags.keys() | others.keys()):
        if flags.get(flag) != others.get(flag):
            yield _FieldDifference("engine_flags", flag, f"the engine's flag {flag}", flags.get(flag), others.get(flag))


def _flags(deployment: Deployment) -> dict[str, str] | None:
    flags = deployment.facts.get(FLAGS)
    return dict(flatten_json(flags)) if isinstance(flags, dict) and flags else None


def _itself(deployment: Deployment) -> dict[str, str]:
    fixed = {"model": deployment.model}
    if deployment.url is not None:
        fixed["address"] = deployment.url
    if deployment.price_usd_per_hour is not None:
        fixed["price of an accelerator per hour"] = f"${deployment.price_usd_per_hour:g}"
    fixed |= {f"price of a million tokens ({kind})": f"${usd:g}" for kind, usd in deployment.token_prices.items()}
    for source, values in (("declared", deployment.settings), ("reported", deployment.facts)):
        unread = {name: value for name, value in values.items() if name not in _READ}
        fixed |= {f"{source}: {name}": text for name, text in flatten_json(unread)}
    return fixed
