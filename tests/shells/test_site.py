"""A static site from a real store: a page for every run, links that lead somewhere, and only what changed made anew."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Iterator
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from sqlalchemy import text

from benchgate.cli import history
from benchgate.errors import PublishError, UsageError
from benchgate.model.history import PromotionOrigin
from benchgate.model.run import RunStatus
from benchgate.model.verdict import Outcome, Waiver, Waivers
from benchgate.pipeline.judge import decide_stored, report_html
from benchgate.report.html import suite_folder
from benchgate.site import reports
from benchgate.site.build import Built, build
from benchgate.site.folder import MANIFEST, run_file
from benchgate.site.reports import Rendered
from benchgate.store.database import Address, Database
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.fakes.site_runs import add, add_import, promote

pytest_plugins = ["tests.shells.store_databases"]

HOSTILE = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>{{ 7*7 }} ../../etc \u202egnp'


class Page(HTMLParser):
    """What a page is made of: its elements' names, where its links lead, its anchors and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "href":
                self.links.append(value or "")
            if name == "id":
                assert value not in self.anchors, f"#{value} twice"
                self.anchors.add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def quietly(done: int, of: int) -> None:
    assert 0 < done <= of


def built(address: str, folder: Path) -> Built:
    return build(address, folder, quietly)


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def written_at(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def pages(folder: Path) -> dict[Path, Page]:
    return {file: Page(file.read_text(encoding="utf-8")) for file in folder.rglob("*.html")}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An SQLite store with a promoted run and a blocked one."""
    address = str(tmp_path / "some.db")
    with Store.open(address) as store:
        promote(store, add(store, "2026-01-01", label="first"), "2026-01-01T02:00:00.000Z")
        add(store, "2026-01-02", blocked=True)
    yield address


def of_every_kind(store: Store) -> dict[str, str]:
    """One run of each kind, by what is to know of it."""
    ids = {
        "plain": add(store, "2026-01-01"),
        "gone": add(store, "2026-01-02", label="old"),
        "blocked": add(store, "2026-01-03", blocked=True, label=HOSTILE[:-5], suite=HOSTILE, names=HOSTILE),
        "newest": add(store, "2026-01-04"),
        "odd id": add(store, "2026-01-05", run_id="Odd <i>id"),
        "cut short": add(store, "2026-01-06", status=RunStatus.PARTIAL),
        "unjudged": add(store, "2026-01-07", judged=False),
        "calibration": add(store, "2026-01-08", calibration=True),
        "going on": add(store, "2026-01-09", status=None, judged=False),
        "imported": add_import(store, "2026-01-10"),
    }
    promote(store, ids["plain"], "2026-01-04T12:00:00.000Z")
    promote(store, ids["blocked"], "2026-01-04T12:00:01.000Z")
    remove_raw(store, ids["gone"])
    return ids


def remove_raw(store: Store, run_id: str) -> None:
    now = "2026-11-01T00:00:00.000Z"
    spare = [one for one in store.expendable(Policy(), now) if one.run_id == run_id]
    assert len(store.remove_raw(spare, now=now, reason="benchgate store gc <b>all</b>").runs) == 1


@pytest.mark.slow
def test_every_run_has_a_page_and_every_link_leads_somewhere(store: Store, store_address: str, tmp_path: Path) -> None:
    ids, site = of_every_kind(store), tmp_path / "site"
    assert built(store_address, site).faults == {}
    found = pages(site)
    for run_id in ids.values():
        assert (site / run_file(run_id)).is_file()
    for file, page in found.items():
        for link in page.links:
            way, _, anchor = unquote(link).partition("#")
            target = (file.parent / way).resolve() if way else file
            assert target.is_relative_to(site.resolve()) and target.is_file(), link
            assert not anchor or anchor in found[Path(target)].anchors, link
    assert all(re.fullmatch(r"[\w./-]+", name) for name in files(site)), "names come from ids alone"
    says = {kind: found[site / run_file(run_id)].text for kind, run_id in ids.items()}
    assert "were removed on 2026-11-01 by benchgate store gc <b>all</b>" in says["gone"]
    assert "from a file of vllm bench <b>serve</b>" in says["imported"]
    assert "is still running" in says["going on"]
    index = found[site / "index.html"].text
    assert all(said in index for said in ("cut short", "a calibration", "no verdict", "without raw records"))
    for run_id in (ids["plain"], ids["cut short"]):
        decision = decide_stored(store, run_id, keep=False)
        of_site = (site / run_file(run_id)).read_text(encoding="utf-8")
        assert of_site == report_html(decision, in_site=True)
        assert re.sub(r'<a href="\.\./[^"]+">(benchgate|made-up)( · history)?</a>', r"\1", of_site) == report_html(
            decision
        )


def test_hostile_text_stays_text(address: str, tmp_path: Path) -> None:
    with Store.open(address) as store:
        run_id = add(store, "2026-02-01", blocked=True, label=HOSTILE[:-5], suite=HOSTILE, names=HOSTILE)
        promote(store, run_id, "2026-02-01T02:00:00.000Z")
    site = tmp_path / "site"
    built(address, site)
    for file, page in pages(site).items():
        if file.parent.name != "runs":  # a report is held to this by tests of its own
            assert page.tags.count("script") == 1 and not {"img", "i", "b-"} & set(page.tags)
            assert not {name for name in page.attributes if name.startswith("on")} | {"style"} & page.attributes
    assert "alert(1)" in pages(site)[site / "index.html"].text, "it is there to be read"
    folder = site / suite_folder(HOSTILE)
    badge = Page((folder / "badge.svg").read_text(encoding="utf-8"))
    assert set(badge.tags) == {"svg", "title", "rect", "path", "g", "text"}
    said = json.loads((folder / "badge.json").read_bytes())
    assert said["message"] == "■ BLOCK" and said["schemaVersion"] == 1
    assert "\u202e" not in said["label"]


@pytest.mark.slow
def test_a_second_build_touches_nothing_and_a_new_run_only_what_tells_of_it(address: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert built(address, site).changes.kept == 0
    before = written_at(site)
    again = built(address, site)
    assert (again.changes.written, again.changes.removed) == (0, 0)
    manifest = {MANIFEST}
    assert {name: at for name, at in written_at(site).items() if name not in manifest} == {
        name: at for name, at in before.items() if name not in manifest
    }
    with Store.open(address) as store:
        run_id = add(store, "2026-03-01")
    built(address, site)
    after = written_at(site)
    changed = {name for name, at in after.items() if before.get(name) != at}
    folder = suite_folder("made-up")
    assert changed - manifest == {run_file(run_id), "index.html", f"{folder}/index.html"}


def test_the_same_store_gives_the_same_bytes_whatever_was_there_before(address: str, tmp_path: Path) -> None:
    grown, fresh = tmp_path / "grown", tmp_path / "fresh"
    with Store.open(address) as store:
        gone = add(store, "2026-01-03")
        open_still = add(store, "2026-01-04", status=None)
        newest = add(store, "2026-01-05")
    built(address, grown)
    with Store.open(address) as store:
        promote(store, newest, "2026-01-06T00:00:00.000Z")
        remove_raw(store, gone)
        add(store, "2026-01-07", label="late", suite="another")
    built(address, grown)
    built(address, fresh)
    assert files(grown) == files(fresh)
    assert (fresh / run_file(open_still)).is_file()


def test_a_page_that_somebody_cut_short_is_made_again(address: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    built(address, site)
    whole = files(site)
    (page,) = [file for file in (site / "runs").iterdir()][:1]
    page.write_bytes(b"cut")
    (site / "index.html").unlink()
    built(address, site)
    assert files(site) == whole


@pytest.mark.slow
def test_of_another_store_only_what_we_wrote_is_removed(address: str, tmp_path: Path) -> None:
    site, other = tmp_path / "site", str(tmp_path / "other.db")
    built(address, site)
    (site / "CNAME").write_text("bench.example")
    (site / "runs" / "notes.txt").write_text("mine")
    with Store.open(other) as store:
        run_id = add(store, "2026-01-01", suite="another")
    changes = built(other, site).changes
    assert changes.removed == 6  # two reports, and the page and badges of their suite
    assert {name for name in files(site) if name.startswith(("runs", "CNAME"))} == {
        "CNAME",
        "runs/notes.txt",
        run_file(run_id),
    }
    assert not (site / suite_folder("made-up")).exists()


def test_a_folder_that_is_not_ours_is_left_alone(address: str, tmp_path: Path) -> None:
    site = tmp_path / "home"
    site.mkdir()
    (site / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"is not empty and no site of benchgate's"):
        built(address, site)
    assert files(site) == {"thesis.txt": b"years of work"}


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ('{"schema": "benchgate.site/1", "files": {"../precious.html": {}}}', "which no site has"),
        ('{"schema": "benchgate.site/1", "files": {"runs/../../precious.html": {}}}', "which no site has"),
        ('{"schema": "benchgate.site/2", "files": {}}', "its schema is"),
        ('{"schema": "benchgate.site/1", "files": {"index.html": {"odd": 1}}}', "no manifest"),
        ("[]", "no manifest"),
        ("\xff", "no manifest"),
    ],
)
def test_a_manifest_that_says_more_than_ours_is_refused(address: str, tmp_path: Path, manifest: str, says: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "precious.html").write_text("mine")
    (site / MANIFEST).write_text(manifest, encoding="latin-1")
    with pytest.raises(UsageError, match=says):
        built(address, site)
    assert (tmp_path / "precious.html").read_text() == "mine"


def test_a_file_or_a_link_in_the_way_is_neither_overwritten_nor_followed(address: str, tmp_path: Path) -> None:
    site, outside = tmp_path / "site", tmp_path / "outside"
    site.mkdir()
    outside.mkdir()
    (site / MANIFEST).write_text('{"schema": "benchgate.site/1", "files": {}}')
    (site / "index.html").write_text("mine")
    with pytest.raises(UsageError, match=r"in the way of one"):
        built(address, site)
    assert (site / "index.html").read_text() == "mine"
    (site / "index.html").unlink()
    (site / "runs").symlink_to(outside)
    with pytest.raises(UsageError, match="is a link"):
        built(address, site)
    assert list(outside.iterdir()) == []


def test_what_a_killed_build_had_half_written_is_removed_and_nothing_else(address: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    built(address, site)
    half, theirs = site / ".index.html.0123456789abcdef.part", site / ".notes.0123456789abcdef.part"
    half.write_text("<!doct")
    theirs.write_text("mine")
    built(address, site)
    assert not half.exists()
    assert theirs.read_text() == "mine"


def test_a_damaged_run_has_a_page_that_says_so_and_is_tried_again(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    with Store.open(address) as store:
        run_id = add(store, "2026-04-01")
    database = Database.connect(Address.parse(address))
    with database.writing() as connection:
        names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
        for name in names:
            connection.execute(text(f'DROP TRIGGER "{name}"'))
        connection.execute(text("UPDATE observation SET n_rows = n_rows + 1 WHERE run_id = :id"), {"id": run_id})
    database.close()
    assert list(built(address, site).faults) == [run_id]
    page = pages(site)[site / run_file(run_id)]
    assert "No report can be made of this run" in page.text
    again = built(address, site)
    assert list(again.faults) == [run_id] and again.changes.written == 0
    with pytest.raises(typer.Exit) as left:
        history.site(site, address)
    told = capsys.readouterr()
    assert left.value.exit_code == 13
    assert told.out == f"{site / 'index.html'}: 0 files written, 9 unchanged, 0 removed\n"
    assert f"run {run_id} has no report: run {run_id}" in told.err


@pytest.mark.slow
def test_several_processes_write_what_one_would(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(address, tmp_path / "one")
    monkeypatch.setattr(reports, "FEW", 1)
    monkeypatch.setattr(reports, "usable_cpus", lambda: 2)
    built(address, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_process_that_is_gone_before_its_work_is_done_is_an_error() -> None:
    context = multiprocessing.get_context("spawn")
    worker = object.__new__(reports._Worker)
    worker.results, told = context.Pipe(duplex=False)
    worker._left, worker._process = 2, context.Process(target=os._exit, args=(9,))
    worker._process.start()
    told.send(Rendered("a"))
    told.close()
    assert worker.next() == Rendered("a")
    with pytest.raises(PublishError, match=r"ended with 9, 1 of them .* build the site again"):
        worker.next()
    worker.end()


def test_a_suite_is_drawn_with_all_that_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, site = str(tmp_path / "long.db"), tmp_path / "site"
    with Store.open(address) as store:
        for day, measurement in (("2026-01-01", "a" * 64), ("2026-01-02", "b" * 64)):
            promote(store, add(store, day, whole=True, measurement=measurement), f"{day}T02:00:00.000Z")
    monkeypatch.setattr("benchgate.site.build.rendered", lambda *_: iter(()))  # its page is looked at alone
    built(address, site)
    page = pages(site)[site / suite_folder("made-up") / "index.html"]
    assert "the suite measures something else than before" in page.text
    assert {"ttft-p50", "goodput", "accuracy", "shadow-excess"} <= page.anchors
    assert {"usd-per-million-output-tokens", "usd-per-million-good-tokens"} <= page.anchors
    assert page.tags.count("svg") >= 8
    badge = Page((site / suite_folder("made-up") / "badge-cost.svg").read_text(encoding="utf-8"))
    assert set(badge.tags) == {"svg", "title", "rect", "path", "g", "text"}
    assert re.search(r"cost: unknown \(what is in service, .*: no stage is shown to hold its SLO", badge.text)


def test_a_promotion_outside_of_the_series_is_said_to_be_and_yields_to_one_inside(tmp_path: Path) -> None:
    address, site = str(tmp_path / "some.db"), tmp_path / "site"
    here = PromotionOrigin("anna", "main", protected=False)
    with Store.open(address) as store:
        first = add(store, "2026-01-01", label="first", names="equal")
        blocked = add(store, "2026-01-02", label="other", blocked=True)
        promote(store, first, "2026-01-03T00:00:00.000Z", here)
    folder = suite_folder("made-up")
    built(address, site)
    outside = "equal, promoted first, outside the baseline series"
    for page in ("index.html", f"{folder}/index.html"):
        assert outside in " ".join(pages(site)[site / page].text.split())
    assert "the newest run, other" in (site / folder / "badge.svg").read_text(encoding="utf-8")
    assert "no run is in the baseline series" in (site / folder / "badge-cost.svg").read_text(encoding="utf-8")
    with Store.open(address) as store:
        promote(store, first, "2026-01-03T00:00:01.000Z")
        promote(store, blocked, "2026-01-03T00:00:02.000Z", here)  # an override, and newer
    built(address, site)
    seen = pages(site)[site / folder / "index.html"].text
    assert "outside the baseline series" not in seen and "In service: equal, of run first" in " ".join(seen.split())
    assert "what is in service, first" in (site / folder / "badge.svg").read_text(encoding="utf-8")
    cost = (site / folder / "badge-cost.svg").read_text(encoding="utf-8")
    assert "cost: unknown (what is in service, first: the suite has no load" in cost
    assert "● PASS" in json.loads((site / folder / "badge.json").read_bytes())["message"]


def test_a_waived_run_is_listed_by_its_stored_verdict_and_its_page_is_without_the_waiver(tmp_path: Path) -> None:
    address, site, day = str(tmp_path / "some.db"), tmp_path / "site", date(2026, 1, 5)
    with Store.open(address) as store:
        run_id = add(store, "2026-01-04", blocked=True)
        (check,) = [one.id for one in decide_stored(store, run_id, keep=False).verdict.checks]
        who = {"owner": "anna", "issue": "X-1", "reason": "known", "approved_by": "ben"}
        waiver = Waiver(check, "made-up", "candidate", "90 points", day, **who)
        decided = decide_stored(store, run_id, waivers=Waivers((waiver,), day))
        assert decided.verdict.outcome is Outcome.WARN
    built(address, site)
    folder, found = suite_folder("made-up"), pages(site)
    for page in ("index.html", f"{folder}/index.html"):
        assert "WARN" in found[site / page].text and "its report says BLOCK" in found[site / page].text
    assert "WARN" in json.loads((site / folder / "badge.json").read_bytes())["message"]
    report = found[site / run_file(run_id)].text
    assert "BLOCK" in report and "WARN" not in report


def test_the_promotions_name_the_candidate(address: str, tmp_path: Path) -> None:
    with Store.open(address) as store:
        promote(store, add(store, "2026-01-03", names="llama-fp8"), "2026-01-04T00:00:00.000Z")
    built(address, tmp_path / "site")
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    table = text[text.index('id="promotions"') : text.index('id="runs"')]
    assert '<th scope="col">candidate</th>' in table and "<td>llama-fp8</td>" in table


def test_a_store_without_runs_has_a_site_that_says_so(tmp_path: Path) -> None:
    address = str(tmp_path / "empty.db")
    Store.open(address).close()
    built(address, tmp_path / "site")
    assert "no runs yet" in pages(tmp_path / "site")[tmp_path / "site" / "index.html"].text
