"""Log-probabilities of continuations by a plain forward pass: the reference that a server's are held against.

    python likelihoods.py MODEL_FOLDER < [[context, continuation], ...] > [log-probability, ...]

Both are JSON. Runs in the engines' environment, which has torch; benchgate's own has not.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    scores = []
    for context, continuation in json.load(sys.stdin):
        before = tokenizer(context, add_special_tokens=False).input_ids
        whole = tokenizer(context + continuation, add_special_tokens=False).input_ids
        with torch.no_grad():
            logits = model(torch.tensor([whole])).logits[0].float()
        log_probs = torch.log_softmax(logits, dim=-1)
        scores.append(sum(float(log_probs[i - 1, whole[i]]) for i in range(len(before), len(whole))))
    json.dump(scores, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
