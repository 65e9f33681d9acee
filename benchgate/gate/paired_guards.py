"""Guards over the same requests on both arms: were the prompts read whole, and was every answer the first one?"""

from __future__ import annotations

import numpy as np

from benchgate.gate.comparison import load_of, paired_load
from benchgate.gate.guard import SPEED, held, tripped
from benchgate.model.deployment import Arm
from benchgate.model.records import IntArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite

_RESENT_GAP = 0.01
_RESENT_LEAST = 3  # more than the baseline's share: one or two connections break anywhere
_HABIT = 0.1  # of the baseline's requests; llama.cpp's server closes after every stream
_PROMPT_GAP = 0.01


def sent_once(evidence: Evidence, suite: Suite) -> GuardResult:
    """A request sent again hides that the server dropped it, and so does its error rate.

    Where the baseline closes its connections as a habit, how many requests meet a closed one is a matter of pace (a
    faster server leaves more of them idle), so numbers that differ say nothing.
    """
    for stage in suite.load.sweep if suite.load else ():
        theirs, _, scheduled = _resent(evidence, stage.name, Arm.BASELINE)
        share, resent, ours = _resent(evidence, stage.name, Arm.CANDIDATE)
        if not scheduled or theirs > _HABIT:
            continue
        if share - theirs > _RESENT_GAP and (share - theirs) * ours >= _RESENT_LEAST:
            what = f"the candidate closed connections under {resent} of {ours} requests, which were sent again"
            remedy = (
                "see in the candidate's log why it closes them; lost connections must not pass as answered requests"
            )
            told = f"stage {stage.name}: {what} ({theirs:.1%} of the baseline's)"
            return tripped("sent-once", told, remedy, ("load",))
    return held("sent-once", "no more of the candidate's requests were sent again than the baseline's explain")


def prompts_alike(evidence: Evidence, suite: Suite) -> GuardResult:
    """A server that cuts prompts has less to do; where the change is another tokenizer, counts cannot tell."""
    if "vocabulary" in suite.gate.allow_different:
        return held("prompts-alike", "the vocabularies may differ, so the lengths of prompts were not compared")
    for stage in suite.load.sweep if suite.load else ():
        totals = np.zeros(2, dtype=np.int64)
        for pair in paired_load(evidence, stage.name):
            rows = same_rows(*pair)
            baseline, candidate = (o.requests.input_tokens[at] for o, at in zip(pair, rows, strict=True))
            known = (baseline > 0) & (candidate > 0)
            totals += (baseline[known].sum(), candidate[known].sum())
        theirs, ours = (int(total) for total in totals)
        if abs(ours - theirs) > _PROMPT_GAP * theirs:
            what = f"for the same prompts the candidate counts {ours} tokens and the baseline {theirs}"
            remedy = "see whether a server cuts prompts or puts another template around them; " + _OTHER_TOKENIZER
            bound = f"(bound {_PROMPT_GAP:.0%})"
            return tripped("prompts-alike", f"stage {stage.name}: {what} {bound}", remedy, (SPEED,))
    return held("prompts-alike", "the prompts were as long on both arms, as far as the servers say")


def _resent(evidence: Evidence, stage: str, arm: Arm) -> tuple[float, int, int]:
    """Share and number of the requests that were sent again, and how many requests there are."""
    executions = load_of(evidence, stage, arm).values()
    resent = sum(int(np.count_nonzero(o.requests.reconnects > 0)) for o in executions)
    scheduled = sum(len(o.requests) for o in executions)
    return resent / scheduled if scheduled else 0.0, resent, scheduled


def same_rows(baseline: LoadObservation, candidate: LoadObservation) -> tuple[IntArray, IntArray]:
    """The row of either arm of every request that both have a record of."""
    _, theirs, ours = np.intersect1d(baseline.requests.index, candidate.requests.index, return_indices=True)
    return theirs, ours


_OTHER_TOKENIZER = "where the tokenizer is the change to judge, write `gate.allow_different: [vocabulary]`"
