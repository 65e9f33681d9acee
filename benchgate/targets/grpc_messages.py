"""Messages of KServe's inference protocol version 2 over gRPC, and of Triton's extension for streams.

The field numbers are those of `grpc_predict_v2.proto` (kserve/open-inference-protocol) and of Triton's
`grpc_service.proto`. The messages are described here instead of generated, so that any version of protobuf reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Any

from benchgate.errors import UsageError
from benchgate.model.request import ModelRequest
from benchgate.system import lacking
from benchgate.targets.dialect import Target

SERVICE = "/inference.GRPCInferenceService/"
FINAL_RESPONSE = "triton_final_response"  # of a model that answers several times, whether this is the last answer
_ASK_FOR_FINAL = "triton_enable_empty_final_response"
_CONTENTS = {  # the list that holds the data of a tensor, by its type
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def has_grpc() -> bool:
    """Return True if the libraries of the extra `grpc` are installed."""
    with suppress(ModuleNotFoundError):  # no package `google` at all
        return find_spec("grpc") is not None and find_spec("google.protobuf") is not None
    return False


def require_grpc() -> None:
    """Raise UsageError unless the libraries of the extra `grpc` are installed."""
    if not has_grpc():
        raise UsageError(lacking("the endpoint grpc-infer needs grpcio and protobuf, which are not installed", "grpc"))


def body(target: Target, ask: ModelRequest, seed: int | None) -> dict[str, object]:
    """Return a request as its JSON form: the tensors of the suite, else those of Triton's backend of vLLM.

    The text goes into the tensor that has no `data`.
    """
    fields = dict(ask.fields)
    sampling: dict[str, object] = {"max_tokens": ask.output_tokens, "temperature": 0}
    if ask.ignore_eos and target.dialect.ignore_eos is not None:
        sampling |= target.dialect.ignore_eos
    usual: list[dict[str, object]] = [
        {"name": "text_input", "shape": [1], "datatype": "BYTES"},
        {"name": "stream", "shape": [1], "datatype": "BOOL", "data": [ask.stream]},
        {"name": "sampling_parameters", "shape": [1], "datatype": "BYTES", "data": [json.dumps(sampling)]},
        {"name": "exclude_input_in_output", "shape": [1], "datatype": "BOOL", "data": [True]},
    ]
    written = fields.pop("inputs", usual)
    inputs = [
        tensor if not isinstance(tensor, Mapping) or "data" in tensor else {**tensor, "data": [ask.prompt]}
        for tensor in (written if isinstance(written, list | tuple) else ())
    ]
    given = fields.pop("parameters", {})
    parameters = {_ASK_FOR_FINAL: True} if ask.stream else {}
    if isinstance(given, Mapping):
        parameters |= given
    return {"model_name": ask.model or target.model, "inputs": inputs, "parameters": parameters, **fields}


def encode(request: Mapping[str, object]) -> bytes:
    """Encode a `ModelInferRequest`. Raises ValueError for tensors that are none."""
    message = _types()["ModelInferRequest"]()
    try:
        message.model_name = request["model_name"]
        message.model_version = request.get("model_version", "")
        message.id = request.get("id", "")
        inputs = request["inputs"]
        for tensor in inputs if isinstance(inputs, list) else ():
            _take_tensor(message.inputs.add(), tensor)
        parameters = request.get("parameters")
        for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
            _set_parameter(message.parameters.add(key=name).value, value)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the tensors of grpc-infer cannot be encoded ({error}); write each with name, shape, datatype and data"
        ) from None
    return bytes(message.SerializeToString(deterministic=True))


def _take_tensor(into: Any, tensor: Mapping[str, Any]) -> None:
    into.name, into.datatype = tensor["name"], tensor["datatype"]
    into.shape.extend(tensor["shape"])
    contents, data = getattr(into.contents, _CONTENTS[into.datatype]), list(_flat(tensor["data"]))
    contents.extend([one.encode("utf-8", "replace") for one in data] if into.datatype == "BYTES" else data)


def _flat(data: object) -> Iterator[Any]:
    for one in data if isinstance(data, list | tuple) else [data]:
        if isinstance(one, list | tuple):
            yield from _flat(one)
        else:
            yield one


def _set_parameter(into: Any, value: object) -> None:
    kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
    setattr(into, kind, value)


def read_request(message: bytes) -> dict[str, Any]:
    """Return a `ModelInferRequest` as its JSON form. Raises ValueError for bytes that are none."""
    from google.protobuf.message import DecodeError

    try:
        request = _types()["ModelInferRequest"].FromString(message)
    except DecodeError as error:
        raise ValueError(f"no request of the inference protocol: {error}") from None
    tensors = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": _data(request, place)}
        for place, tensor in enumerate(request.inputs)
    ]
    parameters = {entry.key: _parameter_value(entry.value) for entry in request.parameters}
    return {"model_name": request.model_name, "inputs": tensors, "parameters": parameters}


def _data(request: Any, place: int) -> list[Any]:
    """Return the values of an input; raw contents are decoded for BYTES only."""
    tensor = request.inputs[place]
    found = list(getattr(tensor.contents, _CONTENTS.get(tensor.datatype, "bytes_contents")))
    if not found and tensor.datatype == "BYTES" and place < len(request.raw_input_contents):
        found = list(_unpacked(request.raw_input_contents[place]))
    return [one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in found]


def _parameter_value(parameter: Any) -> object:
    return next((value for _, value in parameter.ListFields()), None)


def write_answer(model: str, text: str | None, *, is_final: bool | None = None) -> Any:
    """Return a `ModelInferResponse` with the text as raw contents, as Triton sends it; without output for None."""
    answer = _types()["ModelInferResponse"](model_name=model, model_version="1")
    if is_final is not None:
        answer.parameters.add(key=FINAL_RESPONSE).value.bool_param = is_final
    if text is not None:
        tensor = answer.outputs.add(name="text_output", datatype="BYTES")
        tensor.shape.append(1)
        words = text.encode()
        answer.raw_output_contents.append(struct.pack("<I", len(words)) + words)
    return answer


def write_stream_answer(answer: Any = None, *, error: str = "") -> bytes:
    """Return a `ModelStreamInferResponse` with an answer or an error."""
    outer = _types()["ModelStreamInferResponse"]
    message = outer(error_message=error) if answer is None else outer(infer_response=answer)
    return bytes(message.SerializeToString())


@dataclass(frozen=True, slots=True)
class Inference:
    """An answer, or one of several. `text` is None without a tensor of BYTES, `is_final` where it is not stated."""

    text: str | None = None
    error: str | None = None
    is_final: bool | None = None
    model: str | None = None


def decode(message: bytes, *, streamed: bool) -> Inference | None:
    """Return a `ModelInferResponse`, or with `streamed` a `ModelStreamInferResponse`; None for bytes that are none."""
    from google.protobuf.message import DecodeError

    kinds = _types()
    try:
        if streamed:
            outer = kinds["ModelStreamInferResponse"].FromString(message)
            if outer.error_message:
                return Inference(error=outer.error_message)
            answer = outer.infer_response
        else:
            answer = kinds["ModelInferResponse"].FromString(message)
    except DecodeError:
        return None
    texts = list(_texts(answer))
    is_final = next((entry.value.bool_param for entry in answer.parameters if entry.key == FINAL_RESPONSE), None)
    return Inference("".join(texts) if texts else None, is_final=is_final, model=answer.model_name or None)


def _texts(answer: Any) -> Iterator[str]:
    """Yield the texts of the tensors of BYTES: in their contents, or raw, each behind its length."""
    for place, tensor in enumerate(answer.outputs):
        if tensor.datatype != "BYTES":
            continue
        raw = answer.raw_output_contents[place] if place < len(answer.raw_output_contents) else b""
        found: Iterable[bytes] = tensor.contents.bytes_contents or _unpacked(raw)
        yield "".join(one.decode("utf-8", "replace") for one in found)


def _unpacked(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        yield raw[at + 4 : at + 4 + size]
        at += 4 + size


_LABELS = {"": 1, "*": 3}  # optional, repeated
_KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
_MESSAGE = 11
# Messages with their fields: name, number, type, and * for a list. A type that is no scalar is a message. A map is a
# list of its entries, and one of several values an optional value: they are the same on the wire.
_MESSAGES: Mapping[str, tuple[str, ...]] = {
    "InferParameter": (
        "bool_param 1 bool", "int64_param 2 int64", "string_param 3 string", "double_param 4 double",
        "uint64_param 5 uint64",
    ),
    "Parameter": ("key 1 string", "value 2 InferParameter"),
    "InferTensorContents": (
        "bool_contents 1 bool*", "int_contents 2 int32*", "int64_contents 3 int64*", "uint_contents 4 uint32*",
        "uint64_contents 5 uint64*", "fp32_contents 6 float*", "fp64_contents 7 double*", "bytes_contents 8 bytes*",
    ),
    "Tensor": ("name 1 string", "datatype 2 string", "shape 3 int64*", "contents 5 InferTensorContents"),
    "ModelInferRequest": (
        "model_name 1 string", "model_version 2 string", "id 3 string", "parameters 4 Parameter*",
        "inputs 5 Tensor*", "raw_input_contents 7 bytes*",
    ),
    "ModelInferResponse": (
        "model_name 1 string", "model_version 2 string", "id 3 string", "parameters 4 Parameter*",
        "outputs 5 Tensor*", "raw_output_contents 6 bytes*",
    ),
    "ModelStreamInferResponse": ("error_message 1 string", "infer_response 2 ModelInferResponse"),
}  # fmt: skip


_MAKING = Lock()  # two threads would make classes that do not fit together


def _types() -> Mapping[str, Any]:
    """Return the classes of the messages. Raises UsageError without the extra `grpc`."""
    with _MAKING:
        return _made_types()


@cache
def _made_types() -> Mapping[str, Any]:
    require_grpc()
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="benchgate_inference.proto", package="inference", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            field_name, number, kind = field.split()
            scalar = _KINDS.get(kind.rstrip("*"))
            message.field.add(
                name=field_name,
                number=int(number),
                label=_LABELS[kind[len(kind.rstrip("*")) :]],
                type=scalar or _MESSAGE,
                type_name=None if scalar else f".inference.{kind.rstrip('*')}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"inference.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}
