"""The runs of a store: `benchgate runs` lists its runs, `benchgate show` describes one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from benchgate.cli import options
from benchgate.cli.completion import complete_labels, complete_suites
from benchgate.cli.options import ResultFormat
from benchgate.cli.saying import log, say_escaped, say_json, stdout_screen
from benchgate.errors import UsageError, suggestion
from benchgate.model.verdict import Outcome
from benchgate.report.screen import STYLES, Cell, Screen, Style, table_lines
from benchgate.units import parse_duration_s, show_size, show_span

if TYPE_CHECKING:
    from benchgate.model.deployment import Deployment
    from benchgate.model.run import Run
    from benchgate.store.queries import Contents, ListedRun
    from benchgate.store.results import StoredVerdict

_LIMIT = 20
_HEADINGS = ("RUN", "LABEL", "STARTED", "SUITE", "ARMS", "VERDICT", "TOOK")
_DAY_S = 86_400.0


def runs(
    suite: Annotated[str | None, typer.Option(help="Only runs of this suite.", autocompletion=complete_suites)] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Only runs with this label; `*` matches any text.", autocompletion=complete_labels),
    ] = None,
    verdict: Annotated[Outcome | None, typer.Option(help="Only runs with this verdict.", case_sensitive=False)] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DAY|AGE", help="Only runs begun since a UTC day, or within 7d or 12h.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of runs.")] = _LIMIT,
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """List stored runs, newest first

    Example: benchgate runs --suite chat --verdict block --since 7d
    """
    begun = None if since is None else _instant(since)
    with options.open_store(store) as opened:
        from benchgate.store.queries import RunFilter

        chosen = RunFilter(suite, label, verdict, begun, limit + 1)
        found = opened.list_runs(chosen)
        suites = [] if found else [run.suite_name for run in opened.runs()]
    more = len(found) > limit
    found = found[:limit]
    if output is ResultFormat.JSON:
        say_json([_document(one) for one in found])
        return
    if not found:
        hint = f" --suite {suite}; {suggestion(suite, suites)}" if suite is not None and suite not in suites else ""
        log(f"benchgate: no stored run matches{hint}" if suites else "benchgate: the store has no run yet")
        return
    screen = stdout_screen()
    lines = _table(found, screen)
    if more:
        lines.append(screen.paint(f"Only the newest {limit} are listed; --limit lists more.", Style.DIM))
    say_escaped("".join(f"{line}\n" for line in lines))


def show(
    run: options.RunArgument = "@latest",
    store: options.StoreOption = options.STORE,
    output: options.ResultFormatOption = ResultFormat.TEXT,
) -> None:
    """Describe a stored run

    Its suite, deployments, measurements and verdict, and the commands that judge and report it again.

    Example: benchgate show @latest
    """
    with options.open_store(store, run) as opened:
        from benchgate.model.history import promotion_labels
        from benchgate.model.run import RunStatus
        from benchgate.store.queries import ListedRun

        run_id = options.find_run(opened, run)
        found = opened.run(run_id)
        judged = opened.own_verdict(run_id)
        promoted = promotion_labels(opened.promotions(found.suite_name)).get(run_id)
        contents, removal = opened.contents(run_id), opened.removal(run_id)
        metrics = len(opened.metrics(run_id))
        sha256 = opened.evidence_sha256(run_id)
    listed = ListedRun(found, None if judged is None else judged.outcome, promoted)
    if output is ResultFormat.JSON:
        say_json(
            _document(listed)
            | {
                "reason": None if judged is None else judged.document.get("reason"),
                "suite_sha256": found.suite_sha256,
                "evidence_sha256": sha256,
                "measured": [
                    {
                        "kind": one.kind,
                        "place": one.place,
                        "blocks": one.blocks,
                        "rows": one.n_rows,
                        "bytes": one.n_bytes,
                    }
                    for one in contents
                ],
                "metrics": metrics,
                "raw_records_removed_at": None if removal is None else removal.removed_at,
            }
        )
        return
    from benchgate.report.display import minute

    removed = None if removal is None else f"raw records removed {minute(removal.removed_at)}: {removal.reason}"
    screen = stdout_screen()
    resumable = found.status is RunStatus.PARTIAL and sha256 is None
    lines = _description(listed, judged, contents, removed, screen, resumable=resumable)
    say_escaped("".join(f"{line}\n" for line in lines))


def _instant(text: str) -> str:
    """Return the beginning of every RFC 3339 instant from which on runs are listed: of a day, or so long ago."""
    from benchgate.suite.types import parse_day

    try:
        if text.endswith("d") and text[:-1].isdigit():
            begin = datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * _DAY_S)
        elif text[:1].isdigit() and not text[-1:].isdigit():
            begin = datetime.now(UTC) - timedelta(seconds=parse_duration_s(text))
        else:
            return parse_day(text).isoformat()
        return begin.replace(tzinfo=None).isoformat(timespec="seconds")  # with four digits of the year
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since {text}: expected a day like 2026-11-20, or an age like 7d or 12h") from error


def _took_s(run: Run) -> float | None:
    """Return the time from start to end; None for a run without an end, and for one imported from a file."""
    try:
        begin, end = (datetime.fromisoformat(at) for at in (run.started_at, run.finished_at or ""))
        return (end - begin).total_seconds() if run.measured_by is None else None
    except (ValueError, TypeError):
        return None


def _state(one: ListedRun) -> Cell:
    """Return the verdict of a run, or why it has none."""
    if one.outcome is not None:
        from benchgate.report.display import MARKS

        promotion = f" {one.promotion.partition(',')[0]}" if one.promotion is not None else ""
        return f"{MARKS[one.outcome]} {one.outcome}{promotion}", STYLES[one.outcome]
    if one.run.measured_by is not None:
        return f"from {one.run.measured_by}", Style.DIM
    return ("calibration" if one.run.calibrates else str(one.run.status)), Style.DIM


def _arms(run: Run) -> str:
    return " → ".join(dict.fromkeys(arm.name for arm in run.arms.values()))


def _document(one: ListedRun) -> dict[str, object]:
    return {
        "id": one.run.id,
        "label": one.run.label,
        "suite": one.run.suite_name,
        "arms": {arm.value: deployment.name for arm, deployment in one.run.arms.items()},
        "status": one.run.status.value,
        "calibration": one.run.calibrates,
        "only": one.run.only_part,
        "started_at": one.run.started_at,
        "finished_at": one.run.finished_at,
        "took_s": _took_s(one.run),
        "verdict": one.outcome,
        "promotion": one.promotion,
        "measured_by": one.run.measured_by,
    }


def _table(found: list[ListedRun], screen: Screen) -> list[str]:
    from benchgate.store.missing import SHORTEST_PREFIX

    prefixes = [one.run.id[:SHORTEST_PREFIX] for one in found]
    rows: list[list[str | Cell]] = []
    for one, prefix in zip(found, prefixes, strict=True):
        took = _took_s(one.run)
        rows.append([
            prefix if prefixes.count(prefix) == 1 else one.run.id,
            one.run.label or "",
            one.run.started_at[:16].replace("T", " ") if screen.columns is None else short_time(one.run.started_at),
            one.run.suite_name,
            _arms(one.run),
            _state(one),
            "" if took is None else show_span(took),
        ])  # fmt: skip
    kept = [at for at in range(len(_HEADINGS)) if any(row[at] for row in rows)]
    return list(
        table_lines(
            screen,
            [_HEADINGS[at] for at in kept],
            [[row[at] for at in kept] for row in rows],
            right=[len(kept) - 1] if len(_HEADINGS) - 1 in kept else (),
            shrink=[place for place, at in enumerate(kept) if _HEADINGS[at] in ("LABEL", "SUITE", "ARMS")],
        )
    )


def short_time(instant: str) -> str:
    """Return `23 Nov 14:05`, or `23 Nov 2025` of another year (UTC), as `ls -l` does."""
    try:
        at = datetime.fromisoformat(instant)
    except ValueError:
        return instant[:16]
    return at.strftime("%d %b %H:%M" if at.year == datetime.now(UTC).year else "%d %b %Y")


def _description(
    one: ListedRun,
    judged: StoredVerdict | None,
    contents: list[Contents],
    removed: str | None,
    screen: Screen,
    *,
    resumable: bool,
) -> Iterator[str]:
    from benchgate.report.display import minute

    run, took = one.run, _took_s(one.run)
    state, style = _state(one)
    yield screen.paint(f"run {run.id}", Style.BOLD)

    def field(name: str, value: str, *styles: Style | None) -> Iterator[str]:
        yield from screen.wrapped(value, " " * 13, *styles, first=f"  {name:<11}")

    if run.label is not None:
        yield from field("label", run.label)
    part = f", {run.scope}" if run.scope else ""
    yield from field("suite", f"{run.suite_name}{part}, SHA-256 {run.suite_sha256[:12]}")
    yield from field("started", minute(run.started_at) + ("" if took is None else f", took {show_span(took)}"))
    for arm, deployment in run.arms.items():
        yield from field(arm.value, _deployment_line(deployment, run))
    for at, line in enumerate(_content_lines(contents)):
        yield from field("" if at else "measured", line)
    if contents:
        yield from field("", f"{show_size(sum(each.n_bytes for each in contents))} of raw records, compressed")
    if removed is not None:
        yield from field("measured", removed)
    reason = "" if judged is None else f": {judged.document.get('reason', '')}"
    yield from field("verdict", state + reason, style)
    yield ""
    # Commands are not wrapped, so that they can be copied.
    if resumable:
        arms = " ".join(f"--{arm} {deployment.name}" for arm, deployment in run.arms.items())
        yield screen.paint(f"  resume     benchgate run SUITE {arms} --resume --run {run.id}")
    elif removed is None and run.judges_candidate:
        yield screen.paint(f"  judge      benchgate gate {run.id}")
        yield screen.paint(f"  report     benchgate report {run.id}")


def _deployment_line(deployment: Deployment, run: Run) -> str:
    from benchgate.model.deployment import engine_label, hardware_label, model_label

    facts = (model_label(deployment), engine_label(deployment), hardware_label(deployment, run.environment))
    where = f" at {deployment.url}" if deployment.url else ""
    return f"{deployment.name}: {', '.join(facts)}{where}"


def _content_lines(contents: list[Contents]) -> Iterator[str]:
    """Yield a line for each kind of measurement, with the number of its records in each stage or task."""
    units = {"load": "requests", "quality": "items", "divergence": "texts", "shadow": "prompts"}
    for kind, unit in units.items():
        of_kind = [one for one in contents if one.kind == kind]
        if not of_kind:
            continue
        blocks = max(one.blocks for one in of_kind)
        after = f" in {blocks} blocks" if kind == "load" and blocks else ""
        places = [f"{one.place} ({one.n_rows:,})" for one in of_kind if one.place]
        total = sum(one.n_rows for one in of_kind)
        yield f"{kind}: {total:,} {unit}{after}" + (f": {', '.join(places)}" if places else "")
