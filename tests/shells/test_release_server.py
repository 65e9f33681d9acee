"""What a verdict server answers: a yes for one run that stands, and a no for everything else that can be asked."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from benchgate.errors import StoreError, UsageError
from benchgate.model.history import PromotionAction, PromotionGrounds
from benchgate.model.run import RunStatus
from benchgate.pipeline.judge import decide_stored
from benchgate.release.server import RunNotFound, ServerSettings, VerdictServer, answer, parse_query
from benchgate.store.repository import Store
from tests.fakes import quick_command
from tests.fakes.measured import SuiteText
from tests.fakes.promotable import BLOCKED, CHECK, begun, judged, write_record

DAY_S = 86_400.0
COMMIT = "5f" * 20
SUITE = SuiteText([CHECK]).suite()
NOW = "2026-01-04T00:00:00.000Z"  # 23 hours after a run of 2026-01-03 was over
NEWEST = {"suite": SUITE.suite, "candidate": SUITE.candidate}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'runs.sqlite'}") as opened:
        yield opened


def ask(store: Store, now: str = NOW, **said: object) -> tuple[bool, str]:
    found = answer(store, parse_query(said, max_age_s=7 * DAY_S, strict=False, require_pinned=False), now)
    assert found.document["promotes"] is found.promotes
    return found.promotes, found.reason


def test_the_newest_run_of_a_candidate_answers_whatever_an_older_one_said(store: Store) -> None:
    first, _ = judged(store, day="2026-01-01")
    promotes, why = ask(store, **NEWEST)
    assert promotes and first in why
    unjudged = begun(store, day="2026-01-02")
    assert ask(store, **NEWEST) == (False, f"run {unjudged} of suite {SUITE.suite}: no verdict; it was never judged")
    decide_stored(store, unjudged)
    assert ask(store, **NEWEST)[0]
    lenient = SuiteText([{"metric": "ttft", "max": "10s"}, {"metric": "error_rate", "max": "10%"}]).suite()
    blocked, _ = judged(store, BLOCKED, day="2026-01-03")
    decide_stored(store, blocked, policy=lenient)  # a trial of another policy is no verdict of the run
    promotes, why = ask(store, **NEWEST)
    assert not promotes and f"run {blocked} of suite {SUITE.suite}: BLOCK; " in why
    assert ask(store, run=unjudged)[0]  # by its own name it still says what it said
    with pytest.raises(RunNotFound, match="none that judges 'other'"):
        ask(store, suite=SUITE.suite, candidate="other")
    with pytest.raises(RunNotFound, match="no run is called"):
        ask(store, run="nothing")
    with pytest.raises(RunNotFound, match="is no whole id"):
        ask(store, run=first[:20])


def test_a_run_that_is_old_short_calibrating_or_of_a_time_to_come_says_no(store: Store) -> None:
    good, _ = judged(store, day="2026-01-03")
    assert ask(store, run=good, max_age="24h")[0]
    assert "it ended 23.0 hours ago, more than 22.0 hours" in ask(store, run=good, max_age="22h")[1]
    assert ask(store, "2026-01-11T00:00:00.000Z", run=good, max_age="90d")[0] is False  # a caller may not ask for more
    assert "in the future" in ask(store, "2026-01-03T00:50:00.000Z", run=good)[1]
    assert "end time is unknown" in ask(store, "today", run=good)[1]
    for run_id in (begun(store, status=RunStatus.PARTIAL), begun(store, calibration=True)):
        decide_stored(store, run_id)
        promotes, why = ask(store, run=run_id)
        assert not promotes and ("only a complete run" in why or "judges no candidate" in why)


def test_weights_must_be_those_that_are_asked_for_and_none_that_may_move(store: Store) -> None:
    pinned, moving = (
        begun(store, day="2026-01-02", candidate={"settings": {"revision": ref}}) for ref in (COMMIT, "main")
    )
    for run_id in (pinned, moving):
        decide_stored(store, run_id)
    assert ask(store, run=pinned)[0] and ask(store, run=pinned, revision=COMMIT)[0]
    assert "not revision a3a3" in ask(store, run=pinned, revision="a3a3")[1]
    assert "may move" in ask(store, run=moving)[1]
    with_adapter = begun(store, candidate={"settings": {"revision": COMMIT}}, adapter="org/lora@main")
    decide_stored(store, with_adapter)
    assert "its adapter org/lora@main is at no whole commit" in ask(store, run=with_adapter)[1]


def test_a_promotion_is_a_yes_where_one_is_asked_for_and_a_withdrawn_one_is_a_no(store: Store, tmp_path: Path) -> None:
    address, (good, _) = str(tmp_path / "runs.sqlite"), judged(store, day="2026-01-03")
    assert ask(store, run=good, promoted="true")[0] is False
    write_record(address, good, "2026-01-03T03:00:00.000Z")
    assert ask(store, run=good, promoted="true")[0]
    blocked, outcome = judged(store, BLOCKED, day="2026-01-03")
    grounds = PromotionGrounds(outcome, "v", "e", "s", "p", "m", "r")
    write_record(
        address, blocked, "2026-01-03T03:30:00.000Z", deed=PromotionAction.OVERRIDDEN, grounds=grounds, reason="fire"
    )
    assert ask(store, run=blocked, promoted="true")[0] is False  # somebody's word against the verdict is no yes of it
    at = "2026-01-03T04:00:00.000Z"
    write_record(address, good, at, deed=PromotionAction.WITHDRAWN, grounds=None, reason="it leaks")
    assert ask(store, run=good) == (False, f"run {good} of suite {SUITE.suite}: PASS; its promotion was withdrawn")


def test_a_forged_verdict_that_is_not_whole_and_a_warning_where_none_may_be_say_no(store: Store) -> None:
    run_id = begun(store, day="2026-01-02")
    document = decide_stored(store, run_id, keep=False).document
    store.save_verdict(run_id, {**document, "promotes": False}, decided_at="2026-01-02T02:00:00.000Z")
    assert ask(store, run=run_id)[0] is False
    store.save_verdict(run_id, {**document, "outcome": "WARN"}, decided_at="2026-01-02T02:01:00.000Z")
    assert ask(store, run=run_id)[0]
    promotes, reason = ask(store, run=run_id, strict="true")
    assert not promotes and reason.startswith(
        f"run {run_id} of suite {SUITE.suite}: WARN; strict treats WARN like BLOCK"
    )
    served_strictly = parse_query(
        {"run": run_id, "strict": "false"}, max_age_s=DAY_S, strict=True, require_pinned=False
    )
    assert served_strictly.strict  # a caller may not ask for less


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "name either a `run`"),
        ({"run": "a", "suite": "b", "candidate": "c"}, "name either a `run`"),
        ({"suite": "b"}, "name the `candidate` beside it"),
        ({"run": "a", "candidate": "c"}, "name the `candidate` beside it"),
        ({"run": "@latest"}, "means another run every day"),
        ({"run": "a", "maxage": "1h"}, "did you mean max_age"),
        ({"run": "a", "max_age": "soon"}, "max_age: "),
        ({"run": "a", "promoted": "yes"}, "promoted: expected true or false"),
        ({"run": ""}, "run: expected a text"),
        ({"run": 7}, "run: expected a text"),
        ({"run": "a\x1b"}, "run: expected a text"),
        ({"run": "x" * 301}, "run: expected a text"),
    ],
)
def test_a_question_that_is_not_understood_is_no_parse_query(said: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_query(said, max_age_s=DAY_S, strict=False, require_pinned=False)


@contextmanager
def serving(address: str, *, require_pinned: bool = False) -> Iterator[tuple[str, list[str]]]:
    told: list[str] = []
    settings = ServerSettings(
        address, max_age_s=100_000 * DAY_S, strict=False, require_pinned=require_pinned, log=told.append
    )
    with VerdictServer("127.0.0.1", 0, settings) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server.url, told
        finally:
            server.shutdown()


def connected(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])))


def webhook(**metadata: str) -> dict[str, object]:
    """What Flagger sends."""
    return {"name": "chat", "namespace": "prod", "phase": "Progressing", "checksum": "c0", "metadata": metadata}


def test_flagger_goes_on_for_a_yes_alone_and_is_told_why_not(tmp_path: Path) -> None:
    address = str(tmp_path / "runs.sqlite")
    with Store.open(address) as store:
        good, bad = judged(store)[0], judged(store, BLOCKED)[0]
    with serving(address) as (url, told), httpx2.Client(base_url=url) as client:

        def status(document: object, path: str = "/flagger") -> tuple[int, str]:
            answered = client.post(path, json=document)
            return answered.status_code, answered.text

        code, why = status(webhook(run=good))
        assert code == 200 and why.startswith(f"run {good} of suite {SUITE.suite}: PASS; ")
        code, why = status(webhook(run=bad))
        assert code == 403 and "BLOCK" in why
        assert status(webhook(run="nothing"))[0] == 404
        misread: list[object] = [{}, [], {"metadata": None}, {"metadata": {"run": [good]}}]
        for wrong in [*misread, webhook(), webhook(run=good, other="x")]:
            assert status(wrong)[0] == 400, wrong
        twice = '{"metadata": {"run": "' + bad + '", "run": "' + good + '"}}'
        assert client.post("/flagger", content=twice).status_code == 400
        assert client.post("/flagger", content=b"[" * 60_000).status_code == 400
        assert client.post("/flagger", content=b" " * 70_000).status_code == 400
        assert client.post("/flagger", content=iter([b"{}"])).status_code == 400  # no length
        assert status(webhook(run=good), "/other")[0] == 404
        assert client.put("/flagger", json=webhook(run=good)).status_code == 501
        assert client.get("/healthz").text == "ok\n"
    assert told[0].startswith("POST /flagger: 200 run ") and all("\n" not in line for line in told)


def test_server_that_requires_pinned_weights_refuses_a_run_that_passed_without_a_revision(tmp_path: Path) -> None:
    address = str(tmp_path / "runs.sqlite")
    with Store.open(address) as store:
        unknown, pinned = begun(store), begun(store, candidate={"settings": {"revision": COMMIT}})
        for run_id in (unknown, pinned):
            decide_stored(store, run_id)
    for require_pinned in (False, True):
        with serving(address, require_pinned=require_pinned) as (url, _), httpx2.Client(base_url=url) as client:
            found = client.get(f"/verdict/{unknown}").json()
            assert found["promotes"] is not require_pinned
            assert ("may differ from those measured" in found["reason"]) is require_pinned
            assert client.get(f"/verdict/{pinned}").json()["promotes"] is True


def test_options_of_the_command_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ServerSettings] = []

    def refuse(host: str, port: int, settings: ServerSettings) -> None:
        given.append(settings)
        raise OSError("address in use")

    monkeypatch.setattr("benchgate.release.server.VerdictServer", refuse)
    address = str(tmp_path / "runs.sqlite")
    with Store.open(address):
        pass
    for options, expected in (
        ([], (False, False)),
        (["--strict"], (True, False)),
        (["--require-pinned"], (False, True)),
    ):
        with pytest.raises(UsageError, match="address in use"):
            quick_command.told("verdict-server", "--store", address, *options)
        assert (given[-1].strict, given[-1].require_pinned) == expected


def test_argo_reads_a_truth_and_a_reason_as_json(tmp_path: Path) -> None:
    address = str(tmp_path / "runs.sqlite")
    with Store.open(address) as store:
        good, bad = judged(store)[0], judged(store, BLOCKED)[0]
        labelled = begun(store, label="chat 2/a")
    with serving(address) as (url, _), httpx2.Client(base_url=url) as client:
        for run, promotes, verdict in ((good, True, "PASS"), (bad, False, "BLOCK"), ("chat 2/a", False, None)):
            said = client.get(f"/verdict/{quote(run, safe='')}")
            assert said.status_code == 200
            found = said.json()
            assert (found["promotes"], found["verdict"], bool(found["reason"])) == (promotes, verdict, True)
            assert found["run"] in (run, labelled)
        assert client.get(f"/verdict/{good}?max_age=1h").json()["promotes"] is False
        newest = client.get("/verdict", params=NEWEST).json()
        assert newest["run"] in (good, bad, labelled)
        for wrong in ("", "?run=a&run=b", "?max_age", f"/{good}?run={good}", "/%ff", f"/{good}?strict=maybe"):
            said = client.get(f"/verdict{wrong}")
            assert said.status_code == 400 and said.json()["promotes"] is False, wrong


@pytest.mark.parametrize("content", [None, b"", b"no database at all, and long enough to be looked at" * 40])
def test_a_store_that_cannot_be_read_is_no_yes(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "runs.sqlite"
    if content is not None:
        path.write_bytes(content)
    with serving(str(path)) as (url, _), httpx2.Client(base_url=url) as client:
        assert client.post("/flagger", json=webhook(run="a")).status_code == 503
        assert client.get("/verdict/a").json()["promotes"] is False
        assert client.get("/healthz").status_code == 503
    assert path.exists() == (content is not None)  # nothing is made by asking


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET http://[/verdict HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"400"),
        (b"POST /flagger HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}", b"400"),
    ],
)
def test_a_request_that_is_none_is_answered_and_is_no_defect(tmp_path: Path, asked: bytes, status: bytes) -> None:
    with serving(str(tmp_path / "none.sqlite")) as (url, _), connected(url) as client:
        client.sendall(asked)
        assert client.makefile("rb").readline().split()[1] == status


def test_whoever_sends_a_byte_now_and_then_is_left_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchgate.release.server._REQUEST_TIMEOUT_S", 0.1)
    with serving(str(tmp_path / "none.sqlite")) as (url, _), connected(url) as client:
        client.settimeout(0.02)
        sent = 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while sent < 500:
                client.sendall(b"G")
                sent += 1
                with suppress(TimeoutError):
                    client.recv(1)
                    time.sleep(0.02)


@pytest.mark.slow
def test_slow_clients_keep_nobody_out(tmp_path: Path) -> None:
    with serving(str(tmp_path / "none.sqlite")) as (url, _), ExitStack() as held:
        slow = [held.enter_context(connected(url)) for _ in range(40)]
        for one in slow:
            with suppress(OSError):  # the oldest are closed already
                one.sendall(b"POST /flagger HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        for _ in range(20):
            assert httpx2.get(f"{url}/healthz", timeout=30).status_code == 503
        for one in slow[:24]:
            with suppress(ConnectionError):
                assert one.recv(1) == b""


def test_connection_over_the_limit_is_closed_unanswered_while_all_others_wait_for_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, answers = threading.Semaphore(0), threading.Event()

    def opened(address: str) -> AbstractContextManager[Store]:
        entered.release()
        answers.wait(30)
        raise StoreError("slow disk")

    monkeypatch.setattr("benchgate.release.server.opened", opened)
    with serving(str(tmp_path / "none.sqlite")) as (url, _), ExitStack() as held:
        clients = [held.enter_context(connected(url)) for _ in range(16)]
        for one in clients:
            one.sendall(b"GET /verdict/a HTTP/1.1\r\n\r\n")
        for _ in clients:
            assert entered.acquire(timeout=30)
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(f"{url}/healthz", timeout=30)
        answers.set()
        assert {one.makefile("rb").readline().split()[1] for one in clients} == {b"503"}
