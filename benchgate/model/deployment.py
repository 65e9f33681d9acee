"""Deployment under test: its identity, and what it costs."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

_SECONDS_PER_HOUR = 3600.0
_TOKENS_PER_MILLION = 1_000_000.0


def usd_per_million_tokens(price_usd_per_hour: float, accelerators: int, tokens_per_s: float) -> float | None:
    """Return price · accelerators · 10⁶ / (3600 · tokens/s), in US dollars; None without a finite rate above 0.

    `price_usd_per_hour` is per accelerator, `tokens_per_s` of the whole deployment: output tokens for the plain cost,
    output tokens of *good* requests for the cost of good tokens. Raises ValueError for an invalid price or count.
    """
    if not (math.isfinite(price_usd_per_hour) and price_usd_per_hour >= 0):
        raise ValueError(f"price_usd_per_hour is {price_usd_per_hour!r}; expected dollars, 0 or more")
    if accelerators < 1:
        raise ValueError(f"accelerators is {accelerators!r}; expected at least 1")
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return None
    return price_usd_per_hour * accelerators * _TOKENS_PER_MILLION / (tokens_per_s * _SECONDS_PER_HOUR)


TOKEN_KINDS = ("input", "cached_input", "output")
"""Kinds of tokens that a hosted model has prices for, in the order in which they are paid."""
_PRICE_FIELDS = ("price_usd_per_hour", "price_terms", "token_prices", "price_entry")  # no part of the identity


class Arm(StrEnum):
    """Side of a comparison."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"

    @property
    def other(self) -> Arm:
        """Return the opposite side."""
        return Arm.CANDIDATE if self is Arm.BASELINE else Arm.BASELINE


@dataclass(frozen=True, slots=True)
class Deployment:
    """Deployment as stored with a run, without secrets or credentials."""

    name: str
    model: str
    engine: str
    url: str | None  # None for an embedded deployment, whose port means nothing later
    settings: dict[str, object] = field(default_factory=dict)  # declared: weights, slots, context, extra fields
    facts: dict[str, object] = field(default_factory=dict)  # reported by the server when probed
    price_usd_per_hour: float | None = None  # per accelerator, by `price_terms` if there are any
    accelerators: int = 1
    price_terms: dict[str, object] = field(default_factory=dict)
    token_prices: dict[str, float] = field(default_factory=dict)  # $ per million of each of TOKEN_KINDS, or of none
    price_entry: dict[str, object] = field(default_factory=dict)  # price file and its entry

    @property
    def has_price(self) -> bool:
        """Return True if the cost of its tokens is known."""
        return self.price_usd_per_hour is not None or bool(self.token_prices)

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 over what identifies the deployment, without its name and its price."""
        return sha256_of({k: v for k, v in asdict(self).items() if k not in ("name", *_PRICE_FIELDS)})

    @property
    def overhead_ratio(self) -> float | None:
        """Return the overhead per dollar by its price terms; None if not stated or not valid."""
        kept = self.price_terms.get("overhead_ratio")
        return float(kept) if isinstance(kept, int | float) and 0 <= kept < math.inf else None

    @property
    def in_use_factor(self) -> float | None:
        """Return (1 + overhead) / utilisation by its price terms; None if not stated or not valid.

        It is the ratio of actual to full-utilisation token cost: `overhead_ratio` is further cost per dollar,
        `utilisation_ratio` the share of paid time in which tokens flow at the measured rate.
        """
        overhead, utilisation = (self.price_terms.get(name) for name in ("overhead_ratio", "utilisation_ratio"))
        if not isinstance(overhead, int | float) or not isinstance(utilisation, int | float):
            return None
        if not (0 <= overhead < math.inf and 0 < utilisation <= 1):
            return None
        return (1 + overhead) / utilisation

    @property
    def release(self) -> str:
        """Return the fingerprint without the address: a promoted candidate is the next baseline, at another address."""
        return sha256_of({k: v for k, v in asdict(self).items() if k not in ("name", *_PRICE_FIELDS, "url")})


_Dataclass = TypeVar("_Dataclass")
_INT64 = range(-(2**63), 2**63)


@functools.cache
def _reader(kind: type[Any]) -> Callable[[object], Any]:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)

    def read(found: object) -> Any:
        try:
            return adapter.validate_python(found)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    return read


def from_json(kind: type[_Dataclass], found: object) -> _Dataclass:
    """Read a JSON object as a dataclass. Raises ValueError for keys and types of values that it does not have."""
    if not isinstance(found, Mapping):
        raise ValueError("it is no JSON object")
    if unknown := sorted(found.keys() - {one.name for one in fields(kind)}):  # type: ignore[arg-type]  # a dataclass
        raise ValueError(f"its key {unknown[0]!r} is unknown")
    if wide := [name for name, value in found.items() if isinstance(value, int) and value not in _INT64]:
        raise ValueError(f"its {wide[0]} needs more than 64 bits")
    read: _Dataclass = _reader(kind)(found)  # type: ignore[arg-type]  # a class is hashable
    return read


def flatten_json(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested plain JSON to dotted names and texts, sorted by name."""
    for key in sorted(values, key=str):
        value = values[key]
        if isinstance(value, Mapping) and value:
            yield from flatten_json(value, f"{prefix}{key}.")
        else:
            if isinstance(value, float):
                value = float(f"{value:.12g}")  # `9ms`, stored as 0.009000000000000001 s, is 0.009
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def sha256_of(value: object) -> str:
    """Return the SHA-256 over the canonical JSON of a plain value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: object) -> bytes:
    """Serialise with sorted keys, no spaces, UTF-8. Raises ValueError for NaN and infinity.

    A lone surrogate (a server can send one in JSON) is kept as three bytes, which `json.loads` restores.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAMED = re.compile(r"(?P<model>[^\s@]+/[^\s@]+)@(?P<ref>\S+)")
