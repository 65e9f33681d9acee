"""Several candidates of one suite: a run, a verdict and a report each, a summary, and the worst exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.conclude import finish, say_or_tell
from benchgate.cli.options import Format
from benchgate.cli.outputs import NOTHING, Outputs
from benchgate.cli.saying import log, say, say_json_text
from benchgate.cli.statements import NOWHERE, StatementPlace
from benchgate.errors import ExitCode, PublishError

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision

_WORST_FIRST = (ExitCode.PUBLISH_FAILED, ExitCode.BLOCK, ExitCode.INVALID, ExitCode.INCONCLUSIVE, ExitCode.OK)


@dataclass(frozen=True, slots=True)
class Concluded:
    """What became of one candidate."""

    candidate: str
    decision: Decision
    report: Path | None
    statement: Path | None
    code: ExitCode


def conclude_each(
    candidates: Sequence[str],
    measure: Callable[[str], Decision],
    output: Format,
    *,
    strict: bool,
    report: Path | None,
    publish: bool,
    statement: StatementPlace = NOWHERE,
    outputs: Outputs = NOTHING,
) -> ExitCode:
    """Measure and conclude one candidate after the other; the code of all of them together.

    JSON is one array with the documents of all candidates, whose `exit_code` is each candidate's own. It is printed
    whatever ends the command, with those that were judged by then. A CI system hears of an error while a candidate is
    measured: what was said of the one before is not to stand where this one comes to no verdict.
    """
    done: list[Concluded] = []
    documents: list[str] = []
    show = documents.append if output is Format.JSON else None
    outputs.clear()
    statement.clear(report)
    for name in candidates:
        outputs.of(name).clear()
        statement.of(name).clear(None if report is None else named(report, name))
    try:
        for name in candidates:
            if publish:
                _withdraw()
            decision = measure(name)
            place = None if report is None else named(report, name)
            stated = statement.of(name)
            code = finish(
                decision,
                output,
                strict=strict,
                report=place,
                publish=publish,
                show=show,
                statement=stated,
                outputs=outputs.of(name),
            )
            done.append(Concluded(name, decision, place, stated.path(place, decision.evidence.run.id), code))
    finally:
        array = f"[{','.join(text.rstrip() for text in documents)}]\n"
        lost = say_or_tell(array, [one.decision for one in done], say_json_text, publish=publish) if documents else []
        for fault in lost:
            log(f"benchgate: the verdicts stand, but {fault}")
    if lost:
        return ExitCode.PUBLISH_FAILED
    if output is not Format.JSON:
        say(_summary(done, output))
    code = worst(one.code for one in done)
    return _published(done, code) if publish else code


def named(path: Path, candidate: str) -> Path:
    """`report.html` → `report-q8_0.html`: one for each candidate."""
    return path.with_name(f"{path.stem}-{candidate}{path.suffix}")


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The code that says most against a promotion: what could not be kept first, then by verdict."""
    return min(codes, key=_WORST_FIRST.index)


def _withdraw() -> None:
    from benchgate.integrations import github_outputs

    github_outputs.withdraw_outputs(os.environ)


def _published(done: Sequence[Concluded], code: ExitCode) -> ExitCode:
    """Tell the CI system once more, last and thereby for good, of the candidate that decides."""
    from benchgate.integrations import github_outputs

    decides = max((one for one in done if one.code is code), key=lambda one: one.decision.verdict.outcome.severity)
    try:
        github_outputs.publish_outputs(
            os.environ,
            verdict=decides.decision.verdict,
            run_id=decides.decision.evidence.run.id,
            exit_code=code,
            report_path=decides.report,
            statement_path=decides.statement,
        )
    except PublishError as error:
        log(f"benchgate: the verdicts stand, but {error}")
        return ExitCode.PUBLISH_FAILED
    return code


def _summary(done: Sequence[Concluded], output: Format) -> str:
    width = max(len(one.candidate) for one in done)
    rows = [f"{one.candidate:{width}} {_told(one)}".rstrip() for one in done]
    if output is Format.MARKDOWN:
        return "\n" + "\n".join(f"- {row}" for row in rows) + "\n"
    return "\n" + "\n".join(rows) + "\n"


def _told(one: Concluded) -> str:
    run = one.decision.evidence.run
    return f"{one.decision.verdict.outcome.value:12} exit {int(one.code):<3} run {run.id} {one.report or ''}"
