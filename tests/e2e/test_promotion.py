"""quality-promotion on a machine that has none of its data: it is looked up, what a run would
fetch is said, and no code of it runs unless the command line lets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.command import STORE, here

pytestmark = pytest.mark.beside

SUITES = Path(__file__).parents[2] / "suites"

DATA_SETS = {
    "TIGER-Lab/MMLU-Pro",
    "openai/gsm8k main",
    "openai/openai_humaneval",
    "google/IFEval",
    "Xnhyacinth/LongBench multifieldqa_en",
}


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a cache of data sets, and without a network to fill it from."""
    for name in ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


CODED = """\
task: coded
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: a
process_docs: !function own.pick
generation_kwargs: {temperature: 0, until: []}
metric_list: [{metric: exact_match}]
"""
OWN = "open(__file__ + '.ran', 'w').close()\ndef pick(docs): return docs\n"


def with_own_code(folder: Path) -> Path:
    """The suite as it ships, and a task with a function of its own; both run code, and the suite lets them."""
    (folder / "data").mkdir()
    shutil.copy(SUITES / "data" / "prose.jsonl", folder / "data")
    (folder / "coded.yaml").write_text(CODED)
    (folder / "own.py").write_text(OWN)
    (folder / "rows.jsonl").write_text('{"id": "a", "q": "x", "a": "y"}\n')
    text = (SUITES / "quality-promotion.yaml").read_text()
    text = text.replace("    - humaneval_instruct", "    - coded.yaml\n    - humaneval_instruct")
    text = text.replace("  checks:\n", "  checks:\n    - {metric: accuracy, task: coded, margin: 5 points}\n")
    (folder / "suite.yaml").write_text(text)
    return folder


@pytest.mark.slow
def test_plan_names_what_it_did_not_look_into_and_neither_fetches_data_nor_runs_code(nothing_kept: Path) -> None:
    result = here(with_own_code(nothing_kept), "plan", "suite.yaml", "--format", "json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert {needed.partition(" (with ")[0] for needed in plan["to_fetch"]} == {*DATA_SETS, "coded"}
    assert {"openai/openai_humaneval (with --allow-code)", "coded (with --allow-code)"} <= set(plan["to_fetch"])
    assert (plan["eval_items"], plan["text_positions"]) == (0, 2000)
    assert not (nothing_kept / "own.py.ran").exists()


@pytest.mark.parametrize(
    "command", [["run", "suite.yaml"], ["run", "suite.yaml", "--baseline", "baseline", "--candidate", "candidate"]]
)
def test_suite_alone_is_no_consent_to_run_code(nothing_kept: Path, command: list[str]) -> None:
    refused = here(with_own_code(nothing_kept), *command)
    assert refused.returncode == 2 and "add --allow-code" in refused.stderr
    assert not (nothing_kept / STORE).exists() and not (nothing_kept / "own.py.ran").exists()
    further = here(nothing_kept, *command, "--allow-code")  # which looks up the suite's addresses next
    assert further.returncode == 2 and "--allow-code" not in further.stderr and "BASELINE_URL" in further.stderr
