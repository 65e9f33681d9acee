"""Recorded prompts in a plan: what is sent of each, what identifies it, and how many requests that comes to."""

from __future__ import annotations

import json

import pytest

from benchgate.plan.items import ShadowPrompt
from benchgate.plan.preview import preview
from benchgate.plan.schedule import Plan, make_plan
from benchgate.suite.schema import Suite

MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "weather in Oslo?"})
RICH = ShadowPrompt(
    "w", json.dumps(MESSAGES), messages=MESSAGES, fields={"tools": [{"type": "function"}], "stop": ["\n"]}, max_tokens=9
)
PLAIN = tuple(ShadowPrompt(f"p{n}", f"text {n}") for n in range(20))


def suite(**shadow: object) -> Suite:
    return Suite.model_validate(
        {
            "suite": "shadow",
            "seed": 3,
            "deployments": {
                "baseline": {"url": "http://b", "model": "m"},
                "candidate": {"url": "http://c", "model": "m"},
            },
            "shadow": {"prompts": "p.jsonl", **shadow},
            "gate": {"checks": [{"metric": "shadow_excess", "margin": "5 points"}]},
        }
    )


def planned(*prompts: ShadowPrompt, judge_prompt: str | None = None, **shadow: object) -> Plan:
    return make_plan(suite(**shadow), shadow=prompts, judge_prompt=judge_prompt)


def test_a_plain_plan_keeps_the_bytes_it_always_had() -> None:
    assert json.loads(planned(*PLAIN[:1]).canonical) == {
        "seed": 3,
        "warmup": [],
        "blocks": [],
        "tasks": [],
        # printf 'text 0' | sha256sum
        "shadow": [
            {
                "id": "p0",
                "prompt_sha256": "822beb0d1729878ad343b6c35b1d5e45e62f8e36b6543c2312b6f1cb6d00cdef",
            }
        ],
    }


def test_what_is_sent_holds_all_that_the_row_says() -> None:
    ask = RICH.ask(128)
    assert (ask.endpoint, ask.content, ask.output_tokens) == ("chat", {"messages": list(MESSAGES)}, 9)
    assert (ask.fields, ask.stream, ask.ignore_eos) == (RICH.fields, False, False)
    raw = ShadowPrompt("r", "<user>hi", endpoint="completions", fields={"stop": ["x"]}).ask(128)
    assert (raw.endpoint, raw.content, raw.output_tokens, raw.fields) == (
        "completions", {"prompt": "<user>hi"}, 128, {"stop": ["x"]},
    )  # fmt: skip
    assert ShadowPrompt("p", "hi").ask(128).content == {"messages": [{"role": "user", "content": "hi"}]}


def test_a_plan_knows_texts_tools_and_the_judges_words_by_digest_only() -> None:
    told = planned(RICH, judge_prompt="which is better?").canonical
    assert b"Oslo" not in told and b"function" not in told and b"better" not in told


@pytest.mark.parametrize(
    "other",
    [
        planned(RICH, judge_prompt="which is better?"),
        planned(ShadowPrompt("w", RICH.prompt, messages=MESSAGES, max_tokens=9)),
        planned(ShadowPrompt("w", RICH.prompt, messages=MESSAGES, fields=RICH.fields)),
        planned(RICH, *PLAIN[:3], secondary="50%"),
    ],
)
def test_whatever_is_asked_otherwise_makes_another_plan(other: Plan) -> None:
    assert other.sha256 not in (planned(RICH).sha256, planned(RICH, *PLAIN[:3]).sha256)


def test_the_slice_of_the_traffic_is_no_part_of_what_is_asked() -> None:
    assert planned(ShadowPrompt("a", "b", stratum="chat")).sha256 == planned(ShadowPrompt("a", "b")).sha256


def test_requests_are_counted_with_the_share_asked_twice_and_the_helpers() -> None:
    helper = {"url": "http://j", "model": "j", "send_text": True}

    def counted(**shadow: object) -> tuple[int, int, int]:
        asked = suite(**shadow)
        found = preview(asked, make_plan(asked, shadow=PLAIN), None, 2)
        return found.shadow_requests, found.judge_requests, found.similarity_requests

    assert counted() == (60, 0, 0)
    assert counted(judge=helper) == (60, 82, 0)
    assert counted(judge={**helper, "prompt": "j.txt"}) == (60, 80, 0)
    assert counted(judge=helper, secondary="25%") == (45, 52, 0)
    assert counted(similarity=helper) == (60, 0, 21)
