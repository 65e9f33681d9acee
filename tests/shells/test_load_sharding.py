"""Shards of a load test: which requests each one sends, what it leaves in a folder, and how they are merged."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate import __version__
from benchgate.errors import ClusterError, ExitCode, StoreError, UsageError
from benchgate.load.clocks import HostClock
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.load.results import ClassResult, StageResult
from benchgate.load.shard_files import ShardBegin, ShardedStage, ShardFiles
from benchgate.load.shards import Shard
from benchgate.load.spool import Spool, SpoolEntry
from benchgate.load.spool_folder import spool_folder
from benchgate.load.standalone.merge import merge_shards
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import stage_of, target_of
from benchgate.load.standalone.shard import ShardOptions, send_shard
from benchgate.load.workers import WorkerProcess
from benchgate.model.histogram import RELATIVE_ERROR
from benchgate.model.records import RequestColumns, RequestRecord
from benchgate.model.run import ClientUse
from benchgate.pipeline.import_load import save_load
from benchgate.report.load_result import render_load
from benchgate.report.screen import Screen
from benchgate.store.repository import Store
from tests.fakes import quick_command
from tests.fakes.blocks import record
from tests.fakes.grpc_server import serving_grpc
from tests.fakes.scripted_server import ScriptedServer, answering

NS = 1_000_000_000
START_NS = 1_800_000_000 * NS
SYNCHRONISED = HostClock("here", "chrony", 400_000)
OPTIONS = {"url": "http://server:8000", "model": "m", "engine": "openai", "rate": "20/s", "duration": "10s", "salt": 7}


def shards_of(count: int, **changed: Any) -> list[Shard]:
    options = LoadOptions.parse(**{**OPTIONS, "workers": "1", **changed})
    target, _ = target_of(options)
    return stage_of(options, target, options.service_s).split(count)


def sent_by(shards: Iterable[Shard]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Measured and ramp requests of all shards: number, instant, prompt and seed."""
    measured, ramp = [], []
    for shard in shards:
        (part,) = shard.parts
        measured += [(one.index, one.offset_ns, repr(one.ask), one.seed) for one in part.requests]
        if part.ramp is not None and not part.ramp.requests.endless:
            ramp += [(one.index, one.offset_ns, repr(one.ask), one.seed) for one in part.ramp.requests]
    return sorted(measured, key=repr), sorted(ramp, key=repr)


@pytest.mark.parametrize(
    "changed",
    [
        {"service_time": "500ms"},
        {"ramp_to": "60/s", "endpoint": "completions"},
        {"arrival": "gamma:2", "duration": None, "requests": 101, "prompts": "builtin"},
        {"rate": None, "duration": None, "concurrency": 8, "requests": 101},
    ],
)
def test_any_number_of_shards_sends_the_same_requests_at_the_same_instants(changed: dict[str, Any]) -> None:
    whole = sent_by(shards_of(1, **changed))
    assert len(whole[0]) > 100
    for count in (2, 4, 8):
        shards = shards_of(count, **changed)
        assert len(shards) == count
        assert sent_by(shards) == whole
        assert {shard.parts[0].lead_ns for shard in shards} == {shards_of(1, **changed)[0].parts[0].lead_ns}


def test_each_start_has_prompts_of_its_own_which_all_shards_share() -> None:
    first, second, third = (
        ShardOptions.parse(shard, start, "spool", {})
        for shard, start in (("0/2", "1800000000"), ("1/2", "2027-01-15T08:00:00Z"), ("0/2", "1800000001"))
    )
    assert first is not None and second is not None and third is not None
    assert first.start_at_ns == second.start_at_ns == START_NS
    assert first.salt == second.salt != third.salt


