"""Compiles what is compiled of the load engine, where there is a compiler; everything works without, at a higher cost.

An installation that points at the checkout gets it beside its source, a wheel carries it and is for this system alone.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = "benchgate/load/http/reader.c"
_COMPILED = "benchgate/load/http/reader.lib"
_FLAGS = ("-O2", "-std=gnu11", "-shared", "-fPIC", "-s")


class Compile(BuildHookInterface[Any]):
    """Makes the shared library; see `benchgate/load/http/reader.py`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the checkout for an editable installation, else aside, to be put into the wheel."""
        root = Path(self.root)
        editable = version == "editable"
        compiled = root / _COMPILED if editable else Path(mkdtemp()) / "reader.lib"
        if self.target_name != "wheel" or not compile_native(root / _SOURCE, compiled):
            return
        if not editable:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
            build_data["force_include"][str(compiled)] = _COMPILED


def compile_native(source: Path, compiled: Path) -> bool:
    """Compile for this system; False, and nothing stands there, where that cannot be done or is not wanted."""
    compiled.unlink(missing_ok=True)
    if sys.platform != "linux" or os.environ.get("BENCHGATE_NATIVE") == "0":
        return False
    written = compiled.with_name(f"{compiled.name}.{os.getpid()}")
    stated = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
    for compiler in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        command = [*shlex.split(compiler or "false"), *_FLAGS, stated, "-o", str(written), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        written.replace(compiled)  # what runs now keeps the old one
        return True
    return False


def _platform() -> str:
    return os.environ.get("BENCHGATE_WHEEL_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_")
