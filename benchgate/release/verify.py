"""Whether a statement is still true of its report, its suite and its run in the store, and who signed it.

Every comparison is a line with one of three answers. What was not asked for is "not checked", which is never "holds".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date
from enum import StrEnum
from pathlib import Path

from benchgate.errors import EvidenceError, ExitCode, SuiteError, UsageError
from benchgate.model.deployment import sha256_of
from benchgate.model.run import start_day
from benchgate.model.verdict import Waivers
from benchgate.pipeline.judge import Decision, decide_stored, report_html
from benchgate.pipeline.suite_file import with_prices
from benchgate.release.attest import statement_of
from benchgate.release.signatures import NotSigned, Signer, read_file, verify_signature
from benchgate.report.statement import Statement
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import only_part, with_arms
from benchgate.suite.schema import Suite


class Part(StrEnum):
    """What a statement can be held against."""

    REPORT = "report"
    SUITE = "suite"
    STORE = "store"
    SIGNATURE = "signature"


class Answer(StrEnum):
    """What came of a comparison."""

    HOLDS = "holds"
    BROKEN = "does not hold"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison: `told` says what was compared, `remedy` what to do about it."""

    part: str
    answer: Answer
    told: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What the statement is to be held against; None leaves it out. `policy` and `waivers` are what judged it.

    `run`, `candidate` and `revision` are what is about to be deployed: a true statement may be of something else.
    """

    run: str | None = None
    candidate: str | None = None
    revision: str | None = None
    report: Path | None = None
    suite: Path | None = None
    store: Store | None = None
    signer: Signer | None = None
    policy: Suite | None = None
    waivers: Waivers | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """A statement with all that was compared."""

    statement: Statement
    lines: Sequence[Line]

    @property
    def holds(self) -> bool:
        """Whether something was compared, and all of that holds."""
        compared = [line for line in self.lines if line.answer is not Answer.UNCHECKED]
        return bool(compared) and all(line.answer is Answer.HOLDS for line in compared)

    @property
    def vouched(self) -> bool:
        """Whether something was compared that nobody can write who only wants to be believed."""
        return any(line.part in (Part.STORE, Part.SIGNATURE) and line.answer is Answer.HOLDS for line in self.lines)

    @property
    def exit_code(self) -> ExitCode:
        """0 for a verdict that promotes and holds, that of the verdict for any other that holds, else 12."""
        return self.statement.exit_code if self.holds else ExitCode.INVALID


def verify(statement: Statement, data: bytes, asked: Asked) -> Verified:
    """Hold a statement, whose bytes are `data`, against whatever is asked for.

    Raises UsageError for a file that cannot be read, and where policy or waivers are missing that it was judged by.
    """
    lines = [*_meant_lines(statement, asked), *_policy_lines(statement, asked)]
    lines += _report_lines(statement, asked.report)
    lines += [*_suite_lines(statement, asked.suite), *_store_lines(statement, asked)]
    return Verified(statement, (*lines, *_signature_lines(statement, data, asked.signer)))


def _meant_lines(statement: Statement, asked: Asked) -> Iterator[Line]:
    """Whether it is of what was meant, which only whoever deploys knows, and was measured here."""
    candidate = statement.arms["candidate"]
    for part, meant, stated in (
        ("run", asked.run, statement.run.id),
        ("candidate", asked.candidate, candidate.name),
        ("revision", asked.revision, candidate.revision),
    ):
        if meant is not None and meant == stated:
            yield Line(part, Answer.HOLDS, f"it is of {meant}")
        elif meant is not None:
            told = f"it is of {stated or 'weights that nothing pins'}, and not of {meant}"
            yield Line(part, Answer.BROKEN, told, "take the statement of what is to be deployed")
    if statement.run.imported and statement.exit_code is ExitCode.OK:
        told = "they were made elsewhere, and nothing shows what answered them"
        yield Line("evals", Answer.BROKEN, told, "measure it with `benchgate run`: `promote` refuses such a run, too")


def _policy_lines(statement: Statement, asked: Asked) -> Iterator[Line]:
    """By another policy than it was measured under whoever wrote the margins could know the numbers."""
    if not statement.policy_replaced:
        if asked.policy is not None:
            raise UsageError("--policy: the run was judged by its own suite's policy; leave it out")
        return
    if asked.policy is None:
        yield Line(
            "policy",
            Answer.BROKEN,
            "the run was judged by another policy than it was measured under",
            "read that policy, and give it with --policy SUITE, or judge the run by its own: `benchgate gate`",
        )
        return
    found = sha256_of(asked.policy.to_stored()["gate"])
    yield _compared("policy", "the gate section of the policy", found, statement.policy_sha256, "give the one it names")


def _report_lines(statement: Statement, file: Path | None) -> Iterator[Line]:
    if file is None:
        yield Line(Part.REPORT, Answer.UNCHECKED, "no file was given", "add --report FILE")
        return
    found = _sha256(file)
    if statement.report is None:
        yield Line(
            Part.REPORT,
            Answer.BROKEN,
            "the statement is of no report: none was written with it",
            "judge the run again with a report: `benchgate gate RUN --report FILE`, and take the statement beside it",
        )
        return
    remedy = "it was changed, or is of another verdict: take the file that was written beside the statement"
    yield _compared(Part.REPORT, str(file), found, statement.report.sha256, remedy)


def _suite_lines(statement: Statement, file: Path | None) -> Iterator[Line]:
    if file is None:
        yield Line(Part.SUITE, Answer.UNCHECKED, "no file was given", "add --suite FILE")
        return
    data = read_file(file)
    if statement.suite_file_sha256 is None:
        yield Line(Part.SUITE, Answer.UNCHECKED, "the statement does not name the bytes of the file, only what it says")
    else:
        found = hashlib.sha256(data).hexdigest()
        remedy = "check out the suite as it was when the run was measured"
        yield _compared(Part.SUITE, f"the bytes of {file}", found, statement.suite_file_sha256, remedy)
    yield _said_by_suite(statement, file, data)


def _said_by_suite(statement: Statement, file: Path, data: bytes) -> Line:
    """What the suite says, with its defaults and the prices of the run's day filled in, as the store keeps it."""
    expected, day = statement.run.suite_sha256, start_day(statement.run.id)
    found = list[str | SuiteError]()
    try:
        suite = parse_suite(data.decode(), str(file))
        for one in _meant(suite, *_own_arms(statement)):
            found.append(_sha256_as_measured(one, file.parent, day))
    except (SuiteError, UnicodeDecodeError) as error:
        return _not_measured(file, error)
    if expected in found[2:] and expected not in found[:2]:
        told = f"only one part of {file} was measured, and judged by its checks alone"
        return Line(Part.SUITE, Answer.BROKEN, told, "take the statement of a run of the whole suite")
    if expected not in found and isinstance(found[-1], SuiteError):
        return _not_measured(file, found[-1])
    hashes = [one for one in found if isinstance(one, str)]
    same = expected if expected in hashes else hashes[0]
    as_it_was = hashlib.sha256(data).hexdigest() == statement.suite_file_sha256
    remedy = _remedy(suite, file, f"benchgate {statement.run.tool_version}", as_it_was=as_it_was)
    return _compared(Part.SUITE, f"what {file} says", same, expected, remedy)


