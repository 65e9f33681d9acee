"""The gate as a table: what was measured, what the policy asks, what is concluded."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from benchgate.errors import ExitCode
from benchgate.gate.judge import judge, roll_up
from benchgate.model.deployment import Arm
from benchgate.model.records import TokenSource
from benchgate.model.run import CANNOT_SCORE, ONE_SERVER, DeploymentFault, Evidence, RunStatus
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from tests.fakes.measured import HEALTHY, Effect, Noise, SuiteText, measured, with_status

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
THROUGHPUT: Line = {"metric": "output_throughput", "margin": "10%"}
ERRORS_MAX: Line = {"metric": "error_rate", "max": "1%"}
ERRORS_MARGIN: Line = {"metric": "error_rate", "margin": "1 points"}
GOODPUT: Line = {"metric": "goodput"}
ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
EACH_TASK: Line = {"metric": "accuracy", "task": "each", "margin": "5 points"}
SHADOW: Line = {"metric": "shadow_excess", "margin": "5 points", "block_when": "breach"}
EVERYTHING = [TTFT, THROUGHPUT, ERRORS_MAX, GOODPUT, ACCURACY, EACH_TASK, SHADOW]


def first(n: int) -> tuple[int, ...]:
    return tuple(range(n))


@dataclass(frozen=True)
class Case:
    claim: str
    checks: list[Line]
    candidate: Effect
    outcome: Outcome
    says: str
    baseline: Effect = HEALTHY


CASES = [
    Case("an equal candidate passes every kind of check", EVERYTHING, HEALTHY, Outcome.PASS, "all 8 required checks"),
    Case("a slower candidate is blocked on latency", [TTFT], Effect(slowdown=1.5), Outcome.BLOCK, "rose by"),
    Case("a slower candidate is blocked on throughput", [THROUGHPUT], Effect(slowdown=1.5), Outcome.BLOCK, "fell by"),
    Case("a faster candidate is not blocked for being faster",
         [TTFT, THROUGHPUT], Effect(slowdown=0.7), Outcome.PASS, ""),
    Case(
        "a speed-up never offsets lost answers",
        EVERYTHING,
        Effect(slowdown=0.5, wrong=first(60)),
        Outcome.BLOCK,
        "Accuracy",
    ),
    Case("harm inside the margin warns", [TTFT], Effect(slowdown=1.05), Outcome.WARN, "real regression, though inside"),
    Case("a failing candidate is blocked on its error rate",
         [ERRORS_MAX], Effect(failed=6), Outcome.BLOCK, "breaks the"),
    Case("errors against the baseline's are blocked", [ERRORS_MARGIN], Effect(failed=6), Outcome.BLOCK, "Error rate"),
    Case(
        "a burst of errors in one block is not shown to be the candidate's",
        [ERRORS_MARGIN],
        Effect(failed=12, failed_block=3),
        Outcome.INCONCLUSIVE,
        "Error rate",
    ),
    Case("misses of the SLO are blocked", [GOODPUT], Effect(slowdown=5.0), Outcome.BLOCK, "Goodput"),
    Case("failed requests count as endless latency", [TTFT], Effect(failed=31), Outcome.BLOCK, "without bound"),
    Case("a lost answer in fifty on every item set is blocked",
         [ACCURACY], Effect(wrong=first(12)), Outcome.BLOCK, "fell by"),
    Case(
        "a few lost answers warn inside the margin",
        [EACH_TASK], Effect(wrong=first(6)), Outcome.WARN, "real regression",
    ),
    Case(
        "answers the token limit cut short do not speak against a model",
        [ACCURACY],
        Effect(cut=first(30)),
        Outcome.INVALID,
        "cut short by the token limit",
    ),
    Case("empty answers are a fault of the harness until shown otherwise",
         [TTFT, EACH_TASK], Effect(empty=first(9)), Outcome.INVALID, "empty"),
    Case("an implausible gain is not a pass",
         [ACCURACY], HEALTHY, Outcome.INVALID, "better than", Effect(wrong=first(60))),
    Case("a baseline that can do nothing proves nothing",
         [ACCURACY], Effect(wrong=first(300)), Outcome.INVALID, "none of", Effect(wrong=first(300))),
    Case("shadow disagreement beyond the margin is blocked",
         [SHADOW], Effect(differs=first(40)), Outcome.BLOCK, "Shadow"),
    Case("shadow disagreement inside the margin may warn", [SHADOW], Effect(differs=first(1)), Outcome.PASS, ""),
    Case("a failing baseline cannot judge anybody",
         [TTFT, ERRORS_MAX], HEALTHY, Outcome.INVALID, "baseline's own requests", Effect(failed=31)),
    Case("a failing baseline cannot judge anybody where nobody counts failures",
         [TTFT], HEALTHY, Outcome.INVALID, "248 of 480 requests of the baseline failed", Effect(failed=31)),
    Case("a request without a record is missed", [TTFT], Effect(drop_last=True), Outcome.INVALID, "59 of 60"),
    Case("a saturated client spoils what it measured",
         [TTFT], Effect(slowdown=1.5, cpu_share=0.99), Outcome.INVALID, "load generator", Effect(cpu_share=0.99)),
    Case("tokens counted differently are not compared",
         [THROUGHPUT], Effect(token_source=TokenSource.CHUNKS), Outcome.INVALID, "own count of output tokens"),
    Case("much shorter answers on the same prompts warn",
         [THROUGHPUT], Effect(tokens=8, slowdown=0.7, finish="stop"), Outcome.WARN, "times as long",
         Effect(finish="stop")),
    Case("more tokens than were asked for on one arm only are not believed",
         [THROUGHPUT], Effect(tokens=20), Outcome.INVALID, "exceed the 10 requested tokens"),
    Case("an engine that ignores the limit on both arms is compared all the same",
         [TTFT], Effect(tokens=20), Outcome.PASS, "", Effect(tokens=20)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.claim)
def test_verdict_on(case: Case) -> None:
    suite = SuiteText(case.checks).suite()
    verdict = judge(suite, measured(suite, case.candidate, case.baseline))
    assert verdict.outcome is case.outcome, verdict.reason
    assert case.says in verdict.reason


def judged(evidence: Evidence, *checks: Line) -> Verdict:
    return judge(SuiteText(list(checks) or [TTFT]).suite(), evidence)


def equal(*checks: Line) -> Evidence:
    return measured(SuiteText(list(checks) or [TTFT]).suite())


def test_an_interrupted_run_never_passes() -> None:
    for status in (RunStatus.PARTIAL, RunStatus.RUNNING):
        assert judged(with_status(equal(), status)).outcome is Outcome.INVALID


def test_a_deployment_that_was_not_there_is_named_with_its_reason() -> None:
    fault = DeploymentFault(Arm.CANDIDATE, "at the start", "connection refused")
    verdict = judged(replace(equal(), load=(), target_faults=(fault,)))
    assert verdict.outcome is Outcome.INVALID
    assert "candidate did not answer at the start: connection refused" in verdict.reason


def test_two_deployments_that_were_not_there_are_named_in_a_sentence_that_is_not_cut() -> None:
    faults = tuple(DeploymentFault(arm, "at the start", "could not connect: Connection refused") for arm in Arm)
    verdict = judged(replace(equal(), load=(), target_faults=faults))
    assert verdict.reason.count("could not connect") == 2 and "…" not in verdict.reason
    assert "; and neither did the candidate candidate: could not connect: Connection refused." in verdict.reason


def test_a_deployment_that_refuses_is_not_said_to_be_down_and_the_rest_is_not_held_against_it() -> None:
    said = "the candidate at http://h:1 refuses requests: HTTP 404: the model `x` does not exist."
    fault = DeploymentFault(Arm.CANDIDATE, "at the start", said)
    verdict = judged(replace(equal(), load=(), target_faults=(fault,)))
    remedies = {guard.id: guard.remedy for guard in verdict.guards if guard.tripped}
    assert "fix the model name" in (remedies["targets-up"] or "")
    assert "start it" not in (remedies["targets-up"] or "")
    assert "arms-alike" not in remedies
    assert verdict.reason.endswith("does not exist.")
    assert not verdict.reason.endswith("..")


@pytest.mark.parametrize("fault", [f"{ONE_SERVER}; correct the url", f"{CANNOT_SCORE} of mc: no log-probabilities"])
def test_a_deployment_that_is_there_is_not_said_to_be_silent_and_what_follows_from_it_has_no_remedy_of_its_own(
    fault: str,
) -> None:
    verdict = judged(replace(equal(), load=(), target_faults=(DeploymentFault(Arm.CANDIDATE, "at the start", fault),)))
    found = {guard.id: guard for guard in verdict.guards if guard.tripped}
    assert f"cannot be measured: {fault}" in found["targets-up"].reason
    assert found["targets-up"].remedy == "correct the suite and run again"
    assert "`targets-up`" in (found["all-measured"].remedy or "")


def test_every_missing_kind_of_evidence_is_invalid_for_the_check_that_needs_it() -> None:
    evidence = equal()
    for checks, missing in (
        ([TTFT], replace(evidence, load=())),
        ([GOODPUT], replace(evidence, load=())),
        ([ERRORS_MARGIN], replace(evidence, load=())),
        ([ACCURACY], replace(evidence, quality=())),
        ([EACH_TASK], replace(evidence, quality=())),
        ([SHADOW], replace(evidence, shadow=None)),
    ):
        verdict = judged(missing, *checks)
        assert verdict.outcome is Outcome.INVALID
        assert [check.outcome for check in verdict.checks] == [Outcome.INVALID]


def test_one_missing_block_of_one_arm_is_invalid() -> None:
    evidence = equal()
    verdict = judged(replace(evidence, load=evidence.load[:-1]))
    assert verdict.outcome is Outcome.INVALID


def test_a_task_run_on_one_arm_only_is_invalid() -> None:
    evidence = equal(ACCURACY)
    assert judged(replace(evidence, quality=evidence.quality[:-1]), ACCURACY).outcome is Outcome.INVALID


def test_a_harness_fault_on_either_arm_is_invalid_with_its_reason() -> None:
    evidence = equal(ACCURACY)
    for i in range(2):
        faulty = replace(evidence.quality[i], fault="HTTP 500: out of memory")
        quality = (*evidence.quality[:i], faulty, *evidence.quality[i + 1 :])
        verdict = judged(replace(evidence, quality=quality), ACCURACY)
        assert verdict.outcome is Outcome.INVALID
        assert "out of memory" in verdict.reason


def test_unscored_and_mismatched_items_are_never_dropped() -> None:
    evidence = equal(ACCURACY)
    task = evidence.quality[1]
    for changed in (
        replace(task.items[5], score=None, error="timed out"),
        replace(task.items[5], prompt_hash="another prompt"),
        replace(task.items[5], item_id="another item"),
        replace(task.items[5], item_id=task.items[6].item_id),
    ):
        items = (*task.items[:5], changed, *task.items[6:])
        quality = (evidence.quality[0], replace(task, items=items), *evidence.quality[2:])
        assert judged(replace(evidence, quality=quality), ACCURACY).outcome is Outcome.INVALID
    short = replace(task, items=task.items[:-1])
    quality = (evidence.quality[0], short, *evidence.quality[2:])
    assert judged(replace(evidence, quality=quality), ACCURACY).outcome is Outcome.INVALID


def test_shadow_prompts_the_baseline_failed_on_are_invalid_and_the_candidates_are_disagreement() -> None:
    evidence = equal(SHADOW)
    assert evidence.shadow is not None
    items = evidence.shadow.items
    without_primary = tuple(replace(item, primary=None) for item in items[:40])
    without_secondary = tuple(replace(item, secondary=None) for item in items[:40])
    without_candidate = tuple(replace(item, candidate=None) for item in items[:40])
    for lost, outcome in (
        (without_primary, Outcome.INVALID),
        (without_secondary, Outcome.INVALID),
        (without_candidate, Outcome.BLOCK),
    ):
        shadow = replace(evidence.shadow, items=lost + items[40:])
        assert judged(replace(evidence, shadow=shadow), SHADOW).outcome is outcome


def test_disagreement_the_baseline_has_with_itself_is_not_held_against_the_candidate() -> None:
    suite = SuiteText([SHADOW]).suite()
    noisy = measured(suite, Effect(differs=tuple(range(100, 140))), self_differs=first(40))
    assert judge(suite, noisy).outcome is not Outcome.BLOCK
    quiet = measured(suite, Effect(differs=tuple(range(100, 140))))
    assert judge(suite, quiet).outcome is Outcome.BLOCK


def test_too_wide_an_interval_is_inconclusive_and_says_what_to_do() -> None:
    suite = SuiteText([TTFT], blocks=3).suite()
    verdict = judge(suite, measured(suite, noise=Noise(cv=0.3)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.checks[0].advice is not None and "more blocks" in verdict.checks[0].advice


def test_a_quantile_with_too_few_requests_is_inconclusive_never_a_number() -> None:
    suite = SuiteText([{"metric": "ttft", "statistic": "p99", "max": "1s"}], blocks=2, requests=20).suite()
    verdict = judge(suite, measured(suite))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.checks[0].harm is None


@pytest.mark.parametrize(
    ("slo", "outcome"),
    [("200ms", Outcome.PASS), ("60ms", Outcome.WARN), ("40ms", Outcome.BLOCK), ("53ms", Outcome.INCONCLUSIVE)],
)
def test_a_latency_slo(slo: str, outcome: Outcome) -> None:
    suite = SuiteText([{"metric": "ttft", "max": slo}]).suite()
    assert judge(suite, measured(suite)).outcome is outcome


def test_a_share_close_to_its_slo_warns_and_far_from_it_passes() -> None:
    suite = SuiteText([GOODPUT], requests=600).suite()
    close, far = measured(suite, Effect(failed=26)), measured(suite, Effect(failed=20))
    assert "past the warning" in judge(suite, close).reason
    assert (judge(suite, close).outcome, judge(suite, far).outcome) == (Outcome.WARN, Outcome.PASS)


def test_advisory_checks_warn_and_never_block() -> None:
    suite = SuiteText([ACCURACY, {**TTFT, "required": False}]).suite()
    verdict = judge(suite, measured(suite, Effect(slowdown=2.0)))
    assert verdict.outcome is Outcome.WARN
    assert {check.outcome for check in verdict.checks} == {Outcome.PASS, Outcome.BLOCK}


def test_an_advisory_check_that_could_not_be_evaluated_warns() -> None:
    suite = SuiteText([ACCURACY, {**SHADOW, "required": False}]).suite()
    evidence = measured(suite)
    assert evidence.shadow is not None
    verdict = judge(suite, replace(evidence, shadow=replace(evidence.shadow, fault="it broke off")))
    assert verdict.outcome is Outcome.WARN
    assert "Shadow" in verdict.reason


def test_a_policy_with_only_advisory_checks_is_invalid() -> None:
    suite = SuiteText([{**TTFT, "required": False}]).suite()
    assert judge(suite, measured(suite)).outcome is Outcome.INVALID


def test_roll_up_order_is_block_invalid_inconclusive_warn_pass() -> None:
    template = judged(equal()).checks[0]

    def rolled(*outcomes: Outcome) -> Outcome:
        return roll_up(tuple(replace(template, outcome=outcome) for outcome in outcomes), ())

    order = [Outcome.BLOCK, Outcome.INVALID, Outcome.INCONCLUSIVE, Outcome.WARN, Outcome.PASS]
    for i, worse in enumerate(order):
        for better in order[i:]:
            assert rolled(better, worse) is worse
    assert roll_up((), ()) is Outcome.INVALID


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {outcome: outcome.exit_code() for outcome in Outcome} == {
        Outcome.PASS: ExitCode.OK,
        Outcome.WARN: ExitCode.OK,
        Outcome.BLOCK: ExitCode(10),
        Outcome.INCONCLUSIVE: ExitCode(11),
        Outcome.INVALID: ExitCode(12),
    }
    assert Outcome.WARN.exit_code(strict=True) == 10


def test_holm_spares_a_candidate_from_one_small_p_value_among_many_checks() -> None:
    checks: list[Line] = [{"metric": "ttft", "statistic": s, "margin": "1%"} for s in ("p50", "p90")]
    alone, among = SuiteText(checks[:1]).suite(), SuiteText(checks).suite()
    evidence = measured(alone, Effect(slowdown=1.02), noise=Noise(cv=0.02, seed=3))
    single, several = judge(alone, evidence).checks[0], judge(among, evidence).checks[0]
    assert single.p_value == several.p_value
    assert single.p_holm is not None and several.p_holm is not None and single.p_holm < several.p_holm


@pytest.mark.slow
def test_linear_drift_of_ten_percent_does_not_block_an_equal_candidate() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "5%"}]).suite()
    drifting = partial(measured, suite, items=20, prompts=20)
    verdicts = [judge(suite, drifting(noise=Noise(0.02, 0.10, seed))).outcome for seed in range(60)]
    assert verdicts.count(Outcome.BLOCK) <= 2
    assert verdicts.count(Outcome.PASS) >= 45


def stored_pair(candidate: Effect, *checks: Line) -> tuple[Verdict, Evidence, Evidence]:
    suite = SuiteText(list(checks)).suite()
    reference = measured(suite, run_id="run-a")
    judged_run = measured(suite, candidate, noise=Noise(seed=2), run_id="run-b")
    return judge(suite, judged_run, reference), judged_run, reference


def test_two_stored_runs_are_compared_candidate_with_candidate() -> None:
    assert stored_pair(HEALTHY, *EVERYTHING)[0].outcome is Outcome.PASS
    assert stored_pair(Effect(slowdown=1.5), TTFT)[0].outcome is Outcome.BLOCK
    assert stored_pair(Effect(wrong=first(30)), ACCURACY)[0].outcome is Outcome.BLOCK
    assert stored_pair(Effect(failed=6), ERRORS_MARGIN)[0].outcome is Outcome.BLOCK
    assert stored_pair(Effect(differs=first(40)), SHADOW)[0].outcome is Outcome.BLOCK


def test_a_machine_that_was_slower_in_one_of_two_stored_runs_is_not_held_against_its_candidate() -> None:
    suite = SuiteText([TTFT]).suite()
    slow_day = Effect(slowdown=1.6)
    verdict = judge(suite, measured(suite, slow_day, slow_day), measured(suite, noise=Noise(seed=2)))
    assert verdict.outcome is Outcome.PASS


def test_stored_runs_of_other_measurements_or_baselines_are_not_compared() -> None:
    _, judged_run, reference = stored_pair(HEALTHY, TTFT)
    suite = SuiteText([TTFT]).suite()
    other_plan = replace(reference, run=replace(reference.run, measurement_sha256="x" * 64))
    assert judge(suite, judged_run, other_plan).outcome is Outcome.INVALID
    arms = {**reference.run.arms, Arm.BASELINE: replace(reference.run.arms[Arm.BASELINE], model="another")}
    other_baseline = replace(reference, run=replace(reference.run, arms=arms))
    blocked_if_unguarded = measured(suite, Effect(slowdown=1.5))
    assert judge(suite, blocked_if_unguarded, other_baseline).outcome is Outcome.INVALID


def test_the_same_evidence_gives_the_same_verdict() -> None:
    suite = SuiteText(EVERYTHING).suite()
    first_time, again = (judge(suite, measured(suite, Effect(slowdown=1.1))) for _ in range(2))
    assert first_time == again


def test_no_value_in_a_verdict_is_nan() -> None:
    suite = SuiteText(EVERYTHING).suite()
    for effect in (HEALTHY, Effect(failed=60), Effect(tokens=1), Effect(empty=first(300))):
        for check in judge(suite, measured(suite, effect)).checks:
            numbers = [getattr(check, name) for name in CheckResult.__dataclass_fields__]
            assert not any(isinstance(value, float) and np.isnan(value) for value in numbers)
            assert "nan" not in json.dumps([check.reason, *check.notes]).lower()
