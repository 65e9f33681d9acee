"""Which tool a file is of, by its own marks, and what it comes to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import SuiteError, UsageError
from benchgate.importers import aiperf, guidellm, inference_perf, k6, llm_d, lm_eval, sglang, vllm
from benchgate.importers.fields import Field, read_bytes, read_json
from benchgate.importers.reading import Reading
from benchgate.suite.yaml import read_text


@dataclass(frozen=True, slots=True)
class Format:
    """One tool's files: by which marks a document is one, in words and as a function, and what it comes to."""

    marked_by: str
    is_it: Callable[[Field], bool]
    read: Callable[[Field], Reading]


FORMATS: Mapping[str, Format] = {
    one.NAME: Format(one.MARKED_BY, one.is_it, one.read)
    for one in (vllm, sglang, guidellm, aiperf, inference_perf, k6, lm_eval, llm_d)
}


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file that was read: the tool's format, the hash of its bytes, and what it comes to."""

    format: str
    sha256: str
    reading: Reading


def require_known(name: str) -> None:
    """UsageError for a name that is no format, with the nearest that is one."""
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=1, cutoff=0)[0]
        raise UsageError(f"--from is {name!r}; did you mean {near}? Known: {', '.join(FORMATS)}")


def read_file(path: Path, said: str | None = None) -> ReadFile:
    """Read a file of the format `said`, or of the one whose marks it has.

    Raises UsageError for a name that is no format, a file of none or of two, and everything that is wrong in it.
    """
    if said is not None:
        require_known(said)
    data = read_bytes(path)
    document = _document(data, path)
    fitting = [name for name, one in FORMATS.items() if one.is_it(document)]
    if said is not None and said not in fitting:
        others = f"; it has those of {' and '.join(fitting)}" if fitting else ""
        raise UsageError(f"{path} has not the marks of a file of {said}, which is {FORMATS[said].marked_by}{others}")
    name = said or _only(fitting, document)
    return ReadFile(name, hashlib.sha256(data).hexdigest(), FORMATS[name].read(document))


def _only(fitting: Sequence[str], document: Field) -> str:
    """The one format that fits. UsageError where none or two do."""
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{document.source} may be of {' or '.join(fitting)}; say --from which")
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
    """JSON, a JSON value a line, or YAML, by the file's name and first line."""
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
