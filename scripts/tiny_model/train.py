"""Train the tiny model on the synthetic tasks, on one CPU thread; about six minutes for the default 1,000 steps.

usage: python -m scripts.tiny_model.train FOLDER [--steps 1000] [--seed 0] [--threads 1]
needs: torch 2.13 (Muon), numpy, safetensors

Writes FOLDER/model.safetensors, whose tensors carry GGUF's names, for `export`. The budget is in steps and not in
minutes, so a busy machine trains the same model. More than one thread is slower on a machine that is not idle.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from scripts.tiny_model.model import END, VOCABULARY, Shape, TinyLlama, encode_prompt
from scripts.tiny_model.tasks import TASKS, Example, Source

MIX = {"add": 2.0, "reverse": 1.0, "sort": 1.0, "json": 0.4, "fact": 1.8}
BATCH = 128
PROGRESS_SEED, PROGRESS_ROWS, PROGRESS_STEPS = 999, 60, 100
MUON_RATE, ADAM_RATE = 0.02, 2e-3
WARMUP_STEPS = 100
FLAT_SHARE, FINAL_RATE = 0.4, 0.02  # full rate for this share of the steps, then down in a line to this share of it
IGNORED = -100  # cross_entropy's mark for a position without a target


def main() -> None:
    options = _options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    source = Source(options.seed, held_out=False, weights=MIX)
    judge = Source(PROGRESS_SEED, held_out=True)
    progress = [example for task in TASKS for example in judge.distinct(task, PROGRESS_ROWS)]
    model = TinyLlama(Shape())
    optimizers = _optimizers(model)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    started_s = time.monotonic()
    for step in range(options.steps):
        _set_rates(optimizers, step, options.steps)
        loss = _train_step(model, optimizers, [source.draw() for _ in range(BATCH)])
        if (step + 1) % PROGRESS_STEPS == 0 or step + 1 == options.steps:
            scores = " ".join(f"{task}={score:.2f}" for task, score in exact_match(model, progress).items())
            print(f"{time.monotonic() - started_s:6.0f} s  step {step + 1}  loss {loss:.3f}  {scores}", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.float().contiguous() for k, v in model.state_dict().items()}, options.folder / "model.safetensors")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the tiny model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _optimizers(model: TinyLlama) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, head and norms.

    Muon learns the skills in half the steps that AdamW alone needs.
    """
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        (matrices if parameter.dim() == 2 and name.startswith("blk.") else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.01, momentum=0.95, adjust_lr_fn="original")
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adam]


def _set_rates(optimizers: list[torch.optim.Optimizer], step: int, steps: int) -> None:
    done = step / steps
    decay = 1.0 if done < FLAT_SHARE else max(FINAL_RATE, (1 - done) / (1 - FLAT_SHARE))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * min(1.0, (step + 1) / WARMUP_STEPS) * decay


def _train_step(model: TinyLlama, optimizers: list[torch.optim.Optimizer], examples: list[Example]) -> float:
    """One update; returns the mean loss per answer token in nats."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    # json prompts and answers are long; apart from the rest they cost no padding.
    groups = [[e for e in examples if e.task != "json"], [e for e in examples if e.task == "json"]]
    batches = [_tensors(group) for group in groups if group]
    answer_tokens = sum(int((targets != IGNORED).sum()) for _, targets in batches)
    total = 0.0
    for ids, targets in batches:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(ids)
        flat = logits.float().view(-1, VOCABULARY)
        loss = functional.cross_entropy(flat, targets.view(-1), ignore_index=IGNORED, reduction="sum") / answer_tokens
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return total


def _tensors(examples: list[Example]) -> tuple[Tensor, Tensor]:
    """Token ids and next-token targets, both (examples, longest); only the answer and its end are targets."""
    prompts = [encode_prompt(e.prompt) for e in examples]
    rows = [[*prompt, *e.answer.encode(), END] for prompt, e in zip(prompts, examples, strict=True)]
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), END)
    targets = torch.full((len(rows), longest), IGNORED)
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        targets[i, len(prompt) - 1 : len(row) - 1] = torch.tensor(row[len(prompt) :])
    return ids, targets


@torch.no_grad()
def exact_match(model: TinyLlama, examples: list[Example]) -> dict[str, float]:
    """Share of right greedy answers per task.

    Found without generating: greedy decoding gives the answer if and only if, fed the answer, the model's best next
    token is right at every position of it.
    """
    ids, targets = _tensors(examples)
    right = ((model(ids).argmax(-1) == targets) | (targets == IGNORED)).all(1).tolist()
    scores = {}
    for task in TASKS:
        of_task = [r for r, e in zip(right, examples, strict=True) if e.task == task]
        scores[task] = sum(of_task) / len(of_task)
    return scores


if __name__ == "__main__":
    main()
