"""A GGUF file as a value: read whole, change by pure functions, write whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchgate.embedded.engine import require_gguf
from benchgate.errors import EmbeddedError

ARCHITECTURE_KEY = "general.architecture"


@dataclass(frozen=True, slots=True)
class Field:
    """One metadata entry. `kind` and `item_kind` are GGUF value types; `item_kind` only for arrays."""

    value: Any  # str, int, float, bool or a list of one of them
    kind: int
    item_kind: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight. `data` is (rows, columns) or (columns,) in the file's own encoding; `ggml_type` says which."""

    name: str
    data: NDArray[Any]
    ggml_type: int


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model file in memory, metadata and tensors in file order."""

    fields: dict[str, Field]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """Name of the architecture, which prefixes its keys (`llama.block_count`)."""
        return str(self.fields[ARCHITECTURE_KEY].value)

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return int(self.fields[self._layers_key].value)

    @property
    def _layers_key(self) -> str:
        return f"{self.architecture}.block_count"

    def with_layers(self, layers: int, extra: tuple[Tensor, ...]) -> GgufModel:
        """The same model with `extra` tensors appended and `layers` layers declared."""
        return replace(self.with_field(self._layers_key, layers), tensors=self.tensors + extra)

    def with_field(self, key: str, value: int) -> GgufModel:
        """The same model with one existing whole-number entry changed."""
        return replace(self, fields=self.fields | {key: replace(self.fields[key], value=value)})


def read_gguf(path: Path) -> GgufModel:
    """Read a GGUF file. Raises EmbeddedError when it is absent or not a GGUF file."""
    require_gguf()
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise EmbeddedError(f"{path} is not a readable GGUF file: {error}; reinstall benchgate") from error
    fields = {
        # The reader adds entries of its own about the header, which the writer makes anew.
        field.name: Field(field.contents(), int(field.types[0]), int(field.types[-1]) if len(field.types) > 1 else None)
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.")
    }
    tensors = tuple(Tensor(t.name, np.asarray(t.data), int(t.tensor_type)) for t in reader.tensors)
    return GgufModel(fields, tensors)


def write_gguf(model: GgufModel, path: Path) -> None:
    """Write `model` to `path`, replacing what is there; OSError passes through."""
    require_gguf()
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    writer = GGUFWriter(path, model.architecture)
    try:
        for key, field in model.fields.items():
            if key != ARCHITECTURE_KEY:  # the writer has written it already
                item_kind = None if field.item_kind is None else GGUFValueType(field.item_kind)
                writer.add_key_value(key, field.value, GGUFValueType(field.kind), item_kind)
        for tensor in model.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=GGMLQuantizationType(tensor.ggml_type))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
