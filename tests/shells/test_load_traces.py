"""Trace files: every known kind gives instants and lengths; everything else is an error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.load.traces import load_trace, load_traces
from benchgate.suite.load import Load

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 23:59:59.999000+00:00,4808,10
2024-05-11 02:00:00.001000+02:00,3180,8
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,GPT-4,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,Conversation log
"""
MOONCAKE = """\
{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 572, "output_length": 26, "hash_ids": [46, 2366]}
"""
OWN_JSONL = '{"at_s": 0.25}\n\n{"at_s": 1, "input_tokens": 7}\n{"at_s": 1, "output_tokens": 9}\n'
OWN_CSV = "at_s,output_tokens,input_tokens\n1e-3,5,\n2,,8\n"

METRICS = [
    ("azure.csv", AZURE, [(0, 4808, 10), (52_000_000, 3180, 8), (98_189_000, 110, 27)]),
    ("azure.CSV", AZURE.replace("\n", "\r\n"), [(0, 4808, 10), (52_000_000, 3180, 8), (98_189_000, 110, 27)]),
    ("azure-2024.csv", AZURE_2024, [(0, 4808, 10), (2_000_000, 3180, 8)]),
    ("burstgpt.csv", BURSTGPT, [(0, 472, 18), (40_500_000_000, 1087, 230)]),
    ("mooncake.jsonl", MOONCAKE, [(0, 955, 52), (3_053_000_000, 572, 26)]),
    ("own.jsonl", OWN_JSONL, [(0, None, None), (750_000_000, 7, None), (750_000_000, None, 9)]),
    ("own.csv", "\ufeff" + OWN_CSV, [(0, None, 5), (1_999_000_000, 8, None)]),
]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def problems_of(path: Path, limit: int = 100) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        load_trace(path, limit)
    return [str(problem).removeprefix(f"{path}") for problem in caught.value.problems]


@pytest.mark.parametrize(("name", "text", "rows"), METRICS, ids=[name for name, *_ in METRICS])
def test_known_kind_is_read_with_instants_since_its_first_row(
    tmp_path: Path, name: str, text: str, rows: list[tuple[int, int | None, int | None]]
) -> None:
    found = load_trace(written(tmp_path, name, text), 100)
    assert [(row.at_ns, row.input_tokens, row.output_tokens) for row in found] == rows


def test_no_more_rows_are_read_than_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, "t.jsonl", OWN_JSONL + "not JSON at all\n")
    assert len(load_trace(path, 3)) == 3
    assert problems_of(path) == [
        ":5: not JSON: Expecting value at column 1; write one JSON object per line",
    ]


BAD = [
    ("t.csv", AZURE.replace("04.0319600", "03.0000000"),
     ":3:1: TIMESTAMP: is earlier than line 2; sort the file by this column"),
    ("t.csv", AZURE.replace("2023-11-16 18:17:04.0319600", "yesterday"),
     ":3:1: TIMESTAMP: found 'yesterday'; expected a date and time like"),
    ("t.csv", AZURE.replace("3180", "many"), ":3:29: ContextTokens: found 'many'; expected a whole number of tokens"),
    ("t.csv", AZURE.replace("3180,8", "3180,0"),
     ":3:34: GeneratedTokens: found '0'; expected a whole number of tokens"),
    ("t.csv", AZURE.replace("3180", "1000001"), ":3:29: ContextTokens: found '1000001'; expected a whole number"),
    ("t.csv", AZURE.replace("3180", ""), ":3:29: ContextTokens: found ''; expected a whole number"),
    ("t.csv", AZURE.replace("3180,8", "3180"), ":3: has 2 values and the header 3; write one value for each column"),
    ("t.csv", AZURE.replace("3180", '"3180'), ":4: not CSV: "),
    ("t.csv", AZURE.replace("ContextTokens", "Context"),
     ":1: ContextTokens: is missing; a trace with `TIMESTAMP` (AzurePublicDataset) has it"),
    ("t.csv", AZURE.replace("TIMESTAMP", "When"),
     ":1: no column holds the instant; found `When`, `ContextTokens`, `GeneratedTokens`; expected one of `TIMESTAMP`"),
    ("t.csv", "", ": the trace has no rows"),
    ("t.csv", AZURE.partition("\n")[0], ": the trace has no rows"),
    ("t.jsonl", "\n\n", ": the trace has no rows"),
    ("t.jsonl", '{"at_s": "soon"}', ":1:2: at_s: found 'soon'; expected a number of s"),
    ("t.jsonl", '{"at_s": 1e300}', ":1:2: at_s: found 1e+300; expected a number of s"),
    ("t.jsonl", '{"at_s": true}', ":1:2: at_s: found True; expected a number of s"),
    ("t.jsonl", '{"at_s": NaN}', ":1: NaN is not a number"),
    ("t.jsonl", '{"at_s": 1, "output_tokens": 2.5}', ":1:13: output_tokens: found 2.5; expected a whole number"),
    ("t.jsonl", '{"at_s": 1, "input_token": 2}',
     ":1:13: input_token: unknown column; did you mean `input_tokens`?"),
    ("t.jsonl", '{"at_s": 1}\n{"input_tokens": 2}', ":2: at_s: found nothing; expected a number of s"),
    ("t.jsonl", '{"timestamp": "noon", "input_length": 1, "output_length": 1}',
     ":1:2: timestamp: found 'noon'; expected a number of ms"),
    ("t.jsonl", "[1, 2]", ":1: [1, 2] is not a JSON object"),
    ("t.txt", AZURE, ':1: ".txt" is no kind of trace; name the file .csv or .jsonl'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_what_cannot_be_replayed_is_an_error_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    problems = problems_of(written(tmp_path, name, text))
    assert len(problems) == 1, problems
    assert problems[0].startswith(said)


def test_one_mistake_in_every_row_is_told_twenty_times_and_no_more(tmp_path: Path) -> None:
    path = written(tmp_path, "t.jsonl", '{"at_s": -1, "input_tokens": 0}\n' * 5000)
    assert len(problems_of(path)) == 20


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_file_that_cannot_be_read_is_an_error_that_says_where_traces_live(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    (said,) = problems_of(path)
    assert said.startswith(": the trace cannot be read")
    assert "`trace` names a CSV or JSONL file beside the suite" in said


def load_of(requests: int, blocks: int = 2) -> Load:
    return Load.model_validate(
        {
            "workload": {"input": 4, "output": 4},
            "blocks": blocks,
            "sweep": [
                {"stage": "c2", "concurrency": 2, "requests": 3},
                {"stage": "again", "trace": "data/own.jsonl", "requests": requests},
            ],
        }
    )


def test_stages_get_the_rows_that_all_their_blocks_can_use(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    written(tmp_path, "data/own.jsonl", "".join(f'{{"at_s": {n}}}\n' for n in range(9)))
    assert {name: len(rows) for name, rows in load_traces(tmp_path, load_of(3)).items()} == {"again": 6}
    assert len(load_traces(tmp_path, load_of(9))["again"]) == 9


def test_trace_shorter_than_a_block_is_an_error_that_says_what_would_fit(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = written(tmp_path, "data/own.jsonl", OWN_JSONL)
    with pytest.raises(SuiteError) as caught:
        load_traces(tmp_path, load_of(4))
    assert str(caught.value) == (
        f'{path}: the trace has 3 rows and stage "again" sends 4 requests a block; write `requests: 3` or fewer, or '
        "name a longer trace"
    )
