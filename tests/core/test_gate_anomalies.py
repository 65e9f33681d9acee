"""Eval and shadow answers that loop, have broken characters or change the script, and natural answers that do not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.records import ShadowItem, pack_rows, unpack_rows
from benchgate.model.text_anomalies import find_anomalies
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from tests.fakes.evals import Answers, evidence_of, right_but, suite_of
from tests.fakes.shadow_rows import EXCESS, FACTS, evidence, item, suite

N = 300
ENGLISH = "The harbour lies north of the old town, and its lights are seen from the sea."
RUSSIAN = "Гавань лежит северней старого города, её огни видны издалека."
LOOP = "The harbour is old. " + "I am sorry, I am sorry, " * 12
BROKEN = "The har\ufffdbour lies north of the old town"


@pytest.mark.parametrize(
    ("text", "looped", "replaced", "script"),
    [
        (ENGLISH, False, False, "Latin"),
        (LOOP, True, False, "Latin"),
        ("=" * 60, False, False, None),  # a ruler
        ("ha " * 20, False, False, "Latin"),
        ("\n".join(f"{n} times 7 is {7 * n}" for n in range(1, 40)), False, False, "Latin"),
        ("| a | b |\n" * 12, True, False, "Latin"),
        (BROKEN, False, True, "Latin"),
        ("the answer was cut in a character \ufffd\ufffd", False, False, "Latin"),
        (RUSSIAN, False, False, "Cyrillic"),
        ("港は旧市街の北にあり、その灯りは海から見えます。とても古い港です。", False, False, "Japanese"),
        ("港口位于老城以北从海上可以看到它的灯光这是一个非常古老的港口城市", False, False, "CJK"),
        (f"{RUSSIAN} {ENGLISH}", False, False, None),  # neither has four fifths
        ("42", False, False, None),
        ("", False, False, None),
    ],
)
def test_anomalies_of_a_text(text: str, looped: bool, replaced: bool, script: str | None) -> None:
    found = find_anomalies(text)
    assert (found.looped, found.replaced, found.script) == (looped, replaced, script)


PROSE = {
    "English": "The harbour lies north of the old town, and its lights are seen from the sea. It was built for the "
    "ships that bring wheat, which is not grown on this coast.",
    "German": "Der Hafen liegt nördlich der alten Stadt, und seine Lichter sind von der See zu sehen. "
    "Er wurde für die Schiffe gebaut, die mit Weizen kommen, der auf dem Land nicht wächst.",
    "French": "Le port est au nord de la vieille ville et ses feux sont vus de la mer. Il fut construit "
    "pour les navires qui viennent avec du blé, que la côte ne donne pas dans les champs.",
    "Spanish": "El puerto está al norte de la ciudad vieja y sus luces se ven desde el mar. Es una obra "
    "para los barcos que llegan con trigo, que no crece en los campos de la costa.",
    "Italian": "Il porto si trova a nord della città vecchia e le sue luci sono viste dal mare. È una costruzione "
    "per le navi che arrivano con il grano, che non cresce nei campi della costa.",
    "Portuguese": "O porto fica ao norte da cidade velha e as suas luzes são vistas do mar. É uma obra para os navios "
    "que chegam com trigo, que não cresce nos campos da costa.",
    "Dutch": "De haven ligt ten noorden van de oude stad en het licht is van zee te zien. Er komen schepen met tarwe "
    "aan, die niet op de velden van de kust te vinden is om te eten.",
}


@pytest.mark.parametrize("language", PROSE)
def test_language_of_prose_is_known_and_its_change_makes_a_run_invalid(language: str) -> None:
    assert find_anomalies(PROSE[language]).language == language
    assert guard(of_evals({}, dict.fromkeys(range(30), "An answer in English, too short to tell."))) is None
    natural, changed = dict.fromkeys(range(N), PROSE["English"]), dict.fromkeys(range(30), PROSE[language])
    for baseline, candidate in ((natural, natural | changed), (natural | changed, natural)):
        result = guard(of_evals(baseline, candidate))
        if language == "English":
            assert result is None
        else:
            assert result is not None and result.tripped
            assert "30 of 300 answers to each are in another language" in result.reason


CODE = """\
def read(path):
    # the lines of a file, without those that are empty
    with open(path) as file:
        for line in file:
            if not line.strip() or line.startswith("#"):
                continue
            yield line.rstrip().split(",")
