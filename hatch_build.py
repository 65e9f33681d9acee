"""Build hook: compiles the socket reader of the load engine where there is a compiler. Everything works without it.

An editable installation gets the library beside its source; a wheel contains it and is for this system only.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = "benchgate/load/http/reader.c"
_COMPILED = "benchgate/load/http/reader.lib"
FLAGS = ("-std=gnu11", "-shared", "-fPIC")
OPTIMISED = ("-O2", "-s")


class Compile(BuildHookInterface[Any]):
    """Makes the shared library; see `benchgate/load/http/reader.py`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the checkout for an editable installation, else aside, to be put into the wheel."""
        root = Path(self.root)
        editable = version == "editable"
        self._folder = TemporaryDirectory()
        compiled = root / _COMPILED if editable else Path(self._folder.name) / "reader.lib"
        if self.target_name != "wheel" or not compile_native(root / _SOURCE, compiled):
            return
        if not editable:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
            build_data["force_include"][str(compiled)] = _COMPILED

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled aside, now that the wheel holds it."""
        self._folder.cleanup()


def compile_native(source: Path, compiled: Path, flags: Sequence[str] = OPTIMISED) -> bool:
    """Compile for this system. Return False where that fails or is not wanted.

    What was compiled before stays until there is something new: a library of another source is never used.
    """
    if sys.platform != "linux" or os.environ.get("BENCHGATE_NATIVE") == "0":
        compiled.unlink(missing_ok=True)
        return False
    written = compiled.with_name(f"{compiled.name}.{os.getpid()}")
    stated = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
    for compiler in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = [*shlex.split(compiler or "false"), *FLAGS, *flags, stated, "-o", str(written), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        written.replace(compiled)  # what runs now keeps the old one
        return True
    return False


def _platform() -> str:
    return os.environ.get("BENCHGATE_WHEEL_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_")
