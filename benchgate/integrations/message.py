"""What is told of a run, as a value that every publisher takes: finished texts, and no decision left to make."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote

from benchgate.errors import PublishError
from benchgate.model.verdict import Outcome

SHORT_CHARACTERS = 140
"""What GitHub takes as the description of a status."""

_RUN = re.compile(r" · run (\S+)$")


class Light(StrEnum):
    """What a host shows. Only SUCCESS lets a change through."""

    PENDING = "pending"  # it is being measured
    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"  # there is no verdict that could be relied on


@dataclass(frozen=True, slots=True)
class Annotation:
    """One thing that needs attention, at a line (from 1) of a file of the repository.

    `level` is `failure`, `warning` or `notice`.
    """

    path: str
    line: int
    level: str
    title: str
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """A verdict, or that there is none (yet), ready to be told.

    `key` tells runs of one suite and candidate on one commit apart, where they are told beside each other. `outcome`
    and `run_id` are None before there are any, and `outcome` also where the verdict is in doubt. `title` is one line;
    `text` gives Markdown of at most so many bytes. `document` is the verdict document, empty where there is none.
    """

    suite: str
    candidate: str
    run_id: str | None
    outcome: Outcome | None
    light: Light
    title: str
    text: Callable[[int], str]
    annotations: tuple[Annotation, ...] = ()
    details_url: str | None = None
    document: Mapping[str, object] = field(default_factory=dict)
    key: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Suite, candidate and, where there is one, key: what is told under these replaces what was."""
        return (self.suite, self.candidate) if self.key is None else (self.suite, self.candidate, self.key)

    @property
    def name(self) -> str:
        """What a check run or a status is called. No two `names` have one name, whatever is in them."""
        return "/".join(("benchgate", *(quote(name, safe=" ") for name in self.names)))

    @property
    def short(self) -> str:
        """The title, cut to what a status holds."""
        return _cut(self.title, SHORT_CHARACTERS)

    @property
    def description(self) -> str:
        """The same with the id of its run at the end, by which `run_told` knows it again."""
        if self.run_id is None:
            return self.short
        end = f" · run {self.run_id}"
        return _cut(self.title, SHORT_CHARACTERS - len(end)) + end

    def require_newest(self, told: Sequence[str], doing: str) -> None:
        """Raise Overtaken where this would make green again what is not any more; anything else may always be told.

        `told` are the runs that were told of under these names, oldest first: empty for one that was none (`--begin`,
        `--no-verdict`). Ids of runs sort by when they were measured.
        """
        if self.light is not Light.SUCCESS or self.run_id is None:
            return
        newest = max(told, default="")
        if newest > self.run_id:
            raise Overtaken(
                f"{doing}: run {newest} was measured after run {self.run_id} and was told of, so nothing is made green "
                f"by the older one; publish {newest} if its verdict is not there"
            )
        if self.run_id in told and told[-1] == "":
            raise Overtaken(
                f"{doing}: after run {self.run_id} was told of, measuring began once more, so its verdict is an old "
                "one; publish the run that this came to"
            )


class Overtaken(PublishError):
    """What would be told is older than what is told already."""


def run_told(description: object) -> str:
    """The run by whose `description` somebody was told; empty where it names none."""
    found = _RUN.search(description) if isinstance(description, str) else None
    return found[1] if found is not None else ""


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
