"""The files of `benchgate init`: a first suite, an eval, waivers and a workflow, written all or none, over nothing."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.gate.guards.text import unexpected_names
from benchgate.init.probe import ProbedEndpoint
from benchgate.init.purpose import CHANGES, Purpose
from benchgate.suite.address import reference_name
from benchgate.suite.loader import parse_suite
from benchgate.targets.dialect import DIALECTS
from benchgate.units import as_written, show_duration

WORKFLOW = Path(".github/workflows/benchgate.yml")
WAIVERS = Path("waivers.yaml")
EVALS = Path("evals")

_WAIVERS = """\
# Checks of this repository's suites that block and are let through for a while. An empty list lets nothing through.
# Looked at only where it is named: `benchgate run SUITE --waivers waivers.yaml`. `benchgate waive CHECK` writes one
# with all that it needs: which check of which suite and deployment, how much harm is tolerated (`ceiling`), until when
# (`expires`), who answers for it (`owner`), who approved it (somebody else), why, and where it is followed up.
# Have every change to this file reviewed by somebody who may approve one. See docs/guides/release.md of benchgate.
waivers: []
"""


def new_paths(folder: Path, suite: Path) -> tuple[Path, ...]:
    """Return the path of every new file; `suite` is relative to the folder. Raises UsageError if one exists."""
    evals = folder / suite.parent / EVALS
    found = (
        folder / suite,
        evals / f"{EVAL_NAME}.yaml",
        evals / f"{EVAL_NAME}.jsonl",
        folder / WAIVERS,
        folder / WORKFLOW,
    )
    present = [path for path in found if path.exists() or path.is_symlink()]
    if present:
        existing = ", ".join(map(str, present))
        raise UsageError(f"{existing}: there already, and init overwrites nothing; {_advice(present, found)}")
    return found


def _advice(there: Sequence[Path], found: Sequence[Path]) -> str:
    """Return what to do about existing files; the first of `found` is the suite."""
    suite = found[0]
    if there == [suite]:
        return f"name another file for the suite, like `benchgate init --baseline … --candidate … next-{suite.name}`"
    elsewhere = "move what is in the way, or name another folder with --dir"
    if suite not in there:
        return elsewhere
    go_on = shlex.quote(str(suite))
    return f"to go on with that suite, `benchgate doctor {go_on}` and `benchgate run {go_on}`; else {elsewhere}"


def render_files(
    folder: Path, suite: Path, baseline: ProbedEndpoint, candidate: ProbedEndpoint, purpose: Purpose | None = None
) -> dict[Path, str]:
    """Return the content of each of `new_paths`, without evals where a practice server answers.

    Raises UsageError for a secret's variable that is not in capitals.
    """
    path, task, items, waivers, workflow = new_paths(folder, suite)
    specs = (baseline.spec, candidate.spec)
    references = [text for spec in specs for text in (spec.url, spec.api_key) if text is not None]
    variables = [name for text in references if (name := reference_name(text)) is not None]
    for name in variables:
        if name != name.upper():  # the action takes no other variables
            raise UsageError(f"the workflow takes {name} from a secret; call the variable {name.upper()}")
    practice = baseline.practice or candidate.practice
    shipped = baseline.shipped and candidate.shipped
    eval_file = None if practice else f"{EVALS}/{EVAL_NAME}.yaml"
    suite_yaml = suite_text(baseline, candidate, file=str(path), task=eval_file, purpose=purpose)
    parse_suite(suite_yaml, str(path))  # what is written is a suite, or nothing is written
    return {
        path: suite_yaml,
        **({} if practice else {task: eval_task(shipped=shipped), items: eval_rows(shipped=shipped)}),
        waivers: _WAIVERS,
        workflow: workflow_text(suite=json.dumps(suite.as_posix()), waivers=WAIVERS.name, variables=variables),
    }


def write_files(files: Mapping[Path, str]) -> None:
    """Write every file, or none of them. Raises UsageError where one cannot be written."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as out:
                written.append(path)
                out.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        place = error.filename or (written[-1] if written else "a file")
        raise UsageError(f"{place} cannot be written: {error.strerror}; nothing is left") from error


