"""A verdict on GitHub: check run, comment, commit status and deployment status of one message.

Jobs race, and old ones are run again, so the newest post is not always of the newest run. A green is posted only if no
newer run was, and is taken back if one came in between. Editing a comment sends no notification, so a verdict that
turns from PASS or WARN into anything else is a new comment, and the old one links to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import quote

from benchgate.errors import PublishError
from benchgate.integrations.ci import is_link
from benchgate.integrations.github import GitHubApi, Json, Purpose, TooLong, number_of
from benchgate.model.verdict import Outcome

SHORT_CHARACTERS = 140  # limit of GitHub for the description of a status

_RUN = re.compile(r" · run (\S+)$")
_NO_RUN = "none"


class CheckState(StrEnum):
    """State that a host shows. Only SUCCESS lets a change through."""

    PENDING = "pending"  # it is being measured
    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"  # there is no verdict that could be relied on


@dataclass(frozen=True, slots=True)
class Annotation:
    """A remark at a line (from 1) of a file of the repository. `level` is `failure`, `warning` or `notice`."""

    path: str
    line: int
    level: str
    title: str
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A verdict, or its absence, ready to be posted.

    `key` distinguishes runs of one suite and candidate on one commit. `outcome` and `run_id` are None before there are
    any, and `outcome` also for a doubtful verdict. `title` is one line; `text` returns Markdown of at most so many
    bytes. `document` is the verdict document, empty without one.
    """

    suite: str
    candidate: str
    run_id: str | None
    outcome: Outcome | None
    state: CheckState
    title: str
    text: Callable[[int], str]
    annotations: tuple[Annotation, ...] = ()
    details_url: str | None = None
    document: Mapping[str, object] = field(default_factory=dict)
    key: str | None = None
    posted: str = ""  # newest run posted in comments of these names, with `+` if a message without a run came after it

    @property
    def names(self) -> tuple[str, ...]:
        """Suite, candidate and key, if there is one. A post replaces the earlier ones of the same names."""
        return (self.suite, self.candidate) if self.key is None else (self.suite, self.candidate, self.key)

    @property
    def name(self) -> str:
        """Name of a check run or status, unique for these `names`."""
        return "/".join(("benchgate", *(quote(name, safe=" ") for name in self.names)))

    @property
    def short(self) -> str:
        """The title, cut to the length of a status."""
        return _cut(self.title, SHORT_CHARACTERS)

    @property
    def description(self) -> str:
        """The title with the run's id at the end, or `none`, where `described_run` finds it."""
        end = f" · run {self.run_id or _NO_RUN}"
        return _cut(self.title, SHORT_CHARACTERS - len(end)) + end

    def require_newest(self, posted: Sequence[str], doing: str) -> None:
        """Raise Overtaken if posting this green would hide a newer run; anything else may always be posted.

        `posted` are the runs posted under these names, oldest first: empty for one without a run (`--begin`,
        `--no-verdict`). Ids of runs sort by when they were measured.
        """
        if self.state is not CheckState.SUCCESS or self.run_id is None:
            return
        newest = max(posted, default="")
        if newest > self.run_id:
            raise Overtaken(
                f"{doing}: run {newest} was measured after run {self.run_id} and was posted, so the older one cannot "
                f"make it green; publish {newest} if its verdict is not there"
            )
        if self.run_id in posted and "" in posted[posted.index(self.run_id) :]:
            raise Overtaken(
                f"{doing}: after run {self.run_id} was posted, a new measurement began, so its verdict is outdated; "
                "publish the new run"
            )


class Overtaken(PublishError):
    """The message is older than what is posted already."""


def described_run(description: object) -> str | None:
    """Return the run that a status description names; empty for a message without one, None for another tool's."""
    found = _RUN.search(description) if isinstance(description, str) else None
    if found is None:
        return None
    return "" if found[1] == _NO_RUN else found[1]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


CHECK_SUMMARY_BYTES = 60_000  # GitHub takes 65,535 characters

ANNOTATIONS_PER_REQUEST = 50
_TITLE_CHARACTERS = 255
_CHECK_PURPOSE = Purpose("the check run", "checks: write")


