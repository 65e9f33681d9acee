"""Reports by a template of the reader's own: HTML or markdown, of the same view as ours, in a process that has no more.

Whoever writes a template may make it look as they like. What it cannot do is read a file, reach into Python, see a
secret of this process, print a text of a model or a server as markup, or keep this process waiting.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from enum import Enum
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.report.drawing import Figure
from benchgate.report.untrusted import one_line
from benchgate.report.view import ReportView

ENDINGS = {".html.j2": False, ".md.j2": True}
"""How the name of a template ends, and whether it is markdown."""

MOST_S = 20.0
"""How long a template may take."""

_MOST_BYTES = 1024 * 1024  # of a template; the report's own are 30 KB


@dataclass(frozen=True, slots=True)
class OwnTemplate:
    """A template as it was read; `name` is how its errors call it."""

    name: str
    source: str
    markdown: bool

    @property
    def out(self) -> Path:
        """Where what it makes goes unless somebody says otherwise."""
        return Path("report.md" if self.markdown else "report.html")


def read_template(path: Path) -> OwnTemplate:
    """The template in a file. UsageError where there is none, or nothing that can be one."""
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
    if ending is None:
        raise UsageError(
            f"{path}: the name of a template ends in {' or '.join(ENDINGS)}, which says what it makes; rename the file"
        )
    try:
        with path.open("rb") as file:
            source = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the template {path} could not be read: {error.strerror}") from error
    if len(source) > _MOST_BYTES:
        raise UsageError(f"{path}: a template has at most {_MOST_BYTES:,} bytes, and this has more")
    try:
        return OwnTemplate(str(path), source.decode(), ENDINGS[ending])
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: this is not UTF-8; save the template as UTF-8") from error


def render_own(view: ReportView, template: OwnTemplate, *, most_s: float = MOST_S) -> str:
    """What the template makes of the view. UsageError, with file and line, for whatever it does that it may not."""
    asked = "charts" in template.source and not template.markdown  # drawing them takes a second
    given = {"view": plain(view), "charts": plain([*_charts(view)]) if asked else []}
    job = {"source": template.source, "markdown": template.markdown, "given": given}
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", "benchgate.report.own_template_process"],
            input=json.dumps(job).encode(),
            capture_output=True,
            env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},  # and nothing of our own
            timeout=most_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{template.name}: not done after {most_s:g} s, which is all a template gets") from None
    if child.returncode != 0:
        said = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UsageError(f"{template.name}: its process ended with {child.returncode}: {one_line(said) or 'no word'}")
    answer: dict[str, str | int | None] = json.loads(child.stdout)
    if "fault" in answer:
        line = f":{answer['line']}" if answer["line"] is not None else ""
        raise UsageError(f"{template.name}{line}: {one_line(str(answer['fault']), 1000)}")
    return str(answer["text"])


def _charts(view: ReportView) -> Iterator[Figure]:
    """Every chart, in reading order."""
    from benchgate.report.figures import figures_of

    drawn = figures_of(view)
    for field in fields(drawn):
        found: Figure | tuple[Figure, ...] | None = getattr(drawn, field.name)
        yield from found if isinstance(found, tuple) else [found] if found is not None else []


def plain(value: object) -> object:
    """A value of the report as data alone: a dict of its fields and properties, a list, a text, a number or None."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | int | float):
        return value
    if is_dataclass(value):
        named = [field.name for field in fields(value)]
        named += [name for name, one in vars(type(value)).items() if isinstance(one, property)]
        return {name: plain(getattr(value, name)) for name in named if not name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, frozenset):
        return sorted((plain(one) for one in value), key=repr)
    if isinstance(value, Sequence):
        return [plain(one) for one in value]
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"a report holds no {type(value).__name__}")
