"""A whole run of deployments that are reached over a Unix socket and over TLS, and what is refused before it begins."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchgate.load.client_delay import audit_refusal
from benchgate.model.deployment import Arm
from benchgate.targets.address import ServerAddress
from tests.e2e.command import STORE, document, here, latest_evidence
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY, serving
from tests.fakes.scripted_server import ScriptedServer, answering

pytestmark = pytest.mark.beside  # no time decides

SUITE = """
suite: reach
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate:
    url: "{candidate}"
    model: m
    headers: {{x-team: ml, x-tenant-key: "${{env:TENANT_KEY}}"}}
    tls: {{ca: certs/{ca}, cert: certs/client.pem, key: certs/client.key}}
limits: {{connect: 2s, first_token: 5s, stall: 2s, total: 10s, ready: 5s}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  warmup: 0
  audit: {audit}
  sweep: [{{stage: c2, concurrency: 2, requests: 20}}]
shadow: {{prompts: prompts.jsonl}}
gate:
  allow_underpowered: true
  checks:
    - {{metric: error_rate, max: 5%}}
    - {{metric: shadow_excess, margin: 90 points}}
"""
PARTICULAR = re.compile(r"headers:|tls:|shadow")
healthy = answering(lambda received: "one two three four five six seven eight", after_s=0.005)


def write_suite(folder: Path, baseline: str, candidate: str, *, ca: str = "ca.pem", audit: str = "false") -> None:
    (folder / "suite.yaml").write_text(SUITE.format(baseline=baseline, candidate=candidate, ca=ca, audit=audit))
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "say a"}\n{"id": "b", "prompt": "say b"}\n')
    (folder / "certs").mkdir()
    for file in (CA, CLIENT_CERT, CLIENT_KEY):
        shutil.copy(file, folder / "certs")


def test_run_goes_over_a_socket_and_over_tls_and_stores_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENANT_KEY", "t0p-s3cr3t")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with (
        ScriptedServer(healthy, socket_path=tmp_path / "s") as baseline,
        ScriptedServer(healthy, tls=serving(asks_for_ours=True)) as candidate,
    ):
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, "run", "suite.yaml", "--format", "json", "--report", "report.html")
        assert {asked.headers["x-tenant-key"] for asked in candidate.requests} == {"t0p-s3cr3t"}
        assert not any("x-team" in asked.headers for asked in baseline.requests)
    assert document(result)["outcome"]
    evidence = latest_evidence(tmp_path)
    assert {error for o in evidence.load for error in o.requests.error} == {None}
    assert evidence.shadow is not None
    assert [item.error for item in evidence.shadow.items] == [None, None]
    assert evidence.run.arms[Arm.CANDIDATE].settings == {"headers": {"x-team": "ml"}}
    key = Path(CLIENT_KEY).read_bytes().splitlines()[1]
    kept = [path.read_bytes() for path in (tmp_path / ".benchgate").rglob("*") if path.is_file()]
    shown = [*kept, (tmp_path / "report.html").read_bytes(), result.stdout.encode(), result.stderr.encode()]
    assert not [content for content in shown if b"t0p-s3cr3t" in content or key in content]


@pytest.mark.skipif(
    audit_refusal(ServerAddress.of("http://127.0.0.1")) is not None, reason="this kernel stamps no arrivals"
)
def test_audited_suite_keeps_the_kernels_word_with_every_stage(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url, audit="true")
        suite = tmp_path / "suite.yaml"
        suite.write_text("".join(line for line in suite.read_text().splitlines(True) if not PARTICULAR.search(line)))
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert document(result)["outcome"], result.stderr
    assert [stage.client.read_delay_by for stage in latest_evidence(tmp_path).load] == ["kernel"] * 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ca": "none.pem"}, "deployments.candidate: the CA certificates in"),
        ({"audit": "true"}, "load.audit: baseline cannot be audited: what comes over a Unix socket"),
    ],
)
def test_what_cannot_be_used_is_said_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("TENANT_KEY", "k")
    write_suite(tmp_path, "unix:/nowhere/s", "https://localhost:9", **changed)
    result = here(tmp_path, "run", "suite.yaml")
    assert (result.returncode, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())
    assert not (tmp_path / STORE).exists()
    checked = here(tmp_path, "plan", "suite.yaml")
    assert (checked.returncode, checked.stdout) == (2, "")
    assert re.search(rf"suite\.yaml:\d+:\d+: {re.escape(said)}", " ".join(checked.stderr.split()))
