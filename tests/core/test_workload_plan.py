"""What a plan makes of lengths, shared prefixes, conversations, classes, clients that leave, and recorded prompts."""

import base64
import json
import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchgate.model.arrivals import TracedRequest
from benchgate.model.request import ModelRequest, fill_conversation
from benchgate.plan.media import data_of, noise_png
from benchgate.plan.model import (
    ClientCancellation,
    Material,
    ObservedLengths,
    PlannedClass,
    PlannedRequest,
    PlannedStage,
    RecordedRequest,
)
from benchgate.plan.preview import longest_request, shared_prefix_ratios
from benchgate.plan.schedule import Plan, make_plan, planned_stage
from benchgate.plan.vocabulary import Vocabulary
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite


def suite(workload: Mapping[str, Any], stage: Mapping[str, Any] | None = None, **load: Any) -> Suite:
    swept = {"stage": "s", "concurrency": 2, "requests": 40, **(stage or {})}
    swept = {key: value for key, value in swept.items() if value is not None}
    return Suite.model_validate(
        {
            "suite": "s",
            "seed": 7,
            "deployments": {"a": {"url": "http://a:1", "model": "m", "engine": "vllm"}},
            "baseline": "a",
            "candidate": "a",
            "load": {"workload": dict(workload), "sweep": [swept], "blocks": 2, "warmup": 5, **load},
            "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
        }
    )


def planned(workload: Mapping[str, Any], stage: Mapping[str, Any] | None = None, **made_of: Any) -> Plan:
    return make_plan(suite(workload, stage), **made_of)


def requests(plan: Plan, block: int = 0) -> tuple[PlannedRequest, ...]:
    return plan.blocks[block].stages[0].requests


def words(ask: ModelRequest) -> list[str]:
    assert ask.prompt is not None
    return ask.prompt.split(" ")


def test_same_seed_gives_the_same_plan_of_everything_that_is_left_to_chance() -> None:
    everything = {
        "input": {"uniform": [20, 40]}, "output": {"lognormal": {"median": 9, "sigma": 1}}, "prefix": {"share": "50%"},
        "session": {"turns": {"uniform": [1, 4]}, "think": {"uniform": ["1s", "2s"]}}, "images": {"width": 2},
        "leave": {"share": "20%", "after": "3 tokens"},
    }  # fmt: skip
    assert planned(everything).sha256 == planned(everything).sha256
    assert make_plan(suite(everything).model_copy(update={"seed": 8})).sha256 != planned(everything).sha256


@pytest.mark.parametrize(
    ("length", "least", "most", "middle"),
    [
        ({"uniform": [10, 50]}, 10, 50, (24, 36)),
        ({"normal": {"mean": 60, "sd": 20, "min": 30, "max": 90}}, 30, 90, (54, 66)),
        ({"lognormal": {"median": 60, "sigma": 1, "max": 400}}, 1, 400, (48, 75)),
        ({"file": "seen.csv"}, 11, 33, (22, 22)),
    ],
)
def test_lengths_are_drawn_from_their_distribution(
    length: dict[str, Any], least: int, most: int, middle: tuple[int, int]
) -> None:
    seen = Material(lengths={"seen.csv": [ObservedLengths(n, 1) for n in (11, 22, 33)]})
    plan = planned({"input": length, "output": 4}, {"requests": 400}, material=seen)
    found = [len(words(request.ask)) for request in requests(plan)]
    assert (min(found) >= least, max(found) <= most, len(set(found)) > 2) == (True, True, True)
    assert middle[0] <= float(np.median(found)) <= middle[1]
    assert found != [len(words(request.ask)) for request in requests(plan, 1)]


def test_lengths_of_one_file_are_drawn_together() -> None:
    seen = Material(lengths={"seen.csv": [ObservedLengths(n, 10 * n) for n in (3, 5, 7)]})
    both = {"input": {"file": "seen.csv"}, "output": {"file": "seen.csv"}}
    found = {(len(words(r.ask)), r.ask.output_tokens) for r in requests(planned(both, material=seen))}
    assert found == {(3, 30), (5, 50), (7, 70)}


