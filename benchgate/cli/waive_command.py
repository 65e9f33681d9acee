"""`benchgate waive`: one more entry for the file of waivers, held against the run that it is about."""

from __future__ import annotations

import io
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.places import refuse_unwritable
from benchgate.cli.saying import say
from benchgate.cli.waiver_files import read_waivers, today
from benchgate.errors import UsageError
from benchgate.system import write_atomic

if TYPE_CHECKING:
    from benchgate.model.run import Evidence
    from benchgate.model.verdict import Waiver
    from benchgate.suite.waivers import WaiverFile

_HEAD = "# What is tolerated, up to which ceiling and until which day; changes to this file are reviewed.\n"


def waive(
    check: Annotated[str, typer.Argument(help="Id of a check of the run, like ttft-p95@c4.")],
    run: Annotated[str, typer.Option("--run", help="Stored run: id, unique prefix, label, @latest or @previous.")],
    ceiling: Annotated[str, typer.Option("--ceiling", help="The most harm to tolerate, like 8%, 3 points or 600ms.")],
    expires: Annotated[str, typer.Option("--expires", help="The last day on which it holds (UTC), like 2026-12-31.")],
    owner: Annotated[str, typer.Option("--owner", help="Who answers for it.")],
    issue: Annotated[str, typer.Option("--issue", help="Where it is followed up.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is tolerated.")],
    approved_by: Annotated[str, typer.Option("--approved-by", help="Who approved it; not the owner.")],
    file: Annotated[Path, typer.Option("--file", help="File of waivers to add it to.")] = Path("waivers.yaml"),
    store: options.StoreOption = options.STORE,
) -> None:
    """Add a waiver for a check of a stored run to a file of waivers, which is then to be reviewed and committed."""
    from benchgate.model.deployment import Arm
    from benchgate.model.verdict import RELEASE_CHARACTERS, Waiver
    from benchgate.store.repository import Store

    refuse_unwritable(file)
    with Store.open(store, create=False) as opened:
        evidence = opened.evidence(opened.resolve(run))
    candidate = evidence.run.arms[Arm.CANDIDATE]
    waiver = Waiver(
        check=check,
        suite=evidence.run.suite_name,
        deployment=candidate.name,
        release=candidate.fingerprint[:RELEASE_CHARACTERS],
        ceiling=ceiling.strip(),
        expires=_last_day(expires),
        owner=owner.strip(),
        issue=issue.strip(),
        reason=reason.strip(),
        approved_by=approved_by.strip(),
    )
    text = _with_entry(file, waiver)
    _require_effect(evidence, waiver)
    try:
        write_atomic(file, text.encode())
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    of = f"{waiver.check} of {waiver.suite} on {waiver.deployment}"
    say(f"{file}: {of} is waived up to {waiver.ceiling} until {waiver.expires}; have it reviewed and commit it\n")


def _last_day(text: str) -> date:
    from benchgate.suite.types import parse_day
    from benchgate.suite.waivers import check_expiry

    try:
        day = parse_day(text)
        check_expiry(day, today())
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from error
    if day < today():
        raise UsageError(f"--expires {day} is past; write a day from {today()} on")
    return day


def _require_effect(evidence: Evidence, waiver: Waiver) -> None:
    """The run's own verdict is let through by it. UsageError that says why not, with the nearest id of a check."""
    from benchgate.gate.judge import judge
    from benchgate.model.verdict import Waivers, WaiverUse
    from benchgate.suite.messages import suggestion
    from benchgate.suite.schema import Suite

    verdict = judge(Suite.from_stored(evidence.run.suite), evidence, waivers=Waivers((waiver,), today()))
    ids = [check.id for check in verdict.checks]
    if waiver.check not in ids:
        raise UsageError(f"run {evidence.run.id} has no check {waiver.check!r}; {suggestion(waiver.check, ids)}")
    (state,) = verdict.waivers
    if state.use is not WaiverUse.USED:
        raise UsageError(f"{waiver.check} cannot be waived like this: {state.why}")


def _with_entry(path: Path, waiver: Waiver) -> str:
    """The file's text with one more waiver, comments and order kept. SuiteError for a mistake in either."""
    from benchgate.suite.waivers import parse_waivers

    known = read_waivers(path, today()) if path.exists() else None
    text = _appended(path.read_text(encoding="utf-8") if known is not None else "", known, waiver)
    if parse_waivers(text, str(path), today()).waivers.entries[-1] != waiver:
        raise UsageError(f"{path} could not be added to without changing what it says; add the entry by hand")
    return text


def _appended(text: str, known: WaiverFile | None, waiver: Waiver) -> str:
    from dataclasses import asdict

    from ruamel.yaml import YAML

    from benchgate.suite.waivers import KEYS

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    keys_at = known.places[0][1] if known is not None and known.places else 5
    dash_at = text.splitlines()[known.places[0][0] - 1].find("-") if known is not None and known.places else 2
    yaml.indent(mapping=2, sequence=keys_at - 1, offset=dash_at)
    data = yaml.load(text or f"{_HEAD}waivers:\n")
    said = asdict(waiver)
    if not data["waivers"]:
        data["waivers"] = []
    data["waivers"].append({key: said[key] for key in KEYS if said[key] is not None})
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()
