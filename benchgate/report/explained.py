"""One check's arithmetic for a reader: every step with the numbers put in, from the data to the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from benchgate.errors import UsageError
from benchgate.escape import terminal_line
from benchgate.model.verdict import CheckResult, Verdict
from benchgate.report import show
from benchgate.report.untrusted import one_line

_LONGEST = 20_000  # of a list of numbers: who adds them up wants all of them


def find_check(verdict: Verdict, name: str) -> CheckResult:
    """The check with this id. Raises UsageError with the nearest ids for a name that is none."""
    checks = {check.id: check for check in verdict.checks}
    if name in checks:
        return checks[name]
    near = get_close_matches(name, checks, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(checks) or 'none'}"
    raise UsageError(f"this verdict has no check {name!r}; {hint}")


def render_explanation(verdict: Verdict, check: CheckResult) -> str:
    """The verdict in a line, then the check's steps, numbered, each as `what = formula = value`."""
    lines = [
        f"{show.MARKS[verdict.outcome]} {verdict.outcome}: {one_line(verdict.reason, 1000)}",
        "",
        f"{check.id}: {check.title}{'' if check.required else ' (advisory)'}",
        f"  by {check.method}",
        *_steps(check),
        "",
        f"{show.MARKS[check.outcome]} {check.shown}: {one_line(check.reason, 1000)}",
        *([f"what to do: {one_line(check.advice, 1000)}"] if check.advice else []),
    ]
    return "".join(f"{terminal_line(line).rstrip()}\n" for line in lines)


def with_steps(document: dict[str, object], check: CheckResult) -> dict[str, object]:
    """The verdict document with this check's `steps` in it, each a `what`, a `formula` and a `value`."""
    steps = [{"what": step.what, "formula": step.formula, "value": step.value} for step in check.steps]
    checks = document["checks"]
    assert isinstance(checks, list), "a verdict document lists its checks"
    told = [{**one, "steps": steps} if one["id"] == check.id else one for one in checks]
    return {**document, "checks": told}


def _steps(check: CheckResult) -> Iterator[str]:
    width = len(str(len(check.steps)))
    for number, step in enumerate(check.steps, start=1):
        formula = f" = {one_line(step.formula, _LONGEST)}" if step.formula else ""
        yield f"  {number:>{width}}. {one_line(step.what)}{formula} = {one_line(step.value, _LONGEST)}"
