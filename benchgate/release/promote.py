"""Recorded promotions: judge a stored run again, record or withdraw its promotion, and run the hook that follows.

The stored verdict is not trusted: only a run that is judged now exactly as it was stored, and passes, is promoted.
Anything else takes an override that names its reason and stays outside of the baseline series.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.errors import BenchgateError, EvidenceError, ExitCode, PublishError, UsageError
from benchgate.model.deployment import Deployment, ModelIdentity, sha256_of
from benchgate.model.history import (
    Promotion,
    PromotionAction,
    PromotionGrounds,
    PromotionOrigin,
    current_promotions,
)
from benchgate.model.verdict import Waivers
from benchgate.pipeline.environment import fresh_run_id, utc_now
from benchgate.release.eligibility import (
    Obstacle,
    ObstacleKind,
    Requirements,
    candidate_identity,
    newer_promotions,
    promotion_obstacles,
    run_obstacles,
    verdict_obstacles,
)
from benchgate.store.repository import Store, StoredVerdict
from benchgate.targets.error_messages import one_line

if TYPE_CHECKING:
    from benchgate.pipeline.judge import Decision

_LONGEST_TEXT = 500
_GRACE_S = 5.0  # between SIGTERM and SIGKILL
_LONGEST_VARIABLE = 4096  # characters
_STDERR = 2  # standard output is for benchgate's own results alone


class NotPromoted(BenchgateError):
    """The run may not be promoted; the exit code is that of the reason."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Recorded:
    """The current promotion of a run; `new` if it was recorded just now.

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

    `report` is the HTML report that was reviewed: it must be the one that the store gives. `override` is the reason
    why a run is promoted whose verdict says no. It does not help a run that ended more than `max_age_s` ago, nor a
    candidate whose weights may change under their name (with `require_pinned`: are not pinned). A run whose promotion
    was withdrawn, and one measured before a promoted run, need `again`: a job that is started over does not mean it.
    Raises NotPromoted, with the verdict's exit code where that is the reason, and UsageError for a run that judges no
    candidate.
    """
    _require_printable(origin, override)
    run = store.run(run_id)
    _refuse(run_id, run_obstacles(run, utc_now(), Requirements(max_age_s, require_pinned=require_pinned)))
    identity = candidate_identity(run)
    assert identity is not None, "a run without a candidate is refused above"
    from benchgate.pipeline.judge import decide_stored  # slow to import, and a refused run needs none of it

    decision = decide_stored(store, run_id, waivers=waivers, keep=False).with_strict(strict=strict)
    verdict = _stored_verdict(store, decision)
    outcome = decision.verdict.outcome
    obstacles = list(verdict_obstacles(outcome, f"it is {outcome}: {decision.verdict.reason}", strict=strict))
    if override is None:
        _refuse(run_id, obstacles)
    elif not obstacles:
        raise UsageError(f"run {run_id} is {outcome} and needs no override; leave --override out")
    promotion = Promotion(
        id=fresh_run_id(),
        run_id=run_id,
        promoted_at=utc_now(),
        suite=run.suite_name,
        deed=PromotionAction.OVERRIDDEN if obstacles else PromotionAction.PROMOTED,
        origin=origin,
        grounds=replace(
            _grounds(store, decision, verdict, _report_sha256(decision, report)), revision=identity.revision
        ),
        reason=override,
    )
    if not again:
        records = store.promotions(run.suite_name)
        begun = {one: store.run(one).started_at for one in {run_id, *current_promotions(records)}}
        _refuse(run_id, [*promotion_obstacles(run, records), *newer_promotions(promotion, begun, records)])
    recorded = store.save_promotion(promotion)
    return Recorded(recorded, new=recorded.id == promotion.id, identity=identity)


