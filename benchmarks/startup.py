"""How long does `benchgate --help` take beside an empty Python? Prints both medians and their difference.

.venv/bin/python -m benchmarks.startup [--runs 15]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Time the two commands in turn, so that the machine's mood falls on both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    program = Path(sys.executable).with_name("benchgate")
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "benchgate --help": [str(program), "--help"]}
    took_s: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs + 1):
        for name, command in commands.items():
            began_s = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took_s[name].append(time.perf_counter() - began_s)
    for name, times in took_s.items():
        print(f"{name:18} median {statistics.median(times[1:]) * 1e3:6.0f} ms  min {min(times[1:]) * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
