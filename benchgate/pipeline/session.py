"""What a sitting of a run leaves in the journal for the next one: where it keeps its spool, and whom it asks.

A suite may say whom only by reference (`${env:NAME}`), and what a deployment tells of itself may be what another one
tells. So the journal has a hash of whatever decides which server answers and that a reference came to: an address, a
proxy, a key, a header that a router goes by. It is drawn with the run's id, and slowly: they are secrets, and some are
few enough that all of them could be tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

from benchgate.model.deployment import Arm, canonical_json
from benchgate.model.run import SESSION_BEGUN
from benchgate.store.spool import FILE_NAME
from benchgate.suite.deployment import DeploymentSpec, reference_name, resolve_secret
from benchgate.suite.schema import Suite

_ROUNDS = 100_000


def spool_of(work_dir: Path, run_id: str) -> Path:
    """Where a run keeps what it measures before the store has it."""
    return work_dir / run_id / FILE_NAME


def sitting_of(suite: Suite, environment: Mapping[str, str], run_id: str, spool: Path) -> dict[str, object]:
    """The data of the event with which this process begins to measure a run. UsageError for a variable that is not set.

    `addresses` has, of each arm whose suite only refers to them, the hash of what every reference came to by its place.
    """
    specs = {Arm.BASELINE: suite.deployments[suite.baseline], Arm.CANDIDATE: suite.deployments[suite.candidate]}
    found = {
        arm.value: {place: _hashed(run_id, arm, place, resolve_secret(text, environment)) for place, text in refers}
        for arm, spec in specs.items()
        if (refers := list(_references(spec)))
    }
    return {"process": os.getpid(), "spool": str(spool), "addresses": found}


def moved(events: Sequence[tuple[str, Mapping[str, Any]]], now: Mapping[str, Any], suite: Suite) -> Iterator[str]:
    """What decides who answers and was another in an earlier sitting of the run with these events, in words."""
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    before = [data.get("addresses", {}) for kind, data in events if kind == SESSION_BEGUN]
    for arm, name in names.items():
        asked = now["addresses"].get(arm.value, {})
        was = [one.get(arm.value, {}) for one in before]
        for place in asked:
            if any(place not in one or one[place] != asked[place] for one in was):
                yield (
                    f"the {arm} {name} is asked with another `{place}` than before: set the variable that it refers to "
                    "as it was"
                )


def _references(spec: DeploymentSpec) -> Iterator[tuple[str, str]]:
    """Where a deployment's entry in the suite refers to what decides who answers, and who tells of it; in its order."""
    said = {name: getattr(spec, name) for name in ("url", "proxy", "api_key", "metrics", "gpu")}
    headers = {f"headers.{name}": text for name, text in spec.headers.items()}
    replicas = {f"ready.metrics[{n}]": text for n, text in enumerate(spec.ready.metrics if spec.ready else ())}
    for place, text in (said | headers | replicas).items():
        if text is not None and reference_name(text) is not None:
            yield place, text


def _hashed(run_id: str, arm: Arm, place: str, value: str) -> str:
    """The same for an address with and without its last slash, as for whoever asks it."""
    told = canonical_json([arm.value, place, value.rstrip("/") if place == "url" else value])
    return pbkdf2_hmac("sha256", told, run_id.encode(), _ROUNDS).hex()
