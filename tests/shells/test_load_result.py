"""The result of `benchgate load` as text, on a terminal of 80 columns and elsewhere."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from benchgate.report.load_result import render_load, render_search
from benchgate.report.screen import PLAIN, Screen
from benchgate.stats.capacity_search import LevelStatus
from tests.golden import assert_golden


def summary(p50: float, failed: int = 0) -> dict[str, Any]:
    values = [p50, p50 * 1.2, p50 * 1.3, p50 * 1.9, p50 * 2.5]
    shown = [None if failed and at > 2 else value for at, value in enumerate(values)]
    return {
        "n": 480,
        "failed": failed,
        "mean": p50,
        **dict(zip(("p50", "p90", "p95", "p99", "max"), shown, strict=True)),
    }


LOAD: dict[str, Any] = {
    "url": "https://gpu.example:8000",
    "request_url": "https://gpu.example:8000/v1/chat/completions",
    "model": "llama-3.1-8b-instruct",
    "engine": "vllm",
    "endpoint": "chat",
    "load": {
        "concurrency": None,
        "rate_rps": 8.0,
        "arrival": "poisson",
        "arrival_cv": None,
        "trace": None,
        "speed": None,
        "ramp_to_rps": None,
        "think_s": None,
        "prompts": None,
        "inputs_sha256": None,
        "requests": None,
        "duration_s": 60.0,
        "input_tokens": 100,
        "output_tokens": 128,
        "seed": 0,
        "salt": 1,
    },
    "partial": False,
    "requests": {
        "warmup": 16,
        "scheduled": 480,
        "ok": 469,
        "ramp": 9,
        "ramp_failed": 0,
        "failed_by_class": {"http_5xx": 8, "timeout": 3},
    },
    "failures": [
        {"count": 7, "class": "http_5xx", "detail": "HTTP 503: no free slot \x1b[31m, retry later; the queue is full"},
        {"count": 3, "class": "timeout", "detail": "no answer within 60 s"},
        {"count": 1, "class": "http_5xx", "detail": "HTTP 502: bad gateway"},
    ],
    "reasoning_ratio": 0.0,
    "window_s": 60.12,
    "tokens_from": {"usage": 234},
    "throughput": {"output_tokens_per_s": 1021.4, "requests_per_s": 7.81},
    "slo": {"ttft_s": 0.5, "tpot_s": 0.08, "e2e_s": None},
    "goodput_ratio": 0.975,
    "ttft_s": summary(0.1534, 11),
    "ttfot_s": summary(0.1534, 11),
    "tpot_s": summary(0.0254, 11),
    "itl_s": summary(0.0251, 11),
    "e2e_s": summary(3.4, 11),
    "send_lag_s": summary(0.00012),
    "client": {
        "cpu_us_per_token": 3.214,
        "workers": 2,
        "read_delay_s": {"by": "loop", "p50": 1e-5, "p99": 5.1e-5, "max": 0.001},
        "start_uncertainty_s": None,
        "saturated": False,
        "reasons": [],
        "remedy": None,
    },
    "verdict": {
        "outcome": "BLOCK",
        "exit_code": 10,
        "reason": "430 of 480 requests were good, which shows a breach of the target of 95.0 %",
        "target_ratio": 0.95,
        "goodput_lower": 0.871,
        "goodput_upper": 0.919,
        "upper_alpha": 0.05,
    },
}  # fmt: skip


def probe(level: float, standing: str, good: int) -> dict[str, Any]:
    return {
        "level": level,
        "standing": standing,
        "good": good,
        "scheduled": 400,
        "goodput_ratio": good / 400,
        "goodput_lower": good / 400 - 0.02,
        "goodput_upper": min(1.0, good / 400 + 0.01),
        "backlog_grows": good < 300,
        "unsteady": False,
        "window_short": False,
    }


SEARCH: dict[str, Any] = {
    **{key: LOAD[key] for key in ("url", "request_url", "model", "engine", "endpoint")},
    "search": {
        "over": "rate",
        "from": 1.0,
        "to": 64.0,
        "target_ratio": 0.95,
        "slo": LOAD["slo"],
        "prompts": None,
        "input_tokens": 100,
        "output_tokens": 128,
        "arrival": "poisson",
    },
    "partial": False,
    "fault": None,
    "stop": "probes_exhausted",
    "capacity": {"lower": 8.0, "upper": 16.0, "estimate": 11.0},
    "requests_warmup": 16,
    "requests_sent": 1600,
    "requests_needed": 2400,
    "probes": [
        probe(64, "fail", 210),
        probe(16, "fail", 340),
        probe(8, "pass", 396),
        probe(12, "unresolved", 379),
    ],
    "looks_left_out": ["the send lag p99 was 8.1 ms (allowed: 5 ms)"],
    "verdict": {"outcome": "INCONCLUSIVE", "exit_code": 11, "reason": "neither shown to reach nor to miss 10"},
}  # fmt: skip


def test_a_load_fits_a_terminal_of_80_columns_and_units_are_named() -> None:
    text = render_load(LOAD, Screen(80))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert_golden("load.txt", text)


def test_a_search_gives_the_answer_first_then_a_table_of_levels() -> None:
    text = render_search(SEARCH, Screen(80))
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("The capacity is between 8/s and 16/s")
    assert_golden("load-search.txt", text)


@pytest.mark.parametrize("status", LevelStatus)
def test_a_level_may_have_any_status(status: LevelStatus) -> None:
    assert "64/s" in render_search({**SEARCH, "probes": [probe(64, status.value, 210)]}, PLAIN)


@pytest.mark.parametrize(("render", "document"), [(render_load, LOAD), (render_search, SEARCH)])
def test_colours_change_nothing_but_colours(render: Any, document: dict[str, Any]) -> None:
    coloured = render(document, Screen(80, colour=True))
    assert "\x1b[1" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(document, Screen(80))


def test_what_was_not_measured_is_left_out() -> None:
    document = copy.deepcopy(LOAD)
    del document["verdict"]
    document |= {"slo": None, "failures": []}
    document |= {name: {**summary(0.1), "n": 0} for name in ("ttft_s", "ttfot_s", "tpot_s", "itl_s")}
    document["throughput"]["output_tokens_per_s"] = None
    document["client"] |= {"cpu_us_per_token": None, "saturated": True, "reasons": ["it was slow"], "remedy": "a rest"}
    text = render_load(document, PLAIN)
    assert "TTFT" not in text and "tokens/s" not in text and "goodput" not in text
    assert "saturated" in text and "it was slow" in text and "E2E" in text
    assert text.endswith("✕ INVALID\n  the client was the bottleneck; a rest\n")
    interrupted = render_load({**document, "partial": True}, PLAIN)
    assert "what was measured by then" in interrupted and "INVALID" not in interrupted


def test_a_load_interrupted_before_its_first_request_accuses_nobody() -> None:
    document = copy.deepcopy(LOAD)
    document["partial"] = True
    document["requests"] |= {"scheduled": 0, "ok": 0}
    document["client"] |= {"saturated": True, "reasons": ["the client used 100 % of a core"]}
    text = render_load(document, PLAIN)
    assert "interrupted " in text and "0 of 0 succeeded" in text
    assert "client" not in text.replace("client's", "")


def test_a_goodput_below_1_is_not_shown_as_100_percent() -> None:
    document = copy.deepcopy(LOAD)
    document["goodput_ratio"] = 0.94998
    assert "94.998 % within" in render_load(document, PLAIN)  # nor as the target that it misses
    document["goodput_ratio"] = 0.9997
    document["verdict"] |= {"goodput_lower": 0.94998, "goodput_upper": 0.99996}
    text = render_load(document, PLAIN)
    assert "99.97 % within" in text
    assert "goodput is 94.998 % to 99.996 %" in text
