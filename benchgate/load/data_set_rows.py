"""Child process that prints the rows of a data set, read by the library `datasets`, as JSON Lines.

The first line of its output is `{"columns": […]}`, each further one a row, `[{…}]`, whose columns may have any name; or
a line is `{"key": …, "problem": …}`, the last one.
"""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
from huggingface_hub import snapshot_download

from benchgate.errors import suggestion

_CARD = "README.md"  # names the subsets of a data set and their files
_BUILDERS = {".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}
_SAVED = ("dataset_dict.json", "state.json")  # of a folder written by `save_to_disk`


class _UnusableError(Exception):
    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def main(job: Mapping[str, Any]) -> None:
    """Print the rows of the data set that `job` names."""
    try:
        rows = _split(_splits(job), job["split"])
        first = next(iter(rows), None)
        columns = list(rows.column_names or first or ())
        for key, column in job["columns"].items():
            if column not in columns:
                raise _UnusableError(key, f'the data set has no column "{column}"; {suggestion(column, columns)}')
        _print({"columns": columns})
        named = set(job["columns"].values())
        read = [column for column in columns if column in named.union(job["optional"])]
        if read:
            for row in rows.select_columns(read):
                values = {key: value for key, value in row.items() if value is not None or key in named}
                _print([{key: _without_nulls(value) for key, value in values.items()}])
    except _UnusableError as exc:
        _print({"key": exc.key, "problem": str(exc)})
    except (OSError, ValueError) as exc:  # the errors of the Hub's client are OSErrors
        _print({"key": "", "problem": " ".join(str(exc).split())[:400] or type(exc).__name__})


def _splits(job: Mapping[str, Any]) -> Any:
    """Return the splits by name, or the rows of a data set without splits."""
    if job["path"] is None:
        # `load_dataset` takes any cached commit when the Hub cannot be reached; a snapshot is of the commit named.
        patterns = None if job["files"] is None else [job["files"], _CARD]
        folder = Path(
            snapshot_download(job["repository"], repo_type="dataset", revision=job["commit"], allow_patterns=patterns)
        )
        found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        if job["files"] is not None and not fnmatch.filter(found, job["files"]):
            raise _UnusableError("files", f'no file of the data set matches "{job["files"]}"')
    else:
        folder = Path(job["path"])
        if folder.is_file():
            return datasets.load_dataset(_BUILDERS[folder.suffix], data_files=str(folder), streaming=True)
        if any((folder / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(str(folder))
    subsets = datasets.get_dataset_config_names(str(folder))
    if job["subset"] is None and len(subsets) > 1 and "default" not in subsets:
        raise _UnusableError("subset", f"the data set has several; name one of {', '.join(subsets)}")
    if job["subset"] not in (None, *subsets):
        raise _UnusableError("subset", f'the data set has no subset "{job["subset"]}"; '
                             f"{suggestion(job['subset'], subsets)}")  # fmt: skip
    return datasets.load_dataset(str(folder), job["subset"], streaming=True)


def _split(found: Any, name: str) -> Any:
    if not isinstance(found, dict):  # saved without splits
        names = [str(found.split or name)]
        rows = {names[0]: found}
    else:
        rows, names = found, list(found)
    if name not in rows:
        raise _UnusableError("split", f'the data set has no split "{name}"; {suggestion(name, names)}')
    return rows[name]


def _without_nulls(value: Any) -> Any:
    """Drop keys without a value: Arrow gives every message of a column the keys of all messages."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _print(value: object | Iterable[object]) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
