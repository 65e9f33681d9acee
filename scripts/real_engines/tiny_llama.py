"""Makes the model: a random Llama of 2.9 M parameters and a tokenizer trained on the texts given.

    python tiny_llama.py FOLDER TEXT...

Runs in the engines' environment, which has torch; benchgate's own has not.
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
CONTEXT_TOKENS = 2048
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL
    )
    tokenizer.train(sorted(texts), trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|im_end|>",
        pad_token="<pad>",
        model_max_length=CONTEXT_TOKENS,
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def random_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Seeded. What is no text by itself (special tokens, halves of characters) is never the likeliest: its row is zero.

    A random model repeats one token; were that one of these, its answers would be empty.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token], skip_special_tokens=True)
            if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text:
                model.model.embed_tokens.weight[token] = 0
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def main(folder: str, *texts: str) -> None:
    tokenizer = trained_tokenizer(list(texts))
    tokenizer.save_pretrained(folder)
    random_model(tokenizer).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
