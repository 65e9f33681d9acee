"""Requests as forms (`multipart/form-data`, RFC 7578): fields, and a file with its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.plan.media import data_of, media_type_of

_BOUNDARY = "benchgate-3f9c1d7e5b8a4c60-form"
FORM_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"
FILE = "file"  # the field whose value is a `data:` address
_NAMES = {"mpeg": "mp3", "mp4": "m4a"}  # extensions where the media type has another name


@dataclass(frozen=True, slots=True)
class FormBody:
    """An encoded form; `shown` is its fields as JSON, with the file's type and size instead of its bytes."""

    content: bytes
    shown: str


def form_body(fields: Mapping[str, object]) -> FormBody:
    """Encode fields as a form. A list is one field for each member; None is left out.

    Raises ValueError for a file that is no `data:` address, and for a value that contains the boundary.
    """
    parts, shown = list[bytes](), dict[str, object]()
    for name, value in fields.items():
        for member in value if isinstance(value, list | tuple) else [value]:
            if member is None:
                continue
            if name == FILE:
                head, content = _file(str(member))
                shown[name] = f"[{media_type_of(str(member))}, {len(content)} bytes]"
            else:
                head, content = f'content-disposition: form-data; name="{name}"', _text(member).encode()
                shown[name] = value
            parts.append(f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
    encoded = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    if encoded.count(_BOUNDARY.encode()) != len(parts) + 1:
        raise ValueError(f"a field or the file contains {_BOUNDARY}, which separates the parts of the form")
    return FormBody(encoded, json.dumps(shown))


def _file(address: str) -> tuple[str, bytes]:
    kind = media_type_of(address)
    extension = kind.partition("/")[2]
    name = f"audio.{_NAMES.get(extension, extension)}"
    head = f'content-disposition: form-data; name="{FILE}"; filename="{name}"\r\ncontent-type: {kind}'
    return head, data_of(address)


def _text(value: object) -> str:
    """Return a field's value as text: JSON, but for a text itself."""
    return value if isinstance(value, str) else json.dumps(value)
