"""The examples of other hosts: readable, with commands that benchgate knows, and no second chance to pass."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from benchgate.cli.app import app
from benchgate.load.standalone.shard import ShardOptions
from benchgate.suite.loader import parse_suite

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.is_file())
IMAGE = "registry.example.com/benchgate:0.1.0"
SOFT = {
    "allow_failure", "soft_fail", "continueOnError", "allow_dependency_failure", "continue_on_failure", "returnStatus",
    "catchError", "onError", "retries", "unstable", "|| true",
}  # fmt: skip


def documents(path: Path) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


def nodes(value: object) -> Iterator[object]:
    """Everything in a document, itself first."""
    yield value
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from nodes(inner)


def told(path: Path) -> Iterator[list[str]]:
    """The arguments of every call of benchgate: of containers, and of lines of scripts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".yaml", ".yml"):
        for node in nodes(documents(path)):
            if isinstance(node, dict) and node.get("image") == IMAGE and isinstance(node.get("args"), list):
                yield [str(word) for word in node["args"]]
            if isinstance(node, str):
                yield from calls(node)
    elif path.suffix == ".py":
        yield from calls(text)
    elif path.suffix in (".sh", ".sbatch"):
        yield from calls(re.sub(r"(?m)^ *(command=\(|srun )", "", text).replace("$shard/$shards", "0/2"))
    else:
        for line in re.findall(r"sh '([^']+)'", text):
            yield from calls(line)


def calls(script: str) -> Iterator[list[str]]:
    for line in script.splitlines():
        words = shlex.split(line, comments=True) if "benchgate" in line and line.count('"') % 2 == 0 else []
        for start in ("benchgate", IMAGE):
            if len(words) > 1 and (
                words[0] == start or (words[:2] == ["docker", "run"] and IMAGE in words and start == IMAGE)
            ):
                arguments = words[words.index(start) + 1 :]
                yield list(takewhile(lambda word: not re.fullmatch(r"&|\||>>?|&&|\|\|", word), arguments))


