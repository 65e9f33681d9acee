"""A model registry that answers as MLflow 3.17.2's server was seen to, on the loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_ROOT = "/api/2.0/mlflow"


@dataclass
class Registry:
    """What is registered, what was asked, and what goes wrong."""

    versions: dict[str, set[str]]
    aliases: dict[tuple[str, str], str] = field(default_factory=dict)
    tags: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    troubles: list[tuple[int, dict[str, str], str]] = field(default_factory=list)  # answers before the true ones
    forgets: bool = False  # takes an alias and keeps none
    url: str = ""

    def answer(self, method: str, path: str, said: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and document."""
        name, version, alias = (str(said.get(key, "")) for key in ("name", "version", "alias"))
        match method, path:
            case "GET", "/registered-models/alias":
                if name not in self.versions:
                    return _error(404, "RESOURCE_DOES_NOT_EXIST", f"Registered Model with name={name} not found")
                if (name, alias) not in self.aliases:
                    return _error(400, "INVALID_PARAMETER_VALUE", f"Registered model alias {alias} not found.")
                return self._version(name, self.aliases[name, alias])
            case "GET", "/model-versions/get":
                return self._version(name, version)
            case "POST", "/model-versions/set-tag":
                if version in self.versions.get(name, ()):
                    self.tags.setdefault((name, version), {})[said["key"]] = said["value"]
                    return 200, {}
                return self._version(name, version)
            case "POST", "/registered-models/alias":
                if version in self.versions.get(name, ()):
                    self.aliases |= {} if self.forgets else {(name, alias): version}
                    return 200, {}
                return self._version(name, version)
        return _error(404, "ENDPOINT_NOT_FOUND", f"No API found for '{method} {path}'")

    def _version(self, name: str, version: str) -> tuple[int, dict[str, Any]]:
        if version not in self.versions.get(name, ()):
            missing = f"Model Version (name={name}, version={version}) not found"
            return _error(404, "RESOURCE_DOES_NOT_EXIST", missing)
        aliases = [alias for (model, alias), at in self.aliases.items() if (model, at) == (name, version)]
        tags = [{"key": key, "value": value} for key, value in self.tags.get((name, version), {}).items()]
        found: dict[str, Any] = {"name": name, "version": version, "status": "READY", "run_link": ""}
        return 200, {
            "model_version": found | ({"tags": tags} if tags else {}) | ({"aliases": aliases} if aliases else {})
        }


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error_code": code, "message": message, "sqlstate": "KAM00", "error_class": code}


@contextmanager
def registry(versions: dict[str, set[str]]) -> Iterator[Registry]:
    """One that runs as long as it is needed."""
    state = Registry(versions)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = json.loads(body) if body else dict(parse_qsl(parts.query))
            state.asked.append(f"{self.command} {parts.path.removeprefix(_ROOT)}")
            state.authorization.append(self.headers.get("Authorization"))
            if state.troubles:
                status, headers, text = state.troubles.pop(0)
            else:
                status, document = state.answer(self.command, parts.path.removeprefix(_ROOT), said)
                headers, text = {"Content-Type": "application/json"}, json.dumps(document)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _do

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            server.shutdown()
