"""A stored run's verdict, posted to GitHub, a webhook, Slack or a Pushgateway.

The stored verdict is not trusted: the run is judged again from its records. A verdict that differs from the stored one,
or a run of another suite than the one given, is published as in doubt, which is never green.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from benchgate.errors import EvidenceError, ExitCode, PublishError, SuiteError, UsageError
from benchgate.escape import markdown_code, markdown_prose
from benchgate.integrations import ci
from benchgate.integrations.ci import GitHubContext
from benchgate.integrations.github import GitHubApi
from benchgate.integrations.github_feedback import (
    Annotation,
    CheckState,
    Message,
    publish_check,
    publish_comment,
    publish_commit_status,
    publish_deployment_status,
)
from benchgate.integrations.webhook import (
    CLOCK,
    Clock,
    Destination,
    destination,
    otlp_headers,
    push_metrics,
    send_otlp,
    send_slack,
    send_webhook,
    slack_destination,
    webhook_key,
)
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.run import Run
from benchgate.model.verdict import Outcome, Waivers
from benchgate.pipeline.judge import Decision, decide_stored, report_html
from benchgate.pipeline.suite_file import other_prices
from benchgate.release.eligibility import ObstacleKind, measured_forms, purpose_obstacles
from benchgate.report.document import with_exit_code
from benchgate.report.markdown import SUMMARY_BYTES, markdown_of
from benchgate.report.otlp import render_histograms, render_trace
from benchgate.report.outputs import render_metrics, render_notice
from benchgate.report.results import Kind, Level, VerdictContext, plain, suite_lines
from benchgate.report.slack import render_slack
from benchgate.store.bundle import bundle_sources
from benchgate.store.merge import import_runs
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.system import read_text_file

Publisher = Callable[[Message], str]
"""Function that posts a message to one host and returns a description of what it did. Raises PublishError."""

_LONGEST_DOUBT = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A stored run as it is judged now.

    `doubt` is a sentence that says why the verdict must not be relied on; None if it may. `remark` says that other
    parts of the document than the outcome differ from the stored one. `decided_at` is when that was stored.
    """

    decision: Decision
    doubt: str | None
    remark: str | None = None
    decided_at: str | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Return the verdict's own code; 13 if it is in doubt."""
        return self.decision.exit_code if self.doubt is None else ExitCode.PUBLISH_FAILED

    @property
    def state(self) -> CheckState:
        """Return the state that hosts show; INVALID says nothing about the candidate, so it is an error."""
        if self.doubt is not None or self.decision.verdict.outcome is Outcome.INVALID:
            return CheckState.ERROR
        return CheckState.SUCCESS if self.decision.exit_code is ExitCode.OK else CheckState.FAILURE


@dataclass(frozen=True, slots=True)
class Published:
    """Result of one publisher: a description of what it did, or the fault."""

    name: str
    done: str | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class GitHubTargets:
    """GitHub features that show a verdict. `deployment` is the number that GitHub gave a deployment."""

    comment: bool = False
    check_run: bool = False
    commit_status: bool = False
    deployment: int | None = None
    summary: bool = False


def judge_to_publish(
    store: Store,
    run_id: str,
    *,
    waivers: Waivers | None = None,
    strict: bool = False,
    suite_file: Path | None = None,
) -> Judged:
    """Judge a stored run again and compare that with its newest own verdict and its suite. Nothing is stored.

    Raises UsageError for a calibration, which judges no candidate, and for a file that cannot be read.
    """
    run = store.run(run_id)
    obstacles = {one.kind: one for one in purpose_obstacles(run)}
    if (calibration := obstacles.get(ObstacleKind.CALIBRATION)) is not None:
        raise UsageError(f"run {run_id} is not published: {calibration.reason}")
    decision = decide_stored(store, run_id, waivers=waivers, keep=False).with_strict(strict=strict)
    stored = store.own_verdict(run_id)
    now = decision.verdict.outcome
    if stored is None or now is not stored.outcome:
        known = "it has no stored verdict" if stored is None else f"its newest stored verdict is {stored.outcome}"
        return Judged(
            decision,
            f"run {run_id} is {now} as judged now, and {known}, so the verdict is not reliable. Give the --waivers and "
            "--as-of that it was judged by; publish from its store if earlier runs counted, which a bundle lacks; or "
            f"judge it anew with `benchgate gate {run_id}`",
            decided_at=None if stored is None else stored.decided_at,
        )
    if obstacles and decision.exit_code is ExitCode.OK:
        reasons = "; ".join(one.reason for one in obstacles.values())
        return Judged(decision, f"run {run_id} is not published as a pass: {reasons}", None, stored.decided_at)
    if suite_file is not None and (doubt := _suite_doubt(suite_file, run)) is not None:
        return Judged(decision, doubt, None, stored.decided_at)
    same = sha256_of(stored.document) == sha256_of(decision.document)
    remark = "Other parts of its stored verdict differ, for example because it was judged beside other runs."
    return Judged(decision, None, None if same else remark, stored.decided_at)


