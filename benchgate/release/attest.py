"""A verdict as an in-toto statement (docs/guides/release.md): outcome, subject and hashes of the inputs, to be signed.

The layers are those of the in-toto attestation framework, v1, with the predicate type "test result", v0.1
(spec/v1/statement.md and spec/predicates/test-result.md there). benchgate's own fields are in the predicate under
`benchgate`, so that signing the predicate signs them too. A statement is a function of its fields alone: one value, one
document, one spelling, which ends with a hash of itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from benchgate import __version__
from benchgate.errors import BenchgateError, ExitCode
from benchgate.model.deployment import Deployment, adapter_names, identity_of
from benchgate.model.run import Run
from benchgate.model.verdict import ChecksByResult, Outcome, checks_by_result
from benchgate.pipeline.judge import Decision
from benchgate.report.comparability import deployments
from benchgate.report.document import document_json

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
SCHEMA = "benchgate.statement/1"
LONGEST_BYTES = 4 * 1024 * 1024
_ARMS = {"baseline", "candidate"}
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # no name has these


class NotAStatement(BenchgateError):
    """A file that is no statement, or not exactly as benchgate wrote it."""

    exit_code = ExitCode.INVALID


@dataclass(frozen=True, slots=True)
class StatedFile:
    """A file by its name, without a folder, and the SHA-256 of its bytes."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class StatedArm:
    """An arm. `revision` is the commit or `sha256:…` that pins its weights, if any.

    `adapters` are those that its load requested, by name. If one of them is not pinned, nothing is.
    """

    name: str
    model: str
    engine: str
    fingerprint: str
    revision: str | None
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatedRun:
    """A run by its hashes. `evidence_sha256` is None of one that is not over, or could not be kept."""

    id: str
    suite: str
    tool_version: str
    imported: bool
    suite_sha256: str
    measurement_sha256: str
    plan_sha256: str
    evidence_sha256: str | None


