"""Which replica a request belongs to, so that what must meet the same prefix cache meets it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from zlib import crc32

from benchgate.sim.http import Request

_PREFIX_WORDS = 64
_PROMPTS = ("messages", "prompt", "input", "query")


def affinity_of(request: Request, affinity: str) -> str | None:
    """What requests that belong together have in common; None when this one belongs nowhere.

    `prefix`: how the prompt begins. `session`: the field `user`, or else the first message of the user, which every
    turn of a conversation repeats. Anything else is the name of a header.
    """
    if affinity not in ("prefix", "session"):
        return request.headers.get(affinity.lower())
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    return _beginning(body) if affinity == "prefix" else _session(body)


def preferred(key: str, replicas: int) -> list[int]:
    """The numbers of all replicas, the one that the key belongs to first.

    Rendezvous hashing: when one is lost, only what belonged to it moves.
    """
    return sorted(range(replicas), key=lambda replica: crc32(f"{replica} {key}".encode("utf-8", "surrogatepass")))


def _beginning(body: Mapping[str, object]) -> str | None:
    prompt = next((body[name] for name in _PROMPTS if name in body), None)
    return None if prompt is None else " ".join(_said(prompt).split()[:_PREFIX_WORDS])


def _session(body: Mapping[str, object]) -> str | None:
    if isinstance(body.get("user"), str):
        return str(body["user"])
    messages = body.get("messages", body.get("input"))
    if not isinstance(messages, list):
        return _beginning(body)
    asked = (message for message in messages if isinstance(message, dict) and message.get("role") == "user")
    first = next(asked, None)
    return None if first is None else _said(first.get("content"))


def _said(prompt: object) -> str:
    """All the text in it, one after the other."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        return "\n".join(map(_said, prompt))
    if isinstance(prompt, dict):
        return _said(prompt.get("content", prompt.get("text", json.dumps(prompt))))
    return json.dumps(prompt)
