"""`benchgate calibrate` with practice servers, and what its profile is good for afterwards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchgate.errors import ExitCode, UsageError
from benchgate.model.noise import FalseBlocks, NoiseProfile, NoiseSpread
from benchgate.model.run import Evidence
from benchgate.pipeline.calibrate import Calibration, calibration_of
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import measured_arms
from tests.e2e.command import STORE, here
from tests.fakes.scripted_server import Received, ScriptedServer, answering

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


SUITE = """
suite: noisy
deployments:
  prod: {sim: {ttft: 30ms, itl: 1ms, jitter: 60%}}
baseline: prod
candidate: prod
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 2
  warmup: 0
  sweep: [{stage: c4, concurrency: 4, requests: 12}]
gate:
  # A machine that runs tests is late now and then, which is no matter here.
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks: [{metric: error_rate, max: 50%}]
"""
POLICY = SUITE.replace("[{metric: error_rate", "[{metric: e2e, margin: 90%}, {metric: error_rate")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One deployment measured alone, calibrated, and measured alone once more."""
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "noisy.yaml").write_text(SUITE)
    (folder / "policy.yaml").write_text(POLICY)
    steps = [
        ("run", "noisy.yaml", "--label", "before"),
        ("run", "noisy.yaml", "--label", "uncalibrated"),
        ("calibrate", "noisy.yaml", "--times", "6", "--label", "noise"),
        ("run", "noisy.yaml", "--label", "after"),
    ]
    for arguments in steps:
        found = here(folder, *arguments)
        assert found.returncode == ExitCode.OK, found.stderr
        (folder / f"{arguments[arguments.index('--label') + 1]}.out").write_text(found.stdout)
    return folder


def evidence_of(folder: Path) -> Evidence:
    with Store.open(str(folder / STORE), create=False) as store:
        return store.evidence(store.resolve("noise"))


def profile_of(folder: Path) -> NoiseProfile:
    profile = evidence_of(folder).noise
    assert profile is not None
    return profile


def test_profile_tells_the_noise_of_the_server(calibrated: Path) -> None:
    profile = profile_of(calibrated)
    assert profile.blocks == 6
    # 30 ms and 60 % of jitter: the median of twelve answers varies by a good part of that, and all answers are whole.
    latency, errors = profile.spread("ttft", "p50", "c4"), profile.spread("error_rate", None, "c4")
    assert latency is not None and 0.02 < latency.cv_run < 0.6
    assert errors == NoiseSpread("error_rate", None, "c4", 0.0, 0.0, 6)
    assert profile.key.hardware.startswith("this machine: ")
    assert profile.false_block == FalseBlocks(
        200, 0, 0, 0
    )  # no answer failed, so no order of the pairs breaks the bound


def test_calibration_cannot_be_judged_nor_taken_for_the_latest_run(calibrated: Path) -> None:
    judged = here(calibrated, "gate", "noise")
    assert judged.returncode == ExitCode.INVALID
    assert "is a calibration: it measured prod against itself and has no candidate" in judged.stdout
    compared = here(calibrated, "compare", "noise", "after")
    assert compared.returncode == ExitCode.INVALID
    latest = json.loads(here(calibrated, "gate", "@previous", "--format", "json").stdout)
    assert latest["run"]["label"] == "uncalibrated"  # and not the calibration after it
    trend = here(calibrated, "trend", "output_throughput").stdout
    assert "uncalibrated" in trend
    assert "noise" not in trend.replace("noisy", "")


def test_run_names_the_profile_that_was_known(calibrated: Path) -> None:
    profile = profile_of(calibrated)
    after = json.loads(here(calibrated, "gate", "after", "--format", "json").stdout)
    assert profile.run_id in after["notes"][0]
    assert "notes" not in json.loads(here(calibrated, "gate", "before", "--format", "json").stdout)
    report = calibrated / "r.html"
    assert here(calibrated, "report", "after", "--out", str(report)).returncode == 0
    assert '<section id="noise">' in report.read_text()
    assert profile.run_id in report.read_text()


def test_candidate_measured_alone_is_held_against_a_stored_run_by_the_profile(calibrated: Path) -> None:
    judged = here(calibrated, "compare", "before", "after", "--policy", "policy.yaml", "--format", "json")
    found = json.loads(judged.stdout)
    assert judged.returncode in (ExitCode.OK, ExitCode.INCONCLUSIVE), judged.stdout  # by how much this machine varies
    (latency,) = [check for check in found["checks"] if check["metric"] == "e2e"]
    assert "noise profile added" in latency["method"]
    assert None not in (latency["lower"], latency["upper"], latency["p_value"])
    assert "no live baseline" in found["notes"][0]
    again = here(calibrated, "compare", "before", "after", "--policy", "policy.yaml")
    assert "benchgate compare " in again.stdout.splitlines()[-1]  # the command that gives the same again


