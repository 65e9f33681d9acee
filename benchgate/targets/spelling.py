"""How an engine spells the further fields of a body, where it differs from OpenAI. Anything else is left as it is.

Checked against the engines' own request models; a field no engine renames is not named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchgate.model.request import Endpoint


def spelled_fields(engine: str, endpoint: Endpoint, fields: Mapping[str, object]) -> dict[str, object]:
    """The fields as this engine wants them at this endpoint."""
    spelled = dict(fields)
    schema = _json_schema(spelled.get("response_format"))
    if schema is None:
        return spelled
    if endpoint == "responses":
        del spelled["response_format"]
        spelled["text"] = {"format": {"type": "json_schema", **schema}}
    elif engine == "llamacpp" and endpoint == "completions":
        del spelled["response_format"]  # its completions take the schema itself, and know no response format
        spelled["json_schema"] = schema["schema"]
    elif engine == "tgi":
        spelled["response_format"] = {"type": "json", "value": schema["schema"]}
    return spelled


def _json_schema(response_format: object) -> dict[str, object] | None:
    """What stands under `json_schema` of a response format of that type; None of any other."""
    if not isinstance(response_format, dict) or response_format.get("type") != "json_schema":
        return None
    found = response_format.get("json_schema")
    return found if isinstance(found, dict) and "schema" in found else None
