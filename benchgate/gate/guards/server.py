"""Guards over telemetry: restarts, other traffic on the servers, and warm prefix caches.

Without metrics of a server the guards are not applicable. The bounds are justified in docs/guides/servers.md.
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
    compare_counts,
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
from benchgate.model.request import ENDPOINTS
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, all_traffic, traffic_classes
from benchgate.suite.stages import stage_part
from benchgate.units import show_percent

_NOTICED = 0.01  # of the client's count; larger differences give a notice
_SHARED = 0.05  # over all blocks of a stage; beyond it the server had another load than planned
_SHARED_IN_A_BLOCK = 0.2
_CACHED_NOTICED = 0.01  # of the tokens looked up; prompts without a common prefix share only the chat template
_CACHED = 0.1
_CACHED_GAP = 0.05  # between the arms' shares

_ONE_PAGE = "the address of one server, or of a service that adds them up"
_NOTHING = NotApplicable("the servers reported no metrics, so this is not known")
_CANDIDATE_FIRST = (Arm.CANDIDATE, Arm.BASELINE)  # a fault of the candidate invalidates more


def telemetry_notices(run: Evidence, suite: Suite) -> tuple[str, ...]:
    """Return notices of restarts, unequal counts, warm caches and drafts of random words that trip no guard."""
    notices = list(restarts_between(run, Arm))
    for stage, arm in product(_stages(suite), Arm):
        for count in _together(_counts(run, suite, stage, arm)):
            where = f"stage {stage}, {arm.value}: the server counted {count.server:,.0f} {count.what}"
            if count.excess_ratio > _NOTICED:
                notices.append(f"{where}, {show_percent(count.excess_ratio)} more than the load generator requested")
            elif count.shortfall_ratio > _NOTICED:
                fewer = f"{show_percent(count.shortfall_ratio)} fewer than the load generator received"
                notices.append(f"{where}, {fewer}: its metrics do not cover all servers of this load")
    for stage in _stages(suite):
        for arm, ratio in _hit_ratios(run, suite, stage).items():
            if ratio >= _CACHED_NOTICED:
                cached = f"{show_percent(ratio)} of the {arm.value}'s prompt tokens were in its prefix cache"
                notices.append(f"stage {stage}: {cached}, though the workload shares no prefixes")
    return (*notices, *_drafts_of_random_words(run, suite))


def _drafts_of_random_words(run: Evidence, suite: Suite) -> Iterator[str]:
    """Yield a notice for each arm whose draft model met synthetic prompts: real text is accepted at another rate."""
    random = {
        level.stage
        for level in traffic_classes(suite)
        if level.workload.prompts is None and level.workload.sessions is None
    }
    for arm in Arm:
        drafting = dict.fromkeys(
            window.stage
            for window in run.telemetry
            if window.arm is arm
            and window.stage in random
            and (window.change(Counter.DRAFTED) or window.peak(Gauge.ACCEPTANCE))
        )
        if drafting:
            stages = f"stage{'s' * (len(drafting) > 1)} {', '.join(drafting)}"
            remedy = "draft models predict real text differently; send `prompts: builtin` or your own"
            yield f"the {arm.value} decodes speculatively and the prompts of {stages} are random words: {remedy}"


@guard("server-kept-running", "no server was restarted during a stage, as far as they report", needs=TELEMETRY)
def server_kept_running(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that was restarted during a stage: start-up latency is not serving latency.

    Its process changed (`process_start_time_seconds`, vLLM's `_created`, llama.cpp's header), or a counter decreased.
    This invalidates the load, or for the baseline's server, comparisons of the load. In a stage with actions restarts
    are intended. If a process marker reappears, several servers answer in turn and restarts cannot be detected: not
    applicable, unless a required check uses telemetry of the candidate, which trips and invalidates nothing.
    """
    disturbed = {stage.name for stage in (suite.load.sweep if suite.load else ()) if stage.actions}
    if not any(window.readings for window in run.telemetry):
        return _NOTHING
    in_turn = [arm for arm in Arm if _several_answer(_windows(run, arm))]
    names = " and ".join(f"the {arm.value}" for arm in in_turn)
    unclear = f"several servers answer in turn for {names}, so restarts are not known"
    if Arm.CANDIDATE in in_turn and any(c.required and c.metric in TELEMETRY_METRICS for c in suite.gate.checks):
        reason = f"{unclear}, and a required check uses telemetry of the candidate"
        return Violation(reason, f"set `metrics` to {_ONE_PAGE}")
    for arm in (arm for arm in _CANDIDATE_FIRST if arm not in in_turn):
        for window in _windows(run, arm):
            if window.restarted and window.stage not in disturbed:
                how = "a counter of the server decreased: it, or one of several at its address, was restarted or lost"
                if len(window.markers) > 1:
                    how = "the server was restarted during the measurement"
                if window.restarted_replicas:
                    how = f"these replicas were restarted: {', '.join(window.restarted_replicas)}"
                reason = f"stage {window.stage}, block {window.block + 1}, {arm.value}: {how}"
                remedy = "find in its log why it went down; run again when it stays up"
                return Violation(reason, remedy, invalidates=invalidated_by(arm, LOAD))
    return NotApplicable(f"not checked: {unclear}") if in_turn else None


