from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchgate.model.verdict import Outcome
from benchgate.shadow.prompts import load_prompts
from benchgate.shadow.redaction import redactor_of
from benchgate.shadow.request_log import LogSummary
from benchgate.shadow.sampling import Drift, Traits, draw_sample, drift, traits_of_logs, traits_of_sample, write_sample

SYSTEM = "You serve a bank."

PIRATE = "You are a pirate."


def traffic(seed: int, n: int, *, words: int = 25, system: str = SYSTEM, alphabet: str = "abcdefgh") -> list[object]:
    chance = random.Random(seed)
    rows: list[object] = []
    for _ in range(n):
        length = max(3, round(chance.lognormvariate(0, 0.6) * words))
        said = " ".join("".join(chance.choices(alphabet, k=5)) for _ in range(length))
        rows.append({"messages": [{"role": "system", "content": system}, {"role": "user", "content": said}]})
    return rows


def compare(tmp_path: Path, sampled: list[object], now: list[object], size: int = 256) -> Drift:
    for name, rows in (("then", sampled), ("now", now)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_sample(tmp_path / "set", draw_sample([tmp_path / "then"], redactor_of(None, ()), size=size).rows)
    was = traits_of_sample(load_prompts(tmp_path / "set"))
    return drift(was, traits_of_logs([tmp_path / "now"], redactor_of(None, ()), LogSummary()))


def outcomes(found: Drift) -> dict[str, Outcome]:
    return {change.of: change.outcome for change in found.changes}


def test_a_sample_of_the_same_traffic_passes(tmp_path: Path) -> None:
    found = compare(tmp_path, traffic(1, 500), traffic(2, 500))
    assert found.outcome is Outcome.PASS, found
    assert (found.sample_n, found.now_n) == (256, 500)


@pytest.mark.parametrize(
    ("of", "now"),
    [
        ("length", traffic(2, 400, words=55)),
        ("beginning", traffic(2, 400, system=PIRATE)),
        ("script", traffic(2, 400, alphabet="абвгдежз")),
        ("endpoint", [{"prompt": json.dumps(row), "model": "m"} for row in traffic(2, 400)]),
    ],
)  # fmt: skip
def test_traffic_that_has_become_other_is_told_by_what_changed(tmp_path: Path, of: str, now: list[object]) -> None:
    found = compare(tmp_path, traffic(1, 400), now)
    assert found.outcome is Outcome.BLOCK
    assert outcomes(found)[of] is Outcome.BLOCK
    if of in ("length", "script"):  # nothing else changed
        others = [outcome for name, outcome in outcomes(found).items() if name not in (of, "length")]
        assert set(others) <= {Outcome.PASS}


def test_with_few_prompts_nothing_is_told_but_that(tmp_path: Path) -> None:
    assert compare(tmp_path, traffic(1, 40), traffic(2, 40)).outcome is Outcome.INCONCLUSIVE


def test_a_small_change_is_a_warning() -> None:
    def mixed(long: int) -> list[Traits]:
        return [Traits(100, "chat", "LATIN", "a")] * (1000 - long) + [Traits(900, "chat", "LATIN", "a")] * long

    assert drift(mixed(500), mixed(520)).outcome is Outcome.PASS
    assert drift(mixed(500), mixed(670)).outcome is Outcome.WARN
    assert drift(mixed(500), mixed(800)).outcome is Outcome.BLOCK


def test_length_above_that_of_many_prompts_is_another_one() -> None:
    def of_length(*lengths: int) -> list[Traits]:
        return [Traits(length, "chat", "LATIN", "a") for length in lengths for _ in range(256 // len(lengths))]

    assert outcomes(drift(of_length(512), of_length(512)))["length"] is Outcome.PASS
    assert outcomes(drift(of_length(512), of_length(20_000)))["length"] is Outcome.BLOCK
    assert outcomes(drift(of_length(100, 900), of_length(100, 30_000)))["length"] is Outcome.BLOCK


def test_stratum_that_its_author_wrote_is_no_endpoint(tmp_path: Path) -> None:
    rows = [{"id": f"p{n}", "prompt": f"question {n % 50} of {n}"} for n in range(300)]
    (tmp_path / "now").write_text(
        "".join(json.dumps({"messages": [{"role": "user", "content": one["prompt"]}]}) + "\n" for one in rows)
    )
    (tmp_path / "set").write_text("".join(json.dumps({**one, "stratum": "support/en"}) + "\n" for one in rows))
    was = traits_of_sample(load_prompts(tmp_path / "set"))
    found = drift(was, traits_of_logs([tmp_path / "now"], redactor_of(None, ()), LogSummary()))
    assert outcomes(found)["endpoint"] is Outcome.PASS


def test_equal_traffic_is_hardly_ever_called_drift(tmp_path: Path) -> None:
    pools = [
        [
            Traits(round(chance.lognormvariate(6, 1)), chance.choice(["chat", "completions"]), "LATIN", "a")
            for _ in range(256)
        ]
        for chance in (random.Random(seed) for seed in range(80))
    ]
    found = [drift(one, other).outcome for one, other in zip(pools[::2], pools[1::2], strict=True)]
    assert found.count(Outcome.PASS) >= 38
    assert Outcome.BLOCK not in found
