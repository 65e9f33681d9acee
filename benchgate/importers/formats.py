"""Formats of other tools' files, recognised by their keys."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from benchgate.errors import SuiteError, UsageError
from benchgate.importers.reading import Field, Format, Reading, read_bytes, read_json
from benchgate.importers.request_files import AIPERF, GUIDELLM
from benchgate.importers.summary_files import INFERENCE_PERF, LLM_D, LM_EVAL
from benchgate.importers.vllm import SGLANG, VLLM
from benchgate.suite.yaml import read_text


def _refuse_k6(document: Field) -> NoReturn:
    raise UsageError(
        f"{document.source} is a summary of k6, and none of its numbers is one of benchgate's: http_reqs counts "
        "requests that failed, http_req_failed goes by the status code, which proves nothing of a stream, "
        "http_req_duration leaves out the wait for a connection and the time since the request was due, its "
        "percentiles are interpolated, and k6 counts no tokens; measure with `benchgate run` or `benchgate load`"
    )


_K6 = Format("k6", ("metrics.http_req_duration", "metrics.http_reqs"), _refuse_k6)

FORMATS: Mapping[str, Format] = {
    one.name: one for one in (VLLM, SGLANG, GUIDELLM, AIPERF, INFERENCE_PERF, _K6, LM_EVAL, LLM_D)
}


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read: the tool's format, the hash of its bytes, and its content."""

    format: str
    sha256: str
    reading: Reading


def require_known(name: str) -> None:
    """Raise UsageError for an unknown format, with the nearest known one."""
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=1, cutoff=0)[0]
        raise UsageError(f"--from is {name!r}; did you mean {near}? Known: {', '.join(FORMATS)}")


def read_file(path: Path, format_name: str | None = None) -> ReadFile:
    """Read a file of the named format, or of the one whose keys it has.

    Raises UsageError for an unknown format, a file of none or of two, and every mistake in it.
    """
    if format_name is not None:
        require_known(format_name)
    data = read_bytes(path)
    document = _document(data, path)
    fitting = [name for name, one in FORMATS.items() if one.is_it(document)]
    if format_name is not None and format_name not in fitting:
        others = f"; it has those of {' and '.join(fitting)}" if fitting else ""
        raise UsageError(
            f"{path} lacks the marks of a file of {format_name}, which is {FORMATS[format_name].marked_by}{others}"
        )
    name = format_name or _only(fitting, document)
    return ReadFile(name, hashlib.sha256(data).hexdigest(), FORMATS[name].read(document))


def _only(fitting: Sequence[str], document: Field) -> str:
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{document.source} may be of {' or '.join(fitting)}; name it with --from")
    if isinstance(document.value, list):
        for name, one in FORMATS.items():
            if any(one.is_it(line) for line in document.items()):
                found = f"{len(document.value)} results, one a line, of {name} among them"
                raise UsageError(f"{document.source} has {found}; give each line in a file of its own")
    raise UsageError(
        f"{document.source} is no bundle of `benchgate store export`, and has the marks of no known tool "
        f"({', '.join(FORMATS)}), which docs/guides/store.md lists; nothing was imported"
    )


def _document(data: bytes, path: Path) -> Field:
    """Parse JSON, a JSON value per line, or YAML, by the file's name and first line."""
    source = str(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise UsageError(f"{source}: byte {exc.start} is not UTF-8: is this a result file?") from exc
    if path.suffix in (".yaml", ".yml"):
        document = read_text(text, source, "report")
        if document.problems:
            raise SuiteError(document.problems)
        return Field(document.data, source)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and lines[0][1].lstrip().startswith("{") and lines[0][1].rstrip().endswith("}"):
        return Field([read_json(line, source, number).value for number, line in lines], source)
    return read_json(text, source)
