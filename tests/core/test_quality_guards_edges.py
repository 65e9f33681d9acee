"""Guards over evals at their bounds: one item, one nanosecond or one setting more, and each trips or holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.comparison import compare
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.stats.evals import ScorePairs, accuracy_regression
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of
from tests.fakes.guards import of_evals

ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
WELL = Answers(right_but(300))
BY_CHOICE = {"output_type": "multiple_choice", "chance": 0.25}
MS = 1_000_000

Tasks = Mapping[str, tuple[Answers, Answers]]


def guard(
    name: str, tasks: Tasks, entries: list[object] | None = None, reference: Evidence | None = None
) -> GuardResult:
    """What one guard says of these answers."""
    suite = suite_of([ACCURACY], entries or list(tasks))
    found = of_evals(compare(evidence_of(suite, tasks), reference), suite)
    return next(one for one in found if one.id == name)


def trips(name: str, baseline: Answers, candidate: Answers) -> bool:
    return guard(name, {"t": (baseline, candidate)}).tripped


def first_right(n: int, right: int, **harness: object) -> Answers:
    return Answers([1.0] * right + [0.0] * (n - right), harness=harness)


# The same questions, asked in the same way


@pytest.mark.parametrize(
    ("name", "is_setting"),
    [("few_shot", True), ("null_answers", False), ("retries", False), ("pid", False), ("took_s", False),
     ("peak_bytes", False), ("asked_count", False), ("seconds", True), ("stopped_early", False)],
)  # fmt: skip
def test_what_an_arm_was_told_is_a_setting_and_what_it_counted_is_none(name: str, is_setting: bool) -> None:
    told = replace(WELL, harness={name: 1})
    assert trips("same-harness", told, replace(WELL, harness={name: 2})) is is_setting
    assert trips("same-harness", told, WELL) is trips("same-harness", WELL, told) is is_setting
    assert not trips("same-harness", told, told)


def test_every_task_is_looked_at_and_not_the_first_alone() -> None:
    other = replace(WELL, harness={"few_shot": 5})
    for tasks in ({"t": (WELL, WELL), "u": (WELL, other)}, {"u": (other, WELL), "t": (WELL, WELL)}):
        assert guard("same-harness", tasks).tripped
    broken = replace(WELL, fault="went away")
    for tasks in ({"t": (WELL, WELL), "u": (WELL, broken)}, {"u": (broken, WELL), "t": (WELL, WELL)}):
        assert guard("items-paired", tasks).tripped


def test_a_second_asking_is_no_task_of_its_own() -> None:
    suite = suite_of([ACCURACY], ["t"])
    again = {"u": replace(WELL, fault="went away")}
    found = of_evals(compare(evidence_of(suite, {"t": (WELL, WELL)}, again)), suite)
    assert [one.id for one in found if one.tripped] == []


# What can be shown by an eval at all


@pytest.mark.parametrize(("n", "tripped"), [(29, False), (30, True)])
def test_a_task_of_a_group_that_the_baseline_cannot_do_counts_from_thirty_items(n: int, tripped: bool) -> None:
    nothing = Answers([0.0] * n)
    found = guard("baseline-able", {"g/a": (WELL, WELL), "g/b": (nothing, nothing)}, ["g"])
    assert found.tripped is tripped
    assert not tripped or "none of the 30 items of g/b right" in found.reason
    alone = guard("baseline-able", {"t": (nothing, nothing)})
    assert alone.tripped  # a whole task of its own, however small


@pytest.mark.parametrize(("right", "tripped"), [(0, True), (1, False)])
def test_one_right_answer_shows_that_a_task_can_be_done(right: int, tripped: bool) -> None:
    some = first_right(40, right)
    assert trips("baseline-able", some, some) is tripped
    assert not trips("baseline-able", Answers([]), Answers([]))
    assert not trips("baseline-able", replace(first_right(40, 0), fault="went away"), WELL)


@pytest.mark.parametrize(("right", "tripped"), [(60, True), (61, False)])
def test_a_baseline_is_above_chance_by_its_lower_limit(right: int, tripped: bool) -> None:
    """scipy.stats.beta.ppf(0.05, 60, 141) is 0.2466 and (0.05, 61, 140) is 0.2513."""
    some = first_right(200, right, **BY_CHOICE)
    assert trips("above-chance", some, some) is tripped
    assert not trips("above-chance", first_right(200, 0, chance=0.0), WELL)
    assert not trips("above-chance", first_right(200, 200, chance=1.0), WELL)


def test_chance_is_asked_of_the_tasks_whose_chance_is_known_and_that_came_to_their_end() -> None:
    guessing, unknown = first_right(200, 50, **BY_CHOICE), first_right(200, 0)
    assert guard("above-chance", {"t": (unknown, unknown)}).known is False
    assert guard("above-chance", {"t": (unknown, unknown), "u": (guessing, guessing)}).tripped
    stopped = replace(guessing, harness={**BY_CHOICE, "stopped_early": True})
    assert guard("above-chance", {"t": (stopped, stopped)}).known is False
    assert guard("above-chance", {"t": (stopped, stopped), "u": (guessing, guessing)}).tripped
    by_degrees = replace(guessing, harness={**BY_CHOICE, "scale": "continuous"})
    assert guard("above-chance", {"t": (by_degrees, by_degrees)}).known is False
    # Of a group the chances count by items: 100 of 200 at one in four, 300 of 300 at one in two, are well above.
    small, large = first_right(200, 100, **BY_CHOICE), first_right(300, 150, chance=0.5)
    assert guard("above-chance", {"g/a": (small, small), "g/b": (large, large)}, ["g"]).tripped is False
    assert guard("above-chance", {"g/a": (guessing, guessing), "g/b": (large, large)}, ["g"]).tripped


@pytest.mark.parametrize(
    ("n", "right", "tripped"),
    [(30, 8, True), (29, 7, False), (200, 50, True), (200, 44, True), (200, 43, False), (200, 56, True),
     (200, 57, False)],
)  # fmt: skip
def test_a_candidate_just_at_chance_is_not_believed(n: int, right: int, tripped: bool) -> None:
    """One standard error of 200 guesses of one in four is 6.1 right ones, of 30 it is 2.4."""
    assert trips("not-guessing", first_right(n, n, **BY_CHOICE), first_right(n, right, **BY_CHOICE)) is tripped


def test_small_tasks_of_a_group_are_asked_for_guessing_together() -> None:
    """One standard error of 20 guesses of one in four and 20 of one in two is 2.96 right ones around 15."""
    able = first_right(20, 20, **BY_CHOICE)
    halves = {"output_type": "multiple_choice", "chance": 0.5}
    for right, tripped in ((8, False), (9, True), (13, True), (14, False)):
        group = {"g/a": (able, first_right(20, 4, **BY_CHOICE)), "g/b": (able, first_right(20, right, **halves))}
        assert guard("not-guessing", group, ["g"]).tripped is tripped
    in_words = first_right(20, 10, output_type="generate_until", chance=0.5)
    group = {"g/a": (able, first_right(20, 5, **BY_CHOICE)), "g/b": (able, in_words)}
    assert guard("not-guessing", group, ["g"]).known is False


def test_guessing_is_asked_only_of_log_probabilities_and_beside_a_baseline_far_above() -> None:
    ours = first_right(200, 50, **BY_CHOICE)
    for theirs, tripped in ((first_right(200, 90, **BY_CHOICE), True), (first_right(200, 60, **BY_CHOICE), False)):
        assert trips("not-guessing", theirs, ours) is tripped
    theirs = first_right(200, 160, **BY_CHOICE)
    in_words = first_right(200, 50, output_type="generate_until", chance=0.25)
    assert guard("not-guessing", {"t": (theirs, in_words)}).known is False
    assert guard("not-guessing", {"t": (theirs, in_words), "u": (theirs, ours)}).tripped
    by_likelihood = first_right(200, 50, output_type="loglikelihood", chance=0.25)
    assert trips("not-guessing", theirs, by_likelihood)
    assert not trips("not-guessing", Answers([]), ours)


# From a cache


@pytest.mark.parametrize(
    ("theirs", "ours", "tripped"),
    [
        (1 * MS, 1 * MS, True),
        (1 * MS + 1, 1 * MS + 1, False),
        (5 * MS, 101 * MS, True),
        (5 * MS, 99 * MS, False),
        (6 * MS, 900 * MS, False),
        (900 * MS, 2 * MS, True),
    ],
)
def test_answers_that_are_all_alike_come_from_a_cache_where_no_model_is_so_fast(
    theirs: int, ours: int, tripped: bool
) -> None:
    arms = replace(WELL, latency_ns=theirs), replace(WELL, latency_ns=ours)
    found = guard("not-cached", {"t": arms})
    assert found.tripped is tripped
    assert not tripped or f"the {'baseline' if theirs <= ours else 'candidate'}'s median took" in found.reason


@pytest.mark.parametrize(("n", "tripped"), [(29, False), (30, True)])
def test_thirty_answers_that_are_alike_are_enough_to_tell_a_cache(n: int, tripped: bool) -> None:
    some = Answers(right_but(n), latency_ns=1000)
    assert trips("not-cached", some, some) is tripped


def partly(count: int, n: int = 300, *, alike: bool = True, fast_ns: int = 2 * MS, slow_ns: int = 90 * MS) -> Evidence:
    """So many items of which the candidate's answers came at once, and the rest in a model's time, in other words."""
    suite = suite_of([ACCURACY], ["t"])
    whole = evidence_of(suite, {"t": (Answers(right_but(n), latency_ns=slow_ns),) * 2})
    theirs, ours = whole.quality
    items = tuple(
        replace(
            item, latency_ns=fast_ns if i < count else slow_ns, answer=item.answer if i < count and alike else f"o{i}"
        )
        for i, item in enumerate(ours.items)
    )
    return replace(whole, quality=(theirs, replace(ours, items=items)))


@pytest.mark.parametrize(
    ("evidence", "tripped"),
    [
        (partly(15), False),  # a twentieth
        (partly(16), True),
        (partly(9, n=40), False),
        (partly(10, n=40), True),
        (partly(16, alike=False), False),
        (partly(16, fast_ns=6 * MS, slow_ns=900 * MS), False),
        (partly(16, fast_ns=5 * MS, slow_ns=99 * MS), False),
        (partly(16, fast_ns=5 * MS, slow_ns=101 * MS), True),
        (partly(29, n=29), False),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_twentieth_of_the_answers_from_a_cache_hides_as_much(evidence: Evidence, tripped: bool, turned: bool) -> None:
    suite = suite_of([ACCURACY], ["t"])
    theirs, ours = evidence.quality
    if turned:
        theirs, ours = replace(ours, arm=Arm.BASELINE), replace(theirs, arm=Arm.CANDIDATE)
    found = of_evals(compare(replace(evidence, quality=(theirs, ours))), suite)
    assert next(one for one in found if one.id == "not-cached").tripped is tripped


def test_how_long_answers_took_must_be_known_of_every_one() -> None:
    suite = suite_of([ACCURACY], ["t"])
    whole = evidence_of(suite, {"t": (replace(WELL, latency_ns=1000), replace(WELL, latency_ns=1000))})
    theirs, ours = whole.quality
    silent = replace(ours, items=(replace(ours.items[0], latency_ns=None), *ours.items[1:]))
    for quality, known in (((theirs, ours), True), ((theirs, silent), False)):
        found = of_evals(compare(replace(whole, quality=quality)), suite)
        told = next(one for one in found if one.id == "not-cached")
        assert (told.tripped, told.known) == (known, known)


# Items of one passage


def by_passage(right: Sequence[int], size: int = 10, **harness: object) -> Answers:
    """Passages of so many items each, of which so many are right."""
    scores = [float(i < n) for n in right for i in range(size)]
    return Answers(scores, clusters=[f"passage {i // size}" for i in range(len(scores))], harness=harness)


def test_a_gain_in_whole_passages_is_shown_by_passages_and_not_by_their_items() -> None:
    whole = by_passage([10] * 20)
    assert not trips("gain-plausible", by_passage([0] * 3 + [10] * 17), whole)  # 15 points, in 3 of 20 passages
    assert trips("gain-plausible", by_passage([8] * 20), whole)  # 20 points, in each
    alone = Answers(by_passage([0] * 3 + [10] * 17).scores)
    assert trips("gain-plausible", alone, Answers(whole.scores))
    few = by_passage([0] * 2 + [10] * 7)  # too few to know how much passages differ
    assert trips("gain-plausible", few, by_passage([10] * 9))


def test_a_group_with_one_task_of_passages_is_judged_by_them() -> None:
    clustered = (by_passage([0] * 3 + [10] * 17), by_passage([10] * 20))
    plain = (first_right(20, 20), first_right(20, 20))
    assert not guard("gain-plausible", {"g/a": clustered, "g/b": plain}, ["g"]).tripped


def test_a_baseline_is_known_and_above_chance_by_as_much_as_its_passages_show() -> None:
    """110 of 200 right: by items 49 % to 61 %, in passages that are right or wrong as a whole 33 % to 76 %."""
    uneven, alone = by_passage([10] * 11 + [0] * 9), first_right(200, 110)
    for least, most in (("62%", "70%"), ("40%", "48%")):
        entry = {"task": "t", "expect": {"min": least, "max": most}}
        assert not guard("baseline-as-known", {"t": (uneven, uneven)}, [entry]).tripped
        assert guard("baseline-as-known", {"t": (alone, alone)}, [entry]).tripped
    known = {"chance": 0.45}
    for answers, tripped in ((replace(uneven, harness=known), True), (replace(alone, harness=known), False)):
        assert trips("above-chance", answers, answers) is tripped


# A gain that is none


@pytest.mark.parametrize(("gained", "lower", "tripped"), [(27, 0.0496, False), (28, 0.0518, True)])
def test_a_gain_is_implausible_where_five_points_are_shown(gained: int, lower: float, tripped: bool) -> None:
    theirs, ours = right_but(400, *range(gained)), [1.0] * 400
    assert accuracy_regression([ScorePairs(np.array(ours), np.array(theirs))], 0.05).limits.lower == pytest.approx(
        lower, abs=1e-4
    )
    assert guard("gain-plausible", {"t": (Answers(theirs), Answers(ours))}).tripped is tripped


def test_one_of_many_tasks_gains_by_chance_what_one_alone_must_not() -> None:
    """28 of 400 gained show 5 points at alpha, and not at a tenth of it; 60 show them among ten tasks too."""
    same = {f"g/{i}": (WELL, WELL) for i in range(9)}
    for gained, tripped in ((28, False), (60, True)):
        task = (Answers(right_but(400, *range(gained))), Answers([1.0] * 400))
        assert guard("gain-plausible", {"g/t": task}).tripped
        assert guard("gain-plausible", {"g/t": task, **same}, ["g"]).tripped is tripped


def test_a_gain_of_a_whole_group_is_seen_where_none_of_its_tasks_shows_it() -> None:
    tasks = {f"g/{i}": (Answers(right_but(100, *range(10))), Answers([1.0] * 100)) for i in range(20)}
    assert guard("gain-plausible", tasks, ["g"]).tripped
    assert not guard("gain-plausible", tasks).tripped


@pytest.mark.parametrize(
    ("least", "most", "tripped"),
    [("60%", "65%", False), ("55%", "60%", False), ("61%", "70%", True), ("50%", "59%", True)],
)
def test_a_known_baseline_may_be_beaten_by_any_gain(least: str, most: str, tripped: bool) -> None:
    entry = {"task": "t", "expect": {"min": least, "max": most}}
    found = guard("gain-plausible", {"t": (first_right(500, 300), first_right(500, 450))}, [entry])
    assert found.tripped is tripped


def test_items_sent_among_a_load_are_not_known_by_the_eval_alone() -> None:
    entry = {"task": "t", "expect": {"min": "60%", "max": "65%"}}
    alone, broken = (first_right(500, 310),) * 2, (first_right(500, 100), first_right(500, 310))
    assert guard("gain-plausible", {"t": alone, "t@c4": broken}, [entry]).tripped
    assert guard("gain-plausible", {"t@c4": broken}, [entry]).tripped, "the eval alone is not there yet"
    known = (first_right(500, 310), first_right(500, 450))
    assert not guard("gain-plausible", {"t": alone, "t@c4": known}, [entry]).tripped


def test_a_group_is_known_by_all_of_its_items_and_not_where_one_of_its_tasks_failed() -> None:
    """The smaller task alone is outside the band; both together, item by item, are inside."""
    entry = {"task": "g", "expect": {"min": "60%", "max": "65%"}}
    low, high = (first_right(100, 40), first_right(100, 95)), (first_right(400, 270), first_right(400, 390))
    assert not guard("gain-plausible", {"g/a": low, "g/b": high}, [entry]).tripped
    assert guard("gain-plausible", {"g/a": low}, [entry]).tripped
    failed = (replace(high[0], fault="went away"), high[1])
    assert guard("gain-plausible", {"g/a": low, "g/b": failed}, [entry]).tripped
    inside = (first_right(400, 250), first_right(400, 390))
    assert not guard("gain-plausible", {"g/b": inside}, [entry]).tripped
    assert guard(
        "gain-plausible", {"g/b": inside, "g/a": (replace(low[0], fault="went away"), low[1])}, [entry]
    ).tripped
    plain = {"task": "h"}
    assert guard("gain-plausible", {"g/a": low, "h": (high[0], high[0])}, [entry, plain]).tripped
    assert guard("gain-plausible", {"g/a": high, "g/b": low, "h": high}, [entry, plain]).tripped


def test_one_item_shows_no_gain() -> None:
    one = (Answers([0.0]), Answers([1.0]))
    assert not guard("gain-plausible", {"t": one}).tripped
    assert guard("gain-plausible", {"t": one, "u": (first_right(300, 100), WELL)}).tripped


def test_a_gain_of_scores_is_measured_by_the_most_that_was_scored() -> None:
    """6 points of 100 are a gain like another, 6 points of 1 are not plausible."""
    for scale, tripped in ((1.0, True), (100.0, False)):
        theirs = Answers([scale * (0.5 + i % 5 / 10) for i in range(300)], harness={"scale": "continuous"})
        ours = replace(theirs, scores=[(score or 0.0) + 0.06 for score in theirs.scores])
        assert trips("gain-plausible", theirs, ours) is tripped
