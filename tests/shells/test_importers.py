"""What files of other tools come to: numbers whose formula is benchgate's, and of everything else why it was left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.importers.formats import FORMATS, read_file
from benchgate.model.deployment import Arm

FIXTURES = Path(__file__).parents[1] / "fixtures/imports"
READ = {
    "vllm.json": {
        ("request_throughput", None, "c2"): 0.4,
        ("output_throughput", None, "c2"): 1.4,
        ("error_rate", None, "c2"): 0.0,
    },
    "sglang.json": {("request_throughput", None, "r2"): 0.25, ("output_throughput", None, "r2"): 1.0},
    "inference-perf-stage.json": {
        ("request_throughput", None, "r0.5"): 0.4,
        ("output_throughput", None, "r0.5"): 20.0,
        ("error_rate", None, "r0.5"): 0.2,
    },
    "lm-eval.json": {("accuracy", None, "arc_easy"): 0.75, ("accuracy", None, "triviaqa"): 0.4},
    "llm-d.yaml": {
        ("request_throughput", None, "c8"): 4.8,
        ("output_throughput", None, "c8"): 500.5,
        ("error_rate", None, "c8"): 0.04,
    },
}
OF_TOOL = {
    "vllm.json": "vllm",
    "vllm-detailed.json": "vllm",
    "sglang.json": "sglang",
    "sglang-details.json": "sglang",
    "inference-perf-stage.json": "inference-perf",
    "guidellm.json": "guidellm",
    "aiperf.jsonl": "aiperf",
    "k6.json": "k6",
    "lm-eval.json": "lm-eval",
    "llm-d.yaml": "llm-d",
}


def numbers(path: Path, said: str | None = None) -> dict[tuple[str, str | None, str | None], float]:
    """Every number of a file, by its name, statistic and stage or task."""
    return {(r.name, r.statistic, r.stage or r.task): r.value for r in read_file(path, said).reading.rows}


def altered(name: str, folder: Path, change: Callable[[Any], object]) -> Path:
    """A fixture of JSON with a change made to its document."""
    document = json.loads((FIXTURES / name).read_text(encoding="utf-8"))
    change(document)
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "tool"), OF_TOOL.items(), ids=OF_TOOL)
def test_a_file_is_known_by_its_own_marks(name: str, tool: str) -> None:
    if tool == "k6":
        with pytest.raises(UsageError, match="a summary of k6"):
            read_file(FIXTURES / name)
    else:
        assert read_file(FIXTURES / name).format == tool


def test_every_format_has_a_file_here() -> None:
    assert set(OF_TOOL.values()) == set(FORMATS)


@pytest.mark.parametrize(
    ("name", "at", "zone_known"),
    [
        ("vllm.json", "2025-11-01T10:15:00.000Z", False),
        ("guidellm.json", "2025-10-07T05:00:07.000Z", True),
        ("aiperf.jsonl", "2025-10-07T05:00:07.000Z", True),
        ("lm-eval.json", "2025-10-07T05:00:07.500Z", True),
        ("llm-d.yaml", "2025-11-01T08:15:00.000Z", True),
    ],
)
def test_when_it_was_measured_is_the_files_own_date(name: str, at: str, zone_known: bool) -> None:
    measured = read_file(FIXTURES / name).reading.measured
    assert measured is not None
    assert (measured.at, measured.zone_known) == (at, zone_known)
    assert ("taken as UTC" in measured.by) == (not zone_known)


def test_a_file_without_a_date_was_measured_nobody_knows_when(tmp_path: Path) -> None:
    undated = altered("vllm.json", tmp_path, lambda d: d.pop("date"))
    for path in (undated, FIXTURES / "sglang-details.json", FIXTURES / "inference-perf-stage.json"):
        assert read_file(path).reading.measured is None
    report = tmp_path / "report.yaml"
    told = (FIXTURES / "llm-d.yaml").read_text(encoding="utf-8")
    report.write_text(told.replace("    start: 2025-11-01T10:15:00+02:00\n", "    end: 2025-11-01T10:15:00\n"))
    measured = read_file(report).reading.measured
    assert measured is not None and (measured.at, measured.zone_known) == ("2025-11-01T10:15:00.000Z", False)
    report.write_text(told.replace("run:\n", "ran:\n"))
    assert read_file(report).reading.measured is None


@pytest.mark.parametrize(("name", "expected"), READ.items(), ids=READ)
def test_a_summary_gives_rates_and_shares_alone(name: str, expected: dict[tuple[str, None, str], float]) -> None:
    assert numbers(FIXTURES / name) == pytest.approx(expected)


def test_every_number_is_of_the_candidate_and_has_no_interval() -> None:
    rows = [row for name in (*READ, "aiperf.jsonl") for row in read_file(FIXTURES / name).reading.rows]
    assert {(row.arm, row.lower, row.upper) for row in rows} == {(Arm.CANDIDATE, None, None)}


def test_percentiles_are_made_again_of_requests_and_are_observations() -> None:
    found = numbers(FIXTURES / "vllm-detailed.json")
    assert found["ttft_sent", "p50", "c2"] == 0.2  # of 0.1, 0.2, 0.3, 0.4: interpolated it would be 0.25
    assert found["ttft_sent", "p99", "c2"] == 0.4
    assert found["tpot", "p50", "c2"] == pytest.approx(0.03)  # of three: one request has a single token
    assert found["itl", "p90", "c2"] == 0.04
    assert not {name for name, _, _ in found} & {"ttft", "e2e", "goodput"}


def test_failures_are_infinite_among_the_requests(tmp_path: Path) -> None:
    found = numbers(FIXTURES / "sglang-details.json")
    assert found["error_rate", None, "r2"] == pytest.approx(1 / 3)
    assert found["ttft_sent", "p50", "r2"] == 0.2
    assert ("ttft_sent", "p90", "r2") not in found  # a third of the requests never got there
    assert ("tpot", "p90", "r2") not in found

    def fail_one(document: Any) -> None:
        document.update(completed=3, failed=1, request_throughput=0.3)
        document["errors"][0] = "Bad Gateway"

    failing = numbers(altered("vllm-detailed.json", tmp_path, fail_one))
    assert failing["error_rate", None, "c2"] == 0.25
    assert ("ttft_sent", "p99", "c2") not in failing
    assert not {name for name, _, _ in failing} & {"itl"}


def test_an_answer_without_a_token_has_failed(tmp_path: Path) -> None:
    def say_nothing(document: Any) -> None:
        document["output_lens"][3] = 0
        document.update(total_output_tokens=13, output_throughput=1.3)

    path = altered("vllm-detailed.json", tmp_path, say_nothing)
    assert numbers(path)["error_rate", None, "c2"] == 0.25


def test_times_of_a_chat_backend_are_left_because_its_first_chunk_may_be_empty(tmp_path: Path) -> None:
    path = altered("vllm-detailed.json", tmp_path, lambda d: d.update(backend="openai-chat"))
    reading = read_file(path).reading
    assert not {row.name for row in reading.rows} & {"ttft_sent", "tpot", "itl"}
    assert "role" in reading.unmapped["$.ttfts"]


def test_tokens_are_left_where_the_tool_may_take_as_many_as_were_asked_for(tmp_path: Path) -> None:
    path = altered("sglang-details.json", tmp_path, lambda d: d.update(backend="vllm-chat"))
    reading = read_file(path).reading
    assert not {row.name for row in reading.rows} & {"output_throughput", "tpot"}
    assert "number requested" in reading.unmapped["$.output_throughput"]


def test_a_report_of_guidellm_is_read_by_its_requests() -> None:
    found = numbers(FIXTURES / "guidellm.json")
    stage = "1-concurrent"
    assert found["request_throughput", None, stage] == pytest.approx(3 / 4)
    assert found["output_throughput", None, stage] == pytest.approx(11 / 4)
    assert found["error_rate", None, stage] == 0.25
    assert found["ttft_sent", "p50", stage] == pytest.approx(0.2)
    assert ("ttft_sent", "p99", stage) not in found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["benchmarks"][0]["metrics"]["request_totals"].update(incomplete=1), "cut short"),
        (lambda d: d["benchmarks"][0]["requests"]["successful"].pop(), "a sample"),
        (lambda d: d["metadata"].update(version=1), "version 2"),
    ],
)
def test_a_report_of_guidellm_that_tells_half_is_refused(change: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=why):
        read_file(altered("guidellm.json", tmp_path, change))


@pytest.mark.parametrize("usage", [None, {"total_tokens": None}, {"text_words": 3}], ids=["none", "null", "words"])
def test_tokens_of_guidellm_are_left_unless_all_are_the_servers_own(usage: Any, tmp_path: Path) -> None:
    """It counts one token for each chunk of a request whose usage is missing, and may count none."""

    def forget(document: Any) -> None:
        document["benchmarks"][0]["requests"]["successful"][1].update(output_metrics=usage, output_tokens=None)

    reading = read_file(altered("guidellm.json", tmp_path, forget)).reading
    assert {row.name for row in reading.rows} == {"request_throughput", "error_rate", "ttft_sent"}
    assert set(reading.mapped) == {"request_throughput", "error_rate", "ttft_sent"}
    assert "not the server's own" in reading.unmapped["$.benchmarks[0].requests.successful.output_tokens"]


def test_records_of_aiperf_give_first_output_and_gaps() -> None:
    found = numbers(FIXTURES / "aiperf.jsonl")
    assert found["request_throughput", None, "profiling"] == pytest.approx(0.5)
    assert found["ttft_sent", "p50", "profiling"] == pytest.approx(0.1)
    assert found["itl", "p99", "profiling"] == pytest.approx(0.04)
    assert not {name for name, _, _ in found} & {"tpot", "output_throughput"}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"was_cancelled": false', '"was_cancelled": true', "cancelled no request"),
        ('"benchmark_phase": "profiling"', '"benchmark_phase": "warmup"', "profiling phase"),
        ('"value": 300.0, "unit": "ms"', '"value": 300.0, "unit": "s"', r"time_to_first_token\.value: found 300"),
        ('"unit": "ms"', '"unit": "min"', "a unit of time: ms, s, us, ns"),
        ('"request_end_ns": 1759', '"request_end_ns": 759', "an end after the start of the request"),
    ],
)
def test_records_of_aiperf_that_tell_half_or_other_units_are_refused(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    text = (FIXTURES / "aiperf.jsonl").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "aiperf.jsonl"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=why):
        read_file(path)


def test_failed_records_of_aiperf_are_infinite_and_leave_no_gaps(tmp_path: Path) -> None:
    lines = (FIXTURES / "aiperf.jsonl").read_text(encoding="utf-8").splitlines()
    failed = json.loads(lines[1]) | {"metrics": {}, "error": {"code": 500}}
    path = tmp_path / "aiperf.jsonl"
    path.write_text(f"{lines[0]}\n{json.dumps(failed)}\n", encoding="utf-8")
    found = numbers(path)
    assert found["error_rate", None, "profiling"] == 0.5
    assert ("ttft_sent", "p90", "profiling") not in found
    assert "itl" not in {name for name, _, _ in found}


def test_k6_is_refused_with_the_reasons() -> None:
    with pytest.raises(UsageError, match="none of its numbers is one of benchgate's"):
        read_file(FIXTURES / "k6.json")


def test_stages_are_called_by_their_load(tmp_path: Path) -> None:
    def stages(name: str, change: Callable[[Any], object]) -> set[str | None]:
        return {row.stage for row in read_file(altered(name, tmp_path, change)).reading.rows}

    assert stages("vllm.json", lambda d: d.update(max_concurrency=None)) == {"unlimited"}
    assert stages("vllm.json", lambda d: d.update(request_rate=4.5)) == {"c2-r4.5"}
    assert stages("sglang.json", lambda d: d.update(request_rate="trace")) == {"trace"}
    assert stages("inference-perf-stage.json", lambda d: d["load_summary"].update(concurrency=16)) == {"c16"}
    assert stages("inference-perf-stage.json", lambda d: d["load_summary"].pop("requested_rate")) == {"all"}


def test_a_report_of_inference_perf_is_not_credited_with_tokens_that_the_tool_split_itself(tmp_path: Path) -> None:
    text = (FIXTURES / "llm-d.yaml").read_text(encoding="utf-8")
    path = tmp_path / "report.yaml"
    path.write_text(text.replace("tool: vllm-benchmark", "tool: inference-perf"), encoding="utf-8")
    assert {name for name, _, _ in numbers(path)} == {"request_throughput", "error_rate"}


@pytest.mark.parametrize(
    "fallbacks", [None, {}, {"prompt": 0}, {"prompt": 0, "output": 1}], ids=["older", "empty", "prompts", "one"]
)
def test_tokens_of_inference_perf_are_left_unless_all_are_the_servers_own(
    fallbacks: dict[str, int] | None, tmp_path: Path
) -> None:
    """It takes its own count of a request whose usage is missing, into the same total."""
    path = altered(
        "inference-perf-stage.json", tmp_path, lambda d: d["successes"].update(client_fallback_requests=fallbacks)
    )
    reading = read_file(path).reading
    assert {row.name for row in reading.rows} == {"request_throughput", "error_rate"}
    assert "output_throughput" not in reading.mapped
    assert "not the server's own number" in reading.unmapped["$.successes.output_tokens.total"]


def test_at_most_300_fields_are_listed(tmp_path: Path) -> None:
    path = altered("vllm.json", tmp_path, lambda d: d.update({f"meta{number}": number for number in range(1000)}))
    unmapped = read_file(path).reading.unmapped
    assert (len(unmapped), "300 fields are listed" in unmapped["…"]) == (301, True)


def test_what_is_not_taken_is_listed_with_its_reason() -> None:
    unmapped = read_file(FIXTURES / "vllm.json").reading.unmapped
    assert "interpolates" in unmapped["$.p99_ttft_ms"]
    assert "geometric" in unmapped["$.mean_tpot_ms"]
    assert "due" in unmapped["$.mean_e2el_ms"]
    used = {"$.completed", "$.duration", "$.failed", "$.date", "$.backend", "$.max_concurrency", "$.model_id"}
    assert not used & set(unmapped)


def test_nothing_that_was_used_is_said_to_be_left_out() -> None:
    of = {name: set(read_file(FIXTURES / name).reading.unmapped) for name in OF_TOOL if name != "k6.json"}
    assert not of["vllm-detailed.json"] & {"$.ttfts", "$.itls", "$.output_lens", "$.errors"}
    assert not [path for path in of["guidellm.json"] if ".requests.successful" in path or path == "$.benchmarks"]
    assert "$.benchmarks[0].metrics.time_to_first_token_ms.successful.mean" in of["guidellm.json"]
    assert not {"$.metadata.benchmark_phase", "$.metadata.request_start_ns"} & of["aiperf.jsonl"]
    assert "$.load_summary.requested_rate" not in of["inference-perf-stage.json"]
    assert not {"$.date", "$.model_name"} & of["lm-eval.json"]
    assert not {"$.version", "$.run.time.start"} & of["llm-d.yaml"]
    assert "--output-details" in read_file(FIXTURES / "sglang.json").reading.unmapped["$.errors"]


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
        ("  start: ", "  start: 9999-12-31T23:59:59-01:00 #", "an instant since 2015"),
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
    monkeypatch.setattr("benchgate.importers.reading.MOST_BYTES", 100)
    with pytest.raises(UsageError, match="more than 100 bytes"):
        read_file(FIXTURES / "vllm.json")


def test_a_file_with_the_marks_of_two_tools_asks_which(tmp_path: Path) -> None:
    def mix(document: Any) -> None:
        document.update(json.loads((FIXTURES / "inference-perf-stage.json").read_text(encoding="utf-8")))

    path = altered("vllm.json", tmp_path, mix)
    with pytest.raises(UsageError, match=r"vllm or inference-perf; name it with --from"):
        read_file(path)
    assert numbers(path, "inference-perf")["error_rate", None, "r0.5"] == 0.2


def test_a_file_of_another_tool_than_is_said_is_told_by_what_it_lacks_and_has() -> None:
    with pytest.raises(UsageError, match=r"lacks the marks of a file of sglang, which is .*`backend`.* those of vllm"):
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
    assert numbers(path)["request_throughput", None, "profiling"] == 1.0
    path.write_text('{"metadata": 7, "metrics": {}}', encoding="utf-8")
    with pytest.raises(UsageError, match="no known tool"):
        read_file(path)


def test_an_unknown_tool_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean vllm"):
        read_file(FIXTURES / "vllm.json", "vlm")
