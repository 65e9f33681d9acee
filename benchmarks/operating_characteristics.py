"""How often is the gate wrong? Simulates whole decisions for the tables of docs/background/error-rates.md.

    .venv/bin/python -m benchmarks.operating_characteristics [--quick] [--only SECTION] [--keep FILE] [--write]

A simulated gate is a made run: block by block, values with the stated noise and effect become requests, `next_step`
says at each look whether to go on, and `judge` gives the verdict, as in a run and as `benchgate gate` does. Shares are
of that many gates; the limits of those that carry a bar are Clopper-Pearson's at 95 %. Exits 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchgate.model.verdict import Outcome
from benchmarks.accuracy_cells import ClusterCell
from benchmarks.creep_cells import CreepCell
from benchmarks.gate_cells import Cell, LoadCell, Noise, Tally, shown_looks, simulated, usual_processes
from benchmarks.peer_rule import PeerCell
from benchmarks.tables import PAGE, in_table, shown, write_table

THREE, FOUR, TEN = (5, 10, 20), (5, 10, 20, 40), (10,)
EFFECTS = {"equal": 0.0, "half the margin": 0.5, "the margin": 1.0, "twice": 2.0, "three times": 3.0}


@dataclass(frozen=True, slots=True)
class Bar:
    """What a share must be: at least, or at most, so much."""

    of: str  # promoted or blocked
    least: float | None = None
    most: float | None = None

    def met(self, tally: Tally) -> bool:
        """By the simulated share itself."""
        share: float = getattr(tally, self.of)
        return (self.least is None or share >= self.least) and (self.most is None or share <= self.most)

    def told(self, tally: Tally) -> str:
        """The bar, what came out, and between what limits it lies."""
        share: float = getattr(tally, self.of)
        low, high = tally.limits(share)
        bound = f">= {self.least:.1%}" if self.least is not None else f"<= {self.most:.1%}"
        return (
            f"{self.of} {share:.2%} ({low:.2%} to {high:.2%}), bar {bound}: {'held' if self.met(tally) else 'MISSED'}"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One cell with what it is called in its table, and what it must show."""

    words: tuple[str, ...]
    cell: Cell
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One table. Rows that differ in their last word alone stand side by side, in columns that `across` names."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    across: tuple[str, ...] = ()
    gates: int = 1_000  # of a cell
    gates_of_bars: int = 1_000  # of a cell that carries a bar


def headline() -> Section:
    """One check, independent noise in the two arms, interleaved."""
    rows = []
    for margin, looks in ((0.05, THREE), (0.05, FOUR), (0.05, TEN), (0.10, THREE)):
        for cv in (0.02, 0.04, 0.05, 0.08):
            for effect, size in EFFECTS.items():
                cell = LoadCell(Noise(cv), size, margin, looks)
                words = (f"{margin:.0%}", shown_looks(looks), f"{cv:.0%}", effect)
                rows.append(Row(words, cell, _headline_bars(cell)))
    return Section("one check", ("margin", "blocks", "CV"), tuple(rows), tuple(EFFECTS), gates_of_bars=10_000)


def _headline_bars(cell: LoadCell) -> tuple[Bar, ...]:
    """What is promised at a CV of 4 %."""
    return _PROMISED.get((cell.margin, cell.looks, cell.effect), ()) if cell.noise.cv == 0.04 else ()


_PROMISED = {
    (0.05, THREE, 0.0): (Bar("promoted", least=0.97), Bar("blocked", most=0.02)),
    (0.05, THREE, 0.5): (Bar("promoted", least=0.55),),
    (0.05, THREE, 1.0): (Bar("promoted", most=0.056),),
    (0.05, THREE, 2.0): (Bar("blocked", least=0.999),),
    (0.05, FOUR, 0.0): (Bar("promoted", least=0.995), Bar("blocked", most=0.005)),
    (0.05, FOUR, 0.5): (Bar("promoted", least=0.79),),
    (0.05, FOUR, 1.0): (Bar("promoted", most=0.056),),
    (0.05, FOUR, 2.0): (Bar("blocked", least=0.999),),
    (0.10, THREE, 0.0): (Bar("promoted", least=0.998),),
}


def several() -> Section:
    """Several required checks, of which one is harmed."""
    rows = []
    for checks, shared in ((1, 0.0), (5, 0.0), (5, 0.8), (10, 0.0), (10, 0.8)):
        for cv in (0.02, 0.04):
            for effect in ("equal", "half the margin", "the margin", "twice"):
                cell = LoadCell(Noise(cv, shared=shared), EFFECTS[effect], 0.05, THREE, checks)
                noise = "-" if checks == 1 else f"{shared:.1f}"
                rows.append(Row((str(checks), noise, f"{cv:.0%}", effect), cell))
    effects = ("equal", "half the margin", "the margin", "twice")
    return Section("several checks", ("required checks", "correlation", "CV"), tuple(rows), effects, 500, 500)


def order() -> Section:
    """An equal candidate on a machine that slows down by 10 % over the session."""
    rows = []
    for looks in (THREE, FOUR, (5,), TEN):
        for cv in (0.02, 0.04):
            cell = LoadCell(Noise(cv, drift=0.10), 0.0, 0.05, looks)
            bars = (Bar("blocked", most=0.03),) if looks in (THREE, FOUR) else ()
            rows.append(Row(("A B B A", shown_looks(looks), f"{cv:.0%}"), cell, bars))
    for looks in ((5,), TEN, (20,)):
        for cv in (0.02, 0.04):
            bars = (Bar("blocked", least=0.90),) if cv == 0.02 else ()
            cell = LoadCell(Noise(cv, drift=0.10, interleaved=False), 0.0, 0.05, looks)
            rows.append(Row(("all A, then all B", shown_looks(looks), f"{cv:.0%}"), cell, bars))
    return Section("a drift of 10 %", ("order", "blocks", "CV"), tuple(rows), gates_of_bars=2_000)


