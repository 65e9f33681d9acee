"""Guards over telemetry: was each server the same one throughout, did it serve this load alone, was its cache cold?

A server need not show its metrics: then nothing is known, and the guards say so. Why the bounds are where they are:
docs/telemetry.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import pairwise, product
from operator import add

from benchgate.gate.comparison import arms_of
from benchgate.gate.evidence.telemetry import (
    Counted,
    answer_hit_ratio,
    counted,
    executions_of,
    server_hit_ratio,
    windows_of,
)
from benchgate.gate.guards.base import (
    LOAD,
    SPEED,
    TELEMETRY,
    Need,
    NotApplicable,
    Violation,
    guard,
    invalidated_by,
    most_serious,
)
from benchgate.model.deployment import Arm
from benchgate.model.metric import TELEMETRY_METRICS
from benchgate.model.run import Evidence
from benchgate.model.telemetry import TelemetryWindow
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Level
from benchgate.units import show_percent

_NOTICED = 0.01  # of what the client counts; more is said in a notice
_SHARED = 0.05  # over all blocks of a stage; more is another load than the one that was planned
_SHARED_IN_A_BLOCK = 0.2
_CACHED_NOTICED = 0.01  # of the tokens looked up; prompts that share nothing find only what a template puts before them
_CACHED = 0.1
_CACHED_GAP = 0.05  # between the arms, in shares

_NOTHING = NotApplicable("the servers reported nothing about themselves, so this is not known")
_CANDIDATE_FIRST = (Arm.CANDIDATE, Arm.BASELINE)  # a fault of the candidate's own invalidates more


def telemetry_notices(run: Evidence, suite: Suite) -> tuple[str, ...]:
    """Return what telemetry shows that a reader should know and that trips no guard."""
    return (*restarts_between(run, Arm), *_unequal_counts(run, suite), *_warm_caches(run, suite))


@guard("server-kept-running", "no server was restarted during a stage, as far as they say", needs=TELEMETRY)
def server_kept_running(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that was restarted during a stage: latency of a start is not latency of a deployment.

    Its process changed (`process_start_time_seconds`, vLLM's `_created`, llama.cpp's header), or a counter went back.
    This invalidates the load, or where it was the baseline's server, comparisons of the load. In a stage with actions a
    restart is what the suite asked for. Where markers come back, several servers answer in turn and restarts cannot be
    seen: not applicable, unless a required check rests on what the candidate's server says, which invalidates nothing
    and prevents a PASS.
    """
    disturbed = {stage.name for stage in (suite.load.sweep if suite.load else ()) if stage.actions}
    if not any(window.readings for window in run.telemetry):
        return _NOTHING
    in_turn = [arm for arm in Arm if _several_answer(_windows(run, arm))]
    who = " and ".join(f"the {arm.value}" for arm in in_turn)
    unclear = f"several servers answer in turn for {who}, or one is restarted, so restarts are not known"
    if Arm.CANDIDATE in in_turn and any(c.required and c.metric in TELEMETRY_METRICS for c in suite.gate.checks):
        reason = f"{unclear}, and a required check rests on what the candidate's server says of itself"
        return Violation(reason, "give `metrics` the address of one server, or of what adds them up")
    for arm in (arm for arm in _CANDIDATE_FIRST if arm not in in_turn):
        for window in _windows(run, arm):
            if window.restarted and window.stage not in disturbed:
                how = (
                    "a counter of the server went back: it, or one of several behind its address, was restarted or lost"
                )
                if len(window.markers) > 1:
                    how = "the server was restarted while it was measured"
                reason = f"stage {window.stage}, block {window.block + 1}, {arm.value}: {how}"
                remedy = "see in its log why it went down; run again when it stays up"
                return Violation(reason, remedy, invalidates=invalidated_by(arm, LOAD))
    return NotApplicable(f"not checked: {unclear}") if in_turn else None


def restarts_between(run: Evidence, arms: Iterable[Arm]) -> Iterator[str]:
    """Yield where the server of one of these arms was another process than at the stage before, as far as it says."""
    for arm in arms:
        windows = _windows(run, arm)
        if _several_answer(windows):
            yield (
                f"several servers answer in turn when the {arm.value} is asked for its metrics, so each reading is "
                "of one of them; give `metrics` the address of one, or of what adds them up"
            )
            continue
        for one, other in pairwise(windows):
            if one.markers and other.markers and one.markers[-1] != other.markers[0]:
                yield f"the {arm.value} was restarted before block {other.block + 1}, stage {other.stage}"


