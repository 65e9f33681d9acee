"""`benchgate capacity`: the fleet for a demand file, from a stored run or from stated rates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.completion import complete_runs, complete_stages
from benchgate.cli.options import ResultFormat
from benchgate.cli.saying import say_escaped, say_json, stdout_screen
from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.store.missing import require_stored
from benchgate.system import read_text_file

if TYPE_CHECKING:
    from benchgate.model.run import Evidence, MetricRow
    from benchgate.report.sizing import RunSeen
    from benchgate.sizing.fleet import Demand, KvCache, SizingInput
    from benchgate.sizing.operating_point import LoadLevel
    from benchgate.sizing.simulation import SimulatedHours
    from benchgate.suite.demand_file import ParsedDemand
    from benchgate.suite.schema import Suite

_MAX_BYTES = 16 * 2**20  # a century of hours, or a model's configuration
_LONGER = 1.05  # mean output lengths of the same requests seldom differ by more


def capacity(
    demand: Annotated[Path, typer.Option(metavar="FILE", help="Demand file (`benchgate schema demand`).")],
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Stored run that measured a replica.", autocompletion=complete_runs),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="candidate (default) or baseline of the run.")] = None,
    stage: Annotated[
        str | None, typer.Option(help="Size by this stage instead of the best one.", autocompletion=complete_stages)
    ] = None,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Size a fleet for a demand

    Example: benchgate capacity @latest --demand demand.yaml
    """
    if run is None and (arm is not None or stage is not None):
        option = "--arm" if arm is not None else "--stage"
        raise UsageError(f"{option} selects a part of a stored run; name the run, or leave {option} out")
    if run is not None:
        require_stored(store, run)
    try:
        text = _text(demand)
        from benchgate.suite.demand_file import parse_demand  # slow to import, and not needed to refuse a file

        parsed = parse_demand(text, str(demand))
    except ValueError as error:
        raise UsageError(str(error)) from None
    from benchgate.report.sizing import sizing_document, sizing_text
    from benchgate.sizing.fleet import REQUESTS, Replica, SizingInput, size_demand

    content = parsed.content
    unit, levels, hours = _demand(parsed, demand.parent)
    of_file = content.replica
    known = ReplicaFigures(
        usd_per_hour=of_file.price,
        overhead_ratio=of_file.overhead,
        residence_s=of_file.request_time,
        tokens_per_request=of_file.output_tokens,
        cold_start_s=of_file.cold_start,
        slots=of_file.slots,
    )
    row, seen = None, None
    if run is not None:
        seen, measured = _measured_run(run, arm or "candidate", stage, store)
        row = seen.choice.row
        known, seen = _completed(known, measured, seen)
    rates = _replica_rates(parsed, unit, row)
    paid = known.usd_per_hour
    if paid is not None:
        paid *= 1 + (known.overhead_ratio or 0.0)
    with _placed(parsed, "replica"):
        replica = Replica(*rates, paid)
    cache = _cache(parsed, demand.parent)
    with _placed(parsed, "demand"):
        found = size_demand(
            SizingInput(
                unit=unit,
                demand=levels,
                replica=replica,
                overhead_ratio=known.overhead_ratio,
                safety_factor=content.safety_factor,
                spares=content.spares,
                residence_s=known.residence_s,
                tokens_per_request=known.tokens_per_request,
                cold_start_s=known.cold_start_s,
                cache=cache,
            )
        )
    simulated = _simulated(parsed, hours if unit == REQUESTS else None, found.question, known.slots)
    if output is ResultFormat.JSON:
        say_json(sizing_document(found, seen, simulated), sort_keys=True, allow_nan=False)
    else:
        say_escaped(sizing_text(found, seen, simulated, stdout_screen()))


@contextmanager
def _placed(parsed: ParsedDemand, *path: str) -> Iterator[None]:
    """Report a ValueError at a key of the demand file."""
    try:
        yield
    except ValueError as error:
        raise parsed.error(path, str(error)) from None


