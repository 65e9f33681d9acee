"""`benchgate plan`: check suites, and print what a run would send, detect and cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import command_line, spelled
from benchgate.cli.inputs import price_documents, price_lines
from benchgate.cli.options import CareFormat, find_suite
from benchgate.cli.saying import log, log_text, say, say_json
from benchgate.errors import Command, ExitCode, SuiteError, UsageError
from benchgate.units import as_written, show_duration, show_number, show_percent, show_points

if TYPE_CHECKING:
    from pathlib import Path

    from benchgate.pipeline.suite_file import SuiteFile
    from benchgate.plan.check_power import CheckPower
    from benchgate.plan.power import PromotionChance
    from benchgate.plan.preview import Preview, RunCost, RunCostRange, StagePreview
    from benchgate.suite.schema import Suite

_STAGE_HEADINGS = ("stage", "offered", "requests", "rate", "tokens/s at most", "lasts", "workers")
_CHECK_HEADINGS = ("check", "margin", "sees (80 / 95 %)", "has", "needs", "equal passes", "spread")
_SERVERS_PACE = "set by the servers"
_MINUTE_S = 60.0
_WIDTH = 100
_INDENT = " " * 9


def plan(
    suites: Annotated[list[str], typer.Argument(metavar="SUITE...", help="Suite files, or names of shipped suites.")],
    store: options.StoreOption = options.STORE,
    allow_code: options.AllowCodeOption = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask servers for their tokenizers.")] = False,
    output: options.CareFormatOption = CareFormat.TEXT,
) -> None:
    """Check suites; show what a run would cost

    Lists every mistake in the suites and their data, with file, line and column. Exits with 2 for a mistake, for load
    that this machine cannot generate, and for a required check that cannot pass. Sends no request of the run.

    Example: benchgate plan suite.yaml
    """
    problems: list[str] = []
    documents: list[dict[str, object]] = []
    for reference in suites:
        try:
            path = find_suite(reference)
            file, found = _previews(path, store, allow_code=allow_code, offline=offline)
        except (SuiteError, UsageError) as error:
            problems.append(spelled(error))
            continue
        declared = file.suite
        if output is CareFormat.JSON:
            of_suite = {"suite": str(path)} if len(suites) > 1 else {}
            documents += [{**of_suite, **one} for one in _documents(declared, found)]
        else:
            _show(path, declared, found, store)
        _warn(file)
        refused = dict.fromkeys(line for one in found.values() for line in (*one.problems, *one.refused))
        problems += [f"benchgate: {path}: {line}" for line in refused]
    if output is CareFormat.JSON:
        alone = len(suites) == 1 and len(documents) == 1 and "candidate" not in documents[0]
        if documents or len(suites) > 1:
            say_json(documents[0] if alone else documents, sort_keys=True, allow_nan=False)
    if problems:
        log_text("\n".join(problems))
        raise typer.Exit(int(ExitCode.USAGE))


def _previews(path: Path, store: str, *, allow_code: bool, offline: bool) -> tuple[SuiteFile, Mapping[str, Preview]]:
    """Return the suite and the plan of each candidate. Raises SuiteError with every problem, missing files included."""
    from benchgate.pipeline.suite_file import load_suite, missing_files
    from benchgate.suite.rules.suite import each_candidate

    try:
        file = load_suite(path)
    except SuiteError as error:
        raise SuiteError([*error.problems, *missing_files(path)]) from error
    from benchgate.pipeline.preflight import preview_suite  # slow to import, and not needed for a suite with errors

    with file.located_errors():
        return file, {
            one.candidate: preview_suite(
                one, path.parent, store, check_files=True, use_tokenizer_server=not offline, allow_code=allow_code
            )
            for one in each_candidate(file.suite)
        }


def _documents(declared: Suite, found: Mapping[str, Preview]) -> Iterator[dict[str, object]]:
    from dataclasses import asdict

    from benchgate.pipeline.error_budget import budget_lines

    beside = {"error_budget": budget_lines(declared), "prices": price_documents(declared)}
    for name, preview in found.items():
        checks = [{**asdict(check), "short": check.short} for check in preview.checks]
        document = {**asdict(preview), "checks": checks, **{key: value for key, value in beside.items() if value}}
        yield {"candidate": name, **document} if declared.candidates else document


def _show(path: Path, declared: Suite, found: Mapping[str, Preview], store: str) -> None:
    from benchgate.pipeline.error_budget import budget_lines
    from benchgate.suite.default_checks import default_checks, line_of

    lines = [*_texts(str(path), found, declared.candidates)]
    lines += [f"budget   {line}" for line in budget_lines(declared)]
    lines += [f"price    {line}" for line in price_lines(declared)]
    if declared.gate.checks == default_checks(declared):
        lines += ["gate     the suite has no checks of its own; these are the defaults:"]
        lines += [f"{_INDENT}- {line_of(check)}" for check in declared.gate.checks]
    say("\n".join(lines) + "\n")
    doubts = dict.fromkeys(line for one in found.values() for line in (*one.unknowns, *one.underpowered))
    log(*(f"benchgate: {line}" for line in doubts))
    if any(check.source == "assumed" for one in found.values() for check in one.checks):
        command = command_line(Command.CALIBRATE, str(path), store)
        log(f"benchgate: measure the spreads that are assumed with `{command}`")
    if any(one.client_measured_at is None or one.problems for one in found.values()):
        command = command_line(Command.DOCTOR_CLIENT, store=store)
        log(f"benchgate: measure what the load generator here can deliver with `{command}`")


def _warn(file: SuiteFile) -> None:
    """Log what is measured less well than it looks, with its place in the suite."""
    from benchgate.suite.rules.load import suite_warnings

    log(*(str(warning) for warning in suite_warnings(file.suite, file.text, str(file.path))))


def _texts(source: str, found: Mapping[str, Preview], candidates: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the plan, once for candidates with the same plan."""
    for preview in dict.fromkeys(found.values()):
        yield from _lines(source, preview)
        alike = [name for name, one in found.items() if one == preview]
        if candidates:
            runs = f"{len(alike)} runs, one for each of" if len(alike) > 1 else "one run, for"
            yield f"runs     {runs} {', '.join(alike)}: each sends what stands above"


