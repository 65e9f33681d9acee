"""Fuzzing targets: each reads one hostile input as benchgate does, and raises nothing but the refusals it documents."""

from __future__ import annotations

import base64
import io
import json
import random
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchgate import units
from benchgate.errors import BenchgateError
from benchgate.gate.summary.metric_rows import number_pairs
from benchgate.importers import formats, inspect_logs, nemo_bundles
from benchgate.load.decode.body import RawBody
from benchgate.load.decode.record import decode
from benchgate.load.decode.sse import EventParser, OverlongEvent
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import MalformedResponse, split_head
from benchgate.model.deployment import Arm
from benchgate.model.request import ENDPOINTS, ModelRequest
from benchgate.pipeline.judge import decide_stored, report_html
from benchgate.quality import import_results
from benchgate.report.charts import Figure
from benchgate.report.stored_numbers import (
    StoredNumbers,
    StoredSide,
    numbers_document,
    numbers_markdown,
    numbers_text,
)
from benchgate.shadow.prompts import load_prompts
from benchgate.shadow.request_log import LogSummary, read_logs
from benchgate.store.bundle import read_bundle
from benchgate.store.integrity import validate_run
from benchgate.store.queries import RunFilter
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.price_file import parse_prices
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Suite
from benchgate.targets.answers import read_answer
from benchgate.targets.error_messages import RequestError
from benchgate.targets.probe import probe_request
from benchgate.telemetry.engine_metrics import BadPageError, read_page, read_samples
from benchgate.telemetry.prometheus import QueryResult
from benchmarks import fuzz_mutations as mutations
from tests.fakes.replay import Capture, read_exchange

ROOT = Path(__file__).parents[1]
_FIXTURES = ROOT / "tests/fixtures/imports"
_CAPTURES = sorted((ROOT / "tests/captures").rglob("*.http"))


@dataclass(frozen=True, slots=True)
class Target:
    """A reader of untrusted input. `read` may raise what it documents as a refusal, and handles it itself.

    `seeds` returns valid inputs, `mutate` a variation of one.
    """

    name: str
    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    mutate: mutations.Mutation


def _reads(data: bytes) -> list[tuple[int, bytes]]:
    """Cut bytes into reads whose sizes follow from the bytes themselves."""
    drawn, at = random.Random(zlib.crc32(data)), 0
    found: list[tuple[int, bytes]] = []
    while at < len(data):
        size = drawn.choice((1, 2, 7, 64, 4096, len(data)))
        found.append((len(found), data[at : at + size]))
        at += size
    return found


# ---- what servers send


def _read_sse(data: bytes) -> None:
    """Events are the same however the stream is cut into reads."""
    parser, whole = EventParser(), EventParser()
    try:
        events = [event for at_ns, read in _reads(data) for event in parser.feed(at_ns, read)]
        expected = whole.feed(0, data)
    except OverlongEvent:
        return
    assert [event[1:] for event in events] == [event[1:] for event in expected], "the reads changed the events"


def _captures() -> list[Capture]:
    return [read_exchange(path) for path in _CAPTURES]


def _requests() -> list[ModelRequest]:
    return [replace(probe_request(endpoint), stream=spec.streams) for endpoint, spec in ENDPOINTS.items()]


def _read_http(data: bytes) -> None:
    """A response of any bytes is a record, of whatever endpoint."""
    try:
        found = split_head(data)
        if found is None:
            return
        head, body = found
        chunked, length = head.chunked, head.content_length
    except MalformedResponse:
        return
    _ = head.coded, head.keeps_alive, split_head(head.as_bytes)
    marks = array("q", [number for at_ns, read in _reads(body) for number in (at_ns + 1, len(read))])
    raw = RawBody(body, marks, 0, length, chunked)
    response = Response(sent_ns=0, over_ns=len(body) + 2, head=head, body=raw, whole=raw.flaw() is None)
    requests = _requests()
    for ask in {requests[zlib.crc32(data) % len(requests)].endpoint: None, "chat": None}:
        [request] = [one for one in requests if one.endpoint == ask]
        decode(0, 0, 0, response, ask=request, secret=("canary-of-a-key",))
        with suppress(RequestError):
            read_answer(request.endpoint, head.status, body, secret=("canary-of-a-key",))


_RUNNING = [{"__name__": "vllm:num_requests_running", "pod": pod} for pod in "ab"]
_VECTOR, _MATRIX = (
    json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()
    for kind, result in (
        ("vector", [{"metric": _RUNNING[n], "value": [1700000000.5, value]} for n, value in enumerate(("3", "NaN"))]),
        ("matrix", [{"metric": metric, "values": [[1700000000.0, "3"]]} for metric in _RUNNING]),
    )
)


