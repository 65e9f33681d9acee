"""Which look at the load a verdict is made from, and what error it may spend there.

Load is measured in blocks, first a few and then more where those do not settle it. Who may look several times must
allow less at each look, or chance gets as many tries: O'Brien-Fleming limits spend hardly anything on the first ones.
Such limits and p-values hold whenever and why ever the measuring ended: a stored run may be judged by another policy.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.gate.comparison import Comparison, arms_of, load_of
from benchgate.gate.places import places
from benchgate.model.run import Evidence, LoadEnd
from benchgate.stats.sequential import look_tails
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Look:
    """Look `number` (from 1) of `of`, after `blocks` of at most `most`. `alpha` is the tail that limits are taken at.

    `fractions` are those of all looks, of the most blocks there may be. `ended` is why the load ended here, where the
    run says so.
    """

    number: int
    of: int
    blocks: int
    most: int
    alpha: float
    fractions: tuple[float, ...]
    ended: LoadEnd | None = None

    @property
    def last(self) -> bool:
        """Whether there is none after it: what is not settled now will not be."""
        return self.number == self.of

    @property
    def told(self) -> str:
        """`look 2 of 3, after 10 of at most 20 blocks`."""
        return f"look {self.number} of {self.of}, after {self.blocks} of at most {self.most} blocks"


def look_of(suite: Suite, evidence: Evidence) -> Look | None:
    """The look that so many blocks are; None where the suite has a fixed number of them.

    Between two looks it is the one before: its limits are wider than such data would allow. Before the first one it is
    the first: nothing is allowed less.
    """
    if suite.load is None or not suite.load.looks:
        return None
    looks = suite.load.looks
    measured = blocks_measured(suite, evidence)
    number = max(1, sum(measured >= blocks for blocks in looks))
    fractions = fractions_of(looks)
    tails = look_tails(fractions, suite.gate.alpha)
    return Look(number, len(looks), looks[number - 1], looks[-1], tails[number - 1], fractions, evidence.ended)


def stricter_look(suite: Suite, comparison: Comparison) -> Look | None:
    """Of two stored runs the look that allows less: each was ended by what it showed itself."""
    looks = [look_of(suite, comparison.judged)]
    if comparison.reference is not None:
        own = Suite.from_stored(comparison.reference.run.suite)
        looks.append(look_of(own.model_copy(update={"gate": suite.gate}), comparison.reference))
    return min((look for look in looks if look is not None), key=lambda look: look.alpha, default=None)


def fractions_of(looks: tuple[int, ...]) -> tuple[float, ...]:
    """What share of the most blocks each look has. The planned ones: a block left out for the client's sake is not seen
    here, which changes what limits cover by less than can be simulated (docs/decisions.md)."""
    return tuple(blocks / looks[-1] for blocks in looks)


def blocks_measured(suite: Suite, evidence: Evidence) -> int:
    """How many blocks are whole: measured at every place of the sweep on every arm. A capacity search has none."""
    seen = [set(load_of(evidence, place.name, arm)) for place in places(suite) for arm in arms_of(evidence)]
    return len(set.intersection(*seen)) if seen else 0
