"""The forms of a stage: what each comes to, and what is said of one that cannot be."""

from __future__ import annotations

import json

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Stage

SUITE = """\
suite: chat
deployments:
  a: {{url: "http://one:8000", model: m}}
  b: {{url: "http://two:8000", model: m}}
baseline: a
candidate: b
load:
  workload: {{input: 64 tokens, output: 32 tokens}}
  sweep:
    - {stage}
gate:
  checks:
    - {{metric: error_rate, max: 1%}}
"""


def suite_of(stage: str) -> Suite:
    return parse_suite(SUITE.format(stage=stage), "s.yaml")


def stage_of(stage: str) -> Stage:
    load = suite_of(stage).load
    assert load is not None
    return load.sweep[0]


# Form, requests a block, mean rate, and what a report calls it.
FORMS: list[tuple[str, int, float | None, str]] = [
    ("{stage: s, concurrency: 4, requests: 40}", 40, None, "4 in flight"),
    ("{stage: s, rate: 8/s, requests: 5}", 5, 8.0, "8/s poisson"),
    ('{stage: s, rate: 8/s, arrival: "gamma:2", requests: 5}', 5, 8.0, "8/s gamma:2"),
    ("{stage: s, rate: 30/min, arrival: constant, for: 60s}", 30, 0.5, "0.5/s constant"),
    ("{stage: s, rate: 2/s, ramp_to: 20/s, for: 60s}", 660, 11.0, "2/s to 20/s in 60 s, poisson"),
    ("{stage: s, steps: [{rate: 2/s, for: 20s}, {rate: 4/s, for: 20s}]}", 120, 3.0,
     "2/s for 20 s, 4/s for 20 s, poisson"),
    ("{stage: s, steps: [" + ", ".join(["{rate: 2/s, for: 1s}"] * 4 + ["{rate: 7/s, for: 1s}"]) + "]}", 15, 3.0,
     "5 steps from 2/s to 7/s, poisson"),
    ("{stage: s, rate: 4/s, bursts: {factors: [1, 2.5], every: 20s, for: 5s}, for: 40s}", 190, 4.75,
     "4/s with bursts of 1, 2.5 times that, poisson"),
    ("{stage: s, trace: data/day.csv, requests: 50}", 50, None, "data/day.csv replayed"),
    ("{stage: s, trace: data/day.csv, speed: 2, requests: 50}", 50, None, "data/day.csv replayed 2 times as fast"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "requests", "mean_rps", "offered"), FORMS)
def test_form_says_how_many_requests_at_which_rate(
    text: str, requests: int, mean_rps: float | None, offered: str
) -> None:
    stage = stage_of(text)
    assert (stage.requests, stage.mean_rps, stage.offered) == (requests, mean_rps, offered)
    assert stage.is_open == ("concurrency" not in text)


@pytest.mark.parametrize("text", [form for form, *_ in FORMS])
def test_form_comes_back_from_the_store_as_it_went_in(text: str) -> None:
    suite = suite_of(text)
    assert Suite.from_stored(json.loads(json.dumps(suite.to_stored()))) == suite


@pytest.mark.parametrize(
    ("varied", "last"),
    [
        ("concurrency: [8, 1000000]", "s-1000000"),
        ("rate: [0.5/s, 1234567/s]", "s-1234567"),
        ("rate: [1e20/s]", "s-1e20"),
    ],
)
def test_name_of_a_large_value_is_one_that_a_stored_suite_may_have(varied: str, last: str) -> None:
    suite = suite_of(f"{{stage: s, requests: 5, each: {{{varied}}}}}")
    assert suite.stage_names[-1] == last
    assert Suite.from_stored(json.loads(json.dumps(suite.to_stored()))) == suite


def test_forms_of_the_first_version_are_stored_as_they_were() -> None:
    # Runs are comparable when what was asked hashes alike, so a key that is not used must not be written.
    stored = suite_of("{stage: s, rate: 8/s, requests: 5}").to_stored()["load"]["sweep"]
    assert stored == [{"name": "s", "concurrency": None, "rate_rps": 8.0, "arrival": "poisson", "requests": 5}]


