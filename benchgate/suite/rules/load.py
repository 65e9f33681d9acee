"""What workloads, stages and classes must be to each other, and to the deployments that are asked.

What a capacity search must be to the rest of its suite.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchgate.suite.capacity import CAPACITY_STAGE, Capacity
from benchgate.suite.checks import Check
from benchgate.suite.formats import schema_problem
from benchgate.suite.messages import suggestion
from benchgate.suite.rules.parts import Parts
from benchgate.suite.schema import context_tokens_of
from benchgate.suite.stages import Level, workload_name
from benchgate.suite.workload import Lengths, Workload
from benchgate.suite.yaml import Fault, Path
from benchgate.units import as_written, show_percent

_WITH_PRIORITIES = ("vllm", "sglang")
_MISSING_LENGTH = 'is required and missing; expected a count like "128 tokens"'


def broken_workloads(parts: Parts) -> Iterator[Fault]:
    """Everything in which the sound parts of a load do not fit together."""
    yield from _named_workloads(parts)
    named = [(name, workload) for name, workload in parts.workloads.items() if workload is not None]
    for path, workload in [(("load", "workload"), parts.workload), *((("load", "workloads", n), w) for n, w in named)]:
        if workload is not None:
            yield from _whole(workload, path)
            yield from _fits_its_endpoint(workload, path)
            yield from _is_spoken(parts, workload.priority, path)
            yield from _has_a_tokenizer(parts, workload, path)
    yield from _levels(parts)


def _named_workloads(parts: Parts) -> Iterator[Fault]:
    """A name that means nothing, and a workload that nobody names."""
    used = {parts.capacity.workload} if parts.capacity is not None and parts.capacity.workload else set[str]()
    for position, stage in zip(parts.stage_at, parts.stages, strict=True):
        for group in stage.parts if stage is not None else ():
            assert stage is not None
            name = workload_name(stage, group)
            used.update([name] if name is not None else [])
            if name is not None and name not in parts.workloads:
                known = suggestion(name, parts.workloads) if parts.workloads else "`load.workloads` is missing"
                inside = ("classes", group) if group else ()
                path: Path = ("load", "sweep", position, *inside, "workload")
                yield Fault(path, f'no workload is named "{name}"; {known}')
    if all(stage is not None for stage in parts.stages):
        for name in parts.workloads:
            if name not in used:
                yield Fault(("load", "workloads", name), "no stage names this workload; name it or remove it")


def _whole(workload: Workload, path: Path) -> Iterator[Fault]:
    """Lengths are there where they are needed, and nowhere else."""
    if workload.prompts is None and workload.input_tokens is None:
        yield Fault((*path, "input"), _MISSING_LENGTH)
    if workload.generates and workload.output_tokens is None:
        yield Fault((*path, "output"), _MISSING_LENGTH)
    if not workload.generates and workload.output_tokens is not None:
        yield Fault((*path, "output"), f"means nothing for {workload.endpoint}, which generate no text; remove it")
    if workload.prompts is not None:
        for key, value in (("input", workload.input_tokens), ("prefix", workload.prefix)):
            if value is not None:
                yield Fault(
                    (*path, key), "means nothing beside `prompts`, whose texts are as long as they are; remove it"
                )
        if workload.tokenizer is not None:
            yield Fault((*path, "tokenizer"), "means nothing beside `prompts`, whose texts are given; remove it")
        if workload.endpoint == "rerank":
            yield Fault((*path, "prompts"), "recorded rerank requests are not read; remove it and say `input`")
    prefix, longest = workload.prefix, workload.most_input_tokens
    if (
        prefix is not None
        and prefix.prefix_tokens is not None
        and longest is not None
        and prefix.prefix_tokens >= longest
    ):
        yield Fault((*path, "prefix", "tokens"), f"leaves nothing of {longest:,} tokens of `input`; make it shorter")


def _fits_its_endpoint(workload: Workload, path: Path) -> Iterator[Fault]:
    """A key that the endpoint ignores is a mistake."""
    only_chat = {"images": workload.images, "tools": workload.tools}
    for key, found in only_chat.items():
        if found is not None and workload.endpoint != "chat":
            yield Fault((*path, key), f"belongs to the endpoint chat, not {workload.endpoint}; remove one of them")
    if workload.session is not None and workload.endpoint not in ("chat", "responses"):
        yield Fault((*path, "session"), f"is a conversation, and {workload.endpoint} holds none; use the endpoint chat")
    if not workload.generates:
        of_text = {
            "leave": workload.leave, "schema": workload.answer_schema,
            "stream": None if "stream" not in workload.model_fields_set else workload.stream,
        }  # fmt: skip
        for key, value in of_text.items():
            if value is not None:
                yield Fault((*path, key), f"means nothing for {workload.endpoint}, which generate no text; remove it")
    if workload.endpoint != "rerank" and "documents" in workload.model_fields_set:
        yield Fault((*path, "documents"), "belongs to the endpoint rerank; remove it")
    if workload.answer_schema is None and "constrained" in workload.model_fields_set:
        yield Fault((*path, "constrained"), "says whether the engine is told the `schema`, which is missing; remove it")
    if isinstance(workload.answer_schema, dict) and (problem := schema_problem(workload.answer_schema)) is not None:
        yield Fault((*path, "schema"), f"is no JSON schema: {problem}")
    if workload.leave is not None and workload.leave.after_tokens is not None and not workload.stream:
        yield Fault(
            (*path, "leave", "after"), "nobody counts tokens of an answer in one piece; write a time like 500ms"
        )
    session = workload.session
    if session is not None and isinstance(session.turns, Lengths) and session.turns.most_tokens is None:
        yield Fault((*path, "session", "turns"), "numbers of turns are not read from a file; write {uniform: [2, 6]}")


def _is_spoken(parts: Parts, priority: int | None, path: Path) -> Iterator[Fault]:
    """A priority that an arm's engine has no word for would be measured as if it had been said."""
    if priority is None:
        return
    for name in (parts.baseline, parts.candidate):
        spec = parts.deployments.get(name) if name is not None else None
        if spec is not None and spec.engine not in _WITH_PRIORITIES:
            yield Fault(
                (*path, "priority"),
                f'"{name}" is {spec.engine}, which has no priorities ({" and ".join(_WITH_PRIORITIES)} have); '
                "remove it, or say it in that server's own words in `body`",
            )
            return


