"""`benchgate plan`: check suites, and print what a run would send, detect and cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.commands import command_line, spelled
from benchgate.cli.options import ResultFormat, find_suite
from benchgate.cli.saying import inform, log_text, say, say_json, stdout_screen
from benchgate.errors import Command, ExitCode, SuiteError, UsageError
from benchgate.pipeline.suite_file import SuiteFile, load_suite, missing_files
from benchgate.report.screen import Screen, fitting_table, table_lines, table_width, wrapped_lines
from benchgate.suite.loader import default_checks, line_of
from benchgate.suite.rules.load import suite_warnings
from benchgate.suite.rules.suite import each_candidate
from benchgate.suite.schema import Suite
from benchgate.units import as_written, show_duration, show_number, show_percent, show_points, show_span

if TYPE_CHECKING:
    from benchgate.model.deployment import Deployment
    from benchgate.plan.check_power import CheckPower
    from benchgate.plan.power import PromotionChance
    from benchgate.plan.preview import Preview, RunCostRange, StagePreview

_STAGE_HEADINGS = ("stage", "offered", "requests", "rate", "most tokens/s", "lasts", "workers")
_CHECK_HEADINGS = (
    ("", "", "smallest", "planned", "", "identical", ""),
    ("check", "allowed", "detected", "observations", "needed", "passes", "noise"),
)
_QUICK_AFTER_S = 600.0  # runs that take longer are worth a first look
_SERVERS_PACE = "by the servers"
_WIDTH = 100
_INDENT = " " * 9


def plan(
    suites: Annotated[list[str], typer.Argument(metavar="SUITE...", help="Suite files, or names of shipped suites.")],
    store: options.StoreOption = options.STORE,
    allow_code: options.AllowCodeOption = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Contact no server for its tokenizer and no hub for data sets.")
    ] = False,
    output: options.ResultFormatOption = ResultFormat.TEXT,
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
        if output is ResultFormat.JSON:
            of_suite = {"suite": str(path)} if len(suites) > 1 else {}
            documents += [{**of_suite, **one} for one in _documents(declared, found)]
        else:
            _show(path, declared, found, store)
        inform(*(str(warning) for warning in suite_warnings(declared, file.text, str(file.path))))
        refused = dict.fromkeys(line for one in found.values() for line in (*one.problems, *one.refused))
        problems += [f"benchgate: {path}: {line}" for line in refused]
    if output is ResultFormat.JSON:
        alone = len(suites) == 1 and len(documents) == 1 and "candidate" not in documents[0]
        if documents or len(suites) > 1:
            say_json(documents[0] if alone else documents, sort_keys=True, allow_nan=False)
    if problems:
        log_text("\n".join(problems))
        raise typer.Exit(int(ExitCode.USAGE))


def _previews(path: Path, store: str, *, allow_code: bool, offline: bool) -> tuple[SuiteFile, Mapping[str, Preview]]:
    """Return the suite and the plan of each candidate. Raises SuiteError with every problem, missing files included."""
    try:
        file = load_suite(path)
    except SuiteError as error:
        raise SuiteError([*error.problems, *missing_files(path)]) from error
    from benchgate.pipeline.forecast import preview_suite  # slow to import, and not needed for a suite with errors

    with file.located_errors():
        return file, {
            one.candidate: preview_suite(
                one, path.parent, store, check_files=True, use_tokenizer_server=not offline, allow_code=allow_code
            )
            for one in each_candidate(file.suite)
        }


def _documents(declared: Suite, found: Mapping[str, Preview]) -> Iterator[dict[str, object]]:
    from benchgate.pipeline.error_budget import budget_lines
    from benchgate.report.document import price_document

    beside = {
        "error_budget": budget_lines(declared),
        "prices": {one.name: price_document(one) for one in _priced_by_file(declared)},
    }
    for name, preview in found.items():
        checks = [{**asdict(check), "short": check.short} for check in preview.checks]
        document = {**asdict(preview), "checks": checks, **{key: value for key, value in beside.items() if value}}
        yield {"candidate": name, **document} if declared.candidates else document


def _priced_by_file(suite: Suite) -> list[Deployment]:
    arms = dict.fromkeys((suite.baseline, *(suite.candidates or (suite.candidate,))))
    priced = [name for name in arms if suite.deployments[name].price_entry]
    if not priced:
        return []
    from benchgate.pipeline.deployments import declared_deployment  # slow to import

    return [declared_deployment(suite, name) for name in priced]


def _show(path: Path, declared: Suite, found: Mapping[str, Preview], store: str) -> None:
    from benchgate.pipeline.error_budget import budget_lines

    lines: list[str] = []
    for preview in dict.fromkeys(found.values()):  # once for candidates with the same plan
        lines += _lines(str(path), preview)
        alike = [name for name, one in found.items() if one == preview]
        if declared.candidates:
            runs = f"{len(alike)} runs, one for each of" if len(alike) > 1 else "one run, for"
            lines += _wrapped("runs", f"{runs} {', '.join(alike)}: each sends what stands above")
    for line in budget_lines(declared):
        lines += _wrapped("budget", line)
    if priced := _priced_by_file(declared):
        from benchgate.report.sections.cost import price_and_use, price_source  # slow to import

        for one in priced:
            lines += _wrapped("price", f"{one.name}: {price_and_use(one)}, the price {price_source(one)}")
    if declared.gate.checks == default_checks(declared):
        lines += _wrapped("gate", "these are the default checks:")
        for check in declared.gate.checks:
            lines += _wrapped("", f"- {line_of(check)}")
    say("\n".join(lines) + "\n")
    doubts = dict.fromkeys(line for one in found.values() for line in (*one.unknowns, *one.underpowered))
    inform(*(f"benchgate: {line}" for line in doubts))
    if any(check.source == "assumed" for one in found.values() for check in one.checks):
        command = command_line(Command.CALIBRATE, str(path), store)
        inform(f"benchgate: measure the spreads that are assumed with `{command}`")
    if any(one.client_measured_at is None or one.problems for one in found.values()):
        command = command_line(Command.DOCTOR_CLIENT, store=store)
        inform(f"benchgate: measure what the load generator here can deliver with `{command}`")
    if not any(one.problems or one.refused for one in found.values()):
        is_long = any(_takes_long(one) for one in found.values()) and not declared.candidates
        if is_long:
            inform("benchgate: a first look, --quick, takes about three minutes; it can block, and never promotes")
        command = command_line(Command.RUN, str(path), store)
        inform(f"next: {command}{' --quick' if is_long else ''} --report report.html")


def _lines(source: str, found: Preview) -> Iterator[str]:
    sentence = f"{source}: {_how_long(found)}; {_how_much(found)}; nothing was sent"
    yield from Screen(stdout_screen().columns).wrapped(sentence, _INDENT, first="")
    where = "on both arms" if found.arms > 1 else "of the one deployment"
    if found.starts:
        yield from _wrapped("starts", f"{found.starts:,} {where}, from nothing to a first good completion")
    if found.stages:
        yield ""
        yield from fitting_table(Screen(stdout_screen().columns), _STAGE_HEADINGS, [*map(_stage_row, found.stages)])
        yield ""
        most = "at most " if found.fewest_blocks < found.blocks else ""
        ramp = f", and about {found.ramp_requests:,} for the ramp" if found.ramp_requests else ""
        warmup = f"{'at least ' if found.warmup_goes_on else ''}{found.warmup_requests:,} of them warm-up"
        requests = f"{most}{found.load_requests:,} requests, {warmup}{ramp}"
        tokens = f"about {found.input_tokens:,} tokens in, at most {found.output_tokens:,} out"
        yield from _wrapped("load", f"{found.block_range} {where}: {requests}; {tokens}")
        if found.load_s == 0:
            yield from _wrapped("", "the duration depends on the servers")
        else:
            rest = "" if found.load_s_known else "; closed loops take as long as the servers need"
            yield from _wrapped("", f"the schedules take {show_duration(found.load_s)}{rest}")
        shares = [
            f"{show_percent(s.shared_prefix_ratio)} at {s.demand.name}"
            for s in found.stages
            if round(s.shared_prefix_ratio, 2)
        ]
        if shares:
            found_by = "of the prompts' tokens would be found in a prefix cache without a limit"
            yield from _wrapped("shared", f"{', '.join(shares)} {found_by}")
    if found.capacity_requests:
        yield from _wrapped(
            "capacity", f"at most {found.capacity_requests:,} requests {where}; a search ends early where it can"
        )
    if found.eval_items:
        among = f", and {found.verified_items:,} among the load" if found.verified_items else ""
        yield from _wrapped("evals", f"{found.eval_items:,} items over both arms{among}")
    if found.to_fetch:
        yield from _wrapped(
            "unread", f"data sets of evals, whose items are not counted yet: {', '.join(found.to_fetch)}"
        )
    if found.text_positions:
        yield from _wrapped("texts", f"{found.text_positions:,} positions on both arms")
    if found.shadow_prompts:
        more = ((found.judge_requests, "to a judge"), (found.similarity_requests, "for embeddings"))
        beside = "".join(f", and at most {number:,} {purpose}" for number, purpose in more if number)
        yield from _wrapped("shadow", f"{found.shadow_prompts:,} prompts, {found.shadow_requests:,} requests{beside}")
    yield from check_lines(found.checks, found.promotion)
    yield from _total_lines(found.totals)
    if not found.stages:
        return
    if found.client_measured_at is None:
        yield from _wrapped("client", "the capacity of this machine's load generator is unknown")
    else:
        able = "delivers all of this"
        if found.problems:
            able = "cannot deliver all of this; the workers of a cluster may (`run --cluster`)"
        elif found.unknowns:
            able = "was not measured with as much"
        yield from _wrapped(
            "client", f"the load generator of this machine, measured {found.client_measured_at[:10]}, {able}"
        )


def _stage_row(stage: StagePreview) -> tuple[str, ...]:
    demand = stage.demand
    workers = "?" if stage.workers is None else str(stage.workers)
    if demand.peak_rps is None or demand.peak_tokens_per_s is None or demand.duration_s is None:
        return (demand.name, stage.offered, f"{demand.requests:,}", _SERVERS_PACE, "?", "?", workers)
    mean = show_number(demand.offered_rps or 0.0)
    rate = f"{mean}/s" + (f", at most {show_number(demand.peak_rps)}/s" if show_number(demand.peak_rps) != mean else "")
    tokens, lasts = show_number(demand.peak_tokens_per_s), show_duration(demand.duration_s)
    return (demand.name, stage.offered, f"{demand.requests:,}", rate, tokens, lasts, workers)


def check_lines(checks: Sequence[CheckPower], promotion: PromotionChance | None) -> Iterator[str]:
    """Yield a row for each check, the source of its noise, and how often an identical candidate passes them all."""
    if not checks:
        return
    yield ""
    rows = [*_CHECK_HEADINGS, *map(_check_row, checks)]
    if table_width(rows[0], rows[1:]) > (stdout_screen().columns or _WIDTH):
        rows = [row[:-1] for row in rows]  # the noise is in the JSON
    yield from table_lines(Screen(stdout_screen().columns), rows[0], rows[1:], shrink=(0,))
    yield ""
    yield from _wrapped(
        "detected",
        "the smallest true regression that such a run shows 80 % of the time; `needed` shows the allowed one",
    )
    if any(check.source == "assumed" for check in checks):
        yield from _wrapped("noise", "between blocks or repeated answers; ~ is assumed, and refuses nothing")
    for source in dict.fromkeys(check.source for check in checks if check.source not in (None, "assumed")):
        yield from _wrapped("noise", f"by the {source}")
    if any(not check.required for check in checks):
        yield from _wrapped("", "checks in brackets are advisory")
    for note in dict.fromkeys(check.note for check in checks if check.note is not None):
        named = ", ".join(check.id for check in checks if check.note == note)
        yield from _wrapped("", f"{named}: {note}")
    if promotion is not None:
        yield from _wrapped("passes", _promotion(promotion, [c.id for c in checks if c.required and c.passes is None]))


def _how_long(found: Preview) -> str:
    """Say how long the run takes, from the first interim analysis to the last, and by what that is known."""
    least, most, source = found.totals.least, found.totals.most, found.totals.seconds_from
    if least.seconds is not None and most.seconds is not None:
        took = _span(show_span(least.seconds), show_span(most.seconds))
        return f"at least {took}, by its schedules" if source == "schedules" else f"about {took}, as {source} took"
    if not found.stages:
        return "takes as long as the servers need"
    from benchgate.plan.preview import ASSUMED_TOKENS_PER_S  # slow to import

    least_s = found.assumed_load_s * found.fewest_blocks / found.blocks
    rest = [
        name
        for name, number in (
            ("starts", found.starts), ("capacity search", found.capacity_requests), ("evals", found.eval_items),
            ("texts", found.text_positions), ("shadow prompts", found.shadow_prompts),
        )
        if number
    ]  # fmt: skip
    more = f", then {', '.join(rest)}" if rest else ""
    took = _span(show_span(least_s), show_span(found.assumed_load_s))
    return f"about {took} of load if each stream gets {ASSUMED_TOKENS_PER_S:.0f} tokens/s{more}"


def _takes_long(found: Preview) -> bool:
    known_s = found.totals.most.seconds
    return (found.assumed_load_s if known_s is None else known_s) > _QUICK_AFTER_S


def _how_much(found: Preview) -> str:
    least, most = found.totals.least.usd, found.totals.most.usd
    if least is not None and most is not None:
        return _span(f"${_cents(least)}", f"${_cents(most)}")
    return "no hourly price" if found.usd_per_hour is None else f"${_cents(found.usd_per_hour)} an hour"


def _total_lines(found: RunCostRange) -> list[str]:
    """Return requests and tokens, from the first interim analysis to the last."""
    least, most = found.least, found.most
    sent = f"{_span(f'{least.requests:,}', f'{most.requests:,}')} requests"
    if most.input_tokens or most.output_tokens:
        tokens = _span(f"{least.input_tokens:,}", f"{most.input_tokens:,}")
        sent = f"{sent}, {tokens} tokens in and at most {most.output_tokens:,} out of the load"
    return _wrapped("total", sent)


def _wrapped(title: str, text: str) -> list[str]:
    return wrapped_lines(text, min(_WIDTH, stdout_screen().columns or _WIDTH), title.ljust(len(_INDENT)), _INDENT)


def _check_row(check: CheckPower) -> tuple[str, ...]:
    return (
        check.id if check.required else f"({check.id})",
        "" if check.margin is None else _shown(check, check.margin),
        _shown(check, check.sees_80),
        "?" if check.has is None else f"{check.has:,} {check.n_unit}",
        "?" if check.needs is None else f"{check.needs:,}",
        "?" if check.passes is None else _chance(check.passes),
        "" if check.spread is None else f"{'' if check.source != 'assumed' else '~'}{show_percent(check.spread)}",
    )


def _shown(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points if check.measure == "difference" else show_percent, value)


def _chance(share: float) -> str:
    # Never 100 % of what is not certain, and never 0 of what is not impossible.
    if share >= 0.995:
        return ">99 %"
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def _promotion(promotion: PromotionChance, unknown: Sequence[str]) -> str:
    """Say how often an identical candidate passes; `unknown` are required checks that the chance leaves out."""
    if promotion.chance is None:
        return "it is unknown how often an identical candidate passes"
    counted = f"{promotion.of}" if promotion.checks == promotion.of else f"{promotion.checks} of {promotion.of}"
    after = "" if promotion.blocks is None else f", after {show_number(promotion.blocks)} blocks on average"
    without = f"; not counted: {', '.join(unknown)} (`?` above), which may fail too" if unknown else ""
    passes = f"an identical candidate passes {_chance(promotion.chance)} of the time"
    return f"{passes} ({counted} required checks, assuming independence){after}{without}"


def _cents(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= 0.01 or usd == 0 else "0.01 at most"


def _span(least: str, most: str) -> str:
    """`120`, or `120 to 480`."""
    return least if least == most else f"{least} to {most}"
