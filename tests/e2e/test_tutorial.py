"""The tutorial runs as it is written, and prints the accuracies that it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.store.repository import Store

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
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
    _, _, page = PAGE.partition("\n## Plan\n")
    steps = re.findall(r"```sh\n(benchgate .*?)\n```(?:(?:(?!```).)*?```text\n(.*?)```)?", page, re.DOTALL)
    assert len(steps) == 7
    for command, output in steps:
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        expected = next((code for words, code in EXIT_CODES.items() if f"benchgate {words}" in command), 0)
        assert done.returncode == expected, (command, done.stdout, done.stderr)
        assert set(stable_lines(output)) <= set(stable_lines(done.stdout + done.stderr)), command
    store = Store.open_as_is(str(tmp_path / ".benchgate/benchgate.db"))
    assert store is not None
    with store:
        load = [one for one in store.evidence(store.resolve("first")).load if one.arm is Arm.CANDIDATE]
    assert [(len(one.requests), len(one.ramp)) for one in load] == [(8, 1)] * 8
    assert all(one.ramp.sent_ns[0] < one.requests.sent_ns[0] for one in load)
    assert "The 72 are 64 of the blocks and 8 of the ramp, one before each block." in PAGE


@contextmanager
def servers_of_the_page(folder: Path) -> Iterator[tuple[str, str]]:
    """Start the script of the page, and yield the addresses that it prints."""
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as servers:
        try:
            assert servers.stdout is not None
            baseline, candidate = (servers.stdout.readline().split()[0] for _ in range(2))
            yield baseline, candidate
        finally:
            servers.terminate()


def test_two_addresses_become_a_verdict_in_five_commands_that_the_output_before_names(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    folder = tmp_path / "empty"
    folder.mkdir()
    (transcript,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ (.*)$", transcript, re.MULTILINE)
    assert len(commands) <= 5 and commands[0] == "benchgate"
    before = commands[0]
    with servers_of_the_page(tmp_path) as urls:
        for command in commands:
            general = re.sub(r"http://\S+", "URL", command)
            assert re.search(rf"{re.escape(general)}$", before, re.MULTILINE), (command, before)
            for url in urls:
                general = general.replace("URL", url, 1)
            done = subprocess.run(["bash", "-c", general], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
            before = done.stdout + done.stderr
            assert done.returncode == {commands[0]: 2, commands[-1]: 10}.get(command, 0), (command, before)  # 2: help
    assert before.startswith("■ BLOCK: next must not be promoted: Accuracy over all tasks fell"), before
    assert (folder / "report.html").is_file()
    assert set(stable_lines(transcript)) <= set(stable_lines(before))
