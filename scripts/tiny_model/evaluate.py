"""Exact match of the tiny model per task and weights, through the embedded server, as a Markdown table.

usage: python -m scripts.tiny_model.evaluate [WEIGHTS ...]      (all of them, F16 first, unless said)

Every row of suites/data is asked once, greedily. "Changed" counts answers whose text differs from F16's, "lost" those
right in F16 and wrong here, "gained" the reverse.
"""

from __future__ import annotations

import http.client
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from benchgate.embedded.server import serve
from benchgate.embedded.weights import UNQUANTIZED, WEIGHTS, weights_file
from benchgate.suite.deployment import Embedded
from scripts.tiny_model.make_data import DATA
from scripts.tiny_model.tasks import TASKS, Example

CONCURRENCY = 4
MAX_TOKENS = 48


def main() -> None:
    chosen = sys.argv[1:] or list(WEIGHTS)
    examples = [example for task in TASKS for example in _rows(task)]
    print(f"| weights | file | {' | '.join(TASKS)} | all | changed | lost | gained |")
    print("|---|---|" + "---|" * (len(TASKS) + 4))
    with tempfile.TemporaryDirectory() as cache:
        reference = answers(UNQUANTIZED, examples, Path(cache))
        for weights in chosen:
            given = reference if weights == UNQUANTIZED else answers(weights, examples, Path(cache))
            size_mb = weights_file(weights, 0, Path(cache)).stat().st_size / 1e6
            print(_row(weights, size_mb, examples, given, reference), flush=True)


def answers(weights: str, examples: list[Example], cache: Path) -> list[str]:
    """The served model's answer to each example, in their order."""
    spec = Embedded.model_validate({"weights": weights})
    with serve(spec, name=weights, cache_dir=cache) as server, ThreadPoolExecutor(CONCURRENCY) as pool:
        return list(pool.map(lambda example: _ask(server.url, example.prompt), examples))


def _ask(url: str, prompt: str) -> str:
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": MAX_TOKENS}
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return str(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])
    finally:
        connection.close()


def _rows(task: str) -> list[Example]:
    lines = (DATA / f"{task}.jsonl").read_text().splitlines()
    return [Example(task, row["prompt"], row["answer"]) for row in map(json.loads, lines)]


def _row(weights: str, size_mb: float, examples: list[Example], given: list[str], reference: list[str]) -> str:
    right = [e.answer == text for e, text in zip(examples, given, strict=True)]
    was_right = [e.answer == text for e, text in zip(examples, reference, strict=True)]
    shares = [_share([r for r, e in zip(right, examples, strict=True) if e.task == task]) for task in TASKS]
    changed = sum(a != b for a, b in zip(given, reference, strict=True))
    lost = sum(before and not now for before, now in zip(was_right, right, strict=True))
    gained = sum(now and not before for before, now in zip(was_right, right, strict=True))
    cells = [weights, f"{size_mb:.2f} MB", *shares, _share(right), str(changed), str(lost), str(gained)]
    return f"| {' | '.join(cells)} |"


def _share(right: list[bool]) -> str:
    return f"{sum(right) / len(right):.3f}"


if __name__ == "__main__":
    main()
