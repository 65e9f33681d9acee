"""Reader of YAML: plain data with the place of every key and value. Independent of suites.

YAML that a suite does not need is refused, so that every text has one meaning and parsing takes bounded time: tags,
directives, merge keys, a second document, a key written twice, empty values, and anything beyond the limits below.
Anchors and aliases are allowed; an alias counts as often as it is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    NodeEvent,
    ScalarEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from benchgate.errors import Problem, SuiteError
from benchgate.suite.formats import HALF_A_PAIR, holds_half_a_pair

MAX_CHARACTERS = 128 * 1024
MAX_NODES = 10_000
MAX_DEPTH = 16

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]
"""Content of a suite's text once it is parsed."""

Path = tuple[str | int, ...]
"""Path of a value: keys and list positions from the root, like `("load", "sweep", 1, "rate")`."""

_EXAMPLES = {
    "suite": "`suite: my-model`",
    "demand file": "`demand: {requests_per_s: 30}`",
    "file of waivers": "`waivers: []`",
}
_MAX_ENDS = 4  # places tried for a missing quote
_MAX_RETRIED = 32 * 1024  # characters of a text that is parsed again for each of those places
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_FLOAT = re.compile(r"[-+]?(\d{1,200}\.?\d*|\.\d+)([eE][-+]?\d{1,2})?")  # always finite


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake at a path; `at_key` if it is the key and not its value. `{other}` in the message is another path."""

    path: Path
    message: str
    at_key: bool = False
    other: Path | None = None

    @property
    def text(self) -> str:
        """Message with the other path filled in."""
        return self.message if self.other is None else self.message.replace("{other}", show_path(self.other))


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data of a text, and the place of each part."""

    source: str
    data: dict[str, Plain]
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # faults that leave the rest readable

    def problem(self, fault: Fault) -> Problem:
        """Return a fault with its place, or that of the nearest mapping around it."""
        known = self.keys if fault.at_key and fault.path in self.keys else self.values
        nearest = fault.path
        while nearest and nearest not in known:
            nearest = nearest[:-1]
        place = known.get(nearest)
        line, column = (place.line, place.column) if place else (None, None)
        return Problem(self.source, line, column, show_path(fault.path), fault.text)


def show_path(path: Path) -> str:
    """Format a path: `("load", "sweep", 1, "rate")` → `load.sweep[1].rate`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_text(text: str, source: str, what: str = "suite") -> Document:
    """Read one YAML mapping, called `what` in messages. Raises SuiteError for any other text."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_CHARACTERS:
        raise SuiteError([Problem(source, None, None, "", _too_much(len(text), "characters", MAX_CHARACTERS))])
    try:
        root = _compose(text)
    except _RefusedError as error:
        place = _place(error.problem_mark)
        raise SuiteError([Problem(source, place.line, place.column, "", error.problem)]) from error
    except YAMLError as error:
        raise SuiteError([_not_yaml(error, text, source)]) from error
    if root is None or (isinstance(root, ScalarNode) and _scalar(root) is None):
        remedy = "see docs/reference/suite.md" if what == "suite" else "remove it, or write what it is for"
        raise SuiteError([Problem(source, None, None, "", f"the {what} is empty; {remedy}")])
    return _Builder(source, what).build(root)


def _compose(text: str) -> Node | None:
    """Parse a text in one pass. Raises YAMLError for text that is not YAML, or that a suite does not need."""
    reader = YAML(typ="safe", pure=True)
    reader.Scanner = _Scanner
    reader.Parser = _Parser
    root: Node | None = reader.compose(text)
    return root


class _RefusedError(MarkedYAMLError):
    """YAML that a suite does not need."""

    def __init__(self, mark: StringMark, message: str) -> None:
        super().__init__(problem=message, problem_mark=mark)


class _Scanner(Scanner):
    """Scanner that stops at the deepest level that is allowed: of a thousand open brackets it takes seconds."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # ruamel's name
        if self.flow_level >= MAX_DEPTH:
            raise _RefusedError(self.reader.get_mark(), _too_much(MAX_DEPTH + 1, "levels of nesting", MAX_DEPTH))
        super().fetch_flow_collection_start(TokenClass, to_push)


class _Parser(Parser):
    """Parser that checks depth, size, documents, tags and anchors in each event, before a node is built of it."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._depth = self._nodes = self._documents = 0
        self._anchors: set[str] = set()

    def peek_event(self) -> Any:
        if self.current_event is None:
            event = super().peek_event()
            if (complaint := self._complaint(event)) is not None:
                raise _RefusedError(event.start_mark, complaint)
        return self.current_event

    def check_event(self, *choices: Any) -> bool:
        self.peek_event()
        return bool(super().check_event(*choices))

    def get_event(self) -> Any:
        self.peek_event()
        return super().get_event()

    def _complaint(self, event: Event | None) -> str | None:
        if isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                return "a second document starts here; a file holds one suite, so remove this `---`"
            if event.version or event.tags:
                return "%YAML and %TAG directives are not allowed in a suite; remove the line"
        elif isinstance(event, NodeEvent):
            self._nodes += 1
            self._depth += isinstance(event, CollectionStartEvent)
            return _node_complaint(event, self._nodes, self._depth, self._anchors)
        elif isinstance(event, CollectionEndEvent):
            self._depth -= 1
        return None


