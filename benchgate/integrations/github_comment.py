"""The comment on a pull request: one that is edited in place, and a new one only when good news turns bad.

A comment that is edited notifies nobody, so a verdict that turns from PASS or WARN into anything else is a comment of
its own, and the old one leads to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

from benchgate.integrations.github_api import GitHubApi, Json, number_of
from benchgate.integrations.github_place import is_link
from benchgate.integrations.github_refusals import Purpose, TooLong
from benchgate.integrations.message import Light, Message

BUDGETS_BYTES = (60_000, 30_000, 8_000, 1_000)
"""GitHub takes 65,536 characters; what an older server refuses is said shorter."""

_SAYS = re.compile(r"<!-- benchgate-says:(success|failure|error):([0-9A-Za-z-]*) -->")


def publish_comment(api: GitHubApi, pull: int, message: Message) -> str:
    """Tell it on a pull request; what was done, in words. Raises PublishError, and Overtaken for an old green.

    Only what begins with our marker and was written by the token's own account is ever edited: anybody can write a
    comment that looks like ours.
    """
    purpose = Purpose(f"the comment on pull request {pull}", "pull-requests: write")
    ours = _ours(api, pull, message, purpose)
    light, run_id = _said(ours[-1]) if ours else (None, "")
    message.require_newest([run_id], purpose.doing)
    if not ours or (message.light is not Light.SUCCESS and light is Light.SUCCESS):
        return _tell_anew(api, pull, message, ours, purpose)
    for old in ours[:-1]:  # a job that was killed between the two steps above
        _supersede(api, old, ours[-1], message, purpose)
    return _edit(api, ours[-1], message, purpose)


def _marker(message: Message, kind: str = "benchgate") -> str:
    """The first line of a comment of ours. No name can end the comment that it stands in."""
    return f"<!-- {':'.join((kind, *(quote(name, safe='') for name in message.names)))} -->"


def _body(message: Message, budget: int) -> str:
    says = f"<!-- benchgate-says:{message.light.value}:{message.run_id or ''} -->"
    return f"{_marker(message)}\n{says}\n{message.text(budget)}"


def _ours(api: GitHubApi, pull: int, message: Message, purpose: Purpose) -> list[Json]:
    """Our comments of these names, oldest first."""
    marker = _marker(message)
    path = f"{api.root}/issues/{pull}/comments"
    marked = [one for one in api.pages(path, purpose) if str(one.get("body") or "").startswith(marker)]
    if not marked:
        return []
    viewer = api.viewer(purpose)
    return sorted((one for one in marked if _author(one) == viewer), key=lambda one: number_of(one, purpose))


def _author(comment: Json) -> str | None:
    user = comment.get("user")
    return user.get("login") if isinstance(user, dict) else None


def _said(comment: Json) -> tuple[Light | None, str]:
    """What a comment of ours said, and of which run, so far as it tells."""
    found = _SAYS.search(str(comment.get("body") or ""))
    return (Light(found[1]), found[2]) if found is not None else (None, "")


def _tell_anew(api: GitHubApi, pull: int, message: Message, before: list[Json], purpose: Purpose) -> str:
    """A new comment, beside which no other of these names stays.

    Jobs that tell at the same moment each make one, as none sees the other's. Whoever looks again afterwards sees both,
    and all of them keep the same one: that of the newest run, and of one run the oldest. One without a run, which is
    never green, counts as the newest.
    """
    made = _create(api, pull, message, purpose)
    older = {number_of(one, purpose) for one in before}
    there = {number_of(one, purpose): one for one in (made, *_ours(api, pull, message, purpose))}
    kept = max(there.keys() - older, key=lambda number: (_said(there[number])[1] or "~", -number))
    for number, one in there.items():
        if number != kept:
            _supersede(api, one, there[kept], message, purpose)
    if kept == number_of(made, purpose):
        return f"new comment {_address(made)}"
    message.require_newest([_said(there[kept])[1]], purpose.doing)
    return f"comment {_address(there[kept])} of another job stays in its place"


def _create(api: GitHubApi, pull: int, message: Message, purpose: Purpose) -> Json:
    path = f"{api.root}/issues/{pull}/comments"

    def send(body: str) -> Json:
        def there() -> Json | None:
            return next((one for one in _ours(api, pull, message, purpose) if _same(one, body)), None)

        return api.send("POST", path, {"body": body}, purpose, there)

    return _fitting(send, message)


def _edit(api: GitHubApi, comment: Json, message: Message, purpose: Purpose) -> str:
    if _same(comment, _body(message, BUDGETS_BYTES[0])):
        return f"comment {_address(comment)} says it already"
    path = f"{api.root}/issues/comments/{number_of(comment, purpose)}"
    _fitting(lambda body: api.send("PATCH", path, {"body": body}, purpose), message)
    return f"comment {_address(comment)} updated"


def _supersede(api: GitHubApi, old: Json, new: Json, message: Message, purpose: Purpose) -> None:
    """The old comment keeps its heading and leads to the one that counts. It is not found as ours any more."""
    heading = next((line for line in str(old.get("body")).splitlines() if line.startswith("## ")), "## benchgate")
    where = f"[the comment that does]({_address(new)})" if is_link(_address(new)) else "the comment that does"
    body = f"{_marker(message, 'benchgate-superseded')}\n{heading}\n\n_This no longer counts: see {where}._"
    api.send("PATCH", f"{api.root}/issues/comments/{number_of(old, purpose)}", {"body": body}, purpose)


def _fitting(send: Callable[[str], Json], message: Message) -> Json:
    """Sends as much as is taken."""
    for budget in BUDGETS_BYTES[:-1]:
        try:
            return send(_body(message, budget))
        except TooLong:
            continue
    return send(_body(message, BUDGETS_BYTES[-1]))


def _same(comment: Json, body: str) -> bool:
    """Whether it is the text. GitHub may keep it with other line ends, and without those at its end."""
    return str(comment.get("body") or "").replace("\r\n", "\n").strip() == body.replace("\r\n", "\n").strip()


def _address(comment: Json) -> str:
    return str(comment.get("html_url") or comment.get("id"))
