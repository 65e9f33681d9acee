"""Every recorded exchange, given back over a socket, is read: whatever is added to tests/captures is held to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.model.request import Endpoint, endpoint_at
from benchgate.quality.logprobs import read_echo, read_next
from benchgate.targets.answers import read_answer
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.endpoints import answer_document
from benchgate.targets.error_messages import RequestError, json_object
from benchgate.targets.probe import detect_engine
from benchgate.telemetry.engine_metrics import read_page
from tests.fakes.replay import CAPTURES, Capture, capture, read_exchange, texts_of
from tests.fakes.scripted_server import CLOSE, Received, ScriptedServer, Step
from tests.shells.load_helpers import closed, run

EXCHANGES = sorted(path.relative_to(CAPTURES).as_posix().removesuffix(".http") for path in CAPTURES.rglob("*.http"))
METRICS = sorted(path.relative_to(CAPTURES).as_posix() for path in CAPTURES.rglob("metrics_*.txt"))
DIALECT_BY_LIST = {
    "vllm-0.32.0-cpu": "vllm",
    "llamacpp-2026.10": "llamacpp",
    "mlx-lm-0.32.2": "mlx",
    "rayserve-2.60.0": "rayserve",
    "torchserve-0.12.0": "torchserve",  # by the path of the list
}
# These report log-probabilities of a given text.
READS_TEXTS = {"vllm-0.32.0-cpu", "llama-cpp-python-0.3.36", "litellm-1.106.2", "rayserve-2.60.0"}
NEXT_TOKENS = [name for name in EXCHANGES if name.endswith("/completion_n_probs")]


def folders_of(pattern: str) -> set[str]:
    """Return the folders with an exchange of this name that the server answered with 200."""
    found = (name for name in EXCHANGES if re.fullmatch(pattern, name.partition("/")[2]))
    return {name.partition("/")[0] for name in found if capture(name).status == 200}


REPLAYED = {
    "load": folders_of("(chat|completions|generate|predictions)_stream.*"),
    "quality": folders_of("chat_nonstream"),
    "shadow": folders_of("chat_nonstream"),
    "telemetry": {name.partition("/")[0] for name in METRICS},
    "logprobs": READS_TEXTS & folders_of("completions_echo_logprobs") | folders_of("completion_n_probs"),
}
"""The folders that the tests below replay as evidence of a column of docs/engines.yaml."""

NOTHING = capture("litgpt-0.5.13/models")  # a 404
_COUNTED = re.compile(rb'"completion_tokens": ?(\d+)')
_WHOLE = re.compile(rb'"finish_reason": ?"(length|stop)"')


def check_exchange(path: Path) -> None:
    """Give an exchange back, as its name says what it is, and hold what benchgate reads of it."""
    recorded, name = read_exchange(path), path.stem
    if recorded.reads:
        assert len(recorded.wire()) == sum(size for _, size in recorded.reads)
    if (served := endpoint_at(recorded.path)) is not None and served[0] in ("triton-generate", "predictions", "infer"):
        _check_text(recorded, served[0], name.startswith("err_"))
    elif name.startswith(("chat", "completions_stream", "completions_nonstream", "err_")):
        if (recorded.asked or {}).get("stream"):
            _check_stream(recorded, name.startswith("err_"))
        else:
            _check_document(recorded, name.startswith("err_"))
    elif recorded.status == 200 and "json" in " ".join(recorded.headers):
        assert json_object(recorded.body) is not None


def _check_stream(recorded: Capture, is_error: bool) -> None:
    """Hold what the load makes of a stream: an answer only if it has an end and no error, with tokens by its usage."""
    is_whole = recorded.status == 200 and _WHOLE.search(recorded.body) is not None
    endpoint: Endpoint = "completions" if "prompt" in (recorded.asked or {}) else "chat"
    steps: list[Step] = list(recorded.as_recorded(0.01)) if recorded.reads else [recorded.wire(), CLOSE]
    with ScriptedServer(lambda received: steps) as server:
        columns = run(server.url, closed(1, endpoint=endpoint)).requests
    assert (columns.error[0] is None) == is_whole, columns.error_detail
    if not is_whole:
        assert is_error or recorded.status >= 400
        assert str(columns.error_detail[0]).removeprefix(f"HTTP {recorded.status}").strip(": ")
        return
    counts = [int(count) for count in _COUNTED.findall(recorded.body)]
    chunks = len(texts_of(recorded.body))
    assert columns.output_tokens.tolist() == [counts[-1] if any(counts) else chunks]
    assert columns.token_source == ("usage" if any(counts) else "chunks",)
    assert len(columns.chunk_ns) == chunks


def _check_text(recorded: Capture, endpoint: Endpoint, is_error: bool) -> None:
    """Hold what load and shadow make of APIs that are not OpenAI's: a text in the chunks sent, or the error."""
    steps: list[Step] = list(recorded.as_recorded(0.01)) if recorded.reads else [recorded.wire(), CLOSE]
    with ScriptedServer(lambda received: steps) as server:
        columns = run(server.url, closed(1, endpoint=endpoint)).requests
    if is_error:
        assert columns.error[0] is not None
        assert str(columns.error_detail[0]).removeprefix(f"HTTP {recorded.status}").strip(": ")
        with pytest.raises(RequestError):
            answer_document(endpoint, recorded.status, recorded.body)
        return
    assert answer_document(endpoint, recorded.status, recorded.body)
    if (recorded.asked or {}).get("stream"):
        assert columns.error[0] is None, columns.error_detail
        assert columns.output_tokens.tolist() == [len(recorded.events)]


