"""Purposes of a first suite: what the candidate changes, and what may differ between the arms for it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Purpose(StrEnum):
    """The change of a candidate, which decides what may differ between the arms."""

    QUANTISATION = "quantisation"
    ENGINE = "engine"
    HARDWARE = "hardware"
    PROMPT = "prompt"


CHANGES: Mapping[Purpose, tuple[str, tuple[str, ...]]] = {
    Purpose.QUANTISATION: ("weights in another precision, nothing else", ()),
    Purpose.ENGINE: ("another version or configuration of the engine", ("engine_version", "engine_flags")),
    Purpose.HARDWARE: ("other accelerators, same weights and engine", ("hardware",)),
    Purpose.PROMPT: ("another chat template or system prompt", ("chat_template", "request_fields")),
}
"""Words of `change`, and the fields that the gate lets differ."""
