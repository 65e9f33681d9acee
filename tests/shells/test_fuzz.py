"""Readers of untrusted input refuse what they cannot read: mutations of valid inputs, and inputs that once crashed.

`python -m benchmarks.fuzz` searches for hours; what it finds comes to tests/fixtures/fuzz.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import NAMES, Session, bounded
from benchmarks.fuzz_targets import TARGETS, Target

FOUND = sorted(path for path in (Path(__file__).parents[1] / "fixtures/fuzz").rglob("*") if path.is_file())
STORED = ("bundles", "report")  # a seed is a whole run, which takes long to make, and so does its page


def test_every_target_is_known_by_its_name() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_once_crashed_is_read_or_refused(path: Path) -> None:
    with bounded():
        TARGETS[path.parent.name].read(path.read_bytes())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in STORED else name for name in NAMES]
)
def test_any_mutation_of_a_valid_input_is_read_or_refused(name: str) -> None:
    target, seeds = TARGETS[name], TARGETS[name].seeds()

    @settings(suppress_health_check=list(HealthCheck), max_examples=settings().max_examples)
    @given(st.sampled_from(seeds), st.randoms(use_true_random=False), st.integers(1, 3))
    def search(data: bytes, drawn: random.Random, times: int) -> None:
        for _ in range(times):
            data = target.mutate(data, drawn)
        with bounded():
            target.read(data)

    search()


# ---- the search itself


def target_of(read: object) -> Target:
    return Target("made-up", read, lambda: [b"a"], lambda data, drawn: data)  # type: ignore[arg-type]


def fail(data: bytes) -> None:
    if data != b"good":
        raise KeyError(data)


def test_a_crash_is_kept_once_for_its_place_with_its_traceback(tmp_path: Path) -> None:
    session = Session(target_of(fail), tmp_path / "crashes", 9.0)
    for data in (b"good", b"bad", b"worse"):
        session.try_input(data)
    assert session.summary()["inputs"] == 3
    assert [place.split(" in ")[0] for place in session.summary()["crashes"]] == ["KeyError"]
    kept, text = sorted((tmp_path / "crashes").iterdir(), key=lambda path: path.suffix)
    assert kept.read_bytes() == b"bad"
    assert text.read_text().endswith("KeyError: b'bad'\n")


def test_an_input_without_end_is_a_crash(tmp_path: Path) -> None:
    def loop(data: bytes) -> None:
        while True:
            pass

    session = Session(target_of(loop), tmp_path, 9.0, most_cpu_s=0.05)
    session.try_input(b"")
    [what] = session.summary()["crashes"].values()
    assert what.startswith("TooSlow")
