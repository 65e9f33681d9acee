"""Detection of a server's engine by its list of models, and where that names none by its pages about itself."""

from __future__ import annotations

import re
from typing import NamedTuple

from benchgate.targets.address import ServerAddress
from benchgate.targets.client import AsyncJsonClient, Response
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.error_messages import RequestError, json_object


class _Sign(NamedTuple):
    """A key of a JSON page that one engine alone has, with its value unless any will do."""

    engine: str
    path: str
    key: str
    value: str | None = None


# In this order: LoRAX is a fork of TGI, whose keys it has too. LiteLLM's `/health` calls every model behind it.
_SIGNS = (
    _Sign("lorax", "/info", "eager_prefill"),
    _Sign("tgi", "/info", "docker_label"),
    _Sign("litellm", "/health/readiness", "db"),
    _Sign("dynamo", "/health", "instances"),
    _Sign("kserve", "/v2", "name", "kserve"),
)


def engine_of_models(entries: list[dict[str, object]]) -> str | None:
    """Return the engine that owns the models in a server's list of them; None for none and for several."""
    owners = {str(entry.get("owned_by")) for entry in entries}
    found = {engine for engine, dialect in DIALECTS.items() if owners.intersection(dialect.owners)}
    return found.pop() if len(found) == 1 else None


async def detect_engine(client: AsyncJsonClient, target: Target, models: Response) -> str:
    """Return the engine behind a response to the request for its models, "openai" where nothing names one."""
    entries = model_entries(json_object(models.body) or {}) if models.status == 200 else []
    prefix, below = ServerAddress.of(target.url).prefix, DIALECTS["torchserve"].api_below
    if below is not None and re.search(f"{below}(?:/v1)?$", prefix):
        return "torchserve"  # its handler passes on vLLM's own list
    engine = engine_of_models(entries)
    if engine is not None:
        return engine
    # mlx_lm.server is Python's own HTTP server, and names no owner.
    is_plain = models.headers.get("server", "").startswith("BaseHTTP/")
    if is_plain and entries and all({"id", "object", "created"} == entry.keys() for entry in entries):
        return "mlx"
    if entries and all({"type", "display_name", "created_at"} <= entry.keys() for entry in entries):
        return "anthropic"
    pages: dict[str, dict[str, object]] = {}
    for sign in _SIGNS:
        if sign.path not in pages:
            try:
                page = await client.send("GET", _page(target, sign))
            except RequestError:
                return "openai"  # a server that does not answer is not sent more
            pages[sign.path] = json_object(page.body) or {} if page.status == 200 else {}
        found = pages[sign.path].get(sign.key)
        if sign.key in pages[sign.path] and sign.value in (None, found):
            return sign.engine
    return "openai"


def model_entries(models: dict[str, object]) -> list[dict[str, object]]:
    """Return the models in a server's list of them."""
    listed = models.get("data")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _page(target: Target, sign: _Sign) -> str:
    return Target(target.arm, target.url, target.model, DIALECTS[sign.engine]).page(sign.path)
