"""Shell completion of names in the store: runs, labels, suites, checks and stages. Any error completes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from benchgate.store.repository import Store

_NEWEST = 50  # runs that are completed
Complete = Callable[[typer.Context, str], list[tuple[str, str]]]


def _completing(names: Callable[[Store, typer.Context], Iterable[tuple[str, str]]]) -> Complete:
    """Return a callback of typer that reads names, each with a description, from the store of the command line."""

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        with suppress(Exception):  # a message would be written into the line that is being typed
            from benchgate.store.repository import Store

            usual = next((option.default for option in context.command.params if option.name == "store"), None)
            address = context.params.get("store") or os.environ.get("BENCHGATE_STORE") or usual
            store = Store.open_as_is(str(address))
            if store is not None:
                with store:
                    found = dict(names(store, context))
        return [(name, text) for name, text in found.items() if name.startswith(incomplete)]

    return complete


def _runs(store: Store, _: typer.Context) -> Iterator[tuple[str, str]]:
    from benchgate.store.queries import RunFilter

    yield from (("@latest", "newest complete run"), ("@previous", "the one before"), ("@promoted", "in service"))
    for one in store.list_runs(RunFilter(limit=_NEWEST)):
        text = f"{one.run.suite_name}, {one.run.started_at[:16]}, {one.outcome or one.run.status}"
        yield one.run.label or one.run.id, text


def _labels(store: Store, _: typer.Context) -> Iterator[tuple[str, str]]:
    yield from ((run.label, run.suite_name) for run in store.runs(limit=_NEWEST) if run.label is not None)


def _suites(store: Store, _: typer.Context) -> Iterator[tuple[str, str]]:
    yield from ((run.suite_name, "") for run in store.runs())


def _checks(store: Store, context: typer.Context) -> Iterator[tuple[str, str]]:
    run = context.params.get("run") or context.params.get("candidate") or "@latest"
    verdict = store.own_verdict(store.resolve(str(run)))
    checks: Any = () if verdict is None else verdict.document["checks"]
    yield from ((str(check["id"]), str(check["outcome"])) for check in checks)


def _stages(store: Store, context: typer.Context) -> Iterator[tuple[str, str]]:
    for one in store.contents(store.resolve("@latest", suite=context.params.get("suite"))):
        if one.kind == "load" and one.place is not None:
            yield one.place, f"{one.n_rows:,} requests"


complete_runs = _completing(_runs)
complete_labels = _completing(_labels)
complete_suites = _completing(_suites)
complete_checks = _completing(_checks)
complete_stages = _completing(_stages)
