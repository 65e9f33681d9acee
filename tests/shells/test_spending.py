"""What production has spent: of a file, and of a Prometheus whose every answer is scripted. No number is no 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from benchgate.errors import BudgetError, ExitCode, StoreError, SuiteError, UsageError
from benchgate.model.run import BudgetReading, RunStatus
from benchgate.pipeline.error_budget import budget_lines, read_spent, require_askable
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.scripted_server import CLOSE, Received, Respond, ScriptedServer, Step, json_response
from tests.shells.store_samples import DONE_AT, PLAN, make_run

NOW = "2026-11-21T06:00:00.000Z"
TOKEN = "hunter2-hunter2"
HERE = Path("unused")
QUERY = 'sum(increase(errors{job="chat", code=~"5.."}[30d])) / 5'
# As the documentation of the HTTP API shows an instant vector and a scalar.
SERIES = {"metric": {"__name__": "spent", "job": "chat"}, "value": [1435781451.781, "0.4125"]}


def suite_with(spent: str) -> Suite:
    text = f"""\
suite: spending
deployments: {{a: {{sim: {{}}}}, b: {{sim: {{}}}}}}
baseline: a
candidate: b
error_budget: {{objective: 99.5%, window: 30d, spent: {spent}}}
load: {{workload: {{input: 8 tokens, output: 4 tokens}}, sweep: [{{stage: c4, concurrency: 4, requests: 60}}]}}
gate: {{checks: [{{metric: error_rate, max: 1%}}]}}
"""
    return parse_suite(text, "s.yaml")


def asking(extra: str = "") -> Suite:
    return suite_with(f"{{prometheus: {{url: '${{env:PROM}}', query: '{QUERY}'{extra}}}}}")


def vector(*series: object, **beside: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": "vector", "result": list(series)}, **beside}


def answer(body: object, status: int = 200) -> Respond:
    return lambda received: [json_response(body, status)]


def asked(respond: Respond, suite: Suite | None = None) -> tuple[BudgetReading | None, list[Received]]:
    with ScriptedServer(respond) as server:
        return read_spent(suite or asking(), HERE, {"PROM": server.url, "TOKEN": TOKEN}, NOW), server.requests


def refusal(respond: Respond, suite: Suite | None = None) -> str:
    with pytest.raises(BudgetError) as refused:
        asked(respond, suite)
    assert refused.value.exit_code is ExitCode.INVALID
    return str(refused.value)


def test_value_of_the_one_series_is_what_is_spent() -> None:
    found, (request,) = asked(answer(vector(SERIES, infos=["PromQL info: metric might not be a counter"])))
    assert found is not None
    assert (found.spent_ratio, found.read_at) == (0.4125, NOW)
    assert found.source.startswith("Prometheus at http://127.0.0.1:")
    assert (request.method, urlsplit(request.path).path) == ("GET", "/api/v1/query")
    assert parse_qs(urlsplit(request.path).query) == {"query": [QUERY]}


def test_scalar_is_a_value_too() -> None:
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1435781451.781, "1.25e0"]}}
    found, _ = asked(answer(scalar))
    assert found is not None and found.spent_ratio == 1.25 and found.blown


def test_headers_and_token_are_sent_and_the_base_path_is_kept() -> None:
    suite = suite_with(
        "{prometheus: {url: '${env:PROM}', query: up, api_key: '${env:TOKEN}', headers: {x-scope-orgid: ml}}}"
    )
    with ScriptedServer(answer(vector(SERIES))) as server:
        environment = {"PROM": f"{server.url}/tenant/", "TOKEN": TOKEN}
        found = read_spent(suite, HERE, environment, NOW)
    (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["x-scope-orgid"] == "ml"
    assert request.path.startswith("/tenant/api/v1/query?")
    assert found is not None and "tenant" not in found.source


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (vector(), "found no series for the query; an empty answer is not 0"),
        (vector(SERIES, SERIES), "found 2 series for the query"),
        (vector({**SERIES, "value": [1.0, "NaN"]}), 'the value "NaN", which is no number'),
        (vector({**SERIES, "value": [1.0, "+Inf"]}), 'the value "+Inf", which is no number'),
        (vector({**SERIES, "value": [1.0, "1e999"]}), "which is no share of a budget"),
        (vector({**SERIES, "value": [1.0, "-0.1"]}), "the value -0.1, which is no share of a budget"),
        (vector({**SERIES, "value": [1.0, "forty"]}), 'the value "forty"'),
        (vector({**SERIES, "value": [1.0, 0.4]}), "which is no number"),
        (vector({**SERIES, "value": [1.0]}), "which is no number"),
        (vector({"metric": {}, "histogram": [1.0, {"count": "1"}]}), "which is no number"),
        (vector("0.4"), "which is no number"),
        (vector(SERIES, warnings=["a store is down"]), "may not be whole: a store is down"),
        (vector(SERIES, warnings="a store is down"), "may not be whole: a store is down"),
        ({"status": "success", "data": {"resultType": "matrix", "result": [SERIES]}}, 'answers with "matrix"'),
        ({"status": "success", "data": {"resultType": "string", "result": [1.0, "0.4"]}}, 'answers with "string"'),
        ({"status": "success", "data": {"resultType": "vector", "result": {}}}, 'answers with "vector"'),
        ({"status": "success"}, "answers with nothing; expected an instant vector"),
        ({"status": "error", "errorType": "execution", "error": "no"}, "no result of a query; is this Prometheus?"),
        ({"spent": 0.4}, "is this Prometheus?"),
        ([0.4], "is this Prometheus?"),
    ],
)
def test_answer_that_is_not_one_number_is_refused(body: object, says: str) -> None:
    told = refusal(answer(body))
    assert says in told
    assert told.startswith("error_budget.spent: Prometheus at http://127.0.0.1:")
    assert told.endswith("so nothing was measured")


def test_refusal_is_told_in_its_own_words_without_the_token() -> None:
    suite = asking(", api_key: '${env:TOKEN}'")
    bad = {"status": "error", "errorType": "bad_data", "error": f"parse error with Bearer {TOKEN}"}
    told = refusal(answer(bad, 400), suite)
    assert "answers HTTP 400: parse error with [redacted]" in told
    assert TOKEN not in told


def test_redirects_are_not_followed() -> None:
    def elsewhere(received: Received) -> Iterator[Step]:
        yield b"HTTP/1.1 302 Found\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n"

    with ScriptedServer(elsewhere) as server, pytest.raises(BudgetError, match=r"302.*redirects are not followed"):
        read_spent(asking(), HERE, {"PROM": server.url}, NOW)
    assert len(server.requests) == 1


def test_server_that_is_not_there_hangs_up_or_does_not_end_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer(vector())) as gone:
        address = gone.url
    with pytest.raises(BudgetError, match="could not be reached"):
        read_spent(asking(), HERE, {"PROM": address}, NOW)
    assert "could not be reached" in refusal(lambda received: [CLOSE])
    endless = b"HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n" + b" " * 1_500_000
    assert "larger than 1048576 bytes" in refusal(lambda received: [endless])
    monkeypatch.setattr("benchgate.pipeline.error_budget._LONGEST_S", 0.1)
    assert "no answer within 100 ms" in refusal(lambda received: [1.0, CLOSE])


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "error_budget.spent.prometheus: the environment variable PROM is not set"),
        ({"PROM": "http://user:secret@prom"}, "must not hold a user name or password"),
        ({"PROM": "prometheus"}, "is not the address of a server"),
    ],
)
def test_address_that_is_none_is_known_before_a_plan_is_made(environment: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        require_askable(asking(), HERE, environment)
    assert "secret" not in str(refused.value)
    require_askable(asking(), HERE, {"PROM": "http://prom:9090"})
    require_askable(suite_with("40%"), HERE, {})


def test_suite_may_say_it_itself_or_have_no_budget() -> None:
    assert read_spent(suite_with("112%"), HERE, {}, NOW) == BudgetReading(1.12, "the suite itself", NOW)
    plain = suite_with("1%").model_copy(update={"error_budget": None})
    assert read_spent(plain, HERE, {}, NOW) is None
    require_askable(plain, HERE, {})
    assert budget_lines(plain) == []


@pytest.mark.parametrize(
    ("text", "ratio"),
    [('{"spent": "40%"}', 0.4), ('{"spent": 1.25}', 1.25), ('{"spent": 10}', 10), ('{"spent": 0}', 0)],
)
def test_file_says_a_percentage_or_a_share(tmp_path: Path, text: str, ratio: float) -> None:
    (tmp_path / "budget.json").write_text(text)
    found = read_spent(suite_with("{file: budget.json}"), tmp_path, {}, NOW)
    assert found == BudgetReading(ratio, "the file budget.json", NOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "what is spent cannot be read"),
        (b"\xff", "what is spent cannot be read"),
        ('{\n "spent": }', "budget.json:2:11: not JSON"),
        ("[]", "found an empty list; expected"),
        ("{}", "found an empty mapping; expected"),
        ('{"spend": 0.4}', 'unknown key "spend"; did you mean `spent`?'),
        ('{"spent": 1, "spent": 0}', "is written twice"),
        ('{"spent": 0, "of": 1}', 'unknown key "of"'),
        ('{"spent": null}', "`spent` is nothing"),
        ('{"spent": true}', "`spent` is true"),
        ('{"spent": "0.4"}', "is not a percentage"),
        ('{"spent": -0.1}', "`spent` is -0.1"),
        ('{"spent": "-5%"}', '`spent`: "-5%" is below 0'),
        ('{"spent": "\u0664\u0660%"}', "is not a percentage"),  # 40 in Arabic-Indic digits
        ('{"spent": "1e12%"}', "is more than anybody can have spent"),
        ('{"spent": 40}', '`spent` is 40, and without a unit that is 40 whole budgets; write "40%"'),
        ('{"spent": NaN}', 'holds a number that is not finite; expected {"spent": "40%"}'),
        ('{"spent": 1e999}', "holds a number that is not finite"),
        (f'{{"spent": 1{"0" * 400}}}', "`spent` is 1000"),
    ],
)
def test_file_that_does_not_say_it_is_refused(tmp_path: Path, text: str | bytes | None, says: str) -> None:
    if text is not None:
        (tmp_path / "budget.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SuiteError) as refused:
        read_spent(suite_with("{file: budget.json}"), tmp_path, {}, NOW)
    assert says in str(refused.value)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "budget.json")
    with pytest.raises(SuiteError, match="it is no regular file"):
        read_spent(suite_with("{file: budget.json}"), tmp_path, {}, NOW)


def test_budget_is_told_with_its_stage_and_with_what_rules_an_alarming_burn_out() -> None:
    first, second = budget_lines(suite_with("1%"))
    budget = "error budget of 99.5 % over 30 days, held against the error_rate at c4"
    assert first.startswith(f"{budget}; spent: 1 %, from the suite")
    assert "41 requests without a failure" in second


def test_reading_is_kept_and_sealed_with_the_run(tmp_path: Path) -> None:
    read = BudgetReading(0.4125, "Prometheus at http://prom:9090", NOW)
    with Store.open(str(tmp_path / "b.db")) as store:
        writer = store.begin_run(run := make_run(), PLAN)
        writer.add(read)
        with pytest.raises(StoreError, match="read its error budget already"):
            writer.add(read)
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        assert store.evidence(run.id).budget_spent == read
        bare = store.begin_run(make_run(), PLAN)
        assert store.evidence(bare.run_id).budget_spent is None
