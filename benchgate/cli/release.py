"""Commands that follow a verdict: `benchgate publish`, `promote`, `verify` and `verdict-server`."""

from __future__ import annotations

import difflib
import getpass
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.completion import complete_runs
from benchgate.cli.options import Format, ResultFormat, find_suite, require_waivers, waivers_for_stored
from benchgate.cli.output import OutputOptions, printer, show_or_log, shown
from benchgate.cli.saying import inform, log, say, say_json
from benchgate.errors import ExitCode, UsageError, suggestion
from benchgate.escape import terminal_line
from benchgate.store.missing import require_stored
from benchgate.units import parse_duration_s

if TYPE_CHECKING:
    from benchgate.integrations.ci import GitHubContext
    from benchgate.integrations.github_feedback import Message
    from benchgate.release.promote import Recorded
    from benchgate.release.publish import GitHubTargets, Judged, Publisher
    from benchgate.release.verify import Signer, Verified
    from benchgate.store.repository import Store

_HOOK_LIMIT = "10m"

RequirePinnedOption = Annotated[
    bool, typer.Option("--require-pinned", help="Refuse a candidate without a known model revision.")
]


def publish(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Stored run by its whole id or label, or its bundle, a .json file.",
            autocompletion=complete_runs,
        ),
    ] = None,
    comment: Annotated[bool, typer.Option("--comment", help="Update one comment on the pull request.")] = False,
    check_run: Annotated[bool, typer.Option("--check-run", help="Conclude a check run of the commit.")] = False,
    commit_status: Annotated[bool, typer.Option("--commit-status", help="Add a status to the commit.")] = False,
    deployment: Annotated[
        int | None, typer.Option(metavar="ID", min=1, help="Add a status to this GitHub deployment.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Write the job summary of this step.")] = False,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Post it to this address, signed.")] = None,
    slack: Annotated[bool, typer.Option("--slack", help="Post it to the address in BENCHGATE_SLACK_URL.")] = False,
    push_metrics: Annotated[
        str | None, typer.Option(metavar="URL", help="Push the run's metrics to this Pushgateway.")
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Send the run's trace and histograms to this OTLP endpoint.")
    ] = None,
    pr: Annotated[int | None, typer.Option(min=1, help="Pull request.", show_default="the CI event's")] = None,
    sha: Annotated[str | None, typer.Option(help="Commit.", show_default="the CI event's")] = None,
    details_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Page to link to.", show_default="page of the CI run")
    ] = None,
    suite: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Suite's file that the run must be of; its lines are annotated.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Distinguishes runs of one suite and candidate on one commit.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option(metavar="SUITE", help="Instead of a run: this suite is being measured.")
    ] = None,
    no_verdict: Annotated[
        str | None, typer.Option(metavar="SUITE", help="Instead of a run: this suite has no verdict.")
    ] = None,
    candidate: Annotated[str | None, typer.Option(help="Candidate of --begin or --no-verdict, of several.")] = None,
    required: Annotated[
        bool, typer.Option("--required/--optional", help="Exit with 13 if something was not published.")
    ] = True,
    exit_verdict: Annotated[
        bool, typer.Option("--exit-verdict", help="Exit with the verdict's code if everything was published.")
    ] = False,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
    output: Annotated[Format, typer.Option("--format", help="Format of standard output.")] = Format.TEXT,
) -> None:
    """Post a verdict to GitHub, Slack, a webhook

    Judges the run again. Exits with 0 once everything is published, whatever the verdict.

    Example: benchgate publish chat-3 --comment --commit-status
    """
    if not any((comment, check_run, commit_status, deployment, summary, webhook, push_metrics, otlp, slack)):
        raise UsageError(
            "nothing to publish to; add --comment, --check-run, --commit-status, --deployment, --summary, --webhook, "
            "--slack, --push-metrics or --otlp"
        )
    of_a_run = {"RUN": run, "--suite": suite, "--waivers": waivers, "--as-of": as_of, "--strict": strict}
    of_a_run |= {"--webhook": webhook, "--slack": slack, "--push-metrics": push_metrics, "--otlp": otlp}
    subjects = {"RUN": run, "--begin": begin, "--no-verdict": no_verdict}
    named = [name for name, value in subjects.items() if value is not None]
    if not named:
        raise UsageError(
            "name the RUN to publish, by its id, its label or its bundle; or --begin or --no-verdict SUITE"
        )
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} say two things of one commit; leave one out")
    if run is not None:
        _refuse_given(
            {"--candidate": candidate}, "is of --begin and --no-verdict; a run knows its candidate, so leave it out"
        )
        _require_run(run, store)
    from benchgate.integrations.ci import github_context  # these imports are slow, and not needed to refuse a run
    from benchgate.release.publish import (
        GitHubTargets,
        judge_to_publish,
        message_of,
        notifiers,
        parse_web_targets,
        publishers,
    )

    targets = GitHubTargets(comment, check_run, commit_status, deployment, summary)
    elsewhere = parse_web_targets(webhook, push_metrics, slack=slack, otlp=otlp)
    context = github_context(os.environ, sha=sha, pull=pr, details_url=details_url)
    if run is None:
        of_a_run |= {"--exit-verdict": exit_verdict} | ({"--comment": comment, "--summary": summary} if begin else {})
        _refuse_given(of_a_run, "is of a run that was judged; leave it out")
        code = _publish_without_verdict(
            begin or no_verdict or "", candidate, targets, context, variant, ended=begin is None, required=required
        )
        raise typer.Exit(int(code))
    context.require_own_repository()
    with _opened(run, store) as (opened, run_id):
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        judged = judge_to_publish(opened, run_id, waivers=tolerated, strict=strict, suite_file=suite)
    message = message_of(judged, context, key=variant, suite_file=suite)
    to = {**publishers(targets, context, os.environ)}
    to |= notifiers(judged, elsewhere, context.details_url, os.environ)
    code = _publish_verdict(judged, message, to, output, required=required)
    raise typer.Exit(int(judged.exit_code if code is ExitCode.OK and exit_verdict else code))


