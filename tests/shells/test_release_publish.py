"""`benchgate publish`: a stored verdict, judged again, told everywhere, and never better than it was."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from benchgate.errors import ExitCode, PublishError, UsageError
from benchgate.integrations.github_feedback import CheckState, Message
from benchgate.integrations.webhook import SECRET, SLACK_URL
from benchgate.model.run import new_run_id
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import Decision, decide_stored
from benchgate.release.publish import Judged, WebTargets, judge_to_publish, notifiers, parse_web_targets, publish_all
from benchgate.report.document import OWN, verdict_document
from benchgate.store.export import export_bundle
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from tests.e2e.command import here
from tests.fakes import evidence as fake
from tests.fakes import quick_command
from tests.fakes.github_api import TOKEN, FakeGitHub
from tests.fakes.promotable import begun
from tests.fakes.receiver import receiving
from tests.fakes.site_runs import add

SHA = "c0ffee" * 6 + "c0de"
EVERYWHERE = ("--comment", "--check-run", "--commit-status", "--deployment", "5", "--summary")
PULL = {"pull_request": {"number": 7, "head": {"sha": SHA, "repo": {"full_name": "acme/models"}}}}
SUITE = """\
suite: made-up
deployments: {baseline: {url: "http://b", model: m}, candidate: {url: "http://c", model: m}}
baseline: baseline
candidate: candidate
quality: {tasks: [add.yaml, sort.yaml]}
gate:
  checks:
    - {metric: accuracy, margin: 12 points}
