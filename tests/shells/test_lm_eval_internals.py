"""What is used of lm-eval beyond its documented interface, in processes of their own: tests never import lm-eval."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TASK = "task: {}\ntag: [own_tag]\ndataset_path: json\noutput_type: generate_until\n"

MISSING = """
import lm_eval.tasks._factory
del lm_eval.tasks._factory.TaskFactory
import benchgate.quality.lm_eval_internals
"""

INDEX = """
import sys
from pathlib import Path
from benchgate.quality import lm_eval_internals as internals

root, included = map(Path, sys.argv[1:])
internals.OWN_TASKS = root
found = internals.task_index([included])
assert {name: entry.kind.name for name, entry in found.items()} == {
    "one": "TASK", "two": "TASK", "both": "GROUP", "own_tag": "TAG", "mine": "TASK", "other_tag": "TAG"
}
(root / "one.yaml").write_text("broken: [")  # from now on it comes from the cache
again = internals.task_index([included])
assert {name: (e.kind, e.yaml_path, e.tags) for name, e in again.items()} == {
    name: (e.kind, e.yaml_path, e.tags) for name, e in found.items()
}
assert (again["one"].yaml_path, again["own_tag"].tags) == (root / "one.yaml", {"one", "two"})
assert again["mine"].yaml_path == included / "mine.yaml"
"""

REPETITIONS = """
from pathlib import Path
from types import SimpleNamespace
from benchgate.model.deployment import Arm
from benchgate.plan.items import PlannedTask
from benchgate.quality import worker
from benchgate.quality.lm_eval_internals import build_task
from benchgate.quality.protocol import ItemPrompt, Job
from benchgate.quality.recorded_model import RecordedModel
from benchgate.suite.deployment import DeploymentSpec
from benchgate.targets.dialect import target_of

config = {
    "task": "t", "test_split": "test", "fewshot_split": "shots", "num_fewshot": 2, "repeats": 3,
    "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "a",
    "generation_kwargs": {"until": [], "temperature": 0.7}, "metric_list": [{"metric": "exact_match"}],
}
rows, shots = ([{"id": f"{name}{n}", "q": f"{name}{n}", "a": str(n)} for n in range(30)] for name in "rs")
task = PlannedTask("t", config, tuple(rows[:6]), shots=tuple(shots))
target = target_of(Arm.BASELINE, DeploymentSpec(url="http://h:1", model="m"), {}, Path("."))

def prompts(round_rows):
    job = Job(target, "completions", 2, 16, 1.0, 1.0, (task,), round_rows=round_rows, recorded={})
    events = []
    spool = SimpleNamespace(write=lambda *found: events.extend(found), sync=lambda: None)
    model, built = RecordedModel(job, spool), build_task(task)
    for parts in job.rounds():
        for _, part in parts:
            worker._evaluate_rows(job, model, task, built, part, spool)
    return [(e.item_id, e.fields["seed"], e.content["prompt"]) for e in events if isinstance(e, ItemPrompt)]

sent = prompts(None)
assert len(sent) == 18 and len({seed for _, seed, _ in sent}) == 3
assert len({(item, prompt) for item, _, prompt in sent}) == 6
assert len({prompt[:12] for _, _, prompt in sent}) > 1  # items have different examples
assert sorted(prompts(2)) == sorted(sent)
"""

BODIES = """
import itertools, json
from types import SimpleNamespace
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from benchgate.model.deployment import Arm
from benchgate.quality.protocol import Job
from benchgate.quality.recorded_model import RecordedModel
from benchgate.targets.dialect import DIALECTS, Target