def _check_document(recorded: Capture, is_error: bool) -> None:
    """Hold what evals and shadow make of a document: a text with its tokens, or a refusal in the server's words."""
    endpoint: Endpoint = "completions" if "prompt" in (recorded.asked or {}) else "chat"
    try:
        answer = read_answer(endpoint, recorded.status, recorded.body)
    except RequestError as error:
        assert is_error or recorded.status >= 400
        assert str(error).removeprefix(f"HTTP {recorded.status}").strip(": ")
        return
    assert recorded.status == 200
    assert answer.text
    counts = [int(count) for count in _COUNTED.findall(recorded.body)]
    assert answer.output_tokens == (counts[-1] if any(counts) else None)


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange_is_read(name: str) -> None:
    check_exchange(CAPTURES / f"{name}.http")


@pytest.mark.parametrize("name", [name for name in EXCHANGES if name.endswith("/models")])
def test_engine_is_known_by_its_list_of_models(name: str) -> None:
    path = capture(name).path

    def respond(received: Received) -> list[Step]:
        return [(capture(name) if received.path == path else NOTHING).wire(), CLOSE]

    with ScriptedServer(respond) as server:
        url = server.url + path.removesuffix("/v1/models")
        target = Target(Arm.CANDIDATE, url, "tiny-llama", DIALECTS["openai"])
        assert detect_engine(target) == DIALECT_BY_LIST.get(name.partition("/")[0], "openai")


@pytest.mark.parametrize("name", [name for name in EXCHANGES if name.endswith("/completions_echo_logprobs")])
def test_log_probabilities_of_a_text_are_read_or_refused(name: str) -> None:
    recorded = capture(name)
    document, text = json_object(recorded.body) or {}, str((recorded.asked or {}).get("prompt"))
    if name.partition("/")[0] not in READS_TEXTS:
        with pytest.raises(TargetError):
            read_echo(document, text)
        return
    echoed = read_echo(document, text)
    listed = json.loads(recorded.body)["choices"][0]["logprobs"]["tokens"]
    assert "".join(listed[: len(echoed.tokens)]) == text
    assert all(value is not None and value < 0 for value in echoed.logprobs[1:])


@pytest.mark.parametrize("name", NEXT_TOKENS)
def test_log_probabilities_of_the_next_token_are_read(name: str) -> None:
    recorded = capture(name)
    asked = recorded.asked or {}
    found = read_next(json_object(recorded.body) or {}, len(asked["prompt"]), asked["n_probs"])
    assert found.taken == asked["logit_bias"][0][0]
    assert len(found.top) == asked["n_probs"]
    assert list(found.top.values()) == sorted(found.top.values(), reverse=True)
    assert max(found.logprob, *found.top.values()) < 0


@pytest.mark.parametrize("name", METRICS)
def test_metrics_page_is_read(name: str) -> None:
    model = "tiny" if name.startswith(("triton-", "kserve-")) else "tiny-llama"
    assert read_page((CAPTURES / name).read_text(), model).values


def test_exchange_without_its_end_is_not_read(tmp_path: Path) -> None:
    whole = (CAPTURES / "vllm-0.32.0-cpu/chat_stream_usage.http").read_bytes()
    (tmp_path / "chat_stream_usage.http").write_bytes(whole[: whole.index(b'"finish_reason":"length"')])
    with pytest.raises(AssertionError):
        check_exchange(tmp_path / "chat_stream_usage.http")
