"""Text of the tiny model, token by token: the model that these frameworks serve, which bring none of their own.

Runs in the frameworks' environments, which have torch; benchgate's own has not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CONTEXT_TOKENS = 2048


class TinyText:
    """A model and its tokenizer. Requests that come at once take turns, a token each."""

    def __init__(self, folder: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._turn = threading.Lock()

    def chat_prompt(self, messages: list[dict[str, Any]]) -> str:
        """Return the messages of a conversation as one text."""
        prompt: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return prompt

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. Raises ValueError for one beyond the context."""
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        if len(tokens) > CONTEXT_TOKENS:
            raise ValueError(f"the prompt has {len(tokens)} tokens, and the context holds {CONTEXT_TOKENS}")
        return tokens

    def continuation(self, tokens: list[int], count: int) -> Iterator[int]:
        """Yield the likeliest tokens that follow, up to `count`."""
        cache, following = None, torch.tensor([tokens])
        for _ in range(count):
            with self._turn, torch.no_grad():
                output = self._model(following, past_key_values=cache, use_cache=True)
            cache, following = output.past_key_values, output.logits[:, -1:].argmax(-1)
            yield int(following)

    def pieces(self, prompt: str, count: int) -> Iterator[str]:
        """Yield the text that each following token adds; none for the halves of a character."""
        made: list[int] = []
        shown = ""
        for token in self.continuation(self.encode(prompt), count):
            made.append(token)
            text: str = self._tokenizer.decode(made)
            if text.endswith("\N{REPLACEMENT CHARACTER}"):
                continue
            yield text[len(shown) :]
            shown = text
