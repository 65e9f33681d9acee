"""The task of the evals, and log-probabilities of continuations held against a plain forward pass."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchgate.quality.logprobs import score_continuations, scoring_fault
from benchgate.targets.client import RETRY, AsyncJsonClient
from scripts.real_engines.claims import Session
from scripts.real_engines.command import post
from scripts.real_engines.servers import Running

ITEMS = 40
ANSWER_TOKENS = 8
_WORDS = ["server", "token", "batch", "queue", "prompt", "answer", "cache", "model", "load", "stage"]
_CHOICES = 3  # of an item
_FOREIGN = " 7 \u201c日本\u201d"  # its tokens are parts of characters
_TOLERANCE = 0.05  # bf16, over a few tokens; 0.008 was seen


def write_task(folder: Path, server: Running) -> None:
    """Write a task whose targets are the server's own answers, so that only a fault of the client costs a point."""
    rows: list[dict[str, str]] = []
    for one, other in itertools.product(_WORDS, _WORDS):
        prompt = f"{one} {other} {len(rows)}"
        if answer := _plain_answer(server, prompt):  # an empty answer is no target
            rows.append({"id": f"item-{len(rows)}", "prompt": prompt, "answer": answer})
        if len(rows) == ITEMS:
            break
    (folder / "echo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "echo.yaml").write_text(_TASK, encoding="utf-8")
    shadow = [{"id": row["id"], "prompt": row["prompt"]} for row in rows]
    (folder / "shadow.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shadow), encoding="utf-8")


def _plain_answer(server: Running, prompt: str) -> str:
    body: dict[str, object] = {
        "model": server.engine.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    return str(post(f"{server.url}/v1/chat/completions", body)["choices"][0]["message"]["content"]).strip()


def likelihood_claims(session: Session) -> None:
    """Claim that log-probabilities are those of a forward pass: by benchgate, and by lm-eval's `local-completions`.

    lm-eval needs the server's tokenizer, benchgate does not.
    """
    items: list[dict[str, Any]] = [
        {
            "id": f"choice-{i}",
            "question": f"{word} and {other}",
            "choices": [" " + word, " " + other, _FOREIGN],
            "gold": 0,
        }
        for i, (word, other) in enumerate(zip(_WORDS, reversed(_WORDS), strict=True))
        if word != other
    ]
    expected = _by_forward_pass(items, session)
    scored = {
        "benchgate": _by_benchgate(items, session.server),
        "lm-eval": _by_lm_eval(items, session.server, session.benchgate.folder),
    }
    for client, scores in scored.items():
        gaps = [abs(one - other) for one, other in zip(scores, expected, strict=True)]
        same = sum(_best(scores, i) == _best(expected, i) for i in range(len(items)))
        session.book.claim(
            f"log-probabilities that {client} gets from the server are those of a plain forward pass",
            max(gaps) <= _TOLERANCE and same == len(items),
            f"largest difference {max(gaps):.4f} over {len(gaps)} continuations, {same} of {len(items)} choices alike",
        )


def _by_benchgate(items: list[dict[str, Any]], server: Running) -> list[float]:
    """Return the scores of benchgate's own evals. Raises RuntimeError if the probe before them finds a fault."""

    async def score() -> list[float]:
        async with AsyncJsonClient(server.target(), connect_s=10, total_s=600, retry=RETRY) as client:
            if (fault := await scoring_fault(client, "echo")) is not None:
                raise RuntimeError(fault)
            scores = [await score_continuations(client, "echo", _context(item), item["choices"]) for item in items]
        return [score.logprob for of_item in scores for score in of_item]

    return asyncio.run(score())


def _context(item: dict[str, Any]) -> str:
    return f"Question: {item['question']}\nAnswer:"


def _best(scores: list[float], item: int) -> int:
    of_item = scores[item * _CHOICES : (item + 1) * _CHOICES]
    return of_item.index(max(of_item))


def _by_lm_eval(items: list[dict[str, Any]], server: Running, folder: Path) -> list[float]:
    """Return lm-eval's scores, from a process of its own: it takes hold of signals, loggers and the environment."""
    items_path, scores_path = folder / "choices.json", folder / "scores.json"
    items_path.write_text(json.dumps(items), encoding="utf-8")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    script = str(Path(__file__).with_name("server_scores.py"))
    done = subprocess.run(
        [sys.executable, script, server.url, server.engine.model, str(items_path), str(scores_path)],
        env={**os.environ, **offline},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(f"lm-eval ended with {done.returncode}:\n{done.stderr[-2000:]}")
    scores: list[float] = json.loads(scores_path.read_text(encoding="utf-8"))
    return scores


def _by_forward_pass(items: list[dict[str, Any]], session: Session) -> list[float]:
    pairs = [[_context(item), choice] for item in items for choice in item["choices"]]
    python = session.places.program(session.server.engine, "python")
    script = Path(__file__).with_name("likelihoods.py")
    done = subprocess.run(
        [python, str(script), str(session.places.model)],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    scores: list[float] = json.loads(done.stdout)
    return scores


_TASK = f"""\
task: echo
dataset_path: json
dataset_kwargs: {{data_files: {{test: echo.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: answer
generation_kwargs: {{until: [], max_gen_toks: {ANSWER_TOKENS}, temperature: 0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
filter_list:
  - name: stripped
    filter: [{{function: regex, regex_pattern: '(?s)^\\s*(.*?)\\s*$'}}, {{function: take_first}}]
"""
