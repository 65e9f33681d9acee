"""A verdict sent to addresses: what the environment lacks is one receiver's fault, and a doubt is nobody's pass."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchgate.errors import PublishError, UsageError
from benchgate.integrations.github_feedback import CheckState, Message
from benchgate.integrations.webhook import SECRET, SLACK_URL
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision
from benchgate.release import publish
from benchgate.release.publish import Judged, WebTargets, notifiers, parse_web_targets, publish_all
from benchgate.report.document import OWN, verdict_document
from benchgate.store.repository import Store
from tests.fakes import evidence as fake
from tests.fakes import quick_command
from tests.fakes.receiver import receiving
from tests.fakes.site_runs import add

LINK = "https://ci.example/run/7"
TOLD = {SECRET: f"whsec_{base64.b64encode(bytes(32)).decode()}"}
MESSAGE = Message("tiny-q4", "q4", "run-1", Outcome.BLOCK, CheckState.FAILURE, "BLOCK", lambda budget: "")


@pytest.fixture(autouse=True)
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "report_html", lambda decision: "<!doctype html>")


def judged(outcome: Outcome = Outcome.BLOCK, doubt: str | None = None) -> Judged:
    evidence, verdict = fake.evidence(), fake.verdict(outcome)
    return Judged(Decision(evidence, None, verdict, OWN, verdict_document(evidence.run, verdict)), doubt)


def test_each_receiver_gets_its_own_form_of_the_same_verdict() -> None:
    with receiving([200]) as receiver:
        here = f"http://localhost:{receiver.port}"
        environment = {**TOLD, SLACK_URL: f"{here}/services/hidden"}
        to = parse_web_targets(f"{here}/hook", f"{here}/gateway", slack=True)
        done = list(publish_all(MESSAGE, notifiers(judged(), to, LINK, environment, clock=receiver.clock)))
    assert [(one.name, one.fault) for one in done] == [("webhook", None), ("slack", None), ("push-metrics", None)]
    assert all(one.done is not None and "hidden" not in one.done for one in done)
    hook, slack, metrics = (body for _, _, _, body in receiver.seen)
    data = json.loads(hook)["data"]
    assert (data["verdict"], data["promotes"], data["url"]) == ("BLOCK", False, LINK)
    assert data["report_sha256"] == hashlib.sha256(b"<!doctype html>").hexdigest()
    assert json.loads(slack)["blocks"][0]["text"]["text"] == "■ BLOCK: tiny-q4"
    assert b'benchgate_verdict{outcome="BLOCK",suite="tiny-q4"} 1\n' in metrics


def test_a_pass_in_doubt_is_told_as_what_it_is() -> None:
    with receiving([200]) as receiver:
        here = f"http://localhost:{receiver.port}"
        to = parse_web_targets(f"{here}/hook", here, slack=False)
        doubtful = judged(Outcome.PASS, "its newest stored verdict is BLOCK")
        list(publish_all(MESSAGE, notifiers(doubtful, to, None, TOLD, clock=receiver.clock)))
    hook, metrics = (body for _, _, _, body in receiver.seen)
    data = json.loads(hook)["data"]
    assert (data["promotes"], data["exit_code"]) == (False, 13)
    assert b"benchgate_verdict" in metrics
    assert b'suite="tiny-q4"} 1\n' not in metrics.split(b"# TYPE benchgate_accuracy")[0]


@pytest.mark.parametrize(
    ("to", "environment", "says"),
    [
        (parse_web_targets("https://ci.example/hook", None, slack=False), {}, f"{SECRET} is not set"),
        (WebTargets(slack=True), {}, f"{SLACK_URL} is not set"),
        (WebTargets(slack=True), {SLACK_URL: "http://hooks.example/hidden"}, "plain http"),
    ],
)
def test_what_the_environment_lacks_is_a_fault_of_that_receiver_alone(
    to: WebTargets, environment: Mapping[str, str], says: str
) -> None:
    (tell,) = notifiers(judged(), to, LINK, environment).values()
    with pytest.raises(PublishError, match=says) as failed:
        tell(MESSAGE)
    assert "hidden" not in str(failed.value)


def test_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="--webhook: its address is plain http"):
        parse_web_targets("http://ci.example/hook", None, slack=False)
    with pytest.raises(UsageError, match="--push-metrics: expected an address"):
        parse_web_targets(None, "gateway:9091", slack=False)


def test_publish_tells_what_it_can_and_fails_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "store.db")
    with Store.open(store) as opened:
        run_id = add(opened, "2026-01-02", blocked=True)
    with receiving([200]) as receiver:
        monkeypatch.setenv(SLACK_URL, f"http://localhost:{receiver.port}/hidden")
        monkeypatch.delenv(SECRET, raising=False)
        told = quick_command.told("publish", run_id, "--slack", "--store", store)
        unsigned = quick_command.told(
            "publish", run_id, "--webhook", f"http://localhost:{receiver.port}/", "--slack", "--store", store
        )
    assert (told.exit_code, unsigned.exit_code) == (0, 13)
    assert f"slack: sent to http://localhost:{receiver.port}" in told.stderr
    assert f"not published: webhook: {SECRET} is not set" in unsigned.stderr
    assert "BLOCK" in told.stdout
    assert "BLOCK" in unsigned.stdout
    assert "hidden" not in told.output + unsigned.output
    assert [path for _, path, _, _ in receiver.seen] == ["/hidden", "/hidden"]
    with pytest.raises(UsageError):
        quick_command.told("publish", "--begin", "demo", "--slack")