"""


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        json.dumps(
            [{"name": f"item {n}", "is_on": True, "from": "a", "to": "b", "path": "de/la/que"} for n in range(9)]
        ),
        "| a | b |\n" + "\n".join(f"| {n} | el {n * n} |" for n in range(30)),
        "SELECT name, age FROM people WHERE age IN (1, 2) AND name IS NOT NULL ORDER BY age LIMIT 3 OFFSET 4",
        "Paris, Lyon, Marseille, Toulouse, Nice, Nantes, Montpellier, Strasbourg, Bordeaux, Lille, Rennes, Reims, "
        "Toulon, Le Havre, Grenoble, Dijon, Angers, Nîmes, Villeurbanne, Le Mans, Aix-en-Provence, Brest",
        "La réponse est 42.",
        "x = a + b; y = c * d; z = e / f; o = p - q; os = r; i = j; la = k; il = m; de = n; en = t; te = u; et = v",
        f"{PROSE['French']} {PROSE['English']}",
    ],
)
def test_code_lists_short_and_mixed_texts_change_no_language(text: str) -> None:
    assert find_anomalies(text).language in (None, "English")


def of_evals(baseline: dict[int, str], candidate: dict[int, str], n: int = N) -> Verdict:
    natural = dict.fromkeys(range(n), ENGLISH)
    arms = tuple(Answers(right_but(n), answers=natural | changed) for changed in (baseline, candidate))
    asked = suite_of([{"metric": "accuracy", "margin": "5 points"}], ["each"])
    return judge(asked, evidence_of(asked, {"each": (arms[0], arms[1])}))


def guard(found: Verdict, name: str = "answers-sound") -> GuardResult | None:
    return next((one for one in found.guards if one.id == name), None)


@pytest.mark.parametrize("text", [LOOP, BROKEN, RUSSIAN])
def test_right_scores_hide_no_candidate_whose_answers_are_broken(text: str) -> None:
    found = of_evals({}, dict.fromkeys(range(30), text))
    assert found.outcome is Outcome.INVALID
    result = guard(found)
    assert result is not None and result.tripped and result.invalidates == ()
    assert [check.outcome for check in found.checks] == [Outcome.PASS]


@pytest.mark.parametrize("text", [LOOP, BROKEN])
def test_a_broken_baseline_promotes_nobody(text: str) -> None:
    found = of_evals(dict.fromkeys(range(30), text), {})
    assert found.outcome is Outcome.INVALID
    assert "of the baseline alone" in found.reason


def test_natural_answers_have_no_such_guard_and_a_single_odd_one_trips_none() -> None:
    assert guard(of_evals({}, {})) is None
    for text in (LOOP, BROKEN, RUSSIAN):
        result = guard(of_evals({}, {3: text}))
        assert result is not None and not result.tripped and not result.warns


def test_anomalies_of_both_arms_cast_doubt_on_what_is_measured() -> None:
    both = dict.fromkeys(range(60), LOOP)
    found = of_evals(both, both)
    assert found.outcome is Outcome.WARN
    assert guard(of_evals(dict.fromkeys(range(200), RUSSIAN), dict.fromkeys(range(200), RUSSIAN))) is not None


@pytest.mark.parametrize("worse", ["baseline", "candidate"])
@pytest.mark.parametrize(("count", "trips"), [(119, False), (120, True)])
def test_significantly_more_loops_of_one_arm_warn_if_less_than_twice_the_others(
    worse: str, count: int, trips: bool
) -> None:
    more, fewer = dict.fromkeys(range(count), LOOP), dict.fromkeys(range(count, count + 60), LOOP)
    found = of_evals(fewer, more) if worse == "candidate" else of_evals(more, fewer)
    result = guard(found)
    assert result is not None and (result.tripped, result.warns) == (trips, not trips)
    assert f"{count} of 300 answers of the {worse} alone" in result.reason
    assert found.outcome is (Outcome.INVALID if trips else Outcome.WARN)


def test_one_broken_task_of_several_is_found() -> None:
    asked = suite_of([{"metric": "accuracy", "margin": "5 points"}], ["broken", "large"])
    small = Answers(right_but(60), answers=dict.fromkeys(range(60), ENGLISH))
    large = Answers(right_but(4000), answers=dict.fromkeys(range(4000), ENGLISH))
    looping = replace(small, answers={**small.answers, **dict.fromkeys(range(20), LOOP)})
    found = judge(asked, evidence_of(asked, {"broken": (small, looping), "large": (large, large)}))
    result = guard(found)
    assert result is not None and result.tripped and "to broken" in result.reason


@pytest.mark.slow
def test_equal_arms_that_both_loop_at_times_trip_about_never() -> None:
    rng = np.random.default_rng(7)
    tripped = 0
    for _ in range(300):
        baseline, candidate = (dict.fromkeys(np.flatnonzero(rng.random(N) < 0.05).tolist(), LOOP) for _ in range(2))
        result = guard(of_evals(baseline, candidate))
        tripped += result is not None and result.tripped
    assert tripped <= 2  # 0.3 are expected at most


def rows(changed: dict[str, object], count: int = 40) -> list[ShadowItem]:
    facts = replace(FACTS, looped=False, replaced=False, script="Latin", language="English")
    known = {name: facts for name in ("primary_facts", "secondary_facts", "candidate_facts")}
    odd = {key: replace(facts, **value) for key, value in changed.items()}  # type: ignore[arg-type]
    return [item(n, **{**known, **(odd if n < count else {})}) for n in range(N)]


@pytest.mark.parametrize(
    "anomaly", [{"looped": True}, {"replaced": True}, {"script": "Cyrillic"}, {"language": "German"}]
)
def test_shadow_answers_are_held_to_the_same_rule(anomaly: dict[str, object]) -> None:
    asked = suite(EXCESS)
    for side in ("primary", "candidate"):
        result = guard(judge(asked, evidence(asked, rows({f"{side}_facts": anomaly}))), "shadow-sound")
        if side == "primary" and not {"script", "language"}.isdisjoint(
            anomaly
        ):  # its second answer is unlike: unsettled
            assert result is None or not result.tripped
        else:
            assert result is not None and result.tripped
    assert guard(judge(asked, evidence(asked, rows({}))), "shadow-sound") is None
    assert guard(judge(asked, evidence(asked, [item(n) for n in range(N)])), "shadow-sound") is None


def of_shadow(given: list[ShadowItem]) -> GuardResult:
    asked = suite(EXCESS)
    result = guard(judge(asked, evidence(asked, given)), "shadow-sound")
    assert result is not None
    return result


@pytest.mark.parametrize("unanswered", ["primary", "candidate"])
def test_shadow_prompts_that_one_arm_did_not_answer_are_no_pairs(unanswered: str) -> None:
    looping = rows({"candidate_facts": {"looped": True}})
    other_pair = "own" if unanswered == "primary" else "with_secondary"
    lost = dict.fromkeys((unanswered, f"{unanswered}_facts", "with_primary", other_pair))
    result = of_shadow([replace(row, **lost) if n < 10 else row for n, row in enumerate(looping)])  # type: ignore[arg-type]
    assert result.tripped and "30 of 290 answers of the candidate alone" in result.reason
    result = of_shadow([replace(row, **lost) if n < 38 else row for n, row in enumerate(looping)])  # type: ignore[arg-type]
    assert not result.tripped and not result.warns


@pytest.mark.parametrize("anomaly", [{"script": "Cyrillic"}, {"language": "German"}])
def test_baselines_only_answer_has_its_script_and_language_without_a_second(anomaly: dict[str, object]) -> None:
    changed = rows({"primary_facts": anomaly})
    once: dict[str, object] = {"secondary": None, "secondary_facts": None, "own": None, "with_secondary": None}
    result = of_shadow([replace(row, once=True, **once) for row in changed])  # type: ignore[arg-type]
    assert result.tripped
    assert f"40 of 300 answers to recorded prompts are in another {next(iter(anomaly))}" in result.reason


def test_anomalies_of_shadow_answers_are_stored() -> None:
    kept = rows({"candidate_facts": {"looped": True, "script": None}}, count=2)
    assert unpack_rows(ShadowItem, pack_rows(kept)) == tuple(kept)
