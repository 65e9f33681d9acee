"""Differences between two deployments that a suite declares by the deployments' own keys.

Fewer accelerators, other ones, another engine or another version of it are what many promotions change. The suite
says so beside each deployment (`accelerators`, `accelerator`, `engine`, `engine_version`). Where the servers say the
same, the difference needs no permission. Rules and reasons: docs/decisions.md, "Arms that differ".

What differed between the arms while they were measured: how warm their caches were, who began, how fast they ran.

Nothing here is a fault by itself, and nothing can be declared: guards trip on what goes too far. It tells a reader how
far to trust the rest.

Everything that was not the same on both sides of a comparison, and whether it is the change that is judged.

What a candidate is (its weights, its model's name and size, its address, its price) may differ: that is the change.
What serves it must be the same, or be declared as part of the change, by the deployments' own keys (`declared_change`)
or by the policy's `allow_different`: a newer engine that is faster hides weights that are slower. Why these fields:
docs/decisions.md, "Arms that differ".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

from benchgate.gate.comparison import Comparison, arms_of, load_of
from benchgate.gate.evidence.telemetry import answer_hit_ratio, server_hit_ratio, windows_of
from benchgate.model.deployment import Arm, Deployment, canonical_json, flatten_json
from benchgate.model.run import AT_THE_START, Evidence, Run
from benchgate.model.telemetry import Gauge
from benchgate.model.verdict import Difference
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

FLAGS = "flags"
"""The fact in which a server's own settings stand by name."""

_EACH_AN_ACCELERATOR = ("tp_size", "tensor_parallel_size", "pp_size", "pipeline_parallel_size", "num_shard")
_REPLICAS = ("dp_size", "data_parallel_size")
_SHARED_REPLICAS = "enable_dp_attention"  # SGLang's data parallelism over the accelerators of `tp_size`
PARALLEL_FLAGS = frozenset({*_EACH_AN_ACCELERATOR, *_REPLICAS, "ep_size"})
"""Flags that say how one model is spread over accelerators; experts are spread over those of `tp_size`."""

_MODEL = re.compile(r"(?:A|B|H|L|V|GB|GH|MI|RTX)[0-9]{2,4}[A-Z]{0,2}|[LT]4", re.IGNORECASE)
"""A word by which accelerators are sold, like A100, L40S, GB200 or MI300X; names of machines are none of them."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A deployment with what its suite says beside it; None where the suite does not say it."""

    deployment: Deployment
    accelerator: str | None = None
    engine_version: str | None = None

    @property
    def version(self) -> str | None:
        """The engine's version as the server says; where it does not, as the suite does."""
        told = self.deployment.facts.get("engine_version", self.deployment.settings.get("engine_version"))
        return self.engine_version if told is None else str(told)

    @property
    def other_version(self) -> str | None:
        """The version that the server says, where the suite declares another one; else None."""
        wrong = self.engine_version is not None and self.version != self.engine_version
        return self.version if wrong else None


def declared(run: Run, arm: Arm) -> Declared | None:
    """Return an arm with what the run's own suite says of it; None where the run does not know the arm."""
    deployment = run.arms.get(arm)
    if deployment is None:
        return None
    deployments = run.suite.get("deployments")
    spec = deployments.get(deployment.name) if isinstance(deployments, Mapping) else None
    said = spec if isinstance(spec, Mapping) else {}
    texts = (said.get(key) for key in ("accelerator", "engine_version"))
    kind, version = (text if isinstance(text, str) and text else None for text in texts)
    return Declared(deployment, kind, version)


