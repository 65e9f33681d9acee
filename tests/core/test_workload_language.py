"""What a suite may say of workloads, classes and values that vary, and what it may not."""

import json
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.suite.workload import Lengths

HEAD = """
suite: s
deployments:
  a: {url: "http://a:1", model: m, engine: vllm, context: 4096}
  b: {url: "http://b:1", model: m, engine: vllm}
baseline: a
candidate: b
"""
CHECKS = """
gate:
  checks: [{metric: error_rate, max: 1%}]
"""


def suite(load: str, head: str = HEAD) -> Suite:
    return parse_suite(f"{head}load:\n{load}{CHECKS}", "s.yaml")


def problems(load: str, head: str = HEAD) -> list[str]:
    """Of each, its path and message, without its place."""
    with pytest.raises(SuiteError) as raised:
        suite(load, head)
    assert all(problem.line is not None for problem in raised.value.problems)
    return [f"{problem.path}: {problem.message}" for problem in raised.value.problems]


PLAIN = "  workload: {input: 64, output: 8}\n"
STAGE = "  sweep: [{stage: c, concurrency: 2, requests: 10}]\n"


@pytest.mark.parametrize(
    "load",
    [
        "  workload: {input: {uniform: [16, 64 tokens]}, output: {normal: {mean: 20, sd: 5, max: 99}}}\n" + STAGE,
        "  workload: {input: {lognormal: {median: 64, sigma: 1, max: 512}}, output: {file: out.csv}}\n" + STAGE,
        "  workload: {input: 9, output: 2, session: {turns: 3, think: {uniform: [1s, 2s]}}, adapter: x}\n" + STAGE,
        "  workload: {prompts: p.jsonl, output: 2, schema: {type: object}, leave: {share: 10%, after: 1s}}\n" + STAGE,
        "  workload: {input: 90, output: 2, adapter: {names: [a, b], weights: zipf}, retrieval: {pool: 9, each: 2,"
        " tokens: 20}}\n" + STAGE,
        "  workload: {prompts: {source: a.parquet, columns: {prompt: q}, where: {a: [b, c]}, limit: 9}, output: 2}\n"
        + STAGE,
        "  workload: {input: 9, output: 2, tools: [{type: function}], body: {top_p: 1}, images: {files: [a.png]}}\n"
        + STAGE,
        "  workload: {input: 9, output: 2, audio: {duration: {uniform: [1s, 9s]}, part: audio_url},"
        " videos: {frames: 2, files: ['https://a.example/b.mp4']}}\n" + STAGE,
        "  workload: {endpoint: transcriptions, stream: false, audio: {files: [talks, more.jsonl]},"
        " body: {response_format: verbose_json, language: en}}\n" + STAGE,
        PLAIN + "  sweep: [{stage: r, for: 10s, each: {rate: [2/s, 4/s]}, prefix: {share: 50%}}]\n",
        PLAIN
        + "  workloads: {long: {input: 900, output: 90}}\n"
        + "  sweep:\n"
        + "    - {stage: m, classes: {p: {rate: 2/s, requests: 9, slo: {ttft: 1s}, priority: 0},"
        + " q: {workload: long, concurrency: 8, background: true}}}\n",
    ],
)
def test_suite_comes_back_from_the_store_as_it_was(load: str) -> None:
    written = suite(load)
    assert Suite.from_stored(json.loads(json.dumps(written.to_stored()))) == written


def test_plain_workload_is_stored_as_it_always_was() -> None:
    stored = suite(PLAIN + STAGE).to_stored()["load"]
    assert stored["workload"] == {
        "endpoint": "chat", "input_tokens": 64, "text": "words", "output_tokens": 8, "ignore_eos": True,
    }  # fmt: skip
    assert "workloads" not in stored
    assert set(stored["sweep"][0]) == {"name", "concurrency", "rate_rps", "arrival", "requests"}


def test_lengths_are_one_number_or_a_distribution() -> None:
    workload = suite("  workload: {input: 64, output: {uniform: [4, 8]}}\n" + STAGE).load
    assert workload is not None
    assert workload.workload.input_tokens == 64
    assert workload.workload.output_tokens == Lengths(uniform=(4, 8))
    assert (workload.workload.most_input_tokens, workload.workload.most_output_tokens) == (64, 8)


