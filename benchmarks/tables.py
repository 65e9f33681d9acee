"""Tables of docs pages: how a tally is shown, and where a table goes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.gate_cells import Tally

PAGE = Path(__file__).parents[1] / "docs" / "background" / "error-rates.md"


def shown(tally: Tally) -> str:
    """Promoted, blocked, neither; and the blocks it took."""
    shares = " / ".join(f"{100 * share:.1f}" for share in (tally.promoted, tally.blocked, tally.undecided))
    return f"{shares}; {tally.blocks / tally.gates:.1f}" if tally.blocks else shares


def in_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table in markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def write_table(key: str, table: str, page: Path = PAGE) -> None:
    """Put a table between its marks."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {key} -->", f"<!-- end of {key} -->"
    head, _, rest = text.partition(begin)
    _, mark, tail = rest.partition(end)
    if not mark:
        sys.exit(f"docs/{page.name} has no place for the table {key!r}: it needs the lines {begin!r} and {end!r}")
    page.write_text(f"{head}{begin}\n\n{table}\n\n{end}{tail}", encoding="utf-8")
