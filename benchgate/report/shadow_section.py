"""The shadow part of the report: how often answers differ, in what, how good they are, and where they part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from benchgate.gate.checks.shadow import LENGTH_BAND, baseline_self_verdicts, excess_of_rows, length_ratio
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import lacks_similarity, usable_rows
from benchgate.model.records import AnswerAgreement, AnswerFacts, JudgeVerdict, PairFacts, ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.report import show
from benchgate.report.disagreements import Example, examples, worst
from benchgate.report.summary import ShadowSummary, summarise_shadow
from benchgate.report.tables import Column, Table, of_expected

_MOST_SLICES = 12
_FEWEST = 5  # prompts in a slice that is shown by itself


@dataclass(frozen=True, slots=True)
class ShadowSection:
    """How often answers differ. `examples` is empty unless the suite keeps texts; then `worst` says where they part."""

    table: Table
    more: tuple[Table, ...]
    lines: tuple[str, ...]
    fault: str
    failed: str
    differing: int
    examples: tuple[Example, ...]
    worst: Table | None


def shadow_section(evidence: Evidence, alpha: float) -> ShadowSection | None:
    """None when there was no shadow comparison."""
    shadow = evidence.shadow
    if shadow is None:
        return None
    summary = summarise_shadow(shadow)
    rows: tuple[ShadowItem, ...] = ()
    with suppress(CannotJudge):
        rows = usable_rows(evidence)
    shown = examples(summary.differing)
    return ShadowSection(
        table=_disagreement(summary, rows, alpha),
        more=tuple(table for table in (_in_common(rows), _answers(shadow), _verdicts(rows)) if table is not None),
        lines=tuple(_lines(rows)),
        fault=summary.fault or "",
        failed=_failed(summary),
        differing=len(summary.differing),
        examples=shown,
        worst=None if shown else worst(summary.differing),
    )


def _failed(summary: ShadowSummary) -> str:
    """How many prompts lack an answer, and of which kind."""
    kinds = ((summary.failed, "had a call that failed"), (summary.empty, "had an empty answer"))
    return "; ".join(f"{count:,} prompt{'' if count == 1 else 's'} {what}" for count, what in kinds if count)


def _disagreement(summary: ShadowSummary, rows: tuple[ShadowItem, ...], alpha: float) -> Table:
    """Of all prompts, and of each slice of the traffic that has enough of them."""
    titles = ("candidate differs from baseline", "baseline differs from itself", "excess", "interval")
    slices = _slices(rows)
    whole = _cells(rows, alpha) if rows else (
        show.percent(summary.candidate_ratio), show.percent(summary.itself_ratio), show.points(summary.excess_ratio),
        show.NOT_APPLICABLE,
    )  # fmt: skip
    first = ("all prompts", of_expected(summary.usable, summary.expected), *whole)
    return Table(
        "Disagreement of answers",
        (Column("slice", numeric=False), Column("prompts"), *(Column(title) for title in titles)),
        (first, *((name, f"{len(part):,}", *_cells(part, alpha)) for name, part in slices)),
        starts=frozenset({1}) if slices else frozenset(),
    )


def _cells(rows: tuple[ShadowItem, ...], alpha: float) -> tuple[str, ...]:
    ours, own, excess = excess_of_rows(rows, alpha)
    if excess is None:
        return show.percent(ours), show.percent(own), show.NOT_APPLICABLE, show.NOT_APPLICABLE
    low, high = show.points(excess.limits.lower), show.points(excess.limits.upper)
    interval = f"{low.removesuffix(' points')} to {high}"
    return show.percent(ours), show.percent(own), show.points(excess.estimate), interval


def _slices(rows: tuple[ShadowItem, ...]) -> list[tuple[str, tuple[ShadowItem, ...]]]:
    """The largest ones, by name; none where all prompts are of one."""
    counts = Counter(row.stratum for row in rows if row.stratum is not None)
    names = sorted(name for name, count in counts.most_common(_MOST_SLICES) if count >= _FEWEST)
    if len(counts) < 2:
        return []
    return [(name, tuple(row for row in rows if row.stratum == name)) for name in names]


def _in_common(rows: Sequence[ShadowItem]) -> Table | None:
    """What every two answers have in common; None where nothing was kept of it."""
    pairs: dict[str, Callable[[ShadowItem], PairFacts | None]] = {
        "candidate, baseline's first": lambda row: row.with_primary,
        "candidate, baseline's second": lambda row: row.with_secondary,
        "baseline's second, its first": lambda row: row.own,
    }
    found = {name: [pair for row in rows if (pair := of(row)) is not None] for name, of in pairs.items()}
    if not any(found.values()):
        return None
    columns = ("pairs", *(label.value for label in AnswerAgreement), "parts at word", "similarity")
    cells = tuple((name, *_common_cells(pairs_of)) for name, pairs_of in found.items())
    return Table(
        "What answers have in common",
        (Column("answers", numeric=False), *(Column(title) for title in columns)),
        cells,
    )


def _common_cells(pairs: Sequence[PairFacts]) -> tuple[str, ...]:
    labels = Counter(pair.label for pair in pairs)
    words = [pair.at_word + 1 for pair in pairs if pair.at_word is not None]
    similar = [pair.similarity for pair in pairs if pair.similarity is not None]
    return (
        f"{len(pairs):,}",
        *(f"{labels[label]:,}" for label in AnswerAgreement),
        show.count(round(median(words))) if words else show.NOT_APPLICABLE,
        f"{median(similar):.3f}" if similar else show.NOT_APPLICABLE,
    )


def _answers(shadow: ShadowObservation) -> Table | None:
    """Each side's answers by themselves; None where nothing was kept of them."""
    sides: dict[str, Callable[[ShadowItem], tuple[AnswerFacts | None, str | None, str | None]]] = {
        "baseline, first": lambda i: (i.primary_facts, i.primary, i.primary_finish),
        "baseline, second": lambda i: (i.secondary_facts, i.secondary, i.secondary_finish),
        "candidate": lambda i: (i.candidate_facts, i.candidate, i.candidate_finish),
    }
    if not any(of(item)[0] is not None for item in shadow.items for of in sides.values()):
        return None
    titles = ("answers", "empty", "cut at the limit", "refusals", "characters", "tokens", "in the form asked for")
    return Table(
        "Answers",
        (Column("side", numeric=False), *(Column(title) for title in titles)),
        tuple((name, *_answer_cells([of(item) for item in shadow.items])) for name, of in sides.items()),
    )