def test_without_a_profile_it_is_not_decided(calibrated: Path) -> None:
    judged = here(calibrated, "compare", "before", "uncalibrated", "--policy", "policy.yaml")
    assert judged.returncode == ExitCode.INCONCLUSIVE
    assert "no live baseline and no noise profile" in judged.stdout or "no noise profile tells" in judged.stdout


def test_profile_is_printed_as_lines_and_as_data(calibrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (calibrated / "noise.out").read_text()
    assert "ttft p50" in text
    assert "over 200 orders of the 6 pairs the policy promotes 200, blocks 0" in text
    known = profile_of(calibrated)
    seen = evidence_of(calibrated)
    monkeypatch.setattr(
        "benchgate.pipeline.calibrate.calibrate", lambda *_, **__: Calibration(seen, known)
    )  # measures nothing
    found = here(calibrated, "calibrate", "noisy.yaml", "--format", "json", "--only", "load", "--baseline", "prod")
    assert NoiseProfile.from_json(json.loads(found.stdout)) == known


def test_deployment_that_is_not_there_leaves_no_profile(tmp_path: Path) -> None:
    gone = SUITE.replace("{sim: {ttft: 30ms, itl: 1ms, jitter: 60%}}", '{url: "http://127.0.0.1:9", model: m}')
    (tmp_path / "gone.yaml").write_text(gone.replace("load:\n", "limits: {ready: 1s}\nload:\n", 1))
    found = here(tmp_path, "calibrate", "gone.yaml")
    assert found.returncode == ExitCode.INVALID
    assert "no noise profile, because the measurement is incomplete" in found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--times", "1"), "--times 1 is not a number of pairs"),
        (("--times", "201"), "--times 201 is not a number of pairs"),
        (("--only", "quality"), "it has no `quality`"),
        (("--baseline", "pord"), "did you mean `prod`"),
    ],
)
def test_what_cannot_be_calibrated_is_told_before_anything_is_sent(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "noisy.yaml").write_text(SUITE)
    found = here(tmp_path, "calibrate", "noisy.yaml", *arguments)
    assert found.returncode == ExitCode.USAGE
    assert told in found.stderr
    assert not (tmp_path / ".benchgate" / "benchgate.db").exists()


def test_calibration_is_the_suite_with_its_baseline_twice_and_nothing_that_ends_early() -> None:
    text = SUITE.replace("blocks: 2", "looks: [5, 10, 20]\n  limit: {time: 1h}")
    text = text.replace("checks: [", "checks: [{metric: accuracy, task: each, margin: 5 points}, ")
    text += "quality: {tasks: [arc_easy], repeat_baseline: true, stop_early: true}\n"
    text += "shadow: {prompts: p.jsonl, secondary: 20%}\n"
    suite = parse_suite(text, "noisy.yaml")
    own = calibration_of(suite, None, None)
    assert own.load is not None and own.quality is not None and own.shadow is not None
    assert (own.baseline, own.candidate) == ("prod", "prod")
    assert (own.load.blocks, own.load.looks, own.load.limit, own.load.capacity) == (20, (), None, None)
    assert (own.quality.repeat_baseline, own.quality.stop_early) == (False, False)
    assert own.shadow.secondary_ratio == 1.0
    alone = parse_suite(SUITE, "noisy.yaml")
    assert (len(measured_arms(alone)), len(measured_arms(calibration_of(alone, None, None)))) == (1, 2)
    assert calibration_of(alone, None, None).load == own.load.model_copy(update={"blocks": 10})
    shadow = calibration_of(suite, None, "shadow")
    assert (shadow.load, shadow.quality) == (None, None)
    with pytest.raises(UsageError, match="--times counts pairs of blocks of a load"):
        calibration_of(suite, 5, "quality")
    with pytest.raises(UsageError, match="nothing to calibrate"):
        calibration_of(suite.model_copy(update={"load": None, "quality": None, "shadow": None}), None, None)


def test_one_server_for_both_arms_is_sent_no_prompt_twice(tmp_path: Path) -> None:
    """Its prefix cache would be taken for noise of the machine."""
    sent = Counter[str]()

    def text_for(received: Received) -> str:
        if (received.body or {}).get("stream"):
            sent[received.prompt] += 1
        return "one two three four"

    with ScriptedServer(answering(text_for, after_s=0.01)) as server:
        suite = SUITE.replace("{sim: {ttft: 30ms, itl: 1ms, jitter: 60%}}", f'{{url: "{server.url}", model: scripted}}')
        (tmp_path / "noisy.yaml").write_text(suite)
        found = here(tmp_path, "calibrate", "noisy.yaml", "--times", "6")
        assert found.returncode == ExitCode.OK, found.stderr
    assert len(sent) >= 6 * 2 * 12
    assert max(sent.values()) == 1
