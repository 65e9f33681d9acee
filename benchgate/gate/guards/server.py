"""Guards over telemetry: was each server the same one throughout, did it serve this load alone, was its cache cold?

Without telemetry they hold and say that nothing is known: a server need not show its metrics. Why the bounds are where
they are: docs/telemetry.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import pairwise, product
from operator import add

from benchgate.gate.comparison import arms_of
from benchgate.gate.evidence.telemetry import Counted, counted, executions_of, windows_of
from benchgate.gate.guards.base import SPEED, gravest, held, spoils_of, tripped, unknown
from benchgate.model.deployment import Arm
from benchgate.model.metric import TELEMETRY_METRICS
from benchgate.model.request_metrics import cached_ratio
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Counter, TelemetryWindow
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Level
from benchgate.units import show_percent

SAID = 0.01  # of what the client counts; more is said
SHARED = 0.05  # over all blocks of a stage; more is another load than the one that was planned
SHARED_IN_A_BLOCK = 0.2
CACHED_SAID = 0.01  # of the tokens looked up; prompts that share nothing find only what a template puts before them
CACHED = 0.1
CACHED_GAP = 0.05  # between the arms, in shares

_WARM_REMEDY = (
    "let nothing else ask the same prompts (with `salt: false`, restart the servers first), or serve without it; where "
    "it is the chat template alone that is found, ask with longer prompts"
)
_NOTHING = "the servers told nothing of themselves, so this is not known"


def telemetry_guards(evidence: Evidence, suite: Suite) -> list[GuardResult]:
    """All of them, in a fixed order; of a run in which nobody looked what the answers themselves tell."""
    if not evidence.telemetry:
        cold = _cache_was_cold(evidence, suite)
        return [cold] if cold.known else []
    return [_kept_running(evidence, suite), _served_alone(evidence, suite), _cache_was_cold(evidence, suite)]


def telemetry_notices(evidence: Evidence, suite: Suite) -> tuple[str, ...]:
    """What telemetry shows that a reader should know and that trips no guard."""
    return (*restarts_between(evidence, Arm), *_unequal_counts(evidence, suite), *_warm(evidence, suite))


def _kept_running(evidence: Evidence, suite: Suite) -> GuardResult:
    """In a stage with actions a restart is what the suite asked for.

    Of servers that answer in turn each look is of another one. That cannot be told from one that is restarted and
    says so by turns, so a policy that rests on what the candidate's server says cannot be held.
    """
    name = "server-kept-running"
    disturbed = {stage.name for stage in (suite.load.sweep if suite.load else ()) if stage.actions}
    if not any(window.readings for window in evidence.telemetry):
        return unknown(name, _NOTHING)
    untold = [arm for arm in Arm if _several_answer(_of_arm(evidence, arm))]
    if Arm.CANDIDATE in untold and any(c.required and c.metric in TELEMETRY_METRICS for c in suite.gate.checks):
        what = f"{_in_turn(untold)}, and a required check rests on what the candidate's server says of itself"
        return tripped(name, what, "give `metrics` the address of one server, or of what adds them up")
    for arm in (Arm.CANDIDATE, Arm.BASELINE):  # a fault of the candidate's own spoils more
        if arm in untold:
            continue
        for window in _of_arm(evidence, arm):
            if window.restarted and window.stage not in disturbed:
                where = f"stage {window.stage}, block {window.block + 1}, {arm.value}"
                what = f"{where}: {_how_restarted(window)}"
                remedy = "see in its log why it went down; run again when it stays up"
                return tripped(name, what, remedy, spoils_of(arm, "load"))
    if untold:
        return unknown(name, f"not checked: {_in_turn(untold)}")
    return held(name, "no server was restarted during a stage, as far as they say")


def _in_turn(arms: list[Arm]) -> str:
    told = " and ".join(f"the {arm.value}" for arm in arms)
    return f"several servers answer in turn for {told}, or one is restarted, so restarts are not known"


def _how_restarted(window: TelemetryWindow) -> str:
    if len(window.markers) > 1:
        return "the server was restarted while it was measured"
    return "a counter of the server went back: it, or one of several behind its address, was restarted or lost"


def _several_answer(windows: list[TelemetryWindow]) -> bool:
    """A process that is gone does not come back, so a marker that does is of one of several behind one address."""
    markers = [marker for window in windows for marker in window.markers]
    in_turn = [marker for i, marker in enumerate(markers) if i == 0 or marker != markers[i - 1]]
    return len(in_turn) > len(set(in_turn))


def restarts_between(evidence: Evidence, arms: Iterable[Arm]) -> Iterator[str]:
    """Where the server of one of these arms was another process than at the stage before, as far as it says."""
    for arm in arms:
        windows = _of_arm(evidence, arm)
        if _several_answer(windows):
            yield (
                f"several servers answer in turn when the {arm.value} is asked for its metrics, so each look tells of "
                "one of them; give `metrics` the address of one, or of what adds them up"
            )
            continue
        for one, other in pairwise(windows):
            if one.markers and other.markers and one.markers[-1] != other.markers[0]:
                yield f"the {arm.value} was restarted before block {other.block + 1}, stage {other.stage}"


def _served_alone(evidence: Evidence, suite: Suite) -> GuardResult:
    """More than the client asked for is someone else's: then the arms did not do the same work."""
    name = "server-alone"
    told = False
    for arm, stage in product((Arm.CANDIDATE, Arm.BASELINE), _stages(suite)):  # a fault of its own spoils more
        by_block = _counts(evidence, suite, stage, arm)
        told = told or bool(by_block)
        for block, counts in by_block.items():
            for count in counts:
                if count.beyond_ratio > SHARED_IN_A_BLOCK:
                    return _shared(name, arm, f"stage {stage}, block {block + 1}", count, SHARED_IN_A_BLOCK)
        for count in _together(by_block):
            if count.beyond_ratio > SHARED:
                return _shared(name, arm, f"stage {stage}", count, SHARED)
    return held(name, "no server did more than it was asked for") if told else unknown(name, _NOTHING)


