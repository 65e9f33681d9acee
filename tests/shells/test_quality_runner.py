"""Real lm-eval processes against scripted servers. Each run costs its start-up, so tests share runs."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.quality.runner import evaluate
from benchgate.targets.address import Route
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY, serving
from tests.fakes.proxy import Proxy
from tests.fakes.scripted_server import ABORT, Received, ScriptedServer, Step, answering, json_response
from tests.shells.quality_helpers import (
    API_KEY,
    DATES,
    ITALIAN,
    PARTICULAR,
    TASKS,
    TENANT_KEY,
    Observed,
    child_pids,
    collect,
    is_running,
    items,
    right_answer,
    settings,
    subject,
    target,
)

pytest_plugins = ["tests.shells.quality_surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


# --- one run of two healthy servers, of which the candidate answers badly --------------------------------------------


class HealthyRun:
    """Both tasks on both arms. Neither server answers its first request before the other has got one.

    The baseline stands behind a proxy, over TLS, and asks for a certificate; the candidate listens on a Unix socket.
    """

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.progress: list[tuple[Arm, str, int]] = []
        self.command_lines: list[bytes] = []
        with (
            tempfile.TemporaryDirectory() as short,  # the path of a socket has about 100 bytes
            Proxy() as self.proxy,
            ScriptedServer(self.slow_and_right, tls=serving(asks_for_ours=True)) as self.baseline,
            ScriptedServer(self.often_wrong, socket_path=Path(short) / "s") as self.candidate,
        ):
            baseline = replace(
                target(Arm.BASELINE, self.baseline.url, API_KEY),
                dialect=PARTICULAR,
                open_headers={"x-team": "ml"},
                secret_headers={"x-tenant-key": TENANT_KEY},
                route=Route(CA, CLIENT_CERT, CLIENT_KEY, self.proxy.url),
            )
            targets = {Arm.BASELINE: baseline, Arm.CANDIDATE: target(Arm.CANDIDATE, self.candidate.url)}
            self.seen = collect(evaluate(targets, TASKS, settings(), work_dir, on_progress=self.note))

    def note(self, arm: Arm, task: str, answered: int) -> None:
        self.progress.append((arm, task, answered))
        if not self.command_lines:
            self.command_lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in child_pids(self.work_dir)]

    def slow_and_right(self, received: Received) -> Iterator[Step]:
        yield from self.wait_for(lambda: self.candidate)
        yield 0.2 if subject(received) == "one" else 0.0  # the first row is answered last
        yield from answering(right_answer)(received)

    def often_wrong(self, received: Received) -> Iterator[Step]:
        yield from self.wait_for(lambda: self.baseline)
        about = subject(received)
        if about == "two":
            yield json_response({"choices": [{"message": {"content": None}, "finish_reason": "length"}]})
        elif about in ("three", "four"):
            yield from answering(lambda r: "" if about == "three" else "otto")(received)
        else:
            yield from answering(right_answer)(received)

    def wait_for(self, other: Callable[[], ScriptedServer]) -> Iterator[Step]:
        for _ in range(1000):
            if other().requests:
                return
            yield 0.01


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> HealthyRun:
    return HealthyRun(tmp_path_factory.mktemp("healthy"))


def test_every_task_of_every_arm_is_observed_once_without_a_fault(healthy: HealthyRun) -> None:
    assert set(healthy.seen) == {(arm, task.name) for arm in Arm for task in TASKS}
    assert [o.fault for o in healthy.seen.values()] == [None] * 4
    assert {o.expected_n for o in healthy.seen.values() if o.task == "italian"} == {7}


def test_a_right_answer_scores_one_and_a_wrong_one_zero(healthy: HealthyRun) -> None:
    assert [i.score for i in healthy.seen[Arm.BASELINE, "italian"].items] == [1.0] * 7
    assert [i.score for i in healthy.seen[Arm.CANDIDATE, "italian"].items] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_rows_keep_their_ids_and_order_though_the_first_is_answered_last(healthy: HealthyRun) -> None:
    observed = healthy.seen[Arm.BASELINE, "italian"]
    assert [item.item_id for item in observed.items] == ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]
    assert [item.answer for item in observed.items] == ["uno", "due", "tre", "quattro", "cinque", "sei", "uno"]


def test_two_rows_with_the_same_question_stay_two_items(healthy: HealthyRun) -> None:
    observed = items(healthy.seen[Arm.BASELINE, "italian"])
    assert observed["n1"].prompt_hash == observed["n7"].prompt_hash
    assert observed["n1"].doc_hash != observed["n7"].doc_hash


def test_the_hashes_of_an_item_agree_between_the_arms(healthy: HealthyRun) -> None:
    for task in ("italian", "dates"):
        ours, theirs = (healthy.seen[arm, task].items for arm in Arm)
        hashes = [[(i.doc_hash, i.prompt_hash, i.target_hash) for i in arm] for arm in (ours, theirs)]
        assert hashes[0] == hashes[1]
        assert all(len(value) == 64 for row in hashes[0] for value in row)


def test_null_and_empty_answers_are_wrong_answers_and_not_errors(healthy: HealthyRun) -> None:
    observed = healthy.seen[Arm.CANDIDATE, "italian"]
    null, empty = items(observed)["n2"], items(observed)["n3"]
    assert (null.answer, null.finish_reason, null.score, null.error) == ("", "length", 0.0, None)
    assert (empty.answer, empty.finish_reason, empty.score, empty.error) == ("", "stop", 0.0, None)
    assert observed.harness["null_answers"] == 1


def test_finish_reason_tokens_and_latency_are_kept_for_each_item(healthy: HealthyRun) -> None:
    first = healthy.seen[Arm.BASELINE, "italian"].items[0]
    assert (first.finish_reason, first.output_tokens) == ("stop", 1)
    assert first.latency_ns is not None
    assert first.latency_ns >= 200_000_000  # the server's own pause


def test_texts_that_look_like_dates_reach_the_server_as_they_stand(healthy: HealthyRun) -> None:
    asked = {received.prompt for received in healthy.baseline.requests}
    assert "The day after 2024-01-01?" in asked
    assert [i.score for i in healthy.seen[Arm.BASELINE, "dates"].items] == [1.0] * 5


def test_requests_are_greedy_seeded_and_in_the_targets_dialect(healthy: HealthyRun) -> None:
    received = next(r for r in healthy.candidate.requests if subject(r) == "one")
    assert received.path == "/v1/chat/completions"
    assert received.body == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "one in Italian?"}],
        "max_tokens": 16,
        "temperature": 0.0,
        "stop": ["\n"],
        "seed": 1234,
        "cache_prompt": False,
    }
    dates = next(r for r in healthy.candidate.requests if subject(r) == "2024-01-01")
    assert dates.body is not None
    assert dates.body["max_tokens"] == 256  # of the suite, where the task says nothing


def test_requests_leave_out_and_add_what_the_suite_says_of_a_server(healthy: HealthyRun) -> None:
    received = next(r for r in healthy.baseline.requests if subject(r) == "one")
    assert received.body == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "one in Italian?"}],
        "max_completion_tokens": 16,
        "stop": ["\n"],
        "cache_prompt": False,
        "min_tokens": 1,
    }


def test_each_item_is_asked_once(healthy: HealthyRun) -> None:
    assert len(healthy.baseline.requests) == len(healthy.candidate.requests) == 12


def test_the_harness_is_described(healthy: HealthyRun) -> None:
    described = healthy.seen[Arm.BASELINE, "italian"].harness
    assert str(described["lm_eval"]).startswith("0.4.")
    assert described["num_concurrent"] == 4
    assert described["endpoint"] == "chat"
    assert described["chat_template"] is True


def test_progress_counts_the_answers_of_each_task(healthy: HealthyRun) -> None:
    assert [n for arm, task, n in healthy.progress if (arm, task) == (Arm.BASELINE, "italian")] == [1, 2, 3, 4, 5, 6, 7]


def test_the_api_key_is_sent_but_stands_in_no_file_and_no_command_line(healthy: HealthyRun) -> None:
    assert {r.headers.get("authorization") for r in healthy.baseline.requests} == {f"Bearer {API_KEY}"}
    assert {r.headers.get("authorization") for r in healthy.candidate.requests} == {None}
    files = [path.read_bytes() for path in healthy.work_dir.rglob("*") if path.is_file()]
    assert len(healthy.command_lines) == 2
    assert len(files) >= 6
    shown = [*files, *healthy.command_lines]
    assert not any(secret.encode() in content for content in shown for secret in (API_KEY, TENANT_KEY))


def test_evals_go_the_way_of_their_target(healthy: HealthyRun) -> None:
    assert set(healthy.proxy.asked) == {f"CONNECT localhost:{healthy.baseline.port} HTTP/1.1"}
    asked = {(r.path, r.headers.get("x-team"), r.headers.get("x-tenant-key")) for r in healthy.baseline.requests}
    assert asked == {("/v1/chat/completions", "ml", TENANT_KEY)}
    assert {r.headers["host"] for r in healthy.candidate.requests} == {"localhost"}


def test_the_processes_are_gone_after_the_run(healthy: HealthyRun) -> None:
    assert len(child_pids(healthy.work_dir)) == 2
    assert not any(map(is_running, child_pids(healthy.work_dir)))


# --- one run of a server that fails in several ways beside one that is not there -------------------------------------


MANY = replace(DATES, name="many", rows=tuple({**DATES.rows[0], "id": f"m{n}"} for n in range(30)))
BROKEN = replace(DATES, name="broken", config={**DATES.config, "output_type": "no_such_type"})


class Failing:
    """`two` always 500, `three` no choices, `four` resets once and is then right; every date 401 with the key in it."""

    def __init__(self) -> None:
        self.reset = False

    def __call__(self, received: Received) -> Iterator[Step]:
        about = subject(received)
        if about == "two":
            yield json_response({"error": {"message": "CUDA out of memory"}}, status=500)
        elif about == "three":
            yield json_response({"id": "x"})
        elif about == "four" and not self.reset:
            self.reset = True
            yield ABORT
        elif about.startswith("2024"):
            yield json_response({"error": {"message": f"bad credentials: {API_KEY}"}}, status=401)
        else:
            yield from answering(right_answer)(received)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    with socket.socket() as closed, ScriptedServer(Failing()) as server:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets the port
        absent = f"http://127.0.0.1:{closed.getsockname()[1]}"
        targets = {
            Arm.BASELINE: target(Arm.BASELINE, server.url, API_KEY),
            Arm.CANDIDATE: target(Arm.CANDIDATE, absent),
        }
        tasks = [ITALIAN, MANY, BROKEN]
        work_dir = tmp_path_factory.mktemp("faulty")
        return collect(evaluate(targets, tasks, settings(endpoint="completions"), work_dir))


def test_failed_items_have_the_servers_reason_and_no_score(faulty: Observed) -> None:
    observed = items(faulty[Arm.BASELINE, "italian"])
    assert (observed["n2"].score, observed["n2"].error) == (None, "HTTP 500: CUDA out of memory")
    assert observed["n3"].score is None
    assert observed["n3"].error is not None
    assert observed["n3"].error.startswith('HTTP 200 without choices: {"id"')


def test_the_answered_items_of_a_faulty_task_keep_their_scores(faulty: Observed) -> None:
    observed = items(faulty[Arm.BASELINE, "italian"])
    assert {name for name, item in observed.items() if item.score == 1.0} == {"n1", "n4", "n5", "n6", "n7"}


def test_a_failed_item_makes_the_task_faulty(faulty: Observed) -> None:
    fault = faulty[Arm.BASELINE, "italian"].fault
    assert fault is not None
    assert fault.startswith("2 of 7 items failed, the first with: HTTP 200 without choices")


def test_a_connection_that_breaks_once_is_retried_and_counted(faulty: Observed) -> None:
    observed = faulty[Arm.BASELINE, "italian"]
    assert items(observed)["n4"].error is None
    assert observed.harness["retries"] == 3  # one for the reset, two in vain for the 500


def test_a_server_that_echoes_the_api_key_does_not_get_it_stored(faulty: Observed) -> None:
    errors = {item.error for item in faulty[Arm.BASELINE, "many"].items}
    assert "HTTP 401: bad credentials: [redacted]" in errors
    assert API_KEY not in str(errors)
    assert faulty[Arm.BASELINE, "many"].harness["retries"] == 0  # asking again with the same key would not help


def test_a_server_that_is_not_there_gives_every_item_the_reason_and_no_score(faulty: Observed) -> None:
    observed = faulty[Arm.CANDIDATE, "italian"]
    assert observed.fault is not None
    assert observed.fault.startswith("7 of 7 items failed, the first with: could not connect: Connection refused")
    assert [i.score for i in observed.items] == [None] * 7


def test_a_server_that_only_fails_is_soon_given_up_with_every_item_accounted_for(faulty: Observed) -> None:
    for arm in Arm:
        errors = [str(item.error) for item in faulty[arm, "many"].items]
        assert len(errors) == 30
        assert sum(error.startswith("not sent: 5 items") for error in errors) >= 20


def test_a_harness_that_crashes_is_a_fault_with_its_last_words(faulty: Observed) -> None:
    for arm in Arm:
        broken = faulty[arm, "broken"]
        assert broken.fault is not None
        assert broken.fault.startswith("the eval process ended with exit code 1: ")
        assert "no_such_type" in broken.fault
        assert (broken.items, broken.expected_n) == ((), 5)


def test_the_completions_endpoint_gets_a_prompt_and_no_chat_template(faulty: Observed) -> None:
    described = faulty[Arm.BASELINE, "italian"].harness
    assert (described["endpoint"], described["chat_template"]) == ("completions", False)


def test_failures_of_a_task_add_up_over_the_rounds_of_all_tasks(tmp_path: Path) -> None:
    options: dict[str, object] = {"output_type": "multiple_choice", "doc_to_choice": ["uno", "due"], "doc_to_target": 0}
    config = {**DATES.config, **options, "metric_list": [{"metric": "acc"}]}
    scored = replace(MANY, name="scored", config=config, metric="acc", output_type="multiple_choice")

    def refuse(received: Received) -> Iterator[Step]:
        yield json_response({"error": {"message": "no"}}, status=401)

    in_rounds = settings(endpoint="completions").model_copy(update={"stop_early": True, "concurrency": 2})
    with ScriptedServer(refuse) as server:
        targets = {Arm.BASELINE: target(Arm.BASELINE, server.url)}
        seen = list(evaluate(targets, [replace(MANY, name="asked"), scored], in_rounds, tmp_path))
    assert {observed.task: len(observed.items) for observed in seen} == {"asked": 30, "scored": 30}
    for observed in seen:
        sent = [item for item in observed.items if not str(item.error).startswith("not sent: 5 items")]
        assert 5 <= len(sent) <= 6  # two are in flight
