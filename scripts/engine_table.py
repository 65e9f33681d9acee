"""The tables of docs/engines.md: engines from docs/engines.yaml, dialects and telemetry from the code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric
from benchgate.targets.dialect import DIALECTS
from benchgate.telemetry.engine_metrics import PAGES, MetricNames

ROOT = Path(__file__).parents[1]
COLUMNS = {
    "load": "load",
    "quality": "quality",
    "shadow": "shadow",
    "telemetry": "telemetry",
    "logprobs": "log-probabilities",
    "adapters": "adapters",
}
LEVELS = ("run", "transcript", "source")


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine of docs/engines.yaml. `cells` are its columns, each with its evidence by level."""

    engine: str
    dialect: str
    sources: dict[str, str]
    cells: dict[str, dict[str, str]]
    note: str


def entries() -> list[Entry]:
    """Return the engines of the file. Raises ValueError for a key that no entry has."""
    rows: list[dict[str, Any]] = yaml.safe_load((ROOT / "docs" / "engines.yaml").read_text(encoding="utf-8"))
    for row in rows:
        unknown = row.keys() - {"engine", "dialect", "sources", "cells", "note"} | row["cells"].keys() - COLUMNS.keys()
        unknown |= {level for cell in row["cells"].values() for level in cell.keys() - {*LEVELS, "none"}}
        if unknown:
            raise ValueError(f"docs/engines.yaml: {row['engine']} has unknown keys: {', '.join(sorted(unknown))}")
    return [Entry(r["engine"], r["dialect"], r["sources"], r["cells"], r.get("note", "")) for r in rows]


def level_of(cell: dict[str, str] | None) -> str:
    """Return the word of a cell: its strongest evidence, `no`, or `-` where nobody looked."""
    if not cell:
        return "-"
    return "no" if "none" in cell else next(level for level in LEVELS if level in cell)


def engine_table() -> str:
    """Write the table, and under it the evidence of each engine."""
    rows = entries()
    head = ["engine", "`engine`", *COLUMNS.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        words = [level_of(row.cells.get(column)) for column in COLUMNS]
        lines.append(f"| {row.engine} | `{row.dialect}` | {' | '.join(words)} |")
    return "\n".join([*lines, *(_evidence(row) for row in rows)])


def _evidence(row: Entry) -> str:
    lines = ["", f"### {row.engine}", ""]
    if row.note:
        lines += [row.note, ""]
    by_evidence: dict[str, list[str]] = {}
    for column, shown in COLUMNS.items():
        for text in _texts(row, row.cells.get(column, {})):
            by_evidence.setdefault(text, []).append(shown)
    lines += [f"- {', '.join(columns)}: {text}" for text, columns in by_evidence.items()]
    return "\n".join(lines)


def _texts(row: Entry, cell: dict[str, str]) -> list[str]:
    links = [_link(row.sources[name.strip()]) for name in cell.get("source", "").split(",") if name]
    if "none" in cell:
        shown = [*links, *([f"run by `{cell['run']}`"] if "run" in cell else [])]
        return [f"not offered ({cell['none']}): {', '.join(shown)}"]
    texts = []
    if "run" in cell:
        texts.append(f"run by `{cell['run']}`")
    if "transcript" in cell:
        texts.append(f"replayed from `tests/captures/{cell['transcript']}`")
    if links:
        texts.append(f"read in {', '.join(links)}")
    return texts


def _link(source: str) -> str:
    place, _, commit = source.partition("@")
    owner, name, path = place.split("/", 2)
    return (
        f"[{name} {path.rsplit('/', 1)[-1]}](https://github.com/{owner}/{name}/blob/{commit}/{path}) at `{commit[:9]}`"
    )


_GROUPS: dict[str, tuple[TelemetryMetric, ...]] = {
    "running, waiting": (Gauge.RUNNING, Gauge.WAITING),
    "queue time": (Counter.QUEUE_S,),
    "prefill, decode time": (Counter.PREFILL_S, Counter.DECODE_S),
    "KV cache usage": (Gauge.KV_USAGE,),
    "prefix cache hits": (Counter.PREFIX_HITS,),
    "speculation": (Counter.DRAFTED, Gauge.ACCEPTANCE),
    "preemptions": (Counter.PREEMPTIONS,),
    "tokens": (Counter.PROMPT_TOKENS, Counter.GENERATION_TOKENS),
    "finished requests": (Counter.REQUESTS,),
}


def telemetry_table() -> str:
    """Write which metrics are read of each engine's page."""
    lines = [f"| `engine` | page | {' | '.join(_GROUPS)} |", "|---" * (2 + len(_GROUPS)) + "|"]
    for engine, page in PAGES.items():
        place = f"`{page.path}`" if page.ports is None else f"`{page.path}`, of port {page.ports[0]} on {page.ports[1]}"
        cells = [_metric_cell(page.names, group) for group in _GROUPS.values()]
        lines.append(f"| `{engine}` | {place} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _metric_cell(names: MetricNames, group: tuple[TelemetryMetric, ...]) -> str:
    found = [name for metric in group for source in names.get(metric, ()) for name in source.names]
    if not found:
        return "no"
    has_triton = any(name.startswith("nv_") for source in names.values() for one in source for name in one.names)
    return "vLLM backend" if has_triton and all(name.startswith("vllm:") for name in found) else "yes"


def dialect_table() -> str:
    """Write the request fields and pages of each dialect."""
    head = ("`engine`", "to run to the full length", "always sent", "version", "about itself", "health")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for dialect in DIALECTS.values():
        cells = (
            f"`{dialect.engine}`",
            "-" if dialect.ignore_eos is None else f"`{json.dumps(dialect.ignore_eos)}`",
            f"`{json.dumps(dialect.extra)}`" if dialect.extra else "-",
            "-" if dialect.version_at is None else f"`{dialect.version_at[1]}` of `{dialect.version_at[0]}`",
            ", ".join(f"`{path}`" for path in dialect.about_at) or "-",
            "-" if dialect.health_path is None else f"`{dialect.health_path}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
