"""The Grafana dashboard over a Postgres store: its shape, and every query on a real history."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run
from benchgate.store.repository import Store
from tests.fakes.sized import write_sized
from tests.shells.store_samples import make_run

pytest_plugins = ["tests.shells.store_databases"]

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples/grafana/benchgate.json").read_text(encoding="utf-8"))
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
DATES = ("2026-11-01T08:00:00Z", "2026-11-01T20:00:00Z", "2026-11-03T08:00:00Z")
RANGE = ("2026-11-01T00:00:00Z", "2026-11-04T00:00:00Z")
CHOSEN: dict[str, Sequence[str]] = {
    "suite": ["smoke"], "stage": ["c4", "c8", "c16"], "arm": ["baseline", "candidate"], "statistic": ["p95"],
}  # fmt: skip


def interpolated(sql: str, chosen: dict[str, Sequence[str]], between: Sequence[str]) -> str:
    """Return the query as Grafana sends it: variables in SQL quotes, `$__timeFilter` as its range."""
    for name, values in chosen.items():
        quoted = ",".join("'{}'".format(value.replace("'", "''")) for value in values)
        sql = sql.replace(f"${{{name}:sqlstring}}", quoted)
    sql = re.sub(r"\$__timeFilter\(([^)]*)\)", rf"\1 BETWEEN '{between[0]}' AND '{between[1]}'", sql)
    assert "$" not in sql, sql
    return sql


@pytest.fixture
def history(postgres_address: str) -> Iterator[tuple[psycopg.Connection, list[Run], Store]]:
    """Three runs on two days, two of them blocked, one by another verdict first, and a run of another suite."""
    outcomes = ("PASS", "BLOCK", "BLOCK")
    check = {"id": "ttft p95 c16", "outcome": "BLOCK", "required": True, "baseline": 0.1, "candidate": 2.0, "n": 3}
    with Store.open(postgres_address) as store:
        runs = [make_run(started_at=at, suite_name="smoke", label=f"run {n}") for n, at in enumerate(DATES)]
        other = make_run(started_at=DATES[0], suite_name="it's another")
        for run, outcome in zip([*runs, other], (*outcomes, "WARN"), strict=True):
            write_sized(store, run)  # which is a PASS, at first
            store.save_metrics(
                run.id,
                [
                    *store.metrics(run.id),
                    *(MetricRow(arm, "accuracy", None, None, "gsm8k", 0.75, 200) for arm in Arm),
                ],
            )
            if outcome != "PASS":
                document = {"outcome": outcome, "checks": [check, {**check, "id": "error_rate c4", "outcome": "PASS"}]}
                store.save_verdict(run.id, document, decided_at="2026-11-20T14:00:00Z")
        with psycopg.connect(postgres_address) as connection:
            connection.read_only = True
            yield connection, runs, store


def rows_of(
    connection: psycopg.Connection, panel: dict[str, Any], between: Sequence[str] = RANGE, **chosen: Sequence[str]
) -> list[dict[str, Any]]:
    (target,) = panel["targets"]
    sql = interpolated(target["rawSql"], CHOSEN | chosen, between)
    cursor = connection.execute(sql.encode())
    names = [column.name for column in cursor.description or ()]
    if target["format"] == "time_series":
        assert names == ["time", "metric", "value"]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def known_to_grafana(document: dict[str, Any]) -> Any:
    """Return a dashboard after a way through Grafana's own types, which drop what they do not know."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def missing(document: Any, known: Any, path: str = "") -> Iterator[str]:
    """Yield the places of a document whose value is not in `known`, which may have more keys."""
    if isinstance(document, dict) and isinstance(known, dict):
        for key, value in document.items():
            yield from missing(value, known.get(key), f"{path}.{key}")
    elif isinstance(document, list) and isinstance(known, list) and len(document) == len(known):
        for place, pair in enumerate(zip(document, known, strict=True)):
            yield from missing(*pair, f"{path}[{place}]")
    elif document != known:
        yield path


