"""Commands that judge stored runs: `benchgate gate`, `compare`, `report` and `waive`. They send no requests."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.completion import complete_checks, complete_runs
from benchgate.cli.options import (
    Format,
    find_suite,
    read_waivers,
    refuse_unwritable,
    require_waivers,
    today,
    waivers_for_stored,
)
from benchgate.cli.output import OutputOptions, ReportUrlOption, finish, require_link, verdict_context, with_output
from benchgate.cli.saying import log, say, say_escaped, say_json_text, say_markdown, stdout_screen
from benchgate.errors import ExitCode, PublishError, UsageError, suggestion
from benchgate.model.deployment import Arm
from benchgate.model.verdict import RELEASE_CHARACTERS, Waiver, Waivers, WaiverUse, policy_sha256
from benchgate.report.formats import Output, rendered
from benchgate.system import write_atomic

if TYPE_CHECKING:
    from benchgate.model.run import Evidence
    from benchgate.store.repository import Store

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="SUITE", help="Judge by this suite's gate, SLOs and error budget."),
]
_WAIVERS_HEAD = "# What is tolerated, up to which ceiling and until which day; changes to this file are reviewed.\n"


@with_output
def gate(
    output: OutputOptions,
    run: options.RunArgument = "@latest",
    policy: PolicyOption = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    explain: options.ExplainOption = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Judge a stored run again

    Same store and same gate give the same verdict, byte for byte.

    Example: benchgate gate @latest --explain ttft-p95@c4
    """
    _judge(run, None, policy, waivers, as_of, store, replace(output, explain=explain))


@with_output
def compare(
    baseline: Annotated[
        str,
        typer.Argument(
            metavar="BASELINE", help="Stored run whose candidate is the reference.", autocompletion=complete_runs
        ),
    ],
    candidate: Annotated[
        str,
        typer.Argument(metavar="CANDIDATE", help="Stored run whose candidate is judged.", autocompletion=complete_runs),
    ],
    output: OutputOptions,
    policy: PolicyOption = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    explain: options.ExplainOption = None,
    store: options.StoreOption = options.STORE,
) -> None:
    """Judge a stored run against another

    To measure two deployments now, use `benchgate run SUITE --baseline NAME --candidate NAME`.

    Example: benchgate compare @promoted @latest --report report.html
    """
    _judge(candidate, baseline, policy, waivers, as_of, store, replace(output, explain=explain))


def report(
    run: options.RunArgument = "@latest",
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="Stored run to compare with.", autocompletion=complete_runs)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write.", show_default="report.html and the like"),
    ] = None,
    form: Annotated[Output, typer.Option("--format", help="Format of the file.")] = Output.HTML,
    report_url: ReportUrlOption = None,
    suite: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Suite's file, for formats that point at its lines.")
    ] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
) -> None:
    """Write the report of a stored run

    HTML, or another format of its verdict.

    Example: benchgate report @latest -o report.html
    """
    require_link([form], report_url, None)
    path = out or Path(form.file_name)
    refuse_unwritable(path, store=store, suite=suite, waivers=waivers)
    require_waivers(waivers)
    with options.open_store(store, run, against) as opened:
        run_id = options.find_run(opened, run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        from benchgate.pipeline.judge import decide_stored, write_report, write_whole  # slow to import

        decision = decide_stored(opened, run_id, reference, waivers=tolerated, keep=False)
    decision = decision.with_strict(strict=strict)
    if suite is not None:
        from benchgate.pipeline.suite_file import read_suite

        gate = read_suite(suite).suite.to_stored()["gate"]
        if policy_sha256(gate) != decision.verdict.policy_sha256:
            raise UsageError(f"--suite {suite}: this verdict was reached by another gate; leave --suite out")
    try:
        if form is Output.HTML:
            write_report(decision, path)
        else:
            context = verdict_context(decision, decision.exit_code, report_url=report_url, report=None, suite=suite)
            write_whole(path, rendered(form, context, decision.report).encode(), f"the verdict as {form}")
    except PublishError as error:
        log(f"benchgate: {error}")
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED)) from error
    say(f"{path}\n")


def waive(
    check: Annotated[
        str, typer.Argument(help="Id of a check of the run, like ttft-p95@c4.", autocompletion=complete_checks)
    ],
    run: Annotated[
        str,
        typer.Option(help="Stored run: id, unique prefix, label, @latest or @previous.", autocompletion=complete_runs),
    ],
    ceiling: Annotated[str, typer.Option(help="Largest tolerated regression: 8%, 3 points or 600ms.")],
    expires: Annotated[str, typer.Option(metavar="DAY", help="Last day of the waiver (UTC).")],
    owner: Annotated[str, typer.Option(help="Who is responsible for it.")],
    issue: Annotated[str, typer.Option(help="Issue that tracks it.")],
    reason: Annotated[str, typer.Option(help="Why it is tolerated.")],
    approved_by: Annotated[str, typer.Option(help="Who approved it; not the owner.")],
    file: Annotated[Path, typer.Option(help="File of waivers to add it to.")] = Path("waivers.yaml"),
    store: options.StoreOption = options.STORE,
) -> None:
    """Tolerate a failed check until a day

    Adds an entry to a file of waivers, which is then reviewed and committed.

    Example: benchgate waive ttft-p95@c4 --run @latest --ceiling 8% --expires 2027-01-31 --owner serving
    --issue SRV-412 --reason "cold cache" --approved-by release
    """
    refuse_unwritable(file)
    last_day = _last_day(expires)
    with options.open_store(store, run) as opened:
        evidence = opened.evidence(options.find_run(opened, run))
    candidate = evidence.run.arms[Arm.CANDIDATE]
    waiver = Waiver(
        check=check,
        suite=evidence.run.suite_name,
        deployment=candidate.name,
        release=candidate.fingerprint[:RELEASE_CHARACTERS],
        ceiling=ceiling.strip(),
        expires=last_day,
        owner=owner.strip(),
        issue=issue.strip(),
        reason=reason.strip(),
        approved_by=approved_by.strip(),
    )
    text = _with_entry(file, waiver)
    _require_effect(evidence, waiver)
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    of = f"{waiver.check} of {waiver.suite} on {waiver.deployment}"
    say(f"{file}: {of} is waived up to {waiver.ceiling} until {waiver.expires}; have it reviewed and commit it\n")


