"""The section on shadow traffic: how often and in what answers differ, and how good they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from benchgate.gate.checks.shadow import LENGTH_BAND, baseline_self_verdicts, excess_of_rows, length_ratio
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import lacks_similarity, usable_rows
from benchgate.model.records import AnswerAgreement, AnswerFacts, JudgeVerdict, PairFacts, ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.report import display
from benchgate.report.section import Example, Examples, Fold, Lines, Section, SplitText, Style, notes, present
from benchgate.report.table import Table, number_columns, of_expected, text_columns

_MAX_SLICES = 12
_MIN_SLICE = 5  # prompts of a slice with a row of its own
_MAX_EXAMPLES = 10
_MAX_CHARACTERS = 600
_BEFORE = 200  # characters shown before the first difference
_WORST_COLUMNS = (
    *text_columns("prompt", "slice", "in common"),
    *number_columns("first differs at word", "characters, baseline", "characters, candidate"),
    *text_columns("judge"),
)
_VERDICTS = {
    JudgeVerdict.LOSS: "worse",
    JudgeVerdict.WIN: "better",
    JudgeVerdict.TIE: "as good",
    JudgeVerdict.INCONSISTENT: "by position",
    JudgeVerdict.MISSING: "missing",
}


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """The shadow comparison over the prompts that the baseline answered as often as it was asked.

    Prompts whose similarity is missing are left out, as checks leave them out.
    `candidate_ratio` is the mean over prompts of the share of the baseline's two answers that the candidate's differs
    from (0, ½ or 1; a candidate that failed differs from both); `self_ratio` is how often those two differ. Where some
    prompts were asked once, the former uses the first answer alone, and the latter the other prompts.
    """

    expected: int
    usable: int
    failed: int
    empty: int
    candidate_ratio: float | None
    self_ratio: float | None
    differing: tuple[ShadowItem, ...]

    @property
    def excess_ratio(self) -> float | None:
        """Disagreement that the baseline's own noise does not explain."""
        if self.candidate_ratio is None or self.self_ratio is None:
            return None
        return self.candidate_ratio - self.self_ratio


def shadow_section(evidence: Evidence, alpha: float) -> Section | None:
    """Return the section; None without a shadow comparison."""
    shadow = evidence.shadow
    if shadow is None:
        return None
    summary = summarise_shadow(shadow)
    rows: tuple[ShadowItem, ...] = ()
    with suppress(CannotJudge):
        rows = usable_rows(evidence)
    compared = tuple(row for row in rows if not lacks_similarity(row))
    table, lines = _disagreement(summary, compared, alpha), tuple(_lines(rows))
    faults = tuple(fault for fault in (shadow.fault, _unanswered(summary)) if fault)
    examples = examples_of(summary.differing)
    differing = len(summary.differing)
    counted = (
        f"On {differing} {'prompt' if differing == 1 else 'prompts'} the candidate differs while the baseline agrees "
        "with itself. A different answer is not necessarily worse."
    )
    parts = present(
        Lines(faults, Style.FAULTS),
        table,
        notes(*lines),
        _agreement(rows),
        _answers(shadow),
        _verdicts(rows),
        notes(counted),
        None if examples else worst_table(summary.differing),
        Fold(f"Examples ({len(examples)})", (Examples(examples),)) if examples else None,
    )
    return Section("shadow", "Shadow traffic", parts, summary=present(table, Lines((*faults, *lines))), rank=4)


def summarise_shadow(shadow: ShadowObservation) -> ShadowSummary:
    """Return the disagreement of the candidate, and of the baseline with itself."""
    answered = [item for item in shadow.items if item.primary is not None and (item.secondary is not None or item.once)]
    usable = [item for item in answered if not lacks_similarity(item)]
    sampled = any(item.once for item in usable)
    ours = [
        (i.differs_from_primary + (i.differs_from_primary if sampled else i.differs_from_secondary)) / 2 for i in usable
    ]
    itself = [float(i.differs_itself) for i in usable if not i.once]
    return ShadowSummary(
        expected=shadow.expected_n,
        usable=len(usable),
        failed=sum(item.error is not None and not _all_answered(item) for item in shadow.items),
        empty=sum(item.error is not None and _all_answered(item) for item in shadow.items),
        candidate_ratio=sum(ours) / len(ours) if ours else None,
        self_ratio=sum(itself) / len(itself) if itself else None,
        differing=tuple(
            item
            for item in usable
            if item.candidate is not None and item.differs_from_primary and (item.once or not item.differs_itself)
        ),
    )


def _all_answered(item: ShadowItem) -> bool:
    """Return True if every call got an answer, an empty one included."""
    facts = (item.primary_facts, item.candidate_facts, *(() if item.once else (item.secondary_facts,)))
    return all(one is not None for one in facts)