def _answer_cells(found: Sequence[tuple[AnswerFacts | None, str | None, str | None]]) -> tuple[str, ...]:
    came = [(facts, digest, finish) for facts, digest, finish in found if facts is not None]
    facts = [one for one, _, _ in came]
    formed = [one.valid for one in facts if one.valid is not None]
    tokens = [one.tokens for one in facts if one.tokens is not None]
    return (
        f"{sum(digest is not None for _, digest, _ in came):,}",
        f"{sum(digest is None for _, digest, _ in came):,}",
        f"{sum(finish == 'length' for _, _, finish in came):,}",
        f"{sum(one.refusal for one in facts):,}",
        show.count(round(median(one.characters for one in facts))) if facts else show.NOT_APPLICABLE,
        show.count(round(median(tokens))) if tokens else show.NOT_APPLICABLE,
        f"{sum(formed):,} of {len(formed):,}" if formed else show.NOT_APPLICABLE,
    )


def _verdicts(rows: Sequence[ShadowItem]) -> Table | None:
    """What a judge says; None where there was none."""
    sides = {
        "candidate": Counter(row.judged for row in rows),
        "baseline's second answer": Counter(row.judged_itself for row in rows),
    }
    if not any(said.total() - said[None] for said in sides.values()):
        return None
    return Table(
        "A judge's verdicts, beside the baseline's first answer",
        (Column("answer", numeric=False), *(Column(title) for title in (*_VERDICTS.values(), "net loss"))),
        tuple((name, *(f"{said[one]:,}" for one in _VERDICTS), _net(said)) for name, said in sides.items()),
    )


_VERDICTS = {
    JudgeVerdict.LOSS: "worse",
    JudgeVerdict.WIN: "better",
    JudgeVerdict.TIE: "as good",
    JudgeVerdict.INCONSISTENT: "by position",
    JudgeVerdict.MISSING: "missing",
}


def _net(said: Counter[JudgeVerdict | None]) -> str:
    n = said.total() - said[None] - said[JudgeVerdict.MISSING]
    return show.points((said[JudgeVerdict.LOSS] - said[JudgeVerdict.WIN]) / n) if n else show.NOT_APPLICABLE


def _lines(rows: tuple[ShadowItem, ...]) -> Iterable[str]:
    missing = sum(map(lacks_similarity, rows))
    if missing:
        yield f"The similarity of answers to {missing:,} of {len(rows):,} prompts is missing; here they differ."
    ratio = length_ratio(rows)
    if ratio is not None:
        outside = "" if LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1] else "; outside 0.9 to 1.1 that is another behaviour"
        yield f"The candidate's answers are {ratio:.2f} times as long as the baseline's{outside}."
    lost, won, n = baseline_self_verdicts(rows)
    if n:
        yield f"Of the baseline's own two answers the judge prefers one {lost + won:,} times in {n:,}: its noise."
