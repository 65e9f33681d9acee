"""The examples of other hosts: readable, with commands that benchgate knows, and no second chance to pass."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from benchgate.cli.app import app
from benchgate.suite.loader import parse_suite

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
IMAGE = "registry.example.com/benchgate:0.1.0"
SOFT = {
    "allow_failure", "soft_fail", "continueOnError", "allow_dependency_failure", "continue_on_failure", "returnStatus",
    "catchError", "onError", "retries", "unstable", "|| true",
}  # fmt: skip


def documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


def nodes(value: object) -> Iterator[object]:
    """Everything in a document, itself first."""
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from nodes(inner)


def told(path: Path) -> Iterator[list[str]]:
    """The arguments of every call of benchgate: of containers, and of lines of scripts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        for node in nodes(documents(path)):
            if isinstance(node, dict) and node.get("image") == IMAGE and isinstance(node.get("args"), list):
                yield [str(word) for word in node["args"]]
            if isinstance(node, str):
                yield from calls(node)
    elif path.suffix == ".py":
        yield from calls(text)
    elif path.suffix in (".sh", ".sbatch"):
        yield from calls(re.sub(r"(?m)^ *(command=\(|srun )", "", text).replace("$shard/$shards", "0/2"))
    else:
        for line in re.findall(r"sh '([^']+)'", text):
            yield from calls(line)


def calls(script: str) -> Iterator[list[str]]:
    for line in script.splitlines():
        words = shlex.split(line, comments=True) if "benchgate" in line and line.count('"') % 2 == 0 else []
        for start in ("benchgate", IMAGE):
            if len(words) > 1 and (
                words[0] == start or (words[:2] == ["docker", "run"] and IMAGE in words and start == IMAGE)
            ):
                arguments = words[words.index(start) + 1 :]
                yield list(takewhile(lambda word: not re.fullmatch(r"&|\||>>?|&&|\|\|", word), arguments))


def parse(arguments: list[str]) -> str:
    """The name of the command that takes these arguments; an error of the command line for others."""
    command, words = typer.main.get_command(app), list(arguments)
    while commands := getattr(command, "commands", None):
        size = 2 if " ".join(words[:2]) in commands else 1  # `load merge`
        command, words = commands[" ".join(words[:size])], words[size:]
    command.make_context(str(command.name), words)
    return str(command.name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_command_of_an_example_is_one_that_benchgate_has(path: Path) -> None:
    found = [parse(arguments) for arguments in told(path)]
    asks_only = path.name in (
        "suite.yaml",
        "analysis-web.yaml",
        "canary.yaml",
        "stage.yaml",
        "benchgate.json",
        "kustomization.yaml",
    )
    assert bool(found) is not asks_only, path


def test_a_misspelled_option_or_command_would_be_seen() -> None:
    assert parse(["run", "suite.yaml", "--report", "r.html"]) == "run"
    for wrong in (["run", "suite.yaml", "--reprot", "r.html"], ["run"], ["rnu", "suite.yaml"]):
        with pytest.raises(Exception, match=r"No such option|Missing parameter|rnu"):
            parse(wrong)
    (found,) = calls(f'docker run --rm -e A {IMAGE} run suite.yaml --label "$B"')
    assert found == ["run", "suite.yaml", "--label", "$B"]


def test_no_example_gives_a_second_chance_or_lets_a_failure_pass() -> None:
    for path in EXAMPLES:
        lines = path.read_text(encoding="utf-8").splitlines()
        code = "\n".join(re.sub(r"(^|\s)(#|//)\s.*", "", line) for line in lines)
        assert [word for word in SOFT if word in code] == [], path
        for node in nodes(documents(path)) if path.suffix in (".yaml", ".yml") else ():
            if isinstance(node, dict) and "backoffLimit" not in node and "template" in node:
                assert "restartPolicy" not in str(node["template"]), f"{path}: a Job without backoffLimit tries 6 times"
            if isinstance(node, dict):
                assert node.get("backoffLimit", 0) == 0, path
                assert node.get("restartPolicy", "Never") == "Never", path


def test_containers_of_ours_run_without_rights_and_get_secrets_by_reference() -> None:
    seen = 0
    for path in (one for one in EXAMPLES if one.suffix == ".yaml"):
        for node in nodes(documents(path)):
            if not isinstance(node, dict) or node.get("image") != IMAGE or "securityContext" not in node:
                continue
            seen += 1
            assert node["securityContext"]["allowPrivilegeEscalation"] is False
            assert node["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert all("valueFrom" in one for one in node["env"] if not one["name"].endswith("_URL")), path
    assert seen >= 5


def test_the_suite_of_the_examples_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / "suite.yaml"
    suite = parse_suite(path.read_text(encoding="utf-8"), path.name)
    named = {node["candidate"] for node in nodes(documents(ROOT / "examples/flagger/canary.yaml"))
             if isinstance(node, dict) and "candidate" in node}  # fmt: skip
    assert named == {suite.candidate}


def test_what_promotes_by_its_own_word_for_main_runs_on_main_alone() -> None:
    """None of these hosts tells a job whether its branch is protected, so the line that holds it to `main` is all."""
    held = {
        "azure-pipelines.yml": "condition: and(succeeded(), eq(variables['Build.SourceBranch'], 'refs/heads/main'))",
        "pipeline.yml": "branches: main",
        "config.yml": "filters: {branches: {only: main}}",
        "Jenkinsfile": "when { branch 'main' }",
    }
    said = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES}
    promoting = {name: text for name, text in said.items() if "--protected" in text}
    assert promoting.keys() == held.keys()
    for name, text in promoting.items():
        assert held[name] in text, name


def test_every_example_that_promotes_refuses_weights_of_which_nobody_says_which_they_are() -> None:
    promoting = {path.name: words for path in EXAMPLES for words in told(path) if words[0] == "promote"}
    assert len(promoting) == 6
    assert [name for name, words in promoting.items() if "--require-pinned" not in words] == []


def test_every_question_of_flagger_names_the_weights() -> None:
    asked = [node["metadata"] for node in nodes(documents(ROOT / "examples/flagger/canary.yaml"))
             if isinstance(node, dict) and "candidate" in node.get("metadata", {})]  # fmt: skip
    assert len(asked) == 2 and all(one["revision"] for one in asked)