def publish_check(api: GitHubApi, sha: str, message: Message) -> str:
    """Post the verdict as a check run of a commit, in progress first, and return what was done. Raises PublishError.

    A run that is posted twice has a second check run, which is the one that counts.
    """
    check = _begin_check(api, sha, message)
    if message.state is CheckState.PENDING:
        return f"check {message.name!r} is in progress on {sha[:12]}"
    notes = message.annotations
    done = _annotations_count(check)  # by a job that was killed here
    # `neutral` and `skipped` would let a required check pass.
    conclusion = "success" if message.state is CheckState.SUCCESS else "failure"
    while len(notes) - done > ANNOTATIONS_PER_REQUEST:
        part = notes[done : done + ANNOTATIONS_PER_REQUEST]
        done += len(part)
        _update_check(api, check, {"output": _check_output(message, part)}, done)
    ended = {"status": "completed", "conclusion": conclusion}
    _update_check(api, check, {**ended, "output": _check_output(message, notes[done:])}, len(notes), conclusion)
    try:
        if message.state is CheckState.SUCCESS:
            message.require_newest(_run_ids(_our_checks(api, sha, message)), _CHECK_PURPOSE.doing)
    except Overtaken as error:
        output = {"title": "overtaken by a newer run", "summary": str(error)}
        api.send("PATCH", _check_path(api, check), {"conclusion": "failure", "output": output}, _CHECK_PURPOSE)
        raise
    return f"check {message.name!r} is {conclusion} on {sha[:12]}"


def _begin_check(api: GitHubApi, sha: str, message: Message) -> Json:
    """Return our newest check run if it is not completed, now of this run; else a new one. Raises Overtaken."""
    change: Json = {"status": "in_progress", "external_id": message.run_id or ""}
    if message.details_url is not None:
        change["details_url"] = message.details_url
    ours = _our_checks(api, sha, message)
    message.require_newest(_run_ids(ours), _CHECK_PURPOSE.doing)
    found = _open_check(ours, message)
    if found is not None:
        return api.send("PATCH", _check_path(api, found), change, _CHECK_PURPOSE)

    def there() -> Json | None:
        return _open_check(_our_checks(api, sha, message), message)

    new = {"name": message.name, "head_sha": sha, **change}
    return api.send("POST", f"{api.root}/check-runs", new, _CHECK_PURPOSE, there)


def _our_checks(api: GitHubApi, sha: str, message: Message) -> list[Json]:
    """Return the check runs of this name that the token's own app made, oldest first."""
    path = f"{api.root}/commits/{sha}/check-runs?check_name={quote(message.name, safe='')}&filter=all"
    named = [one for one in api.pages(path, _CHECK_PURPOSE, "check_runs") if one.get("name") == message.name]
    if not named:
        return []
    viewer = api.viewer(_CHECK_PURPOSE)
    ours = (one for one in named if f"{(one.get('app') or {}).get('slug')}[bot]" == viewer)
    return sorted(ours, key=lambda one: number_of(one, _CHECK_PURPOSE))


def _run_ids(ours: Sequence[Json]) -> list[str]:
    return [str(one.get("external_id") or "") for one in ours]


def _open_check(ours: Sequence[Json], message: Message) -> Json | None:
    """Return the newest check run if it is not completed and of no other run, whose job may still be working on it."""
    newest = ours[-1] if ours else None
    is_free = newest is not None and (newest.get("external_id") or "") in ("", message.run_id)
    return newest if newest is not None and is_free and newest.get("status") != "completed" else None


def _update_check(api: GitHubApi, check: Json, change: Json, annotations: int, conclusion: str | None = None) -> None:
    """Change a check run. Annotations add up, so those that may have been stored are not sent again."""

    def there() -> Json | None:
        now = api.get(_check_path(api, check), _CHECK_PURPOSE)
        taken = _annotations_count(now) >= annotations and conclusion in (None, now.get("conclusion"))
        return now if taken else None

    api.send("PATCH", _check_path(api, check), change, _CHECK_PURPOSE, there)