def test_prompts_share_one_of_so_many_beginnings_in_all_blocks() -> None:
    plan = planned({"input": 40, "output": 4, "prefix": {"groups": 3, "tokens": 30}})
    prompts = [words(r.ask) for block in (0, 1) for r in requests(plan, block)]
    assert {len(prompt) for prompt in prompts} == {40}
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 3
    assert len({tuple(prompt[:31]) for prompt in prompts}) > 30
    warm = {tuple(words(r.ask)[:30]) for r in plan.warmup[0].requests}
    assert warm <= {tuple(prompt[:30]) for prompt in prompts}


def test_share_of_a_prompt_is_its_beginning() -> None:
    plan = planned({"input": {"uniform": [10, 60]}, "output": 4, "prefix": {"share": "50%"}})
    longest = max((words(r.ask) for r in requests(plan)), key=len)
    for request in requests(plan):
        prompt = words(request.ask)
        half = round(len(prompt) / 2)
        assert prompt[:half] == longest[:half]
        assert prompt[half:] != longest[half : len(prompt)] or prompt == longest


def test_adapters_are_drawn_by_their_weights_and_nothing_else_changes() -> None:
    names = ["a", "b", "c", "d"]
    stage = {"requests": 1200}
    plain = planned({"input": 8, "output": 4}, stage)
    plan = planned({"input": 8, "output": 4, "adapter": {"names": names, "weights": "zipf"}}, stage)
    sent = Counter(request.ask.model for block in (0, 1) for request in requests(plan, block))
    assert [sent[name] / sent["a"] for name in names] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], abs=0.05)
    alike = planned({"input": 8, "output": 4, "adapter": {"names": names}}, stage)
    evenly = Counter(request.ask.model for request in requests(alike))
    assert [evenly[name] for name in names] == pytest.approx([300] * 4, abs=50)
    assert [(r.ask.prompt, r.seed) for r in requests(plan)] == [(r.ask.prompt, r.seed) for r in requests(plain)]
    assert [r.ask.model for r in requests(plan)] != [r.ask.model for r in requests(plan, 1)]
    # A conversation keeps its adapter, and a request's number tells it again.
    talks = planned({"input": 8, "output": 4, "adapter": {"names": names}, "session": {"turns": 3}}, {"requests": 40})
    (traffic,) = suite({"input": 8, "output": 4, "adapter": {"names": names}, "session": {"turns": 3}}).load.classes()  # type: ignore[union-attr]
    assert len({request.turn.session: request.ask.model for request in requests(talks) if request.turn}) == 14
    for request in requests(talks, 1):
        assert request.ask.model == traffic.adapter_of(7, 1, request.index)
        assert request.ask.model == requests(talks, 1)[request.index // 3 * 3].ask.model


@pytest.mark.parametrize(("order", "weights"), [("shuffled", "uniform"), ("fixed", "zipf")])
def test_prompts_begin_with_documents_of_a_common_pool(order: str, weights: str) -> None:
    drawn = {"pool": 12, "each": 3, "tokens": 10, "order": order, "weights": weights}
    plan = planned({"input": 50, "output": 4, "retrieval": drawn, "prefix": {"tokens": 5}}, {"requests": 200})
    prompts = [words(request.ask) for block in (0, 1) for request in requests(plan, block)]
    assert ({len(prompt) for prompt in prompts}, len({tuple(prompt[:5]) for prompt in prompts})) == ({50}, 1)
    chosen = [tuple(" ".join(prompt[at : at + 10]) for at in (5, 15, 25)) for prompt in prompts]
    counts = Counter(document for documents in chosen for document in documents)
    assert (len(counts), {len(set(documents)) for documents in chosen}) == (12, {3})  # no document twice in a prompt
    (_, most), *_, (_, least) = counts.most_common()
    assert (most > 4 * least) is (weights == "zipf")
    followed = {(a, b) for documents in chosen for a, b in pairwise(documents)}
    assert any((b, a) in followed for a, b in followed) is (order == "shuffled")
    assert len({tuple(prompt[35:]) for prompt in prompts}) == len(prompts)  # questions of their own
    short = planned({"input": {"uniform": [20, 40]}, "output": 4, "retrieval": {**drawn, "pool": 4}})
    assert all(20 <= len(words(request.ask)) <= 40 for request in requests(short))


def test_share_of_prompts_that_a_prefix_cache_can_find_is_forecast() -> None:
    def share(workload: Mapping[str, Any]) -> float:
        return shared_prefix_ratios(planned({"input": 128, "output": 4, **workload}, {"requests": 100}))["s"]

    assert share({}) == 0
    assert share({"prefix": {"tokens": 64}}) == pytest.approx(0.5 * 204 / 205)  # all but the first of 5 + 2 x 100
    # Of 6 x 5 pairs of documents in order, about all are met soon: each prompt then shares both, 4 blocks of 8.
    both = share({"retrieval": {"pool": 6, "each": 2, "tokens": 32}})
    assert 0.4 < both < 0.5
    fixed = share({"retrieval": {"pool": 60, "each": 2, "tokens": 32, "order": "fixed"}})
    shuffled = share({"retrieval": {"pool": 60, "each": 2, "tokens": 32}})
    assert shuffled < fixed < both


def test_vocabulary_of_a_tokenizer_is_all_that_prompts_are_made_of() -> None:
    made_of = Material(vocabularies={("server", "words"): Vocabulary(("uno", "due"), "_")})
    plan = planned({"input": 9, "output": 4, "tokenizer": "server"}, material=made_of)
    texts = [r.ask.prompt or "" for r in requests(plan)]
    assert {word for text in texts for word in text.split("_")} == {"uno", "due"}
    assert {len(text.split("_")) for text in texts} == {9}


ROWS = [
    (0, 700, (1, 2)), (1, 1500, (1, 2, 3)), (2, 1024, (4, 5)), (3, 1536, (1, 2, 6)), (4, 600, (4, 5)),
    (5, 900, (1, 2)), (6, 512, (4,)), (7, 700, (7, 8)),
]  # fmt: skip


def trace(rows: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[TracedRequest]:
    return [TracedRequest(at * 1000, length, 5, ids) for at, length, ids in rows]


def hits(prompts: Sequence[Sequence[object]], block: int) -> tuple[int, int]:
    """Whole leading blocks that an endless prefix cache has seen, and all tokens: what a server would count."""
    seen: set[tuple[object, ...]] = set()
    hit = 0
    for prompt in prompts:
        begins = [tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block)]
        for begin in begins:
            if begin not in seen:
                break
            hit += block
        seen.update(begins)
    return hit, sum(len(prompt) for prompt in prompts)


def test_hits_that_prompts_imply_are_those_that_the_hashes_imply() -> None:
    plan = planned(
        {"input": 9, "output": 4}, {"concurrency": None, "trace": "t.jsonl", "requests": 8}, traces={"s": trace(ROWS)}
    )
    prompts = [words(request.ask) for request in requests(plan)]
    assert [len(prompt) for prompt in prompts] == [length for _, length, _ in ROWS]
    # By hand, in blocks of 512: row 2 has block (1), for the second block of row 1 was not whole. Row 4 has (1, 2) of
    # row 2, row 5 has (4) of row 3, row 6 has (1), row 7 has (4).
    assert hits(prompts, 512) == (6 * 512, sum(length for _, length, _ in ROWS))
    # A cache with blocks of 4 also finds what is common of blocks that are not whole: 700 of row 2, 88 more of row 5, …
    assert hits(prompts, 4)[0] == 700 + 1024 + 600 + 900 + 512


def test_equal_hashes_are_other_texts_in_another_block_of_the_run() -> None:
    plan = planned(
        {"input": 9, "output": 4}, {"concurrency": None, "trace": "t.jsonl", "requests": 8}, traces={"s": trace(ROWS)}
    )
    first, second = (words(requests(plan, block)[0].ask) for block in (0, 1))
    assert first[:8] != second[:8]
    assert words(plan.warmup[0].requests[0].ask)[:8] not in (first[:8], second[:8])


def test_conversation_repeats_what_was_said_and_carries_the_answers() -> None:
    workload = {"input": 6, "output": 4, "session": {"turns": 3, "think": "2s"}, "prefix": {"tokens": 4}}
    plan = planned(workload, {"requests": 8})
    found = requests(plan)
    turns = [request.turn for request in found]
    assert [(t.session, t.turn, t.last, t.think_s, t.carries) for t in turns if t is not None] == [
        (0, 0, False, 0.0, False), (0, 1, False, 2.0, True), (0, 2, True, 2.0, True),
        (1, 0, False, 0.0, False), (1, 1, False, 2.0, True), (1, 2, True, 2.0, True),
        (2, 0, False, 0.0, False), (2, 1, True, 2.0, True),
    ]  # fmt: skip
    assert [request.index for request in found] == list(range(8))
    whole = fill_conversation(found[2].ask, ["one", "two"]).content["messages"]
    assert isinstance(whole, list)
    assert [message["role"] for message in whole] == ["user", "assistant", "user", "assistant", "user"]
    assert [whole[1]["content"], whole[3]["content"]] == ["one", "two"]
    assert whole[0] == {"role": "user", "content": found[0].ask.prompt}
    with pytest.raises(ValueError, match="2 places for answers and 1 answers"):
        fill_conversation(found[2].ask, ["one"])


def test_open_conversations_begin_at_instants_and_go_on_when_they_can() -> None:
    workload = {"input": 6, "output": 4, "session": {"turns": 4}}
    plan = planned(workload, {"concurrency": None, "rate": "4/s", "requests": 40})
    group = plan.blocks[0].stages[0].only
    begun = [r.offset_ns for r in group.requests if r.offset_ns is not None]
    assert (len(group.requests), len(begun), group.rate_rps) == (40, 10, 4.0)
    assert begun == sorted(begun)
    assert all(r.offset_ns is None for r in group.requests if r.turn is not None and r.turn.turn > 0)
    assert group.peak_rps is not None
    assert group.peak_rps <= 10


def test_share_of_the_clients_leaves_the_same_number_in_every_block() -> None:
    plan = planned({"input": 6, "output": 40, "leave": {"share": "25%", "after": "20 tokens"}})
    leaving = [[r.index for r in requests(plan, block) if r.leave is not None] for block in (0, 1)]
    assert [len(found) for found in leaving] == [10, 10]
    assert leaving[0] != leaving[1]
    assert {r.leave for r in requests(plan)} == {None, ClientCancellation(20, None)}
    timed = planned({"input": 6, "output": 40, "leave": {"share": "100%", "after": "250ms"}})
    assert {r.leave for r in requests(timed)} == {ClientCancellation(None, 0.25)}


def test_client_leaves_a_conversation_in_its_last_turn() -> None:
    talk = {"input": 6, "output": 40, "session": {"turns": 4}, "leave": {"share": "50%", "after": "2 tokens"}}
    gone = [r.turn for r in requests(planned(talk)) if r.leave is not None]
    assert len(gone) == 5
    assert all(turn is not None and turn.last for turn in gone)


def test_classes_of_a_stage_are_planned_beside_each_other() -> None:
    classes = {
        "people": {"rate": "2/s", "requests": 9, "priority": 3},
        "batch": {"workload": "long", "concurrency": 20, "background": True},
    }
    asked = suite(
        {"input": 6, "output": 4},
        {"concurrency": None, "requests": None, "classes": classes},
        workloads={"long": {"input": 30, "output": 4}},
    )
    plan = make_plan(asked)
    stage = plan.blocks[0].stages[0]
    people, batch = stage.classes
    assert [stage.observed_as(group) for group in stage.classes] == ["s/people", "s/batch"]
    assert (people.concurrency, people.rate_rps, len(people.requests), people.background) == (None, 2.0, 9, False)
    assert (batch.concurrency, len(batch.requests), batch.background) == (20, 80, True)
    assert {len(words(r.ask)) for r in batch.requests} == {30}
    assert {r.ask.fields.get("priority") for r in people.requests} == {3}
    assert {r.ask.prompt for r in people.requests}.isdisjoint(r.ask.prompt for r in plan.blocks[1].stages[0].requests)
    spelled = json.loads(plan.canonical)["blocks"][0]["stages"][0]
    assert set(spelled) == {"name", "classes"}
    assert [group["name"] for group in spelled["classes"]] == ["people", "batch"]


def chats(count: int, **more: Any) -> list[RecordedRequest]:
    return [RecordedRequest(({"role": "user", "content": f"question {n}"},), line=n + 1, **more) for n in range(count)]


def test_no_recorded_prompt_comes_twice_before_all_have_come_once() -> None:
    made_of = Material(prompts={"p.jsonl": chats(85)})
    plan = planned({"prompts": "p.jsonl", "output": 4}, material=made_of)
    sent = [r.ask.prompt for r in [*plan.warmup[0].requests, *requests(plan), *requests(plan, 1)]]
    assert Counter(sent) == Counter(f"question {n}" for n in range(85))
    again = planned({"prompts": "p.jsonl", "output": 4}, material=Material(prompts={"p.jsonl": chats(50)}))
    assert set(Counter(r.ask.prompt for r in requests(again)).values()) == {1}


def test_what_people_wrote_is_in_the_plan_by_its_digest_alone() -> None:
    rows = [
        RecordedRequest(({"role": "user", "content": f"secret {n}"},), 9, {"tools": [{"n": "secret"}]})
        for n in range(40)
    ]
    plan = planned({"prompts": "p.jsonl", "output": 4}, material=Material(prompts={"p.jsonl": rows}))
    assert b"secret" not in plan.canonical
    assert requests(plan)[0].ask.fields == {"tools": [{"n": "secret"}]}
    assert {r.ask.output_tokens for r in requests(plan)} == {9}
    other = [*rows[:-1], RecordedRequest(({"role": "user", "content": "other"},), 9)]
    changed = planned({"prompts": "p.jsonl", "output": 4}, material=Material(prompts={"p.jsonl": other}))
    assert changed.sha256 != plan.sha256


def test_recorded_conversation_is_led_again_without_its_recorded_answers() -> None:
    said = ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"},
            {"role": "assistant", "content": "old"}, {"role": "user", "content": "two"})  # fmt: skip
    talk = {"prompts": "p.jsonl", "output": 4, "session": {"turns": 5}}
    plan = planned(talk, {"requests": 4}, material=Material(prompts={"p.jsonl": [RecordedRequest(said)] * 4}))
    first, second, *_ = requests(plan)
    assert first.ask.content["messages"] == [said[0], said[1]]
    assert second.ask.content["messages"] == [said[0], said[1], {"role": "assistant", "content": None}, said[3]]
    assert [r.turn.last for r in requests(plan) if r.turn is not None] == [False, True, False, True]


