"""`benchgate calibrate`: the baseline against itself, and what that says of its noise."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from benchgate.cli import options
from benchgate.cli.places import find_suite
from benchgate.cli.progress import make_progress
from benchgate.cli.saying import log, say, say_json
from benchgate.cli.suite_files import load_suite, placed_in
from benchgate.errors import ExitCode


class Only(StrEnum):
    """What is calibrated alone."""

    LOAD = "load"
    QUALITY = "quality"
    SHADOW = "shadow"


class ProfileFormat(StrEnum):
    """How a noise profile is printed."""

    TEXT = "text"
    JSON = "json"


def calibrate(
    suite: Annotated[str, typer.Argument(help="Suite file, or the name of a shipped suite.")],
    times: Annotated[
        int | None, typer.Option("--times", help="Pairs of blocks; as many as a run has at most, and 10, unless said.")
    ] = None,
    only: Annotated[Only | None, typer.Option("--only", help="Calibrate this part of the suite alone.")] = None,
    baseline: options.BaselineOption = None,
    store: options.StoreOption = options.STORE,
    work_dir: options.WorkDirOption = options.WORK_DIR,
    cluster: options.ClusterOption = None,
    allow_actions: options.AllowActionsOption = False,
    allow_code: options.AllowCodeOption = False,
    label: options.LabelOption = None,
    output: Annotated[ProfileFormat, typer.Option("--format", help="How to print it.")] = ProfileFormat.TEXT,
) -> None:
    """Measure a suite's baseline against itself: how much its numbers and answers differ when nothing changed."""
    from benchgate.pipeline import calibrate
    from benchgate.pipeline.run import RunOptions
    from benchgate.report.sections.noise import noise_lines

    path = find_suite(suite)
    declared = load_suite(path, baseline)
    asked = RunOptions(store, work_dir.resolve(), label, cluster, allow_actions, allow_code)
    part = calibrate.Part(only.value) if only is not None else None
    with placed_in(path), make_progress(f"{declared.baseline} vs itself") as progress:
        found = calibrate.calibrate(declared, path.parent, asked, progress, times=times, only=part)
    if found.profile is None:
        fault = found.evidence.target_faults[0] if found.evidence.target_faults else None
        why = f": {fault.reason}" if fault is not None else ""
        log(f"benchgate: no noise profile, because not everything was measured{why}")
        raise typer.Exit(int(ExitCode.INVALID))
    if output is ProfileFormat.JSON:
        say_json(found.profile.to_json(), sort_keys=True)
        return
    say("".join(f"{line}\n" for line in noise_lines(found.profile, found.profile.measured_at)))
