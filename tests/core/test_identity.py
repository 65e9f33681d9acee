"""Whether it is known which weights a deployment serves."""

from __future__ import annotations

from typing import Any

import pytest

from benchgate.model.deployment import Deployment, PinStatus, adapter_names, identity_of

COMMIT = "5f" * 20
OTHER = "a3" * 20
FILE = f"sha256:{'c7' * 32}"


def served(
    model: str = "org/chat", *, revision: str | None = None, told: object = None, url: str | None = "http://c"
) -> Deployment:
    settings: dict[str, object] = {} if revision is None else {"revision": revision}
    facts: dict[str, Any] = {} if told is None else {"model_sha": told}
    return Deployment("c", model, "vllm", url, settings=settings, facts=facts)


@pytest.mark.parametrize(
    ("deployment", "pin", "revision"),
    [
        (served(), PinStatus.UNKNOWN, None),
        (served(revision=COMMIT), PinStatus.PINNED, COMMIT),
        (served(revision=FILE), PinStatus.PINNED, FILE),
        (served(f"org/chat@{COMMIT}"), PinStatus.PINNED, COMMIT),
        (served(told=COMMIT), PinStatus.PINNED, COMMIT),
        (served(revision=COMMIT, told=COMMIT), PinStatus.PINNED, COMMIT),
        (served(revision=FILE, told=COMMIT), PinStatus.PINNED, FILE),
        (served("awq", revision=COMMIT), PinStatus.PINNED, COMMIT),
        (served(revision="main"), PinStatus.MOVING, None),
        (served(revision="v1.0"), PinStatus.MOVING, None),
        (served(revision=COMMIT[:12]), PinStatus.MOVING, None),  # another commit may begin so tomorrow
        (served(revision=COMMIT.upper()), PinStatus.MOVING, None),
        (served(revision=f"{COMMIT}\n"), PinStatus.MOVING, None),
        (served("org/chat@main"), PinStatus.MOVING, None),
        (served("org/chat@main", revision=COMMIT), PinStatus.CONTRADICTED, None),  # what is asked for is `main`
        (served(f"org/chat@{COMMIT}", revision=OTHER), PinStatus.CONTRADICTED, None),
        (served(f"org/chat@{COMMIT}", revision=COMMIT), PinStatus.PINNED, COMMIT),
        (served(revision="sha256:"), PinStatus.MOVING, None),
        (served(revision="main", told=COMMIT), PinStatus.MOVING, None),  # what is declared is what is deployed again
        (served(revision=COMMIT, told=OTHER), PinStatus.CONTRADICTED, None),
        (served(told="main"), PinStatus.UNKNOWN, None),
        (served(told=7), PinStatus.UNKNOWN, None),
        (served("benchgate-tiny", url=None), PinStatus.OURS, None),
    ],
)
def test_only_a_whole_commit_or_digest_that_nobody_contradicts_pins_a_model(
    deployment: Deployment, pin: PinStatus, revision: str | None
) -> None:
    found = identity_of(deployment)
    assert (found.pin, found.revision) == (pin, revision)
    assert found.may_move == (pin in (PinStatus.MOVING, PinStatus.CONTRADICTED))
    assert found.is_fixed == (pin in (PinStatus.OURS, PinStatus.PINNED))


def test_what_is_told_names_the_model_and_what_is_wrong() -> None:
    assert "org/chat at main, which is no commit" in identity_of(served("org/chat@main")).description
    both = identity_of(served(revision=COMMIT, told=OTHER)).description
    assert COMMIT in both and OTHER in both
    assert "not pinned" in identity_of(served()).description


@pytest.mark.parametrize(
    ("adapters", "pin"),
    [
        ([f"lora@{COMMIT}", f"other@{FILE}"], PinStatus.PINNED),
        (["lora"], PinStatus.UNKNOWN),
        (["lora", "org/lora@main"], PinStatus.MOVING),
    ],
)
def test_a_pinned_model_with_an_adapter_is_as_fixed_as_that(adapters: list[str], pin: PinStatus) -> None:
    found = identity_of(served(revision=COMMIT), adapters)
    assert (found.pin, found.revision) == (pin, COMMIT if pin is PinStatus.PINNED else None)
    assert pin is PinStatus.PINNED or adapters[-1] in found.description
    assert identity_of(served(url=None), adapters).pin is PinStatus.OURS


def test_adapters_are_those_of_the_load_wherever_it_asks_for_one() -> None:
    classes = [{"class": "a", "workload": {"adapter": "one"}}, {"class": "b", "workload": {"adapter": None}}]
    assert sorted(adapter_names({"workload": {"adapter": "two"}, "sweep": [{"classes": classes}]})) == ["one", "two"]
    several = {"workloads": {"adapter": {"adapter": {"names": ["a", "b"], "weights": "zipf"}}}}  # of that name too
    assert list(adapter_names(several)) == ["a", "b"]
    assert list(adapter_names(None)) == []