def _read_prometheus(data: bytes) -> None:
    """A page of metrics, or an answer of Prometheus' HTTP API."""
    with suppress(BadPageError):
        read_page(data.decode("utf-8", "replace"), "m", "17")
    for answers in ((data, _MATRIX), (_VECTOR, data)):
        with suppress(BadPageError):
            samples, _, _ = QueryResult(*(zlib.compress(answer, 1) for answer in answers)).read()
            read_samples(samples, "m")


# ---- what users write


def _read_suite(data: bytes) -> None:
    """A suite is refused with all its problems, or is the same after it was stored."""
    text = data.decode("utf-8", "replace")
    with suppress(BenchgateError):
        parse_prices(text, "prices.yaml")
    try:
        suite = parse_suite(text, "suite.yaml")
    except BenchgateError as refused:
        str(refused)
        return
    assert Suite.from_stored(json.loads(json.dumps(suite.to_stored()))) == suite, "a stored suite is another one"


_SPELLED = (
    "250ms", "1.5 s", "4 rps", "0.5/s", "5%", "2 points", "1.5x", "0.02 nats", "1,000", "$2.10/h", "$5",
    "$0.5/M tokens", "700 W", "5 kJ", "$0.12/kWh", "512 tokens", "2 GiB", "80 GB", "7d", "1e3 s", "-5%", "99.9%", "2 h",
)  # fmt: skip
_PARSERS = tuple(getattr(units, name) for name in sorted(vars(units)) if name.startswith("parse_"))
_SHOWN = (
    units.show_duration, units.show_size, units.show_percent, units.show_points, units.show_multiple, units.show_nats,
    units.show_number, units.show_rate, units.show_usd,
)  # fmt: skip


def _read_units(data: bytes) -> None:
    """A quantity is refused, or finite and can be shown by every unit."""
    text = data.decode("utf-8", "replace")
    for parse in _PARSERS:
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value == value and abs(value) != float("inf"), "a quantity is finite"
        units.show_span(value), units.show_memory(value)
        for show in _SHOWN:
            units.as_written(show, value)
    units.show_found(text)


_CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
_ANTHROPIC = {
    "model": "m", "max_tokens": 8, "system": "Be brief.", "stop_sequences": ["END"],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"},
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "So"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
    ],
}  # fmt: skip
_LOGGED: tuple[object, ...] = (
    _CHAT,
    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": _CHAT},
    {"request": {"url": "https://api.example/v1/chat/completions?k=v", "body": json.dumps(_CHAT)}},
    {"request": _CHAT, "response": {"status_code": 200, "body": {}}},
    {"url": "/v1/messages", "body": _ANTHROPIC},
    {"model": "m", "prompt": "Hi", "max_tokens": 3},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "model": "m"},
    {**_CHAT, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
    {"log": "Received request cmpl-1: prompt: 'Hi', params: SamplingParams(n=1)", "stream": "stdout"},
)
_SERVER_LOG = rb"""INFO 04-10 18:13:14 Received request chatcmpl-a: prompt: '<|user|>\nIt\'s \n', params: S
DEBUG 11-05 12:39:35 [entrypoints/logger.py:51] Request cmpl-17-0 details: prompt: "What's up?", prompt_token_ids: None
INFO 04-10 18:13:14 [logger.py:39] Received request embd-9: prompt: 'words', params: PoolingParams(dimensions=None).
INFO:     10.0.0.1:50000 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""


def _read_request_log(data: bytes) -> None:
    """Each request of a log can be drawn, written and read again as a recorded prompt, or is refused with its line."""
    summary = LogSummary()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.jsonl")
        path.write_bytes(data)
        found = []
        with suppress(BenchgateError):
            found = [request for _, request in read_logs([path], summary)]
        rows = [request.row(request.label) for request in found]
        _ = summary.cut_at, [request.first_text for request in found]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        with suppress(BenchgateError):
            load_prompts(path)


# ---- files of other tools, and of other stores


def _lm_eval_line(doc_id: int) -> dict[str, object]:
    return {
        "doc_id": doc_id, "doc": {"q": doc_id}, "target": "yes", "filter": "none", "metrics": ["acc"], "acc": 1.0,
        "arguments": {"gen_args_0": {"arg_0": "ask", "arg_1": {"until": []}}}, "resps": [["Yes!"]],
        "filtered_resps": ["yes"], "doc_hash": f"{doc_id:064}", "prompt_hash": "b" * 64, "target_hash": "c" * 64,
    }  # fmt: skip


def _importer_seeds() -> list[bytes]:
    seeds = [mutations.join_files({path.name: path.read_bytes()}) for path in sorted(_FIXTURES.glob("*.*"))]
    date = "2026-01-02T03-04-05.000006"
    results = {
        "results": {"t": {"acc,none": 1.0, "alias": "t"}}, "n-samples": {"t": {"original": 2, "effective": 2}},
        "date": 1.5, "configs": {"t": {"task": "t", "num_fewshot": 0}}, "config": {"model": "m", "model_args": {}},
        "n-shot": {"t": 0}, "versions": {"t": 1}, "group_subtasks": {"t": []}, "lm_eval_version": "0.4.13",
    }  # fmt: skip
    lines = b"\n".join(json.dumps(_lm_eval_line(number)).encode() for number in range(2))
    seeds.append(
        mutations.join_files({f"samples_t_{date}.jsonl": lines, f"results_{date}.json": json.dumps(results).encode()})
    )
    nemo = sorted((_FIXTURES / "evals/nemo").iterdir())
    seeds.append(mutations.join_files({path.name: path.read_bytes() for path in nemo}))
    log = (_FIXTURES / "evals/inspect_ai-0.3.285-zstd.eval").read_bytes()
    seeds.append(mutations.join_files({"a.eval": log}))
    with zipfile.ZipFile(io.BytesIO(log)) as archive, suppress(NotImplementedError):  # zstd: Python 3.14 unpacks it
        seeds.append(mutations.join_files({name.split("/")[-1]: archive.read(name) for name in archive.namelist()}))
    spec = {
        "version": 2, "status": "success", "plan": {"steps": [], "config": {"max_tokens": 20}},
        "eval": {
            "run_id": "run", "eval_id": "eval", "created": "2026-01-02T03:04:05+00:00", "task": "t", "task_id": "id",
            "model": "vllm/org/f16", "packages": {"inspect_ai": "0.3.285"}, "config": {"epochs": 1},
            "dataset": {"samples": 1, "sample_ids": ["a"]},
        },
        "results": {"total_samples": 1, "completed_samples": 1, "scores": [
            {"name": "match", "scorer": "match", "metrics": {"accuracy": {"value": 1.0}}},
        ]},
        "samples": [{
            "id": "a", "epoch": 1, "input": "?", "target": "Paris", "working_time": 0.25,
            "messages": [{"content": "?", "role": "user"}, {"content": "Paris", "role": "assistant"}],
            "output": {
                "model": "f16", "choices": [{"message": {"content": "Paris"}, "stop_reason": "stop"}],
                "usage": {"input_tokens": 9, "output_tokens": 1},
            },
            "scores": {"match": {"value": "C", "answer": "Paris", "history": []}},
        }],
    }  # fmt: skip
    return [*seeds, mutations.join_files({"a_t_id.json": json.dumps(spec).encode()})]


def _read_import(data: bytes) -> None:
    """A tool's file is refused, or is metric rows or eval items."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in mutations.split_files(data).items():
            (folder / file).write_bytes(content)
        for path in folder.iterdir():
            with suppress(BenchgateError):
                formats.read_file(path)
        nemo = nemo_bundles.is_bundle(folder)
        bundle_task = "gsm8k" if nemo else "t"
        quality = Quality.model_validate({"tasks": [{"task": bundle_task}]})
        readers: dict[Any, bool] = {
            import_results.read_arm: import_results.has_samples(folder),
            nemo_bundles.read_bundles: nemo,
            inspect_logs.read_logs: inspect_logs.is_log(folder),
        }
        for read, fits in readers.items():
            if fits:
                with suppress(BenchgateError):
                    read(Arm.BASELINE, folder, quality)


_JSON_COLUMNS = ("suite", "environment", "deployment", "meta", "document", "sealed")


def _mutate_bundle(data: bytes, drawn: random.Random) -> bytes:
    """Change a bundle and make its hashes fit again, as somebody who means harm would."""
    from benchgate.store import results, rows
    from tests.shells.exchange_samples import resealed, signed

    try:
        document = json.loads(data)
        if drawn.random() < 0.6:
            _change_column(document, drawn)
        else:
            document = mutations.change_value(document, drawn)
        with suppress(Exception):
            document = resealed(document)
        with suppress(Exception):
            for row in document["verdict"]:
                row["sha256"] = results._verdict_sha256({**row, "run_id": document["run"]["id"]})
            for table in ("imported", "noise_profile", "promotion"):
                for row in document[table]:
                    row["sha256"] = rows.text_sha256(row["document"])
        return signed(document)[: 1 << 20]
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError, BenchgateError, zlib.error):
        return mutations.mutate_bytes(data, drawn)  # it was damaged before, or holds what no store would write


