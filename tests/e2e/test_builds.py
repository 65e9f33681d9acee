"""What a release consists of: two builds of one tree have the same bytes, and its parts list names every part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import benchgate
from tests.core.test_repository import pins_of

pytestmark = [pytest.mark.beside, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def built(folder: Path, **environment: str) -> dict[str, bytes]:
    """Clone the tree into a folder and build it there, as scripts/release does; return the packages."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=folder, capture_output=True, text=True, check=True
    )
    variables = {**os.environ, "SOURCE_DATE_EPOCH": committed.stdout.strip(), **environment}
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder / "out")]
    subprocess.run(build, cwd=folder, env=variables, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize("native", ["0", "1"])
def test_two_builds_have_the_same_bytes(tmp_path: Path, native: str) -> None:
    """In folders of other names, with other umasks and in other time zones."""
    before = os.umask(0o077)
    try:
        first = built(tmp_path / "a", BENCHGATE_NATIVE=native, TZ="UTC")
        os.umask(0o002)
        second = built(tmp_path / "a longer name", BENCHGATE_NATIVE=native, TZ="Asia/Tokyo")
    finally:
        os.umask(before)
    assert sorted(name.rpartition(".")[2] for name in first) == ["gz", "whl"]
    assert {name: len(data) for name, data in first.items()} == {name: len(data) for name, data in second.items()}
    assert [name for name in first if first[name] != second[name]] == []


@pytest.fixture(scope="module")
def release_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the locked tools that list the parts."""
    folder = tmp_path_factory.mktemp("release") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    options = ["--no-input", "install", "--quiet", "--no-deps", "--require-hashes", "-r", "requirements/release.txt"]
    install = [str(python), "-m", "pip", *options]
    if subprocess.run(install, cwd=ROOT, check=False, capture_output=True).returncode != 0:
        pytest.skip("no package index has the tools of requirements/release.txt")
    return python


def test_the_parts_list_names_every_locked_part_with_its_hashes_twice_the_same(
    release_python: Path, tmp_path: Path
) -> None:
    for name in ("one.json", "two.json"):
        subprocess.run([ROOT / "scripts/sbom", release_python, tmp_path / name], check=True, cwd=tmp_path)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    parts = json.loads((tmp_path / "one.json").read_text())
    product = parts["metadata"]["component"]
    assert (parts["bomFormat"], product["name"], product["version"]) == (
        "CycloneDX", "benchgate", benchgate.__version__,
    )  # fmt: skip
    listed = {(canonicalize_name(one["name"]), one["version"]) for one in parts["components"]}
    pins = pins_of(ROOT / "requirements/base.txt")
    assert listed == {(name, next(iter(pin.specifier)).version) for name, found in pins.items() for pin, _ in found}
    hashes = {
        digest["content"]
        for one in parts["components"]
        for reference in one["externalReferences"]
        for digest in reference.get("hashes", ())
    }
    locked = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", (ROOT / "requirements/base.txt").read_text()))
    assert len(locked) > 100 and locked <= hashes
