"""Client of GitHub's REST API: bounded in time and size, repeats no request that could create something twice.

The token is sent to one origin only: no redirect is followed, and no page of another origin is requested. If an answer
is lost, the client looks for the result before it asks again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from benchgate import __version__, credentials
from benchgate.errors import PublishError
from benchgate.integrations.webhook import is_here
from benchgate.targets.address import DIRECT, tls_context
from benchgate.targets.error_messages import json_object, one_line

DEFAULT_URL = "https://api.github.com"
TOKEN = "GITHUB_TOKEN"
API_VERSION = "2022-11-28"

_MOST_TRIES = 5
_LONGEST_S = 300.0  # of everything that one publisher asks, its waits included
_STEP_S = 30.0  # of every step of one answer
_CONNECT_S = 10.0
_MOST_BYTES = 64 * 1024 * 1024  # a hundred comments of the longest kind are 26 MB
_MOST_PAGES = 1000
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next\b')
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")

Json = dict[str, Any]


class GitHubApi:
    """Client for one repository and token. Use it once, as a context manager: its time starts when it is made."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN.

        Raises PublishError if one is missing or malformed.
        """
        self._base = base_url(environment.get("GITHUB_API_URL") or DEFAULT_URL)
        self.repository = environment.get("GITHUB_REPOSITORY", "")
        self._token = environment.get(TOKEN, "").strip()
        credentials.register(self._token)
        if not _REPOSITORY.fullmatch(self.repository):
            raise PublishError("GITHUB_REPOSITORY names no repository; expected OWNER/NAME, as GitHub Actions sets it")
        if not self._token:
            raise PublishError(f"{TOKEN} is not set; pass it to the step: `env: {{{TOKEN}: ${{{{ github.token }}}}}}`")
        if not _TOKEN.fullmatch(self._token):
            raise PublishError(f"{TOKEN} is no token: it has blanks or characters that none has")
        self._clock, self._unix_time, self._sleep = clock, unix_time, sleep
        self._ends_s = clock() + _LONGEST_S
        self._client = _client(self._base, self._token)
        self._viewer: str | None = None

    def __enter__(self) -> GitHubApi:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def root(self) -> str:
        """The repository's path."""
        return f"/repos/{self.repository}"

    def get(self, path: str, purpose: Purpose) -> Json:
        """Return the object at a path."""
        return _object(self._request("GET", f"{self._base}{path}", purpose), purpose)

    def pages(self, path: str, purpose: Purpose, key: str | None = None) -> Iterator[Json]:
        """Yield all items of a list, page by page; `key` names the list inside a page."""
        url: str | None = f"{self._base}{path}{'&' if '?' in path else '?'}per_page=100"
        for _ in range(_MOST_PAGES):
            if url is None:
                return
            answer = self._request("GET", url, purpose)
            page = _json(answer, purpose)
            found = page.get(key) if key is not None and isinstance(page, dict) else page
            if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
                raise PublishError(f"{purpose.doing}: what came from {self._base} is no list of GitHub's")
            yield from found
            link = _NEXT.search(answer.headers.get("link", ""))
            url = None if link is None else link[1]
            if url is not None and _origin(url) != _origin(self._base):
                raise PublishError(f"{purpose.doing}: the next page is on another origin, where no token is sent")
        raise PublishError(f"{purpose.doing}: there are more than {_MOST_PAGES:,} pages")

    def send(
        self, method: str, path: str, body: Json, purpose: Purpose, there: Callable[[], Json | None] | None = None
    ) -> Json:
        """Create or change something and return GitHub's answer.

        `there` looks for the result if the answer was lost; without it the request must be safe to repeat. Raises
        PublishError, or its TooLong for a text that may be shortened.
        """
        answer = self._request(method, f"{self._base}{path}", purpose, body, there)
        return answer if isinstance(answer, dict) else _object(answer, purpose)

    def viewer(self, purpose: Purpose) -> str:
        """Return the token's login: `github-actions[bot]` in a job. Only GraphQL reports it for every kind of token."""
        if self._viewer is None:
            url = re.sub(r"/v3$", "", self._base) + "/graphql"  # https://HOST/api/v3 on GitHub Enterprise Server
            answer = self._request("POST", url, purpose, {"query": "query { viewer { login } }"})
            data = _object(answer, purpose).get("data")
            viewer = data.get("viewer") if isinstance(data, dict) else None
            login = viewer.get("login") if isinstance(viewer, dict) else None
            if not isinstance(login, str) or not login:
                words = one_line(answer.reason, secret=self._token) or "nothing"
                raise PublishError(f"{purpose.doing}: the token's owner is unknown; GitHub says {words}")
            self._viewer = login
        return self._viewer

    def _request(
        self,
        method: str,
        url: str,
        purpose: Purpose,
        body: Json | None = None,
        there: Callable[[], Json | None] | None = None,
    ) -> Any:
        """Return a successful answer, after as many tries as the time allows, or the result that `there` finds."""
        trouble = ""
        for tries in range(_MOST_TRIES):
            try:
                answer = self._answer(method, url, body)
            except httpx2.HTTPError as error:
                words = one_line(str(error) or type(error).__name__, secret=self._token)
                trouble = f"{urlsplit(self._base).netloc} could not be reached: {words}"
                delay_s, made = _BACKOFF_S * 2.0**tries, True
            except httpx2.InvalidURL:
                raise PublishError(f"{purpose.doing}: {method} has a malformed address") from None
            else:
                if 200 <= answer.status < 300:
                    return answer
                reason = refused(answer, purpose, urlsplit(url).path, self._token)
                later = wait_s(answer, tries, self._unix_time())
                if later is None:
                    raise reason
                trouble, delay_s, made = f"it answers HTTP {answer.status}", later, answer.status >= 500
            if tries + 1 < _MOST_TRIES:
                left_s = self._ends_s - self._clock()
                if delay_s > left_s:
                    trouble += f"; the next try would be in {delay_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
                    break
                self._sleep(delay_s)
            if made and there is not None and (found := there()) is not None:
                return found
        else:
            trouble += f", {_MOST_TRIES} times"
        raise PublishError(f"{purpose.doing}: {trouble}; publish again with `benchgate publish`: nothing is made twice")

    def _answer(self, method: str, url: str, body: Json | None) -> Response:
        """Send one request and read the whole answer. Raises httpx2.HTTPError."""
        left = self._ends_s - self._clock()
        if left <= 0:
            raise httpx2.ReadTimeout(f"{_LONGEST_S:.0f} s are over")
        timeout = httpx2.Timeout(min(_STEP_S, left), connect=min(_CONNECT_S, left))
        sent = None if body is None else json.dumps(body).encode()  # ASCII: no text is too odd to be sent
        content = bytearray()
        with self._client.stream(method, url, content=sent, timeout=timeout) as response:
            for piece in response.iter_bytes():
                content += piece
                if len(content) > _MOST_BYTES or self._clock() > self._ends_s:
                    raise httpx2.ReadTimeout("its answer does not end")
        return Response(response.status_code, {k.lower(): v for k, v in response.headers.items()}, bytes(content))


