"""How many tokens a request may come to, prompt and answer together, as far as the suite says."""

from __future__ import annotations

from benchgate.suite.schema import DeploymentSpec, Suite


def context_tokens_of(spec: DeploymentSpec) -> int | None:
    """What one request may hold at a deployment; None where only the server knows."""
    ours = spec.embedded or spec.sim
    return ours.context_tokens if ours is not None else spec.context_tokens


def declared_context_tokens(suite: Suite) -> int | None:
    """What both arms can hold; None where the suite says it of neither."""
    said = [context_tokens_of(suite.deployments[name]) for name in (suite.baseline, suite.candidate)]
    return min((tokens for tokens in said if tokens is not None), default=None)
