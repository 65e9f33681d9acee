"""Prices of a suite that stand in a file: those of a run's day, kept with it and held against it later."""

from __future__ import annotations

import contextlib
import html
import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import new_run_id, start_day
from benchgate.pipeline.deployments import declared_deployment
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.resume import resume_suite
from benchgate.pipeline.run import RunOptions
from benchgate.pipeline.suite_file import load_suite, read_suite, require_priced, with_prices
from benchgate.release.attest import read_statement
from benchgate.release.publish import judge_to_publish
from benchgate.release.verify import Answer, Line, VerifyRequest, verify
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from tests.e2e.command import STORE, here
from tests.fakes import quick_command
from tests.shells.store_samples import PLAN, make_deployment, make_run

JUNE, JULY = date(2026, 6, 30), date(2026, 7, 1)
PRICES = """\
prices:
  - {accelerator: H100, price: $4/h}
  - {deployment: new, price: $4/h, until: 2026-06-30}
  - {deployment: new, token_prices: {input: $0.15/M, output: $0.60/M}, from: 2026-07-01, until: 2026-07-31}
  - {deployment: own, price: $9/h}
"""
SUITE = """\
suite: priced
deployments:
  old: {sim: {ttft: 2ms, itl: 1ms}, accelerator: H100}
  new: {sim: {ttft: 2ms, itl: 1ms}}
  own: {sim: {}, price: $1/h}
prices: prices.yaml
baseline: old
candidate: new
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 2
  warmup: 0
  sweep: [{stage: c2, concurrency: 2, requests: 4}]
gate:
  allow_underpowered: true
  checks:
    - {metric: usd_per_million_output_tokens, max: $9000, required: false}
    - {metric: error_rate, max: 50%}
"""


def put(folder: Path, prices: str = PRICES, suite: str = SUITE) -> Path:
    (folder / "prices.yaml").write_text(prices)
    (folder / "suite.yaml").write_text(suite)
    return folder / "suite.yaml"


def paid(suite: Suite, day: date, folder: Path) -> list[float | None]:
    """What an hour of `old`, `new` and `own` costs."""
    return [spec.usd_per_hour for spec in with_prices(suite, folder, day).deployments.values()]


def test_a_deployment_takes_the_price_of_the_day_unless_it_says_one(tmp_path: Path) -> None:
    unpriced = read_suite(put(tmp_path)).suite
    assert paid(unpriced, JUNE, tmp_path) == [4.0, 4.0, 1.0]
    assert paid(unpriced, JULY, tmp_path) == [4.0, None, 1.0]
    filled = with_prices(unpriced, tmp_path, JULY)
    assert declared_deployment(filled, "new").token_prices == {"input": 0.15, "cached_input": 0.15, "output": 0.6}
    assert declared_deployment(filled, "own").price_usd_per_hour == 1.0
    assert Suite.from_stored(filled.to_stored()).to_stored() == filled.to_stored()
    assert declared_deployment(filled, "old").price_entry == {
        "file": "prices.yaml",
        "accelerator": "H100",
        "price": "$4/h",
    }
    assert declared_deployment(filled, "own").price_entry == {}
    with pytest.raises(UsageError, match=r"the prices of old, new stand in prices\.yaml, which was not read"):
        require_priced(unpriced)
    require_priced(filled)


@pytest.mark.parametrize(
    ("prices", "suite", "told"),
    [
        (PRICES, SUITE, 'prices.yaml:4:5: prices[2]: "new" has no price on 2026-08-01: this one ended on 2026-07-31'),
        ("prices: []", SUITE, "prices.yaml:1:"),
        ("prices:\n  - {deployment: old}\n", SUITE, "prices.yaml:2:5: prices[0]: needs exactly one of"),
        (PRICES.replace("until: 2026-07-31", "until: 2026-09-31"), SUITE, "prices.yaml:4:"),
        (
            PRICES.replace("until: 2026-07-31", "until: 2026-08-31"),
            SUITE.replace("blocks: 2", "looks: [2, 4]\n  limit: {cost: 40 USD}"),
            'load.limit.cost: the cost of the load is unknown: the candidate "new" is paid by the token, and not',
        ),
    ],
)
def test_what_the_file_does_not_say_is_told_with_its_place(tmp_path: Path, prices: str, suite: str, told: str) -> None:
    unpriced = read_suite(put(tmp_path, prices, suite)).suite
    with pytest.raises(SuiteError) as wrong:
        with_prices(unpriced, tmp_path, date(2026, 8, 1))
    assert told in str(wrong.value)


def test_a_deployment_that_is_no_arm_needs_no_price(tmp_path: Path) -> None:
    suite = put(tmp_path, "prices: [{deployment: new, price: $4/h}]\n")
    spare = read_suite(suite).suite.model_copy(update={"baseline": "own"})
    assert paid(spare, JULY, tmp_path) == [None, 4.0, 1.0]
    require_priced(with_prices(spare, tmp_path, JULY))
    assert load_suite(suite, "own", "new").suite.deployments["old"].price is None
    with pytest.raises(SuiteError, match='"old" has no price on '):
        load_suite(suite)
    with pytest.raises(SuiteError, match='"old" has no price'):
        load_suite(suite, "own", "old")


