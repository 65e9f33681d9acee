"""OpenMetrics text: metrics by their names and units, samples with sorted labels, one spelling of every value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from benchgate.errors import EvidenceError
from benchgate.model.metric import TREND_UNITS
from benchgate.model.run import MetricRow
from benchgate.model.verdict import Outcome, Unit

DIGITS = 6
_UNITS = {
    Unit.SECONDS: "seconds",
    Unit.RATIO: "ratio",
    Unit.NATS: "nats",
    Unit.TOKENS_PER_S: "tokens_per_second",
    Unit.REQUESTS_PER_S: "requests_per_second",
    Unit.TOKENS_PER_S_EACH: "tokens_per_second",
    Unit.REQUESTS_PER_S_EACH: "requests_per_second",
}
"""Units that end a metric's name; the names of the others have them, or they are plain numbers."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family: name, unit, help text and samples."""

    name: str
    unit: str
    means: str
    samples: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield its lines."""
        yield f"# TYPE {self.name} gauge"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.means}"
        yield from self.samples


def exposition(families: Iterable[Family]) -> str:
    """Return the whole text."""
    return "".join(f"{line}\n" for family in families for line in family.lines()) + "# EOF\n"


def verdict_family(outcomes: Mapping[str, Outcome | None]) -> Family:
    """Return each suite's newest verdict as one sample for each outcome; all are 0 without a decision."""
    name = "benchgate_verdict"
    decided = [
        sample(name, {"suite": suite, "outcome": outcome.value}, found is outcome)
        for suite, found in outcomes.items()
        for outcome in Outcome
    ]
    return Family(name, "", "1 for the outcome of the newest run of the suite.", tuple(decided))


def metric_families(rows: Iterable[tuple[str, MetricRow]], *, digits: int = DIGITS) -> Iterator[Family]:
    """Yield the derived numbers of runs by metric; each row comes with its suite's name.

    Raises EvidenceError for a malformed metric name.
    """
    samples: dict[str, list[str]] = {}
    for suite, row in sorted(rows, key=lambda one: one[1].name):
        places = {"arm": row.arm.value, "stage": row.stage, "statistic": row.statistic, "task": row.task}
        labels = {key: text for key, text in places.items() if text is not None} | {"suite": suite}
        line = sample(_named(row.name)[0], labels, row.value, digits=digits)
        samples.setdefault(row.name, []).append(line)
    for metric, lines in samples.items():
        name, unit = _named(metric)
        yield Family(name, unit, f"{metric} of docs/reference/metrics.md.", tuple(sorted(lines)))


def sample(name: str, labels: Mapping[str, str], value: float, *, digits: int = DIGITS) -> str:
    """Return one sample line."""
    pairs = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{pairs}}} {value + 0.0:.{digits}g}"


def start_family(starts: Mapping[str, str]) -> Family:
    """Return when the newest run of each suite began (RFC 3339)."""
    name = "benchgate_run_started_timestamp_seconds"
    seconds = {suite: int(datetime.fromisoformat(started_at).timestamp()) for suite, started_at in starts.items()}
    samples = tuple(sample(name, {"suite": suite}, start_s, digits=12) for suite, start_s in seconds.items())
    return Family(name, "seconds", "When the newest run of the suite began.", samples)


def newest_runs_text(newest: Sequence[tuple[str, str, Outcome | None, Sequence[MetricRow]]]) -> str:
    """Return the exposition of the newest run of each suite: name, start (RFC 3339), own outcome and metrics.

    No label changes from run to run, so the series of a suite continue.
    """
    started = start_family({suite: started_at for suite, started_at, _, _ in newest})
    verdicts = verdict_family({suite: outcome for suite, _, outcome, _ in newest})
    rows = [(suite, row) for suite, _, _, metrics in newest for row in metrics]
    return exposition([verdicts, started, *metric_families(rows)])


def _named(metric: str) -> tuple[str, str]:
    """Return a metric's OpenMetrics name, which ends with its unit, and the unit."""
    if not _NAME.fullmatch(metric):
        raise EvidenceError(f"a metric is called {ascii(metric)[:60]}; expected small letters, digits and _")
    spelled = _UNITS.get(TREND_UNITS.get(metric) or Unit.COUNT, "")
    return "_".join(filter(None, ("benchgate", metric, spelled))), spelled


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
