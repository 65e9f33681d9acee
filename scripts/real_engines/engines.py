"""The engines that benchgate is run against: a row each, with how to start it and what it can do.

A new engine is a row here and `requirements/ENVIRONMENT.in`. The claims of `engine_claims` are the same for every row;
what an engine cannot do is stated in its row, and a claim holds benchgate to that too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from benchgate.model.records import ProbabilitySource
from benchgate.model.request import Endpoint

MODEL = "tiny-llama"
BATCH_SEQUENCES = 8  # that vLLM works on at once; the knee must lie there


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, its start, and what benchgate must find in it.

    `command` and `files` are templates: {python} and {bin} are of the engine's environment, {model} is the folder of a
    Hugging Face model and {lit_model} of a litgpt one, {gguf} a llama.cpp file, {folder} the working folder, {port} the
    port to listen on, {port_1} to {port_4} further free ones, {upstream} the address of the engine that it stands
    `in_front_of`, and {frameworks} the folder of the models that serving frameworks load.
    """

    name: str
    version: str
    environment: str | None  # requirements/ENVIRONMENT.txt; None: benchgate's own environment
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables
    files: Mapping[str, str] = field(default_factory=dict)  # written into the working folder before the start
    in_front_of: str | None = None
    api: str = ""  # base path of OpenAI's routes
    metrics_address: str | None = None  # template of the metrics page, where it is not beside the API

    endpoint: Endpoint = "chat"  # of readiness and errors
    groups: tuple[str, ...] | None = None  # of claims that can be made; None: all
    dialect: str = "openai"
    detects: str | None = None  # engine by its list of models; None: as `dialect`
    model: str = MODEL
    deployment: Mapping[str, object] = field(default_factory=dict)  # further keys of the deployment in a suite
    load: tuple[tuple[Endpoint, int], ...] = (("chat", 1), ("chat", 4))  # closed loops: endpoint and concurrency
    input_tokens: int = 64
    context_tokens: int = 2048
    fixed_tokens: int | None = None  # length of every answer, where the engine ignores `max_tokens`
    tokens_from: str = "usage"
    counters: tuple[str, str] | None = None  # names on its metrics page: finished requests, generated tokens
    probabilities: tuple[ProbabilitySource, ...] = ()  # of given texts; empty: benchgate must refuse, with a reason
    metrics: str | None = None  # engine by whose names its metrics page is read; None: it has none that is known
    lists_model: bool = True
    shows_version: bool = False
    refuses_unknown_model: bool = True
    refuses_long_prompt: bool = True
    notices_disconnect: bool = True
    more_claims: tuple[str, ...] = ()  # groups that only this engine has


_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
_CPU_VLLM = {
    **_OFFLINE,
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the load generator lives on the same cores
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
}
_HERE = ("--host", "127.0.0.1", "--port", "{port}")

VLLM = Engine(
    "vllm",
    "0.32.0",
    "vllm",
    (
        *("{bin}/vllm", "serve", "{model}", "--served-model-name", MODEL, *_HERE),
        *("--max-model-len", "2048", "--dtype", "bfloat16", "--max-num-seqs", str(BATCH_SEQUENCES)),
        *("--block-size", "32", "--enforce-eager"),
        *("--enable-tokenizer-info-endpoint", "--enable-prompt-tokens-details"),
    ),
    _CPU_VLLM,
    dialect="vllm",
    load=(("chat", 1), ("chat", 4), ("chat", 16), ("completions", 4), ("responses", 4)),
    counters=("vllm:request_success_total", "vllm:generation_tokens_total"),
    probabilities=("echo", "cut"),
    metrics="vllm",
    shows_version=True,
    more_claims=("knee", "capacity", "likelihoods", "alike"),
)

TRANSFORMERS = Engine(
    "transformers",
    "5.19.0",
    "vllm",  # it comes with vLLM's environment
    ("{bin}/transformers", "serve", MODEL, *_HERE, "--device", "cpu"),  # it knows a model by the path that it was given
    _OFFLINE,
    deployment={"leave_out": ["stream_options", "seed"]},
    load=(("chat", 1), ("chat", 4), ("completions", 2)),
    lists_model=False,
    refuses_long_prompt=False,
    more_claims=("regression",),
)

LITGPT = Engine(
    "litgpt",
    "0.5.13",
    "litgpt",
    (
        *("{bin}/litgpt", "serve", "{lit_model}", "--port", "{port}", "--openai_spec", "true", "--accelerator", "cpu"),
        *("--max_new_tokens", "64", "--temperature", "0"),
    ),
    _OFFLINE,
    load=(("chat", 1), ("chat", 2)),
    fixed_tokens=64,
    tokens_from="chunks",  # its usage is all zeros
    lists_model=False,
    refuses_unknown_model=False,
)

LLAMACPP = Engine(
    "llamacpp",
    "2026.10",  # of xllamacpp
    None,
    (
        *("{python}", "-c", "import sys; from benchgate.embedded.server_process import main; main(sys.argv[1], print)"),
        '{{"model": "{gguf}", "alias": "tiny-llama", "port": {port}, '
        '"slots": 4, "context_tokens": 2048, "threads": 1}}',
    ),
    dialect="llamacpp",
    load=(("chat", 1), ("chat", 4), ("completions", 4)),
    probabilities=("n_probs",),
    metrics="llamacpp",
    shows_version=True,
    refuses_unknown_model=False,
)