MISTAKES: list[tuple[str, str]] = [
    ("{stage: s, requests: 5}", "10:7 load.sweep[0]: a stage needs exactly one of `concurrency` (closed loop) and"),
    ("{stage: s, concurrency: 2, steps: [{rate: 1/s, for: 5s}], requests: 5}",
     "10:7 load.sweep[0]: a stage needs exactly one of"),
    ("{stage: s, rate: 8/s, trace: x.csv, requests: 5}", "10:7 load.sweep[0]: a stage needs exactly one of"),
    ("{stage: s, concurrency: 2}", "10:7 load.sweep[0]: `requests` is required and missing; say how many"),
    ("{stage: s, concurrency: 2, for: 60s}",
     "10:7 load.sweep[0]: `for` would let each arm answer another number of requests here; write `requests` instead"),
    ("{stage: s, concurrency: 2, ramp_to: 4/s, requests: 5}",
     "10:7 load.sweep[0]: `ramp_to` means nothing in a closed loop; give `rate` or leave it out"),
    ("{stage: s, concurrency: 2, ramp: 2, requests: 5}", "10:7 load.sweep[0]: `ramp` means nothing in a closed loop"),
    ("{stage: s, rate: 8/s, ramp_to: 2/s, for: 9s, ramp: 2}",
     "10:7 load.sweep[0]: `ramp` is for a level rate, and `ramp_to` keeps its edges; leave `ramp` out"),
    ("{stage: s, rate: 8/s, requests: 5, ramp: 2, actions: [{at: 1s, run: [a]}]}",
     "10:7 load.sweep[0]: `ramp` means nothing beside `actions`, whose instants count from the start of the stage"),
    ("{stage: s, classes: {a: {rate: 8/s, requests: 5, ramp: 2}}, actions: [{at: 1s, run: [a]}]}",
     "10:7 load.sweep[0]: `ramp` means nothing beside `actions`, whose instants count from the start of the stage"),
    ("{stage: s, classes: {a: {rate: 8/s, requests: 5}, b: {concurrency: 2, background: true, ramp: 2}}}",
     "10:7 load.sweep[0]: class b is `background`, a closed loop that others end; leave `ramp` out"),
    *((f"{{stage: s, classes: {{a: {{rate: 8/s, requests: 5}}, b: {{concurrency: 2, background: true, {written}}}}}}}",
       f"10:7 load.sweep[0]: class b is `background`, a closed loop that others end; leave `{key}` out")
      for key, written in (("for", "for: 60s"), ("arrival", "arrival: constant"), ("speed", "speed: 2"))),
    ("{stage: s, concurrency: 2, speed: 2, requests: 5}", "10:7 load.sweep[0]: `speed` means nothing in a closed loop"),
    ("{stage: s, rate: 8/s}",
     "10:7 load.sweep[0]: a stage at a `rate` needs exactly one of `requests` and `for`, like `requests: 100`"),
    ("{stage: s, rate: 8/s, requests: 5, for: 60s}",
     "10:7 load.sweep[0]: a stage at a `rate` needs exactly one of `requests` and `for`"),
    ("{stage: s, rate: 8/s, speed: 2, requests: 5}", "10:7 load.sweep[0]: `speed` means nothing without `trace`"),
    ("{stage: s, rate: 8/s, ramp_to: 9/s}", "10:7 load.sweep[0]: `ramp_to` needs the time it takes; write `for: 60s`"),
    ("{stage: s, rate: 8/s, ramp_to: 9/s, for: 60s, requests: 5}",
     "10:7 load.sweep[0]: `requests` follow from the rates and the time with `ramp_to`; write `for: 60s` instead"),
    ("{stage: s, rate: 8/s, ramp_to: 9/s, bursts: {factors: [2], every: 2s, for: 1s}, for: 60s}",
     "10:7 load.sweep[0]: `ramp_to` and `bursts` are two profiles of the rate; write one stage for each"),
    ("{stage: s, rate: 8/s, bursts: {factors: [2], every: 2s, for: 1s}}",
     "10:7 load.sweep[0]: `bursts` needs the time it takes; write `for: 60s`"),
    ("{stage: s, rate: 8/s, bursts: {factors: [2], every: 2s, for: 2s}, for: 60s}",
     "10:7 load.sweep[0]: bursts of 2.00 s every 2.00 s leave no time between them"),
    ("{stage: s, rate: 4/s, bursts: {factors: [1, 2, 5], every: 20s, for: 5s}, for: 59s}",
     "10:7 load.sweep[0]: ends before the last of the 3 factors; write `for` of at least 60 s"),
    ("{stage: s, rate: 1/h, bursts: {factors: [2], every: 1us, for: 1ns}, for: 10h}",
     "10:7 load.sweep[0]: has more than 10,000 bursts"),
    ("{stage: s, rate: 8/s, bursts: {factors: [], every: 2s, for: 1s}, for: 60s}",
     "10:47 load.sweep[0].bursts.factors: found an empty list; expected a list with at least one entry"),
    ("{stage: s, rate: 8/s, bursts: {factors: [0], every: 2s, for: 1s}, for: 60s}",
     "10:48 load.sweep[0].bursts.factors[0]: found 0; expected a number, above 0 and at most 1,000"),
    ('{stage: s, rate: 8/s, bursts: {factors: ["5x"], every: 2s, for: 1s}, for: 60s}',
     '10:48 load.sweep[0].bursts.factors[0]: found "5x"; expected a number'),
    ("{stage: s, rate: 8/s, bursts: {factors: [5], evry: 2s, for: 1s}, for: 60s}",
     "10:52 load.sweep[0].bursts.evry: unknown key; did you mean `every`?"),
    ("{stage: s, rate: 8/s, bursts: {factors: [5], every: 2/s, for: 1s}, for: 60s}",
     '10:59 load.sweep[0].bursts.every: "2/s" is not a duration'),
    ("{stage: s, steps: [{rate: 2/s, for: 20s}], requests: 5}",
     "10:7 load.sweep[0]: `requests` means nothing beside `steps`, which bring their own rates and times"),
    ("{stage: s, steps: [{rate: 2/s, for: 20s}], for: 20s}", "10:7 load.sweep[0]: `for` means nothing beside `steps`"),
    ("{stage: s, steps: []}", "10:25 load.sweep[0].steps: found an empty list"),
    ("{stage: s, steps: [{rate: 2/s}]}",
     "10:26 load.sweep[0].steps[0].for: is required and missing; expected a duration"),
    ("{stage: s, steps: [{rate: 2s, for: 20s}]}", '10:33 load.sweep[0].steps[0].rate: "2s" is not a rate'),
    ("{stage: s, trace: x.csv}", "10:7 load.sweep[0]: `requests` is required and missing"),
    ("{stage: s, trace: x.csv, for: 60s}", "10:7 load.sweep[0]: `for` would let each arm"),
    ("{stage: s, trace: x.csv, arrival: constant, requests: 5}",
     "10:7 load.sweep[0]: `arrival` means nothing beside `trace`, which brings its own instants"),
    ("{stage: s, trace: x.csv, speed: 0, requests: 5}",
     "10:39 load.sweep[0].speed: found 0; expected a number, above 0"),
    ("{stage: s, trace: x.csv, speed: 2x, requests: 5}", '10:39 load.sweep[0].speed: found "2x"; expected a number'),
    ("{stage: s, rate: 8/s, for: 60}", "10:34 load.sweep[0].for: 60 is not a duration; write it with its unit"),
    ("{stage: s, rate: 8/s, ramp_to: 20, for: 60s}", "10:38 load.sweep[0].ramp_to: 20 is not a rate"),
    ("{stage: s, rate: 8/s, arrival: posson, requests: 5}",
     "10:38 load.sweep[0].arrival: 'posson' is not an arrival process; write \"poisson\", \"constant\" or"),
    ("{stage: s, rate: 1/h, for: 1s}",
     "10:7 load.sweep[0]: comes to 0 requests a block; such a stage has 1 to 1,000,000,000"),
    ("{stage: s, rate: 5000/s, ramp_to: 6000/s, for: 1h}",
     "10:7 load.sweep[0]: comes to 19,800,000 requests a block; such a stage has 1 to 1,000,000:"),
    ("{stage: s, rate: 9/s, for: 1e308s}", "10:7 load.sweep[0]: comes to 1,000,000,000,000,000,000 requests a block"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_mistake_in_a_stage_is_the_only_problem_and_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_of(text)
    problems = [f"{p.line}:{p.column} {p.path}: {p.message}" for p in caught.value.problems]
    assert len(problems) == 1, problems
    assert problems[0].startswith(said)


def test_a_tail_that_needs_more_requests_says_to_make_the_stage_longer() -> None:
    text = SUITE.format(stage="{stage: s, rate: 1/s, for: 5s}") + "    - {metric: ttft, statistic: p99, max: 1s}\n"
    with pytest.raises(SuiteError, match="make the stage longer or its rates higher, to 15 requests or more"):
        parse_suite(text, "s.yaml")