def declaring_key(field: str, flag: str | None, one: Declared, other: Declared) -> str | None:
    """Return the key of the deployments that declares a difference; None where none does, or the servers contradict it.

    `field` is the word of the difference in `gate.allow_different`, `flag` the flag where it is one of the engine's.
    """
    sides = (one.deployment, other.deployment)
    if field in ("accelerators", "engine"):
        return field
    if field in ("engine_version", "engine_flags") and sides[0].engine != sides[1].engine:
        return "engine"
    if field == "engine_version":
        versions = (one.engine_version, other.engine_version)
        stated = None not in versions and versions[0] != versions[1]
        return "engine_version" if stated and one.other_version is other.other_version is None else None
    counts_differ = sides[0].accelerators != sides[1].accelerators
    if field == "engine_flags" and flag in PARALLEL_FLAGS:
        spread = all(accelerators_by_flags(side) == side.accelerators for side in sides)
        return "accelerators" if counts_differ and spread else None
    return _declared_hardware(one, other) if field == "hardware" else None


def _declared_hardware(one: Declared, other: Declared) -> str | None:
    """The servers' accelerators are as many as the suite says; where they are of two kinds, it names both."""
    names = [reported_accelerators(side.deployment) for side in (one, other)]
    drivers = {str(side.deployment.facts.get("driver")) for side in (one, other)}
    if len(drivers) > 1:
        return None
    if any(len(told) != side.deployment.accelerators for told, side in zip(names, (one, other), strict=True)):
        return None
    if set(names[0]) == set(names[1]):
        return "accelerators"
    kinds = (one.accelerator, other.accelerator)
    if kinds[0] is None or kinds[1] is None or kinds[0].casefold() == kinds[1].casefold():
        return None
    named = all(is_kind(kind, name) for kind, told in zip(kinds, names, strict=True) if kind for name in told)
    return "accelerator" if named else None


