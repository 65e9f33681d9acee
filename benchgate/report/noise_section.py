"""The noise of the baseline: how much each number varies by itself, how often answers differ, how often a gate errs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate import units
from benchgate.model.metric import POINTS_METRICS
from benchgate.model.noise import FalseBlocks, NoiseProfile, NoiseSpread, SelfDisagreement, format_age
from benchgate.model.run import Evidence
from benchgate.model.verdict import Verdict
from benchgate.report import show
from benchgate.report.tables import Column, Table
from benchgate.stats.distributions import deviation_limits
from benchgate.stats.proportions import clopper_pearson

_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class NoiseSection:
    """`table` has the numbers that the verdict's checks look at; None where there is none of them."""

    table: Table | None
    lines: tuple[str, ...]


def noise_section(evidence: Evidence, verdict: Verdict) -> NoiseSection | None:
    """The profile that was known when the run ended; None without one."""
    profile, run = evidence.noise, evidence.run
    if profile is None:
        return None
    checked = {(check.metric, check.statistic, check.stage) for check in verdict.checks}
    spreads = [one for one in profile.spreads if (one.metric, one.statistic, one.stage) in checked]
    table = Table(_CAPTION, _COLUMNS, tuple(_row(one) for one in spreads)) if spreads else None
    lines = (*_head(profile, run.finished_at or run.started_at), *_found(profile))
    return NoiseSection(table, lines)


def noise_lines(profile: NoiseProfile, at: str) -> Iterator[str]:
    """A profile as plain lines, `at` an instant: how old it is, every number's spread, what follows."""
    yield from _head(profile, at)
    for one in profile.spreads:
        name, where, run, paired, n = _row(one)
        yield f"  {name:26} {where:16} run to run {run:32} paired {paired:10} {n} pairs"
    yield from _found(profile)


_CAPTION = "How much each number of a block varies by itself"
_COLUMNS = (
    Column("number", numeric=False),
    Column("stage", numeric=False),
    Column("from run to run"),
    Column("between the arms of a pair"),
    Column("pairs"),
)


def _row(spread: NoiseSpread) -> tuple[str, ...]:
    limits = deviation_limits(spread.cv_run, spread.n, _ALPHA)
    shown = units.show_points if spread.metric in POINTS_METRICS else units.show_percent
    run = f"{shown(spread.cv_run)} ({shown(limits.lower)} to {shown(limits.upper)})"
    name = " ".join(part for part in (spread.metric, spread.statistic) if part is not None)
    return name, spread.stage, run, shown(spread.sd_paired), show.count(spread.n)


def _head(profile: NoiseProfile, at: str) -> Iterator[str]:
    key = profile.key
    version = f" {profile.engine_version}" if profile.engine_version is not None else ""
    measured = f"measured {profile.measured_at}, {format_age(profile.age_at(at))} before this run ended"
    if at == profile.measured_at:
        measured = f"measured {profile.measured_at}"
    yield f"Noise profile of run {profile.run_id}, {measured}"
    yield f"{key.model} on {key.engine}{version}; {key.hardware}"


def _found(profile: NoiseProfile) -> Iterator[str]:
    for one in profile.disagreement:
        yield _disagreement(one)
    if profile.false_block is not None:
        yield _false_blocks(profile.false_block, profile.blocks)


def _disagreement(one: SelfDisagreement) -> str:
    limits = clopper_pearson(one.differing, one.n, _ALPHA)
    what = "shadow prompts" if one.kind == "shadow" else f"items of {one.name}"
    between = f"{units.show_percent(limits.lower)} to {units.show_percent(limits.upper)}"
    return (
        f"asked twice, {one.differing:,} of {one.n:,} {what} came out otherwise: {show.percent(one.share)} ({between})"
    )


def _false_blocks(found: FalseBlocks, pairs: int) -> str:
    limits = clopper_pearson(found.blocked, found.of, _ALPHA)
    return (
        f"nothing changed, and over {found.of:,} orders of the {pairs} pairs the policy promotes {found.promoted:,}, "
        f"blocks {found.blocked:,} (at most {units.show_percent(limits.upper)} in orders of these pairs), "
        f"{found.undecided}"
    )
