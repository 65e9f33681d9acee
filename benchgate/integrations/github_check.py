"""The check run of a commit: first in progress, so that nothing older stays green meanwhile, then concluded."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from benchgate.integrations.github_api import GitHubApi, Json, number_of
from benchgate.integrations.github_refusals import Purpose
from benchgate.integrations.message import Annotation, Light, Message, Overtaken

SUMMARY_BYTES = 60_000
"""GitHub takes 65,535 characters."""

ANNOTATIONS_A_REQUEST = 50
_TITLE_CHARACTERS = 255
_PURPOSE = Purpose("the check run", "checks: write")


def publish_check(api: GitHubApi, sha: str, message: Message) -> str:
    """Show the verdict as a check of a commit; what was done, in words. Raises PublishError.

    A run that is told twice has a second check run, which is the one that counts. A green is told only where no newer
    run was, and is taken back where one came in between.
    """
    check = _begun(api, sha, message)
    if message.light is Light.PENDING:
        return f"check {message.name!r} is in progress on {sha[:12]}"
    notes = message.annotations
    done = _annotations_count(check)  # by a job that was killed here
    conclusion = conclusion_of(message.light)
    while len(notes) - done > ANNOTATIONS_A_REQUEST:
        part = notes[done : done + ANNOTATIONS_A_REQUEST]
        done += len(part)
        _update(api, check, {"output": _output(message, part)}, done)
    ended = {"status": "completed", "conclusion": conclusion}
    _update(api, check, {**ended, "output": _output(message, notes[done:])}, len(notes), conclusion)
    try:
        if message.light is Light.SUCCESS:
            message.require_newest(_told(_ours(api, sha, message)), _PURPOSE.doing)
    except Overtaken as error:
        output = {"title": "overtaken by a newer run", "summary": str(error)}
        api.send("PATCH", _path(api, check), {"conclusion": "failure", "output": output}, _PURPOSE)
        raise
    return f"check {message.name!r} is {conclusion} on {sha[:12]}"


def conclusion_of(light: Light) -> str:
    """What GitHub is told. Only `success` is; `neutral` and `skipped` would let a required check pass."""
    return "success" if light is Light.SUCCESS else "failure"


def _begun(api: GitHubApi, sha: str, message: Message) -> Json:
    """Our newest check run of this name where it is not over, told of this run; else a new one. Raises Overtaken."""
    said: Json = {"status": "in_progress", "external_id": message.run_id or ""}
    if message.details_url is not None:
        said["details_url"] = message.details_url
    ours = _ours(api, sha, message)
    message.require_newest(_told(ours), _PURPOSE.doing)
    found = _open(ours, message)
    if found is not None:
        return api.send("PATCH", _path(api, found), said, _PURPOSE)
    new = {"name": message.name, "head_sha": sha, **said}
    return api.send("POST", f"{api.root}/check-runs", new, _PURPOSE, lambda: _open(_ours(api, sha, message), message))


def _ours(api: GitHubApi, sha: str, message: Message) -> list[Json]:
    """The check runs of this name that the token's own app made, oldest first."""
    path = f"{api.root}/commits/{sha}/check-runs?check_name={quote(message.name, safe='')}&filter=all"
    named = [one for one in api.pages(path, _PURPOSE, "check_runs") if one.get("name") == message.name]
    if not named:
        return []
    viewer = api.viewer(_PURPOSE)
    ours = (one for one in named if f"{(one.get('app') or {}).get('slug')}[bot]" == viewer)
    return sorted(ours, key=lambda one: number_of(one, _PURPOSE))


def _told(ours: Sequence[Json]) -> list[str]:
    return [str(one.get("external_id") or "") for one in ours]


def _open(ours: Sequence[Json], message: Message) -> Json | None:
    """The newest where it is not over, and of no other run: that one's job may still be at it."""
    newest = ours[-1] if ours else None
    is_free = newest is not None and (newest.get("external_id") or "") in ("", message.run_id)
    return newest if newest is not None and is_free and newest.get("status") != "completed" else None


def _update(api: GitHubApi, check: Json, change: Json, annotations: int, conclusion: str | None = None) -> None:
    """Annotations add up, so what may have been taken is not sent again."""

    def there() -> Json | None:
        now = api.get(_path(api, check), _PURPOSE)
        taken = _annotations_count(now) >= annotations and conclusion in (None, now.get("conclusion"))
        return now if taken else None

    api.send("PATCH", _path(api, check), change, _PURPOSE, there)


def _output(message: Message, notes: Sequence[Annotation]) -> Json:
    shown = [
        {
            "path": note.path,
            "start_line": note.line,
            "end_line": note.line,
            "annotation_level": note.level,
            "title": note.title[:_TITLE_CHARACTERS],
            "message": note.message,
        }
        for note in notes
    ]
    output: Json = {"title": message.short, "summary": message.text(SUMMARY_BYTES)}
    return {**output, "annotations": shown} if shown else output


def _annotations_count(check: Json) -> int:
    output = check.get("output")
    count = output.get("annotations_count") if isinstance(output, dict) else None
    return count if isinstance(count, int) else 0


def _path(api: GitHubApi, check: Json) -> str:
    return f"{api.root}/check-runs/{number_of(check, _PURPOSE)}"