def _refuse_given(given: Mapping[str, object], because: str) -> None:
    option = next((option for option, value in given.items() if value not in (None, False)), None)
    if option is not None:
        raise UsageError(f"{option} {because}")


def _require_run(run: str, address: str) -> None:
    """Raise UsageError for a bundle or a run that does not exist, and for a name that may mean another run by now."""
    if _is_bundle(run):
        if not Path(run).is_file():
            raise UsageError(f"there is no bundle {run}; `benchgate store export` writes it, in the job that measures")
        return
    if "/" in run:
        raise UsageError(f"{run} is no id and no label of a run, and a bundle is called ….json")
    _require_fixed_name(run)
    require_stored(address, run)


def _is_bundle(run: str) -> bool:
    # Only a name that ends so is a bundle: other files may lie in the repository under the label of a run.
    return Path(run).suffix == ".json"


@contextmanager
def _opened(run: str, address: str) -> Iterator[tuple[Store, str]]:
    """Open the store of the run, or its bundle, and yield it with the run's id."""
    from benchgate.release.publish import store_of_bundle
    from benchgate.store.bundle import looks_like_bundle

    if _is_bundle(run):
        if not looks_like_bundle(Path(run)):
            raise UsageError(f"{run} is no bundle; `benchgate store export` writes them")
        with store_of_bundle(Path(run)) as found:
            yield found
        return
    with options.open_store(address) as opened:
        yield opened, opened.resolve(run, whole=True)


def _publish_verdict(
    judged: Judged, message: Message, to: Mapping[str, Publisher], output: Format, *, required: bool
) -> ExitCode:
    """Publish, and print the verdict even where that fails."""
    whole = False
    try:
        failed = _publish_all(message, to)
        whole = judged.doubt is None and not (failed and required)
    finally:
        code = judged.exit_code if whole else ExitCode.PUBLISH_FAILED
        text = shown(judged.decision, OutputOptions(output), code)
        lost = show_or_log(text, [judged.decision], printer(output), publish=False)
    for fault in (*([judged.doubt] if judged.doubt is not None else []), *lost):
        log(f"benchgate: {fault}")
    return ExitCode.OK if whole and not lost else ExitCode.PUBLISH_FAILED


