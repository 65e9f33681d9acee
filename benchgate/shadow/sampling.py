"""`benchgate shadow sample`: logs → a file of redacted prompts, and a report of what was read, drawn and redacted."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchgate.errors import UsageError
from benchgate.plan.items import ShadowPrompt
from benchgate.shadow.asked import Asked
from benchgate.shadow.drawing import Drawable, Drawn, Pool
from benchgate.shadow.form import form_problems
from benchgate.shadow.logs import Reading, read_logs
from benchgate.shadow.redaction import Redactor, TooSlowError


@dataclass(frozen=True)
class Sample:
    """What was drawn, as rows, and what is to be said of it: numbers, reasons and places, never a text."""

    rows: tuple[Mapping[str, object], ...]
    reading: Reading
    pool: Pool
    redacted: Mapping[str, tuple[int, int]]  # by rule: replacements, and prompts that have one


def draw_sample(
    logs: Sequence[Path],
    redactor: Redactor,
    *,
    size: int = 256,
    seed: int = 0,
    near: float | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Sample:
    """Read the logs once, redacting each request as it is read, and draw. `told` gets a line for each file.

    Raises UsageError for a file that cannot be used, and for a rule that does not come to an end on a request.
    """
    reading, pool = Reading(), Pool(size, seed, near)
    for place, asked in read_logs(logs, reading, told):
        redacted, replaced = redacted_at(place, asked, redactor)
        if _is_held_to_nothing(json.dumps(redacted.fields, sort_keys=True)):
            reading.note(
                reading.left_out, "asks for an answer of a form that is none (`response_format`, `tools`)", place
            )
        else:
            pool.add(Drawable(redacted, replaced))
    drawn = pool.draw()
    return Sample(tuple(each.row for each in drawn), reading, pool, _redacted(redactor, drawn))


def redacted_at(place: str, asked: Asked, redactor: Redactor) -> tuple[Asked, Counter[str]]:
    """A request redacted. Raises UsageError, with the place, where a rule does not come to an end."""
    try:
        return redactor.redact(asked)
    except TooSlowError as error:
        what = "a group that is repeated inside a repetition is the usual cause"
        raise UsageError(f"{place}: the rule {error} does not come to an end on this request; {what}") from error


@lru_cache(maxsize=1024)
def _is_held_to_nothing(fields: str) -> bool:
    """Whether no row may have these fields, of which much traffic has the same ones: a sample could not be run."""
    return bool(form_problems(ShadowPrompt("", "", fields=json.loads(fields))))


def _redacted(redactor: Redactor, drawn: Sequence[Drawn]) -> dict[str, tuple[int, int]]:
    times: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    for each in drawn:
        times += each.drawable.replaced
        prompts.update(each.drawable.replaced.keys())
    return {rule: (times[rule], prompts[rule]) for rule in redactor.rules}


def write_sample(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write the rows to a new file that only its owner can read; it is whole or not there at all.

    Raises UsageError for a file that is there already or cannot be written.
    """
    refuse_existing(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch(mode=0o600, exist_ok=False)
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        partial.rename(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raise UsageError for a sample's file that is there already: what was drawn before is not drawn over."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} is there already; name another file")


def describe(sample: Sample) -> dict[str, object]:
    """The report as plain JSON values."""
    reading, pool = sample.reading, sample.pool
    distinct = pool.distinct
    drawn = Counter(str(row["stratum"]) for row in sample.rows)
    return {
        "rows": len(sample.rows),
        "size": pool.size,
        "seed": pool.seed,
        "lines": reading.lines,
        "requests": reading.requests,
        "distinct": distinct.total(),
        "duplicates": pool.duplicates,
        "near": pool.near,
        "near_duplicates": pool.near_duplicates,
        "other_lines": reading.other,
        "cut_at": reading.cut_at,
        "bad_lines": _reasons(reading, reading.bad),
        "left_out": _reasons(reading, reading.left_out),
        "strata": [{"stratum": name, "distinct": distinct[name], "drawn": drawn[name]} for name in sorted(distinct)],
        "redacted": [
            {"rule": rule, "replacements": times, "prompts": prompts}
            for rule, (times, prompts) in sample.redacted.items()
        ],
    }


def _reasons(reading: Reading, found: Counter[str]) -> list[dict[str, object]]:
    return [{"reason": reason, "lines": n, "first": reading.places[reason]} for reason, n in found.most_common()]
