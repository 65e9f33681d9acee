"""Answers in numbers: embeddings, and documents ranked by a query. They come in one piece and have no tokens.

A status of 200 proves nothing here either: there must be as many results as were requested, each once, and every number
in them must be one.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic_core import from_json

from benchgate.load.decode.answer import ParsedAnswer
from benchgate.load.decode.body import Read
from benchgate.load.decode.chat import joined_reads
from benchgate.model.request import ModelRequest
from benchgate.targets.answers import token_count
from benchgate.targets.error_messages import Secret, event_error

_LARGEST = sys.float_info.max


def read_embeddings(body: Iterable[Read], ask: ModelRequest, *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as the embeddings of a request's texts. Without events when it is no JSON."""
    stream, at_ns, rows = _read(body, "data", secret)
    if rows is not None:
        texts = ask.content.get("input")
        count = len(texts) if isinstance(texts, list) and not all(isinstance(part, int) for part in texts) else 1
        widths = {_width(row.get("embedding")) for row in rows}
        unsound = None
        if None in widths:
            unsound = "an embedding that is not a list of finite numbers"
        elif len(widths) > 1:
            unsound = f"embeddings of different lengths: {sorted(width or 0 for width in widths)}"
        stream.malformed = _miscounted(rows, count, range(count), "embeddings") or unsound
        _end(stream, at_ns)
    return stream


def read_ranking(body: Iterable[Read], ask: ModelRequest, *, secret: Secret = None) -> ParsedAnswer:
    """Read a body as a ranking of a request's documents. Without events when it is no JSON."""
    stream, at_ns, rows = _read(body, "results", secret)
    if rows is not None:
        documents = ask.content.get("documents")
        there = len(documents) if isinstance(documents, list) else 0
        most = ask.content.get("top_n", ask.fields.get("top_n"))
        count = min(most, there) if isinstance(most, int) and most > 0 else there
        scores = [row.get("relevance_score", row.get("score")) for row in rows]
        unsound = None if all(map(_is_number, scores)) else "a relevance score that is no finite number"
        stream.malformed = _miscounted(rows, count, range(there), "results") or unsound
        _end(stream, at_ns)
    return stream


def _read(body: Iterable[Read], key: str, secret: Secret) -> tuple[ParsedAnswer, int, list[dict[str, object]] | None]:
    """Return the rows of a document, under this key or, as text-embeddings-inference sends them, bare."""
    stream = ParsedAnswer(secret=secret, tokenless=True)
    at_ns, raw = joined_reads(body)
    try:
        document = from_json(raw)
    except ValueError:
        document = None
    if not isinstance(document, dict | list):
        return stream, at_ns, None
    stream.events = 1
    rows: object = document
    if isinstance(document, dict):
        rows = document.get(key)
        if rows is None or document.get("error") is not None:
            stream.error = event_error(document)
        stream.take_usage(document)
        usage = document.get("usage")
        if stream.input_tokens is None and isinstance(usage, dict):
            # All that a ranker reports: nothing is generated.
            stream.input_tokens = token_count(usage.get("total_tokens"))
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        stream.malformed = f"a document without {key}"
        return stream, at_ns, None
    return stream, at_ns, rows


def _end(stream: ParsedAnswer, at_ns: int) -> None:
    if stream.malformed is None:
        stream.take_chunk(at_ns, answers=True)
        stream.done_ns = at_ns


def _miscounted(rows: Sequence[dict[str, object]], count: int, places: range, what: str) -> str | None:
    if len(rows) != count:
        return f"{len(rows)} {what}, not the {count} requested"
    indexes = [row.get("index") for row in rows]
    if all(index is None for index in indexes):
        return None
    known = {index for index in indexes if isinstance(index, int) and not isinstance(index, bool) and index in places}
    return None if len(known) == count else f"the indexes of the {what} are not those of the request"


def _width(vector: object) -> int | None:
    """Return the dimension of an embedding (a list, or base64 of 32-bit floats); None when it is invalid."""
    if isinstance(vector, str):
        try:
            numbers = np.frombuffer(base64.b64decode(vector, validate=True), dtype="<f4")
        except (binascii.Error, ValueError):
            return None
        return len(numbers) if len(numbers) and bool(np.isfinite(numbers).all()) else None
    if not isinstance(vector, list) or not vector or not all(map(_is_number, vector)):
        return None
    return len(vector)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_LARGEST <= value <= _LARGEST  # which no NaN is