def number_of(one: Json, purpose: Purpose) -> int:
    """Return the id of an object. Raises PublishError if it has none."""
    number = one.get("id")
    if not isinstance(number, int):
        raise PublishError(f"{purpose.doing}: what came has no id; is GITHUB_API_URL that of GitHub?")
    return number


def base_url(address: str) -> str:
    """Return an API's address without a slash at its end. Raises PublishError unless it is https or on this machine."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise PublishError("GITHUB_API_URL is no address; expected one like https://HOST/api/v3") from None
    bare = parts.username is None and not parts.query and not parts.fragment and port != 0
    if (
        not parts.hostname
        or not bare
        or not (parts.scheme == "https" or (parts.scheme == "http" and is_here(parts.hostname)))
    ):
        raise PublishError(
            "GITHUB_API_URL: expected an https address without user, query and fragment, like https://HOST/api/v3; a "
            "token is sent there"
        )
    return address.rstrip("/")


def _client(base: str, token: str) -> httpx2.Client:
    """Make an HTTP client. Proxies and certificates are the machine's, except for a server on it."""
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "User-Agent": f"benchgate/{__version__}",
        "X-GitHub-Api-Version": API_VERSION,
    }
    elsewhere = not is_here(urlsplit(base).hostname or "")
    try:
        return httpx2.Client(headers=headers, follow_redirects=False, trust_env=elsewhere, verify=tls_context(DIRECT))
    except (ValueError, httpx2.InvalidURL):  # whose words may hold the proxy's password
        raise PublishError("GitHub cannot be reached: the environment names a malformed proxy") from None


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _json(answer: Response, purpose: Purpose) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise PublishError(f"{purpose.doing}: what came is not JSON; is GITHUB_API_URL that of GitHub?") from None


