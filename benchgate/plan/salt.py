"""Other words for the same plan: the prompts of a run are salted, so that no server has answered them before.

A server that caches, or that is quick for prompts it has seen, would otherwise be measured by the first run of a suite
and flattered in the second. The plan itself stays unsalted: equal plans stay comparable, whatever their salts.

Made-up texts are rewritten word by word, by a permutation of their vocabulary. So a prompt keeps its length in tokens,
equal beginnings stay equal, and different prompts stay different. Recorded texts are people's own words and stay as
they are, behind one short line that is the same for the whole run.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TypeVar, cast

import numpy as np

from benchgate.model.request import Ask, text_content
from benchgate.plan.model import PlannedRequest
from benchgate.plan.prompts import salted_address
from benchgate.plan.vocabulary import Vocabulary

_T = TypeVar("_T", Ask, PlannedRequest)

LARGEST_SALT = 2**32 - 1
MARK_PIECES = 4  # in front of a recorded text
_MARK = 1  # keeps the random numbers of the mark apart from those of the permutation
_LEAST_CLASS = 4  # pieces of one length: of fewer, too few permutations differ
_KEPT_KEYS = frozenset({"role", "type"})  # of a message: their texts are no words of the prompt


def run_salt(run_id: str) -> int:
    """Return the salt of a run, 1 to `LARGEST_SALT`. It follows from the run's id: a resumed run has the same one."""
    digest = hashlib.sha256(f"load salt of {run_id}".encode()).digest()
    return 1 + int.from_bytes(digest[:8]) % LARGEST_SALT


