"""The section on next-token probabilities: their divergence from the baseline's on fixed texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchgate.model.records import DivergenceItem, DivergenceObservation
from benchgate.model.request_metrics import quantile
from benchgate.model.run import Evidence
from benchgate.report import display
from benchgate.report.section import Lines, Section, Style, notes, present
from benchgate.report.table import Table, number_columns, of_expected, text_columns
from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import exp_or_inf

_AT_LEAST = "≥ "
"""Prefix of figures that include a lower bound."""
_COLUMNS = (
    "positions", "mean KLD", "standard error", "p99", "p99.9", "max", "same top token", "perplexity",
    "ln ratio",
)  # fmt: skip
_OWN_BASELINE = "The candidate is compared with the baseline of its own run: probabilities are not stored."
_METHODS = {
    "n_probs": "The server predicted the next token after every prefix of a text (llama.cpp's `n_probs`).",
    "echo": "The server echoed each text with the log-probabilities of its tokens.",
    "cut": (
        "Each text was cut at the positions and completed by one token, so the probability of the text's own next "
        "token, and with it the perplexity, is unknown."
    ),
}


def divergence_section(evidence: Evidence, *, stored: bool = False) -> Section | None:
    """Return the section; None without fixed texts. Of two `stored` runs it is that of the judged one."""
    seen = evidence.divergence
    if seen is None:
        return None
    rows, columns = tuple(_rows(seen)), (*text_columns("compared with the baseline"), *number_columns(*_COLUMNS))
    table = Table("Next-token probabilities on fixed texts, in nats", columns, rows) if rows else None
    lines = (*([_OWN_BASELINE] if stored else []), *_lines(seen))
    faults = (seen.fault,) if seen.fault else ()
    return Section(
        "divergence",
        "Token probabilities",
        present(Lines(faults, Style.FAULTS), table, notes(*lines)),
        summary=present(table, Lines((*faults, *lines))),
        rank=3,
    )


def _rows(seen: DivergenceObservation) -> Iterator[tuple[str, ...]]:
    if not seen.items:
        return
    yield ("candidate", *_figures(seen, seen.items), *_perplexities(seen.items))
    floors = [item for item in seen.items if item.floor_kld is not None and item.floor_same_top1 is not None]
    if floors:
        no_perplexity = (display.NOT_APPLICABLE, display.NOT_APPLICABLE)
        yield ("baseline, repeated", *_figures(seen, floors, floor=True), *no_perplexity)


def _figures(seen: DivergenceObservation, items: Sequence[DivergenceItem], *, floor: bool = False) -> tuple[str, ...]:
    klds = [item.floor_kld or 0.0 if floor else item.kld for item in items]
    same = [bool(item.floor_same_top1 if floor else item.same_top1) for item in items]
    values = np.array(klds, dtype=np.float64)
    spread = cluster_mean(values, _pieces(items))
    begin = "" if seen.whole else _AT_LEAST
    tails = (
        quantile(values, 0.99) if len(values) >= 100 else None,
        quantile(values, 0.999) if len(values) >= 1000 else None,
    )
    return (
        of_expected(len(items), seen.expected_n),
        f"{begin}{_small(float(values.mean()))}",
        display.NOT_APPLICABLE if spread is None else _small(spread.error),
        *(display.NOT_APPLICABLE if tail is None else f"{begin}{_small(tail)}" for tail in tails),
        f"{begin}{_small(float(values.max()))}",
        display.percent(sum(same) / len(same)),
    )


def _perplexities(items: Sequence[DivergenceItem]) -> tuple[str, str]:
    """Return `3.21 → 3.25` and the mean ln ratio with its standard error."""
    known = [
        (item.baseline_ln, item.candidate_ln)
        for item in items
        if item.baseline_ln is not None and item.candidate_ln is not None
    ]
    if len(known) < len(items):
        return display.NOT_APPLICABLE, display.NOT_APPLICABLE
    b, c = np.array(known, dtype=np.float64).T
    spread = cluster_mean(b - c, _pieces(items))
    error = "" if spread is None else f" ± {_small(spread.error)}"
    perplexities = " → ".join(display.number(exp_or_inf(-float(side.mean()))) for side in (b, c))
    return perplexities, f"{_small(float((b - c).mean()))}{error}"


def _lines(seen: DivergenceObservation) -> Iterator[str]:
    if seen.way is not None:
        yield _METHODS[seen.way]
    if seen.items and not seen.whole:
        yield (
            f"Each arm reported only its {seen.top} most probable tokens, so every KLD is a lower bound. The most "
            "probable token and the perplexity are exact."
        )
    elif seen.items:
        yield f"Each arm reported all {seen.top} tokens of its vocabulary, so every KLD is exact."
    yield from (f"Not used: {reason}" for reason in seen.passed_over)


def _pieces(items: Sequence[DivergenceItem]) -> list[str]:
    return [f"{item.text_id}\n{item.piece}" for item in items]


def _small(value: float) -> str:
    """Show three significant digits, also far below one."""
    return "0" if value == 0 else f"{value:.3g}".replace("-", "\N{MINUS SIGN}")
