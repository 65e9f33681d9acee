"""Does a load test depend on how many shards send it, and on what starts them?

    .venv/bin/python -m benchmarks.launchers [--update]

Local processes, SSH and Slurm run the scripts of examples/launchers; Dask runs `--cluster`. Each sends one load test
over 1, 2, 4 and 8 shards to a server of this machine that notes every request. `--update` writes the table to
docs/scale.md. SSH and Slurm need their daemons (Debian: openssh-server, slurm-wlm), which are started here without
rights over the system's own; what is absent is said.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchgate import __version__
from benchgate.load.cluster import ClusterFleet
from benchgate.load.results import ClassResult, StageResult, merged
from benchgate.load.shard_files import ShardBegin, ShardedStage, ShardFiles
from benchgate.load.spool_folder import spool_folder
from benchgate.load.standalone.merge import merge_shards
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import stage_of, target_of
from benchgate.model.columns import select_rows
from benchgate.model.run import ClientUse
from benchmarks.tables import in_table, write_table
from tests.fakes.scripted_server import ScriptedServer, answering

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
SHARDS = (1, 2, 4, 8)
LOAD = {
    "model": "m", "engine": "vllm", "rate": "60/s", "duration": "3s", "service_time": "50ms", "output_tokens": "8",
    "salt": "7", "warmup": "0",
}  # fmt: skip
_START_S = 8.0  # and for each shard, which takes that long to import on few cores …
_IMPORT_S = 1.2
_LEAST_RECORDS = 100

Launch = Callable[[str, int, Path], StageResult]
"""Sends LOAD to a URL over so many shards, which may keep files in a folder."""


class AbsentError(Exception):
    """The launcher cannot run on this machine; the message says what it lacks."""


@dataclass(frozen=True)
class Sent:
    """Load test as the server received it and as the client recorded it."""

    requests: int
    union: str  # digest of (instant, prompt, seed) of every request
    figures: frozenset[str]  # digests of the figures of its records, merged from each number of shards


def send(launch: Launch, shards: int) -> Sent:
    """Send LOAD once. Raises RuntimeError for requests that were lost, repeated or not planned."""
    with (
        ScriptedServer(answering(lambda received: "one two three four five six seven eight", after_s=0.005)) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        result = launch(server.url, shards, Path(folder))
        received = [((one.body or {})["seed"], one.prompt) for one in server.requests]
        url = server.url
    columns = result.only.requests
    if len(columns) < _LEAST_RECORDS or any(columns.error):
        raise RuntimeError(f"{len(columns)} requests, {sum(e is not None for e in columns.error)} of them failed")
    seeds = {
        zlib.crc32(b"0/%d" % number) >> 1: at for number, at in zip(columns.index, columns.intended_ns, strict=True)
    }
    union = sorted((int(seeds[seed]), prompt, seed) for seed, prompt in received if seed in seeds)
    if len(union) != len(columns):
        raise RuntimeError(f"the server got {len(union)} of {len(columns)} requests")
    return Sent(len(columns), _digest(union), frozenset(figures(url, result, count) for count in SHARDS))


def figures(url: str, result: StageResult, shards: int) -> str:
    """Return a digest of what `load merge` makes of the records of a load test, dealt anew to so many shards."""
    columns = result.only.requests
    stage = ShardedStage(__version__, shards, 0, {**_numbers(), "url": url, "engine": "vllm"}, None)
    use = ClientUse(cpu_s=0.0, wall_s=1.0, workers=1)
    with tempfile.TemporaryDirectory() as place, spool_folder(place) as folder:
        for shard in range(shards):
            part = select_rows(columns, columns.index % shards == shard)
            window_s = (max(part.end_ns.max(), part.intended_ns.max()) - part.intended_ns.min()) / 1e9
            files = ShardFiles(folder, shard, shards)
            files.begin(ShardBegin.here(stage, shard, ()))
            files.end(StageResult((ClassResult("", part, float(window_s)),), use))
        document = merge_shards([place])
    del document["shards"], document["client"]  # rows of the shards, and their number
    return _digest(document)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _numbers() -> dict[str, Any]:
    return {name: value for name, value in LOAD.items() if name != "warmup"} | {"output_tokens": 8, "salt": 7}


def _options(url: str) -> LoadOptions:
    return LoadOptions.parse(url=url, workers="1", warmup="0", **_numbers())


def _arguments(url: str) -> list[str]:
    return [url, *(word for name, value in LOAD.items() for word in (f"--{name.replace('_', '-')}", value))]


def _shard_results(spool: Path, shards: int) -> StageResult:
    results = []
    with spool_folder(str(spool)) as folder:
        for shard in range(shards):
            result = ShardFiles(folder, shard, shards).read_end()
            if isinstance(result, str):
                raise RuntimeError(f"shard {shard}/{shards} {result}")
            results.append(result)
    return merged(results)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 12):  # INVALID: a machine of few cores may not keep up with its schedule
        raise RuntimeError(f"{command[0]} exited with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-500:]}")


@contextlib.contextmanager
def _commands() -> Iterator[Path]:
    """Yield a folder with `benchgate` of this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = Path(folder) / "benchgate"
        command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m benchgate "$@"\n')
        command.chmod(0o755)
        yield Path(folder)


