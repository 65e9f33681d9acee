"""Evals over vLLM: the answers are those of a plain request, and log-probabilities those of a plain forward pass."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchgate.model.deployment import Arm
from benchgate.quality.logprobs import score_continuations, scoring_fault
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import DIALECTS, Target
from scripts.real_engines.asking import posted
from scripts.real_engines.claims import Notebook
from scripts.real_engines.servers import MODEL, Engines, Running

ITEMS = 40
ANSWER_TOKENS = 8
_WORDS = ["server", "token", "batch", "queue", "prompt", "answer", "cache", "model", "load", "stage"]
_CHOICES = 3  # of an item
_FOREIGN = " 7 \u201c日本\u201d"  # its tokens are parts of characters
_TOLERANCE = 0.05  # bf16, over a few tokens; 0.008 was seen


def write_task(folder: Path, server: Running) -> None:
    """A task whose targets are what the server itself answers, so that only a fault of the way costs a point."""
    rows = []
    for i in range(ITEMS):
        prompt = f"{_WORDS[i % 10]} {_WORDS[i // 10]} {i}"
        rows.append({"id": f"item-{i}", "prompt": prompt, "answer": _plain_answer(server, prompt)})
    (folder / "echo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "echo.yaml").write_text(_TASK, encoding="utf-8")
    shadow = [{"id": row["id"], "prompt": row["prompt"]} for row in rows]
    (folder / "shadow.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shadow), encoding="utf-8")


def _plain_answer(server: Running, prompt: str) -> str:
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    return str(posted(f"{server.url}/v1/chat/completions", body)["choices"][0]["message"]["content"]).strip()


def likelihood_claims(book: Notebook, engines: Engines, server: Running, folder: Path) -> None:
    """Multiple choice by log-probabilities: benchgate's own way, and lm-eval's `local-completions` as a second witness.

    Both are held against a forward pass of the same weights. lm-eval needs the server's tokenizer, benchgate does not.
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
    expected = _by_forward_pass(items, engines)
    told = {"benchgate": _by_benchgate(items, server), "lm-eval": _by_server(items, server, folder)}
    for who, scores in told.items():
        gaps = [abs(one - other) for one, other in zip(scores, expected, strict=True)]
        same = sum(_best(scores, i) == _best(expected, i) for i in range(len(items)))
        book.claim(
            f"log-probabilities that {who} gets from the server are those of a plain forward pass",
            max(gaps) <= _TOLERANCE and same == len(items),
            f"largest difference {max(gaps):.4f} over {len(gaps)} continuations, {same} of {len(items)} choices alike",
        )


def _by_benchgate(items: list[dict[str, Any]], server: Running) -> list[float]:
    """What benchgate's own evals would score, after the probe that they make; RuntimeError with what it found."""

    async def asked() -> list[float]:
        target = Target(Arm.BASELINE, server.url, MODEL, DIALECTS["vllm"])
        async with AsyncJsonClient(target, connect_s=10, total_s=600, retry=RETRY) as client:
            if (fault := await scoring_fault(client, "echo")) is not None:
                raise RuntimeError(fault)
            scores = [await score_continuations(client, "echo", _context(item), item["choices"]) for item in items]
        return [score.logprob for of_item in scores for score in of_item]

    return asyncio.run(asked())


def _context(item: dict[str, Any]) -> str:
    return f"Question: {item['question']}\nAnswer:"


def _best(scores: list[float], item: int) -> int:
    of_item = scores[item * _CHOICES : (item + 1) * _CHOICES]
    return of_item.index(max(of_item))


def _by_server(items: list[dict[str, Any]], server: Running, folder: Path) -> list[float]:
    """In a process of its own, as benchgate does it: lm-eval takes hold of signals, loggers and the environment."""
    asked, told = folder / "choices.json", folder / "scores.json"
    asked.write_text(json.dumps(items), encoding="utf-8")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    command = [sys.executable, str(Path(__file__).with_name("server_scores.py")), server.url, str(asked), str(told)]
    done = subprocess.run(
        command, env={**os.environ, **offline}, cwd=folder, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise RuntimeError(f"lm-eval ended with {done.returncode}:\n{done.stderr[-2000:]}")
    scores: list[float] = json.loads(told.read_text(encoding="utf-8"))
    return scores


def _by_forward_pass(items: list[dict[str, Any]], engines: Engines) -> list[float]:
    pairs = [[_context(item), choice] for item in items for choice in item["choices"]]
    script = Path(__file__).with_name("likelihoods.py")
    done = subprocess.run(
        [engines.program("python"), str(script), str(engines.model)],
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
