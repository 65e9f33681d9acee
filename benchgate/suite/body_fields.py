"""Extra fields of request bodies, as a suite declares them for one deployment: what may stand there."""

from __future__ import annotations

_OWN = {
    "max_tokens": "write `max_tokens_field` for another name, the counts stand in `workload`, `quality` and `shadow`",
    "max_completion_tokens": "write `max_tokens_field: max_completion_tokens`",
    "ignore_eos": "`ignore_eos` of the workload asks for it, in load requests alone; `leave_out` takes it out",
    "stream_options": "`leave_out: [stream_options]` takes it out",
    **dict.fromkeys(("model", "messages", "prompt", "stream", "seed", "n"), "remove it"),
}


def check_body_fields(fields: dict[str, object]) -> dict[str, object]:
    """Let fields pass that any request can carry; ValueError for what benchgate sets itself."""
    for name in fields:
        if name in _OWN:
            raise ValueError(f"`{name}` is set by benchgate itself; {_OWN[name]}")
    return fields
