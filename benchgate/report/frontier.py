"""Several candidates' quality against their cost: as plain lines, as JSON, and as rows for other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.escape import terminal_line
from benchgate.model.deployment import Arm
from benchgate.report.price_words import price_and_use_told, saving_told
from benchgate.report.tables import Column, Table
from benchgate.report.untrusted import one_line
from benchgate.sizing.candidates import CandidateRow, CandidateTable
from benchgate.sizing.frontier import FrontierPosition, FrontierStatus
from benchgate.sizing.operating_point import GOOD
from benchgate.stats.meta import EstimateWithLimits
from benchgate.units import show_percent, show_usd

SCHEMA = "benchgate.frontier/1"
COLUMNS = (
    *("suite", "name", "role", "run", "label", "started_at", "verdict", "fault", "on_frontier", "others"),
    *("quality", "quality_lower", "quality_upper", "cost_metric", "stage", "usd", "usd_lower", "usd_upper"),
    *("share_of_baseline", "share_of_baseline_lower", "share_of_baseline_upper"),
    *("usd_per_correct", "usd_per_correct_lower", "usd_per_correct_upper", "price_usd_per_hour", "accelerators"),
    *("passes", "set_apart", "held_back", "waived", "newer_run", "policy_sha256", "cheapest_that_passes", "why_none"),
    "figures_from",
)
_LONGEST = 200
_NOTHING = "-"


def frontier_document(found: CandidateTable) -> dict[str, object]:
    """All of it: shares, dollars; of a number that is not known its reason."""
    best, saved = found.cheapest, found.saving
    return {
        "schema": SCHEMA,
        "suite": found.suite,
        "cost_metric": found.cost,
        "tasks": list(found.tasks),
        "rows": [_row_document(row) for row in found.rows],
        "cheapest_that_passes": None
        if best is None
        else {"name": best.name, "not_shown_dearer": list(best.unsure), "saving_ratio": _number(saved)},
        "why_none": found.why_none,
        "notes": list(found.notes),
    }


def _row_document(row: CandidateRow) -> dict[str, object]:
    deployment, stand = row.run.arms.get(row.arm), _stand(row)
    return {
        "name": row.name,
        "role": row.arm.value,
        "run": row.run.id,
        "label": row.run.label,
        "started_at": row.run.started_at,
        "verdict": None if row.outcome is None else row.outcome.value,
        "fault": row.fault,
        "passes": row.passes,
        "set_apart": row.apart,
        "held_back": row.held_back,
        "figures_from": _source(row),
        "waived": [
            {"check": one.check, "outcome": one.outcome, "expires": one.expires.isoformat()} for one in row.waived
        ],
        "newer_run": None if row.newer is None else row.newer.told,
        "policy_sha256": row.judged_by,
        "on_frontier": stand.standing.value,
        "others": list(stand.others),
        "stage": row.stage,
        "quality_ratio": _number(row.quality),
        "usd_per_million": _number(row.usd),
        "share_of_baseline": _number(row.share),
        "usd_per_correct": _number(row.usd_per_correct),
        "price_usd_per_hour": None if deployment is None else deployment.price_usd_per_hour,
        "accelerators": None if deployment is None else deployment.accelerators,
        "price_terms": {} if deployment is None else deployment.price_terms,
        "token_prices": {} if deployment is None else deployment.token_prices,
    }


def _number(figure: EstimateWithLimits | str | None) -> dict[str, object]:
    if not isinstance(figure, EstimateWithLimits):
        return {"value": None, "lower": None, "upper": None, "why": figure}
    limits = figure.limits
    ends = (None, None) if limits is None else (limits.lower, limits.upper)
    return {"value": figure.value, "lower": ends[0], "upper": ends[1], "why": None}


def frontier_rows(found: CandidateTable) -> Iterator[tuple[object, ...]]:
    """A row of COLUMNS for each deployment; what is not known is None."""
    for row in found.rows:
        deployment, stand = row.run.arms.get(row.arm), _stand(row)
        said = (found.suite, row.name, row.arm.value, row.run.id, row.run.label, row.run.started_at)
        became = (None if row.outcome is None else row.outcome.value, row.fault, stand.standing.value)
        price = (None, None) if deployment is None else (deployment.price_usd_per_hour, deployment.accelerators)
        best = found.cheapest is not None and found.cheapest.name == row.name and row.arm is Arm.CANDIDATE
        waived = " ".join(one.check for one in row.waived) or None
        since = (row.apart, row.held_back, waived, None if row.newer is None else row.newer.told, row.judged_by)
        yield (
            *(*said, *became, " ".join(stand.others), *_ends(row.quality), found.cost, row.stage, *_ends(row.usd)),
            *(*_ends(row.share), *_ends(row.usd_per_correct), *price, "yes" if row.passes else "no", *since),
            *("yes" if best else "no", found.why_none, _source(row)),
        )


def _source(row: CandidateRow) -> str | None:
    """What its figures are; None where nothing of it counts."""
    if row.fault is not None:
        return None
    return "records" if row.unchecked is None else "stored figures"


def _ends(figure: EstimateWithLimits | str) -> tuple[object, ...]:
    known = _number(figure)
    return known["value"], known["lower"], known["upper"]


def frontier_text(found: CandidateTable) -> str:
    """The table, what stands against its numbers, and last the cheapest that passes."""
    of = ", ".join(found.tasks) or "no task"
    lines = [
        f"Suite {one_line(found.suite)}: quality is accuracy over {one_line(of)}; dollars are per 1M {what_of(found)}.",
        "",
        *_aligned([_TITLES, *(_cells(row) for row in found.rows)]),
        "",
        *reasons(found.rows),
        *(f"Note: {note}." for note in found.notes),
        "In brackets are 95 % intervals, of each number by itself; where two overlap, nothing is shown.",
        "One is cheaper than another where its dollars show it, and its share of what the baseline beside it costs.",
        "A right answer is paid by the output tokens that the evals generated, by the server's own count.",
        "",
        last_line(found),
    ]
    return "".join(f"{terminal_line(line).rstrip()}\n" for line in lines)


def frontier_table(found: CandidateTable) -> Table:
    """The same for a page, without what right answers cost."""
    texts = {"deployment", "verdict", "price", "level", "frontier"}
    kept = [at for at, title in enumerate(_TITLES) if title != _PER_ANSWER]
    columns = tuple(Column(_TITLES[at], numeric=_TITLES[at] not in texts) for at in kept)
    rows = tuple(tuple(_unbroken(cells[at]) for at in kept) for cells in map(_cells, found.rows))
    return Table("Quality against cost, with 95 % intervals", columns, rows)


def _unbroken(cell: str) -> str:
    """A page may put an interval on a line of its own, but not break it."""
    return cell.replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}")


_PER_ANSWER = "$/1M right answers"
_OF_BASELINE = "of baseline's"
_TITLES = ("deployment", "verdict", "quality", "$/1M tokens", _OF_BASELINE, _PER_ANSWER, "price", "level", "frontier")


def what_of(found: CandidateTable) -> str:
    """What the dollars are per million of."""
    tokens = "good tokens (SLO met)" if found.cost.startswith(GOOD) else "output tokens (the suite has no SLO)"
    return f"{tokens}, as used" if found.cost.endswith("_in_use") else tokens


def _cells(row: CandidateRow) -> tuple[str, ...]:
    paid = row.run.arms.get(row.arm)
    price = "no price" if paid is None or not paid.has_price else price_and_use_told(paid)
    share = _NOTHING if row.arm is Arm.BASELINE else shown(row.share, percent=True)
    numbers = (shown(row.quality, percent=True), shown(row.usd), share)
    where = _NOTHING if row.stage is None else row.stage
    cells = (
        row.name,
        ", ".join((judged(row), *marks(row))),
        *numbers,
        shown(_million(row.usd_per_correct)),
        price,
        where,
        standing_told(_stand(row)) if row.apart is None else "not comparable",
    )
    return tuple(one_line(cell, _LONGEST) for cell in cells)


def judged(row: CandidateRow) -> str:
    """What became of its run; a dash of the baseline."""
    if row.arm is Arm.BASELINE:
        return _NOTHING
    return "no verdict" if row.outcome is None else row.outcome.value


def marks(row: CandidateRow) -> tuple[str, ...]:
    """In a word each, what its verdict and its numbers do not say by themselves."""
    said = {
        "not comparable": row.apart is not None,
        "waived": bool(row.waived) and row.passes,
        "held back": row.held_back is not None,
        "older": row.newer is not None,
        "unchecked": row.unchecked is not None and row.fault is None,
    }
    return tuple(word for word, so in said.items() if so)


def shown(figure: EstimateWithLimits | str, *, percent: bool = False) -> str:
    """A share or dollars with its interval; a dash where it is not known."""
    if isinstance(figure, str):
        return _NOTHING
    of = show_percent if percent else show_usd
    if figure.limits is None:
        return f"{of(figure.value)} (no interval)"
    return f"{of(figure.value)} ({of(figure.limits.lower)} to {of(figure.limits.upper)})"


def _million(figure: EstimateWithLimits | str) -> EstimateWithLimits | str:
    """One right answer can cost a few millionths of a dollar."""
    return figure if isinstance(figure, str) else figure.times(1e6)


def standing_told(stand: FrontierPosition) -> str:
    """`no: f8 is as good and cheaper`."""
    others = ", ".join(stand.others)
    if stand.standing is FrontierStatus.OFF:
        return f"no: {others} {'is' if len(stand.others) == 1 else 'are'} as good and cheaper"
    return f"not shown against {others}" if stand.standing is FrontierStatus.NOT_SHOWN else stand.standing.value


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def reasons(rows: Sequence[CandidateRow], *, per_answer: bool = True) -> Iterator[str]:
    """Why a dash or a mark stands in the table, in sentences; `per_answer`: those of what right answers cost, too."""
    for row in rows:
        name = one_line(row.name)
        yield from (f"{name} {one_line(mark)}." for mark in _marked(row))
        if row.fault is not None:
            yield f"{name} is not counted: {one_line(row.fault)}."
            continue
        said: dict[str, str] = {}
        figures = {"quality": row.quality, "cost": row.usd, "share of what its baseline costs": row.share}
        for what, figure in (figures | ({"cost of a right answer": row.usd_per_correct} if per_answer else {})).items():
            if isinstance(figure, str):
                said.setdefault(figure, what)
        for why, what in said.items():
            yield f"{name} has no {what}: {one_line(why)}."


def _marked(row: CandidateRow) -> Iterator[str]:
    """What the marks stand for, as what follows a name."""
    if row.apart is not None:
        yield f"cannot be compared with the others: {row.apart}"
    if row.held_back is not None:
        yield f"does not pass: {row.held_back}"
    elif row.waived and row.passes:
        told = ", ".join(f"{one.check} ({one.outcome}) until {one.expires}" for one in row.waived)
        yield f"passes by a waiver alone: of {told}"
    if row.newer is not None:
        yield f"stands here by an older run; its newest is {row.newer.told}"
    if row.unchecked is not None and row.fault is None:
        yield f"has stored figures, nothing here can check them: {row.unchecked}"


def last_line(found: CandidateTable) -> str:
    """The cheapest that passes by its own verdict, and what it saves; or why there is none."""
    best = found.cheapest
    if best is None:
        return f"Nothing is the cheapest that passes: {one_line(found.why_none or '')}."
    row = next(row for row in found.rows if row.name == best.name)
    became = ", ".join((judged(row), *marks(row)))
    among = ", of those that can be compared," if found.some_apart else ""
    cost = f"{shown(row.usd)}, {_saved(found.saving)}"
    told = f"The cheapest that passes{among} is {one_line(best.name)} ({became}): {cost}."
    if not best.unsure:
        return told
    passes = "passes too and is" if len(best.unsure) == 1 else "pass too and are"
    return f"{told} {one_line(', '.join(best.unsure))} {passes} not shown to be dearer."


def _saved(saving: EstimateWithLimits | str | None) -> str:
    if not isinstance(saving, EstimateWithLimits):
        return one_line(f"against the baseline nothing is known: {saving}")
    return saving_told(saving)


def _stand(row: CandidateRow) -> FrontierPosition:
    return row.stand or FrontierPosition(FrontierStatus.NOT_COUNTED)
