"""Who asks and from where, by the CI that this process runs in: GitHub Actions, GitLab, or none that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.errors import UsageError
from benchgate.model.promotion import Origin

_CHANGES = ("refs/pull/", "refs/merge-requests/")
_BRANCH_OR_TAG = ("refs/heads/", "refs/tags/")

# Events that only somebody who may write to the repository can bring about. A pull request, a comment, or a workflow
# that another one set off (`workflow_run`) may run on the protected branch and be the doing of anybody.
_OF_WRITERS = ("push", "schedule", "workflow_dispatch", "repository_dispatch", "release", "deployment")


@dataclass(frozen=True, slots=True)
class _Host:
    """What a CI says of the job: `protected` is true only for a ref that the host protects, asked for by no change."""

    name: str
    by: str | None
    ref: str | None
    commit: str | None
    protected: bool


def origin_of(
    environment: Mapping[str, str],
    *,
    by: str | None = None,
    ref: str | None = None,
    commit: str | None = None,
    protected: bool | None = None,
    user: str | None = None,
) -> Origin:
    """Who and where from: what the caller says, else what the CI says, else the `user` of this machine.

    In a CI, the ref and whether it is protected are the CI's to say: a caller may only make less of it. Raises
    UsageError where the two contradict each other, where nobody is named, and where nothing is there to be protected.
    """
    host = _github(environment) or _gitlab(environment)
    by = by or (host.by if host is not None else user)
    if not by:
        raise UsageError("nobody says who promotes; name them with --by")
    if host is None:
        return Origin(by, ref, commit, _by_hand(ref, protected=protected is True))
    if ref is not None and _bare(ref) != _bare(host.ref or ""):
        raise UsageError(f"--ref {ref}: this job of {host.name} is of {host.ref}; leave --ref out")
    if protected and not host.protected:
        raise UsageError(
            f"--protected: {host.name} does not say that {host.ref} is protected; promote from a ref that is"
        )
    return Origin(by, host.ref, commit or host.commit, host.protected and protected is not False)


def _by_hand(ref: str | None, *, protected: bool) -> bool:
    """Whether somebody outside of any CI may say that a ref is protected."""
    if protected and ref is None:
        raise UsageError("--protected says that a ref is protected, and none is named; add --ref")
    if protected and ref is not None and ref.startswith(_CHANGES):
        raise UsageError(f"--protected: {ref} is of a change that is not merged; nobody protects it")
    return protected


def _github(environment: Mapping[str, str]) -> _Host | None:
    """A job of GitHub Actions. What anybody can set off is of no protected ref, whatever it runs on."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    ref, event = environment.get("GITHUB_REF", ""), environment.get("GITHUB_EVENT_NAME", "")
    change = event not in _OF_WRITERS or bool(environment.get("GITHUB_HEAD_REF")) or ref.startswith(_CHANGES)
    return _Host(
        name="GitHub Actions",
        by=environment.get("GITHUB_ACTOR") or None,
        ref=ref or None,
        commit=environment.get("GITHUB_SHA") or None,
        protected=bool(ref) and environment.get("GITHUB_REF_PROTECTED") == "true" and not change,
    )


def _gitlab(environment: Mapping[str, str]) -> _Host | None:
    """A job of GitLab. One of a merge request is of no protected ref."""
    if environment.get("GITLAB_CI") != "true":
        return None
    ref, source = environment.get("CI_COMMIT_REF_NAME", ""), environment.get("CI_PIPELINE_SOURCE", "")
    asked = ("CI_MERGE_REQUEST_IID", "CI_EXTERNAL_PULL_REQUEST_IID")
    change = source.endswith("request_event") or any(environment.get(name) for name in asked)
    return _Host(
        name="GitLab",
        by=environment.get("GITLAB_USER_LOGIN") or None,
        ref=ref or None,
        commit=environment.get("CI_COMMIT_SHA") or None,
        protected=bool(ref) and environment.get("CI_COMMIT_REF_PROTECTED") == "true" and not change,
    )


def _bare(ref: str) -> str:
    """A branch or tag without the folder that git keeps it in."""
    return next((ref.removeprefix(folder) for folder in _BRANCH_OR_TAG if ref.startswith(folder)), ref)
