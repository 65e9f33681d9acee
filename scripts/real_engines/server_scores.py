"""Log-probabilities of continuations by lm-eval's `local-completions`, which reads them out of echoed prompts.

    python server_scores.py URL MODEL ITEMS SCORES

ITEMS is a JSON list of `question`, `choices` and `gold`; SCORES gets a JSON list, item by item and choice by choice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main(url: str, model: str, items_path: str, scores_path: str) -> None:
    items = json.loads(Path(items_path).read_text(encoding="utf-8"))

    def rows(**_metadata: object) -> dict[str, Any]:
        return {"test": datasets.Dataset.from_list(items)}

    task = {
        "task": "choices",
        "custom_dataset": rows,
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "gold",
        "doc_to_choice": "choices",
        "target_delimiter": "",  # the choices begin with a space of their own
        "metric_list": [{"metric": "acc"}],
    }
    result = simple_evaluate(
        model="local-completions",
        model_args={
            "model": model,
            "base_url": f"{url}/v1/completions",
            "tokenizer_backend": "remote",  # vLLM's own, so that no tokenizer is needed here
            "num_concurrent": 4,
            "max_length": 2048,
        },
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = sorted(result["samples"]["choices"], key=lambda sample: int(sample["doc_id"]))
    scores = [float(score) for sample in samples for (score, _greedy), *_ in sample["resps"]]
    Path(scores_path).write_text(json.dumps(scores), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
