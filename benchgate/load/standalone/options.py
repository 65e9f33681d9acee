"""Options of `benchgate load`, parsed from the command line: load, headers, certificates, proxy, trace."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar, cast

from pydantic import ValidationError

from benchgate import units
from benchgate.errors import SuiteError, TargetError, UsageError
from benchgate.model.arrivals import (
    POISSON,
    ArrivalProcess,
    RateProfile,
    TracedRequest,
    linear_ramp,
    mean_rps,
    parse_arrival,
    replayed_offsets_ns,
)
from benchgate.model.client import ClientProfile
from benchgate.model.metric import Slo
from benchgate.model.request import ENDPOINTS, LARGEST_SALT, Endpoint, endpoint_at
from benchgate.suite.address import (
    check_grpc,
    check_proxy,
    is_versioned,
    nearest_address,
    read_header,
    reference_name,
    resolve_secret,
    split_address,
)
from benchgate.suite.load import MOST_WORKERS, parse_warmup
from benchgate.suite.stages import MOST_IN_FLIGHT, MOST_REQUESTS
from benchgate.suite.workload import PromptSet
from benchgate.suite.yaml import read_text
from benchgate.targets.address import DIRECT, Route, ServerAddress, http_form, require_scheduler, tls_context
from benchgate.targets.dialect import DIALECTS
from benchgate.targets.grpc_messages import require_grpc

if TYPE_CHECKING:
    from benchgate.plan.client_demand import StageDemand
    from benchgate.plan.model import RecordedRequest


def read_headers(lines: Sequence[str], environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Read `NAME:VALUE` headers: open ones, and those from the environment. Raises UsageError without the value."""
    shown: dict[str, str] = {}
    hidden: dict[str, str] = {}
    for line in lines:
        try:
            name, value = read_header(line)
        except ValueError as exc:
            raise UsageError(f"--header: {exc}") from None
        if name in shown or name in hidden:
            raise UsageError(f'--header: "{name}" is given twice; give it once')
        (shown if reference_name(value) is None else hidden)[name] = resolve_secret(value, environment, "--header")
    return shown, hidden


USUAL_KEY = "OPENAI_API_KEY"  # the variable that OpenAI's clients read


def read_api_key(
    servers: Collection[ServerAddress],
    name: str | None,
    headers: Collection[str],
    proxy: str | None,
    environment: Mapping[str, str],
) -> str | None:
    """Return the API key in the variable `name`; without a name, the customary one if it may be sent to all `servers`.

    That one goes only where nobody on the way can read it, or to this network: over https, to a socket, to a loopback
    or private address without a proxy. A header `authorization` replaces it.
    """
    if name is not None:
        return resolve_secret(f"${{env:{name}}}", environment, "--api-key-env")
    if not environment.get(USUAL_KEY) or "authorization" in headers:
        return None
    if not all(_is_confidential(server, proxy) for server in servers):
        return None
    return resolve_secret(f"${{env:{USUAL_KEY}}}", environment)


def _is_confidential(server: ServerAddress, proxy: str | None) -> bool:
    return server.scheme == "https" or server.socket is not None or (proxy is None and _is_private(server.host))


