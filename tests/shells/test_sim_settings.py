"""What a practice server may be: values out of range are refused, and all of them reach another process."""

from __future__ import annotations

import pytest

from benchgate.errors import UsageError
from benchgate.sim.settings import BatchingCosts, SimSettings

COSTS = BatchingCosts(prefill_s=0.001, decode_s=0.010, decode_per_sequence_s=0.001, batch=4, prefill_chunk_tokens=100)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttft_s": -1}, "ttft_s is -1"),
        ({"jitter_ratio": 1.0}, "jitter_ratio is 1"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"output_tokens": (5, 2)}, "5:2"),
        ({"port": 70_000}, "port is 70000"),
        ({"reasoning_tokens": (4, 2)}, "reasoning_tokens is 4:2"),
        ({"invalid_json_ratio": 2}, "invalid_json_ratio is 2"),
        ({"says_ratio": 1.5}, "says_ratio is 1.5"),
        ({"image_tokens": 0}, "image_tokens is 0"),
        ({"adapters": ("a", "a")}, "a name of its own"),
        ({"adapters": ("sim",)}, "a name of its own"),
        ({"metrics_as": "vlm"}, "did you mean vllm"),
        ({"replicas": 0}, "replicas is 0"),
        ({"affinity": "prefix"}, "among several replicas"),
        ({"model": ""}, "no name"),
        ({"cert": "a.pem"}, "both a certificate and its key"),
        ({"client_ca": "a.pem"}, "a matter of TLS"),
        ({"uds": "/s", "cert": "a.pem", "key": "a.key"}, "over a Unix socket"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SimSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "wrong", [{"batch": 0}, {"prefill_s": 0}, {"queue": -1}, {"queue_status": 200}, {"shed_above": -1}]
)
def test_costs_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BatchingCosts(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_settings_survive_the_way_to_another_process() -> None:
    whole = SimSettings(
        batching=BatchingCosts(queue=3, preempts=True),
        output_tokens=(1, 5),
        adapters=("lora",),
        faults=("crlf@10%",),
        keep_alive_s=5,
        replicas=2,
        affinity="prefix",
    )
    assert SimSettings.from_json(whole.to_json()) == whole
    assert SimSettings.from_json(SimSettings().to_json()) == SimSettings()
