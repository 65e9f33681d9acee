"""Which of our words a model's tokenizer takes as one token each, so that made-up texts are as long as they are said.

The tokenizer is asked once for every word, not for every prompt: tokenizers in use never merge across the space before
a word, and a text out of single tokens is checked to be as long as its parts before any of them is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httpx2

from benchgate.errors import UsageError
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.targets.address import show_address
from benchgate.targets.clients import client_of
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import error_text, json_object, one_line

Count = Callable[[str], int]
"""How many tokens a text is, with whatever the tokenizer puts around every text."""

_LEAST_PIECES = 8  # of so many, 16 tokens in a row are others in every prompt
_CHECKED_TOKENS = 64
_TIMEOUT_S = 10.0


def calibrated(kind: str, count: Count, name: str) -> Vocabulary:
    """The pieces of this kind of text that are one token each; UsageError when they are too few for varied prompts."""
    usual = VOCABULARIES[kind]
    alone = {piece: count(piece) for piece in usual.pieces}
    least = min(alone.values())
    single = tuple(
        piece for piece in usual.pieces if alone[piece] == least and count(piece + usual.between + piece) == least + 1
    )
    found = f"takes only {len(single)} of our {len(usual.pieces)} {kind} as one token each"
    if len(single) >= _LEAST_PIECES:
        text = usual.between.join((single * _CHECKED_TOKENS)[:_CHECKED_TOKENS])
        if count(text) == least - 1 + _CHECKED_TOKENS:
            return Vocabulary(single, usual.between)
        found = f"makes other tokens of {kind} that stand beside each other than of each alone"
    other = "letters" if kind == "words" else "words"
    raise UsageError(
        f"the tokenizer {name} {found}, so prompts of a stated length cannot be made of them; write `text: {other}`, "
        "or leave `tokenizer` out"
    )


def file_vocabulary(path: Path, kind: str) -> Vocabulary:
    """By a `tokenizer.json`. Raises UsageError when it cannot be read, or the library for it is not installed."""
    try:
        library = importlib.import_module("tokenizers")
    except ImportError:
        raise UsageError(
            f"the tokenizer {path} needs the library `tokenizers`; run `pip install tokenizers`, or write "
            "`tokenizer: server`"
        ) from None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"the tokenizer {path} cannot be read: {exc}") from exc
    if "model" not in (json_object(text) or {}):
        raise UsageError(f"{path} is no tokenizer; name the tokenizer.json that comes with the model")
    tokenizer = library.Tokenizer.from_str(text)
    return calibrated(kind, lambda text: len(tokenizer.encode(text).ids), str(path))


class _Way(NamedTuple):
    """How an engine counts tokens: where it is asked, under which key, and where the answer says how many."""

    path: str
    text_key: str
    count_key: str | None  # a number; None: the answer, or what stands under `tokens`, is a list of them


_WAYS: Mapping[str, _Way] = MappingProxyType(
    {
        "vllm": _Way("/tokenize", "prompt", "count"),
        "sglang": _Way("/tokenize", "prompt", "count"),
        "llamacpp": _Way("/tokenize", "content", None),
        "tgi": _Way("/tokenize", "inputs", None),
    }
)


def server_vocabulary(target: Target, kind: str) -> Vocabulary:
    """By what the server says. Raises UsageError when its engine cannot say it, or it does not."""
    way = _WAYS.get(target.dialect.engine)
    if way is None:
        raise UsageError(
            f"`tokenizer: server` asks a server's /tokenize, which {target.dialect.engine} has not; name the "
            "tokenizer.json of its model"
        )
    where = f"the {target.arm} at {show_address(target.url)}"
    with client_of(target, httpx2.Timeout(_TIMEOUT_S)) as client:
        return calibrated(kind, lambda text: _asked(client, way, text, target, where), f"of {where}")


def _asked(client: httpx2.Client, way: _Way, text: str, target: Target, where: str) -> int:
    body: dict[str, object] = {way.text_key: text}
    if way.count_key is not None:
        body["model"] = target.model
    try:
        response = client.post(way.path, json=body)
        found = response.json() if response.status_code == 200 else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as exc:
        reason = one_line(str(exc) or type(exc).__name__, secret=target.secrets)
        raise UsageError(f"{where} does not say how many tokens a text is: {reason}") from exc
    if isinstance(found, dict):
        found = found.get(way.count_key or "tokens")
    count = len(found) if isinstance(found, list) else found
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        answer = one_line(f"HTTP {response.status_code}: {error_text(response.content)}", secret=target.secrets)
        raise UsageError(f"{where} does not say how many tokens a text is: {answer}")
    return count
