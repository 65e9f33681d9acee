"""Salt: different words for the same plan, so that no server has answered the prompts of a run before.

Otherwise a server with a cache would look fast in the second run of a suite. The plan itself stays unsalted, so equal
plans stay comparable. Synthetic texts are rewritten by a permutation of their vocabulary: a prompt keeps its length in
tokens, equal prefixes stay equal, and different prompts stay different. Recorded texts are kept, behind one short line
that is equal for the whole run.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import TypeVar, cast

import numpy as np

from benchgate.model.request import LARGEST_SALT, MEDIA_KEYS, MediaKind, ModelRequest, text_content
from benchgate.plan.media import media_type_of, salted_media
from benchgate.plan.model import PlannedRequest
from benchgate.plan.vocabulary import Vocabulary

_T = TypeVar("_T", ModelRequest, PlannedRequest)

MARK_PIECES = 4  # of the line before a recorded text
_MARK = 1  # random stream of that line
_LEAST_CLASS = 4  # pieces of one length; fewer have too few permutations
_KEPT_KEYS = frozenset({"role", "type"}) | MEDIA_KEYS  # of a message: not part of the prompt's text
_KINDS: Mapping[str, MediaKind] = {"image": "images", "audio": "audio", "video": "videos"}  # by their media types


def run_salt(run_id: str) -> int:
    """Return the salt of a run, 1 to `LARGEST_SALT`. It follows from the run's id: a resumed run has the same one."""
    digest = hashlib.sha256(f"load salt of {run_id}".encode()).digest()
    return 1 + int.from_bytes(digest[:8]) % LARGEST_SALT


def other_salt(salt: int) -> int:
    """Return another salt than this one; 0, which changes nothing, stays 0."""
    return salt % LARGEST_SALT + 1 if salt else 0


def salted_vocabulary(vocabulary: Vocabulary, salt: int) -> Vocabulary:
    """Permute the vocabulary: piece k of one stands for piece k of the other.

    Each piece is replaced by another one of equal length, so that texts keep their length in bytes. Only a piece that
    is the only one of its length stays. If most lengths have fewer than four pieces, any piece may replace any other. A
    salt of 0 changes nothing.
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
    """Return a `dataclasses.replace` of one field in a third of the time: every request needs it twice."""
    names = [field.name for field in fields(kind)]
    read, place, make = attrgetter(*names), names.index(name), cast(Callable[..., _T], kind)

    def replaced(whole: _T, value: object) -> _T:
        values = read(whole)
        return make(*values[:place], value, *values[place + 1 :])

    return replaced


_with_ask = _replacing(PlannedRequest, "ask")
_with_content = _replacing(ModelRequest, "content")


class Salter:
    """Rewriter of requests with synthetic texts of one vocabulary, and of their `generated` media (`plan.media`)."""

    def __init__(self, salt: int, vocabulary: Vocabulary, generated: frozenset[MediaKind] = frozenset()) -> None:
        self._salt = salt
        self._generated = generated
        self._text = _rewriter(vocabulary, salted_vocabulary(vocabulary, salt))
        self._mark = _mark(vocabulary, salt)

    def request(self, planned: PlannedRequest) -> PlannedRequest:
        """Salt a request. Raises ValueError for a synthetic text with pieces not in the vocabulary."""
        if planned.item is not None:  # scored against a known answer
            return planned
        return _with_ask(planned, self.ask(planned.ask, conversing=planned.turn is not None))

    def ask(self, ask: ModelRequest, *, conversing: bool = False) -> ModelRequest:
        """Salt the content of a request. `conversing`: it is a turn of a conversation held in the run."""
        if ask.recorded:
            return _with_content(ask, self._marked(ask, conversing))
        text = ask.prompt
        if text is not None:
            return _with_content(ask, text_content(ask.endpoint, self._text(text)))
        found = self._rewritten(ask.content)
        assert isinstance(found, Mapping)
        return _with_content(ask, found)

    def _rewritten(self, value: object) -> object:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return [self._rewritten(one) for one in value]
        if isinstance(value, Mapping):
            found = {key: one if key in _KEPT_KEYS else self._rewritten(one) for key, one in value.items()}
            for key in value.keys() & MEDIA_KEYS if self._generated else ():
                found[key] = self._salted(value[key])
            return found
        return value

    def _salted(self, medium: object) -> object:
        """Salt the medium of a content part: an address, or an object with one or with bare base64."""
        if isinstance(medium, Mapping):
            if isinstance(medium.get("url"), str):
                return {**medium, "url": self._salted(medium["url"])}
            prefix = f"data:audio/{medium.get('format')};base64,"  # of `input_audio`
            salted = self._salted(f"{prefix}{medium.get('data')}")
            return {**medium, "data": str(salted).removeprefix(prefix)}
        if isinstance(medium, str) and _KINDS.get(media_type_of(medium).partition("/")[0]) in self._generated:
            return salted_media(medium, self._salt)
        return medium

    def _marked(self, ask: ModelRequest, conversing: bool) -> dict[str, object]:
        """Mark the last user message; in a conversation of the run, all of them.

        Later turns repeat the earlier ones, and the server's cache must find these as they were sent.
        """
        for key, value in ask.content.items():
            if isinstance(value, str):
                return {**ask.content, key: self._mark + value}
            if isinstance(value, list):
                kind = "input_text" if ask.endpoint == "responses" else "text"
                messages, places = list(value), [at for at, one in enumerate(value) if one.get("role") == "user"]
                for at in places if conversing else places[-1:]:
                    content = self._marked_content(value[at].get("content"), kind)
                    messages[at] = {**value[at], "content": content}
                return {**ask.content, key: messages}
        return dict(ask.content)

    def _marked_content(self, content: object, kind: str) -> object:
        """Return a message's content with the mark; `kind` is the type of a text part."""
        if isinstance(content, str):
            return self._mark + content
        if not isinstance(content, list):
            return content
        for place, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                return [*content[:place], {**part, "text": self._mark + part["text"]}, *content[place + 1 :]]
        return [{"type": kind, "text": self._mark.rstrip()}, *content]


def _rewriter(vocabulary: Vocabulary, other: Vocabulary) -> Callable[[str], str]:
    """Return a function that replaces every piece of a text by its counterpart, in about 0.2 us per word."""
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
    return ValueError(f"{piece[:40]!r} in a synthetic prompt is not in its vocabulary")


def _mark(vocabulary: Vocabulary, salt: int) -> str:
    """Return the line before recorded texts, of pieces of the most common length, equally long in every run."""
    lengths = Counter(len(piece) for piece in vocabulary.pieces)
    length = max(lengths, key=lambda one: (lengths[one], -one))
    pieces = [piece for piece in vocabulary.pieces if len(piece) == length]
    generator = np.random.default_rng([salt, _MARK])
    drawn = generator.integers(len(pieces), size=MARK_PIECES).tolist()
    return vocabulary.between.join([pieces[at] for at in drawn]) + "\n"
