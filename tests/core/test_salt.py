"""Salted requests: other words in every run, and everything else as planned."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.errors import EvidenceError
from benchgate.model.arrivals import TracedRequest
from benchgate.model.request import LARGEST_SALT, Endpoint, ModelRequest, fill_conversation, text_request
from benchgate.model.run import LOAD_SALT
from benchgate.plan.media import data_url, noise_png, salted_media
from benchgate.plan.model import Material, PlannedRequest, RecordedRequest
from benchgate.plan.preview import longest_request
from benchgate.plan.salt import MARK_PIECES, Salter, run_salt, salted_vocabulary
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary, random_text
from benchgate.suite.schema import Suite
from tests.fakes.evidence import run

BLOCK = 16  # tokens of a prefix cache's block
SALTS = st.integers(1, LARGEST_SALT)
EIGHT = Vocabulary(tuple("w" * length for length in range(1, 9)), " ")  # no two of one length: the fewest allowed
METRICS = st.sampled_from([VOCABULARIES["words"], VOCABULARIES["letters"], EIGHT])


def suite(workload: Mapping[str, Any], stage: Mapping[str, Any] | None = None, **load: Any) -> Suite:
    swept = {"stage": "s", "concurrency": 2, "requests": 20, **(stage or {})}
    return Suite.model_validate(
        {
            "suite": "s",
            "seed": 7,
            "deployments": {"a": {"url": "http://a:1", "model": "m", "engine": "vllm"}},
            "baseline": "a",
            "candidate": "a",
            "load": {
                "workload": dict(workload),
                "sweep": [{key: value for key, value in swept.items() if value is not None}],
                "blocks": 2,
                "warmup": 2,
                **load,
            },
            "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
        }
    )


def both(plan: Plan, salt: int) -> tuple[list[PlannedRequest], list[PlannedRequest]]:
    """The requests of the first block as planned, and salted."""
    (group,) = plan.blocks[0].stages[0].classes
    salter = Salter(salt, group.vocabulary, group.generated)
    return list(group.requests), [salter.request(request) for request in group.requests]


def pieces(text: str, vocabulary: Vocabulary) -> list[str]:
    return text.split(vocabulary.between) if vocabulary.between else list(text)


def blocks(text: str, vocabulary: Vocabulary) -> set[tuple[str, ...]]:
    """Every stretch of so many pieces, wherever it begins."""
    found = pieces(text, vocabulary)
    return {tuple(found[at : at + BLOCK]) for at in range(len(found) - BLOCK + 1)}


def rewritten(text: str, vocabulary: Vocabulary, salt: int) -> str:
    prompt = Salter(salt, vocabulary).ask(text_request("completions", text, 1)).prompt
    assert prompt is not None
    return prompt


@given(SALTS, st.integers(0, 2**32), st.integers(1, 200), METRICS)
def test_a_made_up_text_keeps_its_length_and_its_pieces_are_others(
    salt: int, seed: int, tokens: int, vocabulary: Vocabulary
) -> None:
    text = random_text(vocabulary, tokens, np.random.default_rng(seed))
    found = rewritten(text, vocabulary, salt)
    assert len(pieces(found, vocabulary)) == tokens
    assert set(pieces(found, vocabulary)) <= set(vocabulary.pieces)
    if vocabulary is not EIGHT:
        assert len(found) == len(text)
    assert not blocks(found, vocabulary) & blocks(text, vocabulary)
    assert found == rewritten(text, vocabulary, salt)


@given(SALTS, SALTS, st.integers(0, 2**32))
def test_two_salts_share_no_block_of_a_prefix_cache(one: int, other: int, seed: int) -> None:
    if one == other:
        return
    for vocabulary in (VOCABULARIES["words"], VOCABULARIES["letters"]):
        text = random_text(vocabulary, 300, np.random.default_rng(seed))
        assert not blocks(rewritten(text, vocabulary, one), vocabulary) & blocks(
            rewritten(text, vocabulary, other), vocabulary
        )


@given(SALTS, st.data())
def test_texts_begin_alike_after_salting_as_far_as_they_did_before(salt: int, data: st.DataObject) -> None:
    vocabulary = VOCABULARIES["words"]
    words = st.lists(st.sampled_from(vocabulary.pieces[:4]), min_size=1, max_size=12)
    one, other = data.draw(words), data.draw(words)

    def shared(left: Sequence[str], right: Sequence[str]) -> int:
        return next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 99)

    salted = [rewritten(" ".join(text), vocabulary, salt).split(" ") for text in (one, other)]
    assert shared(*salted) == shared(one, other)
    assert (salted[0] == salted[1]) == (one == other)


@pytest.mark.parametrize("kind", ["words", "letters"])
def test_every_piece_moves_but_the_only_one_of_its_length(kind: str) -> None:
    vocabulary = VOCABULARIES[kind]
    other = salted_vocabulary(vocabulary, 5)
    assert sorted(other.pieces) == sorted(vocabulary.pieces)
    stayed = {before for before, after in zip(vocabulary.pieces, other.pieces, strict=True) if before == after}
    assert stayed == ({"government", "information"} if kind == "words" else set())
    assert salted_vocabulary(vocabulary, 0) is vocabulary


def test_where_lengths_are_too_few_any_piece_may_stand_for_any_other() -> None:
    other = salted_vocabulary(EIGHT, 5)
    assert all(before != after for before, after in zip(EIGHT.pieces, other.pieces, strict=True))


def test_a_piece_that_is_not_of_the_vocabulary_is_an_error_and_never_sent_unsalted() -> None:
    for kind, text in (("words", "time and year"), ("letters", "ab-c")):
        with pytest.raises(ValueError, match="in a synthetic prompt is not in its vocabulary"):
            rewritten(text, VOCABULARIES[kind], 5)


def test_salt_of_a_run_follows_from_its_id_and_is_never_none() -> None:
    ids = [f"run-{number}" for number in range(500)]
    salts = [run_salt(run_id) for run_id in ids]
    assert salts == [run_salt(run_id) for run_id in ids]
    assert len(set(salts)) == len(ids)
    assert all(1 <= salt <= LARGEST_SALT for salt in salts)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "embeddings", "rerank"])
def test_all_texts_of_every_endpoint_are_salted_and_the_rest_stays(endpoint: Endpoint) -> None:
    asked: dict[str, Any] = {"endpoint": endpoint, "input": 20, "body": {"top_p": 1}}
    if endpoint not in ("embeddings", "rerank"):
        asked["output"] = 4
    before, after = both(make_plan(suite(asked)), 5)
    for one, other in zip(before, after, strict=True):
        assert (one.index, one.offset_ns, one.seed, one.turn, one.leave) == (
            other.index, other.offset_ns, other.seed, other.turn, other.leave,
        )  # fmt: skip
        assert (one.ask.fields, one.ask.output_tokens, one.ask.stream) == (
            other.ask.fields, other.ask.output_tokens, other.ask.stream,
        )  # fmt: skip
        assert list(one.ask.content) == list(other.ask.content)
        texts, salted = list(texts_of(one.ask.content)), list(texts_of(other.ask.content))
        assert len(texts) == len(salted) == (9 if endpoint == "rerank" else 1)
        assert not set(texts) & set(salted)
        assert [len(text) for text in texts] == [len(text) for text in salted]


def texts_of(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, dict):
        return [text for key, value in content.items() if key not in ("role", "type") for text in texts_of(value)]
    return [text for value in content for text in texts_of(value)] if isinstance(content, list) else []


def test_conversations_repeat_what_was_said_and_keep_their_places_for_answers() -> None:
    plan = make_plan(suite({"input": 8, "output": 4, "session": {"turns": 3}}))
    before, after = both(plan, 5)
    said: list[str] = []
    for one, other in zip(before, after, strict=True):
        assert one.turn is not None
        said = said if one.turn.turn else []
        told = fill_conversation(other.ask, ["an answer"] * one.turn.turn).content["messages"]
        assert isinstance(told, list)
        users = [message["content"] for message in told if message["role"] == "user"]
        assert users[:-1] == said
        said = users
    assert not set(texts_of(before[0].ask.content)) & set(texts_of(after[0].ask.content))


def test_blocks_that_a_trace_shares_stay_shared() -> None:
    rows = [TracedRequest(0, 40, 1, (1, 2, 3)), TracedRequest(1, 40, 1, (1, 2, 4)), TracedRequest(2, 40, 1, (5, 2, 3))]
    trace = {"trace": "t.jsonl", "concurrency": None, "requests": 3, "block": 16}
    asked = suite({"input": 40, "output": 1}, trace)
    before, after = both(make_plan(asked, traces={"s": rows}), 5)
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        assert one.ask.prompt is not None
        assert other.ask.prompt is not None
        first = after[0].ask.prompt
        assert first is not None
        assert not blocks(one.ask.prompt, VOCABULARIES["words"]) & blocks(other.ask.prompt, VOCABULARIES["words"])
        shared = [other.ask.prompt.split()[at : at + 16] == first.split()[at : at + 16] for at in (0, 16)]
        assert shared == [[True, True], [True, True], [False, True]][number]


RECORDED = (
    RecordedRequest(
        (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a salt?"},
            {"role": "assistant", "content": "A mineral."},
            {"role": "user", "content": "And in a hash?"},
        )
    ),
    RecordedRequest(
        (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}},
                                         {"type": "text", "text": "What is this?"}]},
        )
    ),
    RecordedRequest(({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},)),
)  # fmt: skip


def recorded(salt: int, **workload: Any) -> list[Any]:
    made_of = Material(prompts={"p.jsonl": RECORDED})
    asked = suite({"prompts": "p.jsonl", "output": 4, **workload}, {"requests": 3})
    _, after = both(make_plan(asked, material=made_of), salt)
    messages = [request.ask.content["messages"] for request in after]
    return sorted(messages, key=lambda told: -len(told))  # in the order of the file


def test_recorded_texts_stay_behind_one_line_before_the_last_message_of_the_user() -> None:
    whole, pictured, silent = recorded(5)
    line, _, text = whole[-1]["content"].partition("\n")
    assert (len(line.split()), len(line), text) == (MARK_PIECES, 4 * 4 + 3, "And in a hash?")
    assert whole[:-1] == list(RECORDED[0].messages[:-1])
    parts = pictured[1]["content"]
    assert parts == [{"type": "image_url", "image_url": {"url": "data:,"}},
                     {"type": "text", "text": f"{line}\nWhat is this?"}]  # fmt: skip
    assert silent[0]["content"][0] == {"type": "text", "text": line}
    assert line not in str(recorded(6))
    asked = ModelRequest("responses", {"input": list(RECORDED[2].messages)}, 4, recorded=True)
    assert f"'type': 'input_text', 'text': '{line}'" in str(Salter(5, VOCABULARIES["words"]).ask(asked).content)


def test_recorded_conversations_that_are_held_have_the_line_before_every_turn() -> None:
    rows = (RecordedRequest(tuple({"role": "user", "content": f"question {n}"} for n in range(3))),)
    asked = suite({"prompts": "p.jsonl", "output": 4, "session": {"turns": 3}}, {"requests": 3})
    plan = make_plan(asked, material=Material(prompts={"p.jsonl": rows * 3}))
    _, after = both(plan, 5)
    turns = [texts_of(request.ask.content) for request in after]
    assert [len(turn) for turn in turns] == [1, 2, 3]
    assert turns[2][:2] == turns[1]
    assert turns[1][:1] == turns[0]
    assert all(text.endswith(f"\nquestion {n}") for n, text in enumerate(turns[2]))
    assert asked.load is not None
    longest = longest_request(asked.load, plan)
    assert longest is not None
    assert longest.input_tokens == 3 * (2 + MARK_PIECES) + 2 * 4  # three questions with their lines, two answers


def test_recorded_prompts_of_one_text_have_the_line_too() -> None:
    ask = ModelRequest("completions", {"prompt": "Once upon a time"}, 4, recorded=True)
    found = Salter(5, VOCABULARIES["words"]).ask(ask).prompt
    assert found is not None
    assert found.endswith("\nOnce upon a time")
    letters = Salter(5, VOCABULARIES["letters"]).ask(ask).prompt
    assert letters is not None
    assert len(letters) == MARK_PIECES + 1 + len("Once upon a time")


@given(SALTS, st.integers(1, 20), st.integers(1, 20))
def test_noise_pictures_change_in_every_pixel_and_stay_sound(salt: int, width: int, height: int) -> None:
    before = data_url(noise_png(width, height, np.random.default_rng(1)), "image/png")
    after = salted_media(before, salt)
    assert len(after) == len(before)
    assert salted_media(after, salt) == before  # the checksums are right, and every pixel was read
    one, other = (np.frombuffer(base64.b64decode(address.split(",")[1]), dtype=np.uint8) for address in (before, after))
    assert np.count_nonzero(one != other) >= width * height


def test_made_up_pictures_are_salted_and_those_from_files_are_not() -> None:
    drawn = suite({"input": 8, "output": 4, "images": {"width": 4, "height": 4}})
    from_files = suite({"input": 8, "output": 4, "images": {"files": ["cat.png"]}})
    cat = "data:image/png;base64,AAAA"
    for asked, changes in ((drawn, True), (from_files, False)):
        before, after = both(make_plan(asked, material=Material(media={("images", "cat.png"): (cat,)})), 5)
        for one, other in zip(before, after, strict=True):
            (text, url), (salted, salted_url) = texts_of(one.ask.content), texts_of(other.ask.content)
            assert text != salted
            assert (url != salted_url) is changes


@pytest.mark.parametrize(
    "media",
    [
        {"audio": {"duration": "100ms"}},
        {"audio": {"duration": "100ms", "part": "audio_url"}},
        {"videos": {"frames": 1, "width": 16, "height": 16}},
    ],
)
def test_generated_media_of_each_kind_are_salted(media: dict[str, Any]) -> None:
    for one, other in zip(*both(make_plan(suite({"input": 8, "output": 4, **media})), 5), strict=True):
        parts: list[Any] = [ask.content["messages"] for ask in (one.ask, other.ask)]
        (text, medium), (salted, salted_medium) = (messages[0]["content"] for messages in parts)
        assert text != salted
        assert medium != salted_medium
        assert medium.keys() == salted_medium.keys()


def test_recording_to_be_transcribed_is_salted_unless_it_is_a_file() -> None:
    recording = "data:audio/wav;base64,UklGRg=="
    for audio, changes in (({"duration": "1s"}, True), ({"files": ["a.wav"]}, False)):
        asked = suite({"endpoint": "transcriptions", "audio": audio})
        plan = make_plan(asked, material=Material(media={("audio", "a.wav"): (recording,)}))
        for one, other in zip(*both(plan, 5), strict=True):
            assert (one.ask.content["file"] != other.ask.content["file"]) is changes


def test_a_salt_changes_no_hash_and_turning_it_off_changes_the_measurement_alone() -> None:
    salted, plain = (suite({"input": 8, "output": 4}, salt=salt) for salt in (True, False))
    assert make_plan(salted).sha256 == make_plan(plain).sha256
    assert measurement_sha256(salted, make_plan(salted)) != measurement_sha256(plain, make_plan(plain))
    loads = [one.to_stored()["load"] for one in (salted, plain)]
    assert [isinstance(load, dict) and load.get("salt") for load in loads] == [None, False]
    assert Suite.from_stored(plain.to_stored()) == plain


def test_a_run_without_a_salt_was_sent_as_planned_and_a_damaged_one_says_so() -> None:
    assert replace(run(), environment={}).load_salt == 0
    assert replace(run(), environment={LOAD_SALT: 12}).load_salt == 12
    for damaged in ("12", -1, True, None):
        with pytest.raises(EvidenceError, match=r"load_salt .*, which is invalid; the store is damaged"):
            _ = replace(run(), environment={LOAD_SALT: damaged}).load_salt
