"""Readiness and liveness probes, engine detection, and the facts that a server reports of itself.

Ready means that the server really completed a request: health endpoints answer long before a model does, and some
servers have none.

Facts are flags, chat template and file of weights. Nothing of them is required of a server, and a value of an
unexpected form is left out. Only the names listed here are read: servers show their keys and paths beside their flags.
A fact is the same after a restart of the same deployment, so nothing that is counted or sized at start-up is one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from benchgate.errors import TargetError
from benchgate.model.request import ENDPOINTS, Endpoint, ModelRequest, text_request
from benchgate.model.run import NO_LLM_SERVER, REFUSES_REQUESTS
from benchgate.plan.media import data_url, speech_wav
from benchgate.targets import engine_detection
from benchgate.targets.address import show_address
from benchgate.targets.client import (
    RETRY,
    AsyncJsonClient,
    JsonClient,
    NoConnectionError,
    NotHttpError,
    Response,
    TlsError,
)
from benchgate.targets.dialect import Target
from benchgate.targets.endpoints import answer_document, request_content, request_path
from benchgate.targets.engine_detection import model_entries
from benchgate.targets.error_messages import (
    RequestError,
    error_message,
    error_text,
    json_object,
    one_line,
    stated_status,
    success_document,
)
from benchgate.targets.grpc_client import inference_problem

CACHE_INFO = "vllm:cache_config_info"  # a sample on vLLM's metrics page whose labels are flags of its cache
_VLLM = (
    "block_size", "cache_dtype", "calculate_kv_scales", "cpu_offload_gb", "enable_prefix_caching",
    "gpu_memory_utilization", "num_gpu_blocks_override", "prefix_caching_hash_algo", "swap_space",
)  # fmt: skip
_SGLANG = (
    "attention_backend", "chunked_prefill_size", "context_length", "cuda_graph_max_bs", "disable_cuda_graph",
    "disable_overlap_schedule", "disable_radix_cache", "disaggregation_mode", "dp_size", "enable_dp_attention",
    "enable_torch_compile", "ep_size", "kv_cache_dtype", "max_prefill_tokens", "max_running_requests",
    "mem_fraction_static", "page_size", "pp_size", "sampling_backend", "schedule_conservativeness", "schedule_policy",
    "speculative_algorithm", "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps",
    "stream_interval", "tp_size",
)  # fmt: skip
# Not `max_batch_total_tokens`, nor TGI's `max_input_tokens` and `max_total_tokens`: unless set, TGI sizes them at
# start-up by the memory that the weights leave, so quantised weights alone would change them. LoRAX takes
# `max_total_tokens` from its settings or from the model's configuration.
_TGI = (
    "max_batch_size", "max_client_batch_size", "max_concurrent_requests", "max_input_length", "max_waiting_tokens",
    "waiting_served_ratio",
)  # fmt: skip
_LORAX = (*_TGI, "max_total_tokens")
# The flags of each engine that change its speed or its answers, whatever weights it serves.
FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"vllm": _VLLM, "sglang": _SGLANG, "tgi": _TGI, "lorax": _LORAX}
)

# Names that identify a set of weights, which may differ between the arms.
OF_WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sglang": ("dtype", "quantization", "load_format", "weight_version"),
        "tgi": ("model_sha", "model_dtype"),
        "lorax": ("model_sha", "model_dtype"),
    }
)

_OF_A_PROCESS = ("model_path", "model_id")
_FILES = (*_OF_A_PROCESS, "root")


def facts_of(engine: str, document: Mapping[str, object]) -> dict[str, object]:
    """Return the other facts in such a document: weights, adapter, chat template, slots and their context."""
    facts = {name: _plain(value) for name in OF_WEIGHTS.get(engine, ()) if (value := document.get(name)) is not None}
    paths = (document.get(name) for name in _FILES)
    path = next((path for path in paths if isinstance(path, str) and path), None)
    if path is not None:
        facts["weights_at"] = weights_name(path)
    parent = document.get("parent")
    if isinstance(parent, str) and parent:
        facts["adapter_of"] = one_line(parent)
    template = document.get("chat_template")
    if isinstance(template, str) and template:
        facts["chat_template_sha256"] = hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest()
    if engine == "llamacpp":
        slots, usual = document.get("total_slots"), document.get("default_generation_settings")
        context = usual.get("n_ctx") if isinstance(usual, dict) else None
        counts = {"total_slots": slots, "n_ctx": context}
        facts |= {name: n for name, n in counts.items() if isinstance(n, int) and not isinstance(n, bool)}
    return facts


def cache_flags(page: str) -> dict[str, object]:
    """Return the flags that vLLM shows as labels of one sample; where its engines differ, all of their values."""
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if line.startswith(f"{CACHE_INFO}{{"):
            for name, value in LABEL.findall(line):
                if name in _VLLM and value != "None":
                    found.setdefault(name, set()).add(one_line(value))
    return {name: ", ".join(sorted(values)) for name, values in found.items()}


def weights_name(path: str) -> str:
    """Return `org/model` as it is, and of a path on a machine only the last part: folders are private."""
    if not path.startswith(("/", ".", "~")) and "\\" not in path:
        return one_line(path)
    return one_line(path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])


def _plain(value: object) -> object:
    """Return a boolean or a finite number as it is, anything else as one line of text."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return one_line(str(value))


LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


_PROMPT = "Say hello."
_RECORDING_S = 1.0
_TOKENS = 16  # fewer OpenAI's `responses` refuses; one of a reasoning model is a mark without any text
_POLL_S = 0.25
_NOTE_EVERY_S = 0.5
_ANSWER_S = 60.0  # the first completion of a cold engine compiles and loads
_ALIVE_S = 10.0
_HOPELESS = frozenset({401, 403, 405, 422})  # waiting does not mend these
_DOUBTFUL = frozenset({400, 404})  # for a wrong request or name, and briefly for a model that is still loading
_SURE_AFTER_S = 3.0  # of one of those
_UNREACHABLE_AFTER_S = 0.7  # a server started a moment before the run has this long
_NO_SUCH_PATH = frozenset({404, 405, 501})
_COMING = re.compile(
    r"\b(not (yet )?(ready|loaded|started|initiali[sz]ed)|(is|still|being|currently) loading|loading (the )?model"
    r"|starting(?! with)|start-?up|sleeping|asleep|waking|warming|initiali[sz]ing)\b",
    re.IGNORECASE,
)
_MODELS = "/v1/models"
_FACTS = ("ftype", "n_params", "size", "n_vocab", "n_embd", "n_ctx_train", "max_model_len")


def wait_ready(
    target: Target,
    *,
    endpoint: Endpoint,
    ready_s: float,
    connect_s: float,
    may_start: bool = True,
    waiting: Callable[[str], None] = lambda line: None,
) -> dict[str, object]:
    """Wait until the target completes a request, and return the facts that it reports of itself.

    `waiting` is called twice a second with the reason why it is not ready yet. Raises TargetError with arm, host and
    last reason when it is not ready within `ready_s`, or at once when it refuses in a way that waiting does not change.
    A refusal that a loading model may give too must have stayed the same for a few seconds. Unless the server
    `may_start` meanwhile, an address that cannot be reached, or that is not of an LLM server, is an error at once.
    """
    where = f"the {target.arm} at {show_address(target.url)}"
    began_s = last_s = time.monotonic()
    deadline = began_s + ready_s
    refused, refused_since_s = None, began_s
    answer_s = min(_ANSWER_S, ready_s)
    with _client(target, connect_s, answer_s) as client:
        while True:
            attempt = _attempt(client, target, endpoint, answer_s)
            if attempt.problem is None:
                return _facts(client, target)
            now_s = time.monotonic()
            if attempt.refused != refused:
                refused, refused_since_s = attempt.refused, now_s
            over = now_s + _POLL_S >= deadline
            hopeless = now_s - refused_since_s >= attempt.hopeless_after_s
            if attempt.is_foreign and (hopeless or over or not may_start):
                expected = "expected an OpenAI-compatible API"
                raise TargetError(f"{where} {NO_LLM_SERVER}: {attempt.problem}; {expected}")
            if attempt.is_unreachable and not may_start and now_s - began_s >= _UNREACHABLE_AFTER_S:
                raise TargetError(f"{where} cannot be reached: {attempt.problem}")
            if hopeless or (over and attempt.hopeless_after_s < math.inf):
                models = _other_models(client, target, attempt.problem)
                reason = f"{attempt.problem.rstrip('.')}; it serves {models}" if models else attempt.problem
                raise TargetError(f"{where} {REFUSES_REQUESTS}: {reason}")
            if now_s - last_s >= _NOTE_EVERY_S:
                last_s = now_s
                waiting(f"{where} is not ready after {now_s - began_s:.0f} s of {ready_s:g}: {attempt.problem}")
            if over:
                waited = f"was not ready within {ready_s:g} s"
                raise TargetError(f"{where} {waited}; the last reason: {attempt.problem}")
            time.sleep(_POLL_S)


