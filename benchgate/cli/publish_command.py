"""`benchgate publish`: tell GitHub and others what a stored run came to, from a job that does nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from benchgate.cli import options
from benchgate.cli import publish_options as own
from benchgate.cli.conclude import say_as, say_or_tell, shown
from benchgate.cli.options import Format
from benchgate.cli.places import find_suite
from benchgate.cli.saying import log
from benchgate.cli.waiver_files import waivers_for_stored
from benchgate.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from benchgate.integrations.ci import GitHubContext
    from benchgate.integrations.github_feedback import Message
    from benchgate.release.publish import GitHubTargets, Judged, Publisher
    from benchgate.store.repository import Store


def publish(
    run: own.RunOption = None,
    comment: own.CommentOption = False,
    check_run: own.CheckRunOption = False,
    commit_status: own.CommitStatusOption = False,
    deployment: own.DeploymentOption = None,
    summary: own.SummaryOption = False,
    webhook: own.WebhookOption = None,
    slack: own.SlackOption = False,
    push_metrics: own.PushMetricsOption = None,
    pr: own.PullOption = None,
    sha: own.ShaOption = None,
    details_url: own.DetailsOption = None,
    suite: own.SuiteOption = None,
    key: own.KeyOption = None,
    begin: own.BeginOption = None,
    no_verdict: own.NoVerdictOption = None,
    candidate: own.CandidateOption = None,
    required: own.RequiredOption = True,
    exit_verdict: own.ExitVerdictOption = False,
    waivers: options.WaiversOption = None,
    as_of: options.AsOfOption = None,
    strict: options.StrictOption = False,
    store: options.StoreOption = options.STORE,
    output: options.FormatOption = Format.TEXT,
) -> None:
    """Judge a stored run again and tell of it; exits with 0 when all is published, whatever the verdict is."""
    from benchgate.integrations.ci import github_context
    from benchgate.release.publish import (
        GitHubTargets,
        WebTargets,
        judge_to_publish,
        message_of,
        notifiers,
        parse_web_targets,
        publishers,
    )

    asked = GitHubTargets(comment, check_run, commit_status, deployment, summary)
    elsewhere = parse_web_targets(webhook, push_metrics, slack=slack)
    if asked == GitHubTargets() and elsewhere == WebTargets():
        raise UsageError(
            "nothing to publish to; add --comment, --check-run, --commit-status, --deployment, --summary, --webhook, "
            "--slack or --push-metrics"
        )
    of_a_run = {"RUN": run, "--suite": suite, "--waivers": waivers, "--as-of": as_of, "--strict": strict}
    of_a_run |= {"--webhook": webhook, "--slack": slack, "--push-metrics": push_metrics}
    _require_one_of({"RUN": run, "--begin": begin, "--no-verdict": no_verdict})
    context = github_context(os.environ, sha=sha, pull=pr, details_url=details_url)
    if run is None:
        of_a_run |= {"--exit-verdict": exit_verdict} | ({"--comment": comment, "--summary": summary} if begin else {})
        _refuse(of_a_run, "is of a run that was judged; leave it out")
        names = _candidates(begin or no_verdict or "", candidate)
        raise typer.Exit(int(_tell_of_each(names, asked, context, key, ended=begin is None, required=required)))
    _refuse({"--candidate": candidate}, "is of --begin and --no-verdict; a run knows its candidate, so leave it out")
    context.require_own_repository()
    with _opened(run, store) as (opened, run_id):
        tolerated = waivers_for_stored(waivers, as_of, opened.run(run_id))
        judged = judge_to_publish(opened, run_id, waivers=tolerated, strict=strict, suite_file=suite)
    message = message_of(judged, context, key=key, suite_file=suite)
    others = notifiers(judged, elsewhere, context.details_url, os.environ)
    to = {**publishers(asked, context, os.environ), **others}
    code = _conclude(judged, message, to, output, required=required)
    raise typer.Exit(int(judged.exit_code if code is ExitCode.OK and exit_verdict else code))


def _require_one_of(given: Mapping[str, str | None]) -> None:
    """Raise UsageError unless exactly one of them was said."""
    said = [name for name, value in given.items() if value is not None]
    if not said:
        raise UsageError(
            "name the RUN to publish, by its id, its label or its bundle; or --begin or --no-verdict SUITE"
        )
    if len(said) > 1:
        raise UsageError(f"{said[0]} and {said[1]} say two things of one commit; leave one out")


def _refuse(given: Mapping[str, object], because: str) -> None:
    said = next((option for option, value in given.items() if value not in (None, False)), None)
    if said is not None:
        raise UsageError(f"{said} {because}")


@contextmanager
def _opened(run: str, address: str) -> Iterator[tuple[Store, str]]:
    """The store and the whole id of the run: in the store, or in a bundle, which alone is called `….json`.

    A file of any other name is no bundle: it may lie in the repository under the label of a run.
    """
    from benchgate.release.publish import store_of_bundle
    from benchgate.store.bundle import SUFFIX, looks_like_bundle
    from benchgate.store.repository import Store

    if (file := Path(run)).suffix == SUFFIX:
        if not file.is_file():
            raise UsageError(f"there is no bundle {run}; `benchgate store export` writes it, in the job that measures")
        if not looks_like_bundle(file):
            raise UsageError(f"{file} is no bundle; `benchgate store export` writes them")
        with store_of_bundle(file) as found:
            yield found
        return
    if "/" in run:
        raise UsageError(f"{run} is no id and no label of a run, and a bundle is called ….json")
    if run.startswith("@"):
        raise UsageError(f"{run} may mean another run by now than the one that was judged; name it by its id or label")
    with Store.open(address, create=False) as opened:
        yield opened, opened.resolve(run, whole=True)


def _conclude(
    judged: Judged, message: Message, to: Mapping[str, Publisher], output: Format, *, required: bool
) -> ExitCode:
    """Tell everybody, and print the verdict whatever becomes of that."""
    whole = False
    try:
        failed = _tell(message, to)
        whole = judged.doubt is None and not (failed and required)
    finally:
        text = shown(judged.decision, output, judged.exit_code if whole else ExitCode.PUBLISH_FAILED)
        lost = say_or_tell(text, [judged.decision], say_as(output), publish=False)
    for fault in (*([judged.doubt] if judged.doubt is not None else []), *lost):
        log(f"benchgate: {fault}")
    return ExitCode.OK if whole and not lost else ExitCode.PUBLISH_FAILED


def _tell(message: Message, to: Mapping[str, Publisher]) -> bool:
    """Tell everybody who was asked for; whether anything failed. What became of each is told on standard error."""
    from benchgate.release.publish import publish_all

    failed = False
    for one in publish_all(message, to):
        failed = failed or one.fault is not None
        said = f"{one.name}: {one.done}" if one.fault is None else f"benchgate: not published: {one.name}: {one.fault}"
        log(said)
    return failed


def _candidates(suite: str, candidate: str | None) -> list[tuple[str, str]]:
    """The suite's name and that of each candidate. UsageError for one that it has not."""
    from benchgate.cli.suite_files import read_suite
    from benchgate.suite.messages import suggestion

    known = read_suite(find_suite(suite))
    names = (candidate,) if candidate is not None else known.candidates or (known.candidate,)
    if candidate is not None and candidate not in known.deployments:
        near = suggestion(candidate, known.deployments)
        raise UsageError(f'--candidate: {known.suite} has no deployment "{candidate}"; {near}')
    return [(known.suite, name) for name in names]


def _tell_of_each(
    names: list[tuple[str, str]],
    asked: GitHubTargets,
    context: GitHubContext,
    key: str | None,
    *,
    ended: bool,
    required: bool,
) -> ExitCode:
    """Tell of each candidate that is being measured, or of which this `ended` without a verdict."""
    from benchgate.release.publish import publishers, without_verdict

    to = publishers(asked, context, os.environ)
    messages = [without_verdict(suite, name, context, ended=ended, key=key) for suite, name in names]
    failed = [_tell(message, to) for message in messages]
    return ExitCode.PUBLISH_FAILED if any(failed) and required else ExitCode.OK