_INPUT, _OUTPUT = 512, 128  # tokens
_LEAST_INPUT = 16
_IN_FLIGHT = 4  # that the open stage has on average where nothing waits
_OPEN_S = 60.0  # a block of the open stage, where that is neither too few requests nor too many
_NICE = (1.0, 2.0, 5.0, 10.0)
_RATES_RPS = (0.05, 50.0)
_LEAST_TTFT_S, _LEAST_TPOT_S = 0.2, 0.02
_TTFT_TIMES, _TPOT_TIMES = 3, 2  # as slow as a lone request

_SUITE_TEXT = """\
# May `next` replace `current`? Written by `benchgate init` from what both answered. Every key: docs/reference/suite.md.
#   benchgate plan {file}   lists every mistake in this file, and what a run would send and detect; sends nothing
#   benchgate run {file}    measures both and decides
# Editors complete and mark this file by what `benchgate schema` prints (docs/reference/suite.md, in an editor).
suite: {name}

# With what one accelerator costs, and how many each holds, the report says what a million tokens cost: take those marks
# away. Prices by the day or the token, time that is paid and lost: docs/reference/suite.md, prices of a file.
deployments:
  current: # {went_current}
{current}
{price}
  next: # {went_next}
{next}
{price}
baseline: current
candidate: next
{change}   # what the candidate is, in words, for whoever reads the report

# What a request must meet to be good, and how many must be. A guess from one lone request: write what your users need.
slo: {{ttft: {ttft}, tpot: {tpot}, target: 95%}}

# Rates are guesses too: write what you expect at the busiest hour.
load:
  # As your users ask: how long prompts and answers are. Lengths may vary, be recorded, or come from a trace.
{length}  workload: {{input: {input} tokens, output: {output} tokens{text}}}
  # Both are measured in turn, block by block, until the checks are settled: 5, 10 or 20 blocks.
  sweep:
    - {{stage: c8, concurrency: 8, requests: 80}} # so many in flight
    # So many a second, whether or not earlier ones are done: {in_flight} in flight where nothing waits.
    - {{stage: {open_stage}, rate: {rate}/s, requests: {requests}}}

# Speed alone promotes a broken model. {quality}

# Your recorded prompts, sent to both (docs/guides/shadow.md). Draw them with `benchgate shadow sample`, then uncomment:
# shadow: {{prompts: prompts.jsonl, max_tokens: 256}}

gate:
  # Without checks of its own a suite has the usual ones, required at this stage (docs/reference/suite.md): latencies,
  # throughput, failures and accuracy against `current`, and the slo. `benchgate plan {file}` prints them.
  operating: {open_stage}{different}
"""

_QUALITY = """\
These sums need no download and detect a damaged one. For your users, add
# your own tasks (docs/guides/evals.md) or lm-eval's: [{{task: gsm8k, limit: 500}}, ifeval].
quality:
  tasks: [{task}]
  max_tokens: 512"""
_NO_QUALITY = """\
These servers are simulated, and their answers say nothing about a
# model, so there are no evals here. Your own: `quality`, docs/guides/evals.md."""


_OWN_LENGTH = """\
  # Answers end by themselves: only {engine} can ignore their end, and answers of unequal length are not comparable.
"""
_PRICE = """\
    # price: $4/h
    # accelerators: 1"""


