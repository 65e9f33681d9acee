"""The capacity search of `benchgate load --search`: its options, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchgate.errors import ExitCode, UsageError
from benchgate.model.verdict import Outcome

_SPELT = {"lowest": "from", "highest": "to", "least": "min"}
_USUAL: dict[str, Any] = {"target": "95%", "resolution": "10%", "probe": 1000}


def refuse_without_search(wanted: Mapping[str, object]) -> None:
    """An option of the search that would change nothing is a mistake."""
    for name, value in wanted.items():
        if value is not None:
            raise UsageError(f"--{_SPELT.get(name, name)} means nothing without --search; leave it out")


def searched(over: str, wanted: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, object]:
    """Search one server; the document."""
    from benchgate.load.bare_search import SearchOptions, run_search

    given: dict[str, Any] = {name: value if value is not None else _USUAL.get(name) for name, value in wanted.items()}
    return run_search(SearchOptions.parse(over=over, load=load, **given))


def search_exit_code(result: Mapping[str, Any]) -> ExitCode:
    """0 for a search that ended, whatever it found, unless a `--min` asks for a verdict."""
    if result["partial"]:
        sys.stderr.write("benchgate: interrupted; the document holds what was known by then\n")
        return ExitCode.INTERRUPTED
    if result["fault"] is not None:
        sys.stderr.write(f"benchgate: {result['fault']}\n")
        return ExitCode.INVALID
    return Outcome(result["verdict"]["outcome"]).exit_code() if "verdict" in result else ExitCode.OK
