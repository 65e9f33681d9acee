import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model import columns as packed
from benchgate.model.columns import ColumnBuilder, concatenate_columns, sort_by_index, split_by_use
from benchgate.model.records import (
    NARROW_TYPES,
    OPTIONAL_COLUMNS,
    TEXT_COLUMNS,
    ErrorClass,
    RequestColumns,
    RequestRecord,
    TextColumn,
    TokenSource,
)

INSTANTS = st.integers(-(2**62), 2**62)
COUNTS = st.none() | st.integers(0, 2**31)
RECORDS = st.lists(
    st.builds(
        RequestRecord,
        index=st.integers(0, 1000),
        intended_ns=INSTANTS,
        sent_ns=st.none() | INSTANTS,
        chunk_ns=st.lists(INSTANTS, max_size=4).map(tuple),
        end_ns=st.none() | INSTANTS,
        input_tokens=COUNTS,
        output_tokens=COUNTS,
        token_source=st.none() | st.sampled_from(TokenSource),
        finish_reason=st.none() | st.text(max_size=3),
        http_status=st.none() | st.integers(100, 599),
        error=st.none() | st.sampled_from(ErrorClass),
        error_detail=st.none() | st.text(max_size=3),
        reconnects=st.integers(0, 3),
        first_answer_ns=st.none() | INSTANTS,
        reasoning_tokens=COUNTS,
        cached_tokens=COUNTS,
        valid=st.none() | st.booleans(),
        left=st.booleans(),
        ramp=st.booleans(),
        tokenless=st.booleans(),
        connecting_ns=st.none() | INSTANTS,
    ),
    unique_by=lambda record: record.index,
)


def built(records: list[RequestRecord]) -> RequestColumns:
    builder = ColumnBuilder()
    for record in records:
        builder.add(record)
    return builder.columns()


def plain(columns: RequestColumns) -> dict[str, list[object]]:
    return {
        name: column.tolist() if isinstance(column, np.ndarray) else list(column)
        for name, column in columns.to_columns().items()
    }


@given(RECORDS)
def test_rows_added_one_by_one_are_those_packed_at_once(records: list[RequestRecord]) -> None:
    assert plain(built(records)) == plain(RequestColumns.pack(records))


@given(RECORDS, st.integers(1, 200), st.integers(1, 9))
def test_rows_are_the_same_however_many_are_packed_at_once(records: list[RequestRecord], held: int, rows: int) -> None:
    """Also where they fill many blocks, and one answer's chunks more than one."""
    with pytest.MonkeyPatch.context() as few:
        few.setattr(packed, "_MOST_HELD", held)
        few.setattr(packed, "_BLOCK_ROWS", rows)
        columns = built(records)
    assert plain(columns) == plain(RequestColumns.pack(records))


def test_a_built_column_is_written_to_like_one_that_was_packed() -> None:
    columns = built([RequestRecord(0, 0, None, (), None, None, None, None, None, None, None, None)])
    columns.left[0] = 1
    assert columns.left.tolist() == [1]


@given(RECORDS, st.integers(1, 4))
def test_joined_parts_are_the_whole(records: list[RequestRecord], parts: int) -> None:
    assert plain(concatenate_columns([built(records[part::parts]) for part in range(parts)])) == plain(
        RequestColumns.pack(records)
    )


def test_chunks_follow_their_rows_over_the_border_of_a_block() -> None:
    """More rows than are moved in one go, each with as many chunks as the last digit of its index says."""
    count = 70_000
    index = np.arange(count)[::-1].copy()
    lengths = index % 10
    columns = RequestColumns(
        **{
            **RequestColumns.pack([]).to_columns(),
            **{name: index for name in ("index", "intended_ns", "sent_ns", "end_ns", "input_tokens")},
            **{name: index for name in ("output_tokens", "http_status", "reconnects")},
            **{
                name: index.astype(NARROW_TYPES.get(name, np.int64))
                for name in OPTIONAL_COLUMNS
                if name not in TEXT_COLUMNS
            },
            "chunk_start": np.concatenate([[0], np.cumsum(lengths)]),
            "chunk_ns": np.repeat(index, lengths),
            **{name: TextColumn.of([None] * count) for name in TEXT_COLUMNS},
        }  # type: ignore[arg-type]  # typed by name
    )
    moved = sort_by_index(columns)
    assert (moved.index == np.arange(count)).all()
    assert (np.diff(moved.chunk_start) == np.arange(count) % 10).all()
    assert (moved.chunk_ns == np.repeat(np.arange(count), np.arange(count) % 10)).all()


@given(RECORDS)
def test_measured_ramp_and_left_requests_are_told_apart(records: list[RequestRecord]) -> None:
    parts = split_by_use(built(records))
    stayed = [record for record in records if not record.left]
    assert plain(parts.measured) == plain(RequestColumns.pack([record for record in stayed if not record.ramp]))
    assert plain(parts.ramp) == plain(RequestColumns.pack([record for record in stayed if record.ramp]))
    assert plain(parts.left) == plain(RequestColumns.pack([record for record in records if record.left]))


def test_equal_texts_are_kept_once() -> None:
    def record(index: int) -> RequestRecord:
        text = "".join(["le", "ngth"])
        return RequestRecord(index, 0, None, (), None, None, None, None, text, None, ErrorClass.CLIENT, f"{text}!")

    columns = built([record(index) for index in range(3)])
    assert len({id(text) for text in columns.finish_reason}) == 1
    assert len({id(text) for text in columns.error_detail}) == 1
