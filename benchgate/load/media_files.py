"""Media files that a suite names: images, recordings and videos, folders and lists of them, and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from benchgate.errors import Problem, SuiteError, suggestion
from benchgate.load.traces import MOST_PROBLEMS, Row, RowError, json_rows, wrong
from benchgate.model.request import MediaKind
from benchgate.plan.media import data_url

_MIB = 2**20
_TYPES: Mapping[MediaKind, Mapping[str, str]] = MappingProxyType(
    {
        "images": {
            ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp",
            ".gif": "image/gif",
        },
        "audio": {
            ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg",
            ".m4a": "audio/mp4", ".webm": "audio/webm",
        },
        "videos": {
            ".mp4": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime", ".mkv": "video/x-matroska",
            ".avi": "video/x-msvideo",
        },
    }
)  # fmt: skip
_NOUNS: Mapping[MediaKind, str] = {"images": "picture", "audio": "recording", "videos": "video"}
_LARGEST_BYTES: Mapping[MediaKind, int] = {"images": 20 * _MIB, "audio": 25 * _MIB, "videos": 32 * _MIB}
_LARGEST_SET_BYTES = 512 * _MIB  # of all files of one name, which stay in memory
_LIST = (".jsonl", ".ndjson")
_KEYS = ("file", "url")
_ADDRESS = re.compile(r"https?://[^\s/]+/\S*")


def read_media(kind: MediaKind, name: str, path: Path, *, whole: bool = False) -> tuple[str, ...]:
    """Return the media of a name in the suite as addresses: `data:` for files, web addresses as they are.

    With `whole`, the content itself is sent and an address is none. Raises SuiteError with every problem and its place.
    """
    if "://" in name:
        return (_checked_address(kind, name, whole, Problem(name, None, None, "", "")),)
    if path.is_dir():
        return _folder(kind, path)
    if path.suffix.lower() in _LIST:
        return _list(kind, path, whole)
    return (_file(kind, path),)


def _folder(kind: MediaKind, path: Path) -> tuple[str, ...]:
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in _TYPES[kind])
    if not found:
        what = f"the folder has no {_NOUNS[kind]}; put files {', '.join(_TYPES[kind])} into it"
        raise SuiteError([Problem(str(path), None, None, "", what)])
    return _read_all(kind, str(path), ((file, None) for file in found), whole=False)


def _list(kind: MediaKind, path: Path, whole: bool) -> tuple[str, ...]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            rows = list(json_rows(lines))
    except RowError as error:
        raise SuiteError([error.problem(str(path))]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError([Problem(str(path), None, None, "", f"the list cannot be read ({error})")]) from error
    if not rows:
        what = 'the list is empty; write a line like {"file": "clip.wav"} for each file'
        raise SuiteError([Problem(str(path), None, None, "", what)])
    return _read_all(kind, str(path), ((path.parent, row) for row in rows), whole=whole)


def _read_all(
    kind: MediaKind, source: str, entries: Iterator[tuple[Path, Row | None]], *, whole: bool
) -> tuple[str, ...]:
    found: list[str] = []
    problems: list[Problem] = []
    size = 0
    for path, row in entries:
        try:
            found.append(_file(kind, path) if row is None else _listed(kind, source, path, row, whole))
            size += len(found[-1])
        except RowError as error:
            problems.append(error.problem(source))
        except SuiteError as error:
            problems.extend(error.problems)
        if size > _LARGEST_SET_BYTES:
            what = f"its files come to more than {_LARGEST_SET_BYTES // _MIB} MiB; name fewer"
            raise SuiteError([Problem(source, None, None, "", what)])
        if len(problems) >= MOST_PROBLEMS:
            break
    if problems:
        raise SuiteError(problems)
    return tuple(found)


def _listed(kind: MediaKind, source: str, folder: Path, row: Row, whole: bool) -> str:
    """Return the medium of a line: of a file beside the list, or at an address."""
    unknown = next((key for key in row.values if key not in _KEYS), None)
    if unknown is not None:
        raise row.misnamed(unknown, f"is no key of a list of media; {suggestion(unknown, _KEYS)}")
    if len(row.values) != 1:
        raise RowError(row.line, None, "", "has neither a `file` nor a `url`, or both; write exactly one")
    [(key, value)] = row.values.items()
    if not isinstance(value, str) or not value:
        raise wrong(row, key, "a text")
    place = Problem(source, row.line, row.columns.get(key), key, "")
    if key == "url":
        return _checked_address(kind, value, whole, place)
    return _file(kind, folder / value, place)


def _checked_address(kind: MediaKind, address: str, whole: bool, place: Problem) -> str:
    what = None
    if whole:
        what = "is an address, and a transcription needs the recording itself; name a file"
    elif _ADDRESS.fullmatch(address) is None:
        what = f"is no address of a {_NOUNS[kind]}; write it like https://example.com/a{next(iter(_TYPES[kind]))}"
    if what is not None:
        raise SuiteError([Problem(place.source, place.line, place.column, place.path, what)])
    return address


def _file(kind: MediaKind, path: Path, listed: Problem | None = None) -> str:
    """Return a file as an address; its problems are those of the line that names it, where there is one."""
    noun, media_type, content = _NOUNS[kind], _TYPES[kind].get(path.suffix.lower()), b""
    what = None
    if media_type is None:
        expected = ", ".join(sorted(_TYPES[kind]))
        what = f'"{path.suffix}" is no kind of {noun} that servers take; name a file {expected}'
    else:
        try:
            content = path.read_bytes()
        except OSError as error:
            what = f"the {noun} cannot be read ({error})"
        else:
            if not 0 < len(content) <= _LARGEST_BYTES[kind]:
                what = f"has {len(content):,} bytes; a {noun} has 1 to {_LARGEST_BYTES[kind]:,}"
    if what is None and media_type is not None:
        return data_url(content, media_type)
    if listed is not None:
        raise SuiteError([Problem(listed.source, listed.line, listed.column, listed.path, f"{path}: {what}")])
    raise SuiteError([Problem(str(path), None, None, "", what or "")])
