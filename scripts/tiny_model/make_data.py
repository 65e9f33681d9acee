"""Write the eval rows and the shadow prompts that ship in suites/data.

usage: python -m scripts.tiny_model.make_data [FOLDER]

The same bytes every time. Rows stand in the order they were drawn, which is random, so the first n are a fair sample.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.tiny_model.tasks import TASKS, Source

EVAL_SEED = 4242
SHADOW_SEED = 8484
ROWS_PER_TASK = 300
SHADOW_ROWS = 250
DATA = Path(__file__).parents[2] / "suites" / "data"


def eval_rows(task: str) -> list[dict[str, str]]:
    """Distinct prompts of one task that training never saw (`fact`: training facts), with their answers."""
    examples = Source(EVAL_SEED, held_out=True).distinct(task, ROWS_PER_TASK)
    return [{"id": f"{task}-{i:04d}", "prompt": e.prompt, "answer": e.answer} for i, e in enumerate(examples, 1)]


def shadow_rows() -> list[dict[str, str]]:
    """Distinct prompts of all tasks, mixed as traffic is, without answers."""
    source = Source(SHADOW_SEED, held_out=True)
    prompts: dict[str, None] = {}
    while len(prompts) < SHADOW_ROWS:
        prompts[source.draw().prompt] = None
    return [{"id": f"shadow-{i:04d}", "prompt": prompt} for i, prompt in enumerate(prompts, 1)]


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in [*((task, eval_rows(task)) for task in TASKS), ("shadow", shadow_rows())]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{name}.jsonl: {len(rows)} rows")


if __name__ == "__main__":
    main()
