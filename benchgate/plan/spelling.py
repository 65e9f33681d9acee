"""The one spelling of a plan's load: what its hash is taken of, and what the store keeps.

What came after 0.1.0 is written only where it is used: a plan that uses none of it keeps its bytes, and so stored runs
stay comparable.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from benchgate.model.ask import Ask
from benchgate.model.deployment import canonical_json
from benchgate.plan.planned import PlannedBlock, PlannedClass, PlannedRequest, PlannedStage


def spelled_block(block: PlannedBlock) -> dict[str, object]:
    """A block as plain JSON values."""
    return {
        "number": block.number,
        "order": list(block.order),
        "stages": [spelled_stage(stage) for stage in block.stages],
    }


def spelled_stage(stage: PlannedStage) -> dict[str, object]:
    """A stage as plain JSON values; one of a single class without a name as if it were that class."""
    classes = [_class(group) for group in stage.classes]
    if len(stage.classes) == 1 and not stage.classes[0].name:
        return {**classes[0], "name": stage.name}
    return {"name": stage.name, "classes": classes}


def _class(group: PlannedClass) -> dict[str, object]:
    spelled: dict[str, object] = {
        "name": group.name,
        "concurrency": group.concurrency,
        "rate_rps": group.rate_rps,
        "requests": [_request(request) for request in group.requests],
    }
    return {**spelled, "background": True} if group.background else spelled


def _request(request: PlannedRequest) -> dict[str, object]:
    spelled: dict[str, object] = {"index": request.index, "offset_ns": request.offset_ns, "seed": request.seed}
    for name in ("turn", "leave"):
        if (part := getattr(request, name)) is not None:
            spelled[name] = asdict(part)
    return {**spelled, **_ask(request.ask)}


def _ask(ask: Ask) -> dict[str, object]:
    """What is asked, by its digest where people wrote it: a plan is stored, and it may be read by many."""
    spelled: dict[str, object] = {"output_tokens": ask.output_tokens}
    more = {"fields": dict(ask.fields), "model": ask.model, "schema": ask.schema}
    spelled.update({name: value for name, value in more.items() if value})
    if not ask.stream:
        spelled["stream"] = False
    if ask.recorded:
        fields = spelled.pop("fields", None)
        told = canonical_json({"content": ask.content, "fields": fields})
        return {**spelled, "asked_sha256": hashlib.sha256(told).hexdigest()}
    if ask.endpoint in ("chat", "completions") and ask.prompt is not None:
        return {**spelled, "prompt": ask.prompt}
    return {**spelled, "endpoint": ask.endpoint, "content": ask.content}
