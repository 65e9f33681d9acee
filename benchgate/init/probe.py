"""The two endpoints of a first suite, probed for their models, engine and speed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from benchgate.embedded.server import MODEL_ALIAS
from benchgate.errors import BenchgateError, UsageError
from benchgate.model.deployment import Arm
from benchgate.suite.deployment import DeploymentSpec
from benchgate.targets.address import show_address
from benchgate.targets.dialect import DIALECTS, target_of
from benchgate.targets.discovery import WITHIN_S, Fault, Trial, Trouble, list_models, only_model, try_completion
from benchgate.targets.probe import server_facts

SIM_VERSION = "sim-"  # beginning of the version that `benchgate sim` reports
_NAME_A_MODEL = "name one with --model: once for both, or twice, the baseline's first"
_UNNAMED = "unnamed"  # model of a target before its models are listed


@dataclass(frozen=True, slots=True)
class EndpointOption:
    """An endpoint of the command line. `url` may be a reference; `key` is the variable that holds its key."""

    arm: Arm
    url: str
    model: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ProbedEndpoint:
    """An endpoint that answered: its part of a suite, and the result of a lone short request."""

    spec: DeploymentSpec
    trial: Trial
    context_tokens: int | None  # as the server reports it
    practice: bool = False  # a simulated server, whose answers have no quality
    shipped: bool = False  # the small model that ships with benchgate


def probe_endpoints(
    named: tuple[EndpointOption, EndpointOption], environment: Mapping[str, str], *, within_s: float = WITHIN_S
) -> tuple[ProbedEndpoint, ProbedEndpoint]:
    """Probe both endpoints with a handful of short requests. Raises UsageError with the faults of either."""
    probed, wrong = [], []
    for one in named:
        try:
            probed.append(_probe(one, environment, within_s))
        except BenchgateError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("\n".join([*wrong, "nothing was written"]))
    first, second = probed
    if (first.spec.url, first.spec.model) == (second.spec.url, second.spec.model):
        raise UsageError("--baseline and --candidate are one deployment; name two, or two of its models by --model")
    return first, second


def _probe(named: EndpointOption, environment: Mapping[str, str], within_s: float) -> ProbedEndpoint:
    key = None if named.key is None else f"${{env:{named.key}}}"
    try:
        spec = DeploymentSpec(url=named.url, model=named.model or _UNNAMED, api_key=key)
    except ValidationError as error:
        found = [detail for detail in error.errors() if detail["type"] != "default_factory_not_called"]
        reasons = "; ".join(str(detail["msg"]).removeprefix("Value error, ") for detail in found)
        raise UsageError(f"--{named.arm}: {reasons}") from None  # its message shows nothing of what is given
    target = target_of(named.arm, spec, environment, Path())
    where = f"the {named.arm} at {show_address(target.url)}"
    listing = list_models(target, within_s=within_s)
    if listing.fault is not None:
        raise UsageError(f"{where} {_trouble(listing.fault, named)}")
    model = named.model or only_model(target, listing.models, where, _NAME_A_MODEL)
    spec = spec.model_copy(update={"model": model, "engine": listing.engine})
    target = replace(target, model=model, dialect=DIALECTS[listing.engine])
    trial = try_completion(target, "chat", stream=True, within_s=within_s)
    if trial.fault is not None:
        raise UsageError(f"{where} {_trouble(trial.fault, named)}")
    facts = server_facts(target)
    context_tokens, version = facts.get("max_model_len", facts.get("n_ctx")), facts.get("engine_version")
    if not isinstance(context_tokens, int) or context_tokens <= 0:
        context_tokens = None
    return ProbedEndpoint(spec, trial, context_tokens, str(version).startswith(SIM_VERSION), model == MODEL_ALIAS)


def _trouble(fault: Fault, named: EndpointOption) -> str:
    """Describe a fault, and what to do."""
    if fault.trouble is Trouble.AUTH:
        if named.key is None:
            remedy = "put its key in a variable of the environment and name that: --api-key-env SERVING_KEY"
            return f"wants a key ({fault.reason}); {remedy}"
        return f"refuses the key in {named.key} ({fault.reason}); set that to one it takes"
    if fault.trouble is Trouble.TLS and "does not speak TLS" in fault.reason:
        return f"cannot be reached ({fault.reason})"
    if fault.trouble is Trouble.TLS:
        remedy = (
            "for a certificate of your own making set SSL_CERT_FILE to it, and write `tls: {ca: FILE}` in the suite"
        )
        return f"cannot be trusted ({fault.reason}); {remedy}"
    if fault.trouble is Trouble.AWAY:
        return f"does not answer ({fault.reason}); start it, or correct --{named.arm}"
    if fault.trouble is Trouble.MODEL and named.model is not None:
        return f"does not serve the model {named.model!r} ({fault.reason}); correct --model"
    return (
        f"gives no chat completion ({fault.reason}); correct --{named.arm}, or write a suite with `benchgate init FILE`"
    )
