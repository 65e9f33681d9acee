"""In what two stored suites do not ask the same, said so that someone can mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchgate.units import show_found

_ASKED = ("seed", "start", "load", "quality", "divergence", "shadow", "limits")
_OF_THE_CLIENT = ("load.workers", "load.audit", "load.looks", "load.limit")  # how it is asked, and not what
_NAMED = 3  # differences; more are counted


def what_differs(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """`load.blocks is 4 in the first and 8 in the second`, and how many more there are.

    Nothing of the suites differs where a file that they name was another one.
    """
    asked = [dict(leaves({key: suite.get(key) for key in _ASKED})) for suite in (one, other)]
    names = [name for name in dict.fromkeys([*asked[0], *asked[1]]) if asked[0].get(name) != asked[1].get(name)]
    names = [name for name in names if not name.startswith(_OF_THE_CLIENT)]
    if not names:
        return "their suites ask the same, so a file that these name (prompts, tasks, a trace) was another one"
    told = [
        f"{name} is {_shown(asked[0].get(name))} in the first and {_shown(asked[1].get(name))} in the second"
        for name in names[:_NAMED]
    ]
    more = len(names) - _NAMED
    return "; ".join(told) + (f"; and {more} more {'differs' if more == 1 else 'differ'}" if more > 0 else "")


def _shown(value: object) -> str:
    return "not there" if value is None else show_found(value)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every single value below, by where it stands: `load.sweep[0].concurrency`."""
    inside: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        inside = [(f"{path}.{key}" if path else str(key), one) for key, one in value.items()]
    elif isinstance(value, list | tuple):
        inside = [(f"{path}[{place}]", one) for place, one in enumerate(value)]
    if not inside:
        yield path, value
    for at, one in inside:
        yield from leaves(one, at)
