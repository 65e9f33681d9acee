"""Recorded prompts, think time and changing rates of `benchgate load`."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import SyntheticRequests, run_load_test, schedule_blocks_ns, stage_of, warmup_load
from tests.fakes.scripted_server import ScriptedServer
from tests.shells.load_helpers import WHOLE, target_at

OURS = [{"prompt": "What is a fjord?", "output_tokens": 7}, {"prompt": "Name a river.", "system": "Be short."}]
SHAREGPT = {"conversations": [{"from": "human", "value": "Hello there"}, {"from": "gpt", "value": "Hi"}]}


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (*OURS, SHAREGPT)))
    return str(path)


def parsed(**given: Any) -> LoadOptions:
    closed = {} if "rate" in given else {"concurrency": 2}
    return LoadOptions.parse(**{"url": "http://h:1", "model": "m", "engine": "openai", **closed, **given})


def sent_texts(options: LoadOptions) -> list[str]:
    return [request.ask.content["messages"][-1]["content"] for request in SyntheticRequests(options)]  # type: ignore[index]


def test_each_row_of_a_file_is_sent_once_before_one_is_sent_again(prompts: str) -> None:
    plain = parsed(prompts=prompts, requests=9, salt=0)
    texts = sent_texts(plain)
    known = {"What is a fjord?", "Name a river.", "Hello there"}
    assert [set(texts[at : at + 3]) for at in (0, 3, 6)] == [known] * 3
    asks = {request.ask.content["messages"][-1]["content"]: request.ask for request in SyntheticRequests(plain)}  # type: ignore[index]
    assert asks["What is a fjord?"].output_tokens == 7
    assert asks["Hello there"].output_tokens == 128
    assert [message["role"] for message in asks["Name a river."].content["messages"]] == ["system", "user"]  # type: ignore[attr-defined]


def test_salt_marks_a_repeated_prompt_otherwise_each_time(prompts: str) -> None:
    salted = sent_texts(parsed(prompts=prompts, requests=9, salt=5))
    assert len(set(salted)) == 9
    assert Counter(text.splitlines()[-1] for text in salted) == dict.fromkeys(
        ("What is a fjord?", "Name a river.", "Hello there"), 3
    )
    assert salted == sent_texts(parsed(prompts=prompts, requests=9, salt=5))
    assert not set(salted) & set(sent_texts(parsed(prompts=prompts, requests=9, salt=5, seed=1)))  # as a warm-up's


@pytest.mark.parametrize("salt", [0, 5])
def test_an_answer_is_judged_by_the_row_that_was_sent(tmp_path: Path, salt: int) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = [{"prompt": f"Question {number}.", "output_tokens": 50 + number} for number in range(4)]
    rows += [
        {"messages": [{"role": "user", "content": f"Call {number}."}], "max_tokens": 60 + number, "tools": tools}
        for number in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = parsed(prompts=str(tmp_path / "rows.jsonl"), requests=24, salt=salt)
    sent = list(SyntheticRequests(options)) + list(islice(SyntheticRequests(options, first=2**40), 24))
    find = SyntheticRequests(options).find()
    assert len(sent) == 48
    for request in sent:
        found = find(request.index)
        assert found is not None
        assert (found.ask.fields, found.ask.output_tokens) == (request.ask.fields, request.ask.output_tokens)


def test_a_load_of_recorded_prompts_names_their_file(prompts: str) -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document: Any = run_load_test(parsed(url=server.url, prompts=prompts, requests=6, workers="1", warmup="0"))
        last = {received.prompt.splitlines()[-1] for received in server.requests}
    assert document["load"]["prompts"] == prompts and document["load"]["input_tokens"] is None
    assert document["requests"]["ok"] == 6
    assert last == {"What is a fjord?", "Name a river.", "Hello there"}


def test_prompts_that_cannot_be_sent_are_refused(prompts: str, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SuiteError, match="expected `prompt`"):
        parsed(prompts=str(tmp_path / "odd.jsonl"), requests=1)
    with pytest.raises(UsageError, match=re.escape(f"--prompts: {prompts}:2 is a conversation, and completions take")):
        parsed(prompts=prompts, requests=1, endpoint="completions")
    with pytest.raises(UsageError, match="--prompts and --input-tokens both choose"):
        parsed(prompts=prompts, requests=1, input_tokens=5)


def test_a_slot_thinks_before_its_next_request() -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document: Any = run_load_test(
            parsed(url=server.url, concurrency=1, requests=4, think_time="200ms", workers="1", warmup="0")
        )
    assert document["load"]["think_s"] == 0.2
    assert document["requests"]["ok"] == 4
    assert document["window_s"] >= 0.6
    assert document["ttft_s"]["p50"] < 0.2  # thinking is no latency


def test_slots_begin_evenly_over_an_answer_and_its_pause() -> None:
    """Begun within one answer they would all think at once, and then all send at once, to the end."""
    options = parsed(concurrency=4, requests=8, think_time="900ms")
    assert stage_of(options, target_at(options.url), 0.1).parts[0].service_s == pytest.approx(1.0)
    assert stage_of(options, target_at(options.url), None).parts[0].service_s is None


@pytest.mark.parametrize(("first", "last"), [(2, 18), (18, 2)])
def test_a_rate_changes_linearly(first: int, last: int) -> None:
    options = parsed(rate=f"{first}/s", ramp_to=f"{last}/s", duration="10s", arrival="constant")
    offsets_s = np.concatenate(list(schedule_blocks_ns(options, first))) / 1e9
    assert len(offsets_s) == 100
    assert (options.offered_rps, options.peak_rps) == (10, 18)
    early = int((offsets_s <= 5).sum())
    assert early == (30 if first < last else 70)


def test_a_changing_rate_is_warmed_up_at_its_mean() -> None:
    load = warmup_load(parsed(rate="2/s", ramp_to="18/s", duration="10s"), 0, 8)
    assert (load.rate_rps, load.ramp_to_rps, load.requests) == (10, None, 8)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": "4/s", "think_time": "2s", "requests": 4}, "--think-time is the pause of a closed loop"),
        ({"rate": "4/s", "ramp_to": "8/s", "requests": 4}, "--ramp-to needs the --rate it begins with and the --dur"),
        ({"ramp_to": "8/s", "duration": "4s"}, "--ramp-to needs the --rate"),
    ],
)
def test_options_that_mean_nothing_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parsed(**given)
