"""Vocabularies of single-token words, so that synthetic prompts have exactly the tokens they are to have.

The tokenizer counts every word once, not every prompt: tokenizers in use never merge across the space before a word,
and a text of such words is checked to be as long as its parts before any of them is used.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchgate.errors import UsageError
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.targets.address import show_address
from benchgate.targets.client import JsonClient
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import RequestError, error_text, json_object

Count = Callable[[str], int]
"""Counts the tokens of a text, with whatever the tokenizer puts around every text."""

_LEAST_PIECES = 8  # enough for 16 tokens in a row to differ from prompt to prompt
_CHECKED_TOKENS = 64
_TIMEOUT_S = 10.0


def calibrate(kind: str, count: Count, name: str) -> Vocabulary:
    """Return the pieces that are one token each. Raises UsageError if they are too few for varied prompts."""
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
    """Calibrate by a `tokenizer.json`. Raises UsageError if it cannot be read or its library is not installed."""
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
    return calibrate(kind, lambda text: len(tokenizer.encode(text).ids), str(path))


class _TokenizeApi(NamedTuple):
    """An engine's endpoint that counts tokens, and the keys of its request and answer."""

    path: str
    text_key: str
    count_key: str | None  # of a number; None: the answer, or its `tokens`, is a list of tokens


_APIS: Mapping[str, _TokenizeApi] = MappingProxyType(
    {
        "vllm": _TokenizeApi("/tokenize", "prompt", "count"),
        "sglang": _TokenizeApi("/tokenize", "prompt", "count"),
        "llamacpp": _TokenizeApi("/tokenize", "content", None),
        "tgi": _TokenizeApi("/tokenize", "inputs", None),
    }
)


def server_vocabulary(target: Target, kind: str) -> Vocabulary:
    """Calibrate by the server's own token counts. Raises UsageError if it does not report them."""
    api = _APIS.get(target.dialect.engine)
    if api is None:
        raise UsageError(
            f"`tokenizer: server` asks a server's /tokenize, which {target.dialect.engine} has not; name the "
            "tokenizer.json of its model"
        )
    where = f"the {target.arm} at {show_address(target.url)}"
    with JsonClient(target, connect_s=_TIMEOUT_S, total_s=_TIMEOUT_S) as client:
        return calibrate(kind, lambda text: _count_tokens(client, api, text, target, where), f"of {where}")


def _count_tokens(client: JsonClient, api: _TokenizeApi, text: str, target: Target, where: str) -> int:
    body: dict[str, object] = {api.text_key: text}
    if api.count_key is not None:
        body["model"] = target.model
    try:
        response = client.send("POST", api.path, body)
    except RequestError as exc:
        raise UsageError(f"{where} does not say how many tokens a text is: {exc}") from exc
    try:
        found = json.loads(response.body) if response.status == 200 else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        found = found.get(api.count_key or "tokens")
    count = len(found) if isinstance(found, list) else found
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        answer = target.redact(f"HTTP {response.status}: {error_text(response.body)}")
        raise UsageError(f"{where} does not say how many tokens a text is: {answer}")
    return count
