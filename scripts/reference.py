"""Write the generated parts of the documentation: .venv/bin/python -m scripts.reference

A generated part stands between the lines `<!-- name -->` and `<!-- end of name -->`. tests/core/test_reference_pages.py
fails when a part is not current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchgate.errors import ExitCode
from benchgate.gate.guards import COMPARISON_GUARDS, EVAL_GUARDS, RUN_GUARDS
from benchgate.gate.guards.base import EVERYTHING, Guard
from benchgate.gate.guards.run import no_calibration
from benchgate.model.metric import METRICS, Metric
from benchgate.model.verdict import Outcome
from scripts.pictures import PICTURES
from scripts.worked_example import BASELINE_MS, EXAMPLES, MARGIN, WORKED, check_of, paired_t, percent, verdict_of

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_section(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the marks of `name`. Raises ValueError if the marks are missing."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no lines {begin} and {end}")
    return f"{head}{begin}\n\n{text}\n\n{end}{tail}"


def current_pages() -> dict[Path, str]:
    """Return every generated file as it must be: pages with their sections, and pictures."""
    files: dict[Path, str] = {DOCS / "images" / name: draw() for name, draw in PICTURES.items()}
    for (page, name), write in SECTIONS.items():
        path = DOCS / page
        files[path] = with_section(files.get(path) or path.read_text(encoding="utf-8"), name, write())
    return files


def main() -> None:
    """Write every generated part."""
    for path, text in current_pages().items():
        path.write_text(text, encoding="utf-8", newline="\n")


# --- concepts, verdict and metrics ---


def worked_blocks() -> str:
    """Return the blocks of the worked example: both medians and the log ratio."""
    ratios = paired_t(WORKED).log_ratios
    rows = [
        [str(number), f"{baseline} ms", f"{candidate} ms", f"{ratio:.5f}"]
        for number, (baseline, candidate, ratio) in enumerate(
            zip(BASELINE_MS, WORKED.candidate_ms, ratios, strict=True), 1
        )
    ]
    return table(("block", "baseline", "candidate", "ln(candidate / baseline)"), rows)


def worked_interval() -> str:
    """Return the arithmetic of the worked example, and the sentence that benchgate writes."""
    found, check = paired_t(WORKED), check_of(WORKED)
    blocks = len(BASELINE_MS)
    assert check.p_value is not None
    spread = f"{found.quantile:.3f} * {found.error:.5f}"
    lines = [
        f"mean            {found.mean:.5f} = {percent(found.mean)}",
        f"standard error  {found.deviation:.5f} / sqrt({blocks}) = {found.error:.5f}",
        f"t quantile      {found.quantile:.3f} (95%, {blocks - 1} degrees of freedom)",
        f"lower bound     {found.mean:.5f} - {spread} = {found.lower:.5f} = {percent(found.lower)}",
        f"upper bound     {found.mean:.5f} + {spread} = {found.upper:.5f} = {percent(found.upper)}",
        f"margin          ln(1 + {MARGIN:.0%}) = {check.margin:.5f}",
        f'p-value         {check.p_value:.4f} of "no regression"',
    ]
    return "\n".join(["```text", *lines, "```", "", f"> {verdict_of(WORKED).reason}"])


def five_outcomes() -> str:
    """Return the verdicts of the worked example's candidates."""
    rows = []
    for example in EXAMPLES:
        check, verdict = check_of(example), verdict_of(example)
        interval = f"{percent(check.lower)} to {percent(check.upper)}"
        rows.append([example.name, percent(check.harm), interval, f"**{verdict.outcome}**", _promoted(verdict.outcome)])
    return table(("candidate", "estimate", "bounds", "outcome", "promoted"), rows)


def _promoted(outcome: Outcome) -> str:
    return "yes" if outcome.promotes else "no"


EXIT_CODES = {
    ExitCode.OK: "PASS or WARN; the command succeeded",
    ExitCode.CRASH: "A defect of benchgate. Never a verdict",
    ExitCode.USAGE: "The command line, the suite or one of its files is wrong",
    ExitCode.BLOCK: "BLOCK, or WARN with `--strict`",
    ExitCode.INCONCLUSIVE: "INCONCLUSIVE",
    ExitCode.INVALID: "INVALID, or a deployment, the load cluster or the error budget's source cannot be used",
    ExitCode.PUBLISH_FAILED: "The store, a report or a publisher failed. A verdict may have been printed",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C. What was measured is stored",
    ExitCode.TERMINATED: "Ended by SIGTERM. What was measured is stored",
}


def exit_codes() -> str:
    """Return the exit codes and their meaning."""
    rows = [[str(code.value), f"`{code.name}`", EXIT_CODES[code]] for code in ExitCode]
    return table(("code", "name", "meaning"), rows)


def guards_of(guards: Iterable[Guard[Any]]) -> str:
    """Return a table of guards, from their docstrings."""
    rows = []
    for one in guards:
        flagged = " ".join((one.check.__doc__ or "").split()).removeprefix("Flag ").replace("|", "\\|")
        needs = one.needs.name if one.needs is not None else ""
        rows.append([f"`{one.id}`", one.passes, flagged, _invalidates(one), needs])
    return table(("guard", "passes when", "flags", "invalidates", "needs"), rows)


def _invalidates(one: Guard[Any]) -> str:
    kinds = "everything" if one.invalidates == EVERYTHING else ", ".join(one.invalidates).replace("-", " ")
    return f"{kinds}; of the baseline alone compared {kinds}" if one.by_arm else kinds


def metrics_page() -> str:
    """Return the table of all metrics that a check can judge."""
    return table(
        ("metric", "meaning", "unit", "judged per", "needs", "margin", "bounds", "regression"),
        [
            [
                f"`{metric.name}`",
                metric.title,
                metric.unit.value,
                {"run": "run", "sweep": "sweep", "stage": "stage", "task": "eval task"}[metric.scope],
                f"`{metric.family}`" + (f", {metric.requires}" if metric.requires else ""),
                metric.margin or "",
                ", ".join(f"`{bound}`" for bound in metric.bounds),
                _regression(metric),
            ]
            for metric in METRICS.values()
        ],
    )


def _regression(metric: Metric) -> str:
    return "; ".join(text for text in (metric.worse, "advisory by default" if metric.advisory else "") if text)


SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("concepts.md", "blocks"): worked_blocks,
    ("concepts.md", "interval"): worked_interval,
    ("concepts.md", "outcomes"): five_outcomes,
    ("reference/verdict.md", "exit codes"): exit_codes,
    ("reference/verdict.md", "guards of two runs"): lambda: guards_of((no_calibration, *COMPARISON_GUARDS)),
    ("reference/verdict.md", "guards of a run"): lambda: guards_of(RUN_GUARDS),
    ("reference/verdict.md", "guards of evals"): lambda: guards_of(EVAL_GUARDS),
    ("reference/metrics.md", "metrics"): metrics_page,
}


if __name__ == "__main__":
    main()
