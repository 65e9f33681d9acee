"""Choice of an item: the option that its gated metric takes. It is compared between the arms."""

from __future__ import annotations

from collections.abc import Sequence


def chosen_option(metric: str, options: Sequence[str], logprobs: Sequence[float]) -> int:
    """Return the number of the option that lm-eval takes: the likeliest one, for some metrics per character or byte."""
    if metric == "acc_norm":
        weighted = [value / max(len(option), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_bytes":
        weighted = [value / max(len(option.encode()), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_mutual_info":
        unconditional = logprobs[len(options) :]
        weighted = [value - other for value, other in zip(logprobs, unconditional, strict=False)]
    else:
        weighted = list(logprobs[: len(options)])
    return weighted.index(max(weighted))
