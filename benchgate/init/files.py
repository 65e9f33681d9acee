"""The files of a beginning, written all or none, and over nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.init import arithmetic
from benchgate.init.first_suite import suite_text
from benchgate.init.probe import Met
from benchgate.init.workflow import workflow_text
from benchgate.suite.deployment import reference_name
from benchgate.suite.loader import parse_suite

WORKFLOW = Path(".github/workflows/benchgate.yml")
WAIVERS = Path("waivers.yaml")
EVALS = Path("evals")

_WAIVERS = """\
# Checks of this repository's suites that block and are let through for a while. An empty list lets nothing through.
# Looked at only where it is named: `benchgate run SUITE --waivers waivers.yaml`. `benchgate waive CHECK` writes one
# with all that it needs: which check of which suite and deployment, how much harm is tolerated (`ceiling`), until when
# (`expires`), who answers for it (`owner`), who approved it (somebody else), why, and where it is followed up.
# A change to this file should pass the review of whoever may approve one. All about them: docs/waivers.md of benchgate.
waivers: []
"""


def places(folder: Path, suite: Path) -> tuple[Path, ...]:
    """Every file that is written; `suite` is relative to the folder. UsageError where one is there already."""
    evals = folder / suite.parent / EVALS
    found = (
        folder / suite,
        evals / f"{arithmetic.NAME}.yaml",
        evals / f"{arithmetic.NAME}.jsonl",
        folder / WAIVERS,
        folder / WORKFLOW,
    )
    there = [path for path in found if path.exists() or path.is_symlink()]
    if there:
        told = ", ".join(map(str, there))
        raise UsageError(f"{told}: there already, and init writes over nothing; {_way_on(there, found)}")
    return found


def _way_on(there: Sequence[Path], found: Sequence[Path]) -> str:
    """What to do about files that are in the way; the first of `found` is the suite."""
    suite = found[0]
    if there == [suite]:
        return f"name another file for the suite, like `benchgate init --baseline … --candidate … next-{suite.name}`"
    elsewhere = "move what is in the way, or name another folder with --dir"
    if suite not in there:
        return elsewhere
    go_on = shlex.quote(str(suite))
    return f"to go on with that suite, `benchgate doctor --suite {go_on}` and `benchgate run {go_on}`; else {elsewhere}"


def texts(folder: Path, suite: Path, baseline: Met, candidate: Met) -> dict[Path, str]:
    """What goes into each of `places`. UsageError where a variable that holds a secret is not named in capitals."""
    path, task, items, waivers, workflow = places(folder, suite)
    specs = (baseline.spec, candidate.spec)
    said = [text for spec in specs for text in (spec.url, spec.api_key) if text is not None]
    variables = [name for text in said if (name := reference_name(text)) is not None]
    for name in variables:
        if name != name.upper():  # the action takes no other variables
            raise UsageError(f"the workflow takes {name} from a secret; call the variable {name.upper()}")
    whole = suite_text(baseline, candidate, file=str(path), task=f"{EVALS}/{arithmetic.NAME}.yaml")
    parse_suite(whole, str(path))  # what is written is a suite, or nothing is written
    return {
        path: whole,
        task: arithmetic.TASK,
        items: arithmetic.rows(),
        waivers: _WAIVERS,
        workflow: workflow_text(suite=json.dumps(suite.as_posix()), waivers=WAIVERS.name, variables=variables),
    }


def write_all(files: Mapping[Path, str]) -> None:
    """Write every file, or none of them. Raises UsageError where one cannot be written."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as out:
                written.append(path)
                out.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(
            f"{error.filename or 'a file'} cannot be written: {error.strerror}; nothing is left"
        ) from error
