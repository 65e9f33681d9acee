"""The verdict as SARIF 2.1.0: one result for every check, guard and verdict that does not simply hold.

Code scanning shows each at its line of the suite's file, where that is known; without it a result has only a logical
location, which GitHub does not take. A rule is a check by its id, so that an alert stays the same one from run to run.
Each candidate of a suite has alerts of its own: a log replaces those of the log before it with the same id.
"""

from __future__ import annotations

import hashlib
import json
import re
from urllib.parse import quote

from benchgate.errors import ExitCode
from benchgate.model.deployment import Arm
from benchgate.model.run import Run
from benchgate.report.results import Kind, Level, Result, SuiteLines, VerdictContext, plain

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Level.FAILS: "error", Level.ERRS: "error", Level.WARNS: "warning"}
_MEANT = re.compile(r"[\[\]\\]")  # an embedded link begins with a bracket (section 3.11.6)


def render_sarif(context: VerdictContext) -> str:
    """Render the log; a PASS without objections has no results."""
    run, verdict = context.run, context.verdict
    shown = [one for one in context.results() if one.level in _LEVELS]
    rules = list(dict.fromkeys(one.name for one in shown))
    titles = {one.name: one.title for one in reversed(shown)}
    driver = {
        "name": "benchgate",
        "version": plain(run.tool_version),
        "rules": [{"id": rule, "shortDescription": {"text": _message_text(titles[rule])}} for rule in rules],
    }
    names = (run.suite_name, run.arms[Arm.CANDIDATE].name)
    own = "/".join(quote(name, safe="", errors="replace") for name in names)
    kept = context.exit_code is not ExitCode.PUBLISH_FAILED  # section 3.20.14
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "automationDetails": {"id": f"benchgate/{own}/"},
                "invocations": [{"executionSuccessful": kept, "exitCode": int(context.exit_code)}],
                "results": [_result(one, rules.index(one.name), run, context.lines) for one in shown],
                "properties": {
                    "verdict": verdict.outcome.value,
                    "runId": plain(run.id),
                    "suite": plain(run.suite_name),
                    "suiteSha256": plain(run.suite_sha256),
                },
            }
        ],
    }
    return json.dumps(log, indent=2, sort_keys=True) + "\n"


def _result(one: Result, rule: int, run: Run, lines: SuiteLines | None) -> dict[str, object]:
    name = one.name
    sentences = (one.line, *one.details, one.advice and f"What to do: {one.advice}")
    location: dict[str, object] = {
        "logicalLocations": [{"name": name, "fullyQualifiedName": f"{plain(run.suite_name)}/{name}"}]
    }
    if lines is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(lines.path, errors="replace")},
            "region": {"startLine": lines.line(one.id if one.kind is Kind.CHECK else None)},
        }
    of_alert = "\n".join((run.suite_name, run.arms[Arm.CANDIDATE].name, name))
    known = hashlib.sha256(of_alert.encode(errors="replace")).hexdigest()
    return {
        "ruleId": name,
        "ruleIndex": rule,
        "level": _LEVELS[one.level],
        "message": {"text": _message_text(". ".join(s.removesuffix(".") for s in sentences if s) + ".")},
        "locations": [location],
        "partialFingerprints": {"benchgateRule/v1": known},
        "properties": {"outcome": one.outcome, "required": one.required},
    }


def _message_text(text: str) -> str:
    """Escape placeholders and links in a message (sections 3.11.5 and 3.11.6)."""
    return _MEANT.sub(r"\\\g<0>", text).replace("{", "{{").replace("}", "}}")