def _judge(
    run: str,
    against: str | None,
    policy: str | None,
    waivers: Path | None,
    as_of: str | None,
    store: str,
    output: OutputOptions,
) -> None:
    policy_file, suite = None if policy is None else find_suite(policy), None
    output = output.of_policy(policy_file, store=store, waivers=waivers)
    if policy_file is not None:
        from benchgate.pipeline.suite_file import read_suite

        suite = read_suite(policy_file).suite
    require_waivers(waivers)
    with output.cleared_on_failure(), options.open_store(store, run, against) as opened:
        run_id = options.find_run(opened, run)
        reference = opened.resolve_beside(against, run_id) if against is not None else None
        if reference is not None:
            given = {
                "--report": output.report,
                "--write": output.files or output.statement,
                "--policy": policy,
                "--explain": output.explain,
                "--waivers": waivers,
                "--as-of": as_of,
            }
            _end_with_numbers(opened, run_id, reference, output.format, given)
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        from benchgate.pipeline.judge import decide_stored  # slow to import, and not needed to refuse an argument

        decision = decide_stored(opened, run_id, reference, policy=suite, waivers=tolerated)
    raise typer.Exit(int(finish(decision, output)))


def _end_with_numbers(
    store: Store, run_id: str, against: str, output: Format, decision_options: Mapping[str, object]
) -> None:
    """Print the stored numbers of both runs and exit as INCONCLUSIVE, if raw records were removed.

    Raises UsageError for any of `decision_options`, by their names, that was given.
    """
    from benchgate.pipeline.judge import stored_numbers
    from benchgate.report.document import document_json
    from benchgate.report.stored_numbers import OUTCOME, numbers_document, numbers_markdown, numbers_text

    numbers = stored_numbers(store, run_id, against)
    if numbers is None:
        return
    for option, value in decision_options.items():
        if value:
            raise UsageError(f"{option} is of a decision, and there is none: {numbers.reason}; leave it out")
    if output in (Format.JUNIT, Format.GITHUB, Format.GITLAB):
        raise UsageError(f"--format {output} is of a decision, and there is none: {numbers.reason}; leave it out")
    if output is Format.JSON:
        say_json_text(document_json(numbers_document(numbers)))
    elif output is Format.MARKDOWN:
        say_markdown(numbers_markdown(numbers))
    else:
        say_escaped(numbers_text(numbers, stdout_screen()))
    raise typer.Exit(int(OUTCOME.exit_code()))


def _last_day(text: str) -> date:
    from benchgate.suite.types import parse_day
    from benchgate.suite.waivers import check_expiry

    try:
        day = parse_day(text)
        check_expiry(day, today())
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from error
    if day < today():
        raise UsageError(f"--expires {day} is past; write a day from {today()} on")
    return day


def _require_effect(evidence: Evidence, waiver: Waiver) -> None:
    """Raise UsageError, with the nearest id of a check, for a waiver that does not change the run's verdict."""
    from benchgate.gate.judge import judge
    from benchgate.suite.schema import Suite

    verdict = judge(Suite.from_stored(evidence.run.suite), evidence, waivers=Waivers((waiver,), today()))
    ids = [check.id for check in verdict.checks]
    if waiver.check not in ids:
        raise UsageError(f"run {evidence.run.id} has no check {waiver.check!r}; {suggestion(waiver.check, ids)}")
    (state,) = verdict.waivers
    if state.use is not WaiverUse.USED:
        raise UsageError(f"{waiver.check} cannot be waived like this: {state.why}")


def _with_entry(path: Path, waiver: Waiver) -> str:
    """Return the file's text with one more waiver; comments and order stay. Raises SuiteError for a mistake."""
    from ruamel.yaml import YAML

    from benchgate.suite.waivers import KEYS, parse_waivers

    text, places = "", tuple[tuple[int, int], ...]()
    if path.exists():
        places = read_waivers(path, today()).places
        text = path.read_text(encoding="utf-8")
    # The new entry is indented like the first one.
    keys_at, dash_at = 5, 2
    if places:
        line, keys_at = places[0]
        dash_at = text.splitlines()[line - 1].find("-")
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=keys_at - 1, offset=dash_at)
    data, entry = yaml.load(text or f"{_WAIVERS_HEAD}waivers:\n"), asdict(waiver)
    if not data["waivers"]:
        data["waivers"] = []
    data["waivers"].append({key: entry[key] for key in KEYS if entry[key] is not None})
    out = io.StringIO()
    yaml.dump(data, out)
    if parse_waivers(out.getvalue(), str(path), today()).waivers.entries[-1] != waiver:
        raise UsageError(f"{path} could not be added to without changing what it says; add the entry by hand")
    return out.getvalue()