@pytest.mark.parametrize(
    ("shard", "start", "environment", "complaint"),
    [
        ("3/8", "1800000000", {}, None),
        ("auto/8", "1800000000", {"JOB_COMPLETION_INDEX": "3"}, None),
        ("auto/8", "1800000000", {"SLURM_PROCID": "3"}, None),
        ("auto+2/8", "1800000000", {"JOB_COMPLETION_INDEX": "1"}, None),
        ("auto+7/8", "1800000000", {"JOB_COMPLETION_INDEX": "1"}, "--shard 8/8: shards count from 0"),
        ("auto/8", "1800000000", {}, "neither JOB_COMPLETION_INDEX nor SLURM_PROCID holds a number"),
        ("8/8", "1800000000", {}, "count from 0"),
        ("3", "1800000000", {}, "'3' is no shard"),
        ("3/8", None, {}, "add --start-at"),
        ("3/8", "soon", {}, "'soon' is no instant"),
        ("3/8", "2026-05-01T12:00:00", {}, "is no instant"),
    ],
)
def test_shard_is_read_from_the_options_or_the_launcher(
    shard: str, start: str | None, environment: dict[str, str], complaint: str | None
) -> None:
    if complaint is None:
        assert ShardOptions.parse(shard, start, "spool", environment) == ShardOptions(3, 8, START_NS, "spool")
    else:
        with pytest.raises(UsageError, match=complaint):
            ShardOptions.parse(shard, start, "spool", environment)


def stage_document(shards: int, **changed: Any) -> ShardedStage:
    return replace(ShardedStage(__version__, shards, START_NS, OPTIONS, None), **changed)


def records() -> list[RequestRecord]:
    """The requests of the schedule of OPTIONS as they might have been answered; one failed."""
    draw = np.random.default_rng(3)
    found = []
    for one in shards_of(1)[0].parts[0].requests:
        assert one.offset_ns is not None
        made = record(0, None if one.index == 50 else float(draw.exponential(0.1)))
        at = one.offset_ns
        moved = tuple(at + chunk for chunk in made.chunk_ns)
        end = None if made.end_ns is None else at + made.end_ns
        found.append(replace(made, index=one.index, intended_ns=at, sent_ns=at, chunk_ns=moved, end_ns=end))
    return found


def result_of(rows: list[RequestRecord], client: ClientUse) -> StageResult:
    columns = RequestColumns.pack(rows)
    last_ns = max(row.end_ns or row.intended_ns for row in rows)
    window_s = (last_ns - min(row.intended_ns for row in rows)) / NS
    return StageResult((ClassResult("", columns, window_s),), client)


def leave(folder: Path | str, count: int, *, without: int | None = None, **changed: dict[int, Any]) -> None:
    """Leave the files of shards as if they had sent the requests of OPTIONS."""
    clients, stages, clocks, regions = (changed.get(name, {}) for name in ("client", "stage", "clock", "region"))
    whole = records()
    with spool_folder(str(folder)) as opened:
        for shard in range(count):
            if shard == without:
                continue
            files = ShardFiles(opened, shard, count)
            stage = stage_document(count, **stages.get(shard, {}))
            clock, region = clocks.get(shard, SYNCHRONISED), regions.get(shard)
            files.begin(ShardBegin(stage, shard, f"host-{shard}", 1, clock, region=region))
            client = ClientUse(cpu_s=0.1, wall_s=10.0, workers=1, read_delay_p50_s=1e-4, read_delay_p99_s=1e-3,
                               read_delay_max_s=1e-3, busiest_share=0.1)  # fmt: skip
            late_ns, pace = changed.get("late_ns", {}).get(shard, 0), changed.get("slow", {}).get(shard, 1)
            rows = [
                replace(one, region=region, chunk_ns=tuple(at + late_ns for at in one.chunk_ns),
                        sent_ns=round(one.intended_ns * pace))
                for one in whole[shard::count]
            ]  # fmt: skip
            files.end(result_of(rows, replace(client, **clients.get(shard, {}))))


def test_the_same_records_give_the_same_figures_from_any_number_of_shards(tmp_path: Path) -> None:
    found = []
    for count in (1, 2, 4, 8):
        leave(tmp_path / str(count), count)
        document = merge_shards([str(tmp_path / str(count))])
        assert len(document.pop("shards")) == count  # type: ignore[arg-type]
        client = document.pop("client")
        assert isinstance(client, dict) and client["workers"] == count and not client["saturated"], client
        found.append(json.dumps(document, sort_keys=True))
    assert set(found) == {found[0]}
    assert json.loads(found[0])["requests"]["scheduled"] == len(records())


