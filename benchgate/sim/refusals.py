"""Faults that stand in place of an answer: error statuses in the shapes in use, and redirects."""

from __future__ import annotations

import json

from benchgate.sim.faults import Behaviour
from benchgate.sim.http import JSON_TYPE, head, whole

MESSAGE = "the practice server was told to fail"


def refusal(behaviour: Behaviour, path: str) -> bytes | None:
    """The whole response of a behaviour that refuses; None when it does not."""
    if behaviour.redirects:
        return head(307, f"location: /elsewhere{path}", "content-length: 0")
    if behaviour.status is None:
        return None
    retry = [] if behaviour.retry_after_s is None else [f"retry-after: {round(behaviour.retry_after_s) or 1}"]
    body, content_type = _body(behaviour.status, behaviour.shape)
    return whole(behaviour.status, body, *retry, content_type=content_type)


def _body(status: int, shape: str) -> tuple[bytes, str]:
    if shape == "text":
        return MESSAGE.encode(), "text/plain; charset=utf-8"
    documents = {
        "object": {"error": {"message": MESSAGE, "type": "PracticeError", "param": None, "code": status}},
        "string": {"error": MESSAGE},
        "detail": {"detail": MESSAGE},
        "detail-list": {"detail": [{"type": "practice_error", "loc": ["body"], "msg": MESSAGE}]},
    }
    return json.dumps(documents[shape]).encode(), JSON_TYPE
