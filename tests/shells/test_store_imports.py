"""Another tool's file in a store, on SQLite and on a real Postgres: numbers to look at, and nothing to decide from."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus
from benchgate.pipeline.import_load import ImportedFile, ImportMetadata, import_file
from benchgate.pipeline.judge import decide_stored, stored_numbers
from benchgate.report.stored_numbers import numbers_document
from benchgate.store import tables
from benchgate.store.bundle import bundle_sources
from benchgate.store.database import Address, Database
from benchgate.store.export import export_bundle
from benchgate.store.merge import import_runs
from benchgate.store.migrate import opened
from benchgate.store.queries import newest_runs
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.e2e.command import here
from tests.shells.store_samples import make_run, write_run

pytest_plugins = ["tests.shells.store_databases"]

FIXTURES = Path(__file__).parents[1] / "fixtures/imports"
SUITE = make_run().suite_name  # the same name as measured runs have: nothing may mix them up
TOLD = ImportMetadata(SUITE, "vendor", price_usd_per_hour=3.6, accelerators=2)


def adopted(address: str, name: str = "vllm-detailed.json") -> ImportedFile:
    return import_file(address, FIXTURES / name, TOLD)


def test_a_file_is_a_complete_run_with_numbers_and_no_records(store_address: str) -> None:
    run_id = adopted(store_address).run_id
    with Store.open(store_address) as store:
        run, rows = store.run(run_id), store.metrics(run_id)
        assert store.check().findings == ()
    assert (run.status, run.measured_by, list(run.arms)) == (RunStatus.COMPLETE, "vllm", [Arm.CANDIDATE])
    assert run.arms[Arm.CANDIDATE].model == "acme/small-7b"
    (cost,) = [row.value for row in rows if row.name == "usd_per_million_output_tokens"]
    assert cost == pytest.approx(2 * 3.6 / 3600 / 1.4 * 1e6)


def test_what_was_taken_and_what_was_not_is_kept_with_the_hash_of_the_file(store_address: str) -> None:
    run_id = adopted(store_address).run_id
    database = Database.connect(Address.parse(store_address))
    with database.reading() as connection:
        (row,) = connection.execute(select(tables.imported)).mappings().all()
    database.close()
    document = json.loads(row["document"])
    assert (row["run_id"], row["source"]) == (run_id, "vllm-detailed.json")
    assert row["source_sha256"] == document["sha256"] != ""
    assert document["mapped"]["tpot"] == "sum of itls / (output_lens - 1)"
    assert "interpolates" in document["unmapped"]["$.p99_ttft_ms"]


def test_the_same_file_twice_is_known_and_adds_nothing(store_address: str) -> None:
    first = adopted(store_address)
    again = import_file(store_address, FIXTURES / "vllm-detailed.json", ImportMetadata())
    assert (first.is_known, again.is_known, again.run_id) == (False, True, first.run_id)
    with Store.open(store_address) as store:
        assert len(store.runs()) == 1


def test_something_else_of_a_file_that_is_known_is_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    run_id = adopted(store).run_id
    for told, says in (
        (ImportMetadata("another"), "--suite is 'another', and was"),
        (ImportMetadata(deployment="d"), "--deployment is 'd', and was 'vendor'"),
        (ImportMetadata(model="m"), "--model is 'm', and was 'acme/small-7b'"),
        (ImportMetadata(label="l"), "--label is 'l', and was none"),
        (ImportMetadata(price_usd_per_hour=4.0), "--price is 4.0, and was 3.6"),
        (ImportMetadata(accelerators=1), "--accelerators is 1, and was 2"),
        (
            ImportMetadata(measured_at="2025-11-02T00:00:00Z"),
            "--measured-at is '2025-11-02T00:00:00.000Z', and was '2025-11-01",
        ),
    ):
        with pytest.raises(UsageError, match=f"is run {run_id} already, .*{says}"):
            import_file(store, FIXTURES / "vllm-detailed.json", told)
    assert import_file(store, FIXTURES / "vllm-detailed.json", TOLD).is_known


def test_a_run_begins_when_it_was_measured_and_keeps_when_it_was_imported(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    later = adopted(store).run_id  # by its own date on 1 November 2025
    sglang = ImportMetadata(SUITE, "vendor", measured_at="2025-10-31T23:30:00-01:00")
    between = import_file(store, FIXTURES / "sglang.json", sglang).run_id
    undated = import_file(store, FIXTURES / "inference-perf-stage.json", TOLD)
    with Store.open(store) as opened_store:
        order = [point.run_id for point in opened_store.trend("request_throughput")]
        assert [opened_store.run(run_id).started_at for run_id in (between, later)] == [
            "2025-11-01T00:30:00.000Z",
            "2025-11-01T10:15:00.000Z",
        ]
        assert opened_store.check().findings == ()
    assert (order, undated.measured) == ([between, later, undated.run_id], None)
    with opened(store, create=False) as database, database.reading() as connection:
        found = connection.execute(select(tables.imported, tables.run.c.started_at).join(tables.run)).mappings().all()
    kept = {row["run_id"]: row for row in found}
    assert (
        kept[later]["imported_at"] > "2026"
        and kept[undated.run_id]["imported_at"] == kept[undated.run_id]["started_at"]
    )
    assert json.loads(kept[later]["document"])["measured"] == {
        "at": "2025-11-01T10:15:00.000Z",
        "by": "its date, which has no time zone and is taken as UTC",
    }
    assert json.loads(kept[between]["document"])["measured"]["by"] == "--measured-at"
    assert json.loads(kept[undated.run_id]["document"])["measured"] is None


def dated(folder: Path, at: datetime) -> Path:
    """A file of vLLM with this date, in words of its own clock."""
    document = json.loads((FIXTURES / "vllm.json").read_text(encoding="utf-8")) | {"date": f"{at:%Y%m%d-%H%M%S}"}
    path = folder / "vllm.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_an_instant_that_has_not_been_yet_is_refused_but_for_what_a_time_zone_may_be(tmp_path: Path) -> None:
    store, now = str(tmp_path / "s.db"), datetime.now(UTC)
    with pytest.raises(UsageError, match="one of the clocks is wrong; say when it was by --measured-at"):
        import_file(store, dated(tmp_path, now + timedelta(hours=15)), TOLD)
    with pytest.raises(UsageError, match="one of the clocks is wrong"):
        import_file(store, FIXTURES / "sglang.json", ImportMetadata(measured_at=(now + timedelta(hours=1)).isoformat()))
    assert not Path(store).exists()
    run_id = import_file(store, dated(tmp_path, now + timedelta(hours=13)), TOLD).run_id
    with Store.open(store) as opened_store:
        assert opened_store.run(run_id).started_at <= datetime.now(UTC).isoformat(timespec="milliseconds")


def test_a_file_that_is_wrong_leaves_the_store_as_it_was(store_address: str, tmp_path: Path) -> None:
    Store.open(store_address).close()
    path = tmp_path / "vllm.json"
    path.write_text((FIXTURES / "vllm.json").read_text(encoding="utf-8").replace('"failed": 0', '"failed": -1'))
    with pytest.raises(UsageError, match=r"\$\.failed: found -1"):
        import_file(store_address, path, TOLD)
    with Store.open(store_address) as store:
        assert store.runs() == []


def test_nothing_is_ever_judged_of_it(store_address: str) -> None:
    run_id = adopted(store_address).run_id
    with Store.open(store_address) as store:
        with pytest.raises(UsageError, match="nothing can be judged of it"):
            store.evidence(run_id)
        with pytest.raises(UsageError, match="nothing can be judged of it"):
            decide_stored(store, run_id)
        with pytest.raises(UsageError, match="the store has no run of its own yet, only imports"):
            store.resolve("@latest")
        assert store.verdicts(run_id) == []


def test_beside_a_measured_run_it_is_numbers_that_promote_nobody(store_address: str) -> None:
    run_id = adopted(store_address).run_id
    with Store.open(store_address) as store:
        measured = write_run(store)
        for judged, against in ((run_id, measured.id), (measured.id, run_id)):
            numbers = stored_numbers(store, judged, against)
            assert numbers is not None
            document = numbers_document(numbers)
            assert (document["outcome"], document["promotes"]) == ("INCONCLUSIVE", False)
            assert "was measured by vllm" in str(document["reason"])
        assert store.evidence(measured.id).history == ()


def test_it_takes_no_place_of_a_measured_run(store_address: str) -> None:
    """It is the newest of its suite, and nobody who asks for the suite's newest run gets it."""
    with Store.open(store_address) as store:
        measured = write_run(store, started_at="2020-01-01T00:00:00Z")
    run_id = adopted(store_address).run_id
    with Store.open(store_address) as store:
        assert store.resolve("@latest", suite=SUITE) == measured.id
        assert store.expendable(Policy(older_than_s=0, keep_last=1), "2036-01-01T00:00:00Z") == []
    with opened(store_address, create=False) as database, database.reading() as connection:
        assert newest_runs(connection, [measured.id, run_id]) == newest_runs(connection, [measured.id])


