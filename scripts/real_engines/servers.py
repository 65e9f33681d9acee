"""A real server as a process: started, waited for, ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.suite.deployment import DeploymentSpec
from benchgate.targets.dialect import Target, target_of
from benchgate.targets.probe import wait_ready
from scripts.real_engines.engines import ENGINES, Engine
from scripts.real_engines.environments import Places, prepare

READY_S = 300.0
_POLL_S = 0.5
_END_S = 10.0


class StartError(Exception):
    """A server did not come up."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that has completed a request."""

    engine: Engine
    url: str
    metrics_url: str
    log_path: Path
    start_s: float = 0.0

    @property
    def deployment(self) -> dict[str, object]:
        """The server as a deployment of a suite."""
        document: dict[str, object] = {"url": self.url, "model": self.engine.model, "engine": self.engine.dialect}
        if self.engine.metrics_address is not None:
            document["metrics"] = self.metrics_url
        return {**document, **self.engine.deployment}

    @property
    def deployment_text(self) -> str:
        """The deployment as a suite holds it."""
        return json.dumps(self.deployment)

    def target(self, arm: Arm = Arm.BASELINE, *, model: str | None = None) -> Target:
        """Return the server as benchgate's clients need it, under another name of its model if one is given."""
        spec = DeploymentSpec.model_validate({**self.deployment, "model": model or self.engine.model})
        return target_of(arm, spec, {}, Path.cwd())


@contextlib.contextmanager
def serve(places: Places, engine: Engine, *options: str, name: str | None = None) -> Iterator[Running]:
    """Install and start an engine, and the one behind it; yield it once it completes requests."""
    prepare(places, engine)
    with contextlib.ExitStack() as stack:
        upstream = ""
        if engine.in_front_of is not None:
            upstream = stack.enter_context(serve(places, ENGINES[engine.in_front_of])).url
        yield stack.enter_context(_process(places, engine, options, name or engine.name, upstream))


@contextlib.contextmanager
def _process(places: Places, engine: Engine, options: tuple[str, ...], name: str, upstream: str) -> Iterator[Running]:
    port, *further = _free_ports(5)
    ports = {f"port_{number}": str(other) for number, other in enumerate(further, start=1)}
    values = {**places.paths(engine), "port": str(port), **ports, "upstream": upstream}
    for path, text in engine.files.items():
        (places.folder / path).write_text(text.format(**values), encoding="utf-8")
    (places.folder / "hf/hub").mkdir(parents=True, exist_ok=True)  # transformers serve fails on /v1/models without it
    settings = {key: value.format(**values) for key, value in engine.settings.items()}
    log_path = places.folder / f"{name}.log"
    began = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [part.format(**values) for part in (*engine.command, *options)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=places.folder,
            env={**os.environ, "HF_HOME": str(places.folder / "hf"), **settings},
            start_new_session=True,  # a group of its own, so that all of it can be ended at once
        )
    address = f"http://127.0.0.1:{port}"
    metrics_url = (engine.metrics_address or f"{address}/metrics").format(**values)
    running = Running(engine, address + engine.api, metrics_url, log_path)
    try:
        _await_port(process, port, log_path)
        try:
            wait_ready(running.target(), endpoint=engine.endpoint, ready_s=READY_S, connect_s=5)
        except TargetError as exc:
            raise StartError(f"{exc}\n{_last_lines(log_path)}") from exc
        yield replace(running, start_s=time.monotonic() - began)
    finally:
        _end(process)


def _await_port(process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError(f"the server ended with status {process.returncode}:\n{_last_lines(log_path)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(_POLL_S)
    raise StartError(f"the server did not listen within {READY_S:g} s:\n{_last_lines(log_path)}")


def _last_lines(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-30:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server, then kill its whole group: engines leave their workers behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
