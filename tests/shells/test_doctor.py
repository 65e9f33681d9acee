"""`doctor`: what it says of this machine, and the curve of the load generator out of what client and server saw."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.doctor import client, machine
from benchgate.doctor.client import client_step, measure_client
from benchgate.doctor.machine import State, Symptom, examine
from benchgate.doctor.suite import examine_budget
from benchgate.load.results import StageResult
from benchgate.model.client import ClientProfile, ClientStep
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.model.request import text_request
from benchgate.model.run import ClientUse
from benchgate.pipeline.environment import client_machine, known_client_at, utc_now
from benchgate.pipeline.progress import Progress
from benchgate.plan.model import PlannedRequest, PlannedStage
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.fakes.quick_command import told
from tests.fakes.scripted_server import ScriptedServer, json_response

MS = 1_000_000
ABLE = ClientUse(0.2, 4.0, 1, None, 0.0001, 0.001, 0.002, "canary")
TRUTH: dict[str, Any] = {"e2e_s": {"mean": 0.100}, "ttft_s": {"p99": 0.050}, "schedule_lag_s": {"p99": 0.0004}}


def stage(
    *, concurrency: int | None, rate_rps: float | None = None, requests: int = 8, tokens: int = 10
) -> PlannedStage:
    gap_ns = 0 if rate_rps is None else int(1e9 / rate_rps)
    ask = text_request("chat", "hello", tokens)
    planned = (PlannedRequest(i, None if rate_rps is None else i * gap_ns, ask, i) for i in range(requests))
    return PlannedStage.of("made up", concurrency, rate_rps, tuple(planned))


def result(
    stage: PlannedStage, *, e2e_ms: int = 100, first_ms: int = 52, failed: int = 0, use: ClientUse = ABLE
) -> StageResult:
    records = []
    for request in stage.requests:
        due = request.offset_ns or 0
        first, over, fails = due + first_ms * MS, due + e2e_ms * MS, request.index < failed
        records.append(
            RequestRecord(
                index=request.index,
                intended_ns=due,
                sent_ns=due,
                chunk_ns=() if fails else (first, over),
                end_ns=None if fails else over,
                input_tokens=1,
                output_tokens=None if fails else request.ask.output_tokens,
                token_source=TokenSource.USAGE,
                finish_reason=None if fails else "length",
                http_status=500 if fails else 200,
                error=ErrorClass.HTTP_5XX if fails else None,
                error_detail="out of memory" if fails else None,
            )
        )
    return StageResult.of(RequestColumns.pack(records), 4.0, use)


def test_a_closed_loop_is_offered_what_the_servers_own_answers_allow() -> None:
    planned = stage(concurrency=4)
    step = client_step(planned, result(planned, e2e_ms=101), TRUTH)
    assert step.offered_rps == pytest.approx(4 / 0.100)
    assert step.offered_tokens_per_s == pytest.approx(400)
    assert step.delivered_ratio == pytest.approx(100 / 101)
    assert step.cpu_us_per_token == pytest.approx(0.2 / 80 * 1e6)
    assert step.ttft_error_p99_s == pytest.approx(0.002)
    assert step.sound


def test_an_open_loop_is_offered_its_rate() -> None:
    planned = stage(concurrency=None, rate_rps=100.0, tokens=1)
    step = client_step(planned, result(planned), TRUTH)
    assert (step.streams, step.offered_rps, step.offered_tokens_per_s) == (None, 100.0, 100.0)
    assert step.delivered_ratio == pytest.approx(1.0)


def test_a_busy_client_and_failed_requests_make_a_step_client_bound() -> None:
    planned = stage(concurrency=4)
    busy = client_step(planned, result(planned, use=replace(ABLE, cpu_s=3.9)), TRUTH)
    assert "97.5 % of a core" in busy.client_bound[0]
    failing = client_step(planned, result(planned, failed=2), TRUTH)
    assert failing.client_bound == ("2 of 8 requests failed: out of memory",)
    assert not busy.sound
    assert not failing.sound


def test_a_load_not_delivered_and_a_late_ttft_make_a_step_client_bound() -> None:
    planned = stage(concurrency=4)
    slow = client_step(planned, result(planned, e2e_ms=125), TRUTH)
    assert slow.client_bound == ("80.0 % of the load was delivered (least 99.0 %)",)
    behind = client_step(planned, result(planned, first_ms=61), TRUTH)
    assert behind.client_bound == ("the p99 of TTFT is 11.0 ms above the server's own (bound 10.0 ms)",)
    late = client_step(planned, result(planned, e2e_ms=125, first_ms=61), {**TRUTH, "schedule_lag_s": {"p99": 0.0051}})
    assert late.client_bound == ()
    assert late.server_late is not None


def test_a_late_practice_server_says_nothing_of_the_client() -> None:
    planned = stage(concurrency=4)
    step = client_step(planned, result(planned), {**TRUTH, "schedule_lag_s": {"p99": 0.0051}})
    assert step.client_bound == ()
    assert step.server_late is not None and "5.10 ms" in step.server_late
    assert not step.sound


def test_a_real_load_generator_is_measured_against_a_real_practice_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_STREAM_TOKENS", 4)
    monkeypatch.setattr(client, "_RATE_S", 0.2)
    profile = measure_client(Progress(), streams=(3,), rates_rps=(50,))
    closed, opened = profile.steps
    assert (closed.streams, opened.streams, opened.offered_rps) == (3, None, 50.0)
    assert not any("failed" in reason for step in profile.steps for reason in step.client_bound)
    assert closed.delivered_ratio is not None and closed.delivered_ratio > 0
    assert profile.machine == client_machine()
    assert ClientProfile.from_json(profile.to_json()) == profile


@pytest.mark.slow
def test_a_series_ends_with_the_first_step_that_is_twice_unsound(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ClientStep(3, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, ())
    bound = replace(sound, client_bound=("too busy",))
    answers = iter([bound, sound, bound, bound])  # a hiccup, then the end
    monkeypatch.setattr(client, "_measured", lambda sim, target, stage: next(answers))
    assert measure_client(Progress(), streams=(3, 4, 5), rates_rps=()).steps == (sound, bound)


def named(symptoms: list[Symptom]) -> dict[str, Symptom]:
    return {symptom.name: symptom for symptom in symptoms}


def test_everything_that_is_not_well_says_what_to_do(tmp_path: Path) -> None:
    found = examine(str(tmp_path / "none.db"))
    assert all((symptom.state is State.OK) == (symptom.remedy is None) for symptom in found)
    assert named(found)["python"].state is State.OK
    assert "the first run makes it" in named(found)["store"].found
    assert "doctor --client" in (named(found)["load generator"].remedy or "")
    assert not (tmp_path / "none.db").exists()


def test_a_store_that_cannot_be_opened_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("this is no database, and long enough to be looked at as one" * 50)
    assert named(examine(str(tmp_path / "other.db")))["store"].state is State.FAIL


def test_a_curve_of_this_machine_is_found_and_one_of_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "benchgate.db")
    assert known_client_at(address) is None
    steps = (
        ClientStep(50, 25.0, 2500.0, 1.0, 9.0, 0.001, 0.0, ()),
        ClientStep(None, 200.0, 200.0, 1.0, 9.0, 0.001, 0.0, ()),
    )
    elsewhere = ClientProfile(utc_now(), {**client_machine(), "cpu": "another"}, steps)
    with Store.open(address) as store:
        store.save_client_profile(elsewhere)
    assert known_client_at(address) is None
    assert named(examine(address))["load generator"].state is State.WARN
    with Store.open(address) as store:
        store.save_client_profile(replace(elsewhere, machine=client_machine()))
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelled in (address, f"sqlite:///{address}", "~/benchgate.db"):
        assert known_client_at(spelled) == replace(elsewhere, machine=client_machine())
    assert "2,500 tokens/s, 50 streams and 200 requests/s per worker" in named(examine(address))["load generator"].found


@pytest.mark.parametrize(("sound", "missing"), [(50, "requests"), (None, "streams")])
def test_a_curve_without_a_sound_load_of_one_kind_is_warned_of(tmp_path: Path, sound: int | None, missing: str) -> None:
    address = str(tmp_path / "benchgate.db")
    with Store.open(address) as store:
        steps = (ClientStep(sound, 25.0, 2500.0, 1.0, 9.0, 0.001, 0.0, ()),)
        store.save_client_profile(ClientProfile(utc_now(), client_machine(), steps))
    found = named(examine(address))["load generator"]
    assert found.state is State.WARN
    assert missing in found.found


@pytest.mark.parametrize(
    ("bound", "late", "found"),
    [
        (("too busy",), None, "the load generator was the bottleneck at the smallest load"),
        ((), "it was late", "the practice server was late itself at the smallest load"),
        (("too busy",), "it was late", "the practice server was late itself at the smallest load"),
    ],
)
def test_client_without_a_sound_load_names_who_was_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: tuple[str, ...], late: str | None, found: str
) -> None:
    sound = ClientStep(50, 25.0, 2500.0, 1.0, 9.0, 0.001, 0.0, ())
    steps = (
        sound,
        replace(sound, streams=100, client_bound=("beyond it",)),
        ClientStep(None, 200.0, 200.0, 1.0, 9.0, 0.001, 0.0, bound, late),
    )
    profile = ClientProfile(utc_now(), client_machine(), steps)
    monkeypatch.setattr("benchgate.doctor.client.measure_client", lambda progress: profile)
    shown = told("doctor", "--client", "--store", str(tmp_path / "benchgate.db")).stdout
    assert found in " ".join(shown.split())


def test_looking_for_a_curve_leaves_an_older_store_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    Store.open(str(path)).close()
    with closing(sqlite3.connect(path)) as older:
        older.execute("DROP TABLE client_profile")
        older.execute("UPDATE benchgate_schema SET version_num = '0001'")
        older.commit()
    names, before = sorted(tmp_path.iterdir()), path.read_bytes()
    assert known_client_at(str(path)) is None
    found = named(examine(str(path)))
    assert (found["store"].state, found["load generator"].state) == (State.WARN, State.WARN)
    assert "benchgate store upgrade" in (found["store"].remedy or "")
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == names


def test_a_store_that_cannot_be_read_is_one_without_a_curve(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("this is no database, and long enough to be looked at as one" * 50)
    assert known_client_at(str(tmp_path / "other.db")) is None


@pytest.mark.parametrize(
    ("path", "content", "name", "state"),
    [
        ("scaling_governor", "powersave", "cpu governor", State.WARN),
        ("scaling_governor", "performance", "cpu governor", State.OK),
        ("current_clocksource", "hpet", "clock", State.WARN),
        ("current_clocksource", "tsc", "clock", State.OK),
    ],
)
def test_what_the_system_shows_of_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, content: str, name: str, state: State
) -> None:
    monkeypatch.setattr(machine, "_read_line", lambda place: content if place.endswith(path) else None)
    assert named(examine(str(tmp_path / "none.db")))[name].state is state


def test_it_says_by_what_streams_are_read_and_a_curve_of_one_is_none_of_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "library", lambda: object())
    assert named(examine(str(tmp_path / "none.db")))["reads"].state is State.OK
    monkeypatch.setattr(machine, "library", lambda: None)
    found = named(examine(str(tmp_path / "none.db")))["reads"]
    assert (found.state, "Python" in found.found) == (State.WARN, True)
    machines = []
    for library in (object(), None):
        monkeypatch.setattr("benchgate.load.http.library.library", lambda library=library: library)
        machines.append(ClientProfile(utc_now(), client_machine(), ()).fingerprint)
    assert len(set(machines)) == 2


def test_it_says_that_compiled_code_was_left_aside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENCHGATE_NATIVE", "0")
    found = named(examine(str(tmp_path / "none.db")))["reads"]
    assert (found.state, found.remedy) == (State.WARN, "unset BENCHGATE_NATIVE")


def test_a_busy_machine_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 4)
    for load, state in ((2.0, State.OK), (2.1, State.WARN)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, load, load))
        assert named(examine(str(tmp_path / "none.db")))["cores"].state is state
    monkeypatch.setattr(machine, "usable_cpus", lambda: 1)
    assert "use two" in (named(examine(str(tmp_path / "none.db")))["cores"].remedy or "")


@pytest.mark.parametrize("extra", ["eval", "demo", "cluster", "grpc", "postgres"])
def test_every_extra_that_is_not_installed_is_named_with_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (symptom,) = (one for one in examine(str(tmp_path / "none.db")) if f"[{extra}]" in one.found)
    assert symptom.state is State.OK  # nobody configured it
    assert symptom.found.startswith("not installed, needed for ")


BUDGETED = """\
suite: doctored
deployments: {{a: {{sim: {{}}}}, b: {{sim: {{}}}}}}
baseline: a
candidate: b
error_budget: {{objective: 99%, window: 30d, spent: {spent}}}
load: {{workload: {{input: 8 tokens, output: 4 tokens}}, sweep: [{{stage: c4, concurrency: 4, requests: 60}}]}}
gate: {{checks: [{{metric: error_rate, max: 1%}}]}}
"""


def budget_symptom(folder: Path, spent: str, environment: dict[str, str]) -> Symptom:
    return examine_budget(parse_suite(BUDGETED.format(spent=spent), "s.yaml"), folder, environment)


@pytest.mark.parametrize(
    ("value", "state", "says"),
    [
        ("0.4", State.OK, "40 % of the error budget of 99 % over 30 days is spent, by Prometheus at http://127.0.0.1:"),
        ("1.2", State.WARN, "120 % of the error budget"),
        ("NaN", State.FAIL, 'answers with the value "NaN", which is no number'),
    ],
)
def test_whoever_knows_what_is_spent_is_asked_as_a_run_would(
    tmp_path: Path, value: str, state: State, says: str
) -> None:
    found = {"status": "success", "data": {"resultType": "scalar", "result": [1.0, value]}}
    with ScriptedServer(lambda received: [json_response(found)]) as server:
        symptom = budget_symptom(tmp_path, "{prometheus: {url: '${env:PROM}', query: up}}", {"PROM": server.url})
    assert (symptom.name, symptom.state) == ("error budget", state)
    assert says in symptom.found
    assert (symptom.remedy is None) is (state is State.OK)
    assert len(server.requests) == 1


def test_file_or_variable_that_is_not_there_fails(tmp_path: Path) -> None:
    for spent, says in (
        ("{file: gone.json}", "gone.json: what is spent cannot be read"),
        ("{prometheus: {url: '${env:PROM}', query: up}}", "the environment variable PROM is not set"),
    ):
        symptom = budget_symptom(tmp_path, spent, {})
        assert symptom.state is State.FAIL and says in symptom.found
        assert symptom.remedy is not None and "until then `run` ends with 2" in symptom.remedy
    plain = parse_suite(BUDGETED.format(spent="1%").replace("error_budget", "# error_budget"), "s.yaml")
    assert examine_budget(plain, tmp_path, {}) == Symptom("error budget", State.OK, "doctored has none")
