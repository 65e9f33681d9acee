"""Settings of a simulated server: from Python, and from a file with assignments of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import ValidationError

from benchgate.errors import Problem, SuiteError, UsageError
from benchgate.suite.messages import Slot, faults_of
from benchgate.suite.simulator import SimSettings
from benchgate.suite.yaml import Document, Fault, Plain, read_text

NS = 1_000_000_000
_SETTINGS = Slot(SimSettings, ())
_WHAT = "file of a simulated server"
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address that a server listens on. Raises UsageError for parts that do not fit together."""

    host: str = _HOST
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket, instead of host and port
    cert: str | None = None  # file with the certificate chain; with `key`, TLS
    key: str | None = None
    client_ca: str | None = None  # clients must show a certificate of this authority

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise UsageError(f"--port is {self.port}; it must be from 0 (any free one) to 65535")
        if (self.cert is None) != (self.key is None):
            raise UsageError("TLS needs both a certificate and its key; give --cert and --key, or neither")
        if self.uds is not None and (self.port or self.host != _HOST):
            raise UsageError("a Unix socket has no host and no port; leave out --uds, or --host and --port")
        if self.uds is not None and self.cert is not None:
            raise UsageError("TLS over a Unix socket is not served; leave out --uds, or --cert and --key")
        if self.client_ca is not None and self.cert is None:
            raise UsageError("client certificates need TLS; give --cert and --key as well")


LOOPBACK = ListenAddress()  # any free port of this machine


def sim_settings(**values: object) -> SimSettings:
    """Return settings by field name, in base units: `sim_settings(ttft_s=0.05, replicas=3)`. Raises UsageError."""
    try:
        return SimSettings.model_validate(values, by_name=True, by_alias=False, context={"stored": True})
    except ValidationError as error:
        faults = faults_of(error, _SETTINGS)
        raise UsageError(
            "; ".join(f"{'.'.join(map(str, fault.path)) or 'settings'}: {fault.message}" for fault in faults)
        ) from None


def parse_settings(text: str | None, source: str, assignments: Sequence[str]) -> SimSettings:
    """Return a file's settings, overridden by assignments like `itl=20ms`. Raises SuiteError or UsageError."""
    documents = [] if text is None else [read_text(text, source, _WHAT)]
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {assignment}: write a key and a value, like --set itl=20ms")
        documents.append(read_text(f"{name.strip()}: {value}", f"--set {assignment}", _WHAT))
    data: dict[str, Plain] = {}
    place: dict[str | int, Document] = {}
    for document in documents:
        data |= document.data
        place |= dict.fromkeys(document.data, document)
    problems = [problem for document in documents for problem in document.problems]
    try:
        settings = SimSettings.model_validate(data)
    except ValidationError as error:
        reported = {problem.path for problem in problems}
        found = [_placed(fault, place, source) for fault in faults_of(error, _SETTINGS)]
        problems += [problem for problem in found if problem.path not in reported]
        raise SuiteError(problems) from None
    if problems:
        raise SuiteError(problems)
    return settings


def _placed(fault: Fault, place: dict[str | int, Document], source: str) -> Problem:
    document = place.get(fault.path[0]) if fault.path else next(iter(place.values()), None)
    return Problem(source, None, None, "", fault.message) if document is None else document.problem(fault)


def to_json(settings: SimSettings, address: ListenAddress, replica: int) -> str:
    """Return all of it as the argument of the server's process."""
    values = settings.model_dump(mode="json", by_alias=False)
    return json.dumps({"settings": values, "address": asdict(address), "replica": replica})


def from_json(text: str) -> tuple[SimSettings, ListenAddress, int]:
    """Return what `to_json` was given."""
    document = json.loads(text)
    return sim_settings(**document["settings"]), ListenAddress(**document["address"]), document["replica"]
