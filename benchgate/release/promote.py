"""From a stored run to a recorded promotion, and back out of one.

Nothing stored is taken at its word: the run is judged again from its records, and only what comes out exactly as it was
stored, and says yes, is promoted. Anything else takes an override that names its reason and stays outside of the
baseline series.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.errors import BenchgateError, EvidenceError, ExitCode, PublishError, UsageError
from benchgate.escape import one_line
from benchgate.model.deployment import HOW_TO_PIN, Arm, ModelIdentity, adapter_names, identity_of, sha256_of
from benchgate.model.history import (
    Promotion,
    PromotionAction,
    PromotionGrounds,
    PromotionOrigin,
    current_promotions,
    promotion_labels,
)
from benchgate.model.run import Run, RunStatus, too_old_because
from benchgate.model.verdict import Waivers
from benchgate.pipeline.environment import fresh_run_id, utc_now
from benchgate.pipeline.judge import Decision, decide_stored, report_html
from benchgate.store.repository import Store, StoredVerdict

_LONGEST = 500


class NotPromoted(BenchgateError):
    """The run may not be promoted; the exit code says why, as that of its verdict does."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Recorded:
    """The promotion that stands now; `new` where it was recorded just now, else it stood before.

    `identity` is what is known of the candidate's weights; None of a withdrawal.
    """

    promotion: Promotion
    new: bool
    identity: ModelIdentity | None = None


def promote(
    store: Store,
    run_id: str,
    origin: PromotionOrigin,
    *,
    max_age_s: float,
    waivers: Waivers | None = None,
    strict: bool = False,
    report: Path | None = None,
    override: str | None = None,
    require_pinned: bool = False,
    again: bool = False,
) -> Recorded:
    """Judge a run once more and record its promotion.

    A run that ended more than `max_age_s` ago is refused in any case: servers, drivers and traffic are others by then.
    `report` is the HTML report that somebody read: it must be the one that the store gives. `override` is the reason
    why a run is promoted whose verdict says no. A candidate whose weights stand under a name that may move is refused
    in any case, with `require_pinned` also one of which nobody says at which revision it was measured. So is a run
    whose promotion was withdrawn, unless `again` says that it is meant: a job that is started over means nothing by it.
    Raises NotPromoted, with the verdict's exit code where that is the reason, and UsageError for a run that judges
    nobody.
    """
    _require_told(origin, override)
    run = store.run(run_id)
    _require_judging(run)
    _require_recent(run, max_age_s)
    identity = _require_fixed(run, require_pinned=require_pinned)
    decision = decide_stored(store, run_id, waivers=waivers, keep=False).with_strict(strict=strict)
    stored = _stored_verdict(store, decision)
    deed = _deed(decision, override)
    promotion = Promotion(
        id=fresh_run_id(),
        run_id=run_id,
        promoted_at=utc_now(),
        suite=decision.evidence.run.suite_name,
        deed=deed,
        origin=origin,
        grounds=replace(
            _grounds(store, decision, stored, _report_sha256(decision, report)), revision=identity.revision
        ),
        reason=override,
    )
    _require_not_withdrawn(store, run, again=again)
    kept = store.save_promotion(promotion)
    return Recorded(kept, new=kept.id == promotion.id, identity=identity)


def withdraw(store: Store, run_id: str, origin: PromotionOrigin, reason: str) -> Recorded:
    """Record that a promotion no longer stands: the run is out of the baseline series, and `@promoted` the one before.

    Raises UsageError where none stands, or where it is in the series and the origin is not protected.
    """
    _require_told(origin, reason)
    suite = store.run(run_id).suite_name
    withdrawal = Promotion(fresh_run_id(), run_id, utc_now(), suite, PromotionAction.WITHDRAWN, origin, None, reason)
    return Recorded(store.save_promotion(withdrawal), new=True)


def require_to_follow(store: Store, recorded: Recorded, *, again: bool, override: str | None) -> None:
    """Raise PublishError where nothing may follow what is recorded: not now, or not at all.

    A job that is started over must not end well with a deployment that never happened (nobody knows if it did), nor put
    an older candidate into the place of a newer one, nor do by a record of a yes what an override asks for.
    """
    one, why = recorded.promotion, None
    stands = tuple(current_promotions(store.promotions(one.suite)))
    if override is not None and one.deed is not PromotionAction.OVERRIDDEN:
        why = "it stands by a verdict that says no by now, and the override is recorded nowhere: --withdraw it first"
    elif one.run_id not in stands:
        why = "it was withdrawn meanwhile"
    elif stands[-1] != one.run_id:
        why = f"run {stands[-1]} was promoted after it; to go back to this one, --withdraw that first"
    elif not recorded.new and not again:
        why = "it was recorded before, and nothing says what was done then; add --repeat to do it now"
    if why is not None:
        raise PublishError(f"nothing follows the promotion of run {one.run_id}: {why}")


def _require_told(origin: PromotionOrigin, reason: str | None) -> None:
    """What people wrote is shown on terminals and in the logs of CI systems, which an escape would command."""
    told = {"--by": origin.by, "--ref": origin.ref, "--commit": origin.commit, "what the CI says": origin.ci}
    for what, said in (told | {"a reason": reason}).items():
        if said is None:
            continue
        if not said.strip() or len(said) > _LONGEST or any(unicodedata.category(char)[0] == "C" for char in said):
            raise UsageError(f"{what}: expected 1 to {_LONGEST} characters on one line; found {ascii(said)[:60]}")


