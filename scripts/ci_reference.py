"""The generated parts of docs/guides/ci.md, docs/guides/release.md and docs/reference/documents.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchgate.errors import ExitCode
from benchgate.report.document import document_json, verdict_document
from benchgate.report.formats import Output
from benchgate.report.outputs import render_notice
from benchgate.report.results import VerdictContext
from benchgate.suite.waivers import WaiverEntry
from scripts.verdict_reference import table
from tests.fakes import evidence as fake

ROOT = Path(__file__).parents[1]
_FORMATS = {
    "html": "the report, for people",
    "json": "the [verdict document](#verdict), for programs",
    "markdown": "job summaries, comments",
    "junit": "JUnit XML for the test views of GitLab, Jenkins, Azure Pipelines, Buildkite, CircleCI",
    "sarif": "SARIF 2.1.0 for code scanning",
    "github": "workflow commands, which GitHub Actions shows as annotations",
    "gitlab": "OpenMetrics text for GitLab's metrics report",
    "gitlab-annotations": "links on the page of a GitLab job",
    "slack": "a message in blocks for Slack's incoming webhooks",
}


def inputs_of_action() -> str:
    """Return the inputs of action.yml."""
    return _inputs(_yaml("action.yml")["inputs"])


def outputs_of_action() -> str:
    """Return the outputs of action.yml."""
    rows = [[f"`{name}`", value["description"]] for name, value in _yaml("action.yml")["outputs"].items()]
    return table(("output", "meaning"), rows)


def inputs_of_workflow() -> str:
    """Return the inputs and secrets of the reusable workflow."""
    call = _yaml(".github/workflows/gate.yml")["on"]["workflow_call"]
    secrets = {f"{name} (secret)": value for name, value in call["secrets"].items()}
    return _inputs(call["inputs"] | secrets)


def _inputs(inputs: Mapping[str, Any]) -> str:
    rows = []
    for name, value in inputs.items():
        word, _, kind = name.partition(" ")
        default = "required" if value.get("required") else _default(value.get("default", ""))
        rows.append([f"`{word}` {kind}".strip(), default, value["description"]])
    return table(("input", "default", "meaning"), rows)


def _default(value: object) -> str:
    return f"`{str(value).lower()}`" if value != "" else ""


def _yaml(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / path).read_text(encoding="utf-8"))
    return loaded


def waiver_keys() -> str:
    """Return the keys of a waiver."""
    return table(
        ("key", "value"), [(f"`{name}`", field.description or "") for name, field in WaiverEntry.model_fields.items()]
    )


def output_formats() -> str:
    """Return the formats of a verdict."""
    rows = [(f"`{output}`", f"`{output.file_name}`", _FORMATS[output]) for output in Output]
    return table(("format", "file of `report`", "for"), rows)


def verdict_example() -> str:
    """Return the document of a made-up run with one check and one guard."""
    document = verdict_document(fake.run(), fake.verdict())
    for name in ("checks", "guards"):
        values = document[name]
        assert isinstance(values, list)
        document[name] = values[-1:]
    return _json(document)


def webhook_example() -> str:
    """Return the body of a webhook for the same run."""
    context = VerdictContext(fake.evidence(), fake.verdict(), ExitCode.BLOCK, link="https://ci.example/run/7")
    return _json(json.loads(render_notice(context, report_sha256="ab" * 32)))


def _json(document: dict[str, Any]) -> str:
    return f"```json\n{document_json(document)}```"
