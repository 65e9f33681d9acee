"""`benchgate load` against simulated servers, as somebody uses it who has a URL and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.command import benchgate, here

PROMPTS = '{"prompt": "What is a fjord?"}\n{"messages": [{"role": "user", "content": "Name a river."}]}\n'
LEVEL = ("--concurrency", "2", "--requests", "40", "--output-tokens", "8")


def test_a_url_is_enough_and_two_saved_loads_are_compared(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    with (
        serve_sim(sim_settings(prefill_s=0.0001, decode_s=0.004, batch=4)) as fast,
        serve_sim(sim_settings(prefill_s=0.0001, decode_s=0.012, batch=4)) as slow,
    ):
        address = fast.url.removeprefix("http://")
        said = benchgate(tmp_path, "load", address, *LEVEL, "--label", "fast")
        document = here(
            tmp_path, "load", f"{slow.url}/v1/chat/completions", *LEVEL, "--label", "slow", "--format", "json"
        )
        prompted = here(tmp_path, "load", f"{slow.url}/v1", *LEVEL, "--prompts", "prompts.jsonl", "--think-time", "5ms")
    assert said.stdout.startswith(f"{fast.url}/v1/chat/completions\nmodel       sim (vllm dialect)\n"), said.stderr
    assert "latency, ms" in said.stdout and "TPOT" in said.stdout
    assert "\x1b" not in said.stdout + said.stderr
    assert json.loads(document.stdout)["request_url"] == f"{slow.url}/v1/chat/completions"
    assert "closed loop, 5.00 ms of think time" in prompted.stdout or "5 ms of think time" in prompted.stdout
    assert "prompts of prompts.jsonl" in prompted.stdout
    compared = here(tmp_path, "compare", "fast", "slow", "--format", "json")
    (tpot,) = (
        one for one in json.loads(compared.stdout)["numbers"] if (one["name"], one["statistic"]) == ("tpot_s", "p50")
    )
    assert tpot["change_lower_ratio"] > 0.5
    assert "fast" in here(tmp_path, "trend", "tpot_s", "--suite", "load").stdout
