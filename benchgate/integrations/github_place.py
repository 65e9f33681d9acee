"""Where a verdict is to be told, by the job of GitHub Actions that this process runs in: commit, pull request, link."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchgate.errors import PublishError, UsageError
from benchgate.integrations.run_url import run_url

_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PULL_REF = re.compile(r"refs/pull/([1-9][0-9]{0,9})/(?:merge|head)")
_URL = re.compile(r"https?://[A-Za-z0-9\-._~:/?#@!$&*+,;=%]+")  # nothing that could end a link in Markdown


@dataclass(frozen=True, slots=True)
class Place:
    """`sha` is the commit that was judged, `pull` the number of the pull request; None where nobody says. `event` is
    what set the job off, in words.

    `of_a_pull` is whether there should be one: not for a push, say. `stranger` is the repository, not this one, in
    which the change lies that the job was set off by; None where there is none.
    """

    sha: str | None
    pull: int | None
    details_url: str | None
    event: str
    of_a_pull: bool = True
    stranger: str | None = None

    def require_own(self) -> None:
        """Raise UsageError for a job of a change whose author may have made up whatever it left to be published."""
        if self.stranger is not None:
            raise UsageError(
                f"this job is for a change in {self.stranger}, and whoever writes there may have made up the run, so "
                "nothing is published of it; measure and publish in a job that only your own people set off "
                "(`workflow_dispatch`), with --sha and --pr"
            )

    def require_sha(self) -> str:
        """The commit. Raises PublishError where it is not known."""
        if self.sha is None:
            raise PublishError(f"{self.event} does not say which commit was judged; add --sha")
        return self.sha


def place_of(
    environment: Mapping[str, str],
    *,
    sha: str | None = None,
    pull: int | None = None,
    details_url: str | None = None,
) -> Place:
    """What is said, else what GitHub says of the event. Raises UsageError for a --sha or an address that is none.

    Of a pull request the commit is its head: GITHUB_SHA is that of a merge that nobody sees. The number that an issue's
    or a workflow's event gives is taken only where it is that of one pull request of this repository.
    """
    if sha is not None and not _SHA.fullmatch(sha):
        raise UsageError(f"--sha {ascii(sha)[:60]}: expected a whole commit id, 40 or 64 hexadecimal digits")
    if details_url is not None and not is_link(details_url):
        raise UsageError(
            f"--details-url {ascii(details_url)[:60]}: expected an address that begins with https:// or http://"
        )
    name, of_the_job = environment.get("GITHUB_EVENT_NAME", ""), run_url(environment)
    event = _event(environment.get("GITHUB_EVENT_PATH"))
    return Place(
        sha=sha or _sha(environment, name, event),
        pull=pull or _pull(environment, event),
        details_url=details_url or (of_the_job if of_the_job is not None and is_link(of_the_job) else None),
        event=f"the event {name!r}" if name else "the environment",
        of_a_pull=not name
        or any(str(one).startswith("pull_request") for one in (name, _at(event, "workflow_run", "event"))),
        stranger=_stranger(environment, name, event),
    )


def is_link(url: str) -> bool:
    """Whether it can stand in a link as it is."""
    try:
        return _URL.fullmatch(url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).username is None
    except ValueError:
        return False


def _event(path: str | None) -> dict[str, Any]:
    """What set the job off; empty where that cannot be read, which leaves it to --sha and --pr."""
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sha(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    told = (
        _at(event, "pull_request", "head", "sha"),
        _at(event, "merge_group", "head_sha"),
        _at(event, "workflow_run", "head_sha") if name == "workflow_run" else None,
    )
    found = next((one for one in told if one is not None), None)
    if found is None and not name.startswith(("pull_request", "workflow_run", "issue_comment")):
        found = environment.get("GITHUB_SHA")
    return found if isinstance(found, str) and _SHA.fullmatch(found) else None


def _pull(environment: Mapping[str, str], event: dict[str, Any]) -> int | None:
    listed, here = _at(event, "workflow_run", "pull_requests"), _at(event, "repository", "id")
    listed = [one for one in listed if _at(one, "base", "repo", "id") == here] if isinstance(listed, list) else []
    told = (
        _at(event, "pull_request", "number"),
        _at(event, "issue", "number") if _at(event, "issue", "pull_request") is not None else None,
        _at(listed[0], "number") if len(listed) == 1 and here is not None else None,
    )
    number = next((one for one in told if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
    ref = _PULL_REF.fullmatch(environment.get("GITHUB_REF", ""))
    return number or (int(ref[1]) if ref is not None else None)


def _stranger(environment: Mapping[str, str], name: str, event: dict[str, Any]) -> str | None:
    """The repository of the change, where the job is for one and it is not this one; one that is not known counts."""
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
    """What stands under these keys, one inside the other; None where one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
