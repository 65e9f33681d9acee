"""Load on vLLM, one closed loop after the other: what the client counted is what the server counted."""

from __future__ import annotations

from scripts.real_engines.asking import Benchgate, counters
from scripts.real_engines.claims import Notebook
from scripts.real_engines.servers import Running

_TOKENS = 48
_AGREE = 0.01
_COUNTERS = ("vllm:request_success_total", "vllm:generation_tokens_total")


def load_claims(book: Notebook, benchgate: Benchgate, server: Running) -> None:
    """A closed loop on each endpoint, counted at both ends."""
    for endpoint, concurrency in (("chat", 1), ("chat", 4), ("chat", 16), ("completions", 4), ("responses", 4)):
        requests = 8 * concurrency
        before = counters(server.url)
        document = benchgate.load(
            server.url,
            *("--endpoint", endpoint, "--concurrency", str(concurrency), "--requests", str(requests)),
            *("--input-tokens", "64", "--output-tokens", str(_TOKENS)),
        )
        after = counters(server.url)
        finished, server_tokens = (after[name] - before[name] for name in _COUNTERS)
        counts, tokens = document["requests"], document["output_tokens"]
        ok, sent = counts["ok"], counts["ok"] + counts["warmup"] + counts["ramp"]  # the server counts all of them
        agree = abs(finished - sent) <= _AGREE * sent and abs(server_tokens - sent * _TOKENS) <= _AGREE * sent * _TOKENS
        book.claim(
            f"{endpoint} at concurrency {concurrency}: every request answered in full, and counted alike at both ends",
            document["engine"] == "vllm" and ok == requests and tokens == requests * _TOKENS and agree,
            f"{ok} of {requests} requests and {tokens} tokens measured, {sent} requests sent, "
            f"{finished:.0f} and {server_tokens:.0f} tokens counted by the server; "
            f"{document['throughput']['output_tokens_per_s'] or 0:.0f} tokens/s, "
            f"TTFT p50 {_ms(document['ttft_s']['p50'])}, TPOT p50 {_ms(document['tpot_s']['p50'])}",
        )


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds * 1000:.1f} ms"
