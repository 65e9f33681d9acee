"""How near two texts are by their embeddings. What could not be embedded is not near anything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import httpx2
import numpy as np

from benchgate.model.records import FloatArray
from benchgate.model.request import ModelRequest
from benchgate.shadow.asking import Asking, post
from benchgate.targets.dialect import Target, ask_body
from benchgate.targets.error_messages import json_object

_NO_EMBEDDINGS = "HTTP 200 without a sound embedding for every text"


async def embedded(
    client: httpx2.AsyncClient, target: Target, texts: Sequence[str], asking: Asking
) -> tuple[FloatArray, ...] | str:
    """The embedding of every text, in order; in our own words why not, when any is missing or no direction."""
    ask = ModelRequest("embeddings", {"input": list(texts)}, None, stream=False)
    found = await post(client, "embeddings", ask_body(target, ask), asking)
    if isinstance(found, str):
        return found
    if found[0] != 200:
        return f"HTTP {found[0]}"
    document = json_object(found[1])
    vectors = None if document is None else read_embeddings(document, len(texts))
    return _NO_EMBEDDINGS if vectors is None else vectors


def read_embeddings(document: dict[str, object], count: int) -> tuple[FloatArray, ...] | None:
    """The vectors of a response, each made 1 long, in the order of what was sent; None when any is not as it should be.

    Their order in the response means nothing: `index` says which text each is of.
    """
    data = document.get("data")
    rows = data if isinstance(data, list) else []
    by_place: dict[object, FloatArray] = {}
    for row in rows:
        vector = _vector(row.get("embedding")) if isinstance(row, dict) else None
        if vector is None or isinstance(row.get("index"), bool) or not isinstance(row.get("index"), int):
            return None
        by_place[row["index"]] = vector
    found = tuple(by_place[place] for place in range(count) if place in by_place)
    alike = len({len(vector) for vector in found}) == 1
    return found if alike and len(found) == count == len(rows) else None


def cosine(one: FloatArray, other: FloatArray) -> float:
    """Of the angle between two vectors of length 1: 1 for the same direction."""
    return float(np.clip(one @ other, -1.0, 1.0))


def _vector(found: object) -> FloatArray | None:
    if not isinstance(found, list) or not found or not all(isinstance(x, int | float) for x in found):
        return None
    try:
        length = math.hypot(*found)
    except OverflowError:  # a whole number that no float holds
        return None
    return np.array(found, dtype=np.float64) / length if math.isfinite(length) and length > 0 else None
