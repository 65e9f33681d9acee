"""Plugin for pytest: the compiled reader is the library that SANITIZED_READER names, built with sanitizers."""

from __future__ import annotations

import os
from pathlib import Path

from benchgate.load.http import library

library.COMPILED = Path(os.environ["SANITIZED_READER"])
assert library.library() is not None, "the library of the sanitizers could not be loaded"
