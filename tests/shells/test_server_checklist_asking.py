"""What real servers need of a client that asks: recorded refusals (tests/captures) and how each is met."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchgate.errors import TargetError
from benchgate.gate.comparison import compare
from benchgate.gate.guards import run_guards
from benchgate.load.workers import run_stage
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult
from benchgate.pipeline.deployments import declared_deployment
from benchgate.plan.items import ShadowPrompt
from benchgate.plan.model import PlannedStage
from benchgate.plan.schedule import make_plan
from benchgate.shadow.mirror import mirror
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.quality import Shadow
from benchgate.suite.schema import Limits, Suite
from benchgate.targets.dialect import DIALECTS, Dialect, Target, dialect_of
from benchgate.targets.probe import wait_ready
from tests.fakes.measured import SuiteText, measured
from tests.fakes.replay import capture, renamed, replay
from tests.fakes.scripted_server import CLOSE, Received, ScriptedServer, Step
from tests.shells.load_helpers import closed, limits, run

VLLM = "vllm-0.32.0-cpu"
TRANSFORMERS = "transformers-serve-5.19.0"
LITGPT = "litgpt-0.5.13"


def target(url: str, dialect: Dialect = DIALECTS["openai"], arm: Arm = Arm.CANDIDATE) -> Target:
    return Target(arm, url, "tiny-llama", dialect)


def spoken(**keys: object) -> Dialect:
    """The dialect of a deployment with these keys in the suite."""
    return dialect_of(DeploymentSpec.model_validate({"url": "http://any", "model": "tiny-llama", **keys}))


def asked(dialect: Dialect, url: str, stage: PlannedStage | None = None) -> RequestColumns:
    """The records of a stage that asks in this dialect, for answers of full length where it can."""
    stage = stage or closed(1)
    return run_stage(target(url, dialect), stage, limits=limits()).requests


def strict(received: Received) -> list[Step]:
    """transformers serve: an unknown field is a 422 that names it."""
    body = received.body or {}
    if "ignore_eos" in body:
        return [capture(f"{TRANSFORMERS}/chat_stream_ignore_eos").wire(), CLOSE]
    if received.method == "GET":
        return [capture(f"{TRANSFORMERS}/models").wire(), CLOSE]
    return [capture(f"{TRANSFORMERS}/{'chat_stream_usage' if body.get('stream') else 'chat_nonstream'}").wire(), CLOSE]


# --- 8, 9: extras by server


def test_field_that_a_server_does_not_know_is_named_in_every_record() -> None:
    with ScriptedServer(strict) as server:
        columns = asked(DIALECTS["vllm"], server.url, closed(3))
    assert columns.error == (ErrorClass.HTTP_4XX,) * 3
    assert set(columns.error_detail) == {"HTTP 422: Unexpected fields in the request: {'ignore_eos'}"}


def test_field_that_a_server_does_not_know_is_named_before_any_load_and_not_waited_for() -> None:
    with ScriptedServer(strict) as server:
        with pytest.raises(TargetError, match=r"refuses requests: HTTP 422: Unexpected fields .*'ignore_eos'"):
            wait_ready(target(server.url, DIALECTS["vllm"]), endpoint="chat", ready_s=60, connect_s=1)
        assert len(server.requests) == 1


def test_field_left_out_by_the_suite_is_sent_by_nobody() -> None:
    dialect = spoken(engine="vllm", leave_out=["ignore_eos"])
    with ScriptedServer(strict) as server:
        wait_ready(target(server.url, dialect), endpoint="chat", ready_s=60, connect_s=1)
        assert asked(dialect, server.url).error == (None,)


PARTICULAR = {
    "engine": "vllm",
    "extra": {"min_tokens": 8, "chat_template_kwargs": {"enable_thinking": False}},
    "leave_out": ["ignore_eos", "stream_options", "temperature", "seed"],
    "max_tokens_field": "max_completion_tokens",
}


def test_suite_says_field_by_field_what_a_server_is_asked() -> None:
    with ScriptedServer(replay(f"{VLLM}/chat_stream", keep_alive=True)) as server:
        asked(spoken(**PARTICULAR), server.url)
        assert server.requests[0].body == {
            "model": "tiny-llama",
            "max_completion_tokens": 8,
            "messages": [{"role": "user", "content": "prompt 0"}],
            "stream": True,
            "min_tokens": 8,
            "chat_template_kwargs": {"enable_thinking": False},
        }


def test_probe_and_shadow_ask_in_the_same_words() -> None:
    dialect = spoken(**PARTICULAR)
    with ScriptedServer(replay(f"{VLLM}/chat_nonstream", keep_alive=True)) as server:
        wait_ready(target(server.url, dialect), endpoint="chat", ready_s=5, connect_s=1)
        [probed, *_] = server.requests
        count = len(server.requests)
        arms = [target(server.url, dialect, arm) for arm in Arm]
        list(mirror(arms[0], arms[1], [ShadowPrompt("p", "say")], Shadow(prompts="unused"), Limits()))
        shadowed = server.requests[count:]
    assert len(shadowed) == 3
    for received in (probed, *shadowed):
        assert received.body is not None
        names = {"model", "messages", "max_completion_tokens", "min_tokens", "chat_template_kwargs"}
        assert set(received.body) == names


def test_what_a_server_is_asked_is_part_of_what_a_run_remembers_of_it() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    plain = declared_deployment(suite, "candidate")
    spec = DeploymentSpec.model_validate({"url": "http://c", "model": "m", **PARTICULAR})
    asking = declared_deployment(suite.model_copy(update={"deployments": {"candidate": spec}}), "candidate")
    assert plain.settings == {}
    assert asking.settings == {key: PARTICULAR[key] for key in ("extra", "leave_out", "max_tokens_field")}


# --- 7, 8: was the length honoured?


def judged(suite: Suite, columns: dict[Arm, RequestColumns]) -> dict[str, GuardResult]:
    """The guards over evidence in which every execution of an arm went like this."""
    evidence: Evidence = measured(suite)
    load = tuple(replace(observation, requests=columns[observation.arm]) for observation in evidence.load)
    return {guard.id: guard for guard in run_guards(compare(replace(evidence, load=load)), suite)}


def test_server_that_ignores_max_tokens_is_caught_by_a_guard_though_it_says_stop() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=2, requests=4).suite()
    answers = {Arm.BASELINE: f"{VLLM}/chat_stream_usage", Arm.CANDIDATE: f"{LITGPT}/chat_stream"}
    columns = {}
    for arm, name in answers.items():
        with ScriptedServer(replay(name)) as server:
            columns[arm] = run(server.url, closed(4)).requests
    assert set(columns[Arm.CANDIDATE].finish_reason) == {"stop"}
    guard = judged(suite, columns)["answers-not-too-long"]
    assert guard.tripped
    assert "the candidate's answers exceed the 10 requested tokens" in guard.reason
    assert not judged(suite, dict.fromkeys(Arm, columns[Arm.BASELINE]))["answers-not-too-long"].tripped


# --- 10: before the load


def being(server: str) -> Iterator[tuple[str, str]]:
    """What a server answers to what the probe asks, by the beginning of the request."""
    yield "POST", f"{server}/chat_nonstream"
    yield "GET /v1/models", f"{server}/models"
    yield "GET /version", f"{VLLM}/version" if server == VLLM else f"{LITGPT}/models"
    yield "GET /metrics", f"{LITGPT}/models"  # none of them shows a page of flags


@pytest.mark.parametrize(
    ("server", "facts"),
    [
        (VLLM, {"engine_version": "0.32.0", "max_model_len": 2048, "weights_at": "MODEL_DIR"}),
        (TRANSFORMERS, {}),  # its list of models is empty, and the model it names in answers is another one
        (LITGPT, {}),  # it has no list
    ],
    ids=[VLLM, TRANSFORMERS, LITGPT],
)
def test_server_is_ready_whatever_its_list_of_models_says(server: str, facts: dict[str, object]) -> None:
    table = dict(being(server))

    def respond(received: Received) -> list[Step]:
        line = f"{received.method} {received.path}"
        return [next(capture(name).wire() for begins, name in table.items() if line.startswith(begins)), CLOSE]

    with ScriptedServer(respond) as scripted:
        found = wait_ready(target(scripted.url, DIALECTS["vllm"]), endpoint="chat", ready_s=5, connect_s=1)
    assert found == facts


def test_port_that_refuses_is_waited_for() -> None:
    """vLLM listens only when it is ready."""
    whole = capture(f"{VLLM}/chat_nonstream").wire()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        def serve() -> None:
            listener.listen()
            with contextlib.suppress(OSError):  # closed by the test
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(whole)

        late = threading.Timer(0.4, serve)
        late.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            wait_ready(target(url), endpoint="chat", ready_s=30, connect_s=1)
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # ends accept
            late.join()


# --- 11: the warm-up is of the same kind


def test_warm_up_asks_for_the_same_kind_of_answer_at_the_same_level_as_the_measurement() -> None:
    plan = make_plan(SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=2, requests=4).suite())
    bodies = []
    for stage in (plan.warmup[0], plan.blocks[0].stages[0]):
        with ScriptedServer(replay(f"{VLLM}/chat_stream_usage", keep_alive=True)) as server:
            asked(DIALECTS["vllm"], server.url, stage)
            bodies.append([{**(r.body or {}), "messages": None, "seed": None} for r in server.requests])
            assert {r.path for r in server.requests} == {"/v1/chat/completions"}
    warm, measured_ones = bodies
    assert warm[0] == measured_ones[0]
    assert all(body == warm[0] for body in warm + measured_ones)
    assert plan.warmup[0].only.concurrency == plan.blocks[0].stages[0].only.concurrency
    first = plan.blocks[0].stages[0].requests
    assert {r.ask.prompt for r in plan.warmup[0].requests}.isdisjoint(r.ask.prompt for r in first)


# --- 12: a keep-alive connection that the server closes between two requests


def test_connection_closed_while_idle_is_replaced_and_nothing_is_sent_again() -> None:
    whole = capture(f"{VLLM}/chat_stream_usage").wire(keep_alive=True)
    first, second = closed(2).requests
    pause_ns = 600_000_000
    stage = PlannedStage.of("open", None, 1.0, (replace(first, offset_ns=0), replace(second, offset_ns=pause_ns)))
    with ScriptedServer(lambda received: [renamed(whole, len(server.requests)), 0.1, CLOSE]) as server:
        columns = asked(DIALECTS["vllm"], server.url, stage)
        assert (server.connections, len(server.requests)) == (2, 2)
    assert columns.error == (None, None)
    assert columns.reconnects.tolist() == [0, 0]
