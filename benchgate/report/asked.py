"""What a workload asks for, in words."""

from __future__ import annotations

from collections.abc import Iterator

from benchgate import units
from benchgate.report import show
from benchgate.suite.load import Load
from benchgate.suite.workload import Workload, shown_length


def asked_of(load: Load) -> Iterator[tuple[str, str]]:
    """Labelled facts of every workload of a load; those of one that has a name, under its name."""
    yield from _facts(load.workload, "")
    for name, workload in load.workloads.items():
        yield from _facts(workload, f"{name}: ")
    for stage in load.sweep:
        if stage.actions is not None:
            yield f"done during {stage.name}", "; ".join(action.shown for action in stage.actions)


def _facts(workload: Workload, under: str) -> Iterator[tuple[str, str]]:
    yield f"{under}endpoint", workload.endpoint
    yield f"{under}prompts", _prompts(workload)
    if workload.output_tokens is not None:
        end = "whatever they say" if workload.ignore_eos else "or fewer, when they end themselves"
        yield f"{under}answers", f"{shown_length(workload.output_tokens)} tokens, {end}"
    more = list(_more(workload))
    if more:
        yield f"{under}besides", "; ".join(more)


def _prompts(workload: Workload) -> str:
    if workload.prompts is not None:
        return f"recorded, of {workload.prompts}, in an order drawn from the seed"
    length = shown_length(workload.input_tokens) if workload.input_tokens is not None else "no"
    told = f"{length} tokens of random {workload.text}, each prompt different"
    prefix = workload.prefix
    if prefix is None:
        return told
    if prefix.prefix_tokens is not None:
        shared = f"{prefix.prefix_tokens:,} tokens"
    else:
        shared = units.as_written(show.percent(prefix.share_ratio or 0.0)) + " of each"
    return f"{told} but for its beginning: {shared}, one of {prefix.groups:,}"


def _more(workload: Workload) -> Iterator[str]:
    if workload.session is not None:
        yield f"conversations of {shown_length(workload.session.turns)} turns, the model's own answers carried on"
    if workload.leave is not None:
        share = units.as_written(show.percent(workload.leave.share_ratio))
        yield f"{share} of the clients leave after {workload.leave.after}"
    if workload.generates and not workload.stream:
        yield "answers in one piece"
    if workload.images is not None:
        yield f"{workload.images.count} pictures in each request"
    if workload.tools is not None:
        yield "tools that the model may call"
    if workload.answer_schema is not None:
        yield "answers held to a JSON schema" + ("" if workload.constrained else " that the engine is not told")
    if workload.adapter is not None:
        yield f"asked of the adapter {workload.adapter}"
    if workload.priority is not None:
        yield f"priority {workload.priority}"
    if workload.tokenizer is not None:
        yield f"lengths by the tokenizer {workload.tokenizer}"
    if workload.body:
        yield f"fields {', '.join(sorted(workload.body))}"
