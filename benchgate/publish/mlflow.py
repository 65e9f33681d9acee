"""A version in MLflow's model registry: found, told which run judged it, and given an alias. By MLflow's REST API 2.0.

Aliases took the place of stages in MLflow 2.9. Everything that is written here may be written twice, so what is lost on
the way is sent again. Credentials go to one address and along no redirect.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from benchgate import __version__
from benchgate.errors import PublishError, UsageError
from benchgate.publish.destination import is_here
from benchgate.targets.refusals import one_line

ADDRESS, TOKEN, USER, PASSWORD = (
    "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
)  # fmt: skip
_ROOT = "/api/2.0/mlflow"
_ALIAS_PATH, _VERSION_PATH, _TAG_PATH = "/registered-models/alias", "/model-versions/get", "/model-versions/set-tag"
_TRIES = 4
_LONGEST_WAIT_S = 30.0
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_MOST_BYTES = 4 * 2**20
_MODEL = re.compile(r"models:/(?P<name>[^/@:]+)(?:/(?P<version>[0-9]+)|@(?P<alias>[\w-]{1,255}))", re.ASCII)
_ALIAS = re.compile(r"[\w-]{1,255}", re.ASCII)
_RESERVED = re.compile(r"(?i)latest|v[0-9]+")


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One version of a registered model."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What `--mlflow` names: a version by its number, or whatever stands behind an alias when it is looked up."""

    name: str
    version: str | None
    alias: str | None


def asked_model(text: str) -> Asked:
    """`models:/NAME/7` or `models:/NAME@candidate`. Raises UsageError."""
    found = _MODEL.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--mlflow {one_line(text)}: expected models:/NAME/VERSION with a number, or models:/NAME@ALIAS; stages "
            "like /Production are gone from MLflow"
        )
    return Asked(found["name"], found["version"], found["alias"])


def checked_alias(text: str) -> str:
    """An alias that MLflow takes. Raises UsageError."""
    if not _ALIAS.fullmatch(text) or _RESERVED.fullmatch(text):
        raise UsageError(
            f"--alias {one_line(text)}: expected letters, digits, `_` and `-`, and not `latest` or a word like `v1`"
        )
    return text


class Registry:
    """The registry that the environment names. Use it as a context manager."""

    def __init__(self, environment: Mapping[str, str], *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read MLFLOW_TRACKING_URI and the credentials beside it. Raises UsageError where they cannot be used."""
        token = environment.get(TOKEN, "").strip()
        user, password = environment.get(USER, ""), environment.get(PASSWORD, "")
        if bool(user) != bool(password):
            raise UsageError(f"{USER} and {PASSWORD} belong together, and one of them is not set")
        self._base, local = _base(environment.get(ADDRESS, "").strip(), secret=bool(token or user))
        basic = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""  # as it stands in the header
        self._secrets = tuple(one for one in (token, password, basic) if one)
        self._sleep = sleep
        self._client = httpx2.Client(
            auth=(user, password) if user else None,
            headers={"User-Agent": f"benchgate/{__version__}"} | _bearer("" if user else token),
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=not local,
        )

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def find(self, asked: Asked) -> ModelVersion:
        """The version that is meant now. PublishError where there is none."""
        if asked.alias is not None:
            return self._behind(asked.name, asked.alias)
        said = self._ask("GET", _VERSION_PATH, {"name": asked.name, "version": asked.version})
        return self._version(said, asked.name)

    def promote(self, model: ModelVersion, alias: str, tags: Mapping[str, str]) -> None:
        """Tag a version, then move the alias to it, and look whether it is there. PublishError where it is not.

        The tags come first: who finds the alias finds what it rests on.
        """
        at = {"name": model.name, "version": model.version}
        for key, value in tags.items():
            self._ask("POST", _TAG_PATH, {**at, "key": key, "value": value})
        self._ask("POST", _ALIAS_PATH, {**at, "alias": alias})
        if self._behind(model.name, alias) != model:
            raise PublishError(f"MLflow took the alias {alias} for {model.name} and shows another version behind it")

    def _behind(self, name: str, alias: str) -> ModelVersion:
        return self._version(self._ask("GET", _ALIAS_PATH, {"name": name, "alias": alias}), name)

    def _version(self, said: Mapping[str, Any], name: str) -> ModelVersion:
        found = said.get("model_version")
        version = str(found.get("version", "")) if isinstance(found, dict) else ""
        if not isinstance(found, dict) or found.get("name") != name or not version.isdigit():
            raise PublishError(
                "MLflow's answer names no version of the model that was asked for; is it an MLflow server?"
            )
        return ModelVersion(name, version)

    def _ask(self, method: str, path: str, said: Mapping[str, str | None]) -> dict[str, Any]:
        """The object that MLflow answers with. What may pass is asked again, a few times."""
        trouble = "it was not asked"
        for tries in range(_TRIES):
            wait_s = min(2.0**tries, _LONGEST_WAIT_S)
            try:
                status, content, later_s = self._answer(method, path, said)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                trouble = one_line(str(error) or type(error).__name__, secret=self._secrets)
            else:
                if status == 200:
                    return _object(content)
                trouble = f"HTTP {status}: {self._words(content)}"
                if status != 429 and status < 500:
                    raise PublishError(f"MLflow refused {method} {path}: {trouble}{_remedy(status)}")
                wait_s = min(max(wait_s, later_s), _LONGEST_WAIT_S)
            if tries + 1 < _TRIES:
                self._sleep(wait_s)
        raise PublishError(f"MLflow could not be asked ({method} {path}), {_TRIES} times: {trouble}")

    def _answer(self, method: str, path: str, said: Mapping[str, str | None]) -> tuple[int, bytes, float]:
        """Status, body and how long to wait by its word, in seconds."""
        url, content, reads = f"{self._base}{_ROOT}{path}", bytearray(), method == "GET"
        params, body = (said, None) if reads else (None, dict(said))
        with self._client.stream(method, url, params=params, json=body) as response:
            for piece in response.iter_bytes():
                content += piece
                if len(content) > _MOST_BYTES:
                    break
        later = response.headers.get("retry-after", "")
        return response.status_code, bytes(content), float(later) if later.isascii() and later.isdigit() else 0.0

    def _words(self, content: bytes) -> str:
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        message = document.get("message") if isinstance(document, dict) else None
        text = message if isinstance(message, str) else content[:2000].decode("utf-8", "replace")
        return one_line(text, secret=self._secrets).rstrip(".") or "nothing said"


def _object(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise PublishError("MLflow answered with something that is no JSON object; is MLFLOW_TRACKING_URI its address?")
    return document


def _remedy(status: int) -> str:
    if status in (401, 403):
        return f"; set {TOKEN}, or {USER} and {PASSWORD}, of somebody who may write to this model"
    return f"; set {ADDRESS} to where it moved" if 300 <= status < 400 else ""


def _bearer(token: str) -> dict[str, str]:
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{TOKEN} is no token: it has blanks or characters that none has")
    return {"Authorization": f"Bearer {token}"}


def _base(address: str, *, secret: bool) -> tuple[str, bool]:
    """The server's address, and whether it is on this machine. UsageError where it cannot be asked, or not safely."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise UsageError(f"{ADDRESS}: expected the address of an MLflow server, like https://mlflow.example.com")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{ADDRESS} has credentials in it; put them into {USER} and {PASSWORD}")
    local = is_here(host)
    if parts.scheme == "http" and secret and not local:
        raise UsageError(f"{ADDRESS} is http, where everybody on the way can read the credentials; use https")
    return address.rstrip("/"), local