def withdraw(store: Store, run_id: str, origin: PromotionOrigin, reason: str) -> Recorded:
    """Withdraw a promotion: the run leaves the baseline series, and `@promoted` means the one before it.

    Raises UsageError for a run that is not promoted, or is in the series while the origin is not protected.
    """
    _require_printable(origin, reason)
    suite = store.run(run_id).suite_name
    withdrawal = Promotion(fresh_run_id(), run_id, utc_now(), suite, PromotionAction.WITHDRAWN, origin, None, reason)
    return Recorded(store.save_promotion(withdrawal), new=True)


def require_current(store: Store, recorded: Recorded, *, again: bool, override: str | None) -> None:
    """Raise PublishError where the hook must not run for a recorded promotion: not now, or not at all.

    A job that is started over must not end well with a deployment that never happened, replace a newer candidate by an
    older one, or use a recorded pass for what an override asks for.
    """
    promotion, reason = recorded.promotion, None
    current = tuple(current_promotions(store.promotions(promotion.suite)))
    if override is not None and promotion.deed is not PromotionAction.OVERRIDDEN:
        reason = "its recorded verdict passed, today's does not, and the override is not recorded: --withdraw it first"
    elif promotion.run_id not in current:
        reason = "it was withdrawn meanwhile"
    elif current[-1] != promotion.run_id:
        reason = f"run {current[-1]} was promoted after it; to go back to this one, --withdraw that first"
    elif not recorded.new and not again:
        reason = "it was recorded before, and it is unknown if the hook ran then; add --repeat to run it now"
    if reason is not None:
        raise PublishError(f"no hook runs for the promotion of run {promotion.run_id}: {reason}")


# The hook: a user's command, run without a shell and with a time limit. Texts of models and people reach it as
# environment variables of one printable line each and as JSON on its standard input, never in its command line.


def hook_command(text: str) -> tuple[str, ...]:
    """Split a command into words as a shell would. Raises UsageError if it cannot be run."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--run-hook: invalid command: {error}; quote it as for a shell") from error
    if not words or "\0" in text:
        raise UsageError("--run-hook: expected a command, like './deploy.sh --to production'")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--run-hook: program {one_line(words[0])!r} not found; it runs without a shell, so pipes, variables and "
            "`&&` belong into a script"
        )
    return words


def run_promotion_hook(
    command: Sequence[str],
    promotion: Promotion,
    candidate: Deployment,
    environment: Mapping[str, str],
    limit_s: float,
) -> None:
    """Run the user's command for a recorded promotion. Raises PublishError where it fails; the promotion stays."""
    served = {"name": candidate.name, "model": candidate.model, "engine": candidate.engine}
    record = {**promotion.to_json(), "in_series": promotion.in_series, "candidate": served}
    document = json.dumps(record, indent=2, sort_keys=True) + "\n"
    try:
        run_hook(command, hook_variables(promotion, candidate), document, environment, limit_s)
    except PublishError as error:
        raise PublishError(
            f"the promotion of run {promotion.run_id} is recorded, but {error}; run the hook again by the "
            "same command with --repeat"
        ) from error


