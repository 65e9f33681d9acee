"""`benchgate promote`: record that a judged run's candidate goes into service, or that it is taken out of it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from benchgate.cli import options
from benchgate.cli import promote_options as given
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say, say_json
from benchgate.cli.waiver_files import waivers_for_stored
from benchgate.errors import UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.release.promote import Recorded
    from benchgate.store.repository import Store


def promote(
    run: given.RunArgument,
    by: given.ByOption = None,
    ref: given.RefOption = None,
    commit: given.CommitOption = None,
    protected: given.ProtectedOption = None,
    report: given.ReportOption = None,
    override: given.OverrideOption = None,
    require_pinned: given.RequirePinnedOption = False,
    max_age: given.MaxAgeOption = None,
    run_hook: given.RunHookOption = None,
    hook_timeout: given.HookTimeoutOption = "10m",
    again: given.AgainOption = False,
    withdraw: given.WithdrawOption = False,
    reason: given.ReasonOption = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
    output: given.OutputOption = CareFormat.TEXT,
) -> None:
    """Judge a stored run once more and record its promotion; exits with the verdict's code where that says no."""
    from benchgate.integrations.ci import origin_of, unprotected_because
    from benchgate.integrations.hook import hook_command
    from benchgate.model.deployment import Arm
    from benchgate.model.run import MAX_PROMOTION_AGE_S
    from benchgate.release import promote
    from benchgate.release.promote import run_promotion_hook
    from benchgate.store.repository import Store

    rests_on = {"--report": report, "--override": override, "--waivers": waivers, "--as-of": as_of, "--strict": strict}
    follows = {"--run-hook": run_hook, "--again": again}
    lately = {"--require-pinned": require_pinned, "--max-age": max_age}
    _require_fitting({**rests_on, **follows, **lately}, reason, withdraw=withdraw)
    max_age_s = MAX_PROMOTION_AGE_S if max_age is None else _duration_s("--max-age", max_age)
    hook = None if run_hook is None else hook_command(run_hook)
    hook_limit_s = _duration_s("--hook-timeout", hook_timeout)
    origin = origin_of(os.environ, by=by, ref=ref, commit=commit, protected=protected, user=_user())
    doubt = unprotected_because(os.environ)
    with Store.open(store, create=False) as opened:
        run_id = _named(opened, run, withdraw=withdraw)
        if reason is not None:
            recorded = promote.withdraw(opened, run_id, origin, reason)
        else:
            recorded = promote.promote(
                opened,
                run_id,
                origin,
                max_age_s=max_age_s,
                waivers=waivers_for_stored(waivers, as_of, opened.run(run_id)),
                strict=strict,
                report=report,
                override=override,
                require_pinned=require_pinned,
                again=again,
            )
        if output is CareFormat.JSON:
            say_json(_document(recorded), sort_keys=True)
        else:
            say("".join(_lines(recorded, doubt)))
        if hook is not None:
            promote.require_current(opened, recorded, again=again, override=override)
            candidate = opened.run(run_id).arms[Arm.CANDIDATE]
            run_promotion_hook(hook, recorded.promotion, candidate, os.environ, hook_limit_s)


def _require_fitting(of_a_promotion: Mapping[str, object], reason: str | None, *, withdraw: bool) -> None:
    """Raise UsageError for options of a promotion beside --withdraw, and the other way round."""
    named = [option for option, said in of_a_promotion.items() if said not in (None, False)]
    if reason is not None and not withdraw:
        raise UsageError("--reason says why a promotion is taken back; add --withdraw, or give --override its reason")
    if withdraw and named:
        raise UsageError(f"{named[0]} is of a promotion, and --withdraw takes one back; leave it out")
    if withdraw and reason is None:
        raise UsageError("--withdraw needs --reason TEXT: why the promotion is taken back, which is recorded")


def _duration_s(option: str, text: str) -> float:
    from benchgate.units import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


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


def _document(recorded: Recorded) -> dict[str, object]:
    document = {**recorded.promotion.to_json(), "in_series": recorded.promotion.in_series, "new": recorded.new}
    if recorded.identity is not None:
        document["identity"] = {"pin": recorded.identity.pin.value, "told": recorded.identity.told}
    return document


def _lines(recorded: Recorded, doubt: str) -> Iterator[str]:
    """What stands now, and `doubt`: why the ref it was asked from is not known to be protected."""
    one = recorded.promotion
    yield terminal_line(f"run {one.run_id} of suite {one.suite}: {one.told}") + "\n"
    if not recorded.new:
        yield "it was before, as below: nothing was recorded, whatever else was asked for now\n"
    told = (("ref", one.origin.ref), ("commit", one.origin.commit), ("in", one.origin.ci))
    where = "".join(f", {what} {said}" for what, said in told if said)
    yield terminal_line(f"by {one.origin.by} at {one.promoted_at}{where}") + "\n"
    if one.grounds is not None:
        yield f"verdict {one.grounds.outcome}, report sha256 {one.grounds.report_sha256}\n"
        if recorded.identity is not None:
            yield terminal_line(f"model {recorded.identity.told}") + "\n"
        if not one.in_series:
            why = "its verdict was overridden" if one.reason is not None else doubt
            yield terminal_line(f"it is not in the baseline series: {why}") + "\n"
    if one.reason is not None:
        yield terminal_line(f"reason: {one.reason}") + "\n"
