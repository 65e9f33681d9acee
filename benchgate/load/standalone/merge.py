"""Shards of a load test merged into one result, as if one process had sent it all: `benchgate load merge URL…`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from benchgate import __version__, credentials
from benchgate.errors import UsageError
from benchgate.gate.evidence.client_saturation import strains
from benchgate.load.clocks import start_fault
from benchgate.load.results import StageResult, lost_worker, salvage
from benchgate.load.shard_files import ShardBegin, ShardedStage, ShardFiles, shards_in
from benchgate.load.shards import Shard
from benchgate.load.spool_folder import spool_folder
from benchgate.load.stage_summary import Offered, merge_shares
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import describe, offered_load, stage_of, target_of, with_regions
from benchgate.load.standalone.shard import STOPPED
from benchgate.model.request import EXACT_RECORDS
from benchgate.suite.schema import ClientBounds
from benchgate.targets.dialect import Target


@dataclass(frozen=True, slots=True)
class _Found:
    """Files of a shard that was begun, and the folder that they are in."""

    begin: ShardBegin
    files: ShardFiles
    url: str


def merge_shards(urls: Sequence[str], *, exact: int = EXACT_RECORDS) -> dict[str, object]:
    """Return the document of a load test from the shards in these folders, as `run_load_test` does.

    A shard that is missing, late, unlike the others, saturated, lost or stopped is a fault that names it; what the
    others measured is kept. With more than `exact` records memory holds a few shards at a time. Raises UsageError
    without shards, with two of the same number, and where a trace, prompts or a secret are needed and not here.
    """
    with ExitStack() as stack:
        found: dict[int, _Found] = {}
        for url in urls:
            folder = stack.enter_context(spool_folder(url))
            folder.pull()
            for files in shards_in(folder):
                one = _Found(files.read_begin(), files, url)
                other = found.setdefault(one.begin.shard, one)
                if other is not one:
                    raise UsageError(
                        f"shard {one.begin.shard} is both in {other.url} (begun on {other.begin.host}) and in {url} "
                        f"(begun on {one.begin.host}); name the folders of one load test only"
                    )
        if not found:
            raise UsageError(f"no shard was begun in {' or '.join(urls)}; give what the shards had as --spool")
        return _merge(found, exact)


def _merge(found: Mapping[int, _Found], exact: int) -> dict[str, object]:
    stages = [found[shard].begin.stage for shard in sorted(found)]
    stage = max(stages, key=stages.count)  # that of most shards; of two as common, the lowest shard's
    if stage.benchgate != __version__:
        sent = f"the shards were sent by benchgate {stage.benchgate}"
        raise UsageError(f"{sent}, and this is {__version__}; merge with the version that sent them")
    options = _options(stage)
    offered = offered_load(options, stage.shards)
    target, engine = target_of(options)
    whole = stage_of(options, target, options.service_s)
    shares = whole.split(stage.shards)
    has_clocks = len({one.begin.clock.kernel for one in found.values()}) > 1  # else one machine's
    strays = [found[shard].begin.name for shard in sorted(found) if shard >= len(shares)]
    rows = list[dict[str, object]]()

    labelled = any(one.begin.region is not None for one in found.values())

    def read(share: Shard) -> StageResult:
        """Return the result of a shard, with its name in the faults."""
        one = found.get(share.worker)
        if one is None:
            return lost_worker(share, f"shard {share.worker}/{stage.shards} is missing: it was never begun")
        result = _read(one, replace(share, region=one.begin.region), stage, target, offered)
        if labelled and one.begin.region is None:
            unlabelled = f"{one.begin.name} has no --region, and others have"
            result = replace(result, client=replace(result.client, faults=(*result.client.faults, unlabelled)))
        if has_clocks:
            result = _with_clock(result, one.begin, whole.start_tolerance_ns)
        return replace(result, region=one.begin.region)

    def results() -> Iterator[StageResult]:
        """Yield one shard after another, and note what is in each."""
        for share, result in zip(shares, _read_ahead(read, shares), strict=True):
            if strays and not rows:
                fault = f"{' and '.join(strays)} belong to a load test of another number of shards than {stage.shards}"
                result = replace(result, client=replace(result.client, faults=(*result.client.faults, fault)))
            begin = found[share.worker].begin if share.worker in found else None
            name = f"shard {share.worker}/{stage.shards}" if begin is None else begin.name
            rows.append(
                {
                    "shard": share.worker,
                    "host": None if begin is None else begin.host,
                    "region": None if begin is None else begin.region,
                    "clock": None if begin is None else asdict(begin.clock),
                    "requests": sum(group.recorded for group in result.classes),
                    "faults": [fault.removeprefix(f"{name} ") for fault in result.client.faults],
                }
            )
            yield result

    records = sum(one.files.recorded() for one in found.values())
    together = merge_shares(results(), records, offered, exact=exact)
    stopped = {f"{one.begin.name} {STOPPED}" for one in found.values()}
    partial = not stopped.isdisjoint(together.whole.client.faults)
    document = describe(options, engine, together.whole, partial=partial, warmup=None)
    if together.regions:
        document = with_regions(document, options, engine, together.regions, partial=partial)
    return {**document, "shards": rows}


def _read_ahead(read: Callable[[Shard], StageResult], shares: Sequence[Shard]) -> Iterator[StageResult]:
    """Yield the result of each share. The next one is unpacked, half of the work, while the caller uses one."""
    with ThreadPoolExecutor(1) as pool:
        following: Future[StageResult] | None = None
        for share in shares:
            current, following = following, pool.submit(read, share)
            if current is not None:
                yield current.result()
        if following is not None:
            yield following.result()


def _options(stage: ShardedStage) -> LoadOptions:
    """Return the options of a stage. Raises UsageError where its trace or its prompts are not those that were sent."""
    options = LoadOptions.parse(**stage.options, workers="1", warmup="0")
    if stage.inputs_sha256 != options.inputs_sha256:
        raise UsageError(
            f"{stage.options.get('trace') or stage.options.get('prompts')} holds other requests here than the shards "
            "sent; merge where the same file is"
        )
    return replace(options, api_key=None)


def _read(one: _Found, share: Shard, stage: ShardedStage, target: Target, offered: Offered) -> StageResult:
    """Return the result of a shard, with its name in the faults."""
    begin = one.begin
    if begin.stage != stage:
        return lost_worker(share, f"{begin.name} sent another stage: {', '.join(begin.stage.differences(stage))}")
    result = one.files.read_end()
    if isinstance(result, str):
        left = replace(share, spool=one.files.answers, target=_with_secrets(target, begin))
        fault = f"{begin.name} {result}"
        if result != STOPPED:
            return lost_worker(left, fault)
        result = salvage(left)
        return replace(result, client=replace(result.client, faults=(fault,)))
    faults = [fault.replace(share.name, begin.name, 1) for fault in result.client.faults]
    if stage.shards > 1:  # else the merged figures say it
        found = strains(result.client, result.only.requests, offered.share_rps, ClientBounds())
        faults += [f"{begin.name} was saturated: {reason}" for reason in found]
    return replace(result, client=replace(result.client, faults=tuple(faults)))


def _with_clock(result: StageResult, begin: ShardBegin, tolerance_ns: int) -> StageResult:
    """Add how uncertain the start of a shard was by its machine's clock, and a fault beyond the stage's tolerance."""
    bound_ns, fault = begin.clock.bound_ns, start_fault(begin.clock.bound_ns, tolerance_ns)
    offset_ns = begin.clock.offset_ns
    use = replace(
        result.client,
        start_uncertainty_s=None if bound_ns is None else bound_ns / 1e9,
        clock_offset_s=None if offset_ns is None else abs(offset_ns) / 1e9,
    )
    if fault is not None:
        use = replace(use, faults=(*use.faults, f"{begin.name} {fault}"))
    return replace(result, client=use)


def _with_secrets(target: Target, begin: ShardBegin) -> Target:
    """Return the target with the secrets of a shard, to cut them out of raw answers. Raises UsageError without them."""
    missing = [name for name in begin.secrets if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"{begin.name} left raw answers, in which the server may have repeated {' and '.join(missing)}; "
            "set it here too, so that it can be cut out"
        )
    credentials.register(*(os.environ[name] for name in begin.secrets))
    return replace(target, secret_headers={name.lower(): os.environ[name] for name in begin.secrets})
