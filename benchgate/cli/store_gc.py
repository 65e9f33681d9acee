"""`benchgate store gc`: removes raw records that a policy says are old enough, and tells what it removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.options import CareFormat
from benchgate.cli.saying import say, say_json
from benchgate.cli.store_check import CareFormatOption
from benchgate.errors import ExitCode, UsageError
from benchgate.escape import terminal_line
from benchgate.units import parse_duration_s, show_size

if TYPE_CHECKING:
    from benchgate.store.repository import Store
    from benchgate.store.retention import Policy, Removed


def gc(
    raw_older_than: Annotated[
        str | None, typer.Option("--raw-older-than", help="Only of runs that ended longer ago than this, like 90d.")
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", min=1, help="Keep those of the newest so many runs of each suite.")
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Only of runs of the suite of this name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go, and remove nothing.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Give the room back to the system afterwards.")] = False,
    store: options.StoreOption = options.STORE,
    output: CareFormatOption = CareFormat.TEXT,
) -> None:
    """Remove raw records of old runs; what was concluded stays, and promoted runs and the newest keep theirs."""
    from benchgate.pipeline.environment import utc_now
    from benchgate.store.repository import Store
    from benchgate.store.retention import Removed

    policy = _policy(raw_older_than, keep_last, suite)
    now = utc_now()
    with Store.open(store, create=False) as opened:
        if suite is not None:
            _require_suite(opened, suite)
        runs, kept = opened.expendable(policy, now), opened.kept_raw(policy, now)
        removed = Removed(tuple(runs), ())
        if not dry_run:
            removed = opened.remove_raw(runs, now=now, reason=_reason(raw_older_than, keep_last, suite))
            if vacuum:
                opened.vacuum()
    if output is CareFormat.JSON:
        runs_told = [asdict(run) for run in removed.runs]
        document = {"dry_run": dry_run, "removed": runs_told, "stayed": dict(removed.stayed), "kept": dict(kept)}
        say_json(document, sort_keys=True)
    else:
        say("".join(f"{line}\n" for line in _lines(removed, kept, dry_run=dry_run)))
    if removed.stayed:
        raise typer.Exit(int(ExitCode.PUBLISH_FAILED))


def _policy(raw_older_than: str | None, keep_last: int | None, suite: str | None) -> Policy:
    """What was asked for; nothing is removed that nobody named."""
    from benchgate.store.retention import Policy

    if raw_older_than is None and keep_last is None:
        raise UsageError("say what may go: --raw-older-than 90d, --keep-last 20, or both; --dry-run shows it first")
    try:
        older_than_s = parse_duration_s(raw_older_than) if raw_older_than is not None else 0.0
    except ValueError as error:
        raise UsageError(f"--raw-older-than: {error}; 90d is 90 days") from error
    return Policy(older_than_s, keep_last or 1, suite)


def _require_suite(store: Store, suite: str) -> None:
    """A suite that no run is of is a slip, and would look as if nothing were old enough."""
    if not store.runs(suite, limit=1):
        raise UsageError(f"the store has no run of a suite {suite!r}; `benchgate store info` lists those it has")


def _reason(raw_older_than: str | None, keep_last: int | None, suite: str | None) -> str:
    """The command, as it stands with what it removed."""
    asked = {"--raw-older-than": raw_older_than, "--keep-last": keep_last, "--suite": suite}
    return " ".join(["benchgate store gc", *(f"{name} {value}" for name, value in asked.items() if value is not None)])


def _lines(removed: Removed, kept: Mapping[str, int], *, dry_run: bool) -> Iterator[str]:
    from benchgate.escape import one_line

    for run in removed.runs:
        name = one_line(run.label or "", 24)
        told = f"{run.n_rows:5,} rows {run.n_records:11,} records {show_size(run.n_bytes):>11}"
        yield terminal_line(f"{run.run_id}  ended {run.finished_at[:10]}  {told}  {one_line(run.suite, 24)} {name}")
    for run_id, why in removed.stayed:
        yield terminal_line(f"{run_id}  stays: {why}")
    size = show_size(sum(run.n_bytes for run in removed.runs))
    number, what = len(removed.runs), "run" if len(removed.runs) == 1 else "runs"
    yield f"raw records of {number:,} {what}, {size}, {'would go' if dry_run else 'are gone'}"
    others = ", ".join(f"{n:,} {why}" for why, n in sorted(kept.items()))
    yield f"kept: {others}" if others else "no other run has raw records"
