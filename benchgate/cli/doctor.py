"""`benchgate doctor`: checks of this machine and of a suite, and the speed of the load generator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import command_line
from benchgate.cli.options import ResultFormat, find_suite
from benchgate.cli.saying import say, say_escaped, say_json, stdout_screen
from benchgate.errors import BenchgateError, Command, ExitCode, UsageError
from benchgate.report.screen import Screen, Style, fitting_table
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.doctor.machine import Symptom
    from benchgate.model.client import ClientStep
    from benchgate.pipeline.suite_file import SuiteFile


def doctor(
    suite: Annotated[
        str | None, typer.Argument(metavar="SUITE", help="Suite whose deployments and plan to check too.")
    ] = None,
    client: Annotated[
        bool, typer.Option("--client", help="Measure the load generator here, and store the result.")
    ] = False,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Check this machine and a suite's servers

    Prints what could invalidate a run, each with a remedy. Exits with 2 for a failed check.

    Example: benchgate doctor suite.yaml
    """
    if client and suite is not None:
        raise UsageError("--client measures this machine alone; leave out the suite or --client")
    if client:
        _measure_client(store, output)
        return
    file = None
    if suite is not None:
        from benchgate.pipeline.suite_file import load_suite

        file = load_suite(find_suite(suite))
    from benchgate.doctor.machine import examine, examine_resources, examine_store_file
    from benchgate.store.database import Address

    folders = {"work folder": work_dir}
    with suppress(BenchgateError):  # `examine` reports a wrong address
        if (path := Address.parse(store).path) is not None:
            folders["store folder"] = path.parent
    symptoms = [*examine(store), *examine_store_file(store), *examine_resources(folders)]
    if file is not None:
        log = work_dir / "replicas.log" if allow_actions else None
        symptoms += _suite_symptoms(file, store, allow_code=allow_code, replica_log=log)
    if output is ResultFormat.JSON:
        say_json([asdict(symptom) for symptom in symptoms])
    else:
        say_escaped("".join(f"{line}\n" for line in _lines(symptoms, stdout_screen())))
    if any(symptom.state == "FAIL" for symptom in symptoms):
        raise typer.Exit(int(ExitCode.USAGE))
    if suite is not None and output is ResultFormat.TEXT:
        say(f"next: {command_line(Command.PLAN, suite, store)}\n")


def _lines(symptoms: Sequence[Symptom], screen: Screen) -> Iterator[str]:
    """Yield a summary, then a line for each symptom with its remedy below; failures and warnings have colours."""
    states = Counter(str(symptom.state) for symptom in symptoms)
    worst = next((state for state in _STATES if states[state]), "OK")
    counts = [f"{states[state]} {word}{'s' * (states[state] != 1)}" for state, (word, _) in _STATES.items()]
    yield screen.paint(f"{worst}: {len(symptoms)} checks, {', '.join(counts)}", Style.BOLD, _style(worst))
    width = max(len(symptom.name) for symptom in symptoms)
    for symptom in symptoms:
        first = f"{symptom.state:<4}  {symptom.name:<{width}}  "
        for at, line in enumerate(screen.wrapped(symptom.found, " " * len(first), first=first)):
            yield line if at else screen.paint(line[:4], _style(symptom.state)) + line[4:]
        if symptom.remedy is not None:
            yield from screen.wrapped(symptom.remedy, " " * (len(first) + 2), first=f"{'':{len(first)}}→ ")


_STATES = {"FAIL": ("failure", Style.RED), "WARN": ("warning", Style.YELLOW)}


def _style(state: str) -> Style:
    return _STATES[state][1] if state in _STATES else Style.GREEN


def _suite_symptoms(file: SuiteFile, store: str, *, allow_code: bool, replica_log: Path | None) -> list[Symptom]:
    from benchgate.doctor.machine import State, Symptom
    from benchgate.doctor.suite import examine_budget, examine_deployments, examine_plan, examine_scoring
    from benchgate.pipeline.forecast import preview_suite
    from benchgate.suite.rules.suite import each_candidate

    suite, folder = file.suite, file.folder
    budget = examine_budget(suite, folder, os.environ)
    deployments = list(examine_deployments(suite, folder, os.environ, replica_log=replica_log))
    planned: list[Symptom] = []
    for one in each_candidate(suite):
        try:
            with file.located_errors():
                preview = preview_suite(one, folder, store, allow_code=allow_code)
        except BenchgateError as error:
            planned.append(Symptom("plan", State.FAIL, str(error), "fix that; `benchgate plan` reports the same"))
        else:
            planned += examine_plan(one, preview)
    if all(symptom.state is not State.FAIL for symptom in deployments):
        for one in each_candidate(suite):
            planned += examine_scoring(one, folder, os.environ)
    return [budget, *deployments, *dict.fromkeys(planned)]


def _measure_client(store: str, output: ResultFormat) -> None:
    from benchgate.cli.progress import make_progress
    from benchgate.doctor.client import measure_client
    from benchgate.doctor.machine import connection_limits
    from benchgate.store.repository import Store

    limits = connection_limits()
    with Store.open(store) as opened:  # before the minute is spent
        with make_progress("load generator") as progress:
            profile = measure_client(progress)
        opened.save_client_profile(profile)
    if output is ResultFormat.JSON:
        say_json({**profile.to_json(), "connections": asdict(limits)}, sort_keys=True, allow_nan=False)
        return
    screen = stdout_screen()
    lines = []
    if profile.tokens_per_s is None or profile.requests_per_s is None:
        known = {True: profile.tokens_per_s, False: profile.requests_per_s}
        failed = [step for step in profile.steps if known[step.streams is not None] is None]
        is_client = any(step.at_limit for step in failed)
        why = "the load generator was the bottleneck" if is_client else "the practice server was late itself"
        lines.append(f"{why} at the smallest load: stop other work on this machine and repeat")
    else:
        tokens, requests = show_number(profile.tokens_per_s), show_number(profile.requests_per_s)
        at_least = ["" if limited else "at least " for limited in (profile.streams_limited, profile.requests_limited)]
        lines.append(
            f"one worker delivers {at_least[0]}{tokens} tokens/s in {profile.streams:,} streams, and"
            f" {at_least[1]}{requests} requests/s; kept in the store"
        )
    table = fitting_table(screen, _HEADINGS, [_row(step) for step in profile.steps])
    after = screen.folded([*lines, f"connections: {limits}"])
    say_escaped("".join(f"{line}\n" for line in (*table, "", *after)))


_HEADINGS = ("load", "tokens/s", "delivered", "CPU per token", "read delay p99", "TTFT p99 - truth", "")


def _row(step: ClientStep) -> tuple[str, ...]:
    conclusion = f"client-bound: {step.client_bound[0]}" if step.client_bound else "sound"
    return (
        f"{show_number(step.offered_rps)} requests/s" if step.streams is None else f"{step.streams:,} streams",
        show_number(step.offered_tokens_per_s),
        "—" if step.delivered_ratio is None else f"{step.delivered_ratio:.1%}",
        "—" if step.cpu_us_per_token is None else f"{show_number(step.cpu_us_per_token)} µs",
        "—" if step.read_delay_p99_s is None else show_duration(step.read_delay_p99_s),
        "—" if step.ttft_error_p99_s is None else show_duration(step.ttft_error_p99_s),
        conclusion if step.server_late is None else f"unknown: {step.server_late}",
    )
