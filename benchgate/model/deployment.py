"""Deployment under test and its identity."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from benchgate.model.price import utilisation_cost_factor

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
    """Deployment as stored with a run, without secrets or credentials.

    `settings` are the declared settings (weights, slots, context, extra body fields) as plain JSON values. `facts` are
    what the server reported when probed (engine version, parameter count, file type).
    """

    name: str
    model: str
    engine: str
    url: str | None  # None for an embedded deployment, whose port means nothing later
    settings: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    price_usd_per_hour: float | None = None  # per accelerator, by `price_terms` if there are any
    accelerators: int = 1
    price_terms: dict[str, object] = field(default_factory=dict)
    token_prices: dict[str, float] = field(default_factory=dict)  # $ per million `input`, `cached_input`, `output`
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
        """Return the cost factor of overhead and utilisation by its price terms; None if not stated or not valid."""
        overhead, utilisation = (self.price_terms.get(name) for name in ("overhead_ratio", "utilisation_ratio"))
        if not isinstance(overhead, int | float) or not isinstance(utilisation, int | float):
            return None
        if not (0 <= overhead < math.inf and 0 < utilisation <= 1):
            return None
        return utilisation_cost_factor(overhead, utilisation)

    @property
    def release(self) -> str:
        """Return the fingerprint without the address: a promoted candidate is the next baseline, at another address."""
        return sha256_of({k: v for k, v in asdict(self).items() if k not in ("name", *_PRICE_FIELDS, "url")})


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
