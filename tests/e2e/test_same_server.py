"""When two addresses are one server: however they are written, and never because a proxy stands before both."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.pipeline.deployments import same_server
from benchgate.targets.dialect import DIALECTS, Target

pytestmark = pytest.mark.beside  # nothing is measured

HOSTS = {
    "localhost": ["127.0.0.1", "::1"],
    "gpu-1": ["10.0.0.1"],
    "gpu-2": ["10.0.0.2"],
    "bf16.models.example": ["10.0.0.9"],
    "fp8.models.example": ["10.0.0.9"],
}


@pytest.fixture(autouse=True)
def _names_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names mean what HOSTS says, addresses themselves, and everything else nothing."""

    def look_up(host: str, port: object, **_: object) -> list[tuple[object, ...]]:
        found = HOSTS.get(host, [host] if host.replace(".", "").isdigit() or ":" in host else None)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def served(url: str, model: str = "m") -> Target:
    return Target(Arm.BASELINE, url, model, DIALECTS["openai"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000"),
        ("http://gpu-1:8000", "http://GPU-1.:8000"),
        ("http://gpu-1", "http://gpu-1:80"),
        ("https://gpu-1/base/", "https://gpu-1:443/base"),
        ("http://localhost:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000", "http://127.0.0.1:8000"),
        ("http://0.0.0.0:8000", "http://localhost:8000"),
        ("http://gpu-1:8000", "http://10.0.0.1:8000"),
        ("http://unknown:8000", "http://unknown:8000/"),
    ],
)
def test_one_server_is_recognised_however_it_is_written(one: str, other: str) -> None:
    assert same_server(served(one), served(other))
    assert same_server(served(other), served(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://gpu-1:8000", "http://gpu-2:8000"),
        ("http://gpu-1:8000", "http://gpu-1:8001"),
        ("http://gpu-1", "https://gpu-1"),
        ("http://gpu-1/a", "http://gpu-1/b"),
        ("https://bf16.models.example", "https://fp8.models.example"),  # one proxy before two servers
        ("http://unknown:8000", "http://nowhere:8000"),
    ],
)
def test_two_servers_are_two(one: str, other: str) -> None:
    assert not same_server(served(one), served(other))


def test_two_models_of_one_server_are_two_deployments() -> None:
    assert not same_server(served("http://gpu-1:8000", "bf16"), served("http://gpu-1:8000", "fp8"))


def test_one_socket_is_one_server_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    one, other = f"unix:{tmp_path}/real/s", f"unix://{tmp_path}/link/s"
    assert same_server(served(one), served(other))
    assert not same_server(served(one), served(f"{other}2"))
    assert not same_server(served(one), served(f"{one}:/base"))
    assert not same_server(served(one), served("http://localhost"))


def test_gateway_that_tells_by_a_header_serves_two_and_one_that_tells_by_a_credential_serves_one() -> None:
    stable, canary = (
        replace(served("http://gpu-1"), open_headers={"x-route": route}) for route in ("stable", "canary")
    )
    assert not same_server(stable, canary)
    one, other = (replace(served("http://gpu-1"), secret_headers={"x-key": key}) for key in ("a", "b"))
    assert same_server(one, other)
