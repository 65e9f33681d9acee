"""`benchgate load --shard`: processes that share nothing but their options, a start and a folder."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from benchgate.load.shard_files import ShardFiles
from benchgate.load.spool_folder import spool_folder
from tests.e2e.command import benchgate, command_line, document
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering

pytestmark = [pytest.mark.beside, pytest.mark.slow]  # requests are counted, and no time decides

START_S = 4.0 if sys.gettrace() is None else 8.0
healthy = answering(lambda received: "one two three four five six seven eight", after_s=0.005)


class Shards:
    """Processes of one load test over `count` shards, whose files go to `spool`."""

    def __init__(self, url: str, spool: str, count: int, *options: str, **environment: str) -> None:
        self.spool = spool
        start = f"{time.time() + START_S + count / 2:.3f}"
        common = ["--model", "m", "--engine", "vllm", "--warmup", "0", "--salt", "7", "--start-at", start]
        self._command = command_line("load", url, *common, "--spool", spool, *options)
        self._count = count
        self._environment = {**os.environ, **environment}

    def begin(self, shard: int, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        """Start a shard in a process group of its own."""
        return subprocess.Popen(
            [*self._command, "--shard", f"{shard}/{self._count}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=before,
        )


def merge(folder: Path, *urls: str) -> dict[str, Any]:
    result = benchgate(folder, "load", "merge", *urls, "--format", "json")
    return document(result) | {"exit_code": result.returncode}


def instants(spool: Path, count: int) -> dict[int, int]:
    """Intended sends of all shards, by number."""
    found = dict[int, int]()
    with spool_folder(str(spool)) as folder:
        for shard in range(count):
            result = ShardFiles(folder, shard, count).read_end()
            assert not isinstance(result, str), result
            columns = result.requests
            found |= dict(zip(columns.index.tolist(), columns.intended_ns.tolist(), strict=True))
    return found


@pytest.mark.parametrize(
    "options",
    [
        ("--rate", "60/s", "--duration", "2s", "--service-time", "50ms"),
        ("--concurrency", "8", "--requests", "120"),
    ],
)
def test_server_gets_the_same_requests_from_any_number_of_shards(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = []
    for count in (1, 2, 4, 8):
        spool = tmp_path / str(count)
        with ScriptedServer(healthy) as server:
            shards = Shards(server.url, str(spool), count, "--output-tokens", "8", *options)
            for process in [shards.begin(shard) for shard in range(count)]:
                _, errors = process.communicate(timeout=60)
                assert process.returncode == 0, errors
            bodies = [received.body or {} for received in server.requests]
        assert len(list(spool.glob("*.answers"))) == 0
        merged = merge(tmp_path, str(spool))
        assert merged["requests"]["ok"] == merged["requests"]["scheduled"] == len(instants(spool, count))
        assert [row["requests"] > 0 for row in merged["shards"]] == [True] * count
        sent = Counter((body["seed"], json.dumps(body["messages"])) for body in bodies)
        at_ns = instants(spool, count)
        if "--rate" not in options:  # a closed loop has no instants, and as much of a ramp as there is time for
            at_ns = dict.fromkeys(at_ns, 0)
            seeds = {zlib.crc32(b"0/%d" % number) >> 1 for number in at_ns}
            sent = Counter({one: times for one, times in sent.items() if one[0] in seeds})
        assert set(sent.values()) == {1} and len(sent) >= len(at_ns)
        found.append((sent, at_ns))
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("way", ["SIGTERM", "SIGKILL", "stop file", "stop file in an object store"])
def test_nothing_that_was_answered_is_lost_when_shards_end_early(tmp_path: Path, way: str) -> None:
    """The first 40 requests are answered and the others never are."""
    stuck, lock, answered = threading.Event(), threading.Lock(), 0

    def sticking(received: Received) -> Iterable[Step]:
        nonlocal answered
        with lock:
            answered += 1
            number = answered
        if number > 40:
            if number == 44:
                stuck.set()
            return [60.0]
        return healthy(received)

    spool = tmp_path / "spool"
    spool.mkdir()
    url = f"file://{spool}" if "object store" in way else str(spool)  # fsspec's own store of local files
    with ScriptedServer(sticking) as server:
        shards = Shards(server.url, url, 2, "--concurrency", "4", "--requests", "400", "--output-tokens", "8")
        processes = [shards.begin(shard) for shard in range(2)]
        assert stuck.wait(60)
        if "stop file" in way:
            (spool / "stop").touch()
            ended = processes
        else:
            ended = processes[:1]
            os.killpg(processes[0].pid, getattr(signal, way))
        codes = [process.wait(timeout=30) for process in ended]
        if len(ended) == 1:
            assert processes[1].poll() is None
            processes[1].terminate()
            assert processes[1].wait(timeout=30) == 143
        for process in processes:
            process.communicate()
    assert codes == {"SIGTERM": [143], "SIGKILL": [-9]}.get(way, [130, 130])
    merged = merge(tmp_path, url)
    assert merged["exit_code"] == 12
    requests = merged["requests"]
    assert requests["ok"] + requests["ramp"] - requests["ramp_failed"] == 40
    first, second = (row["faults"] for row in merged["shards"])
    assert first == (["did not come to its end"] if way == "SIGKILL" else ["was stopped"])
    assert second == ["was stopped"]
    assert "shard 0/2 on" in merged["client"]["reasons"][0]


def test_shards_in_a_bucket_are_merged_and_stopped_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3's own protocol, spoken by moto's server."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs, which is no dependency")
    pytest.importorskip("moto", reason="needs moto[server], which is no dependency")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    moto = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.1)
        s3fs.S3FileSystem().mkdir("bucket")
        with ScriptedServer(healthy) as server:
            shards = Shards(server.url, "s3://bucket/run", 2, "--concurrency", "4", "--requests", "40",
                            "--output-tokens", "8")  # fmt: skip
            for process in [shards.begin(shard) for shard in range(2)]:
                _, errors = process.communicate(timeout=120)
                assert process.returncode == 0, errors
        merged = merge(tmp_path, "s3://bucket/run")
        assert (merged["requests"]["ok"], [row["faults"] for row in merged["shards"]]) == (40, [[], []])
        s3fs.S3FileSystem().pipe("bucket/next/stop", b"")
        with ScriptedServer(healthy) as server:
            shards = Shards(server.url, "s3://bucket/next", 1, "--concurrency", "4", "--requests", "4000",
                            "--output-tokens", "8")  # fmt: skip
            assert shards.begin(0).wait(timeout=120) == 130
    finally:
        moto.kill()
        moto.wait()


def test_stop_file_ends_a_shard_during_its_warm_up(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    warming = threading.Event()

    def sticking(received: Received) -> Iterable[Step]:
        warming.set()
        return [60.0]

    with ScriptedServer(sticking) as server:
        shards = Shards(server.url, str(spool), 1, "--concurrency", "4", "--requests", "40", "--warmup", "8")
        process = shards.begin(0)
        assert warming.wait(60)
        (spool / "stop").touch()
        assert process.wait(timeout=30) == 130
        process.communicate()
    assert merge(tmp_path, str(spool))["shards"][0]["faults"] == ["was stopped"]


def test_full_disk_under_one_spool_leaves_the_other_shards_whole(tmp_path: Path) -> None:
    spool = tmp_path / "spool"

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))

    with ScriptedServer(healthy) as server:
        closed = ("--concurrency", "4", "--requests", "400", "--input-tokens", "8", "--output-tokens", "8")
        shards = Shards(server.url, str(spool), 2, *closed)
        full, whole = shards.begin(0, small_disk), shards.begin(1)
        _, errors = full.communicate(timeout=60)
        assert full.returncode == 13 and "could not write" in errors, errors
        _, errors = whole.communicate(timeout=60)
        assert whole.returncode == 0, errors
    merged = merge(tmp_path, str(spool))
    assert merged["exit_code"] == 12
    first, second = merged["shards"]
    assert "failed: a load stage could not write" in first["faults"][0] and second["faults"] == []
    assert merged["requests"]["scheduled"] == 400 and 200 < merged["requests"]["ok"] < 400


def test_operator_limits_hold_whatever_the_options_are(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    with ScriptedServer(healthy) as server:
        for text, options, complaint in (
            ("hosts: ['*.staging']", ("--rate", "5/s", "--requests", "5"), "allows load on *.staging"),
            ("rate: 4/s", ("--rate", "5/s", "--requests", "5"), "allows 4.00 requests/s, and this load has 5.00"),
            ("concurrency: 4", ("--concurrency", "5", "--requests", "5"), "allows 4 requests in flight"),
            ("rates: 4/s", ("--rate", "5/s", "--requests", "5"), "limits.yaml:1:1: rates: "),
            ("rate: 20/s", ("--concurrency", "5", "--requests", "5000"), "the operator allows 10.0"),
        ):
            limits.write_text(text)
            shards = Shards(server.url, str(tmp_path / f"spool {text}"), 2, *options, BENCHGATE_LOAD_LIMITS=str(limits))
            _, errors = shards.begin(0).communicate(timeout=60)
            assert complaint in errors
        assert 0 < len(server.requests) < 1000  # of the last