_ADAPTER = re.compile(r"[^\s@]+@(?P<ref>\S+)")
HOW_TO_PIN = (
    "write `revision` at the deployment in the suite (a commit of 40 hex digits, or sha256:… of a file; an adapter has "
    "it in its name, NAME@COMMIT)"
)


class PinStatus(StrEnum):
    """Degree to which the served weights are known."""

    OURS = "ours"  # benchgate made and served them
    PINNED = "pinned"
    UNKNOWN = "unknown"
    MOVING = "moving"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Pinned state of a model: `description` ends a sentence about it, `revision` is the commit or digest if PINNED."""

    pin: PinStatus
    description: str
    revision: str | None = None

    @property
    def may_move(self) -> bool:
        """Return True if the weights under this name can differ from those measured."""
        return self.pin in (PinStatus.MOVING, PinStatus.CONTRADICTED)

    @property
    def is_fixed(self) -> bool:
        """Return True if the weights under this name cannot change."""
        return self.pin in (PinStatus.OURS, PinStatus.PINNED)


def identity_of(deployment: Deployment, adapters: Iterable[str] = ()) -> ModelIdentity:
    """Determine the identity from the suite's `revision` (or the model name, `org/name@ref`) and the server's report.

    A declared revision is the author's claim. If the server reports one too, they must agree. Weights of `adapters`
    requested by name are pinned if their names are, as `name@commit`.
    """
    if deployment.url is None:
        return ModelIdentity(PinStatus.OURS, "served by benchgate itself")
    known = _model_identity(deployment)
    for name in adapters if not known.may_move else ():
        named = _ADAPTER.fullmatch(name)
        if named is None:
            known = ModelIdentity(PinStatus.UNKNOWN, f"{known.description}; and its adapter {name} is not pinned")
        elif not _is_pinned(named["ref"]):
            moving = f"{known.description}; and its adapter {name} is at no whole commit: it may move"
            return ModelIdentity(PinStatus.MOVING, moving)
    return known


def adapter_names(load: object) -> Iterator[str]:
    """Yield the adapter names in a suite's `load` as plain JSON: of every workload, stage and class."""
    for key, value in load.items() if isinstance(load, dict) else ():
        if key == "adapter" and isinstance(value, str):
            yield value
        elif key == "adapter" and isinstance(value, dict) and isinstance(value.get("names"), list | tuple):
            yield from value["names"]
        else:
            yield from adapter_names(value)
    for value in load if isinstance(load, list | tuple) else ():
        yield from adapter_names(value)


