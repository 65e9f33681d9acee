"""`benchgate load` against simulated servers, as somebody uses it who has a URL and nothing else."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from tests.e2e.command import benchgate, here
from tests.fakes.grpc_server import serving_grpc

pytestmark = pytest.mark.beside  # no time of it is judged closely

PROMPTS = '{"prompt": "What is a fjord?"}\n{"messages": [{"role": "user", "content": "Name a river."}]}\n'
Completed: TypeAlias = subprocess.CompletedProcess[str]
LEVEL = ("--concurrency", "2", "--requests", "40", "--output-tokens", "8")


def until_saved(load: Callable[[], Completed]) -> Completed:
    """Repeat a load that is not saved, because the client was late on a busy machine."""
    done = load()
    for _ in range(4):
        if "saved as run" in done.stderr:
            break
        done = load()
    return done


@pytest.mark.slow
def test_a_url_is_enough_and_two_saved_loads_are_compared(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    with (
        serve_sim(sim_settings(prefill_s=0.0001, decode_s=0.004, batch=4)) as fast,
        serve_sim(sim_settings(prefill_s=0.0001, decode_s=0.012, batch=4)) as slow,
    ):
        address = fast.url.removeprefix("http://")
        said = until_saved(lambda: benchgate(tmp_path, "load", address, *LEVEL, "--label", "fast"))
        chat = ("load", f"{slow.url}/v1/chat/completions", *LEVEL)
        document = until_saved(lambda: here(tmp_path, *chat, "--label", "slow", "--format", "json"))
        prompted = here(tmp_path, "load", f"{slow.url}/v1", *LEVEL, "--prompts", "prompts.jsonl", "--think-time", "5ms")
    assert said.stdout.startswith(f"{fast.url}/v1/chat/completions\nmodel       sim (vllm dialect)\n"), said.stderr
    assert "latency, ms" in said.stdout and "TPOT" in said.stdout
    assert "\x1b" not in said.stdout + said.stderr
    assert json.loads(document.stdout)["request_url"] == f"{slow.url}/v1/chat/completions"
    assert "closed loop, 5.00 ms of think time" in prompted.stdout or "5 ms of think time" in prompted.stdout
    assert "prompts of prompts.jsonl" in prompted.stdout
    compared = here(tmp_path, "compare", "fast", "slow", "--format", "json")
    (tpot,) = (
        one for one in json.loads(compared.stdout)["numbers"] if (one["name"], one["statistic"]) == ("tpot", "p50")
    )
    assert tpot["change_lower_ratio"] > 0.5
    assert "fast" in here(tmp_path, "trend", "tpot", "--suite", "load").stdout


@pytest.mark.parametrize(
    ("path", "dialect", "counted"),
    [
        ("v1/messages", "vllm", True),
        pytest.param("generate_stream", "tgi", True, marks=pytest.mark.slow),
        pytest.param("v2/models/sim/generate_stream", "triton", False, marks=pytest.mark.slow),
        pytest.param("predictions/sim", "vllm", False, marks=pytest.mark.slow),
        ("v2/models/sim/infer", "vllm", True),
    ],
)
def test_address_of_an_endpoint_is_loaded_as_that_endpoint(
    tmp_path: Path, path: str, dialect: str, counted: bool
) -> None:
    with serve_sim(sim_settings(ttft_s=0.01, itl_s=0.002)) as sim:
        found = here(tmp_path, "load", f"{sim.url}/{path}", *LEVEL, "--warmup", "0")
        served = sim.truth()["by_endpoint"]
    assert len(served) == 1
    assert found.stdout.startswith(f"{sim.url}/{path}\nmodel       sim ({dialect} dialect)\n"), found.stderr
    assert "40 of 40 succeeded" in found.stdout
    assert ("40 answers came without token counts" in found.stdout) == (not counted)
    assert ("output tokens/s" in found.stdout) == (not path.endswith("infer"))


def test_recordings_and_grpc_are_loaded_from_their_options_alone(tmp_path: Path) -> None:
    with serve_sim(sim_settings(ttft_s=0.01, itl_s=0.002)) as sim, serving_grpc() as infer:
        spoken = here(tmp_path, "load", f"{sim.url}/v1/audio/transcriptions", *LEVEL, "--warmup", "0", "--audio", "2s")
        served = sim.truth()
        grpc = ("--endpoint", "grpc-infer", "--grpc", infer.url, "--model", "m", "--engine", "triton")
        inferred = here(tmp_path, "load", sim.url, *LEVEL, "--warmup", "0", *grpc)
        refused = here(tmp_path, "load", sim.url, *LEVEL, "--endpoint", "grpc-infer")
    assert "40 of 40 succeeded" in spoken.stdout, spoken.stderr
    assert "2 s of audio in" in spoken.stdout
    assert set(served["by_endpoint"]) == {"transcriptions"}
    assert "40 of 40 succeeded" in inferred.stdout, inferred.stderr
    assert len(infer.requests) >= 40  # with those of the ramp
    assert "--grpc HOST:PORT and --endpoint grpc-infer belong together" in refused.stderr


def test_address_that_contradicts_the_options_is_an_error(tmp_path: Path) -> None:
    address = "http://127.0.0.1:1/v2/models/a/generate_stream"
    for more, words in (
        (("--model", "b"), "the address names the model a, and --model is b"),
        (("--endpoint", "chat"), "the address ends in /v2/models/a/generate_stream, and --endpoint is chat"),
        (("--endpoint", "mesages"), "did you mean 'messages'?"),
    ):
        refused = here(tmp_path, "load", address, *LEVEL, *more)
        assert words in refused.stderr