def _remedy(suite: Suite, file: Path, tool: str, *, as_it_was: bool) -> str:
    """What may have made another suite of a file, whose own bytes may be as they were."""
    if suite.prices is None:
        return f"another suite, or {tool} read it otherwise: use that version"
    which = "the suite's own bytes are as they were, so" if as_it_was else "another suite, or"
    prices = f"{file.parent / suite.prices} has other prices for the run's day"
    return f"{which} {prices}, or {tool} read them otherwise: check out both files as they were"


def _sha256_as_measured(suite: Suite, folder: Path, day: date | None) -> str | SuiteError:
    """The hash of a suite with the prices of a day, or why it has none."""
    try:
        return sha256_of(with_prices(suite, folder, day).to_stored())
    except SuiteError as error:
        return error


def _not_measured(file: Path, error: Exception) -> Line:
    told = f"{file} is not what was measured: {str(error).splitlines()[0]}"
    return Line(Part.SUITE, Answer.BROKEN, told, "check out the one that was")


def _meant(suite: Suite, baseline: str | None, candidate: str) -> Iterator[Suite]:
    """Yield what a command may have measured of a suite: all of it, other arms, or one part."""
    yield suite
    with suppress(UsageError):  # it has no such deployments, and then it was not this suite
        suite = with_arms(suite, baseline, candidate)
    yield suite
    for part in ("load", "quality", "shadow"):
        with suppress(UsageError):
            yield only_part(suite, part)


