"""benchgate: measures a baseline and a candidate deployment of an LLM and decides whether to promote."""

import importlib

__version__ = "0.1.0"
__all__ = ["Result", "RunStore", "compare", "judge", "load_suite", "open_store", "run"]


def __getattr__(name: str) -> object:
    """Import the Python interface when it is first used: the command line starts without it."""
    if name in __all__:
        return getattr(importlib.import_module("benchgate.api"), name)
    raise AttributeError(f"module 'benchgate' has no attribute {name!r}")
