"""What the server tells Prometheus, in vLLM's names. Counters run as long as the process; no reset touches them."""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import accumulate

from benchgate.sim.asks import Ask
from benchgate.sim.settings import NS

_TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip


class Counters:
    """Everything that only grows."""

    def __init__(self) -> None:
        self._began_s = time.time()
        self._prompt_tokens = 0
        self._generation_tokens = 0  # of answers that are over
        self._finished: dict[str, int] = {"stop": 0, "length": 0}
        self._ttft_counts = [0] * (len(_TTFT_BUCKETS_S) + 1)
        self._ttft_total_ns = 0

    def first_token(self, ttft_ns: int) -> None:
        """A first token went out."""
        self._ttft_counts[bisect_left(_TTFT_BUCKETS_S, ttft_ns / NS)] += 1
        self._ttft_total_ns += ttft_ns

    def over(self, ask: Ask, sent_tokens: int, outcome: str) -> None:
        """An answer ended."""
        self._generation_tokens += sent_tokens
        if sent_tokens:
            self._prompt_tokens += ask.input_tokens
        if outcome == "finished":
            self._finished[ask.finish_reason] += 1

    def text(self, model: str, *, running: int, waiting: int, kv_ratio: float, tokens_under_way: int) -> str:
        """The page of /metrics."""
        label = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        where = f'model_name="{label}"'
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self._began_s:.6f}"]

        def tell(name: str, kind: str, value: float) -> None:
            lines.extend([f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{where}}} {float(value)}"])

        tell("num_requests_running", "gauge", running)
        tell("num_requests_waiting", "gauge", waiting)
        tell("kv_cache_usage_perc", "gauge", kv_ratio)
        tell("prompt_tokens_total", "counter", self._prompt_tokens)
        tell("generation_tokens_total", "counter", self._generation_tokens + tokens_under_way)
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self._finished.items():
            lines.append(f'vllm:request_success_total{{finished_reason="{reason}",{where}}} {float(count)}')
        lines.extend(self._ttft_lines(where))
        return "\n".join([*lines, ""])

    def _ttft_lines(self, where: str) -> list[str]:
        name = "vllm:time_to_first_token_seconds"
        bounds = [str(bound) for bound in _TTFT_BUCKETS_S] + ["+Inf"]
        sums = list(accumulate(self._ttft_counts))
        buckets = [
            f'{name}_bucket{{le="{bound}",{where}}} {float(count)}' for bound, count in zip(bounds, sums, strict=True)
        ]
        tail = [f"{name}_count{{{where}}} {float(sums[-1])}", f"{name}_sum{{{where}}} {self._ttft_total_ns / NS}"]
        return [f"# TYPE {name} histogram", *buckets, *tail]
