from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.records import ABSENT, ErrorClass, RequestColumns, ShadowItem
from benchgate.model.run import ClientUse, LoadObservation, ShadowObservation
from benchgate.report.sections.load import knee_line, knee_sweeps
from benchgate.report.sections.shadow import summarise_shadow
from benchgate.report.sections.stages import StageSummary, summarise_stage
from tests.fakes import evidence as fake
from tests.fakes.drills import drill


def stage(*blocks: tuple[list[tuple[int, int] | None], float], slo: Slo | None = None) -> StageSummary:
    """Blocks of (requests, window); a request is (ms to its first token, ms between tokens), None when it failed."""
    observations = [
        LoadObservation(
            stage="s",
            arm=Arm.CANDIDATE,
            block=number,
            position=number,
            requests=RequestColumns.pack(
                [
                    fake.failed_request(i) if pace is None else replace(fake.request(i, 0, 100, *pace), index=i)
                    for i, pace in enumerate(requests)
                ]
            ),
            window_s=window_s,
            client=ClientUse(cpu_s=0.1 * (number + 1), wall_s=1.0, workers=1),
        )
        for number, (requests, window_s) in enumerate(blocks)
    ]
    summary = summarise_stage(observations, slo)
    assert summary is not None
    return summary


def test_a_rate_is_the_mean_of_the_blocks_own_rates() -> None:
    summary = stage(([(20, 5)] * 2, 1.0), ([(20, 5)] * 2, 4.0))
    assert summary.requests_per_s == pytest.approx((2 + 0.5) / 2)
    assert summary.output_tokens_per_s == pytest.approx((16 + 4) / 2)


def test_the_read_delay_is_that_of_the_worst_block_and_unknown_where_one_was_not_measured() -> None:
    seen = [replace(o, client=replace(o.client, read_delay_p99_s=0.001 * (1 + i))) for i, o in enumerate(fake.load())]
    known, lacking = summarise_stage(seen, None), summarise_stage([*seen, fake.load()[0]], None)
    assert known is not None
    assert lacking is not None
    assert known.read_delay_p99_s == pytest.approx(0.001 * len(seen))
    assert lacking.read_delay_p99_s is None


def test_failed_requests_stay_in_every_denominator() -> None:
    summary = stage(([(20, 5), None], 1.0), ([(20, 5), None], 1.0), slo=Slo(ttft_s=1.0))
    assert (summary.scheduled, summary.succeeded, dict(summary.failed)) == (4, 2, {"http_5xx": 2})
    assert summary.goodput_ratio == 0.5
    assert summary.ttft_p95_s == float("inf")
    assert summary.requests_per_s == 1.0


def test_input_and_output_tokens_are_of_the_same_requests() -> None:
    seen = fake.load_observation("c1", Arm.CANDIDATE, 0, 0)
    whole = summarise_stage([seen, seen], None)
    broken = np.arange(len(seen.requests)) < 2
    error = seen.requests.error.but(broken, ErrorClass.STREAM_BROKEN)
    cut = summarise_stage([seen, replace(seen, requests=replace(seen.requests, error=error))], None)
    untold = replace(seen, requests=replace(seen.requests, input_tokens=np.full(len(seen.requests), ABSENT)))
    lacking = summarise_stage([seen, untold], None)
    assert whole is not None and cut is not None and lacking is not None and whole.input_tokens is not None
    each = whole.input_tokens // whole.scheduled
    assert each > 0
    assert (cut.input_tokens, cut.succeeded) == (whole.input_tokens - 2 * each, whole.succeeded - 2)
    assert lacking.input_tokens is None


def test_a_request_past_its_slo_is_not_good() -> None:
    assert stage(([(20, 5), (500, 5)], 1.0), slo=Slo(ttft_s=0.1)).goodput_ratio == 0.5


def test_without_an_slo_there_is_no_goodput() -> None:
    assert stage(([(20, 5)], 1.0)).goodput_ratio is None


def test_the_client_is_shown_at_its_worst_block() -> None:
    assert stage(([(20, 5)], 1.0), ([(20, 5)], 1.0)).client_cpu_share == pytest.approx(0.2)


def test_a_stage_that_was_not_measured_has_no_summary() -> None:
    assert summarise_stage([], None) is None


def test_a_window_of_zero_gives_no_rate_rather_than_a_good_one() -> None:
    assert stage(([(20, 5)], 0.0)).output_tokens_per_s is None


def shadow(*answers: tuple[str | None, str | None, str | None]) -> ShadowObservation:
    template = fake.shadow().items[0]
    items: tuple[ShadowItem, ...] = tuple(
        replace(template, prompt_id=str(i), primary=p, secondary=s, candidate=c, error=None if p and s and c else "500")
        for i, (p, s, c) in enumerate(answers)
    )
    return ShadowObservation(items, len(items), None)


def test_disagreement_is_net_of_the_baselines_own() -> None:
    summary = summarise_shadow(shadow(("a", "a", "a"), ("a", "a", "b"), ("a", "b", "a"), ("a", "b", "c")))
    assert summary.candidate_ratio == pytest.approx((0 + 1 + 0.5 + 1) / 4)
    assert summary.self_ratio == 0.5
    assert summary.excess_ratio == pytest.approx(0.125)
    assert [item.prompt_id for item in summary.differing] == ["1"]


def test_a_candidate_that_failed_differs_and_a_baseline_that_failed_is_left_out() -> None:
    summary = summarise_shadow(shadow(("a", "a", None), ("a", None, "a"), ("a", "a", "a")))
    assert (summary.usable, summary.failed, summary.candidate_ratio) == (2, 2, 0.5)


def test_no_usable_prompt_gives_no_disagreement() -> None:
    summary = summarise_shadow(shadow((None, None, "a")))
    assert (summary.candidate_ratio, summary.self_ratio, summary.excess_ratio) == (None, None, None)


def test_knee_is_told_with_both_curves_and_the_one_that_bends() -> None:
    """Four slots of an engine that brings 1,500 tokens/s whatever it holds."""
    stages = ("c1", "c2", "c4", "c8", "c16")
    levels = [2**number for number in range(len(stages))]
    measured = [
        replace(
            stage(([(10, 10)], 1.0)),
            output_tokens_per_s=1500.0 + level,
            decoding_at_once=0.9 * min(level, 4),
            e2e_p50_s=max(1.0, level / 4),
        )
        for level in levels
    ]
    sweeps = knee_sweeps(
        drill({"metric": "error_rate", "max": "1%"}, stages=stages),
        {(name, arm): summary for name, summary in zip(stages, measured, strict=True) for arm in Arm},
    )
    assert list(sweeps) == list(Arm)
    lines = [knee_line(sweep) for sweep in sweeps.values()]
    assert "knee at 4 in flight, where requests decoding at once bend" in lines[0]
    assert "at 1 · 2 · 4 · 8 · 16 in flight 1,501 · 1,502 · 1,504 · 1,508 · 1,516 tok/s" in lines[0]
    assert "0.900 · 1.80 · 3.60 · 3.60 · 3.60 requests decoding at once" in lines[0]
