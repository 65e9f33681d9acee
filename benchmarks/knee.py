"""Is the knee of a sweep where the server's slots are? On the embedded engine, whose slots are known.

    .venv/bin/python -m benchmarks.knee [--slots 2 4 8] [--repeats 3] [--blocks 5]

Each repeat is one `benchgate run` of a sweep over 1 to 4 times as many requests in flight as there are slots. Prints,
block by block, the knee and the curve that bends there, and the median that a check judges. Exits 1 when a median is
another number than the slots.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchgate.gate.checks.capacity import knees_by_block
from benchgate.gate.decision import CannotJudge
from benchgate.model.run import Evidence
from benchgate.stats.knee import NoKnee, ServerKnee
from benchgate.store.repository import Store

SUITE = """
suite: knee
deployments:
  tiny: {{embedded: {{weights: f16, extra_layers: {extra_layers}, slots: {slots}}}}}
baseline: tiny
candidate: tiny
load:
  workload: {{endpoint: completions, input: 3 tokens, output: {output} tokens, text: letters}}
  blocks: {blocks}
  sweep:
{stages}
gate:
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 10%}}
  checks:
    - {{metric: knee, min: 1}}
"""
LEVELS = (1, 2, 4, 8, 16, 32)
VERDICTS = (0, 10, 11, 12)
EACH = 4  # requests of each client


def levels_of(slots: int) -> tuple[int, ...]:
    """Five at least, up to four times the slots."""
    return tuple(level for level in LEVELS if level <= max(16, 4 * slots))


def swept(slots: int, blocks: int, output: int, extra_layers: int, place: Path) -> Evidence:
    """One sweep by the installed command."""
    stages = "\n".join(
        f"    - {{stage: c{level}, concurrency: {level}, requests: {max(8, EACH * min(level, 2 * slots))}}}"
        for level in levels_of(slots)
    )
    text = SUITE.format(slots=slots, blocks=blocks, output=output, extra_layers=extra_layers, stages=stages)
    (place / "knee.yaml").write_text(text)
    store = str(place / "knee.db")
    command = [sys.executable, "-m", "benchgate", "run", str(place / "knee.yaml"), "--store", store]
    done = subprocess.run([*command, "--work-dir", str(place / "work")], capture_output=True, text=True)
    if done.returncode not in VERDICTS:
        sys.exit(f"benchgate ended with status {done.returncode}:\n{done.stderr}")
    with Store.open(store) as opened:
        return opened.evidence(opened.resolve("@latest"))


def told(knee: ServerKnee | NoKnee) -> str:
    """A block's knee and the curve that bends there."""
    return "none" if isinstance(knee, NoKnee) else f"{knee.level:g} ({knee.curve.name.lower()})"


def main() -> int:
    """Sweep, and tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--output", type=int, default=120, help="tokens of an answer")
    parser.add_argument("--extra-layers", type=int, default=2)
    options = parser.parse_args()
    missed = 0
    for slots in options.slots:
        for repeat in range(options.repeats):
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                evidence = swept(slots, options.blocks, options.output, options.extra_layers, Path(folder))
            try:
                found = knees_by_block(evidence, [(f"c{level}", level) for level in levels_of(slots)])
            except CannotJudge as cannot:
                sys.exit(cannot.reason)
            knees = [knee.level for knee in found if isinstance(knee, ServerKnee)]
            median = statistics.median_low(knees) if len(knees) > len(found) / 2 else None
            missed += median != slots
            blocks = ", ".join(told(knee) for knee in found)
            took_s = time.monotonic() - began_s
            print(f"{slots} slots, {repeat + 1}: knee at {median}; by block {blocks}; {took_s:.0f} s", flush=True)
    print(f"{missed} of {len(options.slots) * options.repeats} not at the slots")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
