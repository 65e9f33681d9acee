"""The forms that a verdict can be written in, by name. Each is a module of its own, loaded where it is asked for."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchgate.report.results import Told


class Output(StrEnum):
    """A form of a verdict in a file."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    ANNOTATIONS = "annotations"
    GITLAB_METRICS = "gitlab-metrics"
    GITLAB_ANNOTATIONS = "gitlab-annotations"
    SLACK = "slack"

    @property
    def file_name(self) -> str:
        """What its file is called unless said."""
        return _FILES[self]


_FILES = {
    Output.HTML: "report.html",
    Output.JSON: "report.json",
    Output.MARKDOWN: "report.md",
    Output.JUNIT: "report-junit.xml",
    Output.SARIF: "report.sarif",
    Output.ANNOTATIONS: "annotations.txt",
    Output.GITLAB_METRICS: "metrics.txt",
    Output.GITLAB_ANNOTATIONS: "gl-annotations.json",
    Output.SLACK: "slack.json",
}


def rendered(output: Output, told: Told) -> str:
    """The text of one form. Raises UsageError for a form of links where nobody knows the report's address."""
    match output:
        case Output.HTML | Output.JSON | Output.MARKDOWN:
            return _read_by_people(output, told)
        case Output.JUNIT:
            from benchgate.report.junit import render_junit

            return render_junit(told)
        case Output.SARIF:
            from benchgate.report.sarif import render_sarif

            return render_sarif(told)
        case Output.ANNOTATIONS:
            from benchgate.report.annotations import render_annotations

            return render_annotations(told)
        case Output.GITLAB_METRICS:
            from benchgate.report.gitlab import render_gitlab_metrics

            return render_gitlab_metrics(told)
        case Output.GITLAB_ANNOTATIONS:
            from benchgate.report.gitlab import render_gitlab_annotations

            return render_gitlab_annotations(told)
        case Output.SLACK:
            from benchgate.report.slack import render_slack

            return render_slack(told)


def _read_by_people(output: Output, told: Told) -> str:
    """The report itself, short or whole, and the verdict document."""
    if output is Output.JSON:
        from benchgate.report.document import document_json, verdict_document, with_exit_code

        document = verdict_document(told.run, told.verdict, against=told.reference, terms=told.terms)
        return document_json(with_exit_code(document, told.exit_code))
    if output is Output.HTML:
        from benchgate.report.html import render_html

        return render_html(told.evidence, told.verdict, against=told.against, terms=told.terms)
    from benchgate.report.markdown import render_markdown

    return render_markdown(told.evidence, told.verdict, against=told.against, terms=told.terms)
