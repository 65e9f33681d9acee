"""The prompts of the ladder: 500 of each skill, none of them a training prompt, and all 400 facts, as task files.

usage: python -m scripts.tiny_model.ladder FOLDER

They are more than ship in suites/data, because what Q3_K loses is under a point: only thousands of pairs show it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.tiny_model.make_data import DATA, EVAL_SEED
from scripts.tiny_model.tasks import MEMORISED, TASKS, Source, world

ROWS_OF_A_SKILL = 500
TASK_FILES = DATA.parent / "tasks"


def ladder_rows() -> dict[str, list[dict[str, str]]]:
    """The rows of every task, from one stream of draws: the same on every machine."""
    source = Source(EVAL_SEED, held_out=True)
    rows = {}
    for task in TASKS:
        examples = source.distinct(task, len(world()) if task == MEMORISED else ROWS_OF_A_SKILL)
        rows[task] = [
            {"id": f"{task}-{i:04d}", "prompt": e.prompt, "answer": e.answer} for i, e in enumerate(examples, 1)
        ]
    return rows


def write_tasks(folder: Path) -> list[Path]:
    """Each task's rows and its file, as in suites/tasks, in `folder`; the task files in the order of the tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for task, rows in ladder_rows().items():
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        shipped = (TASK_FILES / f"{task}.yaml").read_text(encoding="utf-8")
        files.append(folder / f"{task}.yaml")
        files[-1].write_text(shipped.replace(f"../data/{task}.jsonl", f"{task}.jsonl"), encoding="utf-8")
    return files


def main() -> None:
    """Write them."""
    for file in write_tasks(Path(sys.argv[1])):
        print(file)


if __name__ == "__main__":
    main()