def test_a_run_of_midnight_is_of_the_day_that_begins(tmp_path: Path) -> None:
    midnight = make_run(started_at="2026-07-01T00:00:00.000Z")
    assert (midnight.day, make_run(started_at="2026-06-30T23:59:59.999Z").day) == (JULY, JUNE)
    suite = read_suite(put(tmp_path)).suite
    assert paid(suite, midnight.day, tmp_path) == [4.0, None, 1.0]  # by the token, from 2026-07-01 on


def test_a_price_that_ended_while_the_run_was_prepared_is_not_that_of_its_day(tmp_path: Path) -> None:
    filled = with_prices(read_suite(put(tmp_path)).suite, tmp_path, JUNE)
    require_priced(filled, JUNE)
    with pytest.raises(UsageError, match=r"the price of new in prices\.yaml ended at midnight .* that of 2026-07-01"):
        require_priced(filled, JULY)
    require_priced(with_prices(read_suite(put(tmp_path)).suite, tmp_path, JULY), date(2026, 7, 31))


def test_only_a_file_of_some_size_is_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to never ends, and a device has no end."""
    suite = read_suite(put(tmp_path)).suite
    prices = tmp_path / "prices.yaml"
    for make, told in (
        (lambda: os.mkfifo(prices), "it is no regular file"),
        (lambda: prices.symlink_to("/dev/zero"), "it is no regular file"),
        (lambda: prices.mkdir(), "Is a directory"),
        (lambda: prices.write_bytes(b"#" * (2**20 + 1)), "it is larger than 1,048,576 bytes"),
        (lambda: prices.write_bytes(b"\xff"), "cannot be read"),
    ):
        prices.rmdir() if prices.is_dir() else prices.unlink()
        make()
        with pytest.raises(SuiteError) as wrong:
            with_prices(suite, tmp_path, JUNE)
        assert told in str(wrong.value)


def test_a_suite_that_nothing_prices_is_refused_by_its_line_before_anything_is_measured(tmp_path: Path) -> None:
    suite = put(tmp_path)
    told = here(tmp_path, "run", "suite.yaml")
    assert told.returncode == 2 and "prices.yaml:4:5:" in told.stderr, told.stderr
    assert not (tmp_path / ".benchgate").exists()
    suite.write_text(SUITE.replace("prices.yaml", "price.yaml"))
    told = here(tmp_path, "plan", "suite.yaml")
    assert told.returncode == 2 and "suite.yaml:6:9: prices: " in told.stderr, told.stderr
    assert "the file of prices cannot be read" in told.stderr


def test_a_run_that_goes_on_has_the_prices_of_its_beginning(tmp_path: Path) -> None:
    unpriced = read_suite(put(tmp_path)).suite
    begun = with_prices(unpriced, tmp_path, JUNE).to_stored()
    arms = {Arm.BASELINE: make_deployment("old"), Arm.CANDIDATE: make_deployment("new")}
    options = RunOptions(str(tmp_path / "b.db"), tmp_path)
    with Store.open(options.store) as store:
        run = make_run(suite_name="priced", suite=begun, arms=arms, started_at=f"{JUNE}T23:00:00.000Z")
        store.begin_run(run, PLAN).suspend()

    def changed() -> str:
        with pytest.raises(UsageError, match="cannot go on") as refused:
            resume_suite(unpriced, tmp_path, options, Progress())
        return str(refused.value)

    assert "the plan was" in changed()  # which is told only where the suite is what it was
    put(tmp_path, PRICES.replace("price: $4/h, until", "price: $5/h, until"))
    assert "the suite's deployments.new.price was 4.0 and is 5.0" in changed()


def of_today(price: str, more: str = "") -> str:
    return f"prices:\n  - {{deployment: old, price: $4/h}}\n  - {{deployment: new, price: {price}{more}}}\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite that was measured today, its statement and its store."""
    folder = tmp_path_factory.mktemp("measured")
    put(folder, of_today("$3/h"))
    done = here(folder, "run", "suite.yaml", "--write", "intoto=said.json", "--label", "today")
    assert done.returncode in (0, 10, 11, 12), done.stderr
    return folder


@pytest.mark.slow
def test_the_run_keeps_what_it_took_and_holds_against_its_file_alone(measured: Path) -> None:
    with Store.open(str(measured / STORE), create=False) as store:
        run = store.run(store.resolve("today"))
    assert [run.arms[arm].price_usd_per_hour for arm in Arm] == [4.0, 3.0]
    said = (("old", "$4/h"), ("new", "$3/h"))
    entries = [{"file": "prices.yaml", "deployment": name, "price": usd} for name, usd in said]
    assert [run.arms[arm].price_entry for arm in Arm] == entries
    assert run.suite == load_suite(measured / "suite.yaml").suite.to_stored()
    today = datetime.now(UTC).date()
    later = f"  - {{deployment: new, price: $1/h, from: {today + timedelta(days=1)}}}\n"
    for prices, code, doubted in (
        (of_today("$3/h"), Answer.HOLDS, False),
        (of_today("$3/h", f", until: {today}") + later, Answer.HOLDS, False),
        (of_today("$1/h"), Answer.BROKEN, True),
        (of_today("$3/h", f", until: {today - timedelta(days=1)}"), Answer.BROKEN, True),
    ):
        put(measured, prices)
        assert said_by_suite(measured, today) is code, prices
        with contextlib.chdir(measured), Store.open(STORE, create=False) as store:
            judged = judge_to_publish(store, run.id, suite_file=Path("suite.yaml"))
        assert (judged.doubt is not None) is doubted, judged.doubt
        assert ("prices.yaml" in (judged.doubt or "")) is doubted


