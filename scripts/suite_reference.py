"""The generated parts of docs/reference/suite.md and docs/guides/servers.md, from the models of the suite language."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from benchgate.suite.messages import Slot, expectation, key_of, limits, sections, slots_of
from benchgate.suite.types import Expected, Written
from benchgate.units import as_written

_FOLDER = Path(__file__).parents[1] / "docs/reference"
_GUIDES = {
    "deployments": "../guides/servers.md",
    "deployments-sim": "../guides/servers.md#practice-server",
    "deployments-ready": "../guides/servers.md#readiness-and-replicas",
    "deployments-price_terms": "../guides/cost.md",
    "deployments-token_prices": "../guides/cost.md",
    "error_budget": "verdict.md#error-budgets",
    "load": "../guides/load.md",
    "load-workload": "../guides/load.md#workloads",
    "load-workload-prompts": "#recorded-prompts",
    "load-sweep": "../guides/load.md#stages",
    "load-sweep-classes": "../guides/load.md#classes-and-slos",
    "load-sweep-actions": "../guides/load.md#actions-during-a-stage",
    "load-capacity": "../guides/load.md#capacity-search",
    "quality": "../guides/evals.md",
    "shadow": "../guides/shadow.md",
    "divergence": "metrics.md#fixed-texts",
    "gate": "verdict.md",
    "gate-client": "verdict.md#blocks-excluded-for-the-client",
    "gate-creep": "verdict.md#slow-creep",
    "gate-checks": "#rules-for-checks",
}


def suite_sections() -> str:
    """Return a table of the keys of every section of the suite language."""
    return "\n\n".join(_section(place, model) for place, model in sections())


def suite_example(name: str) -> str:
    """Return an example suite in a code block."""
    return f"```yaml\n{(_FOLDER / f'suite-{name}.yaml').read_text(encoding='utf-8')}```"


def _section(place: str, model: type[BaseModel]) -> str:
    slots = slots_of(model)
    rows = [
        f"| `{key_of(name, field)}` | {_value(slots[key_of(name, field)])} | {' | '.join(_meaning(field, slots))} |"
        for name, field in model.model_fields.items()
    ]
    title = f"`{place}`" if place else "Top level"
    parts = [f'<a id="{_anchor(place)}"></a>', f"### {title}", inspect.cleandoc(model.__doc__ or "")]
    if _anchor(place) in _GUIDES:
        target = _GUIDES[_anchor(place)]
        page, _, heading = target.partition("#")
        label = ": ".join(filter(None, (Path(page).stem, heading.replace("-", " "))))
        parts.append(f"See also: [{label}]({target}).")
    return "\n\n".join([*parts, "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])])


def _anchor(place: str) -> str:
    """Return the anchor of a section: `load-workload`, `load-sweep-classes`."""
    return re.sub(r"\[\]|\.<name>", "", place).replace(".", "-") or "top-level"


_PLACES = {model: place for place, model in sections()}


def _value(slot: Slot) -> str:
    """Return the cell for what may be written at a key."""
    mark = next((mark for mark in reversed(slot.metadata) if isinstance(mark, Expected)), None)
    link = ""
    if slot.model is not None:
        place = _PLACES[slot.model]
        link = f"[section](#{_anchor(place)})"
        return link if mark is None else f"{_code(mark.phrase)} ({link})"
    if slot.entry is not None and mark is None:
        inner = slot.entry
        what = f"[sections](#{_anchor(_PLACES[inner.model])})" if inner.model else _plural(inner)
        return f"{what} by name" if slot.names is not None else f"list of {what}"
    if slot.choices:
        return ", ".join(f"`{word}`" for word in slot.choices)
    phrase = expectation(slot)
    more = limits(slot.metadata) if mark and slot.kind is int else ""
    return "name" if phrase == _NAME else _bounds(_code(phrase) + more)


def _plural(slot: Slot) -> str:
    if slot.choices:
        return ", ".join(f"`{word}`" for word in slot.choices)
    if expectation(slot) == _NAME:
        return "names"
    phrase = _bounds(_code(expectation(slot)))
    plural = re.match(r"(text|whole number|number)\b", phrase)
    return phrase.replace(plural[1], f"{plural[1]}s", 1) if plural else f"values, each {phrase}"


def _bounds(phrase: str) -> str:
    """Shorten the bounds of a number: `1 to 64`."""
    phrase = re.sub(r" and below 9,223,.*|, at least 67,108,864$", "", phrase)  # 64 bits; bytes of `64MiB`
    return re.sub(r"at least ([-\d,.]+) and at most ([-\d,.]+)", r"\1 to \2", phrase)


def _code(phrase: str) -> str:
    """Return a phrase of a message for a table: without its article, with examples as code."""
    phrase = re.sub(r"^an? ", "", phrase).replace("|", "\\|")
    if "`" in phrase:
        return phrase
    if "in quotes" in phrase:
        return re.sub(r'("[^"]+")', r"`\1`", phrase)
    return re.sub(r'(\{[^}]*\}+|\[[^\]]*\])|"([^"]+)"', lambda found: f"`{found[1] or found[2]}`", phrase)


def _meaning(field: FieldInfo, slots: object) -> tuple[str, str]:
    """Return the cells for the default and the meaning of a key."""
    words, _, default = (field.description or "").partition(". Default: ")
    if field.is_required():
        default = "required"
    elif not default:
        default = _default(field)
    return default, textwrap.shorten(words, 10_000).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    value = field.default
    show = next((mark.show for mark in field.metadata if isinstance(mark, Written) and mark.show), None)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float) and show is not None:
        return f"`{re.sub(r' (?=%|[A-Za-zµ])', '', as_written(show, value))}`"
    if isinstance(value, str | int | float):
        return f"`{value}`"
    return "none"


_NAME = expectation(slots_of(next(sections())[1])["suite"])
