"""A bundle is the whole run in one spelling, and nothing that was changed in it gets past the door."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from benchgate.errors import EvidenceError
from benchgate.model import codec
from benchgate.model.deployment import sha256_of
from benchgate.store import results, rows, stored_run, tables
from benchgate.store.bundle import SCHEMAS, bundle_sources, read_bundle, write_bundle
from benchgate.store.integrity import validate_run
from benchgate.store.merge import import_runs
from benchgate.store.migrate import HEAD, opened
from benchgate.store.repository import Store
from benchgate.store.stored_run import PARTS, WholeRun
from tests.shells.exchange_samples import bundle_of, ids_in, resealed, signed, whole_of, write_everything
from tests.shells.exchange_strategies import whole_runs

Change = Callable[[dict[str, Any]], object]

# --- the whole run, and one spelling of it


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("bundles") / "store.db")


@pytest.fixture(scope="module")
def written(address: str) -> bytes:
    return bundle_of(address, write_everything(address).id)


def test_tables_of_a_run_are_all_in_its_bundle_but_what_is_read_off_verdicts() -> None:
    of_a_run = {table for table in tables.metadata.sorted_tables if "run_id" in table.c}
    assert of_a_run - set(PARTS) == {tables.check_result}
    assert set(tables.metadata.sorted_tables) - of_a_run == {
        tables.run, tables.plan, tables.store_info, tables.client_profile,
    }  # fmt: skip
    assert SCHEMAS[-1] == HEAD


def test_bundle_holds_every_row_and_column_and_reads_back_the_same(address: str, written: bytes) -> None:
    whole = whole_of(address, json.loads(written)["run"]["id"])
    assert [table.name for table in PARTS if not whole.of(table)] == ["tombstone"]
    assert read_bundle(written, "x.json") == whole
    validate_run(whole, "x.json")


def test_same_run_has_the_same_bytes_whatever_wrote_it_down_in_between(written: bytes) -> None:
    reformatted = json.dumps(json.loads(written), indent=4).encode()
    assert write_bundle(read_bundle(reformatted, "x.json")) == written
    assert written.isascii()
    assert json.loads(written)["format"] == "benchgate-bundle/1"


@given(whole_runs())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_rows_come_back_from_a_bundle_as_they_were(whole: WholeRun) -> None:
    data = write_bundle(whole)
    assert read_bundle(data, "x.json") == whole
    assert write_bundle(read_bundle(data, "x.json")) == data


# --- what gets no further than the door


def at(document: Any, *path: str | int) -> Any:
    for step in path:
        document = document[step]
    return document


def put(value: object, *path: str | int) -> Change:
    def change(document: dict[str, Any]) -> None:
        at(document, *path[:-1])[path[-1]] = value

    return change


def without(*path: str | int) -> Change:
    return lambda document: at(document, *path[:-1]).pop(path[-1])


def in_json(column: str, change: Change, *path: str | int) -> Change:
    """Changes a document that stands in a column as text."""

    def inside(document: dict[str, Any]) -> None:
        row = at(document, *path)
        inner = json.loads(row[column])
        change(inner)
        row[column] = json.dumps(inner, sort_keys=True, separators=(",", ":"))

    return inside


def verdict_with_check(name: str, value: object) -> Change:
    """Gives the first check of a verdict another value, and the verdict a hash that fits."""

    def change(document: dict[str, Any]) -> None:
        in_json("document", put(value, "checks", 0, name), "verdict", 0)(document)
        row = document["verdict"][0]
        row["sha256"] = results._verdict_sha256({**row, "run_id": document["run"]["id"]})

    return change


def requests_with(**changed: Any) -> Change:
    """Gives an observation of requests, none of which was left, other columns, and hashes that fit them."""

    def change(document: dict[str, Any]) -> None:
        row = document["observation"][1]
        found = codec.decode(base64.b64decode(row["data"]), codec=row["codec"], sha256=row["sha256"])
        row["data"] = base64.b64encode(codec.encode({**found, **changed})).decode()
        resealed(document)

    return change


def sealed_again(change: Change) -> Change:
    """Makes a change, and hashes that fit it."""

    def both(document: dict[str, Any]) -> None:
        change(document)
        resealed(document)

    return both


def without_key(key: str, table: str = "observation") -> Change:
    """Removes a key from what is known of the first row that has it, and makes hashes that fit."""

    def change(document: dict[str, Any]) -> None:
        number = next(i for i, row in enumerate(document[table]) if key in json.loads(row["meta"]))
        in_json("meta", without(key), table, number)(document)

    return sealed_again(change)


def workers(count: object) -> Change:
    return sealed_again(in_json("meta", put(count, "client", "workers"), "observation", 0))


def deployed(value: object, key: str) -> Change:
    return sealed_again(in_json("deployment", put(value, key), "arm", 0))


def judged(text: str, **row: Any) -> Change:
    """Gives the first verdict this text, and hashes that fit it."""

    def change(document: dict[str, Any]) -> None:
        verdict = document["verdict"][0] | row | {"document": text}
        inner = [document["run"]["id"], verdict["compared_run_id"], verdict["decided_at"], rows.text_sha256(text)]
        document["verdict"][0] = verdict | {"sha256": rows.text_sha256(rows.to_json(inner, ""))}

    return change


def promoted(change: Change) -> Change:
    """Changes the document of the promotion, and gives it the hash that fits."""

    def changed(document: dict[str, Any]) -> None:
        in_json("document", change, "promotion", 0)(document)
        document["promotion"][0]["sha256"] = rows.text_sha256(document["promotion"][0]["document"])

    return changed


STONE = {
    "seq": 99, "of_table": "telemetry", "sealed": '[99,"","",0,0,"","","",0]', "sha256": "", "n_bytes": 1,
    "removed_at": "2026-11-20T14:00:00Z", "reason": "",
}  # fmt: skip
OPEN = {"status": "partial", "finished_at": None, "evidence_sha256": None}
ZEROS = base64.b64encode(zlib.compress(bytes(5_000_000))).decode()

# fmt: off
CHANGED: dict[str, tuple[Change, str]] = {
    "another format": (put("benchgate-bundle/2", "format"), "reads benchgate-bundle/1"),
    "a newer schema": (put("9999", "schema"), "use one that is as new"),
    "a schema that is no text": (put({"a": 1}, "schema"), "reads benchgate-bundle/1"),
    "a key that is missing": (without("telemetry"), "lacks telemetry"),
    "a key too many": (put(1, "extra"), "unknown 'extra'"),
    "a table that is no list": (put({}, "event"), "event is an object; expected a list"),
    "a row that is no row": (put(7, "event", 0), "event 0 is 7; expected a row"),
    "a column that is missing": (without("observation", 0, "meta"), "observation 0: a row lacks meta"),
    "a column too many": (put(1, "metric", 0, "run_id"), "unknown 'run_id'"),
    "true for a number": (put(True, "observation", 0, "n_rows"), "n_rows is True; expected an integer"),
    "a text for a number": (put("7", "observation", 0, "seq"), "seq is '7'; expected an integer"),
    "a number of 100 bits": (put(2**100, "run", "seed"), "seed is a number of more than 64 bits"),
    "a number beyond all floats": (put(10**400, "metric", 0, "value"), "expected a finite number"),
    "nothing where something must be": (put(None, "run", "suite"), "suite is None; expected text"),
    "NUL in a name": (put("a\0b", "run", "suite_name"), "plain text"),
    "half a character in a name": (put("\ud800", "run", "label"), "plain text"),
    "a command in a label": (put("x\n::stop-commands::y", "run", "label"), "expected no control character"),
    "data that is no base64": (put("*", "observation", 0, "data"), "expected base64"),
    "a path for an id": (put("../../x", "run", "id"), "expected a UUID"),
    "an id in capitals": (lambda d: put(d["run"]["id"].upper(), "run", "id")(d), "expected a UUID"),
    "a plan of another run": (put("b" * 64, "run", "plan_sha256"), "plan: it hashes to"),
    "a plan that is not packed": (put("AAAA", "plan"), "its plan cannot be unpacked"),
    "a plan that swells": (put(ZEROS, "plan"), "more than 1,000,000 bytes"),
    "observations that swell": (put(ZEROS, "observation", 0, "data"), "more than 1,000,000 bytes"),
    "an observation with other bytes": (put("AAAA", "observation", 0, "data"), "observation 0"),
    "an observation with other facts": (in_json("meta", put(9.0, "window_s"), "observation", 0), "evidence hashes to"),
    "an observation less": (without("observation", 0), "its evidence hashes to"),
    "a deployment renamed": (in_json("deployment", put("other", "name"), "arm", 0), "its evidence hashes to"),
    "a deployment of strange keys": (in_json("deployment", put(1, "power"), "arm", 0), "cannot be read"),
    "a kind nobody knows": (lambda d: (put("dream", "observation", 0, "kind")(d), resealed(d)), "unknown kind"),
    "requests of unlike lengths": (requests_with(sent_ns=np.zeros(3, dtype=np.int64)), "different lengths"),
    "requests without chunks": (requests_with(chunk_ns=np.zeros(0, dtype=np.int64)), "different lengths"),
    "chunks of two requests at once": (requests_with(chunk_start=np.array([0, 5, 1])), "its requests overlap"),
    "a window of NaN": (
        sealed_again(in_json("meta", put("nan", "window_s"), "observation", 0)), "its window_s is 'nan'",
    ),
    "evals without their harness": (without_key("harness"), "KeyError: 'harness'"),
    "texts without the sources passed over": (without_key("passed_over"), "KeyError: 'passed_over'"),
    "telemetry without its problems": (without_key("problems", "telemetry"), "KeyError: 'problems'"),
    "a text of workers": (workers("two"), "valid integer"),
    "no worker": (workers(0), "expected at least 1"),
    "2**70 workers": (workers(2**70), "more than 64 bits"),
    "nothing of workers": (workers(None), "valid integer"),
    "a price that is a text": (deployed("cheap", "price_usd_per_hour"), "valid number"),
    "a price of prompts alone": (deployed({"input": 0.2}, "token_prices"), "token prices of"),
    "a deployment of -1 accelerators": (deployed(-1, "accelerators"), "fewer than 1 accelerator"),
    "meta that is a list": (lambda d: (put("[]", "observation", 0, "meta")(d), resealed(d)), "cannot be read"),
    "a status nobody knows": (put("done", "run", "status"), "its status is 'done'"),
    "complete without a hash": (put(None, "run", "evidence_sha256"), "it is complete, and no hash covers its evidence"),
    "running, and over": (put("running", "run", "status"), "it is running, and has the hash of a finished run"),
    "over, and not when": (put(None, "run", "finished_at"), "does not say when it ended"),
    "an instant of another spelling": (put("2026-11-20 12:00", "run", "started_at"), "expected an instant"),
    "an instant that is none": (put("2026-99-99T99:99:99.000Z", "run", "finished_at"), "expected an instant"),
    "an instant in other digits": (
        put("\uff12\uff10\uff12\uff16-01-01T00:00:00Z", "run", "started_at"), "expected an instant",
    ),
    "an end before the beginning": (put("2026-11-20T11:59:59Z", "run", "finished_at"), "before it began at 2026"),
    "an instant elsewhere": (put("2026-11-20T13:00:00+01:00", "verdict", 0, "decided_at"), "expected an instant"),
    "two rows at one place": (put(2, "observation", 0, "seq"), "two processes wrote to this run"),
    "two metrics of one key": (put(1, "metric", 0, "seq"), "two rows of metric have one key"),
    "two noise profiles": (lambda d: d["noise_profile"].append(d["noise_profile"][0]), "two rows of noise_profile"),
    "a metric of no arm": (put("middle", "metric", 0, "arm"), "of the arm 'middle', which the run does not have"),
    "a metric with a line break": (put("a\nb", "metric", 0, "name"), "its name is 'a\\\\nb'"),
    "a verdict with other words": (in_json("document", put("PASS", "reason"), "verdict", 0), "does not hash"),
    "a verdict listed as better": (put("PASS", "verdict", 1, "outcome"), "says WARN and is listed as PASS"),
    "a verdict moved in time": (put("2026-11-20T14:00:00Z", "verdict", 0, "decided_at"), "does not hash"),
    **{
        f"a verdict with a check whose {name} is {value!r}": (
            verdict_with_check(name, value),
            "has an id, outcome, `required` or `n` of another type",
        )
        for name, value in (("n", {}), ("n", 2**63), ("id", "a\0b"), ("id", "\ud800"), ("outcome", 1), ("required", 1))
    },
    "a verdict that is no JSON": (put("{", "verdict", 0, "document"), "verdict 0 is not JSON"),
    "a verdict that is no object": (put("[]", "verdict", 0, "document"), "is a list; expected an object"),
    "a verdict of another run": (judged('{"checks":[],"outcome":"PASS","run":{"id":"x"}}'), "reached on run 'x'"),
    "a verdict with two outcomes": (judged('{"outcome":"BLOCK","outcome":"PASS"}'), "not spelled as"),
    "a verdict with a check of no kind": (judged('{"checks":[{}],"outcome":"PASS"}'), "cannot be read"),
    "a verdict against a path": (judged('{"outcome":"PASS"}', compared_run_id="../x"), "expected a UUID"),
    "NaN in a document": (put('{"x":NaN}', "event", 0, "data"), "only finite JSON"),
    "a promotion with other words": (put('{"by":"me"}', "promotion", 0, "document"), "promotion .*: its document"),
    "a promotion of another suite": (put("other", "promotion", 0, "suite_name"), "its run is of another"),
    "a promotion lifted out of the series": (put(0, "promotion", 0, "in_series"), "listed as another"),
    "a promotion on no protected ref": (promoted(put(False, "origin", "protected")), "listed as another"),
    "a promotion by another verdict": (promoted(put("0", "grounds", "verdict_sha256")), "rests on another verdict"),
    "a promotion of other evidence": (promoted(put("0" * 64, "grounds", "evidence_sha256")), "another evidence_sha256"),
    "a promotion that nothing led to": (promoted(put(None, "grounds")), "only a withdrawal has no grounds"),
    "an import with other words": (put("{}", "imported", 0, "document"), "imported .*: its document hashes to"),
    "an import of another file": (put("0" * 64, "imported", 0, "source_sha256"), "made of another file"),
    "noise with other words": (put("{}", "noise_profile", 0, "document"), "noise_profile: its document hashes to"),
    "noise of another deployment": (put(sha256_of("x"), "noise_profile", 0, "key_sha256"), "it is listed as another"),
    "a tombstone of nothing": (lambda d: d["tombstone"].append(STONE | {"of_table": "run"}), "what it stands for"),
    "a tombstone of another row": (lambda d: d["tombstone"].append(STONE | {"seq": 98}), "another row than its own"),
    "a tombstone in a run that may go on": (
        lambda d: (d["run"].update(OPEN), d["tombstone"].append(STONE)),
        "records of it were removed, and it may be resumed",
    ),
}
# fmt: on


@pytest.mark.parametrize("what", CHANGED)
def test_bundle_in_which_something_was_changed_is_refused_although_its_hash_fits(
    written: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_run, "MAX_UNPACKED_BYTES", 1_000_000)
    change, says = CHANGED[what]
    document = json.loads(written)
    change(document)
    with pytest.raises(EvidenceError, match=says) as refused:
        validate_run(read_bundle(signed(document), "runs/x.json"), "runs/x.json")
    assert str(refused.value).startswith("runs/x.json")
    assert len(str(refused.value)) < 400


@pytest.mark.slow
@pytest.mark.parametrize("place", [("plan",), ("observation", 0, "data")])
def test_small_bundle_that_swells_is_refused_before_it_costs_memory(written: bytes, place: tuple[str | int]) -> None:
    packer = zlib.compressobj(9)
    zeros = b"".join(packer.compress(bytes(2**20)) for _ in range(300)) + packer.flush()
    document = json.loads(written)
    put(base64.b64encode(zeros).decode(), *place)(document)
    resealed(document)
    data = signed(document)
    assert len(data) < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(EvidenceError, match="holds more than 67,108,864 bytes"):
            validate_run(read_bundle(data, "x.json"), "x.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2**26  # what is unpacked grows by copying


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a bundle"),
        (b"{", "not a bundle"),
        (b"[]", "not a bundle"),
        (b'{"format": 1}', "not a bundle"),
        (b"\x89PNG\r\n\x1a\n", "not a bundle"),
        ('{"format": "\u00e9"}'.encode("utf-16"), "not a bundle"),
        (b"[" * 100_000, "not a bundle"),
        (b'{"format":"benchgate-bundle/1","schema":' + b'{"a":' * 500 + b"1" + b"}" * 501, "of schema an object"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not a bundle"),
    ],
)
def test_file_that_is_something_else_is_no_bundle(data: bytes, says: str) -> None:
    with pytest.raises(EvidenceError, match=says):
        read_bundle(data, "x.json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, "1e999"])
def test_a_number_that_is_not_finite_is_refused_at_the_door(written: bytes, number: float | str) -> None:
    document = json.loads(written)
    document["metric"][0]["value"] = "HERE"
    data = signed(document).replace(b'"HERE"', str(number).replace("inf", "Infinity").replace("nan", "NaN").encode())
    with pytest.raises(EvidenceError, match="not JSON compliant"):
        read_bundle(data, "x.json")


def test_a_number_that_is_not_finite_does_not_get_out_of_a_database_either(address: str, written: bytes) -> None:
    """Postgres keeps a NaN; whoever changed it there is told."""
    whole = whole_of(address, json.loads(written)["run"]["id"])
    for name, number in (("value", math.nan), ("upper", math.inf)):
        metrics = [whole.of(tables.metric)[0] | {name: number}]
        changed = dataclasses.replace(whole, parts={**whole.parts, "metric": metrics})
        with pytest.raises(EvidenceError, match=r"ttft.* cannot be"):
            validate_run(changed, "x.db")


def test_bundle_that_was_cut_or_changed_does_not_hash(written: bytes) -> None:
    for data in (written.replace(b"nightly", b"nightlx"), written.replace(b'"sha256":"', b'"sha256":"0', 1)):
        with pytest.raises(EvidenceError, match=r"it was changed or cut|does not hash"):
            read_bundle(data, "x.json")
    with pytest.raises(EvidenceError, match="not a bundle"):
        read_bundle(written[:-100], "x.json")


def test_bundle_that_is_too_large_is_neither_written_nor_read(
    address: str, written: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.store.bundle.MAX_BYTES", 1000)
    file = tmp_path / "x.json"
    file.write_bytes(written)
    (source,) = bundle_sources([file])
    with pytest.raises(EvidenceError, match=r"x.json: [0-9,]+ bytes; a bundle has at most 1,000"):
        source.read()
    with pytest.raises(EvidenceError, match="at most 1,000"):
        read_bundle(written, "x.json")
    with pytest.raises(EvidenceError, match="store import"):
        bundle_of(address, json.loads(written)["run"]["id"])


def test_hostile_bundles_leave_no_trace_in_the_store(written: bytes, tmp_path: Path) -> None:
    folder, address = tmp_path / "runs", str(tmp_path / "store.db")
    folder.mkdir()
    for number, (change, _) in enumerate(CHANGED.values()):
        document = json.loads(written)
        change(document)
        (folder / f"{number:03}.json").write_bytes(signed(document))
    (folder / "torn.json").write_bytes(written[:1000])
    with opened(address, create=True) as database:
        taken = [one for one in import_runs(lambda: database, bundle_sources([folder]))]
    swelling = [what for what in CHANGED if what.endswith(("swells", "swell"))]
    assert all(one.merged is None for one in taken), [one.source for one in taken if one.merged]
    assert len(taken) == len(CHANGED) + 1 and len(swelling) == 2
    assert ids_in(address) == []
    with Store.open(address) as store:
        assert store.check().findings == ()
    assert not re.search(r"\n", "".join(one.problem or "" for one in taken))
