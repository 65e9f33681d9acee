"""What is refused of files of other tools: what cannot be, contradicts itself, or is no whole file, with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.importers.formats import read_file
from tests.shells.test_imports_read import FIXTURES, altered, numbers


def totals(document: Any) -> Any:
    """How many requests the first benchmark of a report of GuideLLM had."""
    return document["benchmarks"][0]["metrics"]["request_totals"]


@pytest.mark.parametrize(
    ("name", "change", "place"),
    [
        ("vllm.json", lambda d: d.update(duration=float("nan")), r"\$\.duration: found nan"),
        ("vllm.json", lambda d: d.update(total_output_tokens=float("inf")), r"\$\.total_output_tokens: found inf"),
        ("vllm.json", lambda d: d.update(total_output_tokens=-1), r"\$\.total_output_tokens: found -1"),
        ("vllm.json", lambda d: d.update(completed="4"), r"\$\.completed: found '4'"),
        ("vllm.json", lambda d: d.update(model_id="a\x1b[2J"), r"\$\.model_id: found .*control characters"),
        ("vllm.json", lambda d: d.update(completed=True), r"\$\.completed: found True"),
        ("vllm.json", lambda d: d.update(duration=0), r"\$\.duration: found 0"),
        ("vllm.json", lambda d: d.update(duration=10_000.0), "is that in seconds"),
        ("vllm.json", lambda d: d.update(completed=5, request_throughput=0.5), r"\$\.num_prompts"),
        (
            "vllm.json",
            lambda d: d.update(failed=1),
            r"num_prompts: found 4; .* 4 requests .* and the 1 that failed",
        ),
        (
            "vllm.json",
            lambda d: d.update(output_throughput=140.0),
            r"output_throughput: found 140.0; expected 14",
        ),
        ("vllm.json", lambda d: d.update(date="yesterday"), r"\$\.date: found 'yesterday'; .* --measured-at"),
        ("vllm.json", lambda d: d.update(date="19700101-000000"), r"\$\.date: .* an instant since 2015"),
        ("vllm-detailed.json", lambda d: d.update(num_prompts=9, failed=2), r"completed: found 4; .* the 4 requests"),
        (
            "vllm-detailed.json",
            lambda d: d.update(total_output_tokens=20, output_throughput=2.0),
            r"total_output_tokens: found 20; expected the 14 tokens",
        ),
        (
            "sglang-details.json",
            lambda d: d["output_lens"].__setitem__(1, 2),
            r"total_output_tokens: found 8; expected the 7 tokens",
        ),
        ("guidellm.json", lambda d: totals(d).update(total=9), r"request_totals\.total: found 9; expected the 4"),
        ("guidellm.json", lambda d: totals(d).update(successful=2, total=3), "a sample"),
        ("lm-eval.json", lambda d: d["n-samples"]["arc_easy"].update(original=10), "at least the 200 items"),
        ("lm-eval.json", lambda d: d.update(date=12.5), r"\$\.date: found 12.5; expected an instant since 2015"),
        ("vllm.json", lambda d: d.update(total_output_tokens=10**400), r"\$\.total_output_tokens"),
        ("vllm-detailed.json", lambda d: d.update(ttfts=[100, 200, 300, 400]), r"\$\.ttfts\[0\]: found 100"),
        ("vllm-detailed.json", lambda d: d["itls"].pop(), "as many"),
        ("vllm-detailed.json", lambda d: d["itls"][1].__setitem__(2, None), r"\$\.itls\[1\]\[2\]: found None"),
        ("vllm-detailed.json", lambda d: d.update(completed=3, request_throughput=0.3), r"\$\.completed"),
        (
            "inference-perf-stage.json",
            lambda d: (d["successes"].update(count=0), d["failures"].update(count=10)),
            "a request that succeeded",
        ),
        (
            "inference-perf-stage.json",
            lambda d: d.update(successes=[]),
            r"\$\.successes: found \[\]; expected an object",
        ),
        ("inference-perf-stage.json", lambda d: d["failures"].pop("count"), r"failures\.count: found None"),
        ("vllm-detailed.json", lambda d: d.update(errors={}), r"\$\.errors: found \{\}; expected a list"),
        ("vllm-detailed.json", lambda d: d["output_lens"].__setitem__(0, 2.5), r"output_lens\[0\]: found 2.5"),
        ("lm-eval.json", lambda d: d.update(results={"gsm8k": d["results"]["gsm8k"]}), "import its samples"),
        (
            "guidellm.json",
            lambda d: [one.update(request_end_time=1.0) for s in d["benchmarks"][0]["requests"].values() for one in s],
            "an end after the first start",
        ),
        ("inference-perf-stage.json", lambda d: d["load_summary"].update(count=9), r"load_summary\.count: found 9"),
        ("inference-perf-stage.json", lambda d: d.update(benchmark_time_seconds=20_000), "is that in seconds"),
        ("lm-eval.json", lambda d: d["results"]["arc_easy"].update({"acc,none": 75.0}), "from 0 to 1"),
        ("lm-eval.json", lambda d: d["n-samples"]["arc_easy"].update(effective=0), "at least one item"),
    ],
)
def test_what_cannot_be_is_an_error_with_its_place(name: str, change: Any, place: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=place):
        read_file(altered(name, tmp_path, change))


def test_units_of_a_report_are_held_against_what_they_must_be(tmp_path: Path) -> None:
    text = (FIXTURES / "llm-d.yaml").read_text(encoding="utf-8")
    path = tmp_path / "report.yaml"
    path.write_text(text.replace("units: queries/s", "units: queries/min"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"request_rate\.units: found 'queries/min'"):
        read_file(path)
    for old, new, why in (
        ("version: '0.2'", "version: '0.1'", "version 0.2"),
        ("failures: 2", "failures: 51", "at most the 50 requests"),
    ):
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(UsageError, match=why):
            read_file(path)
    path.write_text(text.replace("tool: vllm-benchmark", "tool: guidellm"), encoding="utf-8")
    with pytest.raises(UsageError, match="import that tool's own file"):
        read_file(path)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"completed": 4,\n "duration": ', r"cut.json:2:\d+: .*cut short"),
        ('{"a": 1, "a": 2}', "cut.json:1: the key 'a' is there twice in one object$"),
        ('{"a": 1,\n "b": 2,\n "b": 3}', "cut.json:3: the key 'b' is there twice in one object$"),
        ('{"b": {"b": 1},\n "b": 2}', "cut.json:1: the key 'b'"),
        ("[" * 100_000, "cut.json:1"),
        ("{}", "the marks of no known tool .*docs/guides/store.md"),
        ("", "cut.json:1:1: .*cut short"),
        ("9" * 5000, "cut.json:1: it cannot be read as JSON: Exceeds the limit .*[^'\"]$"),
    ],
)
def test_what_is_no_whole_file_is_refused_with_its_place(text: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=place):
        read_file(path)


def test_a_line_that_is_cut_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "aiperf.jsonl"
    path.write_text((FIXTURES / "aiperf.jsonl").read_text(encoding="utf-8")[:-40], encoding="utf-8")
    with pytest.raises(UsageError, match=r"aiperf\.jsonl:2:\d+"):
        read_file(path)


def test_yaml_that_is_none_and_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("version: [", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"r\.yaml:\d+"):
        read_file(tmp_path / "r.yaml")
    (tmp_path / "r.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="byte 7 is not UTF-8"):
        read_file(tmp_path / "r.json")


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.importers.fields.MOST_BYTES", 100)
    with pytest.raises(UsageError, match="more than 100 bytes"):
        read_file(FIXTURES / "vllm.json")


def test_a_file_with_the_marks_of_two_tools_asks_which(tmp_path: Path) -> None:
    def mix(document: Any) -> None:
        document.update(json.loads((FIXTURES / "inference-perf-stage.json").read_text(encoding="utf-8")))

    path = altered("vllm.json", tmp_path, mix)
    with pytest.raises(UsageError, match=r"vllm or inference-perf; say --from"):
        read_file(path)
    assert numbers(path, "inference-perf")["error_ratio", None, "r0.5"] == 0.2


def test_a_file_of_another_tool_than_is_said_is_told_by_what_it_lacks_and_has() -> None:
    with pytest.raises(UsageError, match=r"not the marks of a file of sglang, which is .*`backend`.* those of vllm"):
        read_file(FIXTURES / "vllm.json", "sglang")


def test_several_results_in_one_file_are_to_be_given_one_by_one(tmp_path: Path) -> None:
    line = json.dumps(json.loads((FIXTURES / "sglang.json").read_text(encoding="utf-8")))
    path = tmp_path / "bench.jsonl"
    path.write_text(f"{line}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="2 results, one a line, of sglang"):
        read_file(path)
    path.write_text(f"{line}\n", encoding="utf-8")
    assert read_file(path).format == "sglang"


def test_a_single_record_of_aiperf_is_a_file_of_it(tmp_path: Path) -> None:
    path = tmp_path / "aiperf.jsonl"
    path.write_text((FIXTURES / "aiperf.jsonl").read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    assert numbers(path)["requests_per_s", None, "profiling"] == 1.0
    path.write_text('{"metadata": 7, "metrics": {}}', encoding="utf-8")
    with pytest.raises(UsageError, match="no known tool"):
        read_file(path)


def test_an_unknown_tool_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean vllm"):
        read_file(FIXTURES / "vllm.json", "vlm")