def _publish_all(message: Message, to: Mapping[str, Publisher]) -> bool:
    """Publish to every target and log each result. Return True if one failed."""
    from benchgate.release.publish import publish_all

    failed = False
    for one in publish_all(message, to):
        failed = failed or one.fault is not None
        if one.fault is None:
            inform(f"{one.name}: {one.done}")
        else:
            log(f"benchgate: not published: {one.name}: {one.fault}")
    return failed


def _publish_without_verdict(
    suite: str,
    candidate: str | None,
    targets: GitHubTargets,
    context: GitHubContext,
    key: str | None,
    *,
    ended: bool,
    required: bool,
) -> ExitCode:
    """Publish that each candidate is being measured, or that this `ended` without a verdict.

    Raises UsageError for an unknown candidate.
    """
    from benchgate.pipeline.suite_file import read_suite
    from benchgate.release.publish import publishers, without_verdict

    known = read_suite(find_suite(suite)).suite
    names = (candidate,) if candidate is not None else known.candidates or (known.candidate,)
    if candidate is not None and candidate not in known.deployments:
        near = suggestion(candidate, known.deployments)
        raise UsageError(f'--candidate: {known.suite} has no deployment "{candidate}"; {near}')
    to = publishers(targets, context, os.environ)
    messages = [without_verdict(known.suite, name, context, ended=ended, key=key) for name in names]
    failed = [_publish_all(message, to) for message in messages]
    return ExitCode.PUBLISH_FAILED if any(failed) and required else ExitCode.OK