def _require_judging(run: Run) -> None:
    if run.calibrates:
        raise UsageError(f"run {run.id} is a calibration: both of its arms are one deployment, and it judges nobody")
    if run.imported:
        raise UsageError(
            f"run {run.id} was imported: its evals were made elsewhere, and nothing shows what answered them; promote "
            "a run that benchgate measured"
        )
    if run.status is not RunStatus.COMPLETE:
        raise NotPromoted(
            f"run {run.id} is {run.status}, and only a complete one can be promoted; go on with it: "
            "`benchgate run --resume`",
            ExitCode.INVALID,
        )


def _require_recent(run: Run, max_age_s: float) -> None:
    old = too_old_because(run.finished_at, utc_now(), max_age_s)
    if old is not None:
        raise NotPromoted(
            f"run {run.id} is not promoted: {old} (--max-age says how old a run may be)", ExitCode.INVALID
        )


def _require_not_withdrawn(store: Store, run: Run, *, again: bool) -> None:
    if not again and promotion_labels(store.promotions(run.suite_name)).get(run.id) == PromotionAction.WITHDRAWN:
        raise NotPromoted(
            f"run {run.id} was promoted, and that was withdrawn; --repeat promotes it all the same",
            ExitCode.PUBLISH_FAILED,
        )


def _require_fixed(run: Run, *, require_pinned: bool) -> ModelIdentity:
    """What is known of the candidate's weights. Raises NotPromoted where others may be served under their name."""
    candidate = run.arms.get(Arm.CANDIDATE)
    if candidate is None:
        raise NotPromoted(f"run {run.id} has no candidate, and so nothing to promote", ExitCode.INVALID)
    identity = identity_of(candidate, adapter_names(run.suite.get("load")))
    if identity.may_move or (require_pinned and not identity.is_fixed):
        raise NotPromoted(
            f"run {run.id} is not promoted: its candidate is {one_line(identity.told)}, so what is served under that "
            f"name need not be what was measured; {HOW_TO_PIN} and measure it again",
            ExitCode.INVALID,
        )
    return identity


def _stored_verdict(store: Store, decision: Decision) -> StoredVerdict:
    """The latest own verdict that the store has, where it says exactly what is found now. Raises NotPromoted."""
    run_id = decision.evidence.run.id
    own = [one for one in store.verdicts(run_id) if one.of_the_run_itself]
    if own and sha256_of(own[-1].document) == sha256_of(decision.document):
        return own[-1]
    known = f"is another: {own[-1].outcome} of {own[-1].decided_at or 'an unknown day'}" if own else "is not there"
    raise NotPromoted(
        f"run {run_id} is {decision.verdict.outcome} as judged now, and its newest stored verdict {known}; judge it "
        f"again with `benchgate gate {run_id}` (and the same --waivers and --as-of), read that, and promote it then",
        ExitCode.PUBLISH_FAILED if decision.exit_code is ExitCode.OK else decision.exit_code,
    )


def _deed(decision: Decision, override: str | None) -> PromotionAction:
    """Whether the verdict lets it through, or somebody does in its place. Raises NotPromoted where neither does."""
    run_id, outcome = decision.evidence.run.id, decision.verdict.outcome
    if decision.exit_code is ExitCode.OK and outcome.promotes:
        if override is not None:
            raise UsageError(f"run {run_id} is {outcome} and needs no override; leave --override out")
        return PromotionAction.PROMOTED
    if override is None:
        why = "--strict treats WARN like BLOCK; leave it out to promote with care" if outcome.promotes else None
        raise NotPromoted(
            f"run {run_id} is {outcome} and is not promoted: {why or decision.verdict.reason}", decision.exit_code
        )
    return PromotionAction.OVERRIDDEN


def _grounds(store: Store, decision: Decision, stored: StoredVerdict, report_sha256: str) -> PromotionGrounds:
    run, policy = decision.evidence.run, decision.verdict.policy_sha256
    evidence = store.evidence_sha256(run.id)
    if evidence is None or policy is None:
        raise EvidenceError(
            f"run {run.id}: its evidence or its policy has no hash, so nothing can be said to rest on it"
        )
    return PromotionGrounds(
        outcome=decision.verdict.outcome,
        verdict_sha256=stored.sha256,
        evidence_sha256=evidence,
        suite_sha256=run.suite_sha256,
        policy_sha256=policy,
        measurement_sha256=run.measurement_sha256,
        report_sha256=report_sha256,
    )


def _report_sha256(decision: Decision, report: Path | None) -> str:
    """Of the report as the store gives it. Raises NotPromoted where somebody read neither that nor a site's."""
    expected = hashlib.sha256(report_html(decision).encode()).hexdigest()
    if report is None:
        return expected
    try:
        found = hashlib.sha256(report.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"the report {report} cannot be read: {error.strerror}") from error
    if found not in (expected, hashlib.sha256(report_html(decision, in_site=True).encode()).hexdigest()):
        raise NotPromoted(
            f"{report} is not the report of run {decision.evidence.run.id}: it hashes to {found}, and the one from the "
            f"store to {expected}; it was changed, or made of another run, by other waivers, by another benchgate or "
            "with another --strict; write it anew with `benchgate gate --report` and read that",
            ExitCode.PUBLISH_FAILED,
        )
    return expected
