"""What changed from one of a suite's runs to the next that makes their numbers hard to compare.

Candidates of other names are held against nothing of each other: a suite may have several, one run each.
An address alone is no hardware: where nothing but it differs, numbers stay comparable as far as anybody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchgate.escape import one_line
from benchgate.model.deployment import Arm, Deployment, describe_hardware, engine_label, reports_hardware
from benchgate.model.run import Run
from benchgate.report.display import minute
from benchgate.report.sections.cost import price_and_use
from benchgate.site.listed import name_of
from benchgate.site.names import run_file
from benchgate.store.queries import RunSummary

ENDS_LINES = frozenset("SH")
"""Letters at which every line ends: numbers before and after are not comparable."""

IN_THE_LIST_ALONE = frozenset("A")
"""Letters that no chart has: a candidate of every pull request may have an address of its own."""

ON_COSTS_ALONE = frozenset("P")
"""Letters that only charts of costs have."""

_LONGEST = 60
_LONGEST_PRICE = 160


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened with a run, as a letter: which run, when it began, and what it is."""

    letter: str
    file: str
    run: str
    when: str
    told: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a candidate runs. `hardware` is None where nobody told it, `url` where benchgate served it itself."""

    hardware: str | None
    accelerators: int
    url: str | None


def place_of(run: Run) -> Place | None:
    """Where the run's candidate runs; None where it has none."""
    if Arm.CANDIDATE not in run.arms:
        return None
    deployment = run.arms[Arm.CANDIDATE]
    told = deployment.url is None or reports_hardware(deployment)
    hardware = describe_hardware(deployment, run.environment) if told else None
    return Place(hardware, deployment.accelerators, deployment.url)


def engine_of(run: Run) -> str:
    """The candidate's engine, and its version where that is told."""
    if Arm.CANDIDATE not in run.arms:
        return "none"
    return engine_label(run.arms[Arm.CANDIDATE])


def price_of(run: Run) -> list[object] | None:
    """What the candidate's tokens were paid by, as plain JSON; None where nobody said."""
    deployment = _priced(run)
    if deployment is None:
        return None
    accelerators = None if deployment.token_prices else deployment.accelerators
    return [deployment.price_usd_per_hour, accelerators, deployment.price_terms, deployment.token_prices]


def _priced(run: Run) -> Deployment | None:
    deployment = run.arms.get(Arm.CANDIDATE)
    return deployment if deployment is not None and deployment.has_price else None


def change(letter: str, glance: RunSummary, told: str) -> Change:
    """That something changed with a run."""
    run = glance.run
    return Change(letter, run_file(run.id), name_of(glance), minute(run.started_at), told)


def circumstances(drawn: Sequence[RunSummary]) -> Iterator[tuple[int, Change]]:
    """Where (by its place among the runs, oldest first) what was asked, hardware, engine or price is another."""
    for at in range(1, len(drawn)):
        if drawn[at - 1].run.measurement_sha256 != drawn[at].run.measurement_sha256:
            yield at, change("S", drawn[at], "the suite asks something else than before")
    by_candidate: dict[str | None, list[int]] = {}
    for at, glance in enumerate(drawn):
        candidate = glance.run.arms.get(Arm.CANDIDATE)
        by_candidate.setdefault(None if candidate is None else candidate.name, []).append(at)
    for name, its in by_candidate.items():
        of = "the candidate" if len(by_candidate) == 1 else f"the candidate {one_line(name or 'none', _LONGEST)}"
        for number, one in _of_candidate([drawn[at] for at in its], of):
            yield its[number], one


def _of_candidate(drawn: Sequence[RunSummary], of: str) -> Iterator[tuple[int, Change]]:
    """Where, by its place among the runs of one candidate, hardware, engine or price of it is another."""
    places = [place_of(glance.run) for glance in drawn]
    yield from _prices(drawn, of)
    for at in range(1, len(drawn)):
        if told := _other_hardware(places[:at], places[at]):
            yield at, change("H", drawn[at], f"hardware of {of}: {told}")
        old, new = engine_of(drawn[at - 1].run), engine_of(drawn[at].run)
        if old != new:
            yield at, change("E", drawn[at], f"engine of {of}: {_from(old, new)}")
    at_others = [at for at in range(1, len(drawn)) if _other_address(places[at - 1], places[at])]
    if at_others:
        more = f", as with {len(at_others) - 1:,} of the runs before it" if len(at_others) > 1 else ""
        whose = "" if of == "the candidate" else f" of {of}"
        yield at_others[-1], change("A", drawn[at_others[-1]], f"another address{whose}, hardware not told{more}")


def _prices(drawn: Sequence[RunSummary], of: str) -> Iterator[tuple[int, Change]]:
    """Where another price was paid than was last told: a run without one has no costs to be compared."""
    priced = [(at, one) for at, glance in enumerate(drawn) if (one := _priced(glance.run)) is not None]
    for (before, old), (at, new) in pairwise(priced):
        if price_of(drawn[before].run) != price_of(drawn[at].run):
            told = _from(price_and_use(old), price_and_use(new), longest=_LONGEST_PRICE)
            yield at, change("P", drawn[at], f"price of {of}: {told}")


def _other_hardware(before: Sequence[Place | None], new: Place | None) -> str | None:
    """What differs of a run's hardware from what was last told; None where nothing told does."""
    last = before[-1]
    if last is None or new is None:
        return None
    last_told = next((one.hardware for one in reversed(before) if one is not None and one.hardware), None)
    if new.hardware is not None and last_told is not None:
        return _from(last_told, new.hardware) if new.hardware != last_told else None
    if (new.url is None) != (last.url is None):
        return _from(*(one.hardware or "not told, at an address" for one in (last, new)))
    if new.accelerators != last.accelerators:
        return _from(*(f"accelerators {one.accelerators}" for one in (last, new)))
    return None


def _other_address(old: Place | None, new: Place | None) -> bool:
    """Whether both are at addresses, which differ, and nobody told the hardware of both."""
    if old is None or new is None or old.url is None or new.url is None:
        return False
    return old.url != new.url and None in (old.hardware, new.hardware)


def _from(old: str, new: str, *, longest: int = _LONGEST) -> str:
    return f"{one_line(old, longest)} → {one_line(new, longest)}"
