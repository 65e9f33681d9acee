"""What must hold of the repository itself: versions agree, supply chain pinned, nothing of one machine in the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ruamel.yaml import YAML

import benchgate

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = [ROOT / "action.yml", *sorted((ROOT / ".github/actions").glob("*/action.yml"))]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROFILES = {"base": (), "demo": ("demo",), "action": ("demo", "postgres"), "dev": ("dev",)}
SKIPPED_FOLDERS = frozenset({"__pycache__", "dist", "build", "benchgate-demo", "benchgate-out"})

# What jobs of the workflows may write; the rest may read the code. `gate-demo` passes on what the called ones ask for.
MAY_WRITE = {
    "gate/begin": {"checks"},
    "gate/publish": {"checks", "pull-requests"},
    "history/keep": {"contents"},
    "attest/attest": {"attestations", "id-token"},
    "gate-demo/gate": {"checks", "pull-requests"},
    "gate-demo/history": {"contents"},
    "gate-demo/attest": {"attestations", "id-token"},
    "release/attest": {"attestations", "id-token"},
    "release/index": {"id-token"},
    "release/github": {"contents"},
}

# Spelled in pieces so that this file does not contain what it forbids.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("crates", "io"), ("anaconda", "org"))
)
MACHINE_PATHS = tuple(f"/{top}/" for top in ("root", "home", "Users", "work", "tmp"))


def files_of_the_tree() -> list[Path]:
    """Files that git has or would take; without git, everything outside folders that are never committed."""
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return sorted(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())
    walked = (path for path in ROOT.rglob("*") if path.is_file())
    return sorted(path for path in walked if not skipped(path.relative_to(ROOT)))


def skipped(path: Path) -> bool:
    """True for what lies in a folder that is never committed."""
    hidden = {part for part in path.parts[:-1] if part.startswith(".")} - {".ci", ".github"}
    return bool(hidden) or any(part in SKIPPED_FOLDERS or part.endswith(".egg-info") for part in path.parts)


def texts_of_the_tree() -> Iterator[tuple[str, str]]:
    """Relative name and content of every text file."""
    for path in files_of_the_tree():
        content = path.read_bytes()
        if b"\0" not in content:
            yield path.relative_to(ROOT).as_posix(), content.decode("utf-8")


def read_yaml(path: Path) -> Any:
    """A YAML 1.2 file as plain values."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def foreign_words(text: str) -> list[str]:
    """Registry hosts and absolute paths of one machine found in a text."""
    paths = [path for path in MACHINE_PATHS if re.search(rf"(?<![\w.*}}/-]){path}\w", text)]
    return [host for host in REGISTRY_HOSTS if host in text] + paths


def pins_of(lock: Path) -> dict[str, list[tuple[Requirement, int]]]:
    """Name -> pinned requirement (one for each environment marker) and its number of hashes."""
    pins: dict[str, list[tuple[Requirement, int]]] = {}
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", lock.read_text(encoding="utf-8").replace("\\\n", " ")):
        lines = [line for line in entry.splitlines() if line and not line.lstrip().startswith("#")]
        if lines:
            written, *hashes = re.split(r"\s+--hash=", lines[0].strip())
            requirement = Requirement(written)
            pins.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(hashes)))
    return pins


