"""The bytes of answers that are numbers: embeddings, and the relevance of documents. They follow from the texts."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence

from benchgate.sim.answers import Usage
from benchgate.sim.asks import Ask

_MULTIPLIER, _INCREMENT, _MODULUS = 1_664_525, 1_013_904_223, 2**32  # the generator of Numerical Recipes


class VectorScript:
    """One document and no stream. `spoilt` says how its numbers are wrong: few (one is missing) or nan."""

    plain = False

    def __init__(self, ask: Ask, number: int, created: int) -> None:
        self._ask = ask
        self._number = number
        self._created = created
        self.spoilt: str | None = None

    def framed_token(self, index: int) -> bytes:
        """Never asked for."""
        raise NotImplementedError("numbers are no stream")

    def opening(self) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def tokens(self, first: int, count: int, reason: str | None = None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def finish(self, reason: str, sent: int, usage: Usage | None = None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def closing(self, reason: str, usage: Usage | None) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def done(self) -> list[bytes]:
        """Nothing: there is no stream."""
        return []

    def document(self, reason: str, usage: Usage | None, *, empty: bool = False) -> bytes:
        """As `Script` says; an empty one has no item."""
        made = self._embeddings(empty) if self._ask.endpoint == "embeddings" else self._ranking(empty)
        told = None
        if usage is not None:
            told = {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens, "completion_tokens": 0}
        return json.dumps(made | {"usage": told}, separators=(",", ":")).encode()

    def _embeddings(self, empty: bool) -> dict[str, object]:
        items = [] if empty else [self._shown(vector(item.key, self._ask.width)) for item in self._ask.items]
        data = [{"index": at, "object": "embedding", "embedding": shown} for at, shown in enumerate(items)]
        return {
            "id": f"embd-{self._number:016x}",
            "object": "list",
            "created": self._created,
            "model": self._ask.model,
            "data": data[:-1] if self.spoilt == "few" else data,
        }

    def _shown(self, numbers: Sequence[float]) -> Sequence[float] | str:
        values = [math.nan, *numbers[1:]] if self.spoilt == "nan" else numbers
        if not self._ask.base64:
            return values
        return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()

    def _ranking(self, empty: bool) -> dict[str, object]:
        scored = sorted(((item.key / 2**32, -at) for at, item in enumerate(self._ask.items)), reverse=True)
        told = [] if empty else scored[: self._ask.width]
        results: list[dict[str, object]] = [
            {
                "index": -at,
                "document": {"text": self._ask.items[-at].text},
                "relevance_score": math.nan if self.spoilt == "nan" else score,
            }
            for score, at in told
        ]
        return {
            "id": f"rerank-{self._number:016x}",
            "model": self._ask.model,
            "results": results[:-1] if self.spoilt == "few" else results,
        }


def vector(key: int, size: int) -> list[float]:
    """So many numbers of length 1 together, which follow from the key."""
    state, numbers = key, []
    for _ in range(size):
        state = (state * _MULTIPLIER + _INCREMENT) % _MODULUS
        numbers.append(state / 2**31 - 1)
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [round(number / length, 6) for number in numbers]
