import hashlib
import socket
from collections.abc import Iterable
from typing import Any

import pytest

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint
from benchgate.targets.address import show_address
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.probe import detect_engine, liveness_problem, wait_ready
from tests.fakes.replay import replay
from tests.fakes.scripted_server import CLOSE, Received, ScriptedServer, Step, answering, json_response

ANSWER = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}


def ready(
    url: str,
    *,
    engine: str = "vllm",
    key: str | None = None,
    endpoint: Endpoint = "chat",
    within_s: float = 10,
    may_start: bool = True,
) -> dict[str, object]:
    target = Target(Arm.BASELINE, url, "scripted", DIALECTS[engine], key)
    return wait_ready(target, endpoint=endpoint, ready_s=within_s, connect_s=1, may_start=may_start)


@pytest.fixture
def dead_port() -> Iterable[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_server_that_completes_a_request_is_ready(endpoint: Endpoint) -> None:
    with ScriptedServer(answering(lambda received: "hello you")) as server:
        assert ready(server.url, endpoint=endpoint) == {}
        first = server.requests[0]
    assert first.path.endswith("/completions")
    assert first.body is not None and "stream" not in first.body and "stream_options" not in first.body


@pytest.mark.parametrize(
    "message",
    [
        {"content": "", "reasoning_content": "hm"},
        {"content": None, "reasoning": "hm"},
        {"content": "hi"},
        {"content": [{"type": "text", "text": "hi"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"content": None, "tool_calls": [{"function": {"name": "f"}}]},
    ],
)
def test_reasoning_is_output_too(message: dict[str, object]) -> None:
    with ScriptedServer(lambda received: [json_response({"choices": [{"message": message}]})]) as server:
        assert ready(server.url) == {}


UNSEEN = {"choices": [{"message": {"content": None, "reasoning": None}, "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("endpoint", "answer"),
    [
        ("chat", {**UNSEEN, "usage": {"prompt_tokens": 4, "completion_tokens": 8}}),
        ("chat", {**UNSEEN, "usage": {"completion_tokens": 8}, "error": {}}),
        ("responses", {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
                       "output": [{"type": "reasoning", "summary": []}], "usage": {"output_tokens": 8}}),
    ],
)  # fmt: skip
def test_model_whose_first_tokens_are_thoughts_that_nobody_is_shown_is_ready(endpoint: Endpoint, answer: Any) -> None:
    with ScriptedServer(lambda received: [json_response(answer)]) as server:
        assert ready(server.url, endpoint=endpoint) == {}


@pytest.mark.parametrize(
    "answer",
    [
        UNSEEN,
        {**UNSEEN, "usage": {"completion_tokens": 0}},
        {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "usage": {"completion_tokens": 8}},
        {"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 8}},
    ],
)
def test_empty_answer_that_was_not_cut_while_tokens_were_made_is_none(answer: object) -> None:
    steps = [json_response(answer)]
    with ScriptedServer(lambda received: steps) as server, pytest.raises(TargetError, match="an empty answer"):
        ready(server.url, within_s=0.1)


COMING = [
    (400, {"error": "Model m not found or vLLM engine is sleeping."}),
    (400, {"error": 'Model with name "scripted" is not ready.'}),
    (404, {"error": {"message": "model not loaded"}}),
    (404, {"detail": "The model is starting"}),
]


@pytest.mark.parametrize(("status", "words"), COMING)
def test_refusal_of_a_model_that_is_on_its_way_is_waited_out(
    monkeypatch: pytest.MonkeyPatch, status: int, words: object
) -> None:
    monkeypatch.setattr("benchgate.targets.probe._SURE_AFTER_S", 0.0)

    def respond(received: Received) -> Iterable[Step]:
        asked = sum(received.method == "POST" for received in server.requests)
        return [json_response(words, status=status)] if asked < 3 else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {}


@pytest.mark.parametrize("status", [400, 404])
def test_name_that_is_not_known_for_a_moment_is_that_of_a_model_to_come(status: int) -> None:
    """KServe and Triton say so of one that they have not loaded yet."""

    def respond(received: Received) -> Iterable[Step]:
        asked = sum(received.method == "POST" for received in server.requests)
        refusal = json_response({"error": "Model with name scripted does not exist."}, status=status)
        return [refusal] if asked < 3 else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {}


def test_wait_that_ends_with_a_refusal_says_that_it_is_one() -> None:
    refusal = json_response({"error": "no such model"}, status=404)
    said = "refuses requests: HTTP 404: no such model"
    with ScriptedServer(lambda received: [refusal]) as server, pytest.raises(TargetError, match=said):
        ready(server.url, within_s=0.3)


def test_name_that_sounds_like_a_model_to_come_is_none() -> None:
    refusal = json_response({"error": "no model called sleeping"}, status=401)
    with ScriptedServer(lambda received: [refusal]) as server:
        target = Target(Arm.BASELINE, server.url, "sleeping", DIALECTS["vllm"], None)
        with pytest.raises(TargetError, match="refuses requests"):
            wait_ready(target, endpoint="chat", ready_s=60, connect_s=1)


def test_loading_server_is_waited_for() -> None:
    loading: list[Step] = [json_response({"error": {"message": "Loading model"}}, status=503)]

    def respond(received: Received) -> Iterable[Step]:
        return loading if len(server.requests) < 3 else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {}
        assert sum(received.method == "POST" for received in server.requests) == 3


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([json_response({"error": {"message": "Loading model"}}, status=503)], "HTTP 503: Loading model"),
        ([json_response({"error": "engine died"})], "HTTP 200 with an error in it: engine died"),
        ([json_response({"choices": [{"message": {"content": ""}}]})], "an empty answer"),
        ([json_response({"choices": []})], "without a choice"),
        ([CLOSE], "disconnected"),
        ([20.0], "no answer within 400 ms"),
    ],
)
def test_server_without_a_real_answer_is_not_ready_and_the_reason_is_told(steps: list[Step], reason: str) -> None:
    with ScriptedServer(lambda received: steps) as server, pytest.raises(TargetError) as fault:
        ready(server.url, within_s=0.4)
    text = str(fault.value)
    assert f"the baseline at {server.url} was not ready within 0.4 s" in text
    assert reason in text


def test_dead_port_is_waited_for_and_then_named(dead_port: int) -> None:
    with pytest.raises(TargetError, match=f"baseline at http://127.0.0.1:{dead_port} .*refused"):
        ready(f"http://127.0.0.1:{dead_port}", within_s=0.3)


def test_address_that_nothing_will_serve_is_an_error_at_once(dead_port: int) -> None:
    found = rf"the baseline at http://127.0.0.1:{dead_port} cannot be reached: .*refused"
    with pytest.raises(TargetError, match=found):
        ready(f"http://127.0.0.1:{dead_port}", within_s=600, may_start=False)


PAGE = b"<!DOCTYPE html><html><head><title>Grafana</title></head></html>"


def html(status: str) -> list[Step]:
    head = f"HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {len(PAGE)}\r\n\r\n"
    return [head.encode(), PAGE]


FOREIGN: list[tuple[list[Step], str]] = [
    (html("404 Not Found"), 'HTTP 404 with an HTML page "Grafana", GET /v1/models HTTP 404'),
    (html("200 OK"), 'HTTP 200 with an HTML page "Grafana"'),
    (html("405 Method Not Allowed"), 'HTTP 405 with an HTML page "Grafana"'),
    ([json_response([1])], "HTTP 200: [1]"),
    ([json_response({"detail": "Not Found"}, status=404)], "HTTP 404: Not Found"),
    ([b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope"], "HTTP 404: nope"),
    ([b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n"], "HTTP 302"),
    ([b"SSH-2.0\r\n\r\n"], "its answer is not HTTP"),
]


@pytest.mark.parametrize(("steps", "reason"), FOREIGN)
@pytest.mark.parametrize("may_start", [False, True])
def test_server_that_is_no_llm_is_described(steps: list[Step], reason: str, may_start: bool) -> None:
    with ScriptedServer(lambda received: steps) as server, pytest.raises(TargetError) as fault:
        ready(server.url, within_s=0.3 if may_start else 600, may_start=may_start)
    text = str(fault.value)
    assert f"the baseline at {server.url} is no LLM server: " in text
    assert reason in text
    assert text.endswith("; expected an OpenAI-compatible API")


def test_page_of_a_gateway_whose_backend_may_start_is_waited_out() -> None:
    def respond(received: Received) -> Iterable[Step]:
        return html("404 Not Found") if len(server.requests) < 4 else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {}


def test_loading_server_is_waited_for_although_nothing_starts_it() -> None:
    def respond(received: Received) -> Iterable[Step]:
        loading = json_response({"error": {"message": "Loading model"}}, status=503)
        return [loading] if len(server.requests) < 3 else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url, may_start=False) == {}


@pytest.fixture
def sure_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of a wrong name is believed without the wait."""
    monkeypatch.setattr("benchgate.targets.probe._SURE_AFTER_S", 0.0)


@pytest.mark.usefixtures("sure_at_once")
def test_path_of_an_address_is_never_shown_not_even_in_the_words_of_the_server() -> None:
    """Addresses come out of secrets too, and gateways repeat the path that they do not know."""
    refusal = json_response({"error": "Cannot POST /tenant-s3cr3t/v1/chat/completions"}, status=404)
    with ScriptedServer(lambda received: [refusal]) as server, pytest.raises(TargetError) as fault:
        ready(f"{server.url}/tenant-s3cr3t")
    found = "POST /v1/chat/completions gave HTTP 404: Cannot POST [path]/v1"
    assert f"the baseline at {server.url} is no LLM server: {found}" in str(fault.value)
    assert "s3cr3t" not in str(fault.value)


def test_path_of_an_address_that_nobody_answers_is_not_shown(dead_port: int) -> None:
    with pytest.raises(TargetError, match=f"the baseline at http://127.0.0.1:{dead_port} was not ready") as fault:
        ready(f"http://127.0.0.1:{dead_port}/tenant-s3cr3t", within_s=0.3)
    assert "s3cr3t" not in str(fault.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cr3t@127.0.0.1:9",
        "http://:s3cr3t@127.0.0.1:9",
        "http://127.0.0.1:s3cr3t/x",
        "http://127.0.0.1:99999/s3cr3t",
        "http://127.0.0.1:0/s3cr3t",
        "http://127.0.0.1:9/?key=s3cr3t",
        "http://127.0.0.1:9/#s3cr3t",
        "http://[s3cr3t",
        "http://a..s3cr3t",
        "http://127.0.0.1:9/s3cr3t\x07",
        "http://127.0.0.1:9/s3 cr3t s3cr3t",
        "http://999.0.0.1/s3cr3t",
        "ftp://host/s3cr3t",
        "s3cr3t",
        "",
    ],
)
def test_address_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(TargetError) as of_ready:
        ready(url, within_s=0.3)
    with pytest.raises(TargetError) as of_engine:
        detect_engine(Target(Arm.CANDIDATE, url, "m", DIALECTS["openai"]))
    alive = liveness_problem(Target(Arm.CANDIDATE, url, "m", DIALECTS["openai"]), within_s=0.3)
    assert alive is not None
    assert "s3cr3t" not in f"{of_ready.value} {of_engine.value} {alive}"
    assert url not in ("", "s3cr3t") or "http://host:8000" in alive  # what to write instead


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://host:8000/path", "http://host:8000"),
        ("https://Host.example/", "https://host.example"),
        ("http://[::1]:80/x", "http://[::1]:80"),
        ("http://user:pw@host", "an address that is none"),
        ("nonsense", "an address that is none"),
    ],
)
def test_only_scheme_host_and_port_of_an_address_are_shown(url: str, shown: str) -> None:
    assert show_address(url) == shown


@pytest.mark.usefixtures("sure_at_once")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422])
def test_refusal_that_waiting_does_not_mend_ends_the_wait(status: int) -> None:
    refusal = json_response({"error": {"message": "the model `scripted` does not exist"}}, status=status)
    with ScriptedServer(lambda received: [refusal]) as server:
        with pytest.raises(TargetError, match=f"refuses requests: HTTP {status}: the model"):
            ready(server.url, within_s=60)
        assert [request.method for request in server.requests].count("POST") == 1


@pytest.mark.usefixtures("sure_at_once")
def test_refusal_of_a_model_that_is_not_there_names_those_that_are() -> None:
    def respond(received: Received) -> Iterable[Step]:
        if received.method == "GET":
            return [json_response({"data": [{"id": "llama-8b"}, {"id": "llama-70b"}]})]
        return [json_response({"error": {"message": "The model `scripted` does not exist."}}, status=404)]

    served = r"`scripted` does not exist; it serves llama-8b, llama-70b$"
    with ScriptedServer(respond) as server, pytest.raises(TargetError, match=served):
        ready(server.url, within_s=60)


@pytest.mark.usefixtures("sure_at_once")
def test_refusal_that_comes_with_http_200_is_one() -> None:
    refusal = "refuses requests: HTTP 200 with an error in it: The model `no-such-model` does not exist"
    recorded = replay("torchserve-0.12.0/err_bad_model")
    with ScriptedServer(recorded) as server, pytest.raises(TargetError, match=refusal):
        ready(server.url, within_s=60)


def test_whoever_waits_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.targets.probe._NOTE_EVERY_S", 0.0)
    told: list[str] = []
    loading = [json_response({"error": "loading the model"}, status=503)]

    def respond(received: Received) -> Iterable[Step]:
        return loading if not told else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        target = Target(Arm.BASELINE, server.url, "scripted", DIALECTS["vllm"], None)
        wait_ready(target, endpoint="chat", ready_s=30, connect_s=1, waiting=told.append)
    assert len(told) == 1
    assert told[0].startswith(f"the baseline at {server.url} is not ready after 0 s of 30: HTTP 503: loading the model")


def test_key_is_sent_and_never_shown() -> None:
    refusal = json_response({"error": {"message": "bad key sk-very-secret"}}, status=401)
    with ScriptedServer(lambda received: [refusal]) as server:
        with pytest.raises(TargetError) as fault:
            ready(server.url, key="sk-very-secret")
        assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(fault.value)


def test_facts_are_what_identifies_engine_and_model() -> None:
    meta = {"ftype": "Q8_0", "n_params": 2_000_000, "size": 2_100_000, "n_vocab": 264, "chat_template": "x"}
    adapter = {"id": "other", "parent": "scripted"}
    models = {"data": [adapter, {"id": "scripted", "created": 1, "owned_by": "llamacpp", "meta": meta}]}
    props = {"build_info": "b7000-abc", "model_path": "/srv/models/q8.gguf", "total_slots": 4, "chat_template": "t",
             "default_generation_settings": {"n_ctx": 2048}}  # fmt: skip
    documents: dict[str, object] = {"/v1/models": models, "/props": props}

    def respond(received: Received) -> Iterable[Step]:
        return [json_response(documents.get(received.path, ANSWER))]

    with ScriptedServer(respond) as server:
        facts = ready(server.url, engine="llamacpp")
    assert facts == {
        "engine_version": "b7000-abc",
        "ftype": "Q8_0",
        "n_params": 2_000_000,
        "size": 2_100_000,
        "n_vocab": 264,
        "weights_at": "q8.gguf",  # the way there is nobody's business
        "total_slots": 4,
        "n_ctx": 2048,
        "chat_template_sha256": hashlib.sha256(b"t").hexdigest(),
    }


@pytest.mark.parametrize(("engine", "path"), [("sglang", "/server_info"), ("tgi", "/info")])
def test_page_of_one_process_behind_a_gateway_of_several_models_does_not_tell_where_theirs_are(
    engine: str, path: str
) -> None:
    about = {"model_path": "org/f16", "model_id": "org/f16", "version": "0.5.0"}

    def asked(*models: dict[str, object]) -> dict[str, object]:
        documents: dict[str, object] = {path: about, "/v1/models": {"data": models}}
        with ScriptedServer(lambda received: [json_response(documents.get(received.path, ANSWER))]) as server:
            return ready(server.url, engine=engine)

    assert asked({"id": "scripted"}, {"id": "lora", "parent": "scripted"})["weights_at"] == "org/f16"
    assert asked({"id": "f16"})["weights_at"] == "org/f16"  # asked by a name that it does not list
    assert "weights_at" not in asked({"id": "scripted"}, {"id": "f16"})
    assert asked({"id": "scripted", "root": "org/q4"}, {"id": "f16", "root": "org/f16"})["weights_at"] == "org/q4"


def test_flags_that_a_server_shows_are_facts_and_its_keys_are_not() -> None:
    about = {"version": "0.5.6", "tp_size": 2, "api_key": "sk-very-secret", "quantization": "fp8",
             "max_prefill_tokens": None, "mem_fraction_static": float("nan"),
             "model_path": "org/model", "disable_radix_cache": False}  # fmt: skip

    def respond(received: Received) -> Iterable[Step]:
        if received.path == "/server_info":
            return [json_response({"detail": "Not Found"}, status=404)]
        return [json_response(about if received.path == "/get_server_info" else ANSWER)]

    with ScriptedServer(respond) as server:
        facts = ready(server.url, engine="sglang")
    assert facts == {
        "engine_version": "0.5.6",
        "quantization": "fp8",
        "weights_at": "org/model",
        "flags": {"tp_size": 2, "mem_fraction_static": "nan", "disable_radix_cache": False},
    }


@pytest.mark.parametrize(
    ("engine", "set_by_hand"), [("tgi", {}), ("lorax", {"max_input_length": 1023, "max_total_tokens": 1024})]
)
def test_sizes_that_follow_from_free_memory_are_no_flags(engine: str, set_by_hand: dict[str, int]) -> None:
    """Quantised weights leave more memory: what TGI and LoRAX size by it at start-up is no setting of the server."""
    flags = {"max_concurrent_requests": 128, "max_waiting_tokens": 20, **set_by_hand}
    found = []
    for blocks in (151_808, 402_944):
        sized = {"max_batch_total_tokens": blocks, "max_input_tokens": blocks - 1, "max_total_tokens": blocks}
        about = {"model_id": "org/model", **sized, **flags}

        def respond(received: Received, about: dict[str, object] = about) -> Iterable[Step]:
            return [json_response(about if received.path == "/info" else ANSWER)]

        with ScriptedServer(respond) as server:
            found.append(ready(server.url, engine=engine)["flags"])
    assert found == [flags, flags]


def test_flags_of_the_cache_are_read_off_the_page_of_vllm() -> None:
    line = (
        'vllm:cache_config_info{block_size="16",cache_dtype="%s",engine="%d",num_gpu_blocks="9",swap_space="None"} 1.0'
    )
    page = "\n".join(["# TYPE vllm:cache_config_info gauge", line % ("auto", 0), line % ("fp8", 1)]).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page)

    def respond(received: Received) -> Iterable[Step]:
        return [head + page] if received.path == "/metrics" else [json_response(ANSWER)]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {"flags": {"block_size": "16", "cache_dtype": "auto, fp8"}}


@pytest.mark.parametrize(
    "told",
    [
        json_response({"data": []}),
        json_response({"data": [7]}),
        json_response([]),
        b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",
        CLOSE,
    ],
)
def test_server_that_tells_no_facts_is_ready_all_the_same(told: Step) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [json_response(ANSWER)] if received.method == "POST" else [told]

    with ScriptedServer(respond) as server:
        assert ready(server.url) == {}
        assert detect_engine(Target(Arm.CANDIDATE, server.url, "m", DIALECTS["openai"])) == "openai"


def test_living_server_is_alive_and_a_dead_one_says_why(dead_port: int) -> None:
    def target(url: str) -> Target:
        return Target(Arm.CANDIDATE, url, "scripted", DIALECTS["openai"])

    with ScriptedServer(answering(lambda received: "hello")) as server:
        assert liveness_problem(target(server.url)) is None
    assert "refused" in (liveness_problem(target(f"http://127.0.0.1:{dead_port}")) or "")
    with ScriptedServer(answering(lambda received: "")) as server:
        assert liveness_problem(target(server.url)) == "an empty answer"
    with ScriptedServer(lambda received: [20.0]) as server:
        assert "no answer within 200 ms" in (liveness_problem(target(server.url), within_s=0.2) or "")
