"""The report as Markdown for comments and job summaries: the verdict always, all else while the budget lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchgate.escape import markdown_code, markdown_prose, quoted
from benchgate.model.verdict import GuardResult
from benchgate.report.checks import CheckRow
from benchgate.report.section import Lines, Part, Style
from benchgate.report.table import Column, Table
from benchgate.report.view import Banner, ReportView

COMMENT_BYTES = 60_000
"""The size limit of a comment on a change (GitHub refuses more than 65,536 characters)."""

SUMMARY_BYTES = 256 * 1024
"""The size limit of a job summary: a quarter of GitHub's limit for a step, which may give several verdicts."""

_REASON_CHARACTERS = 1000
_FEW = 10  # checks that are still shown where all of them are too many


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the summary. Over the budget, parts with the highest `rank` go first or get `shorter`."""

    title: str
    text: str
    rank: int
    shorter: str = ""


def markdown_of(view: ReportView, budget_bytes: int = COMMENT_BYTES) -> str:
    """Render the summary of a report in at most `budget_bytes` of UTF-8; it names what had to be left out.

    The verdict with its reason is never dropped, even where it alone is over the budget.
    """
    head = _head(view)
    kept = [part for part in _parts(view) if part.text]
    dropped: list[str] = []
    while kept and _size(_join(head, kept, dropped)) > budget_bytes:
        at = max(range(len(kept)), key=lambda i: kept[i].rank)
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


def _join(head: str, kept: Sequence[_Part], dropped: Sequence[str]) -> str:
    parts = [head, *(f"### {part.title}\n\n{part.text}" for part in kept)]
    if dropped:
        parts.append(f"_Omitted for length: {', '.join(dropped)}. The HTML report has everything._\n")
    return "\n".join(parts)


def _head(view: ReportView) -> str:
    banner = view.banner
    of_run = f" of run {markdown_code(banner.baseline_run)}" if banner.baseline_run else ""
    objecting = f" {markdown_prose(banner.objecting)}." if banner.objecting else ""
    notice = f"{markdown_prose(quoted(banner.notice))}\n\n" if banner.notice else ""
    todo = f"**What to do:** {_sentence(banner.todo)}.\n\n" if banner.todo else ""
    versus = "alone" if banner.alone else f"against {markdown_code(banner.baseline)}{of_run}"
    return (
        f"## {banner.mark} {banner.title}: {markdown_code(banner.candidate)} {versus}\n\n"
        f"**{markdown_prose(quoted(banner.reason), _REASON_CHARACTERS)}**\n\n"
        f"{notice}{markdown_prose(banner.meaning)}{objecting} {markdown_prose(view.limits_sentence)}.\n\n{todo}"
        f"Suite {markdown_code(banner.suite)}, run {markdown_code(banner.run)}, "
        f"measured {markdown_prose(banner.when)}, exit code {banner.exit_code}.\n"
    )


def _parts(view: ReportView) -> Iterator[_Part]:
    """Yield the parts in reading order."""
    checks, alone = view.checks, view.banner.alone
    failing, few = checks.failing, checks.failing[:_FEW]
    every = _checks(failing, alone=alone) + _reasons(failing, view.banner) + _ids(failing)
    yield _Part("Failing checks", every, 0, shorter=_checks(few, alone=alone))
    yield _Part("Validity" if alone else "Comparability", _objections(view), 1)
    yield _Part("Differences between the deployments", "" if alone else _differing(view), 2)
    yield _Part("Waivers", _list(view.waivers).lstrip("\n"), 1)
    yield _Part("Notes", _list(view.notes).lstrip("\n"), 3)
    yield _Part("Passed checks", _checks(checks.passing, alone=alone) + _ids(checks.passing), 5)
    for section in view.sections:
        if section.summary:
            invalid = f"**Do not use these numbers:** {markdown_prose(section.invalidated_by)} failed.\n\n"
            text = "".join(_laid_out(part) for part in section.summary)
            yield _Part(
                markdown_prose(section.title),
                (invalid if section.invalidated_by else "") + text.lstrip("\n"),
                section.rank,
            )
    again = f"{markdown_code(view.provenance.command)}, with the `--store` that the run is in\n"
    yield _Part("Repeat the verdict", again, 2)


def _laid_out(part: Part) -> str:
    if isinstance(part, Table):
        return "\n" + _table(part)
    assert isinstance(part, Lines), "a summary has tables and sentences"
    if part.style is Style.LIST:
        return _list(part.lines)
    return "\n" + "".join(f"{markdown_prose(quoted(line), _REASON_CHARACTERS)}\n" for line in part.lines)


def _checks(rows: Sequence[CheckRow], *, alone: bool) -> str:
    """Return a row for each check; one deployment alone has a value and no difference."""
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
    """List the checks' ids in the order of the table, for `--explain` and `waive`."""
    return (
        f"\nIn order, for `--explain` and `waive`: {', '.join(markdown_code(row.id) for row in rows)}\n" if rows else ""
    )


