"""`benchgate doctor`: is this machine fit to measure from, and how much load can it generate?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import completed
from benchgate.cli.places import find_suite
from benchgate.cli.saying import say
from benchgate.errors import ExitCode, UsageError
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.doctor.machine import Symptom
    from benchgate.model.client import ClientProfile, ClientStep


class DoctorFormat(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"


def doctor(
    client: Annotated[
        bool, typer.Option("--client", help="Measure what the load generator delivers here, and keep it in the store.")
    ] = False,
    suite: Annotated[
        str | None, typer.Option("--suite", help="Ask what this suite's error budget is asked of, too.")
    ] = None,
    store: options.StoreOption = options.STORE,
    output: Annotated[DoctorFormat, typer.Option("--format", help="How to print the findings.")] = DoctorFormat.TEXT,
) -> None:
    """Look at this machine: what would spoil a measurement, and what to do about it."""
    if not client:
        _examine(store, suite, output)
    elif suite is not None:
        raise UsageError("--suite is of no part of --client, which measures this machine alone; leave one of them out")
    else:
        _measure(store, output)


def _examine(store: str, suite: str | None, output: DoctorFormat) -> None:
    from dataclasses import asdict

    from benchgate.doctor.machine import State, examine

    symptoms = [*examine(store), *_of_the_budget(suite)]
    if output is DoctorFormat.JSON:
        say(json.dumps([asdict(symptom) for symptom in symptoms], indent=2) + "\n")
    else:
        for symptom in symptoms:
            say(f"{symptom.state:5} {symptom.name:16} {symptom.found}\n")
            if symptom.remedy is not None:
                say(f"{'':22} → {completed(symptom.remedy, suite=None, store=store)}\n")
    if any(symptom.state is State.FAIL for symptom in symptoms):
        raise typer.Exit(int(ExitCode.USAGE))


def _of_the_budget(suite: str | None) -> Iterator[Symptom]:
    from benchgate.cli.measure_commands import load_suite
    from benchgate.doctor.budget import examine_budget

    if suite is not None:
        path = find_suite(suite)
        yield examine_budget(load_suite(path), path.parent, os.environ)


def _measure(store: str, output: DoctorFormat) -> None:
    from benchgate.cli.progress import make_progress
    from benchgate.doctor.client import measure_client
    from benchgate.store.repository import Store

    with Store.open(store) as opened:  # before the minute is spent
        with make_progress("load generator") as progress:
            profile = measure_client(progress)
        opened.save_client_profile(profile)
    if output is DoctorFormat.JSON:
        say(json.dumps(profile.to_json(), indent=2, sort_keys=True, allow_nan=False) + "\n")
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
