"""What is asked of a verdict server: which run, or which suite and candidate, and what it must be.

Nothing that is not understood is passed over: a word that is misspelled would else be a condition that nobody checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from benchgate.errors import UsageError
from benchgate.targets.error_messages import one_line
from benchgate.units import parse_duration_s

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Question:
    """Of `run` (an id or a label), or of the newest run of `suite` that judges its deployment `candidate`.

    `revision` is what the candidate's weights must have been measured at, `max_age_s` how long ago at most the run may
    have ended, `promoted` whether a recorded promotion of it must stand, `strict` whether WARN is a no.
    """

    run: str | None = None
    suite: str | None = None
    candidate: str | None = None
    revision: str | None = None
    max_age_s: float = 0.0
    promoted: bool = False
    strict: bool = False


def question(said: Mapping[str, object], *, max_age_s: float, strict: bool) -> Question:
    """By what a caller says under these names; it may ask for less than `max_age_s` and for more than `strict`.

    Raises UsageError for a name or a value that means nothing, and where no run is named.
    """
    texts = {name: _text(name, value) for name, value in said.items()}
    for name in texts:
        if name not in _NAMES:
            near = get_close_matches(name, _NAMES, n=1, cutoff=0)[0]
            raise UsageError(f"{one_line(name)} means nothing here; did you mean {near}? Known: {', '.join(_NAMES)}")
    run, suite, candidate = (texts.get(name) for name in ("run", "suite", "candidate"))
    if (run is None) == (suite is None):
        raise UsageError("name either a `run`, or a `suite` and its `candidate`")
    if (suite is None) != (candidate is None):
        raise UsageError("a `suite` may have several candidates: name the `candidate` beside it, and only there")
    if run is not None and run.startswith("@"):
        raise UsageError(f"{one_line(run)} means another run every day; name one by its id or label, or a suite")
    return Question(
        run=run,
        suite=suite,
        candidate=candidate,
        revision=texts.get("revision"),
        max_age_s=min(max_age_s, _age_s(texts["max_age"])) if "max_age" in texts else max_age_s,
        promoted=_flag("promoted", texts.get("promoted")),
        strict=strict or _flag("strict", texts.get("strict")),
    )


_NAMES = ("run", "suite", "candidate", "revision", "max_age", "promoted", "strict")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST or not value.isprintable():
        raise UsageError(f"{one_line(name)}: expected a text of 1 to {_LONGEST} characters on one line")
    return value


def _flag(name: str, value: str | None) -> bool:
    if value not in (None, "true", "false"):
        raise UsageError(f"{name}: expected true or false")
    return value == "true"


def _age_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise UsageError(f"max_age: {error}") from error
