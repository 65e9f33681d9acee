"""Files of one shard of a stage: its beginning, its raw answers while they come, and its decoded result.

    shard-3-of-8.json      the stage, and the process that sends this shard: written before anything is sent
    shard-3-of-8.answers   raw answers (`load.spool`); removed once the result is on disk
    shard-3-of-8.columns   the decoded records: columns of each class and use, one after the other
    shard-3-of-8.end.json  client use and the place of each part of the columns; or why there are none

Shards count from 0. A shard that was killed has a beginning and answers, and no end.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from benchgate.errors import EvidenceError, UsageError
from benchgate.load.clocks import HostClock, host_clock
from benchgate.load.results import ClassResult, StageResult
from benchgate.load.spool import writing
from benchgate.load.spool_folder import SpoolFolder
from benchgate.model import codec
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse
from benchgate.system import write_atomic

_BEGIN = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.json")
_USES = ("requests", "left", "ramp")


@dataclass(frozen=True, slots=True)
class ShardedStage:
    """A stage as all of its shards must have it. `options` are those of `benchgate load` that define its requests."""

    benchgate: str  # version
    shards: int
    start_at_ns: int  # since 1970
    options: Mapping[str, Any]
    inputs_sha256: str | None  # of the rows of a trace, or of the prompts

    def differences(self, other: ShardedStage) -> list[str]:
        """Return what another shard's stage has otherwise, by name."""
        found = [
            f"{one.name} {ours!r} instead of {theirs!r}"
            for one in fields(self)
            if one.name != "options" and (ours := getattr(self, one.name)) != (theirs := getattr(other, one.name))
        ]
        for name in sorted({*self.options, *other.options}):
            if (ours := self.options.get(name)) != (theirs := other.options.get(name)):
                found.append(f"--{name.replace('_', '-')} {ours!r} instead of {theirs!r}")
        return found


@dataclass(frozen=True, slots=True)
class ShardBegin:
    """Beginning of a shard: its stage, its number from 0, and the process. `secrets` names variables, not values.

    `region` is the label of where it was sent from, if it has one.
    """

    stage: ShardedStage
    shard: int
    host: str
    pid: int
    clock: HostClock
    secrets: tuple[str, ...] = ()
    region: str | None = None

    @classmethod
    def here(cls, stage: ShardedStage, shard: int, secrets: tuple[str, ...], region: str | None = None) -> Self:
        """Return the beginning of a shard that this process sends."""
        host = socket.gethostname() or platform.node()
        return cls(stage, shard, host, os.getpid(), host_clock(), secrets, region)

    @property
    def name(self) -> str:
        """Return the name of the shard for people, with its host and its region."""
        region = "" if self.region is None else f" ({self.region})"
        return f"shard {self.shard}/{self.stage.shards} on {self.host}{region}"


class ShardFiles:
    """Files of one shard in a folder."""

    def __init__(self, folder: SpoolFolder, shard: int, shards: int) -> None:
        self._folder = folder
        self._stem = f"shard-{shard}-of-{shards}"
        self.answers = folder.path / f"{self._stem}.answers"

    def begin(self, begin: ShardBegin) -> None:
        """Write the beginning. Raises UsageError if the shard was begun before: its requests are sent once only."""
        path = self._path("json")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if self._folder.is_begun(path.name):
            raise UsageError(f"{self._folder.url} has {path.name} already: each shard is sent once; give a new --spool")
        with writing(path), path.open("x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(json.dumps(asdict(begin)))
        self._folder.push()

    def end(self, result: StageResult) -> None:
        """Write the result, then remove the raw answers. Raises StoreError; the answers stay then."""
        parts: list[bytes] = []
        classes = []
        for group in result.classes:
            sizes = {}
            for use in _USES:
                blob = codec.encode(getattr(group, use).to_columns())
                parts.append(blob)
                rows = len(getattr(group, use))
                sizes[use] = {"rows": rows, "bytes": len(blob), "sha256": codec.digest(blob)}
            classes.append(
                {
                    "name": group.name,
                    "window_s": group.window_s,
                    "in_steady_state": group.in_steady_state,
                    "columns": sizes,
                }
            )
        self._write("columns", b"".join(parts))
        self._write_end(
            {
                "codec": codec.CODEC,
                "records": sum(group.recorded for group in result.classes),
                "classes": classes,
                "client": result.client.to_document(),
                "down_after_s": result.down_after_s,
            }
        )
        self._folder.push()
        self._folder.remove(self.answers.name)

    def end_early(self, fault: str) -> None:
        """Write why the shard has no result; its raw answers stay. Raises StoreError."""
        self._write_end({"fault": fault})
        self._folder.push()

    def read_begin(self) -> ShardBegin:
        """Read the beginning. Raises UsageError for a damaged one."""
        path = self._path("json")
        try:
            found = json.loads(path.read_bytes())
            parts = {"stage": ShardedStage(**found["stage"]), "clock": HostClock(**found["clock"])}
            return ShardBegin(**found | parts | {"secrets": tuple(found["secrets"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} is no beginning of a shard of this benchgate ({error})") from error

    def recorded(self) -> int:
        """Return the number of records in the result; 0 where it cannot be read."""
        try:
            classes = json.loads(self._path("end.json").read_bytes()).get("classes", ())
            return sum(part["rows"] for group in classes for part in group["columns"].values())
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return 0

    def read_end(self) -> StageResult | str:
        """Read the result, or the reason why there is none."""
        try:
            end = json.loads(self._path("end.json").read_bytes())
            if "fault" in end:
                return str(end["fault"])
            content = memoryview(self._path("columns").read_bytes())
            classes, at = [], 0
            for group in end["classes"]:
                columns = {}
                for use in _USES:
                    part = group["columns"][use]
                    blob = bytes(content[at : at + part["bytes"]])
                    at += len(blob)
                    found = codec.decode(blob, codec=end["codec"], sha256=part["sha256"])
                    columns[use] = RequestColumns.from_columns(found)
                classes.append(
                    ClassResult(
                        group["name"],
                        columns["requests"],
                        group["window_s"],
                        columns["left"],
                        columns["ramp"],
                        group["in_steady_state"],
                    )
                )
            return StageResult(tuple(classes), ClientUse.from_document(end["client"]), end["down_after_s"])
        except FileNotFoundError:
            return "did not come to its end"
        except (OSError, ValueError, TypeError, KeyError, EvidenceError) as error:
            return f"left a result that cannot be read ({error})"

    def _write_end(self, document: Mapping[str, object]) -> None:
        self._write("end.json", json.dumps(document).encode())

    def _write(self, suffix: str, content: bytes) -> None:
        path = self._path(suffix)
        with writing(path):
            write_atomic(path, content, mode=0o600)

    def _path(self, suffix: str) -> Path:
        return self._folder.path / f"{self._stem}.{suffix}"


def shards_in(folder: SpoolFolder) -> list[ShardFiles]:
    """Return the files of every shard that was begun in a folder."""
    matches = (_BEGIN.fullmatch(file.name) for file in folder.path.iterdir())
    found = sorted((int(match[1]), int(match[2])) for match in matches if match is not None)
    return [ShardFiles(folder, shard, shards) for shard, shards in found]
