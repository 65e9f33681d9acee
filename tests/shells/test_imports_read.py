"""What files of other tools come to: numbers whose formula is benchgate's, and of everything else why it was left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.importers.formats import FORMATS, read_file
from benchgate.model.deployment import Arm

FIXTURES = Path(__file__).parents[1] / "fixtures/imports"
READ = {
    "vllm.json": {
        ("requests_per_s", None, "c2"): 0.4,
        ("output_tokens_per_s", None, "c2"): 1.4,
        ("error_ratio", None, "c2"): 0.0,
    },
    "sglang.json": {("requests_per_s", None, "r2"): 0.25, ("output_tokens_per_s", None, "r2"): 1.0},
    "inference-perf-stage.json": {
        ("requests_per_s", None, "r0.5"): 0.4,
        ("output_tokens_per_s", None, "r0.5"): 20.0,
        ("error_ratio", None, "r0.5"): 0.2,
    },
    "lm-eval.json": {("accuracy_ratio", None, "arc_easy"): 0.75, ("accuracy_ratio", None, "triviaqa"): 0.4},
    "llm-d.yaml": {
        ("requests_per_s", None, "c8"): 4.8,
        ("output_tokens_per_s", None, "c8"): 500.5,
        ("error_ratio", None, "c8"): 0.04,
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
    assert found["ttft_sent_s", "p50", "c2"] == 0.2  # of 0.1, 0.2, 0.3, 0.4: interpolated it would be 0.25
    assert found["ttft_sent_s", "p99", "c2"] == 0.4
    assert found["tpot_s", "p50", "c2"] == pytest.approx(0.03)  # of three: one request has a single token
    assert found["itl_s", "p90", "c2"] == 0.04
    assert not {name for name, _, _ in found} & {"ttft_s", "e2e_s", "goodput_ratio"}


def test_failures_are_infinite_among_the_requests(tmp_path: Path) -> None:
    found = numbers(FIXTURES / "sglang-details.json")
    assert found["error_ratio", None, "r2"] == pytest.approx(1 / 3)
    assert found["ttft_sent_s", "p50", "r2"] == 0.2
    assert ("ttft_sent_s", "p90", "r2") not in found  # a third of the requests never got there
    assert ("tpot_s", "p90", "r2") not in found

    def fail_one(document: Any) -> None:
        document.update(completed=3, failed=1, request_throughput=0.3)
        document["errors"][0] = "Bad Gateway"

    failing = numbers(altered("vllm-detailed.json", tmp_path, fail_one))
    assert failing["error_ratio", None, "c2"] == 0.25
    assert ("ttft_sent_s", "p99", "c2") not in failing
    assert not {name for name, _, _ in failing} & {"itl_s"}


def test_an_answer_without_a_token_has_failed(tmp_path: Path) -> None:
    def say_nothing(document: Any) -> None:
        document["output_lens"][3] = 0
        document.update(total_output_tokens=13, output_throughput=1.3)

    path = altered("vllm-detailed.json", tmp_path, say_nothing)
    assert numbers(path)["error_ratio", None, "c2"] == 0.25


def test_times_of_a_chat_backend_are_left_because_its_first_chunk_may_be_empty(tmp_path: Path) -> None:
    path = altered("vllm-detailed.json", tmp_path, lambda d: d.update(backend="openai-chat"))
    reading = read_file(path).reading
    assert not {row.name for row in reading.rows} & {"ttft_sent_s", "tpot_s", "itl_s"}
    assert "role" in reading.unmapped["$.ttfts"]


def test_tokens_are_left_where_the_tool_may_take_as_many_as_were_asked_for(tmp_path: Path) -> None:
    path = altered("sglang-details.json", tmp_path, lambda d: d.update(backend="vllm-chat"))
    reading = read_file(path).reading
    assert not {row.name for row in reading.rows} & {"output_tokens_per_s", "tpot_s"}
    assert "asked for" in reading.unmapped["$.output_throughput"]


def test_a_report_of_guidellm_is_read_by_its_requests() -> None:
    found = numbers(FIXTURES / "guidellm.json")
    stage = "1-concurrent"
    assert found["requests_per_s", None, stage] == pytest.approx(3 / 4)
    assert found["output_tokens_per_s", None, stage] == pytest.approx(11 / 4)
    assert found["error_ratio", None, stage] == 0.25
    assert found["ttft_sent_s", "p50", stage] == pytest.approx(0.2)
    assert ("ttft_sent_s", "p99", stage) not in found


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


def test_records_of_aiperf_give_first_output_and_gaps() -> None:
    found = numbers(FIXTURES / "aiperf.jsonl")
    assert found["requests_per_s", None, "profiling"] == pytest.approx(0.5)
    assert found["ttft_sent_s", "p50", "profiling"] == pytest.approx(0.1)
    assert found["itl_s", "p99", "profiling"] == pytest.approx(0.04)
    assert not {name for name, _, _ in found} & {"tpot_s", "output_tokens_per_s"}


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
    assert found["error_ratio", None, "profiling"] == 0.5
    assert ("ttft_sent_s", "p90", "profiling") not in found
    assert "itl_s" not in {name for name, _, _ in found}


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
    assert {name for name, _, _ in numbers(path)} == {"requests_per_s", "error_ratio"}


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