def _shared(name: str, arm: Arm, where: str, count: Counted, bound: float) -> GuardResult:
    what = (
        f"{where}, {arm.value}: the server counted {count.server:,.0f} {count.what} where the load generator asked for "
        f"at most {count.most:,.0f} (bound {bound:.0%} more): a shared server, others use it too"
    )
    remedy = "measure when nobody else uses the server, or give it one of its own"
    return tripped(name, what, remedy, spoils_of(arm, "load"))


def _unequal_counts(evidence: Evidence, suite: Suite) -> Iterator[str]:
    for stage, arm in product(_stages(suite), Arm):
        for count in _together(_counts(evidence, suite, stage, arm)):
            where = f"stage {stage}, {arm.value}: the server counted {count.server:,.0f} {count.what}"
            if count.beyond_ratio > SAID:
                yield f"{where}, {show_percent(count.beyond_ratio)} more than the load generator asked for"
            elif count.short_ratio > SAID:
                told = f"{show_percent(count.short_ratio)} fewer than the load generator got"
                yield f"{where}, {told}: its metrics do not tell of all that served this load"


def _counts(evidence: Evidence, suite: Suite, stage: str, arm: Arm) -> dict[int, list[Counted]]:
    """What server and client counted in each block; nothing for a server of which one of several answers."""
    if _several_answer(_of_arm(evidence, arm)):
        return {}
    executions, windows = executions_of(evidence, stage, arm), windows_of(evidence, stage, arm)
    levels = _levels(suite, stage)
    unrecorded = sum(level.course.concurrency or 0 for level in levels if level.background)
    longest = _longest(evidence, levels)
    generates = all(level.workload.generates for level in levels)
    found = {
        block: [
            count
            for count in counted(windows[block], seen, unrecorded, longest, generates=generates)
            if not (count.what == "prompt tokens" and _cut_unseen(levels, seen))
        ]
        for block, seen in sorted(executions.items())
        if block in windows
    }
    return {block: counts for block, counts in found.items() if counts}


def _cut_unseen(levels: list[Level], seen: list[LoadObservation]) -> bool:
    """Whether all that was sent of some traffic in the background was cut off: none tells how long its prompts were."""
    answered = {o.stage for o in seen if len(o.requests)}
    return any(level.background and level.name not in answered for level in levels)


def _together(by_block: dict[int, list[Counted]]) -> list[Counted]:
    kinds: dict[str, list[Counted]] = {}
    for counts in by_block.values():
        for count in counts:
            kinds.setdefault(count.what, []).append(count)
    return [reduce(add, counts) for counts in kinds.values()]


def _longest(evidence: Evidence, levels: list[Level]) -> int:
    """The most tokens an answer of the stage can have: as asked, or as one really had."""
    asked = max((level.workload.most_output_tokens or 0 for level in levels), default=0)
    names = {level.name for level in levels}
    had = max((int(o.requests.output_tokens.max()) for o in evidence.load if o.stage in names and len(o.requests)),
              default=0)  # fmt: skip
    return max(asked, had)


