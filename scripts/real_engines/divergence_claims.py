"""Fixed texts on a real server: read by itself twice it lies nowhere from itself, by either of the ways it knows."""

from __future__ import annotations

import json
from pathlib import Path

from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceObservation
from benchgate.plan.items import FixedText, planned_pieces
from benchgate.quality.divergence import diverge
from benchgate.suite.quality import Divergence
from benchgate.suite.schema import Limits
from benchgate.targets.dialect import DIALECTS, Target
from scripts.real_engines.claims import Notebook
from scripts.real_engines.servers import MODEL, Running

PROSE = Path(__file__).parents[2] / "suites" / "data" / "prose.jsonl"
SEED = 5
_NOTHING_NATS = 1e-3  # what batching may change of a probability


def divergence_claims(book: Notebook, server: Running) -> None:
    """By the strongest way that vLLM can, and by the weakest."""
    for way, settings in (
        ("echo", {"positions": 200, "top": 20}),
        ("cut", {"positions": 40, "top": 5, "way": "cut"}),
    ):
        seen = _read(server, Divergence.model_validate({"texts": PROSE.name, "window": 1200, **settings}))
        largest = max((item.kld for item in seen.items), default=None)
        same = sum(item.same_top1 for item in seen.items)
        book.claim(
            f"a server that is both arms lies nowhere from itself by `{way}`",
            seen.fault is None and seen.way == way and len(seen.items) == seen.expected_n
            and largest is not None and largest <= _NOTHING_NATS and same >= 0.99 * len(seen.items),
            seen.fault or f"largest KLD {largest} nats, {same} of {len(seen.items)} most probable tokens alike",
        )  # fmt: skip


def _read(server: Running, settings: Divergence) -> DivergenceObservation:
    rows = [json.loads(line) for line in PROSE.read_text(encoding="utf-8").splitlines()]
    texts = [FixedText(row["id"], row["text"]) for row in rows]
    pieces = planned_pieces(texts, settings.window, settings.positions, SEED)
    targets = {arm: Target(arm, server.url, MODEL, DIALECTS["vllm"]) for arm in Arm}
    [seen] = diverge(targets, pieces, settings, SEED, Limits())
    return seen