def _reasons(rows: Sequence[CheckRow], banner: Banner) -> str:
    """List the reasons and advice of checks unless the head has them; equal ones once."""
    titles: dict[tuple[str, str], list[str]] = {}
    given = {banner.todo}
    for row in rows:
        todo = row.advice_beside(banner.reason, banner.todo)
        if not todo and row.is_reason_in(banner.reason):
            continue
        advice = f" What to do: {'as above' if todo in given else _sentence(todo)}" if todo else ""
        given.add(row.advice)
        titles.setdefault((row.mark, f"{_sentence(row.reason)}.{advice}"), []).append(markdown_prose(row.title))
    lines = [f"- {mark} {'; '.join(names)}: {text}\n" for (mark, text), names in titles.items()]
    return "\n" + "".join(lines) if lines else ""


def _sentence(text: str) -> str:
    """Return a sentence without its full stop."""
    return markdown_prose(quoted(text), _REASON_CHARACTERS).removesuffix(".")


def _objections(view: ReportView) -> str:
    """List what speaks against the comparison; empty for a fair one."""
    fair = view.fairness
    guards = [_objection(guard, view.banner) for guard in (*fair.tripped, *fair.warned)]
    lines = _list([*fair.faults, *guards, *fair.cautions])
    answer = f"**{markdown_prose(fair.unsound)}.**" if fair.tripped or fair.faults else "**Cautions:**"
    return f"{answer}\n{lines}" if lines else ""


def _objection(guard: GuardResult, banner: Banner) -> str:
    reason = "see above" if guard.reason.rstrip(".") in banner.reason else guard.reason
    remedy = "" if guard.remedy is None or guard.remedy in banner.todo else f". What to do: {guard.remedy}"
    return f"{guard.id}: {reason}{remedy}"


def _differing(view: ReportView) -> str:
    """Return the differences that the gate looked at, each with its part in the change."""
    fair = view.fairness
    columns = tuple(Column(title, numeric=False) for title in ("setting", "baseline", "candidate", "status"))
    rows = tuple((row.name, row.baseline, row.candidate, row.status) for row in fair.differences if row.status)
    change = f"Change: {markdown_prose(fair.change)}.\n\n" if fair.change else ""
    return change + (_table(Table("", columns, rows)) if rows else "")


def _list(lines: Sequence[str]) -> str:
    return "\n" + "".join(f"- {markdown_prose(quoted(line), _REASON_CHARACTERS)}\n" for line in lines) if lines else ""


def _table(table: Table) -> str:
    head = "| " + " | ".join(markdown_prose(column.title) for column in table.columns) + " |\n"
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|\n"
    rows = ("| " + " | ".join(markdown_prose(cell) for cell in row) + " |\n" for row in table.rows)
    return head + rule + "".join(rows)
