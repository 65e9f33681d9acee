"""Code in the documentation is valid: suites load, commands and options exist, workflows use inputs that exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML

from benchgate.suite.loader import parse_suite
from tests.core.test_examples import calls, nodes, parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
FENCE = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (page, language, title, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE))
    for page, text in TEXTS.items()
    for indent, language, title, code in FENCE.findall(text)
]


def blocks_of(*languages: str) -> list[Any]:
    found = [(page, title, code) for page, language, title, code in BLOCKS if language in languages]
    return [pytest.param(title, code, id=f"{page}-{number}") for number, (page, title, code) in enumerate(found)]


@pytest.mark.parametrize(("title", "code"), blocks_of("yaml"))
def test_yaml_is_readable_and_what_has_no_title_is_a_suite(title: str, code: str) -> None:
    document = YAML(typ="safe", pure=True).load(code)
    if title.startswith("suites/") or not (title or "jobs" in document):
        parse_suite(code, "page")


@pytest.mark.parametrize(("title", "code"), blocks_of("sh", "bash"))
def test_shell_is_readable_and_its_commands_exist(title: str, code: str) -> None:
    assert subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True).stderr == ""
    for arguments in calls(code.replace("\\\n", " ")):
        parse(arguments)


@pytest.mark.parametrize("page", TEXTS)
def test_commands_in_sentences_exist(page: str) -> None:
    for span in re.findall(r"`(benchgate [a-z][^`]*)`", FENCE.sub("", TEXTS[page])):
        for arguments in calls(span.replace("COMMAND", "plan").replace("FORMAT", "json")):
            try:
                parse(arguments)
            except typer.BadParameter as error:
                assert "Missing parameter" in str(error), span  # a sentence may leave out what every call needs


@pytest.mark.parametrize(("title", "code"), blocks_of("json", "python"))
def test_json_and_python_are_readable(title: str, code: str) -> None:
    if code.startswith("{"):
        for line in code.splitlines() if title.endswith(".jsonl") else [code]:
            json.loads(line)
    else:
        ast.parse(code)


def test_modules_that_are_run_exist_with_their_options() -> None:
    runs = re.findall(r"-m ((?:benchmarks|scripts|tests)[.\w]+)([^`#|\n]*)", "\n".join(TEXTS.values()))
    assert len(runs) > 20
    for module, arguments in runs:
        path = ROOT / module.replace(".", "/")
        text = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        assert [option for option in re.findall(r"--[a-z-]+", arguments) if option not in text] == [], module


def steps_of_benchgate() -> Iterator[tuple[str, set[str]]]:
    """Yield file and inputs of each use of benchgate's action and workflows."""
    for _, language, _, code in BLOCKS:
        for node in nodes(YAML(typ="safe", pure=True).load(code)) if language == "yaml" else ():
            if isinstance(node, dict) and str(node.get("uses", "")).startswith("OWNER/benchgate"):
                _, _, name = node["uses"].removesuffix("@COMMIT").partition("benchgate")
                yield name or "/action.yml", {*node.get("with", ()), *node.get("secrets", ())}


def test_inputs_of_workflows_exist() -> None:
    uses = list(steps_of_benchgate())
    assert {name.rpartition("/")[2] for name, _ in uses} == {"action.yml", "attest.yml", "gate.yml", "history.yml"}
    for name, inputs in uses:
        document = YAML(typ="safe", pure=True).load((ROOT / name.lstrip("/")).read_text(encoding="utf-8"))
        known = document.get("on", {}).get("workflow_call", document)
        assert inputs - {*known.get("inputs", ()), *known.get("secrets", ())} == set(), name
        assert {name for name, value in known["inputs"].items() if value.get("required")} <= inputs, name


def test_where_an_object_store_is_used_its_client_is_named() -> None:
    """The extra brings fsspec alone, which reaches no bucket without one of its own clients."""
    pages = {page: text for page, text in TEXTS.items() if "`object-storage`" in text}
    manifest = "examples/kubernetes/load/jobset.yaml"
    pages[manifest] = (ROOT / manifest).read_text(encoding="utf-8")
    assert len(pages) == 3 and [page for page, text in pages.items() if "s3fs" not in text] == []


def job_in(page: str, name: str) -> Any:
    """Return a job of a page's workflow or fragment."""
    blocks = (YAML(typ="safe", pure=True).load(code) for at, kind, _, code in BLOCKS if (at, kind) == (page, "yaml"))
    return next(jobs[name] for block in blocks if name in (jobs := block.get("jobs", block)))


def holds(condition: str, **known: Any) -> bool:
    """Evaluate the condition of a job that was not cancelled. As on GitHub, an output without a value is empty."""

    def value(path: re.Match[str]) -> str:
        found: Any = known
        for part in path[0].split("."):
            found = found.get(part, "")
        return repr(found)

    code = condition.removeprefix("${{").removesuffix("}}").replace("!cancelled()", "True")
    code = re.sub(r"[a-z]+(?:\.[\w-]+)+", value, code.replace("&&", " and ").replace("||", " or "))
    return bool(eval(code.strip(), {"__builtins__": {}}))


@pytest.mark.parametrize(
    ("result", "outputs", "deploys"),
    [
        ("success", {"verdict": "pass", "promoted-id": "5712033541"}, True),
        ("success", {"verdict": "warn", "promoted-id": "5712033541"}, True),
        ("success", {"verdict": "pass", "promoted-id": ""}, False),  # a pull request: nothing is promoted
        ("success", {"verdict": "pass"}, False),
        ("failure", {"verdict": "pass", "promoted-id": "5712033541"}, False),
        ("failure", {"verdict": "block"}, False),
    ],
)
def test_a_copied_job_deploys_only_what_was_promoted(result: str, outputs: dict[str, str], deploys: bool) -> None:
    job = job_in("docs/guides/ci.md", "deploy")
    assert holds(job["if"], needs={"benchgate": {"result": result, "outputs": outputs}}) is deploys


@pytest.mark.parametrize(
    ("ref", "result", "promotes"),
    [
        ("refs/heads/main", "success", True),
        ("refs/pull/7/merge", "success", False),
        ("refs/heads/main", "failure", False),
        ("refs/heads/main", "skipped", False),
    ],
)
def test_a_copied_workflow_of_the_action_promotes_on_main_alone(ref: str, result: str, promotes: bool) -> None:
    job, required = job_in("docs/guides/ci.md", "promote"), job_in("docs/guides/ci.md", "verdict")
    needs = {"verdict": {"result": result}, "gate": {"result": "success", "outputs": {"verdict": "pass"}}}
    assert holds(job["if"], github={"ref": ref}, needs=needs) is promotes
    assert job["environment"] and "verdict" in job["needs"]
    assert required["if"] == "${{ always() }}" and "environment" not in required  # no approval in a pull request


def test_messages_of_troubleshooting_are_those_of_the_package() -> None:
    modules = (ROOT / "benchgate").rglob("*.py")
    syntax = (node for path in modules for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    known = "\n".join(node.value for node in syntax if isinstance(node, ast.Constant) and isinstance(node.value, str))
    headings = " ".join(re.findall(r"^### (.*)$", TEXTS["docs/troubleshooting.md"], re.MULTILINE))
    parts = [part.strip(" ;,:") for quoted in re.findall(r"`([^`]+)`", headings) for part in quoted.split("…")]
    assert len(parts) > 30
    assert [part for part in parts if part not in known] == []