def test_workload_adds_its_fields_to_every_request() -> None:
    schema = {"type": "object"}
    workload = {
        "input": 6, "output": 4, "stream": False, "adapter": "lora", "priority": 2, "body": {"top_p": 0.5},
        "tools": [{"type": "function"}], "schema": "s.json",
    }  # fmt: skip
    ask = requests(planned(workload, material=Material(schemas={"s.json": schema})))[0].ask
    assert (ask.stream, ask.model, ask.schema) == (False, "lora", schema)
    assert set(ask.fields) == {"priority", "top_p", "tools", "response_format"}
    free = requests(planned({**workload, "constrained": False}, material=Material(schemas={"s.json": schema})))[0].ask
    assert (free.schema, "response_format" in free.fields) == (schema, False)


def test_rerank_and_embeddings_generate_nothing() -> None:
    ranked = requests(planned({"endpoint": "rerank", "input": 6, "documents": 3}))[0].ask
    assert (ranked.output_tokens, ranked.stream) == (None, False)
    assert [len(str(text).split()) for text in ranked.content["documents"]] == [6, 6, 6]  # type: ignore[attr-defined]  # a list
    assert len(str(ranked.content["query"]).split()) == 16
    embedded = requests(planned({"endpoint": "embeddings", "input": 6}))[0].ask
    assert (embedded.output_tokens, embedded.stream, len(str(embedded.content["input"]).split())) == (None, False, 6)


