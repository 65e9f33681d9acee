"""What an answer of GitHub's that is no success means: how long to wait, or a sentence on what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.errors import PublishError
from benchgate.targets.error_messages import json_object, one_line

_SECONDARY_S = 60.0  # "wait for at least one minute", where a limit without a header is hit
_BACKOFF_S = 1.0
_TOO_LONG = re.compile(r"too long|characters are allowed|too large", re.IGNORECASE)
_LIMITED = re.compile(r"rate limit|abuse", re.IGNORECASE)
_NO_PERMISSION_HELPS = re.compile(r"locked|archived|SAML|allow list", re.IGNORECASE)
_PERMISSION = re.compile(r"[a-z_]+=[a-z]+(?:[,;] ?[a-z_]+=[a-z]+)*")


class TooLong(PublishError):
    """The text does not fit; a shorter one may."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response: the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> str:
        """GitHub's own words for a refusal; empty where it has none."""
        document = json_object(self.body) or {}
        words = [document.get("message"), *_errors(document.get("errors"))]
        return "; ".join(word for word in words if isinstance(word, str))


@dataclass(frozen=True, slots=True)
class Purpose:
    """What is being done, in words, and the permission of the job that it takes, like `checks: write`."""

    doing: str
    permission: str


def wait_s(answer: Answer, tries: int, now_s: float) -> float | None:
    """How long to wait before asking again (s), after so many tries; None where that changes nothing.

    `now_s` is Unix time. As GitHub's "Best practices for using the REST API" has it: `retry-after`, else
    `x-ratelimit-reset` where nothing remains, else a minute that doubles.
    """
    if answer.status >= 500:
        return _seconds(answer, "retry-after") or _BACKOFF_S * 2.0**tries
    if not is_limit(answer):
        return None
    asked = _seconds(answer, "retry-after")
    if asked is not None:
        return asked
    reset = _seconds(answer, "x-ratelimit-reset")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset is not None:
        return max(1.0, reset - now_s + 1.0)
    return _SECONDARY_S * 2.0**tries


def is_limit(answer: Answer) -> bool:
    """Whether too much was asked: 429, or a 403 that says so in a header or in words."""
    if answer.status == 429:
        return True
    headers = answer.headers
    told = "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"
    return answer.status == 403 and (told or _LIMITED.search(answer.said) is not None)


def backoff_s(tries: int) -> float:
    """How long to wait after a connection that was lost (s): 1, 2, 4."""
    return _BACKOFF_S * 2.0**tries


def refused(answer: Answer, purpose: Purpose, path: str, token: str) -> PublishError:
    """Why GitHub will not do it, and what to do; never with the token in it."""
    words = one_line(answer.said, secret=token) or f"HTTP {answer.status} without a reason"
    if answer.status == 422 and _TOO_LONG.search(answer.said):
        return TooLong(f"{purpose.doing}: GitHub says {words}")
    return PublishError(f"{purpose.doing}: GitHub says {words}{_remedy(answer, purpose, path)}")


def _remedy(answer: Answer, purpose: Purpose, path: str) -> str:
    add = f"`permissions: {purpose.permission}`"
    if answer.status == 401:
        return (
            "; GITHUB_TOKEN is none that it knows, or has expired: pass `GITHUB_TOKEN: ${{ github.token }}` by `env:`"
        )
    if answer.status == 403 and "GitHub App" in answer.said:
        return "; only an app's token writes check runs, as that of a job is: with this one use --commit-status"
    if answer.status == 422 and "No commit found" in answer.said:
        return "; is --sha a commit of this repository?"
    if answer.status == 403 and not is_limit(answer) and _NO_PERMISSION_HELPS.search(answer.said) is None:
        told = answer.headers.get("x-accepted-github-permissions", "")
        accepts = f" (GitHub accepts {told})" if len(told) < 200 and _PERMISSION.fullmatch(told) else ""
        return (
            f"; the token may not: add {add} to the job that runs `benchgate publish`{accepts}. The token of a pull "
            "request from a fork may only read, whatever the workflow says"
        )
    if answer.status in (404, 410):
        return (
            f"; there is no {path}, or the token may not see it: look at the repository and the number, and add {add}"
        )
    if 300 <= answer.status < 400:
        return "; it answers with a redirect, and a token is never sent elsewhere: has the repository another name now?"
    return ""


def _seconds(answer: Answer, name: str) -> float | None:
    value = answer.headers.get(name, "")
    return float(value) if re.fullmatch(r"[0-9]{1,12}", value) else None


def _errors(errors: object) -> list[object]:
    """The messages of a 422 and of GraphQL."""
    found = errors if isinstance(errors, list) else []
    return [one.get("message") if isinstance(one, dict) else one for one in found]
