"""Reasons why a stored run's candidate may not be promoted, and a suite file's match with what a run measured.

`promote`, `publish`, `verify` and the verdict server all ask here, so they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path

from benchgate.errors import ExitCode, SuiteError, UsageError
from benchgate.escape import one_line
from benchgate.model.deployment import HOW_TO_PIN, Arm, ModelIdentity, adapter_names, identity_of, sha256_of
from benchgate.model.history import Promotion, PromotionAction, current_promotions, promotion_labels
from benchgate.model.run import Run, RunStatus, too_old_because
from benchgate.model.verdict import Outcome
from benchgate.pipeline.suite_file import with_prices
from benchgate.suite.rules.suite import only_part, quick_look, with_arms
from benchgate.suite.schema import Suite

IMPORTED_EVALS = "its evals were made elsewhere, and nothing shows what answered them"


class ObstacleKind(StrEnum):
    """Kind of an obstacle to a promotion."""

    CALIBRATION = "calibration"
    IMPORTED = "imported"
    PART = "part"
    INCOMPLETE = "incomplete"
    TOO_OLD = "too old"
    NO_CANDIDATE = "no candidate"
    NOT_PINNED = "not pinned"
    OTHER_REVISION = "other revision"
    OTHER_TOOL = "other tool"
    VERDICT = "verdict"
    WITHDRAWN = "withdrawn"
    NOT_PROMOTED = "not promoted"
    OVERTAKEN = "overtaken"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason against a promotion: a clause about the run ("it is partial"), and the exit code of a refusal."""

    kind: ObstacleKind
    reason: str
    exit_code: ExitCode = ExitCode.INVALID


@dataclass(frozen=True, slots=True)
class Requirements:
    """Demands on a run. `revision` is the one its candidate's weights must have been measured at."""

    max_age_s: float
    require_pinned: bool = False
    revision: str | None = None


def purpose_obstacles(run: Run) -> Iterator[Obstacle]:
    """Yield why a run cannot promote its candidate, however it is judged."""
    if run.calibrates:
        reason = "it is a calibration: both of its arms are one deployment, so it judges no candidate"
        yield Obstacle(ObstacleKind.CALIBRATION, reason, ExitCode.USAGE)
    if run.imported:
        reason = f"it was imported: {IMPORTED_EVALS}; promote a run that benchgate measured"
        yield Obstacle(ObstacleKind.IMPORTED, reason, ExitCode.USAGE)
    if run.is_quick_look:
        reason = "it is a quick look (`--quick`) with fewer blocks and items than its suite; measure the whole suite"
        yield Obstacle(ObstacleKind.PART, reason, ExitCode.USAGE)
    elif run.only_part is not None:
        reason = f"only its `{run.only_part}` was measured (`--only`); measure and judge the whole suite"
        yield Obstacle(ObstacleKind.PART, reason, ExitCode.USAGE)


def run_obstacles(run: Run, now: str, requirements: Requirements) -> Iterator[Obstacle]:
    """Yield what is wrong with a run at the instant `now` (RFC 3339 UTC), its verdict aside."""
    yield from purpose_obstacles(run)
    if run.status is not RunStatus.COMPLETE:
        again = f"resume it: `benchgate run SUITE --resume --run {run.id}`"
        reason = f"it is {run.status}, and only a complete run can be promoted; {again}"
        yield Obstacle(ObstacleKind.INCOMPLETE, reason)
    if (too_old := too_old_because(run.finished_at, now, requirements.max_age_s)) is not None:
        yield Obstacle(ObstacleKind.TOO_OLD, too_old)
    if (identity := candidate_identity(run)) is None:
        yield Obstacle(ObstacleKind.NO_CANDIDATE, "it has no candidate")
    elif identity.may_move or (requirements.require_pinned and not identity.is_fixed):
        yield Obstacle(
            ObstacleKind.NOT_PINNED,
            f"its candidate is {one_line(identity.description)}, so the weights served under that name may differ "
            f"from those measured; {HOW_TO_PIN} and measure it again",
        )
    elif requirements.revision is not None and identity.revision != requirements.revision:
        reason = f"it measured {one_line(identity.description)}, not revision {one_line(requirements.revision)}"
        yield Obstacle(ObstacleKind.OTHER_REVISION, reason)
    if run.measured_by is not None:
        reason = "it was measured by another tool, so it judges no candidate"
        yield Obstacle(ObstacleKind.OTHER_TOOL, reason, ExitCode.USAGE)


