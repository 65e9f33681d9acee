"""Damage to the evidence of a run, for `test_never_pass.py`: every function does one kind of it and draws the place.

A damage returns the changed evidence, or None where the run has nothing of its kind. Its name says what it does where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from benchgate.model.columns import concatenate_columns, select_rows
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, TEXT_COLUMNS, RequestColumns
from benchgate.model.run import Evidence, LoadObservation, QualityObservation

Damage = Callable[[Evidence, np.random.Generator], Evidence | None]

HUGE = 2**62
_NUMBERS = tuple(f.name for f in fields(RequestColumns) if f.name not in (*TEXT_COLUMNS, "chunk_start"))
_NEEDED = ("sent_ns", "end_ns", "http_status", "output_tokens")
"""Columns that every success has. Any other may be missing: servers that do not report it are honest."""
_TIMES = ("intended_ns", "sent_ns", "end_ns", "chunk_ns", "first_answer_ns")


# Places


def _some(count: int, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Mark one, a few or all of so many."""
    marked = np.zeros(count, dtype=np.bool_)
    marked[draw.permutation(count)[: int(draw.choice([1, max(1, count // 10), max(1, count // 2), count]))]] = True
    return marked


def _one_load(
    run: Evidence, draw: np.random.Generator, change: Callable[[LoadObservation], LoadObservation | None]
) -> Evidence | None:
    """Change one execution of a stage; None if there is none."""
    at = [k for k, one in enumerate(run.load) if len(one.requests)]
    if not at:
        return None
    place = int(draw.choice(at))
    changed = change(run.load[place])
    return None if changed is None else replace(run, load=(*run.load[:place], changed, *run.load[place + 1 :]))


def _one_requests(
    run: Evidence, draw: np.random.Generator, change: Callable[[RequestColumns], RequestColumns | None]
) -> Evidence | None:
    """Change the measured requests, the ramp or what was broken off, of one execution."""

    def changed(one: LoadObservation) -> LoadObservation | None:
        part = str(draw.choice([name for name in ("requests", "ramp", "left") if len(getattr(one, name))]))
        found = change(getattr(one, part))
        changed_part: dict[str, Any] = {part: found}
        return None if found is None else replace(one, **changed_part)

    return _one_load(run, draw, changed)


def _one_quality(
    run: Evidence, draw: np.random.Generator, change: Callable[[QualityObservation], QualityObservation]
) -> Evidence | None:
    """Change one task of one arm, among those that are compared."""
    at = [k for k, one in enumerate(run.quality) if one.items and not one.repeat]
    if not at:
        return None
    place = int(draw.choice(at))
    return replace(run, quality=(*run.quality[:place], change(run.quality[place]), *run.quality[place + 1 :]))


def _with(columns: RequestColumns, name: str, values: Any) -> RequestColumns:
    whole = dict(columns.to_columns())
    dtype = getattr(columns, name).dtype
    whole[name] = np.clip(values, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    return RequestColumns.from_columns(whole)


def _without(items: Sequence[Any], gone: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return tuple(one for one, lost in zip(items, gone.tolist(), strict=True) if not lost)


def _again(items: Sequence[Any], twice: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return (*items, *(one for one, marked in zip(items, twice.tolist(), strict=True) if marked))


# Loss


def lose_rows(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    def change(columns: RequestColumns) -> RequestColumns:
        return select_rows(columns, ~_some(len(columns), draw))

    return _one_load(run, draw, lambda one: replace(one, requests=change(one.requests)))


def lose_rows_of_every_execution(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The rows that failed or were slowest, on the candidate: what somebody would leave out."""
    if not any(len(one.requests) for one in run.load):
        return None

    def change(one: LoadObservation) -> LoadObservation:
        columns = one.requests
        if one.arm is Arm.BASELINE or len(columns) < 2:
            return one
        took = np.where(columns.error.are((None,)), columns.end_ns - columns.intended_ns, HUGE)
        kept = np.ones(len(columns), dtype=np.bool_)
        kept[np.argsort(took)[-max(1, len(took) // 4) :]] = False
        return replace(one, requests=select_rows(columns, kept))

    return replace(run, load=tuple(map(change, run.load)))


def lose_executions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, load=_without(run.load, _some(len(run.load), draw))) if run.load else None


def lose_block(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if not run.load:
        return None
    block = int(draw.choice([one.block for one in run.load]))
    return replace(run, load=tuple(one for one in run.load if one.block != block))


def lose_stage(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if not run.load:
        return None
    stage = str(draw.choice([one.stage for one in run.load]))
    return replace(run, load=tuple(one for one in run.load if one.stage != stage))


def lose_arm(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    arm = Arm(str(draw.choice(list(Arm))))
    if not run.load and not run.quality:
        return None
    load = tuple(one for one in run.load if one.arm is not arm)
    return replace(run, load=load, quality=tuple(one for one in run.quality if one.arm is not arm))


def lose_column(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """A column that every success has, of all rows on one arm."""
    name, arm = str(draw.choice(_NEEDED)), Arm(str(draw.choice(list(Arm))))
    if not any(len(one.requests) for one in run.load if one.arm is arm):
        return None

    def change(one: LoadObservation) -> LoadObservation:
        return replace(one, requests=_with(one.requests, name, np.full(len(one.requests), ABSENT)))

    return replace(run, load=tuple(change(one) if one.arm is arm else one for one in run.load))


def lose_chunks(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """All pieces of the answers in one execution."""

    def change(columns: RequestColumns) -> RequestColumns:
        none = {"chunk_start": np.zeros(len(columns) + 1, np.int64), "chunk_ns": np.zeros(0, np.int64)}
        return RequestColumns.from_columns({**columns.to_columns(), **none})

    return _one_load(run, draw, lambda one: replace(one, requests=change(one.requests)))


def lose_tasks(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, quality=_without(run.quality, _some(len(run.quality), draw))) if run.quality else None


def lose_task_of_both(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    named = [one.task for one in run.quality if "/" not in one.task]  # the suite does not name the parts of a group
    if not named:
        return None
    task = str(draw.choice(named))
    return replace(run, quality=tuple(one for one in run.quality if one.task != task))


def lose_items(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return _one_quality(run, draw, lambda one: replace(one, items=_without(one.items, _some(len(one.items), draw))))


def lose_wrong_items(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The items that the candidate has wrong, on both arms: what somebody would leave out."""
    wrong = {
        (one.task, item.item_id)
        for one in run.quality
        if one.arm is Arm.CANDIDATE
        for item in one.items
        if not item.score
    }
    if not wrong:
        return None

    def change(one: QualityObservation) -> QualityObservation:
        return replace(one, items=tuple(item for item in one.items if (one.task, item.item_id) not in wrong))

    return replace(run, quality=tuple(map(change, run.quality)))


def lose_prompts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if run.shadow is None or not run.shadow.items:
        return None
    return replace(
        run, shadow=replace(run.shadow, items=_without(run.shadow.items, _some(len(run.shadow.items), draw)))
    )


def lose_shadow(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return None if run.shadow is None else replace(run, shadow=None)


def lose_positions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if run.divergence is None or not run.divergence.items:
        return None
    kept = _without(run.divergence.items, _some(len(run.divergence.items), draw))
    return replace(run, divergence=replace(run.divergence, items=kept))


def lose_divergence(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return None if run.divergence is None else replace(run, divergence=None)


def lose_starts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, starts=_without(run.starts, _some(len(run.starts), draw))) if run.starts else None


# Values that cannot be, and values that contradict others


def impossible_numbers(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Absent, zero, negative or huge, in rows of one column that every success has."""
    name, value = str(draw.choice(_NEEDED)), int(draw.choice([ABSENT, 0, -(10**12), HUGE]))

    def change(columns: RequestColumns) -> RequestColumns:
        return _with(columns, name, np.where(_some(len(columns), draw), value, getattr(columns, name)))

    return _one_requests(run, draw, change)


def impossible_times(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Times before the start, or so late that nothing of the request can be after them."""
    name, value = str(draw.choice(["intended_ns", "chunk_ns", "end_ns"])), int(draw.choice([-(10**15), 10**15]))

    def change(columns: RequestColumns) -> RequestColumns | None:
        values = getattr(columns, name)
        return _with(columns, name, np.where(_some(len(values), draw), value, values)) if len(values) else None

    return _one_requests(run, draw, change)


def swapped_times(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The end of each answer where its sending was, and the other way round."""

    def change(columns: RequestColumns) -> RequestColumns:
        return replace(columns, sent_ns=columns.end_ns, end_ns=columns.sent_ns)

    return _one_requests(run, draw, change)


def errors_erased(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The error class of every failure of the candidate, and nothing else of it."""
    if not any(o.arm is Arm.CANDIDATE and not o.requests.error.are((None,)).all() for o in run.load):
        return None

    def change(columns: RequestColumns) -> RequestColumns:
        return replace(columns, error=columns.error.but(np.ones(len(columns), dtype=np.bool_), None))

    load = (replace(o, requests=change(o.requests)) if o.arm is Arm.CANDIDATE else o for o in run.load)
    return replace(run, load=tuple(load))


def errors_without_details(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Successes of the baseline that are called failures: the candidate would look better."""
    if not any(o.arm is Arm.BASELINE and o.requests.error.are((None,)).any() for o in run.load):
        return None

    def change(columns: RequestColumns) -> RequestColumns:
        rows = columns.error.are((None,)) & (np.arange(len(columns)) % 4 == 0)
        return replace(columns, error=columns.error.but(rows, "http_5xx"))

    load = (replace(o, requests=change(o.requests)) if o.arm is Arm.BASELINE else o for o in run.load)
    return replace(run, load=tuple(load))


def statuses_changed(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Statuses of the baseline's successes."""
    if not any(o.arm is Arm.BASELINE and len(o.requests) for o in run.load):
        return None

    def change(one: LoadObservation) -> LoadObservation:
        status = np.where(_some(len(one.requests), draw), 500, one.requests.http_status)
        return replace(one, requests=_with(one.requests, "http_status", status))

    return replace(run, load=tuple(change(o) if o.arm is Arm.BASELINE and len(o.requests) else o for o in run.load))


_ODD = (math.nan, math.inf, -math.inf, -1.0)


def odd_windows(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return _one_load(run, draw, lambda one: replace(one, window_s=float(draw.choice(_ODD))))


def other_windows(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Every window of an arm is longer or shorter than its requests took."""
    arm, factor = [(Arm.BASELINE, 1.3), (Arm.CANDIDATE, 0.7), (Arm.BASELINE, 10.0), (Arm.CANDIDATE, 0.1)][
        draw.integers(4)
    ]
    if not any(len(one.requests) and one.arm is arm for one in run.load):
        return None
    load = (replace(one, window_s=one.window_s * factor) if one.arm is arm else one for one in run.load)
    return replace(run, load=tuple(load))


def odd_client_figures(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    name = str(draw.choice(["cpu_s", "wall_s", "busiest_share", "read_delay_p99_s", "start_uncertainty_s"]))
    changed: dict[str, Any] = {name: float(draw.choice(_ODD))}
    return _one_load(run, draw, lambda one: replace(one, client=replace(one.client, **changed)))


def odd_scores(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Scores that are no number, or beyond 0 to 1: a plain score cannot be."""
    value = draw.choice([math.nan, math.inf, -math.inf, 2.0, None])  # type: ignore[arg-type]  # as Python's own

    def change(one: QualityObservation) -> QualityObservation:
        marked = _some(len(one.items), draw).tolist()
        score = None if value is None else float(value)
        return replace(
            one, items=tuple(replace(k, score=score) if m else k for k, m in zip(one.items, marked, strict=True))
        )

    return _one_quality(run, draw, change)


def other_questions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Digests of the questions on one arm."""
    other: dict[str, Any] = {str(draw.choice(["doc_hash", "prompt_hash", "target_hash", "item_id"])): "changed"}

    def change(one: QualityObservation) -> QualityObservation:
        marked = _some(len(one.items), draw).tolist()
        items = (replace(k, **other) if m else k for k, m in zip(one.items, marked, strict=True))
        return replace(one, items=tuple(items))

    return _one_quality(run, draw, change)


def odd_positions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if run.divergence is None or not run.divergence.items:
        return None
    value, marked = float(draw.choice([math.nan, math.inf, -1.0])), _some(len(run.divergence.items), draw).tolist()
    items = (replace(k, kld=value) if m else k for k, m in zip(run.divergence.items, marked, strict=True))
    return replace(run, divergence=replace(run.divergence, items=tuple(items)))


def odd_starts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if not run.starts:
        return None
    value, marked = float(draw.choice(_ODD)), _some(len(run.starts), draw).tolist()
    return replace(
        run,
        starts=tuple(replace(k, to_answer_s=value) if m else k for k, m in zip(run.starts, marked, strict=True)),
    )


def odd_telemetry(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Readings of one window that are infinite, negative or no number."""
    if not run.telemetry:
        return None
    place, value = int(draw.integers(len(run.telemetry))), float(draw.choice(_ODD))
    window = run.telemetry[place]
    name = [name for reading in window.readings for name in reading.values]
    if not name:
        return None
    chosen = name[int(draw.integers(len(name)))]
    readings = (
        replace(one, values={**one.values, chosen: value}) if chosen in one.values else one for one in window.readings
    )
    changed = replace(window, readings=tuple(readings))
    return replace(run, telemetry=(*run.telemetry[:place], changed, *run.telemetry[place + 1 :]))


# Order


def reorder_everything(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Executions, tasks, items, prompts, positions, windows and starts: no verdict is to depend on their order."""

    def mixed(ones: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(ones[k] for k in draw.permutation(len(ones)).tolist())

    shadow, divergence = run.shadow, run.divergence
    return replace(
        run,
        load=mixed(run.load),
        quality=mixed([replace(one, items=mixed(one.items)) for one in run.quality]),
        shadow=None if shadow is None else replace(shadow, items=mixed(shadow.items)),
        divergence=None if divergence is None else replace(divergence, items=mixed(divergence.items)),
        telemetry=mixed(run.telemetry),
        starts=mixed(run.starts),
    )


def reorder_column(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The times of one column among the rows of one execution: each belongs to another request."""
    name = str(draw.choice(_TIMES))

    def change(columns: RequestColumns) -> RequestColumns:
        return _with(columns, name, draw.permutation(getattr(columns, name)))

    return _one_load(run, draw, lambda one: replace(one, requests=change(one.requests)))


def reorder_scores(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The scores of the candidate in one task, each of another item: as many are right as before."""

    def change(one: QualityObservation) -> QualityObservation:
        scores = [one.items[k].score for k in draw.permutation(len(one.items)).tolist()]
        return replace(one, items=tuple(replace(k, score=s) for k, s in zip(one.items, scores, strict=True)))

    return _one_quality(run, draw, change)


# Duplicates


def repeat_rows(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    def change(columns: RequestColumns) -> RequestColumns:
        return concatenate_columns([columns, select_rows(columns, _some(len(columns), draw))])

    return _one_requests(run, draw, change)


def repeat_good_rows(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Good rows of the candidate in place of its failures and slowest ones: the number of rows stays."""
    if not any(o.arm is Arm.CANDIDATE and len(o.requests) for o in run.load):
        return None

    def change(one: LoadObservation) -> LoadObservation:
        columns = one.requests
        took = np.where(columns.error.are((None,)), columns.end_ns - columns.intended_ns, HUGE)
        order, few = np.argsort(took, kind="stable"), max(1, len(took) // 4)
        good, kept = np.zeros(len(took), dtype=np.bool_), np.ones(len(took), dtype=np.bool_)
        good[order[:few]], kept[order[len(took) - few :]] = True, False
        parts = [select_rows(columns, kept), select_rows(columns, good)]
        return replace(one, requests=concatenate_columns(parts))

    load = (change(o) if o.arm is Arm.CANDIDATE and len(o.requests) > 1 else o for o in run.load)
    return replace(run, load=tuple(load))


def repeat_executions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, load=_again(run.load, _some(len(run.load), draw))) if run.load else None


def repeat_block_as_another(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """One block of a stage, on both arms, in place of every other."""
    if not run.load:
        return None
    block = int(draw.choice([one.block for one in run.load]))
    of = {(one.stage, one.arm): one for one in run.load if one.block == block}
    load = (
        replace(of[one.stage, one.arm], block=one.block, position=one.position) if (one.stage, one.arm) in of else one
        for one in run.load
    )
    return replace(run, load=tuple(load))


def repeat_tasks(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, quality=_again(run.quality, _some(len(run.quality), draw))) if run.quality else None


def repeat_items(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return _one_quality(run, draw, lambda one: replace(one, items=_again(one.items, _some(len(one.items), draw))))


def repeat_right_items(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Right items in place of wrong ones, on both arms: the number of items stays."""
    wrong = {(o.task, k.item_id) for o in run.quality if o.arm is Arm.CANDIDATE for k in o.items if not k.score}
    if not wrong:
        return None

    def change(one: QualityObservation) -> QualityObservation:
        good = [k for k in one.items if (one.task, k.item_id) not in wrong]
        return replace(one, items=tuple((good * len(one.items))[: len(one.items)]) if good else ())

    return replace(run, quality=tuple(map(change, run.quality)))


def repeat_prompts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if run.shadow is None or not run.shadow.items:
        return None
    return replace(run, shadow=replace(run.shadow, items=_again(run.shadow.items, _some(len(run.shadow.items), draw))))


def repeat_good_prompts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """Prompts whose answers agree in place of all others: their number stays."""
    if run.shadow is None:
        return None
    items = run.shadow.items
    good = [one for one in items if not one.differs_from_primary and one.error is None]
    if not good or len(good) == len(items):
        return None
    return replace(run, shadow=replace(run.shadow, items=tuple((good * len(items))[: len(items)])))


def repeat_positions(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    if run.divergence is None or not run.divergence.items:
        return None
    items = run.divergence.items
    best = [min(items, key=lambda one: one.kld)] * len(items)
    again = best if draw.integers(2) else _again(items, _some(len(items), draw))
    return replace(run, divergence=replace(run.divergence, items=tuple(again)))


def repeat_telemetry(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    return replace(run, telemetry=_again(run.telemetry, _some(len(run.telemetry), draw))) if run.telemetry else None


def repeat_starts(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """The quickest start in place of all others, or some of them once more."""
    if not run.starts:
        return None
    if draw.integers(2):
        return replace(run, starts=_again(run.starts, _some(len(run.starts), draw)))
    best = min(run.starts, key=lambda one: one.to_answer_s)
    return replace(run, starts=tuple(best if one.arm is best.arm else one for one in run.starts))


# Single values that may be: only a regression that is shown is held against them


def other_row(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """One request, as fast as could be and without an error."""

    def change(columns: RequestColumns) -> RequestColumns:
        found, row = dict(columns.to_columns()), int(draw.integers(len(columns)))
        at, end = columns.chunk_start[row], columns.chunk_start[row + 1]
        for name in ("sent_ns", "end_ns", "first_answer_ns"):
            values = getattr(columns, name).copy()
            values[row] = columns.intended_ns[row] + (1000 if name == "end_ns" else 0)
            found[name] = values
        chunks = columns.chunk_ns.copy()
        chunks[at:end] = columns.intended_ns[row]
        return RequestColumns.from_columns({**found, "chunk_ns": chunks})

    return _one_load(run, draw, lambda one: replace(one, requests=change(one.requests)))


def other_item(run: Evidence, draw: np.random.Generator) -> Evidence | None:
    """One score, the other way."""

    def change(one: QualityObservation) -> QualityObservation:
        at = int(draw.integers(len(one.items)))
        item = one.items[at]
        other = replace(item, score=None if item.score is None else 1.0 - item.score)
        return replace(one, items=(*one.items[:at], other, *one.items[at + 1 :]))

    return _one_quality(run, draw, change)


LOSSES: tuple[Damage, ...] = (
    lose_rows, lose_rows_of_every_execution, lose_executions, lose_block, lose_stage, lose_arm, lose_column,
    lose_chunks, lose_tasks, lose_task_of_both, lose_items, lose_wrong_items, lose_prompts, lose_shadow, lose_positions,
    lose_divergence, lose_starts,
)  # fmt: skip
CONTRADICTIONS: tuple[Damage, ...] = (
    impossible_numbers, impossible_times, swapped_times, errors_erased, errors_without_details, statuses_changed,
    odd_windows, other_windows, odd_client_figures, odd_scores, other_questions, odd_positions, odd_starts,
    odd_telemetry,
)  # fmt: skip
ORDERS: tuple[Damage, ...] = (reorder_everything, reorder_column)
DUPLICATES: tuple[Damage, ...] = (
    repeat_rows, repeat_good_rows, repeat_executions, repeat_block_as_another, repeat_tasks, repeat_items,
    repeat_right_items, repeat_prompts, repeat_good_prompts, repeat_positions, repeat_telemetry, repeat_starts,
)  # fmt: skip
SINGLE_VALUES: tuple[Damage, ...] = (other_row, other_item, reorder_scores)
