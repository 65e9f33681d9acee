"""The command line itself: documented whole, quick to load, and its mistakes answered with exit code 2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from benchgate.cli.app import app
from benchgate.gate.summary.metric_rows import TREND_METRICS
from benchgate.suite.loader import parse_suite
from tests.e2e.command import benchgate, here

pytestmark = pytest.mark.beside


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
HEAVY = ("scipy", "sqlalchemy", "alembic", "pydantic", "jinja2", "vl_convert", "lm_eval", "rich", "numpy", "httpx2")


def commands() -> dict[str, list[str]]:
    """Every command's words and its options' spellings."""
    found: dict[str, list[str]] = {}

    def walk(words: str, command: object) -> None:
        inner = getattr(command, "commands", None)
        if inner:
            for name, sub in inner.items():
                walk(f"{words} {name}", sub)
        elif not getattr(command, "hidden", False):
            params = getattr(command, "params", [])
            found[words] = [option for p in params for option in p.opts if option.startswith("-")]

    walk("benchgate", typer.main.get_command(app))
    return found


@pytest.mark.parametrize(("words", "spellings"), commands().items(), ids=commands())
def test_every_command_and_option_is_documented(words: str, spellings: list[str]) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    section = next((text for text in sections if text.startswith(f"`{words}")), None)
    assert section is not None, f"docs/cli.md has no section for {words}"
    assert [option for option in spellings if option != "--help" and f"`{option}`" not in section] == []


def test_every_metric_of_trend_is_documented() -> None:
    assert [name for name in TREND_METRICS if f"`{name}`" not in PAGE] == []


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, benchgate.cli.app; print([m for m in {HEAVY!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_a_verdict_from_the_store_loads_nothing_that_measures() -> None:
    """scipy's statistics take longer to load than all the rest, and every command that judges would wait for them."""
    unwanted = ("scipy.stats", "scipy.optimize", "httpx2", "uvloop", "benchgate.pipeline.measure", "benchgate.load")
    code = f"import sys, benchgate.pipeline.judge; print([m for m in {unwanted!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_the_suite_in_the_readme_is_a_suite_of_fifteen_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.findall(r"^```yaml\n(suite: .*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    assert parse_suite(example, "README.md").candidate == "fp8"
    assert len(example.strip().splitlines()) == 15


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nowhere.yaml"], "there is no suite file"),
        (["run", "dem"], "did you mean the shipped suite 'demo'?"),
        (["run", "demo", "--candidate", "q8"], "q8_0"),
        (["demo", "--candidate", "q8"], "q8_0, q2_k, padded"),
        (["load", "http://127.0.0.1:9", "--model", "m"], "exactly one of"),
        (["load", "http://127.0.0.1:9/v1/", "--model", "m"], 'ends in /v1, which benchgate adds itself; write "http:'),
        (["load", "http://127.0.0.1:9", "--model", "m", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["trend", "--format", "yaml"], "yaml"),
        (["trend", "ttft_s", "--statistic", "p96"], "no statistic 'p96'"),
        (["trend", "itl_s", "--statistic", "mean"], "no statistic 'mean'"),
        (["trend", "error_ratio", "--statistic", "p95"], "--statistic is of a latency"),
        *(
            (["compare", "a", "b", *words], f"{words[0]} is for a run that is measured now")
            for words in (
                ["--cluster", "tcp://here:8786"],
                ["--work-dir", "elsewhere"],
                ["--allow-actions"],
                ["--allow-code"],
                ["--label", "friday"],
            )
        ),
        (["store", "upgrade", "--store", "mistyped/store.db"], "there is no benchgate store at"),
        (["unknown"], "unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_named_and_exits_with_2(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    result = here(tmp_path, *arguments)
    assert result.returncode == 2, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_suite_shows_every_problem_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("suite: x\nsede: 1\ndeployments: {a: {embedded: {weights: f15}}}\n")
    result = here(tmp_path, "validate", "wrong.yaml")
    assert result.returncode == 2
    for place in ("wrong.yaml:2:1", "wrong.yaml:3:", "seed", "f16"):
        assert place in result.stderr


def test_validate_reports_every_suite_also_beside_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("suite: x\nsede: 1\n")
    result = here(tmp_path, "validate", "bad.yaml", "nosuch.yaml", "drills/cold-start")
    assert result.returncode == 2
    assert "bad.yaml:2:1: sede" in result.stderr
    assert "there is no suite file 'nosuch.yaml'" in result.stderr
    assert "valid; " in result.stdout


def test_a_load_test_in_which_nothing_succeeded_is_no_success(tmp_path: Path) -> None:
    result = benchgate(tmp_path, "load", "http://127.0.0.1:9", "--model", "m", "--concurrency", "1", "--requests", "2")
    assert result.returncode == 12
    assert "no request succeeded" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gate", "--format", "xml"], "'xml' is not one of 'text', 'json', 'markdown', 'junit', 'github', 'gitlab'."),
        (["load", "http://h", "--model", "m", "--concurrency", "x"], "found 'x'; expected a whole number"),
        (["load", "http://h", "--model", "m", "--speed", "fast"], "found 'fast'; expected a number"),
        (["store", "gc", "--keep-last", "1.5"], "found '1.5'; expected a whole number"),
        (["shadow", "sample", "log", "-o", "out", "--size", "0"], "found '0'; expected 1 or more"),
        (["shadow", "sample", "log", "-o", "out", "--size", "100001"], "found '100001'; expected at most 100000"),
    ],
)
def test_a_wrong_argument_is_refused_in_words_of_our_own(tmp_path: Path, words: list[str], says: str) -> None:
    refused = here(tmp_path, *words)
    assert refused.returncode == 2
    assert refused.stderr.rstrip().endswith(f": {says}")
