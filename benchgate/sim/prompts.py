"""The texts of requests, out of bodies in every shape in use. What is no prompt is refused in vLLM's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from benchgate.sim.refused import Refused

_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "input_image", "image")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One input: the text that decides the answer, and its tokens."""

    text: str
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.words)


def chat_prompt(messages: object, image_tokens: int | None) -> Prompt:
    """The messages of a chat, or the items of a response's input. Raises Refused."""
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.messages")
    return _worded("\n".join(_content(message, image_tokens) for message in messages))


def completion_prompt(prompt: object) -> Prompt:
    """One text or one list of token ids. Raises Refused."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _worded(prompt)
    if isinstance(prompt, list) and _is_ids(prompt):
        return Prompt(repr(prompt), [str(token) for token in prompt])
    raise Refused(400, "the prompt must be one text or one list of token ids", "Bad Request", "body.prompt")


def response_prompt(data: Mapping[str, object], image_tokens: int | None) -> Prompt:
    """The instructions and the input of a response. Raises Refused."""
    given, instructions = data.get("input"), data.get("instructions")
    said = [instructions] if isinstance(instructions, str) else []
    if isinstance(given, str):
        return _worded("\n".join([*said, given]))
    if not isinstance(given, list) or not given:
        raise Refused(400, "1 validation error: Field required", "Bad Request", "body.input")
    return _worded("\n".join([*said, *(_content(item, image_tokens) for item in given)]))


def embedding_prompts(given: object) -> list[Prompt]:
    """Every input of an embeddings request. Raises Refused."""
    if isinstance(given, str) or _is_ids(given):
        return [completion_prompt(given)]
    if isinstance(given, list) and given:
        return [completion_prompt(one) for one in given]
    raise Refused(400, "1 validation error: Field required", "Bad Request", "body.input")


def document_texts(documents: object) -> list[str]:
    """The documents to be ranked. Raises Refused."""
    given = documents if isinstance(documents, list) else []
    texts = [one.get("text") if isinstance(one, dict) else one for one in given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Refused(400, "1 validation error: documents must be a list of texts", "Bad Request", "body.documents")
    return [str(text) for text in texts]


def _worded(text: str) -> Prompt:
    return Prompt(text, text.split())


def _is_ids(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(token, int) for token in given)


def _content(message: object, image_tokens: int | None) -> str:
    """What one message says; an image is as many words of its own as it has tokens."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if isinstance(message, dict) and content is None:
        said = [message[field] for field in ("tool_calls", "arguments", "output") if message.get(field)]
        if said:
            return json.dumps(said)
    parts = content if isinstance(content, list) else [None]
    return " ".join(_part(part, image_tokens) for part in parts) if len(parts) > 1 else _part(parts[0], image_tokens)


def _part(part: object, image_tokens: int | None) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind in (*_TEXTS, None) and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in _IMAGES and image_tokens is not None:
        name = crc32(json.dumps(part, sort_keys=True).encode())
        return " ".join(f"image-{name:08x}-{index}" for index in range(image_tokens))
    raise Refused(400, "a message needs a content of text", "Bad Request", "body.messages")
