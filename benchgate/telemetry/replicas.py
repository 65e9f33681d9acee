"""Counts the replicas of a deployment: by an address of each, by a command, or by what its router reports."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchgate import child_process
from benchgate.errors import TargetError
from benchgate.model.run import NOT_COUNTABLE
from benchgate.suite.deployment import DeploymentSpec, Ready, resolve_page
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import json_object
from benchgate.telemetry.engine_metrics import BadPageError, UnreadError, parse_samples
from benchgate.telemetry.sources import PageSource, sources_of

COMMAND_LIMIT_S = 30.0
_AT_ONCE = 16
_LONGEST_OUTPUT_BYTES = 4096
_NUMBER = re.compile(r"[0-9]{1,6}")
_HOW_TO_COUNT = (
    "add to `ready` an address of each replica (`metrics: [http://host-1:8000/metrics, …]`) or a command that prints "
    "how many are ready (`command: …`)"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of one count. `count` is None where it could not be taken; `problem` then says why."""

    count: int | None
    problem: str | None = None


@dataclass(slots=True)
class ReplicaCounter:
    """Counts replicas, each time the same way. Addresses are secret; `page` is the metrics page, if any."""

    target: Target
    ready: Ready
    log: Path  # where the output of the command goes
    addresses: tuple[str, ...] = field(default=(), repr=False)
    page: str | None = field(default=None, repr=False)
    _report: _Report | None = None  # the source of the first count; later counts read it alone

    def count(self) -> Counted:
        """Count now. Raises TargetError where no source has ever reported a number of replicas."""
        if self.ready.command is not None:
            return _count_by_command(self.ready.command_words, self.target, self.log)
        if self.addresses:
            with ThreadPoolExecutor(_AT_ONCE, "benchgate-replicas") as threads:
                return Counted(sum(text is not None for text in threads.map(self._read, self.addresses)))
        reports = [self._report] if self._report is not None else _REPORTS
        for report in reports:
            address = self.page if report.path is None else ServerAddress.of(self.target.url).page(report.path)
            text = None if address is None else self._read(address)
            count = None if text is None else report.read(text)
            if count is not None:
                self._report = report
                return Counted(count)
        if self._report is not None:
            return Counted(None, f"{self._report.name} did not report them")
        sources = ", ".join(report.name for report in _REPORTS)
        raise TargetError(f"{NOT_COUNTABLE}: none of {sources} reports them; {_HOW_TO_COUNT}")

    def _read(self, address: str) -> str | None:
        """Return the page, None where the address does not answer with status 200."""
        try:
            with PageSource(address, self.target) as source:
                return source.fetch().text
        except UnreadError:
            return None


def replica_counter(
    spec: DeploymentSpec, target: Target, environment: Mapping[str, str], log: Path
) -> ReplicaCounter | None:
    """Return the counter, None where no number of replicas is declared. Raises UsageError for a bad reference."""
    if spec.ready is None:
        return None
    sources = sources_of(spec, target, environment)
    addresses = tuple(resolve_page("ready.metrics", text, environment) for text in spec.ready.metrics)
    addresses = addresses or tuple(replica.address for replica in sources.replicas)
    return ReplicaCounter(target, spec.ready, log, addresses, sources.page)


def _count_by_command(command: tuple[str, ...], target: Target, log: Path) -> Counted:
    """Run the command without a shell and read the whole number that it prints."""
    environment = {**os.environ, "BENCHGATE_ARM": str(target.arm)}
    name = command[0]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output_log, tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output_log,
                env=environment,
                start_new_session=True,
            )
            try:
                status = process.wait(COMMAND_LIMIT_S)
            except subprocess.TimeoutExpired:
                return Counted(None, f"{name} took longer than {COMMAND_LIMIT_S:g} s")
            finally:
                child_process.kill_session(process)
            output.seek(0)
            printed = output.read(_LONGEST_OUTPUT_BYTES)
            output_log.write(printed)
    except OSError as error:
        return Counted(None, f"{name} could not be run: {error.strerror or error}")
    if status != 0:
        return Counted(None, f"{name} ended with status {status}; see {log.name}")
    text = printed.decode("utf-8", "replace").strip()
    if _NUMBER.fullmatch(text) is None:
        return Counted(None, f"{name} printed {'nothing' if not text else 'no whole number'}; see {log.name}")
    return Counted(int(text))


@dataclass(frozen=True, slots=True)
class _Report:
    """A document in which a router reports its replicas; at its page of metrics where `path` is None."""

    name: str
    path: str | None
    read: Callable[[str], int | None]


def _sglang_workers(text: str) -> int | None:
    workers = _listed(text, "workers")
    if workers is None or any(not isinstance(worker.get("is_healthy"), bool) for worker in workers):
        return None
    return sum(worker["is_healthy"] is True for worker in workers)


def _practice_replicas(text: str) -> int | None:
    replicas = _listed(text, "replicas")
    return None if replicas is None else sum(replica.get("state") == "up" for replica in replicas)


def _listed(text: str, key: str) -> list[dict[str, object]] | None:
    """Return the objects that a JSON document lists under a key; None where it is another document."""
    document = json_object(text)
    listed = (document or {}).get(key)
    return listed if isinstance(listed, list) and all(isinstance(one, dict) for one in listed) else None


def _ready_pods(text: str) -> int | None:
    """Add up the gauges of ready replicas on a page of metrics: vLLM's router, the gateway's endpoint picker."""
    try:
        samples = parse_samples(text)
    except BadPageError:
        return None
    for name in ("vllm:healthy_pods_total", "inference_pool_ready_pods"):
        found = [sample.value for sample in samples if sample.name == name]
        if found and all(value >= 0 and float(value).is_integer() for value in found):
            return int(sum(found))
    return None


_REPORTS = (
    _Report("/workers of an SGLang router", "/workers", _sglang_workers),
    _Report("its page of metrics", None, _ready_pods),
    _Report("/sim/replicas of a practice server", "/sim/replicas", _practice_replicas),
)