def test_picture_is_a_png_of_its_size_and_each_another_one() -> None:
    plan = planned({"input": 6, "output": 4, "images": {"count": 2, "width": 7, "height": 5}})
    found = []
    for request in requests(plan)[:3]:
        message = request.ask.content["messages"][0]  # type: ignore[index]  # a list of one
        text, *pictures = message["content"]
        assert (text["type"], len(pictures)) == ("text", 2)
        found += [
            base64.b64decode(picture["image_url"]["url"].removeprefix("data:image/png;base64,")) for picture in pictures
        ]
    assert len(set(found)) == 6
    assert found[0].startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", found[0][16:24]) == (7, 5)


def test_media_are_parts_beside_the_text_in_the_first_turn_alone() -> None:
    media: dict[str, Any] = {
        "images": {"width": 2},
        "audio": {"duration": "100ms", "count": 2},
        "videos": {"frames": 1},
    }
    found = requests(planned({"input": 6, "output": 4, "session": {"turns": 2}, **media}))[1].ask.content["messages"]
    assert isinstance(found, list)
    parts = found[0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "input_audio", "input_audio", "video_url"]
    assert parts[2]["input_audio"]["format"] == "wav"
    assert parts[2] != parts[3]
    assert parts[4]["video_url"]["url"].startswith("data:video/mp4;base64,")
    assert isinstance(found[2]["content"], str)


