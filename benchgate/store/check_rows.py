"""The checks of a verdict document as table rows: what they were held to, and what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchgate.store import rows

_POLICY = (
    "family", "metric", "statistic", "stage", "over", "task", "unit", "scale", "margin", "at_least", "two_sided",
    "waiver",
)  # fmt: skip
_NUMBERS = ("baseline", "candidate", "harm", "lower", "upper")


def check_rows(run_id: str, verdict_seq: int, document: Mapping[str, Any]) -> Iterator[rows.Row]:
    """One row for each check, in the document's order. What is infinite or was not measured is NULL."""
    for seq, check in enumerate(document.get("checks", ())):
        policy = {name: check[name] for name in _POLICY if check.get(name) is not None}
        yield {
            "run_id": run_id,
            "verdict_seq": verdict_seq,
            "seq": seq,
            "check_id": check["id"],
            "outcome": check["outcome"],
            "required": int(check["required"]),
            **{name: _number(check.get(name)) for name in _NUMBERS},
            "n": check.get("n"),
            "policy": rows.to_json(policy, f"the policy of check {check['id']}"),
        }


def _number(said: object) -> float | None:
    """A document spells what is infinite as text."""
    return float(said) if isinstance(said, int | float) else None