@dataclass(frozen=True, slots=True)
class Statement:
    """A verdict with the hashes of its subject and inputs.

    `verdict_sha256` is over the verdict document as `gate --format json` prints it for the verdict's own exit code.
    `policy_sha256` is over the gate that judged, `policy_parts_sha256` over gate, SLO and error budget of a policy that
    was given in place of the run's own.
    `exit_code` is that of the process: with `strict` a WARN has 10, and a verdict that was not kept 13. `report` is the
    HTML report that was written, None where none was; `suite_file_sha256` is over the bytes of the suite's file, None
    where a stored run was judged; `url` is the CI's page of the run. `tool_version` judged, the run's own measured.
    """

    outcome: Outcome
    exit_code: ExitCode
    strict: bool
    tests: ChecksByResult
    run: StatedRun
    against: StatedRun | None
    arms: Mapping[str, StatedArm]
    verdict_sha256: str
    policy_sha256: str | None
    policy_replaced: bool
    policy_parts_sha256: str | None
    waivers_as_of: str | None
    report: StatedFile | None
    suite_file_sha256: str | None
    url: str | None
    tool_version: str

    @property
    def result(self) -> str:
        """PASSED, WARNED or FAILED: every exit code but 0 is FAILED."""
        if self.exit_code is not ExitCode.OK:
            return "FAILED"
        return {Outcome.PASS: "PASSED", Outcome.WARN: "WARNED"}.get(self.outcome, "FAILED")

    def document(self) -> dict[str, Any]:
        """Return the whole statement as plain JSON."""
        own = _plain(self) | {"schema": SCHEMA}
        tests, url = own.pop("tests"), own.pop("url")
        inputs = (
            ("suite", self.run.suite_sha256, "json"),
            ("suite-file", self.suite_file_sha256, "yaml"),
            ("policy", self.policy_sha256, "json"),
            ("plan", self.run.plan_sha256, "json"),
        )
        predicate: dict[str, Any] = {
            "result": self.result,
            "configuration": [
                _described(name, of, f"application/{kind}") for name, of, kind in inputs if of is not None
            ],
            **{f"{result}Tests": names for result, names in tests.items()},
            "benchgate": own,
        }
        if url is not None:
            predicate["url"] = url
        document: dict[str, Any] = {
            "_type": TYPE,
            "subject": list(self._subjects()),
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
        predicate["benchgate"]["sha256"] = hashlib.sha256(document_json(document).encode()).hexdigest()
        return document

    def data(self) -> bytes:
        """Return the statement's only spelling."""
        return document_json(self.document()).encode()

    def _subjects(self) -> Iterator[dict[str, Any]]:
        """Yield the subjects, which are matched by digest."""
        if self.report is not None:
            yield _described(self.report.name, self.report.sha256, "text/html")
        candidate = self.arms.get("candidate")
        if candidate is not None and candidate.revision is not None:
            yield _weights(f"candidate/{candidate.name}", candidate.revision)
            for adapter in candidate.adapters:  # each with its commit in its name, or there were no revision
                name, _, ref = adapter.rpartition("@")
                yield _weights(f"candidate/{candidate.name}/adapter/{name}", ref)
        yield _described("benchgate/verdict", self.verdict_sha256, "application/json")
        yield _described("benchgate/suite", self.run.suite_sha256, "application/json")
        if self.run.evidence_sha256 is not None:
            yield _described("benchgate/evidence", self.run.evidence_sha256)


def read_statement(data: bytes, source: str) -> Statement:
    """Parse a statement. Raises NotAStatement unless benchgate wrote exactly these bytes."""
    try:
        if len(data) > LONGEST_BYTES:
            raise ValueError(f"it has more bytes than a statement, which has at most {LONGEST_BYTES:,}")
        document = json.loads(data)
        found = _parse(document)
        if found.data() != data:
            raise ValueError("its parts contradict each other, or it is spelled otherwise")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else ascii(str(error))
        raise NotAStatement(
            f"{source} is no statement as benchgate wrote it ({fault[:200]}): it was changed, cut short, or made by "
            "another tool or version; take the file that the run left"
        ) from error
    return found


def _parse(document: Any) -> Statement:
    predicate = document["predicate"]
    own = predicate["benchgate"]
    if (document["_type"], document["predicateType"], own["schema"]) != (TYPE, PREDICATE_TYPE, SCHEMA):
        raise ValueError(f"expected {TYPE}, {PREDICATE_TYPE} and {SCHEMA}")
    outcome, code, strict = Outcome(own["outcome"]), ExitCode(own["exit_code"]), own["strict"] is True
    if code not in (outcome.exit_code(strict=strict), ExitCode.PUBLISH_FAILED):
        raise ValueError(f"{outcome.value} does not end with {code.value}")
    if bool(predicate["failedTests"]) is (code is ExitCode.OK):
        raise ValueError(f"failed tests and exit code {code.value} contradict each other")
    if set(own["arms"]) != _ARMS:
        raise ValueError("expected a baseline and a candidate")
    return Statement(
        outcome=outcome,
        exit_code=code,
        strict=strict,
        tests=ChecksByResult(
            *(tuple(map(_text, predicate[f"{name}Tests"])) for name in ("passed", "warned", "failed"))
        ),
        run=_parse_run(own["run"]),
        against=None if own["against"] is None else _parse_run(own["against"]),
        arms={_text(name): _parse_arm(arm) for name, arm in own["arms"].items()},
        verdict_sha256=_text(own["verdict_sha256"]),
        policy_sha256=_text_or_none(own["policy_sha256"]),
        policy_replaced=own["policy_replaced"] is True,
        policy_parts_sha256=_text_or_none(own["policy_parts_sha256"]),
        waivers_as_of=_text_or_none(own["waivers_as_of"]),
        report=None
        if own["report"] is None
        else StatedFile(_text(own["report"]["name"]), _text(own["report"]["sha256"])),
        suite_file_sha256=_text_or_none(own["suite_file_sha256"]),
        url=_text_or_none(predicate.get("url")),
        tool_version=_text(own["tool_version"]),
    )


def _parse_run(document: Mapping[str, Any]) -> StatedRun:
    evidence, imported = _text_or_none(document["evidence_sha256"]), document["imported"] is True
    rest = {name: _text(value) for name, value in document.items() if name not in ("evidence_sha256", "imported")}
    return StatedRun(**rest, evidence_sha256=evidence, imported=imported)


def _parse_arm(document: Mapping[str, Any]) -> StatedArm:
    revision, adapters = _text_or_none(document["revision"]), tuple(map(_text, document["adapters"]))
    rest = {name: _text(value) for name, value in document.items() if name not in ("revision", "adapters")}
    return StatedArm(**rest, revision=revision, adapters=adapters)


def _text(value: object) -> str:
    if not isinstance(value, str) or _UNPRINTED.search(value):
        raise TypeError(f"expected a text on one line, found {value!r}")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _weights(name: str, revision: str) -> dict[str, Any]:
    digest = revision.removeprefix("sha256:")
    return {"name": name, "digest": {"sha256" if digest != revision else "gitCommit": digest}}


def _described(name: str, sha256: str, media_type: str | None = None) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "digest": {"sha256": sha256}}
    return described if media_type is None else {**described, "mediaType": media_type}


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def statement_of(
    decision: Decision,
    exit_code: ExitCode,
    *,
    report: StatedFile | None = None,
    suite_file_sha256: str | None = None,
    url: str | None = None,
    tool_version: str = __version__,
) -> Statement:
    """Return the statement of a decision for a process that ends with this code: same store and arguments, same bytes.

    `report` is the HTML report that was written of it, `url` the CI's page of the run.
    """
    run, verdict = decision.evidence.run, decision.verdict
    against = decision.reference.run if decision.reference is not None else None
    is_replaced = decision.terms.policy_replaced(run, verdict)
    return Statement(
        outcome=verdict.outcome,
        exit_code=exit_code,
        strict=decision.terms.strict,
        tests=checks_by_result(verdict, exit_code),
        run=_run(run, decision.evidence_sha256),
        against=None if against is None else _run(against, decision.reference_sha256),
        arms={arm.value: _arm(one, of) for arm, (of, one) in deployments(run, against).items()},
        verdict_sha256=hashlib.sha256(document_json(decision.document).encode()).hexdigest(),
        policy_sha256=verdict.policy_sha256,
        policy_replaced=is_replaced,
        policy_parts_sha256=decision.terms.given_sha256 if is_replaced else None,
        waivers_as_of=verdict.as_of.isoformat() if verdict.as_of is not None else None,
        report=report,
        suite_file_sha256=suite_file_sha256,
        url=url,
        tool_version=tool_version,
    )


def _run(run: Run, evidence_sha256: str | None) -> StatedRun:
    return StatedRun(
        id=run.id,
        suite=run.suite_name,
        tool_version=run.tool_version,
        imported=run.imported,
        suite_sha256=run.suite_sha256,
        measurement_sha256=run.measurement_sha256,
        plan_sha256=run.plan_sha256,
        evidence_sha256=evidence_sha256,
    )


def _arm(deployment: Deployment, run: Run) -> StatedArm:
    adapters = tuple(sorted(set(adapter_names(run.suite.get("load")))))
    return StatedArm(
        name=deployment.name,
        model=deployment.model,
        engine=deployment.engine,
        fingerprint=deployment.fingerprint,
        revision=identity_of(deployment, adapters).revision,
        adapters=adapters,
    )
