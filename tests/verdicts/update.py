"""Write the expected verdicts of the cases: `python -m tests.verdicts.update [--change]`.

New cases get the verdict that benchgate gives now. A verdict that is written already is replaced only with `--change`;
every difference is printed. Do that only when a change of decisions is the purpose of the change, and say so there.
"""

from __future__ import annotations

import sys

from tests.verdicts.cases import FILES, differences, read_cases, rewritten
from tests.verdicts.evidence import run_case


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def update(*, change: bool) -> bool:
    """Write what is missing, and with `change` what differs. Return whether something differs that was not written."""
    left = new = changed = 0
    for path in FILES:
        verdicts = {}
        for case in read_cases(path):
            found = run_case(case.suite, case.recipe, case.suites).verdict
            lines = [] if case.expected is None else list(differences(case.expected, found))
            if case.expected is None:
                new += 1
                _tell(f"{path.stem}: {case.name}: new, {found['outcome']}")
            elif lines:
                changed += change
                left += not change
                _tell(f"{path.stem}: {case.name}: {'CHANGED' if change else 'DIFFERS, and is kept'}")
                _tell("\n".join(f"    {line}" for line in lines))
            if case.expected is None or (lines and change):
                verdicts[case.name] = found
        if verdicts:
            text = rewritten(path.read_text(encoding="utf-8"), verdicts)
            path.write_text(text, encoding="utf-8", newline="\n")
    _tell(f"{new} cases new, {changed} verdicts changed, {left} differ and are kept")
    return left > 0


if __name__ == "__main__":
    sys.exit(update(change="--change" in sys.argv[1:]))