def _demand(parsed: ParsedDemand, folder: Path) -> tuple[str, Demand, tuple[float, ...] | None]:
    """Return the unit of the demand, its levels, and the hourly rates of its traffic, if any."""
    from benchgate.sizing.fleet import OUTPUT_TOKENS, REQUESTS, TOKENS, Demand, demand_from_hours, read_traffic

    section = parsed.content.demand
    if section.traffic is not None:
        file = folder / section.traffic
        with _placed(parsed, "demand", "traffic"):
            hours = read_traffic(_text(file), str(file))
            if not any(hours.per_s):
                raise ValueError(f"{file}: {hours.column} is 0 in every hour, which needs no fleet")
            unit = OUTPUT_TOKENS if hours.column == TOKENS else REQUESTS
            return unit, demand_from_hours(hours.per_s), hours.per_s
    stated = section.requests_per_s or section.output_tokens_per_s
    assert stated is not None, "the file has exactly one demand"
    unit = OUTPUT_TOKENS if section.requests_per_s is None else REQUESTS
    return unit, Demand(stated.mean, stated.p95, stated.peak), None


def _replica_rates(parsed: ParsedDemand, unit: str, row: LoadLevel | None) -> tuple[float, float | None]:
    """Return the rate of a replica in the demand's unit and its lower limit: as stated, else as measured."""
    from benchgate.sizing.fleet import OUTPUT_TOKENS

    replica, path = parsed.content.replica, ("replica",)
    in_tokens = unit == OUTPUT_TOKENS
    name, other = ("output_tokens_per_s", "requests_per_s")[:: 1 if in_tokens else -1]
    if getattr(replica, other) is not None:
        raise parsed.error((*path, other), f"the demand is in {unit} per second; write `{name}` here")
    stated = getattr(replica, name)
    if stated is not None and row is not None:
        raise parsed.error((*path, name), "the run measured this too; leave out the key or the run")
    if stated is not None:
        return stated, None
    if row is None:
        raise parsed.error(path, f"the rate of a replica is missing; add `{name}`, or name a stored run")
    if in_tokens:
        return row.tokens_per_s, row.tokens_lower
    length = replica.output_tokens
    if length is not None and length > row.tokens_per_request * _LONGER:
        raise parsed.error(
            (*path, "output_tokens"),
            f"{length:g} output tokens are more than the {row.tokens_per_request:.4g} of the run's requests, and its"
            f" {row.requests_per_s:.4g} requests/s do not hold for longer ones; state the demand as"
            " `output_tokens_per_s`, or measure such requests",
        )
    return row.requests_per_s, row.requests_lower


def _cache(parsed: ParsedDemand, folder: Path) -> KvCache | None:
    from benchgate.sizing.fleet import KvCache
    from benchgate.sizing.kv_cache import cache_layout, number_bytes

    section, path = parsed.content.replica.cache, ("replica", "cache")
    if section is None:
        return None
    if section.dtype is not None:
        with _placed(parsed, *path, "dtype"):
            number_bytes(section.dtype)
    file = folder / section.model
    with _placed(parsed, *path, "model"):
        text = _text(file)
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{error.lineno}:{error.colno}: this is not JSON: {error.msg}") from None
    except (RecursionError, ValueError):  # a thousand brackets, a number of a thousand digits
        raise UsageError(f"{file}: not a model's `config.json`: nested too deep, or a number is too long") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file}: expected a JSON object")
    with _placed(parsed, *path, "model"):
        layout = cache_layout(config)
    with _placed(parsed, *path):
        return KvCache(layout, section.memory, section.request_tokens, section.dtype or "", section.tensor_parallel)


