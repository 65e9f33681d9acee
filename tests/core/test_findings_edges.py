"""How a check comes to its finding: what may not get lost on the way, and which checks are made of a policy's lines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.gate.checks import capacity, evaluate, timing
from benchgate.gate.checks.evaluate import Judgement
from benchgate.gate.comparison import Comparison, UntiedRuns, compare
from benchgate.gate.decision import CannotJudge, Estimate, inconclusive, invalid
from benchgate.gate.evidence.shares import Tally, tally_of
from benchgate.gate.policy import CheckSpec, concrete_checks, judged_by
from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Outcome
from benchgate.stats.distributions import Limits
from benchgate.suite.checks import Check
from benchgate.suite.schema import Suite
from tests.fakes.drills import drill
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]
LATE = ClientUse(cpu_s=0.99, wall_s=1.0, workers=1)
PROBLEM = invalid("in other pieces", "mend it")


def late(evidence: Evidence, stage: str, block: int) -> Evidence:
    load = tuple(replace(o, client=LATE) if (o.stage, o.block) == (stage, block) else o for o in evidence.load)
    return replace(evidence, load=load)


def found(suite: Suite, comparison: Comparison) -> list[Judgement]:
    return evaluate.evaluate(tuple(concrete_checks(suite, comparison.judged)), suite, comparison)


def one_of(line: Line, evidence: Evidence | None = None, reference: Evidence | None = None) -> Judgement:
    suite = SuiteText([line]).suite()
    (only,) = found(suite, compare(evidence or measured(suite), reference))
    return only


def with_looks(suite: Suite, looks: tuple[int, ...]) -> Suite:
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": looks})})


def test_what_was_left_out_at_a_check_s_own_stage_is_looked_at_once_more_and_at_no_other() -> None:
    suite = drill({"metric": "ttft", "margin": "10%"})
    evidence = late(measured(suite), "short", 3)
    short, long = found(suite, compare(evidence))
    assert (short.estimate.n, long.estimate.n, long.all_blocks) == (7, 8, None)
    assert short.all_blocks is not None
    assert short.all_blocks.n == 8
    (of_reference, _) = found(suite, compare(measured(suite), evidence))
    assert of_reference.all_blocks is not None


@pytest.mark.parametrize(
    "line", [{"metric": "error_rate", "margin": "5 points"}, {"metric": "error_rate", "max": "5%"}]
)
def test_failures_are_counted_in_every_block_and_times_in_those_that_the_client_kept_up_in(line: Line) -> None:
    evidence = late(measured(SuiteText([line]).suite()), "c4", 3)
    shares = one_of(line, evidence)
    assert (shares.estimate.n, shares.all_blocks) == (480, None)  # 8 blocks of 60
    times = one_of({"metric": "ttft", "margin": "10%"}, evidence)
    assert (times.estimate.n, times.all_blocks is not None) == (7, True)


def clouded(evidence: Evidence, arm: Arm, *blocks: int) -> Evidence:
    """In these blocks of an arm, what had arrived waited 30 ms for the client."""
    slow = ClientUse(cpu_s=0.05, wall_s=1.0, workers=1, read_delay_p99_s=0.03)
    load = tuple(replace(o, client=slow) if o.arm is arm and o.block in blocks else o for o in evidence.load)
    return replace(evidence, load=load)


@pytest.mark.parametrize("bound", [{"margin": "10%"}, {"max": "1s"}])
@pytest.mark.parametrize("arm", Arm)
def test_a_tail_is_judged_without_the_blocks_that_the_client_clouded_on_an_arm_it_looks_at(
    bound: Line, arm: Arm
) -> None:
    line: Line = {"metric": "ttft", "statistic": "p95", **bound}
    suite = SuiteText([line]).suite()
    looked_at = arm is Arm.CANDIDATE or "margin" in bound
    one = one_of(line, clouded(measured(suite), arm, 3))
    assert (one.all_blocks is not None) is looked_at
    assert any("left out" in note for note in one.estimate.notes) is looked_at
    assert one.estimate.problem is None
    many = one_of(line, clouded(measured(suite), arm, 3, 4, 5)).estimate
    assert (many.problem is not None and many.problem.outcome is Outcome.INVALID) is looked_at
    median = one_of({**line, "statistic": "p50"}, clouded(measured(suite), arm, 3, 4, 5))
    assert (median.all_blocks, median.estimate.problem) == (None, None)


def test_both_estimates_are_held_to_the_look_and_checks_of_no_block_to_alpha() -> None:
    text = SuiteText([{"metric": "ttft", "margin": "10%"}, {"metric": "accuracy", "margin": "5 points"}])
    suite = with_looks(text.suite(), (8, 16))
    times, items = found(suite, compare(late(measured(suite), "c4", 3)))
    assert times.all_blocks is not None
    assert times.estimate.look is not None and times.estimate.look.alpha < 0.05
    assert times.all_blocks.look == times.estimate.look
    assert items.estimate.look is None
    once, _ = found(text.suite(), compare(late(measured(suite), "c4", 3)))
    assert once.all_blocks is not None
    assert times.all_blocks.limits is not None and once.all_blocks.limits is not None
    assert times.all_blocks.limits.upper > once.all_blocks.limits.upper
    assert times.all_blocks.p_value is not None and once.all_blocks.p_value is not None
    assert times.all_blocks.p_value > once.all_blocks.p_value


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ({"metric": "tpot", "margin": "10%"}, True),
        ({"metric": "itl", "margin": "10%"}, True),
        ({"metric": "tpot", "max": "50ms"}, True),
        ({"metric": "ttft", "margin": "10%"}, False),
        ({"metric": "e2e", "max": "9s"}, False),
        ({"metric": "output_throughput", "margin": "10%"}, False),
    ],
)
@pytest.mark.parametrize("run", ["judged", "reference"])
def test_a_pace_of_answers_in_other_pieces_is_no_pace_in_either_run(
    line: Line, asked: bool, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = SuiteText([line]).suite()
    judged, reference = measured(suite), measured(suite)

    def pieces(evidence: Evidence, stage: str, *, of_candidate: bool = False) -> None:
        assert (stage, of_candidate) == ("c4", "margin" not in line)
        if evidence is (judged if run == "judged" else reference):
            raise PROBLEM

    monkeypatch.setattr(timing, "require_same_pieces", pieces)
    monkeypatch.setattr(evaluate, "usable", lambda comparison, suite: comparison)
    problem = one_of(line, judged, reference).estimate.problem
    assert (problem is PROBLEM) is (asked and (run == "judged" or "margin" in line))  # a bound is of the judged run


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ({"metric": "tpot", "margin": "10%"}, True),
        ({"metric": "itl", "margin": "10%"}, True),
        ({"metric": "output_throughput", "margin": "10%"}, True),
        ({"metric": "output_length", "margin": "10%"}, True),
        ({"metric": "ttft", "margin": "10%"}, False),
        ({"metric": "tpot", "max": "50ms"}, False),
    ],
)
def test_tokens_of_another_kind_are_told_where_tokens_are_compared(
    line: Line, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "vocabulary_warning", lambda comparison, suite: "other tokens")
    monkeypatch.setattr(timing, "require_same_pieces", lambda evidence, stage, **_: None)
    assert (one_of(line).estimate.warning == "other tokens") is warned


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        ({"metric": "ttft", "margin": "10%"}, True),
        ({"metric": "output_throughput", "margin": "10%"}, True),
        ({"metric": "ttft", "max": "1s"}, True),
        ({"metric": "error_rate", "margin": "5 points"}, False),
        ({"metric": "accuracy", "margin": "5 points"}, False),
    ],
)
def test_answers_of_other_lengths_warn_of_every_speed(
    line: Line, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "length_warning", lambda comparison, stage: f"longer at {stage}")
    assert one_of(line).estimate.warning == ("longer at c4" if warned else None)


@pytest.mark.parametrize("metric", ["accuracy", "flips", "shadow_excess", "error_rate", "ttft"])
@pytest.mark.parametrize("block_when", ["harm", "breach"])
def test_when_to_block_reaches_the_estimate(metric: str, block_when: str) -> None:
    margin = "10%" if metric == "ttft" else "5 points"
    estimate = one_of({"metric": metric, "margin": margin, "block_when": block_when}).estimate
    assert estimate.rule.breach is (block_when == "breach")


@pytest.mark.parametrize("line", [{"margin": "5 points"}, {"margin": "5 points", "task": "each"}, {"min": "50%"}])
def test_evals_that_were_never_run_are_invalid(line: Line) -> None:
    suite = SuiteText([{"metric": "accuracy", **line}]).suite()
    evidence = replace(measured(suite), quality=())
    for one in found(suite, compare(evidence)):
        assert one.estimate.problem is not None
        assert (one.estimate.problem.outcome, one.estimate.n) == (Outcome.INVALID, 0)
        assert one.estimate.limits is None and one.estimate.p_value is None


def single(suite: Suite) -> Evidence:
    """A run of the candidate alone."""
    evidence = measured(suite)
    stored = {**evidence.run.suite, "candidate": "baseline", "quality": None, "shadow": None}
    stored["gate"] = {"checks": [{"metric": "ttft", "max": "1s"}]}
    load = tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE)
    return replace(evidence, run=replace(evidence.run, suite=stored), load=load)


@pytest.mark.parametrize("line", [{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "margin": "5 points"}])
def test_runs_apart_that_cannot_be_decided_have_no_limits_and_no_p_value(line: Line) -> None:
    suite = SuiteText([line]).suite()
    evidence = single(suite)
    estimate = one_of(line, evidence, evidence).estimate
    assert estimate.problem is not None
    assert not estimate.problem.outcome.promotes
    assert (estimate.limits, estimate.p_value) == (None, None)


@pytest.mark.parametrize("cannot", [None, inconclusive("stale", "calibrate")])
def test_numbers_between_runs_that_nothing_decides_are_taken_away(
    cannot: CannotJudge | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: Line = {"metric": "ttft", "margin": "10%"}

    def better(estimate: Estimate, *_: object, **__: object) -> None:
        estimate.value, estimate.limits, estimate.p_value = -0.5, Limits(-0.6, -0.4), 1.0

    def require(*_: object) -> None:
        if cannot is not None:
            raise cannot

    monkeypatch.setattr(timing, "between_runs", better)
    monkeypatch.setattr(UntiedRuns, "_require_noise_profile", require)
    evidence = single(SuiteText([line]).suite())
    estimate = one_of(line, evidence, evidence).estimate
    known = cannot is None
    assert (estimate.limits is not None, estimate.p_value is not None, estimate.problem) == (known, known, cannot)


@pytest.mark.parametrize("problem", [None, PROBLEM])
@pytest.mark.parametrize("apart", [False, True])
def test_a_capacity_without_a_live_baseline_is_never_decided(
    problem: CannotJudge | None, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def better(estimate: Estimate, *_: object, **__: object) -> None:
        estimate.value, estimate.limits, estimate.p_value = -0.5, Limits(-0.6, -0.4), 1.0
        if problem is not None:
            raise problem

    monkeypatch.setattr(capacity, "compare_with_baseline", better)
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    evidence = single(suite) if apart else measured(suite)
    check = Check.model_validate({"metric": "capacity", "margin": "10%"})
    (found,) = evaluate.evaluate((CheckSpec(check),), suite, compare(evidence, evidence if apart else None))
    told = found.estimate.problem
    if problem is not None:
        assert told is PROBLEM  # what is broken is told before what is not known
    else:
        assert (told is not None) is apart
        assert told is None or told.outcome is Outcome.INCONCLUSIVE


def test_a_capacity_is_held_to_its_own_bound_or_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, bool, bool]] = []

    def record(way: str) -> None:
        def recorded(estimate: Estimate, *_: object, each: bool, **__: object) -> None:
            told.append((way, estimate.margin, estimate.rule.breach, each))

        monkeypatch.setattr(capacity, way, recorded)

    record("compare_with_bound")
    record("compare_with_baseline")
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    each = {"margin": "10%", "per": "accelerator"}
    for bound in ({"min": "8/s"}, {"margin": "10%"}, {"margin": "10%", "block_when": "breach"}, each):
        check = Check.model_validate({"metric": "capacity", **bound})
        evaluate.evaluate((CheckSpec(check),), suite, compare(measured(suite)))
    tenth = -math.log(0.9)
    assert told == [
        ("compare_with_bound", 8.0, True, False),
        ("compare_with_baseline", pytest.approx(tenth), False, False),
        ("compare_with_baseline", pytest.approx(tenth), True, False),
        ("compare_with_baseline", pytest.approx(tenth), False, True),
    ]


@pytest.mark.parametrize("apart", [False, True])
def test_one_kind_of_failure_is_counted_by_itself_whatever_ties_the_runs_together(
    apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: Line = {"metric": "error_rate", "of": "timeout", "margin": "1 points"}
    suite = SuiteText([line]).suite()
    asked: list[str | None] = []

    def recorded(metric: str, slo: Slo | None, of: str | None = None) -> Tally:
        asked.append(of)
        return tally_of(metric, slo, of)

    monkeypatch.setattr("benchgate.gate.checks.shares.tally_of", recorded)
    evidence = single(suite) if apart else measured(suite)
    one_of(line, evidence, evidence if apart else None)
    assert asked == ["timeout"]


def test_goodput_without_a_bound_is_held_to_the_target_of_its_slo() -> None:
    assert one_of({"metric": "goodput"}).estimate.margin == 0.95
    own = one_of({"metric": "goodput", "min": "80%"}).estimate
    assert (own.margin, own.rule.lower_is_worse) == (0.8, True)
    assert one_of({"metric": "error_rate", "max": "2%"}).estimate.rule.lower_is_worse is False


# Which checks there are


def check(metric: str, *, required: bool = True, **where: str) -> Check:
    line: Line = {"metric": metric, "margin": "5 points", "required": required}
    return SuiteText([line | where]).suite().gate.checks[0]


@pytest.mark.parametrize(
    ("judging", "beside", "tasks"),
    [
        (check("accuracy"), [], ["exact", "graded"]),
        (check("score"), [], ["exact", "graded"]),
        (check("accuracy"), [check("score")], ["exact"]),
        (check("score"), [check("accuracy")], ["graded"]),
        (check("accuracy"), [check("score", required=False)], ["exact", "graded"]),
        (check("accuracy", required=False), [check("score", required=False)], ["exact"]),
        (check("accuracy", required=False), [check("score")], ["exact"]),
        (check("accuracy"), [check("score", task="graded")], ["exact"]),
        (check("accuracy"), [check("score", task="another")], ["exact", "graded"]),
        (check("accuracy"), [check("score", task="each")], ["exact"]),
        (check("score"), [check("accuracy", task="exact", required=False)], ["exact", "graded"]),
        (check("score"), [check("accuracy", stage="c4")], ["exact", "graded"]),  # of other answers
    ],
)
def test_a_required_check_leaves_no_task_to_one_that_is_advisory_or_absent(
    judging: Check, beside: list[Check], tasks: list[str]
) -> None:
    assert judged_by(judging, [judging, *beside], {"exact": False, "graded": True}) == tasks


def test_a_task_is_called_by_its_own_name_where_the_suite_has_none_for_it() -> None:
    suite = SuiteText([{"metric": "accuracy", "margin": "5 points"}]).suite()
    assert suite.unit_name("add") == "add"
    assert suite.unit_name("never heard of") == "never heard of"
    assert suite.model_copy(update={"quality": None}).unit_name("add") == "add"


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        ({"metric": "ttft", "margin": "10%"}, ["ttft-p50@short", "ttft-p50@long"]),
        ({"metric": "ttft", "max": "1s", "statistic": "p99", "stage": "long"}, ["ttft-p99@long:slo"]),
        ({"metric": "error_rate", "max": "1%"}, ["error_rate@short:slo", "error_rate@long:slo"]),
        ({"metric": "error_rate", "margin": "1 points", "stage": "short"}, ["error_rate@short"]),
        ({"metric": "ttft", "stage": "long", "over": "short", "max": "2x"}, ["ttft-p50@long:max-over-short"]),
        ({"metric": "queue_depth", "max": 3, "stage": "long"}, ["queue_depth@long:slo"]),
        ({"metric": "prefix_hit_rate", "min": "5%", "stage": "long"}, ["prefix_hit_rate@long:min"]),
        ({"metric": "prefix_hit_rate", "max": "5%", "stage": "long"}, ["prefix_hit_rate@long:max"]),
    ],
)
def test_every_check_has_an_id_of_its_own_at_every_place(line: Line, ids: list[str]) -> None:
    suite = drill(line)
    specs = list(concrete_checks(suite, measured(suite)))
    assert [spec.id for spec in specs] == ids
    assert [spec.stages for spec in specs] == [
        tuple(name for name in (spec.stage, spec.check.over) if name) for spec in specs
    ]


def test_a_knee_is_looked_for_at_every_closed_loop_and_a_mean_stands_beside_its_median() -> None:
    suite = drill({"metric": "knee", "min": 2})
    (spec,) = concrete_checks(suite, measured(suite))
    assert spec.stages == ("short", "long")
    assert CheckSpec(check("accuracy"), "p95").q == 0.95
    assert CheckSpec(check("accuracy"), "mean").q == CheckSpec(check("accuracy")).q == 0.5


def test_a_check_of_no_place_is_named_by_what_it_looks_at() -> None:
    suite = drill({"metric": "ttft", "margin": "10%"})
    lines: list[tuple[Line, str]] = [
        ({"metric": "accuracy", "margin": "5 points"}, "accuracy"),
        ({"metric": "accuracy", "min": "50%"}, "accuracy:slo"),
        ({"metric": "accuracy", "min": "50%", "task": "add"}, "accuracy@add:slo"),
        ({"metric": "capacity", "margin": "5%"}, "capacity"),
        ({"metric": "shadow_excess", "margin": "5 points"}, "shadow_excess"),
        ({"metric": "error_rate", "of": "timeout", "margin": "1 points", "stage": "long"}, "error_rate-timeout@long"),
    ]
    for line, name in lines:
        one = suite.model_copy(update={"gate": suite.gate.model_copy(update={"checks": (Check.model_validate(line),)})})
        assert [spec.id for spec in concrete_checks(one, measured(one))] == [name]


def test_without_a_load_a_knee_has_no_level_and_a_server_no_stage() -> None:
    suite = drill({"metric": "knee", "min": 2}, {"metric": "queue_depth", "max": 3})
    assert [spec.stages for spec in concrete_checks(suite, measured(suite))] == [
        ("short", "long"),
        ("short",),
        ("long",),
    ]
    bare = suite.model_copy(update={"load": None})
    assert [spec.stages for spec in concrete_checks(bare, measured(bare))] == [()]
