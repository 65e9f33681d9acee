"""The capacity search of `benchgate load --search`: its options, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchgate.cli.interruption import interrupted_code
from benchgate.cli.saying import log
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
    from benchgate.load.standalone.search import SearchOptions, run_search

    given: dict[str, Any] = {name: value if value is not None else _USUAL.get(name) for name, value in wanted.items()}
    return run_search(SearchOptions.parse(over=over, load=load, **given), tell)


def search_exit_code(result: Mapping[str, Any]) -> ExitCode:
    """0 for a search that ended, whatever it found, unless a `--min` asks for a verdict. What it found is told."""
    if result["partial"]:
        tell("interrupted; the document holds what was known by then")
        return interrupted_code()
    if result["fault"] is not None:
        tell(str(result["fault"]))
        return ExitCode.INVALID
    for line in _findings(result):
        tell(line)
    if "verdict" not in result:
        return ExitCode.OK
    verdict = result["verdict"]
    code = Outcome(verdict["outcome"]).exit_code()
    if code is not ExitCode.OK:
        tell(f"{verdict['outcome']}: {verdict['reason']}")
    return code


def _findings(result: Mapping[str, Any]) -> Iterator[str]:
    """The bracket, or why there is none, and what would mend that."""
    capacity, over, why = result["capacity"], result["search"]["over"], _ENDED.get(result["stop"], "")
    lower, upper = (None if capacity[end] is None else _level(capacity[end], over) for end in ("lower", "upper"))
    if lower is not None and upper is not None:
        yield f"the capacity is between {lower} and {upper}{why}"
    elif lower is not None:
        yield f"the capacity is {lower} or more{why}"
    elif upper is not None:
        yield f"the capacity is below {upper}{why}"
    else:
        yield f"no level was shown to meet the target or to miss it{why}"
    if result["requests_needed"] is not None:
        yield f"about {result['requests_needed']:,} requests at one level would show more (--probe)"
    unclear = [probe for probe in result["probes"] if probe["standing"] in ("open", "unresolved")]
    short = ", ".join(_level(probe["level"], over) for probe in unclear if probe["window_short"])
    if short:
        yield f"watched for less than 10 s, or 10 % of its looks: {short}; more requests (--probe) watch longer"


_ENDED = {
    "never_breached": ": the highest level met the target; search further (--to)",
    "unmet_at_minimum": ": the lowest level missed the target; begin lower (--from)",
    "unresolved": "; the levels left to look at stayed unresolved",
    "probes_exhausted": "; the search looked at as many levels as it may",
    "budget_exhausted": "; the --budget is spent",
}


def _level(level: float, over: str) -> str:
    return f"{level:g}/s" if over == "rate" else f"{level:g} in flight"


def tell(line: str) -> None:
    """Write a line of progress to stderr."""
    log(f"benchgate: {line}")