LLAMA_CPP_PYTHON = Engine(
    "llama-cpp-python",
    "0.3.36",
    "llama-cpp-python",
    (
        *("{python}", "-m", "llama_cpp.server", "--model", "{gguf}", "--model_alias", MODEL, *_HERE),
        *("--n_ctx", "2048", "--n_threads", "1", "--logits_all", "true"),
        *("--interrupt_requests", "false"),  # by default a request ends the stream of the one before
    ),
    load=(("chat", 1), ("chat", 4), ("completions", 2)),
    tokens_from="chunks",  # its streams have no usage
    probabilities=("cut",),  # its echo loses halves of characters, so benchgate refuses it for some texts
    refuses_unknown_model=False,
)

MLX_LM = Engine(
    "mlx-lm",
    "0.32.2",
    "mlx-lm",
    ("{bin}/mlx_lm.server", "--model", MODEL, *_HERE),
    _OFFLINE,
    dialect="mlx",
    load=(("chat", 1), ("chat", 4), ("completions", 2)),
    lists_model=False,  # by the absolute path, whatever name it was given
    refuses_long_prompt=False,
)

LITELLM = Engine(
    "litellm",
    "1.106.2",
    "litellm",
    ("{bin}/litellm", "--config", "{folder}/litellm.yaml", *_HERE),
    {**_OFFLINE, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
    {
        "litellm.yaml": "model_list:\n"
        f"  - {{{{model_name: {MODEL}, litellm_params: "
        f"{{{{model: openai/{MODEL}, api_base: '{{upstream}}/v1', api_key: none}}}}}}}}\n"
        "litellm_settings: {{callbacks: [prometheus]}}\n"
    },
    in_front_of="vllm",
    dialect="litellm",
    counters=("litellm_deployment_success_responses_total", "litellm_output_tokens_metric_total"),
    metrics="litellm",
    shows_version=True,
    probabilities=("echo", "cut"),  # of the server behind it
)

DYNAMO = Engine(
    "dynamo",
    "1.6.1",
    "dynamo",
    (
        *("/bin/sh", "-c"),
        f"{{python}} {{frameworks}}/dynamo_worker.py {{model}} {MODEL} & "
        "exec {python} -m dynamo.frontend --http-host 127.0.0.1 --http-port {port}",
    ),
    {**_OFFLINE, "DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "{folder}/dynamo-{port}"},
    dialect="dynamo",
    load=(("chat", 1), ("chat", 4), ("completions", 4)),
    counters=("dynamo_frontend_requests_total", "dynamo_frontend_output_tokens_total"),
    metrics="dynamo",
    refuses_long_prompt=False,  # the worker may
)

RAYSERVE = Engine(
    "rayserve",
    "2.60.0",
    "rayserve",
    ("{python}", "{frameworks}/rayserve_app.py", "{model}", MODEL, "{port}"),
    {**_CPU_VLLM, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
    dialect="rayserve",
    load=(("chat", 1), ("chat", 4), ("completions", 4)),
    probabilities=("echo", "cut"),
)

KSERVE = Engine(
    "kserve",
    "0.21.0",
    "kserve",
    ("{python}", "{frameworks}/kserve_model.py", "{model}", MODEL, "{port}"),
    _CPU_VLLM,
    api="/openai",
    dialect="kserve",
    load=(("chat", 1), ("chat", 2)),
    tokens_from="chunks",  # it makes chat of completions and leaves the usage out
    # Its metrics are of `infer`; those of OpenAI's routes come from vLLM, where that is its engine.
    shows_version=True,
)

TORCHSERVE = Engine(
    "torchserve",
    "0.12.0",
    "torchserve",
    (
        *("/bin/sh", "-c"),
        "{bin}/torch-model-archiver --model-name tiny --version 1.0 --handler {frameworks}/torchserve_handler.py "
        "--extra-files {frameworks}/tiny_text.py --config-file {folder}/torchserve-model.yaml --export-path {folder} "
        "--force && PATH={bin}:$PATH exec {bin}/torchserve --start --foreground --no-config-snapshots "
        "--ts-config {folder}/torchserve.properties",
    ),
    _OFFLINE,
    {
        "torchserve.properties": "inference_address=http://127.0.0.1:{port}\n"
        "management_address=http://127.0.0.1:{port_1}\nmetrics_address=http://127.0.0.1:{port_2}\n"
        "grpc_inference_port={port_3}\ngrpc_management_port={port_4}\nmetrics_mode=prometheus\n"
        "disable_token_authorization=true\nmodel_store={folder}\nload_models=tiny.mar\n",
        "torchserve-model.yaml": f"minWorkers: 1\nmaxWorkers: 1\nhandler: {{{{folder: '{{model}}', name: {MODEL}}}}}\n",
    },
    api="/predictions/tiny/1.0",
    metrics_address="http://127.0.0.1:{port_2}/metrics",
    dialect="torchserve",
    load=(("chat", 1), ("chat", 2), ("completions", 2)),
    metrics="torchserve",
    notices_disconnect=False,
)

TRITON = Engine(
    "triton",
    "2.51.0",  # of nvidia-pytriton 0.7.0
    "triton",
    ("{frameworks}/triton_server.sh", "{python}", "{folder}/triton-server", "{port}", "{port_1}", "{port_2}"),
    {**_OFFLINE, "TINY_MODEL": "{model}"},
    endpoint="triton-generate",
    groups=("load", "errors"),  # evals and shadow prompts need chat
    metrics_address="http://127.0.0.1:{port_2}/metrics",
    dialect="triton",
    model="tiny",
    load=(("triton-generate", 1), ("triton-generate", 2)),
    tokens_from="chunks",
    metrics="triton",
)

_ROWS = (
    *(VLLM, TRANSFORMERS, LITGPT, LLAMACPP, LLAMA_CPP_PYTHON, MLX_LM, LITELLM),
    *(DYNAMO, RAYSERVE, KSERVE, TORCHSERVE, TRITON),
)
ENGINES: Mapping[str, Engine] = MappingProxyType({row.name: row for row in _ROWS})
