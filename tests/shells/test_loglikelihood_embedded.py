"""Log-probabilities of the embedded server against a plain forward pass over the same weights."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import xllamacpp

from benchgate.embedded.server import serve
from benchgate.embedded.weights import read_gguf, write_gguf
from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.quality.logprobs import (
    Score,
    next_token,
    score_continuations,
    scoring_fault,
    text_positions,
    token_ids,
    vocabulary_tokens,
    way_of,
)
from benchgate.suite.deployment import Embedded
from benchgate.targets.client import RETRY, AsyncJsonClient
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes import tiny_reference

DATA = Path(__file__).parents[2] / "suites" / "data"
PROMPT = "<|user|>reverse {}<|assistant|>"
EXACT_NATS = 0.001
HALVES = 2e-3  # the embedded server keeps attention in halves: of that share off, in what is very unlikely
EVERY = 264  # tokens of the vocabulary

Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with serve(Embedded(weights="f16"), name="scored", cache_dir=tmp_path_factory.mktemp("weights")) as server:
        yield Target(Arm.BASELINE, server.url, server.model, DIALECTS["llamacpp"])


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The shipped weights, and all that is computed from them, in single precision: no rounding to speak of."""
    model, kind = read_gguf(tiny_reference.SHIPPED), "general.file_type"
    model = replace(model, fields=model.fields | {kind: replace(model.fields[kind], value=0)})
    wide = tuple(replace(part, data=np.asarray(part.data, dtype=np.float32), ggml_type=0) for part in model.tensors)
    path = tmp_path_factory.mktemp("exact") / "f32.gguf"
    write_gguf(replace(model, tensors=wide), path)
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.hostnames, params.port = str(path), {"exact"}, ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx, params.cpuparams.n_threads, params.cpuparams_batch.n_threads = 2, 512, 1, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_gpu_layers, params.fit_params, params.cache_ram_mib, params.verbosity = 0, False, 0, 1
    server = xllamacpp.Server(params)
    yield Target(Arm.BASELINE, server.listening_address, "exact", DIALECTS["llamacpp"])
    del server  # stops it


def ask(target: Target, about: Callable[[AsyncJsonClient], Awaitable[Answer]]) -> Answer:
    async def asked() -> Answer:
        async with AsyncJsonClient(target, connect_s=10, total_s=60, retry=RETRY) as client:
            return await about(client)

    return asyncio.run(asked())


def scoring(context: str, options: Sequence[str]) -> Callable[[AsyncJsonClient], Awaitable[list[Score]]]:
    return lambda client: score_continuations(client, "n_probs", context, options)


def test_the_server_reads_a_text_as_the_reference_does(target: Target) -> None:
    text = PROMPT.format("jnyw") + "wynj é<|end|>"
    assert list(ask(target, lambda client: token_ids(client, text))) == tiny_reference.token_ids(text)


OPTIONS = ("jwny", "wynj", "jywn", "wnyj")


def test_four_options_get_the_log_probabilities_of_the_weights_with_their_last_tokens(exact: Target) -> None:
    context = PROMPT.format("jnyw")
    scores = ask(exact, scoring(context, OPTIONS))
    expected = [tiny_reference.continuation(context, option) for option in OPTIONS]
    assert [score.logprob for score in scores] == pytest.approx(expected, abs=EXACT_NATS)
    assert [round(value, 2) for value in expected] == [-34.71, 0.0, -42.47, -22.92]
    assert [score.is_greedy for score in scores] == [False, True, False, False]
    assert [score.tokens for score in scores] == [4, 4, 4, 4]


def shipped_rows(count: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "add_choice.jsonl").read_text().splitlines()[:count]]


def test_rows_of_the_shipped_task_agree_on_the_embedded_server_too(target: Target) -> None:
    for row in shipped_rows(3):
        context = f"<|user|>{row['prompt']}<|assistant|>"
        found = [score.logprob for score in ask(target, scoring(context, row["choices"]))]
        expected = [tiny_reference.continuation(context, option) for option in row["choices"]]
        assert found == pytest.approx(expected, abs=0.01, rel=HALVES)


