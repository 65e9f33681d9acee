"""Requests and whole answers of APIs that take one text and are not OpenAI's: TGI, Triton, KServe and TorchServe.

Fields of the suite go beside what is set here; `parameters` are merged with those set here.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.model.request import ModelRequest
from benchgate.targets.answers import EMPTY_ANSWER
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import event_error, json_object
from benchgate.targets.validity import response_schema

Body = dict[str, object]
_TEXT_TENSOR = {"name": "text_input", "shape": [1], "datatype": "BYTES"}


def tgi_body(target: Target, ask: ModelRequest, seed: int | None) -> Body:
    """Return the body of a request to TGI's `/generate`, which LoRAX has too. An adapter is `adapter_id` of both.

    LoRAX ignores a `grammar`, and enforces the schema of a `response_format` of type `json_object`.
    """
    fields = dict(ask.fields)
    parameters: Body = {"max_new_tokens": ask.output_tokens, "do_sample": False, "details": True}
    if seed is not None:
        parameters["seed"] = seed
    if ask.ignore_eos and target.dialect.ignore_eos is not None:
        parameters.update(target.dialect.ignore_eos)
    if ask.model is not None:
        parameters["adapter_id"] = ask.model
    schema = response_schema(fields.get("response_format"))
    if schema is not None:
        del fields["response_format"]
        if target.dialect.engine == "lorax":
            parameters["response_format"] = {"type": "json_object", "schema": schema}
        else:
            parameters["grammar"] = {"type": "json", "value": schema}
    return {"inputs": ask.prompt, **_with_parameters(parameters, fields)}


def triton_body(target: Target, ask: ModelRequest, seed: int | None) -> Body:
    """Return the body of a request to Triton's `generate`, as its backends of vLLM and TensorRT-LLM take it.

    Triton passes names of input tensors to these and the others as parameters. vLLM's backend repeats the prompt in an
    answer that comes whole, unless it is told not to.
    """
    parameters: Body = {"max_tokens": ask.output_tokens, "temperature": 0, "stream": ask.stream}
    if not ask.stream:
        parameters["exclude_input_in_output"] = True
    if ask.ignore_eos and target.dialect.ignore_eos is not None:
        parameters.update(target.dialect.ignore_eos)
    return {"text_input": ask.prompt, **_with_parameters(parameters, ask.fields)}


def infer_body(target: Target, ask: ModelRequest, seed: int | None) -> Body:
    """Return the body of a request to KServe's `infer`.

    The text is the data of the tensor `text_input`, or of that tensor among the suite's `inputs` that has no `data`.
    """
    fields = dict(ask.fields)
    written = fields.pop("inputs", [_TEXT_TENSOR])
    inputs = [
        {**tensor, "data": [ask.prompt]} if isinstance(tensor, Mapping) and "data" not in tensor else tensor
        for tensor in (written if isinstance(written, list | tuple) else ())
    ]
    return {"inputs": inputs, **fields}


def predictions_body(target: Target, ask: ModelRequest, seed: int | None) -> Body:
    """Return the body of a request to TorchServe, whose handlers choose their own names.

    The text is `prompt`, or that field of the suite that is null.
    """
    places = [name for name, value in ask.fields.items() if value is None] or ["prompt"]
    limits: Body = {"max_new_tokens": ask.output_tokens, "stream": ask.stream}
    return {**limits, **ask.fields, **dict.fromkeys(places, ask.prompt)}


def _with_parameters(parameters: Body, fields: Mapping[str, object]) -> Body:
    written = fields.get("parameters")
    return {**fields, "parameters": {**parameters, **(written if isinstance(written, Mapping) else {})}}


def missing_generated_text(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of TGI lacks. None if it holds a text."""
    return None if document.get("generated_text") else EMPTY_ANSWER


def missing_text_output(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of Triton lacks. None if it holds a text."""
    if "text_output" not in document:
        return "HTTP 200 without a text_output in it"
    return None if output_text(document) else EMPTY_ANSWER


def output_text(document: Mapping[str, object]) -> str | None:
    """Return the `text_output` of a Triton answer; several of one batch are joined. None if it has none."""
    text = document.get("text_output")
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        return "".join(text)
    return text if isinstance(text, str) else None


def missing_tensor(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of `infer` lacks. None if it holds a text."""
    text = tensor_text(document)
    return "HTTP 200 without an output of BYTES in it" if text is None else None if text else EMPTY_ANSWER


def tensor_text(document: Mapping[str, object]) -> str | None:
    """Return the texts of the output tensors of an `infer` answer, joined; None if none is of BYTES."""
    outputs = document.get("outputs")
    tensors = [tensor for tensor in (outputs if isinstance(outputs, list) else ()) if isinstance(tensor, dict)]
    data = [tensor.get("data") for tensor in tensors if tensor.get("datatype") == "BYTES"]
    return "".join(_texts(data)) if data else None


def _texts(data: object) -> list[str]:
    """Return the texts in a tensor's data, whose rows may be lists."""
    if isinstance(data, list):
        return [text for part in data for text in _texts(part)]
    return [data] if isinstance(data, str) else []


def missing_prediction(document: Mapping[str, object]) -> str | None:
    """Return the part that an answer of TorchServe lacks. None if it holds anything."""
    return None if document.get("prediction") else EMPTY_ANSWER


def prediction_error(raw: bytes) -> str | None:
    """Return the error that TorchServe reports in a body; None for any answer, which may be text or JSON."""
    document = json_object(raw) if raw.lstrip().startswith(b"{") else None
    if document is None or not ("error" in document or {"code", "type", "message"} <= set(document)):
        return None
    return event_error(document)