def promote(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Stored run: whole id or label; @promoted to withdraw.", autocompletion=complete_runs
        ),
    ],
    by: Annotated[str | None, typer.Option(help="Who promotes.", show_default="user of the CI or this machine")] = None,
    ref: Annotated[str | None, typer.Option(help="Branch or tag to promote from.", show_default="the CI job's")] = None,
    commit: Annotated[str | None, typer.Option(help="Commit to promote at.", show_default="the CI job's")] = None,
    protected: Annotated[
        bool | None,
        typer.Option("--protected/--not-protected", help="Is that ref protected?", show_default="as the CI reports"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML report that was read; must be the store's.")
    ] = None,
    override: Annotated[str | None, typer.Option(metavar="REASON", help="Promote against the verdict.")] = None,
    require_pinned: RequirePinnedOption = False,
    max_age: Annotated[str | None, typer.Option(help="Longest time since the run ended.", show_default="30d")] = None,
    run_hook: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this command, without a shell, once it is recorded.")
    ] = None,
    hook_timeout: Annotated[
        str | None, typer.Option(help="Time limit of --run-hook.", show_default=_HOOK_LIMIT)
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Run the hook again, or promote a withdrawn or older run.")
    ] = False,
    withdraw: Annotated[str | None, typer.Option(metavar="REASON", help="Take the run's promotion back.")] = None,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Record that a candidate is in service

    Judges the run again first, and exits with the verdict's code where that does not allow a promotion.

    Example: benchgate promote chat-3 --ref main --protected
    """
    from benchgate.integrations.ci import origin_of, unprotected_because
    from benchgate.model.deployment import Arm

    rests_on = {"--report": report, "--override": override, "--waivers": waivers, "--as-of": as_of, "--strict": strict}
    follows = {"--run-hook": run_hook, "--hook-timeout": hook_timeout, "--repeat": repeat}
    lately = {"--require-pinned": require_pinned, "--max-age": max_age}
    if withdraw is not None:
        given = {**rests_on, **follows, **lately}
        _refuse_given(given, "is of a promotion, and --withdraw takes one back; leave it out")
    if run_hook is None:
        _refuse_given({"--hook-timeout": hook_timeout}, "is of a hook, and none is given; add --run-hook CMD")
    max_age_s = None if max_age is None else _duration_s("--max-age", max_age)
    hook_limit_s = _duration_s("--hook-timeout", _HOOK_LIMIT if hook_timeout is None else hook_timeout)
    user = None
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    origin = origin_of(os.environ, by=by, ref=ref, commit=commit, protected=protected, user=user)
    doubt = unprotected_because(os.environ)
    _require_fixed_name(run, or_promoted=withdraw is not None)
    hook = None
    if run_hook is not None:
        from benchgate.release.promote import hook_command  # slow to import

        hook = hook_command(run_hook)
    require_waivers(waivers)
    with options.open_store(store, run) as opened:
        from benchgate.model.run import MAX_PROMOTION_AGE_S
        from benchgate.release import promote
        from benchgate.release.promote import run_promotion_hook

        run_id = opened.resolve(run, whole=True)
        if withdraw is not None:
            recorded = promote.withdraw(opened, run_id, origin, withdraw)
        else:
            recorded = promote.promote(
                opened,
                run_id,
                origin,
                max_age_s=MAX_PROMOTION_AGE_S if max_age_s is None else max_age_s,
                waivers=waivers_for_stored(waivers, as_of, opened.run(run_id)),
                strict=strict,
                report=report,
                override=override,
                require_pinned=require_pinned,
                again=repeat,
            )
        if output is ResultFormat.JSON:
            say_json(_promotion_document(recorded), sort_keys=True)
        else:
            say("".join(_promotion_lines(recorded, doubt)))
        if hook is not None:
            promote.require_current(opened, recorded, again=repeat, override=override)
            candidate = opened.run(run_id).arms[Arm.CANDIDATE]
            run_promotion_hook(hook, recorded.promotion, candidate, os.environ, hook_limit_s)


def _duration_s(option: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def _require_fixed_name(run: str, *, or_promoted: bool = False) -> None:
    """Raise UsageError for `@latest` and the like, which may be a newer run than the one that was judged."""
    if run.startswith("@") and not (or_promoted and run == "@promoted"):
        raise UsageError(f"{run} may mean another run by now than the one that was judged; name it by its id or label")


def _promotion_document(recorded: Recorded) -> dict[str, object]:
    document = {**recorded.promotion.to_json(), "in_series": recorded.promotion.in_series, "new": recorded.new}
    if recorded.identity is not None:
        document["identity"] = {"pin": recorded.identity.pin.value, "description": recorded.identity.description}
    return document


def _promotion_lines(recorded: Recorded, doubt: str) -> Iterator[str]:
    """Yield the promotion in words; `doubt` says why its ref is not known to be protected."""
    one = recorded.promotion
    yield terminal_line(f"run {one.run_id} of suite {one.suite}: {one.status}") + "\n"
    if not recorded.new:
        yield "it was recorded before, as below; nothing changed\n"
    origin = (("ref", one.origin.ref), ("commit", one.origin.commit), ("in", one.origin.ci))
    where = "".join(f", {name} {value}" for name, value in origin if value)
    yield terminal_line(f"by {one.origin.by} at {one.promoted_at}{where}") + "\n"
    if one.grounds is not None:
        yield f"verdict {one.grounds.outcome}, report sha256 {one.grounds.report_sha256}\n"
        if recorded.identity is not None:
            yield terminal_line(f"model {recorded.identity.description}") + "\n"
        if not one.in_series:
            why = "its verdict was overridden" if one.reason is not None else doubt
            yield terminal_line(f"it is not in the baseline series: {why}") + "\n"
    if one.reason is not None:
        yield terminal_line(f"reason: {one.reason}") + "\n"


def verify(
    statement: Annotated[Path, typer.Argument(metavar="STATEMENT", help="Statement of a verdict, FILE.intoto.json.")],
    run: Annotated[str | None, typer.Option(help="Expected run, its whole id.")] = None,
    candidate: Annotated[str | None, typer.Option(help="Expected candidate.")] = None,
    revision: Annotated[str | None, typer.Option(help="Expected weights: a commit or a sha256.")] = None,
    report: Annotated[Path | None, typer.Option(help="Expected HTML report.")] = None,
    suite: Annotated[str | None, typer.Option(help="Expected suite.")] = None,
    store: Annotated[
        str | None, typer.Option(envvar="BENCHGATE_STORE", help="Store of its run, which is judged again.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="sigstore bundle that signs it (extra `sign`).")] = None,
    identity: Annotated[str | None, typer.Option(help="Expected signer, whole.")] = None,
    issuer: Annotated[str | None, typer.Option(help="Expected issuer of the signer's identity, a URL.")] = None,
    repository: Annotated[
        str | None, typer.Option(help="Repository that it was signed for, a URL.", show_default="the identity's")
    ] = None,
    ref: Annotated[
        str | None, typer.Option(help="Its branch or tag there, like refs/heads/main. Needed with --repository.")
    ] = None,
    trust_root: Annotated[
        Path | None, typer.Option(help="sigstore's trusted_root.json.", show_default="the one in sigstore")
    ] = None,
    require: Annotated[
        str | None, typer.Option(help="Parts that must be compared: report,suite,store,signature.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Suite whose gate, SLOs and error budget judged.")] = None,
    against: Annotated[str | None, typer.Option(help="Whole id of the stored run that it was compared with.")] = None,
    waivers: Annotated[Path | None, typer.Option(help="File of waivers that the verdict rests on.")] = None,
    strict: options.StrictOption = False,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Check a verdict's signed statement

    Compares it with report, suite, store and signature. Exits with 0 if all agree and the verdict allows a promotion.

    Example: benchgate verify report.html.intoto.json --report report.html --suite suite.yaml
    """
    if (report, suite, store, bundle) == (None,) * 4:
        raise UsageError("nothing to hold it against; give --report, --suite, --store or --bundle, as many as you have")
    if bundle is not None:
        from benchgate.release.verify import require_sigstore  # slow to import, as those below

        require_sigstore()
    try:
        with statement.open("rb") as file:
            from benchgate.release.attest import LONGEST_BYTES, read_statement

            data = file.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the statement {statement} cannot be read: {error.strerror}") from error
    if store is not None:
        require_stored(store)
    from benchgate.pipeline.suite_file import read_suite
    from benchgate.release import verify

    signer = _signer(bundle, identity, issuer, trust_root, repository, ref)
    required = [name.strip() for name in require.split(",")] if require is not None else []
    known = [part.value for part in verify.Part]
    for name in required:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"--require: {name!a} is nothing to hold a statement against; {hint}")
    stated = read_statement(data, str(statement))
    with options.open_store(store) if store is not None else nullcontext() as opened:
        tolerated = None
        if waivers is not None:
            if opened is None:
                raise UsageError("--waivers is for judging the run again; add --store, or leave it out")
            remedy = "the statement rests on it no more: measure again, or add another waiver"
            tolerated = waivers_for_stored(waivers, stated.waivers_as_of, opened.run(stated.run.id), remedy=remedy)
        request = verify.VerifyRequest(
            run=run,
            candidate=candidate,
            revision=revision,
            report=report,
            suite=None if suite is None else find_suite(suite),
            store=opened,
            signer=signer,
            policy=None if policy is None else read_suite(find_suite(policy)).suite,
            waivers=tolerated,
            against=against,
        )
        found = verify.verify(stated, data, request)
    if missing := verify.unchecked(found.lines, [verify.Part(name) for name in required]):
        raise UsageError(
            f"--require {missing[0].value}: nothing was compared of it; give what it takes (docs/guides/release.md)"
        )
    code = found.exit_code
    if found.holds and code is ExitCode.OK:
        code = found.statement.outcome.exit_code(strict=strict)
    if output is ResultFormat.JSON:
        say_json(_statement_document(found, code), sort_keys=True)
    else:
        say("".join(_statement_lines(found, code, str(statement))))
    raise typer.Exit(int(code))