def test_shards_may_leave_their_files_in_folders_of_their_own(tmp_path: Path) -> None:
    leave(tmp_path / "one", 2, without=1)
    leave(tmp_path / "other", 2, without=0)
    leave(tmp_path / "both", 2)
    apart = merge_shards([str(tmp_path / "one"), str(tmp_path / "other")])
    assert apart == merge_shards([str(tmp_path / "both")])
    with pytest.raises(UsageError, match="shard 0 is both in"):
        merge_shards([str(tmp_path / "one"), str(tmp_path / "both")])


@pytest.mark.parametrize(
    ("changed", "fault", "kept"),
    [
        ({"without": 2}, "shard 2/4 is missing: it was never begun", False),
        ({"stage": {2: {"benchgate": "0.0.1"}}}, f"benchgate '0.0.1' instead of '{__version__}'", False),
        ({"stage": {2: {"options": {**OPTIONS, "rate": "9/s"}}}}, "--rate '9/s' instead of '20/s'", False),
        ({"stage": {2: {"start_at_ns": 1}}}, "start_at_ns 1 instead of", False),
        ({"client": {2: {"faults": ("worker 3 of 4 started 1.2 s late",)}}}, "host-2 started 1.2 s late", True),
        ({"client": {2: {"busiest_share": 0.99}}}, "shard 2/4 on host-2 was saturated: the client used 99", True),
        ({"clock": {2: HostClock("far", "kernel", 5_100_000)}}, "on host-2 cannot be started within 5 ms", True),
        ({"clock": {2: HostClock("far")}}, "on host-2 cannot be started with the others: nothing sync", True),
    ],
)
def test_shard_that_cannot_be_used_makes_the_load_invalid_by_its_name(
    tmp_path: Path, changed: dict[str, Any], fault: str, kept: bool
) -> None:
    leave(tmp_path, 4, **changed)
    document: Any = merge_shards([str(tmp_path)])
    first = document["client"]["reasons"][0]
    assert first.startswith("shard 2/4") and fault in first
    assert document["client"]["saturated"]
    assert [bool(row["faults"]) for row in document["shards"]] == [False, False, True, False]
    # What cannot be used counts as never sent; the rest is kept.
    whole, lost = len(records()), len(records()[2::4])
    assert document["requests"]["scheduled"] == whole
    assert document["requests"]["ok"] == whole - 1 - (0 if kept else lost - (50 % 4 == 2))


def test_merged_load_without_one_of_its_shards_is_not_saved(tmp_path: Path) -> None:
    address = str(tmp_path / "store.db")

    def merged(folder: Path) -> quick_command.Told:
        return quick_command.told("load", "merge", str(folder), "--label", "merged", "--store", address)

    leave(tmp_path / "lossy", 4, without=2)
    leave(tmp_path / "whole", 4)
    lossy = merged(tmp_path / "lossy")
    assert (lossy.exit_code, "succeeded" in lossy.stdout) == (ExitCode.INVALID, True)
    assert "not saved: the client was the bottleneck: shard 2/4 is missing: it was never begun" in lossy.stderr
    assert "saved as run" in merged(tmp_path / "whole").stderr  # the label is still free


def test_clocks_of_several_machines_may_differ_by_the_ramp(tmp_path: Path) -> None:
    ramped = {"options": {**OPTIONS, "service_time": "10ms"}}  # five of them
    far = HostClock("far", "kernel", 49_000_000)
    leave(tmp_path, 2, clock={1: far}, stage={shard: ramped for shard in range(2)})
    document: Any = merge_shards([str(tmp_path)])
    assert (document["client"]["reasons"], document["client"]["start_uncertainty_s"]) == ([], 0.049)
    assert document["shards"][1]["clock"] == {
        "kernel": "far", "source": "kernel", "bound_ns": 49_000_000, "offset_ns": None,
    }  # fmt: skip