def _change_column(document: Any, drawn: random.Random) -> None:
    """Change a JSON document or packed columns that stand in a row."""
    from benchgate.store.rows import to_json

    rows = [document["run"], *(row for part in document.values() if isinstance(part, list) for row in part)]
    wanted = drawn.choice(("suite", "document", *_JSON_COLUMNS, "data"))
    fitting = [row for row in rows if isinstance(row, dict) and isinstance(row.get(wanted), str)]
    row = drawn.choice(fitting or rows)
    if row.get("codec") is not None and wanted == "data":
        plain = zlib.decompress(base64.b64decode(row["data"]))
        row["data"] = base64.b64encode(zlib.compress(mutations.mutate_bytes(plain, drawn))).decode()
    elif fitting:
        row[wanted] = to_json(mutations.change_value(json.loads(row[wanted]), drawn), "a column")
        for name, value in json.loads(row[wanted]).items() if wanted == "document" else ():
            if name == "outcome" and isinstance(value, str):
                row["outcome"] = value


@cache
def _bundles() -> list[bytes]:
    """Return bundles of judged runs: one of every kind of row, one of load and one of evals alone."""
    from tests.fakes import site_runs
    from tests.shells.exchange_samples import bundle_of, write_everything

    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder, "store.db"))
        with Store.open(address) as store:
            ids = [site_runs.add(store, f"2025-01-0{day}", whole=day == 1) for day in (1, 2)]
        everything = str(Path(folder, "everything.db"))
        return [bundle_of(everything, write_everything(everything).id), *(bundle_of(address, one) for one in ids)]


def _read_bundle(data: bytes) -> None:
    """A bundle is refused, or is a run that keeps every rule of a store."""
    with suppress(BenchgateError):
        validate_run(read_bundle(data, "bundle.json"), "bundle.json")


@cache
def _empty_store() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        Store.open(str(path)).close()
        return path.read_bytes()


def _read_report(data: bytes) -> None:
    """A run that a store takes in is judged and shown by everything that shows runs, or is refused."""
    from benchgate.store.bundle import bundle_sources
    from benchgate.store.merge import import_runs
    from benchgate.store.migrate import opened

    with tempfile.TemporaryDirectory() as name:
        address, bundle = str(Path(name, "store.db")), Path(name, "bundle.json")
        bundle.write_bytes(data)
        Path(address).write_bytes(_empty_store())
        with opened(address, create=False) as database:  # a bundle is a result with a problem, and raises nothing
            taken = [one.merged for one in import_runs(lambda: database, bundle_sources([bundle]))]
        with Store.open(address) as store:
            for merged in taken:
                if merged is not None:
                    _show(store, merged.run_id)


def _show(store: Store, run_id: str) -> None:
    with suppress(BenchgateError), patch.object(Figure, "svg", ""):  # a chart takes most of a page's time
        report_html(decide_stored(store, run_id, keep=False))
    with suppress(BenchgateError):
        document = next((one.document for one in store.verdicts(run_id) if one.of_the_run_itself), None)
        side = StoredSide(store.run(run_id), document, None, None)
        numbers = StoredNumbers(side, side, number_pairs(store.metrics(run_id), store.metrics(run_id)))
        json.dumps(numbers_document(numbers))
        numbers_text(numbers)
        numbers_markdown(numbers)
    with suppress(BenchgateError):
        store.list_runs(RunFilter())
        store.overview()


def _suite_seeds() -> list[bytes]:
    folders = ("suites", "examples", "tests/verdicts/suites")
    return [path.read_bytes() for folder in folders for path in sorted((ROOT / folder).glob("*.yaml"))]


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("sse", _read_sse, lambda: [capture.body for capture in _captures()], mutations.mutate_tokens),
        Target("http", _read_http, lambda: [capture.wire() for capture in _captures()], mutations.mutate_tokens),
        Target("suite", _read_suite, _suite_seeds, mutations.mutate_tokens),
        Target("units", _read_units, lambda: [text.encode() for text in _SPELLED], mutations.mutate_tokens),
        Target("importers", _read_import, _importer_seeds, mutations.mutate_files),
        Target("bundles", _read_bundle, _bundles, _mutate_bundle),
        Target(
            "prometheus",
            _read_prometheus,
            lambda: [*(path.read_bytes() for path in sorted(ROOT.glob("tests/captures/*/metrics*"))), _VECTOR, _MATRIX],
            mutations.mutate_tokens,
        ),
        Target("report", _read_report, _bundles, _mutate_bundle),
        Target(
            "request-log",
            _read_request_log,
            lambda: [*(json.dumps(row).encode() for row in _LOGGED), _SERVER_LOG],
            mutations.mutate_json_lines,
        ),
    )
}
