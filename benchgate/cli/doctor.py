"""`benchgate doctor`: checks of this machine and of a suite, and the speed of the load generator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.options import CareFormat, find_suite
from benchgate.cli.saying import say, say_json
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line
from benchgate.report.table import aligned
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.doctor.machine import Symptom
    from benchgate.model.client import ClientProfile, ClientStep
    from benchgate.pipeline.suite_file import SuiteFile
    from benchgate.suite.schema import Suite


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
    output: Annotated[CareFormat, typer.Option("--format", help="Output format.")] = CareFormat.TEXT,
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
    path = None if suite is None else find_suite(suite)
    symptoms = list(_machine_symptoms(store, work_dir))
    if path is not None:
        log = work_dir / "replicas.log" if allow_actions else None
        symptoms += _suite_symptoms(path, store, allow_code=allow_code, replica_log=log)
    if output is CareFormat.JSON:
        say_json([asdict(symptom) for symptom in symptoms])
    else:
        rows: list[tuple[str, str, str]] = []
        for symptom in symptoms:
            rows.append((symptom.state, symptom.name, symptom.found))
            if symptom.remedy is not None:
                rows.append(("", "", f"→ {symptom.remedy}"))
        say("".join(f"{terminal_line(row)}\n" for row in aligned(rows)))
    if any(symptom.state == "FAIL" for symptom in symptoms):
        raise typer.Exit(int(ExitCode.USAGE))


def _machine_symptoms(store: str, work_dir: Path) -> Iterator[Symptom]:
    from benchgate.doctor.machine import examine, examine_resources, examine_store_file
    from benchgate.errors import BenchgateError
    from benchgate.store.database import Address

    yield from examine(store)
    yield from examine_store_file(store)
    folders = {"work folder": work_dir}
    try:
        path = Address.parse(store).path
    except BenchgateError:
        path = None  # `examine` reports the address
    if path is not None:
        folders["store folder"] = path.parent
    yield from examine_resources(folders)


def _suite_symptoms(path: Path, store: str, *, allow_code: bool, replica_log: Path | None) -> Iterator[Symptom]:
    from benchgate.doctor.budget import examine_budget
    from benchgate.doctor.machine import State
    from benchgate.doctor.suite import examine_deployments, examine_scoring
    from benchgate.pipeline.suite_file import load_suite
    from benchgate.suite.rules.suite import each_candidate

    file = load_suite(path)
    suite = file.suite
    yield examine_budget(suite, path.parent, os.environ)
    found = list(examine_deployments(suite, path.parent, os.environ, replica_log=replica_log))
    yield from found
    planned = [list(_plan_symptoms(file, one, store, allow_code=allow_code)) for one in each_candidate(suite)]
    if all(symptom.state is not State.FAIL for symptom in found):
        planned += [list(examine_scoring(one, path.parent, os.environ)) for one in each_candidate(suite)]
    yield from dict.fromkeys(symptom for symptoms in planned for symptom in symptoms)


def _plan_symptoms(file: SuiteFile, suite: Suite, store: str, *, allow_code: bool) -> Iterator[Symptom]:
    from benchgate.doctor.machine import State, Symptom
    from benchgate.doctor.suite import examine_plan
    from benchgate.errors import BenchgateError
    from benchgate.pipeline.preflight import preview_suite

    try:
        with file.located_errors():
            found = preview_suite(suite, file.folder, store, allow_code=allow_code)
    except BenchgateError as error:
        yield Symptom("plan", State.FAIL, str(error), "fix that; `benchgate plan` reports the same")
        return
    yield from examine_plan(suite, found)


def _measure_client(store: str, output: CareFormat) -> None:
    from benchgate.cli.progress import make_progress
    from benchgate.doctor.client import measure_client
    from benchgate.store.repository import Store

    with Store.open(store) as opened:  # before the minute is spent
        with make_progress("load generator") as progress:
            profile = measure_client(progress)
        opened.save_client_profile(profile)
    if output is CareFormat.JSON:
        say_json(profile.to_json(), sort_keys=True, allow_nan=False)
    else:
        say("".join(f"{line}\n" for line in _client_lines(profile)))


def _client_lines(profile: ClientProfile) -> Iterator[str]:
    yield from aligned([_HEADINGS, *map(_row, profile.steps)])
    yield ""
    if profile.tokens_per_s is None or profile.requests_per_s is None:
        yield "the load generator was the bottleneck at the smallest load: stop other work on this machine and repeat"
        return
    tokens, requests = show_number(profile.tokens_per_s), show_number(profile.requests_per_s)
    at_least = ["" if limited else "at least " for limited in (profile.streams_limited, profile.requests_limited)]
    yield (
        f"one worker delivers {at_least[0]}{tokens} tokens/s in {profile.streams:,} streams, and"
        f" {at_least[1]}{requests} requests/s; kept in the store"
    )


_HEADINGS = ("load", "tokens/s", "delivered", "CPU per token", "read delay p99", "TTFT p99 - truth", "")


def _row(step: ClientStep) -> tuple[str, ...]:
    load = f"{show_number(step.offered_rps)} requests/s" if step.streams is None else f"{step.streams:,} streams"
    return (
        load,
        show_number(step.offered_tokens_per_s),
        _or_dash(step.delivered_ratio, lambda share: f"{share:.1%}"),
        _or_dash(step.cpu_us_per_token, lambda cost: f"{show_number(cost)} µs"),
        _or_dash(step.read_delay_p99_s, show_duration),
        _or_dash(step.ttft_error_p99_s, show_duration),
        _conclusion(step),
    )


def _conclusion(step: ClientStep) -> str:
    if step.server_late is not None:
        return f"unknown: {step.server_late}"
    return f"client-bound: {step.client_bound[0]}" if step.client_bound else "sound"


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "—" if value is None else show(value)