@pytest.mark.parametrize("exact", [10**6, 0])
def test_shards_with_a_region_have_figures_and_a_verdict_of_their_own(tmp_path: Path, exact: int) -> None:
    regions, late_ns = {0: "eu", 1: "us", 2: "eu", 3: "us"}, {1: 60_000_000, 3: 60_000_000}
    slow = {"options": {**OPTIONS, "slo": "ttft=60ms"}}
    leave(tmp_path, 4, region=regions, late_ns=late_ns, stage={shard: slow for shard in range(4)})
    document: Any = merge_shards([str(tmp_path)], exact=exact)
    eu, us = document["regions"]["eu"], document["regions"]["us"]
    assert eu["requests"]["scheduled"] + us["requests"]["scheduled"] == document["requests"]["scheduled"]
    assert us["ttft_s"]["p50"] > eu["ttft_s"]["p50"] + 0.05
    assert (eu["stage"], us["stage"]) == ("r20@eu", "r20@us")
    assert us["verdict"]["outcome"] == document["verdict"]["outcome"] == "BLOCK"
    assert [row["region"] for row in document["shards"]] == ["eu", "us", "eu", "us"]
    address = str(tmp_path / "store.db")
    run_id = save_load(address, document, None)
    with Store.open(address) as store:
        kept = {row.stage for row in store.metrics(run_id) if row.name == "ttft"}
    assert kept == {"r20", "r20@eu", "r20@us"}
    shown = render_load(document, Screen(100))
    assert "over the quickest" in shown and "us" in shown


def test_bounds_of_the_region_that_decides_are_told_as_its_own_at_their_level(tmp_path: Path) -> None:
    regions, late_ns = {0: "eu", 1: "us", 2: "eu", 3: "us"}, {1: 360_000_000, 3: 360_000_000}
    slow = {"options": {**OPTIONS, "slo": "ttft=600ms"}}
    leave(tmp_path, 4, region=regions, late_ns=late_ns, stage={shard: slow for shard in range(4)})
    document: Any = merge_shards([str(tmp_path)])
    verdict, us = document["verdict"], document["regions"]["us"]["verdict"]
    assert (verdict["outcome"], verdict["region"], verdict["upper_alpha"]) == ("BLOCK", "us", 0.025)
    assert verdict["goodput_upper"] == us["goodput_upper"] < 0.95
    shown = " ".join(render_load(document, Screen(100)).split())
    assert "goodput in us is " in shown and "97.5 %" in shown and "95% bounds" not in shown


def test_shard_without_a_region_among_others_makes_the_load_invalid(tmp_path: Path) -> None:
    leave(tmp_path, 2, region={0: "eu"})
    document: Any = merge_shards([str(tmp_path)])
    assert document["client"]["reasons"] == ["shard 1/2 on host-1 has no --region, and others have"]


def test_shards_are_merged_by_the_version_that_sent_them(tmp_path: Path) -> None:
    leave(tmp_path, 2, stage={shard: {"benchgate": "0.0.1"} for shard in range(2)})
    with pytest.raises(UsageError, match=r"sent by benchgate 0\.0\.1"):
        merge_shards([str(tmp_path)])


def test_damaged_result_is_not_read_as_one(tmp_path: Path) -> None:
    leave(tmp_path, 2)
    columns = tmp_path / "shard-1-of-2.columns"
    content = bytearray(columns.read_bytes())
    content[100] ^= 1
    columns.write_bytes(content)
    document: Any = merge_shards([str(tmp_path)])
    assert document["client"]["reasons"][0].startswith("shard 1/2 on host-1 left a result that cannot be read")
    assert document["requests"]["ok"] == len(records()[::2]) - 1


