"""Columns survive the trip through one blob, bit for bit, and a damaged blob is never read."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from benchgate.errors import EvidenceError
from benchgate.model import codec
from benchgate.model.records import TextColumn

_ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.int64, np.float64, np.float32, np.int8, np.uint16, np.bool_]),
    shape=st.integers(0, 40),
)
_TEXTS = st.lists(st.none() | st.text(alphabet=st.characters(codec=None))).map(tuple)
_COLUMNS = st.dictionaries(st.text(max_size=8), _ARRAYS | _TEXTS, max_size=5)


def round_trip(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    data = codec.encode(columns)
    return codec.decode(data, codec=codec.CODEC, sha256=codec.digest(data))


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, column in expected.items():
        if isinstance(column, np.ndarray):
            assert found[name].dtype == column.dtype
            assert found[name].tobytes() == column.tobytes()  # bits, so that NaN counts
        else:
            assert found[name] == column


@given(_COLUMNS)
def test_any_columns_come_back_bit_for_bit(columns: dict[str, Any]) -> None:
    assert_same(round_trip(columns), columns)


@given(hnp.arrays(np.int64, st.integers(0, 200)))
def test_any_integers_come_back_though_their_differences_overflow(values: Any) -> None:
    assert_same(round_trip({"x": values}), {"x": values})


def test_extreme_integers_and_floats_come_back() -> None:
    limits = np.iinfo(np.int64)
    columns = {
        "int": np.array([limits.min, limits.max, limits.min, -1, 0], dtype=np.int64),
        "float": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        "empty": np.empty(0, dtype=np.int64),
    }
    assert_same(round_trip(columns), columns)


def test_absent_text_is_not_empty_text() -> None:
    texts = (None, "", "\0", "\ud800", "\ud83d\ude00", "caf\u00e9 \U0001f680", None)
    assert round_trip({"t": texts})["t"] == texts


def test_no_columns_at_all_come_back() -> None:
    assert round_trip({}) == {}


def test_arrays_that_are_not_contiguous_or_of_foreign_byte_order_are_kept_by_value() -> None:
    found = round_trip({"x": np.arange(10)[::3], "y": np.arange(3, dtype=">i8"), "z": np.arange(3, dtype=">f4")})
    assert found["x"].tolist() == [0, 3, 6, 9]
    assert found["y"].tolist() == found["z"].tolist() == [0, 1, 2]


def test_same_columns_in_another_order_give_the_same_bytes() -> None:
    one, two = np.arange(5), ("a", None)
    assert codec.encode({"one": one, "two": two}) == codec.encode({"two": two, "one": one})


def test_decoded_arrays_may_be_written_to() -> None:
    found = round_trip({"i": np.arange(3), "f": np.arange(3.0)})
    found["i"][0] = found["f"][0] = 7
    assert (found["i"][0], found["f"][0]) == (7, 7.0)


def test_instants_of_a_stream_take_less_than_half_their_size() -> None:
    gaps = np.random.default_rng(0).gamma(4, 2.5e6, size=20_000).astype(np.int64)
    assert len(codec.encode({"chunk_ns": np.cumsum(gaps)})) < 20_000 * 8 / 2


def test_large_columns_of_every_kind_are_one_stream_that_any_zlib_reads() -> None:
    generator, rows = np.random.default_rng(3), 40_000
    columns: dict[str, Any] = {
        "instants": np.cumsum(generator.exponential(1e6, rows)).astype(np.int64),
        "kinds": ["usage", None, "", "größe"] * (rows // 4),
        "levels": generator.normal(size=rows),
        "tokens": generator.integers(1, 2000, rows),
        "zeros": np.zeros(rows, dtype=np.int64),
    }
    packed = codec.encode(columns)
    assert_same(codec.decode(packed, codec=codec.CODEC, sha256=codec.digest(packed)), columns)
    plain = zlib.decompress(packed)
    assert len(packed) < 1.01 * len(zlib.compress(plain, 6))
    assert codec.encode(columns) == packed
    for at in range(0, len(packed), len(packed) // 50):
        broken = packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :]
        with pytest.raises(EvidenceError):
            codec.decode(broken, codec=codec.CODEC, sha256=codec.digest(packed))


def test_columns_are_the_same_bytes_however_many_rows_are_made_into_bytes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits, generator, rows = np.iinfo(np.int64), np.random.default_rng(4), 1000
    columns: dict[str, Any] = {
        "wild": generator.integers(limits.min, limits.max, rows),
        "instants": np.cumsum(generator.exponential(1e6, rows)).astype(np.int64),
        "kinds": ["usage", None, "", "größe"] * (rows // 4),
    }
    plain = zlib.decompress(codec.encode(columns))
    for block_rows in (1, 7, rows - 1, rows, rows + 1):
        monkeypatch.setattr(codec, "_BLOCK_NUMBERS", block_rows)
        monkeypatch.setattr(codec, "_BLOCK_TEXTS", block_rows)
        assert zlib.decompress(codec.encode(columns)) == plain


@pytest.mark.parametrize("column", [np.zeros(4_000_000, dtype=np.int64), TextColumn.of([None] * 1_000_000)])
def test_a_large_column_is_not_in_memory_a_second_time_when_it_is_encoded(column: Any) -> None:
    tracemalloc.start()
    try:
        codec.encode({"x": column})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    beside = 0 if isinstance(column, np.ndarray) else 8 * len(column)  # texts have a column of their lengths
    assert most < beside + 16e6, most


@pytest.mark.parametrize(
    "column",
    [np.zeros((2, 2)), np.array([1j]), np.array(["a"]), np.array([None]), np.array(1.0), (1, 2), "text"],
)
def test_what_is_neither_a_numeric_array_nor_texts_is_refused_by_name(column: Any) -> None:
    with pytest.raises(ValueError, match="'odd'"):
        codec.encode({"odd": column})


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    packed = codec.encode({"x": np.arange(20), "t": ("a", None)})
    at = data.draw(st.integers(0, len(packed) - 1))
    flipped = bytes([packed[at] ^ data.draw(st.integers(1, 255))])
    with pytest.raises(EvidenceError, match="damaged"):
        codec.decode(packed[:at] + flipped + packed[at + 1 :], codec=codec.CODEC, sha256=codec.digest(packed))


def test_truncated_bytes_are_noticed() -> None:
    packed = codec.encode({"x": np.arange(20)})
    for length in range(len(packed)):
        with pytest.raises(EvidenceError):
            codec.decode(packed[:length], codec=codec.CODEC, sha256=codec.digest(packed))


def test_unknown_codec_is_refused_with_advice() -> None:
    packed = codec.encode({})
    with pytest.raises(EvidenceError, match=r"columns/2.*newer benchgate"):
        codec.decode(packed, codec="columns/2", sha256=codec.digest(packed))


def _blob(heads: object, bodies: bytes = b"") -> bytes:
    header = json.dumps(heads).encode()
    return zlib.compress(struct.pack("<I", len(header)) + header + bodies)


def _head(**changes: object) -> dict[str, object]:
    return {"name": "x", "kind": "int64", "dtype": "<i8", "rows": 1, "size": 8} | changes


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"not zlib",
        zlib.compress(b""),
        zlib.compress(b"\xff\xff\xff\xff"),
        _blob("text"),
        _blob([{"name": "x"}]),
        _blob([_head()]),
        _blob([_head()], b"\0" * 9),
        _blob([_head(rows=2)], b"\0" * 8),
        _blob([_head(rows=-1, size=0)]),
        _blob([_head(kind="array", dtype="O")], b"\0" * 8),
        _blob([_head(kind="array", dtype="<f8", rows=2)], b"\0" * 8),
        _blob([_head(kind="picture")], b"\0" * 8),
        _blob([_head(kind="text")], b"\0" * 8 + b"tail"),
        _blob([_head(kind="text", size=9)], b"\0" * 8 + b"tail"),
    ],
)
def test_well_hashed_nonsense_is_refused_not_crashed_on(blob: bytes) -> None:
    with pytest.raises(EvidenceError):
        codec.decode(blob, codec=codec.CODEC, sha256=codec.digest(blob))
