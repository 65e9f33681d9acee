"""Planned items of the quality side: eval tasks, recorded prompts, and fixed texts with their positions.

Only the second half of a fixed text's piece counts: with little context every model is unsure, whatever its weights.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from benchgate.model.deployment import sha256_of
from benchgate.model.request import ModelRequest, text_request

_STREAM = 2  # random stream of the prompts sent twice; those of the load are 0 and 1


@dataclass(frozen=True, slots=True)
class ShadowPrompt:
    """Recorded prompt."""

    id: str
    prompt: str  # the only message; with `messages` their canonical serialisation, for the digest
    messages: tuple[Mapping[str, object], ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)  # of the request
    endpoint: Literal["chat", "completions", "messages"] = "chat"
    max_tokens: int | None = None  # its own limit
    stratum: str | None = None  # slice of the traffic that it was sampled from
    once: bool = False  # the baseline gets it once, not twice

    @property
    def requests_form(self) -> bool:
        """Return True if it requests an answer form, JSON or calls of tools."""
        requested = self.fields.get("response_format")
        return bool(self.fields.get("tools")) or (isinstance(requested, Mapping) and requested.get("type") != "text")

    def ask(self, max_tokens: int) -> ModelRequest:
        """Build the request, not streamed; `max_tokens` applies if the prompt has no limit of its own."""
        limit = self.max_tokens or max_tokens
        if not self.messages:
            ask = text_request(self.endpoint, self.prompt, limit, ignore_eos=False)
            return replace(ask, stream=False, fields=self.fields, recorded=True)
        content = {"messages": [dict(message) for message in self.messages]}
        whole = ModelRequest(self.endpoint, content, limit, stream=False, ignore_eos=False)
        return replace(whole, fields=self.fields, recorded=True)


def sample_repeated_prompts(prompts: Sequence[ShadowPrompt], ratio: float, seed: int) -> tuple[ShadowPrompt, ...]:
    """Select at random the share of prompts that the baseline answers twice, reproducible by the seed."""
    if ratio >= 1:
        return tuple(prompts)
    generator = np.random.default_rng([seed, _STREAM])
    drawn = generator.permutation(len(prompts))
    twice = set(drawn[: math.ceil(ratio * len(prompts))].tolist())
    return tuple(prompt if at in twice else replace(prompt, once=True) for at, prompt in enumerate(prompts))


def prompt_to_json(row: ShadowPrompt) -> dict[str, object]:
    """Serialise the identity of a recorded prompt and its request, by digests of user text."""
    spelled: dict[str, object] = {"id": row.id, "prompt_sha256": text_sha256(row.prompt)}
    if row.fields:
        spelled["fields_sha256"] = sha256_of(dict(row.fields))
    if row.endpoint != "chat":
        spelled["endpoint"] = row.endpoint
    if row.max_tokens is not None:
        spelled["max_tokens"] = row.max_tokens
    return {**spelled, "once": True} if row.once else spelled


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


Scale = Literal["binary", "continuous"]
OutputType = Literal["generate_until", "multiple_choice", "loglikelihood"]

NO_FILTER = "none"  # lm-eval's filter name of a task without filters


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """An lm-eval task: its configuration without the data path, its rows, and its gated metric."""

    name: str  # `group/task` in a group
    config: dict[str, object]  # a function is a mapping of `function`, its module's `folder` and `sha256`
    rows: tuple[dict[str, object], ...]  # with a unique `id` each, or one of `ids`
    metric: str = "exact_match"
    filter: str = NO_FILTER
    scale: Scale = "binary"  # continuous: the score is not simply 0 or 1
    guesses: tuple[float, ...] = ()  # of multiple choice: mean score of guessing among the options of each row
    cluster_key: str | None = None  # column whose equal values mark dependent items
    output_type: OutputType = "generate_until"
    ids: tuple[str, ...] | None = None  # of rows of lm-eval's own tasks
    shots: tuple[dict[str, object], ...] = ()  # source of few-shot examples, without `rows`
    leaves: int | None = None  # tasks in its group
    system: str | None = None  # system prompt
    fewshot_as_turns: bool = True
    unsafe: bool = False  # it executes the model's output
    needs: str | None = None  # data set not read by a preview, which then has no rows

    @property
    def chance(self) -> float | None:
        """Return the mean score of guessing among the options of its rows; None for any other task."""
        return sum(self.guesses) / len(self.guesses) if self.guesses else None

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Return the unique ids of the rows, in order."""
        return self.ids if self.ids is not None else tuple(str(row["id"]) for row in self.rows)

    def cut(self, limit: int | None) -> PlannedTask:
        """Keep the first `limit` rows; the others remain a source of examples if they were one."""
        if limit is None or limit >= len(self.rows):
            return self
        split = self.config.get("fewshot_split") if self.config.get("num_fewshot") else None
        draws_from_judged = bool(self.config.get("num_fewshot")) and split == self.config.get("test_split")
        shots = self.rows[limit:] + self.shots if draws_from_judged else self.shots
        return replace(self._at(range(limit)), shots=shots)

    def only(self, items: Collection[str]) -> PlannedTask:
        """Keep the rows of these items."""
        return self._at([place for place, item in enumerate(self.item_ids) if item in items])

    def shuffled(self, generator: np.random.Generator) -> PlannedTask:
        """Return the task with its rows in random order."""
        return self._at(generator.permutation(len(self.rows)).tolist())

    def _at(self, places: Iterable[int]) -> PlannedTask:
        """Return the task with the rows at these places, in this order."""
        order = tuple(places)
        guesses = tuple(self.guesses[place] for place in order) if self.guesses else ()
        ids = tuple(self.ids[place] for place in order) if self.ids is not None else None
        return replace(self, rows=tuple(self.rows[place] for place in order), ids=ids, guesses=guesses)


