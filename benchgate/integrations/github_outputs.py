"""Job summary and step outputs of GitHub Actions.

Outputs have only enumerated words, numbers, hashes and names in a narrow alphabet, so that no text of a model or a
server can become a command, a second output or a shell word.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from benchgate.errors import ExitCode, PublishError
from benchgate.model.verdict import Verdict, checks_by_result

SUMMARY_LIMIT_BYTES = 1024 * 1024
"""GitHub drops a step's whole summary above this, and leaves the step green."""

_CUT_NOTICE = "\n\n_The summary was cut here: a job summary holds 1 MiB._\n"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._@:/%+-]")
_LONGEST_NAME = 128
_MOST_NAMES = 100
_NAMES = (
    "exit-code",
    "run-id",
    "report-path",
    "report-sha256",
    "statement-path",
    "summary-json",
    "checks-failed",
)


def publish(
    environment: Mapping[str, str],
    *,
    verdict: Verdict,
    run_id: str,
    exit_code: ExitCode,
    report_path: Path | None,
    render_summary: Callable[[], str],
    statement_path: Path | None = None,
) -> None:
    """Append the summary to GITHUB_STEP_SUMMARY and the outputs to GITHUB_OUTPUT, if they are set.

    `render_summary` makes the summary in Markdown, and is called only if it is needed. Outputs: `verdict` in lower
    case, `exit-code`, `run-id`, `checks-failed` (names, separated by commas), `summary-json` (all of these in one line
    of JSON, with numbers of checks), with a report `report-path` and `report-sha256`, and with a statement
    `statement-path`. Raises PublishError when a file cannot be read or written, or a value cannot be an output.
    """
    publish_outputs(
        environment,
        verdict=verdict,
        run_id=run_id,
        exit_code=exit_code,
        report_path=report_path,
        statement_path=statement_path,
    )
    publish_summary(environment, render_summary)


def publish_summary(environment: Mapping[str, str], render_summary: Callable[[], str]) -> None:
    """Write the job summary, if there is one. Raises PublishError when it cannot be written."""
    try:
        if path := environment.get("GITHUB_STEP_SUMMARY"):
            _append(Path(path), _fitting(Path(path), render_summary()))
    except OSError as exc:
        raise PublishError(f"GitHub's job files: {exc}; the verdict itself stands") from exc


def publish_outputs(
    environment: Mapping[str, str],
    *,
    verdict: Verdict,
    run_id: str,
    exit_code: ExitCode,
    report_path: Path | None,
    statement_path: Path | None = None,
) -> None:
    """Write the outputs. Later ones win, so the decisive one of several verdicts comes last."""
    if not _RUN_ID.fullmatch(run_id):
        raise PublishError(f"run id {run_id!r} is not fit for an output; expected letters, digits, '.', '_' and '-'")
    outputs = {"verdict": verdict.outcome.value.lower(), "exit-code": str(int(exit_code)), "run-id": run_id}
    outputs |= _summary(verdict, run_id, exit_code)
    try:
        if report_path is not None:
            outputs["report-path"] = str(report_path)
            outputs["report-sha256"] = hashlib.sha256(report_path.read_bytes()).hexdigest()
        if statement_path is not None:
            outputs["statement-path"] = str(statement_path)
        if path := environment.get("GITHUB_OUTPUT"):
            _append(Path(path), "".join(_output(name, value) for name, value in outputs.items()).encode())
    except OSError as exc:
        raise PublishError(f"GitHub's job files: {exc}; the verdict itself stands") from exc


def withdraw_outputs(environment: Mapping[str, str]) -> None:
    """Write `error` and empty outputs, so that those of an earlier verdict do not apply to what follows.

    Raises PublishError when the file cannot be written.
    """
    outputs = {"verdict": "error", **dict.fromkeys(_NAMES, "")}
    try:
        if path := environment.get("GITHUB_OUTPUT"):
            _append(Path(path), "".join(_output(name, value) for name, value in outputs.items()).encode())
    except OSError as exc:
        raise PublishError(
            f"GitHub's job files: {exc}; nothing is measured, because its outputs could not be written"
        ) from exc


def _summary(verdict: Verdict, run_id: str, exit_code: ExitCode) -> dict[str, str]:
    """Return the failed checks by name, and a summary as one line of JSON."""
    found = checks_by_result(verdict, exit_code)
    failed = [_NOT_OF_A_NAME.sub("_", name)[:_LONGEST_NAME] for name in found.failed[:_MOST_NAMES]]
    summary = {
        "verdict": verdict.outcome.value.lower(),
        "exit_code": int(exit_code),
        "promotes": exit_code is ExitCode.OK,
        "run_id": run_id,
        "passed": len(found.passed),
        "warned": len(found.warned),
        "failed": len(found.failed),
        "checks_failed": failed,
    }
    return {"checks-failed": ",".join(failed), "summary-json": json.dumps(summary, sort_keys=True)}


def _output(name: str, value: str) -> str:
    """Format `name=value`, or a block between random delimiters for several lines."""
    if not re.search(r"[\r\n]", value):
        return f"{name}={value}\n"
    delimiter = f"benchgate-{secrets.token_hex(16)}"
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def _fitting(path: Path, summary: str) -> bytes:
    """Return the summary, cut at the end of a line if the file would pass the limit."""
    text = f"{summary.rstrip()}\n".encode(errors="replace")
    held = path.stat().st_size if path.exists() else 0
    room = SUMMARY_LIMIT_BYTES - held
    if len(text) <= room:
        return text
    notice = _CUT_NOTICE.encode()
    end = text.rfind(b"\n", 0, max(0, room - len(notice)))
    if end <= 0:
        raise PublishError(f"the job summary already holds {held:,} bytes, so the verdict does not fit into it")
    return text[:end] + notice


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
