"""Other stores to bring runs to; a test module names this one in `pytest_plugins`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchgate.store.repository import Store


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without runs, to be copied: making one takes a while."""
    path = tmp_path_factory.mktemp("empty") / "store.db"
    Store.open(str(path)).close()
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, empty: Path) -> str:
    """Another store, on SQLite."""
    return str(shutil.copy(empty, tmp_path / "elsewhere.db"))


@pytest.fixture
def third(tmp_path: Path, empty: Path) -> str:
    """And one more."""
    return str(shutil.copy(empty, tmp_path / "third.db"))
