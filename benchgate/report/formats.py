"""The formats of a verdict by name; their modules are imported when one is written."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchgate.report.results import VerdictContext
    from benchgate.report.view import Report


class Output(StrEnum):
    """A format of a verdict."""

    HTML = "html"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    GITLAB_ANNOTATIONS = "gitlab-annotations"
    SLACK = "slack"

    @property
    def file_name(self) -> str:
        """The name of its file by default."""
        return _FILE_NAMES[self]


_FILE_NAMES = {
    Output.HTML: "report.html",
    Output.JSON: "report.json",
    Output.MARKDOWN: "report.md",
    Output.JUNIT: "report-junit.xml",
    Output.SARIF: "report.sarif",
    Output.GITHUB: "annotations.txt",
    Output.GITLAB: "metrics.txt",
    Output.GITLAB_ANNOTATIONS: "gl-annotations.json",
    Output.SLACK: "slack.json",
}


def rendered(output: Output, context: VerdictContext, report: Report | None = None) -> str:
    """Return the text of one format; `report` is that of the verdict, if it was made before.

    Raises UsageError for a format of links when the report's address is unknown.
    """
    from benchgate.report import outputs, sarif, slack
    from benchgate.report.document import document_json, with_exit_code

    match output:
        case Output.HTML:
            from benchgate.report.html import page_of

            return page_of((report or context.report).view)
        case Output.MARKDOWN:
            from benchgate.report.markdown import markdown_of

            return markdown_of((report or context.report).view_of(context.exit_code))
        case Output.JSON:
            return document_json(with_exit_code((report or context.report).document, context.exit_code))
        case Output.JUNIT:
            return outputs.render_junit(context)
        case Output.SARIF:
            return sarif.render_sarif(context)
        case Output.GITHUB:
            return outputs.render_annotations(context)
        case Output.GITLAB:
            return outputs.render_metrics(context, digits=3)  # GitLab compares values as texts
        case Output.GITLAB_ANNOTATIONS:
            return outputs.render_gitlab_annotations(context)
        case Output.SLACK:
            return slack.render_slack(context)
