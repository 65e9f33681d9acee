"""`benchgate plan`: what a run would ask, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import completed
from benchgate.cli.places import find_suite
from benchgate.cli.plan_checks import check_lines, total_lines
from benchgate.cli.price_lines import price_documents, price_lines
from benchgate.cli.saying import log, say, say_json
from benchgate.cli.suite_files import placed_in
from benchgate.errors import ExitCode
from benchgate.units import show_duration, show_number

if TYPE_CHECKING:
    from benchgate.plan.preview import Preview, StagePreview


class PlanFormat(StrEnum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"


def plan(
    suite: Annotated[str, typer.Argument(help="Suite file, or the name of a shipped suite.")],
    store: options.StoreOption = options.STORE,
    allow_code: options.AllowCodeOption = False,
    output: Annotated[PlanFormat, typer.Option("--format", help="How to print the plan.")] = PlanFormat.TEXT,
) -> None:
    """Print what a run would ask and what its checks can show, sending nothing.

    Exits with 2 when the load generator here cannot deliver it, or a required check cannot carry its margin.
    """
    from benchgate.cli.measure_commands import warn
    from benchgate.cli.suite_files import load_suite
    from benchgate.pipeline.error_budget import budget_lines
    from benchgate.pipeline.preflight import preview_suite
    from benchgate.suite.rules.suite import each_candidate

    path = find_suite(suite)
    declared = load_suite(path)
    with placed_in(path):
        found = {
            one.candidate: preview_suite(one, path.parent, store, allow_code=allow_code)
            for one in each_candidate(declared)
        }
        budget = budget_lines(declared)
    if output is PlanFormat.JSON:
        beside = {"error_budget": budget, "prices": price_documents(declared)}
        told = {key: value for key, value in beside.items() if value}
        each = [{**_document(preview), **told} for preview in found.values()]
        plans = [{"candidate": name, **one} for name, one in zip(found, each, strict=True)]
        whole = plans if declared.candidates else each[0]
        say_json(whole, sort_keys=True, allow_nan=False)
    else:
        lines = [*_texts(str(path), found, declared.candidates), *(f"budget   {line}" for line in budget)]
        lines += [f"price    {line}" for line in price_lines(declared)]
        say(completed("\n".join(lines) + "\n", suite=path, store=store))
        doubts = _told((*preview.unknowns, *preview.underpowered) for preview in found.values())
        log(*(completed(line, suite=path, store=store) for line in doubts))
    warn(declared, path)
    against = [(*preview.problems, *preview.refused) for preview in found.values()]
    if any(against):
        log(*(completed(line, suite=path, store=store) for line in _told(against)))
        raise typer.Exit(int(ExitCode.USAGE))


def _document(found: Preview) -> dict[str, object]:
    """A plan as plain JSON values."""
    from dataclasses import asdict

    checks = [{**asdict(check), "short": check.short} for check in found.checks]
    return {**asdict(found), "checks": checks}


def _told(of_each: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines for standard error; one that several candidates share stands there once."""
    return [f"benchgate: {line}" for line in dict.fromkeys(line for lines in of_each for line in lines)]


def _texts(source: str, found: Mapping[str, Preview], candidates: Sequence[str]) -> Iterator[str]:
    """The plan; of several candidates those that are asked alike together."""
    for preview in dict.fromkeys(found.values()):
        yield from _lines(source, preview)
        alike = [name for name, one in found.items() if one == preview]
        if candidates:
            runs = f"{len(alike)} runs, one for each of" if len(alike) > 1 else "one run, for"
            yield f"runs     {runs} {', '.join(alike)}: what stands above is what each asks"


def _lines(source: str, found: Preview) -> Iterator[str]:
    yield f"{source}: plan {found.plan_sha256[:12]}; nothing was sent"
    where = "on both arms" if found.arms > 1 else "of the one deployment"
    if found.starts:
        yield f"starts   {found.starts:,} {where}, from nothing to a first good completion"
    if found.stages:
        yield ""
        rows = [_HEADINGS, *map(_row, found.stages)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield ""
        most = "at most " if found.fewest_blocks < found.blocks else ""
        ramp = f", and about {found.ramp_requests:,} for the ramp" if found.ramp_requests else ""
        requests = f"{most}{found.load_requests:,} requests, {found.warmup_told}{ramp}"
        yield f"load     {found.blocks_told} {where}: {requests}; {_tokens(found)}"
        yield f"         {_time(found)}"
    if found.capacity_requests:
        yield f"capacity at most {found.capacity_requests:,} requests {where}; a search ends as soon as it knows"
    if found.eval_items:
        yield f"evals    {found.eval_items:,} items over both arms"
    if found.to_fetch:
        yield f"unread   data sets of evals, whose items are not counted yet: {', '.join(found.to_fetch)}"
    if found.text_positions:
        yield f"texts    {found.text_positions:,} positions on both arms"
    if found.shadow_prompts:
        asked = ((found.judge_requests, "to a judge"), (found.similarity_requests, "for embeddings"))
        beside = "".join(f", and at most {number:,} {what}" for number, what in asked if number)
        yield f"shadow   {found.shadow_prompts:,} prompts, {found.shadow_requests:,} requests{beside}"
    yield from check_lines(found.checks, found.promotion)
    yield from total_lines(found.totals)
    if found.stages:
        yield f"client   {_client(found)}"


_HEADINGS = ("stage", "offered", "requests", "rate", "tokens/s at most", "lasts", "workers")
_SERVERS_PACE = "as the servers go"


def _row(stage: StagePreview) -> tuple[str, ...]:
    demand = stage.demand
    workers = "?" if stage.workers is None else str(stage.workers)
    if demand.peak_rps is None or demand.peak_tokens_per_s is None or demand.duration_s is None:
        return (demand.name, stage.offered, f"{demand.requests:,}", _SERVERS_PACE, "?", "?", workers)
    mean = show_number(demand.offered_rps or 0.0)
    rate = f"{mean}/s" + (f", at most {show_number(demand.peak_rps)}/s" if show_number(demand.peak_rps) != mean else "")
    tokens, lasts = show_number(demand.peak_tokens_per_s), show_duration(demand.duration_s)
    return (demand.name, stage.offered, f"{demand.requests:,}", rate, tokens, lasts, workers)


def _tokens(found: Preview) -> str:
    return f"about {found.input_tokens:,} tokens in, at most {found.output_tokens:,} out"


def _time(found: Preview) -> str:
    if found.load_s == 0:
        return "how long it takes is the servers' to say"
    schedules = f"the schedules take {show_duration(found.load_s)}"
    return schedules if found.load_s_known else f"{schedules}; how long the closed loops take is the servers' to say"


def _client(found: Preview) -> str:
    if found.client_measured_at is None:
        return (
            "what the load generator can deliver on this machine is not known; `benchgate doctor --client` measures it"
        )
    able = "delivers all of this"
    if found.problems:
        able = "cannot deliver all of this; the workers of a cluster may (`run --cluster`)"
    elif found.unknowns:
        able = "was not tried with as much"
    return f"the load generator of this machine, measured {found.client_measured_at[:10]}, {able}"