def memory() -> Section:
    """Noise that is not independent: executions that remember the one before, requests that remember the one before."""
    kinds = {
        "executions, correlation 0.5": Noise(0.04, memory=0.5),
        "executions, correlation 0.8": Noise(0.04, memory=0.8),
        "executions, correlation 0.8, 20 of A then 20 of B": Noise(0.04, memory=0.8, interleaved=False),
        "200 requests each, correlation 0.7, spread 20 %": Noise(
            0.01, requests=200, request_spread=0.2, request_memory=0.7
        ),
    }
    effects = ("equal", "half the margin", "the margin", "twice")
    rows = (
        Row((name, effect), LoadCell(noise, EFFECTS[effect], 0.05, THREE if noise.interleaved else (20,)))
        for name, noise in kinds.items()
        for effect in effects
    )
    return Section("noise with a memory", ("noise",), tuple(rows), effects)


def clusters() -> Section:
    """Accuracy over passages of ten questions, whose answers go together."""
    effects = ("equal", "half the margin", "the margin", "twice")
    rows = (
        Row((f"{passages:,} passages of 10, told" if told else f"{passages:,} passages of 10, not told", effect), cell)
        for passages in (160,)
        for told in (True, False)
        for effect in effects
        for cell in [ClusterCell(passages, 10, 0.10, 0.3, EFFECTS[effect], 0.05, told)]
    )
    return Section("clustered items", ("items",), tuple(rows), effects)


def peer() -> Section:
    """The noise of inference-doctor's own table: CV 4 %, a threshold of 10 %, its rule beside ours."""
    drops = {"no change": 0.0, "10 % less": 1.0, "15 % less": 1.5, "20 % less": 2.0}
    rows = []
    for runs in (3, 5, 10):
        for drop, size in drops.items():
            rows.append(Row(("its rule, made again", str(runs), drop), PeerCell(runs, size)))
        for name, block_when in (("benchgate", "harm"), ("benchgate, `block_when: breach`", "breach")):
            for drop, size in drops.items():
                cell = LoadCell(Noise(0.04), size, 0.10, (runs,), rate=True, block_when=block_when)
                rows.append(Row((name, str(runs), drop), cell))
    for drop, size in drops.items():
        cell = LoadCell(Noise(0.04), size, 0.10, THREE, rate=True)
        rows.append(Row(("benchgate, its default", "5, 10, 20", drop), cell))
    return Section("beside inference-doctor", ("rule", "runs of each arm"), tuple(rows), tuple(drops))


def creep() -> Section:
    """Ten promotions of which each stayed in its margin; every release promoted by one run, or by several."""
    effects = ("equal", "half the margin", "the margin", "twice")
    rows = (
        Row((str(runs), f"{cv:.0%}", effect), CreepCell(cv, EFFECTS[effect], runs))
        for runs in (1, 3)
        for cv in (0.01, 0.02, 0.04)
        for effect in effects
    )
    return Section("slow creep", ("runs that promoted a release", "CV"), tuple(rows), effects, 200, 200)


SECTIONS: Mapping[str, Callable[[], Section]] = {
    "headline": headline, "checks": several, "order": order, "memory": memory, "clusters": clusters, "peer": peer,
    "creep": creep,
}  # fmt: skip


def main() -> int:
    """Simulate, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="20 gates a cell: does it run at all?")
    parser.add_argument("--gates", type=int, help="of a cell; else as many as its table is meant to have")
    parser.add_argument("--gates-of-bars", type=int, help="of a cell that carries a bar")
    parser.add_argument("--keep", type=Path, help="keep finished cells in this file, and do not simulate them again")
    parser.add_argument("--processes", type=int, default=usual_processes())
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{PAGE.name}")
    chosen = parser.parse_args()
    missed = 0
    for key in chosen.only or SECTIONS:
        section = SECTIONS[key]()
        plain = 20 if chosen.quick else chosen.gates or section.gates
        barred = 20 if chosen.quick else chosen.gates_of_bars or section.gates_of_bars
        sizes = [(row.cell, barred if row.bars else plain) for row in section.rows]
        tallies = [tally for _, tally in simulated(sizes, chosen.keep, chosen.processes)]
        table = "\n".join(lines(section, tallies, plain, barred))
        print(f"{section.title}\n{table}", flush=True)
        for row, tally in zip(section.rows, tallies, strict=True):
            if invalid := tally.share(Outcome.INVALID):
                print(f"  {', '.join(row.words)}: {invalid:.2%} INVALID, though nothing is wrong with the evidence")
            for bar in row.bars:
                missed += not bar.met(tally)
                print(f"  {', '.join(row.words)}: {bar.told(tally)}", flush=True)
        if chosen.write:
            write_table(key, table)
    print(f"{missed} bars missed")
    return int(missed > 0)


def lines(section: Section, tallies: Sequence[Tally], plain: int, barred: int) -> Iterator[str]:
    """A table in markdown."""
    across = section.across or ("promoted / blocked / neither; blocks",)
    found = dict(zip((row.words for row in section.rows), tallies, strict=True))
    begun = dict.fromkeys(row.words[: len(section.head)] for row in section.rows)
    beside = {words: [shown(found[name]) for name in found if name[: len(words)] == words] for words in begun}
    yield from in_table((*section.head, *across), ((*words, *cells) for words, cells in beside.items()))
    yield ""
    yield f"{plain:,} gates per cell" + (f", {barred:,} in cells with a limit." if barred != plain else ".")


if __name__ == "__main__":
    sys.exit(main())