def _other_models(client: JsonClient, target: Target, problem: str) -> str:
    """Name the models served, if the requested one is not among them and the server's message did not name them."""
    if not problem.startswith("HTTP 404"):
        return ""
    served = [str(entry["id"]) for entry in model_entries(_get(client, _MODELS)) if entry.get("id")]
    if not served or target.model in served or any(name in problem for name in served):
        return ""
    return target.redact(", ".join(served))


def liveness_problem(target: Target, *, endpoint: Endpoint = "chat", within_s: float = _ALIVE_S) -> str | None:
    """Return the reason why the target does not complete a short request. None if it does."""
    try:
        with _client(target, within_s, within_s) as client:
            return _attempt(client, target, endpoint, within_s).problem
    except TargetError as exc:
        return str(exc)


def server_facts(target: Target, *, within_s: float = _ALIVE_S) -> dict[str, object]:
    """Return the facts that the target reports of itself now. Raises TargetError when the address is none."""
    with _client(target, within_s, within_s) as client:
        return _facts(client, target)


def detect_engine(target: Target, *, within_s: float = 5.0) -> str:
    """Return a server's dialect, "openai" when unknown. Raises TargetError when the address is none."""
    return asyncio.run(_detect_engine(target, within_s))


async def _detect_engine(target: Target, within_s: float) -> str:
    async with AsyncJsonClient(target, connect_s=within_s, total_s=within_s) as client:
        try:
            models = await client.send("GET", _MODELS)
        except RequestError:
            return "openai"
        return await engine_detection.detect_engine(client, target, models)


def probe_request(endpoint: Endpoint) -> ModelRequest:
    """Return the shortest request that shows that a server serves an endpoint.

    Triton answers a model that sends several responses only with a stream.
    """
    if endpoint == "rerank":
        return ModelRequest("rerank", {"query": _PROMPT, "documents": ["Hello.", "Goodbye."]}, None, stream=False)
    if ENDPOINTS[endpoint].transcribes:
        recording = data_url(speech_wav(_RECORDING_S, np.random.default_rng(0)), "audio/wav")
        return ModelRequest(endpoint, {"file": recording}, None, stream=False)
    ask = text_request(endpoint, _PROMPT, _TOKENS)
    return ModelRequest(endpoint, ask.content, ask.output_tokens, stream=endpoint == "triton-generate")


class _Attempt(NamedTuple):
    """The outcome of one completion: `problem` is None when it came with output.

    `refused` is the status of a refusal that waiting does not change; that is certain once the server has given it for
    as long as `hopeless_after_s`. `is_unreachable`: no server accepts connections. `is_foreign`: another program does.
    """

    problem: str | None
    refused: int | None = None
    hopeless_after_s: float = math.inf
    is_unreachable: bool = False
    is_foreign: bool = False


def _client(target: Target, connect_s: float, answer_s: float) -> JsonClient:
    return JsonClient(target, connect_s=connect_s, total_s=answer_s)


def _attempt(client: JsonClient, target: Target, endpoint: Endpoint, answer_s: float) -> _Attempt:
    ask = probe_request(endpoint)
    if ENDPOINTS[endpoint].by_grpc:
        call = inference_problem(target, ask, answer_s)
        if call is None:
            return _Attempt(None)
        attempt = _refusal(call.reason, call.status, passes=_is_coming(call.details, target))
        return attempt._replace(is_unreachable=call.is_unconnected)
    path = request_path(target, ask)
    try:
        response = client.send("POST", path, request_content(target, ask, seed=0))
    except NotHttpError as error:
        return _Attempt(str(error), is_foreign=True)
    except RequestError as error:
        never = isinstance(error, TlsError) and error.is_about_certificates
        unreachable = isinstance(error, NoConnectionError | TlsError)
        return _Attempt(str(error), None, 0.0 if never else math.inf, is_unreachable=unreachable)
    body, status = response.body, stated_status(response.status, response.body)
    try:
        answer_document(endpoint, response.status, body)
    except RequestError as error:
        problem = str(error.redacted(target.redact))
    else:
        return _Attempt(None)
    is_coming = _is_coming(error_text(body), target)
    is_foreign = False
    if not is_coming and _lacks_api(response) and (listed := _lacking_list(client)) is not None:
        is_foreign = True
        problem = f"POST {path} gave {_page(response, target)}, GET /v1/models {_page(listed, target)}"
    # A gateway's 404 may pass; one with an engine's own message is about the model name or the path.
    document = json_object(body)
    passes = is_coming or (status == 404 and (document is None or error_message(document) is None))
    return _refusal(problem, status, passes=passes)._replace(is_foreign=is_foreign)