def test_secrets_are_cut_out_of_the_answers_of_a_killed_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"error": "bad key sk-secret-1234"}'
    answer = Response(sent_ns=1, over_ns=9, head=Head("HTTP/1.1", 401, {}), body=[(6, body)], whole=True)
    with spool_folder(str(tmp_path)) as folder:
        files = ShardFiles(folder, 0, 1)
        files.begin(ShardBegin.here(stage_document(1), 0, ("SHARD_TEST_KEY",)))
        with Spool(files.answers) as spool:
            spool.append(SpoolEntry(0, 0, 0, answer))
    with pytest.raises(UsageError, match="raw answers, in which the server may have repeated SHARD_TEST_KEY; set it"):
        merge_shards([str(tmp_path)])
    monkeypatch.setenv("SHARD_TEST_KEY", "sk-secret-1234")
    document: Any = merge_shards([str(tmp_path)])
    assert "bad key" in json.dumps(document) and "sk-secret" not in json.dumps(document)


def test_shard_is_begun_once(tmp_path: Path) -> None:
    with spool_folder(str(tmp_path)) as folder:
        begin = ShardBegin(stage_document(2), 0, "host", 1, SYNCHRONISED)
        ShardFiles(folder, 0, 2).begin(begin)
        with pytest.raises(UsageError, match="each shard is sent once"):
            ShardFiles(folder, 0, 2).begin(begin)


def test_shard_that_is_too_late_sends_nothing(tmp_path: Path) -> None:
    """All that is overdue would reach the server at once, and disturb what the other shards measure."""
    with ScriptedServer(answering(lambda received: "one two")) as server:
        texts: dict[str, Any] = {"url": server.url, "model": "m", "engine": "vllm", "rate": "50/s", "duration": "5s"}
        place = ShardOptions(0, 1, time.time_ns() - 3 * NS, str(tmp_path))
        with pytest.raises(ClusterError, match="s after the start, so nothing was sent"):
            send_shard(LoadOptions.parse(**texts, workers="1", warmup="0", salt=7), texts, place)
        assert server.requests == []
    document: Any = merge_shards([str(tmp_path)])
    assert "after the start, so nothing was sent" in document["client"]["reasons"][0]
    assert document["requests"]["ok"] == 0 < document["requests"]["scheduled"]


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU clock of another process is Linux's")
def test_shard_that_waits_for_its_start_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of some minutes ahead gives all machines the time to come up. The process sleeps until then."""
    process = WorkerProcess()
    with ScriptedServer(answering(lambda received: "one two")) as server:
        process.begin(shards_of(1, url=server.url, rate=None, duration=None, concurrency=1, requests=1)[0])
        assert process.is_ready(time.monotonic() + 60)  # here, as its own beginning may take seconds
        process.start(time.time_ns())
        assert process.result() is not None
        monkeypatch.setattr("benchgate.load.standalone.shard.WorkerProcess", lambda fork: process)
        monkeypatch.setattr("benchgate.load.workers._STUCK_S", 0.5)
        texts: dict[str, Any] = {"url": server.url, "model": "m", "engine": "vllm", "rate": "50/s", "requests": 6}
        place = ShardOptions(0, 1, time.time_ns() + 6 * NS, str(tmp_path))
        result = send_shard(LoadOptions.parse(**texts, workers="1", warmup="0", salt=7), texts, place)
    assert set(result.requests.error) == {None}
    assert len(result.requests) == 6


def test_shards_over_grpc_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process with a gRPC server in it, as this one, cannot be forked.
    monkeypatch.setattr("benchgate.load.standalone.shard.WorkerProcess", lambda fork: WorkerProcess(fork=False))
    with serving_grpc() as sim:
        texts: dict[str, Any] = {
            "url": "http://127.0.0.1:9",
            "model": "m",
            "engine": "triton",
            "endpoint": "grpc-infer",
        }
        texts |= {"grpc": sim.url, "rate": "50/s", "requests": 6, "arrival": "constant"}
        place = ShardOptions(0, 1, time.time_ns() + NS, str(tmp_path))
        send_shard(LoadOptions.parse(**texts, workers="1", warmup="0", salt=7), texts, place)
    document: Any = merge_shards([str(tmp_path)])
    assert (document["requests"]["ok"], document["endpoint"]) == (6, "grpc-infer")


def test_object_store_holds_what_a_folder_would(tmp_path: Path) -> None:
    """A store cannot append: a file that grows goes there in pieces. fsspec's own store of local files stands in."""
    url = f"file://{tmp_path}/bucket/run"
    (tmp_path / "bucket/run").mkdir(parents=True)
    with spool_folder(url) as writing:
        assert writing.path != tmp_path and not writing.is_stopped
        answers = writing.path / "shard-0-of-1.answers"
        for part in (b"first", b"second"):
            with answers.open("ab") as file:
                file.write(part)
            writing.push()
        (writing.path / "gone").write_bytes(b"x")
        writing.push()
        writing.remove("gone")
        with spool_folder(url) as reading:
            reading.pull()
            assert {file.name: file.read_bytes() for file in reading.path.iterdir()} == {answers.name: b"firstsecond"}
            assert reading.is_begun(answers.name)
            (tmp_path / "bucket/run/stop").touch()
            assert reading.is_stopped
        scratch = writing.path
    assert not scratch.exists()
    with pytest.raises(StoreError, match="kept in"), spool_folder("file:///proc/none") as refused:
        (refused.path / "shard-0-of-1.answers").write_bytes(b"answer")
        scratch = refused.path
        refused.push()
    assert (scratch / "shard-0-of-1.answers").read_bytes() == b"answer"