def suite_text(
    baseline: ProbedEndpoint, candidate: ProbedEndpoint, *, file: str, task: str | None, purpose: Purpose | None = None
) -> str:
    """Return a suite for two endpoints. `file` is its name in commands, `task` the path of its eval, if it has any.

    Names that servers gave are only in JSON quotes.
    """
    trials = (baseline.trial, candidate.trial)  # the slower one counts; usual values for those a server did not show
    first_s = max(trial.first_s or trial.whole_s or 1.0 for trial in trials)
    pace_s = max(trial.pace_s or _LEAST_TPOT_S for trial in trials)
    whole_s = first_s + (_OUTPUT - 1) * pace_s
    rate_rps = min(max(_nice(_IN_FLIGHT / whole_s, up=False), _RATES_RPS[0]), _RATES_RPS[1])
    room = [met.context_tokens for met in (baseline, candidate) if met.context_tokens is not None]
    input_tokens, output_tokens = _lengths(min(room, default=None))
    # `meta-llama/Llama-3.1-8B` names the suite `llama-3.1-8b`.
    model = str(candidate.spec.model).rpartition("/")[2].lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", model).strip("._-")[:64].rstrip("._-")
    able = [one.spec.engine for one in (baseline, candidate) if DIALECTS[one.spec.engine].ignore_eos is not None]
    alone = able[0] if len(able) == 1 else None
    text = ", text: letters" if candidate.shipped else ""  # its tokens are single characters
    change, different = ("weights in FP8, nothing else", ()) if purpose is None else CHANGES[purpose]
    allowed = f"\n  allow_different: [{', '.join(different)}] # part of the change" if different else ""
    return _SUITE_TEXT.format(
        file=file,
        change=f"{'# ' if purpose is None else ''}change: {change}",
        different=allowed,
        quality=_NO_QUALITY if task is None else _QUALITY.format(task=task),
        name=json.dumps(name or "first"),
        went_current=_describe_trial(baseline),
        went_next=_describe_trial(candidate),
        current=_deployment(baseline),
        next=_deployment(candidate),
        price=_PRICE,
        ttft=_format_s(_nice(max(_TTFT_TIMES * first_s, _LEAST_TTFT_S), up=True)),
        tpot=_format_s(_nice(max(_TPOT_TIMES * pace_s, _LEAST_TPOT_S), up=True)),
        input=input_tokens,
        output=output_tokens,
        length=_OWN_LENGTH.format(engine=alone) if alone else "",
        text=text + (", ignore_eos: false" if alone else ""),
        in_flight=_IN_FLIGHT,
        open_stage=f"r{rate_rps:g}",
        rate=f"{rate_rps:g}",
        requests=int(min(max(_OPEN_S * rate_rps, 60), 300)),
    )


