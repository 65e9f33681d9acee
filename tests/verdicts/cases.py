"""Reading, comparing and rewriting the case files. They are plain data: nothing here knows benchgate.

A file of `cases/` maps names to cases. A case has these keys:

- `suite`: the name of a file of `suites/`, or the text of a suite without its `gate`; `more`: further sections;
- `gate`: the policy;
- `recipe`: how the evidence is made, by the words that `evidence.py` and `servers.py` document;
- `suites`: by name, for runs that were measured by another suite than the one that judges them;
- `expected`: the verdict as JSON, which `python -m tests.verdicts.update` writes.

A verdict is written short: a name in parentheses stands for a group of guards (`guards.yaml`), `effect` is left out
where it is the candidate's own value, and `p_adjusted` where Holm's adjustment changes nothing.
"""

from __future__ import annotations

import functools
import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).parent
FILES = sorted((HERE / "cases").glob("*.yaml"))
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


@dataclass(frozen=True)
class Case:
    """One case: all texts as they are handed to benchgate, and the verdict that is expected."""

    name: str
    suite: str
    recipe: dict[str, Any]
    suites: Mapping[str, str]
    expected: dict[str, Any] | None


@functools.cache
def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file, in order."""
    cases = []
    for name, written in read_yaml(path).items():
        unknown = written.keys() - {"suite", "more", "gate", "recipe", "suites", "expected"}
        assert not unknown, f"{path.name}: {name}: unknown keys {sorted(unknown)}"
        suites = {key: _suite_text(one) for key, one in written.get("suites", {}).items()}
        expected = _in_full(json.loads(written["expected"])) if "expected" in written else None
        cases.append(Case(name, _suite_text(written), written.get("recipe", {}), suites, expected))
    return cases


def read_yaml(path: Path) -> Any:
    """Return a YAML 1.2 file as plain values."""
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def _suite_text(written: Mapping[str, str]) -> str:
    base = written["suite"] if "\n" in written["suite"] else _base(written["suite"])
    return f"{base}{written.get('more', '')}gate:\n{textwrap.indent(written['gate'], '  ')}"


@functools.cache
def _base(name: str) -> str:
    return (HERE / "suites" / f"{name}.yaml").read_text(encoding="utf-8")


@functools.cache
def guard_groups() -> dict[str, list[str]]:
    """Return the guards that a name in parentheses stands for."""
    groups: dict[str, list[str]] = read_yaml(HERE / "guards.yaml")
    return {f"({name})": ids for name, ids in groups.items()}


def _in_full(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict with what is written short: groups of guards, and p-values that Holm left as they were."""
    groups = guard_groups()
    guards = {
        state: sorted(one for name in names for one in groups.get(name, [name])) if state != "tripped" else names
        for state, names in verdict["guards"].items()
    }
    checks = {name: _in_full_check(one) for name, one in verdict["checks"].items()}
    return {**verdict, "checks": checks, "guards": guards}


_SAME = {"effect": "candidate", "p_adjusted": "p_value"}


def _in_full_check(check: dict[str, Any]) -> dict[str, Any]:
    """Return the check with the numbers that are left out because another one is the same; null stands for none."""
    full = {name: check[other] for name, other in _SAME.items() if other in check} | check
    return {name: value for name, value in full.items() if value is not None}


def _short_check(check: dict[str, Any]) -> dict[str, Any]:
    none = {name: None for name, other in _SAME.items() if other in check and name not in check}
    same = {name for name, other in _SAME.items() if name in check and check[name] == check.get(other)}
    return {name: value for name, value in (check | none).items() if name not in same}


def _with_groups(ids: list[str]) -> list[str]:
    """Return the ids with the names of the groups that are among them whole."""
    left, names = list(ids), []
    for name, members in guard_groups().items():
        while all(one in left for one in members):
            names.append(name)
            for one in members:
                left.remove(one)
    return [*names, *left]


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each place at which two verdicts differ; numbers within 1e-9 of each other are equal."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            where = f"{path}/{key}"
            if key not in found or key not in expected:
                value = expected.get(key, found.get(key))
                yield f"{where}: {json.dumps(value)} {'is gone' if key in expected else 'is new'}"
            else:
                yield from differences(expected[key], found[key], where)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}/{number}")
    elif not _equal(expected, found):
        yield f"{path}: expected {json.dumps(expected)}, found {json.dumps(found)}"


def _equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, float | int) and isinstance(found, float | int) and not isinstance(expected, bool):
        return math.isclose(expected, found, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(expected == found)


def rewritten(text: str, verdicts: Mapping[str, dict[str, Any]]) -> str:
    """Return the text of a case file with these verdicts as the expected ones; everything else stays as it is."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line and not line[0].isspace() and not line.startswith("#") and line.endswith(":"):
            blocks.append([])
        blocks[-1].append(line)
    return "\n".join(line for block in blocks for line in _with_verdict(block, verdicts)) + "\n"


def _with_verdict(block: list[str], verdicts: Mapping[str, dict[str, Any]]) -> list[str]:
    name = block[0].removesuffix(":") if block else ""
    if name not in verdicts:
        return block
    kept = block[: block.index("  expected: |")] if "  expected: |" in block else block
    end = len(kept)
    while end and (not kept[end - 1].strip() or kept[end - 1].startswith("#")):
        end -= 1
    tail = block[len(block) - _trailing(block) :]
    return [*kept[:end], "  expected: |", *(f"    {line}" for line in _json_lines(verdicts[name])), *tail]


def _trailing(block: list[str]) -> int:
    """Return how many blank lines and comments of the next case end this one's lines."""
    count = 0
    while count < len(block) and (not block[-1 - count].strip() or block[-1 - count].startswith("#")):
        count += 1
    return count


def _json(value: Any) -> str:
    return json.dumps(_rounded(value), separators=(", ", ":"))


def _rounded(value: Any) -> Any:
    """Return the value with floats of 12 significant digits, which is more than is compared."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _json_lines(verdict: Mapping[str, Any]) -> list[str]:
    """Return the verdict as JSON with one line for each check and each guard that tripped, to be read in a diff."""
    guards = dict(verdict["guards"])
    tripped = [_json(one) for one in guards.pop("tripped", [])]
    states = ", ".join(f"{_json(state)}: {_json(_with_groups(ids))}" for state, ids in guards.items())
    checks = [f" {_json(name)}: {_json(_short_check(one))}" for name, one in verdict["checks"].items()]
    lines = [
        f'{{"outcome": {_json(verdict["outcome"])},',
        '"checks": {',
        *(f"{line}," for line in checks[:-1]),
        f"{checks[-1]}}},",
        f'"guards": {{{states}' + (', "tripped": [' if tripped else "}"),
        *(f" {line}," for line in tripped[:-1]),
        *(f" {line}]}}" for line in tripped[-1:]),
    ]
    for key, value in verdict.items():
        if key not in ("outcome", "checks", "guards"):
            lines[-1] += ","
            lines.append(f"{_json(key)}: {_json(value)}")
    return [*lines[:-1], f"{lines[-1]}}}"]