def test_audio_is_an_address_where_the_suite_or_its_file_says_so() -> None:
    material = Material(
        media={("audio", "a.mp3"): ("data:audio/mpeg;base64,AAAA",), ("audio", "https://h/b"): ("https://h/b",)}
    )
    asked = suite({"input": 6, "output": 4, "audio": {"count": 2, "files": ["a.mp3", "https://h/b"]}})
    parts = requests(make_plan(asked, material=material))[0].ask.content["messages"][0]["content"]  # type: ignore[index]
    assert {part["type"]: part[part["type"]] for part in parts[1:]} == {
        "input_audio": {"data": "AAAA", "format": "mp3"},
        "audio_url": {"url": "https://h/b"},
    }
    spelled = requests(planned({"input": 6, "output": 4, "audio": {"part": "audio_url"}}))[0]
    assert spelled.ask.content["messages"][0]["content"][1]["type"] == "audio_url"  # type: ignore[index]


def test_transcription_is_one_recording_of_the_stated_length() -> None:
    drawn = requests(planned({"endpoint": "transcriptions", "audio": {"duration": {"uniform": ["1s", "2s"]}}}))
    sizes = {len(data_of(str(one.ask.content["file"]))) for one in drawn}
    assert len(sizes) > 1
    assert 44 + 32_000 <= min(sizes) <= max(sizes) <= 44 + 64_000
    (usual,) = {len(data_of(str(one.ask.content["file"]))) for one in requests(planned({"endpoint": "transcriptions"}))}
    assert usual == 44 + 5 * 32_000
    assert (drawn[0].ask.output_tokens, drawn[0].ask.stream) == (None, True)