def _simulated(
    parsed: ParsedDemand, hours: Sequence[float] | None, fleet: SizingInput, slots: int | None
) -> SimulatedHours | None:
    """Simulate the hours, in requests per second; None without a `simulation` section."""
    import numpy as np

    from benchgate.sizing.fleet import require_slots
    from benchgate.sizing.simulation import Balancer, Scaling, Service, simulate_hours

    section, path = parsed.content.simulation, ("simulation",)
    if section is None:
        return None
    if hours is None:
        raise parsed.error(path, "it needs hours of requests; give `demand.traffic`, with a column requests_per_s")
    is_fixed = section.min_replicas == section.max_replicas
    needed = {"request_time": fleet.residence_s, "slots": slots, "cold_start": 0.0 if is_fixed else fleet.cold_start_s}
    missing = [f"`replica.{name}`" for name, value in needed.items() if value is None]
    if missing or fleet.residence_s is None or slots is None:
        raise parsed.error(path, f"it needs {' and '.join(missing)}; add that, or name a run that measured it")
    with _placed(parsed, *path):
        scaling = Scaling(
            slots=slots,
            min_replicas=section.min_replicas,
            max_replicas=section.max_replicas,
            target_ratio=section.target_load,
            interval_s=section.interval,
            cooldown_s=section.cooldown,
            cold_start_s=fleet.cold_start_s or 0.0,
            balancer=Balancer(section.balancer),
        )
        require_slots(fleet.replica.per_s, fleet.residence_s, slots)
        return simulate_hours(
            hours,
            Service(fleet.residence_s, section.request_time_cv),
            scaling,
            wait_s=section.max_wait,
            usd_per_hour=fleet.replica.usd_per_hour,
            generator=np.random.default_rng(section.seed),
        )


