"""`benchgate promote`: record that a judged run's candidate goes into service, or that it is taken out of it."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say
from benchgate.cli.waiver_files import waivers_for_stored
from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.promoting import Recorded
    from benchgate.store.repository import Store


def promote(
    run: Annotated[str, typer.Argument(help="Stored run: its whole id or its label; with --withdraw also @promoted.")],
    by: Annotated[str | None, typer.Option("--by", help="Who promotes; by the CI or this machine unless said.")] = None,
    ref: Annotated[
        str | None, typer.Option("--ref", help="Branch or tag it is promoted from; in CI the job's.")
    ] = None,
    commit: Annotated[str | None, typer.Option("--commit", help="Commit it is promoted at; in CI the job's.")] = None,
    protected: Annotated[
        bool | None,
        typer.Option("--protected/--not-protected", help="Whether that ref is protected; in CI as its host says."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="The HTML report that was read: it must be the store's own.")
    ] = None,
    override: Annotated[
        str | None, typer.Option("--override", metavar="REASON", help="Promote against the verdict, for this reason.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the run's promotion back instead.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why it is taken back, with --withdraw.")] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
    output: Annotated[CareFormat, typer.Option("--format", help="How to print what was recorded.")] = CareFormat.TEXT,
) -> None:
    """Judge a stored run once more and record its promotion; exits with the verdict's code where that says no."""
    from benchgate import promoting
    from benchgate.publish.origin import origin_of, unprotected_because
    from benchgate.store.repository import Store

    rests_on = {"--report": report, "--override": override, "--waivers": waivers, "--as-of": as_of, "--strict": strict}
    given = [option for option, said in rests_on.items() if said not in (None, False)]
    _require_fitting(given, reason, withdraw=withdraw)
    origin = origin_of(os.environ, by=by, ref=ref, commit=commit, protected=protected, user=_user())
    with Store.open(store, create=False) as opened:
        run_id = _named(opened, run, withdraw=withdraw)
        if reason is not None:
            recorded = promoting.withdraw(opened, run_id, origin, reason)
        else:
            tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
            recorded = promoting.promote(
                opened, run_id, origin, waivers=tolerated, strict=strict, report=report, override=override
            )
    doubt = unprotected_because(os.environ)
    say(_document(recorded) if output is CareFormat.JSON else "".join(_lines(recorded, doubt)))


def _require_fitting(of_a_promotion: list[str], reason: str | None, *, withdraw: bool) -> None:
    """Raise UsageError for options of a promotion beside --withdraw, and the other way round."""
    if reason is not None and not withdraw:
        raise UsageError("--reason says why a promotion is taken back; add --withdraw, or give --override its reason")
    if withdraw and of_a_promotion:
        raise UsageError(f"{of_a_promotion[0]} is of a promotion, and --withdraw takes one back; leave it out")
    if withdraw and reason is None:
        raise UsageError("--withdraw needs --reason TEXT: why the promotion is taken back, which is recorded")


def _named(store: Store, run: str, *, withdraw: bool) -> str:
    """The run that was judged, and not the one that somebody stored a moment ago."""
    if run.startswith("@") and not (withdraw and run == "@promoted"):
        raise UsageError(f"{run} may mean another run by now than the one that was judged; name it by its id or label")
    return store.resolve(run, whole=True)


def _user() -> str | None:
    """Whom this machine knows as the user; None where it knows nobody."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def _document(recorded: Recorded) -> str:
    document = {**recorded.promotion.to_json(), "in_series": recorded.promotion.in_series, "new": recorded.new}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _lines(recorded: Recorded, doubt: str) -> Iterator[str]:
    """What stands now, and `doubt`: why the ref it was asked from is not known to be protected."""
    from benchgate.report.untrusted import terminal_line

    one = recorded.promotion
    yield terminal_line(f"run {one.run_id} of suite {one.suite}: {one.told}") + "\n"
    if not recorded.new:
        yield "it was before, as below: nothing was recorded, whatever else was asked for now\n"
    told = (("ref", one.origin.ref), ("commit", one.origin.commit), ("in", one.origin.ci))
    where = "".join(f", {what} {said}" for what, said in told if said)
    yield terminal_line(f"by {one.origin.by} at {one.promoted_at}{where}") + "\n"
    if one.grounds is not None:
        yield f"verdict {one.grounds.outcome}, report sha256 {one.grounds.report_sha256}\n"
        if not one.in_series:
            why = "its verdict was overridden" if one.reason is not None else doubt
            yield terminal_line(f"it is not in the baseline series: {why}") + "\n"
    if one.reason is not None:
        yield terminal_line(f"reason: {one.reason}") + "\n"
