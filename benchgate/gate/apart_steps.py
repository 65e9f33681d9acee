"""The arithmetic of two runs without a live baseline, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.steps import limits_steps, made, number, observed
from benchgate.model.records import FloatArray
from benchgate.model.verdict import Step
from benchgate.stats.distributions import t_ppf
from benchgate.stats.unpaired import Part, combined_t

_OWN = ("variance of the stored run's mean", "variance of the judged run's mean")
_BETWEEN = "variance between runs, by the noise profile"


def apart_steps(
    what: str, theirs: FloatArray, ours: FloatArray, parts: Sequence[Part], alpha: float, *, margin: float
) -> tuple[Step, ...]:
    """From both runs' blocks, turned so that more is worse, to limits and p-value; nothing without any variance.

    The first two `parts` are each run's own, the others lie between runs.
    """
    harm = float(ours.mean() - theirs.mean())
    found = combined_t(harm, parts, alpha, margin=margin)
    if found is None:
        return ()
    names = [*_OWN, *[_BETWEEN] * (len(parts) - len(_OWN))]
    shown = [number(part.variance) for part in parts]
    total = " + ".join(shown)
    weighed = " + ".join(f"{one}^2 / {part.freedom:g}" for one, part in zip(shown, parts, strict=True))
    quantile = t_ppf(1 - alpha, found.freedom)
    ends = [f"{number(harm)} {sign} {number(quantile)} * {number(found.error)}" for sign in "-+"]
    return (
        observed(f"stored run: {what} of each block", theirs),
        observed(f"judged run: {what} of each block", ours),
        made("harm: their means' difference", f"{number(float(ours.mean()))} - {number(float(theirs.mean()))}", harm),
        *(
            made(name, f"{part.freedom:g} degrees of freedom", part.variance)
            for name, part in zip(names, parts, strict=True)
        ),
        made("standard error", f"sqrt({total})", found.error),
        made("degrees of freedom (Satterthwaite)", f"({total})^2 / ({weighed})", found.freedom),
        made("t quantile", f"t({number(1 - alpha)}, {number(found.freedom)})", quantile),
        *limits_steps(found.limits, (ends[0], ends[1])),
        made(
            "p-value",
            f"P(T({number(found.freedom)}) > ({number(harm)} - {margin:g}) / {number(found.error)})",
            found.p_harm,
        ),
    )