def _has_a_tokenizer(parts: Parts, workload: Workload, path: Path) -> Iterator[Fault]:
    spec = parts.deployments.get(parts.baseline) if parts.baseline is not None else None
    if workload.tokenizer != "server" or spec is None or spec.url is not None:
        return
    later = f'"{parts.baseline}" is started later than the plan is made; leave it out'
    remedy = ", and write `text: letters`" if spec.embedded is not None else ": to a practice server a word is a token"
    yield Fault((*path, "tokenizer"), later + remedy)


def _levels(parts: Parts) -> Iterator[Fault]:
    """What a stage or a class makes of its workload."""
    at = {
        stage.name: position for position, stage in zip(parts.stage_at, parts.stages, strict=True) if stage is not None
    }
    for level in parts.levels:
        inside = ("classes", level.group) if level.group else ()
        path: Path = ("load", "sweep", at[level.stage], *inside)
        yield from _course(level, path)
        yield from _fits_the_context(parts, level, path)
        yield from _changes(level, path)
        if level.group and parts.workload is not None and level.workload.priority is not None:
            yield from _is_spoken(parts, level.workload.priority, path)


def _course(level: Level, path: Path) -> Iterator[Fault]:
    course, workload = level.course, level.workload
    if workload.session is not None and (course.profile is not None or course.trace is not None):
        key = "trace" if course.trace is not None else "for" if course.steps is None else "steps"
        yield Fault(
            (*path, key),
            "conversations have as many requests as they have turns; say how many there are with `requests`, "
            "in a closed loop or at a level `rate`",
        )
    if workload.prompts is not None and course.trace is not None:
        yield Fault((*path, "trace"), "a trace says how long its prompts are, and `prompts` which they are; keep one")
    if workload.prefix is not None and course.trace is not None:
        yield Fault((*path, "trace"), "a trace says itself which prompts begin alike (`hash_ids`); remove `prefix`")


def _changes(level: Level, path: Path) -> Iterator[Fault]:
    """What a stage says of the lengths must mean something for its workload."""
    stage, workload = level.course, level.workload
    if level.group:
        return
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