def _cache_was_cold(evidence: Evidence, suite: Suite) -> GuardResult:
    """Prompts that share nothing must not be found in a cache: then one arm was asked what it had already answered."""
    name = "cache-cold"
    apart = [stage for stage in _stages(suite) if not all(map(_shares, _levels(suite, stage)))]
    if not apart:
        return unknown(name, "not looked at: the prompts share what they begin with on purpose")
    if len(arms_of(evidence)) < len(Arm):
        return unknown(name, "not looked at: one deployment was measured, and there is no other cache beside it")
    told, found = False, []
    for stage in apart:
        ratios = _hit_ratios(evidence, suite, stage)
        told = told or bool(ratios)
        if not ratios:
            continue
        warmer = max(ratios, key=lambda arm: ratios[arm])
        others = ratios.get(warmer.other)
        if ratios[warmer] <= CACHED or (others is not None and ratios[warmer] - others <= CACHED_GAP):
            continue
        what = f"{show_percent(ratios[warmer])} of the {warmer.value}'s prompts was in its prefix cache already"
        if others is None:
            what += f", and nobody tells of the {warmer.other.value}'s"
        else:
            what += f" ({show_percent(others)} of the {warmer.other.value}'s)"
        is_warm = Arm.CANDIDATE if ratios.get(Arm.CANDIDATE, 1.0) > CACHED else Arm.BASELINE
        what = f"stage {stage}: {what}, though the workload shares no prefixes"
        found.append(tripped(name, what, _WARM_REMEDY, spoils_of(is_warm, SPEED)))
    tripping = gravest(found)
    if tripping is not None:
        return tripping
    if not told:
        return unknown(name, "neither metrics nor answers tell what was in a prefix cache, so this is not known")
    return held(name, "no arm had the prompts in its prefix cache before the other")


def _warm(evidence: Evidence, suite: Suite) -> Iterator[str]:
    for stage in _stages(suite):
        for arm, ratio in _hit_ratios(evidence, suite, stage).items():
            if ratio >= CACHED_SAID:
                told = f"{show_percent(ratio)} of the {arm.value}'s prompts was in its prefix cache"
                yield f"stage {stage}: {told}, though the workload shares no prefixes"


def _hit_ratios(evidence: Evidence, suite: Suite, stage: str) -> dict[Arm, float]:
    """Over all blocks, of the arms that tell it; none for a workload whose prompts do share what they begin with.

    By the server's metrics, which are of all classes together, or by the answers, each of which says how many tokens of
    its prompt were cached: by what both arms tell, else by what one does.
    """
    levels = _levels(suite, stage)
    alone = [level.name for level in levels if not _shares(level)]
    by_server = {arm: hits_of_server(evidence, stage, arm) if len(alone) == len(levels) else None for arm in Arm}
    by_answers = {arm: hits_of_answers(evidence, alone, arm) for arm in Arm}
    known = [{arm: ratio for arm, ratio in told.items() if ratio is not None} for told in (by_server, by_answers)]
    return max(known, key=len)


def hits_of_server(evidence: Evidence, stage: str, arm: Arm) -> float | None:
    """Prompt tokens found in the prefix cache over those looked up, by the server's own counters over all blocks."""
    changes = [
        (window.change(Counter.PREFIX_HITS), window.change(Counter.PREFIX_QUERIES))
        for window in windows_of(evidence, stage, arm).values()
    ]
    known = [(hits, queries) for hits, queries in changes if hits is not None and queries is not None]
    queries = sum(queries for _, queries in known)
    return sum(hits for hits, _ in known) / queries if queries > 0 else None


def hits_of_answers(evidence: Evidence, names: list[str], arm: Arm) -> float | None:
    """The same by what the answers say of their own prompts, over the classes of these names."""
    return cached_ratio(*(o.requests for o in evidence.load if o.arm is arm and o.stage in names))


def _shares(level: Level) -> bool:
    """Whether prompts may begin alike on purpose: by a prefix, a conversation, recorded texts, or the same tools.

    In the background the same ones are asked again and again, oftener by the faster arm.
    """
    workload = level.workload
    said = (workload.prefix, workload.session, workload.prompts, workload.tools, workload.answer_schema)
    return level.background or level.course.trace is not None or any(part is not None for part in said)


def _of_arm(evidence: Evidence, arm: Arm) -> list[TelemetryWindow]:
    """The windows of an arm in order of time."""
    return sorted((w for w in evidence.telemetry if w.arm is arm and w.readings), key=lambda window: window.position)


def _stages(suite: Suite) -> list[str]:
    return [stage.name for stage in suite.load.sweep] if suite.load else []


def _levels(suite: Suite, stage: str) -> list[Level]:
    return [level for level in suite.load.levels() if level.stage == stage] if suite.load else []
