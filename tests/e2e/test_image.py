"""The steps of the Dockerfile, done below a folder in place of `/`: what they install runs without rights, anywhere.

They are read from the Dockerfile itself. No container engine is needed; the package index is, for the locked wheels.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.test_dockerfile import FINAL, ROOT, STEPS, of

pytestmark = pytest.mark.slow

PATHS = re.compile(r"(?<![\w./])/(opt|src|data)\b")  # of the image, in its steps
ARGUMENTS = {"PROFILE": "base"}  # the smaller of the two
AS_NOBODY = ("setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs")


def build(root: Path) -> dict[str, str]:
    """Do the steps of the build stage below `root`, and return the environment of the final one."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "HOME": str(root), **ARGUMENTS}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    work = root
    for word, rest in STEPS[: len(STEPS) - len(FINAL)]:
        words = shlex.split(PATHS.sub(rf"{root}/\1", rest))
        if word == "ENV":
            environment |= dict(pair.split("=", 1) for pair in words)
        elif word == "WORKDIR":
            work = Path(words[0])
            work.mkdir(parents=True)
        elif word == "COPY":
            for name in words[:-1]:
                source, target = ROOT / name, work / words[-1]
                if source.is_dir():
                    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.lib"))
                else:
                    shutil.copy(source, target)
        elif word == "RUN":
            command = PATHS.sub(rf"{root}/\1", rest)
            done = subprocess.run(["sh", "-ec", command], cwd=work, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        else:
            assert word in ("FROM", "ARG"), word
    shutil.rmtree(root / "src")  # the final stage takes /opt/benchgate alone
    shutil.rmtree(root / "opt/compiler")
    final = " ".join(PATHS.sub(rf"{root}/\1", rest) for rest in of("ENV", FINAL))
    pairs = dict(pair.split("=", 1) for pair in shlex.split(final))
    return {name: value.replace("$PATH", os.defpath) for name, value in pairs.items()}


@pytest.fixture(scope="module")
def image() -> Iterator[tuple[Path, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as folder:  # not pytest's, which nobody else may enter
        root = Path(folder).resolve()
        root.chmod(0o755)
        environment = build(root)
        data = root / "data"
        data.mkdir()
        data.chmod(0o777)
        yield data, environment


def run(image: tuple[Path, dict[str, str]], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the image's folder, as its user where this process may become that."""
    data, environment = image
    as_user = AS_NOBODY if os.geteuid() == 0 and shutil.which("setpriv") else ()
    return subprocess.run([*as_user, *command], cwd=data, env=environment, capture_output=True, text=True)


def test_the_entry_point_answers_and_measures_without_rights(image: tuple[Path, dict[str, str]]) -> None:
    (entry,), (arguments,) = ([json.loads(rest) for rest in of(word, FINAL)] for word in ("ENTRYPOINT", "CMD"))
    done = run(image, *entry, *arguments)
    assert done.returncode == 0 and "Usage: benchgate" in done.stdout, done.stderr
    drill = run(image, *entry, "init", "--drill", "prefill", "drill.yaml")
    planned = run(image, *entry, "plan", "drill.yaml")
    assert (drill.returncode, planned.returncode) == (0, 0), drill.stderr + planned.stderr


def test_the_reader_was_compiled(image: tuple[Path, dict[str, str]]) -> None:
    code = "from benchgate.load.http.reader import library; print(library() is not None)"
    done = run(image, str(image[0].parent / "opt/benchgate/bin/python"), "-c", code)
    assert done.stdout == "True\n", done.stderr
