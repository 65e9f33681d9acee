"""The form that a recorded prompt asks for, and what the judge and the embeddings say: texts in, meanings out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.model.records import JudgeVerdict
from benchgate.plan.shadow import ShadowPrompt
from benchgate.shadow.compare import Said
from benchgate.shadow.form import form_problems, has_form
from benchgate.shadow.judge_prompt import BUILT_IN, judge_message, judged, load_judge_prompt, read_choice
from benchgate.shadow.sample import load_prompts
from benchgate.shadow.similarity import cosine, read_embeddings
from benchgate.targets.answers import ToolCall

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def asking(**fields: object) -> ShadowPrompt:
    return ShadowPrompt("p", "[]", messages=({"role": "user", "content": "weather?"},), fields=fields)


def schema(found: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": found}}


def calls(arguments: str, name: str = "weather", text: str = "") -> Said:
    return Said(text, (ToolCall(name, arguments),))


def test_answers_to_prompts_that_ask_for_no_form_are_neither_valid_nor_not() -> None:
    assert has_form(asking(), Said("anything")) is None
    assert has_form(asking(response_format={"type": "text"}), Said("anything")) is None


def test_json_object_is_an_object_and_nothing_around_it() -> None:
    prompt = asking(response_format={"type": "json_object"})
    assert has_form(prompt, Said('{"a": 1}')) is True
    for text in ("[1]", 'Here: {"a": 1}', '```json\n{"a": 1}\n```', '{"a": NaN}', '{"a": 1', ""):
        assert has_form(prompt, Said(text)) is False


def test_json_schema_is_held_to() -> None:
    prompt = asking(response_format=schema(CITY))
    assert has_form(prompt, Said('{"city": "Oslo"}')) is True
    for text in ('{"city": 1}', "{}", '{"city": "Oslo", "mood": 1}', "Oslo"):
        assert has_form(prompt, Said(text)) is False


def test_a_call_is_of_a_tool_that_was_offered_with_arguments_of_its_schema() -> None:
    prompt = asking(tools=[TOOL])
    assert has_form(prompt, calls('{"city": "Oslo"}')) is True
    assert has_form(prompt, Said("It rains.")) is None
    for said in (calls("{}"), calls('{"city": 1}'), calls("Oslo"), calls("[]"), calls('{"city": "Oslo"}', "forecast")):
        assert has_form(prompt, said) is False


def test_a_call_that_is_required_is_missed() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        prompt = asking(tools=[TOOL], tool_choice=choice)
        assert has_form(prompt, Said("It rains.")) is False
        assert has_form(prompt, calls('{"city": "Oslo"}')) is True
        assert has_form(prompt, calls("{}")) is False
    assert has_form(asking(tools=[TOOL], tool_choice="none"), calls('{"city": "Oslo"}')) is False


def test_a_row_that_no_answer_could_be_held_to_is_refused_with_its_line(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "one"},
        {"id": "b", "prompt": "two", "response_format": {"type": "yaml"}},
        {"id": "c", "prompt": "three", "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"id": "d", "prompt": "four", "response_format": schema({"type": "obj"})},
        {
            "id": "e",
            "prompt": "five",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}],
        },
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(SuiteError) as raised:
        load_prompts(path)
    assert [problem.line for problem in raised.value.problems] == [2, 3, 4, 5]


def test_a_sound_row_has_no_problems() -> None:
    assert form_problems(asking(tools=[TOOL], response_format=schema(CITY))) == []


@pytest.mark.parametrize(
    ("text", "choice"),
    [('{"verdict": "A"}', "A"), (' {"verdict":"B"}\n', "B"), ('{"verdict": "tie"}', "tie")],
)
def test_a_verdict_is_one_json_object(text: str, choice: str) -> None:
    assert read_choice(text) == choice


@pytest.mark.parametrize(
    "text",
    ["A", "", None, '{"verdict": "C"}', '{"verdict": "a"}', '{"verdict": ["A"]}', '{"verdict": "A", "why": "x"}',
     '{"verdict": "A", "verdict": "B"}', '[["verdict", "A"]]', 'I say {"verdict": "A"}', '{"verdict": null}',
     "[" * 9999],
)  # fmt: skip
def test_anything_else_is_no_verdict(text: str | None) -> None:
    assert read_choice(text) is None


def test_a_preference_counts_only_when_it_survives_the_swap() -> None:
    verdicts = {(one, two): judged(one, two) for one in ("A", "B", "tie", None) for two in ("A", "B", "tie", None)}
    assert verdicts["A", "B"] is JudgeVerdict.LOSS
    assert verdicts["B", "A"] is JudgeVerdict.WIN
    assert verdicts["A", "A"] is verdicts["B", "B"] is JudgeVerdict.INCONSISTENT
    assert {verdicts["A", "tie"], verdicts["tie", "B"], verdicts["tie", "tie"]} == {JudgeVerdict.TIE}
    assert all(found is JudgeVerdict.MISSING for asked, found in verdicts.items() if None in asked)


def test_answers_cannot_fill_places_or_foresee_the_boundary() -> None:
    told = judge_message(BUILT_IN, "why?", "say {answer_b} {boundary}", "secret")
    assert "say {answer_b} {boundary}" in told
    assert told.count("secret") == 1
    boundaries = {line.split()[1] for line in told.splitlines() if line.startswith("===")}
    assert len(boundaries) == 1
    assert boundaries.isdisjoint(judge_message(BUILT_IN, "why?", "say nothing", "secret").split())


def test_a_prompt_for_the_judge_has_a_place_for_every_text(tmp_path: Path) -> None:
    path = tmp_path / "judge.txt"
    path.write_text("{prompt} {answer_a}")
    with pytest.raises(SuiteError, match=r"no place for \{answer_b\}"):
        load_judge_prompt(path)
    with pytest.raises(SuiteError, match="cannot be read"):
        load_judge_prompt(tmp_path / "missing.txt")
    path.write_text("{prompt} {answer_a} {answer_b}")
    assert judge_message(load_judge_prompt(path), "p", "a", "b") == "p a b"


def rows(*vectors: object) -> dict[str, object]:
    return {"data": [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]}


def test_embeddings_are_taken_by_their_index() -> None:
    found = read_embeddings({"data": list(reversed(rows([3, 4], [0, 2])["data"]))}, 2)  # type: ignore[call-overload]  # a list
    assert found is not None
    assert cosine(found[0], found[1]) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "document",
    [
        {}, {"data": None}, rows([1.0]), rows([1.0], [2.0], [3.0]), rows([1.0, 0.0], [1.0]), rows([0.0], [1.0]),
        rows(["x"], [1.0]), rows([], []), rows([float("nan")], [1.0]), rows([1.7e308, 1.7e308], [1.0, 1.0]),
        rows("ab", "cd"), rows([10**400], [1.0]), {"data": [{"index": 0, "embedding": [1.0]}] * 2},
        {"data": [{"embedding": [1.0]}, {"embedding": [1.0]}]},
    ],
)  # fmt: skip
def test_embeddings_that_are_not_as_they_should_be_are_none(document: dict[str, object]) -> None:
    assert read_embeddings(document, 2) is None