def test_the_shipped_model_chooses_every_right_option(target: Target) -> None:
    async def choose(client: AsyncJsonClient) -> list[str]:
        chosen = []
        for row in shipped_rows(24):
            scores = await scoring(f"<|user|>{row['prompt']}<|assistant|>", row["choices"])(client)
            chosen.append(max(zip(scores, row["choices"], strict=True), key=lambda pair: pair[0].logprob)[1])
        return chosen

    assert ask(target, choose) == [row["choices"][row["gold"]] for row in shipped_rows(24)]


def test_a_token_that_the_server_does_not_list_is_scored_exactly(exact: Target) -> None:
    context, unlikely = PROMPT.format("abc"), "\x02~"
    [score] = ask(exact, scoring(context, [unlikely]))
    assert score.logprob == pytest.approx(tiny_reference.continuation(context, unlikely), abs=EXACT_NATS)
    assert score.logprob < -20
    assert not score.is_greedy


def test_positions_tell_the_whole_distribution_where_it_is_asked_for(target: Target) -> None:
    text = PROMPT.format("kep") + "pek<|end|>"
    ids = tiny_reference.token_ids(text)
    places = [2, len(ids) - 3, len(ids) - 1]
    seen = []

    def choose(count: int) -> list[int]:
        seen.append(count)
        return places

    positions = ask(target, lambda client: text_positions(client, "n_probs", text, top=EVERY, choose=choose))
    assert seen == [len(ids)]
    rows = tiny_reference.logprobs(ids)
    for position, place in zip(positions, places, strict=True):
        assert (position.place, position.token) == (place, f"#{ids[place]}")
        assert len(position.top) == EVERY
        assert math.fsum(map(math.exp, position.top.values())) == pytest.approx(1, abs=1e-3)
        shared = [abs(position.top[f"#{token}"] - rows[place - 1, token]) for token in range(EVERY)]
        assert max(shared) < 0.1
        assert position.logprob == pytest.approx(rows[place - 1, ids[place]], abs=0.01, rel=HALVES)


def test_a_short_list_does_not_change_the_log_probability_of_the_text_itself(target: Target) -> None:
    text = PROMPT.format("kep") + "pxk"
    short = ask(target, lambda client: text_positions(client, "n_probs", text, top=2, choose=lambda n: range(n - 3, n)))
    whole = ask(
        target, lambda client: text_positions(client, "n_probs", text, top=EVERY, choose=lambda n: range(n - 3, n))
    )
    assert [p.logprob for p in short] == pytest.approx([p.logprob for p in whole], abs=1e-4)
    assert [len(p.top) for p in short] == [2, 3, 2]
    assert list(short[1].top)[2] == short[1].token  # it stands there, and is not among the two likeliest


def test_the_next_token_comes_with_its_rivals(target: Target) -> None:
    beginning = PROMPT.format("kep") + "p"
    listed = ask(target, lambda client: next_token(client, beginning, top=4))
    row = tiny_reference.logprobs(tiny_reference.token_ids(beginning))[-1]
    assert next(iter(listed)) == "e"
    assert len(listed) == 4
    assert listed["e"] == pytest.approx(row[ord("e")], abs=0.01, rel=HALVES)


def test_the_server_is_found_fit_in_its_own_way_and_unfit_by_echo(target: Target) -> None:
    assert way_of(target) == "n_probs"
    assert ask(target, lambda client: scoring_fault(client, "n_probs")) is None
    fault = ask(target, lambda client: scoring_fault(client, "echo"))
    assert fault is not None
    assert "ignore" in fault
    assert "say `engine: llamacpp`" in fault


def test_the_server_tells_the_size_of_its_vocabulary(target: Target) -> None:
    assert ask(target, vocabulary_tokens) == EVERY


def test_a_text_that_does_not_fit_is_an_error_and_never_cut(target: Target) -> None:
    long = PROMPT.format("a" * 600)
    with pytest.raises(TargetError, match=r"^HTTP 400: .*exceeds the available context size"):
        ask(target, scoring(long, ["b"]))


def test_a_continuation_of_nothing_has_no_score(target: Target) -> None:
    with pytest.raises(TargetError, match="adds no token"):
        ask(target, scoring(PROMPT.format("abc"), [""]))
