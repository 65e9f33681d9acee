"""Prompts of data sets and of the set that ships: their rows, columns and commits, and mistakes in naming them."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from benchgate.errors import SuiteError, UsageError
from benchgate.load import prompt_sets
from benchgate.load.material import read_inputs
from benchgate.load.prompt_sets import read_prompt_set
from benchgate.load.standalone.options import read_prompts
from benchgate.pipeline.suite_file import missing_files
from benchgate.plan.schedule import make_plan
from benchgate.suite.workload import PromptSet
from tests.fakes.hub import serve_hub
from tests.shells.test_workload_files import suite

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [
    {
        "question": f"What is {number}?",
        "topic": ("maths", "code")[number % 2],
        "talk": [{"role": "user", "content": f"hello {number}"}, {"role": "assistant", "content": "Hi", "name": "bot"}],
    }
    for number in range(8)
]


def parquet(folder: Path, name: str = "rows.parquet", rows: Sequence[Mapping[str, object]] = ROWS) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def texts(folder: Path, **keys: Any) -> list[object]:
    rows = read_prompt_set(folder, PromptSet.model_validate(keys), conversing=False)
    return [row.messages[-1]["content"] for row in rows]


def problem(folder: Path, **keys: Any) -> str:
    with pytest.raises(SuiteError) as raised:
        texts(folder, **keys)
    return str(raised.value.problems[0]).replace(f"{folder}/", "")


def test_set_that_ships_has_five_categories_and_no_text_twice(tmp_path: Path) -> None:
    categories = ["chat", "code", "extraction", "question", "summarise"]
    found = {name: texts(tmp_path, source="builtin", where={"category": name}) for name in categories}
    assert Counter({name: len(set(map(str, prompts))) for name, prompts in found.items()}) == dict.fromkeys(
        categories, 64
    )
    lengths = sorted(len(str(text).split()) for prompts in found.values() for text in prompts)
    assert (lengths[0] < 10, lengths[-1] > 500) == (True, True)
    assert texts(tmp_path, source="builtin", where={"category": ["chat", "code"]}, limit=70)[-1] == found["code"][5]
    assert problem(tmp_path, source="builtin", where={"category": "cod"}) == (
        'builtin: where.category: no row has "cod"; did you mean `code`?'
    )
    assert 'where.topic: has no column "topic"; expected one of id,' in problem(
        tmp_path, source="builtin", where={"topic": "a"}
    )


@pytest.mark.parametrize("where", [{"system": "be brief"}, {"output_tokens": "7"}, {"prompt": "hello"}])
def test_column_by_which_rows_are_chosen_is_sent_too(tmp_path: Path, where: dict[str, str]) -> None:
    row = {"prompt": "hello", "system": "be brief", "output_tokens": 7}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    chosen = PromptSet.model_validate({"source": "p.jsonl", "where": where})
    whole = PromptSet.model_validate({"source": "p.jsonl"})
    assert read_prompt_set(tmp_path, chosen, conversing=False) == read_prompt_set(tmp_path, whole, conversing=False)


def test_classes_of_traffic_send_categories_of_one_set(tmp_path: Path) -> None:
    whole = suite({"prompts": {"source": "builtin", "where": {"category": "code"}}, "output": 4}, requests=20)
    _, material = read_inputs(whole, tmp_path, {})
    plan = make_plan(whole, material=material)
    known = set(texts(tmp_path, source="builtin", where={"category": "code"}))
    sent = [request.ask.content["messages"][0]["content"] for b in plan.blocks for request in b.stages[0].requests]  # type: ignore[index]
    assert (len(sent), len(set(sent)), set(sent) <= known) == (40, 40, True)
    assert "Write a Python function" not in plan.canonical.decode()  # texts are stored by their digests
    other = suite({"prompts": {"source": "builtin", "where": {"category": "chat"}}, "output": 4}, requests=20)
    assert make_plan(other, material=read_inputs(other, tmp_path, {})[1]).sha256 != plan.sha256


def test_rows_of_our_own_files_are_chosen_by_column_too(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({**row, "level": n}) + "\n" for n, row in enumerate(ROWS)))
    assert texts(tmp_path, source="p.jsonl", columns={"prompt": "question"}, where={"topic": "code"}, limit=2) == [
        "What is 1?", "What is 3?",
    ]  # fmt: skip
    assert texts(tmp_path, source="p.jsonl", columns={"messages": "talk"}, where={"level": ["2", "5"]}) == [
        "hello 2", "hello 5",
    ]  # fmt: skip
    assert problem(tmp_path, source="p.jsonl", columns={"prompt": "qestion"}) == (
        'p.jsonl:1: columns.prompt: has no column "qestion"; did you mean `question`?'
    )


@pytest.mark.slow
def test_columns_of_a_data_set_file_become_requests(tmp_path: Path) -> None:
    parquet(tmp_path)
    assert texts(tmp_path, source="rows.parquet", columns={"prompt": "question"}, where={"topic": "maths"}) == [
        "What is 0?", "What is 2?", "What is 4?", "What is 6?",
    ]  # fmt: skip


@pytest.mark.slow
def test_columns_may_have_any_name_and_rows_without_a_value(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"problem": "a", "key": "Be brief.", "topic": "maths"},
        {"problem": "b", "key": None, "topic": "maths"},
        {"problem": "c", "key": None, "topic": None},
    ]
    parquet(tmp_path, rows=rows)
    columns = {"prompt": "problem", "system": "key"}
    keys = {"source": "rows.parquet", "columns": columns, "where": {"topic": "maths"}}
    sent = read_prompt_set(tmp_path, PromptSet.model_validate(keys), conversing=False)
    assert [[message["content"] for message in row.messages] for row in sent] == [["Be brief.", "a"], ["b"]]


@pytest.mark.slow
def test_local_data_sets_are_read_by_split_and_subset(tmp_path: Path) -> None:
    parquet(tmp_path, "card/data/test-0.parquet")
    subsets = [{"config_name": name, "data_files": [{"split": "test", "path": "data/test-*"}]} for name in ("a", "b")]
    (tmp_path / "card" / "README.md").write_text(f"---\nconfigs: {json.dumps(subsets)}\n---\n")
    talk = {"columns": {"messages": "talk"}, "limit": 1}
    assert texts(tmp_path, source="card", subset="a", split="test", **talk) == ["hello 0"]
    assert problem(tmp_path, source="card", split="test", **talk) == (
        "card: subset: the data set has several; name one of a, b"
    )
    assert problem(tmp_path, source="card", subset="a", **talk) == (
        'card: split: the data set has no split "train"; expected one of test'
    )
    parquet(tmp_path)
    assert problem(tmp_path, source="rows.parquet").startswith(
        "rows.parquet: columns: no column is called prompt, messages, conversations; found `question`, `topic`, `talk`;"
    )
    assert problem(tmp_path, source="rows.parquet", columns={"prompt": "qestion"}) == (
        'rows.parquet: columns.prompt: the data set has no column "qestion"; did you mean `question`?'
    )


@pytest.mark.slow
def test_data_set_of_the_hub_is_read_at_its_commit_and_again_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parquet(tmp_path, "data/train-0.parquet").read_bytes()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    keys = {"source": f"hf:team/chats@{COMMIT}", "columns": {"prompt": "question"}, "where": {"topic": "code"}}
    with serve_hub("team/chats", COMMIT, {"data/train-0.parquet": content, "README.md": b"# Chats\n"}) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        fetched = texts(tmp_path, **keys)
        assert "hf:team/chats@" in problem(tmp_path, **{**keys, "source": f"hf:team/chats@{COMMIT[::-1]}"})
    assert fetched == ["What is 1?", "What is 3?", "What is 5?", "What is 7?"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert texts(tmp_path, **keys) == fetched
    unknown = {**keys, "source": f"hf:team/chats@{COMMIT[::-1]}"}
    assert problem(tmp_path, **unknown).startswith(f"hf:team/chats@{COMMIT[::-1]}: ")  # never another commit instead


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:team/chats", "names no commit, and a data set changes; write hf:team/chats@COMMIT: `git ls-remote"),
        ("hf:team/chats@main", '"main" is no commit of 40 hexadecimal digits'),
        ("hf:chats", 'found "hf:chats"; write a data set of the Hub as hf:ORG/NAME@COMMIT'),
    ],
)
def test_data_set_of_the_hub_needs_its_commit(source: str, message: str) -> None:
    with pytest.raises(ValidationError, match="Value error") as raised:
        PromptSet(source=source)
    assert message in str(raised.value)
    with pytest.raises(ValueError, match="hf:"):
        read_prompts(source, "chat")


def test_only_files_are_looked_for_in_a_suite_that_is_wrong_elsewhere(tmp_path: Path) -> None:
    sets = [
        "builtin",
        f"hf:a/b@{COMMIT}",
        "{source: here.parquet, columns: {prompt: text}, where: {file: x}}",
        "folder",
    ]
    parquet(tmp_path, "here.parquet")
    (tmp_path / "folder").mkdir()
    workloads = "".join(f"    w{n}: {{prompts: {one}}}\n" for n, one in enumerate(sets))
    path = tmp_path / "s.yaml"
    path.write_text(f"load:\n  workloads:\n{workloads}")
    assert missing_files(path) == []
    path.write_text(f"load:\n  workloads:\n{workloads}    w: {{prompts: {{source: gone.parquet}}}}\n")
    (found,) = missing_files(path)
    assert (found.line, "gone.parquet: there is no such file" in found.message) == (7, True)


def test_missing_library_is_an_error_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_sets, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"rows.parquet need the library `datasets`.*pip install .*\[eval\]'"):
        texts(parquet(tmp_path).parent, source="rows.parquet")


def test_bare_load_takes_the_same_mapping_as_a_suite() -> None:
    found = read_prompts("{source: builtin, where: {category: chat}, limit: 3}", "completions")
    assert (len(found.rows), found.name) == (3, 'builtin {"limit": 3, "where": {"category": "chat"}}')
    with pytest.raises(SuiteError, match=r"--prompts:1:19: limt: unknown key; did you mean `limit`\?"):
        read_prompts("{source: builtin, limt: 3}", "chat")
