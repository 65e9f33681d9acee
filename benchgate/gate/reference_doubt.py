"""What a stored comparison is worth: a candidate is no fitter than the run it is held against was found to be."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.verdict import Outcome, Verdict


def reference_doubt(reference_outcome: Outcome | None) -> str | None:
    """A sentence, without its end, on a reference run that was itself not to be promoted; None of any other."""
    if reference_outcome is None or reference_outcome.promotes:
        return None
    return f"the reference run's own verdict was {reference_outcome}: being no worse than it does not mean being fit"


def doubted(verdict: Verdict, reference_outcome: Outcome | None) -> Verdict:
    """At most WARN, and its first sentence is why, where the reference run's own verdict did not let it be promoted.

    What is not promoted anyway stays as it is.
    """
    doubt = reference_doubt(reference_outcome)
    if doubt is None or not verdict.outcome.promotes:
        return verdict
    return replace(verdict, outcome=Outcome.WARN, reason=f"{doubt[0].upper()}{doubt[1:]}. {verdict.reason}")
