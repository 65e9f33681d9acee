"""The noise section: how much each number varies by itself, how often answers differ, how often the gate would err."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate import units
from benchgate.model.metric import POINTS_METRICS
from benchgate.model.noise import FalseBlocks, NoiseProfile, NoiseSpread, SelfDisagreement, format_age
from benchgate.model.run import Evidence
from benchgate.model.verdict import Verdict
from benchgate.report import display
from benchgate.report.section import Lines, Section, notes, present
from benchgate.report.table import Table, number_columns, text_columns
from benchgate.stats.distributions import deviation_limits
from benchgate.stats.proportions import clopper_pearson

_ALPHA = 0.05


_NOTE = (
    "Measured by `benchgate calibrate`: standard deviations of the baseline against itself, of logarithms (of points "
    "for shares), with their intervals."
)
_COLUMNS = (
    *text_columns("metric", "stage"),
    *number_columns("between runs", "between paired arms", "pairs"),
)


def noise_section(evidence: Evidence, verdict: Verdict) -> Section | None:
    """Return the profile that was known when the run ended, with the numbers that checks use; None without one."""
    profile, run = evidence.noise, evidence.run
    if profile is None:
        return None
    checked = {(check.metric, check.statistic, check.stage) for check in verdict.checks}
    spreads = [one for one in profile.spreads if (one.metric, one.statistic, one.stage) in checked]
    rows = tuple(_row(one) for one in spreads)
    table = Table("Noise of each metric", _COLUMNS, rows) if spreads else None
    lines = Lines((*_head(profile, run.finished_at or run.started_at), *_found(profile)))
    return Section("noise", "Noise", present(notes(_NOTE), table, lines), summary=present(table, lines), rank=8)


def noise_lines(profile: NoiseProfile, at: str) -> Iterator[str]:
    """Yield a profile as plain lines: its age at an instant, every number's spread, and what follows."""
    yield from _head(profile, at)
    for one in profile.spreads:
        name, where, run, paired, n = _row(one)
        yield f"  {name:26} {where:16} run to run {run:32} paired {paired:10} {n} pairs"
    yield from _found(profile)


def _row(spread: NoiseSpread) -> tuple[str, ...]:
    limits = deviation_limits(spread.cv_run, spread.n, _ALPHA)
    shown = units.show_points if spread.metric in POINTS_METRICS else units.show_percent
    run = f"{shown(spread.cv_run)} ({shown(limits.lower)} to {shown(limits.upper)})"
    name = " ".join(part for part in (spread.metric, spread.statistic) if part is not None)
    return name, spread.stage, run, shown(spread.sd_paired), display.count(spread.n)


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
    share = f"{display.percent(one.share)} ({between})"
    return f"repeated, {one.differing:,} of {one.n:,} {what} differed: {share}"


def _false_blocks(found: FalseBlocks, pairs: int) -> str:
    limits = clopper_pearson(found.blocked, found.of, _ALPHA)
    return (
        f"nothing changed, and over {found.of:,} orders of the {pairs} pairs the policy promotes {found.promoted:,}, "
        f"blocks {found.blocked:,} (at most {units.show_percent(limits.upper)} in orders of these pairs), "
        f"{found.undecided}"
    )
