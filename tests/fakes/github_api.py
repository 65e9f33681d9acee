"""GitHub's REST API on the loopback, as far as benchgate asks it: real HTTP, its paging, its limits, its refusals.

    with FakeGitHub() as github:
        github.trouble("POST", "/comments", status=502)  # the next request that fits is answered so
        ...  # talk to github.url

What it does by itself is as GitHub's documentation has it: 30 a page unless asked, at most 100, a `Link` to the next;
comments of at most 65,536 characters and summaries of 65,535, else 422; 50 annotations a request, which add up; a check
run can be changed by the app that made it alone; GraphQL tells the viewer.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "ghs_canary0123456789canary0123456789"
BOT = "github-actions[bot]"
Json = dict[str, Any]


@dataclass
class Trouble:
    """How a request is answered instead: with this status, or by a connection that is closed.

    With `done` it is done before that, so that only the answer is lost.
    """

    method: str
    part: str  # of the path
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "Server Error"
    done: bool = False
    times: int = 1


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json | None


class FakeGitHub:
    """One repository, `acme/models`. What was written to it are its attributes."""

    def __init__(self) -> None:
        self.comments: dict[int, list[Json]] = {7: []}
        self.checks: list[Json] = []
        self.statuses: dict[str, list[Json]] = {}
        self.deployments: dict[int, list[Json]] = {5: []}
        self.asked: list[Asked] = []
        self._troubles: list[Trouble] = []
        self._ids = iter(range(1000, 10**9))
        handler = type("Handler", (_Handler,), {"github": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What a job of this repository has."""
        return {"GITHUB_API_URL": self.url, "GITHUB_REPOSITORY": "acme/models", "GITHUB_TOKEN": TOKEN}

    def trouble(self, method: str, part: str, **how: Any) -> None:
        self._troubles.append(Trouble(method, part, **how))

    def comment(self, body: str, login: str = BOT, pull: int = 7) -> Json:
        """A comment that somebody wrote."""
        number = next(self._ids)
        one = {"id": number, "body": body, "user": {"login": login}, "html_url": f"https://github.test/c/{number}"}
        self.comments[pull].append(one)
        return one

    def check(self, name: str, sha: str, **said: Any) -> Json:
        """A check run that an app made."""
        one = {
            "id": next(self._ids),
            "name": name,
            "head_sha": sha,
            "status": "queued",
            "conclusion": None,
            "external_id": "",
            "app": {"slug": "github-actions"},
            "output": {"annotations_count": 0},
            "annotations": [],
        }
        self.checks.append(one | said)
        return self.checks[-1]

    def changes(self) -> list[str]:
        """What was asked for that changes anything, as `METHOD path`."""
        return [
            f"{one.method} {one.path}"
            for one in self.asked
            if one.method != "GET" and not one.path.endswith("/graphql")
        ]

    def answer(self, asked: Asked) -> tuple[int, object, dict[str, str]] | None:
        """Status, body and headers; None where the connection is closed instead."""
        self.asked.append(asked)
        fits = (
            one for one in self._troubles if one.method == asked.method and one.part in asked.path and one.times > 0
        )
        trouble = next(fits, None)
        if trouble is not None:
            trouble.times -= 1
            if trouble.done:
                self._do(asked)
            if trouble.status is None:
                return None
            return trouble.status, {"message": trouble.message}, trouble.headers
        return self._do(asked)

    def _do(self, asked: Asked) -> tuple[int, object, dict[str, str]]:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "Bad credentials"}, {}
        parts = urlsplit(asked.path)
        path = parts.path.removeprefix("/api/v3")  # of GitHub Enterprise Server
        if path in ("/graphql", "/api/graphql"):
            return 200, {"data": {"viewer": {"login": BOT}}}, {}
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        for method, pattern, act in _ROUTES:
            found = re.fullmatch(f"/repos/acme/models{pattern}", path)
            if found is not None and method == asked.method:
                status, body = act(self, copy.deepcopy(asked.body) or {}, query, *map(unquote, found.groups()))
                return self._paged(asked.path, query, status, body)
        return _NOT_FOUND[0], _NOT_FOUND[1], {}

    def _paged(self, path: str, query: dict[str, str], status: int, body: Any) -> tuple[int, object, dict[str, str]]:
        listed = body["check_runs"] if isinstance(body, dict) and "check_runs" in body else body
        if not isinstance(listed, list):
            return status, body, {}
        each, page = min(100, int(query.get("per_page", "30"))), int(query.get("page", "1"))
        shown, more = listed[(page - 1) * each : page * each], page * each < len(listed)
        base = self.url + re.sub(r"&page=\d+", "", path)
        link = {"Link": f'<{base}&page=1>; rel="first", <{base}&page={page + 1}>; rel="next"'} if more else {}
        return status, {"total_count": len(listed), "check_runs": shown} if listed is not body else shown, link

    # --- what it can do

    def _list_comments(self, body: Json, query: dict[str, str], pull: str) -> tuple[int, object]:
        return (200, self.comments[int(pull)]) if int(pull) in self.comments else _NOT_FOUND

    def _add_comment(self, body: Json, query: dict[str, str], pull: str) -> tuple[int, object]:
        if int(pull) not in self.comments:
            return _NOT_FOUND
        return _too_long(body["body"]) or (201, self.comment(body["body"], pull=int(pull)))

    def _edit_comment(self, body: Json, query: dict[str, str], number: str) -> tuple[int, object]:
        for one in (one for listed in self.comments.values() for one in listed):
            if one["id"] == int(number):
                if one["user"]["login"] != BOT:
                    return 403, {"message": "Resource not accessible by integration"}
                return _too_long(body["body"]) or (200, _changed(one, body))
        return _NOT_FOUND

    def _add_check(self, body: Json, query: dict[str, str]) -> tuple[int, object]:
        return 201, self.check(name=body.pop("name"), sha=body.pop("head_sha"), **body)

    def _edit_check(self, body: Json, query: dict[str, str], number: str) -> tuple[int, object]:
        one = next((one for one in self.checks if one["id"] == int(number)), None)
        if one is None:
            return _NOT_FOUND
        if one["app"]["slug"] != "github-actions":
            return 403, {
                "message": "Invalid app_id - check run can only be modified by the GitHub App that created it."
            }
        output = body.pop("output", {})
        notes = output.pop("annotations", [])
        if len(notes) > 50 or len(output.get("summary", "")) > 65_535:
            return 422, {"message": "Only 65535 characters are allowed"}
        one["annotations"] += notes
        one["output"] |= output | {"annotations_count": len(one["annotations"])}
        return 200, _changed(one, body)

    def _get_check(self, body: Json, query: dict[str, str], number: str) -> tuple[int, object]:
        return 200, next(one for one in self.checks if one["id"] == int(number))

    def _list_checks(self, body: Json, query: dict[str, str], sha: str) -> tuple[int, object]:
        named = [one for one in self.checks if one["head_sha"] == sha and one["name"] == query["check_name"]]
        return 200, {"check_runs": named[::-1]}

    def _add_status(self, body: Json, query: dict[str, str], sha: str) -> tuple[int, object]:
        self.statuses.setdefault(sha, []).insert(0, body)
        return 201, body

    def _list_statuses(self, body: Json, query: dict[str, str], sha: str) -> tuple[int, object]:
        return 200, self.statuses.get(sha, [])

    def _add_deployment_status(self, body: Json, query: dict[str, str], number: str) -> tuple[int, object]:
        if int(number) not in self.deployments:
            return _NOT_FOUND
        self.deployments[int(number)].insert(0, body)
        return 201, body

    def _list_deployment_statuses(self, body: Json, query: dict[str, str], number: str) -> tuple[int, object]:
        return (200, self.deployments[int(number)]) if int(number) in self.deployments else _NOT_FOUND


