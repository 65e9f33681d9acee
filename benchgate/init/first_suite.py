"""The text of a first suite for two endpoints that answered: what was met goes in, YAML with comments comes out."""

from __future__ import annotations

import json
import math
import re

from benchgate.gate.guards.text import unexpected_names
from benchgate.init.probe import Met
from benchgate.units import as_written, show_duration

_INPUT, _OUTPUT = 512, 128  # tokens
_LEAST_INPUT = 16
_IN_FLIGHT = 4  # that the open stage has on average where nothing waits
_OPEN_S = 60.0  # a block of the open stage, where that is neither too few requests nor too many
_NICE = (1.0, 2.0, 5.0, 10.0)
_RATES_RPS = (0.05, 50.0)
_LEAST_TTFT_S, _LEAST_TPOT_S = 0.2, 0.02
_TTFT_TIMES, _TPOT_TIMES = 3, 2  # as slow as a lone request

_TEXT = """\
# May `next` replace `current`? Written by `benchgate init` from what both answered. Keys: docs/reference/suite.md.
#   benchgate validate {file}   every mistake in this file, with its line
#   benchgate plan {file}       what would be asked, and what the checks can show; nothing is sent
#   benchgate run {file}        measures both and decides
# Editors complete and mark this file by what `benchgate schema` prints (docs/reference/suite.md, editor support).
suite: {name}

# With what one accelerator costs, and how many each holds, the report says what a million tokens cost: take those marks
# away. Prices by the day or the token, time that is paid and lost: docs/reference/suite.md, prices from a file.
deployments:
  current: # {went_current}
{current}
{price}
  next: # {went_next}
{next}
{price}
baseline: current
candidate: next
# change: weights in FP8, nothing else   # what the candidate is, in words, for whoever reads the report

# What a request must meet to be good, and how many must be. A guess from one lone request: write what your users need.
slo: {{ttft: {ttft}, tpot: {tpot}, target: 95%}}

# Rates are guesses too: write what you expect at the busiest hour.
load:
  # As your users ask: how long prompts and answers are. Lengths may vary, be recorded, or come from a trace.
  workload: {{input: {input} tokens, output: {output} tokens}}
  # Both are measured in turn, block by block, until the checks are settled: 5, 10 or 20 blocks.
  sweep:
    - {{stage: c8, concurrency: 8, requests: 80}} # so many in flight
    # So many a second, whether or not earlier ones are done: {in_flight} in flight where nothing waits.
    - {{stage: {open_stage}, rate: {rate}/s, requests: {requests}}}

# Speed alone promotes a broken model. These sums need no download and see one that was damaged; whether it does what
# your users need is for your own tasks to say (docs/tasks.md), or lm-eval's: [{{task: gsm8k, limit: 500}}, ifeval].
quality:
  tasks: [{task}]
  max_tokens: 512

# Recorded prompts of yours, sent to both (docs/shadow.md): drawn by `benchgate shadow sample`. Then take the mark away.
# shadow: {{prompts: prompts.jsonl, max_tokens: 256}}

gate:
  # No checks are written, so the default ones hold, required at this stage: latencies, throughput, failures and
  # accuracy against `current`, and the slo. `benchgate validate {file}` prints them.
  operating: {open_stage}
"""


_PRICE = """\
    # price: $4/h
    # accelerators: 1"""


def suite_text(baseline: Met, candidate: Met, *, file: str, task: str) -> str:
    """The suite, as the text of a file. `file` is what to call it in commands, `task` the path of the evals beside it.

    Names that servers gave stand in quotes, as JSON writes them, and nowhere else.
    """
    first_s, pace_s = _slowest(baseline, candidate)
    whole_s = first_s + (_OUTPUT - 1) * pace_s
    rate_rps = min(max(_nice_below(_IN_FLIGHT / whole_s), _RATES_RPS[0]), _RATES_RPS[1])
    room = [met.context_tokens for met in (baseline, candidate) if met.context_tokens is not None]
    input_tokens, output_tokens = _lengths(min(room, default=None))
    return _TEXT.format(
        file=file,
        task=task,
        name=_name(str(candidate.spec.model)),
        went_current=_went(baseline),
        went_next=_went(candidate),
        current=_deployment(baseline),
        next=_deployment(candidate),
        price=_PRICE,
        ttft=_written(_nice_above(max(_TTFT_TIMES * first_s, _LEAST_TTFT_S))),
        tpot=_written(_nice_above(max(_TPOT_TIMES * pace_s, _LEAST_TPOT_S))),
        input=input_tokens,
        output=output_tokens,
        in_flight=_IN_FLIGHT,
        open_stage=f"r{rate_rps:g}",
        rate=f"{rate_rps:g}",
        requests=int(min(max(_OPEN_S * rate_rps, 60), 300)),
    )


def _slowest(*both: Met) -> tuple[float, float]:
    """Time to the first token, and for each further one; of what a server did not show a usual value."""
    first_s = max(met.trial.first_s or met.trial.whole_s or 1.0 for met in both)
    return first_s, max(met.trial.pace_s or _LEAST_TPOT_S for met in both)


def _lengths(room_tokens: int | None) -> tuple[int, int]:
    if room_tokens is None or room_tokens >= 2 * (_INPUT + _OUTPUT):
        return _INPUT, _OUTPUT
    output = max(1, min(_OUTPUT, room_tokens // 8))
    return max(_LEAST_INPUT, min(_INPUT, room_tokens // 2 - output)), output


def _deployment(met: Met) -> str:
    spec = met.spec
    other = [] if met.trial.model is None else unexpected_names([met.trial.model], str(spec.model))
    said = {"url": spec.url, "model": spec.model, "answers_as": other or None, "engine": spec.engine}
    said["api_key"] = spec.api_key
    return "\n".join(f"    {key}: {json.dumps(value)}" for key, value in said.items() if value is not None)


def _went(met: Met) -> str:
    trial = met.trial
    parts = [f"a lone request took {_written(trial.whole_s or 0.0)}"]
    if trial.first_s is not None:
        parts.append(f"its first token {_written(trial.first_s)}")
    if trial.pace_s is not None:
        parts.append(f"each further one {_written(trial.pace_s)}")
    if trial.output_tokens is None:
        parts.append("and its tokens were not counted by the server: see docs/guides/servers.md")
    return ", ".join(parts)


def _name(model: str) -> str:
    """A name for the suite by the model's: `meta-llama/Llama-3.1-8B` → `llama-3.1-8b`."""
    last = re.sub(r"[^a-z0-9._-]+", "-", model.rpartition("/")[2].lower()).strip("._-")
    return json.dumps(last[:64].rstrip("._-") or "first")


def _written(seconds: float) -> str:
    return as_written(show_duration(seconds)).replace(" ", "")


def _nice_below(value: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is not above a value."""
    return _nice(value, up=False)


def _nice_above(value: float) -> float:
    return _nice(value, up=True)


def _nice(value: float, *, up: bool) -> float:
    power = math.floor(math.log10(value))
    steps = [round(step * 10.0**power, 12) for step in _NICE]
    return min(step for step in steps if step >= value) if up else max(step for step in steps if step <= value)
