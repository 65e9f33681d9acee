"""The table of engines in docs/engines.md, from docs/engines.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

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
