"""The wheel alone is enough: built here, installed into an empty environment, it judges from any folder.

Nothing is downloaded. Each locked dependency is linked into the empty environment from the one the tests run in: a
folder that is its own as a whole, of one that it shares exactly the files that its own record names. What no lock names
is not there, and neither is the checkout.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.beside  # of what it measures only the answers are judged


ROOT = Path(__file__).parents[2]
BASE_LIMIT_BYTES = 450e6
KEPT = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "TMPDIR", "LANG"}}


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
    return link(locked(profile), folder)


def link(distributions: Sequence[metadata.Distribution], folder: Path) -> Path:
    """Make an environment of installed distributions; return where its packages lie."""
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    shared = shared_folders()
    for distribution in distributions:
        for name, source in links_of(distribution, shared):
            target = site_packages / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    return site_packages


def installed(wheel: Path | str, folder: Path, *, with_dependencies: bool = False) -> Path:
    """Install the wheel into an environment; return its `benchgate`. Every dependency must be there already."""
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
        *(() if with_dependencies else ("--no-deps",)),
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
    command = [str(program), *arguments]
    return subprocess.run(command, cwd=folder, env=KEPT, capture_output=True, text=True, check=False)


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


SUITE = """
suite: without-extras
deployments:
  old: {url: "http://127.0.0.1:9", model: m}
  new: {url: "http://127.0.0.1:9", model: m2}
baseline: old
candidate: new
"""
FILES = {
    "evals.yaml": SUITE + "quality: {tasks: [gsm8k]}\n",
    "tokens.yaml": SUITE + "load: {workload: {input: 9 tokens, output: 9, tokenizer: tokenizer.json}, "
    "blocks: 4, sweep: [{stage: c1, concurrency: 1, requests: 60}]}\n",
    "tokenizer.json": '{"model": {}}',
}
COMMANDS = {  # one that needs each extra
    "demo": "demo --candidate q2_k",
    "eval": "run evals.yaml",
    "postgres": "runs --store postgresql://127.0.0.1:9/db",
    "parquet": "store export --all --format parquet --to out",
    "cluster": "load http://127.0.0.1:9 --model m --rate 1/s --requests 3 --cluster tcp://127.0.0.1:9",
    "tokenizer": "plan tokens.yaml",
    "object-storage": "load http://127.0.0.1:9 --model m --rate 1/s --requests 3 --shard 0/1 --spool memory://runs/1 "
    "--start-at 2026-01-01T00:00:00Z",
    "sign": "verify s.json --bundle b.json --identity me --issuer you",
}


@pytest.fixture(scope="module")
def loaded(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, in which the base installation has saved a load of the simulated server."""
    folder = tmp_path_factory.mktemp("loaded")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    with subprocess.Popen([base, "sim"], cwd=folder, env=KEPT, stdout=subprocess.PIPE, text=True) as sim:
        try:
            assert sim.stdout is not None
            (url,) = re.findall(r"http://\S+:\d+", sim.stdout.readline())
            load = ("load", url, "--concurrency", "2", "--requests", "20", "--warmup", "0", "--save")
            done = run(base, *load, folder=folder)
            for _ in range(4):  # a load whose client was late, on a busy machine, is not saved
                if done.returncode == 0:
                    break
                done = run(base, *load, folder=folder)
        finally:
            sim.terminate()
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    return folder


@pytest.mark.parametrize("extra", COMMANDS)
def test_without_an_extra_a_command_names_what_to_install(base: Path, loaded: Path, extra: str) -> None:
    done = run(base, *shlex.split(COMMANDS[extra]), folder=loaded)
    assert done.returncode in (2, 13), done.stderr
    assert re.search(rf"pip install '/.+\.whl\[{extra}\]'$", done.stderr.strip()), done.stderr


def required(extra: str) -> set[str]:
    """Return the names of the distributions that benchgate needs with an extra, as their metadata declares them."""
    found: set[str] = set()
    left = [("benchgate", frozenset({extra}))]
    seen = set(left)
    while left:
        name, extras = left.pop()
        found.add(canonicalize_name(name))
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": one}) for one in extras | {""}):
                following = (requirement.name, frozenset(requirement.extras))
                if following not in seen:
                    seen.add(following)
                    left.append(following)
    return found - {"benchgate"}


@pytest.mark.parametrize("extra", COMMANDS)
def test_with_an_extra_the_wheel_installs_and_the_command_goes_on(
    wheel: Path, loaded: Path, tmp_path: Path, extra: str
) -> None:
    folder = tmp_path / "venv"
    link([metadata.distribution(name) for name in required(extra)], folder)
    program = installed(f"{wheel}[{extra}]", folder, with_dependencies=True)
    command = COMMANDS[extra] if extra != "demo" else "plan demo"  # the demo itself is tested below
    done = run(program, *shlex.split(command), folder=loaded)
    assert "pip install" not in done.stderr, done.stderr


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """From a clone, so that nothing that git does not know gets into it."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path), "--target"]
    subprocess.run([*build, "sdist"], cwd=clone, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(sdist)], check=True, capture_output=True)
    (made,) = tmp_path.glob("*.whl")
    names = [{name for name in zipfile.ZipFile(one).namelist() if "__pycache__" not in name} for one in (made, wheel)]
    assert names[0] == names[1]


def test_the_installed_program_answers(full: Path, tmp_path: Path) -> None:
    done = run(full, "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage: benchgate" in done.stdout


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