@pytest.mark.parametrize(
    ("each", "names", "values"),
    [
        ("concurrency: 2, each: {input: [128, 512]}", ["s-128", "s-512"], [128, 512]),
        ("each: {concurrency: [1, 2, 4]}", ["s-1", "s-2", "s-4"], [1, 2, 4]),
        ("each: {rate: [0.5/s, 30/m, 2/s]}", None, None),
        ("each: {rate: [0.5/s, 2/s]}", ["s-0.5", "s-2"], [0.5, 2.0]),
        ("concurrency: 2, each: {output: [4, 8]}", ["s-4", "s-8"], [4, 8]),
        ("concurrency: 2, each: {prefix_share: [25%, 75%]}", ["s-25", "s-75"], [0.25, 0.75]),
    ],
)
def test_each_is_one_stage_for_every_value(each: str, names: list[str] | None, values: list[Any] | None) -> None:
    text = PLAIN + f"  sweep: [{{stage: s, requests: 10, {each}}}]\n"
    if names is None:
        assert problems(text) == [
            "load.sweep[0].each: `each` names a value twice; every value is a stage of its own"
        ]  # 30/m is 0.5/s
        return
    load = suite(text).load
    assert load is not None
    assert [stage.name for stage in load.sweep] == names
    found = [
        stage.prefix.share_ratio
        if stage.prefix
        else next(
            value
            for key in ("input_tokens", "output_tokens", "rate_rps", "concurrency")
            if (value := getattr(stage, key)) is not None
        )
        for stage in load.sweep
    ]
    assert found == values
    assert all(stage.each is None for stage in load.sweep)


def test_rate_that_varies_over_a_time_has_as_many_requests_as_that_comes_to() -> None:
    load = suite(PLAIN + "  sweep: [{stage: r, for: 10s, each: {rate: [2/s, 4/s]}}]\n").load
    assert load is not None
    assert [stage.requests for stage in load.sweep] == [20, 40]


def test_checks_name_the_stages_that_each_comes_to() -> None:
    text = HEAD + "load:\n" + PLAIN + "  sweep: [{stage: in, concurrency: 1, requests: 9, each: {input: [8, 16]}}]\n"
    gate = "gate:\n  checks: [{metric: error_rate, max: 1%}, {metric: ttft, margin: 5%, stage: in-NN}]\n"
    parse_suite(text + gate.replace("NN", "16"), "s.yaml")
    with pytest.raises(SuiteError, match="in-32"):
        parse_suite(text + gate.replace("NN", "32"), "s.yaml")


def test_class_is_a_level_with_its_own_workload_slo_and_priority() -> None:
    load = suite(
        PLAIN
        + "  workloads: {long: {input: 900, output: 90}}\n"
        + "  sweep:\n"
        + "    - {stage: alone, concurrency: 2, requests: 4, input: 32}\n"
        + "    - stage: mix\n"
        + "      classes:\n"
        + "        people: {rate: 2/s, requests: 9, slo: {ttft: 1s}, priority: 3}\n"
        + "        batch: {workload: long, concurrency: 20, background: true}\n"
    ).load
    assert load is not None
    alone, people, batch = load.classes()
    assert [level.name for level in (alone, people, batch)] == ["alone", "mix/people", "mix/batch"]
    assert (alone.workload.input_tokens, alone.slo_spec, alone.class_name) == (32, None, None)
    assert people.slo_spec is not None
    assert (people.slo_spec.ttft_s, people.workload.priority, people.mean_rps) == (1.0, 3, 2.0)
    assert (batch.workload.input_tokens, batch.is_background, batch.schedule.requests) == (900, True, 80)
    assert load.sweep[1].requests == 9