def first_metric(config: Mapping[str, Any]) -> str:
    """Return the default gated metric: the task's first one."""
    metrics = config.get("metric_list") or [{}]
    default = "exact_match" if config.get("output_type", "generate_until") == "generate_until" else "acc"
    found = metrics[0].get("metric", default)
    return str(found["function"].rpartition(".")[2] if isinstance(found, dict) else found)


def first_filter(config: Mapping[str, Any]) -> str:
    """Return the default gated filter: the task's first one."""
    filters = config.get("filter_list") or [{}]
    return str(filters[0].get("name", NO_FILTER))


def task_to_json(task: PlannedTask) -> dict[str, object]:
    """Serialise a task as plain JSON values, for the plan's hash and the store.

    Values implied by the configuration and empty ones are omitted, so that tasks without them keep their bytes. Rows of
    external data sets appear by id and digest.
    """
    rows: object = task.rows
    if task.ids is not None:
        rows = [{"id": item, "doc_sha256": sha256_of(row)} for item, row in zip(task.ids, task.rows, strict=True)]
    implied = PlannedTask("", {}, (), first_metric(task.config), first_filter(task.config))
    stated = {
        name: getattr(task, name)
        for name in (
            "metric", "filter", "scale", "chance", "cluster_key", "output_type", "leaves", "system", "fewshot_as_turns",
            "unsafe", "needs",
        )
        if getattr(task, name) != getattr(implied, name)
    }  # fmt: skip
    if task.shots:
        stated["shots_sha256"] = sha256_of(list(task.shots))
    return {"name": task.name, "config": _without_folders(task.config), "rows": rows, **stated}


def _without_folders(value: object) -> object:
    """Drop the folders of function modules: the digest of a module identifies it."""
    if isinstance(value, dict):
        keys = value.keys() - {"folder"} if "function" in value and "sha256" in value else value.keys()
        return {key: _without_folders(inner) for key, inner in value.items() if key in keys}
    return [_without_folders(inner) for inner in value] if isinstance(value, list) else value


_ROOM = 16  # characters of a piece per position; its second half then usually has two tokens or more for each
_OF_PIECES, _OF_PLACES = 3, 4  # random streams


@dataclass(frozen=True, slots=True)
class FixedText:
    """Row of a text file."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a fixed text read in one request, and the number of positions compared in it."""

    text_id: str
    number: int  # of the piece in its text
    text: str
    positions: int

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return f"text {self.text_id}, piece {self.number + 1}"


def positions_available(texts: Sequence[FixedText], window: int) -> int:
    """Return the number of positions that texts have room for."""
    return sum(len(part) // _ROOM for text in texts for part in _parts(text, window))


def planned_pieces(texts: Sequence[FixedText], window: int, positions: int, seed: int) -> tuple[Piece, ...]:
    """Distribute positions over all pieces as evenly as their room allows; pieces without one are left out.

    The seed decides which pieces get one more, or one at all if there are more pieces than positions. There are fewer
    positions if the texts have no room (`room_of`).
    """
    parts = [(text.id, number, part) for text in texts for number, part in enumerate(_parts(text, window))]
    room = [len(part) // _ROOM for _, _, part in parts]
    dealt = [0] * len(parts)
    generator = np.random.default_rng([seed, _OF_PIECES])
    order = generator.permutation(len(parts)).tolist()
    left = min(positions, sum(room))
    while left:
        for place in order:
            if left and dealt[place] < room[place]:
                dealt[place] += 1
                left -= 1
    return tuple(Piece(*part, count) for part, count in zip(parts, dealt, strict=True) if count)


def draw_positions(piece: Piece, tokens: int, seed: int) -> tuple[int, ...]:
    """Draw the compared tokens of a piece of `tokens` tokens, ascending, from its second half without repetition.

    There are fewer than the piece's positions if its second half has fewer tokens. The first token, which has no
    context, is never one.
    """
    return _drawn(range(max(1, tokens // 2), tokens), piece, seed)


def draw_cuts(piece: Piece, seed: int) -> tuple[int, ...]:
    """Draw the character positions at which a piece is cut off, ascending, at word ends of its second half.

    A tokenizer splits a text that ends there like the whole. If there are too few word ends, any position is used.
    """
    text = piece.text
    half = range(max(1, len(text) // 2), len(text))
    ends = [place for place in half if text[place].isspace() and not text[place - 1].isspace()]
    return _drawn(ends if len(ends) >= piece.positions else half, piece, seed)


def _parts(text: FixedText, window: int) -> list[str]:
    """Split a text into pieces of `window` characters; the rest is one more."""
    return [text.text[start : start + window] for start in range(0, len(text.text), window)]


def _drawn(places: Sequence[int], piece: Piece, seed: int) -> tuple[int, ...]:
    piece_seed = int.from_bytes(hashlib.sha256(piece.name.encode("utf-8", "surrogatepass")).digest()[:8])
    generator = np.random.default_rng([seed, _OF_PLACES, piece_seed])
    count = min(piece.positions, len(places))
    return tuple(sorted(generator.choice(np.array(places), size=count, replace=False).tolist()))
