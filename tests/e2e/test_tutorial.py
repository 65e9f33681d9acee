"""The tutorial runs as it is written, and prints the accuracies that it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
EXIT_CODES = {"run tutorial.yaml --label first": 10, "gate": 10, "promote first": 10, "compare": 10}


def stable_lines(text: str) -> list[str]:
    """Return the lines of an output that are the same on every machine, with RUN for ids."""
    lines = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "RUN", text).splitlines()
    return [
        " ".join(line.split())
        for line in lines
        if re.search(r"ccuracy|items (lost|gained)", line) and "Closest" not in line
    ]


def test_every_command_of_the_tutorial_gives_its_output(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    shutil.copytree(ROOT / "suites", tmp_path / "suites")
    (suite,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    suite = suite.replace("margin: 50%", "margin: 50%, required: false")  # a busy machine decides nothing here
    (tmp_path / "tutorial.yaml").write_text(suite, encoding="utf-8")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    _, _, page = PAGE.partition("\n## Plan\n")
    steps = re.findall(r"```sh\n(benchgate .*?)\n```(?:(?:(?!```).)*?```text\n(.*?)```)?", page, re.DOTALL)
    assert len(steps) == 7
    for command, output in steps:
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        expected = next((code for words, code in EXIT_CODES.items() if f"benchgate {words}" in command), 0)
        assert done.returncode == expected, (command, done.stdout, done.stderr)
        assert set(stable_lines(output)) <= set(stable_lines(done.stdout + done.stderr)), command
