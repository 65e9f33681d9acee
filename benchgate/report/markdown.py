"""The report as Markdown for comments and job summaries: the verdict always, all else while the budget lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Verdict
from benchgate.report.check_rows import CheckRow
from benchgate.report.load_section import TWO_NUMBERS
from benchgate.report.tables import Column, Table
from benchgate.report.terms import OWN, Terms
from benchgate.report.untrusted import markdown_code, markdown_prose, quoted
from benchgate.report.view import Banner, ReportView, report_view

COMMENT_BYTES = 60_000
"""What a comment on a change may hold (GitHub refuses more than 65,536 characters)."""

SUMMARY_BYTES = 256 * 1024
"""What a job summary may hold: a quarter of what GitHub keeps of a step, for a step may give several verdicts."""

_POOLED = f"Quantiles are over the requests of all blocks. {TWO_NUMBERS}"
_REASON_CHARACTERS = 1000
_FEW = 10  # checks that are still shown where all of them are too many


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the summary. Where the budget ends, parts with the highest `expendable` go first or get `shorter`."""

    title: str
    text: str
    expendable: int
    shorter: str = ""


def render_markdown(
    evidence: Evidence,
    verdict: Verdict,
    *,
    against: Evidence | None = None,
    terms: Terms = OWN,
    budget_bytes: int = COMMENT_BYTES,
) -> str:
    """The summary in at most `budget_bytes` of UTF-8, whatever was measured; names what had to be left out.

    The verdict with its reason is never dropped, even where it alone is over the budget.
    """
    return markdown_of(report_view(evidence, verdict, against=against, terms=terms), budget_bytes)


def markdown_of(view: ReportView, budget_bytes: int = COMMENT_BYTES) -> str:
    """The summary of a finished report, as `render_markdown` gives it."""
    head = _head(view)
    kept = [section for section in _sections(view) if section.text]
    dropped: list[str] = []
    while kept and _size(_join(head, kept, dropped)) > budget_bytes:
        at = max(range(len(kept)), key=lambda i: kept[i].expendable)
        worst = kept[at]
        if worst.shorter:
            kept[at] = replace(worst, text=worst.shorter, shorter="")
        else:
            del kept[at]
        dropped = [title for title in dropped if not title.endswith(f" of {worst.title}")]
        dropped.append(f"the rest of {worst.title}" if worst.shorter else worst.title)
    text = _join(head, kept, dropped)
    return text if _size(text) <= budget_bytes else head


def _size(text: str) -> int:
    return len(text.encode())


def _join(head: str, kept: Sequence[_Section], dropped: Sequence[str]) -> str:
    parts = [head, *(f"### {section.title}\n\n{section.text}" for section in kept)]
    if dropped:
        parts.append(f"_Left out for length: {', '.join(dropped)}. The HTML report has everything._\n")
    return "\n".join(parts)


def _head(view: ReportView) -> str:
    banner = view.banner
    of_run = f" of run {markdown_code(banner.baseline_run)}" if banner.baseline_run else ""
    objecting = f" {markdown_prose(banner.objecting)}." if banner.objecting else ""
    todo = f"**What to do:** {_sentence(banner.todo)}.\n\n" if banner.todo else ""
    beside = "alone" if banner.alone else f"against {markdown_code(banner.baseline)}{of_run}"
    return (
        f"## {banner.mark} {banner.outcome}: {markdown_code(banner.candidate)} {beside}\n\n"
        f"**{markdown_prose(quoted(banner.reason), _REASON_CHARACTERS)}**\n\n"
        f"{markdown_prose(banner.meaning)}{objecting} {markdown_prose(view.limits_told)}.\n\n{todo}"
        f"Suite {markdown_code(banner.suite)}, run {markdown_code(banner.run)}, "
        f"measured {markdown_prose(banner.when)}, exit code {banner.exit_code}.\n"
    )


def _sections(view: ReportView) -> Iterator[_Section]:
    """In reading order."""
    checks, alone = view.checks, view.banner.alone
    failing, few = checks.failing, checks.failing[:_FEW]
    every = _checks(failing, alone=alone) + _reasons(failing, view.banner) + _ids(failing)
    spoilt = view.unusable
    yield _Section("Checks that need attention", every, 0, shorter=_checks(few, alone=alone))
    yield _Section("Is this measurement sound?" if alone else "Is this comparison fair?", _unfair(view), 1)
    yield _Section("What differs", "" if alone else _differing(view), 2)
    yield _Section("Waivers", _list(view.waivers).lstrip("\n"), 1)
    yield _Section("Beyond this comparison", _list(view.notes), 3)
    yield _Section("Passed checks", _checks(checks.passing, alone=alone) + _ids(checks.passing), 5)
    if view.history is not None:
        then = f"\n{_table(view.history.table)}" if view.history.table is not None else ""
        yield _Section("Since last time", f"{markdown_prose(view.history.line)}.\n{then}", 3)
    if view.quality is not None:
        lines = [*view.quality.headline, *view.quality.faults]
        yield _Section("Quality", _unusable(spoilt.quality) + _table(view.quality.scores) + _list(lines), 3)
    if view.divergence is not None:
        lines = [*([view.divergence.fault] if view.divergence.fault else []), *view.divergence.lines]
        text = _unusable(spoilt.divergence) + _table(view.divergence.table) + _list(lines)
        yield _Section("Fixed texts", text, 3)
    if view.shadow is not None:
        faults = [line for line in (view.shadow.fault, view.shadow.failed) if line]
        text = _unusable(spoilt.shadow) + _table(view.shadow.table) + _list([*faults, *view.shadow.lines])
        yield _Section("Shadow", text, 4)
    if view.load is not None:
        lines = [*([_POOLED] if view.paired is not None else []), *view.load.knees]
        yield _Section("Load", _unusable(spoilt.load) + _table(view.load.speed) + _list(lines), 6)
        if view.telemetry is not None and view.telemetry.table is not None:
            told = _table(view.telemetry.table) + _list(view.telemetry.bottlenecks)
            yield _Section("What the servers said of themselves", told, 8)
    if view.noise is not None:
        table = _table(view.noise.table) if view.noise.table is not None else ""
        yield _Section("Noise", table + _list(view.noise.lines), 8)
    if view.capacity is not None:
        text = _unusable(spoilt.load) + _list(view.capacity.lines) + "\n" + _table(view.capacity.table)
        yield _Section("Capacity", text, 6)
    if view.load is not None and view.load.cost is not None:
        text = _unusable(spoilt.load) + _table(view.load.cost) + _list(view.load.cost_lines)
        yield _Section("Cost", text, 7)
    again = f"{markdown_code(view.provenance.command)}, with the `--store` that the run is in\n"
    yield _Section("The same verdict again", again, 2)