def restarts_between(run: Evidence, arms: Iterable[Arm]) -> Iterator[str]:
    """Yield notices of servers of these arms that were restarted between stages, as far as they report it."""
    for arm in arms:
        windows = _windows(run, arm)
        if _several_answer(windows):
            yield (
                f"several servers answer in turn at the metrics address of the {arm.value}, so each reading is of one; "
                f"set `metrics` to {_ONE_PAGE}"
            )
            continue
        for one, other in pairwise(windows):
            if one.markers and other.markers and one.markers[-1] != other.markers[0]:
                yield f"the {arm.value} was restarted before block {other.block + 1}, stage {other.stage}"


def _several_answer(windows: list[TelemetryWindow]) -> bool:
    markers = [marker for window in windows for marker in window.markers]
    in_turn = [marker for i, marker in enumerate(markers) if i == 0 or marker != markers[i - 1]]
    return len(in_turn) > len(set(in_turn))  # a process that ended does not come back


def _windows(run: Evidence, arm: Arm) -> list[TelemetryWindow]:
    return sorted((w for w in run.telemetry if w.arm is arm and w.readings), key=lambda window: window.position)


@guard(
    "server-alone",
    "no server did more work than the load generator requested",
    invalidates=LOAD,
    by_arm=True,
    needs=TELEMETRY,
)
def server_alone(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a server that did more work than we requested: others used it, so the arms are not comparable.

    It counted over 5 % more requests, prompt tokens or generated tokens than were requested in a stage, or over 20 %
    more in one block.
    """
    counts_are_known = False
    for arm, stage in product(_CANDIDATE_FIRST, _stages(suite)):
        by_block = _counts(run, suite, stage, arm)
        counts_are_known = counts_are_known or bool(by_block)
        windows = windows_of(run, stage, arm)
        found = [
            (f"{windows[n].stage}, block {windows[n].block + 1}", one, _SHARED_IN_A_BLOCK)
            for n, each in by_block.items()
            for one in each
        ]
        for place, count, bound in (*found, *((stage, one, _SHARED) for one in _together(by_block))):
            if count.excess_ratio > bound:
                most = f"the load generator requested at most {count.most:,.0f} (bound {bound:.0%} more)"
                what = f"the server counted {count.server:,.0f} {count.what} but {most}"
                reason = f"stage {place}, {arm.value}: {what}: others use this server too"
                return Violation(reason, "run again without other traffic on the server, or use a dedicated one", arm)
    return None if counts_are_known else _NOTHING


def _counts(run: Evidence, suite: Suite, stage: str, arm: Arm) -> dict[int, list[Counted]]:
    """Return the counts of server and client in each block; nothing if several servers answer in turn."""
    if _several_answer(_windows(run, arm)):
        return {}
    executions, windows = executions_of(run, stage, arm), windows_of(run, stage, arm)
    levels = _levels(suite, stage)
    unrecorded = sum(level.schedule.concurrency or 0 for level in levels if level.is_background)
    of_stage = (o.requests for o in run.load if stage_part(o.stage) == stage and len(o.requests))
    received = (int(requests.output_tokens.max()) for requests in of_stage)
    longest = max((*(level.workload.most_output_tokens or 0 for level in levels), *received), default=0)
    if any(ENDPOINTS[level.workload.endpoint].transcribes for level in levels):
        longest = 0  # an answer without a usage may be as long as it likes
    generates = all(level.workload.generates for level in levels)
    found: dict[int, list[Counted]] = {}
    for block in sorted(executions.keys() & windows.keys()):
        observations = executions[block]
        answered = {o.stage for o in observations if len(o.requests)}
        # the prompt lengths of background traffic without any completed request are unknown
        cut_off = any(level.is_background and level.name not in answered for level in levels)
        counts = compare_counts(windows[block], observations, unrecorded, longest, generates=generates)
        found[block] = [count for count in counts if not (cut_off and count.what == "prompt tokens")]
    return {block: counts for block, counts in found.items() if counts}


def _together(by_block: dict[int, list[Counted]]) -> list[Counted]:
    kinds: dict[str, list[Counted]] = {}
    for counts in by_block.values():
        for count in counts:
            kinds.setdefault(count.what, []).append(count)
    return [reduce(add, counts) for counts in kinds.values()]


CACHE_COUNTS = Need(
    "telemetry, or responses that report cached prompt tokens",
    lambda run, suite: (
        bool(run.telemetry)
        or (len(arms_of(run)) == len(Arm) and any(_hit_ratios(run, suite, stage) for stage in _stages(suite)))
    ),
)


@guard(
    "cache-cold",
    "no arm's prefix cache already held the prompts",
    invalidates=SPEED,
    by_arm=True,
    needs=CACHE_COUNTS,
)
def cache_cold(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a warm prefix cache in a workload whose prompts have no intended common prefix.

    Over 10 % of the arm's prompt tokens were cached, and 5 points more than on the other arm, or the other arm does not
    report them.
    """
    stages = [stage for stage in _stages(suite) if not all(map(_shares_prefixes, _levels(suite, stage)))]
    if not stages:
        return NotApplicable("not checked: the prompts share prefixes on purpose")
    if len(arms_of(run)) < len(Arm):
        return NotApplicable("not checked: one deployment was measured, so there is no other cache to compare with")
    found, by_stage = [], {stage: _hit_ratios(run, suite, stage) for stage in stages}
    for stage, ratios in by_stage.items():
        warmer = max(ratios, key=lambda arm: ratios[arm], default=Arm.BASELINE)
        ratio, other = ratios.get(warmer, 0.0), ratios.get(warmer.other)
        if ratio <= _CACHED or (other is not None and ratio - other <= _CACHED_GAP):
            continue
        against = f"the {warmer.other.value} does not report it"
        if other is not None:
            against = f"{show_percent(other)} of the {warmer.other.value}'s"
        what = f"{show_percent(ratio)} of the {warmer.value}'s prompt tokens were in its prefix cache ({against})"
        remedy = (
            "send these prompts from nowhere else (with `salt: false`, restart the servers first), or switch the cache "
            "off; if only the chat template is cached, use longer prompts"
        )
        at_fault = Arm.CANDIDATE if ratios.get(Arm.CANDIDATE, 1.0) > _CACHED else Arm.BASELINE
        found.append(Violation(f"stage {stage}: {what}, though the workload shares no prefixes", remedy, at_fault))
    if not any(by_stage.values()):
        return NotApplicable("neither metrics nor responses report prefix cache hits, so this is not known")
    return most_serious(found)


def _hit_ratios(run: Evidence, suite: Suite, stage: str) -> dict[Arm, float]:
    """Return the hit ratio over all blocks of the arms that report it; nothing if prompts share prefixes on purpose.

    The source is the server's metrics, which cover all classes together, or the cached tokens reported in responses.
    One that covers both arms is preferred; else each arm has its own.
    """
    levels = _levels(suite, stage)
    unshared = [level.name for level in levels if not _shares_prefixes(level)]
    by_server = {arm: server_hit_ratio(run, stage, arm) if len(unshared) == len(levels) else None for arm in Arm}
    by_answers = {arm: answer_hit_ratio(run, unshared, arm) for arm in Arm}
    known = [{arm: ratio for arm, ratio in ratios.items() if ratio is not None} for ratios in (by_server, by_answers)]
    by_both = [ratios for ratios in known if len(ratios) == len(Arm)]
    return by_both[0] if by_both else known[1] | known[0]


def _shares_prefixes(level: TrafficClass) -> bool:
    """Return True if prompts may share a prefix on purpose: a prefix, documents, a conversation, recorded texts, tools.

    Background traffic repeats its prompts, more often on the faster arm.
    """
    workload = level.workload
    shared = ("prefix", "retrieval", "session", "prompts", "sessions", "tools", "answer_schema")
    own = level.is_background or level.schedule.trace is not None
    return own or any(getattr(workload, part) is not None for part in shared)


def _stages(suite: Suite) -> list[str]:
    return list(dict.fromkeys(level.stage for level in all_traffic(suite)))


def _levels(suite: Suite, stage: str) -> list[TrafficClass]:
    return [level for level in all_traffic(suite) if level.stage == stage]
