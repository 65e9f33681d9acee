"""Everything that was not the same on both sides of a comparison, and whether it is the change that is judged.

What a candidate is (its weights, its model's name and size, its address, its price) may differ: that is the change.
What serves it must be the same, or be declared as part of the change, by the deployments' own keys (`declared_change`)
or by the policy's `allow_different`: a newer engine that is faster hides weights that are slower. Why these fields:
docs/decisions.md, "Arms that differ".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchgate.gate.comparison import Comparison, arms_of
from benchgate.gate.declared_change import FLAGS, Declared, declared, declaring_key, keys_to_write
from benchgate.gate.seen_differences import seen_differences
from benchgate.model.deployment import Arm, Deployment, canonical_json, flattened
from benchgate.model.run import AT_THE_START
from benchgate.model.verdict import Difference
from benchgate.suite.schema import Suite

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
        found += seen_differences(judged, suite)
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


def counts_other_tokens(comparison: Comparison, suite: Suite) -> str | None:
    """What there is to say where the tokens of both sides may be of two vocabularies: as many of them are other texts.

    Only where the policy lets the vocabulary differ, and the servers do not say that it is the same.
    """
    sides = sides_of(comparison)
    if sides is None or "vocabulary" not in suite.gate.allow_different:
        return None
    if not of_other_vocabularies(*sides, suite):
        return None
    return "a token of one vocabulary is another piece of text than one of the other: judge e2e or request_throughput"


def of_other_vocabularies(one: Deployment, other: Deployment, suite: Suite) -> bool:
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
    return dict(flattened(told)) if isinstance(told, dict) and told else None


def _itself(deployment: Deployment) -> dict[str, str]:
    """What a deployment is, as far as no field speaks of it: by name, as text."""
    fixed = {"model": deployment.model}
    if deployment.url is not None:
        fixed["address"] = deployment.url
    if deployment.price_usd_per_hour is not None:
        fixed["price of an accelerator per hour"] = f"${deployment.price_usd_per_hour:g}"
    fixed |= {f"price of a million tokens ({kind})": f"${usd:g}" for kind, usd in deployment.token_prices.items()}
    declared = {f"declared: {name}": text for name, text in flattened(_unread(deployment.settings))}
    probed = {f"server says: {name}": text for name, text in flattened(_unread(deployment.facts))}
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
