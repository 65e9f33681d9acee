"""benchgate against real engines on this machine: every claim with its figures, exit status 1 when one does not hold.

python -m scripts.real_engines --root FOLDER --python PYTHON [ENGINE...] [GROUP...]
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from benchgate.doctor.transcript import record
from benchgate.errors import BenchgateError
from scripts.real_engines.claims import Notebook, Session
from scripts.real_engines.command import Benchgate
from scripts.real_engines.engine_claims import GROUPS
from scripts.real_engines.engines import ENGINES, Engine
from scripts.real_engines.environments import Places
from scripts.real_engines.quality_claims import likelihood_claims
from scripts.real_engines.servers import StartError, serve
from scripts.real_engines.suite_claims import alike_claims, capacity_claims, knee_claims, regression_claims

# Groups that only the engines have that name them in `more_claims`.
MORE_GROUPS: Mapping[str, Callable[[Session], None]] = MappingProxyType(
    {
        "knee": knee_claims,
        "capacity": capacity_claims,
        "likelihoods": likelihood_claims,
        "alike": alike_claims,
        "regression": regression_claims,
    }
)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with us
    book = Notebook()
    places = Places(options.root.absolute(), options.python)
    places.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="claims-", dir=places.folder))
    benchgate = Benchgate(Path(sys.executable).with_name("benchgate"), folder)
    names = [name for name in options.names if name in ENGINES]
    groups = [name for name in options.names if name not in ENGINES]
    began = time.monotonic()
    for engine in (ENGINES[name] for name in names or ENGINES):
        chosen = [group for group in (*(engine.groups or GROUPS), *engine.more_claims) if not groups or group in groups]
        if chosen:
            book.engine = engine.name
            _engine_claims(book, benchgate, places, engine, chosen, options.record)
    book.engine = ""
    book.note(f"{time.monotonic() - began:.0f} s; stores, suites and reports: {folder}")
    return book.conclude()


def _engine_claims(
    book: Notebook, benchgate: Benchgate, places: Places, engine: Engine, groups: list[str], captures: Path | None
) -> None:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(serve(places, engine))
        except (StartError, OSError, subprocess.SubprocessError) as exc:
            book.claim(f"{engine.version} starts", False, str(exc))
            return
        book.claim(f"{engine.version} starts", True, f"ready after {server.start_s:.0f} s")
        session = Session(book, benchgate, places, server)
        if captures is not None and engine.endpoint == "chat":
            written = list(record(server.target(), captures / f"{engine.name}-{engine.version}"))
            book.note(f"recorded: {', '.join(one.name for one in written if one.reason is None)}")
        for name in groups:
            began = time.monotonic()
            try:
                {**GROUPS, **MORE_GROUPS}[name](session)
            except (BenchgateError, RuntimeError, OSError, subprocess.SubprocessError, StartError) as exc:
                book.claim(f"the claims of {name} can be made", False, str(exc))
            book.note(f"{name}: {time.monotonic() - began:.0f} s")


def _options() -> argparse.Namespace:
    known = (*ENGINES, *GROUPS, *MORE_GROUPS)
    parser = argparse.ArgumentParser(prog="test-engines", description="benchgate against real engines on this machine.")
    parser.add_argument("--root", type=Path, required=True, help="folder of environments, models, logs and stores")
    parser.add_argument("--python", default=sys.executable, help="interpreter to make environments with")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="also record a transcript of each engine there")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"engines and groups of claims: {', '.join(known)}")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            parser.error(
                f"there is no engine or group of claims {name!r}; did you mean {near!r}? Known: {', '.join(known)}"
            )
    return options


if __name__ == "__main__":
    sys.exit(main())
