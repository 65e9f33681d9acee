"""What others published of models quantised in the same way: something to hold a recovery beside, and nothing more.

They are other models, other tasks and other harnesses. They decide nothing; they tell a reader whether a loss is of
the size that such a quantisation usually costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchgate.model.deployment import Deployment
from benchgate.report import show

_CARDS = "Red Hat AI model cards"
_TRTLLM = "reference scores of TensorRT-LLM"


@dataclass(frozen=True, slots=True)
class Published:
    """One model's recovery in per cent of its unquantised self, by benchmark; `source` says who published it."""

    model: str
    recovery: Mapping[str, float]
    source: str


PUBLISHED: Mapping[str, tuple[Published, ...]] = MappingProxyType(
    {
        "fp8": (
            Published("Llama-3.1-8B-Instruct", {"MMLU": 100.1, "MMLU-CoT": 100.5}, _CARDS),
            Published("Qwen2-72B", {"average": 100.46}, _CARDS),
            Published("Mixtral-8x7B", {"average": 99.61}, _CARDS),
            Published("Llama-3.1-8B", {"MMLU": 99.65}, _TRTLLM),  # 67.93 of 68.17
        ),
        "int8": (
            Published("Llama-3.1-8B-Instruct", {"MMLU": 99.3, "MMLU-CoT": 99.1, "ARC-C": 100.3}, _CARDS),
            Published(
                "Llama-3.1-405B-Instruct",
                {"Arena-Hard": 95.8, "OpenLLM v1": 99.3, "OpenLLM v2": 98.4, "HumanEval": 100.1, "HumanEval+": 100.4},
                _CARDS,
            ),
        ),
        "w4a16": (
            Published(
                "Llama-3.1-8B-Instruct",
                {
                    "Arena-Hard": 93.0,
                    "OpenLLM v1": 98.9,
                    "OpenLLM v2": 96.1,
                    "HumanEval": 99.7,
                    "HumanEval+": 97.4,
                    "MMLU": 97.9,
                    "MMLU-CoT": 97.6,
                },
                _CARDS,
            ),
            Published("granite-3.1-8b", {"average": 99.3}, _CARDS),
        ),
        "q4_0": (Published("Gemma-3-12B, trained for it (QAT)", {"MMLU": 99.88}, "67.07 of 67.15"),),
    }
)
"""By the kind of quantisation, as `kind_of` calls it."""

_FOUR_BITS = frozenset({"w4a16", "q4_0", "q4_k"})
FLIPS_OF_FOUR_BITS = (
    "at 4 bits 5 to 13.6 % of the answers flipped where accuracy moved by 2 points or less (Dutta et al., arXiv "
    "2407.09141)"
)
_KINDS: tuple[tuple[str, str], ...] = (
    ("fp8", r"fp8|float8"),
    ("int8", r"w8a8|int8"),
    ("w4a16", r"w4a16|int4|awq"),
    *((kind, kind) for kind in ("q8_0", "q6_k", "q5_0", "q5_k", "q4_0", "q4_k", "q3_k", "q2_k")),
)


def kind_of(deployment: Deployment) -> str | None:
    """How its weights are quantised, as far as its settings, its server's words or its model's name say; else None."""
    for text in _told(deployment):
        for kind, pattern in _KINDS:
            if re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text.lower()):
                return kind
    return None


def published_lines(baseline: Deployment, candidate: Deployment) -> tuple[str, ...]:
    """One sentence for every model published with the candidate's kind of weights; none where the baseline has it too.

    Each is of another model than the one measured.
    """
    kind = kind_of(candidate)
    if kind is None or kind == kind_of(baseline):
        return ()
    lines = [_line(one) for one in PUBLISHED.get(kind, ())]
    return tuple([*lines, FLIPS_OF_FOUR_BITS] if kind in _FOUR_BITS else lines)


def _line(one: Published) -> str:
    values = ", ".join(f"{name} {show.percent(value / 100)}" for name, value in one.recovery.items())
    return f"{one.model}: {values} ({one.source})"


def _told(deployment: Deployment) -> Iterator[str]:
    for said in (deployment.settings, deployment.facts):
        yield from _of_weights(said)
    yield deployment.model


def _of_weights(said: Mapping[str, object]) -> Iterator[str]:
    """What stands under a key about weights or quantisation, at any depth."""
    for key, value in sorted(said.items()):
        if isinstance(value, Mapping):
            yield from _of_weights({f"{key}.{inner}": one for inner, one in value.items()})
        elif isinstance(value, str) and re.search("weight|quant|ftype", key.lower()):
            yield value
