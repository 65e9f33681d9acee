"""Guards over the same requests on both arms: were the prompts read whole, and was every answer the first one?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.guard import SPEED, gravest, held, spoils_of, tripped, unknown
from benchgate.gate.places import Place, places
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.records import IntArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

_RESENT_GAP = 0.01
_RESENT_LEAST = 3  # more than the baseline's share: one or two connections break anywhere
_HABIT = 0.1  # of the baseline's connections; llama.cpp's server closes after every stream
_HABIT_ALONE = 0.5  # of the candidate's own, where no baseline was measured
_CLOSING_ENGINES = ("llamacpp",)
_PROMPT_GAP = 0.01
_UNTOLD_GAP = 0.01  # of the requests that both arms answered


def sent_once(evidence: Evidence, suite: Suite) -> GuardResult:
    """A request sent again hides that the server dropped it, from its error rate too. An answer sent again is as bad.

    Where the baseline closes its connections as a habit, how many requests meet a closed one is a matter of pace (a
    faster server leaves more of them idle), so numbers that differ say nothing. Measured alone, a candidate has that
    habit where its engine is known for it, or where it closed most of them; beside a baseline, where the engine is the
    change to judge, it alone is known for it, and it closed most of them.
    """
    for place in places(suite):
        told = _unasked(evidence, place.name)
        if told is not None:
            return tripped(
                "sent-once", told, "see whether the candidate, or a proxy before it, answers twice", ("load",)
            )
        theirs, ours = (_closed(evidence, suite, place, arm) for arm in (Arm.BASELINE, Arm.CANDIDATE))
        if theirs.habit > _HABIT or _is_habit(evidence, theirs, ours):
            continue
        more = ours.share - theirs.share
        if more > _RESENT_GAP and more * ours.requests >= _RESENT_LEAST:
            found = f"the candidate closed connections under {ours.resent} of {ours.requests} requests"
            what = f"{found}, which were sent again"
            remedy = (
                "see in the candidate's log why it closes them; lost connections must not pass as answered requests"
            )
            beside = (
                f"{theirs.share:.1%} of the baseline's" if theirs.requests else "there is no baseline to have as many"
            )
            told = f"stage {place.name}: {what} ({beside})"
            return tripped("sent-once", told, remedy, ("load",))
    return held("sent-once", "no more of the candidate's requests were sent again than the baseline's explain")


def prompts_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """A server that cuts prompts has less to do; where the change is another tokenizer, counts cannot tell."""
    if "vocabulary" in suite.gate.allow_different:
        return unknown("prompts-alike", "the vocabularies may differ, so the lengths of prompts were not compared")
    found = []
    for place in places(suite):
        lengths = _prompt_lengths(evidence, place)
        if lengths.told_by_one > _UNTOLD_GAP * lengths.answered:
            found.append(_untold(place.name, lengths))
        elif abs(lengths.ours - lengths.theirs) > _PROMPT_GAP * lengths.theirs:
            what = f"for the same prompts the candidate counts {lengths.ours} tokens and the baseline {lengths.theirs}"
            remedy = "see whether a server cuts prompts or puts another template around them; " + _OTHER_TOKENIZER
            bound = f"(bound {_PROMPT_GAP:.0%})"
            spoils = spoils_of(Arm.CANDIDATE if lengths.ours < lengths.theirs else Arm.BASELINE, SPEED)
            found.append(tripped("prompts-alike", f"stage {place.name}: {what} {bound}", remedy, spoils))
    alike = "the prompts were as long on both arms, as far as the servers say"
    return gravest(found) or held("prompts-alike", alike)


@dataclass(slots=True)
class _Lengths:
    """Tokens of the prompts that both arms tell, and of how many requests, answered by both, one arm alone tells."""

    theirs: int = 0
    ours: int = 0
    only_theirs: int = 0
    only_ours: int = 0
    answered: int = 0

    @property
    def told_by_one(self) -> int:
        return self.only_theirs + self.only_ours


def _prompt_lengths(evidence: Evidence, place: Place) -> _Lengths:
    """Later turns of a conversation hold what the model itself has said, which is as long as it is."""
    lengths = _Lengths()
    for pair in paired_load(evidence, place.name):
        rows = same_rows(*pair)
        theirs, ours = (o.requests.input_tokens[at] for o, at in zip(pair, rows, strict=True))
        both = np.logical_and(*(succeeded(o.requests)[at] for o, at in zip(pair, rows, strict=True)))
        known = (theirs > 0) & (ours > 0)
        same = known & place.is_first_turn(pair[0].requests.index[rows[0]])
        lengths.theirs += int(theirs[same].sum())
        lengths.ours += int(ours[same].sum())
        lengths.only_theirs += int((both & (theirs > 0) & ~known).sum())
        lengths.only_ours += int((both & (ours > 0) & ~known).sum())
        lengths.answered += int(both.sum())
    return lengths


def _untold(stage: str, lengths: _Lengths) -> GuardResult:
    """What one server alone withholds cannot be shown to be the same."""
    teller = Arm.BASELINE if lengths.only_theirs > lengths.only_ours else Arm.CANDIDATE
    found = f"for {lengths.told_by_one} of {lengths.answered} answers only one arm, mostly the {teller.value},"
    what = f"{found} tells how long the prompt was (bound {_UNTOLD_GAP:.0%})"
    spoils = spoils_of(Arm.BASELINE if lengths.only_ours > lengths.only_theirs else Arm.CANDIDATE, SPEED)
    return tripped("prompts-alike", f"stage {stage}: {what}", "make both servers report usage", spoils)


def _unasked(evidence: Evidence, stage: str) -> str | None:
    """What there is to say of answers that the candidate alone sent without being asked; None when there are few.

    One that comes a moment later, when a request is under way, is taken for the answer to that.
    """
    shares = {}
    for arm in Arm:
        executions = load_of(evidence, stage, arm).values()
        shares[arm] = sum(o.client.unasked for o in executions), sum(o.recorded for o in executions)
    (theirs, scheduled), (unasked, ours) = shares[Arm.BASELINE], shares[Arm.CANDIDATE]
    if not scheduled or not ours or unasked < _RESENT_LEAST or unasked / ours - theirs / scheduled <= _RESENT_GAP:
        return None
    return (
        f"stage {stage}: over connections without a request under way, the candidate sent something {unasked} times "
        f"beside {ours} requests (the baseline {theirs} times)"
    )


def _is_habit(evidence: Evidence, theirs: _Closed, ours: _Closed) -> bool:
    """Whether a candidate is known to close its connections after every answer, where no baseline can show that."""
    closing = {arm: one.engine in _CLOSING_ENGINES for arm, one in evidence.run.arms.items()}
    if not theirs.requests:
        return closing[Arm.CANDIDATE] or ours.habit > _HABIT_ALONE
    known = closing[Arm.CANDIDATE] and not closing.get(Arm.BASELINE, False)
    return known and ours.habit > _HABIT_ALONE


@dataclass(frozen=True, slots=True)
class _Closed:
    """What an arm's closed connections came to.

    `resent` of the requests were sent again. `habit` is the share of those, and of the connections that were closed
    right after an answer and before another request met that.
    """

    requests: int
    resent: int
    habit: float

    @property
    def share(self) -> float:
        return self.resent / self.requests if self.requests else 0.0


def _closed(evidence: Evidence, suite: Suite, place: Place, arm: Arm) -> _Closed:
    """The classes of a stage share its connections, so those that nobody met are held against all of its requests."""
    executions = load_of(evidence, place.name, arm)
    parts = [columns for o in executions.values() for columns in o.parts]
    resent = sum(int(np.count_nonzero(columns.reconnects > 0)) for columns in parts)
    requests = sum(map(len, parts))
    early = sum(o.client.closed_early for o in executions.values())
    beside = [other.name for other in places(suite) if other.stage == place.stage]
    in_all = sum(o.recorded for name in beside for o in load_of(evidence, name, arm).values())
    return _Closed(requests, resent, (resent / requests if requests else 0.0) + (early / in_all if in_all else 0.0))


def same_rows(baseline: LoadObservation, candidate: LoadObservation) -> tuple[IntArray, IntArray]:
    """The row of either arm of every request that both have a record of."""
    index = baseline.requests.index
    if np.array_equal(index, candidate.requests.index) and (np.diff(index) > 0).all():
        every = np.arange(len(index), dtype=np.int64)
        return every, every
    _, theirs, ours = np.intersect1d(baseline.requests.index, candidate.requests.index, return_indices=True)
    return theirs, ours


_OTHER_TOKENIZER = "where the tokenizer is the change to judge, write `gate.allow_different: [vocabulary]`"
