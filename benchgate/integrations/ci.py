"""The CI environment of this process: the person and ref behind a promotion, the run's address, and GitHub's event.

The environment is set by whoever starts the process. Checking it keeps a job from promoting by mistake what its host
would not allow; it does not keep anybody out who may write to the store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchgate.errors import PublishError, UsageError
from benchgate.model.history import PromotionOrigin

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PULL_REF = re.compile(r"refs/pull/([1-9][0-9]{0,9})/(?:merge|head)")
_URL = re.compile(r"https?://[A-Za-z0-9\-._~:/?#@!$&*+,;=%]+")  # nothing that could end a link in Markdown


@dataclass(frozen=True, slots=True)
class GitHubContext:
    """Commit and pull request to publish on; None if unknown. `event` describes the trigger of the job.

    `is_pull_request` is False for events without a pull request, such as a push. `foreign_repository` is where the
    change lies, if that is not this repository.
    """

    sha: str | None
    pull: int | None
    details_url: str | None
    event: str
    is_pull_request: bool = True
    foreign_repository: str | None = None

    def require_own_repository(self) -> None:
        """Raise UsageError for a change from another repository: its author may have made up the run."""
        if self.foreign_repository is not None:
            raise UsageError(
                f"this job is for a change in {self.foreign_repository}, whose authors may have made up the run, so "
                "nothing is published of it; measure and publish in a job that only your own people can start "
                "(`workflow_dispatch`), with --sha and --pr"
            )

    def require_sha(self) -> str:
        """Return the commit. Raises PublishError if it is unknown."""
        if self.sha is None:
            raise PublishError(f"{self.event} does not name the commit that was judged; add --sha")
        return self.sha


def github_context(
    environment: Mapping[str, str],
    *,
    sha: str | None = None,
    pull: int | None = None,
    details_url: str | None = None,
) -> GitHubContext:
    """Return the context by the options, else by GitHub's event. Raises UsageError for a malformed --sha or address.

    The commit of a pull request is its head, because GITHUB_SHA is a merge that nobody sees. The number in an issue's
    or workflow's event is used only if it is that of one pull request of this repository.
    """
    if sha is not None and not _SHA.fullmatch(sha):
        raise UsageError(f"--sha {ascii(sha)[:60]}: expected a whole commit id, 40 or 64 hexadecimal digits")
    if details_url is not None and not is_link(details_url):
        raise UsageError(
            f"--details-url {ascii(details_url)[:60]}: expected an address that begins with https:// or http://"
        )
    name, of_the_job = environment.get("GITHUB_EVENT_NAME", ""), run_url(environment)
    event = _event(environment.get("GITHUB_EVENT_PATH"))
    return GitHubContext(
        sha=sha or _sha(environment, name, event),
        pull=pull or _pull(environment, event),
        details_url=details_url or (of_the_job if of_the_job is not None and is_link(of_the_job) else None),
        event=f"the event {name!r}" if name else "the environment",
        is_pull_request=not name
        or any(str(one).startswith("pull_request") for one in (name, _at(event, "workflow_run", "event"))),
        foreign_repository=_foreign_repository(environment, name, event),
    )


def is_link(url: str) -> bool:
    """Return True if an address can be used in a Markdown link as it is."""
    try:
        return _URL.fullmatch(url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).username is None
    except ValueError:
        return False


def _event(path: str | None) -> dict[str, Any]:
    """Return the job's event; empty if it cannot be read, so that --sha and --pr are needed."""
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sha(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    candidates = (
        _at(event, "pull_request", "head", "sha"),
        _at(event, "merge_group", "head_sha"),
        _at(event, "workflow_run", "head_sha") if name == "workflow_run" else None,
    )
    found = next((one for one in candidates if one is not None), None)
    if found is None and not name.startswith(("pull_request", "workflow_run", "issue_comment")):
        found = environment.get("GITHUB_SHA")
    return found if isinstance(found, str) and _SHA.fullmatch(found) else None


def _pull(environment: Mapping[str, str], event: dict[str, Any]) -> int | None:
    listed, here = _at(event, "workflow_run", "pull_requests"), _at(event, "repository", "id")
    listed = [one for one in listed if _at(one, "base", "repo", "id") == here] if isinstance(listed, list) else []
    numbers = (
        _at(event, "pull_request", "number"),
        _at(event, "issue", "number") if _at(event, "issue", "pull_request") is not None else None,
        _at(listed[0], "number") if len(listed) == 1 and here is not None else None,
    )
    number = next((one for one in numbers if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
    ref = _PULL_REF.fullmatch(environment.get("GITHUB_REF", ""))
    return number or (int(ref[1]) if ref is not None else None)


def _foreign_repository(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    """Return the repository of the change if it is not this one; an unknown one counts as a foreign_repository."""
    if name.startswith("pull_request"):
        head = _at(event, "pull_request", "head", "repo", "full_name")
    elif name == "workflow_run":
        head = _at(event, "workflow_run", "head_repository", "full_name")
    else:
        return None
    known = isinstance(head, str) and head != ""
    if known and head.lower() == environment.get("GITHUB_REPOSITORY", "").lower():
        return None
    return ascii(head)[1:-1] if known else "a repository that the event does not name"


def _at(value: object, *keys: str) -> Any:
    """Return the nested value under these keys; None if one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_CHANGES = ("refs/pull/", "refs/merge-requests/")
_BRANCH_OR_TAG = ("refs/heads/", "refs/tags/")

# Events that only people with write access can trigger. A pull request, a comment, or a workflow started by another one
# (`workflow_run`) may run on the protected branch and be triggered by anybody.
_WRITER_EVENTS = ("push", "schedule", "workflow_dispatch", "repository_dispatch", "release", "deployment")

# Other CIs: a variable that identifies each, its name, and the variable of a job for an unmerged change. None of them
# reports protected branches.
_OTHERS = (
    ("JENKINS_URL", "Jenkins", "CHANGE_ID"),
    ("BUILDKITE", "Buildkite", "BUILDKITE_PULL_REQUEST"),
    ("CIRCLECI", "CircleCI", "CIRCLE_PULL_REQUEST"),
    ("TF_BUILD", "Azure Pipelines", "SYSTEM_PULLREQUEST_PULLREQUESTID"),
    ("BITBUCKET_BUILD_NUMBER", "Bitbucket Pipelines", "BITBUCKET_PR_ID"),
    ("TRAVIS", "Travis CI", "TRAVIS_PULL_REQUEST"),
    ("TEAMCITY_VERSION", "TeamCity", ""),
    ("CI", "a CI that is not known", ""),
)
_NO = ("", "0", "false")


@dataclass(frozen=True, slots=True)
class _Host:
    """The job as its CI describes it. `doubt` is why its ref does not count as protected; None if it does."""

    name: str
    by: str | None
    ref: str | None
    commit: str | None
    doubt: str | None

    @property
    def description(self) -> str:
        return f"{self.name} for {self.by}" if self.by else self.name


def origin_of(
    environment: Mapping[str, str],
    *,
    by: str | None = None,
    ref: str | None = None,
    commit: str | None = None,
    protected: bool | None = None,
    user: str | None = None,
) -> PromotionOrigin:
    """Return the origin of a promotion by the options, else by the CI, else by this machine's `user`.

    In GitHub Actions and GitLab the host decides on the ref and its protection: options may only deny that. Elsewhere
    the options decide, and an unknown CI is recorded. Raises UsageError where both contradict each other, nobody is
    named, or no ref is there to be protected.
    """
    host = _host(environment)
    by = by or (host.by if host is not None else user)
    if not by:
        raise UsageError("it is not known who promotes; name them with --by")
    if host is None:
        by_hand = _by_hand(environment, ref, protected=protected is True)
        name = next((name for mark, name, _ in _OTHERS if environment.get(mark, "") not in _NO), None)
        ci = None if name is None else f"{name}, which does not report protected refs"
        return PromotionOrigin(by, ref, commit, by_hand, ci=ci)
    if ref is not None and _bare(ref) != _bare(host.ref or ""):
        raise UsageError(f"--ref {ref}: this job of {host.name} is of {host.ref}; leave --ref out")
    if protected and host.doubt is not None:
        raise UsageError(f"--protected: {host.doubt}; promote in a job on a protected ref, and leave --protected out")
    is_protected = host.doubt is None and protected is not False
    return PromotionOrigin(by, host.ref, commit or host.commit, is_protected, ci=host.description)


def unprotected_because(environment: Mapping[str, str]) -> str:
    """Return why a promotion from here is of no protected ref."""
    host = _host(environment)
    if host is None:
        return "its ref is not stated to be protected, as by --ref REF --protected"
    return host.doubt or "--not-protected was given"


def _by_hand(environment: Mapping[str, str], ref: str | None, *, protected: bool) -> bool:
    """Return True if the options say that a ref outside of GitHub and GitLab is protected."""
    if not protected:
        return False
    if ref is None:
        raise UsageError("--protected: no ref is named; add --ref")
    if ref.startswith(_CHANGES):
        raise UsageError(f"--protected: {ref} is of a change that is not merged, so it is not protected")
    for mark, name, change in _OTHERS:
        if environment.get(mark) and environment.get(change, "") not in _NO:
            raise UsageError(f"--protected: this job of {name} is for a change that is not merged ({change} is set)")
    return True


def _host(environment: Mapping[str, str]) -> _Host | None:
    return _github(environment) or _gitlab(environment)


def _github(environment: Mapping[str, str]) -> _Host | None:
    """Read a job of GitHub Actions. An event that anybody can trigger is of no protected ref."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    ref, event = environment.get("GITHUB_REF", ""), environment.get("GITHUB_EVENT_NAME", "")
    doubt = None
    if event not in _WRITER_EVENTS:
        doubt = f"this job was started by {event or 'an event without a name'}, which anybody can trigger"
    elif environment.get("GITHUB_HEAD_REF") or ref.startswith(_CHANGES):
        doubt = "this job is for a change that is not merged"
    elif not ref or environment.get("GITHUB_REF_PROTECTED") != "true":
        doubt = f"GitHub Actions does not say that {ref or 'the ref of this job'} is protected"
    return _Host(
        name="GitHub Actions",
        by=environment.get("GITHUB_ACTOR") or None,
        ref=ref or None,
        commit=environment.get("GITHUB_SHA") or None,
        doubt=doubt,
    )


def _gitlab(environment: Mapping[str, str]) -> _Host | None:
    """Read a job of GitLab. A merge request is of no protected ref."""
    if environment.get("GITLAB_CI") != "true":
        return None
    ref, source = environment.get("CI_COMMIT_REF_NAME", ""), environment.get("CI_PIPELINE_SOURCE", "")
    changes = ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID")
    doubt = None
    if source.endswith("request_event") or any(environment.get(name) for name in changes):
        doubt = "this job is for a change that is not merged"
    elif not ref or environment.get("CI_COMMIT_REF_PROTECTED") != "true":
        doubt = f"GitLab does not say that {ref or 'the ref of this job'} is protected"
    return _Host(
        name="GitLab",
        by=environment.get("GITLAB_USER_LOGIN") or None,
        ref=ref or None,
        commit=environment.get("CI_COMMIT_SHA") or None,
        doubt=doubt,
    )


def _bare(ref: str) -> str:
    """Return a branch or tag without its `refs/` folder."""
    return next((ref.removeprefix(folder) for folder in _BRANCH_OR_TAG if ref.startswith(folder)), ref)


ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~!$&'()*+,;=:@%/?#\-]*)?")
_LONGEST_RUN_URL = 500

# The variables that hold the address itself, as each CI documents them.
_NAMED = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL", "TRAVIS_BUILD_WEB_URL")


def run_url(environment: Mapping[str, str]) -> str | None:
    """Return the address of the CI's page of this run, without credentials; None if the CI does not set one."""
    found = _github_run_url(environment) or _azure_run_url(environment)
    if found is None:
        found = next((environment[name] for name in _NAMED if environment.get(name)), None)
    return found if found is not None and len(found) <= _LONGEST_RUN_URL and ADDRESS.fullmatch(found) else None


def _github_run_url(environment: Mapping[str, str]) -> str | None:
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    server, repository, run = (
        environment.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    )
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else None


def _azure_run_url(environment: Mapping[str, str]) -> str | None:
    names = ("SYSTEM_COLLECTIONURI", "SYSTEM_TEAMPROJECT", "BUILD_BUILDID")
    server, project, build = (environment.get(name, "") for name in names)
    if environment.get("TF_BUILD") is None or not (server and project and build):
        return None
    return f"{server.rstrip('/')}/{project}/_build/results?buildId={build}"


_LONGEST_LINK = 2000


def report_link(environment: Mapping[str, str], url: str | None, report: Path | None) -> str | None:
    """Return the address of the report, or of the CI's page of the run; None if unknown.

    Raises UsageError for a malformed address, or one with a user or a password, which would be shown.
    """
    if url is not None:
        if len(url) > _LONGEST_LINK or not ADDRESS.fullmatch(url):
            raise UsageError(
                "--report-url: expected an http or https address without user and password, with whatever is not "
                "ASCII percent-encoded, like https://ci.example.com/report.html"
            )
        return url
    return _gitlab_artifact_url(environment, report) or run_url(environment)


def _gitlab_artifact_url(environment: Mapping[str, str], report: Path | None) -> str | None:
    """Return the address of a report inside the project's folder among the job's artifacts."""
    folder = environment.get("CI_PROJECT_DIR")
    if report is None or folder is None or environment.get("GITLAB_CI") != "true":
        return None
    job = run_url(environment)
    inside = os.path.relpath(report.absolute(), folder)
    if job is None or inside.startswith(".."):
        return None
    return f"{job}/artifacts/file/{quote(inside.replace(os.sep, '/'), errors='replace')}"