_NOT_FOUND = (404, {"message": "Not Found"})
_ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", r"/issues/(\d+)/comments", FakeGitHub._list_comments),
    ("POST", r"/issues/(\d+)/comments", FakeGitHub._add_comment),
    ("PATCH", r"/issues/comments/(\d+)", FakeGitHub._edit_comment),
    ("POST", r"/check-runs", FakeGitHub._add_check),
    ("PATCH", r"/check-runs/(\d+)", FakeGitHub._edit_check),
    ("GET", r"/check-runs/(\d+)", FakeGitHub._get_check),
    ("GET", r"/commits/([0-9a-f]+)/check-runs", FakeGitHub._list_checks),
    ("POST", r"/statuses/([0-9a-f]+)", FakeGitHub._add_status),
    ("GET", r"/commits/([0-9a-f]+)/statuses", FakeGitHub._list_statuses),
    ("POST", r"/deployments/(\d+)/statuses", FakeGitHub._add_deployment_status),
    ("GET", r"/deployments/(\d+)/statuses", FakeGitHub._list_deployment_statuses),
)


def _too_long(body: str) -> tuple[int, object] | None:
    if len(body) <= 65_536:
        return None
    error = {"resource": "IssueComment", "field": "body", "message": "body is too long (maximum is 65536 characters)"}
    return 422, {"message": "Validation Failed", "errors": [error]}


def _changed(one: Json, change: Json) -> Json:
    one |= change
    return one


class _Handler(BaseHTTPRequestHandler):
    github: FakeGitHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a whole answer at once
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.github.answer(Asked(self.command, self.path, headers, body))
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, document, told = answer
        data = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **told}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at `asked`."""
