"""Text column with few distinct values: each text once, and an index per row."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]


class TextColumn(Sequence[str | None]):
    """Sequence of texts or None: `words` are the distinct ones in order of first row, `codes` the index of each row.

    It equals any sequence of the same texts. A million rows of an error class take 4 MB and no Python object each.
    """

    __slots__ = ("codes", "words")

    def __init__(self, words: tuple[str | None, ...], codes: Codes) -> None:
        self.words = words
        self.codes = codes

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> TextColumn:
        """Build the column of these texts."""
        if isinstance(texts, TextColumn):
            return texts
        places: dict[str | None, int] = {}
        codes = np.fromiter((places.setdefault(text, len(places)) for text in texts), dtype=np.int32)
        return cls(tuple(places), codes)

    @classmethod
    def joined(cls, parts: Sequence[TextColumn]) -> TextColumn:
        """Concatenate columns."""
        builder = TextBuilder()
        for part in parts:
            builder.extend(part)
        return builder.column()

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, row: int) -> str | None: ...
    @overload
    def __getitem__(self, row: slice) -> TextColumn: ...
    def __getitem__(self, row: int | slice) -> str | TextColumn | None:
        if isinstance(row, slice):
            return TextColumn(self.words, self.codes[row])
        return self.words[int(self.codes[row])]

    def __iter__(self) -> Iterator[str | None]:
        return map(self.words.__getitem__, self.codes.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to tuples and lists, which hash differently or not at all

    def __repr__(self) -> str:
        return f"TextColumn.of({list(self)!r})"

    def take(self, rows: npt.NDArray[np.int64]) -> TextColumn:
        """Return these rows, in this order."""
        return TextColumn(self.words, self.codes[rows])

    def but(self, rows: npt.NDArray[np.bool_], text: str | None) -> TextColumn:
        """Return a copy with another text in these rows."""
        words = self.words if text in self.words else (*self.words, text)
        return TextColumn(words, np.where(rows, np.int32(words.index(text)), self.codes))

    def are(self, wanted: Collection[str | None]) -> npt.NDArray[np.bool_]:
        """Return which rows have one of these texts."""
        hits = np.array([word in wanted for word in self.words], dtype=np.bool_)
        return hits[self.codes] if len(self.codes) else np.empty(0, dtype=np.bool_)

    def counts(self) -> dict[str | None, int]:
        """Return the number of rows of each text, for texts that have any."""
        found = np.bincount(self.codes, minlength=len(self.words))
        return {word: int(n) for word, n in zip(self.words, found.tolist(), strict=True) if n}


class TextBuilder:
    """Builder of a column from parts; it needs about as much memory as the column."""

    __slots__ = ("_codes", "_places")

    def __init__(self) -> None:
        self._codes = array("i")
        self._places: dict[str | None, int] = {}

    def extend(self, texts: TextColumn) -> None:
        """Append rows."""
        codes = np.array([self._places.setdefault(word, len(self._places)) for word in texts.words], dtype=np.int32)
        self._codes.frombytes(codes[texts.codes].tobytes())

    def column(self) -> TextColumn:
        """Return the rows. The builder cannot be used again: the column takes over its memory."""
        codes = np.frombuffer(self._codes, dtype=np.int32) if self._codes else np.empty(0, dtype=np.int32)
        return TextColumn(tuple(self._places), codes)
