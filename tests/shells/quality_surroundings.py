"""Where eval processes run in tests: a plugin (`pytest_plugins`) of the `test_quality_*` modules that start them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lm-eval is large: it is compiled once for the processes of all these tests, wherever they run."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture(scope="module")
def surroundings(bytecode: Path) -> Iterator[None]:
    """Bytecode is kept, and the environment names a proxy that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(bytecode))
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            patch.setenv(name, "http://127.0.0.1:9")  # no eval may go there
        yield
