import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model.records import TextBuilder, TextColumn

WORDS = st.lists(st.sampled_from(["", "a", "length", "\x00", "\ud800", None]), max_size=30)


@given(WORDS)
def test_a_column_is_the_sequence_it_was_made_of(texts: list[str | None]) -> None:
    column = TextColumn.of(texts)
    assert column == tuple(texts) and list(column) == texts and len(column) == len(texts)
    assert [column[row] for row in range(len(texts))] == texts
    assert column[1:-1] == texts[1:-1]


@given(WORDS, st.sampled_from([None, "b", "length"]))
def test_another_sequence_is_another(texts: list[str | None], last: str | None) -> None:
    column = TextColumn.of(texts)
    assert column != [*texts, last]
    assert column == [*texts, last][:-1]
    if texts:
        assert column != [*texts[:-1], "something else"]
    assert column != "a"


@given(WORDS, WORDS)
def test_joined_columns_are_one_after_the_other(first: list[str | None], second: list[str | None]) -> None:
    assert TextColumn.joined([TextColumn.of(first), TextColumn.of(second)]) == first + second
    assert TextColumn.joined([]) == []


@given(WORDS)
def test_rows_are_counted_taken_and_found_by_their_text(texts: list[str | None]) -> None:
    column = TextColumn.of(texts)
    assert column.counts() == {text: texts.count(text) for text in texts}
    assert column.are((None, "a")).tolist() == [text in (None, "a") for text in texts]
    backwards = np.arange(len(texts))[::-1].copy()
    assert column.take(backwards) == texts[::-1]
    assert column.take(backwards).counts() == column.counts()


@given(st.lists(WORDS, max_size=5))
def test_texts_added_part_by_part_are_the_column_of_them(parts: list[list[str | None]]) -> None:
    builder = TextBuilder()
    for part in parts:
        builder.extend(TextColumn.of(part))
    assert builder.column() == [text for part in parts for text in part]


@given(WORDS, st.sampled_from([None, "b", "length"]), st.integers(1, 3))
def test_some_rows_get_another_text(texts: list[str | None], other: str | None, every: int) -> None:
    column, rows = TextColumn.of(texts), np.arange(len(texts)) % every == 0
    assert column.but(rows, other) == [other if k % every == 0 else text for k, text in enumerate(texts)]
    assert column == texts


def test_a_column_of_a_column_is_itself_and_shows_its_texts() -> None:
    column = TextColumn.of(["a", None])
    assert TextColumn.of(column) is column
    assert repr(column) == "TextColumn.of(['a', None])"
