"""Examples and figures of docs/guides/evals.md agree with the shipped suites and with benchmarks/quality_power.py."""

import re
from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchmarks.quality_power import ALPHA, SIZES, promoted

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "evals.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROMOTION = parse_suite((ROOT / "suites" / "quality-promotion.yaml").read_text(encoding="utf-8"), "promotion")
SMOKE = parse_suite((ROOT / "suites" / "quality-smoke.yaml").read_text(encoding="utf-8"), "smoke")


def test_an_adapter_of_the_baselines_own_server_is_a_candidate() -> None:
    adapter = next(parse_suite(text, "page") for text in EXAMPLES if "suite: adapter" in text)
    base, adapted = (adapter.deployments[name] for name in (adapter.baseline, adapter.candidate))
    assert base.url == adapted.url and base.model != adapted.model


@pytest.mark.parametrize(("name", "share"), [("gsm8k_cot", 0.94), ("quality-smoke, all tasks", 0.94)])
def test_a_margin_of_a_shipped_suite_is_carried_by_its_size(name: str, share: float) -> None:
    items, margin = SIZES[name]
    assert promoted(items, margin, 0.05, 2000) == pytest.approx(share, abs=0.02)


def test_the_sizes_and_margins_of_the_tables_are_those_of_the_suites() -> None:
    margins = {check.task: check.margin for check in PROMOTION.gate.checks if check.metric == "accuracy"}
    assert margins == {"mmlu_pro": 0.02, "gsm8k_cot": 0.02, "ifeval": 0.05, "humaneval_instruct": 0.05}
    assert SIZES["mmlu_pro, 200 of each subject"][1] == margins["mmlu_pro"]
    assert PROMOTION.gate.alpha == SMOKE.gate.alpha == ALPHA
    assert SMOKE.quality is not None and SMOKE.quality.stop_early
    items = (SMOKE.quality.limit or 0) * len(SMOKE.quality.tasks)
    assert (items, SMOKE.gate.checks[0].margin) == SIZES["quality-smoke, all tasks"]


def test_the_consent_to_run_code_is_written_out_in_the_suite_that_needs_it() -> None:
    assert PROMOTION.quality is not None and PROMOTION.quality.allow_unsafe_code
    assert SMOKE.quality is not None and not SMOKE.quality.allow_unsafe_code