def verdict_obstacles(outcome: Outcome, reason: str, *, strict: bool) -> Iterator[Obstacle]:
    """Yield why a verdict does not promote; its `reason` is passed on."""
    code = outcome.exit_code(strict=strict)
    if not outcome.promotes:
        yield Obstacle(ObstacleKind.VERDICT, reason, code)
    elif code is not ExitCode.OK:
        yield Obstacle(ObstacleKind.VERDICT, "strict treats WARN like BLOCK; leave it out to promote with care", code)


def promotion_obstacles(run: Run, records: Iterable[Promotion], *, required: bool = False) -> Iterator[Obstacle]:
    """Yield what the recorded promotions of its suite say against a run; `required` is that one of it must stand."""
    label = promotion_labels(list(records)).get(run.id)
    if label == PromotionAction.WITHDRAWN:
        yield Obstacle(ObstacleKind.WITHDRAWN, "its promotion was withdrawn", ExitCode.PUBLISH_FAILED)
    elif required and label is None:
        yield Obstacle(ObstacleKind.NOT_PROMOTED, "it was not promoted, and a promotion is required")


def newer_promotions(
    promotion: Promotion, begun: Mapping[str, str], records: Iterable[Promotion]
) -> Iterator[Obstacle]:
    """Yield the run, measured later, whose promotion a new one of an older run would replace unasked.

    `begun` has the start of each run by id. A promotion of less weight, like an override, stands in nobody's way.
    """
    current = current_promotions(records)
    known, ours = current.get(promotion.run_id), begun[promotion.run_id]
    newer = [one for one in current.values() if begun[one.run_id] > ours and one.weight >= promotion.weight]
    if newer and (known is None or known.weight < promotion.weight):  # else it was recorded before
        reason = f"run {newer[-1].run_id}, which was measured later, is promoted"
        yield Obstacle(ObstacleKind.OVERTAKEN, reason, ExitCode.PUBLISH_FAILED)


def candidate_identity(run: Run) -> ModelIdentity | None:
    """Return what is known of the candidate's weights; None for a run without a candidate."""
    candidate = run.arms.get(Arm.CANDIDATE)
    return None if candidate is None else identity_of(candidate, adapter_names(run.suite.get("load")))


@dataclass(frozen=True, slots=True)
class MeasuredForm:
    """A form of a suite that a command may have measured, with the prices of a day, or why it has none."""

    suite: Suite | SuiteError
    is_only_part: bool = False

    @property
    def sha256(self) -> str | None:
        """Return the hash that a run of it keeps; None without prices."""
        return None if isinstance(self.suite, SuiteError) else sha256_of(self.suite.to_stored())


def measured_forms(suite: Suite, folder: Path, day: date | None, names: Mapping[Arm, str]) -> list[MeasuredForm]:
    """List the forms a command may have measured: all of a suite, two of its deployments, a part or a quick look.

    `names` are those of the run's arms, `folder` is the suite's and `day` the run's first, whose prices count.
    """

    def priced(one: Suite) -> Suite | SuiteError:
        try:
            return with_prices(one, folder, day)
        except SuiteError as error:
            return error

    forms = [MeasuredForm(priced(suite))]
    with suppress(UsageError):  # it has no such deployments, so this suite was not measured
        suite = with_arms(suite, names.get(Arm.BASELINE), names.get(Arm.CANDIDATE))
    forms.append(MeasuredForm(priced(suite)))
    for part in ("load", "quality", "shadow"):
        with suppress(UsageError):
            forms.append(MeasuredForm(priced(only_part(suite, part)), is_only_part=True))
    with suppress(UsageError):
        forms.append(MeasuredForm(priced(quick_look(suite)), is_only_part=True))
    return forms