def _model_identity(deployment: Deployment) -> ModelIdentity:
    model, ref = _split_revision(deployment)
    revision = deployment.settings.get("revision", ref)
    declared, seen = None if revision is None else str(revision), _commit(deployment.facts.get("model_sha"))
    if ref is not None and declared != ref:
        return ModelIdentity(PinStatus.CONTRADICTED, f"{model} at {ref} by its name, and at {declared} by the suite")
    if declared is None:
        if seen is None:
            return ModelIdentity(PinStatus.UNKNOWN, f"{model} at no stated revision: its identity is not pinned")
        return ModelIdentity(PinStatus.PINNED, f"{model} at {seen}, as its server reported", seen)
    if not _is_pinned(declared):
        moving = f"{model} at {declared}, which is no commit of 40 hex digits: it may move"
        return ModelIdentity(PinStatus.MOVING, moving)
    if seen is not None and _DIGEST.fullmatch(declared) is None and seen != declared:
        return ModelIdentity(PinStatus.CONTRADICTED, f"{model} at {declared} by the suite, and at {seen} by its server")
    by = "the suite" if seen != declared else "the suite and its server"
    return ModelIdentity(PinStatus.PINNED, f"{model} at {declared}, by {by}", declared)


def _split_revision(deployment: Deployment) -> tuple[str, str | None]:
    """Split the model's name from the revision in it; None if there is none."""
    named = _NAMED.fullmatch(deployment.model)
    return (named["model"], named["ref"]) if named is not None else (deployment.model, None)


def _is_pinned(ref: str) -> bool:
    return _COMMIT.fullmatch(ref) is not None or _DIGEST.fullmatch(ref) is not None


def _commit(reported: object) -> str | None:
    return reported if isinstance(reported, str) and _COMMIT.fullmatch(reported) else None


def model_label(deployment: Deployment) -> str:
    """Return `org/name@REVISION` by the server's report, else the suite; the weights of an embedded deployment."""
    if deployment.url is None and (weights := deployment.settings.get("weights")) is not None:
        return f"{deployment.model} {weights}"
    model, ref = _split_revision(deployment)
    revision = _commit(deployment.facts.get("model_sha")) or deployment.settings.get("revision", ref)
    return model if revision is None else f"{model}@{revision}"


def engine_label(deployment: Deployment) -> str:
    """Return engine and version, such as `vllm 0.11.0`."""
    return " ".join(filter(None, (deployment.engine, engine_version_of(deployment))))


def reports_hardware(deployment: Deployment) -> bool:
    """Return True if the server reported its accelerators' names."""
    names = deployment.facts.get("accelerator_names")
    return isinstance(names, list) and bool(names)


def hardware_label(deployment: Deployment, environment: Mapping[str, object]) -> str:
    """Describe the hardware, in equal words for equal hardware; an address, which pull requests may vary, is none."""
    if reports_hardware(deployment) or deployment.url is None:
        return describe_hardware(deployment, environment)
    return f"not reported (accelerators: {deployment.accelerators})"


def describe_hardware(deployment: Deployment, environment: Mapping[str, object]) -> str:
    """Describe a deployment's hardware, in equal words for equal hardware.

    It is the reported accelerator names, or this machine for an embedded deployment. Otherwise only the address is
    known and given as a digest, because a report should not reveal it.
    """
    names = deployment.facts.get("accelerator_names")
    if isinstance(names, list) and names:
        counts = {str(name): names.count(name) for name in names}
        return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    if deployment.url is None:
        return f"this machine: {environment.get('cpu')}, {environment.get('cpus')} processors"
    return f"not told: address {sha256_of(deployment.url)[:12]}, accelerators {deployment.accelerators}"


def engine_version_of(deployment: Deployment) -> str | None:
    """Return the engine version reported by the server; None if there is none."""
    version = deployment.facts.get("engine_version", deployment.settings.get("engine_version"))
    return None if version is None else str(version)
