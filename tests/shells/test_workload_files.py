"""The files that a load names: what is read of them, and how their mistakes are told before anything is sent."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchgate.errors import SuiteError, UsageError
from benchgate.load.material import read_inputs, read_lengths
from benchgate.load.prompt_sets import read_prompt_set
from benchgate.load.shards import stage_shard
from benchgate.load.traces import Bounds, load_trace
from benchgate.model.deployment import Arm
from benchgate.pipeline.deployments import require_context_fits
from benchgate.plan.model import Material, ObservedLengths, RecordedRequest
from benchgate.plan.schedule import look_stage, make_plan, planned_stage
from benchgate.plan.vocabulary import VOCABULARIES
from benchgate.stats.capacity_search import PlannedLook
from benchgate.suite.load import Capacity
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Stage
from benchgate.suite.workload import PromptSet
from tests.shells.load_helpers import limits, target_at


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def suite(
    workload: dict[str, Any],
    url: str = "http://a:1",
    context: int | None = None,
    salt: bool = True,
    workloads: dict[str, Any] | None = None,
    **stage: Any,
) -> Suite:
    swept = {"stage": "s", "concurrency": 1, "requests": 2, **stage}
    deployment = {"url": url, "model": "m", "engine": "vllm", "context": context}
    return Suite.model_validate(
        {
            "suite": "s",
            "deployments": {"a": {key: value for key, value in deployment.items() if value is not None}},
            "baseline": "a",
            "candidate": "a",
            "load": {
                "workload": workload,
                "workloads": workloads or {},
                "sweep": [{key: value for key, value in swept.items() if value is not None}],
                "blocks": 2,
                "warmup": 0,
                "salt": salt,
            },
            "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
        }
    )


def problems_of(asked: Suite, folder: Path) -> list[str]:
    with pytest.raises(SuiteError) as raised:
        read_inputs(asked, folder, {})
    return [str(problem).replace(f"{folder}/", "") for problem in raised.value.problems]


def prompts_of(path: Path, *, conversing: bool) -> tuple[RecordedRequest, ...]:
    return read_prompt_set(path.parent, PromptSet(source=path.name), conversing=conversing)


OWN = '{"prompt": "hello you", "output_tokens": 9}\n\n{"prompt": "again", "system": "Be kind."}\n'
LOG = (
    '{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "max_tokens": 7}\n'
    '{"custom_id": "x", "body": {"model": "m", "messages": [{"role": "user", "content": "q"}], "tools": [{"a": 1}], '
    '"temperature": 0.3}}\n'
)
SHAREGPT = """[
  {"id": "1", "conversations": [
    {"from": "human", "value": "first"}, {"from": "gpt", "value": "answer"}, {"from": "human", "value": "second"}]},

  {"id": "2", "conversations": [{"from": "system", "value": "sys"}, {"from": "user", "value": "only"}]}
]
"""


def test_own_rows_are_read_with_their_lines(tmp_path: Path) -> None:
    first, second = prompts_of(written(tmp_path, "p.jsonl", OWN), conversing=False)
    assert first.messages == ({"role": "user", "content": "hello you"},)
    assert (first.output_tokens, first.line) == (9, 1)
    assert [message["role"] for message in second.messages] == ["system", "user"]
    assert (second.output_tokens, second.line) == (None, 3)


def test_logged_requests_are_asked_again_without_their_answers(tmp_path: Path) -> None:
    first, second = prompts_of(written(tmp_path, "p.jsonl", LOG), conversing=False)
    assert (first.messages, first.output_tokens, first.fields) == (({"role": "user", "content": "one"},), 7, {})
    assert (second.messages[0]["content"], second.fields) == ("q", {"tools": [{"a": 1}]})


@pytest.mark.parametrize(
    ("conversing", "said"),
    [(False, [["first"], ["sys", "only"]]), (True, [["first", "answer", "second"], ["sys", "only"]])],
)
def test_conversations_are_cut_at_their_first_question_unless_they_go_on(
    tmp_path: Path, conversing: bool, said: list[list[str]]
) -> None:
    rows = prompts_of(written(tmp_path, "p.json", SHAREGPT), conversing=conversing)
    assert [[message["content"] for message in row.messages] for row in rows] == said
    assert [row.line for row in rows] == [2, 5]


def test_class_without_a_session_sends_first_questions_where_another_class_converses(tmp_path: Path) -> None:
    recorded = {
        "prompts": written(tmp_path, "p.json", SHAREGPT.replace('{"from": "system", "value": "sys"}, ', "")).name,
        "output": 4,
    }
    workloads = {"single": {**recorded, "endpoint": "completions"}, "talk": {**recorded, "session": {"turns": 2}}}
    classes = {name: {"workload": name, "concurrency": 1, "requests": 2} for name in workloads}
    whole = suite(recorded, workloads=workloads, salt=False, concurrency=None, requests=None, classes=classes)
    _, material = read_inputs(whole, tmp_path, {})
    [stage] = make_plan(whole, material=material).blocks[0].stages
    prompts = {group.name: [request.ask.prompt for request in group.requests] for group in stage.classes}
    assert sorted(map(str, prompts["single"])) == ["first", "only"]


def test_capacity_search_holds_the_conversations_of_its_own_workload(tmp_path: Path) -> None:
    rows = written(tmp_path, "p.json", SHAREGPT).name
    talk = {"prompts": rows, "output": 4, "session": {"turns": 2}}
    whole = suite({"input": 4, "output": 4}, workloads={"talk": talk}, salt=False)
    assert whole.load is not None
    _, material = read_inputs(whole, tmp_path, {})
    stage = Stage.model_validate({"stage": "search", "requests": 20, "concurrency": 1, "workload": "talk"})
    [group] = planned_stage(whole.load, stage, [1], material).classes
    assert {request.turn.turn for request in group.requests if request.turn is not None} == {0, 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.jsonl: the file has no prompts"),
        ("[]", "p.jsonl: the file has no prompts"),
        ('{"prompt": "a"}\n{"prompt": ', "p.jsonl:2: not JSON"),
        ('[\n{"conversations": [{"from": "human", "value": "a"}]},\n{"conv', "p.jsonl:3: not JSON"),
        ('[\n{"prompt": "a"},\n', "p.jsonl:3: not JSON"),
        ('[{"prompt": "a"}]\n\n[{"prompt": "b"}]', "p.jsonl:1: not JSON"),
        ('{"promt": "a"}', "p.jsonl:1: found `promt`; expected `prompt`, `messages`"),
        ('{"prompt": "a", "sytem": "b"}', "p.jsonl:1: sytem: unknown key; did you mean `system`?"),
        ('{"prompt": " "}', "p.jsonl:1: prompt: found an empty text"),
        ('{"prompt": "a", "output_tokens": 0}', "p.jsonl:1: output_tokens: found 0; expected a whole number of tokens"),
        ('{"messages": []}', "p.jsonl:1: messages: is no list of messages"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "p.jsonl:1: messages: has no message of a user"),
        ('{"messages": [{"role": "usr", "content": "a"}]}', "p.jsonl:1: messages: found the role 'usr'"),
        ('{"messages": [{"role": "user"}]}', "p.jsonl:1: messages: the message of the user has no `content`"),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', "p.jsonl:1: conversations: has no turn of a human"),
        ('{"prompt": "a"}', 'p.jsonl: there are 1 prompts and "s" sends 2 requests a block; write `requests: 1`'),
    ],
)
def test_bad_prompts_are_told_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, "p.jsonl", text)
    (found,) = problems_of(suite({"prompts": "p.jsonl", "output": 4}), tmp_path)
    assert found.startswith(said), found


def test_completions_take_recorded_rows_of_one_text(tmp_path: Path) -> None:
    written(tmp_path, "p.jsonl", OWN)
    (found,) = problems_of(suite({"prompts": "p.jsonl", "output": 4, "endpoint": "completions"}), tmp_path)
    assert found.startswith("p.jsonl:3: messages: is a conversation, and completions take one text"), found


def test_files_of_a_capacity_search_are_read_where_no_stage_has_its_workload(tmp_path: Path) -> None:
    asked = suite({"prompts": written(tmp_path, "p.jsonl", '{"prompt": "hello you"}').name, "output": 4})
    assert asked.load is not None
    capacity = Capacity.model_validate({"over": "concurrency", "from": 1, "to": 2})
    search = asked.load.model_copy(update={"sweep": (), "capacity": capacity})
    _, material = read_inputs(asked.model_copy(update={"load": search}), tmp_path, {})
    [group] = look_stage(search, capacity, PlannedLook(1.0, 0, 5), [1], material).classes
    assert [request.ask.prompt for request in group.requests] == ["hello you"] * 5


def test_prompts_of_a_capacity_search_are_checked_as_those_of_a_stage(tmp_path: Path) -> None:
    single = {"prompts": written(tmp_path, "p.jsonl", OWN).name, "output": 4, "endpoint": "completions"}
    asked = suite({"input": 4, "output": 4}, workloads={"single": single})
    assert problems_of(asked, tmp_path) == [
        "p.jsonl:3: messages: is a conversation, and completions take one text; use the endpoint chat, or take it out"
    ]


def test_prompt_longer_than_a_known_context_is_told_with_its_line(tmp_path: Path) -> None:
    written(tmp_path, "p.jsonl", '{"prompt": "a b c"}\n' + '{"prompt": "' + "w " * 60 + '"}\n')
    (found,) = problems_of(suite({"prompts": "p.jsonl", "output": 8}, context=64), tmp_path)
    holds = "and the deployments' context holds 64"
    assert found.startswith(f"p.jsonl:2: has at least 64 tokens, 4 of them from `salt`, and requests 8, {holds}")
    unsalted = suite({"prompts": "p.jsonl", "output": 8}, context=64, salt=False)
    (found,) = problems_of(unsalted, tmp_path)
    assert found.startswith(f"p.jsonl:2: has at least 60 tokens and requests 8, {holds}")
    written(tmp_path, "t.jsonl", '{"at_s": 0, "input_tokens": 60}\n{"at_s": 1, "input_tokens": 50}\n')
    replayed = suite({"input": 8, "output": 8}, context=64, concurrency=None, trace="t.jsonl")
    (found,) = problems_of(replayed, tmp_path)
    assert found.startswith("t.jsonl:1: has 60 tokens in and 8 out, and the deployments' context holds 64")


def test_lengths_are_read_by_the_columns_that_are_drawn_from(tmp_path: Path) -> None:
    path = written(tmp_path, "l.csv", "input_tokens,output_tokens,note\n5,50,a\n\n7,70,b\n")
    assert read_lengths(path, {"input_tokens", "output_tokens"}) == (ObservedLengths(5, 50), ObservedLengths(7, 70))
    assert read_lengths(path, {"output_tokens"}) == (ObservedLengths(None, 50), ObservedLengths(None, 70))
    assert read_lengths(written(tmp_path, "t.csv", "tokens\n3\n"), {"input_tokens"}) == (ObservedLengths(3, None),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "l.csv: the file has no rows"),
        ("input_tokens\n", "l.csv: the file has no rows"),
        ("length\n5\n6\n", "l.csv:1: input_tokens: is missing; found the columns `length`"),
        ("input_tokens;b\n5;1\n6;1\n", "l.csv:1:1: the columns are separated by semicolons; a CSV has commas"),
        ("input_tokens\tb\n5\t1\n", "l.csv:1:1: the columns are separated by tabs"),
        ("input_tokens,b,b\n5,1,1\n", "l.csv:1:16: b: stands twice in the header"),
        ("input_tokens\n5\nmany\n", "l.csv:3:1: input_tokens: found 'many'; expected a whole number of tokens"),
        ("input_tokens,b\n5\n", "l.csv:2: has 1 values and the header 2"),
        ("input_tokens\n99\n", "l.csv:2: comes to 99 tokens, and the deployments' context holds 64"),
    ],
)
def test_bad_lengths_are_told_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path, "l.csv", text)
    (found,) = problems_of(suite({"input": {"file": "l.csv"}, "output": 4}, context=64), tmp_path)
    assert found.startswith(said), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\nat_s,input_tokens,outptu_tokens\n0,5,5\n1,5,5\n2,5,5\n",
            "t.csv:2:19: outptu_tokens: unknown column; did you",
        ),
        ("at,input_tokens\n0,5\n1,5\n", "t.csv:1: no column holds the instant; found `at`, `input_tokens`"),
        ("TIMESTAMP,ContextTokens\n0,5\n", "t.csv:1: GeneratedTokens: is missing; a trace with `TIMESTAMP`"),
        ("at_s;input_tokens\n0;5\n1;5\n", "t.csv:1:1: the columns are separated by semicolons"),
    ],
)
def test_a_mistake_in_a_header_is_told_once_and_at_the_header(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SuiteError) as raised:
        load_trace(written(tmp_path, "t.csv", text), 9)
    (found,) = str(raised.value).replace(f"{tmp_path}/", "").splitlines()
    assert found.startswith(said), found


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('"hash_ids": [1]', "t.jsonl:1:59: hash_ids: 1 hashes of 512 tokens are not 700 tokens; set the `block`"),
        ('"hash_ids": [1, 2, 3]', "t.jsonl:1:59: hash_ids: 3 hashes of 512 tokens are not 700 tokens"),
        ('"hash_ids": [1, -2]', "t.jsonl:1:59: hash_ids: found [1, -2]; expected a list of whole numbers"),
        ('"hash_ids": "1 2"', "t.jsonl:1:59: hash_ids: found '1 2'; expected a list of whole numbers"),
    ],
)
def test_hashes_that_do_not_fit_their_prompt_are_a_mistake(tmp_path: Path, row: str, said: str) -> None:
    text = f'{{"timestamp": 0, "input_length": 700, "output_length": 5, {row}}}\n'
    with pytest.raises(SuiteError) as raised:
        load_trace(written(tmp_path, "t.jsonl", text), 9)
    assert str(raised.value).replace(f"{tmp_path}/", "").startswith(said), raised.value


def test_hashes_stand_for_blocks_of_the_size_that_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "t.jsonl", '{"at_s": 0, "input_tokens": 40, "hash_ids": [7, 8, 9]}\n')
    (found,) = load_trace(path, 9, Bounds(block_tokens=16))
    assert found.hash_ids == (7, 8, 9)


def test_all_files_of_a_load_are_told_at_once(tmp_path: Path) -> None:
    written(tmp_path, "s.json", "{")
    written(tmp_path, "t.json", "{}")
    written(tmp_path, "e.png", "")
    workload = {
        "input": 4, "output": 4, "schema": "s.json", "tools": "t.json",
        "images": {"files": ["e.png", "gone.png", "a.bmp"]},
    }  # fmt: skip
    found = problems_of(suite(workload), tmp_path)
    assert [problem.split(";")[0].split(" (")[0] for problem in found] == [
        'a.bmp: ".bmp" is no kind of picture that servers take',
        "e.png: has 0 bytes",
        "gone.png: the picture cannot be read",
        "s.json:1:2: not JSON: Expecting property name enclosed in double quotes",
        "t.json:1:1: holds no list of tools",
    ]


@pytest.mark.parametrize("key", ["tools", "schema"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"minimum": NaN}]', "NaN is not a number that JSON can carry"),
        ('[{"minimum": 1e999}]', "1e999 is not a number that JSON can carry"),
        ('[{"name": "\\ud800"}]', "holds half of a surrogate pair"),
        ('[{"a": 1, "a": 2}]', "the key 'a' is written twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
    ids=["nan", "infinite", "surrogate", "twice", "deep"],
)
def test_file_that_could_not_be_sent_is_a_mistake(tmp_path: Path, key: str, text: str, said: str) -> None:
    written(tmp_path, "f.json", text)
    assert [said in problem for problem in problems_of(suite({"input": 4, "output": 4, key: "f.json"}), tmp_path)] == [
        True
    ]


def test_files_of_a_load_become_its_material(tmp_path: Path) -> None:
    written(tmp_path, "s.json", '{"type": "object"}')
    written(tmp_path, "t.json", '[{"type": "function"}]')
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8")
    workload = {"input": 4, "output": 4, "schema": "s.json", "tools": "t.json", "images": {"files": ["a.jpg"]}}
    _, material = read_inputs(suite(workload), tmp_path, {})
    assert material == Material(
        schemas={"s.json": {"type": "object"}},
        tools={"t.json": [{"type": "function"}]},
        media={("images", "a.jpg"): ("data:image/jpeg;base64,/9g=",)},
    )


def test_media_come_from_files_folders_lists_and_addresses_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    for name, content in (("b.wav", b"b"), ("a.flac", b"a"), ("notes.txt", b"-")):
        (tmp_path / "talks" / name).write_bytes(content)
    written(tmp_path, "more.jsonl", '{"file": "talks/b.wav"}\n\n{"url": "https://h.example/c.ogg"}\n')
    names = ["talks", "more.jsonl", "https://h.example/d.wav"]
    _, material = read_inputs(suite({"input": 4, "output": 4, "audio": {"files": names}}), tmp_path, {})
    assert material.media == {
        ("audio", "talks"): ("data:audio/flac;base64,YQ==", "data:audio/wav;base64,Yg=="),
        ("audio", "more.jsonl"): ("data:audio/wav;base64,Yg==", "https://h.example/c.ogg"),
        ("audio", "https://h.example/d.wav"): ("https://h.example/d.wav",),
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"file": "gone.wav"}', "l.jsonl:1:2: file: gone.wav: the recording cannot be read"),
        ('{"file": "a.txt"}', 'l.jsonl:1:2: file: a.txt: ".txt" is no kind of recording that servers take'),
        ('{"flie": "a.wav"}', "l.jsonl:1:2: flie: is no key of a list of media; did you mean `file`?"),
        ('{"file": "a.wav", "url": "https://h/a"}', "l.jsonl:1: has neither a `file` nor a `url`, or both"),
        ('{"file": 3}', "l.jsonl:1:2: file: found 3; expected a text"),
        ('{"url": "ftp://h/a.wav"}', "l.jsonl:1:2: url: is no address of a recording"),
        ("[]", "l.jsonl:1: "),
        ("", "l.jsonl: the list is empty"),
    ],
)
def test_mistake_in_a_list_of_media_has_its_place(tmp_path: Path, lines: str, said: str) -> None:
    written(tmp_path, "l.jsonl", f"{lines}\n")
    (problem,) = problems_of(suite({"input": 4, "output": 4, "audio": {"files": ["l.jsonl"]}}), tmp_path)
    assert problem.startswith(said), problem


def test_transcription_needs_the_recording_itself(tmp_path: Path) -> None:
    workload = {"endpoint": "transcriptions", "audio": {"files": ["https://h/a.wav", "empty"]}}
    (tmp_path / "empty").mkdir()
    found = problems_of(suite(workload), tmp_path)
    assert ["needs the recording itself" in found[1], "the folder has no recording" in found[0]] == [True, True], found


@pytest.mark.parametrize(("room", "fits"), [(24, True), (23, False), (None, True), ("24", True)])
def test_request_longer_than_the_server_says_is_an_error_before_the_first(room: object, fits: bool) -> None:
    asked = suite({"input": 20, "output": 4})
    facts = {} if room is None else {"max_model_len": room}
    if fits:
        require_context_fits(asked, make_plan(asked), Arm.CANDIDATE, facts)
        return
    with pytest.raises(
        SuiteError, match="request 0 of s asks for at least 20 tokens in and 4 out, and the context of the "
    ):
        require_context_fits(asked, make_plan(asked), Arm.CANDIDATE, facts)


def test_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, "tokenizer.json", "{}")
    with pytest.raises(UsageError, match="is no tokenizer"):
        read_inputs(suite({"input": 4, "output": 4, "tokenizer": "tokenizer.json"}), tmp_path, {})


def test_prompts_have_the_stated_length_by_a_real_tokenizer(tmp_path: Path) -> None:
    """Byte-pair encoding over English words, as models in use have it: what it calls 40 tokens is asked for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = VOCABULARIES["words"].pieces
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*words, *(f" {word}" for word in words)] * 4, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    asked = suite({"input": 40, "output": 4, "tokenizer": "tokenizer.json"})
    traces, material = read_inputs(asked, tmp_path, {})
    plan = make_plan(asked, traces=traces, material=material)
    prompts = [request.ask.prompt for request in plan.blocks[0].stages[0].requests]
    assert {len(tokenizer.encode(prompt).ids) for prompt in prompts} == {40}
    assert len(set(prompts)) == len(prompts)
    (part,) = stage_shard(target_at("http://a:1"), plan.blocks[0].stages[0], limits=limits(), salt=7).parts
    salted = [request.ask.prompt for request in part.requests]
    assert {len(tokenizer.encode(prompt).ids) for prompt in salted} == {40}
    assert not set(salted) & set(prompts)
