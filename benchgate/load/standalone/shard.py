"""Shard of a load test, sent by this machine alone: `benchgate load … --shard I/N --start-at T --spool URL`.

No process coordinates the shards. Each makes its own requests from the options, the seed and its number, starts at the
instant that all were given, and leaves its files in the spool folder, where `merge` finds them.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from inspect import signature
from typing import Any, Self

from benchgate import __version__
from benchgate.errors import BenchgateError, ClusterError, StoreError, UsageError
from benchgate.load.operator_limits import require_allowed
from benchgate.load.results import StageResult
from benchgate.load.shard_files import ShardBegin, ShardedStage, ShardFiles
from benchgate.load.spool_folder import SpoolFolder, spool_folder
from benchgate.load.standalone.options import USUAL_KEY, LoadOptions
from benchgate.load.standalone.run import stage_of, target_of, warmup_load, with_model
from benchgate.load.workers import READY_S, WorkerProcess
from benchgate.model.request import LARGEST_SALT
from benchgate.suite.address import reference_name
from benchgate.suite.load import first_round
from benchgate.targets.dialect import Target

STOPPED = "was stopped"
_RESOLVED = frozenset({"model", "engine", "salt"})  # stored as found or drawn, not as typed
_OF_THE_SENDER = frozenset(
    {"workers", "cluster", "api_key_env", "headers", "ca", "cert", "key", "proxy", "audit", "warmup", "client", "cpus"}
)
STAGE_OPTIONS = tuple(
    name for name in signature(LoadOptions.parse).parameters if name not in _RESOLVED | _OF_THE_SENDER
)
"""Options of `benchgate load` that define a stage, as `LoadOptions.parse` takes them: all that is not the sender's own.

So a new option belongs to the stage unless it is named above.
"""

_SHARD = re.compile(r"(?:auto(?:\+([0-9]{1,6}))?|([0-9]{1,6}))/([0-9]{1,6})")
_INDEX_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_PROCID")  # of Kubernetes and Slurm, both from 0
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNIX_S = re.compile(r"[0-9]{9,11}(?:\.[0-9]+)?")
_NS = 1_000_000_000
_PUSH_S = 2.0
_NOTE_S = 15.0
_TICK_S = 0.5
_END_S = 1.0  # to keep what was answered
_STOP_LOOK_S = 0.75  # at the second tick at the latest; with `_END_S` a stop takes 2 s at most
_TRIES = 5
_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Number of a shard (from 0), the number of shards, their common start in ns since 1970, and the spool folder.

    `region` labels where the shard is sent from.
    """

    shard: int
    shards: int
    start_at_ns: int
    spool: str
    region: str | None = None

    @classmethod
    def parse(
        cls,
        shard: str | None,
        start_at: str | None,
        spool: str | None,
        environment: Mapping[str, str],
        region: str | None = None,
    ) -> Self | None:
        """Parse `3/8`, `auto/8` or `auto+4/8`, an instant, a folder, a region; None without any. Raises UsageError."""
        given = {"--shard": shard, "--start-at": start_at, "--spool": spool}
        if not any((*given.values(), region)):
            return None
        if region is not None and _REGION.fullmatch(region) is None:
            raise UsageError(f"--region: {region!r} is no name; write up to 64 letters, digits, `.`, `_` and `-`")
        if shard is None or start_at is None or not spool:
            missing = " and ".join(name for name, value in given.items() if not value)
            raise UsageError(f"--shard, --start-at and --spool belong together; add {missing}")
        match = _SHARD.fullmatch(shard)
        if match is None:
            raise UsageError(f"--shard: {shard!r} is no shard; write 0/8 to 7/8, or auto/8 under Kubernetes or Slurm")
        first, written, shards = match.groups()
        number = int(written or first or 0)
        if written is None:
            found = [environment[name] for name in _INDEX_VARIABLES if environment.get(name)]
            if not found or not found[0].isdecimal():
                names = " nor ".join(_INDEX_VARIABLES)
                raise UsageError(f"--shard {shard}: neither {names} holds a number; write it, like 0/{shards}")
            number += int(found[0])
        if number >= int(shards):
            raise UsageError(f"--shard {number}/{shards}: shards count from 0, up to one less than their number")
        return cls(number, int(shards), _instant_ns(start_at), spool, region)

    @property
    def salt(self) -> int:
        """Return the salt of the prompts where none was given: the same for all shards, and another at each start."""
        return 1 + zlib.crc32(b"%d" % self.start_at_ns) % LARGEST_SALT


def _instant_ns(text: str) -> int:
    if _UNIX_S.fullmatch(text):
        return round(float(text) * _NS)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise UsageError(
            f"--start-at: {text!r} is no instant; write 2026-05-01T12:00:00Z, or seconds since 1970, "
            "like $(( $(date +%s) + 60 ))"
        )
    return round(instant.timestamp() * _NS)


class _Stopped(Exception):
    """The stop file is in the spool folder."""


