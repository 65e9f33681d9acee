"""Fixed texts read by real servers: scripted ones that state every probability, and the embedded engine."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate.embedded.server import serve
from benchgate.errors import SuiteError
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceObservation, FloatArray, ProbabilitySource
from benchgate.plan.items import FixedText, Piece, planned_pieces
from benchgate.quality.divergence import PositionReading, diverge, load_texts, read_piece
from benchgate.quality.logprobs import Position, positions_by_n_probs, read_next, token_ids
from benchgate.suite.deployment import Embedded
from benchgate.suite.quality import Divergence
from benchgate.suite.schema import Limits
from benchgate.targets.client import AsyncJsonClient
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes import tiny_reference
from tests.fakes.echoing import Echoing, told
from tests.fakes.scripted_server import Received, Respond, ScriptedServer, Step, answering, json_response

WORDS = "one two three four five six seven eight nine ten eleven twelve"
TEXTS = tuple(FixedText(f"t{number}", f"{WORDS} {number}") for number in range(6))
DATA = Path(__file__).parents[2] / "suites" / "data"


def settings(**changes: object) -> Divergence:
    return Divergence.model_validate({"texts": "unused", "positions": 12, "top": 3, **changes})


def target(arm: Arm, url: str, engine: str = "vllm") -> Target:
    return Target(arm, url, "scripted", DIALECTS[engine], "key-5b21")


def read(
    baseline: Respond, candidate: Respond, *, pieces: tuple[Piece, ...] | None = None, **changes: object
) -> DivergenceObservation:
    asked = settings(**changes)
    chosen = pieces or planned_pieces(TEXTS, asked.window, asked.positions, seed=3)
    with ScriptedServer(baseline) as ours, ScriptedServer(candidate) as theirs:
        arms = {Arm.BASELINE: target(Arm.BASELINE, ours.url), Arm.CANDIDATE: target(Arm.CANDIDATE, theirs.url)}
        [seen] = diverge(arms, chosen, asked, 3, Limits())
    return seen


def listing(**probabilities: float) -> dict[str, float]:
    return {f" {token}": math.log(p) for token, p in probabilities.items()}


def completing(top: Mapping[str, float], *, changing: bool = True) -> Respond:
    """A server that neither echoes nor tells what a text is worth, but what it would have written next."""

    def respond(received: Received) -> Iterator[Step]:
        if "echo" in (received.body or {}) or not received.prompt:
            yield json_response({"error": {"message": "no such thing"}}, status=400)
            return
        last = received.prompt.split()[-1]
        named = {f"{name}{last}" if changing else name: value for name, value in top.items()}
        choice = {"text": "x", "finish_reason": "length", "logprobs": {"top_logprobs": [named]}}
        yield json_response({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})

    return respond


def test_server_that_echoes_is_read_once_for_every_piece() -> None:
    half = {f" {word}": math.log(0.5) for word in WORDS.split()}
    quarter = {f" {word}": math.log(0.25) for word in WORDS.split()}
    seen = read(Echoing(values=half), Echoing(values=quarter))
    assert (seen.fault, seen.way, seen.whole, seen.expected_n, len(seen.items)) == (None, "echo", False, 12, 12)
    of_words = [item for item in seen.items if item.baseline_ln == math.log(0.5)]
    assert len(of_words) >= 6
    # Both list the word and "likely", which has 1/e everywhere; the rest is one.
    p, q, likely = 0.5, 0.25, math.exp(-1)
    rest = (1 - p - likely) * math.log((1 - p - likely) / (1 - q - likely))
    for item in of_words:
        assert item.kld == pytest.approx(p * math.log(2) + rest, abs=1e-6)
        assert (item.bound, item.shared, item.candidate_ln) == (True, 2, math.log(0.25))
        assert not item.same_top1


def test_why_a_stronger_way_was_not_taken_is_kept() -> None:
    seen = read(Echoing(), Echoing())
    assert len(seen.passed_over) == 1 and seen.passed_over[0].startswith("n_probs: baseline: ")


def test_baseline_asked_again_is_held_against_itself() -> None:
    seen = read(Echoing(), Echoing(values={" ten": -0.5}), repeat_baseline=True)
    assert {(item.floor_kld, item.floor_same_top1) for item in seen.items} == {(0.0, True)}
    assert any(item.kld > 0 for item in seen.items)


def test_baseline_asked_again_must_have_read_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Piece, int] = {}

    async def read_otherwise(
        client: AsyncJsonClient, way: ProbabilitySource, piece: Piece, top: int, seed: int
    ) -> tuple[int, list[PositionReading]]:
        tokens, seen = await read_piece(client, way, piece, top, seed)
        if seed == 0 or (client.target is not None and client.target.arm is Arm.CANDIDATE):  # 0: the probe of a way
            return tokens, seen
        asked[piece] = asked.get(piece, 0) + 1
        return tokens, seen if asked[piece] == 1 else [replace(one, token="#other") for one in seen]

    monkeypatch.setattr("benchgate.quality.divergence.read_piece", read_otherwise)
    seen = read(Echoing(), Echoing(), repeat_baseline=True)
    assert seen.items == ()
    assert seen.fault is not None and "the repeated baseline makes other tokens at place" in seen.fault


def test_server_that_only_completes_is_asked_after_every_cut() -> None:
    seen = read(completing(listing(a=0.6, b=0.2)), completing(listing(a=0.3, b=0.25)))
    assert (seen.fault, seen.way, len(seen.items)) == (None, "cut", 12)
    expected = 0.6 * math.log(2) + 0.2 * math.log(0.8) + 0.2 * math.log(0.2 / 0.45)
    for item in seen.items:
        assert item.kld == pytest.approx(expected)
        assert (item.baseline_ln, item.candidate_ln, item.bound) == (None, None, True)
    assert [reason.split(":")[0] for reason in seen.passed_over] == ["n_probs", "echo"]


def test_token_that_is_half_a_character_names_none() -> None:
    seen = read(
        completing({" a": math.log(0.5), " b": math.log(0.3), "\ufffd": math.log(0.1)}),
        completing({" a": math.log(0.5), " b": math.log(0.3), "\ufffd": math.log(0.001)}),
        way="cut",
    )
    assert {item.shared for item in seen.items} == {2}
    assert max(item.kld for item in seen.items) == pytest.approx(0, abs=1e-9)


def test_without_any_way_the_reasons_are_told_for_each() -> None:
    chatting = answering(lambda received: "a text without probabilities")
    seen = read(Echoing(), chatting)
    assert seen.items == () and seen.way is None
    assert seen.fault is not None and seen.fault.startswith("no way to the probabilities of a text works on both arms")
    assert all(f"{way}: " in seen.fault for way in ("n_probs", "echo", "cut"))


def test_way_that_the_suite_names_is_not_changed_for_another() -> None:
    seen = read(Echoing(), Echoing(), way="n_probs")
    assert seen.way is None and seen.fault is not None and "echo:" not in seen.fault


def test_arms_with_other_tokens_are_not_compared() -> None:
    seen = read(Echoing(), Echoing(tokenise=list))
    assert seen.items == ()
    assert seen.fault is not None and "their tokenizers differ" in seen.fault


def test_server_that_tells_the_same_everywhere_does_not_read() -> None:
    fixed = listing(a=0.6, b=0.2)
    seen = read(completing(fixed, changing=True), completing(fixed, changing=False))
    assert seen.fault is not None and "the candidate lists the same probabilities at every position" in seen.fault


def test_server_that_holds_everything_for_equally_probable_is_no_model() -> None:
    seen = read(completing(listing(a=0.2, b=0.2)), completing(listing(a=0.6, b=0.2)))
    assert seen.way is None and seen.fault is not None
    assert "every token as equally probable" in seen.fault


def test_arm_that_lists_much_less_than_was_asked_for_is_refused_and_told_what_to_write() -> None:
    seen = read(Echoing(), Echoing(), top=5)
    assert seen.way is None and seen.fault is not None
    assert "it lists 2 of 5 requested tokens; write `divergence.top: 2`" in seen.fault


def test_probabilities_that_add_up_to_more_than_one_are_no_models() -> None:
    """They would be near whatever the baseline lists."""
    seen = read(completing(listing(a=0.6, b=0.2)), completing(listing(a=0.99, b=0.9)))
    assert seen.way is None and seen.fault is not None and "add up to 1.89" in seen.fault
    certain = read(Echoing(), Echoing(values={" ten": -1e-9, " eleven": -1e-9, " twelve": -1e-9}), way="echo")
    assert certain.fault is not None and "add up to 1.37" in certain.fault


def test_token_whose_probability_llamacpp_computed_as_nothing_is_left_out_of_its_list() -> None:
    parts = [{"id": 1, "logprob": -1e-7}, {"id": 2, "logprob": -3.4028234663852886e38}]
    answer = {"completion_probabilities": [{**parts[0], "top_logprobs": parts}]}
    assert read_next(answer, 1, 2).top == {1: -1e-7}


def nan_in(text: str) -> Respond:
    """An echoing server that tells nonsense of one text."""

    def spoil(document: dict[str, Any]) -> None:
        if document["choices"][0]["text"].startswith(text):
            told(document)["token_logprobs"][-3] = 0.5

    return Echoing(spoil=spoil)


def test_piece_of_which_one_arm_tells_nonsense_is_named_and_the_others_kept() -> None:
    pieces = planned_pieces(TEXTS, 2048, 12, seed=3)
    seen = read(Echoing(), nan_in(pieces[3].text), pieces=pieces)
    assert len(seen.items) == 12 - pieces[3].positions
    assert seen.fault is not None
    assert f"1 of 6 pieces could not be read, first text {pieces[3].text_id}, piece 1: candidate: " in seen.fault
    assert "above zero" in seen.fault


def test_piece_with_too_few_positions_is_no_silent_loss() -> None:
    pieces = (Piece("short", 0, "one two", 5), *planned_pieces(TEXTS, 2048, 12, seed=3))
    seen = read(Echoing(), Echoing(), pieces=pieces)
    assert seen.expected_n == 17 and len(seen.items) == 12
    assert seen.fault is not None and "its second half has 1 positions, and 5 are requested" in seen.fault


def test_deployment_that_is_gone_is_not_asked_on() -> None:
    asked: list[str] = []

    def gone(received: Received) -> Iterator[Step]:
        asked.append(received.prompt)
        if len(asked) <= 1:
            yield from Echoing()(received)
        else:
            yield json_response({"error": {"message": "out of memory"}}, status=400)

    texts = [FixedText(f"t{number}", f"{WORDS} {number}") for number in range(40)]
    seen = read(Echoing(), gone, pieces=planned_pieces(texts, 2048, 40, 3), way="echo", concurrency=1)
    assert seen.fault is not None and "5 of 40 pieces" in seen.fault and "out of memory" in seen.fault
    assert len(asked) == 7  # the probe's two, and five pieces


def test_interrupt_keeps_what_was_read_and_goes_on() -> None:
    calls = 0

    def interrupting(received: Received) -> Iterator[Step]:
        nonlocal calls
        calls += 1
        if calls == 6:
            signal.raise_signal(signal.SIGINT)
        yield from Echoing()(received)

    asked = settings(way="echo", concurrency=1)
    pieces = planned_pieces(TEXTS, asked.window, asked.positions, seed=3)
    with ScriptedServer(Echoing()) as ours, ScriptedServer(interrupting) as theirs:
        arms = {Arm.BASELINE: target(Arm.BASELINE, ours.url), Arm.CANDIDATE: target(Arm.CANDIDATE, theirs.url)}
        reading = diverge(arms, pieces, asked, 3, Limits())
        seen = next(reading)
        with pytest.raises(KeyboardInterrupt):
            next(reading)
    assert seen.fault == "interrupted" and 0 < len(seen.items) < 12


def test_file_of_texts_tells_every_mistake_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b", "txt": "x"}\n{"id": "c", "text": " "}\n', encoding="utf-8")
    with pytest.raises(SuiteError) as caught:
        load_texts(path, settings())
    told_of = [(problem.line, problem.message) for problem in caught.value.problems]
    assert [line for line, _ in told_of] == [2, 2, 3]
    assert "did you mean 'text'?" in told_of[1][1]


def test_texts_without_room_for_the_positions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"id": "a", "text": WORDS}) + "\n", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"room for 3 positions .* `divergence\.positions` is 12"):
        load_texts(path, settings())


# The embedded engine.

EACH = 12


def tiny_texts() -> list[FixedText]:
    """Of the tasks it was trained on, as it saw them."""
    texts = []
    for task in ("fact", "reverse"):
        for line in (DATA / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:EACH]:
            row = json.loads(line)
            texts.append(FixedText(row["id"], f"<|user|>{row['prompt']}<|assistant|>{row['answer']}<|end|>"))
    return texts


TINY = {text.id: text.text for text in tiny_texts()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """The same model in four precisions."""
    cache = tmp_path_factory.mktemp("weights")
    with ExitStack() as stack:
        targets = {}
        for kind in ("f16", "q8_0", "q4_0", "q2_k"):
            spec = Embedded.model_validate({"weights": kind})
            server = stack.enter_context(serve(spec, name=kind, cache_dir=cache))
            targets[kind] = replace(target(Arm.BASELINE, server.url, "llamacpp"), model=server.model)
        yield targets


def read_served(targets: Mapping[str, Target], candidate: str, **changes: object) -> DivergenceObservation:
    asked = settings(positions=2 * EACH, **{"top": 20, **changes})
    pieces = planned_pieces(tiny_texts(), 200, asked.positions, seed=3)
    arms = {Arm.BASELINE: targets["f16"], Arm.CANDIDATE: replace(targets[candidate], arm=Arm.CANDIDATE)}
    [seen] = diverge(arms, pieces, asked, 3, Limits())
    assert len(seen.items) == 2 * EACH
    return seen


def asked_directly(asked: Target, ids: list[int]) -> FloatArray:
    """ln p of the whole vocabulary after these tokens, by nothing of benchgate's."""
    body = {"prompt": ids, "n_predict": 1, "n_probs": 264, "post_sampling_probs": False, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{asked.url}/completion", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        found = json.load(response)["completion_probabilities"][0]["top_logprobs"]
    by_id = {part["id"]: part["logprob"] for part in found}
    return np.array([by_id[token] for token in range(264)], dtype=np.float64)


def kl(p: FloatArray, q: FloatArray) -> float:
    return float(np.sum(np.exp(p) * (p - q)))


@pytest.mark.slow
def test_divergence_grows_with_what_quantising_took_and_is_that_of_a_referee(served: dict[str, Target]) -> None:
    seen = {kind: read_served(served, kind) for kind in ("f16", "q8_0", "q4_0", "q2_k")}
    for one in seen.values():
        assert (one.fault, one.way, one.whole, one.top) == (None, "n_probs", True, 264)
        assert not any(item.bound for item in one.items)
    mean = {kind: float(np.mean([item.kld for item in one.items])) for kind, one in seen.items()}
    assert mean["f16"] < 1e-6
    assert mean["f16"] < mean["q8_0"] < 0.005 < mean["q4_0"] < 0.1 < mean["q2_k"]
    for item in seen["q2_k"].items[::6]:
        ids = tiny_reference.token_ids(TINY[item.text_id])
        p = tiny_reference.logprobs(ids)[item.position - 1]
        q = asked_directly(served["q2_k"], ids[: item.position])
        assert item.kld == pytest.approx(kl(p, q), rel=0.05, abs=0.002)
        assert item.baseline_ln == pytest.approx(float(p[ids[item.position]]), rel=0.01, abs=0.03)
        assert item.candidate_ln == pytest.approx(float(q[ids[item.position]]), rel=0.01, abs=0.03)


@pytest.mark.slow
def test_bound_by_few_tokens_stays_below_the_divergence_of_the_whole_vocabulary(served: dict[str, Target]) -> None:
    seen = read_served(served, "q2_k", way="cut", top=5)
    assert (seen.fault, seen.way, seen.whole) == (None, "cut", False)
    for item in seen.items[:8]:
        ids = tiny_reference.token_ids(TINY[item.text_id][: item.position])
        p, q = asked_directly(served["f16"], ids), asked_directly(served["q2_k"], ids)
        assert item.bound and item.kld <= kl(p, q) + 1e-4
        assert item.same_top1 == (int(np.argmax(p)) == int(np.argmax(q)))
    assert float(np.mean([item.kld for item in seen.items])) > 0


@pytest.mark.slow
def test_a_real_engines_tokens_inside_characters_have_their_probabilities(served: dict[str, Target]) -> None:
    """It shows nothing of the first byte of `é` when it takes it, for its character is not whole then."""
    asked = served["f16"]

    async def read() -> tuple[tuple[int, ...], list[Position]]:
        async with AsyncJsonClient(asked, connect_s=5, total_s=20, connections=1) as client:
            ids = await token_ids(client, "one é")
            return ids, await positions_by_n_probs(client, "one é", 3, lambda n: range(1, n))

    ids, positions = asyncio.run(read())
    assert [one.place for one in positions] == list(range(1, len(ids)))
    for one in positions:
        direct = asked_directly(asked, list(ids[: one.place]))
        assert one.logprob == pytest.approx(direct[ids[one.place]], abs=1e-2)
