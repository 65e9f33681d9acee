"""Generated parts of docs/reference/faults.md: the faults that the campaign makes, and what benchgate says of each."""

from __future__ import annotations

from benchgate.suite.simulator import FAULTS
from benchmarks.campaign.cases import OUTSIDE, SIM, Expected
from benchmarks.campaign.running import ENDS
from benchmarks.campaign.suites import PHASES
from scripts.verdict_reference import table

_HEADINGS = {"startup": "starts", "load": "load", "quality": "evals", "shadow": "shadow"}


def faults_of_servers() -> str:
    """Return a table of the practice server's faults, and of the verdicts in each phase."""
    effects = {kind.name: (kind.usage, kind.effect) for kind in FAULTS}
    rows = []
    for name, fault in SIM.items():
        usage, effect = effects.get(name, (fault.text or name, fault.words))
        rows.append([f"`{usage}`", effect, *(_ends(getattr(fault, phase)) for phase in PHASES)])
    return table(("fault", "the answer", *(_HEADINGS[phase] for phase in PHASES)), rows)


def faults_from_outside() -> str:
    """Return a table of what happens to a run from outside, with a row for phases that end alike."""
    rows = []
    for what in OUTSIDE.values():
        alike: dict[str, list[str]] = {}
        for phase, expected in what.expected.items():
            alike.setdefault(_ends(expected), []).append(_HEADINGS[phase])
        rows += [[what.does, ", ".join(phases), ends] for ends, phases in alike.items()]
    return table(("what happens", "during", "ends"), rows)


def _ends(expected: Expected) -> str:
    """Return the ends with their exit codes, and what names the fault: `BLOCK 10 (error_rate)`."""
    ends = " or ".join(f"{end} {ENDS[end]}" for end in expected.ends)
    return ends + (f" ({', '.join(f'`{name}`' for name in expected.by)})" if expected.by else "")
