"""The process in which a template of the reader's own is rendered: JSON in, JSON out, and nothing else within reach.

The template gets data alone (dicts, lists, texts, numbers), so there is no object of ours to climb out of; Jinja's
sandbox is the second wall, and a process without our environment, with a limit on its memory, the third.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from benchgate.report.untrusted import markdown_code, markdown_prose, visible

MOST_MEMORY_BYTES = 1024**3
MOST_CHARACTERS = 16_000_000

_PROSE_CHARACTERS = 1000
_MISSING = "\N{EN DASH}"
# Filters that give markup of a text as it is, or another result every time.
_WITHHELD = ("safe", "urlize", "xmlattr", "random")
_ESCAPING = ("e", "escape", "forceescape", "tojson")  # for HTML: in markdown they would let markdown through
_ALONE = "a template stands alone: it reads no other file. Put what it needs into it"
_AUTOESCAPE = "what a template prints is always escaped; leave `autoescape` out"
_REFUSED: Mapping[type[nodes.Node], str] = {
    nodes.Extends: _ALONE,
    nodes.FromImport: _ALONE,
    nodes.Import: _ALONE,
    nodes.Include: _ALONE,
    nodes.ScopedEvalContextModifier: _AUTOESCAPE,
}
# What an expression of a template can go wrong with.
_EXPRESSIONS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Of data only its keys can be had; a name that is not there is told with the nearest that is."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute) if isinstance(obj, dict) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(obj, dict) or argument in obj:
            return super().getitem(obj, argument)
        near = difflib.get_close_matches(str(argument), list(obj), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(obj))}"
        return self.undefined(f"there is no {argument!r} here; {hint}", obj=obj, name=str(argument))


class _Code(str):
    """A finished code span of markdown. Whatever is done to it makes an ordinary text of it again."""

    __slots__ = ()


def _environment(*, markdown: bool) -> _Sandbox:
    environment = _Sandbox(
        autoescape=not markdown,  # markdown has an escaping of its own, which everything printed goes through
        undefined=StrictUndefined,
        finalize=_prose if markdown else _given,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in (*_WITHHELD, *(_ESCAPING if markdown else ())):
        del environment.filters[name]
    if markdown:
        environment.filters["code"] = _code
    del environment.globals["lipsum"]
    return environment


def _given(value: object) -> object:
    return _MISSING if value is None else value


def _prose(value: object) -> str:
    if isinstance(value, _Code):
        return value
    return _MISSING if value is None else markdown_prose(str(value), _PROSE_CHARACTERS)


def _code(value: object) -> _Code:
    return _Code(markdown_code(str(value)))


def rendered(
    source: str, view: object, charts: Sequence[Mapping[str, Any]] = (), *, markdown: bool
) -> dict[str, object]:
    """`text`, or `fault` with the `line` of the template that it is in (None where that is not known).

    Of all that is given only the drawing of a chart (`svg`) is markup already.
    """
    drawn = [{**chart, "svg": Markup(chart["svg"])} for chart in charts]
    environment = _environment(markdown=markdown)
    try:
        tree = environment.parse(source)
        for node in tree.find_all(tuple(_REFUSED)):
            return {"line": node.lineno, "fault": _REFUSED[type(node)]}
        parts, length = [], 0
        for part in environment.from_string(source).generate(view=view, charts=drawn):
            parts.append(part)
            length += len(part)
            if length > MOST_CHARACTERS:
                return {"line": None, "fault": f"it makes more than {MOST_CHARACTERS:,} characters"}
        text = "".join(parts)
        return {"text": text if markdown else visible(text)}
    except TemplateSyntaxError as error:
        return {"line": error.lineno, "fault": error.message}
    except (TemplateError, *_EXPRESSIONS) as error:
        told = str(error) or "it needs more memory than a template gets"
        return {"line": _line(error.__traceback__), "fault": told}


def _line(traceback: TracebackType | None) -> int | None:
    """The line of the template that was being rendered."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _limit_memory() -> None:
    """As far as this system has limits."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = MOST_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MOST_MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


def main() -> None:
    """Render the job on standard input."""
    _limit_memory()
    job = json.load(sys.stdin)
    view, charts = job["given"]["view"], job["given"]["charts"]
    sys.stdout.write(json.dumps(rendered(job["source"], view, charts, markdown=job["markdown"])))


if __name__ == "__main__":
    main()
