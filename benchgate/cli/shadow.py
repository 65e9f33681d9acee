"""`benchgate shadow`: samples of recorded prompts, and drift between a sample and current traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchgate.cli import options
from benchgate.cli.options import ResultFormat, refuse_unwritable
from benchgate.cli.saying import inform, say, say_json
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line
from benchgate.units import parse_percent_ratio, show_percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchgate.shadow.sampling import Drift

shadow_app = typer.Typer(help="Sample recorded prompts and detect drift", no_args_is_help=True)


LogsArgument = Annotated[
    list[Path], typer.Argument(metavar="LOG", help="Request logs: JSON Lines or vLLM's own, also as .gz.")
]
RulesOption = Annotated[
    str | None,
    typer.Option("--rules", help="Redaction rules: key, email, iban, card, phone, ip, or none [default: all but ip]."),
]
RedactOption = Annotated[
    list[str] | None, typer.Option("--redact", help="Own redaction rule, NAME=REGEX; may be repeated.")
]


def sample(
    logs: LogsArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="New file for the sample.")],
    size: Annotated[int, typer.Option(min=1, max=100000, help="Number of prompts.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Same logs, same seed: same sample.")] = 0,
    near: Annotated[
        str | None, typer.Option(help="Leave out prompts this similar to a drawn one, like 80%. Not for `drift`.")
    ] = None,
    rules: RulesOption = None,
    redact: RedactOption = None,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Sample prompts from request logs

    The sample is stratified, deduplicated and redacted.

    Example: benchgate shadow sample requests.jsonl -o prompts.jsonl
    """
    from benchgate.shadow.redaction import redactor_of
    from benchgate.shadow.sampling import describe, draw_sample, refuse_existing, write_sample

    refuse_existing(out)
    refuse_unwritable(out)
    redactor = redactor_of(rules, redact or ())
    similarity = None
    if near is not None:
        try:
            similarity = parse_percent_ratio(near)
        except ValueError as error:
            raise UsageError(f"--near: {error}") from error
        if not 0 < similarity <= 1:
            raise UsageError(f"--near: {near} is no similarity; write one above 0% and up to 100%, like 80%")
    drawn = draw_sample(logs, redactor, size=size, seed=seed, near=similarity, on_file=_log_progress)
    write_sample(out, drawn.rows)
    report = describe(drawn) | {"out": str(out)}
    _print(report, output, _sample_lines(report))


def drift(
    sample: Annotated[Path, typer.Argument(metavar="SAMPLE", help="Sample of `shadow sample`.")],
    logs: LogsArgument,
    rules: RulesOption = None,
    redact: RedactOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat WARN like BLOCK (exit 10).")] = False,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Compare a sample with current traffic

    Exits with 10 if they differ, with 11 for too few prompts.

    Example: benchgate shadow drift prompts.jsonl today.jsonl
    """
    from dataclasses import asdict

    from benchgate.model.verdict import Outcome
    from benchgate.shadow.prompts import load_prompts
    from benchgate.shadow.redaction import redactor_of
    from benchgate.shadow.request_log import LogSummary
    from benchgate.shadow.sampling import drift as compared
    from benchgate.shadow.sampling import traits_of_logs, traits_of_sample

    was = traits_of_sample(load_prompts(sample))
    found = compared(was, traits_of_logs(logs, redactor_of(rules, redact or ()), LogSummary(), _log_progress))
    code = found.outcome.exit_code()
    if strict and found.outcome is Outcome.WARN:
        code = ExitCode.BLOCK
    _print(asdict(found) | {"exit_code": int(code)}, output, _drift_lines(found))
    raise typer.Exit(int(code))


shadow_app.command()(sample)
shadow_app.command()(drift)


def _log_progress(line: str) -> None:
    inform(f"benchgate: {line}")


def _print(report: Mapping[str, Any], output: ResultFormat, lines: Iterator[str]) -> None:
    if output is ResultFormat.JSON:
        say_json(report, sort_keys=True, allow_nan=False)
    else:
        say("".join(f"{terminal_line(line)}\n" for line in lines))


def _sample_lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"{report['out']}: {report['rows']:,} prompts of {report['distinct']:,} distinct ones; readable only by you"
    yield f"read      {report['lines']:,} lines: {report['requests']:,} requests, {report['duplicates']:,} duplicates"
    if report["other_lines"]:
        yield f"          {report['other_lines']:,} other lines of a server's log"
    if report["cut_at"] is not None:
        cut = f"several prompts of a server's log have exactly {report['cut_at']:,} characters, and none has more"
        yield f"          {cut}: was it written with --max-log-len? Then they are truncated"
    if report["near"] is not None:
        similar = show_percent(report["near"])
        yield f"          {report['near_duplicates']:,} left out, {similar} or more similar to a drawn one"
    for kind in ("bad_lines", "left_out"):
        for each in report[kind]:
            label = "bad" if kind == "bad_lines" else "left out"
            places = ", ".join(each["first"]) + (", …" if each["lines"] > len(each["first"]) else "")
            yield f"{label:9} {each['lines']:,} lines: {each['reason']} ({places})"
    for each in report["strata"]:
        yield f"drawn     {each['drawn']:6,} of {each['distinct']:,}  {each['stratum']} characters"
    for each in report["redacted"]:
        yield f"redacted  {each['replacements']:6,} in {each['prompts']:,} prompts  {each['rule']}"
    if not report["redacted"]:
        yield "redacted  nothing: no rule was given"


_SENTENCES = {
    "PASS": "the sample matches current traffic",
    "WARN": "current traffic begins to differ from the sample; see what changed, and sample again soon",
    "BLOCK": "the sample no longer matches current traffic; sample again",
    "INCONCLUSIVE": "too few prompts to compare the sample with current traffic; give more logs",
}


def _drift_lines(found: Drift) -> Iterator[str]:
    yield f"{found.outcome.value}: {_SENTENCES[found.outcome.value]}"
    yield f"{found.sample_n:,} prompts of the sample, {found.now_n:,} distinct ones in the logs"
    for each in found.changes:
        index = f"index {each.index:.3f} (0.25 is drift; up to {each.chance:.3f} by chance)"
        shares = f"{show_percent(each.share_sample)} of the sample, {show_percent(each.share_now)} now"
        yield f"{each.outcome.value:12} {each.of:9} {index}; {each.most}: {shares}"