def _is_private(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback or (address.is_private and not address.is_link_local)


def read_route(
    server: ServerAddress, grpc: str | None, *, ca: str | None, cert: str | None, key: str | None, proxy: str | None
) -> Route:
    """Return the way to a server, its files read. Raises UsageError for what does not fit or cannot be used."""
    if key is not None and cert is None:
        raise UsageError("--key belongs to a --cert, which is missing")
    if (ca or cert) and server.scheme != "https" and not (grpc or "").startswith("grpcs:"):
        raise UsageError(f"--ca and --cert are for https, and the address is {server.shown}; correct one of them")
    if proxy is not None:
        try:
            proxy = check_proxy(proxy)
        except ValueError as exc:
            raise UsageError(f"--proxy: {exc}") from None
        if server.socket is not None:
            raise UsageError("--proxy means nothing for a socket of this machine; leave it out")
    ca, cert, key = (None if path is None else str(Path(path).absolute()) for path in (ca, cert, key))
    route = Route(ca, cert, key, proxy)
    if server.scheme == "https":
        tls_context(route)
    return route


_NS_PER_S = 1_000_000_000
_MOST_ROWS = 1_000_000  # where no number of requests bounds them
_MOST_SPEED = 1_000  # as in a suite's stage


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows of a trace that are sent, and how much faster than recorded."""

    path: str
    speed: float
    rows: tuple[TracedRequest, ...]

    @property
    def offsets_ns(self) -> tuple[int, ...]:
        """Intended sends since the start."""
        return replayed_offsets_ns(self.rows, self.speed)

    @property
    def mean_rps(self) -> float:
        """The rate offered on the whole."""
        return mean_rps(self.offsets_ns)

    @property
    def peak_rps(self) -> float:
        """The most requests that are due within one second."""
        from benchgate.plan.arrivals import peak_rps  # slow to import

        return peak_rps(self.offsets_ns)


def read_replay(path: str, speed: float, requests: int | None, duration_s: float | None) -> Replay:
    """Read `requests` rows of a trace, or those within `duration_s`. Raises SuiteError, or ValueError if too few."""
    if not 0 < speed <= _MOST_SPEED:
        raise ValueError(f"{speed:g} is no speed; write a number above 0 and at most {_MOST_SPEED:,}, like 2")
    from benchgate.load.traces import load_trace  # importing its formats takes time

    rows = load_trace(Path(path), requests or _MOST_ROWS)
    if requests is not None and len(rows) < requests:
        raise ValueError(f"{path} has {len(rows):,} rows, fewer than the {requests:,} requests; ask for fewer")
    if duration_s is not None:
        rows = tuple(row for row in rows if row.at_ns <= duration_s * speed * _NS_PER_S)
        if len(rows) == _MOST_ROWS:  # as many as were read
            raise ValueError(f"{path} has {len(rows):,} rows or more within {duration_s:g} s; write --requests instead")
    return Replay(path, speed, rows)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Recorded prompts to send instead of synthetic ones."""

    name: str
    rows: tuple[RecordedRequest, ...]


def read_prompts(text: str, endpoint: Endpoint) -> Prompts:
    """Read a source of prompts, or a mapping like that of a suite's `prompts`.

    Raises SuiteError or UsageError for prompts that cannot be read, and ValueError for others that cannot be sent.
    """
    from benchgate.load.prompt_sets import read_prompt_set
    from benchgate.suite.messages import Slot, faults_of

    document = read_text(text, "--prompts", "mapping") if text.lstrip().startswith("{") else None
    try:
        prompt_set = PromptSet.model_validate({"source": text} if document is None else document.data)
    except ValidationError as exc:
        faults = faults_of(exc, Slot(PromptSet, ()))
        if document is None:
            raise ValueError(faults[0].message) from None
        raise SuiteError([document.problem(fault) for fault in faults]) from None
    rows = read_prompt_set(Path(), prompt_set, conversing=False)
    unfit = [row.line for row in rows if len(row.messages) != 1 or row.fields]
    if unfit and ENDPOINTS[endpoint].messages_key is None:
        raise ValueError(
            f"{prompt_set.name}:{unfit[0]} is a conversation, and {endpoint} take one text; use the endpoint chat"
        )
    return Prompts(prompt_set.name, rows)


_T = TypeVar("_T")
_BARE_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MADE_UP = tuple(name for name, spec in ENDPOINTS.items() if spec.is_made_up)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """A bare load test: one of `concurrency`, `rate_rps` and `replay`, and one of `requests` and `duration_s`.

    `cluster` is the address of a dask scheduler, whose workers send the load: `workers` of them, None for all.
    `model` is empty until the server is asked for its only one.
    `parse` always says how many workers a load without a cluster has. `warmup` is the number of requests that are sent
    before and are in no figure; "auto" sends until TTFT no longer falls.

    `salt` changes the words of the prompts (0: those that follow from the seed alone) and neither their lengths nor
    their instants. `parse` draws one where none is given. `service_s` is the mean time in seconds that a request takes,
    by which a load ramps up; None: as the warm-up finds it.
    """

    url: str
    model: str
    engine: str = "auto"
    concurrency: int | None = None
    rate_rps: float | None = None
    arrival: ArrivalProcess = POISSON
    replay: Replay | None = None
    requests: int | None = None
    duration_s: float | None = None
    input_tokens: int = 100
    output_tokens: int = 128
    audio_s: float = 5.0
    grpc: str | None = None
    prompts: Prompts | None = None
    think_s: float = 0.0
    ramp_to_rps: float | None = None
    service_s: float | None = None
    endpoint: Endpoint = "chat"
    workers: int | None = 1
    cluster: str | None = None
    slo: Slo | None = None
    seed: int = 0
    salt: int = 0
    api_key: str | None = field(default=None, repr=False)
    open_headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    route: Route = DIRECT
    audit: bool = False
    warmup: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        _exactly_one(
            {
                "--concurrency (closed loop)": self.concurrency,
                "--rate (open loop)": self.rate_rps,
                "--trace (replay)": self.replay,
            },
            "--concurrency 8 or --rate 4/s",
        )
        _exactly_one({"--requests": self.requests, "--duration": self.duration_s}, "--duration 60s")
        for name in ("concurrency", "requests", "input_tokens", "output_tokens", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        most = {"concurrency": MOST_IN_FLIGHT, "requests": MOST_REQUESTS, "workers": MOST_WORKERS}
        for name, largest in most.items():
            if (getattr(self, name) or 0) > largest:
                raise UsageError(f"--{name} is {getattr(self, name):,}; it must be at most {largest:,}")
        if self.seed < 0:
            raise UsageError(f"--seed is {self.seed}; it must not be negative")
        if not 0 <= self.salt <= LARGEST_SALT:
            raise UsageError(f"--salt is {self.salt}; write a number from 0 to {LARGEST_SALT}")

    @property
    def request_url(self) -> str:
        """The address that requests are sent to."""
        server, spec = ServerAddress.of(self.url), ENDPOINTS[self.endpoint]
        path = spec.path_for(self.model, stream=spec.streams)
        return server.page(path) if server.socket is None else f"unix:{server.socket}:{server.path(path)}"

    @property
    def lengths(self) -> dict[str, float | None]:
        """Lengths of a request in the result; None for what it does not state, or every row of a trace does."""
        spec = ENDPOINTS[self.endpoint]
        if spec.transcribes:
            return {"input_tokens": None, "output_tokens": None, "audio_s": self.audio_s}
        output_tokens = self.output_tokens if spec.generates else None
        found: dict[str, float | None] = {"input_tokens": self.input_tokens, "output_tokens": output_tokens}
        if self.prompts is not None:
            found["input_tokens"] = None
        if self.replay is not None:
            by_row = [name for name in found if all(getattr(row, name) is not None for row in self.replay.rows)]
            found |= dict.fromkeys(by_row)
        return found

    @property
    def inputs_sha256(self) -> str | None:
        """The digest of the rows of the trace or the prompts; None without either."""
        rows = self.replay.rows if self.replay is not None else self.prompts and self.prompts.rows
        return None if rows is None else hashlib.sha256(repr(rows).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def stage(self) -> str:
        """Name of this level of load in the history: `c8`, `r2.5`, `r2-16` for a changing rate, or `trace`."""
        if self.concurrency is not None:
            return f"c{self.concurrency}"
        if self.rate_rps is None:
            return "trace"
        return f"r{self.rate_rps:g}" + ("" if self.ramp_to_rps is None else f"-{self.ramp_to_rps:g}")

    @property
    def offered_rps(self) -> float | None:
        """The mean rate of an open loop; None for a closed one."""
        if self.profile is not None:
            return self.profile.mass / self.profile.duration_s
        return self.rate_rps if self.replay is None else self.replay.mean_rps

    @property
    def profile(self) -> RateProfile | None:
        """The rate over time of an open loop whose rate changes; None for any other load."""
        if self.ramp_to_rps is None or self.rate_rps is None or self.duration_s is None:
            return None
        return linear_ramp(self.rate_rps, self.ramp_to_rps, self.duration_s)

    @property
    def peak_rps(self) -> float | None:
        """The rate of an open loop where it is highest; None for a closed one."""
        if self.replay is not None:
            return self.replay.peak_rps
        return None if self.rate_rps is None else max(self.rate_rps, self.ramp_to_rps or 0.0)

    @property
    def demand(self) -> StageDemand:
        """Return the peak demand of this load."""
        from benchgate.plan.client_demand import StageDemand  # slow to import

        peak_rps, tokens = self.peak_rps, self.output_tokens
        if self.replay is not None:
            tokens = max(row.output_tokens or tokens for row in self.replay.rows)
        tokens_per_s = None if peak_rps is None else peak_rps * tokens
        name, requests = "load", self.requests or 0
        return StageDemand(name, requests, self.concurrency, self.offered_rps, peak_rps, tokens_per_s, self.duration_s)

    @classmethod
    def parse(
        cls,
        *,
        url: str,
        model: str | None = None,
        engine: str = "auto",
        concurrency: int | None = None,
        rate: str | None = None,
        arrival: str | None = None,
        trace: str | None = None,
        speed: float | None = None,
        requests: int | None = None,
        duration: str | None = None,
        input_tokens: int | None = None,
        output_tokens: int = 128,
        audio: str | None = None,
        grpc: str | None = None,
        prompts: str | None = None,
        think_time: str | None = None,
        ramp_to: str | None = None,
        service_time: str | None = None,
        endpoint: str | None = None,
        workers: str = "auto",
        cluster: str | None = None,
        slo: str | None = None,
        seed: int = 0,
        salt: int | None = None,
        api_key_env: str | None = None,
        headers: Sequence[str] = (),
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        proxy: str | None = None,
        audit: bool = False,
        warmup: str = "auto",
        client: Callable[[], ClientProfile | None] = lambda: None,
        cpus: int = 1,
    ) -> Self:
        """Parse texts as typed. Raises UsageError, which says what was found and what to write.

        Variables that `headers` refer to are read here, and so are the files of certificates. `cpus` is how many cores
        there are. `client` is called after all checks and returns the measured speed of one worker, or None to assume
        the usual cost.
        """
        rate_rps = None if rate is None else _read("--rate", read_rate_rps, rate)
        duration_s = None if duration is None else _read("--duration", units.parse_duration_s, duration)
        if arrival is not None and rate is None:
            raise UsageError("--arrival means nothing without --rate; leave it out")
        if speed is not None and trace is None:
            raise UsageError("--speed means nothing without --trace; leave it out")
        if think_time is not None and concurrency is None:
            raise UsageError("--think-time is the pause of a closed loop; add --concurrency, or leave it out")
        if ramp_to is not None and (rate is None or duration is None):
            raise UsageError("--ramp-to needs the --rate it begins with and the --duration it takes")
        if service_time is not None and (trace is not None or ramp_to is not None):
            given = "--trace" if ramp_to is None else "--ramp-to"
            raise UsageError(f"--service-time is for the ramp before a steady load, and {given} has none; leave it out")
        if prompts is not None and (trace is not None or input_tokens is not None):
            other = "--input-tokens" if trace is None else "--trace"
            raise UsageError(f"--prompts and {other} both choose the lengths of prompts; leave one of them out")
        replay = None
        if trace is not None:
            faster = 1.0 if speed is None else speed
            replay = _read("--trace", lambda path: read_replay(path, faster, requests, duration_s), trace)
        fixed_workers = None
        if workers != "auto":
            if not (workers.isascii() and workers.isdecimal()):
                raise UsageError(f'--workers: {workers!r} is not a number of processes; write "auto" or "2"')
            fixed_workers = min(int(workers), concurrency or int(workers))  # a closed loop has no more than slots
        open_headers, secret_headers = read_headers(headers, os.environ)
        base, server, chosen, named = _read_address(url, endpoint)
        if (grpc is not None) != ENDPOINTS[chosen].by_grpc:
            raise UsageError("--grpc HOST:PORT and --endpoint grpc-infer belong together; add the missing one")
        servers = [server]
        if grpc is not None:
            require_grpc()
            grpc = _read("--grpc", check_grpc, grpc)
            servers.append(ServerAddress.of(http_form(grpc)))
            if audit or proxy is not None:
                raise UsageError("--audit and --proxy mean nothing for gRPC; leave them out")
        if audio is not None and not ENDPOINTS[chosen].transcribes:
            raise UsageError(f"--audio is the recording that transcriptions get, not {chosen}; leave it out")
        if ENDPOINTS[chosen].transcribes and (prompts is not None or input_tokens is not None):
            raise UsageError(
                "transcriptions get recordings: write --audio instead of --prompts and --input-tokens, or leave it out"
            )
        if named is not None and model not in (None, named):
            raise UsageError(f"the address names the model {named}, and --model is {model}; leave one of them out")
        model = model or named
        if cluster is not None:
            require_scheduler(cluster)
        if audit:
            from benchgate.load.client_delay import audit_refusal  # slow to import

            if (refusal := audit_refusal(server)) is not None:
                raise UsageError(f"--audit: {refusal}")
        options = cls(
            url=base,
            model=model or "",
            engine=_one_of("--engine", engine, ("auto", *DIALECTS)),
            concurrency=concurrency,
            rate_rps=rate_rps,
            arrival=POISSON if arrival is None else _read("--arrival", parse_arrival, arrival),
            replay=replay,
            requests=requests,
            duration_s=duration_s,
            input_tokens=100 if input_tokens is None else input_tokens,
            output_tokens=output_tokens,
            grpc=grpc,
            audio_s=5.0 if audio is None else _read("--audio", units.parse_duration_s, audio),
            prompts=None if prompts is None else _read("--prompts", lambda path: read_prompts(path, chosen), prompts),
            think_s=0.0 if think_time is None else _read("--think-time", units.parse_duration_s, think_time),
            ramp_to_rps=None if ramp_to is None else _read("--ramp-to", read_rate_rps, ramp_to),
            service_s=None if service_time is None else _read("--service-time", units.parse_duration_s, service_time),
            endpoint=chosen,
            workers=fixed_workers,
            cluster=cluster,
            slo=None if slo is None else _read("--slo", _slo, slo),
            seed=seed,
            salt=1 + secrets.randbelow(LARGEST_SALT) if salt is None else salt,
            api_key=read_api_key(servers, api_key_env, {*open_headers, *secret_headers}, proxy, os.environ),
            open_headers=open_headers,
            secret_headers=secret_headers,
            route=read_route(server, grpc, ca=ca, cert=cert, key=key, proxy=proxy),
            audit=audit,
            warmup=_read("--warmup", lambda text: parse_warmup(int(text) if text.isdecimal() else text), warmup),
        )
        if options.slo is not None and options.slo.tpot_s is not None and not ENDPOINTS[chosen].streams:
            raise UsageError(f"--slo: tpot is the pace of a stream, and {chosen} answers whole; write ttft or e2e")
        if options.workers is not None or cluster is not None:
            return options
        from benchgate.plan.client_demand import default_workers, workers_to_start  # slow to import

        return replace(options, workers=workers_to_start([options.demand], client(), default_workers(cpus)))


def _read_address(url: str, endpoint: str | None) -> tuple[str, ServerAddress, Endpoint, str | None]:
    """Return a server's base address as text and parsed, the endpoint (the one named, else by the path), and the model.

    The model is None unless the path names it.
    """
    if (near := nearest_address(url)) is not None:
        raise UsageError(f'"{url}" is not the address of a server; write it like "{near}"')
    base, path = split_address(url)
    try:
        server = ServerAddress.of(base)
    except TargetError as exc:
        raise UsageError(str(exc)) from exc
    found = endpoint_at(path) or (endpoint_at(f"/v1{path}") if is_versioned(server.prefix) else None)
    by_path, model = found or (None, None)
    if by_path == "predictions" and endpoint not in (None, by_path):  # beneath it TorchServe serves OpenAI's API
        base, path, by_path, model = f"{base}{path}", "", None, None
        server = ServerAddress.of(base)
    if path not in ("", "/v1") and by_path not in _MADE_UP:
        raise UsageError(f'the address ends in {path}, which cannot be load-tested; write "{base}"')
    if endpoint is None:
        return base, server, by_path or "chat", model
    named = cast(Endpoint, _one_of("--endpoint", endpoint, _MADE_UP))
    if by_path not in (None, named):
        raise UsageError(f"the address ends in {path}, and --endpoint is {named}; leave one of them out")
    return base, server, named, model


def _exactly_one(given: Mapping[str, object], example: str) -> None:
    found = [name.split()[0] for name, value in given.items() if value is not None]
    if len(found) != 1:
        *most, last = given
        remedy = f"found {' and '.join(found)}: leave out one" if found else f"found none: add one, like {example}"
        raise UsageError(f"a load test needs exactly one of {', '.join(most)} and {last}; {remedy}")


def _read(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc


def _one_of(option: str, name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise UsageError(f"{option}: {name!r} is unknown; {hint}")


def read_rate_rps(text: str) -> float:
    """`8/s`, or a bare number of requests per second. ValueError for anything else."""
    return units.parse_rate_rps(f"{text.strip()}/s" if _BARE_NUMBER.fullmatch(text.strip()) else text)


def _slo(text: str) -> Slo:
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        _one_of("--slo", name, ("ttft", "tpot", "e2e"))
        if not equals or f"{name}_s" in bounds:
            raise ValueError(f'{text!r} is not a list of bounds; write each once, like "ttft=500ms,tpot=80ms"')
        bounds[f"{name}_s"] = units.parse_duration_s(value)
    return Slo(**bounds)