def _lines(source: str, found: Preview) -> Iterator[str]:
    yield f"{source}: plan {found.plan_sha256[:12]}; nothing was sent"
    where = "on both arms" if found.arms > 1 else "of the one deployment"
    if found.starts:
        yield f"starts   {found.starts:,} {where}, from nothing to a first good completion"
    if found.stages:
        yield ""
        rows = [_STAGE_HEADINGS, *map(_stage_row, found.stages)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_STAGE_HEADINGS))]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield ""
        most = "at most " if found.fewest_blocks < found.blocks else ""
        ramp = f", and about {found.ramp_requests:,} for the ramp" if found.ramp_requests else ""
        requests = f"{most}{found.load_requests:,} requests, {found.warmup_told}{ramp}"
        yield f"load     {found.blocks_told} {where}: {requests}; {_tokens(found)}"
        yield f"         {_load_time(found)}"
    if found.capacity_requests:
        yield f"capacity at most {found.capacity_requests:,} requests {where}; a search ends early where it can"
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


def _stage_row(stage: StagePreview) -> tuple[str, ...]:
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


def _load_time(found: Preview) -> str:
    if found.load_s == 0:
        return "the duration depends on the servers"
    schedules = f"the schedules take {show_duration(found.load_s)}"
    return schedules if found.load_s_known else f"{schedules}; closed loops take as long as the servers need"


def _client(found: Preview) -> str:
    if found.client_measured_at is None:
        return "the capacity of this machine's load generator is unknown"
    able = "delivers all of this"
    if found.problems:
        able = "cannot deliver all of this; the workers of a cluster may (`run --cluster`)"
    elif found.unknowns:
        able = "was not measured with as much"
    return f"the load generator of this machine, measured {found.client_measured_at[:10]}, {able}"


