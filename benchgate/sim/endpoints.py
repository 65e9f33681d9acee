"""Endpoints of the simulated server: their requests and encoders. One row for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchgate.model.request import ENDPOINTS, Endpoint, endpoint_at
from benchgate.sim.encoders import (
    ChoiceScript,
    GrpcScript,
    InferenceScript,
    MessageScript,
    PredictionScript,
    ResponseScript,
    Script,
    TgiScript,
    TranscriptScript,
    TritonScript,
    VectorScript,
)
from benchgate.sim.requests import (
    ApiRequest,
    Refused,
    RequestBody,
    parse_embedding,
    parse_generation,
    parse_ranking,
    parse_transcription,
    read_form,
    read_object,
    request_body,
)
from benchgate.suite.simulator import SimSettings
from benchgate.targets.grpc_messages import read_request

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServedEndpoint:
    """An endpoint of the server. `translate` spells a body as chat or completions do."""

    endpoint: Endpoint
    script: Callable[[ApiRequest, int, int], Script]  # of a request, the number of the answer, and its second
    parse: Callable[[RequestBody], ApiRequest] = parse_generation
    translate: Callable[[Body], Body] = dict
    read: Callable[[bytes], Body] = read_object

    def request(self, path: str, body: bytes, settings: SimSettings) -> ApiRequest:
        """Parse a request, whose path may name the model and say whether to stream. Raises Refused."""
        spec, data = ENDPOINTS[self.endpoint], self.translate(self.read(body))
        _, model = endpoint_at(path) or (None, None)
        if model is not None:
            data["model"] = model
        if spec.stream_path is not None:
            data["stream"] = path.rpartition("/")[2] == spec.stream_path.rpartition("/")[2]
        return self.parse(request_body(self.endpoint, data, settings))


_TOOL_CHOICES = {"any": "required", "none": "none"}


def _from_messages(data: Body) -> Body:
    """Spell a request to Messages as one to chat."""
    system, messages = data.get("system"), data.get("messages")
    if isinstance(messages, list) and messages:
        instructions = [] if system is None else [{"role": "system", "content": system}]
        messages = [_message(message) for message in (*instructions, *messages)]
    tools, choice, config = data.get("tools"), data.get("tool_choice"), data.get("output_config")
    spelled = data | {"messages": messages}
    if isinstance(tools, list):
        spelled["tools"] = [
            {"type": "function", "function": tool | {"parameters": tool.get("input_schema")}}
            for tool in tools
            if isinstance(tool, dict)
        ]
    if isinstance(choice, dict):
        kind = str(choice.get("type"))
        named = {"function": {"name": choice.get("name")}}
        spelled["tool_choice"] = named if kind == "tool" else _TOOL_CHOICES.get(kind, "auto")
    if isinstance(config, dict):
        spelled["response_format"] = config.get("format")
    return spelled


def _message(message: object) -> object:
    """Spell calls and their results as texts."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(content, list):
        return message
    texts = [
        {"type": "text", "text": json.dumps(part)}
        if isinstance(part, dict) and part.get("type") in ("tool_use", "tool_result")
        else part
        for part in content
    ]
    return message | {"content": texts}


def _from_tgi(data: Body) -> Body:
    parameters = _object(data.get("parameters"))
    grammar = _object(parameters.get("grammar"))
    return {
        "prompt": data.get("inputs"),
        "max_tokens": parameters.get("max_new_tokens"),
        "model": parameters.get("adapter_id"),
        "response_format": {"type": "json_schema", "schema": grammar.get("value")} if grammar else None,
    }


def _from_triton(data: Body) -> Body:
    return {**data, **_object(data.get("parameters")), "prompt": data.get("text_input")}


def _from_predictions(data: Body) -> Body:
    return {**data, "max_tokens": data.get("max_new_tokens")}


def _from_infer(data: Body) -> Body:
    inputs = data.get("inputs")
    tensors = inputs if isinstance(inputs, list) else []
    texts = [tensor.get("data") for tensor in tensors if isinstance(tensor, dict) and tensor.get("datatype") == "BYTES"]
    return {"prompt": texts[0] if texts else None, **_object(data.get("parameters"))}


def _read_grpc(message: bytes) -> Body:
    try:
        return read_request(message)
    except ValueError as error:
        raise Refused(400, str(error), "Bad Request", "body") from None


def _from_grpc(data: Body) -> Body:
    """Spell the tensors of Triton's backend of vLLM as a completion; of other tensors the first text is the prompt."""
    texts = {tensor["name"]: tensor["data"] for tensor in data["inputs"] if tensor["datatype"] == "BYTES"}
    sampling = "".join(texts.pop("sampling_parameters", [])) or "{}"
    named = (texts.get("text_input", []), *texts.values())
    spelled = {"model": data["model_name"] or None, "prompt": next((text for each in named for text in each), None)}
    return {**_object(data["parameters"]), **read_object(sampling.encode()), **spelled}


def _object(found: object) -> Body:
    return found if isinstance(found, dict) else {}


SERVED: Mapping[Endpoint, ServedEndpoint] = MappingProxyType(
    {
        each.endpoint: each
        for each in (
            ServedEndpoint("chat", ChoiceScript),
            ServedEndpoint("completions", ChoiceScript),
            ServedEndpoint("responses", ResponseScript),
            ServedEndpoint("messages", MessageScript, translate=_from_messages),
            ServedEndpoint("generate", TgiScript, translate=_from_tgi),
            ServedEndpoint("triton-generate", TritonScript, translate=_from_triton),
            ServedEndpoint("predictions", PredictionScript, translate=_from_predictions),
            ServedEndpoint("infer", InferenceScript, translate=_from_infer),
            ServedEndpoint("grpc-infer", GrpcScript, translate=_from_grpc, read=_read_grpc),
            ServedEndpoint("embeddings", VectorScript, parse_embedding),
            ServedEndpoint("rerank", VectorScript, parse_ranking),
            ServedEndpoint("transcriptions", TranscriptScript, parse_transcription, read=read_form),
        )
    }
)


def served_at(path: str) -> ServedEndpoint | None:
    """Return the endpoint at a path of HTTP; None for any other."""
    found = endpoint_at(path)
    if found is None:
        return SERVED["rerank"] if path == "/rerank" else None
    return None if ENDPOINTS[found[0]].by_grpc else SERVED.get(found[0])