def declared(profile: str) -> list[Requirement]:
    """What pyproject.toml asks for in a profile, extras that name extras unfolded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    waiting = list(PROFILES[profile])
    while waiting:
        for requirement in map(Requirement, project["optional-dependencies"][waiting.pop()]):
            if requirement.name == "benchgate":
                waiting.extend(requirement.extras)
            else:
                found.append(requirement)
    return found


def test_version_and_changelog_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = [name for name in re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE) if name != "Unreleased"]
    assert released[0] == benchgate.__version__


def test_no_registry_and_no_machine_is_named_in_the_tree() -> None:
    found = {name: words for name, text in texts_of_the_tree() if (words := foreign_words(text))}
    assert found == {}


def test_a_registry_or_a_machine_path_would_be_seen() -> None:
    host, folder = REGISTRY_HOSTS[0], MACHINE_PATHS[0]
    assert foreign_words(f"--index-url https://{host}/simple") == [host]
    assert foreign_words(f"open('{folder}secret')") == [folder]
    inside = [f"docs{folder}x", f"suites{MACHINE_PATHS[3]}y", f"https://example.com{MACHINE_PATHS[1]}z"]
    assert foreign_words(", ".join(inside)) == []


def test_the_tree_holds_no_lock_that_names_registries() -> None:
    assert not [path for path in files_of_the_tree() if path.name in {"uv.lock", "poetry.lock", "pdm.lock"}]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_requirement_is_exact_and_hashed(lock: Path) -> None:
    pins = pins_of(lock)
    assert len(pins) >= (1 if lock.stem in ("compiler", "fuzz") else 5)
    for requirement, hashes in (pin for found in pins.values() for pin in found):
        assert [clause.operator for clause in requirement.specifier] == ["=="], str(requirement)
        assert hashes, f"{requirement} has no hash"
    assert not re.search(r"^\s*--(index|extra-index|find-links)", lock.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("profile", PROFILES)
def test_locks_hold_what_pyproject_asks_for(profile: str) -> None:
    pins = pins_of(ROOT / f"requirements/{profile}.txt")
    for requirement in declared(profile):
        versions = [next(iter(pin.specifier)).version for pin, _ in pins.get(canonicalize_name(requirement.name), [])]
        assert versions, f"{requirement} is not in requirements/{profile}.txt; run ./scripts/lock"
        assert all(requirement.specifier.contains(Version(version)) for version in versions), str(requirement)


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "dev"])
def test_profiles_pin_the_same_versions_so_that_one_environment_can_hold_them_all(profile: str) -> None:
    dev, smaller = pins_of(ROOT / "requirements/dev.txt"), pins_of(ROOT / f"requirements/{profile}.txt")
    for name, found in smaller.items():
        assert {str(pin.specifier) for pin, _ in found} <= {str(pin.specifier) for pin, _ in dev[name]}


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_action_used_is_pinned(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    used = [(number, line) for number, line in enumerate(lines) if re.match(r"\s*(- )?uses:", line)]
    assert used
    for number, line in used:
        pinned = re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$", line)
        local = re.search(r"uses: \./", line)
        explained = re.search(r"uses: [\w./-]+@v\d", line) and lines[number - 1].lstrip().startswith("#")
        assert pinned or local or explained, f"{path.name}:{number + 1}: {line.strip()}"


def test_an_action_is_pinned_to_one_commit_everywhere() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])
    pins = set(re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40} # \S+)", text))
    assert len(pins) == len({action for action, _ in pins})


def steps_of(path: Path) -> list[dict[str, Any]]:
    """Every step of a workflow or of an action."""
    document = read_yaml(path)
    if "runs" in document:
        return list(document["runs"]["steps"])
    return [step for job in document["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_expression_is_pasted_into_a_shell(path: Path) -> None:
    scripts = [step for step in steps_of(path) if "run" in step]
    assert scripts
    for step in scripts:
        assert "${{" not in step["run"]
        assert step["shell"] == "bash"  # the default lacks pipefail


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_only_read_but_for_the_jobs_that_say_why_and_always_end(path: Path) -> None:
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in workflow["on"]
    for name, job in workflow["jobs"].items():
        granted = {scope for scope, access in job.get("permissions", {}).items() if access != "read"}
        assert granted == MAY_WRITE.get(f"{path.stem}/{name}", set())
        if "uses" not in job:  # what is called ends by its own limits
            limit = job["timeout-minutes"]
            assert limit == "${{ inputs.timeout-minutes }}" or limit <= (120 if path.stem == "nightly" else 30)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_permission_to_write_says_what_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.match(r"\s+[a-z-]+: write\b(?! # \w)", line)] == []


def test_what_zizmor_overlooks_is_explained_where_it_stands() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])
    assert len(re.findall(r"zizmor: ignore\[[\w,-]+\] \w", text)) == text.count("zizmor: ignore")


def test_scripts_can_be_run() -> None:
    scripts = [ROOT / ".ci/run", *(path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)]
    assert len(scripts) >= 7
    for script in scripts:
        assert os.access(script, os.X_OK), script.name
        assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


def test_scripts_test_finds_what_measures_by_its_file() -> None:
    """Of whole runs, a file is marked as a whole or not at all."""
    marked = re.compile("mark" + r"\.beside")
    whole = re.compile(r"^pytestmark = \[?pytest\." + marked.pattern, re.MULTILINE)
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests/e2e").glob("test_*.py")}
    assert [name for name, text in texts.items() if marked.search(text) and not whole.search(text)] == []


def test_every_package_is_in_the_architecture_page() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    entries = (ROOT / "benchgate").iterdir()
    packages = {path.stem for path in entries if path.is_dir() or path.suffix == ".py"}
    packages = {package for package in packages if not package.startswith("__")}
    assert len(packages) > 10
    assert {package for package in packages if f"`{package}`" not in architecture} == set()


def test_links_between_documents_lead_somewhere() -> None:
    documents = [path for path in files_of_the_tree() if path.suffix == ".md"]
    links = [
        (path, target)
        for path in documents
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    ]
    broken = [f"{path.relative_to(ROOT)} -> {target}" for path, target in links if not (path.parent / target).exists()]
    assert links
    assert broken == []