def check_lines(checks: Sequence[CheckPower], promotion: PromotionChance | None) -> Iterator[str]:
    """Yield a row for each check, the source of its spread, and how often an identical candidate passes them all."""
    if not checks:
        return
    yield ""
    rows = [_CHECK_HEADINGS, *map(_check_row, checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_CHECK_HEADINGS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield from _rests_on(checks)
    for note in dict.fromkeys(check.note for check in checks if check.note is not None):
        named = ", ".join(check.id for check in checks if check.note == note)
        yield from _wrapped("", f"{named}: {note}")
    if promotion is not None:
        yield from _wrapped("equal", _promotion(promotion, [c.id for c in checks if c.required and c.passes is None]))


def total_lines(found: RunCostRange) -> Iterator[str]:
    """Yield requests, tokens, minutes and dollars, from the first interim analysis to the last."""
    least, most = found.least, found.most
    requests = f"{_span(least.requests, most.requests)} requests"
    tokens = f"{_span(least.input_tokens, most.input_tokens)} tokens in and at most {most.output_tokens:,} out"
    asked = f"{requests}, {tokens} of the load" if most.blocks else requests
    yield from _wrapped("total", f"{asked}; {_total_time(found)}; {_money(least, most)}")


def _wrapped(title: str, text: str) -> list[str]:
    first = title.ljust(len(_INDENT))
    return wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    )


def _check_row(check: CheckPower) -> tuple[str, ...]:
    seen = "/".join(_shown(check, value) for value in (check.sees_80, check.sees_95))
    return (
        check.id if check.required else f"({check.id})",
        "" if check.margin is None else _shown(check, check.margin),
        seen if check.sees_80 is not None or check.sees_95 is not None else "?",
        "?" if check.has is None else f"{check.has:,} {check.n_unit}",
        "?" if check.needs is None else f"{check.needs:,}",
        "?" if check.passes is None else _chance(check.passes),
        "" if check.spread is None else f"{'' if check.source != 'assumed' else '~'}{show_percent(check.spread)}",
    )


def _shown(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points(value) if check.measure == "difference" else show_percent(value))


def _chance(share: float) -> str:
    # Never 100 % of what is not certain, and never 0 of what is not impossible.
    if share >= 0.995:
        return ">99 %"
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def _rests_on(checks: Sequence[CheckPower]) -> Iterator[str]:
    sources = dict.fromkeys(check.source for check in checks if check.source not in (None, "assumed"))
    if any(check.source == "assumed" for check in checks):
        yield "spread   ~ is assumed, and refuses nothing"
    for source in sources:
        yield f"spread   by the {source}"
    if any(not check.required for check in checks):
        yield "         checks in brackets are advisory"


def _promotion(promotion: PromotionChance, unknown: Sequence[str]) -> str:
    """Say how often an identical candidate passes; `unknown` are required checks that the chance leaves out."""
    if promotion.chance is None:
        return "it is unknown how often an identical candidate passes"
    counted = f"{promotion.of}" if promotion.checks == promotion.of else f"{promotion.checks} of {promotion.of}"
    after = "" if promotion.blocks is None else f", after {show_number(promotion.blocks)} blocks on average"
    without = f"; not counted: {', '.join(unknown)} (`?` above), which may fail too" if unknown else ""
    passes = f"an identical candidate passes {_chance(promotion.chance)} of the time"
    return f"{passes} ({counted} required checks, assuming independence){after}{without}"


def _total_time(found: RunCostRange) -> str:
    least, most = found.least.seconds, found.most.seconds
    if least is None or most is None:
        return "duration unknown: it depends on the servers"
    unit, size = ("minutes", _MINUTE_S) if most >= 2 * _MINUTE_S else ("seconds", 1.0)
    took = f"{_span(least / size, most / size)} {unit}"
    return (
        f"at least {took}, by its schedules"
        if found.seconds_from == "schedules"
        else f"{took}, as {found.seconds_from} took"
    )


def _money(least: RunCost, most: RunCost) -> str:
    if least.usd is None or most.usd is None:
        return "cost unknown"
    return f"${_cents(least.usd)}" + (f" to ${_cents(most.usd)}" if most.usd > least.usd else "")


def _cents(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= 0.01 or usd == 0 else "0.01 at most"


def _span(least: float, most: float) -> str:
    """`120`, or `120 to 480`."""
    low, high = (f"{one:,}" if isinstance(one, int) else show_number(one) for one in (least, most))
    return low if low == high else f"{low} to {high}"
