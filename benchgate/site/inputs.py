"""What a page is made from, as one hash: where that is the same, so is the page, and it is not made again."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchgate.model.deployment import sha256_of
from benchgate.report.html import TEMPLATES
from benchgate.store.queries import Overview, RunSummary

_LIBRARIES = ("jinja2", "numpy", "scipy", "vl-convert-python")  # whose own changes may change a page
_PACKAGE = Path(__file__).parent.parent


@cache
def tool_sha256() -> str:
    """Every line of benchgate and of its templates, and the libraries that pages are made with."""
    folders = [(_PACKAGE, "*.py"), *((folder, "*") for folder in TEMPLATES if folder.is_dir())]
    found = [file for folder, pattern in folders for file in sorted(folder.rglob(pattern)) if file.is_file()]
    digest = hashlib.sha256(json.dumps([[name, version(name)] for name in _LIBRARIES]).encode())
    for file in found:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Past:
    """What a suite's runs, verdicts and promotions were by any instant, as running hashes."""

    instants: Sequence[str]
    hashes: Sequence[str]

    def by(self, instant: str) -> str:
        at = bisect_right(self.instants, instant)
        return self.hashes[at - 1] if at else ""


@dataclass(frozen=True, slots=True, eq=False)
class ReportInputs:
    """Gives the hash of what a run's report rests on.

    That is the run itself and what was known when it began (runs, verdicts and promotions of its suite) or ended (noise
    profiles): nothing that came later changes a report, so a new run makes no old one again.
    """

    suites: Mapping[str, _Past]
    noise: _Past

    @classmethod
    def of(cls, overview: Overview) -> ReportInputs:
        """Of everything that a store has."""
        facts: dict[str, list[tuple[str, str]]] = {}
        stored = {said.sha256 for glance in overview.runs for said in glance.outcomes}
        for glance in overview.runs:
            facts.setdefault(glance.run.suite_name, []).extend(_facts(glance))
        for promotion in overview.promotions:
            rests = promotion.grounds is None or promotion.grounds.verdict_sha256 in stored
            told = sha256_of([promotion.to_json(), rests])
            facts.setdefault(promotion.suite, []).append((promotion.promoted_at, told))
        return cls({suite: _past(told) for suite, told in facts.items()}, _past(overview.noise))

    def sha256(self, glance: RunSummary) -> str:
        """The hash for one run of the overview."""
        run = glance.run
        removed = None if glance.removed is None else glance.removed.removed_at
        return sha256_of(
            [
                tool_sha256(),
                [run.id, run.status.value, run.finished_at, run.label, run.tool_version],
                [glance.evidence_sha256, glance.n_kept, removed, glance.noise_sha256],
                [said.sha256 for said in glance.outcomes],
                self.suites[run.suite_name].by(run.started_at),
                self.noise.by(run.finished_at or run.started_at),
            ]
        )


def _facts(glance: RunSummary) -> Iterator[tuple[str, str]]:
    """When what of a run came to be known: that it measured something, its end, and its verdicts."""
    run = glance.run
    yield run.started_at, sha256_of([run.id, run.label, glance.measured])
    if run.finished_at is None:
        return
    yield run.finished_at, sha256_of([run.id, run.status.value, run.started_at, glance.evidence_sha256])
    for said in glance.outcomes:
        yield max(said.decided_at or "", run.finished_at), sha256_of([run.id, said.sha256])


def _past(facts: Sequence[tuple[str, str]]) -> _Past:
    instants, hashes, digest = list[str](), list[str](), hashlib.sha256()
    for instant, told in sorted(facts):
        digest.update(told.encode())
        instants.append(instant)
        hashes.append(digest.hexdigest())
    return _Past(instants, hashes)