def test_it_goes_from_store_to_store_and_stays_what_it_is(store_address: str, tmp_path: Path) -> None:
    run_id = adopted(store_address).run_id
    elsewhere = str(tmp_path / "elsewhere.db")
    with opened(store_address, create=False) as database:
        export_bundle(database, run_id, tmp_path / "run.json")
    with opened(elsewhere, create=True) as database:
        (taken,) = import_runs(lambda: database, list(bundle_sources([tmp_path / "run.json"])))
        assert taken.problem is None
    with Store.open(elsewhere) as store:
        assert store.run(run_id).measured_by == "vllm"
    assert adopted(elsewhere).is_known


def test_the_command_tells_what_it_took_and_trend_shows_it(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    files = [str(FIXTURES / name) for name in ("vllm-detailed.json", "lm-eval.json")]
    done = here(tmp_path, "store", "import", *files, "--suite", "elsewhere", "--deployment", "vendor", "--store", store)
    assert done.returncode == 0, done.stderr
    assert [line.split(" ", 1)[1].split(" ")[0] for line in done.stdout.splitlines()] == ["new:", "new:"]
    assert "measured 2025-11-01T10:15:00.000Z by its date, which has no time zone and is taken as UTC" in done.stdout
    reasons = [line.rsplit(": ", 1)[1] for line in done.stderr.splitlines() if line.startswith("  not taken: ")]
    assert len(reasons) < 12 and "$.median_ttft_ms, $.p99_ttft_ms, $.median_tpot_ms and 3 more" in done.stderr
    again = here(tmp_path, "store", "import", *files, "--store", store)
    assert [line.split(" ")[1] for line in again.stdout.splitlines()] == ["known", "known"]
    shown = here(tmp_path, "trend", "ttft_sent", "--suite", "elsewhere", "--store", store)
    assert "200" in shown.stdout
    assert "vendor" in shown.stdout
    points = json.loads(here(tmp_path, "trend", "ttft_sent", "--format", "json", "--store", store).stdout)
    assert [(one["metric"], one["statistic"], one["unit"], one["value"]) for one in points] == [
        ("ttft_sent", "p50", "s", 0.2)
    ]
    cost = here(tmp_path, "trend", "usd_per_million_output_tokens", "--store", store)
    assert "other metrics need none: benchgate trend request_throughput" in cost.stderr
    assert here(tmp_path, "trend", "request_throughput", "--store", store).returncode == 0
    run_id = done.stdout.split(" ", 1)[0]
    assert here(tmp_path, "gate", run_id, "--store", store).returncode == 2
    assert here(tmp_path, "promote", run_id, "--store", store).returncode != 0
    assert here(tmp_path, "compare", run_id, run_id[:13], "--store", store).returncode == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vllm.json", "--from", "vlm"], "did you mean vllm"),
        (["vllm.json", "--from", "sglang"], "lacks the marks of a file of sglang"),
        (["k6.json"], "none of its numbers"),
        (["nothing.json", "--from", "vllm"], "there is no file"),
    ],
)
def test_the_command_refuses_what_is_none(words: list[str], says: str, tmp_path: Path) -> None:
    name, *options = words
    done = here(tmp_path, "store", "import", str(FIXTURES / name), *options, "--store", str(tmp_path / "s.db"))
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (ImportMetadata("a\x1b[2Jb", "d"), "--suite is"),
        (ImportMetadata("s", " "), "--deployment is"),
        (ImportMetadata("s", "d", label="two\nlines"), "--label is"),
        (ImportMetadata("s", "d", price_usd_per_hour=float("nan")), "--price is nan"),
        (ImportMetadata("s", "d", price_usd_per_hour=-1.0), "--price is -1"),
        (ImportMetadata(""), "--suite is ''"),
        (ImportMetadata(label="@latest"), "does not begin with @"),
        (ImportMetadata(label="0199f8a4-7c3e-7"), "it looks like the id of a run"),
        (
            ImportMetadata(measured_at="yesterday"),
            "--measured-at is 'yesterday'; expected an instant with its time zone",
        ),
        (ImportMetadata(measured_at="2025-11-01T10:15:00"), "--measured-at is .* with its time zone"),
    ],
)
def test_names_and_prices_that_cannot_be_are_refused_before_the_file_is_read(told: ImportMetadata, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        import_file("nowhere/store.db", Path("nothing.json"), told)


def test_two_files_are_set_side_by_side_and_export_tells_what_they_are(tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    runs = [import_file(store, FIXTURES / name, TOLD).run_id for name in ("vllm.json", "vllm-detailed.json")]
    shown = here(tmp_path, "compare", *runs, "--store", store)
    assert shown.returncode == 11, shown.stderr
    assert "output_throughput" in shown.stdout
    done = here(tmp_path, "store", "export", *runs, "--to", "out", "--format", "csv", "--store", store)
    assert done.returncode == 0, done.stderr
    assert "output_throughput" in (tmp_path / "out/metrics.csv").read_text(encoding="utf-8")
    assert here(tmp_path, "store", "check", "--store", store).returncode == 0


def test_each_of_several_files_is_tried_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    run_id = import_file(str(tmp_path / "a.db"), FIXTURES / "lm-eval.json", TOLD).run_id
    assert here(tmp_path, "store", "export", run_id, "--to", "in", "--store", "a.db").returncode == 0
    shutil.copy(FIXTURES / "vllm.json", tmp_path / "in/vllm.json")
    (tmp_path / "in/cut.json").write_text('{"completed": 4,\n "duration": ', encoding="utf-8")
    done = here(tmp_path, "store", "import", "nothing", "in", str(FIXTURES / "sglang.json"), "--store", "b.db")
    assert done.returncode == 2
    assert "there is no file or folder nothing" in done.stderr
    assert "in/cut.json:2:" in done.stderr
    assert done.stderr.splitlines()[-1] == "benchgate: 2 refused; nothing of them was imported"
    with Store.open(str(tmp_path / "b.db")) as store:
        assert {run.measured_by for run in store.runs()} == {"vllm", "sglang", "lm-eval"}


def test_a_bundle_that_is_broken_ends_with_13_and_no_store_is_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"arm": [', encoding="utf-8")
    done = here(tmp_path, "store", "import", "run.json", "--store", "s.db")
    assert (done.returncode, "run.json: this is not a bundle" in done.stderr) == (13, True)
    done = here(tmp_path, "store", "import", "run.json", str(FIXTURES / "k6.json"), "--store", "s.db")
    assert (done.returncode, "2 refused; nothing of them was imported" in done.stderr) == (13, True)
    done = here(tmp_path, "store", "import", "run.json", "--from", "vllm", "--store", "s.db")
    assert (done.returncode, "run.json:1:" in done.stderr) == (2, True)
    (tmp_path / "spool.jsonl").write_text("not a spool\n", encoding="utf-8")
    done = here(tmp_path, "store", "import", "spool.jsonl", "--store", "s.db")
    assert (done.returncode, "spool.jsonl:1: this is no benchgate-spool/1" in done.stderr) == (13, True)
    assert list(tmp_path.glob("s.db*")) == []


def test_options_of_a_tools_file_are_refused_of_bundles(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"arm":[]}', encoding="utf-8")
    done = here(tmp_path, "store", "import", "run.json", "--suite", "mine", "--store", "s.db")
    assert (done.returncode, "--suite is for result files of other tools" in done.stderr) == (2, True)
