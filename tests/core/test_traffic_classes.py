"""Classes of traffic: arrivals, lengths, SLO and turns of stages, classes, traces and background."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.model.metric import Slo
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import Stage
from tests.fakes.drills import Line, drill

SUITE = drill({"metric": "error_rate", "max": "5%"})


def of(*stages: Line, suite: Suite = SUITE, workload: Line | None = None) -> tuple[TrafficClass, ...]:
    assert suite.load is not None
    each = ({"requests": 60, **stage} if "classes" not in stage else stage for stage in stages)
    sweep = tuple(Stage.model_validate(stage) for stage in each)
    text = suite.model_copy(update={"load": suite.load.model_copy(update={"sweep": sweep})}).to_stored()
    text["load"]["workload"] |= workload or {}
    return traffic_classes(Suite.from_stored(text))


def test_each_form_of_a_stage_says_how_its_requests_come_and_how_long_an_answer_is() -> None:
    closed, opened, day, long = of(
        {"stage": "closed", "concurrency": 4},
        {"stage": "open", "rate": "5/s"},
        {"stage": "day", "trace": "day.csv"},
        {"stage": "long", "concurrency": 1, "output": 30},
    )
    assert (closed.is_open, closed.mean_rps, closed.output_tokens, closed.requests) == (False, None, 10, 60)
    assert (opened.is_open, opened.mean_rps, opened.output_tokens) == (True, 5.0, 10)
    assert (day.is_open, day.mean_rps, day.output_tokens) == (True, None, None)  # each row says its own
    assert long.output_tokens == 30
    drawn = of({"stage": "closed", "concurrency": 4}, workload={"output_tokens": {"uniform": [4, 8]}})
    assert drawn[0].output_tokens is None
    assert traffic_classes(SUITE.model_copy(update={"load": None})) == ()


def test_a_class_is_held_to_its_own_slo_and_else_to_the_suites() -> None:
    classes = {
        "chat": {"concurrency": 2, "requests": 40, "slo": {"ttft": "100ms", "target": "90%"}},
        "batch": {"concurrency": 8, "background": True},
    }
    chat, batch = of({"stage": "mix", "classes": classes})
    assert (chat.name, chat.stage, chat.class_name, chat.requests) == ("mix/chat", "mix", "chat", 40)
    assert (chat.slo, chat.target_ratio, chat.has_own_slo) == (Slo(ttft_s=0.1), 0.9, True)
    assert (batch.name, batch.stage, batch.class_name, batch.requests) == ("mix/batch", "mix", "batch", None)
    assert (batch.slo, batch.target_ratio, batch.has_own_slo) == (Slo(ttft_s=0.2), 0.95, False)
    (bare,) = of({"stage": "c4", "concurrency": 4}, suite=SUITE.model_copy(update={"slo": None}))
    assert (bare.class_name, bare.slo, bare.target_ratio, bare.has_own_slo) == (None, None, None, False)


@pytest.mark.parametrize(
    ("turns", "first"),
    [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), ({"uniform": [2, 4]}, [0]), (None, [0, 1, 2, 3, 4, 5, 6])],
)
def test_of_a_conversation_the_first_turn_alone_stands_by_itself(turns: object, first: list[int]) -> None:
    session = None if turns is None else {"turns": turns, "think": None}
    kept = {"concurrency": 4, "requests": 60}
    stage: dict[str, object] = {"stage": "mix", "classes": {"chat": kept, "batch": {**kept, "background": True}}}
    chat, batch = of(stage, workload={"session": session})
    assert chat.schedule.requests == batch.schedule.requests == 60
    index = np.arange(7)
    for place in (chat, batch):
        assert index[place.is_first_turn(index)].tolist() == first
    again = index[batch.is_first_turn(index + 60)].tolist()  # in the background requests begin again
    assert again == first


def test_a_recorded_conversation_may_be_shorter_so_later_ones_begin_anywhere() -> None:
    stage: dict[str, object] = {"stage": "talk", "concurrency": 4}
    index = np.arange(7)
    for turns, first in ((3, [0]), (1, list(range(7)))):
        workload: Line = {"session": {"turns": turns, "think": None}, "prompts": "chats.jsonl"}
        (talk,) = of(stage, workload=workload)
        assert index[talk.is_first_turn(index)].tolist() == first
