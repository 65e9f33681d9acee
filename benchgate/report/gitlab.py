"""What GitLab reads beside JUnit: a metrics report, and annotations that are links on the job's page."""

from __future__ import annotations

import json

from benchgate.errors import UsageError
from benchgate.report.check_rows import check_rows
from benchgate.report.results import Told, plain
from benchgate.report.run_metrics import render_metrics

_DIGITS = 3
_MOST_LINKS = 10
_LABEL_CHARACTERS = 200


def render_gitlab_metrics(told: Told) -> str:
    """For `artifacts:reports:metrics`: GitLab compares values as texts, so they have 3 digits."""
    return render_metrics(told, digits=_DIGITS)


def render_gitlab_annotations(told: Told) -> str:
    """Links to the report and to its failing checks, for `artifacts:reports:annotations`.

    Raises UsageError where nobody said where the report is to be found: a link is all that GitLab shows.
    """
    if told.link is None:
        raise UsageError("annotations of GitLab are links to the report; say where it will be found with --report-url")
    verdict = told.results()[0]
    links = [_link(f"{verdict.line} (run {plain(told.run.id)})", told.link)]
    is_page = told.link.endswith(".html")  # and not the CI's page of the run, which has no places of checks
    for row in check_rows(told.verdict).failing[:_MOST_LINKS]:
        advisory = "" if row.required else " (advisory)"
        links.append(
            _link(f"{row.outcome}: {row.title}{advisory}", f"{told.link}#{row.anchor}" if is_page else told.link)
        )
    return json.dumps({"benchgate": links}, indent=2, sort_keys=True) + "\n"


def _link(label: str, url: str) -> dict[str, dict[str, str]]:
    return {"external_link": {"label": plain(label, _LABEL_CHARACTERS), "url": url}}
