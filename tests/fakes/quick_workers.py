"""Load generator processes forked from a server that has imported everything. A spawned one takes 0.4 s of CPU.

Tests that start the command as a process have its own kind.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, parent_process
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).parents[2]


class _Context(ForkServerContext):
    """Starts processes with the parent's environment of now; the fork server has that of its own start."""

    def Process(self, *, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> BaseProcess:  # type: ignore[override]
        arguments = (dict(os.environ), target, *args)
        return ForkServerContext.Process(target=_in_environment, args=arguments, daemon=daemon)


def _in_environment(environment: Mapping[str, str], target: Callable[..., None], *args: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)


class Multiprocessing:
    """Stands in for the module `multiprocessing` in `benchgate.load.workers`."""

    parent_process = staticmethod(parent_process)

    def __init__(self) -> None:
        self._context = _Context()
        self._context.set_forkserver_preload(["benchgate.load.workers"])

    def get_context(self, method: str) -> ForkServerContext:
        with contextlib.chdir(_CHECKOUT):  # from where the server imports
            forkserver.ensure_running()
        return self._context