def _object(answer: Response, purpose: Purpose) -> Json:
    found = _json(answer, purpose)
    if not isinstance(found, dict):
        raise PublishError(f"{purpose.doing}: what came is no object of GitHub's")
    return found


_SECONDARY_S = 60.0  # "wait for at least one minute", where a limit without a header is hit
_BACKOFF_S = 1.0  # after the first lost connection; it doubles
_TOO_LONG = re.compile(r"too long|characters are allowed|too large", re.IGNORECASE)
_LIMITED = re.compile(r"rate limit|abuse", re.IGNORECASE)
_NO_PERMISSION_HELPS = re.compile(r"locked|archived|SAML|allow list", re.IGNORECASE)
_PERMISSION = re.compile(r"[a-z_]+=[a-z]+(?:[,;] ?[a-z_]+=[a-z]+)*")


class TooLong(PublishError):
    """The text does not fit; a shorter one may."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response: the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """Return the reason GitHub gives for a refusal; empty without one."""
        document = json_object(self.body) or {}
        errors = document.get("errors")  # of a 422, and of GraphQL
        details = errors if isinstance(errors, list) else []
        words = [document.get("message")]
        words += [one.get("message") if isinstance(one, dict) else one for one in details]
        return "; ".join(word for word in words if isinstance(word, str))


@dataclass(frozen=True, slots=True)
class Purpose:
    """Description of an action, and the job permission that it needs, like `checks: write`."""

    doing: str
    permission: str


def wait_s(answer: Response, tries: int, now_s: float) -> float | None:
    """Return the wait before the next try (s); None if a retry does not help.

    `now_s` is Unix time. By GitHub's "Best practices for using the REST API": `retry-after`, else `x-ratelimit-reset`
    if nothing remains, else a minute that doubles.
    """
    if answer.status >= 500:
        return _seconds(answer, "retry-after") or _BACKOFF_S * 2.0**tries
    if not is_limit(answer):
        return None
    retry_after_s = _seconds(answer, "retry-after")
    if retry_after_s is not None:
        return retry_after_s
    reset = _seconds(answer, "x-ratelimit-reset")
    if answer.headers.get("x-ratelimit-remaining") == "0" and reset is not None:
        return max(1.0, reset - now_s + 1.0)
    return _SECONDARY_S * 2.0**tries


def is_limit(answer: Response) -> bool:
    """Return True for a rate limit: 429, or a 403 that says so in a header or in words."""
    if answer.status == 429:
        return True
    headers = answer.headers
    in_headers = "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"
    return answer.status == 403 and (in_headers or _LIMITED.search(answer.reason) is not None)


def refused(answer: Response, purpose: Purpose, path: str, token: str) -> PublishError:
    """Return the error for a refusal, with its remedy and without the token."""
    words = one_line(answer.reason, secret=token) or f"HTTP {answer.status} without a reason"
    if answer.status == 422 and _TOO_LONG.search(answer.reason):
        return TooLong(f"{purpose.doing}: GitHub says {words}")
    return PublishError(f"{purpose.doing}: GitHub says {words}{_remedy(answer, purpose, path)}")


def _remedy(answer: Response, purpose: Purpose, path: str) -> str:
    add = f"`permissions: {purpose.permission}`"
    if answer.status == 401:
        return (
            "; GITHUB_TOKEN is none that it knows, or has expired: pass `GITHUB_TOKEN: ${{ github.token }}` by `env:`"
        )
    if answer.status == 403 and "GitHub App" in answer.reason:
        return "; only an app's token writes check runs, as that of a job is: with this one use --commit-status"
    if answer.status == 422 and "No commit found" in answer.reason:
        return "; is --sha a commit of this repository?"
    if answer.status == 403 and not is_limit(answer) and _NO_PERMISSION_HELPS.search(answer.reason) is None:
        accepted = answer.headers.get("x-accepted-github-permissions", "")
        accepts = f" (GitHub accepts {accepted})" if len(accepted) < 200 and _PERMISSION.fullmatch(accepted) else ""
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


def _seconds(answer: Response, name: str) -> float | None:
    value = answer.headers.get(name, "")
    return float(value) if re.fullmatch(r"[0-9]{1,12}", value) else None
