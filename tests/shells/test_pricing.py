"""Prices of a suite that stand in a file: those of a run's day, kept with it and held against it later."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from benchgate.cli.measure_commands import load_suite, read_suite
from benchgate.deploying import declared
from benchgate.errors import SuiteError, UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import day_begun, new_run_id
from benchgate.pipeline import RunOptions
from benchgate.pricing import require_priced, with_prices
from benchgate.publishing import judge_to_publish
from benchgate.report.statement import read_statement
from benchgate.resuming import resume_suite
from benchgate.store.repository import Store
from benchgate.suite.schema import Suite
from benchgate.verifying import Answer, Asked, verify
from tests.e2e.command import STORE, benchgate, here
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
  warmup_requests: 0
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
    unpriced = read_suite(put(tmp_path))
    assert paid(unpriced, JUNE, tmp_path) == [4.0, 4.0, 1.0]
    assert paid(unpriced, JULY, tmp_path) == [4.0, None, 1.0]
    filled = with_prices(unpriced, tmp_path, JULY)
    assert declared(filled, "new").token_prices == {"input": 0.15, "cached_input": 0.15, "output": 0.6}
    assert declared(filled, "own").price_usd_per_hour == 1.0
    assert Suite.from_stored(filled.to_stored()) == filled
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
            'load.limit.cost: what the load costs is not known: the candidate "new" has no `price`',
        ),
    ],
)
def test_what_the_file_does_not_say_is_told_with_its_place(tmp_path: Path, prices: str, suite: str, told: str) -> None:
    unpriced = read_suite(put(tmp_path, prices, suite))
    with pytest.raises(SuiteError) as wrong:
        with_prices(unpriced, tmp_path, date(2026, 8, 1))
    assert told in str(wrong.value)


def test_a_suite_that_nothing_prices_is_refused_by_its_line_before_anything_is_measured(tmp_path: Path) -> None:
    suite = put(tmp_path)
    told = here(tmp_path, "run", "suite.yaml")
    assert told.returncode == 2 and "prices.yaml:4:5:" in told.stderr, told.stderr
    assert not (tmp_path / ".benchgate").exists()
    suite.write_text(SUITE.replace("prices.yaml", "price.yaml"))
    for command in ("plan", "validate"):
        told = here(tmp_path, command, "suite.yaml")
        assert told.returncode == 2 and "suite.yaml:6:9: prices: " in told.stderr, told.stderr
        assert "the file of prices cannot be read" in told.stderr


def test_a_run_that_goes_on_has_the_prices_of_its_beginning(tmp_path: Path) -> None:
    unpriced = read_suite(put(tmp_path))
    begun = with_prices(unpriced, tmp_path, JUNE).to_stored()
    arms = {Arm.BASELINE: make_deployment("old"), Arm.CANDIDATE: make_deployment("new")}
    options = RunOptions(str(tmp_path / "b.db"), tmp_path)
    with Store.open(options.store) as store:
        run = make_run(suite_name="priced", suite=begun, arms=arms, started_at=f"{JUNE}T23:00:00.000Z")
        store.begin_run(run, PLAN).leave_open()

    def changed() -> str:
        with pytest.raises(UsageError, match="cannot go on") as refused:
            resume_suite(unpriced, tmp_path, options, Watching())
        return str(refused.value)

    assert "the plan was" in changed()  # which is told only where the suite is what it was
    put(tmp_path, PRICES.replace("price: $4/h, until", "price: $5/h, until"))
    assert "the suite's deployments.new.price was 4.0 and is 5.0" in changed()


class Watching:
    """Shows nothing."""

    def begin(self, phase: str, steps: int) -> None:
        """A phase starts."""

    def step(self, done: str) -> None:
        """One step is done."""

    def note(self, text: str) -> None:
        """Something is worth a word."""


def of_today(price: str, more: str = "") -> str:
    return f"prices:\n  - {{deployment: old, price: $4/h}}\n  - {{deployment: new, price: {price}{more}}}\n"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite that was measured today, its statement and its store."""
    folder = tmp_path_factory.mktemp("measured")
    put(folder, of_today("$3/h"))
    done = benchgate(folder, "run", "suite.yaml", "--statement", "said.json", "--label", "today")
    assert done.returncode in (0, 10, 11, 12), done.stderr
    return folder


def test_the_run_keeps_what_it_took_and_holds_against_its_file_alone(measured: Path) -> None:
    with Store.open(str(measured / STORE), create=False) as store:
        run = store.run(store.resolve("today"))
    assert [run.arms[arm].price_usd_per_hour for arm in Arm] == [4.0, 3.0]
    assert run.suite == load_suite(measured / "suite.yaml").to_stored()
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


def said_by_suite(folder: Path, day: date) -> Answer:
    """What `verify` says of the suite, of a run that began on that day."""
    data = (folder / "said.json").read_bytes()
    said = read_statement(data, "said.json")
    began = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    known = replace(said.run, id=new_run_id(int(began.timestamp() * 1000), bytes(10)))
    found = verify(replace(said, run=known), data, Asked(suite=folder / "suite.yaml"))
    return next(line.answer for line in found.lines if line.told.startswith(("what ", f"{folder / 'suite.yaml'} is")))


def test_a_run_is_verified_by_the_price_of_its_own_day_however_late(measured: Path) -> None:
    put(measured, of_today("$3/h", ", until: 2026-06-30") + "  - {deployment: new, price: $2/h, from: 2026-07-01}\n")
    assert [said_by_suite(measured, day) for day in (JUNE, JULY)] == [Answer.HOLDS, Answer.BROKEN]


def test_the_day_of_a_run_is_told_by_its_id() -> None:
    # RFC 9562, A.6: an id of Tuesday, February 22, 2022 2:22:22.00 PM GMT-05:00.
    assert day_begun("017F22E2-79B0-7CC3-98C4-DC0C0C07398F") == date(2022, 2, 22)
    assert [day_begun(text) for text in ("919108f7-52d1-4320-9bac-f847db4148a8", "run-1")] == [None, None]