def _check_output(message: Message, notes: Sequence[Annotation]) -> Json:
    annotations = [
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
    output: Json = {"title": message.short, "summary": message.text(CHECK_SUMMARY_BYTES)}
    return {**output, "annotations": annotations} if annotations else output


def _annotations_count(check: Json) -> int:
    output = check.get("output")
    count = output.get("annotations_count") if isinstance(output, dict) else None
    return count if isinstance(count, int) else 0


def _check_path(api: GitHubApi, check: Json) -> str:
    return f"{api.root}/check-runs/{number_of(check, _CHECK_PURPOSE)}"


COMMENT_BUDGETS_BYTES = (60_000, 30_000, 8_000, 1_000)
"""GitHub takes 65,536 characters; an older server that refuses a text gets a shorter one."""

_MARKER = re.compile(r"<!-- benchgate-says:(success|failure|error):([0-9A-Za-z-]*)(\+?) -->")


def publish_comment(api: GitHubApi, pull: int, message: Message) -> str:
    """Comment on a pull request and return what was done. Raises PublishError, and Overtaken for an old green.

    Only comments with our marker by the token's own account are edited: anybody can write one that looks like ours.
    """
    purpose = Purpose(f"the comment on pull request {pull}", "pull-requests: write")
    ours = _our_comments(api, pull, message, purpose)
    state, runs = _parse_marker(ours[-1]) if ours else (None, ())
    message.require_newest(runs, purpose.doing)
    message = replace(message, posted=_posted(message, runs))
    if not ours or (message.state is not CheckState.SUCCESS and state is CheckState.SUCCESS):
        return _post_new(api, pull, message, ours, purpose)
    for old in ours[:-1]:  # a job that was killed between the two steps above
        _supersede(api, old, ours[-1], message, purpose)
    if _same(ours[-1], _body(message, COMMENT_BUDGETS_BYTES[0])):
        return f"comment {_address(ours[-1])} is up to date"
    path = f"{api.root}/issues/comments/{number_of(ours[-1], purpose)}"
    _fitting(lambda body: api.send("PATCH", path, {"body": body}, purpose), message)
    return f"comment {_address(ours[-1])} updated"


def _marker(message: Message, kind: str = "benchgate") -> str:
    """Return the first line of our comments. No name can end the HTML comment around it."""
    return f"<!-- {':'.join((kind, *(quote(name, safe='') for name in message.names)))} -->"


def _body(message: Message, budget: int) -> str:
    says = f"<!-- benchgate-says:{message.state.value}:{message.posted} -->"
    return f"{_marker(message)}\n{says}\n{message.text(budget)}"


def _our_comments(api: GitHubApi, pull: int, message: Message, purpose: Purpose) -> list[Json]:
    """Return our comments of these names, oldest first."""
    marker = _marker(message)
    path = f"{api.root}/issues/{pull}/comments"
    marked = [one for one in api.pages(path, purpose) if str(one.get("body") or "").startswith(marker)]
    if not marked:
        return []
    viewer = api.viewer(purpose)
    users = [one.get("user") for one in marked]
    authors = [user.get("login") if isinstance(user, dict) else None for user in users]
    ours = (one for one, author in zip(marked, authors, strict=True) if author == viewer)
    return sorted(ours, key=lambda one: number_of(one, purpose))


def _posted(message: Message, before: Sequence[str]) -> str:
    """Return what a comment records of its run and of those posted `before`, so that no older green can replace it."""
    newest = max(before, default="")
    if message.run_id is not None and message.run_id > newest:
        return message.run_id
    return f"{newest}+" if message.run_id is None or "" in before else newest


def _parse_marker(comment: Json) -> tuple[CheckState | None, tuple[str, ...]]:
    """Return the state and the runs of one of our comments, as `Message.require_newest` takes them."""
    found = _MARKER.search(str(comment.get("body") or ""))
    if found is None:
        return None, ()
    return CheckState(found[1]), (found[2], "") if found[3] else (found[2],)


def _post_new(api: GitHubApi, pull: int, message: Message, before: list[Json], purpose: Purpose) -> str:
    """Post a new comment, and supersede all others of these names.

    Jobs that post at the same moment each make one. Each job then looks again, and all keep the same one: that of the
    newest run, and of one run the oldest. One without a run, which is never green, counts as the newest.
    """

    def create(body: str) -> Json:
        def there() -> Json | None:
            return next((one for one in _our_comments(api, pull, message, purpose) if _same(one, body)), None)

        return api.send("POST", f"{api.root}/issues/{pull}/comments", {"body": body}, purpose, there)

    made = _fitting(create, message)
    older = {number_of(one, purpose) for one in before}
    there = {number_of(one, purpose): one for one in (made, *_our_comments(api, pull, message, purpose))}
    runs = {number: _parse_marker(one)[1] for number, one in there.items()}
    kept = max(there.keys() - older, key=lambda number: ((runs[number] or ("",))[-1] or "~", -number))
    for number, one in there.items():
        if number != kept:
            _supersede(api, one, there[kept], message, purpose)
    if kept == number_of(made, purpose):
        return f"new comment {_address(made)}"
    message.require_newest(runs[kept], purpose.doing)
    return f"comment {_address(there[kept])} of another job stays in its place"


def _supersede(api: GitHubApi, old: Json, new: Json, message: Message, purpose: Purpose) -> None:
    """Make an old comment link to the one that counts. Its marker changes, so it is not found as ours again."""
    heading = next((line for line in str(old.get("body")).splitlines() if line.startswith("## ")), "## benchgate")
    where = f"[the comment that does]({_address(new)})" if is_link(_address(new)) else "the comment that does"
    body = f"{_marker(message, 'benchgate-superseded')}\n{heading}\n\n_This no longer counts: see {where}._"
    api.send("PATCH", f"{api.root}/issues/comments/{number_of(old, purpose)}", {"body": body}, purpose)


def _fitting(send: Callable[[str], Json], message: Message) -> Json:
    """Send the longest text that GitHub accepts."""
    for budget in COMMENT_BUDGETS_BYTES[:-1]:
        try:
            return send(_body(message, budget))
        except TooLong:
            continue
    return send(_body(message, COMMENT_BUDGETS_BYTES[-1]))


def _same(comment: Json, body: str) -> bool:
    """Return True if a comment has this text. GitHub may change its line ends, and drop those at its end."""
    return str(comment.get("body") or "").replace("\r\n", "\n").strip() == body.replace("\r\n", "\n").strip()


def _address(comment: Json) -> str:
    return str(comment.get("html_url") or comment.get("id"))


def publish_commit_status(api: GitHubApi, sha: str, message: Message) -> str:
    """Add a status to a commit and return what was done. Raises PublishError."""
    purpose = Purpose("the commit status", "statuses: write")
    status: Json = {"state": message.state.value, "context": message.name, "description": message.description}
    if message.details_url is not None:
        status["target_url"] = message.details_url

    def list_statuses() -> Iterable[Json]:
        listed = api.pages(f"{api.root}/commits/{sha}/statuses", purpose)
        return (one for one in listed if one.get("context") == message.name)

    _add_status(api, f"{api.root}/statuses/{sha}", status, list_statuses, message, purpose)
    return f"status {message.name!r} is {message.state} on {sha[:12]}"


def publish_deployment_status(api: GitHubApi, deployment: int, message: Message) -> str:
    """Add a status to a deployment and return what was done. Raises PublishError.

    No other deployment of the environment becomes inactive: a verdict puts nothing into service.
    """
    purpose = Purpose(f"the status of deployment {deployment}", "deployments: write")
    state = "in_progress" if message.state is CheckState.PENDING else message.state.value
    status: Json = {"state": state, "description": message.description, "auto_inactive": False}
    if message.details_url is not None:
        status["log_url"] = message.details_url
    path = f"{api.root}/deployments/{deployment}/statuses"

    _add_status(api, path, status, lambda: api.pages(path, purpose), message, purpose)
    return f"deployment {deployment} is {state}"


def _add_status(
    api: GitHubApi,
    path: str,
    status: Json,
    list_statuses: Callable[[], Iterable[Json]],
    message: Message,
    purpose: Purpose,
) -> None:
    """Add a status. Raises Overtaken if it is green and not of the newest run; those of other tools do not count."""

    def require_newest() -> None:
        if message.state is CheckState.SUCCESS:
            runs = [described_run(one.get("description")) for one in list_statuses()][::-1]
            message.require_newest([run for run in runs if run is not None], purpose.doing)

    def there() -> Json | None:
        newest = next(iter(list_statuses()), None)
        keys = ("state", "description")
        return newest if newest is not None and all(newest.get(key) == status[key] for key in keys) else None

    require_newest()
    api.send("POST", path, status, purpose, there)
    try:
        require_newest()
    except Overtaken:
        description = f"overtaken by a newer run · run {described_run(status['description'])}"
        api.send("POST", path, status | {"state": "error", "description": description}, purpose)
        raise