messages = [{"role": "user", "content": "Wie viel ist 2 + 2? \\u00fc"}]
settings = [
    {"until": ["\\n", "</s>"], "do_sample": False, "temperature": 0.0},
    {"until": ["a", "b", "c", "d", "e"], "max_gen_toks": 7, "temperature": 0.5, "top_p": 0.9},
    {"until": "Q:", "max_tokens": 9, "do_sample": True},
    {"until": ["x"]},
]
for backend, endpoint in ((LocalChatCompletion, "chat"), (LocalCompletionsAPI, "completions")):
    theirs = backend(base_url="http://127.0.0.1:9", model="m", max_gen_toks=64, tokenizer_backend=None,
                     tokenized_requests=False)
    target = Target(Arm.BASELINE, "http://127.0.0.1:9", "m", DIALECTS["openai"])
    ours = RecordedModel(Job(target, endpoint, 1, 64, connect_s=1, total_s=1, tasks=()), None)
    ours._ids, ours._rows = ("item",), range(1)
    prompts = [model.apply_chat_template(messages) if endpoint == "chat" else "2 + 2 =" for model in (theirs, ours)]
    assert prompts[0].encode("utf-8") == prompts[1].encode("utf-8")
    for kwargs in settings:
        expected = theirs._create_payload(
            theirs.create_message([prompts[0]]), generate=True, gen_kwargs=dict(kwargs), seed=1234
        )
        prompt, unsent = ours._prompt(SimpleNamespace(args=(prompts[1], dict(kwargs)), task_name="t", doc_id=0))
        body = ours._body(prompt)
        assert body == expected, (body, expected)
        assert unsent == (["e"] if endpoint == "chat" and len(kwargs["until"]) == 5 else [])
"""


LIMITS = """
from types import SimpleNamespace
from benchgate.model.deployment import Arm
from benchgate.quality.protocol import Job
from benchgate.quality.recorded_model import RecordedModel
from benchgate.quality.tasks.lm_eval_resolver import _with_suite_settings
from benchgate.targets.dialect import DIALECTS, Target

target = Target(Arm.BASELINE, "http://127.0.0.1:9", "m", DIALECTS["openai"])
model = RecordedModel(Job(target, "completions", 1, 64, connect_s=1, total_s=1, tasks=()), None)
model._ids, model._rows = ("item",), range(1)
for name in ("max_gen_toks", "max_tokens", "max_new_tokens", "max_completion_tokens"):
    task = {"generation_kwargs": {"until": [], name: 9}}
    settings = _with_suite_settings(task, {"few_shot": None, "max_tokens": 1024})["generation_kwargs"]
    prompt, _ = model._prompt(SimpleNamespace(args=("2 + 2 =", settings), task_name="t", doc_id=0))
    body = model._body(prompt)
    assert {key: value for key, value in body.items() if key.startswith("max")} == {"max_tokens": 1024}, body
"""

UNREAD = """
from dataclasses import replace
from benchgate.model.records import VerifiedAnswer
from benchgate.plan.items import PlannedTask
from benchgate.quality.worker import _evaluate_rows
from benchgate.quality.lm_eval_internals import build_task
from benchgate.quality.protocol import ItemScored, Job
from benchgate.quality.recorded_model import RecordedModel
from benchgate.model.deployment import Arm
from benchgate.targets.dialect import DIALECTS, Target
from types import SimpleNamespace

TARGET = Target(Arm.BASELINE, "http://127.0.0.1:9", "m", DIALECTS["openai"])

def scored(answer, *steps, right="5", metric="exact_match"):
    config = {
        "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "right",
        "generation_kwargs": {"until": [], "temperature": 0}, "metric_list": [{"metric": metric}],
        **({"filter_list": [{"name": "f", "filter": [*steps, {"function": "take_first"}]}]} if steps else {}),
    }
    row = {"id": "a", "q": "?", "right": right, "choices": ["red", "blue"]}
    task = PlannedTask("t", config, (row,), metric, "f" if steps else "none", scale="continuous")
    answers = {} if answer is None else {"a": VerifiedAnswer("t", "a", answer)}
    job = Job(TARGET, "chat", 2, 16, 1.0, 1.0, (task,), recorded={"t": answers})
    events = []
    spool = SimpleNamespace(write=lambda *found: events.extend(found))
    _evaluate_rows(job, RecordedModel(job, spool), task, build_task(task), range(1), spool)
    items = [event for event in events if isinstance(event, ItemScored)]
    return (items[0].score, items[0].choice) if items else None

