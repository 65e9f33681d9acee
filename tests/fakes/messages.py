"""What is told of a run, without a run: for tests of those who tell it."""

from __future__ import annotations

from benchgate.integrations.github_feedback import Annotation, CheckState, Message
from benchgate.model.verdict import Outcome

_STATES = {Outcome.PASS: CheckState.SUCCESS, Outcome.WARN: CheckState.SUCCESS, Outcome.INVALID: CheckState.ERROR}


def message(
    outcome: Outcome | None = Outcome.PASS, *, notes: int = 0, said: str = "TTFT rose", **others: str
) -> Message:
    """Of the suite `chat` and its candidate `awq`, run `run-1`; None is one that is being measured."""
    state = CheckState.PENDING if outcome is None else _STATES.get(outcome, CheckState.FAILURE)
    annotations = tuple(Annotation("suites/chat.yaml", i + 1, "failure", f"check {i}", said) for i in range(notes))
    named = {"suite": "chat", "candidate": "awq", "run_id": "run-1"} | others
    return Message(
        suite=named["suite"],
        candidate=named["candidate"],
        run_id=None if outcome is None else named["run_id"],
        outcome=outcome,
        state=state,
        title=f"{outcome}: {said}",
        text=lambda budget: f"## {outcome}: awq\n\n{said}"[:budget] + "\n",
        annotations=annotations,
        details_url="https://ci.test/1",
        key=named.get("key"),
    )
