"""The wheel alone is enough: built here, installed into an empty environment, it judges from any folder.

Nothing is downloaded. Each locked dependency is linked into the empty environment from the one the tests run in: a
folder that is its own as a whole, of one that it shares exactly the files that its own record names. What no lock names
is not there, and neither is the checkout.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.beside  # of what it measures only the answers are judged


ROOT = Path(__file__).parents[2]
DEMO = ("demo", "--candidate", "q2_k")
BASE_LIMIT_BYTES = 450e6


def locked(profile: str) -> list[metadata.Distribution]:
    """The distributions that a profile's lock names for this platform, as installed here."""
    text = (ROOT / f"requirements/{profile}.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^([a-zA-Z0-9].*?)\s*\\?$", text, re.MULTILINE)
    wanted = [
        requirement
        for requirement in map(Requirement, lines)
        if not requirement.marker or requirement.marker.evaluate()
    ]
    return [metadata.distribution(requirement.name) for requirement in wanted]


def files_of(distribution: metadata.Distribution) -> list[tuple[Path, Path]]:
    """Place inside site-packages and real place of every file of a distribution; its programs are left out."""
    files = [(Path(str(file)), Path(str(distribution.locate_file(file)))) for file in distribution.files or ()]
    return [(name, path) for name, path in files if name.parts[0] != ".." and path.is_file()]


def links_of(distribution: metadata.Distribution, shared: set[str]) -> set[tuple[Path, Path]]:
    """As `files_of`, with one link for each folder that no other distribution has a file in."""
    links = set()
    for name, source in files_of(distribution):
        whole = len(name.parts) > 1 and name.parts[0] not in shared
        links.add((Path(name.parts[0]), source.parents[len(name.parts) - 2]) if whole else (name, source))
    return links


@functools.cache
def shared_folders() -> set[str]:
    """Top-level folders in which several installed distributions have files."""
    owners = Counter(
        folder
        for distribution in metadata.distributions()
        for folder in {Path(str(file)).parts[0] for file in distribution.files or () if len(Path(str(file)).parts) > 1}
    )
    return {folder for folder, owned_by in owners.items() if owned_by > 1}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout without a network."""
    return built_in(tmp_path_factory.mktemp("wheel"))


def built_in(folder: Path, **environment: str) -> Path:
    """A wheel of this checkout, as an installation from source makes it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def environment_of(profile: str, folder: Path) -> Path:
    """An environment of one profile's locked dependencies; returns where its packages lie."""
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    shared = shared_folders()
    for distribution in locked(profile):
        for name, source in links_of(distribution, shared):
            target = site_packages / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return site_packages


def installed(wheel: Path, folder: Path) -> Path:
    """Installs the wheel into an environment; returns its `benchgate`."""
    python = str(folder / "bin/python")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    return folder / "bin/benchgate"


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """benchgate without any extra."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    environment_of("base", folder)
    return installed(wheel, folder)


@pytest.fixture(scope="module")
def full(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """benchgate with the extra `demo`: the same files, as they were installed, beside more dependencies."""
    folder = tmp_path_factory.mktemp("full") / "venv"
    site_packages = environment_of("demo", folder)
    for part in next(base.parent.parent.glob("lib/python*/site-packages")).glob("benchgate*"):
        shutil.copytree(part, site_packages / part.name)
    program = folder / "bin" / base.name
    program.write_text(base.read_text().replace(str(base.parent), str(program.parent)))
    program.chmod(0o755)
    return program


def run(program: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed program from a folder that has nothing to do with the checkout."""
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)


def test_the_wheel_carries_what_the_program_reads(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {"suites": "_suites", "reports/templates": "_templates", "migrations": "_migrations"}
    for source, packaged in folders.items():
        files = [path.relative_to(ROOT / source).as_posix() for path in (ROOT / source).rglob("*") if path.is_file()]
        expected = {f"benchgate/{packaged}/{name}" for name in files if "__pycache__" not in name}
        assert expected
        assert expected - set(names) == set()
    assert "benchgate/embedded/tiny/f16.gguf" in names
    assert "benchgate/py.typed" in names


def test_the_wheel_carries_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"benchgate"}
    assert [name for name in names if name.endswith((".pyc", ".db"))] == []


@pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="nothing is compiled here"
)
def test_the_wheel_carries_what_is_compiled_and_says_for_which_system(wheel: Path, base: Path) -> None:
    assert re.search(r"-py3-none-linux_\w+\.whl$", wheel.name)
    assert "benchgate/load/http/reader.lib" in zipfile.ZipFile(wheel).namelist()
    code = "from benchgate.load.http.reader import library; print(library() is not None)"
    done = subprocess.run([base.parent / "python", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "True\n"


def test_a_wheel_of_which_nothing_is_compiled_is_for_every_system(tmp_path: Path) -> None:
    pure = built_in(tmp_path, BENCHGATE_NATIVE="0")
    assert pure.name.endswith("-py3-none-any.whl")
    assert [name for name in zipfile.ZipFile(pure).namelist() if name.endswith((".lib", ".so"))] == []


def test_the_core_install_stays_small() -> None:
    size = sum(path.stat().st_size for distribution in locked("base") for _, path in files_of(distribution))
    assert size < BASE_LIMIT_BYTES


def test_without_extras_the_shipped_suite_is_found_and_valid(base: Path, tmp_path: Path) -> None:
    done = run(base, "plan", "demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing was sent" in done.stdout
    assert str(ROOT) not in done.stdout


def test_without_extras_the_demo_names_what_to_install(base: Path, tmp_path: Path) -> None:
    done = run(base, *DEMO, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(r"pip install '/.+\.whl\[\w+\]'", done.stderr), done.stderr


def test_the_installed_program_answers(full: Path, tmp_path: Path) -> None:
    done = run(full, "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: benchgate" in done.stdout


@pytest.mark.slow
def test_the_shipped_suite_blocks_a_broken_model_from_the_wheel_in_another_folder(full: Path, tmp_path: Path) -> None:
    """With less of everything than `benchgate demo` asks, which takes a minute and runs in CI on every push."""
    (shipped,) = full.parent.parent.glob("lib/python*/site-packages/benchgate/_suites/demo.yaml")
    shorter = {
        "blocks: 16": "blocks: 2\n  warmup: 1",
        "output: 96 tokens": "output: 16 tokens",
        "quality:\n": "quality:\n  limit: 40\n",
        "shadow:\n": "shadow:\n  limit: 20\n",
    }
    text = shipped.read_text(encoding="utf-8")
    for said, instead in shorter.items():
        assert text.count(said) == 1
        text = text.replace(said, instead)
    (tmp_path / "short.yaml").write_text(text, encoding="utf-8")
    for folder in ("tasks", "data"):
        (tmp_path / folder).symlink_to(shipped.parent / folder)
    done = run(full, "run", "short.yaml", "--candidate", "q2_k", "--report", "report.html", folder=tmp_path)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "Accuracy" in done.stdout.splitlines()[0]
    assert "BLOCK" in (tmp_path / "report.html").read_text(encoding="utf-8")