def _text(path: Path) -> str:
    """Read a text file. Raises ValueError that names it."""
    try:
        return read_text_file(path, _MAX_BYTES)
    except FileNotFoundError:
        example = "write one, like `demand: {output_tokens_per_s: 5000}` (docs/guides/cost.md)"
        raise ValueError(f"{path}: there is no such file; {example}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """Figures of a whole replica and of its mean request; None where unknown."""

    usd_per_hour: float | None
    overhead_ratio: float | None
    residence_s: float | None
    tokens_per_request: float | None
    cold_start_s: float | None
    slots: int | None


def _completed(stated: ReplicaFigures, measured: ReplicaFigures, seen: RunSeen) -> tuple[ReplicaFigures, RunSeen]:
    """Return the stated figures with the run's in the gaps, and the run with what was taken and overridden.

    A mismatch between the run's price and its accelerators matters only where that price is taken.
    """
    ours, given = asdict(measured), asdict(stated)
    found = {name: value for name, value in ours.items() if value is not None and given[name] is None}
    pairs = {name: (given[name], ours[name]) for name in given if None not in (given[name], ours[name])}
    other = {name: both for name, both in pairs.items() if not math.isclose(*both)}
    unpaid = seen.unpaid if "usd_per_hour" in found else None
    return replace(stated, **found), replace(seen, taken=tuple(found), overridden=other, unpaid=unpaid)


def _measured_run(run: str, arm: str, stage: str | None, address: str) -> tuple[RunSeen, ReplicaFigures]:
    """Read a stored run and choose its level. Raises UsageError with the reason if nothing can be sized by it."""
    from benchgate.gate.evidence.costs import price_mismatch
    from benchgate.gate.summary.metric_rows import metric_rows
    from benchgate.model.run import RunStatus
    from benchgate.report.sizing import NamedRun
    from benchgate.sizing.candidates import OF_LOAD, guard_objection, ineligible_because
    from benchgate.suite.schema import Suite

    if arm not in [one.value for one in Arm]:
        raise UsageError(f"--arm is {arm!r}; expected {' or '.join(one.value for one in Arm)}")
    role = Arm(arm)
    with options.open_store(address) as opened:
        stored = opened.run(options.find_run(opened, run))
        judged = [one.document for one in opened.verdicts(stored.id) if one.of_the_run_itself]
        verdict = judged[-1] if judged else None
        why = ineligible_because(stored, verdict)
        if verdict is not None and (doubt := guard_objection(verdict, OF_LOAD)) is not None:
            why = f"was measured so that its load says nothing: {doubt}"
        if why is not None or verdict is None:
            judged_so = verdict is not None and not stored.calibrates
            next_step = f"; `benchgate report {stored.id}` says why: fix that and measure again" if judged_so else ""
            if stored.status is RunStatus.PARTIAL:
                next_step = f"; resume it with `benchgate run SUITE --resume --run {stored.id}`"
            raise UsageError(f"run {stored.id} {why}, so nothing is sized by it{next_step}")
        if role not in stored.arms:
            raise UsageError(f"run {stored.id} has no {role.value}")
        kept = opened.metrics(stored.id)
        evidence = None if opened.removal(stored.id) is not None else opened.evidence(stored.id)
    made = kept if evidence is None else metric_rows(evidence)
    try:
        seen = _seen(made, kept, Suite.from_stored(stored.suite), role, stage, evidence)
    except UsageError as error:
        raise UsageError(f"run {stored.id}: {error}") from None
    deployment, row = stored.arms[role], seen.choice.row
    named = NamedRun(
        id=stored.id,
        label=stored.label,
        suite=stored.suite_name,
        day=stored.day.isoformat(),
        deployment=deployment.name,
        arm=role.value,
        outcome=str(verdict["outcome"]),
    )
    mismatch, price = price_mismatch(deployment), deployment.price_usd_per_hour
    unpaid = None if mismatch is None else f"the {role.value} {mismatch}"
    figures = ReplicaFigures(
        usd_per_hour=None if price is None else price * deployment.accelerators,
        overhead_ratio=deployment.overhead_ratio,
        residence_s=row.e2e_mean_s,
        tokens_per_request=row.tokens_per_request,
        cold_start_s=None if seen.starts is None else seen.starts.worst_s,  # the median is late half of the time
        slots=row.in_flight,
    )
    return replace(seen, run=named, accelerators=deployment.accelerators, unpaid=unpaid), figures


def _seen(
    rows: Sequence[MetricRow],
    kept: Sequence[MetricRow],
    suite: Suite,
    role: Arm,
    stage: str | None,
    evidence: Evidence | None,
) -> RunSeen:
    """Return the results by `rows`; `kept` are those of the store, compared with them where both are known."""
    from benchgate.gate.checks.capacity import unused_search_note
    from benchgate.gate.summary.metric_rows import mismatches
    from benchgate.report.comparability import client_care, widened_line
    from benchgate.report.sizing import RunSeen
    from benchgate.sizing.operating_point import (
        choose_operating_point,
        known_levels,
        levels_of,
        mean_residence_s,
        queue_trends,
    )
    from benchgate.sizing.signals import cache_use, cold_starts, deployment_replicas, scaling_signals

    stays_s = {} if evidence is None else mean_residence_s(evidence, role)
    watched = {} if evidence is None else queue_trends(evidence, suite, role)
    piling_up = [stage for stage, seen in watched.items() if seen.piles_up]
    levels = levels_of(rows, suite, role, stays_s, piling_up)
    choice = levels if isinstance(levels, str) else choose_operating_point(levels, role, stage)
    searched = None if evidence is None else unused_search_note(evidence, suite, role)
    if isinstance(choice, str) or isinstance(levels, str):
        raise UsageError(str(choice) if searched is None else f"{choice}. {searched}")
    replicas = deployment_replicas(evidence, suite, role)
    if evidence is None:
        return RunSeen(
            choice,
            cache_use="the run's raw records were removed",
            from_records=False,
            care=tuple(filter(None, [widened_line(suite)])),
            deployment_replicas=replicas,
        )
    return RunSeen(
        choice,
        signals=scaling_signals(evidence, known_levels(levels), choice.row, role),
        starts=cold_starts(evidence, role),
        cache_use=cache_use(evidence, choice.row.stage, role),
        care=client_care(suite, evidence),
        unlike=len(mismatches(kept, rows)),
        searched=searched,
        watched=watched.get(choice.row.stage),
        deployment_replicas=replicas,
    )
