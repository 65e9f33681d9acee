"""Records into columns and back: nothing is lost, and rows stand in the order of the plan."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.records import (
    ABSENT,
    NARROW_TYPES,
    AnswerAgreement,
    AnswerFacts,
    ErrorClass,
    EvalItem,
    JudgeVerdict,
    PairFacts,
    RequestColumns,
    RequestRecord,
    ShadowItem,
    TokenSource,
    pack_rows,
    unpack_rows,
)


def record(index: int, chunk_ns: tuple[int, ...] = ()) -> RequestRecord:
    return RequestRecord(
        index=index,
        intended_ns=index * 10,
        sent_ns=index * 10 + 1,
        chunk_ns=chunk_ns,
        end_ns=chunk_ns[-1] + 1 if chunk_ns else None,
        input_tokens=5,
        output_tokens=len(chunk_ns) or None,
        token_source=TokenSource.CHUNKS if chunk_ns else None,
        finish_reason="stop" if chunk_ns else None,
        http_status=200 if chunk_ns else None,
        error=None if chunk_ns else ErrorClass.CONNECT,
        error_detail=None if chunk_ns else "refused",
        reconnects=index % 2,
    )


def same(a: RequestColumns, b: RequestColumns) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(RequestColumns))


def test_rows_stand_in_order_of_the_plan() -> None:
    packed = RequestColumns.pack([record(2, (50, 60)), record(0), record(1, (30,))])
    assert packed.index.tolist() == [0, 1, 2]
    assert packed.chunk_start.tolist() == [0, 0, 1, 3]
    assert packed.chunk_ns.tolist() == [30, 50, 60]


def test_what_never_happened_is_absent_not_zero() -> None:
    packed = RequestColumns.pack([record(0)])
    for column in (packed.end_ns, packed.output_tokens, packed.http_status):
        assert column.tolist() == [ABSENT]
    assert packed.error == (ErrorClass.CONNECT,)
    assert packed.finish_reason == (None,)


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=5))
def test_columns_come_back_from_the_store_as_they_went(gaps: list[list[int]]) -> None:
    packed = RequestColumns.pack([record(i, tuple(np.cumsum(row).tolist())) for i, row in enumerate(gaps)])
    assert same(RequestColumns.from_columns(packed.to_columns()), packed)
    assert len(packed) == len(gaps)
    assert len(packed.chunk_start) == len(gaps) + 1


def test_a_missing_column_is_an_error() -> None:
    stored = dict(RequestColumns.pack([record(0)]).to_columns())
    del stored["finish_reason"]
    with pytest.raises(KeyError, match="finish_reason"):
        RequestColumns.from_columns(stored)


def test_a_column_that_was_not_kept_from_the_beginning_reads_as_absent() -> None:
    later = {"first_answer_ns": 7, "reasoning_tokens": 1, "cached_tokens": 2, "valid": True, "left": True}
    others = {"tokenless": True, "connecting_ns": 3, "first_visible": True}
    packed = RequestColumns.pack([replace(record(0, (7,)), **later, **others)])  # type: ignore[arg-type]
    stored = {name: column for name, column in packed.to_columns().items() if name not in (*later, *others)}
    read = RequestColumns.from_columns(stored)
    for name in (*later, *others):
        assert getattr(packed, name).tolist() != [ABSENT], name
        assert getattr(read, name).tolist() == [ABSENT], name
    assert read.chunk_ns.tolist() == [7]


def test_integer_columns_have_one_type_each_whatever_they_hold() -> None:
    for packed in (RequestColumns.pack([]), RequestColumns.pack([record(0, (4_000_000_000_000,))])):
        arrays = {name: column for name, column in packed.to_columns().items() if isinstance(column, np.ndarray)}
        assert {name: array.dtype for name, array in arrays.items()} == {
            name: np.dtype(NARROW_TYPES.get(name, np.int64)) for name in arrays
        }
        assert {"index", "end_ns", "chunk_ns", "ramp", "answer_chars"} <= set(arrays)


ITEMS = (
    EvalItem("a", "d1", "p1", "t1", 1.0, "yes", "stop", 3, 1_000, None),
    EvalItem("b", "d2", "p2", "t2", None, None, None, None, None, "timeout"),
    EvalItem("c", "d3", "p3", "t3", 0.0, "", "length", 0, 2_000, None),
)


def test_eval_items_come_back_as_they_went() -> None:
    assert unpack_rows(EvalItem, pack_rows(ITEMS)) == ITEMS
    assert unpack_rows(EvalItem, pack_rows(ITEMS[1:2])) == ITEMS[1:2]
    assert unpack_rows(EvalItem, pack_rows(())) == ()


def test_an_item_without_a_score_is_neither_right_nor_wrong() -> None:
    assert [item.correct for item in ITEMS] == [True, None, False]


def test_shadow_items_come_back_as_they_went() -> None:
    items = (
        ShadowItem("1", "h1", "x", "x", "y", "stop", "stop", "length", None, "question", "A", "A", "B"),
        ShadowItem("2", "h2", "x", "x", None, "stop", "stop", None, "candidate: timeout"),
    )
    assert unpack_rows(ShadowItem, pack_rows(items)) == items


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("latency_ns", np.array(["1", "2", "3"])),
        ("latency_ns", np.array([b"1", b"2", b"3"])),
        ("latency_ns", np.array(["2026-01-01"] * 3, dtype="M8[D]")),
        ("latency_ns", np.zeros((3, 2), dtype=np.int64)),
        ("latency_ns", np.zeros(3, dtype=np.bool_)),
        ("score", np.zeros(3, dtype=np.complex128)),
        ("own", ("x", "y", "z")),
        ("own", np.zeros(3, dtype=np.int64)),
    ],
)
def test_a_column_of_another_kind_is_damage(name: str, column: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack_rows(EvalItem, {**pack_rows(ITEMS), name: column})
    with pytest.raises((ValueError, TypeError)):
        unpack_rows(ShadowItem, {"own": column})


def test_what_is_known_of_answers_and_pairs_survives_the_store_and_what_is_not_has_no_column() -> None:
    plain = ShadowItem("p0", "d0", "a", "b", "a", "stop", "stop", "stop", None)
    facts = AnswerFacts(characters=0, latency_ns=5, refusal=True, tokens=None, valid=False)
    pair = PairFacts(
        AnswerAgreement.STRUCTURE, True, exact=False, normalised=False, json=False, structure=True, at_character=0
    )
    rich = replace(
        plain, prompt_id="p1", stratum="chat/short", once=True, secondary=None, candidate_facts=facts,
        with_primary=pair, judged=JudgeVerdict.LOSS, judge_error="no answer",
        similarity_error="HTTP 503",
    )  # fmt: skip
    columns = pack_rows([plain, rich])
    assert unpack_rows(ShadowItem, columns) == (plain, rich)
    assert "candidate_facts.tokens" not in columns and "own.differs" not in columns
    assert set(pack_rows([plain])) == set(pack_rows([replace(plain, once=None)])) == {
        "prompt_id", "prompt_sha256", "primary", "secondary", "candidate", "primary_finish", "secondary_finish",
        "candidate_finish", "error", "prompt_text", "primary_text", "secondary_text", "candidate_text",
    }  # fmt: skip


def test_rows_without_facts_differ_by_their_digests_and_an_answer_that_is_missing_always_does() -> None:
    old = ShadowItem("p0", "d0", "a", "b", "a", "stop", "stop", "stop", None)
    assert (old.differs_from_primary, old.differs_from_secondary, old.differs_itself) == (False, True, True)
    same = PairFacts(AnswerAgreement.NORMALISED, False, exact=False, normalised=True)
    assert not replace(old, with_secondary=same).differs_from_secondary
    assert replace(old, candidate=None, with_primary=same).differs_from_primary