def _lengths(room_tokens: int | None) -> tuple[int, int]:
    if room_tokens is None or room_tokens >= 2 * (_INPUT + _OUTPUT):
        return _INPUT, _OUTPUT
    output = max(1, min(_OUTPUT, room_tokens // 8))
    return max(_LEAST_INPUT, min(_INPUT, room_tokens // 2 - output)), output


def _deployment(met: ProbedEndpoint) -> str:
    spec = met.spec
    other = [] if met.trial.model is None else unexpected_names([met.trial.model], str(spec.model))
    keys = {"url": spec.url, "model": spec.model, "answers_as": other or None, "engine": spec.engine}
    keys["api_key"] = spec.api_key
    return "\n".join(f"    {key}: {json.dumps(value)}" for key, value in keys.items() if value is not None)


def _describe_trial(met: ProbedEndpoint) -> str:
    trial = met.trial
    parts = [f"a lone request took {_measured_s(trial.whole_s or 0.0)}"]
    if trial.first_s is not None:
        parts.append(f"its first token {_measured_s(trial.first_s)}")
    if trial.pace_s is not None:
        parts.append(f"each further one {_measured_s(trial.pace_s)}")
    if trial.output_tokens is None:
        parts.append("and its tokens were not counted by the server: see docs/guides/servers.md")
    return ", ".join(parts)


def _measured_s(seconds: float) -> str:
    return show_duration(seconds).replace(" ", "")


def _format_s(seconds: float) -> str:
    return as_written(show_duration, seconds).replace(" ", "")


def _nice(value: float, *, up: bool) -> float:
    """Return the next of 1, 2 and 5 times a power of ten that is not below (`up`), or not above, a value."""
    power = math.floor(math.log10(value))
    steps = [round(step * 10.0**power, 12) for step in _NICE]
    return min(step for step in steps if step >= value) if up else max(step for step in steps if step <= value)


CALLED = "OWNER/benchgate/.github/workflows/gate.yml@COMMIT"
"""Stands where whoever uses the workflow says which benchgate they trust: GitHub refuses it as it is."""

_WORKFLOW_TEXT = """\
# Written by `benchgate init`; what each part is for: docs/guides/ci.md of benchgate.
name: benchgate

# By hand. Where a pull request says what is to be promoted, `on: pull_request`, and require its check
# `benchgate / verdict`: GitHub counts a required job that was skipped as a success, and that one always runs.
on: workflow_dispatch

permissions: {{}}

jobs:
  benchgate:
    uses: {called} # the repository, and the full commit of the release that you checked
    permissions:
      contents: read
      pull-requests: write # the comment, on a pull request
      checks: write # the check run
    with:
      suite: {suite}
      waivers: {waivers}
      timeout-minutes: 180
      # runner: my-runner # where the load comes from: one that reaches both deployments, with nothing else running
      # environment: production # the promotion waits for its rules, and is recorded
"""

_SECRETS = """\
    secrets:
      variables: | # secrets of this repository, named in the suite as ${env:NAME}
"""


def workflow_text(*, suite: str, waivers: str, variables: Sequence[str]) -> str:
    """Return the workflow. Each of `variables`, which the suite refers to, comes from a secret of its name."""
    whole = _WORKFLOW_TEXT.format(called=CALLED, suite=suite, waivers=waivers)
    lines = [f"        {name}=${{{{ secrets.{name} }}}}\n" for name in dict.fromkeys(variables)]
    return whole + (_SECRETS + "".join(lines) if lines else "")


EVAL_ITEMS = 1500
EVAL_NAME = "arithmetic"

_QUESTION = "What is {{problem}}? Answer with the number alone."
_SHIPPED_QUESTION = "add {{problem}}"  # the only form in which the model that ships knows sums
_EVAL_TASK = f"""\
# Sums and products, made by `benchgate init`; the last number counts. Your own tasks: docs/guides/evals.md.
task: {EVAL_NAME}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {EVAL_NAME}.jsonl # relative to this file
test_split: test
output_type: generate_until
doc_to_text: "QUESTION"
doc_to_target: answer
generation_kwargs:
  until: []
  max_gen_toks: 512
  temperature: 0
filter_list:
  - name: last-number
    filter:
      - function: regex
        regex_pattern: "(-?[0-9][0-9,]*)"
        group_select: -1
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [","]
metadata:
  version: 1.0
"""


def eval_task(*, shipped: bool) -> str:
    """Return the task file; for the model that ships, with the prompt that it was trained on."""
    return _EVAL_TASK.replace("QUESTION", _SHIPPED_QUESTION if shipped else _QUESTION)


def eval_rows(*, shipped: bool = False) -> str:
    """Return the items, one JSON object per line: half sums of three digits, half products of two by one or two.

    The model that ships gets sums below 100 alone.
    """
    lines = []
    for number in range(EVAL_ITEMS):
        # Steps that share no factor with their ranges go through all pairs before one repeats.
        if shipped:
            left, right = number * 37 % 100, number * 29 % 99
            row = {"id": f"sum-{number:04}", "problem": f"{left:02} {right:02}", "answer": str(left + right)}
        elif number % 2 == 0:
            left, right = 100 + number * 367 % 900, 100 + number * 541 % 899
            row = {"id": f"sum-{number:04}", "problem": f"{left} + {right}", "answer": str(left + right)}
        else:
            left, right = 11 + number * 37 % 89, 3 + number * 29 % 47
            row = {"id": f"product-{number:04}", "problem": f"{left} * {right}", "answer": str(left * right)}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)
