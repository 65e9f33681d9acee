"""Does the demo's gate say the same every time? Each candidate judged REPEATS times; prints what was concluded.

    .venv/bin/python -m benchmarks.repeatability [--repeats 5] [--out benchgate-demo] [CANDIDATE ...]

Expected: f16 against itself PASS, q8_0 PASS or WARN, q2_k BLOCK on quality, padded BLOCK on latency with equal answers.
Exits 1 when any repeat says otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def accuracy_harms(document: Document) -> list[float]:
    """Harm of every accuracy check that has one."""
    return [c["harm"] for c in document["checks"] if c["family"] == "quality" and isinstance(c["harm"], int | float)]


def blocked(document: Document, family: str) -> bool:
    """Whether a required check of the family is BLOCK."""
    return any(c["outcome"] == "BLOCK" and c["required"] and c["family"] == family for c in document["checks"])


def as_expected(candidate: str, document: Document) -> bool:
    """Whether a verdict is what this candidate must get, for the right reason."""
    outcome, harms = document["outcome"], accuracy_harms(document)
    if candidate in ("f16", "q8_0"):
        return outcome in ({"PASS"} if candidate == "f16" else {"PASS", "WARN"})
    on_load, on_quality = blocked(document, "load"), blocked(document, "quality")
    if candidate == "q2_k":
        return outcome == "BLOCK" and on_quality and not on_load
    return outcome == "BLOCK" and on_load and bool(harms) and not any(harms)


def main() -> int:
    """Run and tabulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="*", default=["f16", "q8_0", "q2_k", "padded"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchgate-demo"))
    options = parser.parse_args()
    failed = 0
    for repeat in range(options.repeats):
        for candidate in options.candidates:
            began_s = time.monotonic()
            document, code = judge(candidate, options.out)
            fine = as_expected(candidate, document) and code == document["exit_code"]
            failed += not fine
            took_s = time.monotonic() - began_s
            print(
                f"{repeat + 1} f16 vs {candidate:7} {document['outcome']:12} exit {code:<3} {took_s:4.0f} s", end="  "
            )
            print("as expected" if fine else f"NOT AS EXPECTED: {document['reason']}", flush=True)
    print(f"{failed} of {options.repeats * len(options.candidates)} not as expected")
    return int(failed > 0)


def judge(candidate: str, out: Path) -> tuple[Document, int]:
    """One `benchgate run` of the demo suite: the verdict it printed and its exit code."""
    command = [sys.executable, "-m", "benchgate", "run", "demo", "--candidate", candidate, "--format", "json"]
    places = ["--store", str(out / "benchgate.db"), "--work-dir", str(out / "work")]
    result = subprocess.run([*command, *places], capture_output=True, text=True)
    if not result.stdout:
        sys.exit(f"benchgate ended with status {result.returncode} and no verdict:\n{result.stderr}")
    document: Document = json.loads(result.stdout)
    return document, result.returncode


if __name__ == "__main__":
    sys.exit(main())
