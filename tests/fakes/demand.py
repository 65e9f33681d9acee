"""Demand files for tests: one document with dotted keys replaced."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any


def changed(document: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return the document with other values at dotted keys, written with `__` for the dot; None removes a key."""
    found = copy.deepcopy(document)
    for name, value in keys.items():
        *sections, key = name.split("__")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        if value is None:
            inner.pop(key, None)
        else:
            inner[key] = value
    return found


def write_demand(folder: Path, document: dict[str, Any]) -> str:
    """Write a document as `demand.yaml`, in JSON, and return its path."""
    file = folder / "demand.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)
