"""Write the eval rows, the shadow prompts and the fixed texts of the embedded model that ship in suites/data.

usage: python -m scripts.tiny_model.make_data [FOLDER]

The same bytes every time. Rows stand in the order they were drawn, which is random, so the first n are a fair sample.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.tiny_model.tasks import TASKS, Source

EVAL_SEED = 4242
SHADOW_SEED = 8484
CHOICE_SEED = 6262
ROWS_PER_TASK = 300
CHOICE_ROWS = 200
OPTIONS = 4
SHADOW_ROWS = 250
TEXTS_PER_TASK = 50
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


def text_rows() -> list[dict[str, str]]:
    """The first eval rows of every task with their answers, as the model reads a conversation."""
    rows = [row for task in TASKS for row in eval_rows(task)[:TEXTS_PER_TASK]]
    return [{"id": row["id"], "text": f"<|user|>{row['prompt']}<|assistant|>{row['answer']}<|end|>"} for row in rows]


def choice_rows() -> list[dict[str, object]]:
    """Sums with four answers, of which three are off by one or by ten."""
    rng = random.Random(CHOICE_SEED)
    rows: list[dict[str, object]] = []
    for number, example in enumerate(Source(CHOICE_SEED, held_out=True).distinct("add", CHOICE_ROWS), 1):
        right = int(example.answer)
        wrong = [near for near in (right - 10, right - 1, right + 1, right + 10) if near >= 0]
        choices = [str(choice) for choice in rng.sample([*rng.sample(wrong, OPTIONS - 1), right], OPTIONS)]
        gold = choices.index(example.answer)
        rows.append({"id": f"add_choice-{number:04d}", "prompt": example.prompt, "choices": choices, "gold": gold})
    return rows


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Sequence[Mapping[str, object]]] = {task: eval_rows(task) for task in TASKS}
    for name, rows in {**made, "shadow": shadow_rows(), "texts": text_rows(), "add_choice": choice_rows()}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{name}.jsonl: {len(rows)} rows")


if __name__ == "__main__":
    main()