"""


@dataclass(frozen=True)
class Made:
    """A store with a run that passes and one that is blocked, and their bundles."""

    store: Path
    passed: str
    blocked: str
    bundles: dict[str, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    path = folder / "runs.db"
    with Store.open(str(path)) as store:
        passed = add(store, "2026-01-02", run_id=new_run_id(1, bytes(10)), label="nightly")
        blocked = add(store, "2026-01-03", run_id=new_run_id(2, bytes(10)), blocked=True)
    bundles = {run: folder / f"{run}.json" for run in (passed, blocked)}
    with opened(str(path), create=False) as database:
        for run, file in bundles.items():
            export_bundle(database, run, file)
    return Made(path, passed, blocked, bundles)


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, github: FakeGitHub) -> dict[str, str]:
    """The environment of a job for a pull request."""
    event = tmp_path / "event.json"
    event.write_text(json.dumps(PULL))
    return {
        **github.environment,
        "GITHUB_ACTIONS": "true",
        "GITHUB_SERVER_URL": "https://github.test",
        "GITHUB_RUN_ID": "42",
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }


def publish(folder: Path, job: dict[str, str], *arguments: str) -> CompletedProcess[str]:
    done = here(folder, "publish", *arguments, environment=job)
    assert TOKEN not in done.stdout + done.stderr
    return done


def test_a_blocked_run_is_told_everywhere_from_its_bundle_alone_and_the_job_is_green(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    bundle = str(made.bundles[made.blocked])
    done = publish(tmp_path, job, bundle, *EVERYWHERE, "--suite", "suite.yaml", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["outcome"], document["exit_code"], document["promotes"]) == ("BLOCK", 10, False)
    (comment,), (check,) = github.comments[7], github.checks
    marks = f"<!-- benchgate:made-up:candidate -->\n<!-- benchgate-says:failure:{made.blocked} -->\n"
    assert comment["body"].startswith(f"{marks}## ")
    for told in (comment["body"], check["output"]["summary"], Path(job["GITHUB_STEP_SUMMARY"]).read_text()):
        assert "BLOCK: `candidate`" in told
        assert f"Commit `{SHA}`. [Details](https://github.test/acme/models/actions/runs/42)." in told
    assert (check["name"], check["conclusion"], check["external_id"]) == (
        "benchgate/made-up/candidate",
        "failure",
        made.blocked,
    )
    (note,) = check["annotations"]
    assert (note["path"], note["start_line"], note["annotation_level"]) == ("suite.yaml", 8, "failure")
    assert github.statuses[SHA][0]["state"] == github.deployments[5][0]["state"] == "failure"
    again = publish(tmp_path, job, bundle, "--comment", "--exit-verdict")
    assert again.returncode == 10
    assert "is up to date" in again.stderr


def test_a_run_that_passes_is_green_by_its_id_and_strict_means_what_it_means_to_the_gate(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    done = publish(tmp_path, job, made.passed, "--check-run", "--strict", "--exit-verdict", "--store", str(made.store))
    gate = here(tmp_path, "gate", made.passed, "--strict", "--store", str(made.store))
    assert done.returncode == gate.returncode
    assert (github.checks[0]["conclusion"] == "success") == (gate.returncode == 0)
    assert done.stdout == gate.stdout


def test_what_cannot_be_published_keeps_nothing_else_from_being_and_is_13(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    github.trouble("POST", "/check-runs", status=403, message="Resource not accessible by integration", times=2)
    bundle = str(made.bundles[made.passed])
    done = publish(tmp_path, job, bundle, *EVERYWHERE, "--format", "json")
    assert done.returncode == 13
    assert "not published: check-run: the check run: GitHub says Resource not accessible" in done.stderr
    assert "permissions: checks: write" in done.stderr
    document = json.loads(done.stdout)
    assert (document["outcome"], document["exit_code"], document["promotes"]) == ("PASS", 13, False)
    assert len(github.comments[7]) == len(github.statuses[SHA]) == len(github.deployments[5]) == 1
    assert publish(tmp_path, job, bundle, "--check-run", "--optional").returncode == 0
    without = publish(tmp_path, job | {"GITHUB_TOKEN": ""}, bundle, "--comment", "--summary")
    assert (without.returncode, "GITHUB_TOKEN is not set" in without.stderr) == (13, True)
    assert "PASS" in without.stdout


@pytest.mark.parametrize("how", ["another verdict was stored", "none was stored"])
def test_a_verdict_that_is_not_the_stored_one_is_never_green(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path, how: str
) -> None:
    store = tmp_path / "runs.db"
    if how == "none was stored":
        with Store.open(str(store)) as empty:
            run = add(empty, "2026-01-02", judged=False)
    else:
        run = made.passed
        shutil.copy(made.store, store)
        with Store.open(str(store)) as tampered:
            said = {**tampered.verdicts(run)[-1].document, "outcome": "BLOCK"}
            tampered.save_verdict(run, said, decided_at="2026-01-04T00:00:00.000Z")
    done = publish(tmp_path, job, run, *EVERYWHERE, "--optional", "--store", str(store))
    assert done.returncode == 13
    assert "as judged now, and" in done.stderr
    assert github.checks[0]["conclusion"] == "failure"
    assert github.checks[0]["output"]["title"].startswith("in doubt: run ")
    assert github.statuses[SHA][0]["state"] == github.deployments[5][0]["state"] == "error"
    assert "## benchgate: in doubt" in github.comments[7][0]["body"]


def test_a_bundle_that_was_changed_is_told_to_nobody(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    changed = tmp_path / "run.json"
    changed.write_text(made.bundles[made.blocked].read_text().replace("BLOCK", "PASS"))
    done = publish(tmp_path, job, str(changed), "--check-run")
    assert (done.returncode, github.asked, done.stdout) == (13, [], "")


def test_a_run_that_another_suite_of_this_name_measured_is_never_green(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("12 points", "2 points"))
    bundle = str(made.bundles[made.passed])
    done = publish(tmp_path, job, bundle, "--check-run", "--suite", "suite.yaml")
    assert done.returncode == 13
    assert "was not measured by suite.yaml" in done.stderr
    assert github.checks[0]["conclusion"] == "failure"
    (tmp_path / "suite.yaml").write_text(SUITE)
    assert publish(tmp_path, job, bundle, "--check-run", "--suite", "suite.yaml").returncode == 0
    (tmp_path / "suite.yaml").write_text("suite: 1")
    assert publish(tmp_path, job, bundle, "--check-run", "--suite", "suite.yaml").returncode == 13
    assert [one["conclusion"] for one in github.checks] == ["failure", "success", "failure"]


def test_a_run_whose_evals_were_made_elsewhere_is_never_green(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "b.db")) as store:
        run = begun(store, candidate={"facts": {"imported": True}})
        assert decide_stored(store, run).exit_code is ExitCode.OK
        found = judge_to_publish(store, run)
    assert found.doubt is not None and "its evals were made elsewhere" in found.doubt
    assert found.exit_code is ExitCode.PUBLISH_FAILED


def test_a_file_that_lies_there_under_the_label_of_a_run_is_not_taken_for_it(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    with Store.open(str(tmp_path / "runs.db")) as store:
        add(store, "2026-01-03", run_id=new_run_id(3, bytes(10)), blocked=True, label="nightly")
    shutil.copy(made.bundles[made.passed], tmp_path / "nightly")
    publish(tmp_path, job, "nightly", "--check-run", "--store", str(tmp_path / "runs.db"))
    assert github.checks[0]["conclusion"] == "failure"


def test_nothing_is_told_of_a_change_in_another_repository_but_that_it_came_to_no_verdict(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    event = {"workflow_run": {"head_sha": SHA, "head_repository": {"full_name": "mallory/models"}}}
    Path(job["GITHUB_EVENT_PATH"]).write_text(json.dumps(event))
    job |= {"GITHUB_EVENT_NAME": "workflow_run"}
    done = publish(tmp_path, job, str(made.bundles[made.passed]), "--check-run", "--sha", SHA)
    assert (done.returncode, github.asked) == (2, [])
    assert "this job is for a change in mallory/models" in done.stderr
    (tmp_path / "suite.yaml").write_text(SUITE)
    assert publish(tmp_path, job, "--no-verdict", "suite.yaml", "--check-run").returncode == 0
    assert github.checks[0]["conclusion"] == "failure"


def test_an_older_run_makes_nothing_green_over_a_newer_one_and_the_job_is_red(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    publish(tmp_path, job, str(made.bundles[made.blocked]), "--check-run", "--commit-status", "--comment")
    stale = publish(tmp_path, job, str(made.bundles[made.passed]), "--check-run", "--commit-status", "--comment")
    assert stale.returncode == 13
    assert stale.stderr.count(f"run {made.blocked} was measured after run {made.passed}") == 3
    assert [one["conclusion"] for one in github.checks] == ["failure"]
    assert [one["state"] for one in github.statuses[SHA]] == ["failure"]


def test_a_key_stands_beside_the_candidate_and_never_in_its_place(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    publish(tmp_path, job, str(made.bundles[made.passed]), "--commit-status", "--variant", "eu")
    assert github.statuses[SHA][0]["context"] == "benchgate/made-up/candidate/eu"


def test_what_stands_in_a_file_is_no_command_to_a_log_that_shows_its_mistakes(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "waivers.yaml").write_text('waivers: [{check: "x\\n::stop-commands::y\\e[2J"}]')
    done = publish(tmp_path, job, made.passed, "--summary", "--store", str(made.store), "--waivers", "waivers.yaml")
    assert done.returncode == 2
    assert "stop-commands" in done.stderr
    assert not any(line.startswith("::") for line in done.stderr.splitlines())
    assert "\x1b" not in done.stderr


def test_what_an_older_run_left_green_is_taken_back_before_the_next_is_measured(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    publish(tmp_path, job, str(made.bundles[made.passed]), "--check-run", "--commit-status")
    done = publish(tmp_path, job, "--begin", "suite.yaml", "--check-run", "--commit-status")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [one["status"] for one in github.checks] == ["completed", "in_progress"]
    assert {one["name"] for one in github.checks} == {"benchgate/made-up/candidate"}
    assert github.statuses[SHA][0]["state"] == "pending"
    ended = publish(tmp_path, job, "--no-verdict", "suite.yaml", *EVERYWHERE)
    assert ended.returncode == 0, ended.stderr
    assert [(one["status"], one["conclusion"]) for one in github.checks][1:] == [("completed", "failure")]
    assert github.statuses[SHA][0]["state"] == github.deployments[5][0]["state"] == "error"
    assert "## benchgate: candidate came to no verdict" in github.comments[7][0]["body"]
    github.trouble("POST", "/statuses", status=401)
    assert publish(tmp_path, job, "--begin", "suite.yaml", "--commit-status").returncode == 13


def test_a_comment_on_no_pull_request_is_no_failure_and_one_on_an_unknown_one_is(
    made: Made, github: FakeGitHub, job: dict[str, str], tmp_path: Path
) -> None:
    bundle = str(made.bundles[made.passed])
    pushed = job | {"GITHUB_EVENT_NAME": "push", "GITHUB_EVENT_PATH": "", "GITHUB_SHA": SHA}
    assert publish(tmp_path, pushed, bundle, "--comment").returncode == 0
    Path(job["GITHUB_EVENT_PATH"]).write_text(json.dumps({"pull_request": PULL["pull_request"] | {"number": None}}))
    lost = publish(tmp_path, job, bundle, "--comment")
    assert (lost.returncode, "add --pr" in lost.stderr) == (13, True)
    assert publish(tmp_path, pushed, bundle, "--comment", "--pr", "7").returncode == 0
    assert len(github.comments[7]) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run.json"], "nothing to publish to"),
        (["--comment"], "name the RUN to publish"),
        (["run.json", "--comment"], "there is no bundle run.json"),
        (["@latest", "--comment"], "may mean another run by now"),
        (["damaged.json", "--comment"], "is no bundle"),
        (["evidence/run", "--comment"], "a bundle is called ….json"),
        (["x", "--comment", "--candidate", "candidate"], "--candidate is of --begin and"),
        (["--begin", "suite.yaml", "--comment"], "--comment is of a run"),
        (["--no-verdict", "suite.yaml", "--comment", "--strict"], "--strict is of a run"),
        (["x", "--begin", "suite.yaml", "--check-run"], "RUN and --begin say two things"),
        (["--begin", "suite.yaml", "--check-run", "--candidate", "candidat"], "did you mean `candidate`?"),
    ],
)
def test_what_does_not_fit_together_is_said_before_anybody_is_told(
    github: FakeGitHub, job: dict[str, str], tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "damaged.json").write_text("[]")
    done = publish(tmp_path, job, *arguments)
    assert (done.returncode, github.asked) == (2, [])
    assert told in done.stderr


LINK = "https://ci.example/run/7"
TOLD = {SECRET: f"whsec_{base64.b64encode(bytes(32)).decode()}"}
MESSAGE = Message("tiny-q4", "q4", "run-1", Outcome.BLOCK, CheckState.FAILURE, "BLOCK", lambda budget: "")


@pytest.fixture(autouse=True)
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.release.publish.report_html", lambda decision: "<!doctype html>")


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
    assert b'benchgate_run_started_timestamp_seconds{suite="tiny-q4"} ' in metrics


def test_a_verdict_that_comes_again_after_another_is_a_message_of_its_own() -> None:
    with receiving([200] * 3) as receiver:
        to = parse_web_targets(f"http://localhost:{receiver.port}/hook", None, slack=False)
        for decided_at in ("2026-01-02T04:00:00.000Z", "2026-01-02T06:00:00.000Z", "2026-01-02T06:00:00.000Z"):
            one = replace(judged(), decided_at=decided_at)
            list(publish_all(MESSAGE, notifiers(one, to, LINK, TOLD, clock=receiver.clock)))
    first, again, sent_twice = (
        {key.lower(): one for key, one in seen[2].items()}["webhook-id"] for seen in receiver.seen
    )
    assert first != again == sent_twice


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
