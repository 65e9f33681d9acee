from __future__ import annotations

import json
import random
import stat
from collections import Counter
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.shadow.prompts import load_prompts
from benchgate.shadow.redaction import redactor_of
from benchgate.shadow.request_log import LoggedRequest
from benchgate.shadow.sampling import (
    Candidate,
    Reservoir,
    Sample,
    allocate,
    describe,
    draw_sample,
    jaccard,
    sketch,
    write_sample,
)

WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliett",
    "kilo",
    "lima",
    "mike",
    "november",
    "oscar",
    "papa",
]


def text_of(number: int, words: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=words)) + f" {number}"


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def drawn_from(*paths: Path, size: int = 20, seed: int = 1, near: float | None = None) -> Sample:
    return draw_sample(paths, redactor_of(None, ()), size=size, seed=seed, near=near)


def test_every_stratum_has_at_least_one_and_the_rest_is_in_proportion() -> None:
    assert allocate({"a": 700, "b": 290, "c": 10}, 20) == {"a": 14, "b": 5, "c": 1}
    assert allocate({"a": 980, "b": 1, "c": 1, "d": 1}, 10) == {"a": 7, "b": 1, "c": 1, "d": 1}
    assert allocate({"a": 5, "b": 3}, 10) == {"a": 5, "b": 3}
    assert allocate({"a": 5, "b": 9, "c": 9}, 2) == {"b": 1, "c": 1}


def test_the_same_requests_and_seed_give_the_same_sample_whatever_the_order(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": text_of(n, 5 + n % 200)} for n in range(300)]
    rows += [{"prompt": "the  same\nprompt"}, {"prompt": "the same prompt"}] * 3
    one = drawn_from(write(tmp_path / "a", rows[:200]), write(tmp_path / "b", rows[200:]), size=290)
    mixed = random.Random(5).sample(rows, len(rows))
    other = drawn_from(write(tmp_path / "c", mixed[:50]), write(tmp_path / "d", mixed[50:]), size=290)
    assert one.rows == other.rows
    assert len(one.rows) == 290
    assert one.reservoir.duplicates == 5
    ids = [row["id"] for row in drawn_from(write(tmp_path / "e", rows), size=50, seed=2).rows]
    assert len(set(ids)) == 50
    assert ids != [row["id"] for row in drawn_from(write(tmp_path / "f", rows), size=50, seed=3).rows]


def test_the_first_rows_of_a_sample_are_of_all_strata(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": text_of(n, 2)} for n in range(500)]
    rows += [{"prompt": text_of(n, 400)} for n in range(500)]
    sample = drawn_from(write(tmp_path / "log", rows), size=200)
    first = Counter(row["stratum"] for row in sample.rows[:50])
    assert set(first) == {"chat/0-127", "chat/2048-8191"}
    assert min(first.values()) > 10


def test_places_that_are_hardly_asked_are_one_and_a_prompt_asked_at_two_is_drawn_once(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"path": "/v1/chat/completions", "body": {"prompt": f"p{n}"}} for n in range(300)]
    rows += [{"path": f"/team-{name}/ask", "body": {"prompt": "the same"}} for name in ("ann", "bob", "cid")]
    rows += [{"model": "m", "prompt": "raw", "max_tokens": 3}]
    sample = drawn_from(write(tmp_path / "log", rows), size=400)
    labels = Counter(str(row["stratum"]) for row in sample.rows)
    assert labels == {"chat/0-127": 300, "other/0-127": 1, "completions/0-127": 1}
    assert len({row["id"] for row in sample.rows}) == 302


def test_requests_for_a_form_that_is_none_are_left_out(tmp_path: Path) -> None:
    broken = {"type": "json_schema", "json_schema": {"schema": {"type": "no such type"}}}
    rows: list[dict[str, object]] = [{"prompt": "fine"}, {"prompt": "not", "response_format": broken}]
    sample = drawn_from(write(tmp_path / "log", rows))
    assert [row["prompt"] for row in sample.rows] == ["fine"]
    assert sum(sample.summary.left_out.values()) == 1


def test_requests_that_differ_only_in_what_is_redacted_are_one(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"Write to user{n}@example.org"} for n in range(40)]
    sample = drawn_from(write(tmp_path / "log", rows))
    (row,) = sample.rows
    assert row["prompt"] == "Write to <EMAIL_1>"
    assert sample.reservoir.duplicates == 39
    assert sample.redacted["email"] == (1, 1)


