"""Functions in task files (`!function utils.process_docs`) as plain values: which, where, and of what module."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def is_function(value: object) -> bool:
    """Whether a value of a configuration stands for a function."""
    return isinstance(value, Mapping) and value.keys() == {"function", "folder", "sha256"}


def function_value(name: str, folder: Path) -> dict[str, str]:
    """A function as a plain value; ImportError when its module is nowhere. Nothing is run."""
    digest = hashlib.sha256(module_file(name, folder).read_bytes()).hexdigest()
    return {"function": name, "folder": str(folder), "sha256": digest}


def module_file(name: str, folder: Path) -> Path:
    """The file of the module that `name` is a function of: beside the task file, else one that can be imported."""
    module = name.rpartition(".")[0]
    beside = folder / f"{module.replace('.', '/')}.py"
    if beside.exists():
        return beside
    found = _importable(module)
    if found is None:
        raise ImportError(f"{name}: there is no module {module!r} beside the task file, and none to import")
    return found


def _importable(module: str) -> Path | None:
    """The file that a module would be imported from, with nothing imported.

    Asked for a module within packages, `find_spec` would import these, and so run them.
    """
    first, *inner = module.split(".")
    try:
        spec = find_spec(first) if first else None
    except ValueError:  # of what runs as `__main__`
        spec = None
    if spec is None:
        return None
    files = [Path(spec.origin)] if spec.origin is not None else []
    if inner:
        beginning = [Path(place).joinpath(*inner) for place in spec.submodule_search_locations or ()]
        files = [file for path in beginning for file in (path / "__init__.py", path.with_suffix(".py"))]
    return next((file for file in files if file.is_file()), None)


def functions_in(value: Any) -> Iterator[Mapping[str, str]]:
    """Every function of a configuration."""
    if is_function(value):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from functions_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from functions_in(inner)
