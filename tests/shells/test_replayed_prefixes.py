"""A trace whose rows tell which prompts begin alike, replayed against a server with a prefix cache."""

import json
from pathlib import Path

import numpy as np

from benchgate.load.material import read_inputs
from benchgate.load.workers import run_stage
from benchgate.model.deployment import Arm
from benchgate.plan.schedule import make_plan
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.schema import Suite
from benchgate.targets.dialect import DIALECTS, Target
from tests.shells.load_helpers import limits

BLOCK = 16


def conversations(count: int) -> list[dict[str, object]]:
    """Rows as Mooncake has them: turns of 8 conversations, each of which begins with what its last one was."""
    generator = np.random.default_rng(5)
    said: list[list[int]] = [[1] for _ in range(8)]
    rows: list[dict[str, object]] = []
    for number in range(count):
        talk = said[int(generator.integers(8))]
        talk += [1000 * number + 10 + block for block in range(int(generator.integers(1, 4)))]
        length = len(talk) * BLOCK - int(generator.integers(BLOCK))
        rows.append({"timestamp": 40 * number, "input_length": length, "output_length": 1, "hash_ids": list(talk)})
    return rows


def implied(rows: list[dict[str, object]]) -> int:
    """Tokens of whole leading blocks whose hashes an earlier row had, as whole blocks."""
    seen: set[int] = set()
    hits = 0
    for row in rows:
        ids, length = row["hash_ids"], row["input_length"]
        assert isinstance(ids, list)
        assert isinstance(length, int)
        whole = ids[: length // BLOCK]
        for hash_id in whole:
            if hash_id not in seen:
                break
            hits += BLOCK
        seen.update(whole)
    return hits


def test_server_finds_as_much_in_its_cache_as_the_hashes_imply(tmp_path: Path) -> None:
    rows = conversations(60)
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    costs = sim_settings(prefill_s=1e-6, decode_s=1e-4, prefix_blocks=100_000, block_tokens=BLOCK, kv_tokens=10**7)
    with serve_sim(costs) as sim:
        suite = Suite.model_validate(
            {
                "suite": "s",
                "deployments": {"a": {"url": sim.url, "model": "sim", "engine": "vllm"}},
                "baseline": "a",
                "candidate": "a",
                "load": {
                    "workload": {"input": 9, "output": 1, "endpoint": "completions"},
                    "sweep": [{"stage": "s", "trace": "t.jsonl", "block": BLOCK, "requests": 60, "speed": 4}],
                    "blocks": 2,
                    "warmup": 0,
                },
                "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
            }
        )
        traces, material = read_inputs(suite, tmp_path, {})
        stage = make_plan(suite, traces=traces, material=material).blocks[0].stages[0]
        result = run_stage(Target(Arm.CANDIDATE, sim.url, "sim", DIALECTS["vllm"]), stage, limits=limits())
        truth = sim.truth()
    assert set(result.only.requests.error_detail) == {None}
    asked = sum(int(str(row["input_length"])) for row in rows)
    assert truth["input_tokens"] == asked
    assert abs(truth["cached_tokens"] - implied(rows)) <= 0.02 * asked
    assert implied(rows) > 0.4 * asked