def run_hook(
    command: Sequence[str], variables: Mapping[str, str], document: str, environment: Mapping[str, str], limit_s: float
) -> None:
    """Run a command to its end. Raises PublishError if it fails, cannot be started or takes longer than `limit_s`.

    `variables` override those in `environment`; `document` is its standard input.
    """
    merged = {**environment, **{name: one_line(value, _LONGEST_VARIABLE) for name, value in variables.items()}}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=_STDERR, env=merged, start_new_session=True, text=True
        )
    except OSError as error:
        raise PublishError(f"the hook could not be started: {error.strerror or error}") from error
    try:
        process.communicate(document, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise PublishError(
            f"the hook took longer than {limit_s:g} s and was ended; --hook-timeout gives more"
        ) from error
    finally:
        _end(process)
    if process.returncode:
        how = f"status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise PublishError(f"the hook ended with {how}")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process, and everything else in its session."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second also for what the first left of its session
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def hook_variables(promotion: Promotion, candidate: Deployment) -> dict[str, str]:
    """Return the hook's environment variables; unknown values are empty."""
    grounds = promotion.grounds
    variables = {
        "RUN_ID": promotion.run_id,
        "SUITE": promotion.suite,
        "DEED": promotion.deed.value,
        "IN_SERIES": "true" if promotion.in_series else "false",
        "PROMOTED_AT": promotion.promoted_at,
        "PROMOTED_BY": promotion.origin.by,
        "REF": promotion.origin.ref or "",
        "COMMIT": promotion.origin.commit or "",
        "CANDIDATE": candidate.name,
        "CANDIDATE_MODEL": candidate.model,
        "CANDIDATE_REVISION": grounds.revision or "" if grounds is not None else "",
        "VERDICT": grounds.outcome.value if grounds is not None else "",
        "VERDICT_SHA256": grounds.verdict_sha256 if grounds is not None else "",
        "EVIDENCE_SHA256": grounds.evidence_sha256 if grounds is not None else "",
        "SUITE_SHA256": grounds.suite_sha256 if grounds is not None else "",
        "REPORT_SHA256": grounds.report_sha256 if grounds is not None else "",
    }
    return {f"BENCHGATE_{name}": value for name, value in variables.items()}


def _require_printable(origin: PromotionOrigin, reason: str | None) -> None:
    """Raise UsageError for texts with control characters, which terminals and CI logs would obey."""
    texts = {"--by": origin.by, "--ref": origin.ref, "--commit": origin.commit, "the CI's description": origin.ci}
    for name, text in (texts | {"a reason": reason}).items():
        if text is None:
            continue
        if not text.strip() or len(text) > _LONGEST_TEXT or any(unicodedata.category(char)[0] == "C" for char in text):
            raise UsageError(f"{name}: expected 1 to {_LONGEST_TEXT} characters on one line; found {ascii(text)[:60]}")


_HINTS = {
    ObstacleKind.TOO_OLD: " (--max-age sets the limit)",
    ObstacleKind.VERDICT: "; read it with `benchgate report`, then promote another run or give --override REASON",
    ObstacleKind.WITHDRAWN: "; --repeat promotes it anyway",
    ObstacleKind.OVERTAKEN: "; --repeat promotes this one in its place",
}


def _refuse(run_id: str, obstacles: Iterable[Obstacle]) -> None:
    """Raise for the first obstacle."""
    for obstacle in obstacles:
        hint = _HINTS.get(obstacle.kind, "")
        reason = obstacle.reason.removesuffix(".") if hint else obstacle.reason
        message = f"run {run_id} is not promoted: {reason}{hint}"
        if obstacle.exit_code is ExitCode.USAGE:
            raise UsageError(message)
        raise NotPromoted(message, obstacle.exit_code)


def _stored_verdict(store: Store, decision: Decision) -> StoredVerdict:
    """Return the run's newest own verdict. Raises NotPromoted unless it is the one found now."""
    run_id = decision.evidence.run.id
    stored = store.own_verdict(run_id)
    if stored is not None and sha256_of(stored.document) == sha256_of(decision.document):
        return stored
    known = (
        "is not there" if stored is None else f"is another: {stored.outcome} of {stored.decided_at or 'no known day'}"
    )
    raise NotPromoted(
        f"run {run_id} is {decision.verdict.outcome} as judged now, and its newest stored verdict {known}; judge it "
        f"again with `benchgate gate {run_id}` (and the same --waivers and --as-of), read that, and promote it then",
        ExitCode.PUBLISH_FAILED if decision.exit_code is ExitCode.OK else decision.exit_code,
    )


def _grounds(store: Store, decision: Decision, stored: StoredVerdict, report_sha256: str) -> PromotionGrounds:
    run, policy = decision.evidence.run, decision.verdict.policy_sha256
    evidence = store.evidence_sha256(run.id)
    if evidence is None or policy is None:
        raise EvidenceError(f"run {run.id}: its evidence or its policy has no hash, so no promotion can rest on it")
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
    """Return the hash of the store's own report. Raises NotPromoted if `report` is neither that nor a site's."""
    from benchgate.pipeline.judge import report_html  # slow to import

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