def _checks(rows: Sequence[CheckRow], *, alone: bool) -> str:
    """A row each; of one deployment alone its value, and nothing that it would differ from."""
    if not rows:
        return ""
    compared = ("baseline", "candidate", "difference", "interval", "allowed", "measured on")
    titles = ("value", "interval", "allowed", "measured on") if alone else compared
    columns = (Column("", numeric=False), Column("check", numeric=False), *(Column(title) for title in titles))
    cells = tuple(
        (
            f"{row.mark} {row.outcome}",
            row.title if row.required else f"{row.title} (advisory)",
            *((row.candidate,) if alone else (row.baseline, row.candidate, f"{row.change} {row.direction}".strip())),
            f"{row.interval} (at {row.level})" if row.level else row.interval,
            row.allowed,
            row.n,
        )
        for row in rows
    )
    return _table(Table("", columns, cells))


def _ids(rows: Sequence[CheckRow]) -> str:
    """What `--explain` and `waive` call each, in the order of the table."""
    return (
        f"\nIn order, for `--explain` and `waive`: {', '.join(markdown_code(row.id) for row in rows)}\n" if rows else ""
    )


def _reasons(rows: Sequence[CheckRow], banner: Banner) -> str:
    """Why each came out as it did and what to do about it, as far as the head has not said so; no advice twice."""
    lines = []
    told = {banner.todo}
    for row in rows:
        todo = row.advice_beside(banner.reason, banner.todo)
        if not todo and row.told_in(banner.reason):
            continue
        advice = f" What to do: {'as above' if todo in told else _sentence(todo)}" if todo else ""
        told.add(row.advice)
        lines.append(f"- {row.mark} {markdown_prose(row.title)}: {_sentence(row.reason)}.{advice}\n")
    return "\n" + "".join(lines) if lines else ""


def _sentence(text: str) -> str:
    """A sentence of the gate's without its full stop."""
    return markdown_prose(quoted(text), _REASON_CHARACTERS).removesuffix(".")


def _unfair(view: ReportView) -> str:
    """Yes is not told: then there is nothing to list."""
    fair = view.fairness
    objections = [_objection(guard, view.banner) for guard in (*fair.tripped, *fair.warned)]
    lines = _list([*fair.faults, *objections, *fair.cautions])
    answer = f"**No.** {markdown_prose(fair.unsound)}." if fair.tripped or fair.faults else "**With care.**"
    return f"{answer}\n{lines}" if lines else ""


def _objection(guard: GuardResult, banner: Banner) -> str:
    reason = "as said above" if guard.reason.rstrip(".") in banner.reason else guard.reason
    remedy = "" if guard.remedy is None or guard.remedy in banner.todo else f". What to do: {guard.remedy}"
    return f"{guard.id}: {reason}{remedy}"


def _unusable(guards: str) -> str:
    return f"**Not to be used:** {markdown_prose(guards)} speaks against these numbers.\n\n" if guards else ""


def _differing(view: ReportView) -> str:
    """Only what the gate looked at: each with whether it is part of the change."""
    fair = view.fairness
    columns = tuple(Column(title, numeric=False) for title in ("what", "baseline", "candidate", "is"))
    rows = tuple((row.name, row.baseline, row.candidate, row.status) for row in fair.differences if row.status)
    change = f"The suite says: {markdown_prose(fair.change)}.\n\n" if fair.change else ""
    return change + (_table(Table("", columns, rows)) if rows else "")


def _list(lines: Sequence[str]) -> str:
    return "\n" + "".join(f"- {markdown_prose(quoted(line), _REASON_CHARACTERS)}\n" for line in lines) if lines else ""


def _table(table: Table) -> str:
    head = "| " + " | ".join(markdown_prose(column.title) for column in table.columns) + " |\n"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|\n"
    rows = ("| " + " | ".join(markdown_prose(cell) for cell in row) + " |\n" for row in table.rows)
    return head + rule + "".join(rows)
