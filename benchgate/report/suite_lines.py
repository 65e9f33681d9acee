"""Where the checks of a verdict stand in the text of the suite that it was judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.gate.policy import concrete_checks
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite
from benchgate.suite.yaml import read_text


@dataclass(frozen=True, slots=True)
class SuiteLines:
    """A suite's file and its lines, from 1. `path` is relative to the root of the repository, with `/`.

    `by_check` has the line of each check that the file writes; `gate` that of its policy, or the file's first.
    """

    path: str
    by_check: Mapping[str, int]
    gate: int

    def line(self, check: str | None) -> int:
        """The line of a check by its id; of one that the file does not write (a usual one), that of the policy."""
        return self.by_check.get(check, self.gate) if check is not None else self.gate


def suite_lines(text: str, path: str, suite: Suite, evidence: Evidence) -> SuiteLines:
    """The places of the checks in this text, where `suite` is what was judged by. SuiteError for no YAML."""
    document = read_text(text, path)
    gate = document.keys.get(("gate",)) or document.values.get(("gate",))
    written = [document.values.get(("gate", "checks", i)) for i in range(len(suite.gate.checks))]
    by_check: dict[str, int] = {}
    for spec in concrete_checks(suite, evidence):
        place = written[suite.gate.checks.index(spec.check)]
        if place is not None:
            by_check.setdefault(spec.id, place.line)
    return SuiteLines(path, by_check, gate.line if gate is not None else 1)
