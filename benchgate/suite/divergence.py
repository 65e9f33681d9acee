"""How far the candidate's next-token probabilities lie from the baseline's, on fixed texts: the section's language."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchgate.suite.fields import Flag, StrictSection, Text, Whole


class Divergence(StrictSection):
    """Fixed texts (JSONL: `id`, `text`) that both arms read: given, not generated. Paths are relative to the suite."""

    texts: Text
    positions: Whole = Field(default=200, ge=10, le=100_000)  # in all; drawn by the suite's seed
    top: Whole = Field(default=20, ge=2, le=10_000)  # the most probable tokens that are asked for at a position
    way: Literal["auto", "n_probs", "echo", "cut"] = "auto"
    window: Whole = Field(default=2048, ge=32, le=1_000_000)  # characters of a piece of a text; its second half counts
    repeat_baseline: Flag = False  # ask the baseline once more: how far it lies from itself
    concurrency: Whole = Field(default=8, ge=1, le=1024)
