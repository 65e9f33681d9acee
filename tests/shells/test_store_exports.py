"""What other programs read out of a store: lines, tables and metrics, each as its own kind of reader takes it."""

from __future__ import annotations

import builtins
import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.records import TextColumn
from benchgate.model.run import ONLY_PART, QUICK_LOOK, MetricRow, Run, RunStatus
from benchgate.report.openmetrics import newest_runs_text
from benchgate.store.export import FileFormat, all_runs, export, to_csv, without_infinities
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import remove_raw
from tests.shells.exchange_samples import verdict, write_everything
from tests.shells.store_samples import DONE_AT, NASTY, PLAN, make_load, make_quality, make_run, write_run

pytest_plugins = ["tests.shells.store_databases"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("exports") / "store.db")


@pytest.fixture(scope="module")
def run(address: str) -> Run:
    return write_everything(address)


def written(address: str, to: Path, form: FileFormat, *run_ids: str, raw_csv: bool = False) -> list[Path]:
    with opened(address, create=False) as database:
        return list(export(database, run_ids or all_runs(database, None), to, form, newest_runs_text, raw_csv=raw_csv))


def lines_of(address: str, tmp_path: Path, run: Run) -> list[dict[str, Any]]:
    (file,) = written(address, tmp_path, FileFormat.JSONL, run.id)
    return [json.loads(line) for line in file.read_text("ascii").splitlines()]


def test_every_request_item_and_prompt_is_a_line(address: str, run: Run, tmp_path: Path) -> None:
    found = lines_of(address, tmp_path, run)
    kinds = [line["kind"] for line in found]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "run": 1, "request": 7 + 5 + 2, "item": 3, "prompt": 2, "position": 2, "reading": 2,
        "start": 1, "target_fault": 1, "error_budget": 1,
    }  # fmt: skip
    assert {line["run_id"] for line in found} == {run.id}
    assert found[0]["arms"]["candidate"]["name"] == "q8_0"
    prompt = next(line for line in found if line["kind"] == "prompt")
    assert (prompt["prompt_id"], prompt["primary_text"]) == ("s0", NASTY)


def test_line_of_a_request_has_the_definitions_of_the_metrics(address: str, run: Run, tmp_path: Path) -> None:
    """Request 3 of the samples: due at 3 µs, sent 7 ns later, 3 tokens from 3.1 µs on, 10 ns apart, end at 3.9 µs."""
    found = [line for line in lines_of(address, tmp_path, run) if line["kind"] == "request"]
    whole = next(line for line in found if line["index"] == 3 and not line["left"])
    assert whole["success"] is True
    assert whole["ttft_s"] == pytest.approx(100e-9)
    assert whole["ttft_sent_s"] == pytest.approx(93e-9)
    assert whole["tpot_s"] == pytest.approx(10e-9)
    assert whole["e2e_s"] == pytest.approx(900e-9)
    assert whole["send_lag_s"] == pytest.approx(7e-9)
    assert (whole["chunk_ns"][:2], whole["sent_ns"], whole["token_source"]) == ([3100, 3110], 3007, "usage")


def test_failed_request_has_no_latency_and_says_so(address: str, run: Run, tmp_path: Path) -> None:
    found = [line for line in lines_of(address, tmp_path, run) if line["kind"] == "request"]
    (unsent,) = (
        line for line in found if line["error"] == "client" and line["arm"] == "baseline" and line["success"] is False
    )
    assert (unsent["ttft_s"], unsent["e2e_s"], unsent["sent_ns"], unsent["http_status"]) == (None,) * 4
    assert unsent["error_detail"] == NASTY
    left = [line for line in found if line["left"]]
    assert [line["success"] for line in left] == [None] * len(left) and left
    assert {(line["answer_chars"], line["answer_model"], line["ramp"]) for line in left} == {(12, NASTY, False)}
    assert {(line["answer_chars"], line["answer_model"]) for line in found if not line["left"]} == {(None, None)}


def test_infinity_is_null_wherever_it_stands() -> None:
    told = {"a": [math.inf, 1.5, (math.nan, Arm.BASELINE)], "b": {"c": -math.inf, "d": None, "e": 2}}
    plain = {"a": [None, 1.5, [None, "baseline"]], "b": {"c": None, "d": None, "e": 2}}
    assert without_infinities(told) == plain