def _unanswered(summary: ShadowSummary) -> str:
    kinds = ((summary.failed, "had a call that failed"), (summary.empty, "had an empty answer"))
    return "; ".join(f"{count:,} prompt{'' if count == 1 else 's'} {what}" for count, what in kinds if count)


def _disagreement(summary: ShadowSummary, rows: tuple[ShadowItem, ...], alpha: float) -> Table:
    """Return the disagreement over the prompts compared, and over each slice of the traffic with enough of them."""
    titles = ("candidate differs from baseline", "baseline differs from itself", "excess", "interval")
    slices = _slices(rows)
    shares = display.percent(summary.candidate_ratio), display.percent(summary.self_ratio)
    excess = display.points(summary.excess_ratio)
    whole = _slice_cells(rows, alpha) if rows else (*shares, excess, display.NOT_APPLICABLE)
    first = ("all prompts", of_expected(summary.usable, summary.expected), *whole)
    return Table(
        "Disagreement of answers",
        (*text_columns("slice"), *number_columns("prompts", *titles)),
        (first, *((name, f"{len(part):,}", *_slice_cells(part, alpha)) for name, part in slices)),
        starts=frozenset({1}) if slices else frozenset(),
    )


def _slice_cells(rows: tuple[ShadowItem, ...], alpha: float) -> tuple[str, ...]:
    ours, own, excess = excess_of_rows(rows, alpha)
    if excess is None:
        return display.percent(ours), display.percent(own), display.NOT_APPLICABLE, display.NOT_APPLICABLE
    low, high = display.points(excess.limits.lower), display.points(excess.limits.upper)
    interval = f"{low.removesuffix(' points')} to {high}"
    return display.percent(ours), display.percent(own), display.points(excess.estimate), interval


def _slices(rows: tuple[ShadowItem, ...]) -> list[tuple[str, tuple[ShadowItem, ...]]]:
    """Return the largest slices by name; none where all prompts are of one."""
    counts = Counter(row.stratum for row in rows if row.stratum is not None)
    names = sorted(name for name, count in counts.most_common(_MAX_SLICES) if count >= _MIN_SLICE)
    if len(counts) < 2:
        return []
    return [(name, tuple(row for row in rows if row.stratum == name)) for name in names]


def _agreement(rows: Sequence[ShadowItem]) -> Table | None:
    """Compare every two answers; None where nothing was kept of them."""
    pairs: dict[str, Callable[[ShadowItem], PairFacts | None]] = {
        "candidate, baseline's first": lambda row: row.with_primary,
        "candidate, baseline's second": lambda row: row.with_secondary,
        "baseline's second, its first": lambda row: row.own,
    }
    found = {name: [pair for row in rows if (pair := of(row)) is not None] for name, of in pairs.items()}
    if not any(found.values()):
        return None
    columns = ("pairs", *(label.value for label in AnswerAgreement), "differs from word", "similarity")
    cells = tuple((name, *_common_cells(pairs_of)) for name, pairs_of in found.items())
    return Table(
        "Agreement of answers",
        (*text_columns("answers"), *number_columns(*columns)),
        cells,
    )


def _common_cells(pairs: Sequence[PairFacts]) -> tuple[str, ...]:
    labels = Counter(pair.label for pair in pairs)
    words = [pair.at_word + 1 for pair in pairs if pair.at_word is not None]
    similar = [pair.similarity for pair in pairs if pair.similarity is not None]
    return (
        f"{len(pairs):,}",
        *(f"{labels[label]:,}" for label in AnswerAgreement),
        display.count(round(median(words))) if words else display.NOT_APPLICABLE,
        f"{median(similar):.3f}" if similar else display.NOT_APPLICABLE,
    )


def _answers(shadow: ShadowObservation) -> Table | None:
    """Describe each side's answers; None where nothing was kept of them."""
    sides: dict[str, Callable[[ShadowItem], tuple[AnswerFacts | None, str | None, str | None]]] = {
        "baseline, first": lambda i: (i.primary_facts, i.primary, i.primary_finish),
        "baseline, second": lambda i: (i.secondary_facts, i.secondary, i.secondary_finish),
        "candidate": lambda i: (i.candidate_facts, i.candidate, i.candidate_finish),
    }
    if not any(of(item)[0] is not None for item in shadow.items for of in sides.values()):
        return None
    titles = ("answers", "empty", "token limit reached", "refusals", "characters", "tokens", "valid format")
    return Table(
        "Answers to shadow prompts",
        (*text_columns("side"), *number_columns(*titles)),
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
        display.count(round(median(one.characters for one in facts))) if facts else display.NOT_APPLICABLE,
        display.count(round(median(tokens))) if tokens else display.NOT_APPLICABLE,
        f"{sum(formed):,} of {len(formed):,}" if formed else display.NOT_APPLICABLE,
    )


