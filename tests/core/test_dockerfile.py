"""The image's recipe, as text: locked, from what is in the tree, without rights and without secrets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LINES = [line for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and not line.startswith("#")]
STEPS = [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in LINES]
FINAL = STEPS[max(i for i, (word, _) in enumerate(STEPS) if word == "FROM") :]


def of(word: str, steps: list[tuple[str, str]] = STEPS) -> list[str]:
    return [rest for name, rest in steps if name == word]


def test_only_what_is_known_is_done_and_nothing_is_fetched_by_address() -> None:
    assert {word for word, _ in STEPS} == {
        "ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "USER", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert not re.search(r"https?://|curl|wget|apt-get|--index-url|--trusted-host", TEXT)


def test_every_base_is_a_named_version() -> None:
    assert of("FROM") == ["python:3.12-slim-trixie AS base", "base AS build", "base"]
    updated = (ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8")
    assert "package-ecosystem: docker\n" in updated


def test_whatever_comes_from_an_index_is_held_to_its_hash() -> None:
    installs = [rest for rest in of("RUN") if "pip install" in rest]
    assert len(installs) == 4
    for rest in installs:
        assert ("--require-hashes" in rest and "--no-deps" in rest) or "--no-index" in rest, rest
    profiles = re.findall(r"requirements/(\S+)\.txt", " ".join(installs))
    (default,) = (rest.split("=")[1] for rest in of("ARG") if rest.startswith("PROFILE="))
    for name in (default if profile == "${PROFILE}" else profile for profile in profiles):
        assert (ROOT / "requirements" / f"{name}.txt").is_file()


def test_it_copies_what_is_there_and_what_the_ignore_file_lets_in() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in ignored if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {line[1:] for line in rules if line.startswith("!")}
    copied = set()
    for rest in of("COPY"):
        words = shlex.split(rest)
        if not words[0].startswith("--from=build"):
            copied |= {word.rstrip("/") for word in words[:-1]}
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_it_runs_without_rights_and_holds_no_secret() -> None:
    (user,) = of("USER", FINAL)
    assert all(int(part) >= 1000 for part in user.split(":"))
    assert of("ENTRYPOINT", FINAL) == ['["benchgate"]']
    assert not re.search(r"(?i)token|password|secret|api_key", TEXT)
    assert not [rest for rest in of("COPY", FINAL) if not rest.startswith("--from=build")]