def _signer(
    bundle: Path | None,
    identity: str | None,
    issuer: str | None,
    trust_root: Path | None,
    repository: str | None,
    ref: str | None,
) -> Signer | None:
    from benchgate.release.verify import Signer, require_sigstore

    if bundle is None:
        given = {"--identity": identity, "--issuer": issuer, "--trust-root": trust_root}
        given |= {"--repository": repository, "--ref": ref}
        _refuse_given(given, "is of a signature, and none is given; add --bundle FILE")
        return None
    if not identity or not issuer:
        raise UsageError(
            "--bundle requires --identity (for GitHub Actions the URL of the workflow with its ref) and --issuer "
            "(https://token.actions.githubusercontent.com there): without them any signature would pass"
        )
    if repository and not ref:
        raise UsageError(
            "--repository requires --ref, like refs/heads/main: a reusable workflow signs for every branch that calls "
            "it, and whoever may push one could let it sign any statement"
        )
    require_sigstore()
    return Signer(bundle, identity, issuer, trust_root, repository, ref)


def _statement_lines(found: Verified, code: ExitCode, source: str) -> Iterator[str]:
    stated = found.statement
    waived = f", with waivers as of {stated.waivers_as_of}" if stated.waivers_as_of is not None else ""
    sides = " against ".join(stated.arms[arm].name for arm in ("candidate", "baseline") if arm in stated.arms)
    verdict = f"{stated.outcome} with exit code {stated.exit_code.value} of run {stated.run.id}"
    head = f"{source}: {verdict}, suite {stated.run.suite}, {sides}{waived}, judged by benchgate {stated.tool_version}"
    yield terminal_line(head) + "\n"
    for line in found.lines:
        yield terminal_line(f"  {line.part:10} {line.answer.value:14} {line.text}") + "\n"
        if line.remedy is not None:
            yield terminal_line(f"  {'':25} {line.remedy}") + "\n"
    if not found.holds:
        yield f"does not hold: exit code {code.value}\n"
        return
    promotes = "promotes" if code is ExitCode.OK else "does not promote"
    by_whom = "the verdict" if found.vouched else "the statement says of itself that the verdict"
    yield f"what was compared holds, and {by_whom} {promotes}: exit code {code.value}\n"