def _environment(bin_folder: Path, folder: Path, shards: int) -> dict[str, str]:
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2)  # on such a machine imports take as much longer
    start_s = round((_START_S + _IMPORT_S * shards) * busy)
    path = f"{bin_folder}:{os.environ['PATH']}"
    return {"PATH": path, "SPOOL": str(folder / "spool"), "START_IN_S": str(start_s)}


@contextlib.contextmanager
def local() -> Iterator[Launch]:
    """Processes of this machine: examples/launchers/local.sh."""
    with _commands() as bin_folder:

        def launch(url: str, shards: int, folder: Path) -> StageResult:
            script = str(ROOT / "examples/launchers/local.sh")
            _run([script, str(shards), *_arguments(url)], _environment(bin_folder, folder, shards))
            return _shard_results(folder / "spool", shards)

        yield launch


@contextlib.contextmanager
def dask() -> Iterator[Launch]:
    """Workers of a dask cluster: `--cluster`."""

    def launch(url: str, shards: int, folder: Path) -> StageResult:
        port = free_port()
        base = [sys.executable, "-m", "distributed.cli.dask_"]
        place = ["--host", "127.0.0.1", "--no-dashboard"]
        commands = [[*base[:2], f"{base[2]}scheduler", *place, "--port", str(port)]]
        worker = [*base[:2], f"{base[2]}worker", f"tcp://127.0.0.1:{port}", *place]
        commands += [[*worker, "--nthreads", "1", "--no-nanny", "--local-directory", str(folder)]] * shards
        with contextlib.ExitStack() as stack:
            for command in commands:
                stack.enter_context(daemon(command))
            fleet = stack.enter_context(ClusterFleet(f"tcp://127.0.0.1:{port}", shards))
            options = _options(url)
            return fleet.run(stage_of(options, target_of(options)[0], options.service_s))

    yield launch


