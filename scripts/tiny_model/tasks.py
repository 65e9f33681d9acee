"""The synthetic tasks the tiny model is trained on and judged by. Standard library only, the same on every machine.

Five families with answers that can be checked: `add`, `reverse`, `sort` and `json` are skills, so one prompt in ten is
held out of training by its hash and only those are used to judge. `fact` is memory of a made-up world, so its prompts
are the training facts themselves.

The shipped model was trained on exactly what `Source` draws: a change to any draw, or to their order, makes another
data set and asks for another training.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

TASKS = ("add", "reverse", "sort", "json", "fact")
MEMORISED = "fact"

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"

PLACES = 100
WORLD_SEED = 7
HELD_OUT_BYTE = 26  # of 256: a tenth of all prompts
DRAWS_PER_EXAMPLE = 400


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt of one task and its only right answer."""

    task: str
    prompt: str
    answer: str


def is_held_out(task: str, prompt: str) -> bool:
    """Whether training never sees this prompt. Means nothing for `fact`."""
    return hashlib.sha256(f"{task}|{prompt}".encode()).digest()[0] < HELD_OUT_BYTE


def world() -> tuple[Example, ...]:
    """All facts, four for each place."""
    rng = random.Random(WORLD_SEED)
    places: list[str] = []
    while len(places) < PLACES:
        place = _word(rng, 5)
        if place not in places:
            places.append(place)
    return tuple(fact for place in places for fact in _facts(rng, place))


def _facts(rng: random.Random, place: str) -> list[Example]:
    return [
        Example(MEMORISED, f"capital of {place}", _word(rng, 4)),
        Example(MEMORISED, f"river of {place}", _word(rng, 4)),
        Example(MEMORISED, f"metal of {place}", _word(rng, 3)),
        Example(MEMORISED, f"code of {place}", f"{rng.randrange(100, 1000)}"),
    ]


class Source:
    """An endless, seeded stream of examples, either for training or held out of it.

    `weights` are the relative shares of the tasks when `draw` chooses one; equal unless given.
    """

    def __init__(self, seed: int, *, held_out: bool, weights: dict[str, float] | None = None) -> None:
        self._rng = random.Random(seed)
        self._held_out = held_out
        self._weights = weights or dict.fromkeys(TASKS, 1.0)
        self._facts = world()

    def draw(self, task: str | None = None) -> Example:
        """The next example, of `task` or of one chosen by weight."""
        if task is None:
            task = self._rng.choices(list(self._weights), list(self._weights.values()))[0]
        while True:
            example = self._rng.choice(self._facts) if task == MEMORISED else GENERATORS[task](self._rng)
            if task == MEMORISED or is_held_out(task, example.prompt) == self._held_out:
                return example

    def distinct(self, task: str, count: int) -> list[Example]:
        """`count` examples of one task with different prompts, in the order they were drawn.

        Raises ValueError when the task has too few prompts to find that many in a reasonable number of draws.
        """
        seen: dict[str, Example] = {}
        for _ in range(DRAWS_PER_EXAMPLE * count):
            example = self.draw(task)
            seen.setdefault(example.prompt, example)
            if len(seen) == count:
                return list(seen.values())
        raise ValueError(f"{task} gave only {len(seen)} different prompts, and {count} were asked for")


def _word(rng: random.Random, length: int) -> str:
    """A pronounceable word: consonants and vowels in turn."""
    return "".join(rng.choice(VOWELS if i % 2 else CONSONANTS) for i in range(length))


def _add(rng: random.Random) -> Example:
    a, b = rng.randrange(100), rng.randrange(100)
    return Example("add", f"add {a:02d} {b:02d}", f"{a + b}")


def _reverse(rng: random.Random) -> Example:
    word = "".join(rng.choice(LETTERS) for _ in range(rng.randrange(3, 8)))
    return Example("reverse", f"reverse {word}", word[::-1])


def _sort(rng: random.Random) -> Example:
    word = "".join(rng.choice(LETTERS) for _ in range(rng.randrange(3, 7)))
    return Example("sort", f"sort {word}", "".join(sorted(word)))


def _json(rng: random.Random) -> Example:
    name, age = _word(rng, rng.randrange(3, 6)), rng.randrange(10, 100)
    return Example("json", f"json {name} {age}", f'{{"name":"{name}","age":{age}}}')


GENERATORS: dict[str, Callable[[random.Random], Example]] = {
    "add": _add,
    "reverse": _reverse,
    "sort": _sort,
    "json": _json,
}
