from __future__ import annotations

import json

from benchgate.plan.items import FixedText, Piece, draw_cuts, draw_positions, planned_pieces, positions_available
from benchgate.plan.schedule import make_plan, measurement_sha256
from benchgate.suite.schema import Suite

WORDS = "the quick brown fox jumps over the lazy dog and goes home again "
TEXTS = (FixedText("long", WORDS * 4), FixedText("short", WORDS))


def suite(**divergence: object) -> Suite:
    return Suite.model_validate(
        {
            "suite": "texts",
            "seed": 5,
            "deployments": {"a": {"embedded": {}}, "b": {"embedded": {"weights": "q2_k"}}},
            "baseline": "a",
            "candidate": "b",
            "divergence": {"texts": "texts.jsonl", "positions": 10, **divergence},
            "gate": {"checks": [{"metric": "perplexity", "margin": "2%"}]},
        }
    )


def test_positions_are_dealt_out_evenly_over_pieces_as_far_as_there_is_room() -> None:
    pieces = planned_pieces(TEXTS, window=64, positions=12, seed=1)
    assert [(piece.text_id, piece.number) for piece in pieces] == [
        ("long", 0), ("long", 1), ("long", 2), ("long", 3), ("short", 0)
    ]  # fmt: skip
    assert sorted(piece.positions for piece in pieces) == [2, 2, 2, 3, 3]
    assert "".join(piece.text for piece in pieces[:4]) == TEXTS[0].text
    assert positions_available(TEXTS, 64) == 20
    assert sum(piece.positions for piece in planned_pieces(TEXTS, 64, 1000, seed=1)) == 20


def test_fewer_positions_than_pieces_are_at_pieces_drawn_by_the_seed() -> None:
    texts = [FixedText(f"t{number}", WORDS) for number in range(40)]
    drawn = {seed: tuple(piece.text_id for piece in planned_pieces(texts, 2048, 10, seed)) for seed in (1, 2)}
    assert [len(set(ids)) for ids in drawn.values()] == [10, 10]
    assert drawn[1] != drawn[2]
    assert drawn[1] == tuple(piece.text_id for piece in planned_pieces(texts, 2048, 10, 1))


def test_positions_are_of_the_second_half_and_the_same_at_every_call() -> None:
    piece = Piece("t", 0, WORDS, 6)
    places = draw_positions(piece, 31, seed=9)
    assert len(set(places)) == 6 and list(places) == sorted(places)
    assert min(places) >= 15 and max(places) < 31
    assert draw_positions(piece, 31, seed=9) == places != draw_positions(piece, 31, seed=10)
    assert draw_positions(piece, 3, seed=9) == (1, 2)  # no more there
    assert draw_positions(piece, 1, seed=9) == ()  # nothing stands before the only token


def test_texts_are_cut_at_the_ends_of_words_or_anywhere_where_there_are_too_few() -> None:
    cuts = draw_cuts(Piece("t", 0, WORDS, 3), seed=2)
    assert all(WORDS[cut].isspace() and not WORDS[cut - 1].isspace() for cut in cuts)
    assert min(cuts) >= len(WORDS) // 2
    assert len(draw_cuts(Piece("t", 0, "x" * 64, 3), seed=2)) == 3


def test_plan_names_texts_by_their_digests_and_without_any_keeps_its_bytes() -> None:
    plan = make_plan(suite(), texts=TEXTS)
    stored = json.loads(plan.canonical)
    assert sum(piece["positions"] for piece in stored["divergence"]) == 10
    assert b"quick" not in plan.canonical
    assert "divergence" not in json.loads(make_plan(suite()).canonical)


def test_other_texts_or_other_settings_are_another_measurement() -> None:
    changed = (FixedText("long", WORDS * 4), FixedText("short", WORDS.replace("dog", "cat")))
    plans = [(suite(), TEXTS), (suite(), changed), (suite(top=5), TEXTS), (suite(repeat_baseline=True), TEXTS)]
    identities = {measurement_sha256(one, make_plan(one, texts=texts)) for one, texts in plans}
    assert len(identities) == 4