@pytest.mark.parametrize(
    ("form", "name"),
    [
        (FileFormat.JSONL, "x.jsonl"),
        (FileFormat.CSV, "metrics.csv"),
        (FileFormat.PARQUET, "checks.parquet"),
        (FileFormat.OPENMETRICS, "metrics.txt"),
    ],
)
def test_only_what_an_export_wrote_is_written_over(
    form: FileFormat, name: str, address: str, run: Run, tmp_path: Path
) -> None:
    to = tmp_path / name if form is FileFormat.JSONL else tmp_path
    first = {file: file.read_bytes() for file in written(address, to, form, run.id)}
    assert {file: file.read_bytes() for file in written(address, to, form, run.id)} == first
    for notes in (b"notes of somebody\n", b"", b'{"kind": "run", "run_id": "another"}\n'):
        (tmp_path / name).write_bytes(notes)
        with pytest.raises(UsageError, match=f"{name} is there and is not .*it was not written over"):
            written(address, to, form, run.id)
        assert (tmp_path / name).read_bytes() == notes


def test_a_bundle_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    address, file = str(tmp_path / "a.db"), tmp_path / "x.json"
    one, other = write_everything(address, label=None), write_everything(address, label=None)
    written(address, file, FileFormat.BUNDLE, one.id)
    kept = file.read_bytes()
    with pytest.raises(UsageError, match=f"the bundle of run {one.id}, not of {other.id}; it was not written over"):
        written(address, file, FileFormat.BUNDLE, other.id)
    assert file.read_bytes() == kept


