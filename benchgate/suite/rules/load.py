"""Rules and warnings about workloads, stages, classes of traffic and the capacity search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from benchgate.errors import Problem, suggestion
from benchgate.model.request import ENDPOINTS, MediaKind
from benchgate.suite.checks import Check
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.formats import schema_problem
from benchgate.suite.load import TrafficClass
from benchgate.suite.rules.base import Rule, arms, check_rule, rule, written_positions
from benchgate.suite.rules.checks import unbounded_because
from benchgate.suite.schema import Suite
from benchgate.suite.workload import AdapterMix, Lengths, Workload
from benchgate.suite.yaml import Fault, Path, read_text, show_path
from benchgate.units import as_written, show_number, show_percent, without_zeros

_WITH_PRIORITIES = ("vllm", "sglang")
_MISSING_LENGTH = 'is required and missing; expected a count like "128 tokens"'
_MEDIA: tuple[MediaKind, ...] = ("images", "audio", "videos")
_GRPC_FIELDS = frozenset({"model_name", "model_version", "id", "inputs", "parameters"})  # of ModelInferRequest
_TRANSCRIPTIONS = ("json", "verbose_json", "text")  # forms of transcriptions that are read
_ARMS = ("deployments", "baseline", "candidate", "candidates")


def _workloads(suite: Suite) -> Iterator[tuple[Path, Workload]]:
    if suite.load is not None:
        yield ("load", "workload"), suite.load.workload
        yield from ((("load", "workloads", name), workload) for name, workload in suite.load.workloads.items())


def written_classes(suite: Suite) -> Iterator[tuple[Path, str | None, TrafficClass]]:
    """Yield every class of traffic with its path in the suite and the name of its workload."""
    for number, stage in enumerate(suite.load.sweep if suite.load is not None else ()):
        assert suite.load is not None
        for name in stage.class_names:
            spec = stage.classes[name] if stage.classes is not None and name is not None else stage
            path: Path = ("load", "sweep", number, *(("classes", name) if name is not None else ()))
            yield path, spec.workload, suite.load.class_of(stage, name)


@rule("load.workloads.*")
def named_workload_exists(suite: Suite) -> Iterator[Fault]:
    """Require the workloads that stages and classes name."""
    known = suite.load.workloads if suite.load is not None else {}
    for path, name, _ in written_classes(suite):
        if name is not None and name not in known:
            yield Fault((*path, "workload"), _no_workload(name, known))


def _no_workload(name: str, known: Mapping[str, Workload]) -> str:
    return f'no workload is named "{name}"; {suggestion(name, known) if known else "`load.workloads` is missing"}'


@rule("load.sweep", "load.capacity", "load.workloads.*")
def workload_is_used(suite: Suite) -> Iterator[Fault]:
    """Refuse named workloads that are not used."""
    if suite.load is None:
        return
    used = {name for _, name, _ in written_classes(suite)}
    if suite.load.capacity is not None:
        used.add(suite.load.capacity.workload)
    for name in suite.load.workloads:
        if name not in used:
            yield Fault(("load", "workloads", name), "no stage names this workload; name it or remove it")


@rule("load.regions", "load.sweep")
def regions_send_alike(suite: Suite) -> Iterator[Fault]:
    """Require slots and requests that can be dealt to the regions in equal parts."""
    regions = len(suite.regions)
    for path, _, traffic in written_classes(suite) if regions else ():
        slots, requests = traffic.schedule.concurrency, traffic.schedule.requests
        if slots is not None and slots % regions and not traffic.is_background:
            most = -(-slots // regions) * regions
            yield Fault((*path, "concurrency"), f"{slots} slots are no equal part for {regions} regions; write {most}")
        elif requests < regions:
            yield Fault((*path, "requests"), f"leaves a region of {regions} without any; write {regions} or more")


def _workload_rule(faults: Callable[[Workload], Iterator[tuple[str, str]]]) -> Rule:
    """Make a rule of a function that yields the faults of one workload, each by its dotted key and message."""

    def of_suite(suite: Suite) -> Iterator[Fault]:
        for path, workload in _workloads(suite):
            yield from (Fault((*path, *key.split(".")), message) for key, message in faults(workload))

    return rule()(of_suite)


@_workload_rule
def workload_has_its_lengths(workload: Workload) -> Iterator[tuple[str, str]]:
    """Require lengths where a workload needs them, and nowhere else."""
    if workload.sessions is not None:
        keys = ("input_tokens", "prefix", "retrieval", "prompts", "session", "tokenizer", "leave")
        for key in (*keys, *_MEDIA):
            if getattr(workload, key) is not None:
                yield (
                    key.removesuffix("_tokens"),
                    "means nothing beside `sessions`, whose calls are recorded; remove one of them",
                )
    elif ENDPOINTS[workload.endpoint].transcribes:
        for key in ("input_tokens", "output_tokens", "prefix", "retrieval", "prompts", "tokenizer"):
            if getattr(workload, key) is not None:
                yield key.removesuffix("_tokens"), "means nothing for transcriptions, whose input is `audio`; remove it"
        return
    elif workload.prompts is None and workload.input_tokens is None:
        yield "input", _MISSING_LENGTH
    if workload.generates and workload.output_tokens is None:
        yield "output", _MISSING_LENGTH
    if not workload.generates and workload.output_tokens is not None:
        yield "output", f"means nothing for {workload.endpoint}, which count no tokens; remove it"
    if workload.prompts is not None:
        for key in ("input_tokens", "prefix", "retrieval"):
            if getattr(workload, key) is not None:
                yield (
                    key.removesuffix("_tokens"),
                    "means nothing beside `prompts`, whose texts are as long as they are; remove it",
                )
        if workload.tokenizer is not None:
            yield "tokenizer", "means nothing beside `prompts`, whose texts are given; remove it"
        if not ENDPOINTS[workload.endpoint].takes_text:
            yield "prompts", f"recorded {workload.endpoint} requests are not read; remove it and say `input`"
    shared, longest = workload.shared_tokens, workload.most_input_tokens
    if shared is not None and longest is not None and shared >= longest:
        where = "prefix.tokens" if workload.retrieval is None else "retrieval"
        yield where, f"leaves nothing of {longest:,} tokens of `input`; make it shorter"


@_workload_rule
def workload_fits_its_endpoint(workload: Workload) -> Iterator[tuple[str, str]]:
    """Refuse keys that the endpoint of a workload ignores."""
    endpoint, session, schema = workload.endpoint, workload.session, workload.answer_schema
    written = workload.model_fields_set
    spec = ENDPOINTS[endpoint]
    for key, is_known in (*((kind, kind in spec.media) for kind in _MEDIA), ("tools", spec.calls_tools)):
        if getattr(workload, key) is not None and not is_known:
            yield key, f"belongs to the endpoint chat, not {endpoint}; remove one of them"
        elif key in _MEDIA and getattr(workload, key) is not None and workload.prompts is not None:
            yield key, "means nothing beside `prompts`, which are sent as they are; remove it"
    if spec.transcribes:
        yield from _transcription_faults(workload)
    if spec.by_grpc:
        stray = [f"body.{name}" for name in workload.body if name not in _GRPC_FIELDS]
        for key in [*stray, *(["priority"] if workload.priority is not None else [])]:
            yield key, "has no place in a request of gRPC; write it into `body.parameters`, or remove it"
    if session is not None and spec.messages_key is None:
        yield "session", f"is a conversation, and {endpoint} holds none; use the endpoint chat"
    if workload.sessions is not None and spec.messages_key is None:
        yield "sessions", f"are conversations, and {endpoint} holds none; use the endpoint chat"
    if session is not None and isinstance(session.turns, Lengths) and session.turns.most_tokens is None:
        yield "session.turns", "numbers of turns are not read from a file; write {uniform: [2, 6]}"
    of_text = {"leave": workload.leave is not None, "schema": schema is not None, "stream": "stream" in written}
    for key, found in of_text.items():
        if found and not workload.generates:
            yield key, f"means nothing for {endpoint}, which count no tokens; remove it"
    if endpoint == "rerank" and workload.retrieval is not None:
        yield "retrieval", "means nothing for rerank, whose request has `documents` of its own; remove it"
    if endpoint != "rerank" and "documents" in written:
        yield "documents", "belongs to the endpoint rerank; remove it"
    varies = session is not None and (isinstance(session.turns, Lengths) or workload.prompts is not None)
    if (varies or workload.sessions is not None) and isinstance(workload.adapter, AdapterMix):
        yield (
            "adapter",
            "draws one for each conversation, which then needs synthetic prompts and a fixed number of `turns`",
        )
    if schema is None and "constrained" in written:
        yield "constrained", "sends the `schema` to the engine, and there is no `schema`; remove it"
    if isinstance(schema, dict) and (problem := schema_problem(schema)) is not None:
        yield "schema", f"is no JSON schema: {problem}"
    if workload.leave is not None and workload.leave.after_tokens is not None and not workload.stream:
        yield "leave.after", "an answer in one piece has no tokens to count; write a time like 500ms"


def _transcription_faults(workload: Workload) -> Iterator[tuple[str, str]]:
    form = workload.body.get("response_format", "json")
    if workload.audio is not None and workload.audio.count > 1:
        yield "audio.count", "a transcription is of one recording; write 1"
    for key, found in (("schema", workload.answer_schema), ("priority", workload.priority)):
        if found is not None:
            yield key, "means nothing for transcriptions; remove it"
    if form not in _TRANSCRIPTIONS:
        yield "body.response_format", f"is not read; write {', '.join(_TRANSCRIPTIONS)} or leave it out"
    elif form == "verbose_json" and workload.stream:
        yield "body.response_format", "comes whole, and answers are streamed; write `stream: false`, or `json`"


@rule(*_ARMS, "load.workload", "load.workloads", "load.sweep")
def priority_is_known_to_the_engines(suite: Suite) -> Iterator[Fault]:
    """Refuse priorities unless both engines support them."""
    other = next(((name, spec) for _, name, spec in arms(suite) if spec.engine not in _WITH_PRIORITIES), None)
    if other is None:
        return
    of_classes = [(path, traffic.workload) for path, _, traffic in written_classes(suite) if traffic.class_name]
    for path, workload in (*_workloads(suite), *of_classes):
        if workload.priority is not None:
            yield Fault(
                (*path, "priority"),
                f'"{other[0]}" is {other[1].engine}, which has no priorities ({" and ".join(_WITH_PRIORITIES)} have); '
                "remove it, or say it in that server's own words in `body`",
            )


@rule(*_ARMS, "load.workload", "load.workloads", "load.sweep", "load.capacity")
def grpc_has_its_address(suite: Suite) -> Iterator[Fault]:
    """Require addresses of gRPC for `grpc-infer`, and stages that are sent over one transport."""
    if suite.load is None:
        return
    paths = [path for path, workload in _workloads(suite) if ENDPOINTS[workload.endpoint].by_grpc]
    lacking = next(((name, spec.sim) for _, name, spec in arms(suite) if not _takes_grpc(spec)), None)
    for path in paths:
        if lacking is not None:
            name, sim = lacking
            remedy = "write `grpc: host:8001` beside its `url`" if sim is None else "give it `replicas: 1`"
            yield Fault((*path, "endpoint"), f'is sent over gRPC, and "{name}" has no address of it; {remedy}')
        if suite.load.audit:
            yield Fault(("load", "audit"), "means nothing for grpc-infer, whose bytes grpcio reads; remove it")
    kinds: dict[str, bool] = {}
    for path, _, traffic in written_classes(suite):
        by_grpc = ENDPOINTS[traffic.workload.endpoint].by_grpc
        if kinds.setdefault(traffic.stage, by_grpc) is not by_grpc:
            yield Fault((*path, "workload"), "a stage is sent over HTTP or over gRPC; make two stages of it")


def _takes_grpc(spec: DeploymentSpec) -> bool:
    return spec.grpc is not None or (spec.sim is not None and spec.sim.replicas == 1)


@rule("deployments", "baseline")
def baseline_has_a_tokenizer(suite: Suite) -> Iterator[Fault]:
    """Require a running baseline for its tokenizer."""
    spec = suite.deployments.get(suite.baseline)
    for path, workload in _workloads(suite):
        if workload.tokenizer == "server" and spec is not None and spec.is_started:
            later = f'"{suite.baseline}" is started later than the plan is made; leave it out'
            remedy = ", or name the file or folder of a tokenizer"
            if spec.embedded is not None:
                remedy = ", and write `text: letters`"
            elif spec.sim is not None:
                remedy = ": to a practice server a word is a token"
            yield Fault((*path, "tokenizer"), later + remedy)


@rule("load.workload", "load.workloads")
def stage_fits_its_workload(suite: Suite) -> Iterator[Fault]:
    """Refuse arrivals and lengths of a stage that mean nothing for its workload."""
    for path, _, traffic in written_classes(suite):
        stage, workload = traffic.schedule, traffic.workload
        conversing = workload.session is not None or workload.sessions is not None
        if conversing and (stage.profile is not None or stage.trace is not None):
            key = "trace" if stage.trace is not None else "for" if stage.steps is None else "steps"
            count = "conversations have as many requests as they have turns; say how many there are with `requests`"
            yield Fault((*path, key), f"{count}, in a closed loop or at a level `rate`")
        if stage.trace is not None and workload.prompts is not None:
            yield Fault((*path, "trace"), "a trace has the lengths of its prompts, and `prompts` the texts; keep one")
        for key in ("prefix", "retrieval"):
            if stage.trace is not None and getattr(workload, key) is not None:
                yield Fault((*path, "trace"), f"a trace has its own shared beginnings (`hash_ids`); remove `{key}`")
        for key, value in (("input", stage.input_tokens), ("output", stage.output_tokens), ("prefix", stage.prefix)):
            if value is not None and ENDPOINTS[workload.endpoint].transcribes:
                yield Fault((*path, key), "means nothing for transcriptions, whose input is `audio`; remove it")
            elif (
                value is not None
                and key != "output"
                and (workload.prompts is not None or workload.sessions is not None)
            ):
                yield Fault((*path, key), "means nothing for recorded `prompts`, whose texts are as long as they are")
        if stage.output_tokens is not None and not workload.generates:
            yield Fault((*path, "output"), f"means nothing for {workload.endpoint}, which count no tokens; remove it")
        longest = workload.most_input_tokens
        shared = workload.shared_tokens if stage.prefix or stage.input_tokens else None
        if shared is not None and longest is not None and shared >= longest:
            where = "prefix" if stage.prefix else "input"
            yield Fault((*path, where), f"the shared {shared:,} tokens leave nothing of {longest:,} tokens of `input`")


@rule(*_ARMS, "load.workload", "load.workloads", "load.sweep", "load.capacity")
def request_fits_the_context(suite: Suite) -> Iterator[Fault]:
    """Refuse requests longer than the context of an arm. Files and traces are checked when they are read."""
    room = [(tokens, name) for _, name, spec in arms(suite) if (tokens := spec.context_length) is not None]
    if suite.load is None or not room:
        return
    tokens, name = min(room)
    sent = list(written_classes(suite))
    capacity, searched = suite.load.capacity, suite.load.search_traffic()
    if capacity is not None and searched is not None and capacity.workload in (None, *suite.load.workloads):
        sent.append((("load", "capacity"), capacity.workload, searched))
    for path, named, traffic in sent:
        workload = traffic.workload
        if workload.prompts is not None or workload.sessions is not None or traffic.schedule.trace is not None:
            continue
        turns = workload.session.turns if workload.session is not None else 1
        longest = turns.most_tokens or 1 if isinstance(turns, Lengths) else turns
        tokens_in, tokens_out = workload.most_input_tokens or 0, workload.most_output_tokens or 0
        if (tokens_in + tokens_out) * longest > tokens:
            each = f" in each of {longest} turns" if longest > 1 else ""
            lengths = f"up to {tokens_in:,} tokens in and {tokens_out:,} out{each}"
            where: Path = ("load", "workload") if named is None else ("load", "workloads", named)
            stage, key = traffic.schedule, "input"
            if traffic.class_name is None and (stage.input_tokens is not None or stage.output_tokens is not None):
                where, key = path, "output" if stage.input_tokens is None else "input"
            message = f'asks for {lengths}, and the context of "{name}" holds {tokens:,}'
            yield Fault((*where, key), f"{message}; shorten them, or bound them with `max`")


@rule("slo.*", "load.capacity", "load.sweep.*", "load.workload", "load.workloads")
def capacity_can_be_searched(suite: Suite) -> Iterator[Fault]:
    """Require an SLO and a workload for a capacity search."""
    capacity = suite.load.capacity if suite.load is not None else None
    if suite.load is None or capacity is None:
        return
    path = ("load", "capacity")
    if suite.slo is None:
        yield Fault(path, "a capacity is the load at which enough requests meet the `slo`, which is missing; add it")
    elif capacity.target_ratio is None and suite.slo.target_ratio == 1:
        missed = "the target of the `slo` is 100%, which one bad request in a million misses"
        yield Fault(path, f"{missed}; give the search a `target` of its own, like 99%")
    name, workloads = capacity.workload, suite.load.workloads
    if name is not None and name not in workloads:
        yield Fault((*path, "workload"), _no_workload(name, workloads))
    elif (suite.load.workload if name is None else workloads[name]).leave is not None:
        neither = "a request whose client leaves is neither good nor bad, and a search would count it as bad"
        yield Fault(path, f"{neither}; search with a workload without `leave`")
    elif (suite.load.workload if name is None else workloads[name]).sessions is not None:
        yield Fault(path, "a search sends single requests; search with a workload without `sessions`")
    elif (searched := suite.load.search_traffic(suite.slo)) is not None and (why := unbounded_because(searched)):
        yield Fault(path, f"the `tpot` of the `slo` is undefined for {why}")


@check_rule("deployments", "candidate", "candidates", "load.capacity", "gate.checks.*")
def capacity_check_can_be_met(suite: Suite, check: Check) -> Iterator[tuple[str, str]]:
    """Require a search for a check of the capacity, and a bound that it can find."""
    if check.metric != "capacity" or suite.load is None:
        return
    capacity = suite.load.capacity
    if capacity is None:
        yield "metric", "capacity is found by `load.capacity`, which this suite has not; add it"
        return
    if check.margin is not None and 1 / (1 - check.margin) <= 1 + capacity.resolution_ratio:
        known = as_written(show_percent, capacity.resolution_ratio)
        remedy = "make `load.capacity.resolution` finer"
        yield "margin", f"a capacity known to {known} cannot be held to this margin; {remedy}"
    if check.min is None or check.slo_value is None:
        return
    candidate = suite.deployments.get(suite.candidate)
    each = candidate.accelerators if check.per is not None and candidate is not None else 1
    if ("/" in check.min) != (capacity.over == "rate"):
        expected = 'a rate like "8/s"' if capacity.over == "rate" else "a number in flight like 8"
        yield "min", f"the search is over the {capacity.over}; write {expected}"
    elif check.slo_value * each > capacity.highest:
        yield "min", "is above the range of the search; raise `load.capacity.to`"


RULES = (
    regions_send_alike, grpc_has_its_address, workload_is_used, workload_has_its_lengths, workload_fits_its_endpoint,
    priority_is_known_to_the_engines, baseline_has_a_tokenizer, stage_fits_its_workload, request_fits_the_context,
    capacity_can_be_searched, capacity_check_can_be_met,
)  # fmt: skip


_LEAST_PER_SLOT = 10  # requests that each slot of a closed loop sends in a block


def suite_warnings(suite: Suite, text: str, source: str) -> list[Problem]:
    """Return warnings, with places in the YAML `text`, on closed loops with few requests per block and slot."""
    document = read_text(text, source)
    written_at = written_positions(document.data)  # a stage that varies a value is several in the sweep
    warnings: list[tuple[Path, str]] = []
    for path, _, traffic in written_classes(suite):
        concurrency, requests = traffic.schedule.concurrency or 1, traffic.schedule.requests
        if traffic.is_background or concurrency == 1 or requests >= _LEAST_PER_SLOT * concurrency:
            continue
        each = without_zeros(show_number(requests / concurrency))
        at: Path = ("load", "sweep", written_at[int(path[2])], *path[3:], "requests")
        message = (
            f"concurrency {concurrency:,} with {requests:,} requests: each slot sends "
            f"{'one request' if each == '1' else f'{each} requests'} per block; "
            f"write `requests`: {_LEAST_PER_SLOT * concurrency:,} or more"
        )
        warnings.append((at, message))
    return [
        replace(document.problem(Fault(path, "")), path="", message=f"warning: {show_path(path)}: {message}")
        for path, message in dict.fromkeys(warnings)
    ]