MISTAKES = [
    (
        "  workload: {output: 8}\n" + STAGE,
        'load.workload.input: is required and missing; expected a count like "128 tokens"',
    ),
    (
        "  workload: {input: 8, endpoint: embeddings, output: 1}\n" + STAGE,
        "load.workload.output: means nothing for emb",
    ),
    (
        "  workload: {input: {unifrom: [1, 2]}, output: 8}\n" + STAGE,
        "load.workload.input.unifrom: unknown key; did you mean `uniform`?",
    ),
    (
        "  workload: {input: {uniform: [9, 2]}, output: 8}\n" + STAGE,
        "load.workload.input: `uniform` is the least and the most",
    ),
    (
        "  workload: {input: {uniform: [1, 2], file: a.csv}, output: 8}\n" + STAGE,
        "load.workload.input: lengths are exactly one of",
    ),
    (
        "  workload: {input: {normal: {mean: 8, sd: 1, min: 9}}, output: 8}\n" + STAGE,
        "load.workload.input.normal: `mean` lies outside",
    ),
    (
        "  workload: {input: 8, output: 8, prompts: a.jsonl}\n" + STAGE,
        "load.workload.input: means nothing beside `prompts`",
    ),
    (
        "  workload: {input: 64, output: 8, prefix: {tokens: 64}}\n" + STAGE,
        "load.workload.prefix.tokens: leaves nothing of 64",
    ),
    (
        "  workload: {input: 64, output: 8, prefix: {tokens: 8, share: 5%}}\n" + STAGE,
        "load.workload.prefix: a shared prefix has a length",
    ),
    (
        "  workload: {input: 8, output: 8, adapter: {names: [a, b, a]}}\n" + STAGE,
        "load.workload.adapter: `names` has an adapter twice",
    ),
    (
        "  workload: {input: 8, output: 8, adapter: {names: [a, b]}, session: {turns: {uniform: [2, 4]}}}\n" + STAGE,
        "load.workload.adapter: draws one for each conversation",
    ),
    (
        "  workload: {input: 64, output: 8, retrieval: {pool: 4, each: 4, tokens: 8}}\n" + STAGE,
        "load.workload.retrieval: `each` takes 4 documents of a pool of 4",
    ),
    (
        "  workload: {input: 64, output: 8, prefix: {tokens: 8}, retrieval: {pool: 9, each: 7, tokens: 8}}\n" + STAGE,
        "load.workload.retrieval: leaves nothing of 64",
    ),
    (
        "  workload: {prompts: builtin, output: 8, retrieval: {pool: 9, each: 7, tokens: 8}}\n" + STAGE,
        "load.workload.retrieval: means nothing beside `prompts`",
    ),
    (
        "  workload: {sessions: a.jsonl, output: 8, retrieval: {pool: 9, each: 7, tokens: 8}}\n" + STAGE,
        "load.workload.retrieval: means nothing beside `sessions`",
    ),
    (
        "  workload: {sessions: a.jsonl, output: 8, adapter: {names: [a, b]}}\n" + STAGE,
        "load.workload.adapter: draws one for each conversation",
    ),
    (
        "  workload: {input: 8, output: 8, prompts: {source: hf:a/b}}\n" + STAGE,
        "load.workload.prompts.source: names no commit",
    ),
    (
        "  workload: {prompts: {source: a.parquet, columns: {prompt: a, messages: b}}, output: 8}\n" + STAGE,
        "load.workload.prompts.columns: columns name exactly one of",
    ),
    (
        "  workload: {prompts: {source: builtin, split: test}, output: 8}\n" + STAGE,
        "load.workload.prompts: `split` belongs to a data set",
    ),
    (
        "  workload: {input: 8, output: 8, endpoint: completions, session: {turns: 2}}\n" + STAGE,
        "load.workload.session: is a conversation, and completions holds none",
    ),
    (
        "  workload: {input: 8, output: 8, endpoint: messages, audio: {count: 1}}\n" + STAGE,
        "load.workload.audio: belongs to the endpoint chat",
    ),
    (
        "  workload: {input: 8, output: 8, endpoint: completions, videos: {fps: 1}}\n" + STAGE,
        "load.workload.videos: belongs to the endpoint chat",
    ),
    (
        "  workload: {prompts: builtin, output: 8, audio: {count: 1}}\n" + STAGE,
        "load.workload.audio: means nothing beside `prompts`",
    ),
    (
        "  workload: {sessions: a.jsonl, output: 8, videos: {fps: 1}}\n" + STAGE,
        "load.workload.videos: means nothing beside `sessions`",
    ),
    (
        "  workload: {input: 8, output: 8, videos: {width: 100}}\n" + STAGE,
        "load.workload.videos.width: ",
    ),
    (
        "  workload: {endpoint: transcriptions, input: 8}\n" + STAGE,
        "load.workload.input: means nothing for transcriptions",
    ),
    (
        "  workload: {endpoint: transcriptions, output: 8}\n" + STAGE,
        "load.workload.output: means nothing for transcriptions",
    ),
    (
        "  workload: {endpoint: transcriptions, session: {turns: 2}}\n" + STAGE,
        "load.workload.session: is a conversation, and transcriptions holds none",
    ),
    (
        "  workload: {endpoint: transcriptions, audio: {count: 2}}\n" + STAGE,
        "load.workload.audio.count: a transcription is of one recording",
    ),
    (
        "  workload: {endpoint: transcriptions, schema: {type: object}}\n" + STAGE,
        "load.workload.schema: means nothing for transcriptions",
    ),
    (
        "  workload: {endpoint: transcriptions, priority: 1}\n" + STAGE,
        "load.workload.priority: means nothing for transcriptions",
    ),
    (
        "  workload: {endpoint: transcriptions, body: {response_format: vtt}}\n" + STAGE,
        "load.workload.body.response_format: is not read",
    ),
    (
        "  workload: {endpoint: transcriptions, body: {response_format: verbose_json}}\n" + STAGE,
        "load.workload.body.response_format: comes whole",
    ),
    (
        "  workload: {endpoint: transcriptions}\n  sweep: [{stage: c, concurrency: 2, requests: 10, output: 9}]\n",
        "load.sweep[0].output: means nothing for transcriptions",
    ),
    (
        "  workload: {input: 8, output: 8, endpoint: grpc-infer}\n" + STAGE,
        'load.workload.endpoint: is sent over gRPC, and "',
    ),
    (
        "  workload: {input: 8, output: 8, endpoint: completions, tools: t.json}\n" + STAGE,
        "load.workload.tools: belongs to the endpoint chat",
    ),
    (
        "  workload: {input: 8, output: 8, documents: 4}\n" + STAGE,
        "load.workload.documents: belongs to the endpoint rerank",
    ),
    (
        "  workload: {input: 8, output: 8, constrained: true}\n" + STAGE,
        "load.workload.constrained: sends the `schema` to",
    ),
    (
        "  workload: {input: 8, output: 8, stream: false, leave: {share: 5%, after: 3 tokens}}\n" + STAGE,
        "load.workload.leave.after: an answer in one piece",
    ),
    (
        "  workload: {input: 8, output: 8, leave: {share: 5%, after: soon}}\n" + STAGE,
        'load.workload.leave.after: "soon" is neither tokens nor a time',
    ),
    ("  workload: {input: 8, output: 8, body: {seed: 4}}\n" + STAGE, "load.workload.body: `seed` is set by benchgate"),
    (
        "  workload: {input: 4000, output: 100}\n" + STAGE,
        'load.workload.input: asks for up to 4,000 tokens in and 100 out, and the context of "a" holds 4,096',
    ),
    (
        "  workload: {input: 1000, output: 100, session: {turns: 4}}\n" + STAGE,
        "load.workload.input: asks for up to 1,000 tokens in and 100 out in each of 4 turns",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 2, requests: 9, each: {input: [64, 8000]}}]\n",
        "load.sweep[0].input: asks for up to 8,000 tokens in",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 2, requests: 9, each: {output: [8, 8000]}}]\n",
        "load.sweep[0].output: asks for up to 64 tokens in and 8,000 out",
    ),
    (
        PLAIN + STAGE + "  workloads: {long: {input: 8000, output: 8}}\n"
        "  capacity: {over: rate, from: 1/s, to: 8/s, workload: long}\nslo: {ttft: 1s}\n",
        "load.workloads.long.input: asks for up to 8,000 tokens in",
    ),
    (
        "  workload: {input: 64, output: 8, stream: false}\n"
        + STAGE
        + "  capacity: {over: rate, from: 1/s, to: 8/s}\nslo: {tpot: 10ms}\n",
        "load.capacity: the `tpot` of the `slo` is undefined for answers that come whole (`stream: false`); bound",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 2, requests: 9, each: {prefix_share: [50%, 100%]}}]\n",
        "load.sweep[0].each: a `prefix_share` of 100% leaves no prompt a text of its own",
    ),
    (
        "  workload: {input: 1000, output: 8, prefix: {share: 75%}, retrieval: {pool: 9, each: 3, tokens: 200}}\n"
        + STAGE,
        "load.workload.retrieval: leaves nothing of 1,000 tokens of `input`",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 2, requests: 9, workload: lon}]\n",
        'load.sweep[0].workload: no workload is named "lon"; `load.workloads` is missing',
    ),
    (
        PLAIN + STAGE + "  capacity: {over: rate, from: 1/s, to: 8/s, workload: lon}\nslo: {ttft: 1s}\n",
        'load.capacity.workload: no workload is named "lon"; `load.workloads` is missing',
    ),
    (
        PLAIN + "  workloads: {long: {input: 9, output: 9}}\n" + STAGE,
        "load.workloads.long: no stage names this workload",
    ),
    (
        "  workload: {input: 9, output: 9, session: {turns: 2}}\n  sweep: [{stage: r, rate: 2/s, for: 9s}]\n",
        "load.sweep[0].for: conversations have as many requests",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 2, requests: 9, each: {concurrency: [1, 2]}}]\n",
        "load.sweep[0]: `concurrency` is what `each` varies",
    ),
    (
        PLAIN + "  sweep: [{stage: c, requests: 9, concurrency: 1, each: {input: [1], output: [2]}}]\n",
        "load.sweep[0].each: `each` varies exactly one of",
    ),
    (
        PLAIN + "  sweep: [{stage: c, concurrency: 1, requests: 9, block: 16}]\n",
        "load.sweep[0]: `block` means nothing in",
    ),
    (
        PLAIN + "  sweep: [{stage: c, requests: 9, classes: {a: {concurrency: 1, requests: 1}}}]\n",
        "load.sweep[0]: `requests` means nothing beside `classes`",
    ),
    (
        PLAIN + "  sweep: [{stage: c, classes: {a: {concurrency: 1, background: true}}}]\n",
        "load.sweep[0]: every class is `background`",
    ),
    (
        PLAIN
        + "  sweep: [{stage: c, classes: {a: {concurrency: 1, requests: 2}, b: {rate: 1/s, background: true}}}]\n",
        "load.sweep[0]: class b is `background`, a closed loop that others end",
    ),
    (
        PLAIN + "  sweep: [{stage: c, classes: {a: {concurrency: 1}}}]\n",
        "load.sweep[0]: class a: `requests` is required and missing",
    ),
]


