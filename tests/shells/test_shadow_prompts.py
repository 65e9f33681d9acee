from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.prompts import load_prompts


def test_prompts_are_read_in_file_order_and_empty_lines_skipped(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "b", "prompt": "two\\nlines"}\n\n{"id": "a", "prompt": "one"}\n')
    assert load_prompts(path) == (ShadowPrompt("b", "two\nlines"), ShadowPrompt("a", "one"))


def test_every_bad_row_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [
        '{"id": "a", "prompt": "one"}',
        '{"id": "a", "prompt": "again"}',
        '{"id": "b"}',
        '{"id": "c", "prompt": " "}',
        '{"id": "d", "prompt": "x", "promt": "y"}',
        '{"prompt": "x"}',
        "hello",
    ]
    path.write_text("\n".join(rows))
    with pytest.raises(SuiteError) as caught:
        load_prompts(path)
    told = [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]
    assert [line.partition(":")[0] for line in told] == ["2", "3", "4", "5", "6", "7"]
    assert "`id` 'a' is already used on line 1" in told[0]
    assert "`prompt` is missing or empty" in told[1]
    assert "unknown key 'promt'; did you mean 'prompt'?" in told[3]
    assert "not JSON" in told[5]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_prompts_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SuiteError, match=r"prompts\.jsonl"):
        load_prompts(path)


def test_rows_may_say_what_else_is_sent_and_where(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows: list[dict[str, object]] = [
        {"id": "a", "messages": [{"role": "user", "content": "Hi"}], "tools": [{"x": 1}], "tool_choice": "auto"},
        {"id": "b", "prompt": "<user>Hi", "endpoint": "completions", "stop": ["\n"], "max_tokens": 7},
        {"id": "c", "prompt": "Hi", "stratum": "chat/0-127", "length": 2, "redacted": {}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat, raw, plain = load_prompts(path)
    assert chat.messages == ({"role": "user", "content": "Hi"},)
    assert chat.fields == {"tools": [{"x": 1}], "tool_choice": "auto"}
    assert json.loads(chat.prompt) == [{"role": "user", "content": "Hi"}]
    assert (raw.prompt, raw.endpoint, raw.max_tokens, raw.fields) == ("<user>Hi", "completions", 7, {"stop": ["\n"]})
    assert plain == ShadowPrompt("c", "Hi", stratum="chat/0-127")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "has both `prompt` and `messages`"),
        ({"messages": []}, "`messages` is no list of messages"),
        ({"messages": ["secret"]}, "`messages[0]` has no `role` that is one of"),
        ({"messages": [{"role": "user"}]}, "`messages[0]` has no `content`"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "secret"}]},
            "end with an answer",
        ),
        ({"prompt": "x", "endpoint": "secret"}, "`endpoint` is none of chat, completions and messages"),
        (
            {"messages": [{"role": "user", "content": "x"}], "endpoint": "completions"},
            "`messages` belongs to the endpoint",
        ),
        ({"prompt": "x", "tools": [], "endpoint": "completions"}, "`tools` belongs to the endpoint chat"),
        ({"prompt": "x", "max_tokens": "secret"}, "`max_tokens` is not a whole number"),
        ({"prompt": "x", "stratum": ["secret"]}, "`stratum` is not a text"),
    ],
)
def test_keys_that_contradict_each_other_are_told_without_their_values(
    tmp_path: Path, row: dict[str, object], told: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "a", **row}))
    with pytest.raises(SuiteError) as caught:
        load_prompts(path)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_log_named_as_recorded_prompts_is_told_once_with_what_draws_from_it(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"model": "m", "messages": [{"role": "user", "content": "private"}]}\n' * 30)
    with pytest.raises(SuiteError, match="benchgate shadow sample") as caught:
        load_prompts(log)
    [problem] = caught.value.problems
    assert problem.line == 1 and "none of its 30 lines" in problem.message
    assert "private" not in problem.message
