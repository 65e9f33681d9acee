"""A deployment: what is served, where, and what makes two of them the same thing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from benchgate.model.price import in_use_factor


class Arm(StrEnum):
    """The two sides of a comparison."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"

    @property
    def other(self) -> Arm:
        """The opposite arm."""
        return Arm.CANDIDATE if self is Arm.BASELINE else Arm.BASELINE


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a run remembers of one arm. No secret and no credential is ever part of it.

    `settings` are the declared knobs (weights, slots, context, extra body fields) as plain JSON values.
    `facts` are what the server said of itself when probed (engine version, parameter count, file type).
    """

    name: str
    model: str
    engine: str
    url: str | None  # None for an embedded deployment: its port means nothing later
    settings: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    price_usd_per_hour: float | None = None  # of one accelerator, by the terms below where there are any
    accelerators: int = 1
    price_terms: dict[str, object] = field(default_factory=dict)
    token_prices: dict[str, float] = field(default_factory=dict)  # `input`, `cached_input` and `output`: $ a million
    price_entry: dict[str, object] = field(default_factory=dict)  # of which file, and as it is written there

    @property
    def has_price(self) -> bool:
        """Whether it is known what its tokens cost."""
        return self.price_usd_per_hour is not None or bool(self.token_prices)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what identifies the deployment: two with the same fingerprint are the same thing served."""
        identity = {k: v for k, v in asdict(self).items() if k not in ("name", *_OF_MONEY)}
        return sha256_of(identity)

    @property
    def overhead_ratio(self) -> float | None:
        """Paid beside each dollar of it, by its terms; None where nobody said, or what is kept cannot be one."""
        kept = self.price_terms.get("overhead_ratio")
        return float(kept) if isinstance(kept, int | float) and 0 <= kept < math.inf else None

    @property
    def in_use_factor(self) -> float | None:
        """So many times the cost at full use is that as it is used; None where nobody said how it is used."""
        overhead, utilisation = (self.price_terms.get(name) for name in ("overhead_ratio", "utilisation_ratio"))
        if not isinstance(overhead, int | float) or not isinstance(utilisation, int | float):
            return None
        if not (0 <= overhead < math.inf and 0 < utilisation <= 1):
            return None  # what is kept cannot be one
        return in_use_factor(overhead, utilisation)

    @property
    def release(self) -> str:
        """The same whatever its address: a candidate that was promoted is the next baseline, served elsewhere."""
        identity = {k: v for k, v in asdict(self).items() if k not in ("name", *_OF_MONEY, "url")}
        return sha256_of(identity)


_OF_MONEY = ("price_usd_per_hour", "price_terms", "token_prices", "price_entry")
"""At another price the same thing is the same thing."""


def flattened(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested plain JSON as dotted names and texts, in order of name."""
    for key in sorted(values, key=str):
        value = values[key]
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(_shown(value), sort_keys=True)


def _shown(value: object) -> object:
    """A number as it was meant: `9ms`, kept as 0.009000000000000001 s, is 0.009."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def sha256_of(value: object) -> str:
    """Identity of a plain value: SHA-256 over its one spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def canonical_json(value: object) -> bytes:
    """One spelling for one value: sorted keys, no spaces, UTF-8; refuses NaN and infinity.

    A lone surrogate (a server can send one in JSON) is kept as its three bytes, which `json.loads` gives back.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")
