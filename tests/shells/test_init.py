"""`init` with two endpoints: they are asked who they are, and a suite is written; or nothing is, and a reason given."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from benchgate.errors import UsageError
from benchgate.init import files
from benchgate.init.files import workflow_text
from benchgate.init.probe import EndpointOption, ProbedEndpoint, probe_endpoints
from benchgate.init.purpose import CHANGES, Purpose
from benchgate.model.deployment import Arm
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.json_schema import json_schema
from benchgate.suite.loader import parse_suite
from benchgate.suite.waivers import parse_waivers
from benchgate.targets.discovery import Trial
from tests.e2e.command import here
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response

ROOT = Path(__file__).parents[2]
FILES = {
    "suite.yaml",
    "evals/arithmetic.yaml",
    "evals/arithmetic.jsonl",
    "waivers.yaml",
    ".github/workflows/benchgate.yml",
}


LEAKED = "pass-phrase-0123"


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def server(*models: str, owner: str = "vllm", key: str | None = None) -> ScriptedServer:
    """Lists its models and completes for them alone, and only with its key where it has one."""
    answers = answering(lambda received: "one two three four")

    def respond(received: Received) -> Iterator[Step]:
        if key is not None and received.headers.get("authorization") != f"Bearer {key}":
            yield json_response({"error": {"message": "who are you?"}}, status=401)
        elif received.path == "/v1/models":
            yield json_response({"data": [{"id": model, "owned_by": owner} for model in models]})
        elif received.body is not None and received.body["model"] not in models:
            yield json_response({"error": {"message": "no such model"}}, status=404)
        else:
            yield from answers(received)

    return ScriptedServer(respond)


def begun(folder: Path, baseline: str, candidate: str, *more: str) -> Any:
    return here(folder, "init", "--baseline", baseline, "--candidate", candidate, *more)


def test_two_endpoints_become_a_suite_that_is_valid_and_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_KEY", "sk-very-secret-0123")
    with server("org/Old-7B") as old, server("org/New-7B FP8", owner="sglang", key="sk-very-secret-0123") as new:
        done = begun(tmp_path, old.url, new.url, "--api-key-env", "SERVING_KEY", "--dir", "repo")
        asked = [len(one.requests) for one in (old, new)]
    assert done.returncode == 0, done.stderr
    assert (
        set(done.stdout.split())
        == {f"repo/{name}" for name in FILES}
        == {f"repo/{f}" for f in written(tmp_path / "repo")}
    )
    assert done.stderr.endswith("next: benchgate doctor repo/suite.yaml\n") and "gate.yml@COMMIT" in done.stderr
    assert max(asked) <= 6

    text = (tmp_path / "repo/suite.yaml").read_text()
    suite = parse_suite(text, "suite.yaml")
    current, following = suite.deployments["current"], suite.deployments["next"]
    assert (current.url, current.model, current.engine) == (old.url, "org/Old-7B", "vllm")
    assert (following.url, following.model, following.engine) == (new.url, "org/New-7B FP8", "sglang")
    assert suite.suite == "new-7b-fp8" and following.api_key == "${env:SERVING_KEY}"
    assert suite.load is not None and suite.quality is not None and suite.slo is not None
    assert suite.gate.operating in {stage.name for stage in suite.load.sweep}
    assert {"accuracy", "ttft", "goodput", "error_rate"} <= {check.metric for check in suite.gate.checks}
    assert Draft202012Validator(json_schema("suite")).is_valid(yaml.safe_load(text))
    everything = "".join((tmp_path / "repo" / name).read_text() for name in FILES)
    assert "very-secret" not in everything + done.stdout + done.stderr

    planned = here(tmp_path, "plan", "repo/suite.yaml", "--format", "json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["eval_items"] == 2 * files.EVAL_ITEMS
    assert parse_waivers((tmp_path / "repo/waivers.yaml").read_text(), "w", date(2026, 1, 1)).waivers.entries == ()


@pytest.mark.slow
def test_two_practice_servers_become_a_suite_without_evals(tmp_path: Path) -> None:
    settings = sim_settings(ttft_s=0.02, itl_s=0.001)
    with serve_sim(settings) as old, serve_sim(settings) as new:
        done = begun(tmp_path, old.url, new.url)
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) == {file for file in FILES if not file.startswith("evals")}
    suite = parse_suite((tmp_path / "suite.yaml").read_text(), "suite.yaml")
    assert suite.quality is None
    assert [(spec.url, spec.model, spec.engine) for spec in suite.deployments.values()] == [
        (old.url, "sim", "vllm"),
        (new.url, "sim", "vllm"),
    ]


def test_nothing_is_written_over_and_nobody_is_asked_before_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "waivers.yaml").write_text("waivers: []\n")
    with server("m") as one:
        done = begun(tmp_path, one.url, f"{one.url}/other")
    assert done.returncode == 2 and "waivers.yaml: there already" in done.stderr
    assert "name another folder with --dir" in done.stderr and "go on" not in done.stderr
    assert written(tmp_path) == {"waivers.yaml"} and one.requests == []


def test_a_suite_that_is_there_already_is_told_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text("suite: mine\n")
    alone = begun(tmp_path, "http://localhost:1", "http://localhost:2")
    assert alone.returncode == 2 and alone.stderr.rstrip().endswith("next-suite.yaml`")
    (tmp_path / "waivers.yaml").write_text("waivers: []\n")
    again = begun(tmp_path, "http://localhost:1", "http://localhost:2")
    assert again.returncode == 2 and "`benchgate run suite.yaml`; else move what is in the way" in again.stderr


def dead_url() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_what_is_wrong_with_either_endpoint_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAKED", LEAKED)
    servers = (server("m", key="k" * 20), server("a", "b"), server(), server("m"), server(f"m-{LEAKED}"))
    with ExitStack() as stack:
        locked, many, none, good, leaky = (stack.enter_context(one) for one in servers)
        for baseline, candidate, more, says in (
            (dead_url(), locked.url, (), ("does not answer", "correct --baseline", "wants a key", "--api-key-env")),
            (many.url, none.url, (), ("serves 2 models: a, b; name one with --model", "does not list its models")),
            (
                good.url,
                many.url,
                ("--model", "m"),
                ("the candidate", "does not serve the model 'm'", "correct --model"),
            ),
            (good.url, good.url, (), ("are one deployment",)),
            (leaky.url, good.url, ("--api-key-env", "LEAKED"), ("shows its key among the names",)),
            (f"{good.url}/v1/models", good.url, (), ("--baseline: ends in /v1/models",)),
            (good.url.replace("//", "//user:pw@"), good.url, (), ("--baseline: holds credentials",)),
            (good.url, locked.url, ("--api-key-env", "NO_SUCH_VARIABLE"), ("NO_SUCH_VARIABLE is not set",)),
            (good.url, good.url, ("--model", "a", "--model", "b", "--model", "c"), ("--model is given 3 times",)),
            (good.url, good.url, ("--drill", "prefill"), ("a drill has its own deployments",)),
            ("ftp://x", good.url, (), ("is not an address",)),
        ):
            done = begun(tmp_path, baseline, candidate, *more)
            assert done.returncode == 2 and done.stdout == ""
            for line in says:
                assert line in done.stderr, done.stderr
            assert "pw" not in done.stderr and LEAKED not in done.stderr
            assert written(tmp_path) == set()


def test_a_wrong_key_is_told_by_its_variable_alone() -> None:
    with server("m", key="k" * 20) as locked, pytest.raises(UsageError) as refused:
        named = [EndpointOption(arm, locked.url, "m", "SOME_KEY") for arm in Arm]
        probe_endpoints((named[0], named[1]), {"SOME_KEY": "wrong-key-wrong-key"})
    assert "refuses the key in SOME_KEY" in str(refused.value) and "wrong-key" not in str(refused.value)


def test_addresses_by_reference_stay_references(tmp_path: Path) -> None:
    with server("a") as one, server("b") as two:
        urls = {"OLD_URL": one.url, "NEW_URL": two.url}
        met = probe_endpoints(
            (EndpointOption(Arm.BASELINE, "${env:OLD_URL}"), EndpointOption(Arm.CANDIDATE, "${env:NEW_URL}")), urls
        )
    written = files.render_files(tmp_path, Path("suite.yaml"), *met)
    assert parse_suite(written[tmp_path / "suite.yaml"], "s").deployments["next"].url == "${env:NEW_URL}"
    assert not any(url in text for url in urls.values() for text in written.values())
    workflow = yaml.safe_load(written[tmp_path / files.WORKFLOW])
    handed = workflow["jobs"]["benchgate"]["secrets"]["variables"]
    assert handed == "".join(f"{name}=${{{{ secrets.{name} }}}}\n" for name in urls)


def test_a_variable_that_the_gate_would_refuse_is_refused_at_the_beginning(tmp_path: Path) -> None:
    one = met("a")
    small = replace(one, spec=one.spec.model_copy(update={"api_key": "${env:serving_key}"}))
    with pytest.raises(UsageError, match="call the variable SERVING_KEY"):
        files.render_files(tmp_path, Path("suite.yaml"), met("b"), small)


def test_workflow_says_what_the_one_it_calls_takes_and_permits_what_that_needs() -> None:
    called = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text())
    takes = called[True]["workflow_call"]  # YAML 1.1 reads `on` as a truth
    text = workflow_text(suite='"s.yaml"', waivers="waivers.yaml", variables=["KEY"])
    gate = yaml.safe_load(text)["jobs"]["benchgate"]
    spoken = {line.split(":")[0].strip(" #") for line in text.splitlines() if line.startswith("      # ")}
    assert set(gate["with"]) | spoken <= set(takes["inputs"]) and "runner" in spoken
    assert set(gate["secrets"]) <= set(takes["secrets"])
    needed = {name: how for job in called["jobs"].values() for name, how in (job.get("permissions") or {}).items()}
    assert {**needed, **gate["permissions"]} == gate["permissions"]
    assert "verdict" in called["jobs"] and "`benchgate / verdict`" in text


def met(
    model: str, *, first_s: float | None = 0.05, whole_s: float = 0.36, context: int | None = None
) -> ProbedEndpoint:
    trial = Trial(None, 32 if first_s else None, "length", first_s, whole_s, 32 if first_s else 1)
    return ProbedEndpoint(DeploymentSpec(url=f"http://{'abc'[len(model) % 3]}:1", model=model), trial, context)


@pytest.mark.parametrize(
    "model", ["m", "org/x:latest", "ünï \u2028 kö", '"quoted": {a: [b', "# not a comment", "x" * 300, "-", "yes", "8"]
)
def test_whatever_a_model_is_called_the_suite_says_it_as_it_is(model: str) -> None:
    text = files.suite_text(met(model), met("other one"), file="suite.yaml", task="evals/arithmetic.yaml")
    assert parse_suite(text, "suite.yaml").deployments["current"].model == model


@pytest.mark.parametrize(
    ("answered", "declared"),
    [(None, ()), ("m", ()), ("org/M", ()), ("m-2025-01-31", ()), ("small", ("small",)), ('"x": {', ('"x": {',))],
)
def test_another_name_in_the_answers_is_declared(answered: str | None, declared: tuple[str, ...]) -> None:
    one = replace(met("m"), trial=replace(met("m").trial, model=answered))
    text = files.suite_text(one, met("other one"), file="suite.yaml", task="evals/arithmetic.yaml")
    assert parse_suite(text, "suite.yaml").deployments["current"].answers_as == declared
    assert ("answers_as" in text) is bool(declared)


@pytest.mark.parametrize(
    ("first_s", "whole_s", "rate", "ttft"),
    [
        (0.05, 0.36, "2", 0.2),
        (0.5, 3.6, "0.2", 2.0),
        (0.002, 0.02, "50", 0.2),
        (30.0, 60.0, "0.05", 100.0),
        (None, 1.0, "1", 5.0),
    ],
)
def test_load_and_slo_follow_what_a_lone_request_took(
    first_s: float | None, whole_s: float, rate: str, ttft: float
) -> None:
    both = met("a", first_s=first_s, whole_s=whole_s), met("bb", first_s=first_s, whole_s=whole_s)
    suite = parse_suite(files.suite_text(*both, file="s.yaml", task="t.yaml"), "s.yaml")
    assert suite.load is not None and suite.slo is not None
    assert [stage.name for stage in suite.load.sweep] == ["c8", f"r{rate}"]
    assert suite.slo.ttft_s == pytest.approx(ttft)


def test_measured_times_are_rounded() -> None:
    # nanoseconds that end with a zero have no more digits than a bound may have
    text = files.suite_text(met("a", first_s=0.03334377, whole_s=0.12593), met("b"), file="s.yaml", task=None)
    assert "  current: # a lone request took 126ms, its first token 33.3ms, each further one 2.99ms\n" in text


@pytest.mark.parametrize("purpose", [None, *Purpose])
def test_a_purpose_declares_the_change_and_what_may_differ(purpose: Purpose | None) -> None:
    text = files.suite_text(met("a"), met("bb"), file="s.yaml", task="t.yaml", purpose=purpose)
    suite = parse_suite(text, "s.yaml")
    change, different = (None, ()) if purpose is None else CHANGES[purpose]
    assert (suite.change, suite.gate.allow_different) == (change, different)


@pytest.mark.parametrize(
    ("engines", "ignored", "only"),
    [
        (("vllm", "sglang"), True, None),
        (("tgi", "ollama"), True, None),
        (("vllm", "tgi"), False, "vllm"),
        (("openai", "llamacpp"), False, "llamacpp"),
    ],
)
def test_answers_end_by_themselves_where_one_engine_alone_could_write_on(
    engines: tuple[str, str], ignored: bool, only: str | None
) -> None:
    both = [
        replace(one, spec=one.spec.model_copy(update={"engine": engine}))
        for one, engine in zip((met("a"), met("bb")), engines, strict=True)
    ]
    text = files.suite_text(both[0], both[1], file="s.yaml", task="t.yaml")
    load = parse_suite(text, "s.yaml").load
    assert load is not None
    assert load.workload.ignore_eos is ignored
    assert (f"only {only} can" in text) is (not ignored)


def test_prices_need_their_marks_taken_away_alone() -> None:
    text = files.suite_text(met("a"), met("bb"), file="s.yaml", task="t.yaml")
    priced = text.replace("    # price: $4/h\n    # accelerators: 1\n", "    price: $4/h\n    accelerators: 8\n")
    for written, expected in ((text, [(None, 1)] * 2), (priced, [(4.0, 8)] * 2)):
        specs = parse_suite(written, "s.yaml").deployments.values()
        assert [(spec.usd_per_hour, spec.accelerators) for spec in specs] == expected


def test_small_context_is_not_asked_for_more_than_it_holds() -> None:
    text = files.suite_text(met("a", context=256), met("bb"), file="s.yaml", task="t.yaml")
    load = parse_suite(text, "s.yaml").load
    assert load is not None
    longest = (load.workload.most_input_tokens or 0) + (load.workload.most_output_tokens or 0)
    assert 0 < longest <= 256 // 2


def test_the_model_that_ships_is_asked_for_sums_in_its_own_form(tmp_path: Path) -> None:
    both = (replace(met("a"), shipped=True), replace(met("bb"), shipped=True))
    written = files.render_files(tmp_path, Path("suite.yaml"), *both)
    assert 'doc_to_text: "add {{problem}}"' in written[tmp_path / "evals/arithmetic.yaml"]
    load = parse_suite(written[tmp_path / "suite.yaml"], "s").load
    assert load is not None and load.workload.text == "letters"
    rows = [json.loads(line) for line in written[tmp_path / "evals/arithmetic.jsonl"].splitlines()]
    assert len({row["problem"] for row in rows}) == len(rows) == files.EVAL_ITEMS
    assert all(sum(map(int, row["problem"].split())) == int(row["answer"]) for row in rows)


def test_items_are_right_and_each_is_asked_once() -> None:
    rows = [json.loads(line) for line in files.eval_rows().splitlines()]
    assert len({row["id"] for row in rows}) == len({row["problem"] for row in rows}) == len(rows) == files.EVAL_ITEMS
    for row in rows[:40]:
        left, sign, right = row["problem"].split()
        value = int(left) + int(right) if sign == "+" else int(left) * int(right)
        assert int(row["answer"]) == value


def test_nothing_is_left_where_one_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file, and no folder")
    texts: Mapping[Path, str] = {tmp_path / "a": "text", tmp_path / "b" / "c": "text"}
    with pytest.raises(UsageError, match="nothing is left"):
        files.write_files(texts)
    assert written(tmp_path) == {"b"}
