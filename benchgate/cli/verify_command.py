"""`benchgate verify`: is a statement true of its report, its suite and its store, and who signed it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.options import CareFormat
from benchgate.cli.places import find_suite
from benchgate.cli.saying import say, say_json
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line

if TYPE_CHECKING:
    from benchgate.model.verdict import Waivers
    from benchgate.release.attest import Statement
    from benchgate.release.verify import Part, Signer, Verified
    from benchgate.store.repository import Store


def verify(
    statement: Annotated[Path, typer.Argument(help="The statement that a judging command left, FILE.intoto.json.")],
    run: Annotated[str | None, typer.Option("--run", help="The run that it should be of, its whole id.")] = None,
    candidate: Annotated[str | None, typer.Option("--candidate", help="The deployment that it should be of.")] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="The weights that it should be of: a commit, or sha256:….")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="The HTML report that it should be of.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="The suite that it should be of.")] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="BENCHGATE_STORE", help="Where its run is kept: it is judged again."),
    ] = None,
    bundle: Annotated[Path | None, typer.Option("--bundle", help="sigstore bundle over it (extra `sign`).")] = None,
    identity: Annotated[str | None, typer.Option("--identity", help="Who must have signed, whole.")] = None,
    issuer: Annotated[str | None, typer.Option("--issuer", help="Who must have vouched for them, a URL.")] = None,
    repository: Annotated[
        str | None, typer.Option("--repository", help="For whose repository it was signed, a URL; else the identity's.")
    ] = None,
    trust_root: Annotated[
        Path | None, typer.Option("--trust-root", help="sigstore's trusted_root.json; else the one that it carries.")
    ] = None,
    require: Annotated[
        str | None, typer.Option("--require", help="What must be compared: report,suite,store,signature.")
    ] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="The suite whose policy replaced the run's.")] = None,
    waivers: Annotated[Path | None, typer.Option("--waivers", help="The file of waivers that it rests on.")] = None,
    strict: options.StrictOption = False,
    output: Annotated[CareFormat, typer.Option("--format", help="How to print what was found.")] = CareFormat.TEXT,
) -> None:
    """Hold a statement against report, suite, store and signature; 0 where all holds and the verdict promotes."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.release import verify
    from benchgate.release.attest import read_statement
    from benchgate.store.repository import Store

    signer = _signer(bundle, identity, issuer, trust_root, repository)
    if (report, suite, store, signer) == (None,) * 4:
        raise UsageError("nothing to hold it against; give --report, --suite, --store or --bundle, as many as you have")
    required = _required(require)
    data = _read(statement)
    stated = read_statement(data, str(statement))
    with Store.open(store, create=False) if store is not None else nullcontext() as opened:
        asked = verify.VerifyRequest(
            run=run,
            candidate=candidate,
            revision=revision,
            report=report,
            suite=None if suite is None else find_suite(suite),
            store=opened,
            signer=signer,
            policy=None if policy is None else read_suite(find_suite(policy)),
            waivers=_waivers(waivers, stated, opened),
        )
        found = verify.verify(stated, data, asked)
    _refuse_unchecked(found, required)
    code = _code(found, strict=strict)
    if output is CareFormat.JSON:
        say_json(_document(found, code), sort_keys=True)
    else:
        say("".join(_lines(found, code, str(statement))))
    raise typer.Exit(int(code))


def _signer(
    bundle: Path | None, identity: str | None, issuer: str | None, trust_root: Path | None, repository: str | None
) -> Signer | None:
    """Who must have signed. A signature by just anybody shows nothing, so both names are required."""
    from benchgate.release.verify import Signer, require_sigstore

    if bundle is None:
        of_one = {"--identity": identity, "--issuer": issuer, "--trust-root": trust_root, "--repository": repository}
        for option, said in of_one.items():
            if said is not None:
                raise UsageError(f"{option} is of a signature, and none is given; add --bundle FILE")
        return None
    if not identity or not issuer:
        raise UsageError(
            "--bundle: anybody can sign; say who must have, with --identity (for GitHub Actions the URL of the "
            "workflow with its ref) and --issuer (https://token.actions.githubusercontent.com there)"
        )
    require_sigstore()
    return Signer(bundle, identity, issuer, trust_root, repository)


def _required(names: str | None) -> tuple[Part, ...]:
    from benchgate.release.verify import Part

    known = [part.value for part in Part]
    asked = [name.strip() for name in names.split(",")] if names is not None else []
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"--require: {name!a} is nothing to hold a statement against; {hint}")
    return tuple(Part(name) for name in asked)


def _refuse_unchecked(found: Verified, required: tuple[Part, ...]) -> None:
    from benchgate.release.verify import unchecked

    if missing := unchecked(found.lines, required):
        raise UsageError(
            f"--require {missing[0].value}: nothing was compared of it; give what it takes (docs/verify.md)"
        )


def _waivers(file: Path | None, stated: Statement, store: Store | None) -> Waivers | None:
    """The waivers as of the day that the statement says; none that has expired by today lives again for it."""
    from benchgate.cli.waiver_files import waivers_for_stored

    if file is None:
        return None
    if store is None:
        raise UsageError("--waivers is for judging the run again; add --store, or leave it out")
    return waivers_for_stored(file, stated.waivers_as_of, store.run(stated.run.id))


def _code(found: Verified, *, strict: bool) -> ExitCode:
    """With `strict` a WARN that holds has the code of a BLOCK, whatever the statement was asked for with."""
    if found.holds and found.exit_code is ExitCode.OK:
        return found.statement.outcome.exit_code(strict=strict)
    return found.exit_code


def _read(statement: Path) -> bytes:
    from benchgate.release.attest import LONGEST_BYTES

    try:
        with statement.open("rb") as opened:
            return opened.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the statement {statement} cannot be read: {error.strerror}") from error


def _lines(found: Verified, code: ExitCode, source: str) -> Iterator[str]:
    said = found.statement
    waived = f", with waivers as of {said.waivers_as_of}" if said.waivers_as_of is not None else ""
    sides = " against ".join(said.arms[arm].name for arm in ("candidate", "baseline") if arm in said.arms)
    head = (
        f"{source}: {said.outcome} with exit code {said.exit_code.value} of run {said.run.id}, suite {said.run.suite}"
    )
    yield terminal_line(f"{head}, {sides}{waived}, judged by benchgate {said.tool_version}") + "\n"
    for line in found.lines:
        yield terminal_line(f"  {line.part:10} {line.answer.value:14} {line.text}") + "\n"
        if line.remedy is not None:
            yield terminal_line(f"  {'':25} {line.remedy}") + "\n"
    yield _end(found, code)


def _end(found: Verified, code: ExitCode) -> str:
    if not found.holds:
        return f"does not hold: exit code {code.value}\n"
    promotes = "promotes" if code is ExitCode.OK else "does not promote"
    by_whom = "the verdict" if found.vouched else "the statement says of itself that the verdict"
    return f"what was compared holds, and {by_whom} {promotes}: exit code {code.value}\n"


def _document(found: Verified, code: ExitCode) -> dict[str, object]:
    said = found.statement
    return {
        "schema": "benchgate.verified/1",
        "run": said.run.id,
        "suite": said.run.suite,
        "outcome": said.outcome.value,
        "stated_exit_code": said.exit_code.value,
        "lines": [
            {"part": line.part, "answer": line.answer.value, "told": line.text, "remedy": line.remedy}
            for line in found.lines
        ],
        "holds": found.holds,
        "vouched": found.vouched,
        "exit_code": code.value,
    }