def _own_arms(statement: Statement) -> tuple[str | None, str]:
    """What the run's own suite calls its arms; of a baseline that was another run's only the store knows."""
    baseline = None if statement.against is not None else statement.arms["baseline"].name
    return baseline, statement.arms["candidate"].name


def _store_lines(statement: Statement, asked: Asked) -> Iterator[Line]:
    store = asked.store
    if store is None:
        yield Line(Part.STORE, Answer.UNCHECKED, "no store was given", "add --store URL")
        return
    if statement.waivers_as_of is not None and asked.waivers is None:
        raise UsageError(
            f"the verdict rests on waivers as of {statement.waivers_as_of}; add --waivers FILE to judge it again"
        )
    if statement.waivers_as_of is None and asked.waivers is not None:
        raise UsageError("--waivers: the verdict rests on none; leave it out")
    against = None if statement.against is None else statement.against.id
    try:
        decision = decide_stored(
            store, statement.run.id, against, policy=asked.policy, waivers=asked.waivers, keep=False
        ).with_strict(strict=statement.strict)
    except (UsageError, EvidenceError) as error:
        told = f"run {statement.run.id} cannot be judged again: {error}"
        yield Line(Part.STORE, Answer.BROKEN, told, "name the store that has it, whole; `benchgate store check` looks")
        return
    yield from _judged_again(statement, decision)


def _judged_again(statement: Statement, decision: Decision) -> Iterator[Line]:
    again = statement_of(
        decision,
        statement.exit_code,
        report=statement.report,
        suite_file_sha256=statement.suite_file_sha256,
        url=statement.url,
        tool_version=statement.tool_version,
    )
    if statement.run.evidence_sha256 is None:
        yield Line(Part.STORE, Answer.UNCHECKED, "the evidence: the statement has no hash of it")
    else:
        remedy = "the run in this store is another one than was judged: `benchgate store check`"
        stated = statement.run.evidence_sha256
        yield _compared(Part.STORE, "the evidence of the run", again.run.evidence_sha256, stated, remedy)
    other = [field.name for field in fields(Statement) if getattr(again, field.name) != getattr(statement, field.name)]
    day = decision.evidence.run.started_at.partition("T")[0]
    told = f"the run of {day} judged again is {decision.verdict.outcome}"
    if other:
        remedy = f"judged then by benchgate {statement.tool_version}: use that version, or take the statement for false"
        yield Line(Part.STORE, Answer.BROKEN, f"{told}, and differs in {', '.join(other)}", remedy)
    else:
        yield Line(Part.STORE, Answer.HOLDS, f"{told}, in every check and number as the statement says")
    if statement.report is not None:
        found = hashlib.sha256(report_html(decision).encode()).hexdigest()
        remedy = f"the report was changed, or benchgate {statement.tool_version} lays it out otherwise"
        yield _compared(Part.STORE, "the report as the store gives it", found, statement.report.sha256, remedy)


def _signature_lines(statement: Statement, data: bytes, signer: Signer | None) -> Iterator[Line]:
    if signer is None:
        told = "nothing here shows who made this statement: anybody can write one"
        yield Line(Part.SIGNATURE, Answer.UNCHECKED, told, "add --bundle, --identity and --issuer")
        return
    try:
        verify_signature(statement, data, signer)
    except NotSigned as error:
        remedy = "take the bundle that was made of this statement, and expect the identity that made it"
        yield Line(Part.SIGNATURE, Answer.BROKEN, str(error), remedy)
        return
    yield Line(Part.SIGNATURE, Answer.HOLDS, f"signed by {signer.identity}, whom {signer.issuer} vouched for")


def unchecked(lines: Iterable[Line], required: Iterable[Part]) -> tuple[Part, ...]:
    """The required parts of which nothing was compared."""
    compared = {line.part for line in lines if line.answer is not Answer.UNCHECKED}
    return tuple(part for part in required if part not in compared)


def _compared(part: str, what: str, found: str | None, stated: str | None, remedy: str) -> Line:
    if found is not None and found == stated:
        return Line(part, Answer.HOLDS, f"{what}: sha256 {found}")
    return Line(part, Answer.BROKEN, f"{what}: sha256 {found}, and the statement says {stated}", remedy)


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