def parse(arguments: list[str]) -> str:
    """The name of the command that takes these arguments; an error of the command line for others."""
    command, words = typer.main.get_command(app), list(arguments)
    while commands := getattr(command, "commands", None):
        size = 2 if " ".join(words[:2]) in commands else 1  # `load merge`
        command, words = commands[" ".join(words[:size])], words[size:]
    command.make_context(str(command.name), words)
    return str(command.name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_command_of_an_example_is_one_that_benchgate_has(path: Path) -> None:
    found = [parse(arguments) for arguments in told(path)]
    asks_only = path.name in (
        "suite.yaml",
        "analysis-web.yaml",
        "canary.yaml",
        "stage.yaml",
        "benchgate.json",
        "kustomization.yaml",
    )
    assert bool(found) is not asks_only, path


def test_a_misspelled_option_or_command_would_be_seen() -> None:
    assert parse(["run", "suite.yaml", "--report", "r.html"]) == "run"
    for wrong in (["run", "suite.yaml", "--reprot", "r.html"], ["run"], ["rnu", "suite.yaml"]):
        with pytest.raises(Exception, match=r"No such option|Missing parameter|rnu"):
            parse(wrong)
    (found,) = calls(f'docker run --rm -e A {IMAGE} run suite.yaml --label "$B"')
    assert found == ["run", "suite.yaml", "--label", "$B"]


def test_no_example_gives_a_second_chance_or_lets_a_failure_pass() -> None:
    for path in EXAMPLES:
        lines = path.read_text(encoding="utf-8").splitlines()
        code = "\n".join(re.sub(r"(^|\s)(#|//)\s.*", "", line) for line in lines)
        assert [word for word in SOFT if word in code] == [], path
        for node in nodes(documents(path)) if path.suffix in (".yaml", ".yml") else ():
            if isinstance(node, dict) and "template" in node and "backoffLimit" not in str(node):
                assert "restartPolicy" not in str(node["template"]), f"{path}: a Job without backoffLimit tries 6 times"
            if isinstance(node, dict):
                assert node.get("backoffLimit", 0) == 0, path
                assert node.get("restartPolicy", "Never") == "Never", path


def test_containers_of_ours_run_without_rights_and_get_secrets_by_reference() -> None:
    seen = 0
    for path in (one for one in EXAMPLES if one.suffix == ".yaml"):
        for node in nodes(documents(path)):
            if not isinstance(node, dict) or node.get("image") != IMAGE or "securityContext" not in node:
                continue
            seen += 1
            assert node["securityContext"]["allowPrivilegeEscalation"] is False
            assert node["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert all("valueFrom" in one for one in node["env"] if not one["name"].endswith("_URL")), path
    assert seen >= 5


def test_the_suite_of_the_examples_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / "suite.yaml"
    suite = parse_suite(path.read_text(encoding="utf-8"), path.name)
    named = {node["candidate"] for node in nodes(documents(ROOT / "examples/flagger/canary.yaml"))
             if isinstance(node, dict) and "candidate" in node}  # fmt: skip
    assert named == {suite.candidate}


def test_what_promotes_by_its_own_word_for_main_runs_on_main_alone() -> None:
    """None of these hosts tells a job whether its branch is protected, so the line that holds it to `main` is all."""
    held = {
        "azure-pipelines.yml": "condition: and(succeeded(), eq(variables['Build.SourceBranch'], 'refs/heads/main'))",
        "pipeline.yml": "branches: main",
        "config.yml": "filters: {branches: {only: main}}",
        "Jenkinsfile": "when { branch 'main' }",
    }
    said = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES}
    promoting = {name: text for name, text in said.items() if "--protected" in text}
    assert promoting.keys() == held.keys()
    for name, text in promoting.items():
        assert held[name] in text, name


def test_every_example_that_measures_takes_its_hosts_lock_or_says_that_there_is_none() -> None:
    locks = {
        ".gitlab-ci.yml": "resource_group: benchgate",
        "Jenkinsfile": "lock(resource: 'benchgate')",
        "azure-pipelines.yml": "lockBehavior: sequential",
        "pipeline.yml": "concurrency_group: benchgate",
        "config.yml": "serial-group: benchgate",
        "cronjob.yaml": "concurrencyPolicy: Forbid",
    }
    none = ("job.yaml", "analysis-job.yaml", "task.yaml")
    measuring = {path for path in EXAMPLES for words in told(path) if words[0] == "run"}
    assert sorted(path.name for path in measuring) == sorted([*locks, *none])
    for path in measuring:
        assert locks.get(path.name, "no lock") in path.read_text(encoding="utf-8"), path


def test_azure_measures_in_a_job_that_its_environment_can_lock() -> None:
    """A stage asks for a lock only of what its jobs use, and a plain job uses no environment."""
    (pipeline,) = documents(ROOT / "examples/azure/azure-pipelines.yml")
    for stage in pipeline["stages"]:
        (job,) = stage["jobs"]
        assert stage["lockBehavior"] == "sequential" and job["deployment"] == stage["stage"] and job["environment"]


def test_a_job_that_runs_again_has_the_label_of_its_first_run_and_promotes_it() -> None:
    """A label of each attempt would measure again: a second chance to pass. These are the same in every attempt."""
    steady = {
        ".gitlab-ci.yml": "pipeline-$CI_PIPELINE_ID",
        "Jenkinsfile": "$BUILD_TAG",
        "azure-pipelines.yml": "$BUILD_BUILDNUMBER",
        "pipeline.yml": "build-$BUILDKITE_BUILD_NUMBER",
        "config.yml": "pipeline-<< pipeline.number >>",
    }
    for name, label in steady.items():
        (path,) = [path for path in EXAMPLES if path.name == name]
        measured, promoted = [words for words in told(path) if words[0] in ("run", "promote")]
        assert (measured[measured.index("--label") + 1], promoted[1]) == (label, label)


def test_every_example_names_who_promotes_where_the_host_does_not() -> None:
    """Only GitLab's job reports a person, and a container's user has no name. MLflow's example is typed by a person."""
    named = {path.name: words for path in EXAMPLES for words in told(path) if words[0] == "promote"}
    assert {name for name, words in named.items() if "--by" not in words} == {".gitlab-ci.yml", "set_alias.py"}
    assert all(words[words.index("--by") + 1] for words in named.values() if "--by" in words)


def test_every_example_that_promotes_refuses_weights_of_which_nobody_says_which_they_are() -> None:
    promoting = {path.name: words for path in EXAMPLES for words in told(path) if words[0] == "promote"}
    assert len(promoting) == 6
    assert [name for name, words in promoting.items() if "--require-pinned" not in words] == []


def test_every_question_of_flagger_names_the_weights() -> None:
    asked = [node["metadata"] for node in nodes(documents(ROOT / "examples/flagger/canary.yaml"))
             if isinstance(node, dict) and "candidate" in node.get("metadata", {})]  # fmt: skip
    assert len(asked) == 2 and all(one["revision"] for one in asked)


KUBERNETES = sorted((ROOT / "examples/kubernetes").rglob("*.yaml"))
DEFINITIONS = ROOT / "tests/fixtures/kubernetes/definitions-1.34.json"  # scripts/kubernetes_schemas.py
KINDS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "CronJob": "io.k8s.api.batch.v1.CronJob",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Service": "io.k8s.api.core.v1.Service",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
}