def test_stored_picture_unpacks_to_its_rows() -> None:
    content = noise_png(300, 300, np.random.default_rng(1))  # more than one stored block
    size = struct.unpack(">I", content[33:37])[0]
    assert content[37:41] == b"IDAT"
    assert len(zlib.decompress(content[41 : 41 + size])) == 300 * 301


def test_longest_request_counts_the_answers_that_a_conversation_carries() -> None:
    asked = suite({"input": 10, "output": 4, "session": {"turns": 3}}, {"requests": 6})
    assert asked.load is not None
    found = longest_request(asked.load, make_plan(asked))
    assert found is not None
    assert (found.level, found.index, found.input_tokens, found.output_tokens) == ("s", 2, 30 + 8, 4)


def test_stage_outside_of_the_sweep_shares_the_beginnings_of_the_suite() -> None:
    asked = suite({"input": 20, "output": 4, "prefix": {"tokens": 12}})
    load: Load | None = asked.load
    assert load is not None
    looked = planned_stage(load, load.sweep[0], [3], seed=asked.seed)
    ours, theirs = words(requests(make_plan(asked))[0].ask), words(looked.requests[0].ask)
    assert ours[:12] == theirs[:12]
    assert ours[12:] != theirs[12:]


def test_stage_of_several_classes_has_no_only_one() -> None:
    one = PlannedClass("a", 1, None, ())
    assert PlannedStage("s", (one,)).only is one
    with pytest.raises(ValueError, match="2 classes, not one"):
        _ = PlannedStage("s", (one, one)).only
