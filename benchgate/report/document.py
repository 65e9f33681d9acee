"""The verdict as plain JSON, the same bytes for the same verdict on every machine; and the terms it was given on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date

from benchgate.errors import ExitCode
from benchgate.gate.judge import reference_doubt
from benchgate.model.deployment import Deployment, sha256_of
from benchgate.model.run import Evidence, Run
from benchgate.model.verdict import (
    CheckResult,
    Difference,
    GuardResult,
    Outcome,
    ReplicaFigures,
    Verdict,
    Waiver,
    WaiverState,
    WaiverUse,
    policy_sha256,
)
from benchgate.report.comparability import deployments
from benchgate.suite.schema import Suite, policy_parts


@dataclass(frozen=True, slots=True)
class Terms:
    """Inputs of a verdict besides the evidence.

    `policy` is the run's suite with a replaced gate, SLOs and error budget; None when nothing was replaced.
    `given_sha256` is the hash of the policy that was given for it, by `policy_parts_sha256`.
    `reference_outcome` is the reference run's own verdict, if any.
    """

    policy: Suite | None = None
    given_sha256: str | None = None
    reference_outcome: Outcome | None = None
    strict: bool = False

    def suite(self, run: Run) -> Suite:
        """Return the suite that judged the run."""
        return self.policy or Suite.from_stored(run.suite)

    def judged(self, evidence: Evidence) -> Evidence:
        """Return the evidence with the suite that judged it: its metrics follow that suite's SLO."""
        return replace(evidence, run=replace(evidence.run, suite=self.suite(evidence.run).to_stored()))

    def exit_code(self, verdict: Verdict) -> ExitCode:
        """Return the code of the verdict itself; failing to store or publish it has another."""
        return verdict.outcome.exit_code(strict=self.strict)

    def refusal(self, verdict: Verdict, code: ExitCode) -> str | None:
        """Return why a process that ends with `code` promotes nothing by a verdict that would; None otherwise."""
        if code is ExitCode.OK or not verdict.outcome.promotes:
            return None
        if code is self.exit_code(verdict):
            return "--strict treats WARN like BLOCK"
        return f"the verdict could not be kept or published, so nothing may be promoted by it: exit code {int(code)}"

    def policy_replaced(self, run: Run, verdict: Verdict) -> bool:
        """Return True if the run was measured under another gate, SLO or error budget."""
        # Read and spelled again: a run of an older benchgate lacks what the language has gained since, defaults all.
        own = Suite.from_stored(run.suite)
        if verdict.policy_sha256 is not None and verdict.policy_sha256 != policy_sha256(own.to_stored()["gate"]):
            return True
        return self.policy is not None and policy_parts(self.policy) != policy_parts(own)

    def slo(self, run: Run) -> Mapping[str, object] | None:
        """Return the judging suite's SLO as a stored suite spells it."""
        slo = self.suite(run).slo
        return slo.model_dump(mode="json", by_alias=False) if slo is not None else None

    def reference_doubt(self) -> str | None:
        """Return a sentence, without its full stop, on a reference run that was not to be promoted itself."""
        return reference_doubt(self.reference_outcome)


OWN = Terms()


def policy_parts_sha256(policy: Suite) -> str:
    """Return the hash of everything in a suite that `--policy` takes from it: gate, SLOs and error budget."""
    return sha256_of(policy_parts(policy))


OTHER_POLICY = (
    "it was judged by another policy than it was measured under: whoever wrote the margins could know the numbers"
)


def waiver_document(waiver: Waiver) -> dict[str, object]:
    """Return a waiver as plain JSON."""
    return {
        "check": waiver.check,
        "suite": waiver.suite,
        "deployment": waiver.deployment,
        "ceiling": waiver.ceiling,
        "expires": waiver.expires.isoformat(),
        "owner": waiver.owner,
        "issue": waiver.issue,
        "reason": waiver.reason,
        "approved_by": waiver.approved_by,
        **({"release": waiver.release} if waiver.release is not None else {}),
    }


def waivers_document(states: Sequence[WaiverState], as_of: date) -> dict[str, object]:
    """Return the waivers by their use; `expiring` are those that end within days."""
    by_use = {use.value: [_waiver_state(one) for one in states if one.use is use] for use in WaiverUse}
    expiring = [_waiver_state(one) for one in states if one.expires_soon]
    return {"as_of": as_of.isoformat(), **by_use, "expiring": expiring}


def _waiver_state(state: WaiverState) -> dict[str, object]:
    return {**waiver_document(state.waiver), "why": state.why, "days_left": state.days_left}


SCHEMA = "benchgate.verdict/1"
_DIGITS = 12  # more would carry the last bits of different CPUs' arithmetic into the bytes


