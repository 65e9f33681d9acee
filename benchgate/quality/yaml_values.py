"""YAML text → plain JSON values with the place of each: no tags, no aliases, no key twice, nothing executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from benchgate.errors import Problem

Path = tuple[str | int, ...]

_MAX_DEPTH = 16
_SCALARS: dict[str, Callable[[str], object]] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:bool": lambda text: ("false", "true").index(text.lower()) == 1,
    "tag:yaml.org,2002:null": lambda text: None,
}
_CONTAINERS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


@dataclass(slots=True)
class YamlDocument:
    """A document's value, the (line, column) of every part of it by its path, counted from 1, and what is wrong."""

    source: str
    value: object = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Path, message: str) -> Problem:
        """A problem at a path, placed at the nearest part that exists."""
        known = next((path[:end] for end in range(len(path), -1, -1) if path[:end] in self.places), None)
        line, column = self.places[known] if known is not None else (None, None)
        return Problem(self.source, line, column, _spelled(path), message)


def read_yaml(text: str, source: str) -> YamlDocument:
    """Read one document; what cannot be plain JSON is a problem, and its value None."""
    document = YamlDocument(source)
    try:
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as exc:
        mark = exc.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        document.problems.append(Problem(source, line, column, "", f"not YAML: {exc.problem or exc.context}"))
        return document
    except (YAMLError, RecursionError) as exc:
        document.problems.append(Problem(source, None, None, "", f"not YAML: {exc}"))
        return document
    if root is not None:
        document.value = _value(root, (), document, set())
    return document


def _value(node: Node, path: Path, document: YamlDocument, seen: set[int]) -> object:
    document.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    refusal = _refusal(node, path, seen)
    if refusal is not None:
        document.problems.append(document.problem(path, refusal))
        return None
    seen.add(id(node))
    if isinstance(node, MappingNode):
        return _mapping(node, path, document, seen)
    if isinstance(node, SequenceNode):
        return [_value(item, (*path, index), document, seen) for index, item in enumerate(node.value)]
    try:
        return _SCALARS[str(node.tag)](node.value)
    except ValueError:
        document.problems.append(
            document.problem(path, f"{node.value!r} cannot be read as a number or truth value; quote it")
        )
        return None


def _refusal(node: Node, path: Path, seen: set[int]) -> str | None:
    if id(node) in seen:
        return "aliases are not allowed; write the value out"
    if len(path) > _MAX_DEPTH:
        return f"nested more than {_MAX_DEPTH} deep"
    known = _SCALARS if isinstance(node, ScalarNode) else _CONTAINERS
    tag = str(node.tag)
    if tag in known:
        return None
    if tag.startswith("tag:yaml.org"):
        return f"{node.value!r} is read as a {tag.rpartition(':')[2]}; quote it to make it a text"
    return f"the tag {tag} is not allowed: a task is plain data and runs no code"


def _mapping(node: MappingNode, path: Path, document: YamlDocument, seen: set[int]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        here = (*path, str(key))
        document.places[here] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if not isinstance(key_node, ScalarNode) or key_node.tag not in _SCALARS:
            document.problems.append(document.problem(here, "a key must be a plain text"))
        elif key in values:
            document.problems.append(document.problem(here, "the key stands twice; keep one of them"))
        else:
            values[key] = _value(value_node, here, document, seen)
    return values


def _spelled(path: Path) -> str:
    """`("metric_list", 0, "metric")` → `metric_list[0].metric`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
