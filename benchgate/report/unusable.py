"""Which parts of a report are of numbers that a tripped guard takes away: shown to find the fault, not to be used."""

from __future__ import annotations

from dataclasses import dataclass

from benchgate.gate.guards.base import ALL_LOAD_KINDS, OWN_LOAD_KINDS, compared
from benchgate.model.verdict import GuardResult, Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Unusable:
    """By part the ids of the guards that speak against its numbers, as a list in words; empty where none does."""

    load: str
    quality: str
    divergence: str
    shadow: str
    only_speed: bool  # of the load how fast it was, not what failed
    only_compared: bool  # of the load what is held against the baseline, not the candidate's own values

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts in words, as far as their numbers are not to be used."""
        load = "speed under load" if self.only_speed else "load"
        load += " against the baseline" if self.only_compared else ""
        named = ((load, self.load), ("evals", self.quality), ("fixed texts", self.divergence))
        return tuple(name for name, guards in (*named, ("the shadow comparison", self.shadow)) if guards)


def unusable(verdict: Verdict) -> Unusable:
    """A guard that spoils no kind of check in particular speaks against all there is.

    It only keeps a candidate from being promoted: where harm is shown all the same, the numbers that show it stand.
    """
    blocked = verdict.outcome is Outcome.BLOCK
    tripped = [guard for guard in verdict.guards if guard.tripped and (guard.invalidates or not blocked)]
    only_compared = not _against(tripped, OWN_LOAD_KINDS)
    load = _against(tripped, ALL_LOAD_KINDS)
    return Unusable(
        load=f"{load}, where they are compared," if load and only_compared else load,
        quality=_against(tripped, frozenset({"quality"})),
        divergence=_against(tripped, frozenset({"divergence"})),
        shadow=_against(tripped, frozenset({"shadow"})),
        only_speed=not _against(tripped, frozenset({"load", *compared("load")})),
        only_compared=only_compared,
    )


def _against(tripped: list[GuardResult], kinds: frozenset[str]) -> str:
    return ", ".join(guard.id for guard in tripped if not guard.invalidates or not kinds.isdisjoint(guard.invalidates))
