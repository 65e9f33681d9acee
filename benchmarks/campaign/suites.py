"""Suites of the campaign: small ones that measure one part of a run, and a load stage of every kind.

They show whether a fault is found, not how small a loss is: margins are wide, and so are the bounds of the client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Options = Mapping[str, Any]
"""Settings of a practice server, or keys of a suite."""

PHASES = ("startup", "load", "quality", "shadow")
PACE: Options = {"ttft": "20ms", "itl": "1ms", "jitter": "10%", "seed": 7}
REQUESTS = 24  # of a stage, in each block and arm
_ITEMS, _PROMPTS = 40, 40
_RATE = "60/s"

KINDS: Mapping[str, Options] = {
    "closed": {"concurrency": 4, "requests": REQUESTS},
    "open": {"rate": _RATE, "ramp": 1, "requests": REQUESTS},
    "ramp": {"rate": "20/s", "ramp_to": "100/s", "for": "400ms"},
    "steps": {"steps": [{"rate": "20/s", "for": "200ms"}, {"rate": "100/s", "for": "200ms"}]},
    "burst": {"rate": "40/s", "bursts": {"factors": [3], "every": "200ms", "for": "50ms"}, "for": "400ms"},
    "trace": {"trace": "trace.jsonl", "requests": REQUESTS},
    "conversation": {"concurrency": 4, "requests": REQUESTS, "workload": "turns"},
    "agents": {"concurrency": 4, "requests": REQUESTS, "workload": "agents"},
    "classes": {
        "classes": {
            "chat": {"concurrency": 2, "requests": REQUESTS // 2},
            "batch": {"rate": _RATE, "ramp": 0, "requests": REQUESTS // 2},
        }
    },
    "leaving": {"concurrency": 4, "requests": REQUESTS, "workload": "leaving"},
}
"""A stage of every kind that the suite language has."""

LONG: Options = {"concurrency": 4, "requests": 120}
"""A closed stage of a second and more, so that something can happen in the middle of it."""

_WORKLOAD: Options = {"input": 12, "output": 16}
_WORKLOADS: Options = {
    "turns": {**_WORKLOAD, "session": {"turns": 3}},
    "agents": {"sessions": "agents.jsonl", "output": 16},
    "leaving": {**_WORKLOAD, "leave": {"share": "25%", "after": 4}},
}
_CLIENT: Options = {  # servers and load generator share the machine, with others
    "send_lag_p99": "1s", "send_lag_max": "1s", "read_delay_p99": "1s", "read_delay_max": "1s", "cpu": "100%",
    "achieved": "20%",
}  # fmt: skip
_TASK: Options = {
    "task": "say", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "say.jsonl"}},
    "test_split": "test", "output_type": "generate_until", "doc_to_text": "say: {{text}}", "doc_to_target": "text",
    "generation_kwargs": {"until": [], "max_gen_toks": 16, "temperature": 0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
_CHECKS: Mapping[str, tuple[Options, ...]] = {
    "startup": ({"metric": "cold_start", "max": "20s"},),
    "load": (
        {"metric": "error_rate", "max": "5%"},
        {"metric": "ttft", "margin": "90%"},
        {"metric": "e2e", "margin": "90%"},
    ),
    "quality": ({"metric": "accuracy", "margin": "10 points"},),
    "shadow": ({"metric": "shadow_excess", "margin": "20 points"},),
}
LIMITS: Options = {"connect": "2s", "first_token": "1500ms", "stall": "700ms", "total": "3s", "ready": "5s"}


def suite_of(phase: str, deployments: Options, *, stage: Options | None = None, blocks: int = 3) -> dict[str, Any]:
    """Return the suite of one phase for the deployments `before` and `after`. `stage` is that of a load."""
    parts: dict[str, Options] = {
        "startup": {"start": {"times": 3}},
        "load": {
            "load": {
                "workload": _WORKLOAD, "workloads": _used_workloads(stage), "blocks": blocks, "warmup": 0,
                "sweep": [{"stage": "s", **(KINDS["closed"] if stage is None else stage)}],
            }
        },
        "quality": {"quality": {"tasks": ["say.yaml"], "max_tokens": 16, "concurrency": 4, "timeout": "20s"}},
        "shadow": {"shadow": {"prompts": "prompts.jsonl", "concurrency": 4, "max_tokens": 16}},
    }  # fmt: skip
    gate = {"alpha": 0.2, "allow_underpowered": True, "client": _CLIENT, "checks": list(_CHECKS[phase])}
    return {
        "suite": f"campaign-{phase}", "seed": 7, "deployments": dict(deployments), "baseline": "before",
        "candidate": "after", "limits": dict(LIMITS), **parts[phase], "gate": gate,
    }  # fmt: skip


def _session(number: int) -> Options:
    plan = {"role": "user", "content": f"plan the journey number {number} to the sea"}
    first: Options = {"id": "plan", "messages": [plan]}
    answer = {"role": "assistant", "answer_of": "plan"}
    more = [
        {"id": f"{name}", "after": ["plan"], "messages": [plan, answer, {"role": "user", "content": f"now {name} it"}]}
        for name in ("check", "write")
    ]
    return {"calls": [first, *more]}


def _used_workloads(stage: Options | None) -> Options:
    name = (stage or {}).get("workload")
    return {} if name is None else {name: _WORKLOADS[name]}


def write_files(folder: Path, suite: Mapping[str, Any]) -> None:
    """Write the suite and every file that one may name. JSON is YAML."""
    rows: dict[str, list[Options]] = {
        "say.jsonl": [{"id": f"say-{at:02}", "text": f"stone {at} river"} for at in range(_ITEMS)],
        "prompts.jsonl": [{"id": f"{at}", "prompt": f"say: cloud {at} meadow"} for at in range(_PROMPTS)],
        "trace.jsonl": [{"at_s": at / 60, "input_tokens": 12, "output_tokens": 16} for at in range(4 * REQUESTS)],
        "agents.jsonl": [_session(at) for at in range(4 * REQUESTS // 3)],
    }
    for name, lines in rows.items():
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    (folder / "say.yaml").write_text(json.dumps(_TASK), encoding="utf-8")
    (folder / "suite.yaml").write_text(json.dumps(suite), encoding="utf-8")