def test_every_key_is_one_of_grafanas_own_types() -> None:
    assert list(missing(DASHBOARD, known_to_grafana(DASHBOARD))) == []
    misspelt = json.loads(json.dumps(DASHBOARD).replace('"gridPos"', '"gridPosition"', 1))
    assert list(missing(misspelt, known_to_grafana(misspelt))) == [".panels[0].gridPosition"]


def test_the_dashboard_can_be_imported_and_asks_for_its_data_source() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["title"] and DASHBOARD["uid"] and "id" not in DASHBOARD
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert set(VARIABLES) == {"datasource", *CHOSEN}
    source = {"type": VARIABLES["datasource"]["query"], "uid": "${datasource}"}
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"] == source
        assert [target["datasource"] for target in panel["targets"]] == [source]
    taken = {
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert len(taken) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in DASHBOARD["panels"])
    assert all(x < 24 for x, _ in taken)


FIGURES = {
    "Goodput": ("goodput", None),
    "Time to first token": ("ttft", "p95"),
    "Time per output token": ("tpot", "p95"),
    "Accuracy": ("accuracy", None),
    "Dollars per million output tokens": ("usd_per_million_output_tokens", None),
}


def test_every_panel_shows_what_the_store_keeps(history: tuple[psycopg.Connection, list[Run], Store]) -> None:
    connection, runs, store = history
    for title, (name, statistic) in FIGURES.items():
        kept = sorted(
            (datetime.fromisoformat(run.started_at), f"smoke {row.arm} {row.stage or row.task}", row.value)
            for run in runs
            for row in store.metrics(run.id)
            if row.name == name and row.statistic == statistic
        )
        assert kept, title
        found = rows_of(connection, PANELS[title])
        assert sorted((row["time"], row["metric"], row["value"]) for row in found) == kept, title
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (1, 3)]
    verdicts = rows_of(connection, PANELS["Verdicts by day"])
    assert sorted((row["time"], row["metric"], row["value"]) for row in verdicts) == [
        (days[0], "BLOCK", 1), (days[0], "PASS", 1), (days[1], "BLOCK", 1),
    ]  # fmt: skip
    failing = rows_of(connection, PANELS["Checks that did not pass"])
    assert [(row["run"], row["check"], row["candidate"]) for row in failing] == [
        ("run 2", "ttft p95 c16", 2.0), ("run 1", "ttft p95 c16", 2.0),
    ]  # fmt: skip
    assert set(FIGURES) | {"Verdicts by day", "Checks that did not pass"} == set(PANELS)


def test_time_and_variables_narrow_every_panel(history: tuple[psycopg.Connection, list[Run], Store]) -> None:
    connection, _, _ = history
    for title, panel in PANELS.items():
        everything = rows_of(connection, panel)
        assert rows_of(connection, panel, ("2025-01-01T00:00:00Z", "2025-02-01T00:00:00Z")) == [], title
        assert rows_of(connection, panel, suite=["nobody"]) == [], title
        assert rows_of(connection, panel, suite=["smoke", "it's another"]) != everything, title
        for name, one in (("stage", "c4"), ("arm", "candidate"), ("statistic", "p50")):
            if f"${{{name}:sqlstring}}" in panel["targets"][0]["rawSql"]:
                assert rows_of(connection, panel, **{name: [one]}) != everything, (title, name)


def test_the_lists_offer_what_the_store_has(history: tuple[psycopg.Connection, list[Run], Store]) -> None:
    connection, _, _ = history
    for name, values in (("suite", ["it's another", "smoke"]), ("stage", ["c16", "c4", "c8"]), ("arm", CHOSEN["arm"])):
        sql = interpolated(VARIABLES[name]["query"]["rawSql"], {"suite": ["smoke"]}, RANGE)
        assert [value for (value,) in connection.execute(sql.encode())] == values