def _refusal(problem: str, status: int | None, *, passes: bool) -> _Attempt:
    """Return the attempt with such a status, which `passes` where its message says so of a doubtful one."""
    if status in _HOPELESS:
        return _Attempt(problem, status, 0.0)
    return _Attempt(problem, status, _SURE_AFTER_S) if status in _DOUBTFUL and not passes else _Attempt(problem)


def _is_coming(words: str, target: Target) -> bool:
    """Return True for a message that the model is on its way."""
    return _COMING.search(words.replace(target.model, "")) is not None


def _lacks_api(response: Response) -> bool:
    """Return True for a response of a server that does not have the path, or that answers with a page.

    A message about a model is one of an LLM server, whatever its status.
    """
    document = json_object(response.body)
    if document is not None:
        return response.status in _NO_SUCH_PATH and "model" not in error_text(response.body).lower()
    return response.status in _NO_SUCH_PATH or 200 <= response.status < 400


def _lacking_list(client: JsonClient) -> Response | None:
    """Return the response in place of a list of models; None if there is a list, or none came."""
    try:
        response = client.send("GET", _MODELS)
    except RequestError:
        return None
    return response if _lacks_api(response) else None


def _page(response: Response, target: Target) -> str:
    """Describe a response: `HTTP 404 with an HTML page "Grafana"`."""
    text = target.redact(error_text(response.body))
    shown = f"HTTP {response.status}"
    if "text/html" in response.headers.get("content-type", "") or text.lstrip().lower().startswith(("<!", "<html")):
        title = _TITLE.search(text)
        return f"{shown} with an HTML page" + (f' "{one_line(title[1], 60)}"' if title else "")
    return f"{shown}: {one_line(text, 80)}" if text.strip() else shown


_TITLE = re.compile(r"<title>\s*([^<]+?)\s*</title>", re.IGNORECASE)


def _facts(client: JsonClient, target: Target) -> dict[str, object]:
    """Return the facts that identify engine and model: the same deployment gives the same. No server must have them."""
    dialect, facts = target.dialect, dict[str, object]()
    documents: dict[str, dict[str, object]] = {}

    def at(path: str) -> dict[str, object]:
        if path not in documents:
            documents[path] = _get(client, path if path == _MODELS else target.page(path))
        return documents[path]

    if dialect.version_at is not None:
        path, key = dialect.version_at
        version = at(path).get(key)
        if isinstance(version, str):
            facts["engine_version"] = one_line(version)
    entries = model_entries(at(_MODELS))
    named = [entry for entry in entries if entry.get("id") == target.model] or (entries if len(entries) == 1 else [])
    entry = named[0] if named else {}
    meta = entry.get("meta")
    described = {**entry, **meta} if isinstance(meta, dict) else entry
    for name in _FACTS:
        value = described.get(name)
        if isinstance(value, int | str):
            facts[name] = one_line(value) if isinstance(value, str) else value
    about = next((document for path in dialect.about_at if (document := at(path))), {})
    if dialect.version_at is None and isinstance(about.get("version"), str):
        facts["engine_version"] = one_line(str(about["version"]))
    base_models = [listed for listed in entries if not listed.get("parent")]
    of_model = about
    if len(base_models) > 1:  # the weights are those of one process: behind a gateway others serve the other models
        of_model = {name: value for name, value in about.items() if name not in _OF_A_PROCESS}
    facts |= facts_of(dialect.engine, {**{name: entry.get(name) for name in ("root", "parent")}, **of_model})
    flags = {name: _plain(value) for name in FLAGS.get(dialect.engine, ()) if (value := about.get(name)) is not None}
    if dialect.flags_page is not None:
        flags |= cache_flags(_text(client, target.page(dialect.flags_page)))
    return facts | ({"flags": flags} if flags else {})


def _get(client: JsonClient, path: str) -> dict[str, object]:
    response = _read_page(client, path)
    try:
        return {} if response is None else success_document(response.status, response.body)
    except RequestError:
        return {}


def _text(client: JsonClient, path: str) -> str:
    response = _read_page(client, path)
    return response.body.decode("utf-8", "replace") if response is not None and response.status == 200 else ""


def _read_page(client: JsonClient, path: str) -> Response | None:
    """Return a server's answer, read again once after none or one that may pass. None without any.

    A deployment without its facts looks like another one.
    """
    response = None
    for pause_s in (0.0, _POLL_S):
        time.sleep(pause_s)
        try:
            response = client.send("GET", path)
        except RequestError:
            continue
        if response.status not in RETRY.statuses:
            break
    return response
