"""Sums and products as a first eval: any language model can be asked them, and nothing has to be fetched.

Easy enough for a small model to get most of them, hard enough that one whose weights were damaged gets fewer.
"""

from __future__ import annotations

import json

ITEMS = 1500
NAME = "arithmetic"

TASK = f"""\
# Sums and products, made by `benchgate init`; the last number of an answer counts. Own tasks: docs/guides/evals.md.
task: {NAME}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {NAME}.jsonl # relative to this file
test_split: test
output_type: generate_until
doc_to_text: "What is {{{{problem}}}}? Answer with the number alone."
doc_to_target: answer
generation_kwargs:
  until: []
  max_gen_toks: 512
  temperature: 0
filter_list:
  - name: last-number
    filter:
      - function: regex
        regex_pattern: "(-?[0-9][0-9,]*)"
        group_select: -1
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [","]
metadata:
  version: 1.0
"""


def rows() -> str:
    """The items, one JSON object a line: half sums of three digits, half products of two by one or two."""
    return "".join(json.dumps(_row(number)) + "\n" for number in range(ITEMS))


def _row(number: int) -> dict[str, str]:
    """Steps that share no factor with their ranges go through all pairs before one comes again."""
    if number % 2 == 0:
        left, right = 100 + number * 367 % 900, 100 + number * 541 % 899
        return {"id": f"sum-{number:04}", "problem": f"{left} + {right}", "answer": str(left + right)}
    left, right = 11 + number * 37 % 89, 3 + number * 29 % 47
    return {"id": f"product-{number:04}", "problem": f"{left} * {right}", "answer": str(left * right)}
