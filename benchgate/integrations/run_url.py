"""Where the CI that this process runs in shows the run: a page that people can open."""

from __future__ import annotations

import re
from collections.abc import Mapping

ADDRESS = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._~!$&'()*+,;=:@%/?#\-]*)?")
_LONGEST = 500

# The variables that hold the address itself, as each CI documents them.
_NAMED = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL", "TRAVIS_BUILD_WEB_URL")


def run_url(environment: Mapping[str, str]) -> str | None:
    """The address of the CI's page of this run; None where no CI says one, or not in the form of an address.

    One with a user or a password in it is not taken.
    """
    found = _github(environment) or _azure(environment)
    if found is None:
        found = next((environment[name] for name in _NAMED if environment.get(name)), None)
    return found if found is not None and len(found) <= _LONGEST and ADDRESS.fullmatch(found) else None


def _github(environment: Mapping[str, str]) -> str | None:
    if environment.get("GITHUB_ACTIONS") != "true":
        return None
    server, repository, run = (
        environment.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    )
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else None


def _azure(environment: Mapping[str, str]) -> str | None:
    names = ("SYSTEM_COLLECTIONURI", "SYSTEM_TEAMPROJECT", "BUILD_BUILDID")
    server, project, build = (environment.get(name, "") for name in names)
    if environment.get("TF_BUILD") is None or not (server and project and build):
        return None
    return f"{server.rstrip('/')}/{project}/_build/results?buildId={build}"
