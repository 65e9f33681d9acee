"""`benchgate doctor`: would anything spoil a run, of this machine or of a suite, and how much load can be generated?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import completed
from benchgate.cli.places import find_suite
from benchgate.cli.saying import say, say_json
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.doctor.machine import Symptom
    from benchgate.model.client import ClientProfile, ClientStep
    from benchgate.suite.schema import Suite


class DoctorFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"


def doctor(
    client: Annotated[
        bool, typer.Option("--client", help="Measure what the load generator delivers here, and keep it in the store.")
    ] = False,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Look at all that a run of this suite needs, too.")
    ] = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    output: Annotated[DoctorFormat, typer.Option("--format", help="How to print the findings.")] = DoctorFormat.TEXT,
) -> None:
    """Look for what would spoil a run, on this machine and in a suite's deployments, and say what to do about it."""
    if not client:
        log = work_dir / "replicas.log" if allow_actions else None
        _examine(store, suite, work_dir, output, allow_code=allow_code, replica_log=log)
    elif suite is not None:
        raise UsageError("--suite is of no part of --client, which measures this machine alone; leave one of them out")
    else:
        _measure(store, output)


def _examine(
    store: str, suite: str | None, work_dir: Path, output: DoctorFormat, *, allow_code: bool, replica_log: Path | None
) -> None:
    from dataclasses import asdict

    from benchgate.doctor.machine import State

    symptoms = list(_of_the_machine(store, work_dir))
    if suite is not None:
        symptoms += _of_the_suite(suite, store, allow_code=allow_code, replica_log=replica_log)
    width = max(16, *(len(symptom.name) for symptom in symptoms))
    if output is DoctorFormat.JSON:
        say_json([asdict(symptom) for symptom in symptoms])
    else:
        for symptom in symptoms:
            say(terminal_line(f"{symptom.state:5} {symptom.name:{width}} {symptom.found}") + "\n")
            if symptom.remedy is not None:
                remedy = completed(symptom.remedy, suite=None, store=store)
                say(terminal_line(f"{'':{width + 6}} → {remedy}") + "\n")
    if any(symptom.state is State.FAIL for symptom in symptoms):
        raise typer.Exit(int(ExitCode.USAGE))


def _of_the_machine(store: str, work_dir: Path) -> Iterator[Symptom]:
    from benchgate.doctor.machine import examine, examine_resources, examine_store_file
    from benchgate.errors import BenchgateError
    from benchgate.store.database import Address

    yield from examine(store)
    yield from examine_store_file(store)
    folders = {"work folder": work_dir}
    try:
        path = Address.parse(store).path
    except BenchgateError:
        path = None  # what is wrong with it is told above
    if path is not None:
        folders["store folder"] = path.parent
    yield from examine_resources(folders)


def _of_the_suite(reference: str, store: str, *, allow_code: bool, replica_log: Path | None) -> Iterator[Symptom]:
    from benchgate.cli.suite_files import load_suite
    from benchgate.doctor.budget import examine_budget
    from benchgate.doctor.machine import State
    from benchgate.doctor.suite import examine_deployments, examine_scoring
    from benchgate.suite.rules.suite import each_candidate

    path = find_suite(reference)
    suite = load_suite(path)
    yield examine_budget(suite, path.parent, os.environ)
    found = list(examine_deployments(suite, path.parent, os.environ, replica_log=replica_log))
    yield from found
    planned = [list(_of_the_plan(one, path, store, allow_code=allow_code)) for one in each_candidate(suite)]
    if all(symptom.state is not State.FAIL for symptom in found):
        planned += [list(examine_scoring(one, path.parent, os.environ)) for one in each_candidate(suite)]
    yield from dict.fromkeys(symptom for symptoms in planned for symptom in symptoms)


def _of_the_plan(suite: Suite, path: Path, store: str, *, allow_code: bool) -> Iterator[Symptom]:
    from benchgate.cli.suite_files import placed_in
    from benchgate.doctor.machine import State, Symptom
    from benchgate.doctor.suite import examine_plan
    from benchgate.errors import BenchgateError
    from benchgate.pipeline import run as pipeline

    try:
        with placed_in(path):
            found = pipeline.preview_suite(suite, path.parent, store, allow_code=allow_code)
    except BenchgateError as error:
        yield Symptom("plan", State.FAIL, str(error), "correct that; `benchgate plan` tells the same")
        return
    yield from examine_plan(suite, found)


def _measure(store: str, output: DoctorFormat) -> None:
    from benchgate.cli.progress import make_progress
    from benchgate.doctor.client import measure_client
    from benchgate.store.repository import Store

    with Store.open(store) as opened:  # before the minute is spent
        with make_progress("load generator") as progress:
            profile = measure_client(progress)
        opened.save_client_profile(profile)
    if output is DoctorFormat.JSON:
        say_json(profile.to_json(), sort_keys=True, allow_nan=False)
    else:
        say("\n".join(_lines(profile)) + "\n")


def _lines(profile: ClientProfile) -> Iterator[str]:
    rows = [_HEADINGS, *map(_row, profile.steps)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    if profile.tokens_per_s is None or profile.requests_per_s is None:
        yield "the load generator was the bottleneck at the smallest load: stop what else runs here, and measure again"
        return
    tokens, requests = show_number(profile.tokens_per_s), show_number(profile.requests_per_s)
    able = f"{_least(profile.streams_limited)}{tokens} tokens/s in {profile.streams:,} streams, and "
    able += f"{_least(profile.requests_limited)}{requests} requests/s"
    yield f"one worker delivers {able}; kept in the store"


def _least(limited: bool) -> str:
    """What goes before a number beyond which nothing is known."""
    return "" if limited else "at least "


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