def keys_to_write(field: str, flag: str | None, one: Declared, other: Declared) -> Iterator[str]:
    """Yield `deployments.NAME.KEY: VALUE` for whatever would declare a difference of this field, as the servers are."""
    for side, beside in ((one, other), (other, one)):
        deployment = side.deployment
        names, others = reported_accelerators(deployment), reported_accelerators(beside.deployment)
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
    """Return the names of the accelerators that serve it, as its `gpu` says; none where nobody says."""
    names = deployment.facts.get("accelerator_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def accelerators_by_flags(deployment: Deployment) -> int:
    """Return over how many accelerators the engine's flags spread the model; 1 where they do not say."""
    flags = deployment.facts.get(FLAGS)
    if not isinstance(flags, Mapping):
        return 1
    return math.prod(_sizes(flags, _EACH_AN_ACCELERATOR)) * _replicas(flags)


def _replicas(flags: Mapping[str, object]) -> int:
    shared = str(flags.get(_SHARED_REPLICAS, False)).casefold() in ("true", "1")
    return 1 if shared else math.prod(_sizes(flags, _REPLICAS))


def _sizes(flags: Mapping[str, object], names: Collection[str]) -> list[int]:
    found = (flags.get(name, 1) for name in names)
    return [size for size in found if isinstance(size, int) and not isinstance(size, bool) and size >= 1]


def models_in(name: str) -> set[str]:
    """Return the words of a name by which accelerators are sold: `NVIDIA H100 80GB HBM3` gives H100."""
    return {word.upper() for word in re.split("[^A-Za-z0-9]+", name) if _MODEL.fullmatch(word)}


def is_kind(kind: str, name: str) -> bool:
    """Return True where a server's name of an accelerator is of the kind that a suite calls so."""
    models = models_in(kind)
    return bool(models & models_in(name)) if models else kind.casefold() in name.casefold()


_WARMER = 0.01  # in shares of the prompts' tokens
_OTHER_CLOCK = 0.02  # of the faster accelerator


def observed_differences(evidence: Evidence, suite: Suite) -> Iterator[Difference]:
    """Every such difference of a run of two arms, in a fixed order."""
    stages = [stage.name for stage in suite.load.sweep] if suite.load is not None else []
    for stage in stages:
        yield from _warmth(evidence, suite, stage)
    for stage in stages:
        yield from _clocks(evidence, stage)
    yield from _first_in_blocks(evidence)


def _warmth(evidence: Evidence, suite: Suite, stage: str) -> Iterator[Difference]:
    """By what both servers say, else by what the answers of both say."""
    assert suite.load is not None, "a stage belongs to a load"
    names = [level.name for level in suite.load.levels() if level.stage == stage]
    by_server = [server_hit_ratio(evidence, stage, arm) for arm in Arm]
    told = by_server if None not in by_server else [answer_hit_ratio(evidence, names, arm) for arm in Arm]
    theirs, ours = told
    if theirs is not None and ours is not None and abs(theirs - ours) > _WARMER:
        what = f"prompt tokens found in the prefix cache, stage {stage}"
        yield Difference(what, show_percent(theirs), show_percent(ours), declared=False)


def _clocks(evidence: Evidence, stage: str) -> Iterator[Difference]:
    """The accelerators' own clocks, over all blocks: a hot one is a slow one."""
    found = []
    for arm in Arm:
        means = [window.mean(Gauge.GPU_CLOCK) for window in windows_of(evidence, stage, arm).values()]
        told = [mean for mean in means if mean is not None]
        found.append(fmean(told) if told else None)
    theirs, ours = found
    if theirs is None or ours is None or abs(theirs - ours) <= _OTHER_CLOCK * max(theirs, ours):
        return
    what = f"the accelerators' clock, stage {stage}"
    yield Difference(what, f"{theirs / 1e6:,.0f} MHz", f"{ours / 1e6:,.0f} MHz", declared=False)


def _first_in_blocks(evidence: Evidence) -> Iterator[Difference]:
    """Whoever is measured first in a block meets the machine as it is then; the order alternates so that it cancels."""
    first = dict.fromkeys(Arm, 0)
    of = 0
    for stage in dict.fromkeys(o.stage for o in evidence.load):
        theirs, ours = (load_of(evidence, stage, arm) for arm in Arm)
        for block in sorted(theirs.keys() & ours.keys()):
            first[Arm.BASELINE if theirs[block].position < ours[block].position else Arm.CANDIDATE] += 1
            of += 1
    if first[Arm.BASELINE] != first[Arm.CANDIDATE]:
        shown = {arm: f"{count:,} of {of:,}" for arm, count in first.items()}
        what = "who was measured first in a block of a stage"
        yield Difference(what, shown[Arm.BASELINE], shown[Arm.CANDIDATE], declared=False)


NOT_TOLD = "not told"


@dataclass(frozen=True, slots=True)
class _Shared:
    """A field that both arms must share: what it is called, and the settings and facts it is read from, best first."""

    title: str
    names: tuple[str, ...] = ()
    value_of: Callable[[Deployment], object] | None = None  # where it is not simply the first of these names

    def value(self, deployment: Deployment) -> object:
        if self.value_of is not None:
            return self.value_of(deployment)
        told = {**deployment.settings, **deployment.facts}
        return next((told[name] for name in self.names if name in told), None)


def _request_fields(deployment: Deployment) -> object:
    """Headers that are written out count too: a gateway may route by them, and a server may act on them."""
    said = {name: value for name in _REQUEST_FIELDS if (value := deployment.settings.get(name))}
    return canonical_json(said).decode("utf-8", "replace") if said else "none"


def _hardware(deployment: Deployment) -> object:
    """`8 x NVIDIA H200, driver 570.1`."""
    names = deployment.facts.get("accelerator_names")
    if not isinstance(names, list) or not names:
        return None
    counts = {str(name): names.count(name) for name in names}
    told = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    driver = deployment.facts.get("driver")
    return told if driver is None else f"{told}, driver {driver}"


_REQUEST_FIELDS = ("extra", "leave_out", "headers")
_FIELDS: Mapping[str, _Shared] = MappingProxyType(
    {
        "engine": _Shared("the engine", value_of=lambda d: d.engine),
        "engine_version": _Shared("the engine's version", ("engine_version",)),  # as told, or as declared
        "context": _Shared("the longest context", ("max_model_len", "context_tokens", "n_ctx")),
        "slots": _Shared("the slots", ("slots", "total_slots")),
        "threads": _Shared("the threads", ("threads",)),
        "vocabulary": _Shared("the size of the vocabulary", ("n_vocab",)),
        "chat_template": _Shared("the chat template", ("chat_template_sha256",)),
        "accelerators": _Shared("the number of accelerators", value_of=lambda d: d.accelerators),
        "hardware": _Shared("the hardware", ("accelerator_names", "driver"), _hardware),
        "request_fields": _Shared("the extra fields or headers of requests", _REQUEST_FIELDS, _request_fields),
        "proxy": _Shared("the way there", ("proxy",), lambda d: "by a proxy" if d.settings.get("proxy") else "direct"),
    }
)
_ONE_FACT = frozenset({"max_tokens_field"})
"""How a request is spelled, and no part of what is served: it is said, and what comes of it is for other guards."""
_READ = frozenset({FLAGS, *_ONE_FACT, *(name for field in _FIELDS.values() for name in field.names)})
_OF_TWO = ("hardware",)
"""What a suite must ask for to be told (`gpu`): of one arm alone it says nothing of the other."""


def differences(comparison: Comparison, suite: Suite) -> tuple[Difference, ...]:
    """What differed between the two sides, what nobody declared first; nothing where one deployment was measured alone.

    Between a run's own arms also what was seen to differ while they were measured.
    """
    judged, reference = comparison.judged, comparison.reference
    sides = sides_of(comparison)
    runs = (judged,) if reference is None else (judged, reference)
    if sides is None or any(fault.when == AT_THE_START for run in runs for fault in run.target_faults):
        return ()
    pair = declared_sides(comparison)
    found = [*([] if pair is None else between(*pair, suite.gate.allow_different)), *_in_spelling(*sides)]
    if reference is None:
        found += observed_differences(judged, suite)
    return tuple(sorted(found, key=lambda one: (one.declared, one.field is None)))


def declared_sides(comparison: Comparison) -> tuple[Declared, Declared] | None:
    """Return both sides with what their suites say of them; None where `sides_of` knows no two."""
    if sides_of(comparison) is None:
        return None
    theirs, side = (comparison.judged, Arm.BASELINE)
    if comparison.reference is not None:
        theirs, side = (comparison.reference, Arm.CANDIDATE)
    baseline, candidate = declared(theirs.run, side), declared(comparison.judged.run, Arm.CANDIDATE)
    return None if baseline is None or candidate is None else (baseline, candidate)


def sides_of(comparison: Comparison) -> tuple[Deployment, Deployment] | None:
    """Who is held against whom; None where nobody is, or the run does not know both."""
    judged, reference = comparison.judged, comparison.reference
    if reference is None and len(arms_of(judged)) < len(Arm):
        return None
    theirs, side = (judged, Arm.BASELINE) if reference is None else (reference, Arm.CANDIDATE)
    baseline, candidate = theirs.run.arms.get(side), judged.run.arms.get(Arm.CANDIDATE)
    return None if baseline is None or candidate is None else (baseline, candidate)


def vocabulary_warning(comparison: Comparison, suite: Suite) -> str | None:
    """What there is to say where the tokens of both sides may be of two vocabularies: as many of them are other texts.

    Only where the policy lets the vocabulary differ, and the servers do not say that it is the same.
    """
    sides = sides_of(comparison)
    if sides is None or "vocabulary" not in suite.gate.allow_different:
        return None
    if not may_differ_in_vocabulary(*sides, suite):
        return None
    return "a token of one vocabulary is another piece of text than one of the other: judge e2e or request_throughput"


def may_differ_in_vocabulary(one: Deployment, other: Deployment, suite: Suite) -> bool:
    """Whether tokens of two may be of two vocabularies: where one of them does not tell, if the policy allows that."""
    theirs, ours = (_FIELDS["vocabulary"].value(deployment) for deployment in (one, other))
    if theirs is None or ours is None:
        return "vocabulary" in suite.gate.allow_different
    return theirs != ours


def between(baseline: Declared, candidate: Declared, allowed: Collection[str]) -> tuple[Difference, ...]:
    """Return the differences of two deployments: first the fields they must share, then what a candidate may change.

    `field` of a declared one is the key of the deployments, or the word of `allowed`, that declares it.
    """
    shared = [_difference(one, baseline, candidate, allowed) for one in _shared(baseline, candidate)]
    one, other = _itself(baseline.deployment), _itself(candidate.deployment)
    itself = [
        Difference(name, one.get(name, NOT_TOLD), other.get(name, NOT_TOLD), declared=True)
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    ]
    return (*shared, *itself)


def keys_declaring(baseline: Declared, candidate: Declared, allowed: Collection[str]) -> dict[str, str]:
    """Return what to write in the suite's deployments for the differences that nobody declares, each by its field."""
    found: dict[str, str] = {}
    for unlike in _shared(baseline, candidate):
        if not _difference(unlike, baseline, candidate, allowed).declared:
            found |= dict.fromkeys(keys_to_write(unlike.field, unlike.flag, baseline, candidate), unlike.field)
    return found


@dataclass(frozen=True, slots=True)
class _Unlike:
    """A shared field, or one flag of the engine, whose values differ."""

    field: str
    flag: str | None
    title: str
    theirs: object
    ours: object


def _difference(unlike: _Unlike, baseline: Declared, candidate: Declared, allowed: Collection[str]) -> Difference:
    shown = _show(unlike.theirs), _show(unlike.ours)
    if unlike.field in _OF_TWO and None in (unlike.theirs, unlike.ours):
        return Difference(unlike.title, *shown, declared=False)
    key = declaring_key(unlike.field, unlike.flag, baseline, candidate)
    if key is None and unlike.field in allowed:
        key = unlike.field
    return Difference(unlike.title, *shown, declared=key is not None, field=key or unlike.field)


def _shared(baseline: Declared, candidate: Declared) -> Iterator[_Unlike]:
    """Every field that both must share and whose values differ."""
    one, other = baseline.deployment, candidate.deployment
    for name, field in _FIELDS.items():
        theirs, ours = field.value(one), field.value(other)
        if name == "engine_version":
            theirs, ours = baseline.version, candidate.version
        if theirs != ours:
            yield _Unlike(name, None, field.title, theirs, ours)
    said, saying = _flags(one), _flags(other)
    if said is None or saying is None:
        if said != saying:
            yield _Unlike("engine_flags", None, "the engine's flags", said and "told", saying and "told")
        return
    for flag in sorted(said.keys() | saying.keys()):
        if said.get(flag) != saying.get(flag):
            yield _Unlike("engine_flags", flag, f"the engine's flag {flag}", said.get(flag), saying.get(flag))


def _flags(deployment: Deployment) -> dict[str, str] | None:
    """What the server says of how it was started; None where it says nothing of the kind."""
    told = deployment.facts.get(FLAGS)
    return dict(flatten_json(told)) if isinstance(told, dict) and told else None


def _itself(deployment: Deployment) -> dict[str, str]:
    """What a deployment is, as far as no field speaks of it: by name, as text."""
    fixed = {"model": deployment.model}
    if deployment.url is not None:
        fixed["address"] = deployment.url
    if deployment.price_usd_per_hour is not None:
        fixed["price of an accelerator per hour"] = f"${deployment.price_usd_per_hour:g}"
    fixed |= {f"price of a million tokens ({kind})": f"${usd:g}" for kind, usd in deployment.token_prices.items()}
    declared = {f"declared: {name}": text for name, text in flatten_json(_unread(deployment.settings))}
    probed = {f"server says: {name}": text for name, text in flatten_json(_unread(deployment.facts))}
    return fixed | declared | probed


def _unread(told: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in told.items() if name not in _READ}


def _in_spelling(baseline: Deployment, candidate: Deployment) -> Iterator[Difference]:
    for name in sorted(_ONE_FACT):
        theirs, ours = (deployment.settings.get(name) for deployment in (baseline, candidate))
        if theirs != ours:
            what = "the name of the limit of an answer's length"
            yield Difference(what, str(theirs or "max_tokens"), str(ours or "max_tokens"), declared=False)


def _show(value: object) -> str:
    return NOT_TOLD if value is None else str(value)