def _suite_doubt(file: Path, run: Run) -> str | None:
    """Return why the run was not measured by a suite file; None if it was. A suite of the same name may differ."""
    doubt = f"run {run.id} was not measured by {file}"
    try:
        suite = parse_suite(_read_suite_text(file), str(file))
    except SuiteError as error:
        return f"{doubt}: {str(error).splitlines()[0]}"
    names = {arm: deployment.name for arm, deployment in run.arms.items()}
    forms = [one for one in measured_forms(suite, file.parent, run.day, names) if not one.is_only_part]
    if sha256_of(run.suite) in [one.sha256 for one in forms]:
        return None
    reasons = list[str]()
    for form in forms:
        if isinstance(form.suite, SuiteError):
            reasons.append(str(form.suite).splitlines()[0])
        elif (other := other_prices(run.suite, form.suite)) is not None:
            reasons.append(other)
    if reasons:
        return f"{doubt}: {reasons[-1]}; publish from the commit that was measured, with its prices of that day"
    return (
        f"{doubt}, so the verdict is not reliable: publish from the commit that was measured, or measure by this "
        f"suite; another version than benchgate {run.tool_version} may read it differently"
    )


def _read_suite_text(file: Path) -> str:
    if file.is_absolute() or ".." in file.parts:
        raise UsageError(f"--suite {file}: expected its path in the repository, from its root")
    try:
        return read_text_file(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--suite {file}: it cannot be read: {error}") from error


@contextmanager
def store_of_bundle(file: Path) -> Iterator[tuple[Store, str]]:
    """Open a temporary store with only the run of a bundle; yield it and the run's id.

    Raises EvidenceError for a bundle that is damaged or does not match its hashes.
    """
    with tempfile.TemporaryDirectory(prefix="benchgate-bundle-") as folder:
        address = str(Path(folder) / "bundle.db")
        with opened(address, create=True) as database:
            (taken,) = import_runs(lambda: database, bundle_sources([file]))
        if taken.merged is None:
            raise EvidenceError(taken.problem or f"{file}: nothing of it was imported")
        with Store.open(address, create=False) as store:
            yield store, taken.merged.run_id


def message_of(
    judged: Judged, context: GitHubContext, *, key: str | None = None, suite_file: Path | None = None
) -> Message:
    """Return the message for hosts. Annotations point into `suite_file`; a doubtful verdict has none."""
    decision = judged.decision
    run, verdict = decision.evidence.run, decision.verdict
    outcome = "in doubt" if judged.doubt is not None else verdict.outcome.value
    strictly = " (--strict)" if verdict.outcome is Outcome.WARN and decision.terms.strict else ""
    return Message(
        suite=run.suite_name,
        candidate=run.arms[Arm.CANDIDATE].name,
        run_id=run.id,
        outcome=verdict.outcome if judged.doubt is None else None,
        state=judged.state,
        title=plain(f"{outcome}{strictly}: {judged.doubt or verdict.reason}"),
        text=_text_of(judged, context),
        annotations=_annotations(judged, suite_file),
        details_url=context.details_url,
        document=with_exit_code(decision.document, judged.exit_code),
        key=key,
    )


def without_verdict(
    suite: str, candidate: str, context: GitHubContext, *, ended: bool, key: str | None = None
) -> Message:
    """Return a message that a candidate is being measured or, with `ended`, got no verdict: older ones are outdated."""
    title = plain(f"{candidate} came to no verdict" if ended else f"{candidate} is being measured")
    footer = _footer(None, context)

    def text(budget: int) -> str:
        return f"## benchgate: {markdown_prose(title)}\n{footer}"

    state = CheckState.ERROR if ended else CheckState.PENDING
    return Message(suite, candidate, None, None, state, title, text, details_url=context.details_url, key=key)


def publishers(targets: GitHubTargets, context: GitHubContext, environment: Mapping[str, str]) -> dict[str, Publisher]:
    """Return the publishers of GitHub by name. Missing settings are a fault of the publisher that needs them."""

    def by_api(post: Callable[[GitHubApi, Message], str]) -> Publisher:
        def publish(message: Message) -> str:
            with GitHubApi(environment) as api:
                return post(api, message)

        return publish

    def comment(message: Message) -> str:
        pull = context.pull
        if pull is not None:
            return by_api(lambda api, one: publish_comment(api, pull, one))(message)
        if context.is_pull_request:
            raise PublishError(f"{context.event} does not name its pull request; add --pr")
        return f"{context.event} belongs to no pull request, so there is nothing to comment on"

    def summary(message: Message) -> str:
        if not environment.get("GITHUB_STEP_SUMMARY"):
            raise PublishError("GITHUB_STEP_SUMMARY is not set: there is no job summary to write to")
        ci.publish_summary(environment, lambda: message.text(SUMMARY_BYTES))
        return "job summary written"

    found: dict[str, Publisher] = {}
    if targets.check_run:
        found["check-run"] = by_api(lambda api, message: publish_check(api, context.require_sha(), message))
    if targets.commit_status:
        found["commit-status"] = by_api(lambda api, message: publish_commit_status(api, context.require_sha(), message))
    if (number := targets.deployment) is not None:
        found["deployment"] = by_api(lambda api, message: publish_deployment_status(api, number, message))
    if targets.comment:
        found["comment"] = comment
    if targets.summary:
        found["summary"] = summary
    return found


def publish_all(message: Message, to: Mapping[str, Publisher]) -> Iterator[Published]:
    """Post to each publisher in turn; a failure does not stop the others."""
    for name, post in to.items():
        try:
            yield Published(name, post(message), None)
        except PublishError as error:
            yield Published(name, None, str(error))


def _text_of(judged: Judged, context: GitHubContext) -> Callable[[int], str]:
    """Return a function that renders the verdict in at most so many bytes, with the footer."""
    decision, footer = judged.decision, _footer(judged.remark, context)

    def text(budget: int) -> str:
        if judged.doubt is not None:
            return f"## benchgate: in doubt\n\n**{markdown_prose(judged.doubt, _LONGEST_DOUBT)}**\n{footer}"
        return markdown_of(decision.report.view, budget - len(footer.encode())) + footer

    return text


def _footer(remark: str | None, context: GitHubContext) -> str:
    commit = f"Commit {markdown_code(context.sha)}." if context.sha is not None else ""
    details = f"[Details]({context.details_url})." if context.details_url is not None else ""
    line = " ".join(part for part in (commit, details, remark or "") if part)
    return f"\n{line}\n" if line else ""


def _annotations(judged: Judged, suite_file: Path | None) -> tuple[Annotation, ...]:
    """Return failing checks, worst first, at their lines of the suite."""
    if suite_file is None or judged.doubt is not None:
        return ()
    decision = judged.decision
    suite = decision.terms.suite(decision.evidence.run)
    lines = suite_lines(_read_suite_text(suite_file), suite_file.as_posix(), suite, decision.evidence)
    context = VerdictContext(decision.evidence, decision.verdict, judged.exit_code, terms=decision.terms)
    results = [one for one in context.results() if one.kind is not Kind.VERDICT]
    stops = [one for one in results if one.level.stops]
    annotations = []
    for result in (*stops, *(one for one in results if one.level is Level.WARNS)):
        text = " ".join(part for part in (result.line, *result.details[:1], result.advice) if part)
        line = lines.line(result.id if result.kind is Kind.CHECK else None)
        level = "failure" if result.level.stops else "warning"
        annotations.append(Annotation(lines.path, line, level, f"benchgate {result.name}", text))
    return tuple(annotations)


@dataclass(frozen=True, slots=True)
class WebTargets:
    """Addresses that receive a verdict. Slack's address and the webhook's signing key come from the environment."""

    webhook: Destination | None = None
    slack: bool = False
    metrics: Destination | None = None
    otlp: Destination | None = None


def parse_web_targets(webhook: str | None, metrics: str | None, *, slack: bool, otlp: str | None = None) -> WebTargets:
    """Parse the command line's addresses. Raises UsageError."""
    return WebTargets(
        webhook=None if webhook is None else destination(webhook, "--webhook"),
        slack=slack,
        metrics=None if metrics is None else destination(metrics, "--push-metrics"),
        otlp=None if otlp is None else destination(otlp, "--otlp"),
    )


def notifiers(
    judged: Judged, targets: WebTargets, link: str | None, environment: Mapping[str, str], *, clock: Clock = CLOCK
) -> dict[str, Publisher]:
    """Return the publishers of web targets by name. `link` is the address of the report or of the CI's run."""
    decision = judged.decision
    context = VerdictContext(decision.evidence, decision.verdict, judged.exit_code, terms=decision.terms, link=link)

    def webhook(to: Destination) -> str:
        try:
            key = webhook_key(environment)
        except UsageError as error:
            raise PublishError(str(error)) from None
        report_sha256 = hashlib.sha256(report_html(decision).encode()).hexdigest()
        notice = render_notice(context, report_sha256=report_sha256, decided_at=judged.decided_at)
        message_id = send_webhook(to, notice, key, clock=clock)
        return f"sent to {to.origin} as {message_id}"

    def slack() -> str:
        try:
            to = slack_destination(environment)
        except UsageError as error:
            raise PublishError(str(error)) from None
        send_slack(to, render_slack(context), clock=clock)
        return f"sent to {to.origin}"

    def metrics(to: Destination) -> str:
        push_metrics(to, render_metrics(context, with_start=True), context.run.suite_name, clock=clock)
        return f"pushed to {to.origin}"

    def otlp(to: Destination) -> str:
        try:
            headers = otlp_headers(environment)
        except UsageError as error:
            raise PublishError(str(error)) from None
        send_otlp(to, render_trace(context), render_histograms(context), headers, clock=clock)
        return f"sent to {to.origin} as trace {UUID(context.run.id).hex}"

    found: dict[str, Publisher] = {}
    if (hook := targets.webhook) is not None:
        found["webhook"] = lambda _: webhook(hook)
    if targets.slack:
        found["slack"] = lambda _: slack()
    if (gateway := targets.metrics) is not None:
        found["push-metrics"] = lambda _: metrics(gateway)
    if (collector := targets.otlp) is not None:
        found["otlp"] = lambda _: otlp(collector)
    return found
