"""The numbers of a report as one JSON text: what its tables and charts are made of, unrounded, with its SHA-256.

The text stands in the page as a block of data that no browser runs. It holds no `<`, `>` or `&`, so nothing in it can
end its element, and it is still plain JSON: what a reader takes out has the hash that the page shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model import request_metrics
from benchgate.model.metric import TREND_UNITS
from benchgate.model.run import Evidence, LoadObservation, MetricRow
from benchgate.report.document import Terms, json_number
from benchgate.report.sections.stages import Executions, StageRow

SCHEMA = "benchgate.numbers/1"
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True, slots=True)
class Numbers:
    """The text of the block, and the SHA-256 over its bytes in hexadecimal."""

    text: str
    sha256: str

    @property
    def extract_command(self) -> str:
        """Commands that take the text out of a saved page and show its hash."""
        element = r's|^<script type="application/json" id="benchgate-numbers">\(.*\)</script>$|\1|p'
        return f"sed -n '{element}' report.html | tr -d '\\n' > numbers.json\nsha256sum numbers.json"


def numbers(
    verdict: Mapping[str, object],
    rows: Sequence[StageRow],
    seen: Executions,
    evidence: Evidence,
    against: Evidence | None,
    terms: Terms,
) -> Numbers:
    """Return the verdict document, every derived number of both runs with limits, and every block's numbers.

    The judged run's numbers follow the SLO of the judging policy. Infinities are the texts "inf" and "-inf"; unmeasured
    values are null.
    """
    runs = (terms.judged(evidence), *(() if against is None else (against,)))
    document = {
        "schema": SCHEMA,
        "verdict": verdict,
        "metrics": {run.run.id: [_metric(row) for row in metric_rows(run)] for run in runs},
        "blocks": _columns([_block(row, block) for row in rows for block in seen.get((row.stage, row.role), ())]),
    }
    plain = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character, escape in _ESCAPES.items():
        plain = plain.replace(character, escape)
    return Numbers(plain, hashlib.sha256(plain.encode("ascii")).hexdigest())


def _metric(row: MetricRow) -> dict[str, object]:
    places = {"statistic": row.statistic, "stage": row.stage, "task": row.task}
    return {
        "arm": row.arm.value,
        "name": row.name,
        "unit": TREND_UNITS.get(row.name),
        **{name: place for name, place in places.items() if place is not None},
        "value": json_number(row.value),
        "lower": json_number(row.lower),
        "upper": json_number(row.upper),
        "n": row.n,
    }


def _columns(rows: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return rows of equal keys as columns, so that a run of many blocks spells each name once."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _block(row: StageRow, block: LoadObservation) -> dict[str, object]:
    """Return one execution of a stage; `arm` is its side in this report."""
    columns = block.requests
    ttft, tpot, e2e = (
        request_metrics.quantiles(values, (0.5, 0.95))
        for values in (request_metrics.ttft_s(columns), request_metrics.tpot_s(columns), request_metrics.e2e_s(columns))
    )
    return {
        "stage": row.stage,
        "arm": row.role.value,
        "block": block.block + 1,
        "position": block.position,
        "window_s": json_number(block.window_s),
        "scheduled": len(columns),
        "ramp": len(block.ramp),
        "succeeded": int(request_metrics.succeeded(columns).sum()),
        "good": None if row.slo is None else int(request_metrics.meets_slo(columns, row.slo).sum()),
        "output_tokens_per_s": json_number(request_metrics.output_tokens_per_s(columns, block.window_s)),
        "ttft_p50_s": json_number(ttft[0]),
        "ttft_p95_s": json_number(ttft[1]),
        "tpot_p50_s": json_number(tpot[0]),
        "tpot_p95_s": json_number(tpot[1]),
        "e2e_p50_s": json_number(e2e[0]),
        "e2e_p95_s": json_number(e2e[1]),
    }
