"""A real server as a process: started, waited for, ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = "tiny-llama"
READY_S = 300.0
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
_VLLM = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the load generator lives on the same cores
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
}


class StartError(Exception):
    """A server did not come up."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Where the engines are installed, and the folder that holds the model, caches and logs."""

    environment: Path
    folder: Path

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.folder / MODEL

    def program(self, name: str) -> str:
        """A program of the engines' environment."""
        return str(self.environment / "bin" / name)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers on /health."""

    name: str
    url: str
    start_s: float


@contextlib.contextmanager
def vllm(engines: Engines, name: str = "vllm", *, sequences: int = 32, block_tokens: int = 32) -> Iterator[Running]:
    """`vllm serve` on the CPU, its prefix cache in blocks of `block_tokens`."""
    port = _free_port()
    command = [
        *(engines.program("vllm"), "serve", str(engines.model), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--dtype", "bfloat16"),
        *("--max-num-seqs", str(sequences), "--block-size", str(block_tokens), "--enforce-eager"),
        *("--enable-tokenizer-info-endpoint", "--enable-prompt-tokens-details"),
    ]
    with _served(engines, name, command, port, _VLLM) as running:
        yield running


@contextlib.contextmanager
def transformers_serve(engines: Engines, name: str, *, continuous_batching: bool) -> Iterator[Running]:
    """`transformers serve`, which by default answers one request at a time."""
    port = _free_port()
    (engines.folder / "hf/hub").mkdir(parents=True, exist_ok=True)  # without it /v1/models is an error
    command = [
        *(engines.program("transformers"), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu"),
        *(("--continuous-batching", "--cb-num-blocks", "64") if continuous_batching else ()),
    ]
    with _served(engines, name, command, port, {}) as running:
        yield running


@contextlib.contextmanager
def _served(
    engines: Engines, name: str, command: list[str], port: int, settings: Mapping[str, str]
) -> Iterator[Running]:
    log_path = engines.folder / f"{name}.log"
    began = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=engines.folder,  # transformers serve knows a model by the path it was given
            env={**os.environ, **_OFFLINE, "HF_HOME": str(engines.folder / "hf"), **settings},
            start_new_session=True,  # a group of its own, so that all of it can be ended at once
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(process, url, log_path)
        yield Running(name, url, time.monotonic() - began)
    finally:
        _end(process)


def _await_health(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError(f"the server ended with status {process.returncode}:\n{_last_words(log_path)}")
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.5)
    raise StartError(f"the server was not there after {READY_S:g} s:\n{_last_words(log_path)}")


def _last_words(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-30:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asked first; then the whole group is killed, because engines leave their workers behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
