"""All that a load reads before its plan can be made: traces, prompts, lengths, schemas, pictures, and tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchgate.errors import SuiteError, TargetError, UsageError
from benchgate.load.material import load_material
from benchgate.load.traces import load_traces
from benchgate.model.deployment import Arm
from benchgate.plan.model import NO_MATERIAL, Material
from benchgate.plan.schedule import Traces
from benchgate.plan.vocabulary import VOCABULARIES, Vocabulary
from benchgate.suite.schema import Suite, declared_context_tokens
from benchgate.targets.dialect import target_of
from benchgate.targets.tokenizer import file_vocabulary, server_vocabulary

_SERVER = "server"


def read_inputs(
    suite: Suite, suite_dir: Path, environment: Mapping[str, str], *, asking: bool = True
) -> tuple[Traces, Material]:
    """The rows of every trace, and what the other files hold.

    Nothing is sent but, for a workload with `tokenizer: server`, questions to the baseline's tokenizer; without
    `asking` not even those, and texts are then made of the usual words. Raises SuiteError with the problems of all
    files, and UsageError where a tokenizer cannot be had.
    """
    if suite.load is None:
        return {}, NO_MATERIAL
    context_tokens = declared_context_tokens(suite)

    def vocabulary(tokenizer: str, kind: str) -> Vocabulary:
        if tokenizer != _SERVER:
            return file_vocabulary(suite_dir / tokenizer, kind)
        if not asking:
            return VOCABULARIES[kind]
        target = target_of(Arm.BASELINE, suite.deployments[suite.baseline], environment, suite_dir)
        try:
            return server_vocabulary(target, kind)
        except TargetError as exc:
            raise UsageError(f"`tokenizer: server`: {exc}") from exc

    problems, traces, material = [], {}, NO_MATERIAL
    try:
        traces = load_traces(suite_dir, suite.load, context_tokens)
    except SuiteError as error:
        problems += error.problems
    try:
        material = load_material(suite_dir, suite.load, vocabulary, context_tokens)
    except SuiteError as error:
        problems += error.problems
    if problems:
        raise SuiteError(problems)
    return traces, material