@pytest.mark.parametrize(("load", "said"), MISTAKES, ids=[said[:60] for _, said in MISTAKES])
def test_mistake_is_the_only_problem_and_says_what_to_do(load: str, said: str) -> None:
    (found,) = problems(load)
    assert found.startswith(said), found


@pytest.mark.parametrize(
    ("key", "path"), [("body: {parameters: {a: 1}, top_k: 5}", "body.top_k"), ("priority: 1", "priority")]
)
def test_field_that_no_message_of_grpc_holds_is_refused(key: str, path: str) -> None:
    head = HEAD.replace("engine: vllm", "engine: vllm, grpc: 'host:8001'")
    (found,) = problems(f"  workload: {{input: 8, output: 8, endpoint: grpc-infer, {key}}}\n{STAGE}", head)
    assert found.startswith(f"load.workload.{path}: has no place in a request of gRPC; write it into `body.parameters`")


@pytest.mark.parametrize("engine", ["openai", "llamacpp", "tgi"])
def test_priority_is_refused_where_an_engine_has_none(engine: str) -> None:
    head = HEAD.replace("engine: vllm}", f"engine: {engine}}}")
    (found,) = problems("  workload: {input: 8, output: 8, priority: 1}\n" + STAGE, head)
    assert found.startswith(f'load.workload.priority: "b" is {engine}, which has no priorities (vllm and sglang have)')