def verdict_document(
    run: Run, verdict: Verdict, *, against: Run | None = None, terms: Terms = OWN
) -> dict[str, object]:
    """Return the verdict over a run, or `against` a stored reference run, as plain JSON.

    Infinities are the texts "inf" and "-inf"; unmeasured values are null. Raises ValueError for NaN.
    """
    document: dict[str, object] = {
        "schema": SCHEMA,
        "run": _run(run),
        "against": None if against is None else _run(against) | {"outcome": terms.reference_outcome},
        "arms": {arm.value: _arm(source, arm_of) for arm, (source, arm_of) in deployments(run, against).items()},
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "alpha": json_number(verdict.alpha),
        "policy_sha256": verdict.policy_sha256,
        "policy_replaced": terms.policy_replaced(run, verdict),
        "slo": terms.slo(run),
        "checks": [_check(check) for check in verdict.checks],
        "guards": [_guard(guard) for guard in verdict.guards],
    }
    if verdict.differences:
        document["differences"] = [_difference(one) for one in verdict.differences]
    if verdict.next_step is not None:
        document["next_step"] = verdict.next_step
    if verdict.notes:
        document["notes"] = list(verdict.notes)
    if verdict.replicas:
        document["replicas"] = [_replica(one) for one in verdict.replicas]
    if verdict.as_of is not None:
        document["waivers"] = waivers_document(verdict.waivers, verdict.as_of)
    return with_exit_code(document, terms.exit_code(verdict))


def with_exit_code(document: dict[str, object], code: ExitCode) -> dict[str, object]:
    """Set the exit code of the process; only 0 promotes."""
    return {**document, "exit_code": int(code), "promotes": code is ExitCode.OK}


def document_json(document: dict[str, object]) -> str:
    """Spell a document in its only form: sorted keys, two spaces, ASCII, a newline at the end."""
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _run(run: Run) -> dict[str, object]:
    return {
        "id": run.id,
        "label": run.label,
        "suite": run.suite_name,
        "suite_sha256": run.suite_sha256,
        "measurement_sha256": run.measurement_sha256,
        "plan_sha256": run.plan_sha256,
        "seed": run.seed,
        **({"load_salt": run.load_salt} if run.load_salt else {}),
        **({"only": run.only_part} if run.only_part else {}),
        "status": run.status.value,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "tool_version": run.tool_version,
    }


def _arm(run: Run, deployment: Deployment) -> dict[str, object]:
    document: dict[str, object] = {
        "run_id": run.id,
        "name": deployment.name,
        "model": deployment.model,
        "engine": deployment.engine,
        "fingerprint": deployment.fingerprint,
    }
    return document | ({"price": price_document(deployment)} if deployment.price_entry else {})


def price_document(deployment: Deployment) -> dict[str, object]:
    """Return a deployment's prices and their entry in a price file."""
    return {
        "usd_per_hour": json_number(deployment.price_usd_per_hour),
        "token_prices": {kind: json_number(usd) for kind, usd in deployment.token_prices.items()},
        "entry": deployment.price_entry,
    }


def _check(check: CheckResult) -> dict[str, object]:
    document: dict[str, object] = {
        "id": check.id,
        "title": check.title,
        "family": check.family,
        "metric": check.metric,
        "statistic": check.statistic,
        "stage": check.stage,
        "over": check.over,
        "task": check.task,
        "required": check.required,
        "outcome": check.shown,
        "reason": check.reason,
        "advice": check.advice,
        "unit": check.unit.value,
        "scale": check.scale.value,
        "baseline": json_number(check.baseline),
        "candidate": json_number(check.candidate),
        "harm": json_number(check.harm),
        "lower": json_number(check.lower),
        "upper": json_number(check.upper),
        "margin": json_number(check.margin),
        "at_least": check.at_least,
        "p_value": json_number(check.p_value),
        "p_holm": json_number(check.p_holm),
        "n": check.n,
        "n_unit": check.n_unit,
        "method": check.method,
        "notes": list(check.notes),
    }
    if check.two_sided:
        document["two_sided"] = True
    if check.limits_alpha is not None:
        document["limits_alpha"] = json_number(check.limits_alpha)
    if check.freedom != (None, None):
        document["freedom"] = [json_number(one) for one in check.freedom]
    if check.n_of is not None:
        document["n_of"] = check.n_of
    if check.waiver is None:
        return document
    return {**document, "waiver": {**waiver_document(check.waiver), "outcome": check.outcome.value}}


def _guard(guard: GuardResult) -> dict[str, object]:
    document: dict[str, object] = {
        "id": guard.id,
        "tripped": guard.tripped,
        "reason": guard.reason,
        "remedy": guard.remedy,
        "spoils": list(guard.invalidates),
    }
    if guard.warns:
        document["warns"] = True
    return document if guard.known else {**document, "known": False}


def _replica(one: ReplicaFigures) -> dict[str, object]:
    names = [field.name for field in fields(one)]
    place = {"arm": one.arm.value, "role": None if one.role is None else one.role.value}
    values = {name: getattr(one, name) for name in names if name not in place}
    return place | {name: json_number(v) if isinstance(v, float) else v for name, v in values.items()}


def _difference(one: Difference) -> dict[str, object]:
    return {
        "what": one.what,
        "baseline": one.baseline,
        "candidate": one.candidate,
        "declared": one.declared,
        "field": one.field,
    }


def json_number(value: float | None) -> float | str | None:
    """Round to 12 digits; infinities are texts. Raises ValueError for NaN."""
    if value is None:
        return None
    if math.isnan(value):
        raise ValueError("a verdict holds NaN; what is undefined must be None")
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{_DIGITS}g}") + 0.0  # + 0.0 turns -0.0, which is the same number, into 0.0