def test_an_object_store_that_cannot_be_written_leaves_no_empty_folder_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> bool:
        raise OSError("no route to host")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.exists", unreachable)
    with pytest.raises(StoreError, match="no route to host") as refused, spool_folder("memory://runs/1") as folder:
        scratch = folder.path
        assert not folder.is_begun("shard-0-of-1.json")
    assert not scratch.exists() and "kept in" not in str(refused.value)


def test_shards_in_an_object_store_are_merged_as_from_a_folder(tmp_path: Path) -> None:
    """In one process: fsspec's store in memory has no others."""
    url = f"memory://{tmp_path.name}/run"
    leave(url, 2)
    leave(tmp_path, 2)
    assert merge_shards([url]) == merge_shards([str(tmp_path)])


def test_too_many_records_are_summarised_shard_by_shard(tmp_path: Path) -> None:
    leave(tmp_path, 4)
    exact, summary = merge_shards([str(tmp_path)]), merge_shards([str(tmp_path)], exact=50)
    assert (exact["quantile_error_ratio"], summary["quantile_error_ratio"]) == (0.0, RELATIVE_ERROR)
    for key in ("requests", "failures", "output_tokens", "goodput_ratio", "throughput", "window_s", "shards", "client"):
        assert summary[key] == exact[key]
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        ours, theirs = summary[name], exact[name]
        assert isinstance(ours, dict) and isinstance(theirs, dict) and ours["p50"] is not None
        assert ours["p50"] == pytest.approx(theirs["p50"], rel=RELATIVE_ERROR)


def test_a_strain_of_one_shard_is_reported_once_with_the_rate_of_that_shard(tmp_path: Path) -> None:
    """Shard 2 of 4 sends 80 % of its 5 requests/s."""
    leave(tmp_path, 4, slow={2: 1.25})
    document: Any = merge_shards([str(tmp_path)], exact=50)
    reasons = document["client"]["reasons"]
    behind = [reason for reason in reasons if "requests/s where" in reason]
    assert len(behind) == 1 and behind[0].startswith("shard 2/4 on host-2")
    assert "4.00 requests/s where 5.00 were offered" in behind[0]
    assert len([reason for reason in reasons if "send lag" in reason]) == 1


@pytest.mark.parametrize("exact", [10**6, 50])
def test_a_strain_that_a_shard_names_is_not_repeated_for_all(tmp_path: Path, exact: int) -> None:
    leave(tmp_path, 4, client={2: {"busiest_share": 0.99}})
    document: Any = merge_shards([str(tmp_path)], exact=exact)
    (reason,) = document["client"]["reasons"]
    assert reason.startswith("shard 2/4 on host-2 was saturated: the client used 99")


def test_a_missing_shard_invalidates_a_summary_by_name(tmp_path: Path) -> None:
    leave(tmp_path, 4, without=2)
    client: Any = merge_shards([str(tmp_path)], exact=50)["client"]
    assert client["saturated"] and "shard 2/4 is missing: it was never begun" in client["reasons"]
