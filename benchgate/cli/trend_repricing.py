"""`benchgate trend --prices FILE`: the costs of stored runs at other prices; what is stored stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchgate.cli.saying import log
from benchgate.errors import UsageError
from benchgate.model.deployment import Arm

if TYPE_CHECKING:
    from benchgate.cost.repricing import PriceTaken
    from benchgate.model.run import Run, TrendPoint
    from benchgate.store.repository import Store
    from benchgate.suite.price_file import ListedPrice, Prices
    from benchgate.suite.price_terms import PriceTerms

_PACE = "output_tokens_per_s"
_OF_A_PACE = "usd_per_million_output_tokens"
_SCALED = ("usd_per_million_good_tokens", "usd_per_million_input_tokens", "usd_per_million_total_tokens")
"""Made of no pace that is kept, so each is what the run kept of it, times the new price over its own."""
_IN_USE = "_in_use"
_LONGEST_NAME = 24

_UNKNOWN = "has no price of such a name"
_BY_TOKEN = "has a price by the token, which no pace makes a cost of,"
_UNUSED = "says no `price_terms`, and neither did the run, so that nobody knows how it is used,"
_BROKEN = "has a price, and the terms that the run keeps cannot be read,"
_NO_TOKEN = "has a price, and there came no token that would cost it,"
_UNPAID = "has a price, and the run keeps none by the hour that its own cost goes with,"


@dataclass(frozen=True, slots=True)
class Repricing:
    """What is asked for: the file, the day whose prices all runs take (None: each its own), and the cost."""

    file: Path
    on: date | None
    metric: str

    @property
    def in_use(self) -> bool:
        """Whether the cost is that at the use that the terms say."""
        return self.metric.endswith(_IN_USE)

    @property
    def made_of(self) -> str:
        """The metric of stored runs that the cost is made of again."""
        full = self.metric.removesuffix(_IN_USE)
        return _PACE if full == _OF_A_PACE else full

    @property
    def told(self) -> str:
        """In words, for headings."""
        name = self.file.name  # which a picture has no room for beside the day, where it is long
        called = name if len(name) <= _LONGEST_NAME else f"{name[:8]}…{name[9 - _LONGEST_NAME :]}"
        return f"re-priced by {called}, {'each run on its day' if self.on is None else f'on {self.on}'}"

    @property
    def lacking(self) -> str:
        """Why a run is left out whose deployment the file has no price of on the day."""
        return f"has no price on {'their day' if self.on is None else self.on}"


@dataclass(frozen=True, slots=True)
class Repriced:
    """Points at other prices, which of them each run took, and in words what that is."""

    points: list[TrendPoint]
    taken: Mapping[str, PriceTaken]
    told: str


def asked_repricing(prices: Path | None, on: str | None, metric: str) -> Repricing | None:
    """What `--prices` and `--prices-on` ask for. Raises UsageError for a metric that no price makes, or for no day."""
    if prices is None:
        if on is not None:
            raise UsageError("--prices-on is the day whose prices of a file are taken; add --prices, or leave it out")
        return None
    if metric.removesuffix(_IN_USE) not in (_OF_A_PACE, *_SCALED):
        known = ", ".join((_OF_A_PACE, *_SCALED))
        raise UsageError(f"--prices is of {known}, of the first two {_IN_USE} as well, and not of {metric}")
    return Repricing(prices, None if on is None else _day(on), metric)


def _day(said: str) -> date:
    from benchgate.cli.waiver_files import today
    from benchgate.suite.waivers import parse_day

    if said == "today":
        return today()
    try:
        return parse_day(said)
    except ValueError as error:
        raise UsageError(f"--prices-on: {error}, or today") from None


def repriced_trend(store: Store, followed: Sequence[TrendPoint], asked: Repricing) -> Repriced:
    """The points of a cost, made of what each run keeps of `asked.made_of` and the price that the file has for it.

    A run's own terms hold where the file says no others. Runs that it makes no cost of are told and left out. Raises
    SuiteError for the file, UsageError where no run is left.
    """
    from benchgate.pricing import read_prices

    known = read_prices(asked.file, "--prices names one")
    points, taken = list["TrendPoint"](), dict[str, "PriceTaken"]()
    left_out = dict[str, dict[str, "Run"]]()
    runs = {run_id: store.run(run_id) for run_id in dict.fromkeys(point.run_id for point in followed)}
    paid = {run_id: _paid(run, known, asked) for run_id, run in runs.items()}
    for point in followed:
        run = runs[point.run_id]
        found = _repriced(run, point, paid[run.id], asked)
        if isinstance(found, str):
            left_out.setdefault(found, {})[run.id] = run
        else:
            new, taken[run.id] = found
            points.append(new)
    _tell(asked, known, left_out, none_left=not points)
    return Repriced(points, taken, asked.told)


class _Paid(NamedTuple):
    """What a run is re-priced by, and what its cost at full use is multiplied by."""

    taken: PriceTaken
    factor: float


def _repriced(run: Run, point: TrendPoint, paid: _Paid | str, asked: Repricing) -> tuple[TrendPoint, PriceTaken] | str:
    """One point at the price that its run takes, or why there is no such."""
    from benchgate.cost.repricing import repriced, scaled

    if isinstance(paid, str):
        return paid
    taken, own = paid.taken, run.arms[Arm.CANDIDATE].price_usd_per_hour
    if asked.made_of == _PACE:
        new = repriced(point, taken.price_usd_per_hour, taken.accelerators, paid.factor)
        return _NO_TOKEN if new is None else (new, taken)
    if not own:
        return _UNPAID
    new = scaled(point, paid.factor * taken.price_usd_per_hour / own)
    return new._replace(doubt=None), taken  # which was of the price that the run kept


def _paid(run: Run, known: Prices, asked: Repricing) -> _Paid | str:
    """The price of the run's day and its terms, or why there is none that makes a cost of what ran."""
    from benchgate.cost.repricing import PriceTaken
    from benchgate.gate.accelerators_paid import not_of_what_ran

    deployment = run.arms[Arm.CANDIDATE]
    day, kind = asked.on or run.day, _kind(run)
    listed = known.on(day, deployment.name, kind)
    if listed is None:
        return asked.lacking if known.knows(deployment.name, kind) else _UNKNOWN
    if listed.price is None:
        return _BY_TOKEN
    try:
        terms = _terms(run, listed, in_use=asked.in_use)
    except ValueError:
        return _BROKEN
    if terms is None and asked.in_use:
        return _UNUSED
    usd_per_hour = listed.price if terms is None else terms.usd_per_hour(listed.price)
    paid = replace(deployment, price_usd_per_hour=usd_per_hour, token_prices={}, price_entry=known.entry_of(listed))
    if (why := not_of_what_ran(paid)) is not None:
        return f"has a price that is not of what ran (it {why})"
    factor = terms.in_use_factor if terms is not None and asked.in_use else 1.0
    return _Paid(PriceTaken(str(asked.file), day.isoformat(), usd_per_hour, deployment.accelerators), factor)


