"""GitHub's REST API, as far as a verdict needs it: bounded in time and size, and nothing made twice.

The token goes to one origin and nowhere else: no redirect is followed, and no page of another origin is asked for.
What may have been made although the answer was lost is looked for before it is made again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx2

from benchgate import __version__
from benchgate.errors import PublishError
from benchgate.integrations.destination import is_here
from benchgate.integrations.github_refusals import Answer, Purpose, backoff_s, refused, wait_s
from benchgate.targets.address import DIRECT, tls_context
from benchgate.targets.error_messages import one_line

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
    """One repository by one token. Use it as a context manager, once: its time begins when it is made."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """By GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN. Raises PublishError where one is missing or wrong."""
        self._base = base_url(environment.get("GITHUB_API_URL") or DEFAULT_URL)
        self.repository = environment.get("GITHUB_REPOSITORY", "")
        self._token = environment.get(TOKEN, "").strip()
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
        """The path of the repository."""
        return f"/repos/{self.repository}"

    def get(self, path: str, purpose: Purpose) -> Json:
        """The object at a path."""
        return _object(self._ask("GET", f"{self._base}{path}", purpose), purpose)

    def pages(self, path: str, purpose: Purpose, key: str | None = None) -> Iterator[Json]:
        """Everything in a list, page after page; `key` names the list in a page that is more than one."""
        url: str | None = f"{self._base}{path}{'&' if '?' in path else '?'}per_page=100"
        for _ in range(_MOST_PAGES):
            if url is None:
                return
            answer = self._ask("GET", url, purpose)
            page = _json(answer, purpose)
            found = page.get(key) if key is not None and isinstance(page, dict) else page
            if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
                raise PublishError(f"{purpose.doing}: what came from {self._base} is no list of GitHub's")
            yield from found
            url = self._next(answer, purpose)
        raise PublishError(f"{purpose.doing}: there are more than {_MOST_PAGES:,} pages of them, which nobody can read")

    def send(
        self, method: str, path: str, body: Json, purpose: Purpose, there: Callable[[], Json | None] | None = None
    ) -> Json:
        """Make or change something, and what GitHub says of it.

        `there` looks whether it was done although the answer was lost; without it doing it twice must be as good as
        once. Raises PublishError, and TooLong of it for a text that may be shortened.
        """
        answer = self._ask(method, f"{self._base}{path}", purpose, body, there)
        return answer if isinstance(answer, dict) else _object(answer, purpose)

    def viewer(self, purpose: Purpose) -> str:
        """The login that the token is of: `github-actions[bot]` in a job. Only GraphQL tells it of every kind."""
        if self._viewer is None:
            url = re.sub(r"/v3$", "", self._base) + "/graphql"  # https://HOST/api/v3 on GitHub Enterprise Server
            answer = self._ask("POST", url, purpose, {"query": "query { viewer { login } }"})
            said = _object(answer, purpose).get("data")
            viewer = said.get("viewer") if isinstance(said, dict) else None
            login = viewer.get("login") if isinstance(viewer, dict) else None
            if not isinstance(login, str) or not login:
                words = one_line(answer.said, secret=self._token) or "nothing"
                raise PublishError(f"{purpose.doing}: whose token it is cannot be told; GitHub says {words}")
            self._viewer = login
        return self._viewer

    def _ask(
        self,
        method: str,
        url: str,
        purpose: Purpose,
        body: Json | None = None,
        there: Callable[[], Json | None] | None = None,
    ) -> Any:
        """The answer that is a success, after as many tries as the time lasts; or what `there` finds."""
        trouble = ""
        for tries in range(_MOST_TRIES):
            try:
                answer = self._answer(method, url, body)
            except httpx2.HTTPError as error:
                trouble = f"{_host(self._base)} could not be asked: {self._words(error)}"
                wait, made = backoff_s(tries), True
            except httpx2.InvalidURL:
                raise PublishError(f"{purpose.doing}: {method} has no address that can be asked") from None
            else:
                if 200 <= answer.status < 300:
                    return answer
                reason = refused(answer, purpose, urlsplit(url).path, self._token)
                later = wait_s(answer, tries, self._unix_time())
                if later is None:
                    raise reason
                trouble, wait, made = f"it answers HTTP {answer.status}", later, answer.status >= 500
            if tries + 1 < _MOST_TRIES:
                self._wait(wait, purpose, trouble)
            if made and there is not None and (found := there()) is not None:
                return found
        self._give_up(purpose, f"{trouble}, {_MOST_TRIES} times")

    def _answer(self, method: str, url: str, body: Json | None) -> Answer:
        """One request, and all of what it is answered. Raises httpx2.HTTPError."""
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
        return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, bytes(content))

    def _wait(self, wait: float, purpose: Purpose, trouble: str) -> None:
        left = self._ends_s - self._clock()
        if wait > left:
            self._give_up(
                purpose, f"{trouble}; the next try would be in {wait:.0f} s, and {max(0.0, left):.0f} s are left"
            )
        self._sleep(wait)

    def _next(self, answer: Answer, purpose: Purpose) -> str | None:
        """Where the next page is; None after the last one."""
        found = _NEXT.search(answer.headers.get("link", ""))
        if found is None:
            return None
        if _origin(found[1]) != _origin(self._base):
            raise PublishError(f"{purpose.doing}: the next page is said to be elsewhere, where no token is sent")
        return found[1]

    def _words(self, error: httpx2.HTTPError) -> str:
        return one_line(str(error) or type(error).__name__, secret=self._token)

    def _give_up(self, purpose: Purpose, trouble: str) -> NoReturn:
        raise PublishError(f"{purpose.doing}: {trouble}; publish again with `benchgate publish`: nothing is made twice")


def number_of(one: Json, purpose: Purpose) -> int:
    """The number by which GitHub knows a thing. Raises PublishError where it has none."""
    number = one.get("id")
    if not isinstance(number, int):
        raise PublishError(f"{purpose.doing}: what came has no id; is GITHUB_API_URL that of GitHub?")
    return number


def base_url(address: str) -> str:
    """The address of an API without a slash at its end. Raises PublishError unless it is https, or of this machine."""
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
    """Proxies and certificates are the machine's, but for a server on it."""
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
        raise PublishError("GitHub cannot be asked: the environment names a proxy that is none") from None


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _json(answer: Answer, purpose: Purpose) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise PublishError(f"{purpose.doing}: what came is not JSON; is GITHUB_API_URL that of GitHub?") from None


def _object(answer: Answer, purpose: Purpose) -> Json:
    found = _json(answer, purpose)
    if not isinstance(found, dict):
        raise PublishError(f"{purpose.doing}: what came is no object of GitHub's")
    return found