@contextlib.contextmanager
def ssh() -> Iterator[Launch]:
    """Hosts over SSH, each the loopback with a server of our own: examples/launchers/ssh.sh."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        raise AbsentError("sshd and ssh (Debian: openssh-server)")
    with _commands() as bin_folder:
        for key in ("host", "user"):
            path = str(bin_folder / key)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        port = free_port()
        (bin_folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {bin_folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {bin_folder}/user.pub\nPasswordAuthentication no\nMaxStartups 64\n"
            f"SetEnv PATH={bin_folder}:{os.environ['PATH']}\n"
        )
        (bin_folder / "config").write_text(
            f"Host shard-*\n HostName 127.0.0.1\n Port {port}\n IdentityFile {bin_folder}/user\n LogLevel ERROR\n"
            " IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n"
        )
        client = bin_folder / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {bin_folder}/config "$@"\n')
        client.chmod(0o755)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # for the separation of privileges
        with daemon([sshd, "-D", "-f", str(bin_folder / "sshd_config")]):

            def launch(url: str, shards: int, folder: Path) -> StageResult:
                environment = _environment(bin_folder, folder, shards)
                environment["HOSTS"] = " ".join(f"shard-{shard}" for shard in range(shards))
                _run([str(ROOT / "examples/launchers/ssh.sh"), *_arguments(url)], environment)
                return _shard_results(folder / "spool", shards)

            await_port(port)
            yield launch


@contextlib.contextmanager
def slurm() -> Iterator[Launch]:
    """Tasks of a Slurm job on one node, whose daemons are our own: examples/launchers/slurm.sbatch."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    controller, node = shutil.which("slurmctld", path=path), shutil.which("slurmd", path=path)
    if controller is None or node is None or shutil.which("sbatch") is None or os.geteuid() != 0:
        raise AbsentError("slurmctld, slurmd and sbatch (Debian: slurm-wlm), and root for slurmd")
    with _commands() as bin_folder:
        host, ports = socket.gethostname().split(".")[0], (free_port(), free_port())
        for name in ("state", "spool"):
            (bin_folder / name).mkdir()
        (bin_folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}\nSlurmdPort={ports[1]}\n"
            "AuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nProctrackType=proctrack/pgid\n"
            "TaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\nMpiDefault=none\nReturnToService=2\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n"
            f"StateSaveLocation={bin_folder}/state\nSlurmdSpoolDir={bin_folder}/spool\n"
            f"SlurmctldPidFile={bin_folder}/ctld.pid\nSlurmdPidFile={bin_folder}/d.pid\n"
            f"SlurmctldLogFile={bin_folder}/ctld.log\nSlurmdLogFile={bin_folder}/d.log\n"
            f"NodeName={host} NodeAddr=127.0.0.1 CPUs={max(SHARDS)} State=UNKNOWN\n"
            f"PartitionName=all Nodes={host} Default=YES State=UP\n"
        )
        conf = {"SLURM_CONF": str(bin_folder / "slurm.conf")}
        with daemon([controller, "-D", "-i"], conf), daemon([node, "-D"], conf):
            await_port(ports[0])
            await_port(ports[1])

            def launch(url: str, shards: int, folder: Path) -> StageResult:
                script = str(ROOT / "examples/launchers/slurm.sbatch")
                submit = ["sbatch", "--wait", f"--ntasks={shards}", f"--output={folder}/output", f"--chdir={folder}"]
                try:
                    _run([*submit, script, *_arguments(url)], _environment(bin_folder, folder, shards) | conf)
                    return _shard_results(folder / "spool", shards)
                except (RuntimeError, OSError) as error:
                    logs = [folder / "output", bin_folder / "ctld.log", bin_folder / "d.log"]
                    tails = "\n".join(log.read_text()[-1500:] for log in logs if log.exists())
                    raise RuntimeError(f"{error}\n{tails}") from error

            yield launch


LAUNCHERS: dict[str, Callable[[], contextlib.AbstractContextManager[Launch]]] = {
    "local processes": local, "Dask": dask, "SSH": ssh, "Slurm": slurm,
}  # fmt: skip


def free_port() -> int:
    """Return a TCP port of the loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def await_port(port: int, within_s: float = 30.0) -> None:
    """Wait until something listens on a port of the loopback. Raises RuntimeError."""
    until_s = time.monotonic() + within_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if time.monotonic() > until_s:
            raise RuntimeError(f"nothing listens on port {port} after {within_s:.0f} s")
        time.sleep(0.1)


@contextlib.contextmanager
def daemon(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run a command for the length of the block."""
    process = subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    """Send, compare and print; exit with 1 if anything depends on the number of shards or on the launcher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the table to docs/scale.md")
    parser.add_argument("--only", choices=LAUNCHERS, help="one launcher")
    args = parser.parse_args()
    rows, unions, alike = [], set[str](), True
    for name in [args.only] if args.only else LAUNCHERS:
        try:
            with LAUNCHERS[name]() as launch:
                sent = {}
                for shards in SHARDS:
                    sent[shards] = send(launch, shards)
                    print(f"{name}, {shards}: {sent[shards]}", file=sys.stderr, flush=True)
        except AbsentError as error:
            rows.append((name, *["not run"] * len(SHARDS), f"needs {error}"))
            continue
        unions |= {one.union for one in sent.values()}
        same = all(len(one.figures) == 1 for one in sent.values())
        alike &= same
        cells = [f"{sent[shards].requests} `{sent[shards].union}`" for shards in SHARDS]
        rows.append((name, *cells, "identical" if same else "differ"))
    head = ("launcher", *(f"N = {shards}" for shards in SHARDS), "figures of the same records from 1, 2, 4, 8 shards")
    table = "\n".join(in_table(head, rows))
    print(table)
    if args.update:
        write_table("launchers", table, PAGE)
    sys.exit(0 if alike and len(unions) == 1 else 1)


if __name__ == "__main__":
    main()
