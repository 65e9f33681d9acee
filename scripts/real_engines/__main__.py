"""benchgate against real engines on this machine: every claim with its figures, exit status 1 when one does not hold.

python -m scripts.real_engines --engines FOLDER --model FOLDER [GROUP...]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scripts.real_engines.asking import Benchgate, posted
from scripts.real_engines.claims import Notebook
from scripts.real_engines.divergence_claims import divergence_claims
from scripts.real_engines.load_claims import load_claims
from scripts.real_engines.quality_claims import likelihood_claims, write_task
from scripts.real_engines.servers import MODEL, Engines, StartError, vllm
from scripts.real_engines.suite_claims import alike_claims, capacity_claims, knee_claims, regression_claims

GROUPS = ("load", "knee", "capacity", "likelihoods", "divergence", "alike", "regression")
SEQUENCES = 8  # that vLLM works on at once


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with us
    book = Notebook()
    engines = Engines(options.engines.absolute(), options.folder.absolute())
    folder = Path(tempfile.mkdtemp(prefix="claims-", dir=engines.folder))
    benchgate = Benchgate(Path(sys.executable).with_name("benchgate"), folder)
    wanted = set(options.groups or GROUPS)
    began = time.monotonic()
    if wanted - {"regression"}:
        _attempt(book, "vllm", lambda: _vllm_claims(book, benchgate, engines, wanted))
    if "regression" in wanted:
        _attempt(book, "regression", lambda: regression_claims(book, benchgate, engines))
    book.say(f"{time.monotonic() - began:.0f} s; stores, suites and reports: {folder}")
    return book.conclude()


def _vllm_claims(book: Notebook, benchgate: Benchgate, engines: Engines, wanted: set[str]) -> None:
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(vllm(engines, "vllm-one", sequences=SEQUENCES))
        book.say(f"vLLM is there after {one.start_s:.0f} s")
        # The first request of a kind costs seconds, which are no part of any figure.
        first = {"model": MODEL, "prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 1}
        posted(f"{one.url}/v1/completions", first)

        def alike() -> None:
            other = stack.enter_context(vllm(engines, "vllm-other", sequences=SEQUENCES))
            write_task(benchgate.folder, one)
            alike_claims(book, benchgate, one, other)

        groups: dict[str, Callable[[], None]] = {
            "load": lambda: load_claims(book, benchgate, one),
            "knee": lambda: knee_claims(book, benchgate, one, SEQUENCES),
            "capacity": lambda: capacity_claims(book, benchgate, one),
            "likelihoods": lambda: likelihood_claims(book, engines, one, benchgate.folder),
            "divergence": lambda: divergence_claims(book, one),
            "alike": alike,
        }
        for name, group in groups.items():
            if name in wanted:
                _attempt(book, name, group)


def _attempt(book: Notebook, group: str, claims: Callable[[], None]) -> None:
    """Make a group's claims. One that cannot be made has failed, and the others are made all the same."""
    began = time.monotonic()
    try:
        claims()
    except (RuntimeError, OSError, subprocess.SubprocessError, StartError) as exc:
        book.claim(f"the claims of {group} can be made", False, str(exc))
    book.say(f"{group}: {time.monotonic() - began:.0f} s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="test-vllm", description="benchgate against real engines on this machine.")
    parser.add_argument("--engines", type=Path, required=True, help="virtual environment with vLLM and transformers")
    parser.add_argument("--folder", type=Path, required=True, help="where the model lies, and where logs and stores go")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all unless said")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group of claims is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