def test_a_file_whose_name_is_of_no_format_is_no_folder(address: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("of somebody")
    for form in (FileFormat.JSONL, FileFormat.BUNDLE, FileFormat.CSV):
        with pytest.raises(UsageError, match="name a folder"):
            written(address, tmp_path / "notes", form, run.id)
    with pytest.raises(UsageError, match="is not what an export wrote as OpenMetrics"):
        written(address, tmp_path / "notes", FileFormat.OPENMETRICS, run.id)
    assert (tmp_path / "notes").read_text() == "of somebody"


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20A")


def test_text_that_begins_like_a_formula_is_made_harmless_and_numbers_stay_numbers() -> None:
    told = to_csv(["text", "number"], [(text, -0.5) for text in (*FORMULAS, "a=1", "", None)])
    header, *rows = csv.reader(io.StringIO(told, newline=""))
    assert header == ["text", "number"]
    lines = [" ".join(text.splitlines()) for text in FORMULAS]  # a new line may be a command to a CI's log
    assert rows == [[f"'{line}", "-0.5"] for line in lines] + [["a=1", "-0.5"], ["", "-0.5"], ["", "-0.5"]]
    assert '"a=1",-0.5\n' in told
    raw = to_csv(["text"], [(text,) for text in FORMULAS], raw=True)
    assert "'" not in raw and '"=1+1"' in raw


def test_csv_has_every_metric_and_every_check(address: str, run: Run, tmp_path: Path) -> None:
    metrics, checks = written(address, tmp_path / "out", FileFormat.CSV)
    found = list(csv.DictReader(io.StringIO(metrics.read_text("utf-8"))))
    first = next(row for row in found if row["metric"] == "ttft" and row["arm"] == "candidate")
    assert (first["value"], first["lower"], first["upper"], first["n"]) == ("0.30000000000000004", "0.25", "0.5", "8")
    assert (first["run_id"], first["statistic"], first["task"]) == (run.id, "p95", "")
    assert len(found) == 5
    judged = list(csv.DictReader(io.StringIO(checks.read_text("utf-8"))))
    assert [(row["check"], row["run_outcome"], row["harm"]) for row in judged] == [
        ("ttft p95", "PASS", ""), ("'=1+1", "PASS", "0.25"), ("ttft p95", "WARN", ""), ("'=1+1", "WARN", "0.25"),
    ]  # fmt: skip
    assert json.loads(judged[0]["policy"]) == {"margin": 0.05, "unit": "s"}
    _, raw = written(address, tmp_path / "raw", FileFormat.CSV, raw_csv=True)
    assert '"=1+1"' in raw.read_text()


def test_parquet_has_typed_columns_of_the_same(address: str, run: Run, tmp_path: Path) -> None:
    files = {file.name.removeprefix(f"{run.id}."): file for file in written(address, tmp_path, FileFormat.PARQUET)}
    assert set(files) == {
        "metrics.parquet", "checks.parquet", "requests.parquet", "items.parquet", "prompts.parquet",
        "positions.parquet",
    }  # fmt: skip
    tables = {name: pyarrow.parquet.read_table(file) for name, file in files.items()}
    assert tables["metrics.parquet"].column("value").to_pylist()[0] == 0.1 + 0.2
    assert [str(kind) for kind in tables["metrics.parquet"].schema.types[-2:]] == ["double", "int64"]
    requests = tables["requests.parquet"]
    assert requests.num_rows == 14
    assert str(requests.schema.field("chunk_ns").type).startswith("list<")
    lines = [line for line in lines_of(address, tmp_path, run) if line["kind"] == "request"]
    assert requests.column("ttft_s").to_pylist() == [line["ttft_s"] for line in lines]
    for name in ("chunk_ns", "answer_chars", "redundancy_percent", "ramp"):
        assert requests.column(name).to_pylist() == [line[name] for line in lines], name
    spelled = NASTY.encode("utf-8", "backslashreplace").decode()
    assert set(requests.column("answer_model").to_pylist()) == {spelled, None}
    assert [str(requests.schema.field(name).type) for name in ("answer_chars", "ramp", "answer_model")] == [
        "int64", "bool", "string",
    ]  # fmt: skip
    assert tables["items.parquet"].column("item_id").to_pylist() == [item.item_id for item in make_quality().items]


def test_parquet_names_the_regions_of_requests(tmp_path: Path) -> None:
    load, run, address = make_load(), make_run(), f"sqlite:///{tmp_path / 'regions.db'}"
    regions = [("eu", "us")[row % 2] for row in range(len(load.requests))]
    with Store.open(address) as store:
        writer = store.begin_run(run, PLAN)
        writer.add(replace(load, requests=replace(load.requests, region=TextColumn.of(regions))))
        writer.finish(RunStatus.COMPLETE, DONE_AT)
    (file,) = (one for one in written(address, tmp_path, FileFormat.PARQUET, run.id) if "requests" in one.name)
    assert pyarrow.parquet.read_table(file).column("region").to_pylist() == regions


def test_parquet_without_pyarrow_says_how_to_get_it(
    address: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"\[parquet\]"):
        written(address, tmp_path, FileFormat.PARQUET, run.id)


def _parsed(told: str) -> list[Metric]:
    return list(text_string_to_metric_families(told))  # type: ignore[no-untyped-call]  # the library tells no types here


def test_openmetrics_is_read_by_a_strict_parser_and_tells_the_newest_run(store_address: str, tmp_path: Path) -> None:
    write_everything(store_address, label=None, suite_name='a "b"\\\n')
    newest = write_everything(store_address, label=None, suite_name='a "b"\\\n')
    with Store.open(store_address) as store:
        write_run(store, suite_name="undecided")
        calibration = write_run(store, suite={"calibration": True}, suite_name="noise")
        store.save_verdict(newest.id, verdict("BLOCK", newest), decided_at="2026-11-21T12:00:00.000Z")
    (file,) = written(store_address, tmp_path, FileFormat.OPENMETRICS)
    assert file == tmp_path / "metrics.txt"
    told = file.read_text()
    families = {family.name: family for family in _parsed(told)}
    ttft = families["benchgate_ttft_seconds"]
    assert (ttft.type, ttft.unit) == ("gauge", "seconds")
    assert {(s.labels["arm"], s.labels["statistic"], s.value) for s in ttft.samples} == {
        ("candidate", "p95", 0.3), ("baseline", "p95", 1.23457e6),
    }  # fmt: skip
    assert families["benchgate_accuracy_ratio"].samples[0].labels["task"] == 'task "x"\\'
    assert families["benchgate_output_throughput_tokens_per_second"].samples[0].labels["suite"] == 'a "b"\\\n'
    assert (families["benchgate_score"].unit, families["benchgate_accuracy_ratio"].unit) == ("", "ratio")
    outcomes = {(s.labels["suite"], s.labels["outcome"]): s.value for s in families["benchgate_verdict"].samples}
    assert [name for name, value in outcomes.items() if value == 1] == [('a "b"\\\n', "BLOCK")]
    assert {suite for suite, _ in outcomes} == {'a "b"\\\n', "undecided"}
    assert newest.id not in told and calibration.id not in told
    assert told.endswith("# EOF\n")
    again = written(store_address, tmp_path / "again.prom", FileFormat.OPENMETRICS)
    assert again[0].read_text() == told


@pytest.mark.parametrize("part", ["load", QUICK_LOOK])
def test_openmetrics_leaves_out_a_run_of_a_part_of_its_suite(store_address: str, tmp_path: Path, part: str) -> None:
    with Store.open(store_address) as store:
        whole, short = write_run(store), write_run(store, environment={ONLY_PART: part})
        store.save_verdict(whole.id, verdict("BLOCK", whole), decided_at="2026-11-21T12:00:00.000Z")
        store.save_verdict(short.id, verdict("PASS", short), decided_at="2026-11-21T12:00:00.000Z")
    (file,) = written(store_address, tmp_path, FileFormat.OPENMETRICS)
    (found,) = [family for family in _parsed(file.read_text()) if family.name == "benchgate_verdict"]
    assert [sample.labels["outcome"] for sample in found.samples if sample.value == 1] == ["BLOCK"]


def test_metric_of_a_strange_name_is_no_openmetrics(address: str, run: Run, tmp_path: Path) -> None:
    with Store.open(address) as store:
        other = write_run(store, suite_name="strange")
        store.save_metrics(other.id, [MetricRow(Arm.CANDIDATE, "x 1\nbenchgate_verdict", None, None, None, 1.0, 1)])
    with pytest.raises(EvidenceError, match="a metric is called"):
        written(address, tmp_path, FileFormat.OPENMETRICS, other.id)
    assert list(tmp_path.iterdir()) == []


def test_records_that_were_removed_are_not_exported_as_if_there_were_none(tmp_path: Path) -> None:
    address = str(tmp_path / "gc.db")
    run = write_everything(address)
    with opened(address, create=False) as database, database.writing() as connection:
        remove_raw(connection, run.id, removed_at="2026-12-01T00:00:00Z", reason="store gc")
    for form in (FileFormat.JSONL, FileFormat.PARQUET):
        with pytest.raises(EvidenceError, match="were removed on 2026-12-01"):
            written(address, tmp_path / "out", form)
    assert len(written(address, tmp_path / "out", FileFormat.CSV)) == 2


def test_one_file_is_not_enough_for_several(address: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for to, form in (("x.json", FileFormat.BUNDLE), ("x.jsonl", FileFormat.JSONL)):
        with pytest.raises(UsageError, match="2 runs are to be written"):
            written(address, tmp_path / to, form, run.id, run.id)
        assert written(address, tmp_path / to, form, run.id) == [tmp_path / to]
    for to, form in (("x.csv", FileFormat.CSV), ("taken", FileFormat.CSV), ("x.parquet", FileFormat.PARQUET)):
        with pytest.raises(UsageError, match="writes several"):
            written(address, tmp_path / to, form, run.id)


def test_file_that_cannot_be_written_leaves_no_half(address: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for form in (FileFormat.BUNDLE, FileFormat.JSONL, FileFormat.OPENMETRICS):
        with pytest.raises(StoreError, match="could not be written"):
            written(address, tmp_path / "file" / "inside", form, run.id)


def test_export_does_not_write_through_a_planted_link(address: str, run: Run, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    (tmp_path / ".x.jsonl.part").symlink_to(victim)
    written(address, tmp_path / "x.jsonl", FileFormat.JSONL, run.id)
    assert (victim.read_text("utf-8"), (tmp_path / "x.jsonl").is_symlink()) == ("mine", False)