def regex(pattern="([0-9]+)", **more):
    return {"function": "regex", "regex_pattern": pattern, **more}

def shout(resps, docs):
    return [["[invalid]" if text == "?" else text.upper() for text in one] for one in resps]

assert scored(None, {"function": "take_first_k", "k": 1}) is None
assert scored("It is 5", regex()) == (1.0, "5")
UNREAD = (0.0, "[invalid]")
assert scored("none", regex()) == UNREAD
assert scored("none", regex(fallback="no number")) == UNREAD
assert scored("none", regex(), {"function": "uppercase"}) == UNREAD
assert scored("none", regex(), regex("([a-z]+)")) == UNREAD  # `invalid` is not of the answer
assert scored("none", regex("([0-9]*)x?")) == UNREAD  # it matches, but no text
assert scored("green", {"function": "multi_choice_regex", "regex_pattern": "is (.)$", "fallback": "-"}) == UNREAD
assert scored("no", {"function": "map", "mapping_dict": {"yes": "5"}, "default_value": "other"}) == UNREAD
assert scored("?", {"function": "custom", "filter_fn": shout}) == UNREAD
assert scored("none", regex(fallback="5")) == UNREAD  # which would be right
assert scored("no", {"function": "map", "mapping_dict": {"yes": "6"}, "default_value": "5"}) == UNREAD
assert scored("none", regex(fallback="5 of them"), metric="chrf", right="5 of it") == UNREAD
assert scored("blue", {"function": "multi_choice_regex", "regex_pattern": "is (.)$"}, right="(B)") == (1.0, "(B)")
assert scored("yes", {"function": "map", "mapping_dict": {"yes": "5"}, "default_value": "other"}) == (1.0, "5")
strip, own = {"function": "remove_whitespace"}, {"function": "custom", "filter_fn": shout}
for steps in ((), (regex("(.+)"),), (strip,), (own,)):
    score, choice = scored("[invalid]", *steps)
    assert choice and choice != "[invalid]", steps  # it was read, and is that text
"""


def run(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **path, **environment}, capture_output=True, text=True)


@pytest.mark.slow
def test_a_version_of_lm_eval_without_an_internal_that_is_needed_is_named_with_what_to_install() -> None:
    ended = run(MISSING)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("lm-eval 0.4.")
    assert "has no lm_eval.tasks._factory.TaskFactory, which benchgate needs; install the extra `eval`" in ended.stderr


def test_the_index_of_tasks_is_read_once_and_then_from_the_cache(tmp_path: Path) -> None:
    own, included = tmp_path / "own", tmp_path / "included"
    for folder in (own, included):
        folder.mkdir()
    for name in ("one", "two"):
        (own / f"{name}.yaml").write_text(TASK.format(name))
    (own / "both.yaml").write_text("group: both\ntask: [one, two]\n")
    (included / "mine.yaml").write_text(TASK.format("mine").replace("own_tag", "other_tag"))
    ended = run(INDEX, own, included, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert ended.returncode == 0, ended.stderr
    assert len(list((tmp_path / "cache/benchgate").iterdir())) == 1


def test_requests_are_those_of_lm_evals_own_client() -> None:
    ended = run(BODIES)
    assert ended.returncode == 0, ended.stderr


def test_a_limit_of_the_suite_replaces_that_of_the_task_whatever_its_name() -> None:
    ended = run(LIMITS)
    assert ended.returncode == 0, ended.stderr


def test_every_repetition_of_an_item_sends_the_same_few_shot_examples_in_rounds_too() -> None:
    ended = run(REPETITIONS)
    assert ended.returncode == 0, ended.stderr


def test_answer_is_unread_and_wrong_where_the_filter_found_nothing_and_not_where_it_is_the_fallbacks_text() -> None:
    ended = run(UNREAD)
    assert ended.returncode == 0, ended.stderr
