"""The words of a report that a reader may not know, one line each."""

from __future__ import annotations

GLOSSARY = (
    ("baseline, candidate", "what serves now, and what may take its place; each is a side, or arm, of the comparison"),
    ("stage", "one level of load, held for as long as its requests take; a sweep is several of them"),
    ("block", "one pass over all stages with both sides, one right after the other; a check compares block with block"),
    ("check", "one line of the policy and what came of it; an advisory one can warn and never block"),
    ("margin", "the most harm that a check allows; written before anything was measured"),
    ("guard", "a look at the measurement itself: where one objects, the numbers do not count, whatever they are"),
    ("interval", "what the true value may be, by what was measured; a check passes only by its worse end"),
    ("in flight", "sent and not answered yet; a closed loop keeps so many requests so at any time"),
    ("open loop", "requests sent at the instants of a schedule, whatever the server does: a rate that is offered"),
    ("TTFT", "time to first token: first chunk that carries output, minus the intended send, so waiting counts"),
    ("TPOT", "time per output token: from the first to the last output chunk over (output tokens less one)"),
    ("ITL", "inter-token latency: every gap between two output chunks of one answer"),
    ("E2E", "end to end: finish event minus the intended send"),
    ("p50, p95", "the value that 50 (95) of 100 requests stay at or below; p50 is also called the median"),
    ("success", "HTTP 200, at least one output token, finish reason stop, length or tool_calls, no error in any event"),
    ("failures", "count as infinitely slow and as misses of every SLO; they never leave a denominator"),
    ("throughput", "output tokens (or requests) of successful requests over the stage's window, mean of the blocks"),
    ("SLO", "service level objective: bounds that a request must meet, and the share of requests that must"),
    ("goodput", "requests that succeed and meet every SLO, over the requests scheduled"),
    ("capacity", "the highest load at which enough requests meet the SLO, as far as that is shown"),
    ("knee", "the concurrency beyond which a server does no more at once, and what is added only waits"),
    ("flips", "items that only one side got right, over all items paired: lost by the candidate, or gained"),
    ("recovery", "the candidate's score over the baseline's, over the same items"),
    ("excess", "the candidate's disagreement with the baseline minus the baseline's with itself"),
)  # fmt: skip
"""Short forms of docs/metrics.md and docs/decisions.md, in the order in which a page needs them."""
