"""Rules of workloads, stages, classes of traffic and the capacity search."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.capacity import CAPACITY_STAGE
from benchgate.suite.formats import schema_problem
from benchgate.suite.load import TrafficClass
from benchgate.suite.messages import suggestion
from benchgate.suite.rules.base import arms, rule
from benchgate.suite.schema import Suite
from benchgate.suite.workload import Lengths, Workload
from benchgate.suite.yaml import Fault, Path
from benchgate.units import as_written, show_percent

_WITH_PRIORITIES = ("vllm", "sglang")
_MISSING_LENGTH = 'is required and missing; expected a count like "128 tokens"'
_ARMS = ("deployments", "baseline", "candidate", "candidates")


def _workloads(suite: Suite) -> Iterator[tuple[Path, Workload]]:
    if suite.load is not None:
        yield ("load", "workload"), suite.load.workload
        yield from ((("load", "workloads", name), workload) for name, workload in suite.load.workloads.items())


def _written_classes(suite: Suite) -> Iterator[tuple[Path, str | None, TrafficClass]]:
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
    for path, name, _ in _written_classes(suite):
        if name is not None and name not in known:
            hint = suggestion(name, known) if known else "`load.workloads` is missing"
            yield Fault((*path, "workload"), f'no workload is named "{name}"; {hint}')


@rule("load.sweep", "load.capacity", "load.workloads.*")
def workload_is_used(suite: Suite) -> Iterator[Fault]:
    """Refuse named workloads that are not used."""
    if suite.load is None:
        return
    used = {name for _, name, _ in _written_classes(suite)}
    if suite.load.capacity is not None:
        used.add(suite.load.capacity.workload)
    for name in suite.load.workloads:
        if name not in used:
            yield Fault(("load", "workloads", name), "no stage names this workload; name it or remove it")


@rule()
def workload_has_its_lengths(suite: Suite) -> Iterator[Fault]:
    """Require lengths where a workload needs them, and nowhere else."""
    for path, workload in _workloads(suite):
        if workload.prompts is None and workload.input_tokens is None:
            yield Fault((*path, "input"), _MISSING_LENGTH)
        if workload.generates and workload.output_tokens is None:
            yield Fault((*path, "output"), _MISSING_LENGTH)
        if not workload.generates and workload.output_tokens is not None:
            yield Fault((*path, "output"), f"means nothing for {workload.endpoint}, which generate no text; remove it")
        if workload.prompts is not None:
            for key, value in (("input", workload.input_tokens), ("prefix", workload.prefix)):
                if value is not None:
                    message = "means nothing beside `prompts`, whose texts are as long as they are; remove it"
                    yield Fault((*path, key), message)
            if workload.tokenizer is not None:
                yield Fault((*path, "tokenizer"), "means nothing beside `prompts`, whose texts are given; remove it")
            if workload.endpoint == "rerank":
                yield Fault((*path, "prompts"), "recorded rerank requests are not read; remove it and say `input`")
        shared = workload.prefix.prefix_tokens if workload.prefix is not None else None
        longest = workload.most_input_tokens
        if shared is not None and longest is not None and shared >= longest:
            yield Fault(
                (*path, "prefix", "tokens"), f"leaves nothing of {longest:,} tokens of `input`; make it shorter"
            )


@rule()
def workload_fits_its_endpoint(suite: Suite) -> Iterator[Fault]:
    """Refuse keys that the endpoint of a workload ignores."""
    for path, workload in _workloads(suite):
        endpoint, written = workload.endpoint, workload.model_fields_set
        for key in ("images", "tools"):
            if getattr(workload, key) is not None and endpoint != "chat":
                yield Fault((*path, key), f"belongs to the endpoint chat, not {endpoint}; remove one of them")
        session = workload.session
        if session is not None and endpoint not in ("chat", "responses"):
            yield Fault((*path, "session"), f"is a conversation, and {endpoint} holds none; use the endpoint chat")
        if session is not None and isinstance(session.turns, Lengths) and session.turns.most_tokens is None:
            message = "numbers of turns are not read from a file; write {uniform: [2, 6]}"
            yield Fault((*path, "session", "turns"), message)
        if not workload.generates:
            of_text = {"leave": workload.leave is not None, "schema": workload.answer_schema is not None}
            for key, found in {**of_text, "stream": "stream" in written}.items():
                if found:
                    yield Fault((*path, key), f"means nothing for {endpoint}, which generate no text; remove it")
        if endpoint != "rerank" and "documents" in written:
            yield Fault((*path, "documents"), "belongs to the endpoint rerank; remove it")
        if workload.answer_schema is None and "constrained" in written:
            message = "says whether the engine is told the `schema`, which is missing; remove it"
            yield Fault((*path, "constrained"), message)
        if isinstance(workload.answer_schema, dict) and (problem := schema_problem(workload.answer_schema)) is not None:
            yield Fault((*path, "schema"), f"is no JSON schema: {problem}")
        if workload.leave is not None and workload.leave.after_tokens is not None and not workload.stream:
            message = "nobody counts tokens of an answer in one piece; write a time like 500ms"
            yield Fault((*path, "leave", "after"), message)


@rule(*_ARMS, "load.workload", "load.workloads", "load.sweep")
def priority_is_known_to_the_engines(suite: Suite) -> Iterator[Fault]:
    """Refuse priorities unless both engines support them."""
    other = next(((name, spec) for _, name, spec in arms(suite) if spec.engine not in _WITH_PRIORITIES), None)
    if other is None:
        return
    of_classes = [(path, traffic.workload) for path, _, traffic in _written_classes(suite) if traffic.class_name]
    for path, workload in (*_workloads(suite), *of_classes):
        if workload.priority is not None:
            yield Fault(
                (*path, "priority"),
                f'"{other[0]}" is {other[1].engine}, which has no priorities ({" and ".join(_WITH_PRIORITIES)} have); '
                "remove it, or say it in that server's own words in `body`",
            )


@rule("deployments", "baseline")
def tokenizer_can_be_asked(suite: Suite) -> Iterator[Fault]:
    """Require a running baseline for its tokenizer."""
    spec = suite.deployments.get(suite.baseline)
    for path, workload in _workloads(suite):
        if workload.tokenizer == "server" and spec is not None and spec.url is None:
            later = f'"{suite.baseline}" is started later than the plan is made; leave it out'
            letters = ", and write `text: letters`"
            remedy = letters if spec.embedded is not None else ": to a practice server a word is a token"
            yield Fault((*path, "tokenizer"), later + remedy)


@rule("load.workload", "load.workloads")
def stage_fits_its_workload(suite: Suite) -> Iterator[Fault]:
    """Refuse arrivals and lengths of a stage that mean nothing for its workload."""
    for path, _, traffic in _written_classes(suite):
        stage, workload = traffic.schedule, traffic.workload
        if workload.session is not None and (stage.profile is not None or stage.trace is not None):
            key = "trace" if stage.trace is not None else "for" if stage.steps is None else "steps"
            message = (
                "conversations have as many requests as they have turns; say how many there are with `requests`, "
                "in a closed loop or at a level `rate`"
            )
            yield Fault((*path, key), message)
        if workload.prompts is not None and stage.trace is not None:
            message = "a trace says how long its prompts are, and `prompts` which they are; keep one"
            yield Fault((*path, "trace"), message)
        if workload.prefix is not None and stage.trace is not None:
            message = "a trace says itself which prompts begin alike (`hash_ids`); remove `prefix`"
            yield Fault((*path, "trace"), message)
        for key, value in (("input", stage.input_tokens), ("prefix", stage.prefix)):
            if value is not None and workload.prompts is not None:
                yield Fault((*path, key), "means nothing for recorded `prompts`, whose texts are as long as they are")
        if stage.output_tokens is not None and not workload.generates:
            yield Fault((*path, "output"), f"means nothing for {workload.endpoint}, which generate no text; remove it")
        prefix, longest = workload.prefix, workload.most_input_tokens
        shared = prefix.prefix_tokens if prefix is not None and (stage.prefix or stage.input_tokens) else None
        if shared is not None and longest is not None and shared >= longest:
            where = "prefix" if stage.prefix else "input"
            yield Fault((*path, where), f"the shared {shared:,} tokens leave nothing of {longest:,} tokens of `input`")


@rule(*_ARMS, "load.workload", "load.workloads", "load.sweep")
def request_fits_the_context(suite: Suite) -> Iterator[Fault]:
    """Refuse requests longer than the context of an arm. Files and traces are checked when they are read."""
    room = [(tokens, name) for _, name, spec in arms(suite) if (tokens := spec.context_length) is not None]
    if suite.load is None or not room:
        return
    tokens, name = min(room)
    for path, named, traffic in _written_classes(suite):
        workload = traffic.workload
        if workload.prompts is not None or traffic.schedule.trace is not None:
            continue
        turns = workload.session.turns if workload.session is not None else 1
        longest = turns.most_tokens or 1 if isinstance(turns, Lengths) else turns
        tokens_in, tokens_out = workload.most_input_tokens or 0, workload.most_output_tokens or 0
        if (tokens_in + tokens_out) * longest > tokens:
            each = f" in each of {longest} turns" if longest > 1 else ""
            asked = f"up to {tokens_in:,} tokens in and {tokens_out:,} out{each}"
            where: Path = ("load", "workload") if named is None else ("load", "workloads", named)
            own = traffic.class_name is None and traffic.schedule.input_tokens is not None
            message = f'asks for {asked}, and the context of "{name}" holds {tokens:,}'
            yield Fault((*(path if own else where), "input"), f"{message}; shorten them, or bound them with `max`")


@rule("slo.*", "load.capacity", "load.sweep.*", "load.workload", "load.workloads")
def capacity_can_be_searched(suite: Suite) -> Iterator[Fault]:
    """Require an SLO, a workload and a free stage name for a capacity search."""
    capacity = suite.load.capacity if suite.load is not None else None
    if suite.load is None or capacity is None:
        return
    path = ("load", "capacity")
    if suite.slo is None:
        message = "a capacity is the load at which enough requests meet the `slo`, which this suite has not; add it"
        yield Fault(path, message)
    for number, stage in enumerate(suite.load.sweep):
        if stage.name == CAPACITY_STAGE:
            message = f'the name "{stage.name}" is that of the stages of `load.capacity`; name this stage differently'
            yield Fault(("load", "sweep", number, "stage"), message)
    name, workloads = capacity.workload, suite.load.workloads
    if name is not None and name not in workloads:
        yield Fault((*path, "workload"), f'`workloads` has no "{name}"; {suggestion(name, workloads)}')
    elif (suite.load.workload if name is None else workloads[name]).leave is not None:
        message = (
            "a request whose client leaves is neither good nor bad, so a search would count it as missing the `slo`; "
            "search with a workload without `leave`"
        )
        yield Fault(path, message)


@rule("deployments", "candidate", "candidates", "load.capacity", "gate.checks.*")
def capacity_check_can_be_met(suite: Suite) -> Iterator[Fault]:
    """Require a search for a check of the capacity, and a bound that it can find."""
    capacity = suite.load.capacity if suite.load is not None else None
    for number, check in enumerate(suite.gate.checks):
        path = ("gate", "checks", number)
        if check.metric != "capacity" or suite.load is None:
            continue
        if capacity is None:
            message = "capacity is found by `load.capacity`, which this suite has not; add it"
            yield Fault((*path, "metric"), message)
            continue
        if check.margin is not None and 1 / (1 - check.margin) <= 1 + capacity.resolution_ratio:
            known = as_written(show_percent(capacity.resolution_ratio))
            message = (
                f"a capacity known to {known} cannot be held to this margin; make `load.capacity.resolution` finer"
            )
            yield Fault((*path, "margin"), message)
        if check.min is None or check.slo_value is None:
            continue
        candidate = suite.deployments.get(suite.candidate)
        each = candidate.accelerators if check.per is not None and candidate is not None else 1
        if ("/" in check.min) != (capacity.over == "rate"):
            wanted = 'a rate like "8/s"' if capacity.over == "rate" else "a number in flight like 8"
            yield Fault((*path, "min"), f"the search is over the {capacity.over}; write {wanted}")
        elif check.slo_value * each > capacity.highest:
            yield Fault((*path, "min"), "is more than the search goes up to; raise `load.capacity.to`")


REFERENCES = (named_workload_exists,)
RULES = (
    workload_is_used, workload_has_its_lengths, workload_fits_its_endpoint, priority_is_known_to_the_engines,
    tokenizer_can_be_asked, stage_fits_its_workload, request_fits_the_context, capacity_can_be_searched,
    capacity_check_can_be_met,
)  # fmt: skip