def send_shard(
    options: LoadOptions, texts: Mapping[str, Any], place: ShardOptions, note: Callable[[str], None] = lambda line: None
) -> StageResult:
    """Send one shard and leave its files in the spool folder. `texts` are the options as they were typed,
    `note` gets a line every 15 s.

    Raises UsageError for a shard that was begun before, LimitError beyond the operator's limits, ClusterError if it was
    too late or its process was lost, and KeyboardInterrupt when it was stopped, also by the stop file. What was
    answered is in the folder then.
    """
    options = with_model(options)
    target, engine = target_of(options)
    begin = ShardBegin.here(_stage(options, engine, texts, place), place.shard, _secrets(options, texts), place.region)
    shares = stage_of(options, target, options.service_s).split(place.shards)
    if place.shard >= len(shares):
        raise UsageError(f"a closed loop of {options.concurrency} has no more shards than that; found {place.shards}")
    require_allowed(shares[place.shard])
    process = WorkerProcess(fork=True)  # before an object store's client starts threads
    try:
        with spool_folder(place.spool) as folder:
            files = ShardFiles(folder, place.shard, place.shards)
            files.begin(begin)
            share = replace(
                shares[place.shard], spool=files.answers, start_at_ns=place.start_at_ns, region=place.region
            )
            tick = _Watch(folder, place, note)
            try:
                _warm_up(process, options, target, place, tick)
                process.begin(share)
                # Until the start it sleeps without any use of CPU, as one that is stuck does.
                while time.time_ns() < place.start_at_ns and not process.has_message(_TICK_S):
                    tick()
                result = process.result(tick)
            except (KeyboardInterrupt, _Stopped) as stop:
                process.end()
                process.stop(_END_S)
                _retried(lambda: files.end_early(STOPPED))
                raise KeyboardInterrupt from stop
            except ClusterError as error:
                files.end_early(str(error))
                raise ClusterError(f"{begin.name} {error}") from error
            except BenchgateError as error:
                with suppress(StoreError):  # of the same full disk
                    files.end_early(f"failed: {error}")
                raise
            if result is None:
                files.end_early("was lost: its process ended")
                raise ClusterError(f"{begin.name} was lost: its process ended; `load merge` reads what it had answered")
            _retried(lambda: files.end(result))
            return result
    finally:
        process.stop()


class _Watch:
    """Pushes what was written, looks for the stop file, notes the state. An object store may be away for a while."""

    def __init__(self, folder: SpoolFolder, place: ShardOptions, note: Callable[[str], None]) -> None:
        self._folder = folder
        self._place, self._note = place, note
        self._pushed_s = self._looked_s = self._noted_s = time.monotonic()

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s - self._noted_s >= _NOTE_S:
            self._noted_s = now_s
            since_s = time.time() - self._place.start_at_ns / 1e9
            state = f"sends for {since_s:.0f} s" if since_s >= 0 else f"starts in {-since_s:.0f} s"
            self._note(f"shard {self._place.shard}/{self._place.shards} {state}; `load merge` has the figures of all")
        with suppress(StoreError):
            if now_s - self._looked_s >= _STOP_LOOK_S:
                self._looked_s = now_s
                if self._folder.is_stopped:
                    raise _Stopped
            if now_s - self._pushed_s >= _PUSH_S:
                self._pushed_s = now_s
                self._folder.push()


def _retried(write: Callable[[], None]) -> None:
    for _ in range(_TRIES - 1):
        try:
            write()
        except StoreError:
            time.sleep(_RETRY_S)
        else:
            return
    write()


def _stage(options: LoadOptions, engine: str, texts: Mapping[str, Any], place: ShardOptions) -> ShardedStage:
    chosen = {name: texts[name] for name in STAGE_OPTIONS if texts.get(name) is not None}
    chosen |= {"model": options.model, "engine": engine, "salt": options.salt}
    return ShardedStage(__version__, place.shards, place.start_at_ns, chosen, options.inputs_sha256)


def _secrets(options: LoadOptions, texts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the variables whose values a server may repeat in its answers."""
    names = [] if options.api_key is None else [texts.get("api_key_env") or USUAL_KEY]
    headers = (reference_name(line.partition(":")[2].strip()) for line in texts.get("headers", ()))
    return tuple(sorted({*names, *(name for name in headers if name is not None)}))


def _warm_up(
    process: WorkerProcess, options: LoadOptions, target: Target, place: ShardOptions, tick: Callable[[], None]
) -> None:
    """Send this shard's part of one round of warm-up, before the common start."""
    requests = first_round(options.concurrency) if options.warmup == "auto" else options.warmup
    if not requests:
        return
    shares = stage_of(warmup_load(options, 0, requests), target, None, ramped=False).split(place.shards)
    if place.shard < len(shares):
        process.begin(shares[place.shard])
        deadline_s = time.monotonic() + READY_S
        while not process.has_message(_TICK_S) and time.monotonic() < deadline_s:
            tick()
        if process.is_ready(deadline_s):
            process.start(time.time_ns())
            process.result(tick)
