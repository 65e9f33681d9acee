"""Settings of a simulated server: values out of range are refused, and all of them reach another process."""

from __future__ import annotations

from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.sim.settings import LOOPBACK, ListenAddress, from_json, sim_settings, to_json


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttft_s": -1}, "ttft_s: "),
        ({"jitter_ratio": 1.0}, "jitter_ratio: "),
        ({"chunk_tokens": 0}, "chunk_tokens: "),
        ({"output_tokens": (5, 2)}, "no bounds"),
        ({"output_tokens": (0, 2)}, "begin at 1"),
        ({"invalid_json_ratio": 2}, "invalid_json_ratio: "),
        ({"says_ratio": 1.5}, "says_ratio: "),
        ({"image_tokens": 0}, "image_tokens: "),
        ({"adapters": ("a", "a")}, "a name of its own"),
        ({"adapters": ("sim",)}, "a name of its own"),
        ({"replicas": 0}, "replicas: "),
        ({"affinity": "prefix"}, "among several replicas"),
        ({"lose_replica_after": 3}, "one of several replicas"),
        ({"model": ""}, "model: "),
        ({"batch": 0}, "batch: "),
        ({"prefill_s": 0}, "take no time"),
        ({"queue": -1}, "queue: "),
        ({"queue_status": 200}, "queue_status: "),
        ({"service_s": 0}, "longer than 0"),
        ({"service_law": "constnt"}, "did you mean `constant`"),
        ({"service_s": 0.001, "ttft_s": 0.001}, "remove `ttft`"),
        ({"service_s": 0.001, "batch": 2}, "keep one of them"),
        ({"itl_s": 0.001, "service_until": "last-token"}, "remove `itl`"),
        ({"faults": ("no-done@60%", "no-usage@50%")}, "110%"),
        ({"faults": ("fast-when-seen",), "batch": 2}, "steps of an engine are shared"),
        ({"prefil_s": 1}, "unknown key"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sim_settings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"port": 70_000}, "--port is 70000"),
        ({"cert": "a.pem"}, "both a certificate and its key"),
        ({"client_ca": "a.pem"}, "need TLS"),
        ({"uds": "/s", "cert": "a.pem", "key": "a.key"}, "over a Unix socket"),
        ({"uds": "/s", "port": 8000}, "no host and no port"),
        ({"uds": "/s", "host": "::1"}, "no host and no port"),
    ],
)
def test_address_whose_parts_do_not_fit_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ListenAddress(**wrong)


def test_settings_survive_the_way_to_another_process() -> None:
    whole = sim_settings(
        queue=3, preempts=True, output_tokens=(1, 5), adapters=("lora",), faults=("no-done@10%",), keep_alive_s=5,
        replicas=2, affinity="prefix",
    )  # fmt: skip
    address = ListenAddress(uds="sim.sock")
    assert from_json(to_json(whole, address, 2)) == (whole, address, 2)
    assert from_json(to_json(sim_settings(), LOOPBACK, 0)) == (sim_settings(), LOOPBACK, 0)
    default_cost = sim_settings(decode_s=0.008)
    assert from_json(to_json(default_cost, LOOPBACK, 0))[0].is_engine