def _terms(run: Run, listed: ListedPrice, *, in_use: bool) -> PriceTerms | None:
    """Those of the file over those that the run keeps. Raises ValueError for kept ones that cannot be read.

    Neither can kept ones `in_use` that do not say how it is used: what is lacking there is no full use.
    """
    from benchgate.suite.price_terms import PriceTerms

    kept = run.arms[Arm.CANDIDATE].price_terms
    if kept and in_use and run.arms[Arm.CANDIDATE].in_use_factor is None:
        raise ValueError("they do not say how it is used")
    return listed.terms_beside(PriceTerms.from_remembered(kept) if kept else None)


def _kind(run: Run) -> str | None:
    """What the candidate of a run is on, where the suite said so."""
    deployments = run.suite.get("deployments")
    spec = deployments.get(run.arms[Arm.CANDIDATE].name) if isinstance(deployments, dict) else None
    kind = spec.get("accelerator") if isinstance(spec, dict) else None
    return kind if isinstance(kind, str) else None


def _called(deployment: str, why: str, known: Prices) -> str:
    """With the name that the file may have it under, where it has no price."""
    meant = known.meant(deployment) if why == _UNKNOWN else None
    return deployment if meant is None else f"{deployment} (did you mean `{meant}` in the file?)"


def _tell(asked: Repricing, known: Prices, left_out: Mapping[str, Mapping[str, Run]], *, none_left: bool) -> None:
    """Which runs are left out, by the reason. Raises UsageError where there are no others."""
    told = []
    for why, runs in left_out.items():
        names = dict.fromkeys(run.arms[Arm.CANDIDATE].name for run in runs.values())
        called = ", ".join(_called(name, why, known) for name in names)
        told.append(f"{asked.file} {why} for {len(runs)} run{'s' if len(runs) > 1 else ''}, of {called}")
    if none_left and told:
        remedies = [_remedy(asked, known, why, next(iter(runs.values()))) for why, runs in left_out.items()]
        raise UsageError(f"{'; '.join(told)}, and there are no others; {'; '.join(dict.fromkeys(remedies))}")
    log(*(f"benchgate: {line}: left out" for line in told))


def _remedy(asked: Repricing, known: Prices, why: str, run: Run) -> str:
    """What to write, or to ask for, where no run is left."""
    if why == _UNKNOWN:
        return "add entries by the names that the suites give deployments"
    if why != asked.lacking:
        return "see docs/capacity.md"
    lacking = known.lacking(asked.on or run.day, run.arms[Arm.CANDIDATE].name, _kind(run))
    return f"{lacking}, or {'ask for another day' if asked.on else 'take the prices of one day for all'} by --prices-on"
