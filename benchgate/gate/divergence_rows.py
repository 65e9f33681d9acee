"""What the history keeps of fixed texts, per arm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchgate.gate.metric_limits import item_limits
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, MetricRow


def divergence_rows(evidence: Evidence) -> Iterator[MetricRow]:
    """Means over all positions that were asked for; none of a reading that is not whole.

    The baseline's own distance is the one from itself, where it was asked twice.
    """
    seen = evidence.divergence
    if seen is None or seen.fault is not None or not seen.items or len(seen.items) != seen.expected_n:
        return
    items = seen.items
    found: dict[tuple[Arm, str], list[float | bool | None]] = {
        (Arm.BASELINE, "kld_nats"): [item.floor_kld for item in items],
        (Arm.BASELINE, "same_top1_ratio"): [item.floor_same_top1 for item in items],
        (Arm.BASELINE, "perplexity"): [item.baseline_ln for item in items],
        (Arm.CANDIDATE, "kld_nats"): [item.kld for item in items],
        (Arm.CANDIDATE, "same_top1_ratio"): [item.same_top1 for item in items],
        (Arm.CANDIDATE, "perplexity"): [item.candidate_ln for item in items],
    }
    texts = [item.text_id for item in items]  # positions of one text go together
    for (arm, name), values in found.items():
        mean = _mean(values)
        if mean is not None:
            known = [float(value) for value in values if value is not None]
            limits = item_limits(known, texts, share=name == "same_top1_ratio")
            lower, upper = (limits.lower, limits.upper) if limits is not None else (None, None)
            if name == "perplexity":
                mean, lower, upper = math.exp(-mean), _perplexity(upper), _perplexity(lower)
            elif lower is not None and name == "kld_nats":
                lower = max(0.0, lower)
            yield MetricRow(arm, name, None, None, None, mean, len(items), lower, upper)


def _perplexity(mean_ln: float | None) -> float | None:
    return None if mean_ln is None else math.exp(-mean_ln)


def _mean(values: Sequence[float | bool | None]) -> float | None:
    """None when any position has no value."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
