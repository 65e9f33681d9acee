"""Tells the router of a practice server what to do with its replicas, from another process."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from benchgate.errors import TargetError

_TIMEOUT_S = 30.0


def replicas_of(url: str) -> list[dict[str, Any]]:
    """Every replica: `replica`, `pid`, `state`, `requests`, `in_flight`, `broken`. TargetError when it cannot tell."""
    told: list[dict[str, Any]] = _asked(url, "GET", "/sim/replicas")["replicas"]
    return told


def kill_replica(url: str, replica: int) -> None:
    """Kill the process of one with SIGKILL; it is gone when this returns. Raises TargetError."""
    _asked(url, "POST", f"/sim/replicas/{replica}/kill")


def start_replica(url: str, replica: int) -> None:
    """Start a killed one again; it may take a while until it takes requests. Raises TargetError."""
    _asked(url, "POST", f"/sim/replicas/{replica}/start")


def _asked(url: str, method: str, path: str) -> dict[str, Any]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        told: dict[str, Any] = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TargetError(f"the practice server did not answer {path}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise TargetError(f"the practice server refused {path}: {told.get('detail', body[:200])}")
    return told
