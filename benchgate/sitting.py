"""What a sitting of a run leaves in the journal for the next one: where it keeps its spool, and whom it asks.

A suite may say whom only by reference (`${env:NAME}`), and what a deployment tells of itself may be what another one
tells. So the journal has a hash of each address that a reference came to, drawn with the run's id and slowly: an
address may be a secret, and few enough that all of them could be tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

from benchgate.model.deployment import Arm, canonical_json
from benchgate.model.run import SITTING
from benchgate.store.spool import FILE_NAME
from benchgate.suite.references import holds_reference
from benchgate.suite.schema import DeploymentSpec, Suite
from benchgate.targets.deployed import target_of

_ROUNDS = 100_000


def spool_of(work_dir: Path, run_id: str) -> Path:
    """Where a run keeps what it measures before the store has it."""
    return work_dir / run_id / FILE_NAME


def sitting_of(
    suite: Suite, suite_dir: Path, environment: Mapping[str, str], run_id: str, spool: Path
) -> dict[str, object]:
    """The data of the event with which this process begins to measure a run. UsageError for a variable that is not set.

    `addresses` has the hash of each arm's address and proxy, of arms whose suite only refers to them.
    """
    specs = {Arm.BASELINE: suite.deployments[suite.baseline], Arm.CANDIDATE: suite.deployments[suite.candidate]}
    addresses: dict[str, str] = {}
    for arm, spec in specs.items():
        if _refers(spec):
            target = target_of(arm, spec, environment, suite_dir)
            addresses[arm.value] = _hashed(run_id, [target.url, target.route.proxy])
    return {"process": os.getpid(), "spool": str(spool), "addresses": addresses}


def moved(events: Sequence[tuple[str, Mapping[str, Any]]], now: Mapping[str, Any], suite: Suite) -> Iterator[str]:
    """The arms that were asked elsewhere in an earlier sitting of the run with these events, in words."""
    names = {Arm.BASELINE: suite.baseline, Arm.CANDIDATE: suite.candidate}
    before = [data.get("addresses", {}) for kind, data in events if kind == SITTING]
    for arm, name in names.items():
        if any(one.get(arm.value) != now["addresses"].get(arm.value) for one in before):
            yield (
                f"the {arm} {name} is asked at another address, or through another proxy, than before: set the "
                "variables that its `url` and `proxy` refer to as they were"
            )


def _refers(spec: DeploymentSpec) -> bool:
    return any(text is not None and holds_reference(text) for text in (spec.url, spec.proxy))


def _hashed(run_id: str, address: Sequence[str | None]) -> str:
    return pbkdf2_hmac("sha256", canonical_json(list(address)), run_id.encode(), _ROUNDS).hex()
