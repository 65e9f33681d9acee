"""From a verdict that was judged again to whoever asked for it by an address: a webhook, Slack, a Pushgateway."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.errors import PublishError, UsageError
from benchgate.integrations.delivery import CLOCK, Clock
from benchgate.integrations.destination import Destination, destination
from benchgate.integrations.message import Message
from benchgate.integrations.webhook import push_metrics, send_slack, send_webhook, slack_destination, webhook_key
from benchgate.pipeline.judge import report_html
from benchgate.release.publish import Judged, Publisher
from benchgate.report.outputs import render_metrics, render_notice
from benchgate.report.results import VerdictContext
from benchgate.report.slack import render_slack


@dataclass(frozen=True, slots=True)
class Addressed:
    """Who else is to be told. Where Slack is, and what a webhook is signed with, the environment says."""

    webhook: Destination | None = None
    slack: bool = False
    metrics: Destination | None = None


def addressed(webhook: str | None, metrics: str | None, *, slack: bool) -> Addressed:
    """By the command line. Raises UsageError for what is no address."""
    return Addressed(
        webhook=None if webhook is None else destination(webhook, "--webhook"),
        slack=slack,
        metrics=None if metrics is None else destination(metrics, "--push-metrics"),
    )


def notifiers(
    judged: Judged, to: Addressed, link: str | None, environment: Mapping[str, str], *, clock: Clock = CLOCK
) -> dict[str, Publisher]:
    """Everybody in `to`, by name. `link` is where the report is, or the page of the CI's run."""
    decision = judged.decision
    told = VerdictContext(decision.evidence, decision.verdict, judged.exit_code, terms=decision.terms, link=link)

    def webhook(_: Message) -> str:
        assert to.webhook is not None, "only then is it among those who are told"
        try:
            key = webhook_key(environment)
        except UsageError as error:
            raise PublishError(str(error)) from None
        report_sha256 = hashlib.sha256(report_html(decision).encode()).hexdigest()
        sent = send_webhook(to.webhook, render_notice(told, report_sha256=report_sha256), key, clock=clock)
        return f"taken by {to.webhook.origin} as {sent}"

    def slack(_: Message) -> str:
        try:
            there = slack_destination(environment)
        except UsageError as error:
            raise PublishError(str(error)) from None
        send_slack(there, render_slack(told), clock=clock)
        return f"taken by {there.origin}"

    def metrics(_: Message) -> str:
        assert to.metrics is not None, "only then is it among those who are told"
        push_metrics(to.metrics, render_metrics(told), told.run.suite_name, clock=clock)
        return f"pushed to {to.metrics.origin}"

    every: dict[str, tuple[bool, Publisher]] = {
        "webhook": (to.webhook is not None, webhook),
        "slack": (to.slack, slack),
        "push-metrics": (to.metrics is not None, metrics),
    }
    return {name: tell for name, (wanted, tell) in every.items() if wanted}
