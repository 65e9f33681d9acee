"""Tasks that are generated here from a fixed seed: recall by length, stop strings, and a round trip of the detokeniser.

They need no data set. `recall` hides codes in 1k to 32k tokens of prose, as RULER's needle tasks do, and asks for one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.gated_metric import gated_task
from benchgate.suite.quality import Quality, TaskEntry

Row = dict[str, object]

_SEED = 20260101
_VERSION = 1.1  # raised when any row or setting changes
_LENGTHS = {"1k": 1_000, "2k": 2_000, "4k": 4_000, "8k": 8_000, "16k": 16_000, "32k": 32_000}
_ROWS_PER_LENGTH = 50
_ROWS = 200
_CHARACTERS_PER_TOKEN = 4  # of English prose, about
_DECOYS = 3  # other codes in every second text

_SUBJECTS = ("The harbour", "A quiet street", "The old library", "Their garden", "The night train", "A small workshop")
_VERBS = ("stood near", "looked out on", "was built beside", "lay behind", "faced", "belonged to")
_OBJECTS = ("the river", "a row of elms", "the market square", "the northern hills", "a stone bridge", "the mill")
_ENDINGS = ("for many years", "in those days", "when the rain came", "as people remember", "until the war ended")
_PLACES = ("amber", "birch", "cobalt", "delta", "ember", "falcon", "garnet", "hazel", "indigo", "juniper", "kestrel")
_KINDS = ("vault", "locker", "archive", "cabin", "depot", "studio", "tower", "cellar", "pier", "hangar", "chapel")
_WORDS = (*_PLACES, *_KINDS)
_STOP = "END_OF_LIST"  # several tokens, so that a server must match over their bounds
# Texts that a detokeniser breaks: several bytes a character, joined characters, runs of spaces.
_FRAGMENTS: Mapping[str, tuple[str, ...]] = {
    "emoji": (
        "\U0001f469\u200d\U0001f4bb", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f44d\U0001f3fd",
        "\U0001f1eb\U0001f1f7",
    ),
    "accents": ("na\u00efve", "\u0160koda", "e\u0301te\u0301", "\u0141\u00f3d\u017a", "\u00c5ngstr\u00f6m"),
    "scripts": (
        "\u6771\u4eac", "\u092e\u0941\u0902\u092c\u0908", "\u0627\u0644\u0642\u0627\u0647\u0631\u0629", "\uc11c\uc6b8",
        "\u041c\u043e\u0441\u043a\u0432\u0430",
    ),
    "code": (
        "if x:\n    return  y", "a\tb\tc", "for i in  range(3):\n        pass", 'print("\\n")', "x = {'k': [1, 2]}",
    ),
    "spaces": ("one  two", "three   four", "five\n\nsix", "seven , eight", "nine's  ten"),
}  # fmt: skip


def generated_tasks(entry: TaskEntry, quality: Quality) -> list[PlannedTask] | str:
    """Return the tasks of a generated family or member, or why they cannot be gated."""
    leaves = GENERATED[entry.name]
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    if few_shot:
        return "it has no examples to show; write `few_shot: 0` for this task"
    if entry.name in _ONLY_CHAT and quality.endpoint != "chat":
        what = f"it asks for a text as the whole answer, and `endpoint: {quality.endpoint}` continues the question"
        return f"{what}; write `endpoint: chat`, or remove this task"
    tasks = []
    for leaf in leaves:
        config, rows = _MEMBERS[leaf](leaf)
        if entry.max_tokens is not None:
            config["generation_kwargs"] = {**_generation(config), "max_gen_toks": entry.max_tokens}
        name = leaf if leaf == entry.name else f"{entry.name}/{leaf}"
        task = gated_task(name, config, tuple(rows), entry, quality)
        if isinstance(task, str):
            return task
        tasks.append(task if leaf == entry.name else replace(task, leaves=len(leaves)))
    return tasks


def _generation(config: Mapping[str, object]) -> dict[str, object]:
    found = config["generation_kwargs"]
    assert isinstance(found, dict), "every generated task has it"
    return found


def _config(name: str, max_tokens: int, until: list[str], filters: list[object]) -> dict[str, object]:
    return {
        "task": name,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": until, "max_gen_toks": max_tokens, "temperature": 0},
        **({"filter_list": filters} if filters else {}),
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": _VERSION},
    }


def _recall(name: str) -> tuple[dict[str, object], list[Row]]:
    """Hide one code, or one among decoys, at evenly spread depths of a text."""
    size = _LENGTHS[name.removeprefix("recall_")] * _CHARACTERS_PER_TOKEN
    draw = random.Random(f"{_SEED} {name}")
    rows: list[Row] = []
    for number in range(_ROWS_PER_LENGTH):
        n_codes = 1 + (number % 2) * _DECOYS
        holders = draw.sample([f"{place} {kind}" for place in _PLACES for kind in _KINDS], n_codes)
        codes = [f"{code:07d}" for code in draw.sample(range(1_000_000, 10_000_000), n_codes)]
        needles = [f"The access code of the {who} is {code}." for who, code in zip(holders, codes, strict=True)]
        sentences: list[str] = []
        length = sum(len(needle) + 1 for needle in needles)
        while length < size:
            parts = (draw.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS))
            sentences.append(" ".join(parts) + ".")
            length += len(sentences[-1]) + 1
        sentences.insert(round(len(sentences) * number / (_ROWS_PER_LENGTH - 1)), needles[0])
        for decoy in needles[1:]:
            sentences.insert(draw.randrange(len(sentences) + 1), decoy)
        question = f"What is the access code of the {holders[0]}? Answer with the digits only."
        prompt = f"Read the text and remember the access codes.\n\n{' '.join(sentences)}\n\n{question}"
        rows.append({"id": f"{name}-{number:03d}", "prompt": prompt, "answer": codes[0], "codes": n_codes})
    first_number = {"function": "regex", "regex_pattern": r"(?<!\d)(\d{7})(?!\d)"}
    filters: list[object] = [{"name": "code", "filter": [first_number, {"function": "take_first"}]}]
    return _config(name, 64, [], filters), rows


def _stop_strings(name: str) -> tuple[dict[str, object], list[Row]]:
    """Ask for a list with a stop string inside: the answer must end right before it."""
    draw = random.Random(f"{_SEED} {name}")
    rows: list[Row] = []
    for number in range(_ROWS):
        before, after = (",".join(draw.sample(_WORDS, draw.randint(2, 6))) for _ in range(2))
        prompt = f"Repeat this line exactly, with nothing before or after it:\n{before},{_STOP},{after}"
        rows.append({"id": f"{name}-{number:03d}", "prompt": prompt, "answer": f"{before},"})
    return _config(name, 128, [_STOP], []), rows


def _round_trip(name: str) -> tuple[dict[str, object], list[Row]]:
    """Ask for a text back, character by character."""
    draw = random.Random(f"{_SEED} {name}")
    kinds = list(_FRAGMENTS)
    rows: list[Row] = []
    for number in range(_ROWS):
        kind = kinds[number % len(kinds)]
        parts = [draw.choice(_WORDS), *draw.choices(_FRAGMENTS[kind], k=3), draw.choice(_WORDS), str(number)]
        text = " ".join(parts)
        prompt = f"Repeat this text exactly, with nothing before or after it:\n{text}"
        rows.append({"id": f"{name}-{number:03d}", "prompt": prompt, "answer": text, "kind": kind})
    return _config(name, 256, [], []), rows


_MEMBERS: Mapping[str, Callable[[str], tuple[dict[str, object], list[Row]]]] = {
    **{f"recall_{length}": _recall for length in _LENGTHS},
    "stop_strings": _stop_strings,
    "round_trip": _round_trip,
}
# Tasks whose answer is compared character by character: a continuation begins with a space or a line break.
_ONLY_CHAT = frozenset({"stop_strings", "round_trip"})
GENERATED: Mapping[str, tuple[str, ...]] = {
    "recall": tuple(f"recall_{length}" for length in _LENGTHS),
    **{name: (name,) for name in _MEMBERS},
}
"""Members of each generated task or family, by its name in a suite."""