def test_near_duplicates_are_left_out_where_asked_for(tmp_path: Path) -> None:
    base = text_of(0, 80)
    rows: list[dict[str, object]] = [{"prompt": f"{base} {word}"} for word in WORDS]
    rows += [{"prompt": text_of(n, 80)} for n in range(1, 5)]
    log = write(tmp_path / "log", rows)
    assert len(drawn_from(log).rows) == 20
    sample = drawn_from(log, near=0.8)
    assert len(sample.rows) == 5
    assert sample.reservoir.near_duplicates == 15


def test_likeness_is_about_the_share_of_pieces_in_common() -> None:
    one, other = text_of(1, 600), text_of(2, 600)
    both = sketch(f"{one} {other}")
    assert jaccard(both, sketch(one)) == pytest.approx(0.5, abs=0.12)
    assert jaccard(both, both) == 1.0
    assert jaccard(sketch(one), sketch(other)) < 0.2


def test_only_as_many_requests_are_held_as_may_be_drawn() -> None:
    reservoir = Reservoir(size=3, seed=0)
    for number in range(100):
        reservoir.add(Candidate(LoggedRequest("chat", "chat", prompt=text_of(number, 3)), Counter()))
    assert len(reservoir._held) == 3
    assert reservoir.distinct == {"chat/0-127": 100}


def test_a_sample_is_what_a_shadow_comparison_reads_and_only_its_owner(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows: list[dict[str, object]] = [
        {"prompt": "plain"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "tools": tools},
        {"model": "m", "prompt": "raw", "max_tokens": 3},
    ]
    out = tmp_path / "deep" / "sample.jsonl"
    write_sample(out, drawn_from(write(tmp_path / "log", rows)).rows)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [path.name for path in out.parent.iterdir()] == ["sample.jsonl"]
    prompts = {prompt.stratum: prompt for prompt in load_prompts(out)}
    assert prompts["completions/0-127"].endpoint == "completions"
    chat = next(prompt for prompt in load_prompts(out) if prompt.messages)
    assert chat.messages[1] == {"role": "user", "content": "u"}
    assert chat.fields == {"tools": tools}
    with pytest.raises(UsageError, match="already exists"):
        write_sample(out, [])


def test_the_report_tells_numbers_and_places_and_no_text(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"canary {n} bob@example.org"} for n in range(3)]
    log = write(tmp_path / "log", [*rows, {"nothing": "canary"}])
    report = describe(drawn_from(log))
    assert report["bad_lines"] == [
        {"reason": "holds no `messages`, `prompt` or `input`", "lines": 1, "first": [f"{log}:4"]}
    ]
    assert '{"rule": "email", "replacements": 3, "prompts": 3}' in json.dumps(report["redacted"])
    assert report["strata"] == [{"stratum": "chat/0-127", "distinct": 3, "drawn": 3}]
    assert "canary" not in json.dumps(report)
    assert "example.org" not in json.dumps(report)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"to": "a@ex.org"}'}}
SCHEMA = {"type": "object", "properties": {"bob@ex.org": {"type": "string"}}, "required": ["bob@ex.org"]}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u", "name": "b@ex.org"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]},
        {
            "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": "", "tool_call_id": "c"},
            ]
        },
        {"messages": [{"role": "user", "content": "u"}], "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "schema": SCHEMA}}},
        {"messages": [{"role": "user", "content": "u"}], "tools": [{"type": "function", "function": {
            "name": "f", "parameters": SCHEMA}}], "tool_choice": "required", "parallel_tool_calls": False, "stop": "x"},
        {"model": "m", "prompt": ["only one"], "stop": ["a"], "max_tokens": 5},
        {"input": [{"role": "assistant", "content": "a"}, {"type": "message", "role": "user", "content": "u"}]},
        {"id": "p-1", "prompt": "from a sample", "endpoint": "completions", "stratum": "chat/0-127", "length": 13},
    ],
)  # fmt: skip
def test_whatever_is_drawn_can_be_run(tmp_path: Path, row: dict[str, object]) -> None:
    sample = drawn_from(write(tmp_path / "log", [row]))
    assert not sample.summary.left_out, sample.summary.left_out
    write_sample(tmp_path / "sample", sample.rows)
    (prompt,) = load_prompts(tmp_path / "sample")
    assert "ex.org" not in json.dumps([prompt.prompt, *prompt.fields.values()])