def _statement_document(found: Verified, code: ExitCode) -> dict[str, object]:
    stated = found.statement
    return {
        "schema": "benchgate.verified/1",
        "run": stated.run.id,
        "suite": stated.run.suite,
        "outcome": stated.outcome.value,
        "stated_exit_code": stated.exit_code.value,
        "lines": [
            {"part": line.part, "answer": line.answer.value, "text": line.text, "remedy": line.remedy}
            for line in found.lines
        ],
        "holds": found.holds,
        "vouched": found.vouched,
        "exit_code": code.value,
    }


def verdict_server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8787,
    max_age: Annotated[str, typer.Option(help="Longest time since a run ended.")] = "7d",
    store: options.StoreOption = options.STORE,
    strict: options.StrictOption = False,
    require_pinned: RequirePinnedOption = False,
) -> None:
    """Serve verdicts to Flagger and Argo Rollouts

    Answers over HTTP whether a run may be promoted. Only reads the store.

    Example: benchgate verdict-server --host 0.0.0.0 --store postgresql://db/runs
    """
    max_age_s = _duration_s("--max-age", max_age)
    with options.open_store_as_is(store):
        pass  # a missing store is reported now, and not at the first query
    from benchgate.release.server import ServerSettings, VerdictServer

    try:
        server = VerdictServer(host, port, ServerSettings(store, max_age_s, strict, require_pinned, log))
    except (OSError, OverflowError) as error:
        remedy = "give another --port, or a --host of this machine"
        raise UsageError(f"--host {host} --port {port}: nothing can listen there: {error}; {remedy}") from error
    with server:
        inform(f"benchgate: answering on {server.url}")
        server.serve_forever()