def salted_vocabulary(vocabulary: Vocabulary, salt: int) -> Vocabulary:
    """Return the vocabulary with its pieces in another order: piece k of one stands for piece k of the other.

    Each piece is replaced by another one with equally many characters, so that texts keep their length in bytes too.
    Only a piece that is the only one of its length stays. Where most lengths have fewer than four pieces, any piece may
    replace any other. A salt of 0 changes nothing.
    """
    if salt == 0:
        return vocabulary
    generator = np.random.default_rng(salt)
    by_length: dict[int, list[str]] = defaultdict(list)
    for piece in vocabulary.pieces:
        by_length[len(piece)].append(piece)
    classes = list(by_length.values())
    if 2 * sum(len(group) for group in classes if len(group) >= _LEAST_CLASS) < len(vocabulary.pieces):
        classes = [list(vocabulary.pieces)]
    other: dict[str, str] = {}
    for group in classes:
        cycle = [group[place] for place in generator.permutation(len(group))]  # one cycle moves every piece
        other.update(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    return Vocabulary(tuple(other[piece] for piece in vocabulary.pieces), vocabulary.between)


def _replacing(kind: type[_T], name: str) -> Callable[[_T, object], _T]:
    """Return a `dataclasses.replace` of one field that takes a third of the time: every request goes through two."""
    names = [field.name for field in fields(kind)]
    read, place, make = attrgetter(*names), names.index(name), cast(Callable[..., _T], kind)

    def replaced(whole: _T, value: object) -> _T:
        values = read(whole)
        return make(*values[:place], value, *values[place + 1 :])

    return replaced


_with_ask = _replacing(PlannedRequest, "ask")
_with_content = _replacing(Ask, "content")


class Salter:
    """Salts requests whose made-up texts consist of one vocabulary.

    With `noise`, their pictures are those of `noise_png`, which are changed too; pictures from files are not.
    """

    def __init__(self, salt: int, vocabulary: Vocabulary, *, noise: bool = False) -> None:
        self._salt = salt
        self._noise = noise
        self._text = _rewriter(vocabulary, salted_vocabulary(vocabulary, salt))
        self._mark = _mark(vocabulary, salt)

    def request(self, planned: PlannedRequest) -> PlannedRequest:
        """Return the request with a salted text. ValueError for made-up text that is not of the vocabulary."""
        return _with_ask(planned, self.ask(planned.ask, conversing=planned.turn is not None))

    def ask(self, ask: Ask, *, conversing: bool = False) -> Ask:
        """Return what a request asks, salted. `conversing`: it is a turn of a conversation that is held in the run."""
        if ask.recorded:
            return _with_content(ask, self._marked(ask, conversing))
        text = ask.prompt
        if text is not None:
            return _with_content(ask, text_content(ask.endpoint, self._text(text)))
        return _with_content(ask, {key: self._rewritten(value) for key, value in ask.content.items()})

    def _rewritten(self, value: object) -> object:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return [self._rewritten(one) for one in value]
        if isinstance(value, Mapping):
            return {key: self._kept(key, one) for key, one in value.items()}
        return value

    def _kept(self, key: str, value: object) -> object:
        if key == "image_url":
            return self._picture(value)
        return value if key in _KEPT_KEYS else self._rewritten(value)

    def _picture(self, value: object) -> object:
        if not self._noise or not isinstance(value, Mapping) or not isinstance(value.get("url"), str):
            return value
        return {**value, "url": salted_address(value["url"], self._salt)}

    def _marked(self, ask: Ask, conversing: bool) -> dict[str, object]:
        """Put the mark in front of the last message of the user; in a conversation of the run, of all of them.

        Its later turns repeat the earlier ones, and the server's cache must find these as they were sent.
        """
        for key, value in ask.content.items():
            if isinstance(value, str):
                return {**ask.content, key: self._mark + value}
            if isinstance(value, list):
                kind = "input_text" if ask.endpoint == "responses" else "text"
                return {**ask.content, key: self._marked_messages(value, kind, conversing)}
        return dict(ask.content)

    def _marked_messages(self, messages: Sequence[Mapping[str, object]], kind: str, conversing: bool) -> list[object]:
        places = [place for place, message in enumerate(messages) if message.get("role") == "user"]
        marked = set(places if conversing else places[-1:])
        return [
            {**message, "content": self._marked_content(message.get("content"), kind)} if place in marked else message
            for place, message in enumerate(messages)
        ]

    def _marked_content(self, content: object, kind: str) -> object:
        """Return a message's content with the mark; `kind` is the type of a part that is a text."""
        if isinstance(content, str):
            return self._mark + content
        if not isinstance(content, list):
            return content
        for place, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                return [*content[:place], {**part, "text": self._mark + part["text"]}, *content[place + 1 :]]
        return [{"type": kind, "text": self._mark.rstrip()}, *content]


def _rewriter(vocabulary: Vocabulary, other: Vocabulary) -> Callable[[str], str]:
    """Return what replaces every piece of a text by its counterpart. It costs about 0.2 us a word."""
    between = vocabulary.between
    table = dict(zip(vocabulary.pieces, other.pieces, strict=True))
    letters = str.maketrans(table) if not between else {}

    def rewrite(text: str) -> str:
        if not between:
            if unknown := set(text) - table.keys():
                raise _unknown(min(unknown))
            return text.translate(letters)
        try:
            return between.join(map(table.__getitem__, text.split(between)))
        except KeyError as error:
            raise _unknown(error.args[0]) from None

    return rewrite


def _unknown(piece: str) -> ValueError:
    return ValueError(f"{piece[:40]!r} in a made-up prompt is not in the vocabulary that it is salted by")


def _mark(vocabulary: Vocabulary, salt: int) -> str:
    """The line before recorded texts: of pieces of the commonest length, so that it is as long in every run."""
    lengths = Counter(len(piece) for piece in vocabulary.pieces)
    length = max(lengths, key=lambda one: (lengths[one], -one))
    pieces = [piece for piece in vocabulary.pieces if len(piece) == length]
    generator = np.random.default_rng([salt, _MARK])
    drawn = generator.integers(len(pieces), size=MARK_PIECES).tolist()
    return vocabulary.between.join([pieces[at] for at in drawn]) + "\n"