def faults_of(document: object, kind: str) -> list[str]:
    """Faults of a document by Kubernetes' own schema of its kind."""
    schema = {"$ref": f"#/$defs/{kind}", **json.loads(DEFINITIONS.read_text(encoding="utf-8"))}
    return [f"{fault.json_path}: {fault.message}" for fault in Draft202012Validator(schema).iter_errors(document)]


def manifests(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The documents of a file with the names of their schemas; of a JobSet its jobs, of a kustomization its maps."""
    for found in documents(path):
        document = json.loads(json.dumps(found, default=str))
        if document["kind"] == "JobSet":  # its own definition is in no package registry
            assert document["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and set(document["metadata"]) == {"name"}
            assert set(document["spec"]) == {"failurePolicy", "replicatedJobs"}
            for job in document["spec"]["replicatedJobs"]:
                assert set(job) == {"name", "replicas", "template"} and job["replicas"] == 1
                yield job["template"], "io.k8s.api.batch.v1.JobTemplateSpec"
        elif document["kind"] == "Kustomization":
            assert all((path.parent / name).exists() for name in document["resources"])
            for one in document["configMapGenerator"]:
                data = dict(literal.split("=", 1) for literal in one["literals"])
                meta = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one["name"]}}
                yield meta | {"data": data}, KINDS["ConfigMap"]
        else:
            yield document, KINDS[document["kind"]]


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_manifests_of_kubernetes_fit_its_schemas(path: Path) -> None:
    found = list(manifests(path))
    assert found and [fault for document, kind in found for fault in faults_of(document, kind)] == []


def test_a_misspelled_key_of_a_manifest_would_be_seen() -> None:
    document, kind = next(manifests(ROOT / "examples/kubernetes/load/job.yaml"))
    document["spec"]["completionmode"] = document["spec"].pop("completionMode")
    document["spec"]["completions"] = "eight"
    second, first = sorted(faults_of(document, kind), key=lambda fault: "unexpected" in fault)
    assert "'completionmode' was unexpected" in first and "'eight' is not of type" in second


def test_jobs_of_a_jobset_send_every_shard_once_and_settings_come_from_the_base() -> None:
    sent, settings = [], set[str]()
    for path in (ROOT / "examples/kubernetes/load/job.yaml", ROOT / "examples/kubernetes/load/jobset.yaml"):
        numbers = []
        for document, _ in manifests(path):
            job = document["spec"]
            (container,) = job["template"]["spec"]["containers"]
            (shard,) = [word for word in container["args"] if word.startswith("--shard=")]
            for index in range(job["completions"]):
                place = ShardOptions.parse(
                    shard.removeprefix("--shard="), "1800000000", "s", {"JOB_COMPLETION_INDEX": str(index)}
                )
                assert place is not None
                numbers.append((place.shard, place.shards))
            settings |= {name for word in container["args"] for name in re.findall(r"\$\((\w+)\)", word)}
        sent.append(sorted(numbers))
    assert sent == [[(shard, 8) for shard in range(8)]] * 2
    base = next(document for document, _ in manifests(ROOT / "examples/kubernetes/load/kustomization.yaml"))
    assert settings <= {*base["data"]}