def test_schema_that_is_none_is_a_mistake_of_the_suite() -> None:
    (found,) = problems("  workload: {input: 8, output: 8, schema: {type: objekt}}\n" + STAGE)
    assert found.startswith("load.workload.schema: is no JSON schema: $.type: 'objekt' is not valid")
    (found,) = problems("  workload: {input: 8, output: 8, schema: {$ref: '#/$defs/a'}}\n" + STAGE)
    assert found == (
        "load.workload.schema: is no JSON schema: #/$defs/a leads nowhere inside the schema, and nothing outside it is "
        "looked up"
    )


@pytest.mark.parametrize(
    ("deployment", "remedy"),
    [
        ("{embedded: {}}", ", and write `text: letters`"),
        ('{url: "http://a:1", model: m, start: {run: [serve]}}', ", or name the file or folder of a tokenizer"),
    ],
)
def test_engine_that_a_run_starts_cannot_be_asked_for_its_tokenizer(deployment: str, remedy: str) -> None:
    head = HEAD.replace('{url: "http://a:1", model: m, engine: vllm, context: 4096}', deployment)
    (found,) = problems("  workload: {input: 8, output: 8, tokenizer: server}\n" + STAGE, head)
    said = f'"a" is started later than the plan is made; leave it out{remedy}'
    assert found.startswith(f"load.workload.tokenizer: {said}")
