from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.plan.schedule import ShadowPrompt
from benchgate.shadow.sample import load_prompts


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
