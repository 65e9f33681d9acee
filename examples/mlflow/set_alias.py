"""Tag a version in MLflow's model registry with the run that promoted it, then move an alias to that version.

Usage, with MLFLOW_TRACKING_URI and MLflow's credentials in the environment:

    benchgate promote chat-3 --require-pinned --run-hook "python3 set_alias.py chat 7 champion"
"""

import os
import sys

from mlflow import MlflowClient

TAGS = {
    "benchgate.run_id": "BENCHGATE_RUN_ID",
    "benchgate.suite": "BENCHGATE_SUITE",
    "benchgate.deed": "BENCHGATE_DEED",
    "benchgate.verdict": "BENCHGATE_VERDICT",
    "benchgate.report_sha256": "BENCHGATE_REPORT_SHA256",
    "benchgate.revision": "BENCHGATE_CANDIDATE_REVISION",
    "benchgate.promoted_at": "BENCHGATE_PROMOTED_AT",
}


def main() -> None:
    """Write the tags first: whoever finds the alias finds what it rests on."""
    if len(sys.argv) != 4:
        sys.exit("usage: set_alias.py MODEL VERSION ALIAS")
    model, version, alias = sys.argv[1:]
    client = MlflowClient()
    for tag, variable in TAGS.items():
        client.set_model_version_tag(model, version, tag, os.environ[variable] or "not known")
    client.set_registered_model_alias(model, alias, version)
    found = client.get_model_version_by_alias(model, alias).version
    if str(found) != version:
        sys.exit(f"MLflow took the alias {alias} for version {version} of {model}, and shows version {found} behind it")


if __name__ == "__main__":
    main()