def _fits_the_context(parts: Parts, level: Level, path: Path) -> Iterator[Fault]:
    """A request that an arm cannot hold fails every time; what files and traces ask for is seen when they are read."""
    specs = [(name, parts.deployments.get(name)) for name in (parts.baseline, parts.candidate) if name is not None]
    room = [(context_tokens_of(spec), name) for name, spec in specs if spec is not None]
    known = [(tokens, name) for tokens, name in room if tokens is not None]
    workload = level.workload
    if not known or workload.prompts is not None or level.course.trace is not None:
        return
    turns = workload.session.turns if workload.session is not None else 1
    longest = turns.most_tokens or 1 if isinstance(turns, Lengths) else turns
    tokens_in, tokens_out = workload.most_input_tokens or 0, workload.most_output_tokens or 0
    tokens, name = min(known)
    if (tokens_in + tokens_out) * longest > tokens:
        each = f" in each of {longest} turns" if longest > 1 else ""
        asked = f"up to {tokens_in:,} tokens in and {tokens_out:,} out{each}"
        own = not level.group and level.course.input_tokens is not None
        named = workload_name(parts.stages[_position(parts, level)] or level.course, level.group)
        where: Path = ("load", "workload") if named is None else ("load", "workloads", named)
        yield Fault(
            (*(path if own else where), "input"),
            f'asks for {asked}, and the context of "{name}" holds {tokens:,}; shorten them, or bound them with `max`',
        )


def _position(parts: Parts, level: Level) -> int:
    return next(place for place, stage in enumerate(parts.stages) if stage is not None and stage.name == level.stage)


def broken_capacity(parts: Parts) -> Iterator[Fault]:
    """Everything in which the search and the checks of what it finds do not fit the suite."""
    if parts.searches:
        yield from _has_an_slo(parts)
        yield from _has_its_name(parts)
    if parts.capacity is not None:
        yield from _has_its_workload(parts, parts.capacity)
    for number, check in enumerate(parts.checks):
        if check is not None and check.metric == "capacity":
            yield from _fits(parts, number, check)


def _has_an_slo(parts: Parts) -> Iterator[Fault]:
    if "slo" not in parts.declared:
        message = "a capacity is the load at which enough requests meet the `slo`, which this suite has not; add it"
        yield Fault(("load", "capacity"), message)


def _has_its_name(parts: Parts) -> Iterator[Fault]:
    for position, name in zip(parts.stage_at, parts.stage_names, strict=True):
        if name == CAPACITY_STAGE:
            message = f'the name "{name}" is that of the stages of `load.capacity`; name this stage differently'
            yield Fault(("load", "sweep", position, "stage"), message)


def _has_its_workload(parts: Parts, capacity: Capacity) -> Iterator[Fault]:
    name = capacity.workload
    if name is not None and name not in parts.workloads:
        message = f'`workloads` has no "{name}"; {suggestion(name, parts.workloads)}'
        yield Fault(("load", "capacity", "workload"), message)
        return
    asked = parts.workload if name is None else parts.workloads[name]
    if asked is not None and asked.leave is not None:
        message = (
            "a request whose client leaves is neither good nor bad, so a search would count it as missing the `slo`; "
            "search with a workload without `leave`"
        )
        yield Fault(("load", "capacity"), message)


def _fits(parts: Parts, number: int, check: Check) -> Iterator[Fault]:
    """A check can be met by what the search can find."""
    path = ("gate", "checks", number)
    if not parts.searches and "load" in parts.declared:
        yield Fault((*path, "metric"), "capacity is found by `load.capacity`, which this suite has not; add it")
    capacity = parts.capacity
    if capacity is None:
        return
    if check.margin is not None and 1 / (1 - check.margin) <= 1 + capacity.resolution_ratio:
        told = as_written(show_percent(capacity.resolution_ratio))
        message = f"a capacity known to {told} cannot be held to this margin; make `load.capacity.resolution` finer"
        yield Fault((*path, "margin"), message)
    if check.min is None or check.slo_value is None:
        return
    if ("/" in check.min) != (capacity.over == "rate"):
        wanted = 'a rate like "8/s"' if capacity.over == "rate" else "a number in flight like 8"
        yield Fault((*path, "min"), f"the search is over the {capacity.over}; write {wanted}")
        return
    candidate = parts.deployments.get(parts.candidate or "")
    each = candidate.accelerators if check.per is not None and candidate is not None else 1
    if check.slo_value * each > capacity.highest:
        yield Fault((*path, "min"), "is more than the search goes up to; raise `load.capacity.to`")
