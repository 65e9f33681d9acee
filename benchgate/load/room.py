"""Is there room for what a plan asks? Found out from what a server says of itself, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.errors import Problem, SuiteError
from benchgate.model.deployment import Arm
from benchgate.plan.preview import longest_request
from benchgate.plan.schedule import Plan
from benchgate.suite.schema import Suite


def require_room(suite: Suite, plan: Plan, arm: Arm, facts: Mapping[str, object]) -> None:
    """SuiteError when the longest request is longer than the context an arm says it has (`max_model_len`)."""
    room = facts.get("max_model_len")
    if suite.load is None or not isinstance(room, int):
        return
    longest = longest_request(suite.load, plan)
    if longest is None or longest.tokens <= room:
        return
    asked = f"at least {longest.input_tokens:,} tokens in and {longest.output_tokens:,} out"
    what = (
        f"request {longest.index} of {longest.level} asks for {asked}, and the context of the {arm} holds {room:,} "
        "(its max_model_len); shorten it, or take its row out of the file"
    )
    raise SuiteError([Problem(suite.suite, None, None, "load", what)])
