"""What may stand in a suite's text where its type is that of what is read from it: for editors, as JSON Schema says it.

A duration is a number once it is read and a text like `500ms` before, and an editor sees the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Form = Mapping[str, object]
"""A schema of JSON Schema 2020-12, without references."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The forms that a value may have in the text, beside that of the section that stands there, if one does.

    Compared by identity: what a type is annotated with must be hashable, and forms are not.
    """

    forms: tuple[Form, ...]

    @classmethod
    def of(cls, *forms: Form) -> Written:
        """One of several forms."""
        return cls(forms)


def text(pattern: str | None = None) -> Form:
    """A text, of a pattern where there is one, else not empty."""
    return {"type": "string", "minLength": 1} if pattern is None else {"type": "string", "pattern": pattern}


def word(*words: str) -> Form:
    """One of some words."""
    return {"enum": list(words)}


WHOLE: Form = {"type": "integer"}
MAPPING: Form = {"type": "object", "minProperties": 1}
