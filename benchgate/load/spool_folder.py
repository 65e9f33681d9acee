"""The folder in which the shards of a stage leave their files: a path, a volume, or a prefix of an object store.

Object stores cannot append, so a file goes there in pieces, each with what was written since the last one. Everything
else works on local files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from benchgate.errors import StoreError, UsageError
from benchgate.system import lacking

STOP_FILE = "stop"
_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_PIECE = re.compile(r"(.+)\.([0-9]{6})")
_PIECE_BYTES = 2**24


class SpoolFolder:
    """Files of shards. `path` is the local folder in which they are written and read."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path

    def is_begun(self, name: str) -> bool:
        """Return True if a file of this name was begun here, by any process. Raises StoreError."""
        return (self.path / name).exists()

    @property
    def is_stopped(self) -> bool:
        """Return True if somebody put the stop file here. Raises StoreError."""
        return (self.path / STOP_FILE).exists()

    def push(self) -> None:
        """Bring what was written since the last call to where others find it. Raises StoreError."""

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)

    def pull(self) -> None:
        """Bring all files here for reading. Raises UsageError without the folder, and StoreError."""
        if not self.path.is_dir():
            raise UsageError(f"{self.url} is no folder; give what the shards had as --spool")


class _ObjectStoreFolder(SpoolFolder):
    """Files of shards in an object store, by fsspec."""

    def __init__(self, url: str, path: Path, store: Any, root: str) -> None:
        super().__init__(url, path)
        self._store = store  # a filesystem of fsspec, which is not typed
        self._root = root.rstrip("/")
        self._pushed: dict[str, tuple[int, int]] = {}  # pieces and bytes of each file

    def is_begun(self, name: str) -> bool:
        with self._reaching():
            return bool(self._store.exists(self._place(name, 0)))

    @property
    def is_stopped(self) -> bool:
        with self._reaching():
            self._store.invalidate_cache()
            return bool(self._store.exists(f"{self._root}/{STOP_FILE}"))

    def push(self) -> None:
        for file in sorted(self.path.iterdir()):
            if file.name.startswith("."):  # being written, to be renamed
                continue
            with file.open("rb") as content, self._reaching():
                while True:
                    pieces, size = self._pushed.get(file.name, (0, 0))
                    content.seek(size)
                    if not (piece := content.read(_PIECE_BYTES)):
                        break
                    self._store.pipe_file(self._place(file.name, pieces), piece)
                    self._pushed[file.name] = pieces + 1, size + len(piece)

    def remove(self, name: str) -> None:
        super().remove(name)
        pieces, _ = self._pushed.pop(name, (0, 0))
        with self._reaching():
            for piece in range(pieces):
                self._store.rm_file(self._place(name, piece))

    def pull(self) -> None:
        with self._reaching():
            self._store.invalidate_cache()
            pieces = sorted(str(place) for place in self._store.find(self._root))
        for place in pieces:
            match = _PIECE.fullmatch(place.rpartition("/")[2])
            if match is not None and place.rpartition("/")[0].endswith(self._root.lstrip("/")):
                with self._reaching(), (self.path / match[1]).open("ab") as file:
                    file.write(self._store.cat_file(place))

    def _place(self, name: str, piece: int) -> str:
        return f"{self._root}/{name}.{piece:06d}"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store has errors of its own
            raise StoreError(
                f"{self.url} cannot be used: {type(error).__name__}: {error}; see that the bucket is there and that "
                "this machine may read and write it"
            ) from error


@contextmanager
def spool_folder(url: str) -> Iterator[SpoolFolder]:
    """Open the folder at a path or a URL like s3://bucket/prefix. Raises UsageError, StoreError."""
    if not _REMOTE.fullmatch(url):
        yield SpoolFolder(url, Path(url).absolute())
        return
    if find_spec("fsspec") is None:
        raise UsageError(lacking(f"--spool {url} needs fsspec, which is not installed", "object-storage"))
    import fsspec  # type: ignore[import-untyped]  # it has no types

    try:
        store, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"--spool {url}: {error}") from error
    scratch = Path(mkdtemp(prefix="benchgate-spool-"))
    try:
        yield _ObjectStoreFolder(url, scratch, store, str(root))
    except StoreError as error:
        if not any(scratch.iterdir()):  # nothing was measured, or it could not be read from the start
            scratch.rmdir()
            raise
        raise StoreError(f"{error}; the files are kept in {scratch}, which `load merge` reads too") from error
    except BaseException:
        rmtree(scratch, ignore_errors=True)
        raise
    rmtree(scratch, ignore_errors=True)