def _verdicts(rows: Sequence[ShadowItem]) -> Table | None:
    """Count a judge's verdicts; None without a judge."""
    sides = {
        "candidate": Counter(row.judged for row in rows),
        "baseline's second answer": Counter(row.judged_itself for row in rows),
    }
    if not any(counts.total() - counts[None] for counts in sides.values()):
        return None
    rows_of_verdicts = []
    for name, counts in sides.items():
        n = counts.total() - counts[None] - counts[JudgeVerdict.MISSING]
        loss = counts[JudgeVerdict.LOSS] - counts[JudgeVerdict.WIN]
        net = display.points(loss / n) if n else display.NOT_APPLICABLE
        rows_of_verdicts.append((name, *(f"{counts[one]:,}" for one in _VERDICTS), net))
    return Table(
        "Judge's verdicts against the baseline's first answer",
        (*text_columns("answer"), *number_columns(*_VERDICTS.values(), "net loss")),
        tuple(rows_of_verdicts),
    )


def _lines(rows: tuple[ShadowItem, ...]) -> Iterator[str]:
    missing = sum(map(lacks_similarity, rows))
    if missing:
        yield f"{missing:,} of {len(rows):,} prompts left out: their similarity is missing."
    ratio = length_ratio(rows)
    if ratio is not None:
        outside = "" if LENGTH_BAND[0] <= ratio <= LENGTH_BAND[1] else ", outside 0.9 to 1.1: the behaviour changed"
        yield f"The candidate's answers are {ratio:.2f} times as long as the baseline's{outside}."
    lost, won, n = baseline_self_verdicts(rows)
    if n:
        yield f"Noise of the judge: it prefers one of the baseline's two answers {lost + won:,} times in {n:,}."


def examples_of(differing: Sequence[ShadowItem]) -> tuple[Example, ...]:
    """Return the worst disagreements whose texts were kept."""
    return tuple(one for item in _worst_first(differing) if (one := _example(item)) is not None)[:_MAX_EXAMPLES]


def worst_table(differing: Sequence[ShadowItem]) -> Table | None:
    """Return the worst disagreements without texts; None where nothing is known of them."""
    known = [item for item in _worst_first(differing) if item.with_primary is not None][:_MAX_EXAMPLES]
    if not known:
        return None
    return Table("Largest disagreements", _WORST_COLUMNS, tuple(_worst_cells(item) for item in known))


def _worst_first(differing: Sequence[ShadowItem]) -> list[ShadowItem]:
    """Order by the judge's losses, then by least in common, then by the earliest difference."""

    def rank(item: ShadowItem) -> tuple[bool, int, float, float, str]:
        agreement, similarity, at_word = 0, 0.0, 0.0
        if (pair := item.with_primary) is not None:
            agreement = -list(AnswerAgreement).index(pair.label)
            similarity = pair.similarity or 0.0
            at_word = float("inf") if pair.at_word is None else pair.at_word
        return item.judged is not JudgeVerdict.LOSS, agreement, similarity, at_word, item.prompt_id

    return sorted(differing, key=rank)


def _worst_cells(item: ShadowItem) -> tuple[str, ...]:
    pair, theirs, ours = item.with_primary, item.primary_facts, item.candidate_facts
    at_word = None if pair is None else pair.at_word
    return (
        item.prompt_id,
        item.stratum or display.NOT_APPLICABLE,
        display.NOT_APPLICABLE if pair is None else pair.label.value,
        display.NOT_APPLICABLE if at_word is None else display.count(at_word + 1),
        display.NOT_APPLICABLE if theirs is None else display.count(theirs.characters),
        display.NOT_APPLICABLE if ours is None else display.count(ours.characters),
        display.NOT_APPLICABLE if item.judged is None else item.judged.value,
    )


def _example(item: ShadowItem) -> Example | None:
    if item.prompt_text is None or item.primary_text is None or item.candidate_text is None:
        return None
    at = _first_difference(item.primary_text, item.candidate_text)
    pair = item.with_primary
    labels = [] if pair is None else [pair.label.value]
    labels += [] if item.judged is None else [f"judge: {item.judged.value}"]
    return Example(
        item.prompt_id,
        _cut(item.prompt_text),
        _split(item.primary_text, at),
        _split(item.candidate_text, at),
        ", ".join(labels),
    )


def _first_difference(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def _split(text: str, at: int) -> SplitText:
    skipped = max(0, at - _BEFORE)
    return SplitText(f"{'… ' if skipped else ''}{text[skipped:at]}", _cut(text[at:]))


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… ({len(text) - _MAX_CHARACTERS:,} more characters)"
