"""What the files of a load hold, once they are read: all that a plan is made of beside the suite and its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchgate.plan.workloads import Vocabulary


@dataclass(frozen=True, slots=True)
class SeenLengths:
    """One row of a file of lengths; None where the file has no such column."""

    input_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded request: its messages up to the one that is to be answered, and what else it said.

    `line` is where it stands in its file, from 1.
    """

    messages: tuple[Mapping[str, object], ...]
    output_tokens: int | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    line: int = 1


@dataclass(frozen=True, slots=True)
class Material:
    """By the name under which the suite has the file."""

    lengths: Mapping[str, Sequence[SeenLengths]] = field(default_factory=dict)
    prompts: Mapping[str, Sequence[Recorded]] = field(default_factory=dict)
    schemas: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    tools: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)  # as `data:` addresses
    vocabularies: Mapping[tuple[str, str], Vocabulary] = field(default_factory=dict)  # by tokenizer and kind of text

    def vocabulary(self, tokenizer: str | None, text: str) -> Vocabulary | None:
        """What made-up texts of this kind are made of for a tokenizer; None for the usual one."""
        return None if tokenizer is None else self.vocabularies[tokenizer, text]


NOTHING = Material()
