"""Ray Serve LLM on this machine: vLLM for the CPU behind Ray Serve's OpenAI ingress.

python rayserve_app.py MODEL_FOLDER MODEL_NAME PORT
"""

from __future__ import annotations

import sys

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

_CPUS = 4  # Ray places by this number, whatever the machine has: an engine, its worker and the ingress take one each


def main(folder: str, model: str, port: str) -> None:
    ray.init(num_cpus=_CPUS, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    config = LLMConfig(
        model_loading_config={"model_id": model, "model_source": folder},
        engine_kwargs={"max_model_len": 2048, "max_num_seqs": 8, "enforce_eager": True, "dtype": "bfloat16"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        deployment_config={"num_replicas": 1},
        accelerator_type=None,
    )
    serve.run(build_openai_app({"llm_configs": [config]}), blocking=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
