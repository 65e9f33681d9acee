"""Does every fault come to the verdict that it should, without a hang, an orphan or a loss? Whole runs of the command.

    .venv/bin/python -m benchmarks.campaign [--short] [--only NAME] [--keep FILE] [--at-once 2] [--for 280]

Cases are every fault of the practice server with a load stage of every kind and in every other phase, and what happens
to a run from outside: to servers, network, disk, clock and processes (`cases.py`, docs/reference/faults.md). A case
holds when the run ends in a way that the table allows, within its deadline and with the exit code of that end, names a
guard or check of the table, leaves no process behind, shows no traceback, and everything that it reported as measured
can be read afterwards. An interrupted run that is judged again must not be promoted. A case that ends in another
verdict that does not promote, as on a machine that is too busy, is repeated, up to three times in all, and counted.
Exits 1 when a case is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from benchmarks.campaign.cases import SIM, Case, all_cases, short_cases
from benchmarks.campaign.forking import Forks
from benchmarks.campaign.running import Ended
from benchmarks.campaign.suites import PHASES
from benchmarks.campaign.surroundings import NotHere
from benchmarks.tables import in_table

_ATTEMPTS = 3


class Kept:
    """Results of finished cases, in a file where one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, Lock()
        self.found: dict[str, dict[str, object]] = {}
        if path is not None and path.exists():
            self.found = json.loads(path.read_text(encoding="utf-8"))

    def get(self, case: Case) -> Ended | None:
        """Return the result of a case that was run before."""
        known = self.found.get(case.key)
        if known is None:
            return None
        lists = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        return Ended(**lists)  # type: ignore[arg-type]

    def put(self, case: Case, ended: Ended) -> None:
        """Keep a result."""
        with self._lock:
            self.found[case.key] = asdict(ended)
            if self._path is not None:
                self._path.write_text(json.dumps(self.found, indent=1), encoding="utf-8")


def run_case(case: Case, forks: Forks | None) -> Ended:
    """Run a case in a folder of its own, again where it came to nothing."""
    ended: Ended | None = None
    for _attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="benchgate-campaign-") as folder, ExitStack() as stack:
            before, ended = ended, case.run(Path(folder), stack, forks)
        if before is not None:
            ended = ended.repeated(before)
        if not case.may_repeat(ended):
            break
    assert ended is not None
    return ended


def run_cases(cases: Sequence[Case], at_once: int, kept: Kept, budget_s: float | None) -> dict[str, Ended]:
    """Run cases side by side; no further one begins once the time is spent. Those that cannot be run are left out."""
    began_s, found = time.monotonic(), dict[str, Ended]()
    slots: SimpleQueue[Forks] = SimpleQueue()

    def one(case: Case) -> None:
        ended = kept.get(case)
        if ended is None:
            if budget_s is not None and time.monotonic() - began_s > budget_s:
                return
            forks = slots.get()
            try:
                ended = run_case(case, forks)
            except NotHere as reason:
                print(f"  {case.name}: not here: {reason}", flush=True)
                return
            finally:
                slots.put(forks)
            kept.put(case, ended)
        wrong = case.problems(ended)
        mark = f"  <- {'; '.join(wrong)}" if wrong else ""
        why = ended.reasons[0][:120] if ended.reasons else ""
        print(f"  {case.name}: {ended.end} {ended.took_s:.1f} s: {why}{mark}", flush=True)
        found[case.name] = ended

    with ExitStack() as stack, ThreadPoolExecutor(at_once) as pool:
        for _ in range(at_once):
            slots.put(stack.enter_context(Forks()))
        for done in [pool.submit(one, case) for case in cases]:
            done.result()
    return found


def table_lines(cases: Sequence[Case], found: Mapping[str, Ended]) -> Iterator[str]:
    """Yield a line for each fault and phase: its cases, how they ended, and those that were missed."""
    rows = []
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if case.name in found:
            groups.setdefault((case.fault, case.phase), []).append(case)
    for (fault, phase), group in groups.items():
        ends = Counter(found[case.name].end for case in group)
        shown = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        missed = sum(bool(case.problems(found[case.name])) for case in group)
        longest_s = max(found[case.name].took_s for case in group)
        rows.append((fault, phase, shown, f"{missed} missed" if missed else "ok", f"{longest_s:.0f} s"))
    yield from in_table(("fault", "phase", "ends", "", "longest"), rows)


_GROUPS = ("practice server", "from outside")


def tally_lines(cases: Sequence[Case], found: Mapping[str, Ended]) -> Iterator[str]:
    """Yield the table of docs/background/measuring.md: cases of each group and phase, and what was not as stated."""
    rows = []
    for group, phase in product(_GROUPS, PHASES):
        all_of = [case for case in cases if case.phase == phase and (case.fault in SIM) == (group == _GROUPS[0])]
        ended = [(case, found[case.name]) for case in all_of if case.name in found]
        counts = (
            sum(not case.problems(one) for case, one in ended),
            sum(one.code is None for _, one in ended),
            sum(bool(one.orphans) for _, one in ended),
            sum(case.is_wrongly_promoted(one) for case, one in ended),
            sum(bool(one.lost) for _, one in ended),
            sum(one.attempts - 1 for _, one in ended),
        )
        rows.append((group, phase, f"{len(ended)} of {len(all_of)}", *map(str, counts)))
    head = ("faults", "phase", "cases", "as stated", "hangs", "processes left", "wrongly promoted", "lost", "repeated")
    yield from in_table(head, rows)


def main() -> int:
    """Run the cases, print a table, and hold them against what is stated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a case or two of each sort")
    parser.add_argument("--only", action="append", help="cases whose name begins so; may be repeated")
    parser.add_argument("--keep", type=Path, help="keep finished cases in this file, and do not run them again")
    parser.add_argument("--at-once", type=int, default=2, help="cases side by side")
    parser.add_argument("--for", type=float, dest="budget_s", help="begin no further case after so many seconds")
    chosen = parser.parse_args()
    cases = short_cases() if chosen.short else all_cases()
    if chosen.only:
        cases = [case for case in cases if case.name.startswith(tuple(chosen.only))]
    if not cases:
        parser.error("no case has such a name")
    found = run_cases(cases, chosen.at_once, Kept(chosen.keep), chosen.budget_s)
    print("\n".join(table_lines(cases, found)))
    print("\n".join(["", *tally_lines(cases, found)]))
    missed = [case.name for case in cases if case.name in found and case.problems(found[case.name])]
    print(f"MISSED: {', '.join(missed)}" if missed else "held: every case that was run")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
