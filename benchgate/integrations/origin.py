"""Who asks and from where, by the CI that this process runs in: GitHub Actions, GitLab, or none that is known.

The environment is the word of whoever starts the process. This keeps a job from promoting by mistake what its host
would not; it keeps nobody out who may write to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.errors import UsageError
from benchgate.model.history import PromotionOrigin

_CHANGES = ("refs/pull/", "refs/merge-requests/")
_BRANCH_OR_TAG = ("refs/heads/", "refs/tags/")

# Events that only somebody who may write to the repository can bring about. A pull request, a comment, or a workflow
# that another one set off (`workflow_run`) may run on the protected branch and be the doing of anybody.
_OF_WRITERS = ("push", "schedule", "workflow_dispatch", "repository_dispatch", "release", "deployment")

# Other CIs: what gives each away, its name, and what it sets in a job for a change that is not merged. None of them
# says in the environment whether a branch is protected.
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
    """What a CI says of the job: `doubt` is why nobody says that its ref is protected; None where the host does."""

    name: str
    by: str | None
    ref: str | None
    commit: str | None
    doubt: str | None

    @property
    def told(self) -> str:
        """The CI, and for whom it says that it works."""
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
    """Who and where from: what the caller says, else what the CI says, else the `user` of this machine.

    In GitHub Actions and GitLab the ref and whether it is protected are the host's to say: a caller may only make less
    of it. Elsewhere they are the caller's; that it was in another CI is recorded. Raises UsageError where the two
    contradict each other, where nobody is named, and where nothing is there to be protected.
    """
    host = _host(environment)
    by = by or (host.by if host is not None else user)
    if not by:
        raise UsageError("nobody says who promotes; name them with --by")
    if host is None:
        by_hand = _by_hand(environment, ref, protected=protected is True)
        return PromotionOrigin(by, ref, commit, by_hand, ci=_other_ci(environment))
    if ref is not None and _bare(ref) != _bare(host.ref or ""):
        raise UsageError(f"--ref {ref}: this job of {host.name} is of {host.ref}; leave --ref out")
    if protected and host.doubt is not None:
        raise UsageError(f"--protected: {host.doubt}; promote in a job on a protected ref, and leave --protected out")
    is_protected = host.doubt is None and protected is not False
    return PromotionOrigin(by, host.ref, commit or host.commit, is_protected, ci=host.told)


def unprotected_because(environment: Mapping[str, str]) -> str:
    """Why what is promoted here is of no protected ref, for whoever expected it to be."""
    host = _host(environment)
    if host is None:
        return "nobody said that its ref is protected, as --ref REF --protected does"
    return host.doubt or "--not-protected said that its ref is not"


def _by_hand(environment: Mapping[str, str], ref: str | None, *, protected: bool) -> bool:
    """Whether a caller outside of GitHub and GitLab may say that a ref is protected."""
    if not protected:
        return False
    if ref is None:
        raise UsageError("--protected says that a ref is protected, and none is named; add --ref")
    if ref.startswith(_CHANGES):
        raise UsageError(f"--protected: {ref} is of a change that is not merged; nobody protects it")
    for mark, name, change in _OTHERS:
        if environment.get(mark) and environment.get(change, "") not in _NO:
            raise UsageError(f"--protected: this job of {name} is for a change that is not merged ({change} is set)")
    return True


def _other_ci(environment: Mapping[str, str]) -> str | None:
    """A CI that benchgate cannot ask, in words that are recorded; None where there is none."""
    name = next((name for mark, name, _ in _OTHERS if environment.get(mark, "") not in _NO), None)
    return None if name is None else f"{name}, which does not say whether a ref is protected"


def _host(environment: Mapping[str, str]) -> _Host | None:
    return _github(environment) or _gitlab(environment)


def _github(environment: Mapping[str, str]) -> _Host | None:
    """A job of GitHub Actions. What anybody can set off is of no protected ref, whatever it runs on."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    ref, event = environment.get("GITHUB_REF", ""), environment.get("GITHUB_EVENT_NAME", "")
    doubt = None
    if event not in _OF_WRITERS:
        doubt = f"this job was set off by {event or 'an event without a name'}, which anybody can bring about"
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
    """A job of GitLab. One of a merge request is of no protected ref."""
    if environment.get("GITLAB_CI") != "true":
        return None
    ref, source = environment.get("CI_COMMIT_REF_NAME", ""), environment.get("CI_PIPELINE_SOURCE", "")
    asked = ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID")
    doubt = None
    if source.endswith("request_event") or any(environment.get(name) for name in asked):
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
    """A branch or tag without the folder that git keeps it in."""
    return next((ref.removeprefix(folder) for folder in _BRANCH_OR_TAG if ref.startswith(folder)), ref)
