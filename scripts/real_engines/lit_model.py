"""Makes a random model in litgpt's form, with the tokenizer of the Hugging Face model.

    python lit_model.py HUGGING_FACE_FOLDER FOLDER

Runs in litgpt's environment, which has torch; benchgate's own has not.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import torch
import yaml
from litgpt import GPT, Config
from tokenizers import Tokenizer


def main(source: str, made: str) -> None:
    """Write weights, configuration and tokenizer. Rows of the head are zero for tokens that are no text."""
    shape = json.loads((Path(source) / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(Path(source) / "tokenizer.json"))
    config = Config(
        name="tiny-llama",
        block_size=shape["max_position_embeddings"],
        vocab_size=shape["vocab_size"],
        padded_vocab_size=shape["vocab_size"],
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_query_groups=shape["num_key_value_heads"],
        n_embd=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    torch.manual_seed(0)
    model = GPT(config)
    with torch.no_grad():
        for token in range(shape["vocab_size"]):
            text = tokenizer.decode([token], skip_special_tokens=True)
            if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text:
                model.lm_head.weight[token] = 0
    folder = Path(made)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(Path(source) / name, folder / name)
    (folder / "model_config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(config)))
    torch.save(model.state_dict(), folder / "lit_model.pth")


if __name__ == "__main__":
    main(*sys.argv[1:])