def _node_complaint(event: NodeEvent, nodes: int, depth: int, anchors: set[str]) -> str | None:
    if nodes > MAX_NODES:
        return _too_much(nodes, "keys and values", MAX_NODES)
    if depth > MAX_DEPTH:
        return _too_much(depth, "levels of nesting", MAX_DEPTH)
    if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
        return "a YAML tag is not allowed in a suite; remove the `!` word, or quote a value that starts with one"
    if isinstance(event, ScalarEvent) and holds_half_a_pair(event.value):
        return HALF_A_PAIR
    if isinstance(event, AliasEvent) and event.anchor not in anchors:
        # Without the name: what looks like an alias may be a secret that was not quoted.
        return "this alias names no anchor above it; quote a value that starts with `*`"
    if event.anchor is not None and not isinstance(event, AliasEvent):
        if event.anchor in anchors:
            return f"the anchor &{event.anchor} is defined twice; give it another name"
        anchors.add(event.anchor)
    return None


class _Builder:
    """Builder of plain data. It expands aliases, under the same limits as the text."""

    def __init__(self, source: str, what: str) -> None:
        self._document = Document(source, {})
        self._what = what
        self._nodes = 0

    def build(self, root: Node) -> Document:
        if not isinstance(root, MappingNode):
            place = _place(root.start_mark)
            example = _EXAMPLES.get(self._what, "`key: value`")
            message = f"the {self._what} is {_kind(root)}; expected keys and values like {example}"
            raise SuiteError([Problem(self._document.source, place.line, place.column, "", message)])
        self._document.values[()] = _place(root.start_mark)
        self._document.data.update(self._mapping(root, ()))
        return self._document

    def _value(self, node: Node, path: Path) -> Plain:
        self._nodes += 1
        place = self._document.values[path] = _place(node.start_mark)
        complaint = None
        if self._nodes > MAX_NODES:
            complaint = _too_much(self._nodes, "keys and values, aliases expanded", MAX_NODES)
        elif len(path) > MAX_DEPTH:
            complaint = _too_much(len(path), "levels of nesting", MAX_DEPTH)
        if complaint is not None:
            raise SuiteError([Problem(self._document.source, place.line, place.column, show_path(path), complaint)])
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._value(item, (*path, position)) for position, item in enumerate(node.value)]
        value = _scalar(node)
        if value is None:
            self._complain(path, "has no value; write one or leave the key out", self._document.keys.get(path))
        return value

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Plain]:
        mapping: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            place = _place(key_node.start_mark)
            if not isinstance(key_node, ScalarNode):
                self._complain(path, f"{_kind(key_node)} cannot be a key; write a plain word", place)
                continue
            key = key_node.value
            if key == "<<" and key_node.style is None:
                self._complain((*path, key), "merge keys are not allowed in a suite; write the keys out", place)
            elif key in mapping:
                first = self._document.keys[*path, key].line
                self._complain((*path, key), f"written twice, first in line {first}; remove one of them", place)
            else:
                self._document.keys[*path, key] = place
                mapping[key] = self._value(value_node, (*path, key))
        return mapping

    def _complain(self, path: Path, message: str, place: Place | None = None) -> None:
        place = place or self._document.values[path]
        problem = Problem(self._document.source, place.line, place.column, show_path(path), message)
        self._document.problems.append(problem)


def _scalar(node: Node) -> Plain:
    """Return quoted text as text, plain decimals as numbers, `true`/`false` as booleans, and other text as text."""
    text: str = node.value
    kind = str(node.tag).rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    return text


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, SequenceNode) else "a single value"


def _place(mark: StringMark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _too_much(found: int, what: str, limit: int) -> str:
    return f"{found:,} {what}; a suite has at most {limit:,}"


def _unclosed_quote(text: str) -> Place | None:
    """Return the place of the one quote whose closing, at the end of its value, makes the text YAML; else None."""
    if len(text) > _MAX_RETRIED:
        return None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.count('"') % 2 == 0:
            continue
        opened = line.rindex('"')
        ends = [at for at in range(opened + 1, len(line)) if line[at] in ",}]"][:_MAX_ENDS]
        for end in (len(line), *ends):
            closed = [*lines[:number], f'{line[:end]}"{line[end:]}', *lines[number + 1 :]]
            try:
                _compose("\n".join(closed))
            except YAMLError:
                continue
            return Place(number + 1, opened + 1)
        return None
    return None


def _not_yaml(error: YAMLError, text: str, source: str) -> Problem:
    if isinstance(error, ReaderError):
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        message = f"the character {text[error.position]!a} is not allowed in YAML; remove it"
        return Problem(source, line, column, "", message)
    if (quote := _unclosed_quote(text)) is not None:
        message = "this quote is not closed in its line; close it"
        return Problem(source, quote.line, quote.column, "", message)
    assert isinstance(error, MarkedYAMLError), error  # every error of the scanner, parser and composer
    mark = error.problem_mark or error.context_mark
    place = _place(mark) if mark is not None else Place(1, 1)
    found = ": ".join(part for part in (error.context, error.problem) if part)
    remedy = "quote a value that holds `: `, ` #`, `{` or `[` or starts with a sign, and close every quote and bracket"
    if "<block mapping start>" in found:
        remedy = "indent the keys of one section by the same number of spaces"
    if "'\\t'" in found:
        remedy = "indent with spaces, not with tabs"
    return Problem(source, place.line, place.column, "", f"this is not YAML: {found}; {remedy}")