def test_a_verdict_says_of_which_entry_each_price_is(measured: Path) -> None:
    def told(output: str) -> str:
        asked = ["gate", "today", "--store", str(measured / STORE), "--format", output]
        return quick_command.told(*asked).stdout

    lines = html.unescape(told("markdown").replace("\\", ""))
    assert 'price of the candidate: that of "new" in prices.yaml: $3/h' in lines
    entry = {"file": "prices.yaml", "deployment": "new", "price": "$3/h"}
    priced = {"usd_per_hour": 3.0, "token_prices": {}, "entry": entry}
    assert json.loads(told("json"))["arms"]["candidate"]["price"] == priced


def test_a_plan_says_of_which_entry_each_price_is(tmp_path: Path) -> None:
    hourly = "prices:\n  - {accelerator: H100, price: $3.50/h, from: 2026-01-01}\n"
    hosted = "  - {deployment: new, token_prices: {input: $0.15/M, output: $0.60/M}}\n"
    suite = put(tmp_path, hourly + hosted)
    store = str(tmp_path / "none.db")

    def told(*asked: str) -> str:
        result = quick_command.told(asked[0], str(suite), *asked[1:])
        assert result.exit_code == 0, result.output
        return result.stdout

    text = " ".join(told("plan", "--store", store).split())  # wrapped to the terminal's width
    listed = "the price of accelerator H100 in prices.yaml from 2026-01-01: $3.50/h"
    assert f"old: $3.50/h, {listed}" in text
    assert 'the price of "new" in prices.yaml: input $0.15/M, output $0.60/M' in text
    assert " own:" not in text
    prices = json.loads(told("plan", "--store", store, "--format", "json"))["prices"]
    assert prices["old"]["usd_per_hour"] == 3.5
    assert prices["old"]["entry"]["price"] == "$3.50/h"
    assert prices["new"]["token_prices"]["output"] == 0.6


def test_a_price_that_changed_since_is_named_as_what_did(measured: Path) -> None:
    today = datetime.now(UTC).date()
    put(measured, of_today("$1/h"))
    line = line_of_suite(measured, today)
    assert line.answer is Answer.BROKEN and line.remedy is not None
    assert f"the suite's own bytes are as they were, so {measured / 'prices.yaml'} has other prices" in line.remedy
    with contextlib.chdir(measured), Store.open(STORE, create=False) as store:
        judged = judge_to_publish(store, store.resolve("today"), suite_file=Path("suite.yaml"))
        assert "prices.yaml has another price of new for its day than the run kept" in str(judged.doubt)
        put(measured, of_today("$1/h"), SUITE.replace("blocks: 2", "blocks: 3"))
        judged = judge_to_publish(store, store.resolve("today"), suite_file=Path("suite.yaml"))
        assert "prices.yaml" not in str(judged.doubt)
    put(measured, of_today("$3/h"))


def said_by_suite(folder: Path, day: date) -> Answer:
    """What `verify` says of the suite, of a run that began on that day."""
    return line_of_suite(folder, day).answer


def line_of_suite(folder: Path, day: date) -> Line:
    data = (folder / "said.json").read_bytes()
    said = read_statement(data, "said.json")
    began = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    known = replace(said.run, id=new_run_id(int(began.timestamp() * 1000), bytes(10)))
    found = verify(replace(said, run=known), data, VerifyRequest(suite=folder / "suite.yaml"))
    return next(line for line in found.lines if line.text.startswith(("the content", f"{folder / 'suite.yaml'} is")))


def test_a_run_is_verified_by_the_price_of_its_own_day_however_late(measured: Path) -> None:
    put(measured, of_today("$3/h", ", until: 2026-06-30") + "  - {deployment: new, price: $2/h, from: 2026-07-01}\n")
    assert [said_by_suite(measured, day) for day in (JUNE, JULY)] == [Answer.HOLDS, Answer.BROKEN]


def test_the_day_of_a_run_is_told_by_its_id() -> None:
    # RFC 9562, A.6: an id of Tuesday, February 22, 2022 2:22:22.00 PM GMT-05:00.
    assert start_day("017F22E2-79B0-7CC3-98C4-DC0C0C07398F") == date(2022, 2, 22)
    assert [start_day(text) for text in ("919108f7-52d1-4320-9bac-f847db4148a8", "run-1")] == [None, None]