def _several_answer(windows: list[TelemetryWindow]) -> bool:
    """A process that is gone does not come back, so a marker that does is of one of several behind one address."""
    markers = [marker for window in windows for marker in window.markers]
    in_turn = [marker for i, marker in enumerate(markers) if i == 0 or marker != markers[i - 1]]
    return len(in_turn) > len(set(in_turn))


def _windows(run: Evidence, arm: Arm) -> list[TelemetryWindow]:
    """The windows of an arm in order of time."""
    return sorted((w for w in run.telemetry if w.arm is arm and w.readings), key=lambda window: window.position)


@guard("server-alone", "no server did more than it was asked for", invalidates=LOAD, by_arm=True, needs=TELEMETRY)
def server_alone(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that did more than was asked of it: others used it, so the arms did not do the same work.

    It counted over 5 % more requests, prompt tokens or generated tokens than were asked of it in a stage, or over 20 %
    in one block.
    """
    counts_are_known = False
    for arm, stage in product(_CANDIDATE_FIRST, _stages(suite)):
        by_block = _counts(run, suite, stage, arm)
        counts_are_known = counts_are_known or bool(by_block)
        where = f"stage {stage}"
        found = [(f"{where}, block {n + 1}", one, _SHARED_IN_A_BLOCK) for n, each in by_block.items() for one in each]
        for place, count, bound in (*found, *((where, one, _SHARED) for one in _together(by_block))):
            if count.beyond_ratio > bound:
                asked = f"the load generator asked for at most {count.most:,.0f} (bound {bound:.0%} more)"
                what = f"the server counted {count.server:,.0f} {count.what} where {asked}"
                reason = f"{place}, {arm.value}: {what}: a shared server, others use it too"
                return Violation(reason, "measure when nobody else uses the server, or give it one of its own", arm)
    return None if counts_are_known else _NOTHING


def _unequal_counts(run: Evidence, suite: Suite) -> Iterator[str]:
    for stage, arm in product(_stages(suite), Arm):
        for count in _together(_counts(run, suite, stage, arm)):
            where = f"stage {stage}, {arm.value}: the server counted {count.server:,.0f} {count.what}"
            if count.beyond_ratio > _NOTICED:
                yield f"{where}, {show_percent(count.beyond_ratio)} more than the load generator asked for"
            elif count.short_ratio > _NOTICED:
                fewer = f"{show_percent(count.short_ratio)} fewer than the load generator got"
                yield f"{where}, {fewer}: its metrics do not cover all servers of this load"


def _counts(run: Evidence, suite: Suite, stage: str, arm: Arm) -> dict[int, list[Counted]]:
    """Return what server and client counted in each block; nothing for a server of which one of several answers."""
    if _several_answer(_windows(run, arm)):
        return {}
    executions, windows = executions_of(run, stage, arm), windows_of(run, stage, arm)
    levels = _levels(suite, stage)
    unrecorded = sum(level.course.concurrency or 0 for level in levels if level.background)
    names = {level.name for level in levels}
    had = (int(o.requests.output_tokens.max()) for o in run.load if o.stage in names and len(o.requests))
    longest = max((*(level.workload.most_output_tokens or 0 for level in levels), *had), default=0)
    generates = all(level.workload.generates for level in levels)
    found: dict[int, list[Counted]] = {}
    for block in sorted(executions.keys() & windows.keys()):
        seen = executions[block]
        answered = {o.stage for o in seen if len(o.requests)}
        # of background traffic that was cut off altogether, nobody knows how long its prompts were
        cut_off = any(level.background and level.name not in answered for level in levels)
        counts = counted(windows[block], seen, unrecorded, longest, generates=generates)
        found[block] = [count for count in counts if not (cut_off and count.what == "prompt tokens")]
    return {block: counts for block, counts in found.items() if counts}


def _together(by_block: dict[int, list[Counted]]) -> list[Counted]:
    kinds: dict[str, list[Counted]] = {}
    for counts in by_block.values():
        for count in counts:
            kinds.setdefault(count.what, []).append(count)
    return [reduce(add, counts) for counts in kinds.values()]


def _cache_is_known(run: Evidence, suite: Suite) -> bool:
    """Without telemetry the answers may say how many tokens of their prompts were cached."""
    if run.telemetry:
        return True
    return len(arms_of(run)) == len(Arm) and any(_hit_ratios(run, suite, stage) for stage in _unshared_stages(suite))


CACHE_COUNTS = Need("telemetry, or answers that say how much of their prompt was cached", _cache_is_known)


@guard(
    "cache-cold",
    "no arm's prefix cache already held the prompts",
    invalidates=SPEED,
    by_arm=True,
    needs=CACHE_COUNTS,
)
def cache_cold(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag an arm that was asked what its prefix cache had already, where prompts share nothing on purpose.

    Over 10 % of its prompt tokens were in the cache, and 5 points more than on the other arm, or the other arm's are
    not reported.
    """
    stages = _unshared_stages(suite)
    if not stages:
        return NotApplicable("not looked at: the prompts share prefixes on purpose")
    if len(arms_of(run)) < len(Arm):
        return NotApplicable("not looked at: one deployment was measured, so there is no other cache to compare with")
    found, by_stage = [], {stage: _hit_ratios(run, suite, stage) for stage in stages}
    for stage, ratios in by_stage.items():
        warmer = max(ratios, key=lambda arm: ratios[arm], default=Arm.BASELINE)
        ratio, other = ratios.get(warmer, 0.0), ratios.get(warmer.other)
        if ratio <= _CACHED or (other is not None and ratio - other <= _CACHED_GAP):
            continue
        beside = f", and the {warmer.other.value}'s is not reported"
        if other is not None:
            beside = f" ({show_percent(other)} of the {warmer.other.value}'s)"
        what = f"{show_percent(ratio)} of the {warmer.value}'s prompts was in its prefix cache already{beside}"
        remedy = (
            "let nothing else ask the same prompts (with `salt: false`, restart the servers first), or serve without "
            "it; where it is the chat template alone that is found, ask with longer prompts"
        )
        at_fault = Arm.CANDIDATE if ratios.get(Arm.CANDIDATE, 1.0) > _CACHED else Arm.BASELINE
        found.append(Violation(f"stage {stage}: {what}, though the workload shares no prefixes", remedy, at_fault))
    if not any(by_stage.values()):
        return NotApplicable("neither metrics nor answers report prefix cache hits, so this is not known")
    return most_serious(found)


def _warm_caches(run: Evidence, suite: Suite) -> Iterator[str]:
    for stage in _stages(suite):
        for arm, ratio in _hit_ratios(run, suite, stage).items():
            if ratio >= _CACHED_NOTICED:
                cached = f"{show_percent(ratio)} of the {arm.value}'s prompts was in its prefix cache"
                yield f"stage {stage}: {cached}, though the workload shares no prefixes"


def _hit_ratios(run: Evidence, suite: Suite, stage: str) -> dict[Arm, float]:
    """Return the hit ratio over all blocks, of the arms that tell it; none where prompts share what they begin with.

    By the server's metrics, which are of all classes together, or by the answers, each of which says how many tokens of
    its prompt were cached: by what both arms tell, else by what one does.
    """
    levels = _levels(suite, stage)
    alone = [level.name for level in levels if not _shares_prefixes(level)]
    by_server = {arm: server_hit_ratio(run, stage, arm) if len(alone) == len(levels) else None for arm in Arm}
    by_answers = {arm: answer_hit_ratio(run, alone, arm) for arm in Arm}
    known = [{arm: ratio for arm, ratio in told.items() if ratio is not None} for told in (by_server, by_answers)]
    return max(known, key=len)


def _unshared_stages(suite: Suite) -> list[str]:
    return [stage for stage in _stages(suite) if not all(map(_shares_prefixes, _levels(suite, stage)))]


def _shares_prefixes(level: Level) -> bool:
    """Return True where prompts may begin alike on purpose: by a prefix, a conversation, recorded texts or tools.

    In the background the same prompts are asked again and again, oftener by the faster arm.
    """
    workload = level.workload
    shared = (workload.prefix, workload.session, workload.prompts, workload.tools, workload.answer_schema)
    return level.background or level.course.trace is not None or any(part is not None for part in shared)


def _stages(suite: Suite) -> list[str]:
    return [stage.name for stage in suite.load.sweep] if suite.load else []


def _levels(suite: Suite, stage: str) -> list[Level]:
    return [level for level in suite.load.levels() if level.stage == stage] if suite.load else []
