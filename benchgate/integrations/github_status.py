"""The status of a commit, and of a deployment. The newest one of a name counts, so each adds one.

The newest that was told is not always of the newest run: jobs race, and old ones are run again. So a green is told only
where no newer run was, and is taken back where one came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchgate.integrations.github_api import GitHubApi, Json
from benchgate.integrations.github_refusals import Purpose
from benchgate.integrations.message import Light, Message, Overtaken, run_told


def publish_commit_status(api: GitHubApi, sha: str, message: Message) -> str:
    """Add a status to a commit; what was done, in words. Raises PublishError."""
    purpose = Purpose("the commit status", "statuses: write")
    status: Json = {"state": message.light.value, "context": message.name, "description": message.description}
    if message.details_url is not None:
        status["target_url"] = message.details_url

    def told() -> Iterable[Json]:
        listed = api.pages(f"{api.root}/commits/{sha}/statuses", purpose)
        return (one for one in listed if one.get("context") == message.name)

    def require_newest() -> None:
        message.require_newest([run_told(one.get("description")) for one in told()][::-1], purpose.doing)

    _add(api, f"{api.root}/statuses/{sha}", status, told, require_newest, purpose)
    return f"status {message.name!r} is {message.light} on {sha[:12]}"


def publish_deployment_status(api: GitHubApi, deployment: int, message: Message) -> str:
    """Add a status to a deployment that GitHub knows by its number; what was done, in words. Raises PublishError.

    It makes no other deployment of the environment inactive: a verdict puts nothing into service.
    """
    purpose = Purpose(f"the status of deployment {deployment}", "deployments: write")
    state = "in_progress" if message.light is Light.PENDING else message.light.value
    status: Json = {"state": state, "description": message.description, "auto_inactive": False}
    if message.details_url is not None:
        status["log_url"] = message.details_url
    path = f"{api.root}/deployments/{deployment}/statuses"

    def told() -> Iterable[Json]:
        return api.pages(path, purpose)

    def require_newest() -> None:
        runs = [run_told(one.get("description")) for one in told()]
        message.require_newest([run for run in runs[::-1] if run], purpose.doing)  # others tell of their own here

    _add(api, path, status, told, require_newest, purpose)
    return f"deployment {deployment} is {state}"


def _add(
    api: GitHubApi,
    path: str,
    status: Json,
    told: Callable[[], Iterable[Json]],
    require_newest: Callable[[], None],
    purpose: Purpose,
) -> None:
    """Add one to those that were `told`, newest first. Raises Overtaken where it is green and not the newest run's."""
    green = status["state"] == Light.SUCCESS.value

    def there() -> Json | None:
        newest = next(iter(told()), None)
        said = ("state", "description")
        return newest if newest is not None and all(newest.get(key) == status[key] for key in said) else None

    if green:
        require_newest()
    api.send("POST", path, status, purpose, there)
    try:
        if green:
            require_newest()
    except Overtaken:
        description = f"overtaken by a newer run · run {run_told(status['description'])}"
        api.send("POST", path, status | {"state": "error", "description": description}, purpose)
        raise
